//! Tests how the keys of silent streams are stored while the store does not answer for some of them.

use crate::growth::{copy_to, name_shards};
use crate::routes::route;
use crate::support::{
    Log, Machine, OTHER, Running, STREAM, Table, acknowledged_in, eventually, metric_sum, start,
};
use crate::unique::{needs, resting, rows, snapshots, unique};
use millpond_consumer::unique::BYTES_PER_KEY;
use millpond_consumer::{Config, ConsumeError, Consumer};
use millpond_manifest::layout;
use millpond_storage::Store;
use millpond_storage::unreliable::{Controls, Fault, Faults, On};
use prometheus_client::registry::Registry;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
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
async fn a_batch_does_not_wait_for_an_attempt_to_store_keys() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    table.repeat_after(3);
    let (consumer, network, _) = successor(&mut log, &table).await;
    // No snapshot can be written. None is due with the batch, by the clock of the test.
    for _ in 0..OFTEN {
        network.once(On::Create, "", Fault::Denied);
    }
    eventually("the attempt begins", async || network.unused() < OFTEN).await;
    // Rows 3 to 5, of which the first two repeat others.
    log.commit_to(STREAM, &[3]).await;
    sleep(Duration::from_secs(5)).await;
    assert_eq!(log.cursor("default").await.unwrap().next(STREAM), 3);
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), rows(&[0, 1, 2, 5]));
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_the_store_ends_with_the_attempt_to_store_keys() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    let (consumer, network, last) = successor(&mut log, &table).await;
    // More than one attempt makes, and fewer than five.
    for _ in 0..100 {
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
    sleep(Duration::from_secs(60)).await;
    eventually("the attempt ends", async || waits().is_empty()).await;
    assert!(network.unused() > 0);
    // Each further one is an interval later, until one is allowed to read.
    for sequence in 3..20 {
        sleep(Duration::from_secs(61)).await;
        log.commit_to(OTHER, &[1]).await;
        acknowledged_in(&log, OTHER, sequence).await;
    }
    assert_eq!(network.unused(), 0);
    needs(&log, 4).await;
    consumer.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn keys_that_the_store_does_not_answer_for_let_those_of_other_streams_through() {
    let streams = ["events.a", "events.b", "events.c", "events.d"];
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
    for segment in &segments[..3] {
        for _ in 0..OFTEN {
            network.once(On::Get, segment, Fault::Denied);
        }
    }
    let consumer = start(&store, of("next"), &table);
    // Time for five attempts.
    for sequence in 5..13 {
        log.commit_to(OTHER, &[1]).await;
        acknowledged_in(&log, OTHER, sequence).await;
        sleep(Duration::from_secs(60)).await;
    }
    let mut needed = Vec::new();
    for stream in streams {
        needed.push(needs_of(&log, stream).await);
    }
    assert_eq!(needed[..3], [0, 1, 2], "nothing answers");
    assert!(needed[3] > 4, "{needed:?}");
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
async fn an_attempt_to_store_keys_goes_on_as_long_as_the_store_gives_something() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    let consumer = start(&log.store, unique("a"), &table);
    log.commit_to(STREAM, &[2]).await;
    acknowledged_in(&log, STREAM, 1).await;
    sleep(Duration::from_secs(61)).await;
    needs(&log, 1).await;
    log.commit_to(OTHER, &[1; 24]).await;
    acknowledged_in(&log, OTHER, 25).await;
    consumer.crash().await;
    log.seal(2).await;
    sleep(Duration::from_secs(60)).await;

    // Twelve pages, each of which takes more than half a minute: seven minutes.
    let (store, network) = log.store.behind(Faults::default());
    for place in 0..12 {
        let page = log.page_key(place).await;
        for _ in 0..20 {
            network.once(On::Get, &page, Fault::Denied);
        }
    }
    let consumer = start(&store, unique("next"), &table);
    sleep(Duration::from_secs(580)).await;
    assert_eq!(network.unused(), 0);
    assert_eq!(needs_of(&log, STREAM).await, 25);
    consumer.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_attempt_to_store_keys_that_waits_for_memory_lets_batches_through_after_a_while() {
    let in_little_memory = |instance| Config {
        memory_limit: 4_000,
        unique_memory: 3_000,
        ..unique(instance)
    };
    let mut log = Log::new(Store::memory()).await;
    let consumer = start(&log.store, in_little_memory("a"), &Table::open("table"));
    log.commit_to(STREAM, &[20]).await;
    acknowledged_in(&log, STREAM, 1).await;
    consumer.crash().await;

    // A batch hangs. The part needs all of the memory, so it waits, and another batch waits behind it.
    let table = Table::shut("table");
    log.commit_to(OTHER, &[1]).await;
    let consumer = start(&log.store, in_little_memory("next"), &table);
    eventually("the table is asked", async || table.hanging() > 0).await;
    sleep(Duration::from_secs(10)).await;
    log.commit_to("events.third", &[1]).await;
    sleep(Duration::from_secs(30)).await;
    assert_eq!(table.hanging(), 1, "the part does not wait");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(table.hanging(), 2);
    table.let_through(OFTEN);
    needs(&log, 1).await;
    consumer.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn keys_are_loaded_to_be_stored_in_one_shard_at_a_time() {
    let log = Log::new(Store::memory()).await;
    copy_to(&log, 1).await;
    name_shards(&log.store, 2).await;
    route(&log.store, "id", 2).await;
    let mut logs = [log.in_shard(1), log];
    let table = Table::open("table");
    let consumer = start(&logs[0].store, unique("a"), &table);
    for log in &mut logs {
        log.commit_to(STREAM, &[1]).await;
        acknowledged_in(log, STREAM, 1).await;
    }
    consumer.crash().await;

    let (store, network) = logs[0].store.behind(Faults::default());
    for log in &logs {
        let listed = log.store.list(&layout::segments(log.shard)).await.unwrap();
        for _ in 0..OFTEN {
            network.once(On::Get, &listed[0].key, Fault::Denied);
        }
    }
    let consumer = start(&store, unique("next"), &table);
    for log in &mut logs {
        log.commit_to(OTHER, &[1]).await;
        acknowledged_in(log, OTHER, 2).await;
    }
    let loading = || {
        let waits = consumer.readiness.waiting_for().join("; ");
        [0, 1].map(|shard| waits.contains(&format!("storing the keys of {STREAM} in shard {shard}: ")))
    };
    eventually("keys are being loaded", async || loading() != [false, false]).await;
    sleep(Duration::from_secs(30)).await;
    let of_one = loading();
    assert!(of_one == [true, false] || of_one == [false, true], "{of_one:?}");
    eventually("the attempt ends", async || loading() != of_one).await;
    // The other one has waited for its place, and not given up.
    sleep(Duration::from_secs(10)).await;
    assert_eq!(loading(), of_one.map(|loading| !loading));
    consumer.stop().await.unwrap();
}

/// A consumer that remembers 32 keys of both streams. Those of [`STREAM`] are being loaded, and 20 of its 21 keys are.
async fn loading_in_little_memory(log: &mut Log, table: &Arc<Table>) -> (Loading, Controls) {
    let of = |instance| {
        let mut config = unique(instance);
        let setting = config.unique[STREAM].clone();
        config.unique.insert(OTHER.to_owned(), setting);
        config.unique_memory = 32 * BYTES_PER_KEY;
        config.poll_interval = Duration::from_secs(1);
        config
    };
    let consumer = start(&log.store, of("a"), table);
    log.commit_to(STREAM, &[20, 1]).await;
    acknowledged_in(log, STREAM, 2).await;
    consumer.crash().await;
    let (store, network) = log.store.behind(Faults::default());
    let listed = log.store.list(&layout::segments(0)).await.unwrap();
    for _ in 0..OFTEN {
        network.once(On::Get, &listed[1].key, Fault::Denied);
    }
    let mut registry = Registry::default();
    let consumer = Consumer::new(store, of("next"), table.clone(), &mut registry).unwrap();
    let consumer = consumer.with_environment(Arc::new(Machine::new()));
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(consumer.run(shutdown.clone()));
    // The last stream to be read moves the position.
    log.commit_to(OTHER, &[1]).await;
    acknowledged_in(log, OTHER, 3).await;
    eventually("the keys are being loaded", async || network.unused() < OFTEN).await;
    let loading = Loading {
        registry,
        shutdown,
        task,
    };
    (loading, network)
}

struct Loading {
    registry: Registry,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), ConsumeError>>,
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_loaded_to_be_stored_keep_no_batch_from_its_keys() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    table.repeat_after(1_000);
    let (consumer, network) = loading_in_little_memory(&mut log, &table).await;
    // With the 20 keys and the one before them, these are too many.
    log.commit_to(OTHER, &[24]).await;
    acknowledged_in(&log, OTHER, 4).await;
    assert_eq!(
        metric_sum(&consumer.registry, "millpond_consumer_unique_keys "),
        25
    );
    assert_eq!(needs_of(&log, STREAM).await, 0);
    // There is no room for the next attempts. They become rare.
    let before = network.unused();
    sleep(Duration::from_secs(3_600)).await;
    let attempts = before - network.unused();
    assert!(attempts < 10, "{attempts} requests in an hour");
    consumer.shutdown.cancel();
    consumer.task.await.unwrap().unwrap();
    assert_eq!(table.rows(), log.rows());
}

#[tokio::test(start_paused = true)]
async fn the_keys_of_a_stream_whose_batches_wait_are_not_stored() {
    let of = |instance| Config {
        writers: 1,
        ..unique(instance)
    };
    let mut log = Log::new(Store::memory()).await;
    let table = Table::shut("table");
    table.let_through(2);
    // The stream that comes first in the log has the writer first. No batch is planned ahead, because several segments come at a time.
    for stream in [OTHER, STREAM, OTHER] {
        log.commit_to(stream, &[1]).await;
    }
    let consumer = start(&log.store, of("a"), &table);
    acknowledged_in(&log, OTHER, 3).await;
    acknowledged_in(&log, STREAM, 3).await;
    consumer.crash().await;

    // The batch of the other stream holds it up.
    log.commit_to(OTHER, &[1]).await;
    log.commit_to(STREAM, &[1]).await;
    let consumer = start(&log.store, of("next"), &table);
    eventually("the table is asked", async || table.hanging() > 0).await;
    sleep(Duration::from_secs(300)).await;
    assert_eq!(snapshots(&log).await, Vec::<String>::new());
    table.let_through(OFTEN);
    acknowledged_in(&log, STREAM, 5).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
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
