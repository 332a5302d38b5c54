//! Counts the work in the pipeline, so that its stages know whether more is about to come. It decides nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counts of one producer. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flow(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    waiting: AtomicU64,
    messages: AtomicU64,
    closed: AtomicU64,
}

/// A caller that waits for its answer, for as long as this lives.
pub(crate) struct Waiting(Flow);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Flow {
    pub(crate) fn wait(&self) -> Waiting {
        self.0.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(self.clone())
    }

    /// The number of callers that wait for an answer.
    pub(crate) fn waiting(&self) -> u64 {
        self.0.waiting.load(Ordering::Relaxed)
    }

    pub(crate) fn message(&self) {
        self.0.messages.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn segment_closed(&self) {
        self.0.closed.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of messages taken.
    pub(crate) fn messages(&self) -> u64 {
        self.0.messages.load(Ordering::Relaxed)
    }

    /// The number of segments closed.
    pub(crate) fn closed(&self) -> u64 {
        self.0.closed.load(Ordering::Relaxed)
    }
}
