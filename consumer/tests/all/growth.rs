//! A buffer that grows while its consumers run, start, or are away: they miss nothing of the new shards.

use crate::support::{Log, Table, config, eventually, start};
use millpond_consumer::gc::{GarbageCollector, GcConfig};
use millpond_consumer::{Config, Start};
use millpond_manifest::cas::{self, Swap};
use millpond_manifest::{Buffer, Cursor, Manifest, layout};
use millpond_storage::{Cas, Store};
use prometheus_client::registry::Registry;
use std::time::Duration;

fn latest() -> Config {
    Config {
        start: Start::Latest,
        growth_interval: Duration::from_secs(1),
        ..config("a")
    }
}

async fn log_of_three() -> Log {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[1, 1, 1]).await;
    log
}

/// The object `buffer` with this number of shards, as if an operator had crashed right after its swap.
pub(crate) async fn name_shards(store: &Store, shards: u32) {
    let found = cas::read::<Buffer>(store, layout::BUFFER).await.unwrap().unwrap();
    let next = found.state.grow(shards, 7).unwrap().unwrap();
    let swapped = cas::swap(store, layout::BUFFER, Some(&found.version), next).await;
    assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
}

/// Writes the log of the first shard into another one.
pub(crate) async fn copy_to(log: &Log, shard: u32) {
    let mut state = log.manifest().await.state;
    for entry in &state.tail {
        let key = layout::segment(0, entry.segment);
        let found = log.store.get(&key).await.unwrap().unwrap();
        let key = layout::segment(shard, entry.segment);
        log.store.put_if_absent(&key, vec![found.bytes]).await.unwrap();
    }
    state.shard = shard;
    let swapped = cas::swap(&log.store, &layout::manifest(shard), None, state).await;
    assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
}

async fn has_cursor(store: &Store, shard: u32, consumer: &str) -> bool {
    let found = cas::read::<Cursor>(store, &layout::cursor(shard, consumer)).await;
    found.unwrap().is_some_and(|found| found.state.opening != 0)
}

/// Waits until the table has this number of different rows.
async fn arrived(table: &Table, rows: usize) {
    eventually("every row of the new shard is there", async || {
        table.rows().len() >= rows
    })
    .await;
}

fn thrice_once() -> std::collections::BTreeMap<String, u64> {
    (0..3).map(|row| (format!("row-{row}"), 1)).collect()
}

/// The consumer is younger than the growth's list of consumers: nobody has begun it in the new shard.
#[tokio::test(start_paused = true)]
async fn a_running_consumer_reads_a_new_shard_from_its_beginning() {
    let log = log_of_three().await;
    let table = Table::open("table");
    let consumer = start(&log.store, latest(), &table);
    eventually("it began", async || has_cursor(&log.store, 0, "default").await).await;
    copy_to(&log, 1).await;
    name_shards(&log.store, 2).await;
    arrived(&table, 3).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), thrice_once());
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_was_away_reads_a_new_shard_from_its_beginning() {
    let log = log_of_three().await;
    let table = Table::open("table");
    let consumer = start(&log.store, latest(), &table);
    eventually("it began", async || has_cursor(&log.store, 0, "default").await).await;
    consumer.stop().await.unwrap();
    copy_to(&log, 1).await;
    name_shards(&log.store, 2).await;
    let consumer = start(&log.store, latest(), &table);
    arrived(&table, 3).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), thrice_once());
}

#[tokio::test(start_paused = true)]
async fn a_first_start_after_the_growth_begins_where_it_is_told_to_in_every_shard() {
    let log = log_of_three().await;
    copy_to(&log, 1).await;
    name_shards(&log.store, 2).await;
    let table = Table::open("table");
    let consumer = start(&log.store, latest(), &table);
    for shard in [0, 1] {
        eventually("it began", async || {
            has_cursor(&log.store, shard, "default").await
        })
        .await;
        let cursor = cas::read::<Cursor>(&log.store, &layout::cursor(shard, "default")).await;
        let cursor = cursor.unwrap().unwrap().state;
        assert_eq!((cursor.start, cursor.shards), (3, 2));
    }
    consumer.stop().await.unwrap();
    assert!(table.rows().is_empty());
}

/// A removed consumer that begins again is a new one.
#[tokio::test(start_paused = true)]
async fn a_consumer_that_was_removed_begins_again_with_the_shards_of_its_new_start() {
    let log = log_of_three().await;
    let table = Table::open("table");
    let consumer = start(&log.store, latest(), &table);
    eventually("it began", async || has_cursor(&log.store, 0, "default").await).await;
    consumer.stop().await.unwrap();
    log.remove("default").await;
    copy_to(&log, 1).await;
    name_shards(&log.store, 2).await;
    let consumer = start(&log.store, latest(), &table);
    eventually("it began", async || has_cursor(&log.store, 1, "default").await).await;
    consumer.stop().await.unwrap();
    assert!(table.rows().is_empty(), "{:?}", table.rows());
}

/// Neither a damaged object nor one of another buffer ends a consumer or makes it read less.
#[tokio::test(start_paused = true)]
async fn a_look_that_fails_is_repeated() {
    let log = log_of_three().await;
    let table = Table::open("table");
    let consumer = start(&log.store, latest(), &table);
    eventually("it began", async || has_cursor(&log.store, 0, "default").await).await;
    let found = cas::read::<Buffer>(&log.store, layout::BUFFER)
        .await
        .unwrap()
        .unwrap();
    let other = Buffer::new(uuid::Uuid::from_u128(43), 5);
    let mut version = found.version;
    for wrong in [b"damaged".to_vec(), cas::Object::encode(&other).to_vec()] {
        let Cas::Committed(new) = log
            .store
            .compare_and_set(layout::BUFFER, Some(&version), wrong.into())
            .await
        else {
            panic!("an undisturbed swap fails")
        };
        version = new;
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(!has_cursor(&log.store, 1, "default").await);
    }
    let grown = found.state.grow(2, 7).unwrap().unwrap();
    let swapped = cas::swap(&log.store, layout::BUFFER, Some(&version), grown).await;
    assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
    copy_to(&log, 1).await;
    arrived(&table, 3).await;
    consumer.stop().await.unwrap();
}

/// Every other consumer has read the new shard. One has not noticed it yet, and no growth has begun it there.
#[tokio::test(start_paused = true)]
async fn garbage_collection_keeps_a_new_shard_for_a_consumer_without_a_cursor_in_it() {
    let log = log_of_three().await;
    let table = Table::open("table");
    let late = start(&log.store, latest(), &table);
    eventually("it began", async || has_cursor(&log.store, 0, "default").await).await;
    late.stop().await.unwrap();
    copy_to(&log, 1).await;
    name_shards(&log.store, 2).await;
    let quick = Config {
        consumer: "quick".into(),
        ..config("b")
    };
    let other = Table::open("other");
    let quick = start(&log.store, quick, &other);
    arrived(&other, 3).await;
    eventually("it is acknowledged", async || {
        let found = cas::read::<Cursor>(&log.store, &layout::cursor(1, "quick")).await;
        found.unwrap().is_some_and(|found| found.state.needs() == 3)
    })
    .await;
    quick.stop().await.unwrap();
    let first = async || {
        let found = cas::read::<Manifest>(&log.store, &layout::manifest(1)).await;
        found.unwrap().unwrap().state.first_sequence
    };
    let settings = GcConfig {
        interval: Duration::from_secs(1),
        grace: Duration::from_secs(60),
        max_age: None,
    };
    let mut gc = GarbageCollector::new(log.store.clone(), settings, &mut Registry::default());
    gc.round(false).await.unwrap();
    assert_eq!(first().await, 0);
    let late = start(&log.store, latest(), &table);
    arrived(&table, 3).await;
    late.stop().await.unwrap();
    assert_eq!(table.rows(), thrice_once());
    gc.round(false).await.unwrap();
    assert_eq!(first().await, 3);
}
