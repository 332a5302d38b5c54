//! A real producer that leads, and a consumer that watches it, in virtual time over a store with S3's latencies.

use crate::support::{Machine, STREAM, Table, config};
use async_trait::async_trait;
use bytes::Bytes;
use futures::future::join_all;
use millpond_consumer::{Config, Consumer, LeaderConnection, Leaders, WatchError, WatchedLeader, Watching};
use millpond_manifest::Fingerprint;
use millpond_producer::{
    Append, LeaderAddress, PeerAnswer, PeerRefusal, PeerRequest, Peering, Peers, Producer, Watcher,
};
use millpond_segment::Encoding;
use millpond_storage::Store;
use millpond_storage::unreliable::{Faults, S3Latency, WriteFaults};
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

const SECOND: Duration = Duration::from_secs(1);

/// Nobody follows.
struct Alone;

#[async_trait]
impl Peers for Alone {
    async fn ask(&self, _: &LeaderAddress, _: PeerRequest) -> Result<PeerAnswer, String> {
        Err("connection refused".to_owned())
    }
}

/// Connects the consumer to the producer, a millisecond away.
struct Network(Producer);

struct Connection(Watcher);

#[async_trait]
impl Leaders for Network {
    async fn connect(&self, _: &WatchedLeader) -> Result<Box<dyn LeaderConnection>, String> {
        sleep(Duration::from_millis(3)).await;
        Ok(Box::new(Connection(self.0.watch())))
    }
}

#[async_trait]
impl LeaderConnection for Connection {
    async fn watch(&mut self, _: &str, newer_than: u64) -> Result<Bytes, WatchError> {
        let answer = self.0.next(newer_than).await;
        sleep(Duration::from_millis(1)).await;
        answer.map_err(|refusal| match refusal {
            PeerRefusal::NotLeading | PeerRefusal::Leaving => WatchError::NotLeading,
            other => WatchError::Refused(other.to_string()),
        })
    }
}

/// The result of a run.
struct Run {
    /// From the call to the row in the table, ascending.
    waited: Vec<Duration>,
    /// The consumer's reads beside those of segments.
    gets: u64,
}

impl Run {
    fn percentile(&self, per_cent: usize) -> Duration {
        self.waited[(self.waited.len() - 1) * per_cent / 100]
    }
}

/// Appends five rows a second for a time. Every row is in the table once at the end.
async fn run(seconds: u32, watches: bool, faults: Faults) -> Run {
    let objects = Store::memory();
    let (store, _) = objects.behind(faults);
    let (reads, _) = objects.behind(Faults {
        seed: faults.seed + 1,
        ..faults
    });
    let machine = Machine::with_one_thread();
    let peering = Peering {
        peers: Arc::new(Alone),
        certificate: Fingerprint([1; 32]),
        address: Some("10.0.0.1:4319".into()),
        forward_below: 0,
    };
    let settings = millpond_producer::Config {
        memory_limit: 64 << 20,
        ..millpond_producer::Config::default()
    };
    let mut registry = Registry::default();
    let environment = Arc::new(machine.clone());
    let producer = Producer::start_with(environment, store, settings, Some(peering), &mut registry);
    let producer = producer.await.unwrap();
    let table = Table::open("table");
    let settings = Config {
        poll_interval: SECOND / 4,
        ack_interval: 5 * SECOND,
        ..config("a")
    };
    let consumer = Consumer::new(reads.clone(), settings, table.clone(), &mut registry).unwrap();
    let mut consumer = consumer.with_environment(Arc::new(machine));
    if watches {
        consumer = consumer.with_watching(Watching {
            leaders: Arc::new(Network(producer.clone())),
            certificate: Fingerprint([9; 32]),
        });
    }
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(consumer.run(shutdown.clone()));
    let append = async |number: u64| {
        let start = Instant::now();
        let row = format!("row-{number}");
        loop {
            let append = Append {
                stream: STREAM.into(),
                encoding: Encoding::Ndjson,
                payload: row.clone().into(),
                records: 1,
                received_at_us: 1,
                reservation: producer.budget().nothing(),
            };
            match producer.append(append).await {
                Ok(_) => break,
                Err(error) => assert!(error.is_retryable(), "{error}"),
            }
        }
        while !table.rows().contains_key(&row) {
            sleep(Duration::from_millis(1)).await;
        }
        start.elapsed()
    };
    append(0).await;
    sleep(5 * SECOND).await;
    let (before, segments) = (reads.requests().get, segments(&objects).await);
    let appends = (1..=u64::from(seconds) * 5).map(|number| {
        let append = &append;
        async move {
            sleep(Duration::from_millis(200 * number + number * 7_919 % 97)).await;
            append(number).await
        }
    });
    let mut waited = join_all(appends).await;
    waited.sort();
    let gets = reads.requests().get - before - (self::segments(&objects).await - segments);
    let rows = table.rows();
    assert_eq!(rows.len() as u64, u64::from(seconds) * 5 + 1);
    assert!(rows.values().all(|times| *times == 1), "{rows:?}");
    shutdown.cancel();
    running.await.unwrap().unwrap();
    Run { waited, gets }
}

async fn segments(store: &Store) -> u64 {
    store.list("shards/0000/segments").await.unwrap().len() as u64
}

#[tokio::test(start_paused = true)]
async fn rows_come_sooner_and_the_manifest_is_read_less() {
    let faults = Faults {
        seed: 1,
        latency: Some(S3Latency::default()),
        ..Faults::default()
    };
    let (polls, watches) = (run(60, false, faults).await, run(60, true, faults).await);
    for (how, run) in [("polls", &polls), ("watches", &watches)] {
        let [p50, p99] = [50, 99].map(|per_cent| run.percentile(per_cent));
        println!(
            "{how}: p50 {p50:?}, p99 {p99:?}, {} GETs beside those of segments",
            run.gets
        );
    }
    assert!(watches.percentile(50) < polls.percentile(50));
    assert!(
        watches.gets * 5 < polls.gets,
        "{} and {}",
        watches.gets,
        polls.gets
    );
}

/// Swaps are lost, late and unreported, and reads fail, on both sides.
#[tokio::test(start_paused = true)]
async fn rows_are_exact_over_a_store_that_fails() {
    for seed in 0..10 {
        println!("seed {seed}");
        let faults = Faults {
            seed: seed * 10,
            write: WriteFaults::each(0.03),
            read_error: 0.05,
            latency: Some(S3Latency::default()),
        };
        run(20, true, faults).await;
    }
}
