//! The only module that reads the time of day, draws random numbers and starts threads. A simulation replaces it.
//!
//! Timers are tokio's, which a simulation can pause.
#![expect(clippy::disallowed_methods, reason = "this is the module that owns them")]

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millpond_manifest::ProducerId;
use millpond_storage::Backoff;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::sleep;
use ulid::Ulid;

/// The time of day and a source of random numbers. Clones share both.
#[derive(Clone)]
pub struct Environment {
    clock: Arc<dyn Fn() -> u64 + Send + Sync>,
    rng: Arc<Mutex<StdRng>>,
    /// The maximum duration of CPU work in a simulation with one thread.
    cpu_time_max: Option<Duration>,
}

impl Environment {
    /// The machine's clock, and random numbers seeded by its operating system.
    pub fn system() -> Self {
        let clock = || {
            let since = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or(Duration::ZERO);
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        };
        Self::new(clock, rand::random())
    }

    /// Uses the caller's clock (unix milliseconds) and random numbers that follow from `seed`.
    pub fn new(clock: impl Fn() -> u64 + Send + Sync + 'static, seed: u64) -> Self {
        Self {
            clock: Arc::new(clock),
            rng: Arc::new(Mutex::new(StdRng::seed_from_u64(seed))),
            cpu_time_max: None,
        }
    }

    /// Does CPU work on the caller's thread instead of the blocking pool, after a time of up to `cpu_time_max` on
    /// tokio's clock. The seed determines that time, so a simulation does not depend on threads.
    #[must_use]
    pub fn on_one_thread(mut self, cpu_time_max: Duration) -> Self {
        self.cpu_time_max = Some(cpu_time_max);
        self
    }

    /// Does CPU work. An error is the panic of that work.
    pub(crate) async fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let Some(longest) = self.cpu_time_max else {
            return spawn_blocking(work).await;
        };
        sleep(longest.mul_f64(self.with_rng(RngExt::random))).await;
        Ok(work())
    }

    pub(crate) fn unix_ms(&self) -> u64 {
        (self.clock)()
    }

    fn with_rng<T>(&self, draw: impl FnOnce(&mut StdRng) -> T) -> T {
        draw(&mut self.rng.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns a name that sorts by time, with a time of at least `not_before_ms`.
    pub(crate) fn ulid(&self, not_before_ms: u64) -> Ulid {
        Ulid::from_parts(self.unix_ms().max(not_before_ms), self.with_rng(RngExt::random))
    }

    pub(crate) fn producer_id(&self) -> ProducerId {
        ProducerId(self.with_rng(RngExt::random))
    }

    pub(crate) fn uuid(&self) -> uuid::Uuid {
        uuid::Builder::from_random_bytes(self.with_rng(RngExt::random)).into_uuid()
    }

    pub(crate) fn nonce(&self) -> u64 {
        self.with_rng(RngExt::random)
    }

    pub(crate) fn below(&self, end: u32) -> u32 {
        self.with_rng(|rng| rng.random_range(0..end.max(1)))
    }

    pub(crate) fn next_wait(&self, backoff: &mut Backoff) -> Duration {
        self.with_rng(|rng| backoff.next(rng))
    }
}
