//! Whatever the network does to commits and uploads, every acknowledged message is in the log once.

use std::time::Duration;

use crate::support::{World, append_until_acknowledged, config, not_once};
use millpond_storage::unreliable::{Fault, On};

/// Sends messages one after another while the answers to commits get lost. Returns the messages that are not in the log
/// once.
async fn landed_but_unreported_commits() -> Vec<(String, usize)> {
    let world = World::new();
    let producer = world.producer(config(), 1).await;
    let messages: Vec<String> = (0..6).map(|number| format!("message {number}")).collect();
    for (number, message) in messages.iter().enumerate() {
        if number % 2 == 1 {
            world
                .controls
                .once(On::Update, "manifest", Fault::LandsUnreported);
        }
        append_until_acknowledged(&producer, message).await;
    }
    producer.drain(Duration::from_secs(60)).await.unwrap();
    assert_eq!(world.controls.unused(), 0, "every fault has happened");
    let log = world.log().await;
    not_once(&log, &messages)
        .into_iter()
        .map(|(message, times)| (message.to_owned(), times))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_landed_but_was_not_reported_yields_its_records_once() {
    assert_eq!(landed_but_unreported_commits().await, []);
}
