//! A shard with a damaged object, beside one that can go on.

use crate::support::{Log, Running, Table, config, eventually, start};
use bytes::Bytes;
use millpond_consumer::{Config, ConsumeError, Consumer};
use millpond_manifest::cas::{self, Object, Swap};
use millpond_manifest::cursor::Ownership;
use millpond_manifest::{Buffer, Cursor, Manifest, layout};
use millpond_storage::Store;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

const MINUTE: Duration = Duration::from_secs(60);

/// A buffer of two shards. The second one has a manifest without segments.
async fn two_shards() -> Log {
    let log = Log::new(Store::memory()).await;
    grow(&log, 2).await;
    log
}

/// Grows the buffer by one shard to this number, and gives the new shard an empty manifest.
async fn grow(log: &Log, shards: u32) {
    let found = cas::read::<Buffer>(&log.store, layout::BUFFER)
        .await
        .unwrap()
        .unwrap();
    let grown = found.state.grow(shards, 7).unwrap().unwrap();
    let swapped = cas::swap(&log.store, layout::BUFFER, Some(&found.version), grown).await;
    assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
    let empty = Manifest::new(log.manifest().await.state.buffer_id, shards - 1).stamped(1);
    replace(log, shards - 1, empty.encode()).await;
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

/// Damages the manifest of a shard, and waits until the shard rests. Returns the right content.
async fn damage(log: &Log, consumer: &Running, shard: u32) -> Bytes {
    let right = content(log, shard).await;
    replace(log, shard, Bytes::from_static(b"damaged")).await;
    waits_for(
        consumer,
        &format!("shard {shard:04}: shards/{shard:04}/manifest: "),
    )
    .await;
    right
}

/// A consumer whose second shard rests.
async fn beside_a_damaged_shard() -> (Log, Running) {
    let table = Table::open("table");
    let mut log = two_shards().await;
    let consumer = start(&log.store, config("a"), &table);
    goes_on(&mut log, &table).await;
    damage(&log, &consumer, 1).await;
    (log, consumer)
}

#[tokio::test(start_paused = true)]
async fn a_damaged_shard_stops_no_other_and_goes_on_when_it_is_restored() {
    let table = Table::open("table");
    let mut log = two_shards().await;
    let consumer = start(&log.store, config("a"), &table);
    goes_on(&mut log, &table).await;
    let right = damage(&log, &consumer, 1).await;
    for _ in 0..5 {
        goes_on(&mut log, &table).await;
        sleep(MINUTE).await;
    }
    assert!(!consumer.task.is_finished());
    replace(&log, 1, right).await;
    sleep(3 * MINUTE).await;
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

/// The process has seen the cursor, so it does not take the removal for a first start.
#[tokio::test(start_paused = true)]
async fn a_consumer_that_is_removed_from_a_resting_shard_stays_removed() {
    let table = Table::open("table");
    let mut log = two_shards().await;
    let consumer = start(&log.store, config("a"), &table);
    goes_on(&mut log, &table).await;
    let right = damage(&log, &consumer, 1).await;
    let key = layout::cursor(1, "default");
    let found = cas::read::<Cursor>(&log.store, &key).await.unwrap().unwrap();
    let removed = found.state.remove().stamped(9);
    let swapped = cas::swap(&log.store, &key, Some(&found.version), removed).await;
    assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
    replace(&log, 1, right).await;
    let ended = timeout(3 * MINUTE, consumer.task).await.expect("it goes on");
    let error = ended.unwrap().unwrap_err();
    assert!(matches!(error, ConsumeError::Removed { .. }), "{error}");
    let found = cas::read::<Cursor>(&log.store, &key).await.unwrap().unwrap();
    assert!(found.state.is_removed(), "the consumer began again");
}

/// A process takes a cursor from its owner once, when somebody starts it.
#[tokio::test(start_paused = true)]
async fn a_process_does_not_take_a_shard_over_again_after_it_has_rested() {
    let table = Table::open("table");
    let mut log = two_shards().await;
    let lease = Duration::from_secs(10);
    let first = Config {
        take_over: true,
        lease,
        ..config("a")
    };
    let first = start(&log.store, first, &table);
    goes_on(&mut log, &table).await;
    let right = damage(&log, &first, 1).await;
    replace(&log, 1, right).await;
    let owner = async || {
        let cursor = cas::read::<Cursor>(&log.store, &layout::cursor(1, "default")).await;
        let Ownership::Held { owner, .. } = cursor.unwrap().unwrap().state.ownership else {
            return None;
        };
        Some(owner)
    };
    let second = Config { lease, ..config("b") };
    let second = start(&log.store, second, &table);
    eventually("the other process has it", async || {
        owner().await.as_deref() == Some("b")
    })
    .await;
    for _ in 0..60 {
        sleep(Duration::from_secs(1)).await;
        assert_eq!(owner().await.as_deref(), Some("b"));
    }
    second.stop().await.unwrap();
    first.stop().await.unwrap();
}

/// Shards that rest wake the process more often than it looks for new ones.
#[tokio::test(start_paused = true)]
async fn new_shards_are_found_while_others_rest() {
    let table = Table::open("table");
    let mut log = two_shards().await;
    grow(&log, 3).await;
    let mut registry = Registry::default();
    let consumer = Consumer::new(log.store.clone(), config("a"), table.clone(), &mut registry).unwrap();
    let readiness = consumer.readiness();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(consumer.run(shutdown.clone()));
    let consumer = Running {
        shutdown,
        readiness,
        task,
    };
    goes_on(&mut log, &table).await;
    damage(&log, &consumer, 1).await;
    sleep(MINUTE / 2).await;
    damage(&log, &consumer, 2).await;
    grow(&log, 4).await;
    sleep(3 * MINUTE).await;
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    let shards = text
        .lines()
        .find(|line| line.starts_with("millpond_consumer_shards{"));
    assert_eq!(shards, Some("millpond_consumer_shards{consumer=\"default\"} 4"));
    consumer.stop().await.unwrap();
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
