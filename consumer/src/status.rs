//! What the consumer waits for, if anything: said in the log when it begins, again from time to
//! time, and to whoever asks whether the consumer is ready.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tracing::{error, info, warn};

/// How often the same wait is logged again.
const REPEAT: Duration = Duration::from_secs(10);

/// The consumer's readiness, shared with whoever serves `/readyz`.
#[derive(Debug, Clone, Default)]
pub struct Status(Arc<Mutex<BTreeMap<String, Wait>>>);

#[derive(Debug)]
struct Wait {
    reason: String,
    said: Instant,
}

/// How loud a wait is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// It should pass by itself.
    Warn,
    /// Somebody has to do something.
    Error,
}

impl Status {
    /// Empty when the consumer is at work; else what it waits for.
    pub fn waiting_for(&self) -> Vec<String> {
        self.lock().values().map(|wait| wait.reason.clone()).collect()
    }

    pub(crate) fn waits(&self, what: &str, reason: &str, level: Level) {
        let mut waits = self.lock();
        let known = waits.get(what).filter(|wait| wait.said.elapsed() < REPEAT);
        if known.is_none() {
            match level {
                Level::Warn => warn!("{what}: {reason}; trying again"),
                Level::Error => error!("{what}: {reason}; trying again until it is mended"),
            }
            let wait = Wait {
                reason: format!("{what}: {reason}"),
                said: Instant::now(),
            };
            waits.insert(what.to_owned(), wait);
        }
    }

    pub(crate) fn goes_on(&self, what: &str) {
        if self.lock().remove(what).is_some() {
            info!("{what}: works again");
        }
    }

    /// Nothing of what was waited for matters any more; what still does is said again at the next attempt.
    pub(crate) fn forget(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, Wait>> {
        // A panic while it was held leaves the map as good as before: every change is one call.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
