//! A model of S3's latency: log-normal to the first byte, then a connection's bandwidth.
//!
//! The numbers come from `design/performance.md`. Pure: random numbers come from the caller.

use rand::{Rng, RngExt};
use std::time::Duration;

/// The distribution of a store's response times.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct S3Latency {
    /// Writes and deletions: time to the answer, in addition to the body's transfer.
    pub put: LogNormal,
    /// Reads and listings: time to the first byte.
    pub get: LogNormal,
    /// Bandwidth of one connection, in bytes per second.
    pub bytes_per_second: f64,
}

/// A log-normal distribution, given by two quantiles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogNormal {
    /// The median.
    pub p50: Duration,
    /// The 99th percentile.
    pub p99: Duration,
}

impl Default for S3Latency {
    fn default() -> Self {
        Self {
            put: LogNormal {
                p50: Duration::from_millis(60),
                p99: Duration::from_millis(250),
            },
            get: LogNormal {
                p50: Duration::from_millis(25),
                p99: Duration::from_millis(150),
            },
            bytes_per_second: 80e6,
        }
    }
}

impl S3Latency {
    /// The transfer time of a body on one connection.
    pub fn transfer(&self, bytes: u64) -> Duration {
        #[expect(clippy::cast_precision_loss, reason = "a delay needs no more than 52 bits")]
        let seconds = bytes as f64 / self.bytes_per_second;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }
}

impl LogNormal {
    /// One draw.
    pub fn draw(&self, rng: &mut impl Rng) -> Duration {
        /// The standard normal distribution's 99th percentile.
        const Z99: f64 = 2.326_347_874;
        let sigma = (self.p99.as_secs_f64() / self.p50.as_secs_f64()).ln() / Z99;
        // Box–Muller transform; 1 − u is never zero.
        let (u, v) = (1.0 - rng.random::<f64>(), rng.random::<f64>());
        let z = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
        Duration::try_from_secs_f64(self.p50.as_secs_f64() * (sigma * z).exp()).unwrap_or(self.p50)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    #[test]
    fn draws_have_the_stated_quantiles() {
        let mut rng = StdRng::seed_from_u64(7);
        for wanted in [S3Latency::default().put, S3Latency::default().get] {
            let mut draws: Vec<_> = (0..100_000).map(|_| wanted.draw(&mut rng)).collect();
            draws.sort_unstable();
            let near = |got: Duration, want: Duration| {
                let ratio = got.as_secs_f64() / want.as_secs_f64();
                assert!((0.95..1.05).contains(&ratio), "{got:?}, not {want:?}");
            };
            near(draws[50_000], wanted.p50);
            near(draws[99_000], wanted.p99);
        }
    }

    #[test]
    fn a_segment_of_16_mib_takes_a_fifth_of_a_second_on_the_wire() {
        let time = S3Latency::default().transfer(16 << 20);
        assert!((0.20..0.22).contains(&time.as_secs_f64()), "{time:?}");
    }
}
