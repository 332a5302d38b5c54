//! What all batches of a process share: the store, the sink, the limits, the metrics.

use crate::hedge::Hedge;
use crate::metrics::Metrics;
use crate::repair::Tally;
use crate::sink::{Chunk, Sink};
use crate::streams::StreamPattern;
use crate::unique::{KeyLimit, Routing, Times};
use millpond_runtime::{Budget, Environment, Readiness};
use millpond_segment::Encoding;
use millpond_storage::Store;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Semaphore;

/// The state that all batches of a process share.
pub(crate) struct BatchWorker {
    pub(crate) store: Store,
    /// Second requests for parts that are late.
    pub(crate) hedge: Hedge,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) streams: Vec<StreamPattern>,
    pub(crate) metrics: Metrics,
    pub(crate) readiness: Readiness,
    pub(crate) environment: Arc<dyn Environment>,
    /// The one budget for all bytes held for batches.
    pub(crate) memory: Budget,
    /// The number of keys that the deduplication may remember.
    pub(crate) keys: KeyLimit,
    /// Keys are loaded to be stored for one stream at a time.
    pub(crate) loads: Arc<Semaphore>,
    /// The shards of the keys.
    pub(crate) routing: Routing,
    /// The number of new keys after which the deduplication of a stream writes a snapshot.
    pub(crate) snapshot_keys: u64,
    /// The number of bytes of a stream after which it writes one in any case.
    pub(crate) snapshot_bytes: u64,
    /// From this number of snapshots on, the next one merges the smallest.
    pub(crate) snapshots_named: usize,
    /// When the keys are stored, and when they leave the memory.
    pub(crate) key_times: Times,
    pub(crate) fetchers: Arc<Semaphore>,
    pub(crate) decoders: Arc<Semaphore>,
    pub(crate) writers: Arc<Semaphore>,
    /// The number of writers. A single batch may have all of them.
    pub(crate) writers_max: usize,
    pub(crate) dead_letters_max: usize,
    /// The progress of all batches.
    pub(crate) written: Written,
    /// Why this consumer falls behind, for people.
    pub(crate) bottleneck: Mutex<Option<String>>,
    /// The counts of a repair.
    pub(crate) repair: Option<Tally>,
}

/// What the sink has taken since the start.
#[derive(Debug, Default)]
pub(crate) struct Written {
    records: AtomicU64,
    raw_bytes: AtomicU64,
}

impl Written {
    pub(crate) fn add(&self, chunk: &Chunk) {
        self.records.fetch_add(chunk.rows, Ordering::Relaxed);
        self.raw_bytes.fetch_add(chunk.raw_bytes, Ordering::Relaxed);
    }

    /// Records and raw bytes.
    pub(crate) fn total(&self) -> [u64; 2] {
        [&self.records, &self.raw_bytes].map(|count| count.load(Ordering::Relaxed))
    }
}

impl BatchWorker {
    /// What this process waits for, and why it falls behind, for people.
    pub(crate) fn waiting_for(&self) -> Vec<String> {
        let bottleneck = self.bottleneck.lock().unwrap_or_else(PoisonError::into_inner);
        let mut waits = self.readiness.waiting_for();
        waits.extend(bottleneck.clone());
        waits
    }

    /// Returns true if the settings select this stream.
    pub(crate) fn selects(&self, stream: &str) -> bool {
        self.streams.iter().any(|pattern| pattern.matches(stream))
    }

    /// Returns true if the settings select this stream and the sink accepts it.
    pub(crate) fn takes(&self, stream: &str, encoding: Encoding) -> bool {
        self.selects(stream) && self.sink.accepts(stream, encoding)
    }
}
