//! Finds the places at which partitions are read. A position comes from the manifest, or enters it if the partition has none,
//! and Kafka must still have it. Each answer may take long or never come, so nothing here runs on the bridge's loop.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use millpond_manifest::{Manifest, SourcePartition};
use millpond_runtime::blocking;
use rdkafka::Offset;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::KafkaResult;
use rdkafka::topic_partition_list::TopicPartitionList;
use tokio::sync::{Mutex, OnceCell, Semaphore, SemaphorePermit};
use tokio_util::sync::CancellationToken;

use crate::client::{Context, Partition, unsigned};
use crate::config::{AcceptedGap, From, Landing};
use crate::position::{Position, PositionError, Positions};

/// The wait for an answer of Kafka about a partition.
const ANSWER: Duration = Duration::from_secs(2);

/// The wait for an answer of the store.
const STORE_ANSWER: Duration = Duration::from_secs(10);

/// Questions to Kafka at the same time. Each one without an answer keeps a thread for [`ANSWER`].
const QUESTIONS: usize = 32;

/// Those of them about partitions for which there was no answer before: they keep nobody else waiting.
const REPEATED_QUESTIONS: usize = 24;

/// Why a partition has no place.
#[derive(Debug)]
pub(crate) enum NoPlace {
    /// Kafka does not say what is needed. It is asked again.
    Kafka(String),
    /// The store does not. It is asked again.
    Store(String),
    /// The partition is not read until an operator has decided.
    Stopped(String),
    /// The bridge cannot go on.
    Final(String),
}

impl std::convert::From<PositionError> for NoPlace {
    fn from(error: PositionError) -> NoPlace {
        let reason = error.to_string();
        match error {
            full if full.is_full() => NoPlace::Stopped(reason),
            error if error.is_final() => NoPlace::Final(reason),
            _ => NoPlace::Store(reason),
        }
    }
}

/// Partitions that are looked for together read the manifest once.
#[derive(Debug, Default)]
pub(crate) struct Round(OnceCell<Result<Manifest, String>>);

/// Looks for the places of partitions.
pub(crate) struct Places {
    consumer: Arc<BaseConsumer<Context>>,
    positions: Positions,
    from: From,
    accepted_gaps: BTreeSet<AcceptedGap>,
    questions: Semaphore,
    repeated: Semaphore,
    /// Swaps of one bridge take turns: they are all for the same manifest.
    swaps: Mutex<()>,
    shutdown: CancellationToken,
}

/// A partition's position, and the offsets that Kafka has.
struct Found {
    position: Position,
    low: u64,
    high: u64,
}

impl Found {
    fn is_there(&self) -> bool {
        self.has(self.position.next)
    }

    fn has(&self, offset: u64) -> bool {
        (self.low..=self.high).contains(&offset)
    }

    /// Where the partition continues, if an operator has accepted that.
    fn landing(&self, accepted: Landing) -> Option<u64> {
        match accepted {
            // Beyond the end, the buffer may have all of them already: the log may have been cut off.
            Landing::Oldest => (self.position.next < self.low).then_some(self.low),
            Landing::Offset {
                position: next,
                offset,
                incarnation,
            } => {
                let is_named = self.position == Position { incarnation, next };
                (is_named && self.has(offset)).then_some(offset)
            }
        }
    }

    /// Why the partition is not read, and what its operator can do.
    fn gap(&self, of: &SourcePartition, (topic, number): &Partition) -> String {
        let Found { position, low, high } = self;
        let start = format!(
            "{of}: the position in the buffer is offset {position}, and Kafka has the offsets {low} to {high}."
        );
        let flag = format!("--accept-gap {topic}/{number}");
        if position.next < *low {
            return format!(
                "{start} Kafka has deleted the records between, or the topic was made again. To continue at {low}, without them, use {flag}"
            );
        }
        let times = position.incarnation;
        format!(
            "{start} If the topic was made again, its records are new: to read all of them, use {flag}/{position}/{low}/{times}. If its log \
             was cut off, the buffer has them: to read only those from the offset {high} on, use {flag}/{position}/{high}/{times}. In the \
             wrong case, the first flag stores records twice, and the second one leaves records out"
        )
    }
}

impl Places {
    pub(crate) fn new(
        consumer: Arc<BaseConsumer<Context>>,
        positions: Positions,
        from: From,
        accepted_gaps: BTreeSet<AcceptedGap>,
        shutdown: CancellationToken,
    ) -> Places {
        Places {
            consumer,
            positions,
            from,
            accepted_gaps,
            questions: Semaphore::new(QUESTIONS),
            repeated: Semaphore::new(REPEATED_QUESTIONS),
            swaps: Mutex::new(()),
            shutdown,
        }
    }

    /// Finds or makes the position of a partition, and checks that Kafka has it. `is_repeated`: the last search found none.
    pub(crate) async fn find(
        &self,
        round: &Round,
        partition: &Partition,
        of: &Arc<SourcePartition>,
        is_repeated: bool,
    ) -> Result<Position, NoPlace> {
        let _turn = match is_repeated {
            true => Some(self.turn(&self.repeated).await.map_err(NoPlace::Kafka)?),
            false => None,
        };
        let mut found = self.look(round, partition, of).await?;
        if !found.is_there() {
            // Another bridge may have moved the position between the two questions, and retention the beginning.
            found = self.look(&Round::default(), partition, of).await?;
        }
        let (topic, number) = partition;
        let accepted = self.accepted_gaps.iter();
        let mut accepted = accepted.filter(|gap| gap.topic == *topic && gap.partition == *number);
        match accepted.find_map(|gap| found.landing(gap.landing)) {
            Some(to) => self.jump(of, found.position, to).await,
            None if found.is_there() => Ok(found.position),
            None => Err(NoPlace::Stopped(found.gap(of, partition))),
        }
    }

    async fn look(
        &self,
        round: &Round,
        partition: &Partition,
        of: &Arc<SourcePartition>,
    ) -> Result<Found, NoPlace> {
        // The position comes first: the end of the partition, which Kafka tells later, is not before it.
        let manifest = round.0.get_or_init(|| self.manifest()).await;
        let manifest = manifest
            .as_ref()
            .map_err(|reason| NoPlace::Store(reason.clone()))?;
        let found = self.in_time(self.positions.find(manifest, of)).await?;
        let (low, high) = self.offsets(partition).await?;
        let position = match found {
            Some(position) => position,
            None => {
                let start = self.start(partition, low, high).await?;
                let _turn = self.swaps.lock().await;
                let position = self.in_time(self.positions.begin(of, start)).await?;
                tracing::info!("begins {of} at offset {position}");
                position
            }
        };
        Ok(Found { position, low, high })
    }

    async fn manifest(&self) -> Result<Manifest, String> {
        let manifest = self.in_time(self.positions.manifest()).await;
        manifest.map_err(|error| error.to_string())
    }

    async fn offsets(&self, partition: &Partition) -> Result<(u64, u64), NoPlace> {
        let (topic, number) = partition.clone();
        let asked =
            self.ask_kafka(move |consumer| consumer.fetch_watermarks(&topic, number.cast_signed(), ANSWER));
        match asked.await {
            Ok((low, high)) => Ok((unsigned(low), unsigned(high))),
            Err(reason) => {
                let (topic, number) = partition;
                Err(NoPlace::Kafka(format!(
                    "the offsets of {topic}/{number}: {reason}"
                )))
            }
        }
    }

    /// The offset at which a partition without a position begins.
    async fn start(&self, partition: &Partition, low: u64, high: u64) -> Result<u64, NoPlace> {
        match self.from {
            From::Earliest => Ok(low),
            From::Latest => Ok(high),
            From::Committed => {
                let (topic, number) = partition.clone();
                let committed = self.ask_kafka(move |consumer| {
                    let mut list = TopicPartitionList::new();
                    list.add_partition(&topic, number.cast_signed());
                    let list = consumer.committed_offsets(list, ANSWER)?;
                    // An error of the partition is no answer: the row that follows from it would stay.
                    match list.elements().first() {
                        Some(element) => element.error().map(|()| element.offset()),
                        None => Ok(Offset::Invalid),
                    }
                });
                match committed.await {
                    Ok(Offset::Offset(offset)) => Ok(unsigned(offset)),
                    Ok(_) => Ok(low),
                    Err(reason) => {
                        let (topic, number) = partition;
                        Err(NoPlace::Kafka(format!(
                            "the committed offset of {topic}/{number}: {reason}"
                        )))
                    }
                }
            }
        }
    }

    /// Moves a position as an operator has accepted.
    async fn jump(
        &self,
        of: &Arc<SourcePartition>,
        position: Position,
        to: u64,
    ) -> Result<Position, NoPlace> {
        let _turn = self.swaps.lock().await;
        let at = self.in_time(self.positions.jump(of, position, to)).await?;
        tracing::warn!("{of}: continues at offset {at} instead of {position}, as --accept-gap allows");
        Ok(at)
    }

    /// Asks Kafka on a thread that may block. An error is a reason.
    async fn ask_kafka<T: Send + 'static>(
        &self,
        question: impl FnOnce(&BaseConsumer<Context>) -> KafkaResult<T> + Send + 'static,
    ) -> Result<T, String> {
        let _turn = self.turn(&self.questions).await?;
        let consumer = Arc::clone(&self.consumer);
        let asked = blocking::compute(&*self.positions.environment, move || question(&consumer));
        asked.await.map_err(|error| error.to_string())
    }

    async fn turn<'s>(&self, of: &'s Semaphore) -> Result<SemaphorePermit<'s>, String> {
        let turn = tokio::select! {
            biased;
            () = self.shutdown.cancelled() => None,
            turn = of.acquire() => turn.ok(),
        };
        turn.ok_or_else(|| "the bridge stops".to_owned())
    }

    /// Gives up a question to the store that gets no answer.
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
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kafka has the offsets 10 to 20, and the position was set three times.
    fn found(position: u64) -> Found {
        Found {
            position: Position {
                incarnation: 3,
                next: position,
            },
            low: 10,
            high: 20,
        }
    }

    fn at(position: u64, offset: u64, incarnation: u64) -> Landing {
        Landing::Offset {
            position,
            offset,
            incarnation,
        }
    }

    #[test]
    fn a_partition_goes_back_only_to_an_offset_that_its_operator_names() {
        for (position, accepted, expected) in [
            (5, Landing::Oldest, Some(10)),
            (15, Landing::Oldest, None),
            // All that Kafka has may be in the buffer.
            (25, Landing::Oldest, None),
            (25, at(25, 20, 3), Some(20)),
            (25, at(25, 10, 3), Some(10)),
            (5, at(5, 15, 3), Some(15)),
            // Producers have filled the partition up to the position meanwhile.
            (15, at(15, 12, 3), Some(12)),
            // The flag of an earlier gap.
            (26, at(25, 10, 3), None),
            // The flag has had its effect, and the partition has come to the position again.
            (15, at(15, 12, 2), None),
            // Kafka does not have the offset either.
            (25, at(25, 21, 3), None),
            (5, at(5, 9, 3), None),
        ] {
            let landing = found(position).landing(accepted);
            assert_eq!(landing, expected, "the landing of {position} by {accepted:?}");
        }
    }

    #[test]
    fn the_error_names_the_flags_and_what_they_mean() {
        let partition = ("orders".to_owned(), 3);
        let of = SourcePartition {
            source: "cluster".into(),
            topic: "orders".into(),
            partition: 3,
            stream: "orders".into(),
        };
        let deleted = found(5).gap(&of, &partition);
        assert!(
            deleted.ends_with("To continue at 10, without them, use --accept-gap orders/3"),
            "{deleted}"
        );
        let behind_the_end = found(25).gap(&of, &partition);
        for part in [
            "position in the buffer is offset 25, and Kafka has the offsets 10 to 20",
            "made again, its records are new: to read all of them, use --accept-gap orders/3/25/10/3.",
            "cut off, the buffer has them: to read only those from the offset 20 on, use --accept-gap orders/3/25/20/3.",
        ] {
            assert!(behind_the_end.contains(part), "{behind_the_end}");
        }
    }
}
