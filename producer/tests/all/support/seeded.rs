//! A clock, and random numbers that follow from a seed.

use super::START_MS;
use millpond_runtime::Environment;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

pub(crate) struct Seeded {
    /// The time at which the clock began to run. `None`: it stands still.
    began: Option<Instant>,
    rng: Mutex<StdRng>,
}

impl Seeded {
    /// The wall clock always shows [`START_MS`].
    pub(crate) fn standing(seed: u64) -> Arc<Seeded> {
        Self::new(None, seed)
    }

    /// The wall clock follows tokio's clock from `began` on.
    pub(crate) fn running(began: Instant, seed: u64) -> Arc<Seeded> {
        Self::new(Some(began), seed)
    }

    fn new(began: Option<Instant>, seed: u64) -> Arc<Seeded> {
        let rng = Mutex::new(StdRng::seed_from_u64(seed));
        Arc::new(Seeded { began, rng })
    }
}

impl Environment for Seeded {
    fn now_us(&self) -> i64 {
        let time = Duration::from_millis(START_MS) + self.uptime();
        i64::try_from(time.as_micros()).unwrap()
    }

    fn uptime(&self) -> Duration {
        self.began.map_or(Duration::ZERO, |began| began.elapsed())
    }

    fn random(&self) -> u64 {
        self.rng.lock().unwrap().random()
    }
}
