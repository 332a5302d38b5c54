//! Several producers in one process that commit for each other, and the network between them.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::behind::Behind;
use super::{Seeded, World, append, append_until_acknowledged};
use async_trait::async_trait;
use futures::future::join_all;
use millpond_manifest::{Fingerprint, ProducerId};
use millpond_producer::{
    Config, LeaderAddress, PeerAnswer, PeerRefusal, PeerRequest, Peering, Peers, Producer,
};
use millpond_runtime::Environment;
use millpond_storage::Store;
use millpond_storage::unreliable::{Controls, Faults, S3Latency, Unreliable};
use object_store::memory::InMemory;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::time::{Instant, sleep};

/// The fate of a request between two producers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// It arrives, and so does the answer.
    Open,
    /// It does not arrive.
    Closed,
    /// It arrives, and the answer is lost.
    NoAnswer,
    /// It arrives, and nobody ever answers.
    Hangs,
    /// It arrives twice.
    Twice,
    /// It arrives, and the connection breaks before the answer.
    Breaks,
    /// It arrives at a version that does not know numbered requests.
    Unnumbered,
}

pub(crate) type Decide = Box<dyn Fn(&LeaderAddress, &PeerRequest) -> Way + Send + Sync>;

/// Connects the producers of one process.
#[derive(Default)]
pub(crate) struct Network {
    pub(crate) producers: Mutex<HashMap<String, Producer>>,
    pub(crate) decide: Mutex<Option<Decide>>,
    pub(crate) asked: Mutex<Vec<(ProducerId, u64)>>,
    /// The requests with clients, and their answers.
    pub(crate) numbered: AtomicUsize,
    pub(crate) numbered_committed: AtomicUsize,
    pub(crate) clients_refused: AtomicUsize,
}

impl Network {
    pub(crate) fn decide(
        &self,
        decide: impl Fn(&LeaderAddress, &PeerRequest) -> Way + Send + Sync + 'static,
    ) {
        *self.decide.lock().unwrap() = Some(Box::new(decide));
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.lock().unwrap().len()
    }

    async fn deliver(&self, leader: &LeaderAddress, request: PeerRequest) -> Result<PeerAnswer, String> {
        let producer = self.producers.lock().unwrap().get(&leader.address).cloned();
        let is_numbered = !request.clients.is_empty();
        let answer = deliver(producer.ok_or("connection refused")?, request).await;
        match &answer {
            Ok(PeerAnswer::Committed(_)) => {
                self.numbered_committed
                    .fetch_add(usize::from(is_numbered), Relaxed);
            }
            Ok(PeerAnswer::Refused(PeerRefusal::Client)) => _ = self.clients_refused.fetch_add(1, Relaxed),
            _ => {}
        }
        answer
    }
}

pub(crate) async fn deliver(producer: Producer, request: PeerRequest) -> Result<PeerAnswer, String> {
    // 0.2 to 5 ms, different each time, or nobody ever misses the rhythm.
    let jitter = |salt: u64| Duration::from_micros(200 + (request.number * 7_919 + salt) % 4_800);
    let (there, back) = (jitter(u64::from(request.producer.0[0])), jitter(2_003));
    millpond_producer::testing::deliver(producer, request, there, back).await
}

#[async_trait]
impl Peers for Network {
    async fn ask(&self, leader: &LeaderAddress, request: PeerRequest) -> Result<PeerAnswer, String> {
        self.asked
            .lock()
            .unwrap()
            .push((request.producer, request.number));
        let is_numbered = !request.clients.is_empty();
        self.numbered.fetch_add(usize::from(is_numbered), Relaxed);
        let decide = |decide: &Decide| decide(leader, &request);
        let way = self.decide.lock().unwrap().as_ref().map_or(Way::Open, decide);
        match way {
            Way::Unnumbered if is_numbered => Ok(PeerAnswer::Refused(PeerRefusal::Unnumbered)),
            Way::Open | Way::Unnumbered => self.deliver(leader, request).await,
            Way::Closed => Err("connection refused".to_owned()),
            Way::NoAnswer => {
                drop(self.deliver(leader, request).await);
                Err("connection reset".to_owned())
            }
            Way::Hangs => {
                drop(self.deliver(leader, request).await);
                std::future::pending().await
            }
            Way::Breaks => {
                let producer = self.producers.lock().unwrap().get(&leader.address).cloned();
                if let Some(producer) = producer {
                    tokio::spawn(deliver(producer, request));
                }
                sleep(Duration::from_millis(5)).await;
                Err("connection reset".to_owned())
            }
            Way::Twice => {
                let copy = self.deliver(leader, request.clone());
                let (_, answer) = tokio::join!(copy, self.deliver(leader, request));
                answer
            }
        }
    }
}

/// Producers that know each other, in the order of their addresses.
pub(crate) struct Group {
    pub(crate) world: World,
    pub(crate) objects: Arc<InMemory>,
    pub(crate) faults: Faults,
    /// The network between each producer and the store.
    pub(crate) controls: Vec<Controls>,
    pub(crate) network: Arc<Network>,
    pub(crate) producers: Vec<Producer>,
    pub(crate) registry: Registry,
}

pub(crate) fn address(number: u64) -> String {
    format!("10.0.0.{number}:4319")
}

pub(crate) fn config(linger: Duration) -> Config {
    Config {
        linger,
        memory_limit: 64 << 20,
        encoders: 2,
        ..Config::default()
    }
}

impl Group {
    pub(crate) async fn new(count: u64, linger: Duration, faults: Faults) -> Group {
        let objects = Arc::new(InMemory::new());
        let unreliable = Unreliable::new(objects.clone(), faults);
        let world = World {
            controls: unreliable.controls(),
            store: Store::over(Arc::new(unreliable), "buffer"),
            honest: Store::over(objects.clone(), "buffer"),
        };
        let mut group = Group {
            world,
            objects,
            faults,
            controls: Vec::new(),
            network: Arc::default(),
            producers: Vec::new(),
            registry: Registry::default(),
        };
        for number in 0..count {
            let producer = group.start(number, linger, true).await;
            group.producers.push(producer);
        }
        group
    }

    /// Producers that all begin in the same second. Their metrics are not registered.
    pub(crate) async fn crowd(count: u64, linger: Duration, faults: Faults) -> Group {
        let mut group = Group::new(0, linger, faults).await;
        let starts = (0..count).map(|number| {
            let peering = group.peering(number, true);
            let store = Store::over(Arc::new(group.network_of(number)), "buffer");
            async move {
                sleep(Duration::from_millis(number * 4)).await;
                let (environment, config) = (Seeded::standing(number), config(linger));
                let mut registry = Registry::default();
                let started = Producer::start_with(environment, store, config, Some(peering), &mut registry);
                started.await.unwrap()
            }
        });
        let producers = join_all(starts.collect::<Vec<_>>()).await;
        let named = (0..).map(address).zip(producers.iter().cloned());
        group.network.producers.lock().unwrap().extend(named);
        group.producers = producers;
        group
    }

    /// The connection of a producer to the store.
    fn network_of(&self, number: u64) -> Unreliable {
        let faults = Faults {
            seed: self.faults.seed.wrapping_add(number),
            ..self.faults
        };
        Unreliable::new(self.objects.clone(), faults)
    }

    fn peering(&self, number: u64, may_lead: bool) -> Peering {
        Peering {
            peers: self.network.clone(),
            certificate: Fingerprint([u8::try_from(number).unwrap(); 32]),
            address: may_lead.then(|| address(number).into()),
            forward_below: Peering::FORWARD_BELOW,
        }
    }

    pub(crate) async fn start(&mut self, number: u64, linger: Duration, may_lead: bool) -> Producer {
        let peering = self.peering(number, may_lead);
        self.join(number, config(linger), peering).await
    }

    /// Starts a producer whose store may stay behind.
    pub(crate) async fn start_behind(&mut self, number: u64, linger: Duration) -> (Producer, Behind) {
        let behind = Behind::new(Arc::new(self.network_of(number)));
        let (store, mut registry) = (
            Store::over(Arc::new(behind.clone()), "buffer"),
            Registry::default(),
        );
        let (environment, peering) = (Seeded::standing(number), self.peering(number, true));
        let started = Producer::start_with(environment, store, config(linger), Some(peering), &mut registry);
        let producer = started.await.unwrap();
        let mut producers = self.network.producers.lock().unwrap();
        producers.insert(address(number), producer.clone());
        (producer, behind)
    }

    /// Starts a producer whose clock is not the others'.
    pub(crate) async fn start_by(&mut self, number: u64, environment: Arc<dyn Environment>) -> Producer {
        let (config, peering) = (config(SECOND), self.peering(number, true));
        self.enter(number, environment, config, peering).await
    }

    pub(crate) async fn join(&mut self, number: u64, config: Config, peering: Peering) -> Producer {
        self.enter(number, Seeded::standing(number), config, peering)
            .await
    }

    async fn enter(
        &mut self,
        number: u64,
        environment: Arc<dyn Environment>,
        config: Config,
        peering: Peering,
    ) -> Producer {
        let unreliable = self.network_of(number);
        self.controls.push(unreliable.controls());
        let store = Store::over(Arc::new(unreliable), "buffer");
        let started = Producer::start_with(environment, store, config, Some(peering), &mut self.registry);
        let producer = started.await.unwrap();
        let mut producers = self.network.producers.lock().unwrap();
        producers.insert(address(number), producer.clone());
        producer
    }

    /// The address of the leader.
    pub(crate) async fn leader(&self) -> Option<String> {
        self.world
            .manifest()
            .await
            .state
            .leader
            .map(|leader| leader.address)
    }

    pub(crate) fn counts(&self, metric: &str) -> f64 {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        let counts = text.lines().filter(|line| line.starts_with(metric));
        counts
            .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
            .sum()
    }
}

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// Appends from all producers, five times a second from each, out of step. Returns how long each caller waited, ascending.
pub(crate) async fn load(group: &Group, seconds: u32) -> Vec<Duration> {
    let loads = group
        .producers
        .iter()
        .zip(0_u32..)
        .map(|(producer, place)| async move {
            let appends = (0..seconds * 5).map(|number| async move {
                sleep(Duration::from_millis(200) * number + Duration::from_millis(17) * place).await;
                let start = Instant::now();
                append(producer, &format!("{place}/{number}")).await.unwrap();
                start.elapsed()
            });
            join_all(appends).await
        });
    let mut waited: Vec<Duration> = join_all(loads).await.concat();
    waited.sort();
    waited
}

pub(crate) fn percentile(waited: &[Duration], per_cent: usize) -> Duration {
    waited[(waited.len() - 1) * per_cent / 100]
}

pub(crate) fn slow_store() -> Faults {
    Faults {
        seed: 1,
        latency: Some(S3Latency::default()),
        ..Faults::default()
    }
}

/// Appends numbered messages from all producers, each as a client that retries, until all are acknowledged.
pub(crate) async fn append_all(group: &Group, messages: u32) -> Vec<String> {
    let clients = group
        .producers
        .iter()
        .zip(0_u32..)
        .map(|(producer, place)| async move {
            let appends = (0..messages).map(|number| async move {
                sleep(Duration::from_millis(70) * number + Duration::from_millis(11) * place).await;
                let text = format!("{place}/{number}");
                append_until_acknowledged(producer, &text).await;
                text
            });
            join_all(appends).await
        });
    join_all(clients).await.concat()
}
