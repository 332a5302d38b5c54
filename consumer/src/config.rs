//! The consumer's settings: one default each, with its reason.

use crate::repair::Repair;
use crate::start::Start;
use crate::streams::StreamPattern;
use millpond_manifest::{BatchingPolicy, layout};
use std::time::Duration;

/// How a consumer works. The defaults suit one ClickHouse server and segments from a few gateways.
#[derive(Debug, Clone)]
pub struct Config {
    /// The consumer's name: consumers with different names read the buffer independently.
    pub consumer: String,
    /// Which streams it takes, of those that its sink accepts: any of these.
    pub streams: Vec<StreamPattern>,
    /// Where its first start begins. Ignored if it has a cursor.
    pub start: Start,
    /// This process's name as an owner. An owner that comes back under its old name need not wait
    /// for its lease to run out, so give stable names only where two never live at once.
    pub instance: String,
    /// How long a cursor stays with an owner that shows no sign of life.
    pub lease: Duration,
    /// Take the cursors at once, whoever holds them.
    pub take_over: bool,
    /// How often the manifest is asked for news.
    pub poll_interval: Duration,
    /// How often acknowledgements are made durable when there is nothing to plan; sooner when nothing has been finished
    /// for a third of that (5 s: what a successor may have to ask the sink for).
    pub ack_interval: Duration,
    /// The most bytes held for batches that are under way.
    pub memory_limit: u64,
    /// Ranged GETs at a time.
    pub fetchers: usize,
    /// Batches decoded at a time.
    pub decoders: usize,
    /// INSERTs at a time.
    pub writers: usize,
    /// How long a stopping consumer works on what it has begun.
    pub drain_timeout: Duration,
    /// Records that a batch should have.
    pub batch_records: u64,
    /// Raw bytes that a batch should have.
    pub batch_bytes: u64,
    /// The most rows in one INSERT.
    pub chunk_rows: u64,
    /// The most uncompressed bytes in one INSERT.
    pub chunk_bytes: u64,
    /// The most partitions that one INSERT may touch.
    pub max_partitions_per_chunk: u32,
    /// Batches of a stream in flight past the acknowledged position.
    pub max_in_flight: u32,
    /// Dead letters that one batch may have. With more, it is not the rows that are wrong: the consumer ends.
    pub dead_letters_max: usize,
    /// Write to tables that another consumer of the buffer writes to.
    pub share_tables: bool,
    /// Compare these ranges with the sink and insert the missing rows, instead of reading on.
    pub repair: Option<Repair>,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            consumer: "default".into(),
            streams: vec![StreamPattern::any()],
            start: Start::Earliest,
            instance: "default".into(),
            lease: Duration::from_secs(15),
            take_over: false,
            poll_interval: Duration::from_millis(250),
            ack_interval: Duration::from_secs(5),
            memory_limit: 512 << 20,
            fetchers: 8,
            decoders: std::thread::available_parallelism().map_or(2, usize::from),
            writers: 2,
            drain_timeout: Duration::from_secs(30),
            batch_records: 100_000,
            batch_bytes: 64 << 20,
            chunk_rows: 100_000,
            chunk_bytes: 64 << 20,
            max_partitions_per_chunk: 50,
            max_in_flight: 16,
            dead_letters_max: 100,
            share_tables: false,
            repair: None,
        }
    }
}

impl Config {
    /// The name of its cursors.
    pub(crate) fn cursor(&self) -> String {
        match &self.repair {
            Some(_) => layout::repair(&self.consumer),
            None => self.consumer.clone(),
        }
    }

    /// The policy that this configuration asks for.
    pub(crate) fn policy(&self, sink: &str, schema_version: u32) -> BatchingPolicy {
        BatchingPolicy {
            batch_records: self.batch_records,
            batch_bytes: self.batch_bytes,
            chunk_rows: self.chunk_rows,
            chunk_bytes: self.chunk_bytes,
            max_partitions_per_chunk: self.max_partitions_per_chunk,
            max_in_flight: self.max_in_flight,
            sink: sink.to_owned(),
            schema_version,
        }
    }
}
