//! Tests a consumer's promise: every committed record is in the sink exactly once, through crashes, lost answers and
//! takeovers, and acknowledgements never skip a hole.

use crate::support::{Fault, Log, OTHER, STREAM, Table, config, eventually, start};
use millpond_consumer::{Config, ConsumeError, Consumer};
use millpond_manifest::cursor::{Ownership, Plan};
use millpond_manifest::{cas, layout};
use millpond_storage::unreliable::{self, Faults, On, Outage, WriteFaults};
use millpond_storage::{Cas, Store};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use std::collections::HashSet;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn everything_committed_is_in_the_sink_once_and_acknowledged() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3, 1, 25, 2, 2, 40, 1]).await;
    let table = Table::open("table");
    let consumer = start(&log.store, config("a"), &table);
    table.has(74).await;
    log.commit(&[5, 5]).await;
    table.has(84).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
    let cursor = log.cursor("default").await.unwrap();
    assert_eq!(cursor.next(STREAM), 9);
    assert_eq!(cursor.ownership, Ownership::Released);
}

#[tokio::test]
async fn only_the_streams_that_it_was_told_to_take_are_read_and_kept() {
    let mut log = Log::new(Store::memory()).await;
    log.commit_one(&[(STREAM, 20), (OTHER, 7)]).await;
    log.commit_to(OTHER, &[4]).await;
    for (consumer, pattern, taken, rows) in [
        ("others", "events.o*", &[OTHER][..], 11),
        ("one", STREAM, &[STREAM], 20),
        ("both", "*", &[OTHER, STREAM], 31),
    ] {
        let table = Table::open(consumer);
        let config = Config {
            consumer: consumer.to_owned(),
            streams: vec![pattern.parse().unwrap()],
            ..config("a")
        };
        let running = start(&log.store, config, &table);
        table.has(rows).await;
        running.stop().await.unwrap();
        assert_eq!(table.rows().len() as u64, rows, "{consumer}");
        let cursor = log.cursor(consumer).await.unwrap();
        for stream in [OTHER, STREAM] {
            let taken = taken.contains(&stream);
            assert_eq!(cursor.streams.contains_key(stream), taken, "{consumer}, {stream}");
            assert_eq!(
                cursor.next(stream),
                if taken { 2 } else { 0 },
                "{consumer}, {stream}"
            );
        }
    }
}

#[tokio::test]
async fn small_segments_are_coalesced_into_batches() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[1; 40]).await;
    let table = Table::open("table");
    let consumer = start(
        &log.store,
        Config {
            chunk_rows: 100,
            ..config("a")
        },
        &table,
    );
    table.has(40).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
    assert_eq!(
        table.attempts().len(),
        4,
        "four batches of ten: {:?}",
        table.attempts()
    );
}

/// Planning exists for this case: an owner sends the rows that have arrived and dies before it acknowledges them. More
/// rows arrive. Its successor must cut the old rows as the old owner did.
#[tokio::test]
async fn a_batch_that_a_crashed_owner_sent_is_sent_again_as_it_was() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let table = Table::open("table");
    // The owner never acknowledges, as if it died in between.
    let never = std::time::Duration::from_secs(3_600);
    let first = start(
        &log.store,
        Config {
            ack_interval: never,
            ..config("a")
        },
        &table,
    );
    table.has(3).await;
    first.crash().await;
    log.commit(&[2, 2]).await;

    let second = start(
        &log.store,
        Config {
            take_over: true,
            ..config("b")
        },
        &table,
    );
    table.has(7).await;
    eventually("everything is acknowledged", async || {
        log.cursor("default").await.unwrap().next(STREAM) == 3
    })
    .await;
    second.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows(), "every row, each once");
    assert_eq!(table.unannounced(), [""; 0]);
}

#[tokio::test]
async fn a_takeover_replays_what_is_in_doubt_before_anything_new() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3, 20, 20]).await;
    let table = Table::open("table");
    let never = std::time::Duration::from_secs(3_600);
    let first = start(
        &log.store,
        Config {
            ack_interval: never,
            ..config("a")
        },
        &table,
    );
    table.has(43).await;
    first.crash().await;
    log.commit(&[1, 20, 1]).await;

    let (before, asked_before) = (table.attempts().len(), table.asked().len());
    let second = start(
        &log.store,
        Config {
            take_over: true,
            max_in_flight: 2,
            ..config("b")
        },
        &table,
    );
    table.has(65).await;
    second.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
    let asked = table.asked().split_off(asked_before);
    assert_eq!(asked.len(), before, "for each chunk that was sent: {asked:?}");
    assert!(
        asked.iter().all(|(_, requests)| *requests == before),
        "something new was sent before: {asked:?}"
    );
}

#[tokio::test]
async fn an_answer_lost_by_the_sink_is_no_duplicate() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3, 25]).await;
    let table = Table::open("table");
    table.fail_next(&[Fault::LandsUnreported, Fault::Down, Fault::LandsUnreported]);
    let consumer = start(&log.store, config("a"), &table);
    table.has(28).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
    assert_eq!(table.unannounced(), [""; 0]);
}

#[tokio::test]
async fn nothing_is_acknowledged_over_a_hole() {
    let mut log = Log::new(Store::memory()).await;
    // One chunk per batch, so the one write that gets through finishes a batch.
    log.commit(&[20, 20]).await;
    let table = Table::shut("table");
    let consumer = start(
        &log.store,
        Config {
            chunk_rows: 100,
            ..config("a")
        },
        &table,
    );
    // Both batches hang in the sink; exactly one gets through.
    table.let_through(1);
    table.has(20).await;
    let first_done = table.rows().contains_key("row-0");
    if !first_done {
        log.commit(&[1]).await;
        eventually("the newcomer is seen", async || {
            log.cursor("default").await.is_some()
        })
        .await;
        assert_eq!(log.cursor("default").await.unwrap().next(STREAM), 0);
    }
    table.let_through(1 << 10);
    eventually("every row is in the table", async || table.rows() == log.rows()).await;
    consumer.stop().await.unwrap();
}

#[tokio::test]
async fn a_second_owner_fences_the_first() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3, 20, 3]).await;
    let table = Table::shut("table");
    let first = start(&log.store, config("a"), &table);
    eventually("the first owns it", async || {
        log.cursor("default")
            .await
            .is_some_and(|c| c.epoch == 1 && c.planned(STREAM).count() > 0)
    })
    .await;
    let second = start(
        &log.store,
        Config {
            take_over: true,
            ..config("b")
        },
        &table,
    );
    eventually("the second owns it", async || {
        log.cursor("default").await.unwrap().epoch == 2
    })
    .await;
    table.let_through(1 << 10);
    log.commit(&[4, 4, 30, 1]).await;
    eventually("everything is acknowledged", async || {
        log.cursor("default").await.unwrap().next(STREAM) == 7
    })
    .await;
    assert_eq!(
        log.cursor("default").await.unwrap().epoch,
        2,
        "the first stands by"
    );
    second.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());

    // The first owner, now in standby, takes over in turn.
    log.commit(&[2]).await;
    eventually("the first owns it again", async || {
        log.cursor("default").await.unwrap().epoch == 3
    })
    .await;
    eventually("every row is in the table", async || table.rows() == log.rows()).await;
    first.stop().await.unwrap();
}

/// Otherwise the owner would never be ready again, though it waits only for its turn.
#[tokio::test]
async fn an_owner_that_waited_for_the_sink_and_was_fenced_stands_by_ready() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[20]).await;
    let away = Table::open("table");
    away.fail_next(&[Fault::Down; 1_000]);
    let renews_soon = Config {
        lease: Duration::from_secs(3),
        ..config("a")
    };
    let mut registry = Registry::default();
    let owner = Consumer::new(log.store.clone(), renews_soon, away, &mut registry).unwrap();
    let batches = || {
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("millpond_consumer_batches_running "));
        line.unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    let readiness = owner.readiness();
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(owner.run(shutdown.clone()));
    eventually("the owner waits for the sink", async || {
        !readiness.waiting_for().is_empty()
    })
    .await;
    assert_eq!(batches(), "1");

    let table = Table::open("table");
    let takes_over = Config {
        take_over: true,
        ..config("b")
    };
    let second = start(&log.store, takes_over, &table);
    table.has(20).await;
    eventually("the first stands by", async || readiness.waiting_for().is_empty()).await;
    assert_eq!(batches(), "0", "of a term that is over");
    shutdown.cancel();
    task.await.unwrap().unwrap();
    second.stop().await.unwrap();
}

/// An operator skips what the sink does not take. The process opens the cursor again at once, and has nothing to write.
#[tokio::test]
async fn an_owner_whose_position_was_reset_waits_for_nothing() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[20]).await;
    let away = Table::open("table");
    away.fail_next(&[Fault::Down; 1_000]);
    let renews_soon = Config {
        lease: Duration::from_secs(3),
        ..config("a")
    };
    let owner = start(&log.store, renews_soon, &away);
    let readiness = owner.readiness.clone();
    eventually("the owner waits for the sink", async || {
        !readiness.waiting_for().is_empty()
    })
    .await;
    log.reset("default", 1).await;
    eventually("it waits for nothing", async || {
        readiness.waiting_for().is_empty()
    })
    .await;
    owner.stop().await.unwrap();
}

#[tokio::test]
async fn consumers_with_different_names_both_get_everything() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3, 20]).await;
    let (one, two) = (Table::open("one"), Table::open("two"));
    let first = start(&log.store, config("a"), &one);
    let second = start(
        &log.store,
        Config {
            consumer: "replay".into(),
            ..config("b")
        },
        &two,
    );
    one.has(23).await;
    two.has(23).await;
    first.stop().await.unwrap();
    second.stop().await.unwrap();
    assert_eq!((one.rows(), two.rows()), (log.rows(), log.rows()));
}

#[tokio::test]
async fn batches_in_doubt_are_finished_only_by_the_sink_they_were_begun_for() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let table = Table::shut("one");
    let first = start(&log.store, config("a"), &table);
    eventually("a batch is planned", async || {
        log.cursor("default")
            .await
            .is_some_and(|c| c.planned(STREAM).count() > 0)
    })
    .await;
    first.crash().await;

    let other = Table::open("two");
    let second = start(
        &log.store,
        Config {
            take_over: true,
            ..config("b")
        },
        &other,
    );
    let error = second.task.await.unwrap().unwrap_err();
    assert!(
        matches!(&error, ConsumeError::PinnedSink { pinned_sink, sink, .. } if pinned_sink == "one" && sink == "two")
    );

    table.let_through(1 << 10);
    let third = start(
        &log.store,
        Config {
            take_over: true,
            ..config("c")
        },
        &table,
    );
    table.has(3).await;
    third.stop().await.unwrap();
    let fourth = start(&log.store, config("d"), &other);
    log.commit(&[2]).await;
    other.has(2).await;
    fourth.stop().await.unwrap();
}

#[tokio::test]
async fn a_stopping_owner_finishes_its_batches_and_leaves_nothing_in_doubt() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3, 20, 3, 20]).await;
    let table = Table::shut("table");
    let consumer = start(&log.store, config("a"), &table);
    eventually("batches are planned", async || {
        log.cursor("default")
            .await
            .is_some_and(|c| c.planned(STREAM).count() > 0)
    })
    .await;
    consumer.shutdown.cancel();
    table.let_through(1 << 10);
    consumer.stop().await.unwrap();
    let cursor = log.cursor("default").await.unwrap();
    assert_eq!(cursor.ownership, Ownership::Released);
    assert_eq!(cursor.planned(STREAM).count(), 0);
    let next = start(&log.store, config("b"), &table);
    eventually("every row is in the table", async || table.rows() == log.rows()).await;
    next.stop().await.unwrap();
}

#[tokio::test]
async fn without_dead_letters_rows_that_are_refused_end_the_consumer_with_their_batch_named() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let table = Table::open("table");
    table.fail_next(&[Fault::Refuses]);
    let none = Config {
        dead_letters_max: 0,
        ..config("a")
    };
    let consumer = start(&log.store, none, &table);
    let error = consumer.task.await.unwrap().unwrap_err().to_string();
    assert!(error.contains("/0-0") && error.contains("bad rows"), "{error}");
    assert_eq!(log.cursor("default").await.unwrap().next(STREAM), 0);
}

#[tokio::test]
async fn a_segment_that_is_gone_is_named() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let key = layout::segment(0, log.manifest().await.state.tail[0].segment);
    log.store.delete(&key).await.unwrap();
    let consumer = start(&log.store, config("a"), &Table::open("table"));
    let error = consumer.task.await.unwrap().unwrap_err();
    assert!(
        matches!(&error, ConsumeError::Lost { key: found, sequence: 0 } if *found == key),
        "{error}"
    );
}

#[tokio::test]
async fn a_damaged_manifest_is_named_and_nothing_is_sent() {
    let mut log = Log::new(Store::memory()).await;
    log.commit(&[3]).await;
    let found = log.manifest().await;
    let mut bytes = cas::Object::encode(&found.state).to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    let written = log
        .store
        .compare_and_set(&layout::manifest(0), Some(&found.version), bytes.into())
        .await;
    assert!(matches!(written, Cas::Committed(_)), "{written:?}");
    let table = Table::open("table");
    let error = start(&log.store, config("a"), &table)
        .task
        .await
        .unwrap()
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("shards/0000/manifest: manifest is damaged"),
        "{error}"
    );
    assert!(table.attempts().is_empty());
}

/// Opening, planning and acknowledging are swaps of the cursor. Each of them lands and reports a failure.
#[tokio::test]
async fn cursor_swaps_that_landed_but_were_not_reported_send_nothing_twice_and_skip_nothing() {
    let mut log = Log::new(Store::memory()).await;
    let (store, network) = log.store.behind(Faults::default());
    for on in [On::Create, On::Update, On::Update, On::Update] {
        network.once(on, "cursor", unreliable::Fault::LandsUnreported);
    }
    log.commit(&[3, 20, 2]).await;
    let table = Table::open("table");
    let consumer = start(&store, config("a"), &table);
    table.has(25).await;
    log.commit(&[4, 30, 1]).await;
    table.has(60).await;
    eventually("everything is acknowledged", async || {
        log.cursor("default").await.unwrap().next(STREAM) == 6
    })
    .await;
    consumer.stop().await.unwrap();
    assert_eq!(network.unused(), 0, "every fault has happened");
    assert_eq!(table.rows(), log.rows());
    let attempts = table.attempts();
    let tokens: HashSet<_> = attempts.iter().collect();
    assert_eq!(tokens.len(), attempts.len(), "nothing was in doubt: {attempts:?}");
}

/// All four outcomes of a write at random, failing reads, and owners that crash or stop in between.
#[tokio::test]
async fn under_faults_and_crashes_every_row_is_in_the_sink_once() {
    for seed in 0..6 {
        let mut log = Log::new(Store::memory()).await;
        let (store, network) = log.store.behind(Faults {
            seed,
            write: WriteFaults::each(0.08),
            read_error: 0.08,
            latency: None,
        });
        let table = Table::open("table");
        let mut rows = 0;
        for round in 0..6 {
            let successor = Config {
                take_over: true,
                ..config(&format!("{round}"))
            };
            let consumer = start(&store, successor, &table);
            log.commit(&[3, 1, 12, 2]).await;
            rows += 18;
            // Some owners end with all rows unsent, some with some rows unacknowledged.
            if round % 3 != 0 {
                table.has(rows).await;
            }
            if round % 2 == 0 {
                consumer.crash().await;
            } else {
                consumer.stop().await.unwrap();
            }
        }
        network.heal();
        let last = start(
            &store,
            Config {
                take_over: true,
                ..config("last")
            },
            &table,
        );
        table.has(rows).await;
        last.stop().await.unwrap();
        assert_eq!(table.rows(), log.rows(), "seed {seed}");
        assert_eq!(
            log.cursor("default").await.unwrap().next(STREAM),
            24,
            "seed {seed}"
        );
    }
}

#[tokio::test]
async fn the_consumer_survives_an_outage_of_the_store() {
    let mut log = Log::new(Store::memory()).await;
    let (store, network) = log.store.behind(Faults::default());
    log.commit(&[3]).await;
    let table = Table::open("table");
    let consumer = start(&store, config("a"), &table);
    table.has(3).await;
    network.set_outage(Some(Outage::Fails));
    log.commit(&[4, 20]).await;
    assert!(!consumer.task.is_finished());
    network.set_outage(None);
    table.has(27).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
}

/// The owner was cut off when its plan landed. It was away so long that another owner may have sent the batch, and the
/// sink may have forgotten its tokens.
#[tokio::test(start_paused = true)]
async fn an_owner_whose_lease_ran_out_begins_nothing_until_it_is_renewed() {
    let mut log = Log::new(Store::memory()).await;
    let (store, network) = log.store.behind(Faults::default());
    log.commit(&[20]).await;
    let table = Table::open("table");
    let lease = Duration::from_secs(6);
    let consumer = start(&store, Config { lease, ..config("a") }, &table);
    table.has(20).await;
    eventually("the batch is acknowledged", async || {
        log.cursor("default").await.unwrap().next(STREAM) == 1
    })
    .await;
    let sent = table.attempts();
    let mut plans = network.hold(On::Update, "cursor");
    log.commit(&[30]).await;
    plans.arrived().await;
    tokio::time::sleep(lease).await;
    let mut renews = network.hold(On::Update, "cursor");
    plans.release();
    renews.arrived().await;
    let cursor = log.cursor("default").await.unwrap();
    let plan = cursor.planned(STREAM).next();
    assert_eq!(plan, Some(Plan { low: 1, high: 1 }), "the plan has landed");
    assert_eq!(
        table.attempts(),
        sent,
        "the owner resent rows that another may have sent long ago"
    );
    renews.release();
    table.has(50).await;
    consumer.stop().await.unwrap();
    assert_eq!(table.rows(), log.rows());
}
