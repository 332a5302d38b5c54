//! Fleets of gateways in virtual time: real producers in several zones over one store with S3's latencies, clients that do
//! not wait for each other, leaders that die, and zones that are cut off. A run counts requests, bytes between zones and
//! latencies, and checks at its end that each acknowledged record is in the log exactly once.
//!
//! Consumers and garbage collection take no part. One byte may stand for many ([`Load::scale`]), so that a thousand gateways
//! fit into the memory of one process.

mod clients;
mod expected;
mod gateway;
mod meter;
mod network;
mod report;

pub use report::{Dollars, Latencies, Report, Requests, Silence};

use std::sync::Arc;
use std::time::Duration;

use gateway::World;
use millpond_producer::Peering;
use tokio::time::{Instant, sleep, sleep_until};

/// The zones of a run with several.
const ZONES: usize = 3;
/// A dead gateway starts again as a new process after this time.
const RESTART: Duration = Duration::from_secs(10);
/// A zone is cut off this long after the beginning of the measurement.
const CUT_AFTER: Duration = Duration::from_secs(20);
/// The time for which a zone is cut off.
const CUT_FOR: Duration = Duration::from_secs(30);
/// The zone that is cut off.
const CUT_ZONE: usize = 0;
/// Requests that are not answered this long after the last one was sent are not waited for.
const PATIENCE: Duration = Duration::from_secs(180);

/// Raw bytes per stored byte, as `millpond cost` assumes.
pub const RATIO: f64 = 428.0 / 79.0;

/// Which gateways share a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Those of all zones.
    AnyShard,
    /// Those of one zone: each shard belongs to a zone.
    ShardsOfTheZone,
}

/// The faults of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trouble {
    /// None.
    Nothing,
    /// The leader of each shard dies once in this time, without a goodbye.
    DeadLeaders(Duration),
    /// The gateways of one zone do not reach those of the others for a while.
    PeersCutOff,
    /// The gateways of one zone do not reach the store for a while.
    StoreCutOff,
}

/// The clients of each gateway.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Requests per second.
    pub requests_per_second: u32,
    /// Bytes of a request after compression.
    pub request_bytes: usize,
    /// One byte stands for this many bytes of requests, blocks and segments.
    pub scale: usize,
}

impl Load {
    /// The load of each of these gateways, which together receive this rate of raw telemetry.
    fn raw(bytes_per_second: f64, gateways: usize) -> Load {
        // No request is a large part of a segment.
        let requests_per_second = 8.max(128 / u32::try_from(gateways).unwrap_or(u32::MAX));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "the size of a request"
        )]
        let request_bytes =
            (bytes_per_second / RATIO / gateways as f64 / f64::from(requests_per_second)) as usize;
        Load {
            requests_per_second,
            request_bytes,
            scale: 128,
        }
    }
}

/// A fleet and what happens to it.
#[derive(Debug, Clone)]
pub struct Fleet {
    /// For the report.
    pub name: String,
    /// Gateways, evenly distributed over zones and shards.
    pub gateways: usize,
    /// Zones.
    pub zones: usize,
    /// Shards.
    pub shards: usize,
    /// The linger of all gateways.
    pub linger: Duration,
    /// Which gateways share a shard.
    pub layout: Layout,
    /// What the clients send.
    pub load: Load,
    /// The gateways commit for each other, and send segments below this size to their leader. `None`: each commits for itself.
    pub forward_below: Option<u64>,
    /// The faults.
    pub trouble: Trouble,
    /// The clients of all gateways start within this time, or within that between two of their requests if it is longer.
    pub start_within: Duration,
    /// The time before the measurement.
    pub warm_up: Duration,
    /// The time of the measurement.
    pub measured: Duration,
    /// Determines everything random.
    pub seed: u64,
}

impl Fleet {
    /// Gateways on one shard in one zone under the light load of `make bench-gateways`: ten requests of ten records a second.
    pub fn light(gateways: usize, linger: Duration) -> Fleet {
        Fleet {
            name: format!("{gateways} gateways, linger {} ms", linger.as_millis()),
            gateways,
            zones: 1,
            shards: 1,
            linger,
            layout: Layout::AnyShard,
            load: Load {
                requests_per_second: 10,
                request_bytes: 790,
                scale: 1,
            },
            forward_below: Some(Peering::FORWARD_BELOW),
            trouble: Trouble::Nothing,
            start_within: Duration::ZERO,
            warm_up: Duration::from_secs(20),
            measured: Duration::from_secs(60),
            seed: 1,
        }
    }

    /// Gateways on one shard in one zone that receive 1.1 Gbps of raw telemetry.
    pub fn full(gateways: usize, linger: Duration) -> Fleet {
        Fleet {
            name: format!(
                "{gateways} gateways with 1.1 Gbps, linger {} ms",
                linger.as_millis()
            ),
            load: Load::raw(137.5e6, gateways),
            ..Fleet::light(gateways, linger)
        }
    }

    /// Gateways in three zones and on twelve shards that receive 10 Gbps of raw telemetry.
    pub fn large(gateways: usize, layout: Layout, trouble: Trouble) -> Fleet {
        let shared = match layout {
            Layout::AnyShard => "any shard",
            Layout::ShardsOfTheZone => "shards of the zone",
        };
        let troubled = match trouble {
            Trouble::Nothing => "quiet".to_owned(),
            Trouble::DeadLeaders(every) => format!("each leader dies every {} s", every.as_secs()),
            Trouble::PeersCutOff => format!("a zone without the others for {} s", CUT_FOR.as_secs()),
            Trouble::StoreCutOff => format!("a zone without the store for {} s", CUT_FOR.as_secs()),
        };
        Fleet {
            name: format!("{gateways} gateways, {shared}, {troubled}"),
            gateways,
            zones: ZONES,
            shards: 12,
            linger: Duration::from_secs(1),
            layout,
            load: Load::raw(1.25e9, gateways),
            forward_below: Some(Peering::FORWARD_BELOW),
            trouble,
            start_within: Duration::ZERO,
            warm_up: Duration::from_secs(30),
            measured: Duration::from_secs(120),
            seed: 1,
        }
    }

    /// The zone and the shard of a gateway.
    fn place(&self, gateway: usize) -> (usize, usize) {
        match self.layout {
            Layout::AnyShard => ((gateway / self.shards) % self.zones, gateway % self.shards),
            Layout::ShardsOfTheZone => {
                let (zone, each) = (gateway % self.zones, self.shards / self.zones);
                (zone, zone * each + (gateway / self.zones) % each)
            }
        }
    }

    /// Runs the fleet in virtual time, on this thread.
    ///
    /// # Panics
    /// The system provides no thread-local runtime, or the log cannot be read at the end.
    pub fn run(&self) -> Report {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build();
        let runtime = runtime.expect("a runtime without I/O needs nothing of the system");
        runtime.block_on(self.live())
    }

    async fn live(&self) -> Report {
        let world = World::new(self.clone());
        gateway::start_all(&world).await;
        let from = Instant::now() + self.warm_up;
        let until = from + self.measured;
        let clients = tokio::spawn(clients::send(Arc::clone(&world), from, until));
        let trouble = tokio::spawn(trouble(Arc::clone(&world), from, until));
        sleep_until(from).await;
        let before = world.meter.counts();
        sleep_until(until).await;
        let counts = world.meter.counts() - before;
        trouble.abort();
        world.network.cut_off(None);
        let outcomes = match tokio::time::timeout(PATIENCE, clients).await {
            Ok(outcomes) => outcomes.expect("the clients do not panic"),
            Err(_) => panic!("a request has no end"),
        };
        report::Report::of(&world, counts, outcomes, from..until).await
    }
}

/// Lets the fleet's trouble happen.
async fn trouble(world: Arc<World>, from: Instant, until: Instant) {
    match world.fleet.trouble {
        Trouble::Nothing => {}
        Trouble::DeadLeaders(every) => kill_leaders(world, every, from, until).await,
        Trouble::PeersCutOff => {
            sleep_until(from + CUT_AFTER).await;
            world.network.cut_off(Some(CUT_ZONE));
            sleep(CUT_FOR).await;
            world.network.cut_off(None);
        }
        Trouble::StoreCutOff => {
            sleep_until(from + CUT_AFTER).await;
            world.cut_store(CUT_ZONE, true);
            sleep(CUT_FOR).await;
            world.cut_store(CUT_ZONE, false);
        }
    }
}

/// Kills the leaders of all shards in turn.
async fn kill_leaders(world: Arc<World>, every: Duration, from: Instant, until: Instant) {
    let shards = u32::try_from(world.fleet.shards).expect("few shards");
    for turn in 0_u32.. {
        let at = from + every / shards * turn;
        // Each death shows what follows within the run.
        if at + RESTART * 2 > until {
            return;
        }
        sleep_until(at).await;
        let shard = usize::try_from(turn % shards).expect("few shards");
        if let Some(leader) = world.meter.leader(shard)
            && let Some(gateway) = world.gateway_at(&leader)
        {
            world.meter.died(shard);
            world.kill(gateway);
            let world = Arc::clone(&world);
            tokio::spawn(async move {
                sleep(RESTART).await;
                gateway::start(&world, gateway).await;
            });
        }
    }
}
