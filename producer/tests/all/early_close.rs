//! Tests when a segment closes before its linger ends, and what that may cost.

use std::time::Duration;

use crate::support::{World, append, config};
use futures::future::join_all;
use millpond_producer::{Config, Producer};
use tokio::time::{Instant, sleep};

const LINGER: Duration = Duration::from_secs(1);
/// A linger is over or nearly over. Tokio's timers have a resolution of 1 ms.
const WHOLE: Duration = Duration::from_millis(990);
/// Nobody has waited for a linger.
const AT_ONCE: Duration = Duration::from_millis(50);

fn lingering() -> Config {
    Config {
        linger: LINGER,
        segment_raw_bytes: 1 << 20,
        ..config()
    }
}

/// Appends once from each of `callers` callers at the same time. Returns the time until all have their answers.
async fn round(producer: &Producer, callers: usize) -> Duration {
    let start = Instant::now();
    let answers = join_all((0..callers).map(|_| append(producer, "x"))).await;
    answers.into_iter().collect::<Result<Vec<_>, _>>().unwrap();
    start.elapsed()
}

async fn segments(world: &World) -> usize {
    usize::try_from(world.manifest().await.state.next_sequence).unwrap()
}

#[tokio::test(start_paused = true)]
async fn callers_that_all_wait_do_not_wait_for_the_linger() {
    for callers in [1, 40] {
        let world = World::new();
        let producer = world.producer(lingering(), 1).await;
        for rounds in 1..=4 {
            let took = round(&producer, callers).await;
            assert!(took < AT_ONCE, "{callers} callers, round {rounds}: {took:?}");
            assert_eq!(segments(&world).await, rounds);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_may_add_something_is_waited_for() {
    let world = World::new();
    let producer = world.producer(lingering(), 1).await;
    round(&producer, 3).await;
    let took = round(&producer, 2).await;
    assert!(took >= WHOLE, "{took:?}");
    // Two wait already when the third comes.
    let late = async {
        sleep(LINGER / 3).await;
        round(&producer, 1).await
    };
    let (first, third) = tokio::join!(round(&producer, 2), late);
    assert!(third < AT_ONCE, "{third:?}");
    assert!(first < LINGER / 2, "{first:?}");
    assert_eq!(segments(&world).await, 3);
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_never_comes_back_is_forgotten() {
    let world = World::new();
    let producer = world.producer(lingering(), 1).await;
    round(&producer, 2).await;
    let mut waited = 0;
    while round(&producer, 1).await >= WHOLE {
        waited += 1;
        assert!(waited <= 16, "the segments that remember it");
    }
    assert_eq!(waited, 16);
}

#[tokio::test(start_paused = true)]
async fn callers_that_return_at_once_make_no_more_segments_than_lingers() {
    let world = World::new();
    let producer = world.producer(lingering(), 1).await;
    let start = Instant::now();
    for _ in 0..100 {
        round(&producer, 5).await;
    }
    // Four were saved up.
    let lingers = start.elapsed().as_secs_f64() / LINGER.as_secs_f64();
    assert!((96.0..=98.0).contains(&lingers), "{lingers}");
    assert_eq!(segments(&world).await, 100);

    // Saved up again.
    sleep(LINGER * 20).await;
    for _ in 0..3 {
        assert!(round(&producer, 5).await < AT_ONCE);
    }
}

#[tokio::test(start_paused = true)]
async fn full_segments_use_up_no_more_than_the_allowance() {
    let world = World::new();
    let mut config = lingering();
    config.segment_raw_bytes = 100;
    let producer = world.producer(config, 1).await;
    let large = "x".repeat(100);
    for _ in 0..50 {
        append(&producer, &large).await.unwrap();
    }
    assert_eq!(segments(&world).await, 50);
    // The first has to wait until the allowance has grown by one.
    assert!(round(&producer, 1).await > LINGER / 2);
    sleep(LINGER).await;
    assert!(round(&producer, 1).await < AT_ONCE);
}

#[tokio::test(start_paused = true)]
async fn callers_that_come_at_any_time_make_no_more_segments_than_lingers() {
    for gap_ms in [3, 30, 300, 700] {
        let world = World::new();
        let producer = world.producer(lingering(), 1).await;
        let start = Instant::now();
        let appends = (0..200).map(|number| {
            let producer = &producer;
            async move {
                sleep(Duration::from_millis(gap_ms) * number).await;
                append(producer, "x").await.unwrap();
            }
        });
        join_all(appends).await;
        let lingers = start.elapsed().as_secs_f64() / LINGER.as_secs_f64();
        let made = segments(&world).await as f64;
        assert!(made <= lingers + 4.0, "{gap_ms} ms: {made} in {lingers} lingers");
    }
}
