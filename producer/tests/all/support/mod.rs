//! A buffer in memory behind an unreliable network, and the log as a reader without faults sees it.

mod behind;
pub(crate) mod group;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millpond_manifest::{Manifest, Snapshot, Swap, cas, layout};
pub(crate) use millpond_producer::testing::{START_MS, Seeded};
use millpond_producer::{Append, AppendError, ClientId, Committed, Config, Numbered, Numbers, Producer};
use millpond_segment::Encoding;
use millpond_storage::Store;
use millpond_storage::unreliable::{Controls, Faults, S3Latency, Unreliable, WriteFaults};
use object_store::memory::InMemory;
use prometheus_client::registry::Registry;
use rand::RngExt;
use rand::rngs::StdRng;

pub(crate) const STREAM: &str = "events.test";

pub(crate) struct World {
    /// The store that a producer uses.
    pub(crate) store: Store,
    pub(crate) controls: Controls,
    /// The same objects without faults.
    pub(crate) honest: Store,
}

/// One segment per message and short waits.
pub(crate) fn config() -> Config {
    Config {
        linger: Duration::from_millis(50),
        segment_raw_bytes: 1,
        block_bytes: 1024,
        memory_limit: 1 << 20,
        encoders: 2,
        ..Config::default()
    }
}

impl World {
    pub(crate) fn new() -> Self {
        let objects = Arc::new(InMemory::new());
        let unreliable = Unreliable::new(objects.clone(), Faults::default());
        let controls = unreliable.controls();
        let store = Store::over(Arc::new(unreliable), "buffer");
        Self {
            store,
            controls,
            honest: Store::over(objects, "buffer"),
        }
    }

    pub(crate) async fn producer(&self, config: Config, seed: u64) -> Producer {
        let environment = Seeded::standing(seed);
        let mut registry = Registry::default();
        Producer::start_in(environment, self.store.clone(), config, &mut registry)
            .await
            .unwrap()
    }

    /// The store behind another unreliable network, whose requests fail or land late, and small settings for a producer of it.
    pub(crate) fn faulty(&self, rng: &mut StdRng, late_by_max: Duration) -> (Store, Controls, Config) {
        let (store, controls) = self.honest.behind(Faults {
            seed: rng.random(),
            write: WriteFaults {
                late_by_max,
                ..WriteFaults::each(0.08)
            },
            read_error: 0.1,
            latency: Some(S3Latency::default()),
        });
        let config = Config {
            linger: Duration::from_millis(rng.random_range(1..200)),
            segment_raw_bytes: rng.random_range(1..200),
            memory_limit: 16 << 10,
            start_timeout: Duration::from_secs(3),
            ..config()
        };
        (
            store.with_request_timeout(Duration::from_secs(5)),
            controls,
            config,
        )
    }

    pub(crate) async fn manifest(&self) -> Snapshot<Manifest> {
        cas::read(&self.honest, &layout::manifest(0))
            .await
            .unwrap()
            .unwrap()
    }

    /// Changes the manifest behind the producer's back, as a garbage collector or another producer would.
    pub(crate) async fn change_manifest(&self, mut change: impl FnMut(&mut Manifest)) {
        loop {
            let Snapshot {
                mut state, version, ..
            } = self.manifest().await;
            change(&mut state);
            let key = layout::manifest(0);
            match cas::swap(&self.honest, &key, Some(&version), state.stamped(99)).await {
                Swap::Committed(_) => return,
                Swap::Mismatch => {}
                Swap::Unknown(error) => panic!("{error}"),
            }
        }
    }

    /// Returns every message in the log, in order.
    pub(crate) async fn log(&self) -> Vec<String> {
        log(&self.honest).await
    }

    pub(crate) async fn segments(&self) -> usize {
        self.honest.list("shards/0000/segments").await.unwrap().len()
    }
}

pub(crate) async fn log(store: &Store) -> Vec<String> {
    segments(store).await.concat()
}

/// Returns the messages of every segment in the log; the first has sequence 0.
pub(crate) async fn segments(store: &Store) -> Vec<Vec<String>> {
    let text = |message| String::from_utf8(message).unwrap();
    let segments = millpond_producer::testing::segments(store, 0).await;
    segments
        .into_iter()
        .map(|messages| messages.into_iter().map(text).collect())
        .collect()
}

pub(crate) fn message(producer: &Producer, payload: &str) -> Append {
    Append {
        stream: STREAM.into(),
        encoding: Encoding::Ndjson,
        payload: Bytes::copy_from_slice(payload.as_bytes()),
        records: 1,
        received_at_us: 1_767_225_600_000_000,
        reservation: producer.budget().nothing(),
    }
}

pub(crate) async fn append(producer: &Producer, payload: &str) -> Result<Committed, AppendError> {
    producer.append(message(producer, payload)).await
}

/// Appends a message as number 1 of a client.
pub(crate) async fn send_first(producer: &Producer, client: u8, text: &str) -> Committed {
    let append = Append {
        stream: STREAM.into(),
        encoding: Encoding::Ndjson,
        payload: text.to_owned().into(),
        records: 1,
        received_at_us: 1,
        reservation: producer.budget().nothing(),
    };
    let numbered = Numbered {
        client: ClientId([client; 16]),
        numbers: Numbers::Counted { number: 1 },
        checksum: 1,
        source: None,
    };
    let submitted = producer.submit_numbered(append, numbered).await.unwrap();
    submitted.committed().await.unwrap()
}

/// Retries as a client does, for as long as the answers recommend a retry.
pub(crate) async fn append_until_acknowledged(producer: &Producer, payload: &str) -> Committed {
    loop {
        match append(producer, payload).await {
            Ok(committed) => return committed,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

/// Waits, with the paused clock, until `condition` holds. By then every task has made all possible progress.
pub(crate) async fn until<F: Future<Output = bool>>(condition: impl Fn() -> F) {
    while !condition().await {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Returns the messages that are not in the log exactly once, with their counts.
pub(crate) fn not_once<'a>(log: &'a [String], expected: &'a [String]) -> BTreeMap<&'a str, usize> {
    let mut times: BTreeMap<&str, usize> = expected.iter().map(|message| (message.as_str(), 0)).collect();
    for message in log {
        *times.entry(message).or_default() += 1;
    }
    times.retain(|_, times| *times != 1);
    times
}
