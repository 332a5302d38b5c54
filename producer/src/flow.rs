//! Counts the work in the pipeline, so that its last stage knows whether more is about to come. It decides nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The counts of the accumulator. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flow(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    messages: AtomicU64,
    closed: AtomicU64,
}

impl Flow {
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
