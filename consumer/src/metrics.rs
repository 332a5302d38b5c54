//! What the consumer counts. Names and labels are stable; the only label with open values is the
//! stream, whose number the manifest bounds.

use millpond_manifest::cursor::Plan;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

/// Labels of what is counted by stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct StreamLabel {
    pub(crate) stream: String,
}

/// Labels of dead letters.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct DeadLabel {
    pub(crate) stream: String,
    /// `refused`: records that the sink refused. `unreadable`: messages that cannot be read.
    pub(crate) reason: &'static str,
}

/// Every metric of the consumer, `millpond_consumer_…`.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    pub(crate) records: Family<StreamLabel, Counter>,
    pub(crate) batches: Family<StreamLabel, Counter>,
    pub(crate) chunks: Family<StreamLabel, Counter>,
    pub(crate) fetched_bytes: Counter,
    pub(crate) inserted_bytes: Counter,
    pub(crate) latency: Family<StreamLabel, Histogram>,
    pub(crate) write_seconds: Histogram,
    pub(crate) write_retries: Counter,
    pub(crate) cursor_commits: Counter,
    pub(crate) cursor_conflicts: Counter,
    pub(crate) cursor_unknown: Counter,
    pub(crate) replayed_batches: Counter,
    pub(crate) fenced: Counter,
    pub(crate) running: Gauge,
    pub(crate) held_bytes: Gauge,
    pub(crate) owned_shards: Gauge,
    pub(crate) backlog_records: Family<StreamLabel, Gauge>,
    pub(crate) dead_letters: Family<DeadLabel, Counter>,
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        // Fine enough to read a percentile from (steps of 15 %), from 10 ms to about 10 minutes.
        let latency = || Histogram::new(exponential_buckets(0.01, 1.15, 80));
        let metrics = Metrics {
            records: Family::default(),
            batches: Family::default(),
            chunks: Family::default(),
            fetched_bytes: Counter::default(),
            inserted_bytes: Counter::default(),
            latency: Family::new_with_constructor(latency),
            write_seconds: Histogram::new(exponential_buckets(0.005, 2.0, 15)),
            write_retries: Counter::default(),
            cursor_commits: Counter::default(),
            cursor_conflicts: Counter::default(),
            cursor_unknown: Counter::default(),
            replayed_batches: Counter::default(),
            fenced: Counter::default(),
            running: Gauge::default(),
            held_bytes: Gauge::default(),
            owned_shards: Gauge::default(),
            backlog_records: Family::default(),
            dead_letters: Family::default(),
        };
        let m = &metrics;
        let registry = registry.sub_registry_with_prefix("millpond_consumer");
        registry.register("records", "Records that the sink has taken", m.records.clone());
        registry.register(
            "batches",
            "Batches that the sink has taken whole",
            m.batches.clone(),
        );
        registry.register(
            "chunks",
            "Chunks (INSERTs) that the sink has taken",
            m.chunks.clone(),
        );
        registry.register(
            "fetched_bytes",
            "Bytes of segments fetched",
            m.fetched_bytes.clone(),
        );
        registry.register(
            "inserted_bytes",
            "Bytes sent to the sink in INSERTs that succeeded",
            m.inserted_bytes.clone(),
        );
        registry.register_with_unit(
            "latency",
            "From a message's reception to the INSERT's success, one observation a message and chunk",
            Unit::Seconds,
            m.latency.clone(),
        );
        registry.register_with_unit(
            "write",
            "Duration of one attempt to write a chunk",
            Unit::Seconds,
            m.write_seconds.clone(),
        );
        registry.register(
            "write_retries",
            "Attempts to write a chunk that had to be repeated",
            m.write_retries.clone(),
        );
        registry.register(
            "cursor_commits",
            "Swaps of the cursor that succeeded",
            m.cursor_commits.clone(),
        );
        registry.register(
            "cursor_conflicts",
            "Swaps of the cursor that were lost",
            m.cursor_conflicts.clone(),
        );
        registry.register(
            "cursor_unknown",
            "Swaps of the cursor whose outcome had to be looked up",
            m.cursor_unknown.clone(),
        );
        registry.register(
            "replayed_batches",
            "Batches sent again after a takeover",
            m.replayed_batches.clone(),
        );
        registry.register(
            "fenced",
            "Times that another owner took a cursor from this process",
            m.fenced.clone(),
        );
        registry.register("batches_running", "Batches under way", m.running.clone());
        registry.register(
            "held_bytes",
            "Bytes reserved for batches under way",
            m.held_bytes.clone(),
        );
        registry.register(
            "shards_owned",
            "Shards whose cursor this process holds",
            m.owned_shards.clone(),
        );
        registry.register(
            "backlog_records",
            "Records committed and not acknowledged",
            m.backlog_records.clone(),
        );
        registry.register(
            "dead_letters",
            "Records that the sink refused for good (reason=refused), and messages that cannot be read (reason=unreadable)",
            m.dead_letters.clone(),
        );
        metrics
    }
}

pub(crate) fn label(stream: &str) -> StreamLabel {
    StreamLabel {
        stream: stream.to_owned(),
    }
}

/// A batch's sequences, for logs.
pub(crate) fn range(plan: Plan) -> String {
    format!("{}-{}", plan.low, plan.high)
}
