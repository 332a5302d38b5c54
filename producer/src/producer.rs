//! The producer's interface: start, append, drain. It only wires the stages together.

use std::sync::Arc;
use std::time::Duration;

use millpond_manifest::{
    Buffer, ClientClaim, Cursor, Fingerprint, Numbers, Object, ProducerId, ReadError, Route, layout,
};
use millpond_runtime::{Backoff, Budget, Environment, Readiness, Reservation, SystemEnvironment};
use millpond_segment::{BlockBuilder, Limits};
use millpond_storage::{Fetched, Store};
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::accumulator::{Accepted, Accumulator};
use crate::clients::{CLIENT_BYTES, CLIENTS_FORWARD_MAX, Caller, Clients, Numbered};
use crate::commit_delay::CommitDelay;
use crate::committer::Committer;
use crate::committer::{COMMIT, FOREIGN_SEGMENTS_MAX};
use crate::flow::Flow;
use crate::lead::{Foreign, Guest, Lead, Ticket};
use crate::metrics::Metrics;
use crate::opening::{Common, Place, choose_shard, open_buffer};
use crate::peers::{PeerCommit, PeerRefusal, PeerRequest, Peering, Records};
use crate::streams::Streams;
use crate::uploader::{UPLOAD, Upload, Uploaders};
use crate::watchers::Watcher;
use crate::{Append, AppendError, Committed, Config, ConfigError, Submitted};

/// The capacity of the queues from the callers to the accumulator and from the uploaders to the committer. The queues
/// only hand over: the waiting happens elsewhere.
const QUEUE: usize = 64;

/// A leader that the store has held up at two looks with this time between them lets others commit for themselves.
const HELD_UP: Duration = Duration::from_millis(500);

/// A leader reads no larger cursors: their owners poll. One with a thousand streams has less.
pub const CURSOR_BYTES: u64 = 256 << 10;

/// The memory that reading such a cursor takes at most, in bytes: sixteen times its size. Four bytes of it become sixteen as a planned
/// batch, in two copies.
pub const CURSOR_MEMORY: usize = 4 << 20;

/// A leader without any commit for this long, beside its linger, does too. One that is only slow commits.
const STUCK: Duration = Duration::from_secs(3);

/// The reasons why a producer cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The buffer object could not be read or written.
    #[error("cannot open the buffer {url}: {wrong}")]
    Buffer {
        /// The buffer.
        url: String,
        /// The last answer of the store.
        wrong: ReadError,
    },
    /// The shard does not exist.
    #[error("shard {shard} does not exist: the buffer {url} has the shards 0 to {}", shards - 1)]
    NoSuchShard {
        /// The buffer.
        url: String,
        /// The requested shard.
        shard: u32,
        /// The number of shards.
        shards: u32,
    },
    /// The producer could not be registered in the manifest.
    #[error("cannot register in the manifest of {url}, shard {shard}: {reason}")]
    Register {
        /// The buffer.
        url: String,
        /// The shard.
        shard: u32,
        /// The last wait before the time ran out.
        reason: String,
    },
}

/// A drain that ended before everything was committed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes_held} bytes are not committed after {} s of draining: {reason}", after.as_secs())]
pub struct DrainError {
    /// The bytes that are still held.
    pub bytes_held: usize,
    /// The time that the drain waited.
    pub after: Duration,
    /// The producer's current wait.
    pub reason: String,
}

impl DrainError {
    pub(crate) fn new(budget: &Budget, after: Duration, readiness: &Readiness) -> DrainError {
        let reason = readiness.sentence();
        DrainError {
            bytes_held: budget.held(),
            after,
            reason: reason.unwrap_or_else(|| "the store is slow".to_owned()),
        }
    }
}

/// Appends messages to one shard of a buffer. Cheap to clone. After the last clone is dropped, accepted messages are
/// still committed as long as the runtime lives.
#[derive(Clone)]
pub struct Producer(Arc<Inner>);

struct Inner {
    store: Store,
    messages: mpsc::Sender<Accepted>,
    guests: mpsc::Sender<(Guest, Reservation)>,
    foreign: mpsc::Sender<Foreign>,
    lead: Lead,
    budget: Budget,
    block_bytes: usize,
    linger: Duration,
    shard: u32,
    buffer: Buffer,
    environment: Arc<dyn Environment>,
    streams: Streams,
    clients: Clients,
    flow: Flow,
    readiness: Readiness,
    metrics: Metrics,
    closing: CancellationToken,
    tasks: TaskTracker,
}

impl Producer {
    /// Opens the buffer (creating its object if there is none), registers in a shard and starts the tasks.
    ///
    /// # Errors
    /// If a setting is invalid, the store refuses a request, or the store is unreachable for `start_timeout`. A
    /// producer that has started waits for the store during an outage.
    pub async fn start(store: Store, config: Config, registry: &mut Registry) -> Result<Self, StartError> {
        Self::start_in(Arc::new(SystemEnvironment), store, config, registry).await
    }

    /// Like [`start`](Self::start), with the caller's clocks and random numbers.
    pub async fn start_in(
        environment: Arc<dyn Environment>,
        store: Store,
        config: Config,
        registry: &mut Registry,
    ) -> Result<Self, StartError> {
        Self::start_with(environment, store, config, None, registry).await
    }

    /// Like [`start_in`](Self::start_in), as one of several producers that commit for each other.
    pub async fn start_with(
        environment: Arc<dyn Environment>,
        store: Store,
        config: Config,
        peering: Option<Peering>,
        registry: &mut Registry,
    ) -> Result<Self, StartError> {
        config.check()?;
        let give_up_at = Instant::now() + config.start_timeout;
        let readiness = Readiness::default();
        let opened = open_buffer(&*environment, &store, &config, give_up_at, &readiness).await?;
        let buffer = opened.buffer().clone();
        let shard = choose_shard(&*environment, &store, &config, buffer.shards)?;
        let common = Common::new(environment, store, config, registry);
        common.metrics.shard.set(shard.into());
        let place = Place { buffer, shard };
        Self::open(&common, place, peering, readiness, give_up_at).await
    }

    /// Registers in a shard and starts the tasks. The caller may open several producers with the same `common`.
    pub(crate) async fn open(
        common: &Common,
        place: Place,
        peering: Option<Peering>,
        readiness: Readiness,
        give_up_at: Instant,
    ) -> Result<Self, StartError> {
        let Common {
            environment,
            store,
            config,
            budget,
            encoders,
            metrics,
        } = common.clone();
        let Place { buffer, shard } = place;
        let streams = Streams::default();
        let upload = Upload {
            store: store.clone(),
            shard,
            environment: environment.clone(),
            readiness: readiness.clone(),
            metrics: metrics.clone(),
        };
        let flow = Flow::default();
        let commit_delay = CommitDelay::new(flow.clone(), budget.clone());
        let lead = Lead::new(config.linger, &budget);
        let mut committer = Committer::new(
            upload.clone(),
            buffer.id,
            &config,
            streams.clone(),
            commit_delay,
            peering,
            lead.clone(),
        );
        register(&mut committer, &upload, give_up_at).await?;

        let tasks = TaskTracker::new();
        let closing = CancellationToken::new();
        let (to_committer, arrivals) = mpsc::channel(QUEUE);
        let (foreign, from_others) = mpsc::channel(QUEUE);
        tasks.spawn(committer.run(arrivals, from_others));
        let uploaders = Uploaders::new(upload, config.max_uploads, tasks.clone(), to_committer);
        let (messages, accepted) = mpsc::channel(QUEUE);
        let (block_bytes, linger) = (config.block_bytes, config.linger);
        let accumulator = Accumulator::new(
            config,
            budget.clone(),
            encoders,
            uploaders,
            flow.clone(),
            lead.clone(),
            metrics.clone(),
        );
        let (guests, arriving_guests) = mpsc::channel(QUEUE);
        tasks.spawn(accumulator.run(accepted, arriving_guests, closing.clone()));
        Ok(Self(Arc::new(Inner {
            store,
            messages,
            guests,
            foreign,
            lead,
            budget,
            block_bytes,
            linger,
            shard,
            buffer,
            environment,
            streams,
            clients: Clients::default(),
            flow,
            readiness,
            metrics,
            closing,
            tasks,
        })))
    }

    /// The budget that pays for everything the producer holds. A front end also draws the bodies of its requests from
    /// it.
    pub fn budget(&self) -> &Budget {
        &self.0.budget
    }

    /// The clocks and random numbers of this producer, also for a front end.
    pub fn environment(&self) -> &dyn Environment {
        &*self.0.environment
    }

    /// The shard that this producer writes to.
    pub fn shard(&self) -> u32 {
        self.0.shard
    }

    /// The number of shards that the buffer had when this producer started.
    pub fn shards(&self) -> u32 {
        self.0.buffer.shards
    }

    /// How the rows of a stream found their shards when this producer started. `None`: any shard would do.
    pub fn route(&self, stream: &str) -> Option<&Route> {
        self.0.buffer.routed.get(stream).map(|route| &**route)
    }

    /// The id of the buffer.
    pub fn buffer_id(&self) -> String {
        self.0.buffer.id.to_string()
    }

    /// Appends a message and waits until it is committed, without a time limit.
    ///
    /// If the returned future is dropped before it resolves, the message may or may not be appended. An accepted
    /// message is appended once.
    ///
    /// # Panics
    /// If the reservation is from another budget than this producer's [`budget`](Self::budget).
    ///
    /// # Errors
    /// See [`AppendError`]: its methods tell whether to retry, and whether the message is certainly not in the log.
    pub async fn append(&self, append: Append) -> Result<Committed, AppendError> {
        self.submit(append).await?.committed().await
    }

    /// Takes a message over, and leaves it to the caller when to wait for the commit. Messages of a stream are in the log
    /// in the order in which they were taken over.
    ///
    /// # Panics
    /// If the reservation is from another budget than this producer's [`budget`](Self::budget).
    ///
    /// # Errors
    /// See [`AppendError`]. The message is certainly not in the log.
    pub async fn submit(&self, append: Append) -> Result<Submitted, AppendError> {
        self.take_over(append, None).await
    }

    /// Like [`submit`](Self::submit), for a client that numbers its requests. The log has the records of a number once:
    /// for a repetition, the outcome is that of the first request, whichever producer of the shard took it.
    ///
    /// # Panics
    /// If the reservation is from another budget than this producer's [`budget`](Self::budget).
    ///
    /// # Errors
    /// See [`AppendError`].
    pub async fn submit_numbered(
        &self,
        append: Append,
        numbered: Numbered,
    ) -> Result<Submitted, AppendError> {
        self.take_over(append, Some(numbered)).await
    }

    async fn take_over(&self, append: Append, numbered: Option<Numbered>) -> Result<Submitted, AppendError> {
        let waiting = self.0.flow.wait();
        match self.accept(append, numbered).await {
            Ok(outcome) => Ok(Submitted {
                outcome,
                _waiting: waiting,
            }),
            Err(error) => {
                self.0.metrics.refused.inc();
                Err(error)
            }
        }
    }

    async fn accept(
        &self,
        mut append: Append,
        numbered: Option<Numbered>,
    ) -> Result<oneshot::Receiver<Result<Committed, AppendError>>, AppendError> {
        let cost = self.cost(append.payload.len(), numbered.is_some())?;
        if self.0.closing.is_cancelled() {
            return Err(AppendError::Closed);
        }
        let admitted = self.0.streams.admit(&append.stream, append.encoding);
        admitted.map_err(|reason| AppendError::Refused(reason.into()))?;
        let missing = cost.saturating_sub(append.reservation.bytes());
        if missing > 0 {
            append.reservation.merge(self.0.budget.reserve(missing).await?);
        }
        append.reservation.shrink(cost);
        // Before a number is held: a caller that goes away now leaves nobody waiting for its records.
        let place = self.0.messages.reserve().await;
        let place = place.map_err(|_| AppendError::Closed)?;
        let (waiter, outcome) = oneshot::channel();
        let caller = match numbered {
            None => Caller::Waiter(waiter),
            Some(numbered) => match self.0.clients.hold(numbered, waiter) {
                Some(ticket) => Caller::Client(ticket),
                None => {
                    self.0.metrics.client_settled("joined");
                    return Ok(outcome);
                }
            },
        };
        place.send(Accepted { append, caller });
        Ok(outcome)
    }

    /// Returns the bytes of budget for a message of this size. Fails if such a message can never be accepted.
    pub(crate) fn cost(&self, payload_len: usize, is_numbered: bool) -> Result<usize, AppendError> {
        let number = if is_numbered { CLIENT_BYTES } else { 0 };
        let cost = Append::cost(payload_len);
        if cost <= self.0.block_bytes {
            return Ok(cost + number);
        }
        // The message gets a separate block that exceeds the encoders' space, so it pays for its own space: to compress
        // into and for the result.
        let block_max = usize::try_from(Limits::default().block_raw_max).unwrap_or(usize::MAX);
        let most = (block_max - BlockBuilder::message_len_max(0))
            .min((self.0.budget.limit() / 3).saturating_sub(Append::cost(0)));
        if payload_len > most {
            let reason = format!("a message of {payload_len} bytes is over the limit of {most}");
            return Err(AppendError::Refused(reason.into()));
        }
        Ok(3 * cost + number)
    }

    /// The number of the manifest that this producer last took: all that it has committed is in that one or in a later one. It
    /// becomes smaller when somebody has restored an earlier manifest.
    pub fn manifest_version(&self) -> u64 {
        self.0.lead.version()
    }

    /// The certificate of another producer, which whoever may write the manifest vouches for. `None`: this producer does not
    /// know the other one, or not yet.
    pub fn certificate_of(&self, producer: ProducerId) -> Option<Fingerprint> {
        self.0.lead.certificate(producer)
    }

    /// Asks for a look at the manifest, because it may have a producer that this one does not know yet.
    pub fn look_for(&self, producer: ProducerId) {
        self.0.lead.look_for(producer);
    }

    /// Counts in a consumer that watches this producer.
    pub fn watch(&self) -> Watcher {
        let inner = &self.0;
        let watchers = inner.lead.watchers().clone();
        Watcher::new(
            watchers,
            inner.lead.clone(),
            inner.closing.clone(),
            inner.metrics.clone(),
        )
    }

    /// Reads the certificate in the cursor of a consumer. `None`: the consumer has no cursor in this shard, or its owner does not
    /// watch. The caller has memory for [`CURSOR_MEMORY`].
    ///
    /// # Errors
    /// The store does not answer, or its answer is no cursor of at most [`CURSOR_BYTES`].
    pub async fn certificate_of_consumer(&self, consumer: &str) -> Result<Option<Fingerprint>, String> {
        let key = layout::cursor(self.0.shard, consumer);
        let found = self.0.store.get_at_most(&key, None, CURSOR_BYTES).await;
        let bytes = match found.map_err(|error| error.to_string())? {
            Fetched::Changed(found) => found.bytes,
            Fetched::Absent | Fetched::Unchanged => return Ok(None),
            Fetched::TooLarge { bytes, .. } => return Err(format!("{key} has {bytes} bytes")),
        };
        let cursor = Cursor::decode(&bytes).map_err(|wrong| format!("{key}: {wrong}"))?;
        let is_its = cursor.consumer == consumer && cursor.shard == self.0.shard;
        let is_its = is_its && cursor.buffer_id == self.0.buffer.id;
        Ok(cursor.certificate.filter(|_| is_its))
    }

    /// Commits the records of another producer, which has proven that it is this one. The reservation is from this producer's
    /// [`budget`](Self::budget), and pays for the blocks and the numbered requests.
    ///
    /// If the returned future is dropped, the records may still be committed.
    ///
    /// # Errors
    /// As far as this producer knows, the records are not in the log. The other one commits them itself, under the same
    /// number.
    pub async fn commit_for(
        &self,
        request: PeerRequest,
        reservation: Reservation,
    ) -> Result<PeerCommit, PeerRefusal> {
        if self.0.closing.is_cancelled() {
            return Err(PeerRefusal::Leaving);
        }
        let (ticket, outcome) = self.0.lead.offer(request.producer, request.number)?;
        if ticket.is_some() {
            // Not earlier: the streams of a request that is refused anyway must not keep out this producer's own callers.
            self.check(&request)?;
        }
        let committed = async {
            if let Some(ticket) = ticket {
                self.take_in(ticket, request, reservation).await?;
            }
            let gone = || PeerRefusal::NotCommitted("the producer's tasks are gone".to_owned());
            outcome.await.unwrap_or_else(|_| Err(gone()))
        };
        // A queue is full as long as the store holds this producer up, so the time in it counts.
        tokio::select! {
            biased;
            outcome = committed => {
                let commit = outcome?;
                self.0.metrics.commits_for_others.inc();
                Ok(commit)
            }
            reason = self.held_up() => Err(PeerRefusal::HeldUp(reason)),
        }
    }

    /// Queues the records of another producer for the next commit.
    async fn take_in(
        &self,
        ticket: Ticket,
        request: PeerRequest,
        reservation: Reservation,
    ) -> Result<(), PeerRefusal> {
        let PeerRequest { records, clients, .. } = request;
        match records {
            Records::Blocks(blocks) => {
                let guest = Guest {
                    ticket,
                    blocks,
                    clients,
                };
                let sent = self.0.guests.send((guest, reservation)).await;
                sent.map_err(|_| PeerRefusal::Leaving)
            }
            Records::Segments(segments) => {
                let foreign = Foreign {
                    ticket,
                    segments,
                    clients,
                    reservation,
                };
                let sent = self.0.foreign.send(foreign).await;
                sent.map_err(|_| PeerRefusal::Leaving)
            }
        }
    }

    /// Checks what would spoil a commit for others.
    fn check(&self, request: &PeerRequest) -> Result<(), PeerRefusal> {
        let invalid = |reason: &str| Err(PeerRefusal::Invalid(reason.to_owned()));
        let admit = |stream: &str, encoding| {
            let admitted = self.0.streams.admit(stream, encoding);
            admitted.map_err(PeerRefusal::Invalid)
        };
        let segments = match &request.records {
            Records::Blocks(_) => 1,
            Records::Segments(segments) => segments.len(),
        };
        if request.clients.len() > CLIENTS_FORWARD_MAX {
            return invalid("it has too many numbered requests");
        }
        if request.clients.iter().any(|claim| claim.segment >= segments) {
            return invalid("a numbered request is in none of its segments");
        }
        let is_of_source =
            |claim: &ClientClaim| claim.source.is_some() || matches!(claim.numbers, Numbers::Offsets { .. });
        if request.clients.iter().any(is_of_source) {
            return invalid("offsets of a partition are committed by their own producer");
        }
        match &request.records {
            Records::Blocks(blocks) if blocks.is_empty() => invalid("it has no blocks"),
            Records::Blocks(blocks) => {
                let mut blocks = blocks.iter();
                blocks.try_for_each(|block| admit(&block.stream, block.encoding))
            }
            Records::Segments(segments) if segments.is_empty() => invalid("it has no segments"),
            Records::Segments(segments) if segments.len() > FOREIGN_SEGMENTS_MAX => {
                invalid("it has too many segments")
            }
            Records::Segments(segments) => {
                let mut parts = segments.iter().flat_map(|segment| &segment.parts);
                parts.try_for_each(|part| admit(&part.stream, part.encoding))
            }
        }
    }

    /// Waits until the store has held this producer up for [`HELD_UP`], or has not answered for [`STUCK`]. Another one may reach
    /// it.
    async fn held_up(&self) -> String {
        let waits = || {
            let mut stages = [COMMIT, UPLOAD].iter();
            stages.find_map(|what| self.0.readiness.reason(what))
        };
        let since = Instant::now();
        loop {
            sleep(HELD_UP).await;
            let idle = self
                .0
                .lead
                .answered_at()
                .map_or(since, |at| at.max(since))
                .elapsed();
            if idle >= self.0.linger + STUCK {
                return format!("no answer for {} s", idle.as_secs());
            }
            if waits().is_some() {
                sleep(HELD_UP).await;
                if let Some(reason) = waits() {
                    return reason;
                }
            }
        }
    }

    /// Rejects new messages and waits until everything accepted is committed, at most `patience`.
    ///
    /// # Errors
    /// If something is uncommitted by then. The tasks continue, and the caller can drain again.
    pub async fn drain(&self, patience: Duration) -> Result<(), DrainError> {
        self.close();
        self.0.readiness.stops();
        timeout(patience, self.closed())
            .await
            .map_err(|_| DrainError::new(&self.0.budget, patience, &self.0.readiness))
    }

    /// Rejects new messages. The producer still commits what it has accepted, and hands the lead to others.
    pub(crate) fn close(&self) {
        self.0.closing.cancel();
        self.0.tasks.close();
    }

    /// Why requests have waited for the store this long, if some do.
    pub(crate) fn is_stuck_for(&self, least: Duration) -> Option<String> {
        // Without a request, nothing may be there that would end a wait.
        (self.0.flow.waiting() > 0).then(|| self.0.readiness.long_waits(least))?
    }

    /// Returns true if both are clones of one producer.
    pub(crate) fn is(&self, other: &Producer) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Waits until everything accepted before [`close`](Self::close) is committed.
    pub(crate) async fn closed(&self) {
        self.0.tasks.wait().await;
    }

    /// The producer's readiness, for `/readyz`.
    pub fn readiness(&self) -> Readiness {
        self.0.readiness.clone()
    }
}

async fn register(committer: &mut Committer, upload: &Upload, give_up_at: Instant) -> Result<(), StartError> {
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(3));
    while !committer.try_register().await {
        if Instant::now() >= give_up_at {
            let reason = upload.readiness.sentence();
            let reason = reason.unwrap_or_else(|| "other producers were always first".to_owned());
            let (url, shard) = (upload.store.url().to_owned(), upload.shard);
            return Err(StartError::Register { url, shard, reason });
        }
        backoff.pause(&*upload.environment).await;
    }
    Ok(())
}
