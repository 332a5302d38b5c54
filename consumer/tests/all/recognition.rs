//! A consumer that starts on another log than the one that it has read: somebody restored the manifest, or deleted it, and gateways went
//! on from there.

use crate::support::{Log, Running, STREAM, Table, acknowledged, config, put, start};
use millpond_consumer::{Config, ConsumeError};
use millpond_manifest::{Manifest, layout};
use millpond_storage::Store;
use millpond_storage::unreliable::{Faults, On};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

const MINUTE: Duration = Duration::from_secs(60);

/// A log of five segments that a consumer has read, and its manifest after the first two.
async fn read_by_a_consumer(table: &Arc<Table>) -> (Log, Manifest) {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[1, 1]).await;
    let earlier = log.manifest().await.state;
    log.commit(&[1, 1, 1]).await;
    let consumer = start(&log.store, config("a"), table);
    acknowledged(&log, 5).await;
    consumer.stop().await.unwrap();
    (log, earlier)
}

/// The next process, which does not wait for the lease of the one before.
fn next(log: &Log, table: &Arc<Table>) -> Running {
    let config = Config {
        take_over: true,
        ..config("b")
    };
    start(&log.store, config, table)
}

/// Commits a sixth segment, and kills a consumer that has sent it and not acknowledged it.
async fn leave_a_batch_in_doubt(log: &mut Log, table: &Arc<Table>) {
    log.commit(&[1]).await;
    let patient = Config {
        ack_interval: MINUTE,
        ..config("a")
    };
    let consumer = start(&log.store, patient, table);
    table.has(6).await;
    consumer.crash().await;
    assert_eq!(log.cursor("default").await.unwrap().next(STREAM), 5);
}

async fn ends(consumer: Running) -> ConsumeError {
    let ended = timeout(MINUTE, consumer.task).await.expect("it never ends");
    ended.unwrap().unwrap_err()
}

/// Asserts that the consumer ends because of segment `sequence`, and sends nothing.
async fn finds_another_log(log: &Log, table: &Arc<Table>, sequence: u64) {
    let sent = table.attempts().len();
    let error = ends(next(log, table)).await;
    assert!(
        matches!(error, ConsumeError::OtherLog { sequence: found, .. } if found == sequence),
        "{error}"
    );
    assert_eq!(table.attempts().len(), sent);
    let cursor = log.cursor("default").await.unwrap();
    assert!(
        cursor.waiting_for[0].contains("somebody restored the manifest"),
        "{:?}",
        cursor.waiting_for
    );
}

#[tokio::test(start_paused = true)]
async fn records_of_a_restored_log_are_not_passed_over() {
    for pages in [false, true] {
        let table = Table::open("table");
        let (mut log, earlier) = read_by_a_consumer(&table).await;
        put(&log, &earlier).await;
        // New records get the sequences from 2 on, and more of them than the consumer has read.
        log.commit(&[1, 1, 1, 1, 1]).await;
        if pages {
            log.seal(2).await;
            log.seal(4).await;
        }
        finds_another_log(&log, &table, 4).await;
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_sent_while_the_log_ends_before_the_newest_segment_that_was_seen() {
    let table = Table::open("table");
    let (mut log, earlier) = read_by_a_consumer(&table).await;
    let right = log.manifest().await.state;
    let sent = table.attempts().len();
    put(&log, &earlier).await;
    // A copy from a cache would look like this, too.
    let consumer = next(&log, &table);
    sleep(MINUTE).await;
    let waits = consumer.readiness.waiting_for();
    assert!(
        waits
            .iter()
            .any(|wait| wait.contains("has read up to sequence 5")),
        "{waits:?}"
    );
    put(&log, &right).await;
    log.commit(&[1]).await;
    acknowledged(&log, 6).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());

    put(&log, &earlier).await;
    let consumer = next(&log, &table);
    sleep(MINUTE).await;
    log.commit(&[1, 1, 1, 1]).await;
    let error = ends(consumer).await;
    assert!(matches!(error, ConsumeError::OtherLog { .. }), "{error}");
    assert_eq!(table.attempts().len(), sent + 1);
}

/// The rows of a batch that was sent and not acknowledged would pass for those of other records.
#[tokio::test(start_paused = true)]
async fn a_batch_in_doubt_is_not_sent_from_another_log() {
    let table = Table::open("table");
    let (mut log, _) = read_by_a_consumer(&table).await;
    let before = log.manifest().await.state;
    leave_a_batch_in_doubt(&mut log, &table).await;
    put(&log, &before).await;
    log.commit(&[1, 1]).await;
    finds_another_log(&log, &table, 5).await;
}

/// The log's records are for a consumer that somebody sends there.
#[tokio::test(start_paused = true)]
async fn an_operator_decides_about_another_log() {
    let table = Table::open("table");
    let (mut log, earlier) = read_by_a_consumer(&table).await;
    put(&log, &earlier).await;
    log.commit(&[1, 1, 1, 1]).await;
    finds_another_log(&log, &table, 4).await;
    log.reset("default", 6).await;
    log.commit(&[1]).await;
    let consumer = next(&log, &table);
    acknowledged(&log, 7).await;
    consumer.stop().await.unwrap();
    assert!(log.cursor("default").await.unwrap().seen.is_some());
}

/// Garbage collection has trimmed the newest segment that the consumer has seen.
#[tokio::test(start_paused = true)]
async fn a_log_that_begins_after_what_was_seen_goes_on() {
    let table = Table::open("table");
    let (mut log, _) = read_by_a_consumer(&table).await;
    log.change(|log| log.collect(5, 0)).await;
    log.commit(&[1]).await;
    let consumer = next(&log, &table);
    acknowledged(&log, 6).await;
    consumer.stop().await.unwrap();
}

/// Its owner knows what the predecessor may have sent only from the log.
#[tokio::test(start_paused = true)]
async fn a_batch_in_doubt_waits_for_a_manifest_that_comes_later() {
    let table = Table::open("table");
    let (mut log, _) = read_by_a_consumer(&table).await;
    leave_a_batch_in_doubt(&mut log, &table).await;
    let key = layout::manifest(0);
    let moved = log.store.get(&key).await.unwrap().unwrap().bytes;
    log.store.delete(&key).await.unwrap();
    table.forget_tokens();
    let consumer = next(&log, &table);
    sleep(MINUTE).await;
    log.store.put_if_absent(&key, vec![moved]).await.unwrap();
    acknowledged(&log, 6).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
}

/// The machine of an owner stands still, or its network does, while the log grows past the tail that it knows.
#[tokio::test(start_paused = true)]
async fn an_owner_recognizes_the_log_again_after_it_has_missed_a_whole_tail() {
    for restored in [false, true] {
        let table = Table::open("table");
        let (mut log, earlier) = read_by_a_consumer(&table).await;
        let (store, network) = log.store.behind(Faults::default());
        let config = Config {
            take_over: true,
            ..config("b")
        };
        let consumer = start(&store, config, &table);
        log.commit(&[1]).await;
        acknowledged(&log, 6).await;
        let mut held = network.hold(On::Get, "manifest");
        held.arrived().await;
        let sent = table.attempts().len();
        if restored {
            put(&log, &earlier).await;
        }
        log.commit(&[1; 10]).await;
        log.seal(2).await;
        assert_eq!(log.manifest().await.state.tail, []);
        held.release();
        if restored {
            let error = ends(consumer).await;
            assert!(matches!(error, ConsumeError::OtherLog { .. }), "{error}");
            assert_eq!(table.attempts().len(), sent);
        } else {
            acknowledged(&log, 16).await;
            consumer.stop().await.unwrap();
            assert_eq!(table.rows(), log.rows());
        }
    }
}

/// The page that tells is on its way when the process is asked to stop.
#[tokio::test(start_paused = true)]
async fn an_owner_that_stops_while_it_recognizes_the_log_acknowledges_first() {
    let table = Table::open("table");
    let (mut log, _) = read_by_a_consumer(&table).await;
    let (store, network) = log.store.behind(Faults::default());
    let patient = Config {
        ack_interval: MINUTE,
        take_over: true,
        ..config("b")
    };
    let consumer = start(&store, patient, &table);
    log.commit(&[1]).await;
    table.has(6).await;
    log.commit(&[1]).await;
    log.seal(7).await;
    let mut held = network.hold(On::Get, &log.page_key(0).await);
    held.arrived().await;
    consumer.shutdown.cancel();
    sleep(Duration::from_secs(1)).await;
    held.release();
    consumer.stop().await.unwrap();
    let cursor = log.cursor("default").await.unwrap();
    assert_eq!(cursor.next(STREAM), 6);
}
