//! The bridge: one loop that polls Kafka, hands messages to the producer and acts on their outcomes. It runs on a thread of
//! its own, because librdkafka's calls block. While the store is away it stops reading, and goes on polling, so that it
//! stays in its group.

mod place;
mod watch;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use millpond_kafka::{Headers, Record};
use millpond_producer::{Append, AppendError, Committed, Producer};
use millpond_runtime::{Level, Readiness, blocking};
use millpond_storage::Store;
use prometheus_client::registry::Registry;
use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{BorrowedMessage, Message};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::client::{Change, Context, Partition, unsigned};
use crate::cluster::cluster_id;
use crate::config::Config;
use crate::headers::headers;
use crate::metrics::{FailureLabels, Metrics, TopicLabels};
use crate::partition::{Reading, reason};
use crate::places::{NoPlace, Places};
use crate::position::{Position, Positions};
use crate::records::{Batch, REJECTED, SKIPPED};
use watch::{Refused, Topics};

/// The waits that `/readyz` shows.
const KAFKA: &str = "waiting for Kafka";
const GROUP: &str = "waiting for Kafka's group";
const REFUSED: &str = "Kafka refuses records";
const POSITION: &str = "waiting for the store (positions)";
const GAP: &str = "a partition is stopped";
const NOT_COMMITTED: &str = "records are not committed";
const UNREADABLE: &str = "Kafka's records cannot be read";
const STANDS: &str = "nothing arrives from a partition that has more";
const PLACE: &str = "waiting for the place of a partition";
const TOPIC: &str = "a topic is missing";

/// The partitions that a wait names.
const SHOWN: usize = 3;

/// How long a poll waits for its first record.
const POLL: Duration = Duration::from_millis(50);

/// Records to take from librdkafka before the messages go to the producer.
const TAKEN_MAX: usize = 2_000;

/// How long a member that loses its partitions waits for its messages. Not a rule: what lands later is the new member's
/// refusal.
const REVOKED_WAIT: Duration = Duration::from_secs(5);

/// Memory of a message in flight beside its payload.
const MESSAGE_COST: usize = 1_024;

/// Messages with an outcome that wait for the loop.
const OUTCOMES: usize = 1_024;

/// Why a bridge cannot run.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// The settings are wrong.
    #[error("Kafka's client cannot start: {0}")]
    Client(KafkaError),
    /// A topic has no stream.
    #[error("topic {topic}: {reason}")]
    Topic {
        /// The topic.
        topic: String,
        /// The reason.
        reason: String,
    },
    /// The program has no OpenSSL.
    #[error(
        "this program was built without TLS and SCRAM for Kafka; use a release, or build it with --features bridge-tls"
    )]
    NoTls,
    /// A position cannot be entered.
    #[error("{0}")]
    Position(String),
    /// The brokers' address leads to another cluster now.
    #[error(
        "the brokers belong to cluster {now} now, and to {before} when the bridge started. Positions belong to a cluster: start the bridge \
         again if it shall read {now}"
    )]
    OtherCluster {
        /// The id at the start.
        before: String,
        /// The id now.
        now: String,
    },
}

/// Reads Kafka's topics until it is told to stop.
pub struct Bridge {
    config: Config,
    producer: Producer,
    positions: Positions,
    metrics: Metrics,
    readiness: Readiness,
}

/// Why a bridge must not write to a stream: it writes each partition to its own shard, and the rows belong to the shards of their keys.
fn routed_elsewhere(producer: &Producer, stream: &str) -> Option<String> {
    let route = producer.route(stream)?;
    let is_here = route.shards == 1 && producer.shard() == 0;
    (!is_here).then(|| {
        format!(
            "the buffer routes the rows of stream {stream} to {} shards by {} (`millpond buffer route`), and a bridge does not route: \
             write the topic to another stream, or let its producers write to a gateway (--listen-kafka)",
            route.shards,
            route.key.join(", ")
        )
    })
}

impl Bridge {
    /// A bridge in front of this producer. It reports its waits to the producer's readiness.
    ///
    /// # Errors
    /// A topic has no stream, or the security needs another build.
    pub fn new(
        mut config: Config,
        store: Store,
        producer: Producer,
        environment: Arc<dyn millpond_runtime::Environment>,
        registry: &mut Registry,
    ) -> Result<Bridge, BridgeError> {
        if config.security.needs_tls() && !cfg!(feature = "tls") {
            return Err(BridgeError::NoTls);
        }
        for topic in &config.topics {
            let route = config.routes.route(topic);
            let is_own = route.as_ref().is_ok_and(|route| &**route.stream() == REJECTED);
            let reason = match route {
                Ok(_) if is_own => format!("stream {REJECTED} is for the records that the bridge rejects"),
                Ok(route) => match routed_elsewhere(&producer, route.stream()) {
                    Some(reason) => reason,
                    None => continue,
                },
                Err(reason) => reason,
            };
            return Err(BridgeError::Topic {
                topic: topic.clone(),
                reason,
            });
        }
        // With half of the producer's memory, a message never has to wait for the rest of it.
        config.in_flight_bytes = config.in_flight_bytes.min(producer.budget().limit() / 2);
        Ok(Bridge {
            positions: Positions {
                store,
                shard: producer.shard(),
                environment,
                producer: producer.clone(),
                seen: Arc::default(),
            },
            metrics: Metrics::register(registry),
            readiness: producer.readiness(),
            config,
            producer,
        })
    }

    /// Runs until `shutdown`. Then it has left its group, and everything that it has read is with the producer, which the
    /// caller drains.
    ///
    /// # Errors
    /// See [`BridgeError`].
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), BridgeError> {
        let client: ClientConfig = self.config.client();
        let consumer = BaseConsumer::from_config_and_context(&client, Context::default());
        let consumer = Arc::new(consumer.map_err(BridgeError::Client)?);
        let environment = Arc::clone(&self.positions.environment);
        // The loop may also end by itself, and what it has asked ends with it.
        let shutdown = shutdown.child_token();
        let places = Places::new(
            Arc::clone(&consumer),
            self.positions.clone(),
            self.config.from,
            self.config.accepted_gaps.clone(),
            shutdown.clone(),
        );
        let (outcomes, ended) = mpsc::channel(OUTCOMES);
        let running = Loop {
            bridge: self,
            consumer,
            handle: Handle::current(),
            cluster: String::new(),
            source: String::new(),
            readings: HashMap::new(),
            stopped: Vec::new(),
            session: 0,
            without_group: None,
            places: Arc::new(places),
            asked: JoinSet::new(),
            must_assign: false,
            assigned_at: None,
            in_flight_bytes: 0,
            is_paused: false,
            outcomes,
            ended,
            last_error: None,
            refused: None,
            reported_at: Instant::now(),
            topics_asked_at: None,
            is_asking_for_topics: false,
            shutdown,
        };
        blocking::compute(&*environment, move || running.run()).await
    }
}

/// The outcome of a message.
struct Outcome {
    partition: Partition,
    /// The assignment that read it.
    session: u64,
    cost: usize,
    read: u64,
    bytes: u64,
    to: u64,
    is_rejected: bool,
    result: Result<Committed, AppendError>,
}

/// An answer that the loop does not wait for.
enum Answer {
    /// About the place of a partition.
    Place {
        partition: Partition,
        /// The assignment that needs it.
        session: u64,
        place: Result<Position, NoPlace>,
    },
    /// About the topics.
    Topics(Topics),
}

struct Loop {
    bridge: Bridge,
    consumer: Arc<BaseConsumer<Context>>,
    handle: Handle,
    /// The id of Kafka's cluster.
    cluster: String,
    /// Its name in the buffer.
    source: String,
    readings: HashMap<Partition, Reading>,
    /// Why partitions are not read until an operator acts.
    stopped: Vec<String>,
    /// Counts the assignments.
    session: u64,
    /// Since when the group has assigned nothing. `None`: it has.
    without_group: Option<Instant>,
    places: Arc<Places>,
    asked: JoinSet<Answer>,
    /// Partitions are to be read from other places than librdkafka knows.
    must_assign: bool,
    assigned_at: Option<Instant>,
    in_flight_bytes: usize,
    is_paused: bool,
    outcomes: mpsc::Sender<Outcome>,
    ended: mpsc::Receiver<Outcome>,
    /// The last error of librdkafka since the last assignment.
    last_error: Option<String>,
    refused: Option<Refused>,
    reported_at: Instant,
    topics_asked_at: Option<Instant>,
    is_asking_for_topics: bool,
    shutdown: CancellationToken,
}

impl Drop for Loop {
    /// The end of librdkafka's client waits until the partitions are given back, on each way out of the loop.
    fn drop(&mut self) {
        self.shutdown.cancel();
        // The client ends on this thread, and not on that of a question, which nobody waits for. Each has a time limit.
        while self.handle.block_on(self.asked.join_next()).is_some() {}
        self.consumer.context().close();
        // The group may have taken the partitions away, and the loop has not answered.
        if let Err(error) = self.consumer.unassign() {
            tracing::debug!("Kafka's client keeps its partitions: {error}");
        }
    }
}

impl Loop {
    fn run(mut self) -> Result<(), BridgeError> {
        if !self.meet_the_cluster() {
            return Ok(());
        }
        let topics: Vec<&str> = self.bridge.config.topics.iter().map(String::as_str).collect();
        self.consumer.subscribe(&topics).map_err(BridgeError::Client)?;
        self.without_group = Some(Instant::now());
        while !self.shutdown.is_cancelled() {
            while let Some(change) = self.consumer.context().change() {
                self.follow(change);
            }
            while let Ok(outcome) = self.ended.try_recv() {
                self.end(&outcome);
            }
            while let Some(answer) = self.asked.try_join_next() {
                self.take_answer(answer)?;
            }
            self.look_for_places();
            self.read_again();
            self.throttle();
            let failed = self.poll();
            self.check_cluster()?;
            self.submit();
            if let Some(error) = failed {
                self.take_error(&error);
            }
            self.watch();
        }
        self.stop();
        Ok(())
    }

    fn take_answer(&mut self, answer: Result<Answer, JoinError>) -> Result<(), BridgeError> {
        // Nobody aborts a question, so its only other end is a panic.
        match answer.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())) {
            Answer::Place {
                partition,
                session,
                place,
            } => self.settle(&partition, session, place),
            Answer::Topics(topics) => {
                self.found_topics(topics);
                Ok(())
            }
        }
    }

    /// Waits for the id of Kafka's cluster. Returns false if the bridge stops.
    fn meet_the_cluster(&mut self) -> bool {
        let mut reason = "the brokers do not answer".to_owned();
        while !self.shutdown.is_cancelled() {
            if let Some(id) = cluster_id(self.consumer.client(), Duration::from_secs(1)) {
                self.bridge.readiness.goes_on(KAFKA);
                self.source = self.bridge.config.source.clone().unwrap_or_else(|| id.clone());
                self.cluster = id;
                return true;
            }
            // Without a subscription there are only errors to take. A wrong password is one.
            let polled = self
                .consumer
                .poll(Duration::from_millis(200))
                .and_then(Result::err);
            let problem = self.consumer.context().problem();
            let problem = problem.or_else(|| polled.map(|error| error.to_string()));
            reason = problem.unwrap_or(reason);
            self.bridge.readiness.waits(KAFKA, &reason, Level::Warn);
        }
        false
    }

    /// Ends the bridge if its brokers belong to another cluster than at the start: its offsets mean other records.
    fn check_cluster(&self) -> Result<(), BridgeError> {
        match cluster_id(self.consumer.client(), Duration::ZERO) {
            Some(now) if now != self.cluster => Err(BridgeError::OtherCluster {
                before: self.cluster.clone(),
                now,
            }),
            _ => Ok(()),
        }
    }

    fn follow(&mut self, change: Change) {
        match change {
            Change::Assigned(partitions) => self.take_over(&partitions),
            Change::Revoked => {
                // Kafka is away, or the group has thrown the bridge out: neither takes offsets.
                if !self.consumer.assignment_lost() && self.bridge.readiness.reason(KAFKA).is_none() {
                    self.wait_for_outcomes(REVOKED_WAIT, true);
                    self.commit_offsets();
                }
                self.forget_partitions();
                self.without_group = Some(Instant::now());
                if let Err(error) = self.consumer.unassign() {
                    tracing::warn!("Kafka's client keeps its partitions: {error}");
                }
            }
        }
    }

    fn forget_partitions(&mut self) {
        let metrics = &self.bridge.metrics;
        metrics.lag.clear();
        metrics.stopped.clear();
        metrics.partitions.set(0);
        for wait in [GAP, PLACE, POSITION, NOT_COMMITTED, UNREADABLE, STANDS] {
            self.bridge.readiness.goes_on(wait);
        }
        self.readings.clear();
        self.stopped.clear();
        self.must_assign = false;
        self.last_error = None;
    }

    /// Reads all partitions again from the manifest's positions.
    fn fail_all(&mut self) {
        let now = Instant::now();
        self.readings.values_mut().for_each(|reading| reading.fail(now));
    }

    /// Stops reading while much is in flight.
    fn throttle(&mut self) {
        let max = self.bridge.config.in_flight_bytes;
        let pauses = match self.is_paused {
            false => self.in_flight_bytes >= max,
            true => self.in_flight_bytes > max / 2,
        };
        if pauses == self.is_paused {
            return;
        }
        let Ok(list) = self.consumer.assignment() else {
            return;
        };
        let changed = match pauses {
            true => self.consumer.pause(&list),
            false => self.consumer.resume(&list),
        };
        match changed {
            Ok(()) => {
                self.is_paused = pauses;
                self.bridge.metrics.paused.set(pauses.into());
            }
            Err(error) => tracing::debug!("partitions cannot be paused or resumed: {error}"),
        }
    }

    /// Takes the records that are there, until an error.
    fn poll(&mut self) -> Option<KafkaError> {
        let Loop {
            bridge,
            consumer,
            readings,
            ..
        } = self;
        let mut wait = POLL;
        let mut bytes = 0;
        // Rows count, not values: they have keys and headers, too.
        let most = bridge.config.in_flight_bytes / 4;
        for _ in 0..TAKEN_MAX {
            match consumer.poll(wait) {
                None => break,
                Some(Ok(message)) => {
                    wait = Duration::ZERO;
                    bytes += add(readings, &message);
                    if bytes >= most {
                        break;
                    }
                }
                Some(Err(error)) => return Some(error),
            }
        }
        None
    }

    /// Acts on an error. The records before it are with the producer.
    fn take_error(&mut self, error: &KafkaError) {
        let reason = error.to_string();
        match error.rdkafka_error_code() {
            Some(RDKafkaErrorCode::TopicAuthorizationFailed) => self.refused(&reason),
            Some(code) if has_skipped(code) => {
                self.show_unreadable(&reason);
                // Which partition it was follows from the positions.
                self.fail_all();
            }
            _ => self.bridge.readiness.waits(KAFKA, &reason, Level::Warn),
        }
        self.last_error = Some(reason);
    }

    /// Shows that records cannot be read, and in which partitions, as far as that is known.
    fn show_unreadable(&mut self, reason: &str) {
        let context = self.consumer.context();
        let mut places = Vec::new();
        for (partition, reading) in &mut self.readings {
            reading.could_be_unreadable(context.extent(partition));
            if let Some(offset) = reading.unreadable_at() {
                places.push(format!("{}/{} at offset {offset}", partition.0, partition.1));
            }
        }
        let reason = match places.is_empty() {
            true => reason.to_owned(),
            false => format!("{reason}: {}", some_of(places)),
        };
        self.bridge.readiness.waits(UNREADABLE, reason, Level::Warn);
    }

    /// Hands the messages to the producer.
    fn submit(&mut self) {
        let partitions: Vec<Partition> = self.readings.keys().cloned().collect();
        for partition in partitions {
            let Some(reading) = self.readings.get_mut(&partition) else {
                continue;
            };
            for batch in reading.batches.take() {
                if !self.append(&partition, batch) {
                    break;
                }
            }
        }
        let bytes = i64::try_from(self.in_flight_bytes).unwrap_or(i64::MAX);
        self.bridge.metrics.in_flight.set(bytes);
    }

    /// Returns false if the message, and all after it, must be read again.
    fn append(&mut self, partition: &Partition, batch: Batch) -> bool {
        let producer = &self.bridge.producer;
        let Some(reading) = self.readings.get_mut(partition).filter(|it| it.takes_records()) else {
            return false;
        };
        let numbered = reading.numbered(&batch);
        let from = batch.from;
        let (cost, to, read) = (batch.payload.len() + MESSAGE_COST, batch.to, batch.read);
        let (bytes, is_rejected) = (batch.payload.len() as u64, batch.is_rejected);
        let append = Append {
            stream: batch.stream,
            encoding: batch.encoding,
            payload: batch.payload.into(),
            records: batch.records,
            received_at_us: producer.environment().now_us(),
            reservation: producer.budget().nothing(),
        };
        let submitted = match self.handle.block_on(producer.submit_numbered(append, numbered)) {
            Ok(submitted) => submitted,
            Err(error) => {
                let of = &reading.of;
                let reason = format!("{of}, offsets {from} to {}: {error}", to - 1);
                self.bridge.readiness.waits(NOT_COMMITTED, reason, Level::Warn);
                reading.fail(Instant::now());
                return false;
            }
        };
        reading.submitted();
        self.in_flight_bytes += cost;
        let outcomes = self.outcomes.clone();
        let (partition, session) = (partition.clone(), self.session);
        self.handle.spawn(async move {
            let result = submitted.committed().await;
            let outcome = Outcome {
                partition,
                session,
                cost,
                read,
                bytes,
                to,
                is_rejected,
                result,
            };
            // The loop has ended: nobody needs the outcome.
            let _ = outcomes.send(outcome).await;
        });
        true
    }

    /// Takes note of a message's outcome.
    fn end(&mut self, outcome: &Outcome) {
        self.in_flight_bytes -= outcome.cost;
        let metrics = &self.bridge.metrics;
        let labels = TopicLabels {
            topic: outcome.partition.0.clone(),
        };
        match &outcome.result {
            Ok(_) => {
                metrics.records.get_or_create(&labels).inc_by(outcome.read);
                metrics.bytes.get_or_create(&labels).inc_by(outcome.bytes);
                if outcome.is_rejected {
                    metrics.rejected.get_or_create(&labels).inc_by(outcome.read);
                }
            }
            Err(error) => {
                let failure = FailureLabels {
                    reason: reason(error),
                };
                metrics.commits_refused.get_or_create(&failure).inc();
            }
        }
        if outcome.session != self.session {
            return;
        }
        let Some(reading) = self.readings.get_mut(&outcome.partition) else {
            return;
        };
        if let Err(error) = &outcome.result
            && reading.takes_records()
        {
            let text = format!("{}, before offset {}: {error}", reading.of, outcome.to);
            match reason(error) {
                // Another bridge was first, which is no problem.
                "position" => tracing::info!("{text}; the bridge reads again from there"),
                _ => self.bridge.readiness.waits(NOT_COMMITTED, text, Level::Warn),
            }
        }
        reading.ended(outcome.result.is_ok().then_some(outcome.to), Instant::now());
    }

    /// `is_brief`: no longer than until the bridge is told to stop.
    fn wait_for_outcomes(&mut self, most: Duration, is_brief: bool) {
        let until = Instant::now() + most;
        let shutdown = self.shutdown.clone();
        while self.in_flight_bytes > 0 {
            let next = async {
                tokio::select! {
                    outcome = self.ended.recv() => outcome,
                    () = shutdown.cancelled(), if is_brief => None,
                    () = tokio::time::sleep_until(until) => None,
                }
            };
            match self.handle.block_on(next) {
                Some(outcome) => self.end(&outcome),
                None => return,
            }
        }
    }

    /// Commits what was read, and leaves the group.
    fn stop(&mut self) {
        self.wait_for_outcomes(self.bridge.config.grace, false);
        // The end of the client leaves the group. It waits for the commit, which a Kafka that is away would hold up.
        if self.bridge.readiness.reason(KAFKA).is_none() {
            self.commit_offsets();
        }
    }
}

/// Names some of the partitions, in their order.
fn some_of(mut places: Vec<String>) -> String {
    places.sort_unstable();
    let mut shown = places[..places.len().min(SHOWN)].join(", ");
    if let Some(others @ 1..) = places.len().checked_sub(SHOWN) {
        shown += &format!(" and {others} more");
    }
    shown
}

/// Returns true for errors after which librdkafka's place is not where the last record ended.
fn has_skipped(error: RDKafkaErrorCode) -> bool {
    matches!(
        error,
        RDKafkaErrorCode::AutoOffsetReset
            | RDKafkaErrorCode::OffsetOutOfRange
            | RDKafkaErrorCode::NotImplemented
            | RDKafkaErrorCode::BadMessage
            | RDKafkaErrorCode::BadCompression
            | RDKafkaErrorCode::InvalidMessage
    )
}

/// Adds a record to its partition's messages. Returns the bytes by which they have grown.
fn add(readings: &mut HashMap<Partition, Reading>, message: &BorrowedMessage<'_>) -> usize {
    let Ok(number) = u32::try_from(message.partition()) else {
        return 0;
    };
    let reading = readings.get_mut(&(message.topic().to_owned(), number));
    let Some(reading) = reading.filter(|reading| reading.takes_records()) else {
        return 0;
    };
    let before = reading.batches.bytes();
    let (mut none, mut buffer) = (Vec::new(), Vec::new());
    let without_headers = Record {
        timestamp_ms: message.timestamp().to_millis().unwrap_or_default(),
        key: message.key(),
        value: message.payload(),
        headers: Headers::of([], &mut none),
    };
    let with_headers = |headers, buffer| Record {
        headers: Headers::of(headers, buffer),
        ..without_headers
    };
    let offset = unsigned(message.offset());
    let added = match reading.batches.has_metadata() {
        _ if offset < reading.batches.position() => return 0,
        false => reading.batches.add(offset, &without_headers),
        true => match headers(message) {
            Ok(headers) => reading.batches.add(offset, &with_headers(headers, &mut buffer)),
            Err(_) if reading.batches.skips(offset) => Err(SKIPPED.to_owned()),
            Err(reason) => Err(reason.to_owned()),
        },
    };
    if let Err(reason) = added {
        // Its row in the stream of rejected records has all of it that can be read.
        let headers = headers(message).unwrap_or_default();
        let mut buffer = Vec::new();
        reading
            .batches
            .reject(offset, &with_headers(headers, &mut buffer), &reason);
    }
    reading.batches.bytes() - before
}
