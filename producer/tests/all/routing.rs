//! Messages that belong to shards, other than by their numbers: each is in its shard, or none of them is accepted.

use std::sync::Arc;
use std::time::Duration;

use millpond_manifest::cas::{self, Swap};
use millpond_manifest::{Buffer, Route, layout};
use millpond_producer::{Append, AppendError, Config};
use millpond_storage::unreliable::On;
use tokio::time::{Instant, sleep};

use crate::growth::{Process, grow, log};
use crate::support::{STREAM, World, config, until};

fn in_shard(shard: u32) -> Config {
    Config {
        shard: Some(shard),
        shards_when_created: 3,
        ..config()
    }
}

impl Process {
    /// Sends a message to each of these shards, and waits for all.
    async fn send_to(&self, shards: &[u32], text: &str) -> Result<(), AppendError> {
        let messages = shards.iter().map(|shard| (*shard, self.message(text)));
        self.committed(messages.collect(), None).await
    }

    async fn committed(&self, messages: Vec<(u32, Append)>, besides: Option<u32>) -> Result<(), AppendError> {
        for submitted in self.producers.submit_to(messages, besides).await? {
            submitted.committed().await?;
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn each_message_is_in_its_shard_whichever_process_takes_it() {
    let world = World::new();
    let processes = [
        Process::start(&world, in_shard(0), 1).await,
        Process::start(&world, in_shard(1), 2).await,
    ];
    processes[0].send_to(&[0, 1, 2], "a").await.unwrap();
    processes[1].send_to(&[1, 2], "b").await.unwrap();
    for (shard, expected) in [(0, &["a"][..]), (1, &["a", "b"]), (2, &["a", "b"])] {
        assert_eq!(log(&world.honest, shard).await, expected, "{shard}");
    }
    for process in &processes {
        process.producers.drain(Duration::from_secs(60)).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_cannot_be_used_fails_the_messages_that_need_it_alone() {
    let world = World::new();
    let process = Process::start(&world, in_shard(0), 1).await;
    let damaged = vec![bytes::Bytes::from_static(b"damaged")];
    let key = layout::manifest(2);
    world.honest.put_if_absent(&key, damaged).await.unwrap();
    let began = Instant::now();
    for _ in 0..100 {
        let refused = process.send_to(&[0, 1, 2], "whole").await.unwrap_err();
        assert!(
            refused.is_retryable() && refused.has_no_side_effects(),
            "{refused}"
        );
        assert!(refused.to_string().contains("shard 2, "), "{refused}");
    }
    let waited = began.elapsed();
    assert!(
        waited <= Duration::from_secs(11),
        "one after another they waited {waited:?}"
    );
    for shard in 0..2 {
        assert_eq!(
            log(&world.honest, shard).await,
            [""; 0],
            "nothing of them is in shard {shard}"
        );
    }
    for besides in [2, 0] {
        let message = (1, process.message("besides"));
        let outcome = process.committed(vec![message], Some(besides)).await;
        assert_eq!(outcome.is_ok(), besides == 0, "{outcome:?}");
    }
    assert_eq!(log(&world.honest, 1).await, ["besides"]);
    process.send_to(&[0, 1], "half").await.unwrap();
    assert_eq!(process.producers.readiness().waiting_for(), Vec::<String>::new());
    assert_eq!(process.metric("millpond_producer_home_refused_total"), "101");
    world.honest.delete(&key).await.unwrap();
    until(async || process.send_to(&[1, 2], "again").await.is_ok()).await;
    assert_eq!(log(&world.honest, 2).await, ["again"]);
}

/// The process moves to the shard of one message and away from that of the other, while both are in use.
#[tokio::test(start_paused = true)]
async fn a_move_fails_no_message() {
    let world = World::new();
    let process = Arc::new(Process::start(&world, config(), 4).await);
    process.send_to(&[0], "first").await.unwrap();
    let mut commit = world.controls.hold(On::Put, "shards/0000/manifest");
    let mut sent = Vec::new();
    let send = |text: &'static str| {
        let process = Arc::clone(&process);
        tokio::spawn(async move { process.send_to(&[0, 1], text).await })
    };
    grow(&world.honest, 2).await;
    until(async || process.producers.shards() == 2).await;
    sent.push(send("in flight"));
    commit.arrived().await;
    sleep(Duration::from_secs(2)).await;
    sent.push(send("later"));
    sleep(Duration::from_secs(2)).await;
    commit.release();
    for sent in sent {
        sent.await.unwrap().unwrap();
    }
    assert_eq!(log(&world.honest, 0).await, ["first", "in flight", "later"]);
    assert_eq!(log(&world.honest, 1).await, ["in flight", "later"]);
}

#[tokio::test(start_paused = true)]
async fn a_running_process_notices_a_route_and_its_end() {
    let world = World::new();
    let process = Process::start(&world, in_shard(0), 1).await;
    assert_eq!(process.producers.route(STREAM), None);
    let route = Arc::new(Route {
        key: vec!["id".to_owned()],
        shards: 2,
    });
    let change = async |next: &dyn Fn(&Buffer) -> Buffer| {
        let found = cas::read::<Buffer>(&world.honest, layout::BUFFER)
            .await
            .unwrap()
            .unwrap();
        let swapped = cas::swap(
            &world.honest,
            layout::BUFFER,
            Some(&found.version),
            next(&found.state),
        )
        .await;
        assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
    };
    let routes = [(STREAM.into(), route.clone())].into();
    change(&|buffer| buffer.route(&routes, 7).unwrap().unwrap()).await;
    until(async || process.producers.route(STREAM) == Some(route.clone())).await;
    grow(&world.honest, 5).await;
    until(async || process.producers.shards() == 5).await;
    assert_eq!(process.producers.route(STREAM), Some(route.clone()));
    change(&|buffer| buffer.unroute(&[STREAM.to_owned()], 8).unwrap()).await;
    until(async || process.producers.route(STREAM).is_none()).await;
}
