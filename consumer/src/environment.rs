//! The wall clock, the random numbers and the threads, behind one trait so that a simulation can replace them. Safety
//! depends on none of them: the clock only times actions, and the nonce only tells states apart.

use millpond_storage::Backoff;
use rand::SeedableRng;
use rand::rngs::SmallRng;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::spawn_blocking;

/// The source of time, random numbers and threads.
pub trait Environment: Send + Sync + 'static {
    /// Unix time in microseconds.
    fn now_us(&self) -> i64;
    /// The time since some moment, on a clock that nobody sets and that advances while the machine is suspended.
    fn uptime(&self) -> Duration;
    /// Sixty-four random bits.
    fn random(&self) -> u64;
    /// `None`: CPU work runs on the blocking pool, without a fixed duration. `Some`: it runs on the caller's thread
    /// after this time on tokio's clock, so that a simulation does not depend on threads.
    fn cpu_time(&self) -> Option<Duration> {
        None
    }
}

/// The machine's own clock and generator.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemEnvironment;

impl Environment for SystemEnvironment {
    fn now_us(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
    }

    fn uptime(&self) -> Duration {
        uptime()
    }

    fn random(&self) -> u64 {
        rand::random()
    }
}

/// On Linux, `Instant` stands still while the machine is suspended.
#[cfg(target_os = "linux")]
fn uptime() -> Duration {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
        .expect("Linux has this clock since 2.6.39")
        .into()
}

#[cfg(not(target_os = "linux"))]
fn uptime() -> Duration {
    static BEGAN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    BEGAN.get_or_init(std::time::Instant::now).elapsed()
}

pub(crate) fn now_ms(environment: &dyn Environment) -> u64 {
    u64::try_from(environment.now_us() / 1_000).unwrap_or(0)
}

/// Waits before the next attempt, with the jitter drawn from the environment.
pub(crate) async fn pause(environment: &dyn Environment, backoff: &mut Backoff) {
    let wait = backoff.next(&mut SmallRng::seed_from_u64(environment.random()));
    tokio::time::sleep(wait).await;
}

/// Runs short CPU work on the blocking pool.
pub(crate) async fn cpu<T: Send + 'static>(
    environment: &dyn Environment,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    if let Some(time) = environment.cpu_time() {
        tokio::time::sleep(time).await;
        return work();
    }
    let done = spawn_blocking(work).await;
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}
