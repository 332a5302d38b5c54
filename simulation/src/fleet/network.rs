//! The network between the gateways: latency within and between zones, bytes between zones, zones that are cut off, and
//! connections that break when a process dies.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use millpond_producer::testing::{block_bytes, deliver};
use millpond_producer::{LeaderAddress, PeerAnswer, PeerRequest, Peers, Producer, Records};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::meter::{Meter, lock};

/// The pings of a connection without a network stay unanswered for this long.
const PINGS: Duration = Duration::from_millis(1_500);
/// The time from one gateway to another within a zone and between two, microseconds.
const WITHIN_US: std::ops::Range<u64> = 100..500;
const BETWEEN_US: std::ops::Range<u64> = 400..1_200;
/// The throughput of a connection between two gateways, bytes per second.
const BYTES_PER_SECOND: u64 = 250_000_000;
/// A request without its blocks, and the description of a segment.
const REQUEST_BYTES: u64 = 200;
const SEGMENT_BYTES: u64 = 150;

/// A process of a gateway.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) zone: usize,
    /// Cancelled when it dies. Its tasks live on, but nobody sees them.
    pub(super) died: CancellationToken,
}

/// Connects the gateways.
pub(super) struct Network {
    running: Mutex<HashMap<String, (Arc<Process>, Producer)>>,
    cut_off: Mutex<Option<usize>>,
    changed: Notify,
    rng: Mutex<StdRng>,
    meter: Arc<Meter>,
    scale: u64,
}

impl Network {
    pub(super) fn new(seed: u64, meter: Arc<Meter>, scale: u64) -> Arc<Network> {
        Arc::new(Network {
            running: Mutex::default(),
            cut_off: Mutex::default(),
            changed: Notify::new(),
            rng: Mutex::new(StdRng::seed_from_u64(seed)),
            meter,
            scale,
        })
    }

    /// Makes a producer reachable.
    pub(super) fn listens(&self, address: String, process: Arc<Process>, producer: Producer) {
        lock(&self.running).insert(address, (process, producer));
    }

    /// Nobody listens at this address any more.
    pub(super) fn is_gone(&self, address: &str) {
        lock(&self.running).remove(address);
    }

    /// Cuts the gateways of a zone off from those of the others, or connects them again.
    pub(super) fn cut_off(&self, zone: Option<usize>) {
        *lock(&self.cut_off) = zone;
        self.changed.notify_waiters();
    }

    fn is_cut(&self, a: usize, b: usize) -> bool {
        a != b && lock(&self.cut_off).is_some_and(|zone| [a, b].contains(&zone))
    }

    /// Waits until a connection between two processes is noticed to be broken.
    async fn broken(&self, from: &Process, to: &Process) -> String {
        let cut = async {
            loop {
                let changed = self.changed.notified();
                if self.is_cut(from.zone, to.zone) {
                    sleep(PINGS).await;
                    return;
                }
                changed.await;
            }
        };
        tokio::select! {
            biased;
            () = to.died.cancelled() => "connection reset".to_owned(),
            () = cut => "no answer to a ping".to_owned(),
        }
    }

    fn travel(&self, crosses: bool, bytes: u64) -> Duration {
        let range = if crosses { BETWEEN_US } else { WITHIN_US };
        let latency = Duration::from_micros(lock(&self.rng).random_range(range));
        latency + Duration::from_micros(bytes * 1_000_000 / BYTES_PER_SECOND)
    }

    fn bytes(&self, request: &PeerRequest) -> u64 {
        let described = match &request.records {
            Records::Blocks(_) => 0,
            Records::Segments(segments) => SEGMENT_BYTES * segments.len() as u64,
        };
        REQUEST_BYTES + described + block_bytes(request) as u64 * self.scale
    }
}

/// A gateway's end of the network.
pub(super) struct Link {
    pub(super) network: Arc<Network>,
    pub(super) process: Arc<Process>,
}

#[async_trait]
impl Peers for Link {
    async fn ask(&self, leader: &LeaderAddress, request: PeerRequest) -> Result<PeerAnswer, String> {
        let network = &*self.network;
        if self.process.died.is_cancelled() {
            return std::future::pending().await;
        }
        let found = lock(&network.running).get(&leader.address).cloned();
        let Some((to, producer)) = found else {
            sleep(network.travel(false, 0)).await;
            return Err("connection refused".to_owned());
        };
        let crosses = to.zone != self.process.zone;
        if network.is_cut(self.process.zone, to.zone) {
            return Err(network.broken(&self.process, &to).await);
        }
        let bytes = network.bytes(&request);
        network.meter.count(|counts| {
            counts.peer_requests += 1;
            counts.bytes_between_zones += if crosses { bytes } else { 0 };
        });
        let (there, back) = (network.travel(crosses, bytes), network.travel(crosses, 0));
        // A request that was sent arrives, whatever happens to its sender.
        let mut answer = tokio::spawn(deliver(producer, request, there, back));
        tokio::select! {
            biased;
            reason = network.broken(&self.process, &to) => Err(reason),
            answered = &mut answer => match answered {
                Ok(_) if network.is_cut(self.process.zone, to.zone) => {
                    Err(network.broken(&self.process, &to).await)
                }
                Ok(answer) => answer,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            },
        }
    }
}
