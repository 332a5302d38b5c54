//! Rows that a table will never take, and unreadable messages: each is in one dead letter, and every other row is in
//! the table once. This holds through crashes and failures of the network and the table.

use crate::support::{Fault, Log, STREAM, Table, acknowledged, config, eventually, start};
use millpond_consumer::gc::{GarbageCollector, GcConfig};
use millpond_consumer::replay::{ReplayError, replay};
use millpond_consumer::{Config, ConsumeError, Repair, Sink, SinkError};
use millpond_manifest::dead_letter::Kind;
use millpond_manifest::{DeadLetter, cas, layout};
use millpond_segment::Encoding;
use millpond_storage::Store;
use millpond_storage::unreliable::{self, Faults, On, WriteFaults};
use prometheus_client::registry::Registry;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// One chunk per batch.
fn whole(instance: &str) -> Config {
    Config {
        chunk_rows: 1_000,
        ..config(instance)
    }
}

/// Returns the rows of the dead letters.
async fn dead(log: &Log) -> Vec<String> {
    let dead_letters = log.dead_letters().await.into_values();
    dead_letters
        .map(|letter| String::from_utf8(letter.payload.to_vec()).unwrap())
        .collect()
}

/// Checks that every row is in the table once, or in one dead letter.
async fn assert_delivered_or_dead(log: &Log, table: &Table, what: &str) {
    let mut rows = table.rows();
    for row in dead(log).await {
        *rows.entry(row).or_default() += 1;
    }
    assert_eq!(rows, log.rows(), "{what}");
}

#[tokio::test]
async fn refused_rows_become_dead_letters_and_the_table_gets_the_rest() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3, 20, 2, 30, 1]).await;
    let table = Table::open("table");
    table.forbid(&[0, 7, 8, 22, 55]);
    let consumer = start(&log.store, config("a"), &table);
    acknowledged(&log, 5).await;
    consumer.stop().await.unwrap();
    assert_delivered_or_dead(&log, &table, "once each").await;
    let mut found = dead(&log).await;
    found.sort();
    assert_eq!(found, ["row-0", "row-22", "row-55", "row-7", "row-8"]);
    let cursor = log.cursor("default").await.unwrap();
    assert!(
        cursor.refused.is_empty(),
        "the cursor keeps refusals of acknowledged batches"
    );
    for (key, letter) in log.dead_letters().await {
        assert_eq!(letter.key(), key);
        assert_eq!(
            (
                letter.kind,
                letter.reason.as_str(),
                letter.sink.as_str(),
                letter.consumer.as_str()
            ),
            (Kind::Refused, "bad rows", "table", "default")
        );
        let expected = match &letter.payload[..] {
            b"row-0" => 0,
            b"row-55" => 4,
            _ => 1,
        };
        assert_eq!((letter.sequence, letter.received_at_us), (expected, 1_000_000));
    }
}

#[tokio::test]
async fn messages_that_cannot_be_read_are_letters_as_they_are() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3, 20, 2]).await;
    let table = Table::open("table");
    table.cannot_read(&[1, 24]);
    table.forbid(&[2]);
    let consumer = start(&log.store, config("a"), &table);
    acknowledged(&log, 3).await;
    consumer.stop().await.unwrap();
    assert_delivered_or_dead(&log, &table, "once each").await;
    let kinds: BTreeMap<_, _> = log
        .dead_letters()
        .await
        .into_values()
        .map(|letter| (letter.payload.to_vec(), (letter.kind, letter.sequence)))
        .collect();
    assert_eq!(kinds[&b"row-1"[..]], (Kind::Unreadable, 0));
    assert_eq!(kinds[&b"row-24"[..]], (Kind::Unreadable, 2));
    assert_eq!(kinds[&b"row-2"[..]], (Kind::Refused, 0));
}

fn sink(table: &Arc<Table>) -> Arc<dyn Sink> {
    table.clone()
}

/// Runs a consumer over a log with a row that the table cannot read for now. Returns the key of the dead letter.
async fn letter_of(log: &Log, table: &Arc<Table>, row: u64) -> String {
    table.cannot_read(&[row]);
    let consumer = start(&log.store, config("a"), table);
    eventually("the consumer has written dead letters", async || {
        log.dead_letters().await.len() == 1
    })
    .await;
    consumer.stop().await.unwrap();
    table.cannot_read(&[]);
    log.dead_letters().await.into_keys().next().expect("the letter")
}

/// The rows of a replayed message have a separate source that no consumer can have.
#[tokio::test]
async fn a_replayed_message_is_not_taken_for_a_row_of_another_consumer() {
    let mut log = Log::new(Store::memory()).await;
    // A message may have several rows, and an event is one.
    log.encoding = Encoding::Otlp;
    log.commit(&[20]).await;
    let table = Table::open("table");
    let other = Config {
        consumer: "default.unreadable.5".into(),
        ..config("b")
    };
    let other = start(&log.store, other, &table);
    table.has(20).await;
    other.stop().await.unwrap();
    let key = letter_of(&log, &table, 5).await;
    assert_eq!(replay(&log.store, &sink(&table), &key).await.unwrap(), 1);
    assert_eq!(table.rows()["row-5"], 2, "each of two consumers has its row");
}

/// Otherwise a repair would store it again.
#[tokio::test]
async fn a_replayed_event_has_the_identity_of_its_row() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[20]).await;
    let table = Table::open("table");
    let key = letter_of(&log, &table, 5).await;
    assert_eq!(replay(&log.store, &sink(&table), &key).await.unwrap(), 1);
    log.reset("default", 0).await;
    let consumer = start(&log.store, config("b"), &table);
    acknowledged(&log, 1).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
}

#[tokio::test]
async fn a_letter_is_replayed_once_however_often_it_is_tried() {
    let mut log = Log::new(Store::memory()).await;
    let (store, network) = log.store.behind(Faults::default());
    log.commit(&[20, 3]).await;
    let table = Table::open("table");
    table.forbid(&[4]);
    table.cannot_read(&[21]);
    let consumer = start(&log.store, config("a"), &table);
    eventually("the consumer has written dead letters", async || {
        log.dead_letters().await.len() == 2
    })
    .await;
    consumer.stop().await.unwrap();
    let dead_letters = log.dead_letters().await;
    let key_of = |kind| {
        let mut found = dead_letters.iter().filter(|(_, letter)| letter.kind == kind);
        found.next().expect("a dead letter").0.clone()
    };
    let (refused, unreadable) = (key_of(Kind::Refused), key_of(Kind::Unreadable));

    let still = replay(&log.store, &sink(&table), &refused).await.unwrap_err();
    assert!(
        matches!(still, ReplayError::Sink(SinkError::Refused(_))),
        "{still}"
    );
    let other = replay(&log.store, &sink(&Table::open("other")), &refused)
        .await
        .unwrap_err();
    assert!(matches!(other, ReplayError::OtherSink { .. }), "{other}");
    let unread = replay(&log.store, &sink(&table), &unreadable).await.unwrap_err();
    assert!(matches!(unread, ReplayError::Unreadable(_)), "{unread}");
    assert_eq!(
        log.dead_letters().await,
        dead_letters,
        "a replay deleted a dead letter"
    );

    // The row lands and the answer is lost. Then the row is in the table, and the dead letter cannot be deleted.
    table.forbid(&[]);
    table.fail_next(&[Fault::LandsUnreported]);
    let lost = replay(&log.store, &sink(&table), &refused).await.unwrap_err();
    assert!(
        matches!(lost, ReplayError::Sink(SinkError::Transient(_))),
        "{lost}"
    );
    network.once(On::Delete, "", unreliable::Fault::Lost);
    let kept = replay(&store, &sink(&table), &refused).await.unwrap_err();
    assert!(matches!(kept, ReplayError::Delete(_)), "{kept}");
    assert_eq!(replay(&log.store, &sink(&table), &refused).await.unwrap(), 1);
    let gone = replay(&log.store, &sink(&table), &refused).await.unwrap_err();
    assert!(matches!(gone, ReplayError::Gone), "{gone}");

    // A program that can read the message makes a row of it.
    table.cannot_read(&[]);
    assert_eq!(replay(&log.store, &sink(&table), &unreadable).await.unwrap(), 1);
    assert_eq!(table.rows(), log.rows());
    assert!(log.dead_letters().await.is_empty());
}

/// The row would be the event as it came, or an event that the program drops.
#[tokio::test]
async fn a_letter_of_a_stream_with_a_program_is_not_replayed_without_one() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let table = Table::open("table");
    table.program(STREAM, Some(1));
    let key = letter_of(&log, &table, 1).await;
    table.program(STREAM, None);
    let bare = replay(&log.store, &sink(&table), &key).await.unwrap_err();
    assert!(
        matches!(bare, ReplayError::NoProgram(ref stream) if stream == STREAM),
        "{bare}"
    );
    assert_eq!(log.dead_letters().await.len(), 1);
    // A corrected one is the point of a replay.
    table.program(STREAM, Some(2));
    assert_eq!(replay(&log.store, &sink(&table), &key).await.unwrap(), 1);
    assert_eq!(table.rows(), log.rows());
}

/// The consumer may send the row itself, after a reset.
#[tokio::test]
async fn a_letter_is_not_replayed_before_its_batch_is_acknowledged() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let table = Table::open("table");
    table.forbid(&[1]);
    let consumer = start(&log.store, config("a"), &table);
    acknowledged(&log, 1).await;
    consumer.stop().await.unwrap();
    let key = log
        .dead_letters()
        .await
        .into_keys()
        .next()
        .expect("a dead letter");
    log.reset("default", 0).await;
    let early = replay(&log.store, &sink(&table), &key).await.unwrap_err();
    assert!(matches!(early, ReplayError::NotAcknowledged(0)), "{early}");
}

/// A writer of one consumer's dead letters could otherwise make an operator insert rows in the name of another.
/// Both would ask for the row, and both would insert it.
#[tokio::test]
async fn a_letter_is_not_replayed_beside_a_repair_that_may_send_its_row() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[20, 1, 1]).await;
    let table = Table::open("table");
    let key = letter_of(&log, &table, 5).await;
    acknowledged(&log, 3).await;
    let repair = Config {
        repair: Some(Repair {
            ranges: [(0, 0..=2)].into(),
            other_programs: false,
        }),
        ..config("repair")
    };
    let (store, network) = log.store.behind(Faults::default());
    let segment = log.manifest().await.state.tail[0].segment;
    let mut reading = network.hold(On::Get, &layout::segment(0, segment));
    let repair = start(&store, repair, &table);
    reading.arrived().await;
    let refused = replay(&log.store, &sink(&table), &key).await.unwrap_err();
    assert!(
        matches!(&refused, ReplayError::Repaired(by) if by == "default.repair"),
        "{refused}"
    );
    reading.release();
    repair.task.await.unwrap().unwrap();
    replay(&log.store, &sink(&table), &key).await.unwrap();
    assert_eq!(table.rows(), log.rows());
}

#[tokio::test]
async fn a_letter_is_replayed_under_its_own_name_and_in_its_own_buffer_alone() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let table = Table::open("table");
    table.forbid(&[1]);
    let consumer = start(&log.store, config("a"), &table);
    acknowledged(&log, 1).await;
    consumer.stop().await.unwrap();
    table.forbid(&[]);
    let (key, letter) = log.dead_letters().await.pop_first().expect("a dead letter");
    let rows = table.rows();

    let of_another = key.replace("/default/", "/other/");
    let renamed = format!("{}0", &key[..key.len() - 1]);
    let renamed = if renamed == key {
        format!("{}1", &key[..key.len() - 1])
    } else {
        renamed
    };
    for place in [of_another, renamed] {
        cas::create_once(&log.store, &place, letter.clone())
            .await
            .unwrap();
        let moved = replay(&log.store, &sink(&table), &place).await.unwrap_err();
        assert!(
            matches!(&moved, ReplayError::Misplaced { of } if *of == key),
            "{moved}"
        );
    }
    let strange = DeadLetter {
        buffer_id: uuid::Uuid::from_u128(7),
        ..letter
    };
    let place = strange.key();
    cas::create_once(&log.store, &place, strange).await.unwrap();
    let strange = replay(&log.store, &sink(&table), &place).await.unwrap_err();
    assert!(matches!(strange, ReplayError::OtherBuffer { .. }), "{strange}");
    assert_eq!(table.rows(), rows);
    assert_eq!(replay(&log.store, &sink(&table), &key).await.unwrap(), 1);
}

#[tokio::test]
async fn gc_leaves_letters_alone() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3, 20]).await;
    let table = Table::open("table");
    table.forbid(&[1]);
    let consumer = start(&log.store, config("a"), &table);
    acknowledged(&log, 2).await;
    consumer.stop().await.unwrap();
    let dead_letters = log.dead_letters().await;
    let nothing_is_young = GcConfig {
        interval: Duration::ZERO,
        grace: Duration::ZERO,
        max_age: None,
    };
    let mut gc = GarbageCollector::new(log.store.clone(), nothing_is_young, &mut Registry::default());
    assert_eq!(gc.round(false).await.unwrap().segments, 2);
    assert_eq!((dead_letters.len(), log.dead_letters().await), (1, dead_letters));
}

/// An outage during a bisection is not a refusal, and a lost answer does not duplicate a row.
#[tokio::test]
async fn a_piece_is_retried_as_any_write() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[20]).await;
    let table = Table::open("table");
    table.forbid(&[13]);
    // The table refuses the chunk at once; its first half meets the other faults.
    table.fail_next(&[Fault::Refuses, Fault::Down, Fault::LandsUnreported, Fault::Down]);
    let consumer = start(&log.store, whole("a"), &table);
    acknowledged(&log, 1).await;
    consumer.stop().await.unwrap();
    assert_delivered_or_dead(&log, &table, "once each").await;
    assert_eq!(dead(&log).await, ["row-13"]);
}

/// A chunk that landed without an answer is not refused, though the table would refuse it by now.
#[tokio::test]
async fn a_chunk_that_is_there_is_not_taken_apart() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[20]).await;
    let table = Table::shut("table");
    table.fail_next(&[Fault::LandsUnreported]);
    let consumer = start(&log.store, whole("a"), &table);
    table.let_through(1);
    table.has(20).await;
    table.forbid(&[3]);
    table.let_through(1 << 10);
    acknowledged(&log, 1).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
    assert!(log.dead_letters().await.is_empty());
}

/// The cursor records refusals for this case: half of a chunk is in the table when its owner dies, and then somebody
/// repairs the table. The table would now accept the whole chunk.
#[tokio::test]
async fn a_successor_takes_apart_what_its_predecessor_began_to() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[16]).await;
    let table = Table::shut("table");
    table.forbid(&[15]);
    let first = start(&log.store, whole("a"), &table);
    // The table answers the chunk, its halves, and the first quarter of the second half.
    table.let_through(4);
    table.has(12).await;
    first.crash().await;
    table.forbid(&[]);
    table.let_through(1 << 10);
    let second = start(
        &log.store,
        Config {
            take_over: true,
            ..whole("b")
        },
        &table,
    );
    acknowledged(&log, 1).await;
    second.stop().await.unwrap();
    assert_delivered_or_dead(&log, &table, "once each").await;
    assert!(
        log.dead_letters().await.is_empty(),
        "the table was repaired in time"
    );
}

/// The refusal of a row is final once the cursor records it, because its dead letter may exist.
#[tokio::test]
async fn a_row_whose_letter_may_be_written_is_not_sent_again() {
    let mut log = Log::new(Store::memory()).await;
    let (store, network) = log.store.behind(Faults::default());
    log.commit(&[1]).await;
    let table = Table::open("table");
    table.forbid(&[0]);
    // The dead letter lands and the answer is lost, for as long as the first owner lives.
    for _ in 0..1_000 {
        network.once(On::Create, "", unreliable::Fault::LandsUnreported);
    }
    let first = start(&store, whole("a"), &table);
    eventually("the consumer has written dead letters", async || {
        !log.dead_letters().await.is_empty()
    })
    .await;
    first.crash().await;
    network.heal();
    table.forbid(&[]);
    let second = start(
        &log.store,
        Config {
            take_over: true,
            ..whole("b")
        },
        &table,
    );
    acknowledged(&log, 1).await;
    second.stop().await.unwrap();
    assert_delivered_or_dead(&log, &table, "once").await;
    assert_eq!(dead(&log).await, ["row-0"]);
}

#[tokio::test]
async fn too_many_refused_rows_end_the_consumer_and_a_repaired_table_takes_all() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3, 40]).await;
    let table = Table::open("table");
    let bad: Vec<u64> = (0..43).collect();
    table.forbid(&bad);
    let few = |instance: &str| Config {
        dead_letters_max: 5,
        take_over: true,
        ..config(instance)
    };
    let ended = start(&log.store, few("a"), &table).task.await.unwrap();
    let error = ended.unwrap_err();
    assert!(
        matches!(&error, ConsumeError::TooManyRefused { max: 5, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("bad rows"), "{error}");
    table.forbid(&[]);
    let again = start(&log.store, few("b"), &table);
    acknowledged(&log, 2).await;
    again.stop().await.unwrap();
    assert_delivered_or_dead(&log, &table, "once each").await;
}

#[tokio::test]
async fn events_that_do_not_fit_their_table_end_no_consumer_however_many() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3, 40]).await;
    let table = Table::open("table");
    let unfit: Vec<u64> = (3..40).collect();
    table.cannot_read(&unfit);
    table.forbid(&[41, 42]);
    let with_limit = |dead_letters_max| Config {
        dead_letters_max,
        take_over: true,
        ..config("a")
    };
    let ended = start(&log.store, with_limit(0), &table).task.await.unwrap();
    assert!(
        matches!(ended, Err(ConsumeError::TooManyRefused { max: 0, .. })),
        "{ended:?}"
    );
    // Records that the table rejects count as before.
    let ended = start(&log.store, with_limit(1), &table).task.await.unwrap();
    assert!(
        matches!(ended, Err(ConsumeError::TooManyRefused { max: 1, .. })),
        "{ended:?}"
    );
    let consumer = start(&log.store, with_limit(2), &table);
    acknowledged(&log, 2).await;
    consumer.stop().await.unwrap();
    assert_eq!(dead(&log).await.len(), 39);
    assert_delivered_or_dead(&log, &table, "once each").await;
}

/// The store takes the write of one dead letter late. The others do not wait for it, and the batch does.
#[tokio::test]
async fn dead_letters_do_not_wait_for_each_other() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let (store, network) = log.store.behind(Faults::default());
    let table = Table::open("table");
    let consumer = start(&store, config("a"), &table);
    acknowledged(&log, 1).await;
    let unfit: Vec<u64> = (3..30).collect();
    table.cannot_read(&unfit);
    let late = network.hold(On::Create, "");
    log.commit(&[40]).await;
    eventually("the other letters, and the rows", async || {
        dead(&log).await.len() == 26 && table.rows().len() == 16
    })
    .await;
    let cursor = log.cursor("default").await.unwrap();
    assert_eq!(cursor.next(STREAM), 1, "a letter is missing");
    late.release();
    acknowledged(&log, 2).await;
    consumer.stop().await.unwrap();
    assert_delivered_or_dead(&log, &table, "once each").await;
}

/// All faults at once: all four outcomes of every write to the table and to the store, failing reads, owners that crash
/// or stop anywhere, and a table that changes and is repaired between them.
#[tokio::test]
async fn under_faults_and_crashes_every_row_is_delivered_once_or_in_one_letter() {
    for seed in 0..4 {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut log = Log::new(Store::memory()).await;
        let (store, network) = log.store.behind(Faults {
            seed,
            write: WriteFaults::each(0.05),
            read_error: 0.05,
            latency: None,
        });
        let table = Table::shut("table");
        let mut refusable = BTreeSet::new();
        let mut committed = 0;
        for round in 0..8 {
            let successor = Config {
                take_over: true,
                chunk_rows: 8,
                ..config(&format!("{round}"))
            };
            let forbidden: Vec<u64> = (0..committed + 36).filter(|_| random.random_bool(0.15)).collect();
            table.forbid(&forbidden);
            refusable.extend(forbidden);
            let faults = [Fault::Down, Fault::LandsUnreported];
            let faults: Vec<Fault> = (0..3).map(|_| faults[random.random_range(0..2)]).collect();
            table.heal();
            table.fail_next(&faults);
            let consumer = start(&store, successor, &table);
            log.commit(&[3, 1, 30, 2]).await;
            committed += 36;
            if round % 4 == 3 {
                table.let_through(1 << 10);
                consumer.stop().await.unwrap();
            } else {
                // The owner dies after this many attempts, or when it has nothing left to do.
                let attempts = table.attempts().len() + random.random_range(1..60);
                table.let_through(attempts - table.attempts().len());
                died(&log, &table, attempts).await;
                consumer.crash().await;
            }
        }
        network.heal();
        table.heal();
        table.let_through(1 << 20);
        let last = Config {
            take_over: true,
            chunk_rows: 8,
            ..config("last")
        };
        let last = start(&store, last, &table);
        acknowledged(&log, 32).await;
        last.stop().await.unwrap();
        assert_delivered_or_dead(&log, &table, &format!("seed {seed}")).await;
        for row in dead(&log).await {
            let row: u64 = row.strip_prefix("row-").unwrap().parse().unwrap();
            assert!(
                refusable.contains(&row),
                "seed {seed}: row {row} was never refused"
            );
        }
    }
}

/// Waits until the table has seen this many attempts, or everything is acknowledged.
async fn died(log: &Log, table: &Arc<Table>, attempts: usize) {
    let next = log.manifest().await.state.next_sequence;
    eventually("the attempts are made", async || {
        let done = log
            .cursor("default")
            .await
            .is_some_and(|c| c.next(STREAM) == next);
        table.attempts().len() >= attempts || done
    })
    .await;
}
