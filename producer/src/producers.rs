//! The producers of one process. One takes everything that belongs to no shard, and moves to another shard when the buffer grows. Others take
//! the requests that belong to their shards, by number or by key, and close when they are idle. No request fails when a producer is replaced:
//! the old one stays until it has committed what it accepted.

mod growth;
mod homes;
mod serving;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::join_all;
use millpond_manifest::{Buffer, ClientId, KnownBuffer, Route};
use millpond_runtime::{Budget, Environment, Readiness};
use millpond_storage::Store;
use prometheus_client::registry::Registry;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::opening::{Common, Place, choose_shard, open_buffer};
use crate::peers::{NewPeering, Peering};
use crate::{Append, AppendError, Committed, Config, DrainError, Numbered, Producer, StartError, Submitted};

use homes::Home;
pub use serving::Serving;

/// The producers of a process. Cheap to clone.
#[derive(Clone)]
pub struct Producers(Arc<Inner>);

struct Inner {
    common: Common,
    peering: Option<NewPeering>,
    readiness: Readiness,
    shards_at_start: u32,
    /// Only looks hold it.
    known: tokio::sync::Mutex<KnownBuffer>,
    state: Mutex<State>,
    closing: CancellationToken,
    tasks: TaskTracker,
}

struct State {
    buffer: Buffer,
    own: Member,
    /// Producers for requests that belong to their shards alone.
    homes: HashMap<u32, Home>,
    /// Producers that accept nothing more, until everything is committed.
    leaving: Vec<Leaving>,
    /// When a request last made the process look at the buffer.
    looked_at: Option<Instant>,
}

/// A producer that takes requests.
struct Member {
    producer: Producer,
    /// The requests that are being handed over to it. It is not closed before they are.
    users: TaskTracker,
}

struct Leaving {
    producer: Producer,
    since: Instant,
    left: CancellationToken,
}

/// A producer that stays open while a request is handed over to it.
struct InUse {
    producer: Producer,
    _user: TaskTrackerToken,
}

impl Member {
    fn new(producer: Producer) -> Member {
        Member {
            producer,
            users: TaskTracker::new(),
        }
    }

    fn for_request(&self) -> InUse {
        InUse {
            producer: self.producer.clone(),
            _user: self.users.token(),
        }
    }
}

impl Producers {
    /// Opens the buffer and the first producer, as [`Producer::start_with`] does.
    ///
    /// # Errors
    /// As there.
    pub async fn start(
        environment: Arc<dyn Environment>,
        store: Store,
        config: Config,
        peering: Option<NewPeering>,
        registry: &mut Registry,
    ) -> Result<Producers, StartError> {
        config.check()?;
        let give_up_at = Instant::now() + config.start_timeout;
        let readiness = Readiness::default();
        let known = open_buffer(&*environment, &store, &config, give_up_at, &readiness).await?;
        let buffer = known.buffer().clone();
        let shards_at_start = buffer.shards;
        let shard = choose_shard(&*environment, &store, &config, shards_at_start)?;
        let common = Common::new(environment, store, config, registry);
        let place = Place {
            buffer: buffer.clone(),
            shard,
        };
        let part = part(&readiness, &place, false);
        let peers = peering.as_ref().map(|peering| peering());
        let producer = Producer::open(&common, place, peers, part, give_up_at).await?;
        common.metrics.shard.set(shard.into());
        let state = State {
            buffer,
            own: Member::new(producer),
            homes: HashMap::new(),
            leaving: Vec::new(),
            looked_at: None,
        };
        Ok(Producers(Arc::new(Inner {
            common,
            peering,
            readiness,
            shards_at_start,
            known: known.into(),
            state: Mutex::new(state),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
        })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The budget that pays for everything the producers hold. A front end also draws the bodies of its requests from it.
    pub fn budget(&self) -> &Budget {
        &self.0.common.budget
    }

    /// The clocks and random numbers of the process, also for a front end.
    pub fn environment(&self) -> &dyn Environment {
        &*self.0.common.environment
    }

    /// The id of the buffer.
    pub fn buffer_id(&self) -> String {
        self.state().buffer.id.to_string()
    }

    /// The number of shards, as far as the process knows.
    pub fn shards(&self) -> u32 {
        self.state().buffer.shards
    }

    /// The shard of requests without a number.
    pub fn shard(&self) -> u32 {
        self.state().own.producer.shard()
    }

    /// Appends a message and waits until it is committed. See [`Producer::append`].
    ///
    /// # Panics
    /// If the reservation is from another budget than [`budget`](Self::budget).
    ///
    /// # Errors
    /// See [`AppendError`].
    pub async fn append(&self, append: Append) -> Result<Committed, AppendError> {
        self.submit(append).await?.committed().await
    }

    /// Takes a message over. See [`Producer::submit`].
    ///
    /// # Panics
    /// If the reservation is from another budget than [`budget`](Self::budget).
    ///
    /// # Errors
    /// See [`AppendError`]. The message is certainly not in the log.
    pub async fn submit(&self, append: Append) -> Result<Submitted, AppendError> {
        let to = self.state().own.for_request();
        to.producer.submit(append).await
    }

    /// Takes a message of a client that numbers its requests, to the shard that has the client's row, whichever process takes it. See
    /// [`Producer::submit_numbered`].
    ///
    /// # Panics
    /// If the reservation is from another budget than [`budget`](Self::budget).
    ///
    /// # Errors
    /// See [`AppendError`].
    pub async fn submit_numbered(
        &self,
        append: Append,
        numbered: Numbered,
    ) -> Result<Submitted, AppendError> {
        let to = self.home(numbered.client).await?;
        to.producer.submit_numbered(append, numbered).await
    }

    /// How the rows of a stream find their shards, as far as the process knows. `None`: any shard will do.
    pub fn route(&self, stream: &str) -> Option<Arc<Route>> {
        self.state().buffer.routed.get(stream).cloned()
    }

    /// The shard of the numbered requests of a client.
    pub fn shard_of(&self, client: ClientId) -> u32 {
        self.state().buffer.home_of(client)
    }

    /// Takes messages over, each to its shard. The shards ascend. None is taken if one of the shards, or `besides`, cannot be used.
    ///
    /// # Panics
    /// If a reservation is from another budget than [`budget`](Self::budget).
    ///
    /// # Errors
    /// See [`AppendError`]. Others of the messages may be in the log, even if the error says that nothing was committed.
    pub async fn submit_to(
        &self,
        messages: Vec<(u32, Append)>,
        besides: Option<u32>,
    ) -> Result<Vec<Submitted>, AppendError> {
        let shards = messages.iter().map(|(shard, _)| *shard).chain(besides);
        let shards: Vec<u32> = shards.collect::<BTreeSet<_>>().into_iter().collect();
        let producers = self.producers_of(&shards).await?;
        let mut messages = messages.into_iter().peekable();
        let mut handed_over = Vec::with_capacity(messages.len());
        for (shard, to) in shards.into_iter().zip(producers) {
            if let Some((_, message)) = messages.next_if(|(of, _)| *of == shard) {
                // Not one after another: a shard that takes no message now must hold back neither those of others nor their end.
                handed_over.push(async move { to.producer.submit(message).await });
            }
        }
        join_all(handed_over).await.into_iter().collect()
    }

    /// The bytes of budget for a message of this size, numbered or not, until it is compressed.
    ///
    /// # Errors
    /// Such a message can never be accepted.
    pub fn cost(&self, payload_len: usize, is_numbered: bool) -> Result<usize, AppendError> {
        self.state().own.producer.cost(payload_len, is_numbered)
    }

    /// Rejects new messages and waits until everything accepted is committed, at most `patience`.
    ///
    /// # Errors
    /// If something is uncommitted by then. The tasks continue, and the caller can drain again.
    pub async fn drain(&self, patience: Duration) -> Result<(), DrainError> {
        self.0.closing.cancel();
        self.0.readiness.stops();
        let open = self.open_now();
        open.iter().for_each(Producer::close);
        self.0.tasks.close();
        let all = async {
            join_all(open.iter().map(Producer::closed)).await;
            self.0.tasks.wait().await;
        };
        let drained = timeout(patience, all).await;
        drained.map_err(|_| DrainError::new(self.budget(), patience, &self.0.readiness))
    }

    /// The readiness of the process, for `/readyz`. With several shards, each wait names its shard.
    pub fn readiness(&self) -> Readiness {
        self.0.readiness.clone()
    }

    /// The producers that take requests.
    fn open_now(&self) -> Vec<Producer> {
        let state = self.state();
        let homes = state.homes.values().filter_map(Home::member);
        let members = std::iter::once(&state.own).chain(homes);
        members.map(|member| member.producer.clone()).collect()
    }

    /// Opens a producer in another shard, which becomes the process's own or a home.
    async fn open(&self, shard: u32, is_own: bool) -> Result<Producer, StartError> {
        let give_up_at = Instant::now() + self.0.common.config.start_timeout;
        let place = Place {
            buffer: self.state().buffer.clone(),
            shard,
        };
        // The process is ready without it as long as it is not open.
        let part = part(&self.0.readiness, &place, true);
        let peering = self.0.peering.as_ref().map(|peering| {
            let peering = peering();
            // Other processes find a leader at its address.
            let address = peering.address.filter(|_| is_own);
            Peering { address, ..peering }
        });
        let opened = Producer::open(&self.0.common, place, peering, part.clone(), give_up_at).await;
        match opened {
            Ok(_) if is_own => part.matters(),
            Ok(_) => {}
            Err(_) => part.forget(),
        }
        opened
    }

    /// Lets a producer that takes no further requests finish its own.
    fn retire(&self, state: &mut State, member: Member) {
        let (producer, left) = (member.producer.clone(), CancellationToken::new());
        state.leaving.push(Leaving {
            producer: producer.clone(),
            since: Instant::now(),
            left: left.clone(),
        });
        producer.readiness().matters_no_more();
        let all = self.clone();
        self.0.tasks.spawn(async move {
            member.users.close();
            member.users.wait().await;
            producer.close();
            producer.closed().await;
            all.state()
                .leaving
                .retain(|leaving| !leaving.producer.is(&producer));
            left.cancel();
        });
    }
}

/// The readiness of a producer.
fn part(process: &Readiness, place: &Place, is_optional: bool) -> Readiness {
    match place.buffer.shards {
        1 => process.clone(),
        _ => shard_part(process, place.shard, is_optional),
    }
}

fn shard_part(process: &Readiness, shard: u32, is_optional: bool) -> Readiness {
    process.part(format_args!("shard {shard}"), is_optional)
}
