//! Faults of the store that a producer must survive: late and unreported writes, outages, contention, the orphan floor,
//! and a manifest that has forgotten the producer.

use std::time::Duration;

use crate::support::{START_MS, World, append, append_until_acknowledged, config, message, not_once, until};
use futures::future::join_all;
use millpond_manifest::ProducerId;
use millpond_producer::{AppendError, Config};
use millpond_segment::Encoding;
use millpond_storage::unreliable::{Fault, Faults, On, Outage, WriteFaults};

fn names_of(letters: &str) -> Vec<String> {
    letters.chars().map(String::from).collect()
}

fn names(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|number| format!("{prefix} {number}")).collect()
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_landed_but_was_not_reported_is_one_segment() {
    let world = World::new();
    let producer = world.producer(config(), 1).await;
    world.controls.once(On::Create, "", Fault::LandsUnreported);
    append(&producer, "a").await.unwrap();
    assert_eq!(world.controls.unused(), 0);
    assert_eq!(
        (world.log().await, world.segments().await),
        (vec!["a".to_owned()], 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_lands_after_the_next_attempt_has_read_the_manifest_counts_once() {
    let world = World::new();
    let producer = world.producer(config(), 1).await;
    // The first attempt reports a failure and is still in flight ...
    let late = world.controls.detain(On::Update, "manifest");
    // ... when the second one, made from the same manifest, is about to be sent.
    let mut second = world.controls.hold(On::Update, "manifest");
    let appending = append(&producer, "a");
    let network = async {
        second.arrived().await;
        late.release();
        world.controls.settled().await;
        assert_eq!(world.log().await, ["a"], "the first attempt has landed");
        second.release();
    };
    let (committed, ()) = tokio::join!(appending, network);
    assert_eq!(committed.unwrap().sequence, 0);
    assert_eq!(world.log().await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_lands_after_the_one_that_replaced_it_changes_nothing() {
    let world = World::new();
    let producer = world.producer(config(), 1).await;
    let late = world.controls.detain(On::Update, "manifest");
    append(&producer, "a").await.unwrap();
    late.release();
    world.controls.settled().await;
    append(&producer, "b").await.unwrap();
    assert_eq!(world.log().await, ["a", "b"]);
}

/// A proxy repeats a request whose answer it lost: the store refuses the second copy because the first landed.
#[tokio::test(start_paused = true)]
async fn a_refusal_that_our_own_commit_caused_acknowledges_nothing_but_that_commit() {
    let world = World::new();
    let producer = world.producer(config(), 1).await;
    let repeated = Fault::Repeated(Duration::from_secs(1));
    world.controls.once(On::Update, "manifest", repeated);
    let second = async {
        // The segment is in the log before the first commit gets its answer.
        until(|| async { world.log().await == ["a"] }).await;
        append(&producer, "b").await
    };
    let (a, b) = tokio::join!(append(&producer, "a"), second);
    let c = append(&producer, "c").await;
    let sequences = [a, b, c].map(|committed| committed.unwrap().sequence);
    assert_eq!((sequences, world.log().await), ([0, 1, 2], names_of("abc")));
    assert_eq!(world.controls.unused(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_refusal_that_another_producer_caused_lets_more_segments_join() {
    let world = World::new();
    let producer = world.producer(config(), 1).await;
    let mut commit = world.controls.hold(On::Update, "manifest");
    let before = world.store.requests().cas_committed;
    let second = async {
        commit.arrived().await;
        world.change_manifest(|_| ()).await;
        let network = async {
            until(|| async { world.segments().await == 2 }).await;
            commit.release();
        };
        tokio::join!(append(&producer, "b"), network).0
    };
    let (a, b) = tokio::join!(append(&producer, "a"), second);
    let sequences = [a, b].map(|committed| committed.unwrap().sequence);
    assert_eq!((sequences, world.log().await), ([0, 1], names_of("ab")));
    assert_eq!(world.store.requests().cas_committed - before, 1);
}

/// Another process uses the id, or the manifest comes from a copy of the buffer.
#[tokio::test(start_paused = true)]
async fn a_commit_that_the_producer_did_not_make_acknowledges_nothing() {
    let world = World::new();
    let producer = world.producer(config(), 1).await;
    let mut commit = world.controls.hold(On::Update, "manifest");
    let others = async {
        commit.arrived().await;
        world
            .change_manifest(|manifest| {
                let row = &mut manifest.producers[0];
                (row.commit, row.count) = (1, 2);
            })
            .await;
        commit.release();
    };
    let (result, ()) = tokio::join!(append(&producer, "a"), others);
    let error = result.unwrap_err();
    assert!(matches!(error, AppendError::OutcomeUnknown(_)), "{error}");
    append(&producer, "b").await.unwrap();
    assert_eq!(world.log().await, ["b"]);
}

#[tokio::test(start_paused = true)]
async fn a_registration_by_a_clock_a_day_ahead_leaves_outcomes_resolvable() {
    let world = World::new();
    let producer = world.producer(config(), 1).await;
    world
        .controls
        .once(On::Update, "manifest", Fault::LandsUnreported);
    let mut read = world.controls.hold(On::Get, "manifest");
    let other = async {
        read.arrived().await;
        let day_ahead = START_MS + 25 * 3_600 * 1_000;
        world
            .change_manifest(|manifest| *manifest = manifest.register(ProducerId([9; 16]), day_ahead))
            .await;
        read.release();
    };
    let (committed, ()) = tokio::join!(append(&producer, "a"), other);
    assert_eq!(committed.unwrap().sequence, 0);
    assert_eq!(world.log().await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn an_outage_makes_callers_wait_and_loses_nothing() {
    for outage in [Outage::Fails, Outage::Hangs] {
        let world = World::new();
        let small = Config {
            memory_limit: 16 << 10,
            max_wait: Duration::from_secs(10),
            ..config()
        };
        let producer = world.producer(small, 1).await;
        world.controls.set_outage(Some(outage));
        let messages = names("during the outage, message", 100);
        let clients = join_all(messages.iter().map(|message| async {
            let mut refused = 0;
            loop {
                match append(&producer, message).await {
                    Ok(_) => return refused,
                    Err(AppendError::OverBudget(_)) => refused += 1,
                    Err(error) => panic!("{error}"),
                }
            }
        }));
        let network = async {
            tokio::time::sleep(Duration::from_secs(120)).await;
            assert_ne!(producer.readiness().waiting_for(), Vec::<String>::new());
            assert!(producer.budget().held() <= producer.budget().limit());
            assert_eq!(world.log().await, Vec::<String>::new());
            world.controls.heal();
        };
        let (refused, ()) = tokio::join!(clients, network);
        assert!(
            refused.iter().sum::<usize>() > 100,
            "callers were refused while the memory was full"
        );
        assert_eq!(not_once(&world.log().await, &messages), [].into());
        producer.drain(Duration::from_secs(60)).await.unwrap();
        assert_eq!(producer.budget().held(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_producer_is_ready_again_after_an_outage() {
    let world = World::new();
    let producer = world.producer(config(), 1).await;
    world.controls.once(On::Update, "manifest", Fault::Lost);
    world.controls.once(On::Create, "", Fault::Lost);
    append(&producer, "a").await.unwrap();
    assert_eq!(producer.readiness().waiting_for(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn random_faults_lose_nothing_and_double_nothing() {
    for seed in 0..20 {
        let world = World::new();
        let producers = [
            world.producer(config(), 2 * seed).await,
            world.producer(config(), 2 * seed + 1).await,
        ];
        let write = WriteFaults {
            repeated: 0.12,
            ..WriteFaults::each(0.12)
        };
        world.controls.set_faults(Faults {
            seed,
            write,
            read_error: 0.2,
            latency: None,
        });
        let messages: Vec<_> = producers
            .iter()
            .zip(["first", "second"])
            .map(|(_, name)| names(name, 30))
            .collect();
        let clients = producers
            .iter()
            .zip(&messages)
            .map(|(producer, messages)| async move {
                for message in messages {
                    append_until_acknowledged(producer, message).await;
                }
            });
        join_all(clients).await;
        world.controls.heal();
        world.controls.settled().await;
        let (log, messages) = (world.log().await, messages.concat());
        assert_eq!(not_once(&log, &messages), [].into(), "seed {seed}");
        for name in ["first", "second"] {
            let order: Vec<_> = log
                .iter()
                .filter(|message| message.starts_with(name))
                .cloned()
                .collect();
            assert_eq!(order, names(name, 30), "seed {seed}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn producers_that_contend_for_one_shard_all_get_in() {
    let world = World::new();
    let mut tasks = Vec::new();
    for seed in 0..4 {
        let producer = world.producer(config(), seed).await;
        tasks.push(tokio::spawn(async move {
            let messages = names(&format!("producer {seed}, message"), 25);
            for message in &messages {
                append(&producer, message).await.unwrap();
            }
            messages
        }));
    }
    let mut messages = Vec::new();
    for task in tasks {
        messages.extend(task.await.unwrap());
    }
    let log = world.log().await;
    assert_eq!(not_once(&log, &messages), [].into());
    for seed in 0..4 {
        let name = format!("producer {seed}, message");
        let order: Vec<_> = log
            .iter()
            .filter(|message| message.starts_with(&name))
            .cloned()
            .collect();
        assert_eq!(order, names(&name, 25));
    }
}

#[tokio::test(start_paused = true)]
async fn a_segment_below_the_orphan_floor_is_uploaded_again_above_it() {
    let world = World::new();
    let producer = world.producer(config(), 1).await;
    let mut upload = world.controls.hold(On::Create, "");
    let floor_ms = 1_767_225_600_000 + 60_000;
    let gc = async {
        upload.arrived().await;
        world
            .change_manifest(|manifest| manifest.orphan_floor_ms = floor_ms)
            .await;
        upload.release();
    };
    let (committed, ()) = tokio::join!(append(&producer, "a"), gc);
    committed.unwrap();
    assert_eq!(world.log().await, ["a"]);
    let entry = world.manifest().await.state.tail[0].clone();
    assert!(entry.segment.timestamp_ms() >= floor_ms);
    assert_eq!(
        world.segments().await,
        2,
        "the first one waits for the garbage collector"
    );
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_producer_whose_commit_certainly_failed_goes_on_under_a_new_id() {
    let world = World::new();
    let producer = world.producer(config(), 1).await;
    let mut commit = world.controls.hold(On::Update, "manifest");
    let others = async {
        commit.arrived().await;
        world.change_manifest(|manifest| manifest.producers.clear()).await;
        commit.release();
    };
    let (committed, ()) = tokio::join!(append(&producer, "a"), others);
    committed.unwrap();
    append(&producer, "b").await.unwrap();
    assert_eq!(world.log().await, ["a", "b"]);
    assert_eq!(world.manifest().await.state.producers.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_producer_whose_commit_may_have_landed_says_so_and_goes_on() {
    for fault in [Fault::LandsUnreported, Fault::Lost] {
        let world = World::new();
        let producer = world.producer(config(), 1).await;
        world.controls.once(On::Update, "manifest", fault);
        let mut read = world.controls.hold(On::Get, "manifest");
        let others = async {
            read.arrived().await;
            world.change_manifest(|manifest| manifest.producers.clear()).await;
            read.release();
        };
        let (result, ()) = tokio::join!(append(&producer, "a"), others);
        let error = result.unwrap_err();
        assert!(
            matches!(error, AppendError::OutcomeUnknown(_)) && error.is_retryable(),
            "{error}"
        );
        append(&producer, "b").await.unwrap();
        let log = world.log().await;
        match fault {
            Fault::LandsUnreported => assert_eq!(log, ["a", "b"]),
            _ => assert_eq!(log, ["b"]),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_forgotten_producer_whose_refused_commit_is_in_the_log_says_so_and_goes_on() {
    let world = World::new();
    let producer = world.producer(config(), 1).await;
    world
        .controls
        .once(On::Update, "manifest", Fault::Repeated(Duration::ZERO));
    let mut read = world.controls.hold(On::Get, "manifest");
    let others = async {
        read.arrived().await;
        world.change_manifest(|manifest| manifest.producers.clear()).await;
        read.release();
    };
    let (result, ()) = tokio::join!(append(&producer, "a"), others);
    let error = result.unwrap_err();
    assert!(matches!(error, AppendError::OutcomeUnknown(_)), "{error}");
    append(&producer, "b").await.unwrap();
    assert_eq!(world.log().await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_another_producer_began_in_another_encoding_is_refused_alone() {
    let world = World::new();
    let (first, second) = (
        world.producer(config(), 1).await,
        world.producer(config(), 2).await,
    );
    append(&first, "a").await.unwrap();
    let other = |payload| {
        let mut other = message(&second, payload);
        other.encoding = Encoding::Otlp;
        other
    };
    let mut fine = message(&second, "b");
    fine.stream = "events.other".into();
    let (refused, fine) = tokio::join!(second.append(other("x")), second.append(fine));
    let refused = refused.unwrap_err();
    assert!(matches!(refused, AppendError::NotCommitted(_)), "{refused}");
    fine.unwrap();
    let refused = second.append(other("x")).await.unwrap_err();
    assert!(matches!(refused, AppendError::Refused(_)), "{refused}");
    assert_eq!(world.log().await, ["a", "b"]);
}

#[tokio::test(start_paused = true)]
async fn segments_that_wait_for_a_slow_commit_share_the_next_one() {
    let world = World::new();
    let producer = world.producer(config(), 1).await;
    let mut slow = world.controls.hold(On::Update, "manifest");
    let before = world.store.requests().cas_committed;
    let messages = names("message", 12);
    let others = async {
        slow.arrived().await;
        let clients = join_all(messages[1..].iter().map(|message| append(&producer, message)));
        let network = async {
            until(|| async { world.segments().await == messages.len() }).await;
            slow.release();
        };
        tokio::join!(clients, network).0
    };
    let (first, others) = tokio::join!(append(&producer, &messages[0]), others);
    let committed = std::iter::once(first).chain(others);
    let sequences: Vec<_> = committed.map(|committed| committed.unwrap().sequence).collect();
    assert_eq!(sequences, (0..12).collect::<Vec<_>>());
    assert_eq!(world.store.requests().cas_committed - before, 2);
    assert_eq!(world.log().await, messages);
}

#[tokio::test(start_paused = true)]
async fn segments_are_committed_in_the_order_of_acceptance_whatever_the_uploads_do() {
    let world = World::new();
    let producer = world.producer(config(), 1).await;
    let mut slow = world.controls.hold(On::Create, "");
    let messages = names("message", 10);
    let others = async {
        // The segment that is held up is the first, because encoders may finish in any order.
        slow.arrived().await;
        let clients = join_all(messages[1..].iter().map(|message| append(&producer, message)));
        let network = async {
            until(|| async { world.segments().await == messages.len() - 1 }).await;
            assert_eq!(world.log().await, Vec::<String>::new());
            slow.release();
        };
        tokio::join!(clients, network).0
    };
    let (first, others) = tokio::join!(append(&producer, &messages[0]), others);
    assert!(first.is_ok() && others.iter().all(Result::is_ok));
    assert_eq!(world.log().await, messages);
}
