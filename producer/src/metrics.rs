//! The producer's metrics, `millpond_producer_*`; design/producer.md lists them. They decide nothing.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::clients::KINDS;
use crate::forward::REASONS;
use millpond_runtime::Budget;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct AttemptLabels {
    /// `committed`, `mismatch` or `unknown`.
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct FallbackLabels {
    /// Why the leader did not commit.
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct ClientLabels {
    /// Why a numbered request was not appended.
    outcome: &'static str,
}

#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    pub(crate) blocks_encoding: Gauge,
    pub(crate) segments_uploading: Gauge,
    pub(crate) segments_uncommitted: Gauge,
    pub(crate) segments: Counter,
    pub(crate) blocks: Counter,
    pub(crate) messages: Counter,
    pub(crate) records: Counter,
    pub(crate) raw_bytes: Counter,
    pub(crate) stored_bytes: Counter,
    pub(crate) refused: Counter,
    pub(crate) upload_retries: Counter,
    pub(crate) reuploads: Counter,
    pub(crate) pages: Counter,
    pub(crate) commit_attempts: Family<AttemptLabels, Counter>,
    pub(crate) commits_found: Counter,
    pub(crate) expired: Counter,
    pub(crate) leads: Gauge,
    pub(crate) shard: Gauge,
    pub(crate) open: Gauge,
    pub(crate) home_refused: Counter,
    pub(crate) looks: Counter,
    pub(crate) appended_bytes: Counter,
    pub(crate) delegated_bytes: Counter,
    pub(crate) fallbacks: Family<FallbackLabels, Counter>,
    pub(crate) commits_for_others: Counter,
    pub(crate) numbers_spent: Counter,
    pub(crate) client_requests_settled: Family<ClientLabels, Counter>,
    pub(crate) watchers: Gauge,
    pub(crate) watch_answers: Counter,
    pub(crate) upload_seconds: Histogram,
    pub(crate) commit_seconds: Histogram,
    pub(crate) linger_seconds: Histogram,
    pub(crate) commit_segments: Histogram,
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry, budget: &Budget) -> Self {
        // 5 ms to 82 s.
        let seconds = || Histogram::new(exponential_buckets(0.005, 2.0, 15));
        let metrics = Self {
            blocks_encoding: Gauge::default(),
            segments_uploading: Gauge::default(),
            segments_uncommitted: Gauge::default(),
            segments: Counter::default(),
            blocks: Counter::default(),
            messages: Counter::default(),
            records: Counter::default(),
            raw_bytes: Counter::default(),
            stored_bytes: Counter::default(),
            refused: Counter::default(),
            upload_retries: Counter::default(),
            reuploads: Counter::default(),
            pages: Counter::default(),
            commit_attempts: Family::default(),
            commits_found: Counter::default(),
            expired: Counter::default(),
            leads: Gauge::default(),
            shard: Gauge::default(),
            open: Gauge::default(),
            home_refused: Counter::default(),
            looks: Counter::default(),
            appended_bytes: Counter::default(),
            delegated_bytes: Counter::default(),
            fallbacks: Family::default(),
            commits_for_others: Counter::default(),
            numbers_spent: Counter::default(),
            client_requests_settled: Family::default(),
            watchers: Gauge::default(),
            watch_answers: Counter::default(),
            upload_seconds: seconds(),
            commit_seconds: seconds(),
            linger_seconds: seconds(),
            commit_segments: Histogram::new(exponential_buckets(1.0, 2.0, 11)),
        };
        let to = registry.sub_registry_with_prefix("millpond_producer");
        to.register_collector(Box::new(BudgetGauges(budget.clone())));
        let m = metrics.clone();
        to.register(
            "blocks_encoding",
            "Blocks waiting for an encoder or in one",
            m.blocks_encoding,
        );
        to.register(
            "segments_uploading",
            "Segments waiting for an uploader or in one",
            m.segments_uploading,
        );
        to.register(
            "segments_uncommitted",
            "Segments uploaded and not yet committed",
            m.segments_uncommitted,
        );
        to.register(
            "segments",
            "Segments that this producer uploaded and that were committed",
            m.segments,
        );
        to.register("blocks", "Blocks committed", m.blocks);
        to.register("messages", "Messages committed", m.messages);
        to.register("records", "Records committed", m.records);
        to.register(
            "raw_bytes",
            "Uncompressed bytes of the blocks committed",
            m.raw_bytes,
        );
        to.register(
            "stored_bytes",
            "Bytes of the segments that this producer uploaded and that were committed",
            m.stored_bytes,
        );
        to.register(
            "refused",
            "Appends refused: over budget, closed or not acceptable",
            m.refused,
        );
        to.register(
            "upload_retries",
            "Uploads tried again after an error of the store",
            m.upload_retries,
        );
        to.register(
            "reuploads",
            "Segments uploaded again under a new name, for the orphan floor",
            m.reuploads,
        );
        to.register(
            "pages",
            "Pages that a full tail of the manifest was sealed into",
            m.pages,
        );
        to.register(
            "commit_attempts",
            "Compare-and-sets of the manifest by outcome",
            m.commit_attempts,
        );
        let found = "Commits found in the manifest after an unknown outcome";
        to.register("commits_found", found, m.commits_found);
        to.register(
            "expired",
            "Times that the manifest had forgotten this producer",
            m.expired,
        );
        to.register(
            "leads",
            "Shards in which this process commits for others",
            m.leads,
        );
        to.register("open", "Shards that this process has an open producer in", m.open);
        to.register(
            "home_refused",
            "Requests refused because the shard that they belong to, by number or by key, cannot be used now",
            m.home_refused,
        );
        to.register("looks", "Looks for new shards, a GET each", m.looks);
        to.register("shard", "Shard of requests that belong to no other", m.shard);
        to.register(
            "appended_bytes",
            "Compressed bytes of the segments whose blocks the leader committed",
            m.appended_bytes,
        );
        to.register(
            "delegated_bytes",
            "Bytes of the segments that this producer uploaded and the leader committed",
            m.delegated_bytes,
        );
        to.register(
            "fallbacks",
            "Commits made without the leader, by its reason",
            m.fallbacks,
        );
        to.register(
            "commits_for_others",
            "Requests of other producers that this one committed",
            m.commits_for_others,
        );
        to.register(
            "numbers_spent",
            "Numbers used without records, because the log refused a request that was sent to the leader under them",
            m.numbers_spent,
        );
        to.register(
            "client_requests_settled",
            "Numbered requests of clients that were answered without appending them, by outcome",
            m.client_requests_settled,
        );
        for outcome in KINDS.into_iter().chain(["joined"]) {
            drop(
                metrics
                    .client_requests_settled
                    .get_or_create(&ClientLabels { outcome }),
            );
        }
        to.register(
            "watchers",
            "Connections of consumers that this producer tells of commits while it leads",
            m.watchers,
        );
        to.register(
            "watch_answers",
            "Manifests that this producer sent to consumers",
            m.watch_answers,
        );
        // A reason without a fallback is 0, not absent.
        for reason in REASONS {
            drop(metrics.fallbacks.get_or_create(&FallbackLabels { reason }));
        }
        let upload = "Time from the first attempt to upload a segment to its success";
        to.register_with_unit("upload", upload, Unit::Seconds, m.upload_seconds);
        let commit = "Time from the first attempt at a commit to its success";
        to.register_with_unit("commit", commit, Unit::Seconds, m.commit_seconds);
        let linger = "Time from a segment's first message to its closing";
        to.register_with_unit("linger", linger, Unit::Seconds, m.linger_seconds);
        to.register("commit_segments", "Segments in one commit", m.commit_segments);
        metrics
    }

    pub(crate) fn fallback(&self, reason: &'static str) {
        self.fallbacks.get_or_create(&FallbackLabels { reason }).inc();
    }

    pub(crate) fn client_settled(&self, outcome: &'static str) {
        self.client_requests_settled
            .get_or_create(&ClientLabels { outcome })
            .inc();
    }

    pub(crate) fn attempt(&self, outcome: &'static str) {
        self.commit_attempts
            .get_or_create(&AttemptLabels { outcome })
            .inc();
    }
}

/// Reads the budget at each export, so that no update can be missed.
#[derive(Debug)]
struct BudgetGauges(Budget);

impl Collector for BudgetGauges {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let gauges = [
            ("memory_held", "Bytes drawn from the budget", self.0.held()),
            (
                "memory_limit",
                "Bytes that may be drawn from the budget",
                self.0.limit(),
            ),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
            let unit = Unit::Bytes;
            let metric = encoder.encode_descriptor(name, help, Some(&unit), gauge.metric_type())?;
            gauge.encode(metric)?;
        }
        Ok(())
    }
}
