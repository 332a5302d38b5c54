//! Tests planning ahead of commits: batches planned ahead wait for no swap, and they block nobody.

use crate::support::{Log, OTHER, STREAM, Table, config, eventually, single_records, start};
use millpond_consumer::Config;
use millpond_consumer::schedule::{Mode, Room, Schedule};
use millpond_manifest::Cursor;
use millpond_manifest::cursor::{Ownership, Plan};
use millpond_storage::Store;
use millpond_storage::unreliable::{Faults, On};
use std::sync::Arc;
use std::time::Duration;

fn single(sequence: u64) -> Plan {
    Plan {
        low: sequence,
        high: sequence,
    }
}

/// Returns the stream's batches that the cursor plans and that are not acknowledged.
async fn planned(log: &Log, stream: &str) -> Vec<Plan> {
    let cursor = log.cursor("default").await;
    cursor.map_or_else(Vec::new, |cursor| cursor.planned(stream).collect())
}

/// Commits segments one after another, each when the rows of the previous one are in the table.
async fn one_by_one(log: &mut Log, table: &Table, segments: u64) {
    for _ in 0..segments {
        log.commit(&[3]).await;
        table.has(log.rows().len() as u64).await;
    }
}

/// Takes the cursor at once from an owner that has died.
fn successor() -> Config {
    Config {
        take_over: true,
        ..config("b")
    }
}

/// Commits two segments, and crashes a consumer after it has planned eight more batches.
async fn crash_with_eight_planned(log: &mut Log, table: &Arc<Table>) {
    let consumer = start(&log.store, config("a"), table);
    one_by_one(log, table, 2).await;
    eventually("more batches are planned", async || {
        planned(log, STREAM).await.len() == 8
    })
    .await;
    consumer.crash().await;
}

/// Commits two segments of both streams, and crashes a consumer after it has planned eight more batches of each.
async fn crash_with_both_planned(log: &mut Log, table: &Arc<Table>) {
    let consumer = start(&log.store, config("a"), table);
    log.commit_one(&[(STREAM, 1), (OTHER, 1)]).await;
    table.has(2).await;
    log.commit_one(&[(STREAM, 1), (OTHER, 1)]).await;
    eventually("more batches of both are planned", async || {
        planned(log, STREAM).await.len() == 8 && planned(log, OTHER).await.len() == 8
    })
    .await;
    consumer.crash().await;
}

#[tokio::test(start_paused = true)]
async fn segments_that_come_one_at_a_time_wait_for_no_swap() {
    let mut log = Log::new(Store::memory()).await;
    let (store, network) = log.store.behind(Faults::default());
    let table = Table::open("table");
    let consumer = start(&store, config("a"), &table);
    log.commit(&[3]).await;
    table.has(3).await;
    one_by_one(&mut log, &table, 1).await;
    eventually("more is planned than committed", async || {
        planned(&log, STREAM).await == (2..10).map(single).collect::<Vec<_>>()
    })
    .await;
    // The network now holds every write of the cursor.
    let swaps = network.hold(On::Update, "cursor");
    one_by_one(&mut log, &table, 8).await;
    // The batches planned ahead are used up.
    log.commit(&[3]).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(table.attempts().len(), 10);
    swaps.release();
    table.has(33).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
}

#[tokio::test(start_paused = true)]
async fn segments_that_come_together_share_a_batch() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    let slow = Config {
        poll_interval: Duration::from_secs(1),
        ..config("a")
    };
    let consumer = start(&log.store, slow, &table);
    for round in 1..=5_u64 {
        log.commit(&[2, 1, 2]).await;
        table.has(5 * round).await;
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(planned(&log, STREAM).await, []);
    }
    consumer.stop().await.unwrap();
    // Three segments in each batch, in at most two chunks of four rows.
    let tokens = table.attempts();
    let batches: Vec<_> = tokens
        .iter()
        .map(|token| token.rsplit('/').nth(1).unwrap())
        .collect();
    assert_eq!(batches[..4], ["0-2", "0-2", "3-5", "3-5"]);
    assert_eq!(batches.len(), 10);
}

/// The batches that it would follow are not planned yet.
#[tokio::test]
async fn nothing_is_planned_ahead_of_what_waits_for_a_writer() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::shut("table");
    let busy = Config {
        writers: 1,
        lease: Duration::from_secs(3),
        ..config("a")
    };
    let consumer = start(&log.store, busy, &table);
    for _ in 0..14 {
        log.commit(&[3]).await;
        // Most segments come one at a time, and there are more than the consumer plans ahead at once.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // Renewals could carry plans.
    let version = log.cursor("default").await.unwrap().stamp.version;
    eventually("the lease is renewed", async || {
        log.cursor("default").await.unwrap().stamp.version >= version + 2
    })
    .await;
    table.let_through(1 << 10);
    eventually("every row is in the table", async || {
        table.rows() == log.rows() || consumer.task.is_finished()
    })
    .await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
}

#[tokio::test(start_paused = true)]
async fn a_stopping_consumer_withdraws_its_plans_ahead() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    let consumer = start(&log.store, config("a"), &table);
    one_by_one(&mut log, &table, 3).await;
    eventually("more batches are planned", async || {
        !planned(&log, STREAM).await.is_empty()
    })
    .await;
    consumer.stop().await.unwrap();
    let cursor = log.cursor("default").await.unwrap();
    assert_eq!(
        (&cursor.ownership, cursor.next(STREAM)),
        (&Ownership::Released, 3)
    );
    assert_eq!(planned(&log, STREAM).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_successor_sends_what_was_planned_ahead_as_it_was_planned_and_then_goes_on() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    crash_with_eight_planned(&mut log, &table).await;
    let second = start(&log.store, successor(), &table);
    // Without the plans the two segments would make one batch. The dead owner may have sent the first.
    log.commit(&[1, 1]).await;
    table.has(8).await;
    second.stop().await.unwrap();
    // A successor cannot withdraw another owner's plans, but everything in the log is finished.
    let cursor = log.cursor("default").await.unwrap();
    assert_eq!(cursor.ownership, Ownership::Released);
    assert_eq!(
        planned(&log, STREAM).await,
        (4..10).map(single).collect::<Vec<_>>()
    );
    let third = start(&log.store, successor(), &table);
    log.commit(&[1; 20]).await;
    table.has(28).await;
    third.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
    assert_eq!(
        log.cursor("default").await.unwrap().ownership,
        Ownership::Released
    );
    let tokens = table.attempts();
    for sequence in 0..10 {
        let own = format!("/{sequence}-{sequence}/0");
        assert!(
            tokens.iter().any(|token| token.ends_with(&own)),
            "{own} of {tokens:?}"
        );
    }
    assert!(tokens.iter().any(|token| token.contains("/10-")), "{tokens:?}");
}

/// The dead owner may live, see the next segments, and send them as it planned them.
#[tokio::test(start_paused = true)]
async fn an_owner_after_a_clean_release_keeps_to_the_plans_of_a_dead_one() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    crash_with_eight_planned(&mut log, &table).await;
    let second = start(&log.store, successor(), &table);
    eventually("the second owner takes the cursor", async || {
        log.cursor("default").await.unwrap().epoch == 2
    })
    .await;
    second.stop().await.unwrap();
    let released = log.cursor("default").await.unwrap();
    assert_eq!(released.ownership, Ownership::Released);
    assert_eq!(planned(&log, STREAM).await.len(), 8);

    // The next owner has another policy, by which the two segments are one batch.
    log.commit(&[1, 1]).await;
    let other_rules = Config {
        batch_records: 1_000,
        chunk_rows: 3,
        ..config("c")
    };
    let asked = table.asked().len();
    let third = start(&log.store, other_rules.clone(), &table);
    table.has(8).await;
    let cursor = log.cursor("default").await.unwrap();
    assert_eq!(cursor.policy, released.policy);
    // Before and after each batch is sent.
    assert_eq!(
        table.asked().len(),
        asked + 4,
        "planned rows were sent without a question"
    );
    log.commit(&[1; 6]).await;
    table.has(14).await;
    third.stop().await.unwrap();
    assert_eq!(planned(&log, STREAM).await, []);

    // No plan is left, so the other policy comes into force.
    let fourth = start(&log.store, other_rules, &table);
    log.commit(&[1, 1]).await;
    table.has(16).await;
    fourth.stop().await.unwrap();
    assert_eq!(log.cursor("default").await.unwrap().policy.chunk_rows, 3);
    assert_eq!(table.rows(), log.rows());
    let tokens = table.attempts();
    for own in ["/2-2/0", "/3-3/0"] {
        assert!(
            tokens.iter().any(|token| token.ends_with(own)),
            "{own} of {tokens:?}"
        );
    }
}

/// The other stream does not wait for planned segments of a stream that has ended.
#[tokio::test(start_paused = true)]
async fn a_stream_that_has_ended_keeps_no_successor_from_going_on() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    crash_with_both_planned(&mut log, &table).await;
    let second = start(&log.store, successor(), &table);
    one_by_one(&mut log, &table, 20).await;
    second.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
    assert_eq!(
        log.cursor("default").await.unwrap().ownership,
        Ownership::Released
    );
}

/// The backlog of one stream does not wait for another stream's planned segments either, when nothing is committed any
/// more.
#[tokio::test(start_paused = true)]
async fn plans_ahead_that_never_fill_hold_nothing_up() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    crash_with_eight_planned(&mut log, &table).await;
    log.commit_to(OTHER, &[3, 3]).await;
    let second = start(&log.store, successor(), &table);
    eventually("the backlog is sent and acknowledged", async || {
        table.rows() == log.rows() && log.cursor("default").await.unwrap().next(OTHER) == 4
    })
    .await;
    second.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
}

/// The successor cannot know which of the planned rows were sent.
#[tokio::test(start_paused = true)]
async fn a_successor_that_does_not_take_a_stream_leaves_what_was_planned_of_it() {
    let mut log = Log::new(Store::memory()).await;
    let table = Table::open("table");
    crash_with_both_planned(&mut log, &table).await;
    let of_one_stream = Config {
        streams: vec![STREAM.parse().unwrap()],
        ..successor()
    };
    let second = start(&log.store, of_one_stream, &table);
    log.commit(&[1; 20]).await;
    table.has(24).await;
    second.stop().await.unwrap();
    let cursor = log.cursor("default").await.unwrap();
    assert_eq!(cursor.ownership, Ownership::Abandoned);
    assert_eq!(
        planned(&log, OTHER).await,
        (2..10).map(single).collect::<Vec<_>>()
    );
}

/// Segments without a part of the stream leave plans of its sequences behind, which nothing acknowledges before the batch that hangs.
#[tokio::test]
async fn a_batch_that_hangs_does_not_fill_the_cursor_with_plans() {
    let mut log = Log::new(Store::memory()).await;
    log.commit_to(STREAM, &[1]).await;
    let mut cursor = Cursor::new(
        log.manifest().await.state.buffer_id,
        0,
        "default",
        0,
        single_records(),
    );
    let mut schedule = Schedule::after(&cursor);
    let room = Room { writers: 8, ahead: 8 };
    for _ in 0..80 {
        let manifest = millpond_manifest::Log::new(log.manifest().await.state);
        let decision = schedule.decide(&cursor, &manifest, &|_| true, Mode::Working, room);
        for (stream, next) in decision.acknowledge {
            cursor.acknowledge(&stream, next).unwrap();
        }
        for (stream, plan) in decision.plans.into_iter().chain(decision.ahead) {
            cursor.plan(&stream, plan).unwrap();
            if plan == single(0) {
                schedule.started((stream, plan));
            }
        }
        log.commit_to(OTHER, &[1; 8]).await;
    }
    let plans = cursor.planned(STREAM).count();
    assert!((200..300).contains(&plans), "the cursor has {plans} plans");
}
