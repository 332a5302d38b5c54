//! A consumer of a log that is mostly in pages reads every record once and in order, however many pages it is behind
//! and whoever crashes. It names a page that it cannot read.

use crate::support::{Log, OTHER, Running, STREAM, Table, config, eventually, start};
use millpond_consumer::{Config, ConsumeError};
use millpond_manifest::cas::{self, Swap};
use millpond_manifest::cursor::Seen;
use millpond_manifest::{Cursor, layout};
use millpond_storage::unreliable::{Fault, Faults, On, WriteFaults};
use millpond_storage::{Cas, Store};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::sleep;

const NEVER: Duration = Duration::from_secs(3_600);

fn successor(instance: &str) -> Config {
    Config {
        take_over: true,
        ..config(instance)
    }
}

async fn acknowledged(log: &Log, stream: &str, next: u64) {
    eventually(&format!("{stream} is acknowledged up to {next}"), async || {
        let cursor = log.cursor("default").await;
        cursor.is_some_and(|cursor| cursor.next(stream) == next)
    })
    .await;
}

/// Checks that every row is in the table once and acknowledged, and stops the consumer.
async fn delivered(log: &Log, consumer: Running, table: &Table) {
    eventually("every row is in the table", async || table.rows() == log.rows()).await;
    acknowledged(log, STREAM, log.manifest().await.state.next_sequence).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
    assert_eq!(table.unannounced(), [""; 0]);
    // A chunk keeps its rows in order.
    for rows in table.chunks() {
        let numbers: Vec<u64> = rows.iter().map(|row| row[4..].parse().unwrap()).collect();
        assert!(numbers.is_sorted(), "{numbers:?}");
    }
}

#[tokio::test]
async fn a_backlog_of_many_pages_is_delivered_once_and_in_order() {
    let tiny = vec![1; 41];
    let large = vec![20; 17];
    let mixed: Vec<u64> = (0..43).map(|i| [1, 1, 25, 2, 1, 9, 1, 3][i % 8]).collect();
    for sizes in [tiny, large, mixed] {
        // A group of tiny segments fills up within a page, across pages, or not in the whole log. It must start in each
        // case when it fills all loaded pages.
        for (batch_records, max_in_flight, entries) in [(2, 16, 3), (10, 2, 3), (1_000, 16, 2), (1_000, 1, 1)]
        {
            let mut log = Log::new(Store::memory()).await;
            log.commit(&sizes).await;
            log.seal(entries).await;
            let table = Table::open("table");
            let settings = Config {
                batch_records,
                max_in_flight,
                ..config("a")
            };
            let consumer = start(&log.store, settings.clone(), &table);
            // More segments arrive and are sealed while it reads.
            for more in sizes.chunks(4).take(3) {
                log.commit(more).await;
                log.seal(entries + 1).await;
            }
            delivered(&log, consumer, &table).await;
            let consumer = start(&log.store, settings, &table);
            log.commit(&[1, 30]).await;
            delivered(&log, consumer, &table).await;
        }
    }
}

/// The table of streams does not tell where a stream's records are: the consumer must pass pages without any quickly.
#[tokio::test]
async fn streams_at_different_positions_both_arrive() {
    let mut log = Log::new(Store::memory()).await;
    log.commit_to(OTHER, &[1]).await;
    log.commit(&[20; 60]).await;
    log.commit_to(OTHER, &[2, 30]).await;
    log.commit(&[1]).await;
    log.seal(2).await;
    let table = Table::open("table");
    let consumer = start(&log.store, config("a"), &table);
    delivered(&log, consumer, &table).await;
    // Only one stream has new segments, far ahead of the other's position.
    log.commit_to(OTHER, &[20; 31]).await;
    log.commit(&[1]).await;
    log.seal(1).await;
    let consumer = start(&log.store, config("a"), &table);
    delivered(&log, consumer, &table).await;
}

/// Nothing in these pages justifies an acknowledgement, except for the pages behind them.
#[tokio::test]
async fn many_pages_of_streams_that_the_sink_does_not_take_are_passed() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[1]).await;
    log.commit_to("ignored", &[1; 40]).await;
    log.commit(&[1, 20]).await;
    log.seal(2).await;
    let table = Table::open("table");
    let consumer = start(&log.store, config("a"), &table);
    acknowledged(&log, STREAM, 43).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows().len(), 22);
}

#[tokio::test]
async fn a_planned_batch_over_pages_and_a_tail_that_became_one_is_sent_again_as_it_was() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[20, 1, 1, 1]).await;
    log.seal(2).await;
    log.commit(&[1, 1]).await;
    let table = Table::shut("table");
    let settings = Config {
        batch_records: 40,
        writers: 1,
        ..config("a")
    };
    let (store, network) = log.store.behind(Faults::default());
    let mut second_page = network.hold(On::Get, &log.page_key(1).await);
    let first = start(&store, settings, &table);
    // The only writer is busy with the large segment until the consumer has seen the whole log.
    second_page.arrived().await;
    second_page.release();
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    table.let_through(5);
    eventually("a batch is planned over two pages and the tail", async || {
        let cursor = log.cursor("default").await.unwrap();
        let mut plans = cursor.planned(STREAM).map(|plan| (plan.low, plan.high));
        plans.next() == Some((1, 5))
    })
    .await;
    // One chunk of the batch gets through, then the owner dies.
    table.let_through(1);
    table.has(24).await;
    first.crash().await;
    // The tail is in separate pages when the successor comes, so the plan covers four pages.
    log.seal(1).await;
    log.commit(&[1, 20, 1, 1]).await;
    log.seal(2).await;
    table.let_through(1 << 10);
    let second = start(&log.store, successor("b"), &table);
    delivered(&log, second, &table).await;
}

#[tokio::test]
async fn large_segments_in_doubt_in_pages_are_announced_as_such() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[20, 1, 20, 20, 1, 1, 20, 20, 1, 20, 20, 20]).await;
    log.seal(2).await;
    let table = Table::open("table");
    let settings = Config {
        ack_interval: NEVER,
        max_in_flight: 4,
        ..config("a")
    };
    let first = start(&log.store, settings.clone(), &table);
    table.has(42).await;
    first.crash().await;
    let second = start(
        &log.store,
        Config {
            take_over: true,
            ..settings
        },
        &table,
    );
    table.has(82).await;
    second.crash().await;
    log.commit(&[1, 20]).await;
    let third = start(&log.store, successor("c"), &table);
    delivered(&log, third, &table).await;
}

async fn overwrite(store: &Store, key: &str, bytes: Vec<u8>) {
    let found = store.get(key).await.unwrap().unwrap();
    let written = store
        .compare_and_set(key, Some(&found.version), bytes.into())
        .await;
    assert!(matches!(written, Cas::Committed(_)), "{written:?}");
}

async fn error(store: &Store) -> ConsumeError {
    let consumer = start(store, successor("a"), &Table::open("table"));
    consumer.task.await.unwrap().unwrap_err()
}

#[tokio::test]
async fn a_page_that_is_damaged_gone_or_another_one_is_named() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[20; 10]).await;
    log.seal(2).await;
    let key = log.page_key(3).await;
    let whole = log.store.get(&key).await.unwrap().unwrap().bytes.to_vec();
    let other = log
        .store
        .get(&log.page_key(2).await)
        .await
        .unwrap()
        .unwrap()
        .bytes;

    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 4;
    overwrite(&log.store, &key, damaged).await;
    let found = error(&log.store).await;
    assert!(
        matches!(&found, ConsumeError::Format { key: named, .. } if *named == key),
        "{found}"
    );

    overwrite(&log.store, &key, other.to_vec()).await;
    let found = error(&log.store).await;
    assert!(
        matches!(&found, ConsumeError::WrongPage { key: named, .. } if *named == key),
        "{found}"
    );
    assert!(found.to_string().contains(&key), "{found}");

    log.store.delete(&key).await.unwrap();
    let found = error(&log.store).await;
    assert!(
        matches!(&found, ConsumeError::Lost { key: named, .. } if *named == key),
        "{found}"
    );

    // Half of the page was trimmed. The other half must still be there, and "start it again" would not help.
    log.change(|log| log.collect(7, 0)).await;
    let found = error(&log.store).await;
    assert!(
        matches!(&found, ConsumeError::Lost { key: named, .. } if *named == key),
        "{found}"
    );

    log.store.put_if_absent(&key, vec![whole.into()]).await.unwrap();
    let table = Table::open("table");
    let consumer = start(&log.store, successor("b"), &table);
    acknowledged(&log, STREAM, 10).await;
    consumer.stop().await.unwrap();
}

/// Otherwise an operator who moves the consumer past the page would lose intact records before it.
#[tokio::test]
async fn all_that_lies_before_a_damaged_page_is_delivered_first() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[20; 6]).await;
    log.seal(3).await;
    log.commit(&[20]).await;
    let key = log.page_key(1).await;
    let whole = log.store.get(&key).await.unwrap().unwrap().bytes.to_vec();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 4;
    overwrite(&log.store, &key, damaged).await;
    let table = Table::shut("table");
    let consumer = start(&log.store, successor("a"), &table);
    let named = key.clone();
    eventually("the page is named", async || {
        let waits = consumer.readiness.waiting_for();
        waits.iter().any(|wait| wait.contains(&named))
    })
    .await;
    table.let_through(1 << 10);
    let error = consumer.task.await.unwrap().unwrap_err();
    assert!(
        matches!(&error, ConsumeError::Format { key: named, .. } if *named == key),
        "{error}"
    );
    assert_eq!(table.rows().len(), 60);
    assert_eq!(log.cursor("default").await.unwrap().next(STREAM), 3);
    // Somebody restores it.
    overwrite(&log.store, &key, whole).await;
    let consumer = start(&log.store, successor("b"), &table);
    delivered(&log, consumer, &table).await;
}

/// The first stream stands at two lost pages in a row, and the other one is behind them.
#[tokio::test(start_paused = true)]
async fn streams_with_other_pages_go_on_beside_damaged_ones() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[1]).await;
    log.commit_to(OTHER, &[1]).await;
    let table = Table::open("table");
    let first = start(&log.store, config("a"), &table);
    acknowledged(&log, STREAM, 2).await;
    acknowledged(&log, OTHER, 2).await;
    first.stop().await.unwrap();
    log.commit(&[20; 7]).await;
    log.commit_to(OTHER, &[20; 7]).await;
    log.commit(&[1]).await;
    log.seal(3).await;
    let key = layout::cursor(0, "default");
    let found = cas::read::<Cursor>(&log.store, &key).await.unwrap().unwrap();
    let mut cursor = found.state;
    cursor.acknowledge(OTHER, 9).unwrap();
    cursor.see(Seen::newest(&log.manifest().await.state).unwrap());
    let swapped = cas::swap(&log.store, &key, Some(&found.version), cursor.stamped(9)).await;
    assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
    for place in [0, 1] {
        log.store.delete(&log.page_key(place).await).await.unwrap();
    }
    let consumer = start(&log.store, successor("b"), &table);
    let error = consumer.task.await.unwrap().unwrap_err();
    assert!(matches!(error, ConsumeError::Lost { .. }), "{error}");
    assert_eq!(table.rows().len(), 2 + 7 * 20);
}

#[tokio::test]
async fn the_consumer_retries_pages_that_it_cannot_read() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[1, 20, 1].repeat(6)).await;
    log.seal(3).await;
    for seed in 0..4 {
        let (store, network) = log.store.behind(Faults {
            seed,
            write: WriteFaults::each(0.05),
            read_error: 0.25,
            latency: None,
        });
        for page in 0..6 {
            network.once(On::Get, &log.page_key(page).await, Fault::Lost);
            network.once(On::Get, &log.page_key(page).await, Fault::Lost);
        }
        let table = Table::open("table");
        let consumer = start(
            &store,
            Config {
                consumer: format!("{seed}"),
                ..config("a")
            },
            &table,
        );
        eventually("every row is in the table", async || table.rows() == log.rows()).await;
        assert_eq!(network.unused(), 0);
        network.heal();
        consumer.stop().await.unwrap();
        assert_eq!(table.rows(), log.rows());
    }
}

/// The consumer has planned a batch over the segment, and the table may have a part of it.
#[tokio::test]
async fn a_segment_that_was_trimmed_before_it_was_read_is_named_and_a_restart_goes_on() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[20; 6]).await;
    let key = layout::segment(0, log.manifest().await.state.tail[0].segment);
    log.seal(2).await;
    let (store, network) = log.store.behind(Faults::default());
    let mut held = network.hold(On::Get, &key);
    let table = Table::open("table");
    let consumer = start(&store, config("a"), &table);
    held.arrived().await;
    log.change(|log| log.collect(3, 0)).await;
    log.store.delete(&key).await.unwrap();
    held.release();
    let error = consumer.task.await.unwrap().unwrap_err();
    assert!(
        matches!(&error, ConsumeError::Trimmed { key: named, sequence: 0, first: 3 } if *named == key),
        "{error}"
    );
    let again = start(&store, successor("b"), &table);
    has_all_but_the_first_three(&log, again, &table).await;
}

#[tokio::test]
async fn a_consumer_goes_on_past_a_page_that_retention_drops_before_it_is_read() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[20; 6]).await;
    log.seal(2).await;
    let key = log.page_key(0).await;
    let (store, network) = log.store.behind(Faults::default());
    let mut held = network.hold(On::Get, &key);
    let table = Table::open("table");
    let consumer = start(&store, config("a"), &table);
    held.arrived().await;
    log.change(|log| log.collect(3, 0)).await;
    log.store.delete(&key).await.unwrap();
    held.release();
    has_all_but_the_first_three(&log, consumer, &table).await;
}

async fn has_all_but_the_first_three(log: &Log, consumer: Running, table: &Table) {
    acknowledged(log, STREAM, 6).await;
    consumer.stop().await.unwrap();
    let rows = table.rows();
    assert!(rows.values().all(|times| *times == 1), "{rows:?}");
    assert!(
        (60..120).all(|row| rows.contains_key(&format!("row-{row}"))),
        "{rows:?}"
    );
}

/// A new stream has no position, so the owner reads it from the cursor's start on. The garbage collector keeps nothing
/// before the position of the other stream, because the new one has no part there.
#[tokio::test]
async fn an_owner_with_an_old_manifest_goes_on_past_a_trimmed_page_that_only_a_new_stream_asks_for() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[20, 20]).await;
    let (store, network) = log.store.behind(Faults::default());
    let table = Table::open("table");
    let consumer = start(&store, config("a"), &table);
    acknowledged(&log, STREAM, 2).await;
    let mut manifest = network.hold(On::Get, "manifest");
    manifest.arrived().await;
    log.seal(2).await;
    log.commit_to(OTHER, &[1]).await;
    let key = log.page_key(0).await;
    let mut page = network.hold(On::Get, &key);
    manifest.release();
    page.arrived().await;
    let needed = log.cursor("default").await.unwrap().needs();
    log.change(|log| log.collect(needed, 0)).await;
    log.store.delete(&key).await.unwrap();
    page.release();
    delivered(&log, consumer, &table).await;
}

/// The swap lands after the tail became a page that the owner has not read. Without that page, the owner sees less of
/// the log than the position covers.
#[tokio::test]
async fn an_owner_releases_a_cursor_whose_position_is_past_a_page_that_it_has_not_read() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let (store, network) = log.store.behind(Faults::default());
    let table = Table::open("table");
    let settings = Config {
        drain_timeout: Duration::ZERO,
        ..config("a")
    };
    let consumer = start(&store, settings, &table);
    acknowledged(&log, STREAM, 1).await;
    // This swap gives the new stream a position, after the first segment. Its outcome stays unknown.
    let mut swap = network.detain(On::Update, "cursor");
    let mut cursor = network.hold(On::Get, "cursor");
    log.commit_to(OTHER, &[1]).await;
    swap.arrived().await;
    cursor.arrived().await;
    let mut manifest = network.hold(On::Get, "manifest");
    manifest.arrived().await;
    log.seal(2).await;
    let mut page = network.hold(On::Get, &log.page_key(0).await);
    manifest.release();
    page.arrived().await;
    swap.release();
    acknowledged(&log, OTHER, 1).await;
    consumer.stop().await.unwrap();
    let second = start(&log.store, successor("b"), &table);
    delivered(&log, second, &table).await;
}

/// Retention cuts a batch of which the table has a part. The consumer cannot send the rest under the batch's tokens,
/// because they stand for other rows.
#[tokio::test]
async fn no_two_row_sets_share_a_token_though_a_planned_batch_was_trimmed() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[1; 8]).await;
    let table = Table::shut("table");
    table.let_through(1);
    let first = start(&log.store, config("a"), &table);
    table.has(4).await;
    first.crash().await;
    log.change(|log| log.collect(2, 0)).await;
    log.commit(&[1, 20, 1]).await;
    log.seal(2).await;
    table.let_through(1 << 10);
    let second = start(&log.store, successor("b"), &table);
    acknowledged(&log, STREAM, 11).await;
    second.stop().await.unwrap();
    let rows: BTreeMap<_, _> = table.rows();
    assert!(rows.values().all(|times| *times == 1), "{rows:?}");
    assert!(
        (8..30).all(|row| rows.contains_key(&format!("row-{row}"))),
        "{rows:?}"
    );
}

#[tokio::test]
async fn batches_in_doubt_that_were_trimmed_hold_nothing_up() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[20, 1, 20, 20, 1, 1]).await;
    log.seal(2).await;
    let table = Table::open("table");
    let settings = Config {
        ack_interval: NEVER,
        ..config("a")
    };
    let first = start(&log.store, settings, &table);
    table.has(41).await;
    first.crash().await;
    let shut = Table::shut("table");
    let second = start(&log.store, successor("b"), &shut);
    eventually("the second owns it", async || {
        log.cursor("default").await.unwrap().epoch == 2
    })
    .await;
    // Garbage collection trims the batches that the second owner has not started.
    log.change(|log| log.collect(4, 0)).await;
    second.crash().await;
    let third = start(&log.store, successor("c"), &table);
    log.commit(&[1, 20]).await;
    acknowledged(&log, STREAM, 8).await;
    third.stop().await.unwrap();
    let rows = table.rows();
    assert!(rows.values().all(|times| *times == 1), "{rows:?}");
    assert!(
        (63..84).all(|row| rows.contains_key(&format!("row-{row}"))),
        "{rows:?}"
    );
}

/// A successor has read all of a log that is trimmed while its predecessor waits for a segment. The predecessor's last words may
/// take long: a machine that stood still has connections that died.
#[tokio::test(start_paused = true)]
async fn an_owner_that_was_succeeded_before_the_log_was_trimmed_stands_by() {
    for is_slow in [false, true] {
        let mut log = Log::new(Store::memory()).await;
        log.commit(&[20]).await;
        let key = layout::segment(0, log.manifest().await.state.tail[0].segment);
        let (store, network) = log.store.behind(Faults::default());
        let mut segment = network.hold(On::Get, &key);
        let table = Table::open("table");
        let first = start(&store, config("a"), &table);
        segment.arrived().await;
        let swap = is_slow.then(|| network.hold(On::Update, "cursor"));
        let second = start(&log.store, successor("b"), &table);
        acknowledged(&log, STREAM, 1).await;
        log.change(|log| log.collect(1, 0)).await;
        log.store.delete(&key).await.unwrap();
        segment.release();
        sleep(Duration::from_secs(10)).await;
        assert!(!first.task.is_finished(), "slow: {is_slow}");
        drop(swap);
        second.stop().await.unwrap();
        log.commit(&[2]).await;
        acknowledged(&log, STREAM, 2).await;
        first.stop().await.unwrap();
        assert_eq!(table.rows(), log.rows());
    }
}

/// The removal is the reason to end, whatever was trimmed after it.
#[tokio::test(start_paused = true)]
async fn an_owner_of_a_removed_cursor_says_so_when_the_log_was_trimmed() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[20]).await;
    let key = layout::segment(0, log.manifest().await.state.tail[0].segment);
    let (store, network) = log.store.behind(Faults::default());
    let mut segment = network.hold(On::Get, &key);
    let consumer = start(&store, config("a"), &Table::open("table"));
    segment.arrived().await;
    log.remove("default").await;
    log.change(|log| log.collect(1, 0)).await;
    log.store.delete(&key).await.unwrap();
    segment.release();
    let ended = consumer.task.await.unwrap();
    assert!(matches!(ended, Err(ConsumeError::Removed { .. })), "{ended:?}");
}
