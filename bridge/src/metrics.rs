//! The bridge's metrics, `millpond_bridge_*` (docs/bridge.md). They decide nothing.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use crate::client::Partition;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct TopicLabels {
    pub(crate) topic: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct PartitionLabels {
    topic: String,
    partition: u32,
}

impl PartitionLabels {
    pub(crate) fn of((topic, partition): &Partition) -> PartitionLabels {
        PartitionLabels {
            topic: topic.clone(),
            partition: *partition,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct FailureLabels {
    /// `position`: another bridge has moved the position. `other`: not committed, or unknown.
    pub(crate) reason: &'static str,
}

#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    pub(crate) records: Family<TopicLabels, Counter>,
    pub(crate) bytes: Family<TopicLabels, Counter>,
    pub(crate) rejected: Family<TopicLabels, Counter>,
    pub(crate) commits_refused: Family<FailureLabels, Counter>,
    pub(crate) rebalances: Counter,
    pub(crate) partitions: Gauge,
    pub(crate) in_flight: Gauge,
    pub(crate) paused: Gauge,
    pub(crate) lag: Family<PartitionLabels, Gauge>,
    pub(crate) stopped: Family<PartitionLabels, Gauge>,
}

impl Metrics {
    pub(crate) fn register(registry: &mut Registry) -> Metrics {
        let metrics = Metrics {
            records: Family::default(),
            bytes: Family::default(),
            rejected: Family::default(),
            commits_refused: Family::default(),
            rebalances: Counter::default(),
            partitions: Gauge::default(),
            in_flight: Gauge::default(),
            paused: Gauge::default(),
            lag: Family::default(),
            stopped: Family::default(),
        };
        let registry = registry.sub_registry_with_prefix("millpond_bridge");
        let m = &metrics;
        registry.register(
            "records",
            "Kafka records committed to the buffer",
            m.records.clone(),
        );
        registry.register_with_unit(
            "read",
            "Size of the messages that were committed to the buffer",
            Unit::Bytes,
            m.bytes.clone(),
        );
        registry.register(
            "records_rejected",
            "Kafka records that do not match their topic's encoding, committed to the stream bridge.rejected",
            m.rejected.clone(),
        );
        registry.register(
            "commits_refused",
            "Messages that were not committed and are read again, by reason",
            m.commits_refused.clone(),
        );
        registry.register(
            "rebalances",
            "Assignments of partitions by Kafka's group",
            m.rebalances.clone(),
        );
        registry.register(
            "partitions",
            "Partitions that this process reads",
            m.partitions.clone(),
        );
        registry.register_with_unit(
            "in_flight",
            "Size of the records that are read and not committed yet",
            Unit::Bytes,
            m.in_flight.clone(),
        );
        registry.register(
            "paused",
            "1 while the bridge reads nothing because much is in flight",
            m.paused.clone(),
        );
        registry.register(
            "lag_records",
            "Offsets between the position in the manifest and the end of the partition",
            m.lag.clone(),
        );
        registry.register(
            "partition_stopped",
            "1 if the partition is not read: Kafka does not have its position, its records cannot be read, or the table of positions is full",
            m.stopped.clone(),
        );
        metrics
    }
}
