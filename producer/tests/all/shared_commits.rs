//! Tests when full segments share a commit, and when they must not wait for one.

use std::time::Duration;

use crate::support::{World, append, config, until};
use futures::future::join_all;
use millpond_producer::{Config, Producer};
use millpond_storage::unreliable::On;
use tokio::time::{Instant, sleep};

const GAP: Duration = Duration::from_millis(10);

/// Every message fills a segment.
fn full_segments(linger: Duration) -> Config {
    Config { linger, ..config() }
}

/// Returns the number of commits so far: the registration is number 0.
async fn commits(world: &World) -> u64 {
    let manifest = world.manifest().await.state;
    manifest.producers.iter().map(|producer| producer.commit).sum()
}

/// Appends a message every 10 ms without waiting for answers. Returns the duration of each.
async fn steadily(producer: &Producer, messages: u32, payload: &str) -> Vec<Duration> {
    let appends = (0..messages).map(|number| async move {
        sleep(GAP * number).await;
        let start = Instant::now();
        append(producer, payload).await.unwrap();
        start.elapsed()
    });
    join_all(appends).await
}

#[tokio::test(start_paused = true)]
async fn full_segments_share_a_commit_and_wait_no_longer_than_their_linger() {
    // The linger ends between two messages.
    let linger = Duration::from_secs(1) + GAP / 2;
    let world = World::new();
    let producer = world.producer(full_segments(linger), 1).await;
    let took = steadily(&producer, 300, "x").await;
    assert_eq!(world.manifest().await.state.next_sequence, 300);
    // One commit per linger for three seconds, and one for the rest.
    assert!(
        (3..=5).contains(&commits(&world).await),
        "{}",
        commits(&world).await
    );
    let longest = took.iter().max().unwrap();
    // Tokio's timers have a resolution of 1 ms.
    assert!(*longest <= linger + Duration::from_millis(2), "{longest:?}");
}

#[tokio::test(start_paused = true)]
async fn callers_that_wait_for_their_answers_are_not_held_up() {
    let linger = Duration::from_secs(3600);
    let world = World::new();
    let producer = world.producer(full_segments(linger), 1).await;
    let start = Instant::now();
    let rounds = (0..4).map(|_| async {
        for _ in 0..10 {
            append(&producer, "x").await.unwrap();
        }
    });
    join_all(rounds).await;
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(world.manifest().await.state.next_sequence, 40);
}

#[tokio::test(start_paused = true)]
async fn a_commit_waits_up_to_a_linger_for_a_segment_in_flight() {
    let linger = Duration::from_secs(1);
    for upload in [linger / 2, linger * 2] {
        let world = World::new();
        let producer = world.producer(full_segments(linger), 1).await;
        let first = async {
            let start = Instant::now();
            append(&producer, "a").await.unwrap();
            start.elapsed()
        };
        let second = async {
            until(|| async { world.segments().await == 1 }).await;
            let mut slow = world.controls.hold(On::Create, "");
            let network = async {
                slow.arrived().await;
                sleep(upload).await;
                slow.release();
            };
            tokio::join!(append(&producer, "b"), network).0.unwrap();
        };
        let (took, ()) = tokio::join!(first, second);
        let expected = upload.min(linger);
        // The committer looks every 50 ms.
        let most = expected + Duration::from_millis(60);
        assert!(took >= expected && took <= most, "{took:?} beside {upload:?}");
        assert_eq!(world.log().await, ["a", "b"]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_segment_that_its_linger_closed_is_committed_at_once() {
    let linger = Duration::from_secs(1);
    let world = World::new();
    let config = Config {
        segment_raw_bytes: 1 << 20,
        ..full_segments(linger)
    };
    let producer = world.producer(config, 1).await;
    let took = steadily(&producer, 250, "x").await;
    assert_eq!(world.manifest().await.state.next_sequence, 3);
    assert_eq!(commits(&world).await, 3);
    assert!(took.iter().all(|took| *took <= linger + Duration::from_millis(2)));
}

#[tokio::test(start_paused = true)]
async fn waiting_segments_are_committed_before_they_fill_the_memory() {
    let linger = Duration::from_secs(3600);
    let world = World::new();
    let producer = world.producer(full_segments(linger), 1).await;
    let limit = producer.budget().limit();
    // Random bytes in hexadecimal: they compress to half their size.
    let noise: String = (1..500_u64)
        .map(|i| {
            format!(
                "{:016x}",
                (i * i).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
            )
        })
        .collect();
    let appends = steadily(&producer, 2_000, &noise);
    let most = async {
        let mut most = 0;
        for _ in 0..2_000 {
            most = most.max(producer.budget().held());
            sleep(GAP).await;
        }
        most
    };
    let (took, most) = tokio::join!(appends, most);
    assert!(took.iter().all(|took| *took < Duration::from_secs(10)));
    assert!(most > limit / 2 && most < limit / 10 * 9, "{most} of {limit}");
    assert!(commits(&world).await < 200, "{}", commits(&world).await);
}

#[tokio::test(start_paused = true)]
async fn only_producers_that_share_a_shard_read_the_manifest_first() {
    let world = World::new();
    let producers = [
        world.producer(full_segments(Duration::from_secs(1)), 1).await,
        world.producer(full_segments(Duration::from_secs(1)), 2).await,
    ];
    let (rounds, registrations) = (20, world.store.requests().cas_committed);
    for _ in 0..rounds {
        for producer in &producers {
            append(producer, "x").await.unwrap();
        }
    }
    let together = world.store.requests();
    // Each producer once, before it knew of the other.
    assert_eq!(together.cas_mismatch, 2);
    assert_eq!(together.cas_committed - registrations, 2 * rounds);
    for _ in 0..30 {
        append(&producers[0], "x").await.unwrap();
    }
    let alone = world.store.requests();
    assert_eq!(alone.cas_mismatch, together.cas_mismatch);
    // The first of these commits finds the other producer's last commit.
    assert_eq!(alone.get - together.get, 1 + 12);
}
