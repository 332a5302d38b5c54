//! Tests a producer's promises without faults: batching, budget, drain, refusals, metrics.

use std::time::Duration;

use crate::support::{STREAM, World, append, config, log, message};
use bytes::Bytes;
use futures::future::join_all;
use futures::{FutureExt, poll};
use millpond_producer::{Append, AppendError, Config, Producer, StartError};
use millpond_segment::Encoding;
use millpond_storage::Store;
use millpond_storage::unreliable::{On, Outage};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

/// Segments close by linger only.
fn batching() -> Config {
    Config {
        linger: Duration::from_secs(1),
        segment_raw_bytes: 1 << 20,
        ..config()
    }
}

#[tokio::test(start_paused = true)]
async fn messages_within_a_linger_share_a_segment_that_closes_when_it_is_over() {
    let world = World::new();
    let producer = world.producer(batching(), 1).await;
    let messages: Vec<String> = (0..30).map(|number| format!("message {number}")).collect();
    let all = async || join_all(messages.iter().map(|message| append(&producer, message))).await;
    all().await;
    let start = Instant::now();
    // A caller fewer than before: it may still come.
    let committed = join_all(messages[1..].iter().map(|message| append(&producer, message))).await;
    assert!(
        committed
            .iter()
            .all(|committed| committed.as_ref().unwrap().sequence == 1)
    );
    assert_eq!(start.elapsed().as_secs(), 1);
    assert_eq!(world.log().await, [&messages[..], &messages[1..]].concat());
    let part = world.manifest().await.state.tail[1].parts[0].clone();
    assert_eq!((part.messages, part.records), (29, 29));
    assert_eq!(append(&producer, "later").await.unwrap().sequence, 2);
}

#[tokio::test(start_paused = true)]
async fn without_a_linger_no_message_waits_for_another() {
    let world = World::new();
    let mut config = batching();
    config.linger = Duration::ZERO;
    let producer = world.producer(config, 1).await;
    let start = Instant::now();
    for (sequence, message) in (0..).zip(["a", "b"]) {
        assert_eq!(append(&producer, message).await.unwrap().sequence, sequence);
    }
    // A commit that waits for others waits for at least 50 ms.
    assert!(
        start.elapsed() < Duration::from_millis(50),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn streams_share_a_segment_and_keep_their_order() {
    let world = World::new();
    let producer = world.producer(batching(), 1).await;
    let appends = (0..30).map(|number| {
        let mut append = message(&producer, &format!("stream {} message {number:02}", number % 3));
        append.stream = format!("stream-{}", number % 3).into();
        append.encoding = if number % 3 == 0 {
            Encoding::Otlp
        } else {
            Encoding::Ndjson
        };
        producer.append(append)
    });
    assert!(join_all(appends).await.iter().all(Result::is_ok));
    let manifest = world.manifest().await.state;
    assert_eq!(
        (
            manifest.tail.len(),
            manifest.tail[0].parts.len(),
            manifest.streams.len()
        ),
        (1, 3, 3)
    );
    let log = world.log().await;
    let mut sorted = log.clone();
    sorted.sort();
    assert_eq!(log, sorted);
}

#[tokio::test(start_paused = true)]
async fn a_segment_closes_when_its_compressed_size_is_reached() {
    let world = World::new();
    let config = Config {
        linger: Duration::from_secs(3600),
        segment_bytes: 2000,
        ..batching()
    };
    let producer = world.producer(config, 1).await;
    // Hexadecimal noise: compresses to half its size at best. Blocks of 1 KiB go to the encoders as they fill.
    let payload = |number: u64| -> String {
        let noise = (0..64).map(|i| {
            (number * 64 + i + 1)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                .rotate_left(29)
        });
        noise
            .map(|noise| format!("{:016x}", noise.wrapping_mul(noise | 1)))
            .collect()
    };
    let payloads: Vec<String> = (0..16).map(payload).collect();
    let start = Instant::now();
    // The rest that does not fill a segment waits for the drain.
    let clients = join_all(payloads.iter().map(|payload| append(&producer, payload)));
    let drain = async {
        crate::support::until(|| async { world.manifest().await.state.next_sequence >= 1 }).await;
        producer.drain(Duration::from_secs(60)).await.unwrap();
    };
    let (committed, ()) = tokio::join!(clients, drain);
    assert!(committed.iter().all(Result::is_ok));
    assert!(start.elapsed() < Duration::from_secs(3600));
    assert_eq!(world.log().await, payloads);
}

#[tokio::test(start_paused = true)]
async fn a_message_larger_than_a_block_gets_through_and_one_over_the_limit_is_refused() {
    let world = World::new();
    let producer = world.producer(batching(), 1).await;
    let large = "x".repeat(200_000);
    let (before, large_result, after) = tokio::join!(
        append(&producer, "before"),
        append(&producer, &large),
        append(&producer, "after")
    );
    assert!(before.is_ok() && large_result.is_ok() && after.is_ok());
    assert_eq!(world.log().await, ["before", &large, "after"]);
    let refused = append(&producer, &"x".repeat(400_000)).await.unwrap_err();
    assert!(
        matches!(refused, AppendError::Refused(_)) && !refused.is_retryable(),
        "{refused}"
    );
    assert_eq!(producer.budget().held(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_empty_message_is_a_message() {
    let world = World::new();
    let producer = world.producer(config(), 1).await;
    append(&producer, "").await.unwrap();
    assert_eq!(world.log().await, [""]);
}

#[tokio::test(start_paused = true)]
async fn a_caller_is_refused_when_there_is_no_memory_for_as_long_as_it_would_wait() {
    let world = World::new();
    let producer = world
        .producer(
            Config {
                max_wait: Duration::from_secs(3),
                ..config()
            },
            1,
        )
        .await;
    let all = producer
        .budget()
        .reserve(producer.budget().limit())
        .await
        .unwrap();
    let start = Instant::now();
    let refused = append(&producer, "a").await.unwrap_err();
    assert!(
        matches!(refused, AppendError::OverBudget(_)) && refused.has_no_side_effects(),
        "{refused}"
    );
    assert_eq!(start.elapsed().as_secs(), 3);
    drop(all);
    append(&producer, "a").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_reservation_travels_with_its_message_and_goes_back_with_the_commit() {
    let world = World::new();
    let producer = world.producer(batching(), 1).await;
    let payload = "y".repeat(10_000);
    let mut append = message(&producer, &payload);
    append.reservation = producer
        .budget()
        .reserve(3 * Append::cost(payload.len()))
        .await
        .unwrap();
    let mut appending = Box::pin(producer.append(append));
    assert!(poll!(&mut appending).is_pending());
    let mut upload = world.controls.hold(On::Create, "");
    let held = producer.budget().held();
    assert!(held >= 10_000, "{held}");
    upload.arrived().await;
    let held = producer.budget().held();
    assert!(
        held > 0 && held < 1_000,
        "only the compressed bytes are held: {held}"
    );
    upload.release();
    appending.await.unwrap();
    crate::support::until(|| async { producer.budget().held() == 0 }).await;
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_neither_loses_nor_doubles_what_was_accepted() {
    let world = World::new();
    let producer = world.producer(batching(), 1).await;
    let mut upload = world.controls.hold(On::Create, "");
    let mut appending = Box::pin(append(&producer, "a"));
    assert!(poll!(&mut appending).is_pending());
    upload.arrived().await;
    drop(appending);
    upload.release();
    producer.drain(Duration::from_secs(60)).await.unwrap();
    assert_eq!(world.log().await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_goes_away_before_it_was_accepted_leaves_nothing() {
    let world = World::new();
    let producer = world.producer(batching(), 1).await;
    let all = producer
        .budget()
        .reserve(producer.budget().limit())
        .await
        .unwrap();
    assert!(append(&producer, "a").now_or_never().is_none());
    drop(all);
    producer.drain(Duration::from_secs(60)).await.unwrap();
    assert_eq!((world.log().await, producer.budget().held()), (vec![], 0));
}

#[tokio::test(start_paused = true)]
async fn a_drain_commits_what_was_accepted_without_waiting_for_the_linger_and_refuses_more() {
    let world = World::new();
    let producer = world
        .producer(
            Config {
                linger: Duration::from_secs(3600),
                ..batching()
            },
            1,
        )
        .await;
    let start = Instant::now();
    let mut appending = Box::pin(append(&producer, "a"));
    assert!(poll!(&mut appending).is_pending());
    producer.drain(Duration::from_secs(60)).await.unwrap();
    appending.await.unwrap();
    assert!(start.elapsed() < Duration::from_secs(1));
    assert_eq!(world.log().await, ["a"]);
    assert_eq!(append(&producer, "b").await, Err(AppendError::Closed));
    assert_eq!(producer.readiness().waiting_for(), ["stopping"]);
}

#[tokio::test(start_paused = true)]
async fn a_drain_during_an_outage_says_what_is_left_and_can_be_repeated() {
    let world = World::new();
    let producer = world.producer(batching(), 1).await;
    let mut appending = Box::pin(append(&producer, "a"));
    assert!(poll!(&mut appending).is_pending());
    world.controls.set_outage(Some(Outage::Fails));
    let error = producer.drain(Duration::from_secs(5)).await.unwrap_err();
    assert!(
        error.bytes_held > 0 && error.reason.starts_with("waiting for the store"),
        "{error}"
    );
    world.controls.heal();
    producer.drain(Duration::from_secs(60)).await.unwrap();
    appending.await.unwrap();
    assert_eq!(world.log().await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn accepted_messages_are_committed_after_the_last_handle_is_dropped() {
    let world = World::new();
    let producer = world.producer(batching(), 1).await;
    let mut appending = Box::pin(append(&producer, "a"));
    assert!(poll!(&mut appending).is_pending());
    drop(appending);
    drop(producer);
    crate::support::until(|| async { world.manifest().await.state.next_sequence == 1 }).await;
    assert_eq!(world.log().await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_can_never_be_accepted_is_refused_at_once() {
    let world = World::new();
    let producer = world.producer(config(), 1).await;
    append(&producer, "a").await.unwrap();
    let mut wrong_encoding = message(&producer, "x");
    wrong_encoding.encoding = Encoding::Otlp;
    let error = producer.append(wrong_encoding).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("refused: stream {STREAM} holds ndjson messages, not otlp")
    );
    let mut wrong_name = message(&producer, "x");
    wrong_name.stream = "../x".into();
    assert!(matches!(
        producer.append(wrong_name).await,
        Err(AppendError::Refused(_))
    ));
}

#[tokio::test]
async fn a_producer_that_cannot_start_reports_the_reason() {
    let world = World::new();
    let start = |config: Config| {
        let store = world.store.clone();
        async move {
            Producer::start(store, config, &mut Registry::default())
                .await
                .err()
                .unwrap()
        }
    };
    let error = start(Config {
        shard: Some(3),
        ..config()
    })
    .await
    .to_string();
    assert!(error.starts_with("shard 3 does not exist: the buffer"), "{error}");
    let error = start(Config {
        memory_limit: 100,
        ..config()
    })
    .await;
    assert!(
        matches!(error, StartError::Config(_)) && error.to_string().starts_with("memory_limit is 100: use ")
    );
}

#[tokio::test(start_paused = true)]
async fn a_start_waits_for_the_store_for_as_long_as_it_was_told() {
    let world = World::new();
    world.controls.set_outage(Some(Outage::Fails));
    let start = Instant::now();
    let config = Config {
        start_timeout: Duration::from_secs(20),
        ..config()
    };
    let error = Producer::start(world.store.clone(), config.clone(), &mut Registry::default()).await;
    assert!(matches!(error.err().unwrap(), StartError::Buffer { .. }));
    assert!((20..30).contains(&start.elapsed().as_secs()));
    let healed = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        world.controls.heal();
    };
    let mut registry = Registry::default();
    let (producer, ()) = tokio::join!(
        Producer::start(world.store.clone(), config, &mut registry),
        healed
    );
    append(&producer.unwrap(), "a").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_buffer_in_a_directory_is_written_by_several_clients_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("file://{}", directory.path().display()).parse().unwrap();
    let store = Store::open(&url, &millpond_storage::StoreOptions::default())
        .await
        .unwrap();
    let config = Config {
        linger: Duration::from_millis(5),
        ..Config::default()
    };
    let producer = Producer::start(store.clone(), config, &mut Registry::default())
        .await
        .unwrap();
    let clients = (0..8).map(|client| {
        let producer = producer.clone();
        tokio::spawn(async move {
            for number in 0..20 {
                let text = format!(
                    "client {client} message {number:02} {}",
                    "z".repeat(number * 1000)
                );
                append(&producer, &text).await.unwrap();
            }
        })
    });
    join_all(clients.collect::<Vec<_>>())
        .await
        .into_iter()
        .for_each(Result::unwrap);
    producer.drain(Duration::from_secs(60)).await.unwrap();
    let mut found: Vec<String> = log(&store)
        .await
        .iter()
        .map(|text| text[..19].to_owned())
        .collect();
    found.sort();
    found.dedup();
    assert_eq!(found.len(), 160);
}

#[tokio::test(start_paused = true)]
async fn every_metric_is_documented() {
    let world = World::new();
    let mut registry = Registry::default();
    let producer = Producer::start(world.store.clone(), config(), &mut registry)
        .await
        .unwrap();
    let payload = Bytes::from_static(b"{}\n{}");
    producer
        .append(Append {
            payload,
            records: 2,
            ..message(&producer, "")
        })
        .await
        .unwrap();
    let mut text = String::new();
    encode(&mut text, &registry).unwrap();
    assert!(text.contains("millpond_producer_records_total 2\n"), "{text}");
    assert!(
        text.contains("millpond_producer_commit_attempts_total{outcome=\"committed\"} 2\n"),
        "{text}"
    );
    let documented = include_str!("../../../design/producer.md");
    let names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    assert!(names.len() > 15, "{text}");
    for name in names {
        assert!(name.starts_with("millpond_producer_"), "{name}");
        assert!(
            documented.contains(&format!("`{name}")),
            "{name} is not in design/producer.md"
        );
    }
}
