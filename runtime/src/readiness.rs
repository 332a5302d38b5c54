//! What a process waits for. `/readyz` and the status page show every wait, and the log reports each one when it begins
//! and again from time to time. Nothing is decided here.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tracing::{error, info, warn};

/// The interval at which the log repeats the same wait.
const REPEAT: Duration = Duration::from_secs(10);

/// The current waits of a process. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<Mutex<Report>>);

#[derive(Debug, Default)]
struct Report {
    stopping: bool,
    waits: BTreeMap<String, Wait>,
}

#[derive(Debug)]
struct Wait {
    reason: String,
    logged: Instant,
}

/// The log level of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// The wait should pass by itself.
    Warn,
    /// Somebody has to act.
    Error,
}

impl Readiness {
    /// Returns the reasons why the process is not ready, for people. Empty when it is at work.
    pub fn waiting_for(&self) -> Vec<String> {
        let report = self.lock();
        if report.stopping {
            return vec!["stopping".to_owned()];
        }
        report.shown().collect()
    }

    /// Shows the newest reason of a wait, and logs one from time to time.
    pub fn waits(&self, what: &str, reason: impl Display, level: Level) {
        let waits = &mut self.lock().waits;
        let logged = waits.get(what).map(|wait| wait.logged);
        let logged = logged
            .filter(|logged| logged.elapsed() < REPEAT)
            .unwrap_or_else(|| {
                match level {
                    Level::Warn => warn!("{what}: {reason}; trying again"),
                    Level::Error => error!("{what}: {reason}; trying again until it is fixed"),
                }
                Instant::now()
            });
        let reason = reason.to_string();
        waits.insert(what.to_owned(), Wait { reason, logged });
    }

    /// Ends a wait, if there is one.
    pub fn goes_on(&self, what: &str) {
        if self.lock().waits.remove(what).is_some() {
            info!("{what}: resolved");
        }
    }

    /// The reason of a wait.
    pub fn reason(&self, what: &str) -> Option<String> {
        self.lock().waits.get(what).map(|wait| wait.reason.clone())
    }

    /// All waits in one sentence, also while the process stops. `None` without a wait.
    pub fn sentence(&self) -> Option<String> {
        let waits: Vec<_> = self.lock().shown().collect();
        (!waits.is_empty()).then(|| waits.join("; "))
    }

    /// Drops all waits. Those that still matter return at the next attempt.
    pub fn forget(&self) {
        self.lock().waits.clear();
    }

    /// Shows that the process accepts nothing more.
    pub fn stops(&self) {
        self.lock().stopping = true;
    }

    fn lock(&self) -> MutexGuard<'_, Report> {
        // A panic while the lock was held leaves the report valid, because every change is one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Report {
    fn shown(&self) -> impl Iterator<Item = String> {
        self.waits
            .iter()
            .map(|(what, wait)| format!("{what}: {}", wait.reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_reason_is_shown() {
        let readiness = Readiness::default();
        readiness.waits("writing", "connection reset", Level::Warn);
        readiness.waits("reading", "connection refused", Level::Warn);
        // ClickHouse is back, and reports what has happened to the table.
        readiness.waits("writing", "there is no table", Level::Error);
        assert_eq!(
            readiness.waiting_for(),
            ["reading: connection refused", "writing: there is no table"]
        );
        readiness.goes_on("reading");
        assert_eq!(readiness.waiting_for(), ["writing: there is no table"]);
        assert_eq!(readiness.reason("writing").as_deref(), Some("there is no table"));
        assert_eq!(readiness.reason("reading"), None);
    }

    #[test]
    fn a_process_that_stops_shows_only_that() {
        let readiness = Readiness::default();
        readiness.stops();
        assert_eq!(
            (readiness.waiting_for(), readiness.sentence()),
            (vec!["stopping".to_owned()], None)
        );
        readiness.waits("reading", "connection refused", Level::Warn);
        assert_eq!(readiness.waiting_for(), ["stopping"]);
        assert_eq!(
            readiness.sentence().as_deref(),
            Some("reading: connection refused")
        );
    }
}
