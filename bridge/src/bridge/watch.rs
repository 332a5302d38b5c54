//! The bridge's reports: offsets for Kafka's tools, lags, and the waits that no single record shows.

use std::sync::Arc;
use std::time::Duration;

use millpond_runtime::{Level, blocking};
use rdkafka::Offset;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::metadata::Metadata;
use rdkafka::topic_partition_list::TopicPartitionList;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Answer, GROUP, KAFKA, Loop, NOT_COMMITTED, PLACE, REFUSED, STANDS, TOPIC, UNREADABLE, some_of};
use crate::client::{Context, signed};
use crate::commits::commit;
use crate::metrics::PartitionLabels;
use crate::partition::Reading;

/// Time between two commits of offsets to Kafka, and between two updates of the lags.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Time between two questions about topics that Kafka does not have.
const TOPICS_INTERVAL: Duration = Duration::from_secs(10);

/// The wait for an answer about one topic.
const TOPIC_ANSWER: Duration = Duration::from_secs(1);

/// How long a rebalance may take before it shows.
const GROUP_WAIT: Duration = Duration::from_secs(10);

/// librdkafka tells only once that a partition may not be read. After this time it is made to try again.
const REFUSED_INTERVAL: Duration = Duration::from_secs(20);

/// A refusal of records.
#[derive(Debug, Clone, Copy)]
pub(super) struct Refused {
    at: Instant,
    /// Whether librdkafka has begun to read again since.
    is_tried_again: bool,
}

/// Kafka's answer about the topics.
#[derive(Debug)]
pub(super) enum Topics {
    /// It has all of them.
    Complete,
    /// It has not: the reason.
    Missing(String),
    /// It did not tell about all of them.
    Unknown,
}

impl Loop {
    /// Tells from time to time how far the bridge is.
    pub(super) fn watch(&mut self) {
        if self.reported_at.elapsed() < REPORT_INTERVAL {
            return;
        }
        self.reported_at = Instant::now();
        self.show_lags();
        if !self.consumer.context().is_committing() {
            self.commit_offsets();
        }
        self.watch_partitions();
        self.watch_arrivals();
        self.watch_connection();
        self.watch_group();
        self.watch_refusal();
        self.look_for_topics();
    }

    fn show_lags(&self) {
        for (partition, reading) in &self.readings {
            let extent = self.consumer.context().extent(partition);
            let (Some(committed), Some(extent)) = (reading.committed, extent) else {
                continue;
            };
            let labels = PartitionLabels::of(partition);
            let lag = i64::try_from(extent.end.saturating_sub(committed)).unwrap_or(i64::MAX);
            self.bridge.metrics.lag.get_or_create(&labels).set(lag);
        }
    }

    /// Tells Kafka's tools how far the bridge is. Nothing else depends on it.
    pub(super) fn commit_offsets(&self) {
        let mut list = TopicPartitionList::new();
        for ((topic, partition), reading) in &self.readings {
            if let Some(committed) = reading.committed {
                let offset = Offset::Offset(signed(committed));
                // A partition that the group assigned has a number that the list takes.
                let _ = list.add_partition_offset(topic, partition.cast_signed(), offset);
            }
        }
        if list.count() == 0 {
            return;
        }
        match commit(&self.consumer, &list) {
            Ok(()) => self.consumer.context().commits(),
            Err(error) => tracing::debug!("offsets were not committed to Kafka: {error}"),
        }
    }

    /// A partition that failed once may do so again at once: only time, or a commit, shows that it does not.
    fn watch_partitions(&self) {
        let now = Instant::now();
        if self.readings.values().all(|reading| reading.is_well(now)) {
            for wait in [PLACE, NOT_COMMITTED, UNREADABLE] {
                self.bridge.readiness.goes_on(wait);
            }
        }
    }

    /// A partition that cannot be read is not read, whether librdkafka has an error for it or is silent.
    fn watch_arrivals(&mut self) {
        let now = Instant::now();
        let mut standing = Vec::new();
        for (partition, reading) in &mut self.readings {
            reading.listen(self.consumer.context().extent(partition), self.is_paused, now);
            let stands_at = reading.stands_at(now);
            if let Some(offset) = stands_at {
                standing.push(format!("{}/{} at offset {offset}", partition.0, partition.1));
            }
            let labels = PartitionLabels::of(partition);
            let stopped = &self.bridge.metrics.stopped;
            match stands_at.or_else(|| reading.unreadable_at()) {
                Some(_) => {
                    stopped.get_or_create(&labels).set(1);
                }
                None => {
                    stopped.remove(&labels);
                }
            }
        }
        match standing.is_empty() {
            true => self.bridge.readiness.goes_on(STANDS),
            false => self
                .bridge
                .readiness
                .waits(STANDS, some_of(standing), Level::Warn),
        }
    }

    fn watch_connection(&self) {
        let (context, readiness) = (self.consumer.context(), &self.bridge.readiness);
        match context.problem() {
            Some(problem) => readiness.waits(KAFKA, problem, Level::Warn),
            None if context.is_connected() => readiness.goes_on(KAFKA),
            None => {}
        }
    }

    /// A bridge that its group leaves out reads nothing, whatever its connections are.
    fn watch_group(&self) {
        if self
            .without_group
            .is_none_or(|since| since.elapsed() < GROUP_WAIT)
        {
            return;
        }
        let reason = self.last_error.as_deref();
        let reason = reason.unwrap_or("it has assigned no partitions yet");
        self.bridge.readiness.waits(GROUP, reason, Level::Warn);
    }

    /// Takes note of a refusal to give records.
    pub(super) fn refused(&mut self, reason: &str) {
        let advice = format!("{reason}. Grant the right to read --topics");
        self.bridge.readiness.waits(REFUSED, advice, Level::Error);
        self.refused = Some(Refused {
            at: Instant::now(),
            is_tried_again: false,
        });
    }

    fn watch_refusal(&mut self) {
        let Some(refused) = self.refused else { return };
        if refused.at.elapsed() < REFUSED_INTERVAL {
            return;
        }
        if !refused.is_tried_again {
            self.fail_all();
        } else if self.readings.values().all(Reading::takes_records) {
            self.refused = None;
            self.bridge.readiness.goes_on(REFUSED);
            return;
        }
        // Until all have begun again, nothing is tried.
        self.refused = Some(Refused {
            at: Instant::now(),
            is_tried_again: true,
        });
    }

    /// A topic that does not exist has no partitions, so nothing else would show that it is missing.
    fn look_for_topics(&mut self) {
        if self
            .topics_asked_at
            .is_some_and(|at| at.elapsed() < TOPICS_INTERVAL)
            || self.is_asking_for_topics
        {
            return;
        }
        (self.is_asking_for_topics, self.topics_asked_at) = (true, Some(Instant::now()));
        let (consumer, shutdown) = (Arc::clone(&self.consumer), self.shutdown.clone());
        let topics = self.bridge.config.topics.clone();
        let environment = Arc::clone(&self.bridge.positions.environment);
        let question = async move {
            let look = move || look_for(&topics, &consumer, &shutdown);
            Answer::Topics(blocking::compute(&*environment, look).await)
        };
        self.asked.spawn_on(question, &self.handle);
    }

    pub(super) fn found_topics(&mut self, topics: Topics) {
        self.is_asking_for_topics = false;
        match topics {
            Topics::Complete => self.bridge.readiness.goes_on(TOPIC),
            Topics::Missing(reason) => self.bridge.readiness.waits(TOPIC, reason, Level::Warn),
            Topics::Unknown => {}
        }
    }
}

fn look_for(topics: &[String], consumer: &BaseConsumer<Context>, shutdown: &CancellationToken) -> Topics {
    let mut all = Topics::Complete;
    for topic in topics {
        if shutdown.is_cancelled() {
            return Topics::Unknown;
        }
        let metadata = consumer.client().fetch_metadata(Some(topic), TOPIC_ANSWER);
        let found = metadata.as_ref().map(Metadata::topics);
        let Ok([found]) = found else {
            all = Topics::Unknown;
            continue;
        };
        let (reason, advice) = match found.error().map(RDKafkaErrorCode::from) {
            None if !found.partitions().is_empty() => continue,
            None => (
                "it has no partitions".to_owned(),
                "Create it, or correct --topics",
            ),
            Some(error @ RDKafkaErrorCode::TopicAuthorizationFailed) => {
                (error.to_string(), "Grant the right to read it")
            }
            // It is new.
            Some(RDKafkaErrorCode::LeaderNotAvailable) => {
                all = Topics::Unknown;
                continue;
            }
            Some(error) => (error.to_string(), "Create it, or correct --topics"),
        };
        return Topics::Missing(format!("{topic}: {reason}. {advice}"));
    }
    all
}
