//! What all batches of a process share: the store, the sink, the limits, the metrics.

use crate::metrics::Metrics;
use crate::repair::Tally;
use crate::sink::Sink;
use crate::status::Status;
use crate::streams::StreamPattern;
use millpond_runtime::Environment;
use millpond_segment::Encoding;
use millpond_storage::Store;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The state that all batches of a process share.
pub(crate) struct BatchWorker {
    pub(crate) store: Store,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) streams: Vec<StreamPattern>,
    pub(crate) metrics: Metrics,
    pub(crate) status: Status,
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) memory: Memory,
    pub(crate) fetchers: Arc<Semaphore>,
    pub(crate) decoders: Arc<Semaphore>,
    pub(crate) writers: Arc<Semaphore>,
    pub(crate) dead_letters_max: usize,
    /// The counts of a repair.
    pub(crate) repair: Option<Tally>,
}

/// The one memory budget for all bytes held for batches.
pub(crate) struct Memory {
    free: Arc<Semaphore>,
    limit_kib: u32,
}

impl Memory {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        let limit_kib = u32::try_from(limit_bytes / 1024).unwrap_or(u32::MAX).max(1);
        Memory {
            free: Arc::new(Semaphore::new(limit_kib as usize)),
            limit_kib,
        }
    }

    /// Waits for memory, first come, first served, so that no batch starves. A request for more than the whole budget
    /// gets the whole budget and runs alone.
    pub(crate) async fn reserve(&self, bytes: u64) -> OwnedSemaphorePermit {
        let kib = u32::try_from(bytes.div_ceil(1024))
            .unwrap_or(u32::MAX)
            .min(self.limit_kib);
        let permit = self.free.clone().acquire_many_owned(kib).await;
        permit.expect("the semaphore is never closed")
    }

    pub(crate) fn held(&self) -> u64 {
        (u64::from(self.limit_kib) - self.free.available_permits() as u64) * 1024
    }
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
