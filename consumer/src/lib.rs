//! The consumer: discover → plan → fetch → decode → write → acknowledge. It works on batches in parallel and out of
//! order, and acknowledges a contiguous prefix. `design/consumer.md` describes the whole. `schedule` makes the
//! decisions and is pure; the other modules carry them out.

mod bisect;
mod bottleneck;
mod claim;
mod config;
mod dead_letters;
mod decode;
mod discovery;
mod division;
mod error;
pub mod gc;
mod growth;
mod hedge;
mod in_flight;
mod leaders;
mod lease;
mod membership;
mod metrics;
mod owner;
mod reading;
mod repair;
pub mod replay;
mod resting;
mod rounds;
pub mod schedule;
mod shard;
mod sharing;
pub mod sink;
mod start;
mod streams;
mod tenure;
mod terms;
mod trace;
pub mod unique;
mod watch;
mod work;
mod worker;
mod write;

pub use config::{Config, Start};
pub use error::ConsumeError;
pub use leaders::{LeaderConnection, Leaders, WatchError, WatchedLeader, Watching};
pub use millpond_manifest::SinkTable;
pub use millpond_manifest::cursor::{BatchingPolicy, ProgramHash, Programs};
pub use millpond_manifest::piece;
pub use repair::{Repair, Tally};
#[doc(hidden)]
pub use rounds::{Found, write_again};
pub use sink::{
    Attempt, Batch, BatchId, Chunk, Cut, Opened, Part, Presence, Received, Record, RowId, Settled, Sink,
    SinkError,
};
pub use streams::{BadPattern, StreamPattern};
pub use unique::{Dropped, KeyHasher, KeyValue, PartKeys, PartTimes, RowKey};

use claim::Claim;
use growth::Growth;
use hedge::Hedge;
use membership::Membership;
use metrics::Metrics;
use millpond_manifest::cas::Snapshot;
use millpond_manifest::{Buffer, layout};
use millpond_runtime::{Environment, Level, Looks, Readiness, SystemEnvironment};
use millpond_storage::Store;
use prometheus_client::registry::Registry;
use reading::read_patiently;
use resting::Rested;
use shard::{Admitted, Shard};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::info;
use unique::{KeyLimit, Routing};
use worker::{BatchWorker, Written};

/// A named reader of a buffer. It writes the streams that its settings select and its sink accepts into that sink.
pub struct Consumer {
    store: Store,
    config: Config,
    sink: Arc<dyn Sink>,
    environment: Arc<dyn Environment>,
    metrics: Metrics,
    readiness: Readiness,
    tally: Tally,
    watching: Option<Watching>,
}

impl Consumer {
    /// Creates a consumer, ready to [`run`](Self::run). Its metrics go to `registry`.
    pub fn new(
        store: Store,
        config: Config,
        sink: Arc<dyn Sink>,
        registry: &mut Registry,
    ) -> Result<Consumer, ConsumeError> {
        layout::check_reader_name(&config.consumer)?;
        config
            .policy(sink.name(), sink.schema_version())
            .check()
            .map_err(ConsumeError::Setting)?;
        config.check_unique().map_err(ConsumeError::Setting)?;
        let metrics = Metrics::register(registry, &config.consumer);
        let environment = Arc::new(SystemEnvironment);
        Ok(Consumer {
            store,
            config,
            sink,
            environment,
            metrics,
            readiness: Readiness::default(),
            tally: Tally::default(),
            watching: None,
        })
    }

    /// Replaces the clock and the random numbers.
    #[must_use]
    pub fn with_environment(mut self, environment: Arc<dyn Environment>) -> Self {
        self.environment = environment;
        self
    }

    /// Hears of commits from the leaders of the shards, where there are some. A repair does not.
    #[must_use]
    pub fn with_watching(mut self, watching: Watching) -> Self {
        self.watching = Some(watching).filter(|_| self.config.repair.is_none());
        self
    }

    /// The consumer's current waits, for operators.
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// The rows that a repair found and inserted. All counts are 0 in a consumer that is not a repair.
    pub fn tally(&self) -> Tally {
        self.tally.clone()
    }

    /// Consumes until `shutdown`, then finishes the work in flight and releases the cursors. An error means that the
    /// consumer cannot continue; the sink has everything that it acknowledged either way. A repair ends by itself when
    /// its ranges are done.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), ConsumeError> {
        let known = tokio::select! {
            biased;
            buffer = self.buffer() => buffer?,
            () = shutdown.cancelled() => return Ok(()),
        };
        let buffer = known.state.clone();
        self.metrics.shards.set(buffer.shards.into());
        info!(buffer = %buffer.id, shards = buffer.shards, consumer = self.config.consumer, sink = self.sink.name(), "consuming");
        self.check_routes(&buffer)?;
        let streams = self.streams(&buffer).await?;
        let memory = self.config.memory();
        let keys_max = self.config.unique_keys();
        if !self.config.unique.is_empty() {
            let limit = i64::try_from(keys_max).unwrap_or(i64::MAX);
            self.metrics.unique_keys_limit.set(limit);
        }
        let worker = Arc::new(BatchWorker {
            store: self.store.clone(),
            hedge: Hedge::new(memory.clone(), self.metrics.hedged_fetches.clone()),
            sink: self.sink.clone(),
            streams,
            metrics: self.metrics.clone(),
            readiness: self.readiness.clone(),
            environment: self.environment.clone(),
            memory,
            keys: KeyLimit::new(keys_max),
            loads: Arc::new(Semaphore::new(1)),
            routing: Routing::new(buffer.routed.clone()),
            snapshot_keys: self.config.snapshot_keys,
            snapshot_bytes: self.config.snapshot_bytes,
            snapshots_named: self.config.snapshots_named,
            key_times: self.config.key_times(),
            fetchers: Arc::new(Semaphore::new(self.config.fetchers.max(1))),
            decoders: Arc::new(Semaphore::new(self.config.decoders.max(1))),
            writers: Arc::new(Semaphore::new(self.config.writers.max(1))),
            writers_max: self.config.writers.max(1),
            dead_letters_max: self.config.dead_letters_max,
            written: Written::default(),
            bottleneck: Mutex::default(),
            repair: self.config.repair.is_some().then(|| self.tally.clone()),
        });
        let membership = self.membership(&buffer);
        // A shard that ends with a reason for all ends the process. The other shards finish the work in flight.
        let shutdown = shutdown.child_token();
        let driver = |shard, take_over| Shard {
            repair: self.config.repair_of(shard).cloned(),
            config: self.config.clone(),
            take_over,
            claim: self.claim(&buffer, shard),
            worker: worker.clone(),
            shutdown: shutdown.clone(),
            admitted: Admitted::Unasked,
            membership: membership.clone(),
            watching: self.watching.clone(),
        };
        let all = self.shards(&buffer).into_iter();
        let mut waiting: Vec<Shard> = all.map(|shard| driver(shard, self.config.take_over)).collect();
        // The first shard decides for all, so that no two consumers get a table in one shard each.
        if let Some(first) = waiting.first_mut() {
            let Some(admitted) = first.ask_for_tables().await? else {
                return Ok(());
            };
            first.admitted = admitted;
        }
        let (mut shards, mut resting) = (JoinSet::new(), JoinSet::new());
        for shard in waiting {
            shards.spawn(shard.run());
        }
        let mut outcome = Ok(());
        let mut watch = std::pin::pin!(worker.watch());
        let mut growth = self.growth(known, membership.as_deref());
        let mut members = std::pin::pin!(async {
            if let Some(membership) = &membership {
                tokio::select! {
                    biased;
                    () = shutdown.cancelled() => {}
                    never = membership.run() => match never {},
                }
                // Early, so that the others know whose the shards are when they are released.
                membership.leave().await;
            }
            std::future::pending().await
        });
        loop {
            let ended = tokio::select! {
                biased;
                ended = shards.join_next() => ended,
                never = &mut watch => match never {},
                never = &mut members => match never {},
                new = growth.change(), if self.config.repair.is_none() && !shutdown.is_cancelled() => {
                    let now = growth.known.buffer();
                    self.metrics.shards.set(now.shards.into());
                    worker.routing.set(now.routed.clone());
                    if let Err(error) = self.check_routes(now) {
                        shutdown.cancel();
                        outcome = outcome.and(Err(error));
                        continue;
                    }
                    if let Some(membership) = &membership {
                        membership.set_shards(new.end);
                    }
                    for shard in new {
                        // A new shard has no owner that the operator could have meant.
                        shards.spawn(driver(shard, false).run());
                    }
                    continue;
                }
                Some(rested) = resting.join_next(), if !shutdown.is_cancelled() => {
                    let rested: Rested = rested.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()));
                    shards.spawn(rested.run_again());
                    continue;
                }
            };
            let Some(ended) = ended else { break };
            let ended = ended.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()));
            let (shard, known, take_over) = (ended.shard, ended.known, ended.take_over);
            match ended.end {
                Ok(()) => {}
                Err(why) if self.goes_on(shard, &why) && !shards.is_empty() && !shutdown.is_cancelled() => {
                    self.metrics.shard_failures.inc();
                    // Nothing that it waited for concerns anybody any more.
                    self.readiness.forget();
                    resting.spawn(driver(shard, take_over).rest(known, &why));
                }
                ended => {
                    shutdown.cancel();
                    outcome = outcome.and(ended);
                }
            }
        }
        if let Some(membership) = &membership {
            membership.leave().await;
        }
        outcome
    }

    /// Returns true if the other shards can go on after one has ended. A repair is to end with an error.
    fn goes_on(&self, shard: u32, why: &ConsumeError) -> bool {
        self.config.repair.is_none() && why.is_of_one_shard(shard)
    }

    /// Checks that one shard has all rows of a key.
    fn check_routes(&self, buffer: &Buffer) -> Result<(), ConsumeError> {
        if buffer.shards <= 1 || self.config.repair.is_some() {
            return Ok(());
        }
        for (stream, setting) in &self.config.unique {
            let url = self.store.url();
            let route = format!(
                "`millpond buffer route --unique {} --buffer {url}`",
                self.config.unique_file
            );
            let (reason, remedy) = match buffer.routed.get(&**stream) {
                Some(route) if route.key == setting.key => continue,
                None => ("gateways do not route its rows by key".to_owned(), route),
                Some(other) => (
                    format!(
                        "gateways route its rows by {}, not by {}",
                        other.key.join(", "),
                        setting.key.join(", ")
                    ),
                    format!(
                        "`millpond buffer unroute {stream} --buffer {url}` and then {route}; all consumers of the stream need the same key"
                    ),
                ),
            };
            return Err(ConsumeError::UniqueShards {
                consumer: self.config.consumer.clone(),
                stream: stream.clone(),
                shards: buffer.shards,
                reason,
                remedy,
            });
        }
        Ok(())
    }

    /// Returns the shards that this process works on.
    fn shards(&self, buffer: &Buffer) -> Vec<u32> {
        let asked = |shard: &u32| match &self.config.repair {
            Some(repair) => repair.ranges.contains_key(shard),
            None => true,
        };
        (0..buffer.shards).filter(asked).collect()
    }

    /// Returns the streams to consume. A repair leaves out those that its consumer does not read.
    async fn streams(&self, buffer: &Buffer) -> Result<Vec<StreamPattern>, ConsumeError> {
        if self.config.repair.is_none() {
            return Ok(self.config.streams.clone());
        }
        let mut streams = BTreeSet::new();
        for shard in self.shards(buffer) {
            let claim = self.claim(buffer, shard);
            streams.append(&mut claim.streams_read(&self.config.streams).await?);
        }
        Ok(streams.into_iter().collect())
    }

    /// The consumer's processes. A repair is not divided.
    fn membership(&self, buffer: &Buffer) -> Option<Arc<Membership>> {
        if self.config.repair.is_some() {
            return None;
        }
        let membership = Membership::new(
            self.store.clone(),
            self.environment.clone(),
            self.metrics.clone(),
            buffer.id,
            (&self.config.consumer, &self.config.instance),
            self.config.lease,
        );
        membership.set_shards(buffer.shards);
        Some(Arc::new(membership))
    }

    fn growth(&self, known: Snapshot<Buffer>, membership: Option<&Membership>) -> Growth {
        Growth {
            store: self.store.clone(),
            environment: self.environment.clone(),
            looks: Looks::new(self.config.growth_interval),
            known: known.into(),
            wanted: membership.map_or_else(Arc::default, |membership| membership.growth_wanted.clone()),
        }
    }

    fn claim(&self, buffer: &Buffer, shard: u32) -> Claim {
        Claim {
            store: self.store.clone(),
            buffer_id: buffer.id,
            shards: buffer.shards,
            shard,
            consumer: self.config.consumer.clone(),
            cursor: self.config.cursor(),
            instance: self.config.instance.clone(),
            lease: self.config.lease,
            policy: self.config.policy(self.sink.name(), self.sink.schema_version()),
            unique: self.config.unique_settings(),
            tables: self.sink.tables(),
            share_tables: self.config.share_tables,
            programs: self.sink.programs(),
            certificate: self.watching.as_ref().map(|watching| watching.certificate),
            environment: self.environment.clone(),
            metrics: self.metrics.clone(),
            readiness: self.readiness.clone(),
        }
    }

    /// Waits until a producer has created the buffer.
    async fn buffer(&self) -> Result<Snapshot<Buffer>, ConsumeError> {
        let what = format!("the buffer at {}", self.store.url());
        loop {
            if let Some(found) =
                read_patiently::<Buffer>(&self.store, layout::BUFFER, &self.readiness, &*self.environment)
                    .await?
            {
                self.readiness.goes_on(&what);
                return Ok(found);
            }
            let reason = "there is none yet: a gateway or another producer makes it when it starts";
            self.readiness.waits(&what, reason, Level::Warn);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}
