//! A store, or a cache before it, may show earlier manifests again. It goes on doing so if somebody restored one.

use std::time::Duration;

use tokio::time::Instant;

/// A store that has shown earlier manifests for so long goes on doing so.
const MAX: Duration = Duration::from_secs(30);

/// After a longer time without a read of an earlier manifest, nobody knows what the store has shown meanwhile.
const GAP: Duration = Duration::from_secs(10);

/// The time in which the store has shown earlier manifests, without a later one in between.
#[derive(Debug, Default)]
pub struct Past(Option<Shown>);

#[derive(Debug)]
struct Shown {
    since: Instant,
    last: Instant,
}

impl Past {
    /// Records that the store shows an earlier manifest. Returns true if it goes on doing so.
    pub fn shown(&mut self, now: Instant) -> bool {
        let before = self.0.take().filter(|shown| now - shown.last <= GAP);
        let since = before.map_or(now, |shown| shown.since);
        self.0 = Some(Shown { since, last: now });
        now - since >= MAX
    }

    /// Records that the store shows the latest manifest. Returns true if it showed an earlier one before.
    pub fn ends(&mut self) -> bool {
        self.0.take().is_some()
    }
}
