//! What a process waits for. `/readyz` and the status page show every wait, and the log reports each one when it begins
//! and again from time to time. Nothing is decided here.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tracing::{error, info, warn};

/// The interval at which the log repeats the same wait.
const REPEAT: Duration = Duration::from_secs(10);

/// The current waits of a process, or of a part of it. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Readiness {
    report: Arc<Mutex<Report>>,
    /// `None`: the whole process.
    part: Option<Arc<Part>>,
}

#[derive(Debug)]
struct Part {
    /// Begins the name of each wait.
    name: String,
    /// The process is ready without it.
    is_optional: AtomicBool,
}

#[derive(Debug, Default)]
struct Report {
    stopping: bool,
    waits: BTreeMap<String, Wait>,
}

#[derive(Debug)]
struct Wait {
    reason: String,
    is_optional: bool,
    began: Instant,
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
    /// A part of the process, which its waits name. It sees its own waits alone, and the process sees those of all parts that are not
    /// optional.
    pub fn part(&self, name: impl Display, is_optional: bool) -> Readiness {
        let part = Part {
            name: name.to_string(),
            is_optional: AtomicBool::new(is_optional),
        };
        Readiness {
            report: Arc::clone(&self.report),
            part: Some(Arc::new(part)),
        }
    }

    /// From now on, the process is ready only when this part is.
    pub fn matters(&self) {
        self.is_optional(false);
    }

    /// From now on, the process is ready without this part.
    pub fn matters_no_more(&self) {
        self.is_optional(true);
        for (what, wait) in &mut self.lock().waits {
            wait.is_optional |= self.part.is_some() && self.is_own(what);
        }
    }

    fn is_optional(&self, is_optional: bool) {
        if let Some(part) = &self.part {
            part.is_optional.store(is_optional, Relaxed);
        }
    }

    fn key(&self, what: &str) -> String {
        match &self.part {
            Some(part) => format!("{}: {what}", part.name),
            None => what.to_owned(),
        }
    }

    fn is_own(&self, key: &str) -> bool {
        self.part.as_ref().is_none_or(|part| {
            key.strip_prefix(&part.name)
                .is_some_and(|rest| rest.starts_with(": "))
        })
    }

    /// Returns the reasons why the process is not ready, for people. Empty when it is at work.
    pub fn waiting_for(&self) -> Vec<String> {
        let report = self.lock();
        if report.stopping {
            return vec!["stopping".to_owned()];
        }
        self.shown(&report, Duration::ZERO).collect()
    }

    /// Shows the newest reason of a wait, and logs one from time to time.
    pub fn waits(&self, what: &str, reason: impl Display, level: Level) {
        let what = self.key(what);
        let waits = &mut self.lock().waits;
        let began = waits.get(&what).map_or_else(Instant::now, |wait| wait.began);
        let logged = waits.get(&what).map(|wait| wait.logged);
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
        let part = self.part.as_ref();
        let wait = Wait {
            reason,
            is_optional: part.is_some_and(|part| part.is_optional.load(Relaxed)),
            began,
            logged,
        };
        waits.insert(what, wait);
    }

    /// Ends a wait, if there is one.
    pub fn goes_on(&self, what: &str) {
        let what = self.key(what);
        if self.lock().waits.remove(&what).is_some() {
            info!("{what}: resolved");
        }
    }

    /// The reason of a wait.
    pub fn reason(&self, what: &str) -> Option<String> {
        let what = self.key(what);
        self.lock().waits.get(&what).map(|wait| wait.reason.clone())
    }

    /// All waits in one sentence, also while the process stops. `None` without a wait.
    pub fn sentence(&self) -> Option<String> {
        self.long_waits(Duration::ZERO)
    }

    /// The waits that have lasted at least this long, in one sentence. `None` without one.
    pub fn long_waits(&self, least: Duration) -> Option<String> {
        let waits: Vec<_> = self.shown(&self.lock(), least).collect();
        (!waits.is_empty()).then(|| waits.join("; "))
    }

    /// Drops all waits. Those that still matter return at the next attempt.
    pub fn forget(&self) {
        self.lock().waits.retain(|what, _| !self.is_own(what));
    }

    /// Shows that the process accepts nothing more, also if a part calls it.
    pub fn stops(&self) {
        self.lock().stopping = true;
    }

    fn lock(&self) -> MutexGuard<'_, Report> {
        // A panic while the lock was held leaves the report valid, because every change is one call.
        self.report.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shown(&self, report: &Report, least: Duration) -> impl Iterator<Item = String> {
        let is_shown = move |what: &str, wait: &Wait| match &self.part {
            Some(_) => self.is_own(what),
            None => !wait.is_optional,
        };
        let own = report
            .waits
            .iter()
            .filter(move |(what, wait)| wait.began.elapsed() >= least && is_shown(what, wait));
        own.map(|(what, wait)| format!("{what}: {}", wait.reason))
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
    fn a_part_sees_its_own_waits_and_the_process_sees_all() {
        let process = Readiness::default();
        let parts = [1, 12].map(|shard| process.part(format_args!("shard {shard}"), false));
        process.waits("reading", "a timeout", Level::Warn);
        for (part, reason) in parts.iter().zip(["connection reset", "connection refused"]) {
            part.waits("writing", reason, Level::Warn);
        }
        assert_eq!(
            process.waiting_for(),
            [
                "reading: a timeout",
                "shard 12: writing: connection refused",
                "shard 1: writing: connection reset"
            ]
        );
        assert_eq!(parts[0].reason("writing").as_deref(), Some("connection reset"));
        assert_eq!(
            parts[0].sentence().as_deref(),
            Some("shard 1: writing: connection reset")
        );
        parts[0].forget();
        assert_eq!((parts[0].sentence(), process.waiting_for().len()), (None, 2));
        parts[1].goes_on("writing");
        assert_eq!(process.waiting_for(), ["reading: a timeout"]);
    }

    #[test]
    fn a_process_is_ready_without_its_optional_parts() {
        let process = Readiness::default();
        let part = process.part("shard 3", true);
        part.waits("opening", "a timeout", Level::Warn);
        assert_eq!(process.waiting_for(), Vec::<String>::new());
        assert_eq!(part.sentence().as_deref(), Some("shard 3: opening: a timeout"));
        part.goes_on("opening");
        part.matters();
        part.waits("writing", "a timeout", Level::Warn);
        assert_eq!(process.waiting_for(), ["shard 3: writing: a timeout"]);
        process.waits("reading", "a timeout", Level::Warn);
        part.matters_no_more();
        assert_eq!(process.waiting_for(), ["reading: a timeout"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_has_lasted_since_its_first_reason() {
        let readiness = Readiness::default();
        readiness.waits("writing", "a timeout", Level::Warn);
        tokio::time::sleep(Duration::from_secs(5)).await;
        readiness.waits("writing", "connection refused", Level::Warn);
        readiness.waits("reading", "a timeout", Level::Warn);
        let long = || readiness.long_waits(Duration::from_secs(5));
        assert_eq!(long().as_deref(), Some("writing: connection refused"));
        readiness.goes_on("writing");
        assert_eq!(long(), None);
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
