//! Where partitions are read: finds their positions, enters the first one, and checks that Kafka still has them.

use std::sync::Arc;
use std::time::Duration;

use millpond_manifest::{ClientId, Manifest, SourcePartition};
use millpond_runtime::Level;
use rdkafka::Offset;
use rdkafka::consumer::Consumer;
use rdkafka::topic_partition_list::{TopicPartitionList, TopicPartitionListElem};
use tokio::time::Instant;

use super::{BridgeError, GAP, KAFKA, Loop, NOT_COMMITTED, POSITION, signed, unsigned};
use crate::client::Partition;
use crate::config::From;
use crate::metrics::PartitionLabels;
use crate::partition::Reading;
use crate::position::{Position, PositionError};
use crate::records::Batches;

/// The wait for an answer of Kafka.
const ANSWER: Duration = Duration::from_secs(10);

/// Where a partition is read.
enum Place {
    At(Position),
    /// Not at all, until an operator has decided.
    Stopped,
}

impl Loop {
    /// Begins to read partitions at their positions in the manifest.
    pub(super) fn take_over(&mut self, partitions: &[Partition]) -> Result<(), BridgeError> {
        self.forget_partitions();
        self.session += 1;
        self.bridge.metrics.rebalances.inc();
        while !self.shutdown.is_cancelled() {
            match self.handle.block_on(self.bridge.positions.manifest()) {
                Ok(manifest) => {
                    self.bridge.readiness.goes_on(POSITION);
                    if self.place_all(&manifest, partitions)? {
                        break;
                    }
                }
                Err(error) => self.wait(POSITION, &error.to_string()),
            }
        }
        let mut list = TopicPartitionList::new();
        for ((topic, partition), reading) in &self.readings {
            let offset = Offset::Offset(signed(reading.committed));
            // The number of a partition comes from Kafka.
            let added = list.add_partition_offset(topic, partition.cast_signed(), offset);
            if let Err(error) = added {
                tracing::error!("{} cannot be read: {error}", reading.of);
            }
        }
        if let Err(error) = self.consumer.assign(&list) {
            tracing::warn!("Kafka's client does not take its partitions: {error}");
        }
        self.is_paused = false;
        self.bridge
            .metrics
            .partitions
            .set(i64::try_from(self.readings.len()).unwrap_or(i64::MAX));
        tracing::info!("reads {} partitions", self.readings.len());
        Ok(())
    }

    /// Finds the positions of all partitions. Returns false if an answer is missing.
    fn place_all(&mut self, manifest: &Manifest, partitions: &[Partition]) -> Result<bool, BridgeError> {
        for partition in partitions {
            if self.readings.contains_key(partition) {
                continue;
            }
            let Some(place) = self.place(manifest, partition)? else {
                return Ok(false);
            };
            let Place::At(position) = place else { continue };
            let of = self.of(partition);
            let client = self.bridge.positions.environment.random_u128().to_be_bytes();
            if let Some(batches) = self.batches(partition, position) {
                let reading = Reading::new(of, ClientId(client), batches);
                self.readings.insert(partition.clone(), reading);
            }
        }
        Ok(true)
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
                self.wait(KAFKA, &format!("offsets of {topic}/{number}: {error}"));
                return Ok(None);
            }
        };
        self.bridge.readiness.goes_on(KAFKA);
        let of = self.of(partition);
        let positions = &self.bridge.positions;
        let found = self.handle.block_on(positions.find(manifest, &of));
        let Some(found) = self.answered(found)? else {
            return Ok(None);
        };
        let position = match found {
            Some(position) => position,
            None => {
                let Some(start) = self.start(partition, low, high) else {
                    return Ok(None);
                };
                let begun = self.handle.block_on(positions.begin(&of, start));
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
            let labels = PartitionLabels {
                topic: topic.clone(),
                partition: *number,
            };
            self.bridge.metrics.stopped.get_or_create(&labels).set(1);
            return Ok(Some(Place::Stopped));
        }
        let jumped = self
            .handle
            .block_on(self.bridge.positions.jump(of, position, low));
        let Some(at) = self.answered(jumped)? else {
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
                match self.consumer.committed_offsets(list, ANSWER) {
                    Ok(list) => match list.elements().first().map(TopicPartitionListElem::offset) {
                        Some(Offset::Offset(offset)) => Some(unsigned(offset)),
                        _ => Some(low),
                    },
                    Err(error) => {
                        self.wait(KAFKA, &format!("committed offset of {topic}/{number}: {error}"));
                        None
                    }
                }
            }
        }
    }

    /// Passes on what the store said. `None`: it said nothing usable, and the caller tries again.
    fn answered<T>(&self, answer: Result<T, PositionError>) -> Result<Option<T>, BridgeError> {
        match answer {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.is_final() => Err(BridgeError::Position(error.to_string())),
            Err(error) => {
                self.wait(POSITION, &error.to_string());
                Ok(None)
            }
        }
    }

    /// Shows a wait, and waits a little.
    fn wait(&self, what: &str, reason: &str) {
        self.bridge.readiness.waits(what, reason, Level::Warn);
        self.handle.block_on(async {
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => {}
                () = tokio::time::sleep(Duration::from_millis(200)) => {}
            }
        });
    }

    /// Reads partitions again from the manifest's positions after a message was not committed.
    pub(super) fn read_again(&mut self) -> Result<(), BridgeError> {
        let now = Instant::now();
        let due: Vec<Partition> = self
            .readings
            .iter()
            .filter(|(_, reading)| reading.is_due(now))
            .map(|(partition, _)| partition.clone())
            .collect();
        if due.is_empty() {
            return Ok(());
        }
        let manifest = match self.handle.block_on(self.bridge.positions.manifest()) {
            Ok(manifest) => manifest,
            Err(error) => {
                self.bridge.readiness.waits(POSITION, error, Level::Warn);
                due.iter()
                    .filter_map(|partition| self.readings.get_mut(partition).map(|it| it.postpone(now)))
                    .for_each(drop);
                return Ok(());
            }
        };
        self.bridge.readiness.goes_on(POSITION);
        for partition in due {
            let placed = self.place(&manifest, &partition)?;
            self.seek(&partition, placed.as_ref());
        }
        if self.readings.values().all(Reading::takes_records) {
            self.bridge.readiness.goes_on(NOT_COMMITTED);
        }
        Ok(())
    }

    fn seek(&mut self, partition: &Partition, placed: Option<&Place>) {
        let now = Instant::now();
        let position = match placed {
            Some(Place::At(position)) => *position,
            Some(Place::Stopped) => {
                self.readings.remove(partition);
                return;
            }
            None => {
                if let Some(reading) = self.readings.get_mut(partition) {
                    reading.postpone(now);
                }
                return;
            }
        };
        let (topic, number) = partition;
        let offset = Offset::Offset(signed(position.next));
        let sought = self.consumer.seek(topic, number.cast_signed(), offset, ANSWER);
        let batches = self.batches(partition, position);
        let Some(reading) = self.readings.get_mut(partition) else {
            return;
        };
        match (sought, batches) {
            (Ok(()), Some(batches)) => {
                tracing::info!("reads {} again from offset {position}", reading.of);
                reading.restart(batches);
            }
            (Err(error), _) => {
                // The group may have given it to another member meanwhile.
                tracing::debug!("{} cannot seek: {error}", reading.of);
                reading.postpone(now);
            }
            (_, None) => reading.postpone(now),
        }
    }
}
