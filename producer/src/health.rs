//! The producer's current wait, for `/readyz` and the log. It decides nothing.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// The producer's readiness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readiness {
    /// The last request of every kind to the store succeeded.
    Ready,
    /// The producer keeps retrying; the sentence names the stage and the reason.
    Waiting(String),
    /// The producer was told to drain.
    Closed,
}

/// A stage of the pipeline that the store can hold up.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    Upload,
    Commit,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Upload => "upload",
            Stage::Commit => "commit",
        })
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Health {
    /// The current wait of each stage.
    waiting: Arc<Mutex<[Option<String>; 2]>>,
}

impl Health {
    /// Logs one line when a stage is held up, not one per attempt.
    pub(crate) fn held_up(&self, stage: Stage, reason: &dyn fmt::Display) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = &mut waiting[stage as usize];
        if slot.is_none() {
            tracing::warn!("{stage} is waiting for the store and keeps retrying: {reason}");
        } else {
            tracing::debug!("{stage} still waits: {reason}");
        }
        *slot = Some(reason.to_string());
    }

    pub(crate) fn got_on(&self, stage: Stage) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting[stage as usize].take().is_some() {
            tracing::info!("{stage} goes on: the store answers again");
        }
    }

    /// The current wait of a stage.
    pub(crate) fn reason(&self, stage: Stage) -> Option<String> {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting[stage as usize].clone()
    }

    pub(crate) fn readiness(&self) -> Readiness {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let reasons = [Stage::Upload, Stage::Commit].into_iter().filter_map(|stage| {
            waiting[stage as usize]
                .as_ref()
                .map(|reason| format!("waiting for the store ({stage}): {reason}"))
        });
        let reasons: Vec<_> = reasons.collect();
        if reasons.is_empty() {
            Readiness::Ready
        } else {
            Readiness::Waiting(reasons.join("; "))
        }
    }
}
