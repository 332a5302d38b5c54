//! A shard with a damaged object, beside one that can go on.

use crate::support::{Log, Running, Table, config, eventually, start};
use bytes::Bytes;
use millpond_consumer::ConsumeError;
use millpond_manifest::cas::{self, Object, Swap};
use millpond_manifest::{Buffer, Manifest, layout};
use millpond_storage::Store;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

const MINUTE: Duration = Duration::from_secs(60);

/// A buffer of two shards. The second one has a manifest without segments.
async fn two_shards() -> Log {
    let log = Log::new(Store::memory()).await;
    let found = cas::read::<Buffer>(&log.store, layout::BUFFER)
        .await
        .unwrap()
        .unwrap();
    let grown = found.state.grow(2, 7).unwrap().unwrap();
    let swapped = cas::swap(&log.store, layout::BUFFER, Some(&found.version), grown).await;
    assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
    let empty = Manifest::new(log.manifest().await.state.buffer_id, 1).stamped(1);
    replace(&log, 1, empty.encode()).await;
    log
}

async fn replace(log: &Log, shard: u32, content: Bytes) {
    let key = layout::manifest(shard);
    log.store.delete(&key).await.unwrap();
    log.store.put_if_absent(&key, vec![content]).await.unwrap();
}

async fn content(log: &Log, shard: u32) -> Bytes {
    let found = log.store.get(&layout::manifest(shard)).await.unwrap();
    found.unwrap().bytes
}

/// The first shard's rows arrive.
async fn goes_on(log: &mut Log, table: &Arc<Table>) {
    log.commit(&[1]).await;
    table.has(log.rows().len() as u64).await;
}

async fn waits_for(consumer: &Running, what: &str) {
    eventually(what, async || {
        let waits = consumer.readiness.waiting_for();
        waits.iter().any(|wait| wait.contains(what))
    })
    .await;
}

/// A consumer whose second shard rests.
async fn beside_a_damaged_shard() -> (Log, Running) {
    let table = Table::open("table");
    let mut log = two_shards().await;
    let consumer = start(&log.store, config("a"), &table);
    goes_on(&mut log, &table).await;
    replace(&log, 1, Bytes::from_static(b"damaged")).await;
    waits_for(&consumer, "shard 0001: ").await;
    (log, consumer)
}

#[tokio::test(start_paused = true)]
async fn a_damaged_shard_stops_no_other_and_goes_on_when_it_is_restored() {
    let table = Table::open("table");
    let mut log = two_shards().await;
    let consumer = start(&log.store, config("a"), &table);
    goes_on(&mut log, &table).await;
    let right = content(&log, 1).await;
    replace(&log, 1, Bytes::from_static(b"damaged")).await;
    waits_for(&consumer, "shard 0001: shards/0001/manifest: ").await;
    for _ in 0..5 {
        goes_on(&mut log, &table).await;
        sleep(MINUTE).await;
    }
    assert!(!consumer.task.is_finished());
    replace(&log, 1, right).await;
    sleep(2 * MINUTE).await;
    assert_eq!(consumer.readiness.waiting_for(), [] as [String; 0]);
    goes_on(&mut log, &table).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
}

#[tokio::test(start_paused = true)]
async fn a_process_without_another_shard_ends() {
    let (log, consumer) = beside_a_damaged_shard().await;
    replace(&log, 0, Bytes::from_static(b"damaged")).await;
    let ended = timeout(MINUTE, consumer.task).await.expect("it never ends");
    let error = ended.unwrap().unwrap_err();
    assert!(
        matches!(&error, ConsumeError::Format { key, .. } if key.starts_with("shards/0000/")),
        "{error}"
    );
}

/// The owner of a resting shard stops as fast as any.
#[tokio::test(start_paused = true)]
async fn a_process_with_a_resting_shard_stops_at_once() {
    let (_log, consumer) = beside_a_damaged_shard().await;
    timeout(Duration::from_secs(10), consumer.stop())
        .await
        .expect("it waits")
        .unwrap();
}
