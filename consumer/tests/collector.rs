//! What a collector promises: it deletes what nobody needs any more, in the end all of it, and never what the log
//! refers to, whatever the store, other collectors and stalled producers do.

mod support;

use futures::future::join_all;
use millpond_consumer::collector::{CollectError, Collected, Collector, CollectorConfig};
use millpond_consumer::{ConsumeError, Consumer, Environment};
use millpond_manifest::{Cursor, Log as Pages, Manifest, Page, ReadError, Rule, Swap, cas, layout};
use millpond_producer::{Append, AppendError, Config as ProducerConfig, Producer};
use millpond_segment::Encoding;
use millpond_storage::unreliable::{Controls, Fault, Faults, On, Outage, S3Latency, WriteFaults};
use millpond_storage::{Cas, Store};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{Fault as TableFault, Log, OTHER, Running, STREAM, Table, eventually};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use ulid::Ulid;

/// Runs of the simulation.
const SEEDS: u64 = 100;
const GRACE: Duration = Duration::from_secs(10);

/// A clock that is set, and numbers that are told apart.
#[derive(Debug)]
struct Clock {
    now_ms: AtomicU64,
    drawn: AtomicU64,
}

impl Clock {
    fn at(now_ms: u64) -> Arc<Clock> {
        Arc::new(Clock {
            now_ms: AtomicU64::new(now_ms),
            drawn: AtomicU64::new(1),
        })
    }

    fn set(&self, now_ms: u64) {
        self.now_ms.store(now_ms, Relaxed);
    }
}

impl Environment for Clock {
    fn now_us(&self) -> i64 {
        i64::try_from(self.now_ms.load(Relaxed) * 1_000).unwrap()
    }

    fn random(&self) -> u64 {
        self.drawn.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed)
    }
}

fn collector_of(store: &Store, clock: &Arc<Clock>, max_age: Option<Duration>) -> (Collector, Registry) {
    let config = CollectorConfig {
        interval: Duration::from_secs(1),
        grace: GRACE,
        max_age,
    };
    let mut registry = Registry::default();
    let collector = Collector::new(store.clone(), config, &mut registry).with_environment(clock.clone());
    (collector, registry)
}

fn collector(store: &Store, clock: &Arc<Clock>) -> Collector {
    collector_of(store, clock, None).0
}

fn counter(registry: &Registry, name: &str) -> u64 {
    let mut text = String::new();
    encode(&mut text, registry).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{name}_total ")));
    line.unwrap_or_else(|| panic!("{name} in {text}"))
        .parse()
        .unwrap()
}

/// A consumer's position, as if it had read so far.
async fn acknowledge(log: &Log, consumer: &str, stream: &str, next: u64) {
    let rule = Rule {
        batch_records: 10,
        batch_bytes: 10,
        chunk_rows: 10,
        chunk_bytes: 10,
        max_partitions_per_chunk: 1,
        max_in_flight: 1,
        sink: "table".into(),
        schema_version: 1,
    };
    let key = layout::cursor(0, consumer);
    let found = cas::read::<Cursor>(&log.store, &key).await.unwrap();
    let version = found.as_ref().map(|found| found.version.clone());
    let buffer = log.manifest().await.state.buffer_id;
    let mut cursor = found.map_or_else(|| Cursor::new(buffer, 0, consumer, 0, rule), |found| found.state);
    cursor.acknowledge(stream, next).unwrap();
    let swapped = cas::swap(&log.store, &key, version.as_ref(), cursor.stamped(next)).await;
    assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
}

async fn keys(store: &Store) -> BTreeSet<String> {
    let found = store.list("").await.unwrap();
    found.into_iter().map(|object| object.key).collect()
}

/// The segments and pages that the log refers to.
async fn live(store: &Store) -> BTreeSet<String> {
    let state = cas::read::<Manifest>(store, &layout::manifest(0))
        .await
        .unwrap()
        .unwrap()
        .state;
    let mut live: BTreeSet<String> = state
        .pages
        .iter()
        .map(|page| layout::page(0, page.first, page.page))
        .collect();
    let mut log = Pages::new(state);
    while let Some(reference) = log.missing(0).cloned() {
        let key = layout::page(0, reference.first, reference.page);
        let page = cas::read::<Page>(store, &key).await.unwrap();
        let page = page.unwrap_or_else(|| panic!("{key} is gone")).state;
        log.load(&reference, Arc::new(page)).unwrap();
    }
    live.extend(log.entries(0).map(|(_, entry)| layout::segment(0, entry.segment)));
    live
}

/// All that the log refers to is there; what else there is of segments and pages is the answer.
async fn garbage(store: &Store) -> BTreeSet<String> {
    let live = live(store).await;
    let there: BTreeSet<String> = keys(store).await;
    let missing: Vec<_> = live.difference(&there).collect();
    assert!(missing.is_empty(), "live and gone: {missing:?}");
    let data = there
        .into_iter()
        .filter(|key| key.contains("/segments/") || key.contains("/pages/"));
    data.filter(|key| !live.contains(key)).collect()
}

async fn put(store: &Store, key: &str) {
    store.put_if_absent(key, vec!["x".into()]).await.unwrap();
}

/// Eight segments: two pages of three, and two in the tail.
async fn eight() -> Log {
    let mut log = Log::new(Store::memory()).await;
    log.now_ms = 1_000;
    log.commit(&[1; 8]).await;
    log.seal(3).await;
    log
}

#[tokio::test(start_paused = true)]
async fn what_every_consumer_has_acknowledged_goes_and_nothing_else() {
    let log = eight().await;
    let clock = Clock::at(100_000);
    let (mut collector, registry) = collector_of(&log.store, &clock, None);
    let foreign = [
        "shards/0000/segments/README".to_owned(),
        format!("shards/0000/segments/backup/{}", Ulid::from_parts(1, 1)),
        format!(
            "shards/0000/segments/{}",
            Ulid::from_parts(1, u128::MAX).to_string().to_lowercase()
        ),
        format!("shards/0000/segments/copy-{}", Ulid::from_parts(1, 1)),
        format!("shards/0000/pages/notes-{}", Ulid::from_parts(1, 1)),
        format!(
            "shards/0000/pages/backup/00000000000000000000-{}",
            Ulid::from_parts(1, 1)
        ),
        "shards/0000/consumers/readme.txt".to_owned(),
        "elsewhere".to_owned(),
    ];
    for key in &foreign {
        put(&log.store, key).await;
    }
    let before = keys(&log.store).await;

    // Nobody reads it: all of it may still be wanted.
    assert_eq!(collector.round(false).await.unwrap(), Collected::default());
    assert_eq!(keys(&log.store).await, before);

    acknowledge(&log, "one", STREAM, 8).await;
    acknowledge(&log, "two", STREAM, 4).await;
    let before = (keys(&log.store).await, log.manifest().await.version);
    let would = collector.round(true).await.unwrap();
    assert_eq!((keys(&log.store).await, log.manifest().await.version), before);
    let done = collector.round(false).await.unwrap();
    assert_eq!(would, done);
    assert_eq!((done.trimmed_sequences, done.unread_sequences), (4, 0));
    // Of the second page one segment is gone, and the page stays.
    assert_eq!((done.segments, done.pages), (4, 1));
    assert_eq!(log.manifest().await.state.first_sequence, 4);
    assert_eq!(garbage(&log.store).await, foreign_data(&foreign));
    assert_eq!(live(&log.store).await.len(), 5);
    assert_eq!(
        collector.round(false).await.unwrap(),
        Collected::default(),
        "nothing is left to do"
    );

    acknowledge(&log, "two", STREAM, 8).await;
    let done = collector.round(false).await.unwrap();
    assert_eq!((done.segments, done.pages), (4, 1));
    assert!(live(&log.store).await.is_empty());
    assert_eq!(garbage(&log.store).await, foreign_data(&foreign));
    let counted = [
        "trimmed_sequences",
        "unread_sequences",
        "deleted_segments",
        "deleted_pages",
        "failures",
    ]
    .map(|name| counter(&registry, &format!("millpond_collector_{name}")));
    assert_eq!(counted, [8, 0, 8, 2, 0]);
    let there = keys(&log.store).await;
    assert!(foreign.iter().all(|key| there.contains(key)), "{there:?}");
}

fn foreign_data(foreign: &[String]) -> BTreeSet<String> {
    let data = foreign
        .iter()
        .filter(|key| key.contains("/segments/") || key.contains("/pages/"));
    data.cloned().collect()
}

#[tokio::test(start_paused = true)]
async fn the_slowest_stream_of_the_slowest_consumer_is_what_counts() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[1; 3]).await;
    log.commit_to(OTHER, &[1; 3]).await;
    acknowledge(&log, "one", OTHER, 0).await;
    acknowledge(&log, "one", STREAM, 6).await;
    let mut collector = collector(&log.store, &Clock::at(100_000));
    assert_eq!(collector.round(false).await.unwrap().trimmed_sequences, 0);
    acknowledge(&log, "one", OTHER, 4).await;
    assert_eq!(collector.round(false).await.unwrap().trimmed_sequences, 4);
    assert_eq!(garbage(&log.store).await, BTreeSet::new());
}

/// Nobody is there who would ever read it.
#[tokio::test(start_paused = true)]
async fn a_stream_that_the_sink_does_not_take_keeps_nothing() {
    let mut log = Log::new(Store::memory()).await;
    log.commit_to("ignored", &[1; 3]).await;
    log.commit(&[1, 20]).await;
    log.commit_to("ignored", &[1]).await;
    let table = Table::open("table");
    let consumer = support::start(&log.store, support::config("a"), &table);
    table.has(21).await;
    consumer.stop().await.unwrap();
    let mut collector = collector(&log.store, &Clock::at(100_000));
    assert_eq!(collector.round(false).await.unwrap().trimmed_sequences, 6);
    assert_eq!(garbage(&log.store).await, BTreeSet::new());
}

/// Its first batch is not even planned, because the only writer is busy with another stream, which goes on.
#[tokio::test(start_paused = true)]
async fn a_stream_of_which_nothing_is_acknowledged_yet_keeps_what_it_has() {
    let mut log = Log::new(Store::memory()).await;
    log.commit_one(&[(STREAM, 20), (OTHER, 1)]).await;
    log.commit(&[20]).await;
    let busy_with = layout::segment(0, log.manifest().await.state.tail[1].segment);
    let (store, network) = log.store.behind(Faults::default());
    let mut held = network.hold(On::Get, &busy_with);
    let table = Table::open("table");
    let one_writer = millpond_consumer::Config {
        writers: 1,
        ..support::config("a")
    };
    let consumer = support::start(&store, one_writer, &table);
    held.arrived().await;
    eventually("the stream goes on", async || {
        let cursor = log.cursor("default").await;
        cursor.is_some_and(|cursor| cursor.next(STREAM) == 1)
    })
    .await;
    let cursor = log.cursor("default").await.unwrap();
    assert_eq!(cursor.planned(OTHER).count(), 0);
    let mut collector = collector(&log.store, &Clock::at(100_000));
    assert_eq!(collector.round(false).await.unwrap().trimmed_sequences, 0);
    held.release();
    table.has(41).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
    assert_eq!(collector.round(false).await.unwrap().trimmed_sequences, 2);
}

#[tokio::test(start_paused = true)]
async fn orphans_are_deleted_when_they_are_older_than_the_grace() {
    let log = eight().await;
    let orphans = [5_000, 20_000].map(|ms| {
        let name = Ulid::from_parts(ms, 7);
        [layout::segment(0, name), layout::page(0, 2, name)]
    });
    for key in orphans.as_flattened() {
        put(&log.store, key).await;
    }
    let clock = Clock::at(15_000);
    let mut collector = collector(&log.store, &clock);
    // At the grace exactly, a commit of it is still allowed.
    assert_eq!(collector.round(false).await.unwrap(), Collected::default());
    clock.set(15_001);
    let done = collector.round(false).await.unwrap();
    assert_eq!((done.segments, done.pages, done.bytes), (1, 1, 1));
    assert_eq!(garbage(&log.store).await, orphans[1].iter().cloned().collect());
    // A clock that goes back takes nothing back, and one that is far ahead does no harm to what is in the log.
    clock.set(0);
    assert_eq!(collector.round(false).await.unwrap(), Collected::default());
    assert_eq!(log.manifest().await.state.orphan_floor_ms, 5_001);
    clock.set(1 << 40);
    let done = collector.round(false).await.unwrap();
    assert_eq!((done.segments, done.pages, done.trimmed_sequences), (1, 1, 0));
    assert_eq!(garbage(&log.store).await, BTreeSet::new());
    assert_eq!(live(&log.store).await.len(), 10);
}

#[tokio::test(start_paused = true)]
async fn retention_drops_what_is_too_old_and_counts_what_nobody_had_read() {
    let mut log = Log::new(Store::memory()).await;
    for (now_ms, sizes) in [(1_000, 2), (2_000, 2), (3_000, 3)] {
        log.now_ms = now_ms;
        log.commit(&vec![1; sizes]).await;
        log.seal(2).await;
    }
    // Pages 0-1 at 1,000, 2-3 at 2,000, 4-5 at 3,000, and 6 in the tail.
    acknowledge(&log, "one", STREAM, 1).await;
    let clock = Clock::at(52_000);
    let (mut collector, registry) = collector_of(&log.store, &clock, Some(Duration::from_secs(50)));
    let done = collector.round(false).await.unwrap();
    assert_eq!(
        (done.trimmed_sequences, done.unread_sequences, done.pages),
        (2, 1, 1)
    );
    clock.set(52_001);
    let done = collector.round(false).await.unwrap();
    assert_eq!(
        (done.trimmed_sequences, done.unread_sequences, done.pages),
        (2, 2, 1)
    );
    assert_eq!(live(&log.store).await.len(), 4);
    // The last page and the tail; and a log that is empty can be committed to.
    clock.set(60_000);
    let done = collector.round(false).await.unwrap();
    assert_eq!(
        (done.trimmed_sequences, done.unread_sequences, done.segments),
        (3, 3, 3)
    );
    assert_eq!(garbage(&log.store).await, BTreeSet::new());
    log.now_ms = 60_000;
    log.commit(&[1; 3]).await;
    assert_eq!(collector.round(false).await.unwrap(), Collected::default());
    assert_eq!(log.manifest().await.state.first_sequence, 7);
    assert_eq!(counter(&registry, "millpond_collector_unread_sequences"), 6);
}

/// Its segment waits for its commit longer than the grace, and is deleted meanwhile.
#[tokio::test(start_paused = true)]
async fn a_stalled_producer_uploads_again_what_was_deleted() {
    let store = Store::memory();
    let (network, controls) = store.behind(Faults::default());
    let clock = Clock::at(1_000_000);
    let environment = {
        let clock = clock.clone();
        millpond_producer::Environment::new(move || clock.now_ms.load(Relaxed), 1)
    };
    let config = ProducerConfig {
        segment_raw_bytes: 1,
        block_bytes: 1_024,
        memory_limit: 1 << 20,
        encoders: 1,
        tail_max: 2,
        ..ProducerConfig::default()
    };
    let mut registry = Registry::default();
    let producer = Producer::start_in(environment, network, config, &mut registry)
        .await
        .unwrap();
    let append = async |payload: &'static str| {
        let append = Append {
            stream: STREAM.into(),
            encoding: Encoding::Ndjson,
            payload: payload.into(),
            records: 1,
            received_at_us: 1,
            reservation: producer.budget().nothing(),
        };
        producer.append(append).await.unwrap().sequence
    };
    // The third is committed with a page, which is deleted as well.
    for round in 0..3 {
        let mut held = controls.hold(On::Update, "manifest");
        let collect = async {
            held.arrived().await;
            clock.set(1_100_000 + round * 100_000);
            let done = collector(&store, &clock).round(false).await.unwrap();
            assert_eq!((done.segments, done.pages), (1, u64::from(round == 2)));
            held.release();
        };
        let (sequence, ()) = tokio::join!(append("x"), collect);
        assert_eq!(sequence, round);
        assert_eq!(garbage(&store).await, BTreeSet::new());
        assert_eq!(counter(&registry, "millpond_producer_reuploads"), round + 1);
    }
    let state = cas::read::<Manifest>(&store, &layout::manifest(0))
        .await
        .unwrap()
        .unwrap()
        .state;
    assert_eq!((state.pages.len(), state.tail.len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn a_page_that_cannot_be_trusted_stops_the_deletions() {
    let log = eight().await;
    put(&log.store, &layout::segment(0, Ulid::from_parts(500, 1))).await;
    acknowledge(&log, "one", STREAM, 1).await;
    let (key, other) = (log.page_key(0).await, log.page_key(1).await);
    let whole = log.store.get(&key).await.unwrap().unwrap().bytes;
    let other = log.store.get(&other).await.unwrap().unwrap().bytes;
    let mut damaged = whole.to_vec();
    damaged[40] ^= 1;
    for content in [None, Some(damaged.into()), Some(other)] {
        log.store.delete(&key).await.unwrap();
        if let Some(content) = content.clone() {
            log.store.put_if_absent(&key, vec![content]).await.unwrap();
        }
        let before = keys(&log.store).await;
        let error = collector(&log.store, &Clock::at(100_000))
            .round(false)
            .await
            .unwrap_err();
        assert!(error.to_string().contains(&key), "{error}");
        match &error {
            CollectError::PageGone(_) => assert_eq!(content, None),
            CollectError::Read(ReadError::Format { .. }) => assert!(content.is_some()),
            CollectError::WrongPage { .. } => assert!(content.is_some()),
            error => panic!("{error}"),
        }
        assert_eq!(keys(&log.store).await, before);
    }
    log.store.delete(&key).await.unwrap();
    log.store.put_if_absent(&key, vec![whole]).await.unwrap();
    let done = collector(&log.store, &Clock::at(100_000))
        .round(false)
        .await
        .unwrap();
    assert_eq!((done.segments, done.pages), (2, 0));
    assert_eq!(garbage(&log.store).await, BTreeSet::new());
}

#[tokio::test(start_paused = true)]
async fn a_round_that_died_after_its_swap_is_finished_by_the_next() {
    let log = eight().await;
    acknowledge(&log, "one", STREAM, 5).await;
    let clock = Clock::at(100_000);
    for (on, at) in [(On::List, "segments"), (On::Delete, "")] {
        let (store, network) = log.store.behind(Faults::default());
        let mut held = network.hold(on, at);
        let mut dies = collector(&store, &clock);
        let task = tokio::spawn(async move { dies.round(false).await });
        held.arrived().await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        assert_eq!(log.manifest().await.state.first_sequence, 5);
        assert!(!garbage(&log.store).await.is_empty());
    }
    let done = collector(&log.store, &clock).round(false).await.unwrap();
    assert_eq!(done.trimmed_sequences, 0);
    assert_eq!(garbage(&log.store).await, BTreeSet::new());
}

/// A page is gone since another collector had every right to delete it.
#[tokio::test(start_paused = true)]
async fn a_stalled_collector_is_not_misled_by_another() {
    let log = eight().await;
    put(&log.store, &layout::segment(0, Ulid::from_parts(500, 1))).await;
    acknowledge(&log, "one", STREAM, 1).await;
    let clock = Clock::at(100_000);
    let (store, network) = log.store.behind(Faults::default());
    let mut held = network.hold(On::Get, &log.page_key(0).await);
    let mut stalled = collector(&store, &clock);
    let other = async {
        held.arrived().await;
        acknowledge(&log, "one", STREAM, 4).await;
        collector(&log.store, &clock).round(false).await.unwrap();
        held.release();
    };
    let (done, ()) = tokio::join!(stalled.round(false), other);
    assert_eq!(done.unwrap().trimmed_sequences, 1);
    assert_eq!(garbage(&log.store).await, BTreeSet::new());
}

#[tokio::test(start_paused = true)]
async fn a_swap_may_have_each_of_its_outcomes() {
    for fault in [
        Fault::LandsUnreported,
        Fault::Lost,
        Fault::LandsLate(Duration::from_secs(1)),
        Fault::Hangs,
    ] {
        let log = eight().await;
        acknowledge(&log, "one", STREAM, 5).await;
        let (store, network) = log.store.behind(Faults::default());
        network.once(On::Update, "manifest", fault);
        let clock = Clock::at(100_000);
        let mut collector = collector(&store, &clock);
        // Whichever attempt it was that landed, nothing is deleted before it has.
        while collector.round(false).await.is_err() {}
        network.settled().await;
        assert_eq!(network.unused(), 0);
        assert_eq!(log.manifest().await.state.first_sequence, 5);
        assert_eq!(garbage(&log.store).await, BTreeSet::new(), "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn several_collectors_with_a_bad_network_and_a_growing_log_leave_what_is_live_and_nothing_else() {
    for seed in 0..60 {
        let mut log = eight().await;
        let clock = Clock::at(0);
        for round in 1..8_u64 {
            let now_ms = round * 20_000;
            clock.set(now_ms);
            log.now_ms = now_ms;
            log.commit(&[1; 3]).await;
            log.seal(2).await;
            put(&log.store, &layout::segment(0, Ulid::from_parts(now_ms, 1))).await;
            put(&log.store, &layout::page(0, 2, Ulid::from_parts(now_ms, 1))).await;
            acknowledge(&log, "one", STREAM, round * 3 + seed % 4).await;
            let rounds = (0..2).map(async |i| {
                let (store, network) = log.store.behind(Faults {
                    seed: seed * 100 + round * 2 + i,
                    write: WriteFaults {
                        late_by_max: Duration::from_secs(20),
                        ..WriteFaults::each(if seed % 2 == 0 { 0.1 } else { 0.0 })
                    },
                    read_error: if seed % 2 == 0 { 0.1 } else { 0.0 },
                    latency: Some(S3Latency::default()),
                });
                let mut collector = collector(&store, &clock);
                while let Err(error) = collector.round(false).await {
                    let seen = garbage(&log.store).await;
                    assert!(
                        !matches!(error, CollectError::PageGone(_)),
                        "seed {seed}: {error}; {seen:?}"
                    );
                    assert!(
                        seed % 2 == 0 || matches!(error, CollectError::Contended(_)),
                        "seed {seed}: {error}"
                    );
                }
                network
            });
            let networks = join_all(rounds).await;
            garbage(&log.store).await;
            if round == 7 {
                for network in networks {
                    network.settled().await;
                }
            }
        }
        clock.set(1_000_000);
        collector(&log.store, &clock).round(false).await.unwrap();
        assert_eq!(garbage(&log.store).await, BTreeSet::new(), "seed {seed}");
        let state = log.manifest().await.state;
        assert_eq!(state.first_sequence, 21 + seed % 4, "seed {seed}");
    }
}

async fn overwrite(store: &Store, key: &str, bytes: bytes::Bytes) {
    let found = store.get(key).await.unwrap().unwrap();
    let written = store.compare_and_set(key, Some(&found.version), bytes).await;
    assert!(matches!(written, Cas::Committed(_)), "{written:?}");
}

#[tokio::test(start_paused = true)]
async fn a_damaged_cursor_keeps_everything() {
    let log = eight().await;
    acknowledge(&log, "one", STREAM, 8).await;
    acknowledge(&log, "two", STREAM, 8).await;
    overwrite(&log.store, &layout::cursor(0, "two"), "nonsense".into()).await;
    let before = keys(&log.store).await;
    let error = collector(&log.store, &Clock::at(100_000))
        .round(false)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("consumers/two/cursor"), "{error}");
    assert_eq!(keys(&log.store).await, before);
}

/// The grace of the simulation's collectors.
const SHORT_GRACE: Duration = Duration::from_secs(3);
/// How long things go wrong.
const TROUBLE: Duration = Duration::from_secs(15);

/// Says which seed it was when a test fails.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}

/// What the runs came across, so that none of it is left out unnoticed.
#[derive(Debug, Default)]
struct Seen {
    acknowledged: u64,
    unknown: u64,
    reuploads: u64,
    segments: u64,
    pages: u64,
    failed_rounds: u64,
    takeovers: u64,
    trimmed: u64,
}

/// The time of day passes with the paused clock, and jumps. One for all.
struct JumpingClock {
    begin: Instant,
    ahead_ms: AtomicU64,
    random: Mutex<StdRng>,
}

impl JumpingClock {
    fn unix_ms(&self) -> u64 {
        u64::try_from(self.begin.elapsed().as_millis()).unwrap() + self.ahead_ms.load(Relaxed)
    }
}

impl Environment for JumpingClock {
    fn now_us(&self) -> i64 {
        i64::try_from(self.unix_ms() * 1_000).unwrap()
    }

    fn random(&self) -> u64 {
        self.random.lock().unwrap().random()
    }
}

struct Simulation {
    store: Store,
    /// With it, what was not read in time is lost; what was sent is in the table once all the same.
    max_age: Option<Duration>,
    clock: Arc<JumpingClock>,
    tables: Vec<Arc<Table>>,
    /// What appends came to: certainly in the log, or perhaps.
    acknowledged: Mutex<BTreeSet<String>>,
    unknown: Mutex<BTreeSet<String>>,
    /// All networks there were: some have late writes under way.
    networks: Mutex<Vec<Controls>>,
    stalled: Mutex<Vec<(Producer, Controls, Registry)>>,
    seen: Mutex<Seen>,
}

impl Simulation {
    fn network(&self, rng: &mut StdRng, probability: f64) -> (Store, Controls) {
        let (store, network) = self.store.behind(Faults {
            seed: rng.random(),
            write: WriteFaults {
                late_by_max: Duration::from_secs(6),
                ..WriteFaults::each(probability)
            },
            read_error: probability,
            latency: None,
        });
        self.networks.lock().unwrap().push(network.clone());
        (store.with_request_timeout(Duration::from_secs(1)), network)
    }

    async fn producer(&self, rng: &mut StdRng, store: Store) -> Option<(Producer, Registry)> {
        let config = ProducerConfig {
            linger: Duration::from_millis(20),
            segment_raw_bytes: 1,
            block_bytes: 1_024,
            memory_limit: 12 << 10,
            encoders: 1,
            tail_max: rng.random_range(2..=4),
            start_timeout: Duration::from_secs(2),
            ..ProducerConfig::default()
        };
        let clock = self.clock.clone();
        let environment = millpond_producer::Environment::new(move || clock.unix_ms(), rng.random());
        let mut registry = Registry::default();
        let started = Producer::start_in(environment, store, config, &mut registry).await;
        Some((started.ok()?, registry))
    }

    /// Sends one message after another until its producer is gone.
    async fn client(&self, producer: &Producer, name: String, mut rng: StdRng) {
        for number in 0.. {
            sleep(Duration::from_millis(rng.random_range(0..600))).await;
            let message = format!("{name}.{number}");
            self.unknown.lock().unwrap().insert(message.clone());
            let append = Append {
                stream: if rng.random_range(0..4) == 0 {
                    OTHER
                } else {
                    STREAM
                }
                .into(),
                encoding: Encoding::Ndjson,
                payload: message.clone().into(),
                records: rng.random_range(1..4),
                received_at_us: 1,
                reservation: producer.budget().nothing(),
            };
            match producer.append(append).await {
                Ok(_) => {
                    self.unknown.lock().unwrap().remove(&message);
                    self.acknowledged.lock().unwrap().insert(message);
                }
                Err(AppendError::Closed) => return,
                Err(error) => assert!(error.is_retryable(), "{message}: {error}"),
            }
        }
    }

    /// One producer after another: drained, killed, or stalled until everything is over.
    async fn producers(&self, place: u32, mut rng: StdRng) {
        for incarnation in 0.. {
            if self.clock.begin.elapsed() > TROUBLE {
                return;
            }
            let (store, network) = self.network(&mut rng, 0.06);
            let Some((producer, registry)) = self.producer(&mut rng, store).await else {
                continue;
            };
            let client_rng = StdRng::seed_from_u64(rng.random());
            let client = self.client(&producer, format!("{place}.{incarnation}"), client_rng);
            let life = Duration::from_millis(rng.random_range(0..8_000));
            let _ = timeout(life, client).await;
            match rng.random_range(0..3) {
                0 => {
                    network.heal();
                    producer.drain(Duration::from_secs(600)).await.unwrap();
                    let reuploads = counter(&registry, "millpond_producer_reuploads");
                    self.seen.lock().unwrap().reuploads += reuploads;
                }
                1 => network.set_outage(Some(Outage::Hangs)),
                _ => {
                    network.set_outage(Some(Outage::Hangs));
                    self.stalled.lock().unwrap().push((producer, network, registry));
                }
            }
        }
    }

    fn consumer(&self, table: usize, rng: &mut StdRng, store: &Store, instance: &str) -> Running {
        // Each owner wants a rule of its own: what is large for one is small for the next.
        let batch_records = [2, 5, 12, 100][rng.random_range(0..4)];
        let config = millpond_consumer::Config {
            consumer: format!("consumer-{table}"),
            instance: instance.into(),
            lease: Duration::from_secs(4),
            take_over: true,
            poll_interval: Duration::from_millis(200),
            ack_interval: Duration::from_millis(200),
            writers: 2,
            drain_timeout: Duration::from_secs(2),
            batch_records,
            // Two chunks a batch at most: a decoder that waits for its writer stops the paused clock.
            chunk_rows: batch_records,
            max_in_flight: rng.random_range(1..5),
            ..millpond_consumer::Config::default()
        };
        let sink = self.tables[table].clone();
        let consumer = Consumer::new(store.clone(), config, sink, &mut Registry::default()).unwrap();
        let consumer = consumer.with_environment(self.clock.clone());
        let shutdown = CancellationToken::new();
        let task = tokio::spawn(consumer.run(shutdown.clone()));
        Running { shutdown, task }
    }

    /// One owner of a cursor after another: stopped, crashed, or stalled while the next one works.
    async fn consumers(&self, table: usize, mut rng: StdRng) {
        let mut asleep: Option<(Running, Controls)> = None;
        for incarnation in 0.. {
            if self.clock.begin.elapsed() > TROUBLE {
                break;
            }
            let (store, network) = self.network(&mut rng, 0.04);
            let consumer = self.consumer(table, &mut rng, &store, &format!("{incarnation}"));
            self.seen.lock().unwrap().takeovers += 1;
            for _ in 0..rng.random_range(0..3) {
                let faults = [TableFault::LandsUnreported, TableFault::Down];
                self.tables[table].fail_next(&[faults[rng.random_range(0..2)]]);
            }
            sleep(Duration::from_millis(rng.random_range(0..5_000))).await;
            if let Some((awake, network)) = asleep.take() {
                network.set_outage(None);
                sleep(Duration::from_millis(rng.random_range(0..1_000))).await;
                // It was fenced; what it had begun may have been read and collected since.
                self.ended(awake, true).await;
            }
            if consumer.task.is_finished() {
                self.ended(consumer, false).await;
                continue;
            }
            match rng.random_range(0..3) {
                0 => {
                    consumer.shutdown.cancel();
                    while !consumer.task.is_finished() {
                        sleep(Duration::from_millis(10)).await;
                    }
                    self.ended(consumer, false).await;
                }
                1 => self.ended(consumer, false).await,
                _ => {
                    network.set_outage(Some(Outage::Hangs));
                    asleep = Some((consumer, network));
                }
            }
        }
        if let Some((consumer, _)) = asleep {
            consumer.task.abort();
        }
    }

    /// It was stopped, is killed now, or has ended for the one reason that there may be.
    async fn ended(&self, consumer: Running, fenced: bool) {
        consumer.task.abort();
        match consumer.task.await {
            Ok(Ok(())) => {}
            Ok(Err(ConsumeError::Trimmed { .. })) if fenced || self.max_age.is_some() => {
                self.seen.lock().unwrap().trimmed += 1;
            }
            Ok(Err(error)) => panic!("{error}"),
            Err(aborted) => assert!(aborted.is_cancelled(), "{aborted}"),
        }
    }

    fn collector(&self, store: Store) -> Collector {
        let config = CollectorConfig {
            interval: Duration::from_secs(1),
            grace: SHORT_GRACE,
            max_age: self.max_age,
        };
        Collector::new(store, config, &mut Registry::default()).with_environment(self.clock.clone())
    }

    /// Rounds, stalls in the midst of them, and what must hold after each.
    async fn collectors(&self, mut rng: StdRng) {
        let (store, network) = self.network(&mut rng, 0.05);
        let store = store.with_request_timeout(Duration::from_secs(60));
        let mut collector = self.collector(store);
        while self.clock.begin.elapsed() < TROUBLE {
            sleep(Duration::from_millis(rng.random_range(0..1_500))).await;
            let stall = (rng.random_range(0..3) == 0).then(|| {
                let (on, at) = [
                    (On::List, "segments"),
                    (On::Delete, ""),
                    (On::Update, "manifest"),
                    (On::Get, ""),
                ][rng.random_range(0..4)];
                (network.hold(on, at), rng.random_range(0..8_000))
            });
            let waits = async {
                if let Some((held, for_ms)) = stall {
                    sleep(Duration::from_millis(for_ms)).await;
                    drop(held);
                }
            };
            let (round, ()) = tokio::join!(collector.round(false), waits);
            match round {
                Ok(done) => {
                    let mut seen = self.seen.lock().unwrap();
                    seen.segments += done.segments;
                    seen.pages += done.pages;
                }
                Err(CollectError::Contended(_) | CollectError::Read(ReadError::Store(_))) => {
                    self.seen.lock().unwrap().failed_rounds += 1;
                }
                Err(error) => panic!("{error}"),
            }
            self.nothing_live_is_missing().await;
        }
    }

    async fn nothing_live_is_missing(&self) {
        let before = cas::read::<Manifest>(&self.store, &layout::manifest(0))
            .await
            .unwrap()
            .unwrap();
        let mut log = Pages::new(before.state.clone());
        let mut missing = Vec::new();
        for reference in &before.state.pages {
            let key = layout::page(0, reference.first, reference.page);
            match cas::read::<Page>(&self.store, &key).await.unwrap() {
                Some(page) => log.load(reference, Arc::new(page.state)).unwrap(),
                None => missing.push(key),
            }
        }
        let there = keys(&self.store).await;
        let entries = log.entries(0).map(|(_, entry)| layout::segment(0, entry.segment));
        missing.extend(entries.filter(|key| !there.contains(key)));
        // Unless another collector has gone on meanwhile.
        let after = cas::read::<Manifest>(&self.store, &layout::manifest(0))
            .await
            .unwrap()
            .unwrap();
        assert!(
            missing.is_empty() || after.state.first_sequence > before.state.first_sequence,
            "live and gone: {missing:?}"
        );
    }

    async fn jumps(&self, mut rng: StdRng) {
        while self.clock.begin.elapsed() < TROUBLE {
            sleep(Duration::from_millis(rng.random_range(0..8_000))).await;
            let ahead = self.clock.ahead_ms.load(Relaxed);
            let by = rng.random_range(0..12_000);
            let jumped = if rng.random() { ahead + by } else { ahead - by };
            self.clock.ahead_ms.store(jumped, Relaxed);
        }
    }

    /// Nothing goes wrong any more: all is read, and all is collected.
    async fn ends(&self, mut rng: StdRng) {
        let stalled = std::mem::take(&mut *self.stalled.lock().unwrap());
        for (producer, network, registry) in stalled {
            network.heal();
            producer.drain(Duration::from_secs(600)).await.unwrap();
            self.seen.lock().unwrap().reuploads += counter(&registry, "millpond_producer_reuploads");
        }
        let networks = std::mem::take(&mut *self.networks.lock().unwrap());
        for network in networks {
            network.settled().await;
        }
        for table in 0..self.tables.len() {
            let consumer = self.consumer(table, &mut rng, &self.store, "last");
            eventually("all is acknowledged", async || {
                let log = cas::read::<Manifest>(&self.store, &layout::manifest(0))
                    .await
                    .unwrap()
                    .unwrap()
                    .state;
                let key = layout::cursor(0, &format!("consumer-{table}"));
                let cursor = cas::read::<Cursor>(&self.store, &key)
                    .await
                    .unwrap()
                    .unwrap()
                    .state;
                log.streams
                    .iter()
                    .all(|stream| cursor.next(&stream.name) == log.next_sequence)
            })
            .await;
            consumer.stop().await.unwrap();
        }
        let (acknowledged, unknown) = (self.acknowledged.lock().unwrap(), self.unknown.lock().unwrap());
        for table in &self.tables {
            let rows = table.rows();
            let twice: Vec<_> = rows.iter().filter(|(_, times)| **times != 1).collect();
            assert!(twice.is_empty(), "{twice:?}");
            let lost: Vec<_> = acknowledged
                .iter()
                .filter(|row| !rows.contains_key(*row))
                .collect();
            assert!(
                lost.is_empty() || self.max_age.is_some(),
                "acknowledged and not in the table: {lost:?}"
            );
            let invented: Vec<_> = rows
                .keys()
                .filter(|row| !acknowledged.contains(*row) && !unknown.contains(*row))
                .collect();
            assert!(invented.is_empty(), "{invented:?}");
        }
        let mut seen = self.seen.lock().unwrap();
        seen.acknowledged += acknowledged.len() as u64;
        seen.unknown += unknown.len() as u64;
        self.clock.ahead_ms.fetch_add(1_000_000, Relaxed);
    }
}

async fn simulate(seed: u64) -> Seen {
    let _says = Seed(seed);
    let mut rng = StdRng::seed_from_u64(seed);
    let tables = rng.random_range(1..=2);
    let simulation = Simulation {
        store: Store::memory(),
        max_age: (seed % 4 == 3).then_some(Duration::from_millis(300)),
        clock: Arc::new(JumpingClock {
            begin: Instant::now(),
            ahead_ms: AtomicU64::new(1_767_225_600_000),
            random: Mutex::new(StdRng::seed_from_u64(rng.random())),
        }),
        tables: (0..tables).map(|_| Table::open("table")).collect(),
        acknowledged: Mutex::default(),
        unknown: Mutex::default(),
        networks: Mutex::default(),
        stalled: Mutex::default(),
        seen: Mutex::default(),
    };
    let s = &simulation;
    // Every consumer is known before the first collector comes: what it reads, it keeps from then on.
    s.producer(&mut rng, s.store.clone()).await.unwrap();
    for table in 0..s.tables.len() {
        let consumer = s.consumer(table, &mut rng, &s.store, "first");
        let key = layout::cursor(0, &format!("consumer-{table}"));
        eventually("it is known", async || {
            s.store.head(&key).await.unwrap().is_some()
        })
        .await;
        consumer.stop().await.unwrap();
    }
    let mut forked = || StdRng::seed_from_u64(rng.random());
    let producers = join_all((0..2).map(|place| s.producers(place, forked())));
    let consumers = join_all((0..s.tables.len()).map(|table| s.consumers(table, forked())));
    let collectors = join_all((0..2).map(|_| s.collectors(forked())));
    tokio::join!(producers, consumers, collectors, s.jumps(forked()));
    s.ends(forked()).await;
    let done = s.collector(s.store.clone()).round(false).await.unwrap();
    assert_eq!(garbage(&s.store).await, BTreeSet::new(), "garbage is left");
    assert_eq!(live(&s.store).await, BTreeSet::new(), "all of it was read");
    let mut seen = simulation.seen.into_inner().unwrap();
    seen.segments += done.segments;
    seen.pages += done.pages;
    seen
}

/// Real producers, consumers and collectors that stall, die and come back over a bad network, while the clock jumps.
#[test]
fn whatever_happens_all_is_read_once_nothing_live_is_deleted_and_no_garbage_is_left() {
    let only = std::env::var("MILLPOND_SEED")
        .ok()
        .map(|seed| seed.parse::<u64>().unwrap());
    let all = Mutex::new(Seen::default());
    let run = |seed: u64| {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_all().start_paused(true).build().unwrap();
        let Seen {
            acknowledged,
            unknown,
            reuploads,
            segments,
            pages,
            failed_rounds,
            takeovers,
            trimmed,
        } = runtime.block_on(simulate(seed));
        runtime.shutdown_background();
        let mut all = all.lock().unwrap();
        all.acknowledged += acknowledged;
        all.unknown += unknown;
        all.reuploads += reuploads;
        all.segments += segments;
        all.pages += pages;
        all.failed_rounds += failed_rounds;
        all.takeovers += takeovers;
        all.trimmed += trimmed;
    };
    if let Some(seed) = only {
        return run(seed);
    }
    std::thread::scope(|scope| {
        let run = &run;
        for thread in 0..2 {
            scope.spawn(move || (0..SEEDS).filter(|seed| seed % 2 == thread).for_each(run));
        }
    });
    let seen = all.into_inner().unwrap();
    println!("{seen:?}");
    let Seen {
        acknowledged,
        unknown,
        reuploads,
        segments,
        pages,
        failed_rounds,
        takeovers,
        ..
    } = seen;
    let rare = [
        acknowledged,
        unknown,
        reuploads,
        segments,
        pages,
        failed_rounds,
        takeovers,
    ];
    assert!(rare.iter().all(|times| *times > SEEDS / 4), "{rare:?}");
}
