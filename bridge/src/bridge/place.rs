//! Which partitions are read, and from where: the group's assignments, the search for places, and what librdkafka is told.

use std::sync::Arc;
use std::time::Duration;

use millpond_manifest::{ClientId, SourcePartition};
use millpond_runtime::Level;
use rdkafka::Offset;
use rdkafka::consumer::Consumer;
use rdkafka::topic_partition_list::TopicPartitionList;
use tokio::time::Instant;

use super::{Answer, BridgeError, GAP, GROUP, Loop, PLACE, POSITION, SHOWN};
use crate::client::{Partition, signed};
use crate::metrics::PartitionLabels;
use crate::partition::Reading;
use crate::places::{NoPlace, Round};
use crate::position::Position;
use crate::records::Batches;

/// The least time between two assignments. Each one fetches all partitions anew.
const ASSIGN_INTERVAL: Duration = Duration::from_millis(200);

/// The same while more places are to come.
const ASSIGN_INTERVAL_SOUGHT: Duration = Duration::from_secs(1);

impl Loop {
    /// Takes note of the group's assignment, and answers the group at once. Each partition is read as soon as its place is known.
    pub(super) fn take_over(&mut self, partitions: &[Partition]) {
        self.forget_partitions();
        self.session += 1;
        self.without_group = None;
        self.bridge.readiness.goes_on(GROUP);
        self.bridge.metrics.rebalances.inc();
        for partition in partitions {
            let client = self.bridge.positions.environment.random_u128().to_be_bytes();
            if let Some(batches) = self.batches(partition) {
                let reading = Reading::new(self.of(partition), ClientId(client), batches);
                self.readings.insert(partition.clone(), reading);
            }
        }
        self.assign();
        tracing::info!("the group assigns {} partitions", partitions.len());
    }

    /// Has somebody look for the places of partitions that are new, or whose messages were not committed.
    pub(super) fn look_for_places(&mut self) {
        let now = Instant::now();
        let round = Arc::new(Round::default());
        for (partition, reading) in &mut self.readings {
            if !reading.is_due(now) {
                continue;
            }
            reading.seek();
            let (places, round) = (Arc::clone(&self.places), Arc::clone(&round));
            let (partition, session) = (partition.clone(), self.session);
            let (of, is_repeated) = (Arc::clone(&reading.of), reading.is_repeated());
            let search = async move {
                let place = places.find(&round, &partition, &of, is_repeated).await;
                Answer::Place {
                    partition,
                    session,
                    place,
                }
            };
            self.asked.spawn_on(search, &self.handle);
        }
    }

    /// Acts on the place of a partition.
    pub(super) fn settle(
        &mut self,
        partition: &Partition,
        session: u64,
        place: Result<Position, NoPlace>,
    ) -> Result<(), BridgeError> {
        let Some(reading) = self.readings.get_mut(partition) else {
            return Ok(());
        };
        if session != self.session {
            return Ok(());
        }
        let readiness = &self.bridge.readiness;
        if !matches!(place, Err(NoPlace::Store(_))) {
            readiness.goes_on(POSITION);
        }
        let now = Instant::now();
        match place {
            Ok(position) => {
                reading.found(position);
                self.must_assign = true;
            }
            Err(NoPlace::Kafka(reason)) => {
                reading.postpone(now);
                readiness.waits(PLACE, reason, Level::Warn);
            }
            Err(NoPlace::Store(reason)) => {
                reading.postpone(now);
                readiness.waits(POSITION, reason, Level::Warn);
            }
            Err(NoPlace::Stopped(reason)) => {
                self.give_up(partition, reason);
                self.must_assign = true;
            }
            Err(NoPlace::Final(reason)) => return Err(BridgeError::Position(reason)),
        }
        Ok(())
    }

    /// Reads the partitions whose places were found.
    pub(super) fn read_again(&mut self) {
        if !self.must_assign {
            return;
        }
        let interval = match self.readings.values().any(Reading::is_sought) {
            true => ASSIGN_INTERVAL_SOUGHT,
            false => ASSIGN_INTERVAL,
        };
        if self.assigned_at.is_some_and(|at| at.elapsed() < interval) {
            return;
        }
        self.assign();
    }

    fn give_up(&mut self, partition: &Partition, reason: String) {
        self.readings.remove(partition);
        let metrics = &self.bridge.metrics;
        let labels = PartitionLabels::of(partition);
        metrics.lag.remove(&labels);
        metrics.stopped.get_or_create(&labels).set(1);
        tracing::error!("{reason}");
        self.stopped.push(reason);
        let mut shown = self.stopped[..self.stopped.len().min(SHOWN)].join("; ");
        if let Some(others @ 1..) = self.stopped.len().checked_sub(SHOWN) {
            shown += &format!("; and {others} more, see the log");
        }
        self.bridge.readiness.waits(GAP, shown, Level::Error);
    }

    /// Has librdkafka read the partitions whose places are known, each from its next record on. It knows no other way to
    /// move one whose offset was out of range: a seek fails there.
    fn assign(&mut self) {
        let now = Instant::now();
        self.must_assign = false;
        self.assigned_at = Some(now);
        let mut list = TopicPartitionList::new();
        for ((topic, partition), reading) in &mut self.readings {
            reading.restart(now);
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
            self.fail_all();
        }
        let count = i64::try_from(list.count()).unwrap_or(i64::MAX);
        self.bridge.metrics.partitions.set(count);
    }

    fn batches(&self, (topic, partition): &Partition) -> Option<Batches> {
        match self.bridge.config.routes.route(topic) {
            Ok(route) => {
                let skipped = self.bridge.config.skipped.iter();
                let skipped = skipped.filter(|(of, number, _)| of == topic && number == partition);
                let skipped = skipped.map(|(_, _, offset)| *offset).collect();
                let batches = Batches::new(route, topic.clone(), *partition, Position::default());
                Some(batches.skipping(skipped))
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
}
