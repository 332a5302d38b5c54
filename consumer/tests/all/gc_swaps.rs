//! The cursors that a garbage collector reads again after it has lost a swap: those that have changed.

use crate::gc::{Clock, eight, gc, gc_of};
use crate::gc_needs::{cursor_at, put_cursor};
use crate::growth::{copy_to, name_shards};
use crate::support::Log;
use crate::support::content_tags::ContentTags;
use millpond_consumer::gc::{CollectError, Collected};
use millpond_manifest::cas::{self, Object, Swap};
use millpond_manifest::{Cursor, Manifest, layout};
use millpond_storage::unreliable::{Faults, HeldRequest, On, S3Latency};
use millpond_storage::{BufferUrl, Cas, Store, StoreOptions};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::sleep;

/// A round that stands still before its first swap of a shard's manifest.
struct Swapping {
    round: JoinHandle<Result<Collected, CollectError>>,
    swap: HeldRequest,
    /// The collector's.
    store: Store,
}

impl Swapping {
    async fn begin(log: &Log, shard: u32) -> Swapping {
        Self::begin_with(log, shard, None).await
    }

    async fn begin_with(log: &Log, shard: u32, max_age: Option<Duration>) -> Swapping {
        let (store, network) = log.store.behind(Faults::default());
        let mut swap = network.hold(On::Update, &layout::manifest(shard));
        let (mut collector, _) = gc_of(&store, &Clock::at(100_000), max_age);
        let round = tokio::spawn(async move { collector.round(false).await });
        swap.arrived().await;
        Swapping { round, swap, store }
    }

    /// Lets it swap, after somebody else has swapped the manifest. Returns the round and the number of objects that it reads after that.
    async fn lose(self, log: &Log, shard: u32) -> (Collected, u64) {
        let key = layout::manifest(shard);
        let found = cas::read::<Manifest>(&log.store, &key).await.unwrap().unwrap();
        let next = found.state.stamped(7);
        let swapped = cas::swap(&log.store, &key, Some(&found.version), next).await;
        assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
        self.go_on().await
    }

    async fn go_on(self) -> (Collected, u64) {
        let before = self.store.requests().get;
        self.swap.release();
        let done = self.round.await.unwrap().unwrap();
        (done, self.store.requests().get - before)
    }
}

/// A log of eight segments without pages, which a round reads too.
async fn without_pages(store: Store) -> Log {
    let mut log = Log::new(store).await;
    log.now_ms = 1_000;
    log.commit(&[1; 8]).await;
    log
}

/// Leaves the tombstones of consumers.
async fn remove_many(store: &Store, shard: u32, consumers: u32) {
    for n in 0..consumers {
        put_cursor(store, cursor_at(shard, &format!("removed-{n}"), 0).remove()).await;
    }
}

/// The log of [`without_pages`] in two shards, with a consumer that has read it, and tombstones.
async fn two_shards() -> Log {
    let log = without_pages(Store::memory()).await;
    name_shards(&log.store, 2).await;
    copy_to(&log, 1).await;
    for shard in [0, 1] {
        put_cursor(&log.store, cursor_at(shard, "default", 8)).await;
        remove_many(&log.store, shard, 5).await;
    }
    log
}

/// The manifest, which every attempt reads.
const MANIFEST: u64 = 1;

/// Reading every cursor takes longer than the time between two commits. Some consumers take in each commit.
#[tokio::test(start_paused = true)]
async fn a_busy_shard_with_many_cursors_is_trimmed() {
    let mut lost = 0;
    for (removed, busy, between_ms) in [(500, 0, 200), (500, 1, 500), (1_000, 1, 1_000), (100, 10, 500)] {
        let log = eight().await;
        put_cursor(&log.store, cursor_at(0, "default", 8)).await;
        for n in 0..busy {
            put_cursor(&log.store, cursor_at(0, &format!("busy-{n}"), 8)).await;
        }
        remove_many(&log.store, 0, removed).await;
        let (store, _network) = log.store.behind(Faults {
            latency: Some(S3Latency::default()),
            ..Faults::default()
        });
        let commits = async {
            loop {
                sleep(Duration::from_millis(between_ms)).await;
                // As good as a commit to the collector, whose next swap fails.
                log.change(Clone::clone).await;
                for n in 0..busy {
                    log.change_cursor(&format!("busy-{n}"), Clone::clone).await;
                }
            }
        };
        let mut collector = gc(&store, &Clock::at(5_000));
        tokio::select! {
            done = collector.round(false) => {
                assert_eq!(done.unwrap().trimmed_sequences, 8, "{removed} {busy} {between_ms}");
            }
            () = commits => {}
        }
        lost += store.requests().cas_mismatch.min(1);
    }
    // In the last case the first attempt may be early enough.
    assert!(lost >= 3, "{lost} rounds lost a swap");
}

/// The store numbers the versions, or they follow from the content.
#[tokio::test]
async fn only_cursors_that_have_changed_are_read_again() {
    for store in [Store::memory(), Store::over(Arc::new(ContentTags::default()), "")] {
        let log = without_pages(store).await;
        for consumer in ["default", "other"] {
            put_cursor(&log.store, cursor_at(0, consumer, 8)).await;
        }
        remove_many(&log.store, 0, 5).await;
        let (done, reads) = Swapping::begin(&log, 0).await.lose(&log, 0).await;
        assert_eq!((done.trimmed_sequences, reads), (8, MANIFEST));
    }
}

/// An operator moves a consumer back before the swap is lost.
#[tokio::test]
async fn a_cursor_that_has_changed_is_read_again() {
    let log = without_pages(Store::memory()).await;
    for consumer in ["default", "other"] {
        put_cursor(&log.store, cursor_at(0, consumer, 8)).await;
    }
    let round = Swapping::begin(&log, 0).await;
    log.reset("default", 2).await;
    let (done, reads) = round.lose(&log, 0).await;
    assert_eq!((done.trimmed_sequences, reads), (2, MANIFEST + 1));
}

/// Consumers begin, one for the first time and one again after its removal.
#[tokio::test]
async fn a_consumer_that_begins_before_a_swap_is_lost_keeps_what_it_needs() {
    for is_new in [true, false] {
        let log = without_pages(Store::memory()).await;
        put_cursor(&log.store, cursor_at(0, "default", 8)).await;
        if !is_new {
            put_cursor(&log.store, cursor_at(0, "late", 0).remove()).await;
        }
        let round = Swapping::begin(&log, 0).await;
        put_cursor(&log.store, cursor_at(0, "late", 3)).await;
        let (done, reads) = round.lose(&log, 0).await;
        assert_eq!((done.trimmed_sequences, reads), (3, MANIFEST + 1), "{is_new}");
    }
}

/// A removed consumer begins again in the first shard, and has only its tombstone in the second.
#[tokio::test]
async fn a_consumer_that_begins_in_the_first_shard_before_a_swap_is_lost_keeps_the_second() {
    let log = two_shards().await;
    let (done, reads) = Swapping::begin(&log, 1).await.lose(&log, 1).await;
    assert_eq!((done.trimmed_sequences, reads), (16, MANIFEST));

    let log = two_shards().await;
    let round = Swapping::begin(&log, 1).await;
    put_cursor(&log.store, cursor_at(0, "removed-3", 8)).await;
    let (done, reads) = round.lose(&log, 1).await;
    assert_eq!((done.trimmed_sequences, reads), (8, MANIFEST + 1));
}

/// Credentials of one consumer suffice to write many of them, and retention must not wait for that.
#[tokio::test]
async fn damaged_cursors_are_not_read_again() {
    let log = without_pages(Store::memory()).await;
    for n in 0..5 {
        let key = layout::cursor(0, &format!("damaged-{n}"));
        log.store.put_if_absent(&key, vec!["x".into()]).await.unwrap();
    }
    let max_age = Some(Duration::from_secs(20));
    let round = Swapping::begin_with(&log, 0, max_age).await;
    let (done, reads) = round.lose(&log, 0).await;
    assert_eq!((done.trimmed_sequences, done.unreadable_cursors.len()), (8, 5));
    assert_eq!(reads, MANIFEST);
}

/// A cursor with many streams, which is not read beside others: as it is listed, or as it is when it is read.
#[tokio::test]
async fn a_large_cursor_counts() {
    let large = |next| {
        let mut cursor = cursor_at(0, "large", next);
        for n in 0..1_000 {
            cursor.acknowledge(&format!("events.{n:090}"), next).unwrap();
        }
        assert!(cursor.encode().len() > 80_000);
        cursor
    };
    let log = without_pages(Store::memory()).await;
    put_cursor(&log.store, cursor_at(0, "default", 8)).await;
    put_cursor(&log.store, large(3)).await;
    let done = gc(&log.store, &Clock::at(100_000)).round(false).await.unwrap();
    assert_eq!(done.trimmed_sequences, 3);

    let log = without_pages(Store::memory()).await;
    put_cursor(&log.store, cursor_at(0, "default", 8)).await;
    put_cursor(&log.store, cursor_at(0, "large", 7)).await;
    let (store, network) = log.store.behind(Faults::default());
    let mut reads = network.hold(On::Get, "large/cursor");
    let mut collector = gc(&store, &Clock::at(100_000));
    // A dry round reads each once.
    let round = tokio::spawn(async move { collector.round(true).await });
    reads.arrived().await;
    put_cursor(&log.store, large(2)).await;
    reads.release();
    assert_eq!(round.await.unwrap().unwrap().trimmed_sequences, 2);
}

/// Somebody restores an older manifest before the swap is lost. Meanwhile the consumer has read more than that has, and may need what the
/// right manifest refers to.
#[tokio::test]
async fn a_manifest_that_is_restored_between_two_swaps_deletes_nothing() {
    // The cursor had read more than the restored log has before the first swap, or moves after it.
    for (at_first, reads) in [(7, 2 * MANIFEST), (3, 2 * MANIFEST + 1)] {
        let mut log = Log::new(Store::memory()).await;
        log.now_ms = 1_000;
        log.commit(&[1; 5]).await;
        let older = log.manifest().await.state;
        log.commit(&[1; 3]).await;
        put_cursor(&log.store, cursor_at(0, "default", at_first)).await;
        remove_many(&log.store, 0, 5).await;
        let round = Swapping::begin(&log, 0).await;
        if at_first < 7 {
            put_cursor(&log.store, cursor_at(0, "default", 7)).await;
        }
        let right = log.manifest().await;
        let restored = older.stamped(77);
        let swapped = cas::swap(&log.store, &layout::manifest(0), Some(&right.version), restored).await;
        assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
        let (done, read) = round.go_on().await;
        assert_eq!(
            (done.segments, done.unreadable_cursors.len(), read),
            (0, 1, reads),
            "{at_first}"
        );
        assert_eq!(log.store.list(&layout::segments(0)).await.unwrap().len(), 8);
    }
}

/// A cache answers that the cursor is not there, or an operator deletes it at that moment.
#[tokio::test]
async fn a_listed_cursor_that_a_read_does_not_find_keeps_the_log() {
    let log = without_pages(Store::memory()).await;
    let key = layout::cursor(0, "default");
    for consumer in ["default", "other"] {
        put_cursor(&log.store, cursor_at(0, consumer, 8)).await;
    }
    let (store, network) = log.store.behind(Faults::default());
    let mut read = network.hold(On::Get, &key);
    let clock = Clock::at(5_000);
    let mut collector = gc(&store, &clock);
    let round = tokio::spawn(async move { collector.round(false).await });
    read.arrived().await;
    log.store.delete(&key).await.unwrap();
    read.release();
    let done = round.await.unwrap().unwrap();
    assert_eq!((done.trimmed_sequences, done.unreadable_cursors.len()), (0, 1));
    // The next list does not have it.
    assert_eq!(
        gc(&log.store, &clock)
            .round(false)
            .await
            .unwrap()
            .trimmed_sequences,
        8
    );
}

/// A cursor changes between the list and its read, and somebody restores it: the list shows the same version again, and the cursor that
/// was read had another one.
#[tokio::test]
async fn a_cursor_that_is_restored_after_its_read_is_read_again() {
    let log = without_pages(Store::over(Arc::new(ContentTags::default()), "")).await;
    let key = layout::cursor(0, "default");
    let older = cursor_at(0, "default", 2).stamped(9);
    let swapped = cas::swap(&log.store, &key, None, older.clone()).await;
    assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
    let (store, network) = log.store.behind(Faults::default());
    let [mut looks, mut reads] = [0; 2].map(|_| network.hold(On::Get, &key));
    let mut swap = network.hold(On::Update, &layout::manifest(0));
    let mut collector = gc(&store, &Clock::at(100_000));
    let round = tokio::spawn(async move { collector.round(false).await });
    looks.arrived().await;
    looks.release();
    reads.arrived().await;
    put_cursor(&log.store, cursor_at(0, "default", 8)).await;
    reads.release();
    swap.arrived().await;
    let newer = cas::read::<Cursor>(&log.store, &key).await.unwrap().unwrap();
    let restored = log
        .store
        .compare_and_set(&key, Some(&newer.version), older.encode())
        .await;
    assert!(matches!(restored, Cas::Committed(_)), "{restored:?}");
    let (done, reads) = Swapping { round, swap, store }.lose(&log, 0).await;
    assert_eq!((done.trimmed_sequences, reads), (2, MANIFEST + 1));
}

/// Files: their lists show no versions.
#[tokio::test]
async fn a_store_whose_lists_show_no_versions_has_every_cursor_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let url = BufferUrl::parse(&format!("file://{}", directory.path().display())).unwrap();
    let store = Store::open(&url, &StoreOptions::default()).await.unwrap();
    let log = without_pages(store).await;
    for consumer in ["default", "other"] {
        put_cursor(&log.store, cursor_at(0, consumer, 8)).await;
    }
    remove_many(&log.store, 0, 5).await;
    let round = Swapping::begin(&log, 0).await;
    log.reset("default", 2).await;
    let (done, reads) = round.lose(&log, 0).await;
    assert_eq!((done.trimmed_sequences, reads), (2, MANIFEST + 7));
}
