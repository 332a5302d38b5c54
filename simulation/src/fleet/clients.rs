//! The clients of the gateways. They send at a constant rate, whatever happens to their requests, and send a failed one again to
//! another gateway of their zone.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use millpond_producer::testing::START_MS;
use millpond_producer::{Append, Producer};
use millpond_segment::Encoding;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::gateway::World;
use super::meter::lock;

/// A client gives up after this time.
const GIVES_UP: Duration = Duration::from_secs(60);
/// The least length of a message: its number.
const NUMBER: usize = 8;

/// What became of the requests.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    /// Of the measured time, in no order.
    pub(super) latencies: Vec<Duration>,
    pub(super) given_up: u64,
    /// For each number, the shard that acknowledged it.
    pub(super) acknowledged: Vec<Option<u32>>,
}

struct Clients {
    world: Arc<World>,
    outcomes: Mutex<Outcomes>,
    measured: std::ops::Range<Instant>,
}

/// Sends from all clients until the end of the measured time, and waits for all answers.
pub(super) async fn send(world: Arc<World>, from: Instant, until: Instant) -> Outcomes {
    let gateways = world.fleet.gateways;
    let clients = Arc::new(Clients {
        world,
        outcomes: Mutex::default(),
        measured: from..until,
    });
    let mut all = JoinSet::new();
    for gateway in 0..gateways {
        all.spawn(Arc::clone(&clients).send_to(gateway));
    }
    while let Some(ended) = all.join_next().await {
        ended.expect("a client does not panic");
    }
    std::mem::take(&mut lock(&clients.outcomes))
}

impl Clients {
    async fn send_to(self: Arc<Clients>, gateway: usize) {
        let fleet = &self.world.fleet;
        let seed = fleet.seed ^ 0xc11e_0000 ^ gateway as u64;
        let mut rng = StdRng::seed_from_u64(seed);
        let interval = Duration::from_secs(1) / fleet.load.requests_per_second;
        let mut next = Instant::now() + fleet.start_within.max(interval).mul_f64(rng.random());
        let mut requests = JoinSet::new();
        while next < self.measured.end {
            sleep_until(next).await;
            let rng = StdRng::seed_from_u64(rng.random());
            requests.spawn(Arc::clone(&self).request(gateway, rng));
            while requests.try_join_next().is_some() {}
            next += interval;
        }
        while let Some(ended) = requests.join_next().await {
            ended.expect("a request does not panic");
        }
    }

    async fn request(self: Arc<Clients>, first: usize, mut rng: StdRng) {
        let begun = Instant::now();
        let mut gateway = first;
        while begun.elapsed() < GIVES_UP {
            let number = self.number();
            if let Some(shard) = self.attempt(gateway, number).await {
                let mut outcomes = lock(&self.outcomes);
                outcomes.acknowledged[number] = Some(shard);
                if self.measured.contains(&begun) {
                    outcomes.latencies.push(begun.elapsed());
                }
                return;
            }
            self.world.meter.count(|counts| counts.attempts_failed += 1);
            sleep(Duration::from_millis(rng.random_range(50..250))).await;
            gateway = self.another(first, &mut rng);
        }
        lock(&self.outcomes).given_up += 1;
    }

    /// A number that no other attempt has.
    fn number(&self) -> usize {
        let acknowledged = &mut lock(&self.outcomes).acknowledged;
        acknowledged.push(None);
        acknowledged.len() - 1
    }

    /// A gateway of the same zone.
    fn another(&self, gateway: usize, rng: &mut StdRng) -> usize {
        let fleet = &self.world.fleet;
        let zone = fleet.place(gateway).0;
        loop {
            let other = rng.random_range(0..fleet.gateways);
            if fleet.place(other).0 == zone {
                return other;
            }
        }
    }

    /// Sends a request once. Returns the shard that acknowledged it.
    async fn attempt(&self, gateway: usize, number: usize) -> Option<u32> {
        let running = self.world.running(gateway)?;
        let load = &self.world.fleet.load;
        let payload = payload(number, load.request_bytes / load.scale);
        tokio::select! {
            biased;
            () = running.process.died.cancelled() => None,
            answer = append(&running.producer, payload) => answer,
        }
    }
}

async fn append(producer: &Producer, payload: Vec<u8>) -> Option<u32> {
    let append = Append {
        stream: "otlp.logs".into(),
        encoding: Encoding::Ndjson,
        payload: payload.into(),
        records: 1,
        received_at_us: i64::try_from(START_MS).unwrap_or(i64::MAX) * 1_000,
        reservation: producer.budget().nothing(),
    };
    producer
        .append(append)
        .await
        .ok()
        .map(|committed| committed.shard)
}

/// A message with this number that does not compress.
fn payload(number: usize, length: usize) -> Vec<u8> {
    let mut payload = vec![0; length.max(NUMBER)];
    StdRng::seed_from_u64(number as u64).fill(&mut payload[..]);
    payload[..NUMBER].copy_from_slice(&(number as u64).to_be_bytes());
    payload
}

/// The number of a message.
pub(super) fn number(payload: &[u8]) -> usize {
    let number = payload[..NUMBER].try_into().expect("the length of a number");
    usize::try_from(u64::from_be_bytes(number)).expect("the number of an attempt")
}
