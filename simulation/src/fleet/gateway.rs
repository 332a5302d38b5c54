//! The gateways: where they are, their processes and what connects these to the store.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use millpond_manifest::Fingerprint;
use millpond_producer::testing::Seeded;
use millpond_producer::{Config, Peering, Producer};
use millpond_storage::Store;
use millpond_storage::unreliable::{Controls, Faults, Outage, S3Latency, Unreliable};
use object_store::memory::InMemory;
use prometheus_client::registry::Registry;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::meter::{Billed, Meter, lock};
use super::network::{Link, Network, Process};
use super::{Fleet, RATIO};

/// All gateways start within this time.
const STARTS: Duration = Duration::from_secs(5);
/// How long the work on a block takes.
const CPU_TIME: Duration = Duration::from_millis(1);

/// A gateway that runs.
#[derive(Clone)]
pub(super) struct Running {
    pub(super) process: Arc<Process>,
    pub(super) producer: Producer,
    controls: Controls,
}

/// Everything in a run.
pub(super) struct World {
    pub(super) fleet: Fleet,
    pub(super) meter: Arc<Meter>,
    pub(super) network: Arc<Network>,
    objects: Arc<InMemory>,
    begun: Instant,
    gateways: Mutex<Vec<Option<Running>>>,
    incarnations: Mutex<Vec<u64>>,
    zones_without_store: Mutex<Vec<usize>>,
    /// The metrics of all processes.
    pub(super) registries: Mutex<Vec<Registry>>,
}

fn address(gateway: usize) -> String {
    format!("10.0.{}.{}:4319", gateway / 250, gateway % 250)
}

impl World {
    pub(super) fn new(fleet: Fleet) -> Arc<World> {
        let meter = Meter::new(fleet.shards);
        let network = Network::new(fleet.seed, Arc::clone(&meter), fleet.load.scale as u64);
        Arc::new(World {
            meter,
            network,
            objects: Arc::new(InMemory::new()),
            begun: Instant::now(),
            gateways: Mutex::new(vec![None; fleet.gateways]),
            incarnations: Mutex::new(vec![0; fleet.gateways]),
            zones_without_store: Mutex::default(),
            registries: Mutex::default(),
            fleet,
        })
    }

    /// The objects without a network between.
    pub(super) fn honest_store(&self) -> Store {
        Store::over(Arc::clone(&self.objects) as _, "buffer")
    }

    /// The gateway with this address.
    pub(super) fn gateway_at(&self, wanted: &str) -> Option<usize> {
        (0..self.fleet.gateways).find(|&gateway| address(gateway) == wanted)
    }

    /// The process of a gateway. `None`: it is dead.
    pub(super) fn running(&self, gateway: usize) -> Option<Running> {
        lock(&self.gateways)[gateway].clone()
    }

    /// Kills the process of a gateway: no request leaves it any more, and its connections break.
    pub(super) fn kill(&self, gateway: usize) {
        let Some(running) = lock(&self.gateways)[gateway].take() else {
            return;
        };
        self.network.is_gone(&address(gateway));
        running.controls.set_outage(Some(Outage::Hangs));
        running.process.died.cancel();
    }

    /// Cuts the gateways of a zone off from the store, or connects them again.
    pub(super) fn cut_store(&self, zone: usize, is_cut: bool) {
        *lock(&self.zones_without_store) = if is_cut { vec![zone] } else { Vec::new() };
        let gateways = lock(&self.gateways);
        for running in gateways.iter().flatten().filter(|it| it.process.zone == zone) {
            running.controls.set_outage(is_cut.then_some(Outage::Hangs));
        }
    }

    fn config(&self, shard: usize) -> Config {
        let load = &self.fleet.load;
        let default = Config::default();
        // What clients send does not compress: it stands for compressed bytes.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "sizes of buffers"
        )]
        let compressed = |raw: usize| (raw as f64 / RATIO) as usize / load.scale;
        Config {
            linger: self.fleet.linger,
            segment_bytes: default.segment_bytes / load.scale,
            segment_raw_bytes: compressed(default.segment_raw_bytes),
            block_bytes: compressed(default.block_bytes),
            memory_limit: default.memory_limit / load.scale,
            encoders: 1,
            shard: Some(u32::try_from(shard).expect("few shards")),
            shards_when_created: u32::try_from(self.fleet.shards).expect("few shards"),
            start_timeout: Duration::from_secs(600),
            ..default
        }
    }

    /// A process's connection to the store.
    fn connect(&self, seed: u64) -> Unreliable {
        let billed = Billed {
            inner: Arc::clone(&self.objects) as _,
            meter: Arc::clone(&self.meter),
            scale: self.fleet.load.scale as u64,
        };
        let faults = Faults {
            seed,
            latency: Some(S3Latency::default()),
            ..Faults::default()
        };
        Unreliable::new(Arc::new(billed), faults)
    }
}

/// Starts all gateways, evenly over a few seconds.
pub(super) async fn start_all(world: &Arc<World>) {
    let count = u32::try_from(world.fleet.gateways).expect("few gateways");
    let starts = (0..world.fleet.gateways)
        .zip(0_u32..)
        .map(|(gateway, place)| async move {
            sleep(STARTS * place / count).await;
            start(world, gateway).await;
        });
    join_all(starts).await;
}

/// Starts a process of a gateway.
pub(super) async fn start(world: &Arc<World>, gateway: usize) {
    let (zone, shard) = world.fleet.place(gateway);
    let incarnation = {
        let mut incarnations = lock(&world.incarnations);
        incarnations[gateway] += 1;
        incarnations[gateway]
    };
    let seed = world.fleet.seed << 40 | (gateway as u64) << 16 | incarnation;
    let unreliable = world.connect(seed);
    let controls = unreliable.controls();
    if lock(&world.zones_without_store).contains(&zone) {
        controls.set_outage(Some(Outage::Hangs));
    }
    let process = Arc::new(Process {
        zone,
        died: CancellationToken::new(),
    });
    let mut certificate = [0; 32];
    certificate[..8].copy_from_slice(&seed.to_be_bytes());
    let peering = world.fleet.forward_below.map(|forward_below| Peering {
        peers: Arc::new(Link {
            network: Arc::clone(&world.network),
            process: Arc::clone(&process),
        }),
        certificate: Fingerprint(certificate),
        address: Some(address(gateway).into()),
        forward_below: forward_below / world.fleet.load.scale as u64,
    });
    let mut registry = Registry::default();
    let producer = Producer::start_with(
        Seeded::on_one_thread(world.begun, CPU_TIME, seed),
        Store::over(Arc::new(unreliable), "buffer"),
        world.config(shard),
        peering,
        &mut registry,
    );
    let producer = producer.await.expect("a producer starts within ten minutes");
    world
        .network
        .listens(address(gateway), Arc::clone(&process), producer.clone());
    lock(&world.registries).push(registry);
    lock(&world.gateways)[gateway] = Some(Running {
        process,
        producer,
        controls,
    });
}
