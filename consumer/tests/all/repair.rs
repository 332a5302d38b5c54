//! A repair inserts the missing rows of an acknowledged range once, whatever runs beside it and wherever it is killed.

use crate::support::{
    Fault, Log, OTHER, Running, STREAM, Table, acknowledged, config, eventually, put, start,
};
use millpond_consumer::gc::{GarbageCollector, GcConfig};
use millpond_consumer::schedule::{Mode, Room, Schedule};
use millpond_consumer::{BatchingPolicy, Config, ConsumeError, Consumer, Programs, Repair, Tally};
use millpond_manifest::cursor::{Ownership, SENT_UNKNOWN};
use millpond_manifest::{Cursor, Manifest, layout};
use millpond_storage::Store;
use millpond_storage::unreliable::{Faults, On};
use prometheus_client::registry::Registry;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The name of the repair's cursor.
const REPAIR: &str = "default.repair";

fn repair_of(instance: &str, range: RangeInclusive<u64>) -> Config {
    Config {
        repair: Some(Repair {
            ranges: BTreeMap::from([(0, range)]),
            other_programs: false,
        }),
        ..config(instance)
    }
}

fn begin(store: &Store, config: Config, table: &Arc<Table>) -> (Running, Tally) {
    let consumer = Consumer::new(store.clone(), config, table.clone(), &mut Registry::default()).unwrap();
    let (tally, readiness, shutdown) = (consumer.tally(), consumer.readiness(), CancellationToken::new());
    let running = Running {
        task: tokio::spawn(consumer.run(shutdown.clone())),
        shutdown,
        readiness,
    };
    (running, tally)
}

/// Returns the counts: rows found, rows inserted, dead letters, shards done.
fn counts(tally: &Tally) -> [u64; 4] {
    [
        tally.found(),
        tally.inserted(),
        tally.dead_letters(),
        tally.shards(),
    ]
}

/// Runs a repair to its end.
async fn repair(log: &Log, config: Config, table: &Arc<Table>) -> Result<[u64; 4], ConsumeError> {
    let (running, tally) = begin(&log.store, config, table);
    tokio::time::timeout(Duration::from_secs(60), running.task)
        .await
        .expect("a repair ends by itself")
        .unwrap()?;
    Ok(counts(&tally))
}

async fn refused(log: &Log, config: Config, table: &Arc<Table>) -> String {
    let error = repair(log, config, table).await.unwrap_err();
    assert!(matches!(error, ConsumeError::Repair { .. }), "{error}");
    error.to_string()
}

/// Creates a log that a consumer has read to its end.
async fn read(sizes: &[u64]) -> (Log, Arc<Table>) {
    read_by(None, sizes).await
}

/// Creates a log that a consumer with this program has read to its end.
async fn read_by(program: Option<u8>, sizes: &[u64]) -> (Log, Arc<Table>) {
    let mut log = Log::new(Store::memory()).await;
    log.commit(sizes).await;
    let table = Table::open("table");
    table.program(STREAM, program);
    let consumer = start(&log.store, config("a"), &table);
    acknowledged(&log, sizes.len() as u64).await;
    consumer.stop().await.unwrap();
    (log, table)
}

/// Every row would look missing there.
#[tokio::test]
async fn a_repair_of_tables_that_the_consumer_does_not_write_to_is_refused() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let [one, two] = ["one", "two"].map(Table::open);
    one.identify(&["one"]);
    two.identify(&["two"]);
    let consumer = start(&log.store, config("a"), &one);
    acknowledged(&log, 1).await;
    consumer.stop().await.unwrap();
    let error = refused(&log, repair_of("b", 0..=0), &two).await;
    assert!(
        error.contains("the consumer does not write to table two"),
        "{error}"
    );
    assert!(two.rows().is_empty());
    // A replica that it did not know makes no other table of it.
    one.identify(&["one", "another replica"]);
    let done = repair(&log, repair_of("b", 0..=0), &one).await.unwrap();
    assert_eq!(done, [3, 0, 0, 1]);
}

/// Rows that the consumer's program drops or changes would be stored as they are.
#[tokio::test]
async fn a_repair_with_other_programs_than_the_consumers_is_refused() {
    for (theirs, ours, words) in [
        (Some(1), Some(2), "the consumer has another program for it"),
        (
            Some(1),
            None,
            "the consumer has a program for it, and none is given",
        ),
        (
            None,
            Some(2),
            "the consumer has no program for it, and one is given",
        ),
    ] {
        let (log, table) = read_by(theirs, &[3]).await;
        table.delete(1);
        table.program(STREAM, ours);
        // It has a program for a stream that is not there.
        table.program(OTHER, Some(3));
        let error = refused(&log, repair_of("r", 0..=0), &table).await;
        assert!(
            error.contains(words)
                && error.contains("stream events.test: ")
                && error.contains("--other-transform"),
            "{error}"
        );
        assert_eq!(log.cursor(REPAIR).await, None, "a refusal leaves no cursor");
        assert_eq!(table.rows().len(), 2);
        let mut meant = repair_of("r", 0..=0);
        meant.repair.as_mut().unwrap().other_programs = true;
        assert_eq!(repair(&log, meant, &table).await.unwrap(), [2, 1, 0, 1]);

        table.delete(1);
        table.program(STREAM, theirs);
        let done = repair(&log, repair_of("r", 0..=0), &table).await.unwrap();
        assert_eq!(done, [2, 1, 0, 1], "the consumer's own");
    }
}

/// An older program wrote its cursor.
#[tokio::test]
async fn a_repair_of_a_consumer_with_unknown_programs_goes_on() {
    let (log, table) = read_by(Some(1), &[3]).await;
    log.change_cursor("default", |cursor| Cursor {
        programs: None,
        ..cursor.clone()
    })
    .await;
    table.delete(1);
    table.program(STREAM, None);
    let done = repair(&log, repair_of("r", 0..=0), &table).await.unwrap();
    assert_eq!(done, [2, 1, 0, 1]);
}

/// The consumer starts with another program while the repair opens its cursor.
#[tokio::test]
async fn a_repair_compares_programs_again_after_its_opening() {
    let (log, table) = read_by(Some(1), &[3]).await;
    table.delete(1);
    let (store, network) = log.store.behind(Faults::default());
    let checks_before = network.hold(On::Get, "manifest");
    let mut checks_as_owner = network.hold(On::Get, "manifest");
    checks_before.release();
    let (running, _) = begin(&store, repair_of("r", 0..=0), &table);
    checks_as_owner.arrived().await;
    log.change_cursor("default", |cursor| Cursor {
        programs: Some(Programs::new()),
        ..cursor.clone()
    })
    .await;
    checks_as_owner.release();
    let error = running.task.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("has no program for it"), "{error}");
    assert!(log.cursor(REPAIR).await.unwrap().is_removed());
    assert_eq!(table.rows().len(), 2);
}

/// The rows of the range are those of other records: none would be missing.
#[tokio::test]
async fn a_repair_compares_with_no_other_log() {
    let (mut log, table) = read(&[3, 25, 1]).await;
    let read_log = log.manifest().await.state;
    let restored = Manifest {
        tail: read_log.tail[..1].to_vec(),
        next_sequence: 1,
        ..read_log.clone()
    };
    put(&log, &restored).await;
    log.commit(&[25, 1, 1]).await;
    let error = repair(&log, repair_of("r", 0..=2), &table).await.unwrap_err();
    assert!(
        matches!(error, ConsumeError::OtherLog { sequence: 2, .. }),
        "{error}"
    );
}

#[tokio::test]
async fn deleted_rows_come_back_once() {
    let (log, table) = read(&[3, 25, 1, 2, 12]).await;
    for row in [0, 4, 27, 28, 42] {
        table.delete(row);
    }
    assert_eq!(
        repair(&log, repair_of("r", 0..=4), &table).await.unwrap(),
        [38, 5, 0, 1]
    );
    assert_eq!(table.rows(), log.rows());
    let cursor = log.cursor(REPAIR).await.unwrap();
    assert!(cursor.is_removed() && !cursor.unsettled, "{cursor:?}");
    assert_eq!(log.cursor("default").await.unwrap().next(STREAM), 5);
    // Rows that are deleted again return again: no token of the first repair blocks them.
    table.delete(4);
    assert_eq!(
        repair(&log, repair_of("r", 0..=4), &table).await.unwrap(),
        [42, 1, 0, 1]
    );
    assert_eq!(table.rows(), log.rows());
    assert_eq!(
        repair(&log, repair_of("r", 0..=4), &table).await.unwrap(),
        [43, 0, 0, 1]
    );
}

/// The rows of the other segments stay as they are, even where a batch of the consumer crossed the end of the range.
#[tokio::test]
async fn only_the_range_is_repaired() {
    let (log, table) = read(&[2, 2, 2, 2, 2]).await;
    for row in 0..10 {
        table.delete(row);
    }
    assert_eq!(
        repair(&log, repair_of("r", 1..=3), &table).await.unwrap(),
        [0, 6, 0, 1]
    );
    let expected: BTreeMap<_, _> = (2..8).map(|row| (format!("row-{row}"), 1)).collect();
    assert_eq!(table.rows(), expected);
}

#[tokio::test]
async fn a_poisoned_token_of_a_repair_loses_nothing() {
    let (log, table) = read(&[4, 25]).await;
    (0..29).for_each(|row| table.delete(row));
    table.fail_next(&[
        Fault::Poisons,
        Fault::LandsInPart,
        Fault::LandsUnreported,
        Fault::Down,
    ]);
    let [found, inserted, ..] = repair(&log, repair_of("r", 0..=1), &table).await.unwrap();
    assert_eq!(
        (found, inserted),
        (0, 29),
        "the repair counts its own rows as found"
    );
    assert_eq!(table.rows(), log.rows());
}

#[tokio::test]
async fn a_killed_repair_goes_on_where_it_was() {
    let (log, table) = read(&[8, 8, 8, 8]).await;
    (0..32).for_each(|row| table.delete(row));
    let shut = Table::shut("table");
    // One batch at a time, in two chunks.
    let one_by_one = Config {
        max_in_flight: 1,
        ..repair_of("r", 0..=3)
    };
    let (first, _) = begin(&log.store, one_by_one, &shut);
    shut.let_through(2);
    eventually("something is acknowledged", async || {
        let cursor = log.cursor(REPAIR).await;
        cursor.is_some_and(|cursor| cursor.next(STREAM) > 0)
    })
    .await;
    first.crash().await;
    let cursor = log.cursor(REPAIR).await.unwrap();
    let left = 32 - cursor.next(STREAM) * 8;
    assert!(matches!(cursor.ownership, Ownership::Held { .. }));
    // Another range would leave out a part of the first one.
    let message = refused(&log, repair_of("r", 1..=3), &table).await;
    assert!(
        message.contains("finish it with --from 0") && message.contains("consumer remove default.repair"),
        "{message}"
    );
    assert_eq!(
        repair(&log, repair_of("r", 0..=3), &table).await.unwrap(),
        [0, left, 0, 1]
    );
    assert_eq!(table.rows().len() as u64, left);
    assert!(log.cursor(REPAIR).await.unwrap().is_removed());
}

#[tokio::test]
async fn a_stopped_repair_releases_its_cursor_and_goes_on() {
    let (log, table) = read(&[8, 8, 8, 8]).await;
    (0..32).for_each(|row| table.delete(row));
    for allowed in 1..=6 {
        // The table takes some requests, and then hangs.
        let stuck = Config {
            drain_timeout: Duration::ZERO,
            ..repair_of("r", 0..=3)
        };
        table.fail_next(&vec![Fault::LandsUnreported; allowed]);
        let (running, tally) = begin(&log.store, stuck, &table);
        tokio::time::sleep(Duration::from_millis(20)).await;
        running.stop().await.unwrap();
        if tally.shards() == 1 {
            break;
        }
        let cursor = log.cursor(REPAIR).await.unwrap();
        assert!(!matches!(cursor.ownership, Ownership::Held { .. }), "{cursor:?}");
        table.heal();
    }
    repair(&log, repair_of("r", 0..=3), &table).await.unwrap();
    assert_eq!(table.rows(), log.rows());
}

#[tokio::test]
async fn two_repairs_at_once_double_nothing() {
    let (log, table) = read(&[8, 8, 8, 8]).await;
    (0..32).step_by(3).for_each(|row| table.delete(row));
    let (first, ours) = begin(&log.store, repair_of("one", 0..=3), &table);
    let (second, theirs) = begin(&log.store, repair_of("two", 0..=3), &table);
    first.task.await.unwrap().unwrap();
    second.task.await.unwrap().unwrap();
    assert_eq!(table.rows(), log.rows());
    assert_eq!(ours.inserted() + theirs.inserted(), 11, "{ours:?}, {theirs:?}");
    assert_eq!((ours.shards(), theirs.shards()), (1, 1));
}

#[tokio::test]
async fn a_repair_beside_a_living_consumer_disturbs_nothing() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[8, 8]).await;
    let table = Table::open("table");
    let consumer = start(&log.store, config("a"), &table);
    acknowledged(&log, 2).await;
    for round in 0..5 {
        table.delete(round);
        let (repair, tally) = begin(&log.store, repair_of("r", 0..=1), &table);
        for _ in 0..10 {
            log.commit(&[3]).await;
        }
        repair.task.await.unwrap().unwrap();
        assert_eq!(tally.inserted(), 1);
    }
    acknowledged(&log, 52).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
    let ended = table.settled().into_iter().filter(|(_, spared)| spared.is_some());
    assert_eq!(ended.count(), 0, "the owner lives: its requests are not ended");
}

#[tokio::test]
async fn requests_of_a_dead_consumer_are_ended_first() {
    let (log, table) = read(&[8]).await;
    let mut log = log;
    log.commit(&[8]).await;
    let shut = Table::shut("table");
    let lease = Duration::from_millis(200);
    let consumer = start(&log.store, Config { lease, ..config("b") }, &shut);
    eventually("a request is in flight", async || shut.begun() > 0).await;
    consumer.crash().await;
    tokio::time::sleep(lease).await;
    table.delete(3);
    assert_eq!(
        repair(&log, repair_of("r", 0..=0), &table).await.unwrap(),
        [7, 1, 0, 1]
    );
    let mut settled = table.settled();
    settled.retain(|(_, spared)| spared.is_some());
    let [(all, _)] = &settled[..] else {
        panic!("{settled:?}")
    };
    assert!(all.ends_with("/0000/default/"), "{all}");
}

#[tokio::test]
async fn ranges_that_cannot_be_repaired_are_refused() {
    let (mut log, table) = read(&[8, 8]).await;
    log.commit(&[8]).await;
    let message = refused(&log, repair_of("r", 0..=2), &table).await;
    assert!(
        message.contains("has acknowledged events.test only below sequence 2"),
        "{message}"
    );
    let message = refused(&log, repair_of("r", 1..=3), &table).await;
    assert!(
        message.contains("1 to 3 is not in the log, which has sequences 0 to 2"),
        "{message}"
    );
    assert_eq!(log.cursor(REPAIR).await, None, "a refusal leaves no cursor");
    log.change(|log| log.collect(1, 0)).await;
    let message = refused(&log, repair_of("r", 0..=1), &table).await;
    assert!(
        message.contains("no longer holds sequences before 1"),
        "{message}"
    );
    log.reset("default", 1).await;
    let message = refused(&log, repair_of("r", 1..=1), &table).await;
    assert!(message.contains("only below sequence 1"), "{message}");
    log.remove("default").await;
    let message = refused(&log, repair_of("r", 1..=1), &table).await;
    assert!(message.contains("the consumer has never read it"), "{message}");
    for config in [config("a"), repair_of("r", 0..=0)] {
        let named = Config {
            consumer: REPAIR.into(),
            ..config
        };
        let made = Consumer::new(log.store.clone(), named, table.clone(), &mut Registry::default());
        assert!(matches!(made.err(), Some(ConsumeError::Name(_))));
    }
}

#[tokio::test]
async fn what_a_lost_cursor_may_have_dropped_is_not_repaired() {
    let (mut log, table) = read(&[8, 8]).await;
    // As after a forced removal of a cursor that could not be read, and another start.
    log.change_cursor("default", |cursor| Cursor {
        deduplicated_below: SENT_UNKNOWN,
        ..cursor.clone()
    })
    .await;
    table.delete(3);
    let consumer = start(&log.store, config("again"), &table);
    log.commit(&[8]).await;
    acknowledged(&log, 3).await;
    consumer.stop().await.unwrap();
    let below = log.cursor("default").await.unwrap().deduplicated_below;
    assert!((2..=3).contains(&below), "{below}");
    let refused = repair(&log, repair_of("r", 0..=1), &table).await;
    let Err(refused @ ConsumeError::Repair { .. }) = refused else {
        panic!("it inserts dropped rows: {refused:?}")
    };
    assert!(refused.to_string().contains("below sequence"), "{refused}");
    log.commit(&[8]).await;
    let consumer = start(&log.store, config("again"), &table);
    acknowledged(&log, 4).await;
    consumer.stop().await.unwrap();
    repair(&log, repair_of("r", 3..=3), &table).await.unwrap();
}

/// A repair leaves out skipped parts and streams that the consumer does not read.
#[tokio::test]
async fn a_repair_keeps_to_what_the_consumer_reads() {
    let mut log = Log::new(Store::memory()).await;
    log.commit_one(&[(STREAM, 4), (OTHER, 4)]).await;
    log.commit(&[4]).await;
    let table = Table::open("table");
    let own = Config {
        streams: vec![STREAM.parse().unwrap()],
        ..config("a")
    };
    let consumer = start(&log.store, own.clone(), &table);
    acknowledged(&log, 2).await;
    consumer.stop().await.unwrap();
    log.commit(&[4]).await;
    log.skip("default", 2).await;
    let consumer = start(&log.store, own, &table);
    acknowledged(&log, 3).await;
    consumer.stop().await.unwrap();
    table.delete(0);
    assert_eq!(
        repair(&log, repair_of("r", 0..=2), &table).await.unwrap(),
        [7, 1, 0, 1]
    );
    let rows: Vec<u64> = (0..4).chain(8..12).collect();
    let expected: BTreeMap<_, _> = rows.iter().map(|row| (format!("row-{row}"), 1)).collect();
    assert_eq!(table.rows(), expected);
}

#[tokio::test]
async fn dead_letters_are_counted_and_written_once() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[8]).await;
    let table = Table::open("table");
    table.forbid(&[2]);
    table.cannot_read(&[5]);
    let consumer = start(&log.store, config("a"), &table);
    acknowledged(&log, 1).await;
    consumer.stop().await.unwrap();
    let dead_letters = log.dead_letters().await;
    assert_eq!(dead_letters.len(), 2);
    table.delete(7);
    assert_eq!(
        repair(&log, repair_of("r", 0..=0), &table).await.unwrap(),
        [5, 1, 2, 1]
    );
    assert_eq!(log.dead_letters().await, dead_letters);
}

#[tokio::test]
async fn gc_keeps_what_an_unfinished_repair_needs() {
    let (log, table) = read(&[8, 8, 8]).await;
    table.delete(9);
    table.fail_next(&[Fault::Down; 1_000]);
    let (running, _) = begin(&log.store, repair_of("r", 1..=1), &table);
    eventually("it has its cursor", async || log.cursor(REPAIR).await.is_some()).await;
    running.crash().await;
    let config = GcConfig {
        interval: Duration::from_secs(3_600),
        grace: Duration::ZERO,
        max_age: None,
    };
    let mut gc = GarbageCollector::new(log.store.clone(), config, &mut Registry::default());
    gc.round(false).await.unwrap();
    assert_eq!(log.manifest().await.state.first_sequence, 1);
    table.heal();
    assert_eq!(
        repair(&log, repair_of("r", 1..=1), &table).await.unwrap(),
        [7, 1, 0, 1]
    );
    gc.round(false).await.unwrap();
    assert_eq!(log.manifest().await.state.first_sequence, 3);
}

#[tokio::test]
async fn a_repair_whose_cursor_is_removed_ends() {
    let (log, table) = read(&[8, 8]).await;
    (0..16).for_each(|row| table.delete(row));
    let shut = Table::shut("table");
    // The next repair waits for as long as this one may continue to send.
    let brief = Config {
        lease: Duration::from_millis(200),
        ..repair_of("r", 0..=1)
    };
    let (running, tally) = begin(&log.store, brief.clone(), &shut);
    eventually("a request is in flight", async || shut.begun() > 0).await;
    log.remove(REPAIR).await;
    shut.let_through(100);
    let error = running.task.await.unwrap();
    // The repair found all rows in the sink, or ended when its cursor was removed.
    assert!(tally.shards() == 1 || matches!(error, Err(ConsumeError::Removed { .. })));
    assert!(log.cursor(REPAIR).await.unwrap().unsettled);
    repair(&log, brief, &shut).await.unwrap();
    assert_eq!(shut.rows(), log.rows());
    let ended = shut.settled().into_iter().filter(|(_, spared)| spared.is_some());
    assert_eq!(ended.count(), 1, "its requests may have been under way");
}

/// A repair takes over from a crashed one, whose request may still land, and only then finds that it must not repair. Its
/// tombstone makes the next repair end that request first.
#[tokio::test]
async fn a_repair_that_gives_up_leaves_its_predecessors_requests_unsettled() {
    let (log, _) = read(&[8]).await;
    let table = Table::shut("table");
    let brief = Config {
        lease: Duration::from_millis(200),
        ..repair_of("r", 0..=0)
    };
    let (first, _) = begin(&log.store, brief.clone(), &table);
    eventually("a request is in flight", async || table.begun() > 0).await;
    first.crash().await;

    let (store, network) = log.store.behind(Faults::default());
    let checks_before = network.hold(On::Get, "manifest");
    let mut checks_as_owner = network.hold(On::Get, "manifest");
    checks_before.release();
    let (second, _) = begin(&store, brief.clone(), &table);
    checks_as_owner.arrived().await;
    // The consumer now sends these rows itself.
    log.reset("default", 0).await;
    checks_as_owner.release();
    let error = second.task.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("only below sequence 0"), "{error}");
    let cursor = log.cursor(REPAIR).await.unwrap();
    assert!(cursor.is_removed() && cursor.unsettled, "{cursor:?}");

    table.let_through(100);
    let consumer = start(&log.store, config("b"), &table);
    acknowledged(&log, 1).await;
    consumer.stop().await.unwrap();
    let settled = |table: &Table| {
        let all = table.settled().into_iter();
        all.filter(|(_, spared)| spared.is_some()).count()
    };
    let before = settled(&table);
    repair(&log, brief, &table).await.unwrap();
    assert_eq!(
        settled(&table),
        before + 1,
        "the crashed repair's request may have been under way"
    );
    assert_eq!(table.rows(), log.rows());
}

/// A range over many pages, of which the repair loads a few at a time.
#[tokio::test]
async fn a_range_over_many_pages_is_repaired() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3; 40]).await;
    log.seal(4).await;
    let table = Table::open("table");
    let consumer = start(&log.store, config("a"), &table);
    acknowledged(&log, 40).await;
    consumer.stop().await.unwrap();
    (0..120).step_by(7).for_each(|row| table.delete(row));
    assert_eq!(
        repair(&log, repair_of("r", 5..=33), &table).await.unwrap(),
        [75, 12, 0, 1]
    );
    assert_eq!(
        repair(&log, repair_of("r", 0..=39), &table).await.unwrap(),
        [114, 6, 0, 1]
    );
    assert_eq!(table.rows(), log.rows());
}

#[tokio::test]
async fn a_schedule_plans_nothing_from_its_end_on() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3; 6]).await;
    let manifest = log.manifest().await.state;
    let policy = BatchingPolicy {
        batch_records: 100,
        batch_bytes: 1 << 20,
        chunk_rows: 4,
        chunk_bytes: 1 << 20,
        max_partitions_per_chunk: 50,
        max_in_flight: 16,
        sink: "table".into(),
        schema_version: 1,
    };
    let mut cursor = Cursor::new(manifest.buffer_id, 0, REPAIR, 1, policy);
    let log = millpond_manifest::Log::new(manifest);
    let accepts = |_: &str| true;
    let room = Room { writers: 2, ahead: 8 };
    let mut schedule = Schedule::after(&cursor).until(Some(4));
    let decision = schedule.decide(&cursor, &log, &accepts, Mode::Working, room);
    let key = decision.plans[0].clone();
    assert_eq!((key.1.low, key.1.high, decision.plans.len()), (1, 3, 1));
    assert_eq!(decision.ahead, []);
    cursor.plan(STREAM, key.1).unwrap();
    assert!(!schedule.is_complete(&cursor, &log, &accepts));
    schedule.started(key.clone());
    schedule.finished(&key);
    assert!(schedule.is_complete(&cursor, &log, &accepts));
    let decision = schedule.decide(&cursor, &log, &accepts, Mode::Working, room);
    assert_eq!(decision.acknowledge, [(STREAM.to_owned(), 4)]);
    assert_eq!(decision.plans, []);
    // A repair still finishes a batch that an earlier repair planned beyond the end.
    let plan = millpond_manifest::cursor::Plan { low: 4, high: 4 };
    cursor.plan(STREAM, plan).unwrap();
    let decision = schedule.decide(&cursor, &log, &accepts, Mode::Working, room);
    assert_eq!(decision.start, [(STREAM.to_owned(), plan)]);
    assert!(!schedule.is_complete(&cursor, &log, &accepts));
    assert_eq!(layout::repair("default"), REPAIR);
}
