//! The consumer's current waits. The log reports each when it begins and again from time to time, and `/readyz` shows
//! them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tracing::{error, info, warn};

/// The interval at which the log repeats the same wait.
const REPEAT: Duration = Duration::from_secs(10);

/// The consumer's readiness, shared with the server of `/readyz`.
#[derive(Debug, Clone, Default)]
pub struct Status(Arc<Mutex<BTreeMap<String, Wait>>>);

#[derive(Debug)]
struct Wait {
    reason: String,
    logged_at: Instant,
}

/// The log level of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// The wait should pass by itself.
    Warn,
    /// Somebody has to act.
    Error,
}

impl Status {
    /// Returns the current waits. Empty when the consumer is at work.
    pub fn waiting_for(&self) -> Vec<String> {
        self.lock().values().map(|wait| wait.reason.clone()).collect()
    }

    /// Shows the newest reason, and logs one from time to time.
    pub(crate) fn waits(&self, what: &str, reason: &str, level: Level) {
        let mut waits = self.lock();
        let logged_at = waits.get(what).map(|wait| wait.logged_at);
        let logged_at = logged_at
            .filter(|logged_at| logged_at.elapsed() < REPEAT)
            .unwrap_or_else(|| {
                match level {
                    Level::Warn => warn!("{what}: {reason}; trying again"),
                    Level::Error => error!("{what}: {reason}; trying again until it is fixed"),
                }
                Instant::now()
            });
        let reason = format!("{what}: {reason}");
        waits.insert(what.to_owned(), Wait { reason, logged_at });
    }

    pub(crate) fn goes_on(&self, what: &str) {
        if self.lock().remove(what).is_some() {
            info!("{what}: works again");
        }
    }

    /// Drops all waits. Those that still matter return at the next attempt.
    pub(crate) fn forget(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Wait>> {
        // A panic while the lock was held leaves the map valid, because every change is one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_reason_is_shown() {
        let status = Status::default();
        status.waits("writing", "connection reset", Level::Warn);
        status.waits("reading", "connection refused", Level::Warn);
        // ClickHouse is back, and reports what has happened to the table.
        status.waits("writing", "there is no table", Level::Error);
        assert_eq!(
            status.waiting_for(),
            ["reading: connection refused", "writing: there is no table"]
        );
        status.goes_on("reading");
        assert_eq!(status.waiting_for(), ["writing: there is no table"]);
    }
}
