//! The consumer's metrics. Names and labels are stable. Only the stream label has open values, and the manifest bounds
//! their number.

use crate::bottleneck::Resource;
use crate::discovery::Fallback;
use crate::rounds::Found;
use millpond_manifest::Lag;
use millpond_manifest::cursor::Plan;
use millpond_manifest::dead_letter::Kind;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Labels of the metrics by stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct StreamLabel {
    pub(crate) stream: String,
}

/// Labels of the metrics by stream and shard. Only the owner of the shard's cursor exports them.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ShardLabel {
    pub(crate) shard: u32,
    pub(crate) stream: String,
}

/// A stage in which work is in flight or waits for its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[expect(non_camel_case_types, reason = "the names are the label's values")]
pub(crate) enum Stage {
    /// Batches that wait for memory.
    memory,
    /// Parts of segments.
    fetch,
    /// Batches to cut into chunks.
    decode,
    /// Chunks.
    write,
}

/// Labels of the metrics by stage.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct StageLabel {
    stage: Stage,
}

/// Labels of the bottleneck.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ResourceLabel {
    pub(crate) resource: Resource,
}

/// Labels of the chunks that the consumer asked the sink for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct FoundLabel {
    /// `nothing`, `some` or `all` of the rows.
    found: &'static str,
}

/// Labels of the returns from a leader to polls.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct FallbackLabel {
    reason: Fallback,
}

/// Counts one piece of work in a stage, or one shard, until it is dropped.
pub(crate) struct InStage(Gauge);

impl InStage {
    pub(crate) fn of(gauge: &Gauge) -> InStage {
        gauge.inc();
        InStage(gauge.clone())
    }
}

impl Drop for InStage {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Labels of the metrics by consumer name, for all processes of the consumer.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConsumerLabel {
    consumer: String,
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
    pub(crate) hedged_fetches: Counter,
    pub(crate) inserted_bytes: Counter,
    pub(crate) latency: Family<StreamLabel, Histogram>,
    pub(crate) queue: Family<StageLabel, Gauge>,
    pub(crate) fetch_seconds: Histogram,
    pub(crate) decode_seconds: Histogram,
    pub(crate) write_seconds: Histogram,
    pub(crate) write_retries: Counter,
    pub(crate) chunks_asked: Family<FoundLabel, Counter>,
    pub(crate) cursor_commits: Counter,
    pub(crate) cursor_commit_seconds: Histogram,
    pub(crate) cursor_conflicts: Counter,
    pub(crate) cursor_unknown: Counter,
    pub(crate) replayed_batches: Counter,
    pub(crate) fenced: Counter,
    /// Shards whose leader tells this process of commits.
    pub(crate) watched_shards: Gauge,
    pub(crate) watch_states: Counter,
    watch_fallbacks: Family<FallbackLabel, Counter>,
    pub(crate) running: Gauge,
    pub(crate) held_bytes: Gauge,
    /// Shards of the buffer, with or without an owner.
    pub(crate) shards: Gauge,
    pub(crate) owned_shards: Gauge,
    pub(crate) shard_failures: Counter,
    /// Processes of this consumer that divide the shards, this one included.
    pub(crate) members: Gauge,
    pub(crate) backlog_records: Family<ShardLabel, Gauge>,
    pub(crate) backlog_bytes: Family<ShardLabel, Gauge>,
    pub(crate) backlog_seconds: Family<ShardLabel, Gauge<f64, AtomicU64>>,
    pub(crate) bottleneck: Family<ResourceLabel, Gauge>,
    pub(crate) dead_letters: Family<DeadLabel, Counter>,
    /// Rows that the deduplication dropped.
    pub(crate) duplicates: Family<StreamLabel, Counter>,
    pub(crate) unique_late: Family<StreamLabel, Counter>,
    pub(crate) unique_misrouted: Family<StreamLabel, Counter>,
    pub(crate) unique_keys: Gauge,
    pub(crate) unique_keys_limit: Gauge,
    /// The bytes of the backlog by shard and stream: nobody can sum a [`Family`].
    backlog: Arc<Mutex<BTreeMap<(u32, String), u64>>>,
}

impl Metrics {
    /// Registers the metrics of a process of this consumer.
    pub(crate) fn register(registry: &mut Registry, consumer: &str) -> Self {
        let label = ConsumerLabel {
            consumer: consumer.to_owned(),
        };
        let (shards, owned_shards) = (
            Family::<ConsumerLabel, Gauge>::default(),
            Family::<ConsumerLabel, Gauge>::default(),
        );
        // Steps of 15 %, fine enough for percentiles, from 10 ms to about 10 minutes.
        let latency = || Histogram::new(exponential_buckets(0.01, 1.15, 80));
        // 5 ms to 82 s.
        let seconds = || Histogram::new(exponential_buckets(0.005, 2.0, 15));
        let metrics = Metrics {
            records: Family::default(),
            batches: Family::default(),
            chunks: Family::default(),
            fetched_bytes: Counter::default(),
            hedged_fetches: Counter::default(),
            inserted_bytes: Counter::default(),
            latency: Family::new_with_constructor(latency),
            queue: Family::default(),
            fetch_seconds: seconds(),
            decode_seconds: seconds(),
            write_seconds: seconds(),
            write_retries: Counter::default(),
            chunks_asked: Family::default(),
            cursor_commits: Counter::default(),
            cursor_commit_seconds: seconds(),
            cursor_conflicts: Counter::default(),
            cursor_unknown: Counter::default(),
            replayed_batches: Counter::default(),
            fenced: Counter::default(),
            watched_shards: Gauge::default(),
            watch_states: Counter::default(),
            watch_fallbacks: Family::default(),
            running: Gauge::default(),
            held_bytes: Gauge::default(),
            shards: shards.get_or_create(&label).clone(),
            owned_shards: owned_shards.get_or_create(&label).clone(),
            shard_failures: Counter::default(),
            members: Gauge::default(),
            backlog_records: Family::default(),
            backlog_bytes: Family::default(),
            backlog_seconds: Family::default(),
            bottleneck: Family::default(),
            dead_letters: Family::default(),
            duplicates: Family::default(),
            unique_late: Family::default(),
            unique_misrouted: Family::default(),
            unique_keys: Gauge::default(),
            unique_keys_limit: Gauge::default(),
            backlog: Arc::default(),
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
            "hedged_fetches",
            "Second requests for a part of a segment, because the first took longer than 95% of those of its size",
            m.hedged_fetches.clone(),
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
        registry.register(
            "queue",
            "Work in a stage or waiting for its turn: batches that wait for memory, parts to fetch, batches to decode, chunks to write",
            m.queue.clone(),
        );
        registry.register_with_unit(
            "fetch",
            "Duration of one attempt to fetch a batch's part of a segment",
            Unit::Seconds,
            m.fetch_seconds.clone(),
        );
        registry.register_with_unit(
            "decode",
            "Time to decode messages and make a chunk of them",
            Unit::Seconds,
            m.decode_seconds.clone(),
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
        for found in [Found::Nothing, Found::Some, Found::All] {
            drop(m.chunks_asked.get_or_create(&FoundLabel::of(found)));
        }
        registry.register(
            "chunks_asked",
            "Chunks in doubt, by how much of them the sink had when it was asked: nothing, some, or all",
            m.chunks_asked.clone(),
        );
        registry.register(
            "cursor_commits",
            "Swaps of the cursor that succeeded",
            m.cursor_commits.clone(),
        );
        registry.register_with_unit(
            "cursor_commit",
            "Duration of one swap of the cursor, whatever its outcome",
            Unit::Seconds,
            m.cursor_commit_seconds.clone(),
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
        registry.register(
            "watched_shards",
            "Shards whose leader tells this process of commits; it polls the store for the others",
            m.watched_shards.clone(),
        );
        registry.register(
            "watch_states",
            "Manifests that leaders sent",
            m.watch_states.clone(),
        );
        for reason in Fallback::ALL {
            drop(m.watch_fallbacks.get_or_create(&FallbackLabel { reason }));
        }
        registry.register(
            "watch_fallbacks",
            "Returns from a leader to polls of the store, by reason",
            m.watch_fallbacks.clone(),
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
            owned_shards,
        );
        registry.register(
            "shard_failures",
            "Times that a shard could not go on while others did; each is tried again after a minute",
            m.shard_failures.clone(),
        );
        registry.register(
            "members",
            "Processes of this consumer that divide the shards, as this one sees them; 0 with one shard",
            m.members.clone(),
        );
        registry.register(
            "shards",
            "Shards of the buffer, whoever holds their cursors",
            shards,
        );
        registry.register(
            "backlog_records",
            "Records committed and not acknowledged",
            m.backlog_records.clone(),
        );
        registry.register(
            "backlog_bytes",
            "Their bytes in the store",
            m.backlog_bytes.clone(),
        );
        registry.register_with_unit(
            "backlog",
            "Since the oldest of them was committed, by its producer's clock; 0 when there is none",
            Unit::Seconds,
            m.backlog_seconds.clone(),
        );
        for resource in Resource::ALL {
            drop(m.bottleneck.get_or_create(&ResourceLabel { resource }));
        }
        registry.register(
            "bottleneck",
            "1 while the backlog grows because this resource is in use to its limit: sink (it rejects INSERTs), memory, writers, decoders, fetchers",
            m.bottleneck.clone(),
        );
        registry.register(
            "dead_letters",
            "Records that the sink refused for good (reason=refused), and messages that cannot be read (reason=unreadable)",
            m.dead_letters.clone(),
        );
        registry.register(
            "duplicates",
            "Rows dropped because an earlier row has their key (--unique)",
            m.duplicates.clone(),
        );
        registry.register(
            "unique_late",
            "Rows whose key nobody remembers, because they reached the log later than the window (--unique)",
            m.unique_late.clone(),
        );
        registry.register(
            "unique_misrouted",
            "Rows in another shard than that of their key, where nothing compares them with the rows of their shard (--unique)",
            m.unique_misrouted.clone(),
        );
        registry.register(
            "unique_keys",
            "Keys that this process remembers (--unique)",
            m.unique_keys.clone(),
        );
        registry.register(
            "unique_keys_limit",
            "Keys that this process may remember (--unique-memory)",
            m.unique_keys_limit.clone(),
        );
        metrics
    }
}

impl FoundLabel {
    fn of(found: Found) -> FoundLabel {
        let found = match found {
            Found::Nothing => "nothing",
            Found::Some => "some",
            Found::All => "all",
        };
        FoundLabel { found }
    }
}

impl Metrics {
    /// Counts a chunk that the consumer asked the sink for.
    pub(crate) fn count_asked(&self, found: Found) {
        self.chunks_asked.get_or_create(&FoundLabel::of(found)).inc();
    }

    /// Counts a piece of work in this stage until the returned value is dropped.
    pub(crate) fn enter(&self, stage: Stage) -> InStage {
        InStage::of(&self.queue.get_or_create(&StageLabel { stage }))
    }

    /// Counts a return from a leader to polls.
    pub(crate) fn fell_back(&self, reason: Fallback) {
        self.watch_fallbacks
            .get_or_create(&FallbackLabel { reason })
            .inc();
    }

    /// Exports the lag of this consumer in a stream of the shard.
    pub(crate) fn show_backlog(&self, shard: u32, stream: &str, lag: &Lag, now_ms: u64) {
        let labels = ShardLabel {
            shard,
            stream: stream.to_owned(),
        };
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let age_ms = lag
            .oldest_committed_at_ms
            .map_or(0, |committed| now_ms.saturating_sub(committed));
        self.backlog_records
            .get_or_create(&labels)
            .set(whole(lag.records));
        self.backlog_bytes
            .get_or_create(&labels)
            .set(whole(lag.stored_bytes));
        self.backlog()
            .insert((shard, stream.to_owned()), lag.stored_bytes);
        self.backlog_seconds
            .get_or_create(&labels)
            .set(Duration::from_millis(age_ms).as_secs_f64());
        // `increase()` does not see a counter that first appears with the value 1.
        for reason in [Kind::Refused, Kind::Unreadable].map(Kind::name) {
            drop(self.dead_letters.get_or_create(&DeadLabel {
                stream: stream.to_owned(),
                reason,
            }));
        }
        for counters in [&self.duplicates, &self.unique_late, &self.unique_misrouted] {
            drop(counters.get_or_create(&label(stream)));
        }
    }

    /// The bytes in the store of everything that this process has to write.
    pub(crate) fn backlog_total(&self) -> u64 {
        self.backlog().values().sum()
    }

    fn backlog(&self) -> MutexGuard<'_, BTreeMap<(u32, String), u64>> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pieces of work in this stage.
    pub(crate) fn queued(&self, stage: Stage) -> i64 {
        self.queue.get_or_create(&StageLabel { stage }).get()
    }

    /// Drops the gauges: the new owner of the cursor exports them.
    pub(crate) fn forget_backlog(&self, shard: u32, stream: &str) {
        let labels = ShardLabel {
            shard,
            stream: stream.to_owned(),
        };
        self.backlog_records.remove(&labels);
        self.backlog_bytes.remove(&labels);
        self.backlog().remove(&(shard, stream.to_owned()));
        self.backlog_seconds.remove(&labels);
    }
}

pub(crate) fn label(stream: &str) -> StreamLabel {
    StreamLabel {
        stream: stream.to_owned(),
    }
}

/// Formats a batch's sequences for logs.
pub(crate) fn range(plan: Plan) -> String {
    format!("{}-{}", plan.low, plan.high)
}
