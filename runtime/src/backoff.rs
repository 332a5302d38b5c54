//! The wait before the next attempt of a request that failed.

use crate::Environment;
use std::time::Duration;

/// Exponential backoff with full jitter: the n-th wait is uniform between zero and `initial × 2ⁿ`, at most `max`.
///
/// Full jitter spreads out writers that failed together, as in a contended compare-and-set.
#[derive(Debug, Clone)]
pub struct Backoff {
    initial: Duration,
    max: Duration,
    attempt: u32,
}

impl Backoff {
    /// Waits of up to `initial` at first, doubling up to `max`.
    pub fn new(initial: Duration, max: Duration) -> Self {
        Self {
            initial,
            max,
            attempt: 0,
        }
    }

    /// The next wait.
    pub fn next(&mut self, environment: &dyn Environment) -> Duration {
        let ceiling = self
            .initial
            .saturating_mul(1u32.checked_shl(self.attempt).unwrap_or(u32::MAX))
            .min(self.max);
        self.attempt = self.attempt.saturating_add(1);
        ceiling.mul_f64(environment.fraction())
    }

    /// Waits before the next attempt.
    pub async fn pause(&mut self, environment: &dyn Environment) {
        tokio::time::sleep(self.next(environment)).await;
    }

    /// Starts over after a success.
    pub fn reset(&mut self) {
        self.attempt = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SystemEnvironment;

    #[test]
    fn waits_grow_to_the_maximum_and_never_pass_it() {
        let initial = Duration::from_millis(10);
        let max = Duration::from_millis(100);
        let mut backoff = Backoff::new(initial, max);
        let mut longest = Duration::ZERO;
        for attempt in 0..10_000u32 {
            let wait = backoff.next(&SystemEnvironment);
            let ceiling = initial.saturating_mul(1 << attempt.min(20)).min(max);
            assert!(wait <= ceiling, "{wait:?} at attempt {attempt}");
            longest = longest.max(wait);
        }
        assert!(longest > max.mul_f64(0.9));
        backoff.reset();
        assert!(backoff.next(&SystemEnvironment) <= initial);
    }
}
