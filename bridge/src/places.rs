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
use crate::config::From;
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
    accepted_gaps: BTreeSet<Partition>,
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
        (self.low..=self.high).contains(&self.position.next)
    }
}

impl Places {
    pub(crate) fn new(
        consumer: Arc<BaseConsumer<Context>>,
        positions: Positions,
        from: From,
        accepted_gaps: BTreeSet<Partition>,
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
        match found.is_there() {
            true => Ok(found.position),
            false => self.cross_gap(partition, of, &found).await,
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

    /// Handles a position that Kafka does not have: it is crossed only if an operator has accepted that.
    async fn cross_gap(
        &self,
        partition: &Partition,
        of: &Arc<SourcePartition>,
        found: &Found,
    ) -> Result<Position, NoPlace> {
        let Found { position, low, high } = found;
        let (topic, number) = partition;
        if !self.accepted_gaps.contains(partition) {
            return Err(NoPlace::Stopped(format!(
                "{of}: the position in the buffer is offset {position}, and Kafka has the offsets {low} to {high}. Records are lost, or the \
                 topic was made again. To continue at {low}, use --accept-gap {topic}/{number}"
            )));
        }
        let _turn = self.swaps.lock().await;
        let at = self.in_time(self.positions.jump(of, *position, *low)).await?;
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
