//! The producer as its callers see it: start, append, drain. It only wires the stages together.

use std::sync::Arc;
use std::time::Duration;

use millpond_manifest::{Buffer, ReadError, cas, layout};
use millpond_segment::{BlockBuilder, Limits};
use millpond_storage::{Backoff, ErrorKind, Store};
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::accumulator::{Accepted, Accumulator};
use crate::commit_delay::CommitDelay;
use crate::committer::Committer;
use crate::encoder::Encoders;
use crate::flow::Flow;
use crate::health::Health;
use crate::metrics::Metrics;
use crate::streams::Streams;
use crate::uploader::{Upload, Uploaders};
use crate::{Append, AppendError, Budget, Committed, Config, ConfigError, Environment, Readiness};

/// Messages between the callers and the accumulator, and segments between the uploaders and the committer:
/// only to hand over, the waiting is done elsewhere.
const QUEUE: usize = 64;

/// A producer that could not be started.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A setting makes no sense.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The buffer object could not be read or written.
    #[error("cannot open the buffer {url}: {wrong}")]
    Buffer {
        /// The buffer.
        url: String,
        /// What the store answered last.
        wrong: ReadError,
    },
    /// There is no such shard.
    #[error("shard {shard} does not exist: the buffer {url} has the shards 0 to {}", shards - 1)]
    NoSuchShard {
        /// The buffer.
        url: String,
        /// The shard that was asked for.
        shard: u32,
        /// How many shards there are.
        shards: u32,
    },
    /// The producer could not be registered in the manifest.
    #[error("cannot register in the manifest of {url}, shard {shard}: {reason}")]
    Register {
        /// The buffer.
        url: String,
        /// The shard.
        shard: u32,
        /// What it was waiting for when the time was over.
        reason: String,
    },
}

/// A drain that did not come to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes_held} bytes are not committed after {} s of draining: {reason}", after.as_secs())]
pub struct DrainError {
    /// Bytes that are still held.
    pub bytes_held: usize,
    /// How long the drain was waited for.
    pub after: Duration,
    /// What the producer waits for.
    pub reason: String,
}

/// Appends messages to one shard of a buffer. Cheap to clone; when the last clone is dropped, what was accepted
/// is still committed, as long as the runtime lives.
#[derive(Clone)]
pub struct Producer(Arc<Inner>);

struct Inner {
    messages: mpsc::Sender<Accepted>,
    budget: Budget,
    block_bytes: usize,
    shard: u32,
    streams: Streams,
    health: Health,
    metrics: Metrics,
    closing: CancellationToken,
    tasks: TaskTracker,
}

impl Producer {
    /// Opens the buffer (writing its object if there is none), registers in a shard and starts the tasks.
    ///
    /// # Errors
    /// When a setting makes no sense, the store refuses, or it cannot be reached for `start_timeout`. Once
    /// started, an outage of the store is waited for.
    pub async fn start(store: Store, config: Config, registry: &mut Registry) -> Result<Self, StartError> {
        Self::start_in(Environment::system(), store, config, registry).await
    }

    /// Like [`start`](Self::start), with a time of day and random numbers of the caller's.
    pub async fn start_in(
        environment: Environment,
        store: Store,
        config: Config,
        registry: &mut Registry,
    ) -> Result<Self, StartError> {
        config.check()?;
        let budget = Budget::new(config.memory_limit - config.working_memory(), config.max_wait);
        let give_up_at = Instant::now() + config.start_timeout;
        let buffer = open_buffer(&environment, &store, config.shards_when_created, give_up_at).await?;
        let shard = choose_shard(&environment, &store, &config, buffer.shards)?;

        let metrics = Metrics::register(registry, &budget);
        let (health, streams) = (Health::default(), Streams::default());
        let (health_of_upload, metrics_of_upload) = (health.clone(), metrics.clone());
        let upload = Upload {
            store,
            shard,
            environment: environment.clone(),
            health: health_of_upload,
            metrics: metrics_of_upload,
        };
        let flow = Flow::default();
        let commit_delay = CommitDelay::new(flow.clone(), budget.clone());
        let mut committer = Committer::new(
            upload.clone(),
            buffer.id,
            config.tail_max,
            streams.clone(),
            commit_delay,
        );
        register(&mut committer, &upload, give_up_at).await?;

        let tasks = TaskTracker::new();
        let closing = CancellationToken::new();
        let (to_committer, arrivals) = mpsc::channel(QUEUE);
        tasks.spawn(committer.run(arrivals));
        let uploaders = Uploaders::new(upload, config.max_uploads, tasks.clone(), to_committer);
        let encoders = Encoders::new(&config, environment, metrics.clone());
        let (messages, accepted) = mpsc::channel(QUEUE);
        let block_bytes = config.block_bytes;
        let accumulator =
            Accumulator::new(config, budget.clone(), encoders, uploaders, flow, metrics.clone());
        tasks.spawn(accumulator.run(accepted, closing.clone()));
        Ok(Self(Arc::new(Inner {
            messages,
            budget,
            block_bytes,
            shard,
            streams,
            health,
            metrics,
            closing,
            tasks,
        })))
    }

    /// What pays for everything the producer holds. A front end draws the bodies that it reads from it, too.
    pub fn budget(&self) -> &Budget {
        &self.0.budget
    }

    /// The shard that this producer writes to.
    pub fn shard(&self) -> u32 {
        self.0.shard
    }

    /// Appends a message and waits until it is committed, however long that takes.
    ///
    /// When the returned future is dropped before it resolves, the message may or may not be appended; if it
    /// was accepted, it is, once.
    ///
    /// # Panics
    /// When the reservation is not one of this producer's [`budget`](Self::budget).
    ///
    /// # Errors
    /// See [`AppendError`], whose methods say whether to retry and whether it is certain that nothing was
    /// appended.
    pub async fn append(&self, append: Append) -> Result<Committed, AppendError> {
        let result = self.accept(append).await;
        if result.is_err() {
            self.0.metrics.refused.inc();
        }
        // The sender is dropped without an answer only when the runtime goes down.
        let gone = || AppendError::OutcomeUnknown("the producer's tasks are gone".into());
        result?.await.unwrap_or_else(|_| Err(gone()))
    }

    async fn accept(
        &self,
        mut append: Append,
    ) -> Result<oneshot::Receiver<Result<Committed, AppendError>>, AppendError> {
        let cost = self.cost(append.payload.len())?;
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
        let (waiter, outcome) = oneshot::channel();
        let sent = self.0.messages.send(Accepted { append, waiter }).await;
        sent.map_err(|_| AppendError::Closed)?;
        Ok(outcome)
    }

    /// Bytes of budget for a message of this size, which must be one that can be accepted at all.
    fn cost(&self, payload_len: usize) -> Result<usize, AppendError> {
        let cost = Append::cost(payload_len);
        if cost <= self.0.block_bytes {
            return Ok(cost);
        }
        // It gets a block of its own, for which the encoders' room does not suffice: it brings its own, to
        // compress into and for the result.
        let block_max = usize::try_from(Limits::default().block_raw_max).unwrap_or(usize::MAX);
        let most = (block_max - BlockBuilder::message_len_max(0))
            .min((self.0.budget.limit() / 3).saturating_sub(Append::cost(0)));
        if payload_len > most {
            let reason = format!("a message of {payload_len} bytes is over the limit of {most}");
            return Err(AppendError::Refused(reason.into()));
        }
        Ok(3 * cost)
    }

    /// Refuses new messages and waits until everything accepted is committed, at most `patience`.
    ///
    /// # Errors
    /// When there is something uncommitted by then. The tasks go on; drain can be called again.
    pub async fn drain(&self, patience: Duration) -> Result<(), DrainError> {
        self.0.closing.cancel();
        self.0.tasks.close();
        timeout(patience, self.0.tasks.wait()).await.map_err(|_| {
            let reason = match self.0.health.readiness() {
                Readiness::Waiting(reason) => reason,
                Readiness::Ready | Readiness::Closed => "the store is slow".to_owned(),
            };
            DrainError {
                bytes_held: self.0.budget.held(),
                after: patience,
                reason,
            }
        })
    }

    /// Whether the producer gets on, for `/readyz`.
    pub fn ready(&self) -> Readiness {
        if self.0.closing.is_cancelled() {
            Readiness::Closed
        } else {
            self.0.health.readiness()
        }
    }
}

/// Reads the buffer object, or writes it; waits for a store that is away until `give_up_at`.
async fn open_buffer(
    environment: &Environment,
    store: &Store,
    shards: u32,
    give_up_at: Instant,
) -> Result<Buffer, StartError> {
    let new = Buffer {
        id: environment.uuid(),
        shards,
    };
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(3));
    loop {
        let opened = match cas::read(store, layout::BUFFER).await {
            Ok(Some(found)) => Ok(found.state),
            Ok(None) => cas::create_once(store, layout::BUFFER, new.clone()).await,
            Err(error) => Err(error),
        };
        match opened {
            Ok(buffer) => return Ok(buffer),
            Err(ReadError::Store(error))
                if error.kind() == ErrorKind::Transient && Instant::now() < give_up_at =>
            {
                tracing::warn!("waiting for the store to open the buffer: {error}");
                sleep(environment.next_wait(&mut backoff)).await;
            }
            Err(wrong) => {
                return Err(StartError::Buffer {
                    url: store.url().to_owned(),
                    wrong,
                });
            }
        }
    }
}

fn choose_shard(
    environment: &Environment,
    store: &Store,
    config: &Config,
    shards: u32,
) -> Result<u32, StartError> {
    let shard = config.shard.unwrap_or_else(|| environment.below(shards));
    if shard < shards {
        return Ok(shard);
    }
    Err(StartError::NoSuchShard {
        url: store.url().to_owned(),
        shard,
        shards,
    })
}

async fn register(committer: &mut Committer, upload: &Upload, give_up_at: Instant) -> Result<(), StartError> {
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(3));
    while !committer.try_register().await {
        if Instant::now() >= give_up_at {
            let reason = match upload.health.readiness() {
                Readiness::Waiting(reason) => reason,
                Readiness::Ready | Readiness::Closed => "other producers were always first".to_owned(),
            };
            let (url, shard) = (upload.store.url().to_owned(), upload.shard);
            return Err(StartError::Register { url, shard, reason });
        }
        sleep(upload.environment.next_wait(&mut backoff)).await;
    }
    Ok(())
}
