//! When the keys of a stream are stored, and when they leave the memory.

use millpond_manifest::{UniqueReference, UniqueSetting};
use std::time::Duration;

/// A snapshot has this share of all keys at least, and of the window, unless it has many keys.
pub(super) const SHARE: u32 = 64;

/// The longest pause after a failed attempt to store the keys of a silent stream.
const RETRY: Duration = Duration::from_secs(300);

/// The longest pause after several such attempts that loaded keys.
const RETRY_LOAD: Duration = Duration::from_secs(3_600);

/// The times of a consumer, besides those of each setting.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// The shortest and the longest time between two snapshots of a stream with few new keys.
    pub(crate) interval: [Duration; 2],
    /// The shortest time that the keys of a silent stream stay in memory.
    pub(crate) rest: Duration,
}

impl Times {
    /// The time after which a stream with few new keys, or without parts, gets another snapshot.
    pub(crate) fn interval(&self, setting: &UniqueSetting) -> Duration {
        let [min, max] = self.interval;
        (Duration::from_millis(setting.window_ms) / SHARE).clamp(min, max)
    }

    /// The pause after a failed attempt to store the keys of a silent stream. It doubles with each of the `loads` attempts that loaded
    /// keys, because a load may be expensive.
    pub(crate) fn after_failure(&self, setting: &UniqueSetting, loads: u32) -> Duration {
        let first = self.interval(setting).min(RETRY);
        let doubled = first.saturating_mul(1 << loads.saturating_sub(1).min(16));
        doubled.min(RETRY_LOAD)
    }

    /// The time until the next snapshot is due after a restart. Restarts do not delay it, and neither does a clock that was ahead when
    /// it named the last one.
    pub(crate) fn next_in(&self, setting: &UniqueSetting, last: UniqueReference, now_ms: u64) -> Duration {
        let interval = self.interval(setting);
        let age = now_ms.checked_sub(last.id.timestamp_ms());
        age.map_or(Duration::ZERO, |age| {
            interval.saturating_sub(Duration::from_millis(age))
        })
    }

    /// The time after which a stream without batches gives back the memory of its keys.
    pub(super) fn rests_after(&self, setting: &UniqueSetting) -> Duration {
        let window = Duration::from_millis(setting.window_ms);
        window.max(self.interval(setting)).max(self.rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use ulid::Ulid;

    #[test]
    fn a_snapshot_is_due_an_interval_after_the_last_one_whoever_wrote_it() {
        let times = Config::default().key_times();
        let setting = UniqueSetting {
            key: vec!["id".into()],
            window_ms: 8 * 3_600_000,
        };
        let due_in = |written_ms: u64, now_ms: u64| {
            let last = UniqueReference {
                next: 1,
                id: Ulid::from_parts(written_ms, 0),
            };
            times.next_in(&setting, last, now_ms).as_secs()
        };
        assert_eq!(times.interval(&setting).as_secs(), 450);
        assert_eq!(due_in(1_000_000, 1_000_000), 450);
        assert_eq!(due_in(1_000_000, 1_400_000), 50);
        assert_eq!(due_in(1_000_000, 9_000_000), 0);
        assert_eq!(due_in(9_000_000, 1_000_000), 0, "a clock was ahead");
    }

    #[test]
    fn failed_loads_become_rare() {
        let times = Config::default().key_times();
        let setting = UniqueSetting {
            key: vec!["id".into()],
            window_ms: 8 * 3_600_000,
        };
        let pauses = [0, 1, 2, 4, 5, 100].map(|loads| times.after_failure(&setting, loads).as_secs());
        assert_eq!(pauses, [300, 300, 600, 2_400, 3_600, 3_600]);
    }

    #[test]
    fn the_keys_of_a_short_window_do_not_leave_between_two_batches() {
        let times = Config::default().key_times();
        let after = |window_ms: u64| {
            let key = vec!["id".into()];
            times.rests_after(&UniqueSetting { key, window_ms }).as_secs()
        };
        assert_eq!(after(60_000), 600);
        assert_eq!(after(8 * 3_600_000), 8 * 3_600);
    }
}
