//! A consumer that polls a store which shows earlier states of the manifest again: a cache before it that is behind, or a manifest that
//! somebody restored.

use crate::support::{Log, Running, STREAM, Table, acknowledged, config, eventually, put, start};
use millpond_consumer::{Config, ConsumeError};
use millpond_manifest::cursor::Plan;
use millpond_manifest::{Cursor, layout};
use millpond_storage::Store;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

/// It sees segments together that are committed together.
fn slow() -> Config {
    Config {
        poll_interval: SECOND,
        ..config("a")
    }
}

/// A log whose first segment is read, and its consumer.
async fn begun(table: &Arc<Table>) -> (Log, Running) {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[1]).await;
    table.let_through(1);
    let consumer = start(&log.store, slow(), table);
    acknowledged(&log, 1).await;
    (log, consumer)
}

/// Waits until the consumer has planned the three segments after the first one as one batch.
async fn planned_three(log: &Log) {
    eventually("the batch is planned", async || {
        let cursor = log.cursor("default").await.unwrap();
        cursor.planned(STREAM).next() == Some(Plan { low: 1, high: 3 })
    })
    .await;
}

/// Another policy cuts other batches, once the cursor was released cleanly.
fn other_batches() -> Config {
    Config {
        batch_records: 3,
        chunk_rows: 3,
        take_over: true,
        ..config("b")
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_was_sent_from_a_later_log_is_in_doubt_after_the_release() {
    let table = Table::shut("table");
    let (mut log, consumer) = begun(&table).await;
    consumer.stop().await.unwrap();
    let before = log.manifest().await.state;
    let hasty = Config {
        drain_timeout: Duration::ZERO,
        ..slow()
    };
    let consumer = start(&log.store, hasty, &table);
    sleep(2 * SECOND).await;
    log.commit(&[3, 3, 3]).await;
    planned_three(&log).await;
    table.let_through(1);
    // One chunk is in the table, and the others are on their way.
    table.has(5).await;
    let newest = log.manifest().await.state;
    put(&log, &before).await;
    sleep(5 * SECOND).await;
    consumer.stop().await.unwrap();
    put(&log, &newest).await;
    table.let_through(1 << 10);
    let second = start(&log.store, other_batches(), &table);
    acknowledged(&log, 4).await;
    second.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
}

#[tokio::test(start_paused = true)]
async fn a_planned_batch_waits_for_a_log_that_has_all_of_it() {
    let table = Table::shut("table");
    let (mut log, consumer) = begun(&table).await;
    log.commit(&[3]).await;
    let part = log.manifest().await.state;
    log.commit(&[3, 3]).await;
    let newest = log.manifest().await.state;
    planned_three(&log).await;
    consumer.crash().await;
    // An older program keeps no name of a segment, by which the owner would recognize the log.
    log.change_cursor("default", |cursor| Cursor {
        seen: None,
        ..cursor.clone()
    })
    .await;
    put(&log, &part).await;
    let second = start(&log.store, other_batches(), &table);
    sleep(5 * SECOND).await;
    put(&log, &newest).await;
    sleep(5 * SECOND).await;
    table.let_through(1 << 10);
    acknowledged(&log, 4).await;
    log.commit(&[2]).await;
    acknowledged(&log, 5).await;
    second.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
}

#[tokio::test(start_paused = true)]
async fn a_consumer_waits_for_a_store_that_shows_earlier_states() {
    let table = Table::open("table");
    let (mut log, consumer) = begun(&table).await;
    let before = log.manifest().await.state;
    log.commit(&[3]).await;
    acknowledged(&log, 2).await;
    let newest = log.manifest().await.state;
    // The states come in turns, for longer than a store may stay behind.
    for _ in 0..4 {
        put(&log, &before).await;
        sleep(40 * SECOND).await;
        let waits = consumer.readiness.waiting_for();
        assert!(
            waits.iter().any(|wait| wait.contains("and it showed version")),
            "{waits:?}"
        );
        put(&log, &newest).await;
        sleep(2 * SECOND).await;
        assert_eq!(consumer.readiness.waiting_for(), [] as [String; 0]);
    }
    log.commit(&[3]).await;
    acknowledged(&log, 3).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
}

/// Another log has the same sequences, and even more of them.
#[tokio::test(start_paused = true)]
async fn a_restored_manifest_ends_the_consumer_after_a_minute() {
    for goes_on in [false, true] {
        let table = Table::open("table");
        let (mut log, consumer) = begun(&table).await;
        let before = log.manifest().await.state;
        log.commit(&[3]).await;
        acknowledged(&log, 2).await;
        put(&log, &before).await;
        if goes_on {
            log.now_ms += 1;
            log.commit(&[2, 2]).await;
        }
        sleep(50 * SECOND).await;
        assert!(!consumer.task.is_finished());
        let ended = timeout(60 * SECOND, consumer.task).await.unwrap().unwrap();
        assert!(matches!(ended, Err(ConsumeError::Behind { .. })), "{ended:?}");
        let cursor = log.cursor("default").await.unwrap();
        assert!(
            cursor.waiting_for[0].contains("somebody restored"),
            "{:?}",
            cursor.waiting_for
        );
    }
}

/// Somebody moves the buffer away, and back again.
#[tokio::test(start_paused = true)]
async fn a_manifest_that_is_gone_ends_the_consumer_after_a_minute() {
    let table = Table::open("table");
    let (mut log, consumer) = begun(&table).await;
    let key = layout::manifest(log.manifest().await.state.shard);
    let moved = log.store.get(&key).await.unwrap().unwrap().bytes;
    log.store.delete(&key).await.unwrap();
    sleep(50 * SECOND).await;
    let waits = consumer.readiness.waiting_for();
    assert!(
        waits.iter().any(|wait| wait.contains("has no manifest")),
        "{waits:?}"
    );
    log.store.put_if_absent(&key, vec![moved]).await.unwrap();
    sleep(2 * SECOND).await;
    assert_eq!(consumer.readiness.waiting_for(), [] as [String; 0]);
    log.commit(&[3]).await;
    acknowledged(&log, 2).await;
    log.store.delete(&key).await.unwrap();
    let ended = timeout(70 * SECOND, consumer.task).await.unwrap().unwrap();
    assert!(matches!(ended, Err(ConsumeError::Gone { .. })), "{ended:?}");
    assert_eq!(table.rows(), log.rows());
}

/// A consumer may start before the first commit.
#[tokio::test(start_paused = true)]
async fn a_buffer_without_a_manifest_is_awaited() {
    let table = Table::open("table");
    let store = Store::memory();
    let log = Log::new(store.clone()).await;
    let newest = log.manifest().await.state;
    store.delete(&layout::manifest(newest.shard)).await.unwrap();
    let consumer = start(&store, slow(), &table);
    sleep(200 * SECOND).await;
    assert!(!consumer.task.is_finished());
    assert_eq!(consumer.readiness.waiting_for(), [] as [String; 0]);
    consumer.stop().await.unwrap();
}

/// Somebody deleted the manifest, and a gateway began a new one.
#[tokio::test(start_paused = true)]
async fn a_consumer_of_a_log_that_ends_before_its_position_is_not_ready() {
    let table = Table::open("table");
    let (mut log, consumer) = begun(&table).await;
    let before = log.manifest().await.state;
    log.commit(&[3]).await;
    acknowledged(&log, 2).await;
    consumer.stop().await.unwrap();
    put(&log, &before).await;
    let consumer = start(&log.store, slow(), &table);
    sleep(100 * SECOND).await;
    let waits = consumer.readiness.waiting_for();
    assert!(
        waits
            .iter()
            .any(|wait| wait.contains("has read up to sequence 2")),
        "{waits:?}"
    );
    consumer.stop().await.unwrap();
}

/// A restart changes nothing: nobody knows where the log is.
#[tokio::test(start_paused = true)]
async fn a_consumer_that_has_read_a_log_waits_for_one() {
    let table = Table::open("table");
    let (mut log, consumer) = begun(&table).await;
    consumer.stop().await.unwrap();
    let key = layout::manifest(log.manifest().await.state.shard);
    let moved = log.store.get(&key).await.unwrap().unwrap().bytes;
    log.store.delete(&key).await.unwrap();
    let consumer = start(&log.store, slow(), &table);
    sleep(200 * SECOND).await;
    let waits = consumer.readiness.waiting_for();
    assert!(
        waits
            .iter()
            .any(|wait| wait.contains("has read up to sequence 1")),
        "{waits:?}"
    );
    log.store.put_if_absent(&key, vec![moved]).await.unwrap();
    log.commit(&[3]).await;
    acknowledged(&log, 2).await;
    assert_eq!(consumer.readiness.waiting_for(), [] as [String; 0]);
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
}

/// An owner and a standby notice it when they look at the cursor.
#[tokio::test(start_paused = true)]
async fn consumers_of_a_buffer_that_is_gone_say_so() {
    let table = Table::open("table");
    let (log, owner) = begun(&table).await;
    let second = start(&log.store, config("b"), &table);
    sleep(2 * SECOND).await;
    for found in log.store.list("").await.unwrap() {
        log.store.delete(&found.key).await.unwrap();
    }
    for consumer in [owner, second] {
        let ended = timeout(60 * SECOND, consumer.task).await.unwrap().unwrap();
        assert!(matches!(ended, Err(ConsumeError::BufferGone { .. })), "{ended:?}");
    }
}
