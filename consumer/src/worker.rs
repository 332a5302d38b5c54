//! What all batches of a process share: the store, the sink, the limits, the metrics.

use crate::metrics::Metrics;
use crate::repair::Tally;
use crate::sink::Sink;
use crate::streams::StreamPattern;
use millpond_runtime::{Budget, Environment, Readiness};
use millpond_segment::Encoding;
use millpond_storage::Store;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// The state that all batches of a process share.
pub(crate) struct BatchWorker {
    pub(crate) store: Store,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) streams: Vec<StreamPattern>,
    pub(crate) metrics: Metrics,
    pub(crate) readiness: Readiness,
    pub(crate) environment: Arc<dyn Environment>,
    /// The one budget for all bytes held for batches.
    pub(crate) memory: Budget,
    pub(crate) fetchers: Arc<Semaphore>,
    pub(crate) decoders: Arc<Semaphore>,
    pub(crate) writers: Arc<Semaphore>,
    pub(crate) dead_letters_max: usize,
    /// The counts of a repair.
    pub(crate) repair: Option<Tally>,
}

impl BatchWorker {
    /// Returns true if the settings select this stream.
    pub(crate) fn selects(&self, stream: &str) -> bool {
        self.streams.iter().any(|pattern| pattern.matches(stream))
    }

    /// Returns true if the settings select this stream and the sink accepts it.
    pub(crate) fn takes(&self, stream: &str, encoding: Encoding) -> bool {
        self.selects(stream) && self.sink.accepts(stream, encoding)
    }
}
