//! Where partitions are read: finds their positions, enters the first one, and checks that Kafka still has them.

use std::sync::Arc;
use std::time::Duration;

use millpond_manifest::{ClientId, Manifest, SourcePartition};
use millpond_runtime::Level;
use rdkafka::Offset;
use rdkafka::consumer::Consumer;
use rdkafka::topic_partition_list::TopicPartitionList;
use tokio::time::Instant;

use super::{BridgeError, GAP, Loop, NOT_COMMITTED, PLACE, POSITION, signed, unsigned};
use crate::client::Partition;
use crate::config::From;
use crate::metrics::PartitionLabels;
use crate::partition::Reading;
use crate::position::{Position, PositionError};
use crate::records::Batches;

/// The wait for an answer of Kafka about a partition.
const ANSWER: Duration = Duration::from_secs(2);

/// The wait for an answer of the store.
const STORE_ANSWER: Duration = Duration::from_secs(10);

/// The time to look for places between two polls.
const PLACING_MAX: Duration = Duration::from_secs(1);

/// Where a partition is read.
enum Place {
    At(Position),
    /// Not at all, until an operator has decided.
    Stopped,
}

impl Loop {
    /// Takes note of the group's assignment, and answers the group at once. Each partition is read as soon as its place is known.
    pub(super) fn take_over(&mut self, partitions: &[Partition]) {
        self.forget_partitions();
        self.session += 1;
        self.bridge.metrics.rebalances.inc();
        for partition in partitions {
            let client = self.bridge.positions.environment.random_u128().to_be_bytes();
            if let Some(batches) = self.batches(partition, Position::default()) {
                let reading = Reading::new(self.of(partition), ClientId(client), batches);
                self.readings.insert(partition.clone(), reading);
            }
        }
        self.assign();
        tracing::info!("the group assigns {} partitions", partitions.len());
    }

    /// Finds the places of partitions that are new, or whose messages were not committed, and reads them from there.
    pub(super) fn read_again(&mut self) -> Result<(), BridgeError> {
        let now = Instant::now();
        let due = self.readings.iter().filter(|(_, reading)| reading.is_due(now));
        let due: Vec<Partition> = due.map(|(partition, _)| partition.clone()).collect();
        if due.is_empty() {
            return Ok(());
        }
        let Some(manifest) = self.ask_store(self.bridge.positions.manifest())? else {
            self.postpone(&due);
            return Ok(());
        };
        let mut has_changed = false;
        for partition in due {
            // The group takes a member that does not poll for dead, and the others wait for their messages.
            if now.elapsed() >= PLACING_MAX || self.shutdown.is_cancelled() {
                break;
            }
            match self.place(&manifest, &partition)? {
                Some(Place::At(position)) => has_changed |= self.restart(&partition, position),
                Some(Place::Stopped) => {
                    self.give_up(&partition);
                    has_changed = true;
                }
                None => self.postpone(&[partition]),
            }
        }
        if has_changed {
            self.assign();
        }
        if self.readings.values().all(Reading::takes_records) {
            self.bridge.readiness.goes_on(NOT_COMMITTED);
            self.bridge.readiness.goes_on(PLACE);
        }
        Ok(())
    }

    fn restart(&mut self, partition: &Partition, position: Position) -> bool {
        let batches = self.batches(partition, position);
        let (Some(reading), Some(batches)) = (self.readings.get_mut(partition), batches) else {
            return false;
        };
        tracing::info!("reads {} from offset {position}", reading.of);
        reading.restart(batches);
        true
    }

    fn give_up(&mut self, partition: &Partition) {
        self.readings.remove(partition);
        let metrics = &self.bridge.metrics;
        let labels = PartitionLabels {
            topic: partition.0.clone(),
            partition: partition.1,
        };
        metrics.lag.remove(&labels);
        metrics.stopped.get_or_create(&labels).set(1);
    }

    fn postpone(&mut self, partitions: &[Partition]) {
        let now = Instant::now();
        for partition in partitions {
            if let Some(reading) = self.readings.get_mut(partition) {
                reading.postpone(now);
            }
        }
    }

    /// Has librdkafka read the partitions that take records, each from its next record on. It knows no other way to move one
    /// whose offset was out of range: a seek fails there.
    fn assign(&mut self) {
        let mut list = TopicPartitionList::new();
        for ((topic, partition), reading) in &self.readings {
            if !reading.takes_records() {
                continue;
            }
            let offset = Offset::Offset(signed(reading.batches.position()));
            // The number of a partition comes from Kafka.
            let added = list.add_partition_offset(topic, partition.cast_signed(), offset);
            if let Err(error) = added {
                tracing::error!("{} cannot be read: {error}", reading.of);
            }
        }
        // librdkafka keeps the pause of a partition from one assignment to the next.
        let assigned = self
            .consumer
            .assign(&list)
            .and_then(|()| self.consumer.resume(&list));
        self.is_paused = false;
        self.bridge.metrics.paused.set(0);
        if let Err(error) = assigned {
            let reason = format!("Kafka's client does not take its partitions: {error}");
            self.bridge.readiness.waits(PLACE, reason, Level::Warn);
            let now = Instant::now();
            self.readings.values_mut().for_each(|reading| reading.fail(now));
        }
        let count = i64::try_from(list.count()).unwrap_or(i64::MAX);
        self.bridge.metrics.partitions.set(count);
    }

    fn batches(&self, (topic, partition): &Partition, position: Position) -> Option<Batches> {
        match self.bridge.config.routes.route(topic) {
            Ok(route) => {
                let skipped = self.bridge.config.skipped.iter();
                let skipped = skipped.filter(|(of, number, _)| of == topic && number == partition);
                let skipped = skipped.map(|(_, _, offset)| *offset).collect();
                Some(Batches::new(route, topic.clone(), *partition, position).skipping(skipped))
            }
            Err(reason) => {
                tracing::error!("topic {topic}: {reason}");
                None
            }
        }
    }

    fn of(&self, (topic, partition): &Partition) -> Arc<SourcePartition> {
        // Without a valid stream the bridge has not started; the manifest refuses an empty one.
        let route = self.bridge.config.routes.route(topic);
        Arc::new(SourcePartition {
            source: self.source.clone(),
            topic: topic.clone(),
            partition: *partition,
            stream: route.map_or_else(|_| String::new(), |route| route.stream().to_string()),
        })
    }

    /// Finds or makes the position of a partition, and checks that Kafka has it. `None`: an answer is missing.
    fn place(&self, manifest: &Manifest, partition: &Partition) -> Result<Option<Place>, BridgeError> {
        let (topic, number) = partition;
        let watermarks = self
            .consumer
            .fetch_watermarks(topic, number.cast_signed(), ANSWER);
        let (low, high) = match watermarks {
            Ok((low, high)) => (unsigned(low), unsigned(high)),
            Err(error) => {
                self.waits(&format!("the offsets of {topic}/{number}: {error}"));
                return Ok(None);
            }
        };
        let of = self.of(partition);
        let positions = &self.bridge.positions;
        let Some(found) = self.ask_store(positions.find(manifest, &of))? else {
            return Ok(None);
        };
        let position = match found {
            Some(position) => position,
            None => {
                let Some(start) = self.start(partition, low, high) else {
                    return Ok(None);
                };
                let begun = self.handle.block_on(self.in_time(positions.begin(&of, start)));
                if let Err(full) = &begun
                    && full.is_full()
                {
                    self.bridge.readiness.waits(GAP, full, Level::Error);
                    return Ok(Some(Place::Stopped));
                }
                let Some(position) = self.answered(begun)? else {
                    return Ok(None);
                };
                tracing::info!("begins {of} at offset {position}");
                position
            }
        };
        if (low..=high).contains(&position.next) {
            return Ok(Some(Place::At(position)));
        }
        self.cross_gap(partition, &of, position, (low, high))
    }

    /// Handles a position that Kafka does not have: it is crossed only if an operator has accepted that.
    fn cross_gap(
        &self,
        partition: &Partition,
        of: &Arc<SourcePartition>,
        position: Position,
        (low, high): (u64, u64),
    ) -> Result<Option<Place>, BridgeError> {
        let (topic, number) = partition;
        if !self.bridge.config.accepted_gaps.contains(partition) {
            let reason = format!(
                "{of}: the position in the buffer is offset {position}, and Kafka has the offsets {low} to {high}. Records are lost, or the \
                 topic was made again. To continue at {low}, use --accept-gap {topic}/{number}"
            );
            self.bridge.readiness.waits(GAP, &reason, Level::Error);
            return Ok(Some(Place::Stopped));
        }
        let Some(at) = self.ask_store(self.bridge.positions.jump(of, position, low))? else {
            return Ok(None);
        };
        tracing::warn!("{of}: continues at offset {at} instead of {position}, as --accept-gap allows");
        Ok(Some(Place::At(at)))
    }

    /// The offset at which a partition without a position begins.
    fn start(&self, partition: &Partition, low: u64, high: u64) -> Option<u64> {
        let (topic, number) = partition;
        match self.bridge.config.from {
            From::Earliest => Some(low),
            From::Latest => Some(high),
            From::Committed => {
                let mut list = TopicPartitionList::new();
                list.add_partition(topic, number.cast_signed());
                let found = self.consumer.committed_offsets(list, ANSWER);
                // An error of the partition is no answer: the row that follows from it would stay.
                let offset = found.and_then(|list| match list.elements().first() {
                    Some(element) => element.error().map(|()| element.offset()),
                    None => Ok(Offset::Invalid),
                });
                match offset {
                    Ok(Offset::Offset(offset)) => Some(unsigned(offset)),
                    Ok(_) => Some(low),
                    Err(error) => {
                        self.waits(&format!("the committed offset of {topic}/{number}: {error}"));
                        None
                    }
                }
            }
        }
    }

    /// Asks the store. `None`: it said nothing usable, and the caller tries again.
    fn ask_store<T>(
        &self,
        question: impl Future<Output = Result<T, PositionError>>,
    ) -> Result<Option<T>, BridgeError> {
        self.answered(self.handle.block_on(self.in_time(question)))
    }

    /// Gives up a question to the store early enough for the group.
    async fn in_time<T>(
        &self,
        question: impl Future<Output = Result<T, PositionError>>,
    ) -> Result<T, PositionError> {
        tokio::select! {
            biased;
            () = self.shutdown.cancelled() => Err(PositionError::NoAnswer),
            answer = tokio::time::timeout(STORE_ANSWER, question) => answer.unwrap_or(Err(PositionError::NoAnswer)),
        }
    }

    fn answered<T>(&self, answer: Result<T, PositionError>) -> Result<Option<T>, BridgeError> {
        match answer {
            Ok(answer) => {
                self.bridge.readiness.goes_on(POSITION);
                Ok(Some(answer))
            }
            Err(error) if error.is_final() => Err(BridgeError::Position(error.to_string())),
            Err(error) => {
                self.bridge.readiness.waits(POSITION, error, Level::Warn);
                Ok(None)
            }
        }
    }

    fn waits(&self, reason: &str) {
        self.bridge.readiness.waits(PLACE, reason, Level::Warn);
    }
}
