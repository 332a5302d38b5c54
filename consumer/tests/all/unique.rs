//! Tests deduplication by key with whole consumers: streams that come late or are silent, resets and skips.

use crate::support::{
    Log, Machine, OTHER, Running, STREAM, Table, acknowledged_in, config, eventually, metric_sum,
    single_records, start, start_on,
};
use millpond_consumer::schedule::{Mode, Room, Schedule};
use millpond_consumer::{Config, ConsumeError, Consumer};
use millpond_manifest::cursor::Opening;
use millpond_manifest::{Cursor, Manifest, UniqueSetting, layout};
use millpond_storage::Store;
use millpond_storage::unreliable::{Faults, On};
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// A consumer that drops the repeated events of [`STREAM`].
pub(crate) fn unique(instance: &str) -> Config {
    let setting = UniqueSetting {
        key: vec!["id".into()],
        window_ms: 3_600_000,
    };
    Config {
        unique: [(STREAM.to_owned(), setting)].into(),
        lease: Duration::from_secs(5),
        take_over: true,
        ..config(instance)
    }
}

/// The same with a window of 110 s, after which the keys of a silent stream leave the memory.
pub(crate) fn resting(instance: &str) -> Config {
    let mut config = Config {
        keys_rest: Duration::ZERO,
        ..unique(instance)
    };
    config.unique.get_mut(STREAM).unwrap().window_ms = 110_000;
    config
}

pub(crate) fn rows(numbers: &[u64]) -> BTreeMap<String, u64> {
    numbers.iter().map(|row| (format!("row-{row}"), 1)).collect()
}

/// Waits until nothing below this sequence is kept for the consumer.
pub(crate) async fn needs(log: &Log, sequence: u64) {
    eventually("the log is not needed any more", async || {
        log.cursor("default")
            .await
            .is_some_and(|cursor| cursor.needs() >= sequence)
    })
    .await;
}

/// The keys of all snapshots in the store.
pub(crate) async fn snapshots(log: &Log) -> Vec<String> {
    let listed = log.store.list(&layout::consumers(0)).await.unwrap();
    let keys = listed.into_iter().map(|found| found.key);
    keys.filter(|key| layout::parse_unique(0, key).is_some())
        .collect()
}

async fn restart(consumer: Running, log: &Log, table: &Arc<Table>) -> Running {
    consumer.crash().await;
    start(&log.store, unique("next"), table)
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_does_not_hold_back_the_log() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    table.repeat_after(4);
    // Keys 0, 1 and 2.
    log.commit_to(STREAM, &[3]).await;
    log.commit_to(OTHER, &[1]).await;
    let consumer = start(&log.store, unique("a"), &table);
    acknowledged_in(&log, STREAM, 2).await;
    let cursor = log.cursor("default").await.unwrap();
    assert_eq!(cursor.needs(), 0, "a successor reads the keys from the log");
    tokio::time::sleep(Duration::from_secs(61)).await;
    needs(&log, 2).await;

    log.commit_to(OTHER, &[1, 1]).await;
    acknowledged_in(&log, STREAM, 4).await;
    tokio::time::sleep(Duration::from_secs(61)).await;
    needs(&log, 4).await;

    // A successor that sees no part of the stream goes on.
    let consumer = restart(consumer, &log, &table).await;
    log.commit_to(OTHER, &[1]).await;
    acknowledged_in(&log, STREAM, 5).await;
    tokio::time::sleep(Duration::from_secs(61)).await;
    needs(&log, 5).await;

    // Nobody needs the log for the keys any more: rows 8, 9 and 10 have keys 0, 1 and 2, and row 11 has another.
    log.change(|log| log.collect(5, 0)).await;
    table.has(7).await;
    log.commit_to(OTHER, &[1]).await;
    let consumer = restart(consumer, &log, &table).await;
    log.commit_to(STREAM, &[4]).await;
    acknowledged_in(&log, STREAM, 7).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), rows(&[0, 1, 2, 3, 4, 5, 6, 7, 11]));
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_without_its_log_does_not_end_the_owner() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    log.commit_to(STREAM, &[3]).await;
    log.commit_to(OTHER, &[1]).await;
    let consumer = start(&log.store, unique("a"), &table);
    acknowledged_in(&log, STREAM, 2).await;
    let consumer = restart(consumer, &log, &table).await;
    // Retention trims what the next batch of the stream needs.
    log.change(|log| log.collect(2, 0)).await;
    tokio::time::sleep(Duration::from_secs(61)).await;
    log.commit_to(OTHER, &[1]).await;
    tokio::time::sleep(Duration::from_secs(61)).await;
    acknowledged_in(&log, OTHER, 3).await;
    consumer.stop().await.expect("the owner goes on without the keys");
    assert_eq!(table.rows(), rows(&[0, 1, 2, 3, 4]));
}

#[tokio::test(start_paused = true)]
async fn owners_that_change_often_store_the_keys_of_a_silent_stream_too() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    log.commit_to(STREAM, &[3]).await;
    log.commit_to(OTHER, &[1]).await;
    let mut consumer = start(&log.store, unique("a"), &table);
    acknowledged_in(&log, STREAM, 2).await;
    // A snapshot is due after a minute.
    for round in 3..=6 {
        tokio::time::sleep(Duration::from_secs(20)).await;
        consumer = restart(consumer, &log, &table).await;
        log.commit_to(OTHER, &[1]).await;
        acknowledged_in(&log, STREAM, round).await;
    }
    needs(&log, 2).await;
    consumer.stop().await.unwrap();
}

/// Keeps 3 keys of a silent stream in a snapshot, and starts a successor that may remember only 2.
async fn successor_without_room(log: &mut Log, table: &Arc<Table>) -> Running {
    table.repeat_after(3);
    log.commit_to(STREAM, &[3]).await;
    let consumer = start(&log.store, unique("a"), table);
    acknowledged_in(log, STREAM, 1).await;
    tokio::time::sleep(Duration::from_secs(61)).await;
    log.commit_to(OTHER, &[1]).await;
    acknowledged_in(log, OTHER, 2).await;
    needs(log, 1).await;
    consumer.crash().await;
    let small = Config {
        unique_memory: 80,
        ..unique("next")
    };
    start(&log.store, small, table)
}

#[tokio::test(start_paused = true)]
async fn a_successor_loads_the_keys_of_a_silent_stream_with_its_next_batch() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    let consumer = successor_without_room(&mut log, &table).await;
    for round in 3..=5 {
        tokio::time::sleep(Duration::from_secs(61)).await;
        log.commit_to(OTHER, &[1]).await;
        acknowledged_in(&log, OTHER, round).await;
    }
    tokio::time::sleep(Duration::from_secs(61)).await;
    needs(&log, 5).await;
    // Nobody needs the log for the keys any more.
    log.change(|log| log.collect(5, 0)).await;
    assert!(!consumer.task.is_finished());
    log.commit_to(STREAM, &[1]).await;
    let ended = timeout(Duration::from_secs(60), consumer.task).await;
    let ended = ended.expect("there is no room for the keys").unwrap();
    assert!(
        matches!(ended, Err(ConsumeError::UniqueMemory { .. })),
        "{ended:?}"
    );

    // With room for them, the keys are those of the rows from before: rows 7 to 9 repeat rows 0 to 2.
    let consumer = start(&log.store, unique("last"), &table);
    log.commit_to(STREAM, &[2]).await;
    acknowledged_in(&log, STREAM, 7).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), rows(&[0, 1, 2, 3, 4, 5, 6]));
}

#[tokio::test(start_paused = true)]
async fn a_part_that_came_after_the_last_snapshot_is_not_passed_over() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    table.repeat_after(4);
    log.commit_to(STREAM, &[3]).await;
    let consumer = start(&log.store, unique("a"), &table);
    acknowledged_in(&log, STREAM, 1).await;
    tokio::time::sleep(Duration::from_secs(61)).await;
    log.commit_to(OTHER, &[1]).await;
    needs(&log, 1).await;
    // Row 4 has key 0 as row 0, and row 7 key 3.
    log.commit_to(STREAM, &[4]).await;
    acknowledged_in(&log, STREAM, 3).await;
    let consumer = restart(consumer, &log, &table).await;
    for round in 4..=5 {
        log.commit_to(OTHER, &[1]).await;
        acknowledged_in(&log, OTHER, round).await;
        tokio::time::sleep(Duration::from_secs(61)).await;
    }
    needs(&log, 4).await;
    let consumer = restart(consumer, &log, &table).await;
    // Keys 2, 3, 0 and 1.
    log.commit_to(STREAM, &[4]).await;
    acknowledged_in(&log, STREAM, 6).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), rows(&[0, 1, 2, 3, 7, 8, 9]));
}

#[tokio::test(start_paused = true)]
async fn the_keys_of_a_stream_that_is_silent_for_a_window_leave_the_memory() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    table.repeat_after(3);
    let mut registry = Registry::default();
    let consumer = Consumer::new(log.store.clone(), resting("a"), table.clone(), &mut registry).unwrap();
    let consumer = consumer.with_environment(Arc::new(Machine::new()));
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(consumer.run(shutdown.clone()));
    let keys = || metric_sum(&registry, "millpond_consumer_unique_keys ");
    for (round, silence) in [(1, 100), (2, 100), (3, 115)] {
        log.commit_to(STREAM, &[1]).await;
        acknowledged_in(&log, STREAM, round).await;
        assert_eq!(keys(), round.min(3), "round {round}");
        tokio::time::sleep(Duration::from_secs(silence)).await;
    }
    eventually("the keys leave the memory", async || keys() == 0).await;
    // They are in the snapshots.
    needs(&log, 3).await;
    log.change(|log| log.collect(3, 0)).await;

    // Rows 3 to 5 repeat them, with and without a restart.
    log.commit_to(STREAM, &[2]).await;
    acknowledged_in(&log, STREAM, 4).await;
    assert_eq!(keys(), 3);
    shutdown.cancel();
    running.await.unwrap().unwrap();
    let consumer = start(&log.store, resting("next"), &table);
    log.commit_to(STREAM, &[1]).await;
    acknowledged_in(&log, STREAM, 5).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), rows(&[0, 1, 2]));
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_comes_while_the_keys_leave_the_memory_loads_them_again() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    table.repeat_after(2);
    let (store, network) = log.store.behind(Faults::default());
    let consumer = start(&store, resting("a"), &table);
    log.commit_to(STREAM, &[2]).await;
    acknowledged_in(&log, STREAM, 1).await;
    // The next snapshot is written when the keys leave, after 110 s: one is written after 60 s, and another is not due before 120.
    tokio::time::sleep(Duration::from_secs(70)).await;
    needs(&log, 1).await;
    let mut held = network.hold(On::Create, "");
    log.commit_to(OTHER, &[1]).await;
    held.arrived().await;
    log.commit_to(STREAM, &[2]).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    held.release();
    acknowledged_in(&log, STREAM, 3).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), rows(&[0, 1, 2]));
}

#[tokio::test(start_paused = true)]
async fn the_keys_of_a_batch_that_waits_for_the_table_stay_in_memory() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::shut("table");
    table.repeat_after(2);
    log.commit_to(STREAM, &[1, 1]).await;
    let consumer = start(&log.store, resting("a"), &table);
    eventually("the batch is on its way", async || table.hanging() == 1).await;
    // Retention passes the batch, and later what its keys are followed by.
    for first in [2, 3] {
        log.commit_to(OTHER, &[1]).await;
        log.change(|log| log.collect(first, 0)).await;
        tokio::time::sleep(Duration::from_secs(121)).await;
    }
    log.commit_to(STREAM, &[2]).await;
    table.let_through(1 << 20);
    acknowledged_in(&log, STREAM, 5).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), rows(&[0, 1, 2, 3]));
}

#[tokio::test(start_paused = true)]
async fn a_silent_stream_with_a_damaged_snapshot_does_not_end_the_owner() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    let consumer = successor_without_room(&mut log, &table).await;
    consumer.crash().await;
    for snapshot in snapshots(&log).await {
        log.store.delete(&snapshot).await.unwrap();
        let damaged = vec!["damaged".into()];
        log.store.put_if_absent(&snapshot, damaged).await.unwrap();
    }
    let consumer = start(&log.store, unique("next"), &table);
    for round in 3..=4 {
        tokio::time::sleep(Duration::from_secs(61)).await;
        log.commit_to(OTHER, &[1]).await;
        acknowledged_in(&log, OTHER, round).await;
    }
    consumer.stop().await.expect("the owner goes on without the keys");
    assert_eq!(table.rows(), rows(&[0, 1, 2, 3, 4, 5]));
}

#[tokio::test(start_paused = true)]
async fn a_reset_begins_without_keys_and_finds_the_rows_that_are_there() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    table.repeat_after(3);
    log.commit_to(STREAM, &[2, 2, 2, 2]).await;
    let consumer = start(&log.store, unique("a"), &table);
    acknowledged_in(&log, STREAM, 4).await;
    assert_eq!(table.rows(), rows(&[0, 1, 2]));

    // From sequence 1 on, rows 2, 3 and 4 are the first of their keys. Row 2 is in the table.
    log.reset("default", 1).await;
    eventually("the fenced owner begins again", async || {
        log.cursor("default")
            .await
            .is_some_and(|cursor| cursor.next(STREAM) >= 4)
    })
    .await;
    assert_eq!(table.rows(), rows(&[0, 1, 2, 3, 4]));

    // A successor after the reset does not know the keys from before it either.
    let consumer = restart(consumer, &log, &table).await;
    log.commit_to(STREAM, &[3]).await;
    acknowledged_in(&log, STREAM, 5).await;
    assert_eq!(table.rows(), rows(&[0, 1, 2, 3, 4]));
    log.reset("default", 5).await;
    log.commit_to(STREAM, &[2]).await;
    acknowledged_in(&log, STREAM, 6).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), rows(&[0, 1, 2, 3, 4, 11, 12]));
    let cursor = log.cursor("default").await.unwrap();
    let (_, of) = cursor.deduplicates(STREAM).unwrap();
    assert_eq!((of.since, of.deduplicated_from, of.duplicates), (5, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_skipped_part_has_no_keys_for_a_successor_either() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    table.repeat_after(4);
    let consumer = start(&log.store, unique("a"), &table);
    // Rows 0 and 1.
    log.commit_to(STREAM, &[2]).await;
    acknowledged_in(&log, STREAM, 1).await;
    consumer.stop().await.unwrap();
    // Rows 2 and 3, whose segment is left out, then rows 4 to 7 with all four keys.
    log.commit_to(STREAM, &[2]).await;
    log.skip("default", 1).await;
    log.commit_to(STREAM, &[4]).await;
    let consumer = start(&log.store, unique("b"), &table);
    acknowledged_in(&log, STREAM, 3).await;
    assert_eq!(table.rows(), rows(&[0, 1, 6, 7]));
    // No snapshot has the keys, so the successor reads the log again, without the part.
    let consumer = restart(consumer, &log, &table).await;
    log.commit_to(STREAM, &[4]).await;
    acknowledged_in(&log, STREAM, 4).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), rows(&[0, 1, 6, 7]));
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_read_later_keeps_all_rows_from_before_its_setting_begins() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    table.repeat_after(2);
    // Rows 0 and 1, 3 to 5.
    log.commit_to(STREAM, &[2]).await;
    log.commit_to(OTHER, &[1]).await;
    log.commit_to(STREAM, &[3]).await;
    log.commit_to(OTHER, &[1]).await;
    let others = Config {
        streams: vec![OTHER.parse().unwrap()],
        ..unique("a")
    };
    let consumer = start(&log.store, others, &table);
    acknowledged_in(&log, OTHER, 4).await;

    let consumer = restart(consumer, &log, &table).await;
    acknowledged_in(&log, STREAM, 4).await;
    let cursor = log.cursor("default").await.unwrap();
    assert_eq!(cursor.deduplicates(STREAM).unwrap().1.since, 4);
    assert_eq!(table.rows(), rows(&[0, 1, 2, 3, 4, 5, 6]), "none is compared");
    // The beginning moves along once more.
    log.commit_to(OTHER, &[1]).await;
    acknowledged_in(&log, STREAM, 5).await;
    let cursor = log.cursor("default").await.unwrap();
    assert_eq!(cursor.deduplicates(STREAM).unwrap().1.since, 5);
    // Rows 8 to 11 have the first two keys, and only these are remembered, by a snapshot in the end.
    log.commit_to(STREAM, &[1, 3]).await;
    acknowledged_in(&log, STREAM, 7).await;
    tokio::time::sleep(Duration::from_secs(61)).await;
    needs(&log, 7).await;
    let consumer = restart(consumer, &log, &table).await;
    log.commit_to(STREAM, &[2]).await;
    acknowledged_in(&log, STREAM, 8).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), rows(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]));
}

#[tokio::test(start_paused = true)]
async fn a_setting_without_a_batch_needs_nothing_before_its_position() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    table.repeat_after(2);
    log.commit_to(STREAM, &[1]).await;
    let without = Config {
        unique: BTreeMap::new(),
        ..unique("a")
    };
    let consumer = start(&log.store, without, &table);
    acknowledged_in(&log, STREAM, 1).await;
    consumer.stop().await.unwrap();

    let consumer = start(&log.store, unique("b"), &table);
    log.commit_to(OTHER, &[1, 1, 1]).await;
    acknowledged_in(&log, STREAM, 4).await;
    needs(&log, 4).await;
    log.change(|log| log.collect(4, 0)).await;
    // Rows 4 and 5, whose keys nobody has seen under the setting, and row 6.
    log.commit_to(STREAM, &[3]).await;
    acknowledged_in(&log, STREAM, 5).await;
    let consumer = restart(consumer, &log, &table).await;
    log.commit_to(STREAM, &[1]).await;
    acknowledged_in(&log, STREAM, 6).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), rows(&[0, 1, 2, 3, 4, 5]));
}

#[tokio::test(start_paused = true)]
async fn restarts_do_not_delay_a_snapshot() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    let machine = Machine::new();
    let mut consumer = start_on(&machine, &log.store, unique("a"), &table);
    for round in 1..=6 {
        log.commit_to(STREAM, &[1]).await;
        acknowledged_in(&log, STREAM, round).await;
        // The snapshot of a window of an hour is due after a minute.
        tokio::time::sleep(Duration::from_secs(40)).await;
        machine.pause(Duration::from_secs(40));
        consumer.crash().await;
        consumer = start_on(&machine, &log.store, unique("next"), &table);
    }
    needs(&log, 4).await;
    consumer.stop().await.unwrap();
}

/// Two segments in one batch whose INSERT hangs, the first of which retention trims, and then a segment that repeats both rows.
async fn cut_in_flight(log: &mut Log) -> (Arc<Table>, Running) {
    let table = Table::shut("table");
    table.repeat_after(2);
    log.commit_to(STREAM, &[1, 1]).await;
    let consumer = start(&log.store, unique("a"), &table);
    eventually("the batch is on its way", async || table.hanging() == 1).await;
    log.change(|log| log.collect(1, 0)).await;
    log.commit_to(STREAM, &[2]).await;
    // For longer than a lease, and than snapshots wait.
    tokio::time::sleep(Duration::from_secs(121)).await;
    (table, consumer)
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_retention_cuts_in_flight_takes_no_later_copies_with_it() {
    let mut log = Log::new(Store::memory()).await;
    let (table, consumer) = cut_in_flight(&mut log).await;
    consumer.crash().await;
    // The successor cannot read the keys of the first rows, and must not take them for written.
    table.let_through(1 << 20);
    let successor = start(&log.store, unique("next"), &table);
    let lost = tokio::time::timeout(Duration::from_secs(60), successor.task).await;
    assert!(
        matches!(lost, Ok(Ok(Err(ConsumeError::UniqueLost { .. })))),
        "the copies are dropped: {lost:?}"
    );
    log.reset("default", 2).await;
    let consumer = start(&log.store, unique("next"), &table);
    acknowledged_in(&log, STREAM, 3).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), rows(&[2, 3]));
}

/// A reset sets the position of all streams, and a sequence is one of a shard's.
#[tokio::test(start_paused = true)]
async fn the_reset_that_is_advised_passes_over_no_other_stream() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::shut("table");
    log.commit_to(STREAM, &[1]).await;
    let consumer = start(&log.store, unique("a"), &table);
    table.let_through(1);
    acknowledged_in(&log, STREAM, 1).await;
    log.commit_to(OTHER, &[1]).await;
    eventually("the other stream's batch is on its way", async || {
        table.hanging() == 1
    })
    .await;
    acknowledged_in(&log, STREAM, 2).await;
    assert_eq!(log.cursor("default").await.unwrap().next(OTHER), 1);
    consumer.crash().await;
    log.change(|log| log.collect(1, 0)).await;
    log.commit_to(STREAM, &[1]).await;
    let successor = start(&log.store, unique("next"), &table);
    let lost = tokio::time::timeout(Duration::from_secs(60), successor.task).await;
    let Ok(Ok(Err(lost @ ConsumeError::UniqueLost { .. }))) = lost else {
        panic!("the keys are not lost: {lost:?}");
    };
    assert!(
        lost.to_string().contains("reset default --shard 0 --to 1`"),
        "{lost}"
    );
}

/// Retention cuts batches that are done behind one whose INSERT hangs.
#[tokio::test]
async fn cut_batches_that_wait_for_another_one_count_as_in_flight() {
    let mut log = Log::new(Store::memory()).await;
    log.commit_to(STREAM, &[1; 8]).await;
    let manifest = log.manifest().await.state;
    let policy = single_records();
    let cursor = Cursor::new(manifest.buffer_id, 0, "default", 1, policy.clone());
    let opening = Opening {
        owner: "a",
        id: 7,
        now_ms: 1_700_000_000_000,
        lease_ms: 100,
        policy: &policy,
        unique: &unique("a").unique,
        take_over: true,
    };
    let mut cursor = cursor.open(&opening).unwrap().state;
    let mut schedule = Schedule::after(&cursor);
    let mut decide = |schedule: &mut Schedule, manifest: &Manifest| {
        let log = millpond_manifest::Log::new(manifest.clone());
        let room = Room { writers: 8, ahead: 0 };
        let decision = schedule.decide(&cursor, &log, &|_| true, Mode::Working, room);
        for (stream, next) in decision.acknowledge {
            cursor.acknowledge(&stream, next).unwrap();
        }
        for (stream, plan) in &decision.plans {
            cursor.plan(stream, *plan).unwrap();
            schedule.started((stream.clone(), *plan));
            if plan.low > 1 {
                schedule.finished(&(stream.clone(), *plan));
            }
        }
        cursor.planned(STREAM).count()
    };
    assert_eq!(decide(&mut schedule, &manifest), 4);
    let trimmed = manifest.collect(4, 0);
    for _ in 0..3 {
        let plans = decide(&mut schedule, &trimmed);
        assert_eq!(plans, 4, "the first batch waits, and further ones are planned");
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_retention_cuts_in_flight_may_arrive_after_all() {
    let mut log = Log::new(Store::memory()).await;
    let (table, consumer) = cut_in_flight(&mut log).await;
    table.let_through(1 << 20);
    acknowledged_in(&log, STREAM, 3).await;
    needs(&log, 3).await;
    let consumer = restart(consumer, &log, &table).await;
    log.commit_to(STREAM, &[2]).await;
    acknowledged_in(&log, STREAM, 4).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), rows(&[0, 1]));
}

#[tokio::test(start_paused = true)]
async fn a_successor_reads_few_bytes_again_though_few_keys_are_new() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    table.repeat_after(1);
    let of = |instance| {
        let mut config = unique(instance);
        // A snapshot is due after four hours.
        config.unique.get_mut(STREAM).unwrap().window_ms = 300 * 24 * 3_600_000;
        config.snapshot_bytes = 1_000;
        config
    };
    let consumer = start(&log.store, of("a"), &table);
    for round in 1..=20 {
        log.commit_to(STREAM, &[10]).await;
        acknowledged_in(&log, STREAM, round).await;
    }
    needs(&log, 10).await;
    consumer.crash().await;
    let consumer = start(&log.store, of("next"), &table);
    log.commit_to(STREAM, &[10]).await;
    acknowledged_in(&log, STREAM, 21).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), rows(&[0]));
}

#[tokio::test(start_paused = true)]
async fn merged_snapshots_have_the_keys_of_those_that_they_replace() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    table.repeat_after(12);
    let of = |instance| Config {
        snapshot_keys: 1,
        snapshots_named: 3,
        ..unique(instance)
    };
    let consumer = start(&log.store, of("a"), &table);
    for round in 1..=12 {
        log.commit_to(STREAM, &[1]).await;
        acknowledged_in(&log, STREAM, round).await;
    }
    needs(&log, 12).await;
    consumer.crash().await;
    let consumer = start(&log.store, of("next"), &table);
    log.commit_to(STREAM, &[12]).await;
    acknowledged_in(&log, STREAM, 13).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), rows(&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]));
}
