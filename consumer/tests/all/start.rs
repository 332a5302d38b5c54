//! Where a consumer's first start begins.

use crate::support::{Log, Table, config, read_by, start};
use millpond_consumer::{Config, Start};
use millpond_storage::Store;

/// Ten segments of one record, committed at 1,000 ms, 2,000 ms and so on, in pages of three. The last one is in the tail.
async fn ten() -> Log {
    let mut log = Log::new(Store::memory()).await;
    for segment in 1..=10 {
        log.now_ms = segment * 1_000;
        log.commit(&[1]).await;
    }
    log.seal(3).await;
    assert_eq!(log.manifest().await.state.pages.len(), 3);
    log
}

fn from(start: Start) -> Config {
    Config { start, ..config("a") }
}

/// The rows that a first start delivers.
async fn delivered(log: &Log, place: Start) -> Vec<String> {
    let table = Table::open("table");
    let consumer = start(&log.store, from(place), &table);
    read_by(log, "default", 10).await;
    consumer.stop().await.unwrap();
    log.store
        .delete("shards/0000/consumers/default/cursor")
        .await
        .unwrap();
    table.rows().into_keys().collect()
}

fn rows(from: u64) -> Vec<String> {
    (from..10).map(|row| format!("row-{row}")).collect()
}

#[tokio::test(start_paused = true)]
async fn a_first_start_begins_where_it_is_told_to() {
    let log = ten().await;
    let places = [
        (Start::Earliest, 0),
        (Start::Latest, 10),
        (Start::Sequence(4), 4),
        (Start::Sequence(99), 10),
        (Start::Time(0), 0),
        (Start::Time(10_001), 10),
    ];
    for (place, first) in places {
        assert_eq!(delivered(&log, place).await, rows(first), "{place:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_time_is_found_in_every_page_and_in_the_tail() {
    let log = ten().await;
    for segment in 0..10 {
        let at_ms = (segment + 1) * 1_000;
        assert_eq!(delivered(&log, Start::Time(at_ms)).await, rows(segment), "at");
        assert_eq!(
            delivered(&log, Start::Time(at_ms - 999)).await,
            rows(segment),
            "before"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_first_start_skips_the_trimmed_part_of_the_log() {
    let log = ten().await;
    log.change(|log| log.collect(3, 0)).await;
    for place in [Start::Sequence(1), Start::Time(1)] {
        assert_eq!(delivered(&log, place).await, rows(3), "{place:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_consumer_with_a_position_goes_on_from_there() {
    let mut log = ten().await;
    let table = Table::open("table");
    for place in [Start::Sequence(8), Start::Earliest, Start::Latest] {
        log.commit(&[1]).await;
        let end = log.manifest().await.state.next_sequence;
        let consumer = start(&log.store, from(place), &table);
        read_by(&log, "default", end).await;
        consumer.stop().await.unwrap();
    }
    let rows: Vec<String> = (8..13).map(|row| format!("row-{row}")).collect();
    let mut sorted: Vec<String> = table.rows().into_keys().collect();
    sorted.sort_by_key(std::string::String::len);
    assert_eq!(sorted, rows);
}
