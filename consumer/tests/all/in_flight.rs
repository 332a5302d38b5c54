//! The chunks of one batch in flight at the same time: a single batch uses all writers, and each rule that holds for a
//! chunk holds for each of them.

use crate::support::{Fault, Log, Machine, STREAM, Table, acknowledged, config, eventually, start_on};
use millpond_consumer::Config;
use millpond_storage::Store;
use millpond_storage::unreliable::{Faults, Outage};
use std::sync::Arc;
use std::time::Duration;

/// Chunks of four rows; a segment is one batch.
fn writers(writers: usize) -> Config {
    Config {
        writers,
        ..config("a")
    }
}

/// A segment with so many rows over a table that takes nothing yet, and a consumer whose requests all hang.
async fn hanging(rows: u64, in_parallel: usize, table: &Arc<Table>) -> (Log, crate::support::Running) {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[rows]).await;
    let machine = Machine::with_one_thread();
    let consumer = start_on(&machine, &log.store, writers(in_parallel), table);
    eventually("all writers have a request", async || {
        table.hanging() == in_parallel
    })
    .await;
    (log, consumer)
}

/// Long enough for everything that could happen by itself.
async fn a_while() {
    tokio::time::sleep(Duration::from_secs(5)).await;
}

#[tokio::test(start_paused = true)]
async fn one_batch_uses_all_writers_and_no_more() {
    let table = Table::shut("table");
    let (log, consumer) = hanging(20, 3, &table).await;
    a_while().await;
    assert_eq!(table.begun(), 3);
    table.let_through(1);
    eventually("the next chunk has its writer", async || table.begun() == 4).await;
    a_while().await;
    assert_eq!((table.begun(), table.hanging()), (4, 3));
    table.let_through(1 << 10);
    acknowledged(&log, 1).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
    let mut chunks: Vec<String> = table.attempts();
    chunks.sort();
    let last = |token: &String| token.rsplit('/').next().unwrap().to_owned();
    assert_eq!(
        chunks.iter().map(last).collect::<Vec<_>>(),
        ["0", "1", "2", "3", "4"],
        "the tokens are those of chunks that are sent one after another"
    );
}

/// A batch of large chunks would otherwise hold more than the memory limit.
#[tokio::test(start_paused = true)]
async fn no_more_chunks_are_in_flight_than_fit_into_the_memory() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[20]).await;
    let part = log.manifest().await.state.tail[0].parts[0].clone();
    // The memory of the part, and of a chunk: one is built while the others are written.
    let (fetched, chunk) = (part.length, (3 * part.raw_len).div_ceil(2));
    let at_a_time = async |memory_limit: u64| {
        let table = Table::shut("table");
        let config = Config {
            memory_limit,
            consumer: format!("with-{memory_limit}"),
            ..writers(3)
        };
        let consumer = start_on(&Machine::with_one_thread(), &log.store, config, &table);
        eventually("a writer has a request", async || table.hanging() > 0).await;
        a_while().await;
        let begun = table.begun();
        table.let_through(1 << 10);
        table.has(20).await;
        consumer.stop().await.unwrap();
        assert_eq!(table.rows(), log.rows());
        begun
    };
    assert_eq!(at_a_time(1).await, 1, "a batch larger than the limit runs alone");
    assert_eq!(at_a_time(fetched + 3 * chunk - 1).await, 1);
    assert_eq!(at_a_time(fetched + 3 * chunk).await, 2);
    assert_eq!(at_a_time(fetched + 4 * chunk - 1).await, 2);
    assert_eq!(at_a_time(fetched + 4 * chunk).await, 3);
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_done_when_its_last_chunk_is() {
    let table = Table::shut("table");
    let (log, consumer) = hanging(20, 5, &table).await;
    table.let_through(4);
    table.has(16).await;
    a_while().await;
    assert_eq!(log.cursor("default").await.unwrap().next(STREAM), 0);
    table.let_through(1 << 10);
    acknowledged(&log, 1).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
}

#[tokio::test(start_paused = true)]
async fn a_refused_chunk_is_taken_apart_when_no_other_is_in_flight() {
    let table = Table::shut("table");
    table.forbid(&[1]);
    let (log, consumer) = hanging(20, 3, &table).await;
    // The first chunk is refused.
    table.let_through(1);
    a_while().await;
    assert_eq!(
        (table.begun(), table.hanging()),
        (3, 2),
        "neither its halves nor another chunk"
    );
    table.let_through(1 << 10);
    acknowledged(&log, 1).await;
    consumer.stop().await.unwrap();
    let mut rows = log.rows();
    rows.remove("row-1");
    assert_eq!(table.rows(), rows);
    assert_eq!(log.dead_letters().await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn refusals_of_chunks_that_were_in_flight_together_all_become_dead_letters() {
    let table = Table::shut("table");
    table.forbid(&[0, 5, 6, 11, 19]);
    let (log, consumer) = hanging(20, 3, &table).await;
    table.let_through(1 << 10);
    acknowledged(&log, 1).await;
    consumer.stop().await.unwrap();
    let mut rows = log.rows();
    for row in [0, 5, 6, 11, 19] {
        rows.remove(&format!("row-{row}"));
    }
    assert_eq!(table.rows(), rows);
    assert_eq!(log.dead_letters().await.len(), 5);
}

#[tokio::test(start_paused = true)]
async fn all_requests_of_a_batch_are_dropped_when_the_lease_runs_out() {
    let mut log = Log::new(Store::memory()).await;
    let (store, network) = log.store.behind(Faults::default());
    log.commit(&[20]).await;
    let table = Table::shut("table");
    let machine = Machine::with_one_thread();
    let consumer = start_on(&machine, &store, writers(3), &table);
    eventually("all writers have a request", async || table.hanging() == 3).await;
    network.set_outage(Some(Outage::Fails));
    machine.suspend(writers(3).lease);
    eventually("the requests are dropped", async || table.hanging() == 0).await;
    a_while().await;
    assert_eq!(table.begun(), 3, "another owner may send the rest");
    table.let_through(1 << 20);
    network.set_outage(None);
    acknowledged(&log, 1).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
}

/// Otherwise two chunks of a batch could end each other's requests for ever.
#[tokio::test(start_paused = true)]
async fn a_later_round_ends_only_requests_of_its_own_chunk() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[20]).await;
    let table = Table::open("table");
    // The first three chunks fail, and their repetitions find tokens without rows.
    table.fail_next(&[Fault::Poisons; 3]);
    let consumer = start_on(&Machine::with_one_thread(), &log.store, writers(3), &table);
    acknowledged(&log, 1).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
    let settled = table.settled();
    assert!(!settled.is_empty(), "there was no later round");
    for (of, _) in settled {
        let chunk = of.trim_end_matches('/').rsplit('/').next().unwrap();
        assert!(
            ["0", "1", "2"].contains(&chunk),
            "{of} has requests of other chunks"
        );
    }
}
