//! Tests a garbage collector's promise: it deletes all unneeded objects eventually, and never one that the log refers
//! to, through failures of the store, other garbage collectors and stalled producers.

use crate::support::{Log, OTHER, STREAM, Table, acknowledged_in, config, eventually, start};
use futures::future::join_all;
use millpond_consumer::Config;
use millpond_consumer::gc::{CollectError, Collected, GarbageCollector, GcConfig, Step};
use millpond_manifest::cursor::Seen;
use millpond_manifest::{
    BatchingPolicy, Buffer, Cursor, Log as Pages, Manifest, Page, ReadError, Swap, cas, layout,
};
use millpond_producer::{Append, Config as ProducerConfig, Producer};
use millpond_runtime::{Environment, SystemEnvironment};
use millpond_segment::Encoding;
use millpond_storage::unreliable::{Fault, Faults, On, S3Latency, WriteFaults};
use millpond_storage::{Cas, Store};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use ulid::Ulid;
use uuid::Uuid;

const GRACE: Duration = Duration::from_secs(10);

/// A clock that the test sets, and distinct random numbers.
#[derive(Debug)]
pub(crate) struct Clock {
    now_ms: AtomicU64,
    drawn: AtomicU64,
}

impl Clock {
    pub(crate) fn at(now_ms: u64) -> Arc<Clock> {
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
    fn uptime(&self) -> Duration {
        SystemEnvironment.uptime()
    }

    fn now_us(&self) -> i64 {
        i64::try_from(self.now_ms.load(Relaxed) * 1_000).unwrap()
    }

    fn random(&self) -> u64 {
        self.drawn.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed)
    }
}

pub(crate) fn gc_of(
    store: &Store,
    clock: &Arc<Clock>,
    max_age: Option<Duration>,
) -> (GarbageCollector, Registry) {
    let config = GcConfig {
        interval: Duration::from_secs(1),
        grace: GRACE,
        max_age,
    };
    let mut registry = Registry::default();
    let gc = GarbageCollector::new(store.clone(), config, &mut registry).with_environment(clock.clone());
    (gc, registry)
}

pub(crate) fn gc(store: &Store, clock: &Arc<Clock>) -> GarbageCollector {
    gc_of(store, clock, None).0
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

pub(crate) fn policy() -> BatchingPolicy {
    BatchingPolicy {
        batch_records: 10,
        batch_bytes: 10,
        chunk_rows: 10,
        chunk_bytes: 10,
        max_partitions_per_chunk: 1,
        max_in_flight: 1,
        sink: "table".into(),
        schema_version: 1,
    }
}

/// Sets a consumer's position, as if it had acknowledged everything before.
async fn acknowledge(log: &Log, consumer: &str, stream: &str, next: u64) {
    let key = layout::cursor(0, consumer);
    let found = cas::read::<Cursor>(&log.store, &key).await.unwrap();
    let version = found.as_ref().map(|found| found.version.clone());
    let buffer = log.manifest().await.state.buffer_id;
    let mut cursor = found.map_or_else(
        || Cursor::new(buffer, 0, consumer, 0, policy()),
        |found| found.state,
    );
    cursor.acknowledge(stream, next).unwrap();
    let swapped = cas::swap(&log.store, &key, version.as_ref(), cursor.stamped(next)).await;
    assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
}

async fn keys(store: &Store) -> BTreeSet<String> {
    let found = store.list("").await.unwrap();
    found.into_iter().map(|object| object.key).collect()
}

/// Returns the segments and pages that the log refers to.
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
        let page = page.unwrap_or_else(|| panic!("{key} is missing")).state;
        log.load(&reference, Arc::new(page)).unwrap();
    }
    live.extend(log.entries(0).map(|(_, entry)| layout::segment(0, entry.segment)));
    live
}

/// Checks that all objects that the log refers to exist. Returns the other segments and pages.
async fn garbage(store: &Store) -> BTreeSet<String> {
    let live = live(store).await;
    let there: BTreeSet<String> = keys(store).await;
    let missing: Vec<_> = live.difference(&there).collect();
    assert!(missing.is_empty(), "live and missing: {missing:?}");
    let data = there
        .into_iter()
        .filter(|key| key.contains("/segments/") || key.contains("/pages/"));
    data.filter(|key| !live.contains(key)).collect()
}

async fn put(store: &Store, key: &str) {
    store.put_if_absent(key, vec!["x".into()]).await.unwrap();
}

/// Creates eight segments: two pages of three, and two in the tail.
pub(crate) async fn eight() -> Log {
    let mut log = Log::new(Store::memory()).await;
    log.now_ms = 1_000;
    log.commit(&[1; 8]).await;
    log.seal(3).await;
    log
}

/// Somebody restores the manifest of a consumer that has read more. Records that come then have sequences that the consumer has behind
/// it, and a reset still finds them.
#[tokio::test]
async fn a_cursor_that_is_ahead_of_its_log_keeps_all_of_it() {
    let mut log = eight().await;
    acknowledge(&log, "default", STREAM, 9).await;
    acknowledge(&log, "slow", STREAM, 3).await;
    // A segment of the log that is gone, which somebody may put back.
    let lost = layout::segment(0, Ulid::from_parts(1, 1));
    log.store.put_if_absent(&lost, vec!["lost".into()]).await.unwrap();
    let clock = Clock::at(log.now_ms + 100 * u64::try_from(GRACE.as_millis()).unwrap());
    let before = log.manifest().await.state;
    let done = gc(&log.store, &clock).round(false).await.unwrap();
    assert_eq!((done.trimmed_sequences, done.segments), (0, 0));
    assert_eq!(log.manifest().await.state, before);
    let [why] = &done.unreadable_cursors[..] else {
        panic!("{:?}", done.unreadable_cursors);
    };
    assert!(
        why.contains("default/cursor") && why.contains("read up to sequence 9, and the log ends at 8"),
        "{why}"
    );
    // Once the log has as much, the consumers decide again.
    log.commit(&[1]).await;
    let done = gc(&log.store, &clock).round(false).await.unwrap();
    assert_eq!((done.trimmed_sequences, done.unreadable_cursors.len()), (3, 0));
}

/// The restored log has more by now than the consumers had read.
#[tokio::test]
async fn a_log_with_another_segment_than_a_consumer_has_seen_keeps_all_of_it() {
    for place in [1, 7] {
        let mut log = eight().await;
        acknowledge(&log, "default", STREAM, 8).await;
        let seen = Seen {
            sequence: place,
            segment: Ulid::from_parts(1, 1),
        };
        log.change_cursor("default", |cursor| Cursor {
            seen: Some(seen),
            ..cursor.clone()
        })
        .await;
        let lost = layout::segment(0, seen.segment);
        log.store.put_if_absent(&lost, vec!["lost".into()]).await.unwrap();
        let clock = Clock::at(log.now_ms + 100 * u64::try_from(GRACE.as_millis()).unwrap());
        log.commit(&[1, 1]).await;
        let before = log.manifest().await.state;
        let done = gc(&log.store, &clock).round(false).await.unwrap();
        assert_eq!((done.trimmed_sequences, done.segments), (0, 0), "{place}");
        assert_eq!(log.manifest().await.state, before);
        let [why] = &done.unreadable_cursors[..] else {
            panic!("{:?}", done.unreadable_cursors);
        };
        assert!(
            why.contains("default/cursor") && why.contains(&format!("{} at sequence {place}", seen.segment)),
            "{why}"
        );
        // The operator decides which log it is.
        log.reset("default", 8).await;
        let done = gc(&log.store, &clock).round(false).await.unwrap();
        assert_eq!(done.unreadable_cursors, [] as [String; 0]);
        assert_eq!(done.trimmed_sequences, 8);
    }
}

/// The page that would tell is lost. Its consumer may have read another log, and retention still ends the matter.
#[tokio::test]
async fn a_lost_page_with_what_a_consumer_has_seen_stops_no_retention() {
    let log = eight().await;
    acknowledge(&log, "default", STREAM, 8).await;
    let entry = |log: &Manifest| log.tail[0].segment;
    let seen = Seen {
        sequence: 4,
        segment: entry(&log.manifest().await.state),
    };
    log.change_cursor("default", |cursor| Cursor {
        seen: Some(seen),
        ..cursor.clone()
    })
    .await;
    let lost = log.page_key(1).await;
    log.store.delete(&lost).await.unwrap();
    let clock = Clock::at(log.now_ms + 100 * u64::try_from(GRACE.as_millis()).unwrap());
    let (mut collector, registry) = gc_of(&log.store, &clock, None);
    collector.round(false).await.unwrap_err();
    assert_eq!(log.manifest().await.state.first_sequence, 0);
    assert_eq!(counter(&registry, "millpond_gc_trimmed_sequences"), 0);
    let (mut collector, _) = gc_of(&log.store, &clock, Some(GRACE));
    let done = collector.round(false).await.unwrap();
    assert_eq!((done.trimmed_sequences, done.segments), (8, 8));
    let [why] = &done.unreadable_cursors[..] else {
        panic!("{:?}", done.unreadable_cursors);
    };
    assert!(why.contains("default/cursor") && why.contains(&lost), "{why}");
    let done = collector.round(false).await.unwrap();
    assert_eq!(done.unreadable_cursors, [] as [String; 0]);
}

/// A consumer that began at the end of the log and has read nothing.
#[tokio::test]
async fn a_beginning_that_is_ahead_of_its_log_keeps_all_of_it() {
    let log = eight().await;
    acknowledge(&log, "default", STREAM, 8).await;
    log.reset("default", 9).await;
    let clock = Clock::at(log.now_ms);
    let done = gc(&log.store, &clock).round(false).await.unwrap();
    assert_eq!((done.trimmed_sequences, done.unreadable_cursors.len()), (0, 1));
}

/// A busy log grows between the reads of its manifest and of its cursors.
#[tokio::test]
async fn a_cursor_that_has_moved_on_with_its_log_does_not_keep_it() {
    let mut log = eight().await;
    let (store, network) = log.store.behind(Faults::default());
    let mut listed = network.hold(On::List, "consumers");
    let clock = Clock::at(log.now_ms);
    let mut gc = gc(&store, &clock);
    // A dry round reads each once.
    let round = tokio::spawn(async move { gc.round(true).await });
    listed.arrived().await;
    log.commit(&[1, 1]).await;
    acknowledge(&log, "default", STREAM, 10).await;
    listed.release();
    let done = round.await.unwrap().unwrap();
    assert_eq!(done.unreadable_cursors, [] as [String; 0]);
    assert_eq!(done.trimmed_sequences, 8);
}

/// A collector stands still between its list of the consumers and its reads of their cursors. Meanwhile a consumer is created, and another
/// reads what is committed after that.
#[tokio::test]
async fn what_is_committed_after_the_consumers_were_listed_stays() {
    let mut log = eight().await;
    acknowledge(&log, "old", STREAM, 8).await;
    let (store, network) = log.store.behind(Faults::default());
    let [mut looked, mut changes] = [0; 2].map(|_| network.hold(On::Get, "consumers/old/cursor"));
    let clock = Clock::at(100_000);
    let (mut stalled, registry) = gc_of(&store, &clock, None);
    let round = tokio::spawn(async move { stalled.round(false).await });
    looked.arrived().await;
    looked.release();
    changes.arrived().await;
    acknowledge(&log, "new", STREAM, 8).await;
    log.commit(&[1, 1]).await;
    acknowledge(&log, "old", STREAM, 10).await;
    changes.release();
    let done = round.await.unwrap().unwrap();
    assert_eq!((done.trimmed_sequences, done.unread_sequences), (8, 0));
    assert_eq!(log.manifest().await.state.first_sequence, 8);
    assert_eq!(counter(&registry, "millpond_gc_unread_sequences"), 0);
    // The next round knows both.
    acknowledge(&log, "new", STREAM, 9).await;
    let done = gc(&log.store, &clock).round(false).await.unwrap();
    assert_eq!(done.trimmed_sequences, 1);
}

/// Anybody with one consumer's credentials can write an unreadable cursor.
#[tokio::test(start_paused = true)]
async fn a_cursor_that_cannot_be_read_keeps_its_shard_and_stops_no_other() {
    let store = Store::memory();
    let buffer = Buffer::new(Uuid::from_u128(42), 2);
    cas::create_once(&store, layout::BUFFER, buffer).await.unwrap();
    let mut log = Log::new(store.clone()).await;
    log.now_ms = 1_000;
    log.commit(&[1; 8]).await;
    acknowledge(&log, "default", STREAM, 6).await;
    // The other shard has the same log and the same consumers, with cursors that can be read.
    let mut state = log.manifest().await.state;
    state.shard = 1;
    let swapped = cas::swap(&store, &layout::manifest(1), None, state).await;
    assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
    let cursor = cas::read::<Cursor>(&store, &layout::cursor(0, "default")).await;
    let mut cursor = cursor.unwrap().unwrap().state;
    cursor.shard = 1;
    for consumer in ["default", "hostile", "short"] {
        consumer.clone_into(&mut cursor.consumer);
        let swapped = cas::swap(&store, &layout::cursor(1, consumer), None, cursor.clone()).await;
        assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
    }

    // A cursor with four million empty skipped parts, in 7 MiB.
    let body = [13 << 3 | 2, 0].repeat(4_000_000);
    let version = 1_u16.to_le_bytes();
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&version), &body);
    let bomb = [&b"MPCR"[..], &version, &checksum.to_le_bytes(), &body].concat();
    let key = layout::cursor(0, "hostile");
    store.put_if_absent(&key, vec![bomb.into()]).await.unwrap();
    put(&store, &layout::cursor(0, "short")).await;
    let orphan = layout::segment(0, Ulid::from_parts(1, 7));
    put(&store, &orphan).await;

    let clock = Clock::at(100_000);
    let (mut gc, registry) = gc_of(&store, &clock, None);
    for dry in [true, false] {
        let done = gc.round(dry).await.unwrap();
        assert_eq!(
            (done.trimmed_sequences, done.unread_sequences),
            (6, 0),
            "{done:?}"
        );
        let [bomb, short] = &done.unreadable_cursors[..] else {
            panic!("{done:?}")
        };
        assert!(bomb.starts_with(&key) && bomb.contains("skipped parts"), "{bomb}");
        assert!(
            short.starts_with("shards/0000/consumers/short/cursor: "),
            "{short}"
        );
    }
    let first = async |shard| {
        let found = cas::read::<Manifest>(&store, &layout::manifest(shard)).await;
        found.unwrap().unwrap().state.first_sequence
    };
    assert_eq!((first(0).await, first(1).await), (0, 6));
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    assert!(text.contains("millpond_gc_unreadable_cursors 2\n"), "{text}");
    // No log refers to the orphan, so no consumer can need it.
    assert!(!keys(&store).await.contains(&orphan));

    // Retention applies to consumers with unreadable cursors too.
    let (mut keeping, _) = gc_of(&store, &clock, Some(Duration::from_secs(50)));
    let done = keeping.round(false).await.unwrap();
    assert_eq!(
        (done.trimmed_sequences, done.unread_sequences),
        (10, 10),
        "{done:?}"
    );

    // Without these cursors nothing blocks trimming, and the metric shows it.
    store.delete(&key).await.unwrap();
    store.delete(&layout::cursor(0, "short")).await.unwrap();
    let done = gc.round(false).await.unwrap();
    assert!(done.unreadable_cursors.is_empty(), "{done:?}");
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    assert!(text.contains("millpond_gc_unreadable_cursors 0\n"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn only_segments_that_every_consumer_has_acknowledged_are_deleted() {
    let log = eight().await;
    let clock = Clock::at(100_000);
    let (mut gc, registry) = gc_of(&log.store, &clock, None);
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

    // Nobody has read the log, so all of it may still be needed.
    assert_eq!(gc.round(false).await.unwrap(), Collected::default());
    assert_eq!(keys(&log.store).await, before);

    acknowledge(&log, "one", STREAM, 8).await;
    acknowledge(&log, "two", STREAM, 4).await;
    let before = (keys(&log.store).await, log.manifest().await.version);
    let would = gc.round(true).await.unwrap();
    assert_eq!((keys(&log.store).await, log.manifest().await.version), before);
    let done = gc.round(false).await.unwrap();
    assert_eq!(would, done);
    assert_eq!((done.trimmed_sequences, done.unread_sequences), (4, 0));
    // The log has lost one segment of the second page, so the page stays.
    assert_eq!((done.segments, done.pages), (4, 1));
    assert_eq!(log.manifest().await.state.first_sequence, 4);
    assert_eq!(garbage(&log.store).await, foreign_data(&foreign));
    assert_eq!(live(&log.store).await.len(), 5);
    assert_eq!(
        gc.round(false).await.unwrap(),
        Collected::default(),
        "nothing is left to do"
    );

    acknowledge(&log, "two", STREAM, 8).await;
    let steps = Mutex::new(Vec::new());
    let report = |step| steps.lock().unwrap().push(step);
    let done = gc.round_with_progress(false, &report).await.unwrap();
    assert_eq!((done.segments, done.pages), (4, 1));
    let mut expected: Vec<Step> = (0..=5).map(|deleted| step(0, deleted, 5)).collect();
    expected.insert(0, step(0, 0, 0));
    expected.push(step(1, 5, 5));
    assert_eq!(*steps.lock().unwrap(), expected);
    assert!(live(&log.store).await.is_empty());
    assert_eq!(garbage(&log.store).await, foreign_data(&foreign));
    let counted = [
        "trimmed_sequences",
        "unread_sequences",
        "deleted_segments",
        "deleted_pages",
        "failures",
    ]
    .map(|name| counter(&registry, &format!("millpond_gc_{name}")));
    assert_eq!(counted, [8, 0, 8, 2, 0]);
    let there = keys(&log.store).await;
    assert!(foreign.iter().all(|key| there.contains(key)), "{there:?}");
}

/// A step of a round over one shard.
fn step(shards_done: u32, deleted: u64, found: u64) -> Step {
    Step {
        shards_done,
        shards: 1,
        deleted,
        found,
    }
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
    let mut gc = gc(&log.store, &Clock::at(100_000));
    assert_eq!(gc.round(false).await.unwrap().trimmed_sequences, 0);
    acknowledge(&log, "one", OTHER, 4).await;
    assert_eq!(gc.round(false).await.unwrap().trimmed_sequences, 4);
    assert_eq!(garbage(&log.store).await, BTreeSet::new());
}

/// No consumer would ever read it.
#[tokio::test(start_paused = true)]
async fn a_stream_that_the_sink_does_not_take_keeps_nothing() {
    let mut log = Log::new(Store::memory()).await;
    log.commit_to("ignored", &[1; 3]).await;
    log.commit(&[1, 20]).await;
    log.commit_to("ignored", &[1]).await;
    let table = Table::open("table");
    let consumer = crate::support::start(&log.store, crate::support::config("a"), &table);
    table.has(21).await;
    consumer.stop().await.unwrap();
    let mut gc = gc(&log.store, &Clock::at(100_000));
    assert_eq!(gc.round(false).await.unwrap().trimmed_sequences, 6);
    assert_eq!(garbage(&log.store).await, BTreeSet::new());
}

/// The first batch of the stream is not even planned, because the only writer is busy with another stream, which
/// continues.
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
        ..crate::support::config("a")
    };
    let consumer = crate::support::start(&store, one_writer, &table);
    held.arrived().await;
    eventually("the stream goes on", async || {
        let cursor = log.cursor("default").await;
        cursor.is_some_and(|cursor| cursor.next(STREAM) == 1)
    })
    .await;
    let cursor = log.cursor("default").await.unwrap();
    assert_eq!(cursor.planned(OTHER).count(), 0);
    let mut gc = gc(&log.store, &Clock::at(100_000));
    assert_eq!(gc.round(false).await.unwrap().trimmed_sequences, 0);
    held.release();
    table.has(41).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
    assert_eq!(gc.round(false).await.unwrap().trimmed_sequences, 2);
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
    let mut gc = gc(&log.store, &clock);
    // At exactly the grace, a commit of the segment is still allowed.
    assert_eq!(gc.round(false).await.unwrap(), Collected::default());
    clock.set(15_001);
    let done = gc.round(false).await.unwrap();
    assert_eq!((done.segments, done.pages, done.bytes), (1, 1, 1));
    assert_eq!(garbage(&log.store).await, orphans[1].iter().cloned().collect());
    // A clock that goes back undoes nothing. A clock that is far ahead does not harm segments in the log.
    clock.set(0);
    assert_eq!(gc.round(false).await.unwrap(), Collected::default());
    assert_eq!(log.manifest().await.state.orphan_floor_ms, 5_001);
    clock.set(1 << 40);
    let done = gc.round(false).await.unwrap();
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
    let (mut gc, registry) = gc_of(&log.store, &clock, Some(Duration::from_secs(50)));
    let done = gc.round(false).await.unwrap();
    assert_eq!(
        (done.trimmed_sequences, done.unread_sequences, done.pages),
        (2, 1, 1)
    );
    clock.set(52_001);
    let done = gc.round(false).await.unwrap();
    assert_eq!(
        (done.trimmed_sequences, done.unread_sequences, done.pages),
        (2, 2, 1)
    );
    assert_eq!(live(&log.store).await.len(), 4);
    // Retention takes the last page and the tail. Producers can still commit to an empty log.
    clock.set(60_000);
    let done = gc.round(false).await.unwrap();
    assert_eq!(
        (done.trimmed_sequences, done.unread_sequences, done.segments),
        (3, 3, 3)
    );
    assert_eq!(garbage(&log.store).await, BTreeSet::new());
    log.now_ms = 60_000;
    log.commit(&[1; 3]).await;
    assert_eq!(gc.round(false).await.unwrap(), Collected::default());
    assert_eq!(log.manifest().await.state.first_sequence, 7);
    assert_eq!(counter(&registry, "millpond_gc_unread_sequences"), 6);
}

/// The segment waits for its commit longer than the grace, and is deleted meanwhile.
#[tokio::test(start_paused = true)]
async fn a_stalled_producer_uploads_again_what_was_deleted() {
    let store = Store::memory();
    let (network, controls) = store.behind(Faults::default());
    let clock = Clock::at(1_000_000);
    let config = ProducerConfig {
        segment_raw_bytes: 1,
        block_bytes: 1_024,
        memory_limit: 1 << 20,
        encoders: 1,
        tail_max: 2,
        ..ProducerConfig::default()
    };
    let mut registry = Registry::default();
    let producer = Producer::start_in(clock.clone(), network, config, &mut registry)
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
    // The third segment is committed with a page, which is deleted as well.
    for round in 0..3 {
        let mut held = controls.hold(On::Update, "manifest");
        let collect = async {
            held.arrived().await;
            clock.set(1_100_000 + round * 100_000);
            let done = gc(&store, &clock).round(false).await.unwrap();
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
        let error = gc(&log.store, &Clock::at(100_000))
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
    let done = gc(&log.store, &Clock::at(100_000)).round(false).await.unwrap();
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
        let mut dies = gc(&store, &clock);
        let task = tokio::spawn(async move { dies.round(false).await });
        held.arrived().await;
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
        assert_eq!(log.manifest().await.state.first_sequence, 5);
        assert!(!garbage(&log.store).await.is_empty());
    }
    let done = gc(&log.store, &clock).round(false).await.unwrap();
    assert_eq!(done.trimmed_sequences, 0);
    assert_eq!(garbage(&log.store).await, BTreeSet::new());
}

/// A page is missing because another garbage collector rightly deleted it.
#[tokio::test(start_paused = true)]
async fn a_stalled_collector_is_not_misled_by_another() {
    let log = eight().await;
    put(&log.store, &layout::segment(0, Ulid::from_parts(500, 1))).await;
    acknowledge(&log, "one", STREAM, 1).await;
    let clock = Clock::at(100_000);
    let (store, network) = log.store.behind(Faults::default());
    let mut held = network.hold(On::Get, &log.page_key(0).await);
    let mut stalled = gc(&store, &clock);
    let other = async {
        held.arrived().await;
        acknowledge(&log, "one", STREAM, 4).await;
        gc(&log.store, &clock).round(false).await.unwrap();
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
        let mut gc = gc(&store, &clock);
        // Whichever attempt landed, the collector deletes nothing before it.
        while gc.round(false).await.is_err() {}
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
                let mut gc = gc(&store, &clock);
                while let Err(error) = gc.round(false).await {
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
        gc(&log.store, &clock).round(false).await.unwrap();
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
    let done = gc(&log.store, &Clock::at(100_000)).round(false).await.unwrap();
    let [unreadable] = &done.unreadable_cursors[..] else {
        panic!("{done:?}")
    };
    assert!(unreadable.contains("consumers/two/cursor"), "{unreadable}");
    assert_eq!(keys(&log.store).await, before);
}

#[tokio::test(start_paused = true)]
async fn a_collection_cuts_no_batch_of_a_stream_that_comes_late() {
    let mut log = Log::new(Store::memory()).await;
    log.commit_to(STREAM, &[1, 1, 1]).await;
    log.commit_to(OTHER, &[1]).await;
    log.commit_to(STREAM, &[1, 1]).await;
    let takes_over = |streams: &str| Config {
        streams: vec![streams.parse().unwrap()],
        take_over: true,
        lease: Duration::from_secs(5),
        ..config("a")
    };
    let consumer = start(&log.store, takes_over(OTHER), &Table::open("table"));
    acknowledged_in(&log, OTHER, 6).await;
    consumer.crash().await;

    let consumer = start(&log.store, takes_over("*"), &Table::shut("table"));
    eventually("the late stream is planned", async || {
        let cursor = log.cursor("default").await.unwrap();
        cursor.planned(STREAM).any(|plan| plan.high == 5)
    })
    .await;
    // As a collection that read the cursor before would do.
    log.change(|log| log.collect(2, 0)).await;
    consumer.crash().await;

    let table = Table::open("table");
    let consumer = start(&log.store, takes_over("*"), &table);
    acknowledged_in(&log, STREAM, 6).await;
    consumer.stop().await.unwrap();
    let kept = [2, 4, 5].map(|row| (format!("row-{row}"), 1));
    assert_eq!(table.rows(), kept.into());
}
