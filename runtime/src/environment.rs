//! The clocks and the random numbers, behind one trait so that a simulation can replace them. Timers are tokio's, which
//! a simulation pauses.

use std::time::{Duration, SystemTime, UNIX_EPOCH};
use ulid::Ulid;
use uuid::Uuid;

/// The source of time and random numbers. An implementation provides the first four methods; the others derive from
/// them.
pub trait Environment: Send + Sync + 'static {
    /// Unix time in microseconds, by the wall clock. It can jump.
    fn now_us(&self) -> i64;

    /// The time since some moment, on a clock that nobody sets and that advances while the machine is suspended.
    fn uptime(&self) -> Duration;

    /// Sixty-four random bits.
    fn random(&self) -> u64;

    /// `None`: work runs on the blocking pool, without a fixed duration. `Some`: it runs on the caller's thread after
    /// this time on tokio's clock, so that a simulation does not depend on threads.
    fn cpu_time(&self) -> Option<Duration> {
        None
    }

    /// Unix time in milliseconds, or 0 before 1970.
    fn now_ms(&self) -> u64 {
        u64::try_from(self.now_us() / 1_000).unwrap_or(0)
    }

    /// Unix time in nanoseconds to the microsecond, or 0 before 1970.
    fn now_ns(&self) -> u64 {
        u64::try_from(self.now_us()).unwrap_or(0).saturating_mul(1_000)
    }

    /// The wall clock's time, or 1970 if the clock is before that.
    fn system_time(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(u64::try_from(self.now_us()).unwrap_or(0))
    }

    /// A random number from 0 to 1, without 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit a double")]
    fn fraction(&self) -> f64 {
        (self.random() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A random number below `end`, or 0 if `end` is 0.
    fn below(&self, end: u32) -> u32 {
        let scaled = (u128::from(self.random()) * u128::from(end)) >> 64;
        u32::try_from(scaled).expect("less than the end")
    }

    /// Thirty-two random bits.
    fn random_u32(&self) -> u32 {
        (self.random() >> 32) as u32
    }

    /// A hundred and twenty-eight random bits.
    fn random_u128(&self) -> u128 {
        (u128::from(self.random()) << 64) | u128::from(self.random())
    }

    /// A random UUID (version 4).
    fn uuid(&self) -> Uuid {
        uuid::Builder::from_random_bytes(self.random_u128().to_be_bytes()).into_uuid()
    }

    /// Returns a name that sorts by time, with a time of at least `not_before_ms`.
    fn ulid(&self, not_before_ms: u64) -> Ulid {
        Ulid::from_parts(self.now_ms().max(not_before_ms), self.random_u128())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wall clock, and the next random number.
    struct Fixed(i64, u64);

    impl Environment for Fixed {
        fn now_us(&self) -> i64 {
            self.0
        }

        fn uptime(&self) -> Duration {
            Duration::ZERO
        }

        fn random(&self) -> u64 {
            self.1
        }
    }

    #[test]
    fn derived_numbers_stay_within_their_ranges() {
        for random in [0, 1, 1 << 32, 1 << 63, u64::MAX] {
            let environment = Fixed(0, random);
            assert!((0.0..1.0).contains(&environment.fraction()), "{random}");
            assert!(environment.below(3) < 3, "{random}");
            assert_eq!((environment.below(0), environment.below(1)), (0, 0));
            assert_eq!(environment.uuid().get_version_num(), 4);
        }
        assert_eq!(Fixed(0, u64::MAX).below(3), 2);
    }

    #[test]
    fn a_name_has_the_later_of_the_two_times() {
        let environment = Fixed(7_999, 5);
        assert_eq!(environment.ulid(0).timestamp_ms(), 7);
        assert_eq!(environment.ulid(9).timestamp_ms(), 9);
    }

    #[test]
    fn a_clock_before_1970_gives_zero() {
        let early = Fixed(-5_000_000, 0);
        assert_eq!(
            (early.now_ms(), early.now_ns(), early.system_time()),
            (0, 0, UNIX_EPOCH)
        );
    }
}
