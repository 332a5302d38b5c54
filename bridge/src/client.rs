//! The callbacks of librdkafka. They only take notes: the bridge's loop acts on them between two polls.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::types::RDKafkaRespErr;
use rdkafka::{ClientContext, Statistics, TopicPartitionList};

/// A topic and a partition.
pub(crate) type Partition = (String, u32);

/// A change of the partitions that this member reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Change {
    /// These are its partitions.
    Assigned(Vec<Partition>),
    /// It has none.
    Revoked,
}

/// How far a partition goes, and how far librdkafka has read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The end, as far as Kafka has told it.
    pub(crate) end: u64,
    /// The offset from which librdkafka asks for more. It also passes offsets without a record.
    pub(crate) next: Option<u64>,
}

#[derive(Debug, Default)]
struct Notes {
    changes: VecDeque<Change>,
    extents: HashMap<Partition, Extent>,
    problem: Option<String>,
    is_connected: bool,
    is_committing: bool,
    is_closing: bool,
}

/// The notes of the callbacks.
#[derive(Debug, Default)]
pub(crate) struct Context(Mutex<Notes>);

impl Context {
    fn notes(&self) -> MutexGuard<'_, Notes> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next change of the group.
    pub(crate) fn change(&self) -> Option<Change> {
        self.notes().changes.pop_front()
    }

    /// The extent of a partition, as of the last statistics.
    pub(crate) fn extent(&self, partition: &Partition) -> Option<Extent> {
        self.notes().extents.get(partition).copied()
    }

    /// Takes note of a commit of offsets that Kafka has not answered.
    pub(crate) fn commits(&self) {
        self.notes().is_committing = true;
    }

    /// Returns true if Kafka has not answered a commit of offsets. librdkafka begins no partition in the meantime.
    pub(crate) fn is_committing(&self) -> bool {
        self.notes().is_committing
    }

    /// From now on partitions are given back at once: the loop is over.
    pub(crate) fn close(&self) {
        self.notes().is_closing = true;
    }

    /// Returns true if a broker was connected lately.
    pub(crate) fn is_connected(&self) -> bool {
        self.notes().is_connected
    }

    /// The last error since the previous call.
    pub(crate) fn problem(&self) -> Option<String> {
        self.notes().problem.take()
    }
}

/// The partitions of a list.
pub(crate) fn partitions(list: &TopicPartitionList) -> Vec<Partition> {
    let elements = list.elements();
    let partition = |element: &rdkafka::topic_partition_list::TopicPartitionListElem<'_>| {
        let number = u32::try_from(element.partition()).ok()?;
        Some((element.topic().to_owned(), number))
    };
    elements.iter().filter_map(partition).collect()
}

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, fac: &str, message: &str) {
        // Errors also arrive at `error`, once each; the bridge shows them by its readiness.
        tracing::debug!(?level, fac, "librdkafka: {message}");
    }

    fn stats(&self, statistics: Statistics) {
        let mut notes = self.notes();
        notes.is_connected = statistics.brokers.values().any(|broker| broker.state == "UP");
        for (topic, of_topic) in statistics.topics {
            for (partition, of_partition) in of_topic.partitions {
                let end = u64::try_from(of_partition.ls_offset);
                if let (Ok(partition), Ok(end)) = (u32::try_from(partition), end) {
                    let next = u64::try_from(of_partition.next_offset).ok();
                    let extent = Extent { end, next };
                    notes.extents.insert((topic.clone(), partition), extent);
                }
            }
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // It follows the errors that say why.
        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::AllBrokersDown) {
            return;
        }
        self.notes().problem = Some(format!("{error}: {reason}"));
    }
}

impl ConsumerContext for Context {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        change: RDKafkaRespErr,
        list: &mut TopicPartitionList,
    ) {
        let change = match change {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => Change::Assigned(partitions(list)),
            _ => Change::Revoked,
        };
        let is_closing = self.notes().is_closing;
        if !is_closing {
            self.notes().changes.push_back(change);
        } else if let Err(error) = consumer.unassign() {
            tracing::debug!("Kafka's client keeps its partitions: {error}");
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, _: &TopicPartitionList) {
        self.notes().is_committing = false;
        if let Err(error) = result {
            // For tools only: nothing depends on it.
            tracing::debug!("offsets were not committed to Kafka: {error}");
        }
    }
}

/// Kafka's offsets have 63 bits.
pub(crate) fn signed(offset: u64) -> i64 {
    i64::try_from(offset).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned(offset: i64) -> u64 {
    u64::try_from(offset).unwrap_or_default()
}
