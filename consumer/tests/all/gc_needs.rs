//! What a garbage collector keeps for the consumers of a shard when their cursors are not all there, not readable or in the wrong place.

use crate::gc::{Clock, eight, gc, gc_of, policy};
use crate::growth::{copy_to, name_shards};
use crate::support::{Log, STREAM, Table, config, eventually, put, start};
use millpond_consumer::gc::CollectError;
use millpond_manifest::cas::{self, Object, Swap};
use millpond_manifest::cursor::Seen;
use millpond_manifest::{Cursor, FormatError, Manifest, ReadError, layout};
use millpond_storage::Store;
use millpond_storage::unreliable::{Fault, Faults, On};
use std::time::Duration;
use tokio::time::sleep;
use uuid::Uuid;

async fn cursor(store: &Store, shard: u32, consumer: &str) -> Option<Cursor> {
    let found = cas::read::<Cursor>(store, &layout::cursor(shard, consumer)).await;
    found.unwrap().map(|found| found.state)
}

/// A cursor that has acknowledged everything before `next`.
pub(crate) fn cursor_at(shard: u32, consumer: &str, next: u64) -> Cursor {
    let mut cursor = Cursor::new(Uuid::from_u128(42), shard, consumer, 0, policy());
    cursor.acknowledge(STREAM, next).unwrap();
    cursor
}

pub(crate) async fn put_cursor(store: &Store, cursor: Cursor) {
    let key = layout::cursor(cursor.shard, &cursor.consumer);
    let found = cas::read::<Cursor>(store, &key).await.unwrap();
    let version = found.map(|found| found.version);
    let swapped = cas::swap(store, &key, version.as_ref(), cursor.stamped(9)).await;
    assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
}

/// Kills a consumer's process after it has begun in the first shard and before it begins in the second. Then records are committed to the
/// second shard, another consumer reads them, and garbage is collected. Returns the beginning of the second shard's log after that, and the
/// number of rows that the consumer has once it has started again.
async fn begin_and_die(is_removed_before: bool) -> (u64, u64) {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[1, 1, 1]).await;
    name_shards(&log.store, 2).await;
    let table = Table::open("table");
    let opened = async |shard| {
        let found = cursor(&log.store, shard, "default").await;
        found.is_some_and(|found| !found.is_removed() && found.opening != 0)
    };
    if is_removed_before {
        let consumer = start(&log.store, config("a"), &table);
        for shard in [0, 1] {
            eventually("it has begun", async || opened(shard).await).await;
        }
        consumer.stop().await.unwrap();
        log.remove_from(1, "default").await;
        log.remove_from(0, "default").await;
        log.store.delete(&layout::members("default")).await.unwrap();
    }
    let (store, network) = log.store.behind(Faults::default());
    let on = if is_removed_before { On::Update } else { On::Create };
    let mut held = network.hold(on, "shards/0001/consumers/default/cursor");
    let consumer = start(&store, config("a"), &table);
    eventually("it has begun in the first shard", async || opened(0).await).await;
    held.arrived().await;
    consumer.crash().await;
    drop(held);
    sleep(Duration::from_secs(1)).await;
    assert!(!opened(1).await);

    copy_to(&log, 1).await;
    for shard in [0, 1] {
        put_cursor(&log.store, cursor_at(shard, "quick", 3)).await;
    }
    gc(&log.store, &Clock::at(100_000)).round(false).await.unwrap();
    let found = cas::read::<Manifest>(&log.store, &layout::manifest(1)).await;
    let first = found.unwrap().unwrap().state.first_sequence;

    sleep(Duration::from_secs(120)).await;
    let again = start(&log.store, config("a"), &table);
    eventually("it has read the second shard", async || {
        let found = cursor(&log.store, 1, "default").await;
        found.is_some_and(|found| found.next(STREAM) == 3)
    })
    .await;
    again.stop().await.unwrap();
    (first, table.rows().values().sum())
}

#[tokio::test(start_paused = true)]
async fn a_new_consumer_gets_what_came_after_its_first_cursor() {
    assert_eq!(begin_and_die(false).await, (0, 6));
}

/// Its old tombstone in the second shard says nothing about what it needs now.
#[tokio::test(start_paused = true)]
async fn a_consumer_that_begins_again_gets_what_came_after_its_first_cursor() {
    assert_eq!(begin_and_die(true).await, (0, 6));
}

/// The error of a round.
async fn refusal(log: &Log) -> CollectError {
    let round = gc(&log.store, &Clock::at(100_000)).round(false).await;
    round.unwrap_err()
}

/// The consumer of this cursor refuses it, and somebody may put the right one back.
#[tokio::test]
async fn a_cursor_of_another_buffer_trims_nothing() {
    let log = eight().await;
    let mut other = cursor_at(0, "default", 8);
    other.buffer_id = Uuid::from_u128(43);
    put_cursor(&log.store, other).await;
    let done = gc(&log.store, &Clock::at(100_000)).round(false).await.unwrap();
    assert_eq!((done.trimmed_sequences, done.unreadable_cursors.len()), (0, 1));
}

/// Somebody restores the cursor of one consumer at the key of another, or that of another shard.
#[tokio::test]
async fn a_cursor_at_the_key_of_another_trims_nothing() {
    for misplaced in [cursor_at(0, "other", 8), cursor_at(1, "default", 8)] {
        let log = eight().await;
        let key = layout::cursor(0, "default");
        let bytes = misplaced.stamped(9).encode();
        log.store.put_if_absent(&key, vec![bytes]).await.unwrap();
        let done = gc(&log.store, &Clock::at(100_000)).round(false).await.unwrap();
        assert_eq!((done.trimmed_sequences, done.unreadable_cursors.len()), (0, 1));
    }
}

/// Somebody restores an older manifest of the first shard as that of the second, whose consumer has read less than its beginning.
#[tokio::test]
async fn a_manifest_of_another_shard_deletes_nothing() {
    let mut log = Log::new(Store::memory()).await;
    log.now_ms = 1_000;
    log.commit(&[1; 4]).await;
    name_shards(&log.store, 2).await;
    log.change(|log| log.collect(2, 0)).await;
    let mut older = log.manifest().await.state;
    log.commit(&[1; 4]).await;
    put_cursor(&log.store, cursor_at(0, "default", 2)).await;
    put_cursor(&log.store, cursor_at(1, "default", 1)).await;
    older.stamp.nonce = 77;
    let swapped = cas::swap(&log.store, &layout::manifest(1), None, older).await;
    assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
    let error = refusal(&log).await;
    assert!(
        matches!(&error, CollectError::Read(ReadError::Format { wrong: FormatError::Misplaced { key, .. }, .. }) if *key == layout::manifest(0)),
        "{error}"
    );
    for entry in log.manifest().await.state.tail {
        let key = layout::segment(0, entry.segment);
        assert!(log.store.get(&key).await.unwrap().is_some(), "{key}");
    }
}

/// The other manifest begins after what the consumer has seen.
#[tokio::test]
async fn a_manifest_of_another_buffer_deletes_nothing() {
    let mut log = Log::new(Store::memory()).await;
    log.now_ms = 1_000;
    log.commit(&[1; 8]).await;
    let tail = log.manifest().await.state.tail;
    let mut read = cursor_at(0, "default", 3);
    read.see(Seen {
        sequence: 4,
        segment: tail[4].segment,
    });
    put_cursor(&log.store, read).await;
    let mut other = Manifest::new(Uuid::from_u128(43), 0);
    (other.first_sequence, other.next_sequence) = (100, 100);
    put(&log, &other.stamped(5)).await;
    let error = refusal(&log).await;
    assert!(
        matches!(&error, CollectError::OtherBuffer(found) if *found == layout::manifest(0)),
        "{error}"
    );
    assert_eq!(log.store.list(&layout::segments(0)).await.unwrap().len(), 8);
}

#[tokio::test]
async fn a_page_is_read_once_with_several_shards_too() {
    let mut log = Log::new(Store::memory()).await;
    log.now_ms = 1_000;
    log.commit(&[1; 2]).await;
    name_shards(&log.store, 2).await;
    copy_to(&log, 1).await;
    log.commit(&[1; 38]).await;
    log.seal(4).await;
    for shard in [0, 1] {
        put_cursor(&log.store, cursor_at(shard, "default", 0)).await;
    }
    let mut collector = gc(&log.store, &Clock::at(100_000));
    let mut reads = Vec::new();
    for _ in 0..3 {
        let before = log.store.requests().get;
        collector.round(false).await.unwrap();
        reads.push(log.store.requests().get - before);
    }
    let pages = log.manifest().await.state.pages.len() as u64;
    assert!(pages >= 9);
    assert_eq!((reads[1] + pages, reads[2]), (reads[0], reads[1]), "{reads:?}");
}

/// A lifecycle rule has archived the tombstone of a consumer that was removed long ago, or its key for encryption is gone.
#[tokio::test]
async fn a_denied_cursor_stops_no_retention() {
    let log = eight().await;
    put_cursor(&log.store, cursor_at(0, "default", 8)).await;
    put_cursor(&log.store, cursor_at(0, "old", 0).remove()).await;
    let (store, network) = log.store.behind(Faults::default());
    for _ in 0..2 {
        network.once(On::Get, "old/cursor", Fault::Denied);
    }
    let (mut collector, _) = gc_of(&store, &Clock::at(100_000), Some(Duration::from_secs(20)));
    let done = collector.round(false).await.unwrap();
    assert_eq!((done.trimmed_sequences, done.unreadable_cursors.len()), (8, 1));
    assert_eq!(network.unused(), 0);
}
