//! The rhythm in which a leader closes its segments. Followers send their blocks shortly before, so that these wait neither
//! here nor there, and one number in flight is enough.

use std::time::Duration;

use tokio::time::Instant;

/// Blocks are sent this fraction of an interval before the leader closes its segment.
const AHEAD: u32 = 10;

/// Points in time at a constant distance.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rhythm {
    at: Instant,
    every: Duration,
}

impl Rhythm {
    /// One of the points, and the distance. `None` without a distance.
    pub(crate) fn new(at: Instant, every: Duration) -> Option<Rhythm> {
        (!every.is_zero()).then_some(Rhythm { at, every })
    }

    /// The distance.
    pub(crate) fn every(&self) -> Duration {
        self.every
    }

    /// The same rhythm as followers keep it.
    pub(crate) fn ahead(&self) -> Rhythm {
        Rhythm {
            at: self.at + self.every.saturating_sub(self.every / AHEAD),
            every: self.every,
        }
    }

    /// The first point after a time.
    pub(crate) fn next_after(&self, time: Instant) -> Instant {
        let every = self.every.as_nanos();
        let past = time.saturating_duration_since(self.at).as_nanos() % every;
        let before = self.at.saturating_duration_since(time).as_nanos() % every;
        let wait = match before {
            0 => every - past,
            before => before,
        };
        time + Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_next_point_is_after_the_time_and_within_the_distance() {
        let start = Instant::now() + 100 * SECOND;
        let rhythm = Rhythm::new(start, SECOND).unwrap();
        let millis = Duration::from_millis;
        for (time, next) in [
            (start, start + SECOND),
            (start + millis(1), start + SECOND),
            (start + millis(2_999), start + 3 * SECOND),
            (start - millis(1), start),
            (start - SECOND, start),
            (start - millis(2_300), start - 2 * SECOND),
        ] {
            assert_eq!(rhythm.next_after(time), next, "{time:?}");
        }
        assert!(Rhythm::new(start, Duration::ZERO).is_none());
    }

    #[test]
    fn followers_are_ahead() {
        let start = Instant::now() + 100 * SECOND;
        let rhythm = Rhythm::new(start, SECOND).unwrap().ahead();
        assert_eq!(rhythm.next_after(start), start + Duration::from_millis(900));
    }
}
