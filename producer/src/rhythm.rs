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
    fn ahead(&self) -> Rhythm {
        Rhythm {
            at: self.at + self.every.saturating_sub(self.every / AHEAD),
            every: self.every,
        }
    }

    /// The time to close a follower's segment with a first message at this time. The rhythm is known to a few milliseconds: a
    /// segment that has just begun does not close at once.
    pub(crate) fn close_at(&self, first_at: Instant) -> Instant {
        let slack = self.every / AHEAD / 2;
        self.ahead().next_after(first_at + slack)
    }

    /// The time to send blocks that are ready now, together with those of the segment that closes next. `None`: at once, since
    /// the next point is near.
    pub(crate) fn send_at(&self, now: Instant) -> Option<Instant> {
        let ahead = self.every / AHEAD;
        let close_at = self.next_after(now) - ahead;
        (close_at > now).then(|| close_at + ahead / 4)
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
    fn blocks_that_missed_a_point_wait_for_the_next() {
        let start = Instant::now() + 100 * SECOND;
        let rhythm = Rhythm::new(start, SECOND).unwrap();
        let millis = Duration::from_millis;
        let send_at = start + millis(925);
        assert_eq!(rhythm.send_at(start), Some(send_at));
        assert_eq!(rhythm.send_at(start + millis(899)), Some(send_at));
        assert_eq!(rhythm.send_at(start + millis(900)), None);
        assert_eq!(rhythm.send_at(start + millis(999)), None);
    }

    #[test]
    fn followers_are_ahead() {
        let start = Instant::now() + 100 * SECOND;
        let rhythm = Rhythm::new(start, SECOND).unwrap().ahead();
        assert_eq!(rhythm.next_after(start), start + Duration::from_millis(900));
    }
}
