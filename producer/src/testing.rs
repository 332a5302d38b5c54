//! What simulations of several producers share: seeded clocks and random numbers, the delivery of a request from one producer
//! to another, and the log as a reader without faults sees it.
//!
//! Behind the feature `testing`; no product code uses it. It panics where a test would fail.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millpond_manifest::{Log, Manifest, Page, Snapshot, cas, layout};
use millpond_runtime::Environment;
use millpond_segment::{Decompressor, Limits, blocks, verify};
use millpond_storage::Store;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep};

use crate::{PeerAnswer, PeerRequest, Producer, Records};

/// The start time of every run, unix milliseconds.
pub const START_MS: u64 = 1_767_225_600_000;

/// A clock, and random numbers that follow from a seed.
pub struct Seeded {
    /// The time at which the clock began to run. `None`: it stands still.
    began: Option<Instant>,
    cpu_time: Option<Duration>,
    rng: Mutex<StdRng>,
}

impl Seeded {
    /// The wall clock always shows [`START_MS`].
    pub fn standing(seed: u64) -> Arc<Seeded> {
        Self::new(None, None, seed)
    }

    /// The wall clock follows tokio's clock from `began` on.
    pub fn running(began: Instant, seed: u64) -> Arc<Seeded> {
        Self::new(Some(began), None, seed)
    }

    /// The same, and work runs on the caller's thread after this time.
    pub fn on_one_thread(began: Instant, cpu_time: Duration, seed: u64) -> Arc<Seeded> {
        Self::new(Some(began), Some(cpu_time), seed)
    }

    fn new(began: Option<Instant>, cpu_time: Option<Duration>, seed: u64) -> Arc<Seeded> {
        let rng = Mutex::new(StdRng::seed_from_u64(seed));
        Arc::new(Seeded { began, cpu_time, rng })
    }
}

impl Environment for Seeded {
    fn now_us(&self) -> i64 {
        let time = Duration::from_millis(START_MS) + self.uptime();
        i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
    }

    fn uptime(&self) -> Duration {
        self.began.map_or(Duration::ZERO, |began| began.elapsed())
    }

    fn random(&self) -> u64 {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner).random()
    }

    fn cpu_time(&self) -> Option<Duration> {
        self.cpu_time
    }
}

/// The compressed bytes of the blocks in a request. The descriptions of uploaded segments count nothing.
pub fn block_bytes(request: &PeerRequest) -> usize {
    match &request.records {
        Records::Blocks(blocks) => blocks.iter().map(|block| block.block.bytes.len()).sum(),
        Records::Segments(_) => 0,
    }
}

/// Hands a request to a producer as its port does, after the time `there`. The answer takes the time `back`.
///
/// # Errors
/// The producer has no memory for the request.
pub async fn deliver(
    producer: Producer,
    request: PeerRequest,
    there: Duration,
    back: Duration,
) -> Result<PeerAnswer, String> {
    sleep(there).await;
    let reservation = producer.budget().reserve(block_bytes(&request)).await;
    let reservation = reservation.map_err(|error| error.to_string())?;
    let answer = match producer.commit_for(request, reservation).await {
        Ok(commit) => PeerAnswer::Committed(commit),
        Err(refusal) => PeerAnswer::Refused(refusal),
    };
    sleep(back).await;
    Ok(answer)
}

/// Returns the messages of every segment in a shard's log; the first has sequence 0.
///
/// # Panics
/// The store does not have the log, or has it damaged.
pub async fn segments(store: &Store, shard: u32) -> Vec<Vec<Vec<u8>>> {
    let manifest: Option<Snapshot<Manifest>> = cas::read(store, &layout::manifest(shard)).await.unwrap();
    let mut log = Log::new(manifest.expect("a manifest").state);
    while let Some(reference) = log.missing(0).cloned() {
        let key = layout::page(shard, reference.first, reference.page);
        let page: Snapshot<Page> = cas::read(store, &key).await.unwrap().expect(&key);
        log.load(&reference, Arc::new(page.state)).unwrap();
    }
    let mut decompressor = Decompressor::new().unwrap();
    let mut segments = Vec::new();
    for (_, entry) in log.entries(0) {
        let mut found = Vec::new();
        let key = layout::segment(shard, entry.segment);
        let object = store.get(&key).await.unwrap().expect(&key).bytes;
        assert_eq!(object.len() as u64, entry.size);
        let index = verify(&object, &Limits::default()).unwrap();
        assert_eq!(index.streams.len(), entry.parts.len());
        for part in &index.streams {
            for block in blocks(&part.slice(&object).unwrap(), part.offset, &Limits::default()) {
                for message in block.unwrap().decode(&mut decompressor).unwrap().messages() {
                    found.push(message.unwrap().payload.to_vec());
                }
            }
        }
        segments.push(found);
    }
    segments
}
