//! Identities of rows prevent loss and duplicates where tokens are not enough: a token whose rows never came, different
//! chunks than before, owners that an operator removes or resets.

use crate::support::{Fault, Log, STREAM, Table, acknowledged, config, eventually, start};
use millpond_consumer::{Config, ConsumeError};
use millpond_manifest::cas::{self, Swap};
use millpond_manifest::cursor::Ownership;
use millpond_manifest::{Cursor, layout};
use millpond_storage::Store;
use millpond_storage::unreliable::{Faults, On, Outage};
use std::time::Duration;

/// ClickHouse records a token and then renames the part. If it dies in between, it reports success for the token
/// forever and has no rows.
#[tokio::test]
async fn a_token_without_rows_loses_nothing() {
    for poisoned in 1..=3 {
        let mut log = Log::new(Store::memory()).await;
        log.commit(&[3, 25]).await;
        let table = Table::open("table");
        table.fail_next(&vec![Fault::Poisons; poisoned]);
        let consumer = start(&log.store, config("a"), &table);
        acknowledged(&log, 2).await;
        consumer.stop().await.unwrap();
        assert_eq!(table.rows(), log.rows(), "{poisoned} poisoned tokens");
    }
}

#[tokio::test]
async fn a_chunk_of_which_one_partition_has_landed_is_completed() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[4, 25]).await;
    let table = Table::open("table");
    table.fail_next(&[
        Fault::LandsInPart,
        Fault::LandsInPart,
        Fault::Poisons,
        Fault::LandsInPart,
    ]);
    // One chunk at a time, so that one chunk has all the faults.
    let config = Config {
        writers: 1,
        ..config("a")
    };
    let consumer = start(&log.store, config, &table);
    acknowledged(&log, 2).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
}

/// A success does not prove that the rows are there.
#[tokio::test]
async fn rows_that_are_not_there_after_every_round_end_the_consumer() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[4]).await;
    let table = Table::open("table");
    // The first attempt and each round poison a separate token.
    table.fail_next(&[Fault::Poisons; 4]);
    table.swallow("row-2");
    let consumer = start(&log.store, config("a"), &table);
    let error = consumer.task.await.unwrap().unwrap_err();
    assert!(
        matches!(
            error,
            ConsumeError::Missing {
                rows: 1,
                chunk: 0,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(log.cursor("default").await.unwrap().next(STREAM), 0);
}

#[tokio::test]
async fn a_reset_inserts_what_is_missing_and_doubles_nothing() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3, 25, 1, 2, 12]).await;
    let table = Table::open("table");
    let consumer = start(&log.store, config("a"), &table);
    acknowledged(&log, 5).await;
    consumer.stop().await.unwrap();
    table.delete(1);
    table.delete(30);
    // Different batches and chunks, and the table knows no token any more.
    table.forget_tokens();
    log.reset("default", 0).await;
    let other = Config {
        batch_records: 7,
        chunk_rows: 3,
        ..config("b")
    };
    log.commit(&[2]).await;
    let consumer = start(&log.store, other, &table);
    acknowledged(&log, 6).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
}

/// The table still knows earlier tokens, of batches that began at the same sequence and had other rows.
#[tokio::test]
async fn a_reset_takes_no_token_of_before_for_its_own() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let table = Table::open("table");
    let consumer = start(&log.store, config("a"), &table);
    acknowledged(&log, 1).await;
    consumer.stop().await.unwrap();
    // Deleted rows return although the consumer sends the same batch with the same chunks.
    table.delete(0);
    table.delete(2);
    for _ in 0..4 {
        log.reset("default", 0).await;
        let consumer = start(&log.store, config("a"), &table);
        acknowledged(&log, 1).await;
        consumer.stop().await.unwrap();
        assert_eq!(table.rows(), log.rows());
        table.delete(0);
    }
}

/// After a reset with requests in flight, the next owner ends them before it sends anything.
#[tokio::test]
async fn requests_that_may_be_under_way_are_ended_before_other_chunks_are_sent() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3, 20]).await;
    let table = Table::shut("table");
    // The next owner waits for as long as this one may continue to send.
    let lease = Duration::from_millis(200);
    let first = start(&log.store, Config { lease, ..config("a") }, &table);
    eventually("a request is in flight", async || table.begun() > 0).await;
    first.crash().await;
    log.reset("default", 0).await;
    let cursor = log.cursor("default").await.unwrap();
    assert!(cursor.unsettled);
    table.let_through(1 << 20);
    let second = start(&log.store, Config { lease, ..config("b") }, &table);
    acknowledged(&log, 2).await;
    second.stop().await.unwrap();
    // Leave out the calls for single batches, which spare no request.
    let mut settled = table.settled();
    settled.retain(|(_, spared)| spared.is_some());
    let opening = log.cursor("default").await.unwrap().opening;
    let [(of, spared)] = &settled[..] else {
        panic!("{settled:?}")
    };
    assert!(of.ends_with("/0000/default/"), "{of}");
    assert_eq!(*spared, Some(format!("/{opening:016x}/")));
    assert_eq!(table.rows(), log.rows());
    let cursor = log.cursor("default").await.unwrap();
    assert!(!cursor.unsettled && cursor.ownership == Ownership::Released);
}

/// The consumer ends at a damaged block in the second of three segments, and an operator skips that segment.
#[tokio::test]
async fn a_skip_loses_nothing_of_the_neighbours() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3, 3, 3]).await;
    let manifest = log.manifest().await.state;
    let key = layout::segment(0, manifest.tail[1].segment);
    let whole = log.store.get(&key).await.unwrap().unwrap().bytes;
    // The sink cuts nothing of a batch with a damaged block. So the consumer sends rows first, and then the test
    // damages the block. The last chunk gets no answer, because a finished batch would be acknowledged.
    let table = Table::shut("table");
    table.let_through(2);
    let stuck = Config {
        // The owner after the skip waits for as long as this one may continue to send.
        lease: Duration::from_millis(200),
        ..config("a")
    };
    let first = start(&log.store, stuck, &table);
    table.has(8).await;
    first.crash().await;
    table.let_through(1 << 20);
    let mut damaged = whole.to_vec();
    let part = &manifest.tail[1].parts[0];
    damaged[usize::try_from(part.offset + part.length - 1).unwrap()] ^= 1;
    log.store.delete(&key).await.unwrap();
    log.store.put_if_absent(&key, vec![damaged.into()]).await.unwrap();
    let over = Config {
        take_over: true,
        lease: Duration::from_millis(200),
        ..config("b")
    };
    let second = start(&log.store, over.clone(), &table);
    let error = second.task.await.unwrap().unwrap_err();
    assert!(matches!(error, ConsumeError::Refused { .. }), "{error}");
    // Keep only the first row, as if ClickHouse had died.
    for row in 1..8 {
        table.delete(row);
    }
    log.skip("default", 1).await;
    let third = start(&log.store, over, &table);
    acknowledged(&log, 3).await;
    third.stop().await.unwrap();
    let mut rows = log.rows();
    rows.retain(|row, _| !["row-3", "row-4", "row-5"].contains(&&**row));
    assert_eq!(table.rows(), rows);
}

#[tokio::test]
async fn an_owner_whose_cursor_is_removed_ends() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let table = Table::open("table");
    let owner = start(&log.store, config("a"), &table);
    acknowledged(&log, 1).await;
    let (store, network) = log.store.behind(Faults::default());
    let [mut looks, mut looked] = [0; 2].map(|_| network.hold(On::Get, "cursor"));
    let standby = start(&store, config("b"), &table);
    looks.arrived().await;
    looks.release();
    // At its second look, the standby knows the cursor.
    looked.arrived().await;
    looked.release();
    log.remove("default").await;
    log.commit(&[2]).await;
    for ended in [owner, standby] {
        let ended = tokio::time::timeout(Duration::from_secs(20), ended.task).await;
        let error = ended
            .expect("the consumer continues without its cursor")
            .unwrap()
            .unwrap_err();
        assert!(matches!(error, ConsumeError::Removed { shard: 0, .. }), "{error}");
    }
    assert!(log.cursor("default").await.unwrap().is_removed());
}

#[tokio::test]
async fn an_owner_whose_cursor_is_deleted_ends_and_makes_no_other() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let table = Table::open("table");
    let owner = start(&log.store, config("a"), &table);
    acknowledged(&log, 1).await;
    log.store.delete(&layout::cursor(0, "default")).await.unwrap();
    log.commit(&[2]).await;
    let ended = tokio::time::timeout(Duration::from_secs(20), owner.task).await;
    let error = ended
        .expect("the consumer continues without its cursor")
        .unwrap()
        .unwrap_err();
    assert!(matches!(error, ConsumeError::Removed { .. }), "{error}");
    assert_eq!(log.cursor("default").await, None);
}

#[tokio::test]
async fn a_consumer_that_begins_again_after_a_removal_doubles_nothing() {
    for deleted in [false, true] {
        let mut log = Log::new(Store::memory()).await;
        log.commit(&[3, 25]).await;
        let table = Table::open("table");
        let consumer = start(&log.store, config("a"), &table);
        acknowledged(&log, 2).await;
        consumer.stop().await.unwrap();
        if deleted {
            // Deleting the cursor object by hand leaves no record of the rows that were sent.
            log.store.delete(&layout::cursor(0, "default")).await.unwrap();
        } else {
            log.remove("default").await;
        }
        table.forget_tokens();
        log.commit(&[2]).await;
        let other = Config {
            chunk_rows: 3,
            ..config("b")
        };
        let consumer = start(&log.store, other, &table);
        acknowledged(&log, 3).await;
        consumer.stop().await.unwrap();
        assert_eq!(table.rows(), log.rows(), "deleted by hand: {deleted}");
    }
}

/// The cursor is deleted and created again, so its epochs start at 1 again.
#[tokio::test]
async fn two_owners_in_one_epoch_are_not_taken_for_each_other() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[20]).await;
    let (old, new) = (Table::open("old"), Table::open("new"));
    let (store, network) = log.store.behind(Faults::default());
    let first = start(&store, config("a"), &old);
    acknowledged(&log, 1).await;
    network.set_outage(Some(Outage::Fails));
    log.store.delete(&layout::cursor(0, "default")).await.unwrap();
    let _second = start(&log.store, config("b"), &new);
    new.has(20).await;
    acknowledged(&log, 1).await;
    network.set_outage(None);
    for _ in 0..5 {
        log.commit(&[20]).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    acknowledged(&log, 6).await;
    assert_eq!(
        new.rows(),
        log.rows(),
        "what the cursor acknowledges is in its sink"
    );
    first.crash().await;
}

/// ClickHouse reports success for a repetition as soon as it knows the token, and shows the rows of the original
/// request later.
#[tokio::test]
async fn rows_that_are_seen_later_than_their_token_are_not_sent_again() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[4]).await;
    let table = Table::open("table");
    table.fail_next(&[Fault::Hides]);
    let consumer = start(&log.store, config("a"), &table);
    acknowledged(&log, 1).await;
    consumer.stop().await.unwrap();
    table.reveal();
    assert_eq!(table.rows(), log.rows(), "some rows were only not seen yet");
}

/// A request of a later round is still in flight when the table has forgotten the first round's token.
#[tokio::test]
async fn a_successor_waits_for_a_later_round_in_flight() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[4]).await;
    let table = Table::open("table");
    table.fail_next(&[Fault::Poisons, Fault::Succeeds, Fault::HidesAndForgets]);
    let consumer = start(&log.store, config("a"), &table);
    acknowledged(&log, 1).await;
    consumer.stop().await.unwrap();
    table.reveal();
    assert_eq!(table.rows(), log.rows(), "two tokens brought the same rows");
    let cursor = log.cursor("default").await.unwrap();
    assert!(!cursor.unsettled, "nothing is under way after a clean release");
}

/// The same case, and the consumer dies meanwhile.
#[tokio::test]
async fn a_successor_waits_for_later_rounds() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[4]).await;
    let table = Table::shut("table");
    table.fail_next(&[Fault::Poisons, Fault::Succeeds]);
    table.let_through(2);
    let lease = Duration::from_millis(200);
    let first = start(&log.store, Config { lease, ..config("a") }, &table);
    eventually("the later round is in flight", async || table.begun() == 3).await;
    let cursor = log.cursor("default").await.unwrap();
    assert!(
        cursor.unsettled,
        "a successor could send the rows under the first token"
    );
    first.crash().await;
    table.forget_tokens();
    table.let_through(1 << 20);
    let second = start(&log.store, Config { lease, ..config("b") }, &table);
    acknowledged(&log, 1).await;
    second.stop().await.unwrap();
    let spares = |(_, spared): &&(String, Option<String>)| spared.is_some();
    assert_eq!(table.settled().iter().filter(spares).count(), 1);
    assert_eq!(table.rows(), log.rows());
    assert!(!log.cursor("default").await.unwrap().unsettled);
}

/// The answer to the first question was certain, and another server answers the next one.
#[tokio::test]
async fn no_later_round_acts_on_an_answer_that_is_not_certain() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[4]).await;
    let table = Table::shut("table");
    table.fail_next(&[Fault::Poisons]);
    table.let_through(1);
    let consumer = start(&log.store, config("a"), &table);
    eventually("the first round is in flight", async || table.begun() == 2).await;
    table.set_uncertain(true);
    table.let_through(1);
    eventually("the next request is in flight", async || table.begun() == 3).await;
    table.set_uncertain(false);
    table.let_through(1);
    eventually("the request has ended", async || table.attempts().len() == 3).await;
    let third = table.attempts().pop().unwrap();
    assert!(third.ends_with("/0-0/0"), "{third}: a replica may have the rows");
    consumer.crash().await;
}

/// One replica gives a certain answer. The next one gives an uncertain answer, or none.
#[tokio::test]
async fn a_loss_is_remembered_when_answers_stop_being_certain() {
    for silent in [false, true] {
        let mut log = Log::new(Store::memory()).await;
        log.commit(&[4]).await;
        let table = Table::shut("table");
        let worsen = |worse: bool| {
            if silent {
                table.set_silent(worse);
            } else {
                table.set_uncertain(worse);
            }
        };
        // The first token has no rows, and the request of the later round fails.
        table.fail_next(&[Fault::Poisons, Fault::Succeeds, Fault::Down]);
        table.let_through(2);
        let consumer = start(&log.store, config("a"), &table);
        eventually("a later round is in flight", async || table.begun() == 3).await;
        worsen(true);
        let asked = table.asked().len();
        table.let_through(1 << 20);
        eventually("the next attempt asks", async || table.asked().len() > asked).await;
        worsen(false);
        acknowledged(&log, 1).await;
        consumer.stop().await.unwrap();
        assert_eq!(table.rows(), log.rows(), "a row is missing");
    }
}

/// A swap that settles the cursor gets no answer, and lands after a batch has announced a later round.
#[tokio::test(start_paused = true)]
async fn a_late_swap_does_not_take_an_announcement_back() {
    let mut log = Log::new(Store::memory()).await;
    let (store, network) = log.store.behind(Faults::default());
    log.commit(&[4]).await;
    let table = Table::shut("table");
    let first = start(&log.store, config("a"), &table);
    eventually("a batch is planned and sent", async || table.begun() == 1).await;
    first.crash().await;
    let unsettled = |cursor: &Cursor| {
        let mut cursor = cursor.clone();
        cursor.unsettle();
        // Shorter than the time between renewals: the first swap after the opening is the one that settles the cursor.
        cursor.lease_ms = 1_000;
        cursor.release(u64::MAX);
        cursor
    };
    log.change_cursor("default", unsettled).await;
    let epoch = log.cursor("default").await.unwrap().epoch;

    table.fail_next(&[Fault::Poisons]);
    let second = start(&store, config("b"), &table);
    eventually("it owns the cursor", async || {
        log.cursor("default").await.unwrap().epoch > epoch
    })
    .await;
    let mut settles = network.detain(On::Update, "cursor");
    let mut reads_again = network.hold(On::Get, "cursor");
    settles.arrived().await;
    reads_again.arrived().await;
    table.let_through(2);
    eventually("requests were ended before the later round", async || {
        table.settled().len() == 2
    })
    .await;
    // By then the announcement has been made.
    tokio::time::sleep(Duration::from_millis(10)).await;
    reads_again.release();
    eventually("the later round is in flight", async || table.begun() == 4).await;
    settles.release();
    network.settled().await;
    let cursor = log.cursor("default").await.unwrap();
    assert!(cursor.unsettled, "a successor would not know of the later round");
    table.let_through(1 << 20);
    acknowledged(&log, 1).await;
    second.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
}

/// A replica that does not answer may have rows from before the reset, and no token protects them.
#[tokio::test]
async fn nothing_is_sent_after_a_reset_where_a_replica_may_have_it() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let table = Table::open("table");
    let consumer = start(&log.store, config("a"), &table);
    acknowledged(&log, 1).await;
    consumer.stop().await.unwrap();
    table.delete(1);
    table.set_uncertain(true);
    log.reset("default", 0).await;
    let consumer = start(
        &log.store,
        Config {
            lease: Duration::from_millis(300),
            ..config("b")
        },
        &table,
    );
    eventually(
        "the consumer has sent rows that a replica may have, or names the missing privilege",
        async || {
            let cursor = log.cursor("default").await.unwrap();
            let says = |reason: &String| reason.contains("grant SYSTEM SYNC REPLICA");
            cursor.next(STREAM) == 1 || cursor.waiting_for.iter().any(says)
        },
    )
    .await;
    assert_eq!(table.rows().get("row-1"), None, "a replica may have it");
    table.set_uncertain(false);
    acknowledged(&log, 1).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
}

/// The manifest is unavailable when a successor opens the cursor, and returns later.
#[tokio::test]
async fn a_successor_asks_for_what_was_planned_before_although_it_sees_the_log_late() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    let never_acknowledges = Config {
        ack_interval: Duration::from_secs(3_600),
        ..config("a")
    };
    // A new cursor asks the sink about the segments that were in the log before it.
    log.commit(&[1]).await;
    let earlier = start(&log.store, config("a"), &table);
    acknowledged(&log, 1).await;
    earlier.stop().await.unwrap();
    let first = start(&log.store, never_acknowledges, &table);
    log.commit(&[3, 25]).await;
    table.has(29).await;
    first.crash().await;
    table.forget_tokens();
    let manifest = log.manifest().await.state;
    log.store.delete(&layout::manifest(0)).await.unwrap();
    let epoch = log.cursor("default").await.unwrap().epoch;
    let second = start(&log.store, config("a"), &table);
    eventually("the cursor is open", async || {
        log.cursor("default").await.unwrap().epoch > epoch
    })
    .await;
    let swap = cas::swap(&log.store, &layout::manifest(0), None, manifest.stamped(1)).await;
    assert!(matches!(swap, Swap::Committed(_)));
    acknowledged(&log, 3).await;
    second.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows(), "planned rows were sent as new ones");
}
