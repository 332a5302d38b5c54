//! Tests how the keys of silent streams are stored while the store does not answer for some of them.

use crate::support::{
    Log, Machine, OTHER, Running, STREAM, Table, acknowledged_in, eventually, metric_sum, start,
};
use crate::unique::{needs, resting, rows, snapshots, unique};
use millpond_consumer::{ConsumeError, Consumer};
use millpond_manifest::layout;
use millpond_storage::Store;
use millpond_storage::unreliable::{Controls, Fault, Faults, On};
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// More requests than all attempts of a test make.
const OFTEN: usize = 1_000;

/// The sequence from which a stream needs the log for its keys.
async fn needs_of(log: &Log, stream: &str) -> u64 {
    let cursor = log.cursor("default").await.unwrap();
    cursor.deduplicates(stream).unwrap().1.needs()
}

/// The last snapshot of [`STREAM`] is at sequence 1, and a successor over an unreliable store has the position 2.
async fn successor(log: &mut Log, table: &Arc<Table>) -> (Running, Controls, String) {
    let consumer = start(&log.store, unique("a"), table);
    log.commit_to(STREAM, &[2]).await;
    acknowledged_in(log, STREAM, 1).await;
    sleep(Duration::from_secs(61)).await;
    needs(log, 1).await;
    consumer.crash().await;
    let [last] = snapshots(log).await.try_into().unwrap();
    let (store, network) = log.store.behind(Faults::default());
    let consumer = start(&store, unique("next"), table);
    log.commit_to(OTHER, &[1]).await;
    acknowledged_in(log, OTHER, 2).await;
    (consumer, network, last)
}

#[tokio::test(start_paused = true)]
async fn a_batch_waits_for_an_attempt_to_store_keys_until_it_is_given_up() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    table.repeat_after(3);
    let (consumer, network, _) = successor(&mut log, &table).await;
    // No snapshot can be written, which the batch does not need.
    for _ in 0..OFTEN {
        network.once(On::Create, "", Fault::Denied);
    }
    eventually("the attempt begins", async || network.unused() < OFTEN).await;
    // Rows 3 to 5, of which the first two repeat others.
    log.commit_to(STREAM, &[3]).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(log.cursor("default").await.unwrap().next(STREAM), 2);
    acknowledged_in(&log, STREAM, 3).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), rows(&[0, 1, 2, 5]));
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_the_store_ends_with_the_attempt_to_store_keys() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    let (consumer, network, last) = successor(&mut log, &table).await;
    // More than one attempt makes, and fewer than five.
    for _ in 0..40 {
        network.once(On::Get, &last, Fault::Denied);
    }
    let waits = || consumer.readiness.waiting_for().join("; ");
    eventually("the wait is shown", async || !waits().is_empty()).await;
    let shown = waits();
    assert!(
        shown.contains(
            "storing the keys of events.test in shard 0: reading shards/0000/consumers/default/unique/"
        ),
        "{shown}"
    );
    eventually("the attempt ends", async || waits().is_empty()).await;
    assert!(network.unused() > 0);
    // Each further one is an interval later, until one is allowed to read.
    for sequence in 3..10 {
        sleep(Duration::from_secs(61)).await;
        log.commit_to(OTHER, &[1]).await;
        acknowledged_in(&log, OTHER, sequence).await;
    }
    assert_eq!(network.unused(), 0);
    needs(&log, 9).await;
    consumer.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn keys_that_the_store_does_not_answer_for_let_those_of_other_streams_through() {
    let streams = ["events.a", "events.b", "events.c"];
    let of = |instance| {
        let mut config = unique(instance);
        let setting = config.unique[STREAM].clone();
        config.poll_interval = Duration::from_secs(5);
        config.unique = streams.map(|stream| (stream.to_owned(), setting.clone())).into();
        config
    };
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    let consumer = start(&log.store, of("a"), &table);
    let mut segments = Vec::new();
    for (stream, sequence) in streams.into_iter().zip(1..) {
        log.commit_to(stream, &[1]).await;
        acknowledged_in(&log, stream, sequence).await;
        let listed = log.store.list(&layout::segments(0)).await.unwrap();
        let new = listed.into_iter().map(|found| found.key);
        segments.extend(new.filter(|key| !segments.contains(key)).collect::<Vec<_>>());
    }
    consumer.crash().await;

    // No snapshot has the keys, so they are loaded, those of one stream at a time.
    let (store, network) = log.store.behind(Faults::default());
    for segment in &segments[..2] {
        for _ in 0..OFTEN {
            network.once(On::Get, segment, Fault::Denied);
        }
    }
    let consumer = start(&store, of("next"), &table);
    for sequence in 4..30 {
        log.commit_to(OTHER, &[1]).await;
        acknowledged_in(&log, OTHER, sequence).await;
        sleep(Duration::from_secs(60)).await;
    }
    let mut needed = Vec::new();
    for stream in streams {
        needed.push(needs_of(&log, stream).await);
    }
    assert_eq!(needed[..2], [0, 1], "nothing answers");
    assert!(needed[2] > 3, "{needed:?}");
    consumer.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_loaded_to_be_stored_leave_the_memory_at_once() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    table.repeat_after(3);
    let consumer = start(&log.store, unique("a"), &table);
    log.commit_to(STREAM, &[3]).await;
    acknowledged_in(&log, STREAM, 1).await;
    consumer.crash().await;
    let mut registry = Registry::default();
    let consumer = Consumer::new(log.store.clone(), unique("next"), table.clone(), &mut registry).unwrap();
    let consumer = consumer.with_environment(Arc::new(Machine::new()));
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(consumer.run(shutdown.clone()));
    log.commit_to(OTHER, &[1]).await;
    acknowledged_in(&log, OTHER, 2).await;
    sleep(Duration::from_secs(61)).await;
    needs(&log, 1).await;
    assert_eq!(metric_sum(&registry, "millpond_consumer_unique_keys "), 0);
    // The next batch loads them.
    log.commit_to(STREAM, &[2]).await;
    acknowledged_in(&log, STREAM, 3).await;
    assert_eq!(metric_sum(&registry, "millpond_consumer_unique_keys "), 3);
    shutdown.cancel();
    running.await.unwrap().unwrap();
    assert_eq!(table.rows(), rows(&[0, 1, 2, 3]));
}

#[tokio::test(start_paused = true)]
async fn the_advice_after_lost_keys_names_the_position_of_now() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    let consumer = start(&log.store, resting("a"), &table);
    log.commit_to(STREAM, &[1]).await;
    acknowledged_in(&log, STREAM, 1).await;
    log.commit_to(OTHER, &[1, 1]).await;
    acknowledged_in(&log, OTHER, 3).await;
    // The keys leave the memory, and then the bucket.
    for sequence in 4..=6 {
        sleep(Duration::from_secs(120)).await;
        log.commit_to(OTHER, &[1]).await;
        acknowledged_in(&log, OTHER, sequence).await;
    }
    needs(&log, 4).await;
    for snapshot in snapshots(&log).await {
        log.store.delete(&snapshot).await.unwrap();
    }
    log.commit_to(STREAM, &[1]).await;
    let ended = timeout(Duration::from_secs(600), consumer.task).await;
    let ended = ended.expect("the keys are lost").unwrap();
    let Err(ConsumeError::UniqueLost { next, .. }) = ended else {
        panic!("{ended:?}");
    };
    assert_eq!(next, 6);
}
