//! A seeded simulation of a shard: clients; producers that are killed, stalled or drained at any moment; a network in
//! which a write has each of its four outcomes; and a garbage collector that raises the orphan floor and forgets
//! producers. An acknowledged message is in the log, once, at the sequence in the answer. A message that was certainly
//! not appended is not in the log. No message is there twice, and each client's messages are in order.
//!
//! The clock is tokio's paused clock. Only the threads that compress are not seeded.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use crate::support::{START_MS, Seeded, World, append, config, segments};
use futures::future::join_all;
use millpond_producer::{AppendError, Config, Producer};
use millpond_storage::unreliable::{Controls, Outage};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep, timeout};
use ulid::Ulid;

/// The number of producers that live at the same time. A new one follows each that ends.
const PLACES: usize = 3;
/// The number of clients of each producer.
const CLIENTS: usize = 3;
/// The duration of the faults.
const DURATION: Duration = Duration::from_secs(30);
const LATE_BY_MAX: Duration = Duration::from_secs(3);

/// A client's knowledge of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Answer {
    Committed(u64),
    NotAppended,
    /// The client was told so, or got no answer.
    Unknown,
}

/// The outcomes of all messages, as the clients saw them. Every attempt is a separate message.
#[derive(Default)]
struct Story(Mutex<HashMap<String, Answer>>);

impl Story {
    fn note(&self, message: &str, answer: Answer) {
        self.0.lock().unwrap().insert(message.to_owned(), answer);
    }
}

/// A producer that is cut off and may return.
struct Stalled {
    producer: Producer,
    controls: Controls,
    registry: Registry,
}

/// Counts of the faults that the runs met, so that a fault that never happens is noticed.
#[derive(Debug, Default)]
struct Seen {
    acknowledged: usize,
    landed_untold: usize,
    lost_untold: usize,
    deleted: usize,
    /// By the producers' own count.
    reuploads: u64,
    commits_found: u64,
    expired: u64,
}

impl Seen {
    fn count(&mut self, registry: &Registry) {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        let counter = |name: &str| -> u64 {
            let name = format!("millpond_producer_{name}_total ");
            let value = text.lines().find_map(|line| line.strip_prefix(&name));
            value.unwrap().parse().unwrap()
        };
        self.reuploads += counter("reuploads");
        self.commits_found += counter("commits_found");
        self.expired += counter("expired");
    }
}

/// Sends one message after another until its producer has ended.
async fn client(producer: &Producer, name: String, story: &Story) {
    for number in 0.. {
        let message = format!("{name} message {number:04}");
        story.note(&message, Answer::Unknown);
        match append(producer, &message).await {
            Ok(committed) => story.note(&message, Answer::Committed(committed.sequence)),
            Err(AppendError::Closed) => return story.note(&message, Answer::NotAppended),
            Err(error) => {
                assert!(error.is_retryable(), "{message}: {error}");
                if error.has_no_side_effects() {
                    story.note(&message, Answer::NotAppended);
                }
            }
        }
    }
}

/// Runs one producer after another in one place. Returns those that stalled.
async fn place(
    world: &World,
    name: String,
    start: Instant,
    mut rng: StdRng,
    story: &Story,
    seen: &Mutex<Seen>,
) -> Vec<Stalled> {
    let mut stalled: Vec<Stalled> = Vec::new();
    for incarnation in 0.. {
        if start.elapsed() > DURATION {
            break;
        }
        let (store, controls, config) = world.faulty(&mut rng, LATE_BY_MAX);
        let config = Config {
            memory_limit: 12 << 10,
            ..config
        };
        let (environment, mut registry) = (Seeded::running(start, rng.random()), Registry::default());
        let started = Producer::start_in(environment, store, config, &mut registry).await;
        let Ok(producer) = started else { continue };
        let clients =
            (0..CLIENTS).map(|number| client(&producer, format!("{name}.{incarnation}.{number}"), story));
        let life = Duration::from_millis(rng.random_range(0..6_000));
        // Clients go away in the middle of a message.
        let _ = timeout(life, join_all(clients)).await;
        match rng.random_range(0..3) {
            // An orderly stop, over a network that is still bad.
            0 => {
                producer.drain(Duration::from_secs(600)).await.unwrap();
                seen.lock().unwrap().count(&registry);
            }
            // A kill: none of its later requests gets out.
            1 => {
                controls.set_outage(Some(Outage::Hangs));
                seen.lock().unwrap().count(&registry);
            }
            // A stall: the producer continues after others have taken its place.
            _ => {
                controls.set_outage(Some(Outage::Hangs));
                stalled.push(Stalled {
                    producer,
                    controls,
                    registry,
                });
            }
        }
        if let Some(awake) = stalled.iter().find(|_| rng.random()) {
            awake.controls.set_outage(None);
        }
    }
    stalled
}

/// Raises the orphan floor as far as allowed, deletes objects below it that are not in the log, and forgets producers.
async fn gc(world: &World, start: Instant, mut rng: StdRng, seen: &Mutex<Seen>) {
    while start.elapsed() < DURATION {
        sleep(Duration::from_millis(rng.random_range(100..2_000))).await;
        let elapsed_ms = u64::try_from(start.elapsed().as_millis()).unwrap();
        let floor_ms = START_MS + elapsed_ms.saturating_sub(rng.random_range(0..1_000));
        let forgets = rng.random_range(0..4) == 0;
        let who: usize = rng.random_range(0..PLACES);
        world
            .change_manifest(|manifest| {
                manifest.orphan_floor_ms = manifest.orphan_floor_ms.max(floor_ms);
                if forgets && who < manifest.producers.len() {
                    manifest.producers.remove(who);
                }
            })
            .await;
        let log = world.manifest().await.state.tail;
        for object in world.honest.list("shards/0000/segments").await.unwrap() {
            let name: Ulid = object.key.rsplit('/').next().unwrap().parse().unwrap();
            let needed = log.iter().any(|entry| entry.segment == name);
            if name.timestamp_ms() < floor_ms && !needed {
                world.honest.delete(&object.key).await.unwrap();
                seen.lock().unwrap().deleted += 1;
            }
        }
    }
}

async fn run(seed: u64, seen: &Mutex<Seen>) {
    let world = World::new();
    // The manifest exists before the garbage collector starts.
    let first = world.producer(config(), seed).await;
    first.drain(Duration::from_secs(60)).await.unwrap();
    let (start, story) = (Instant::now(), Story::default());
    let mut rng = StdRng::seed_from_u64(seed);
    let gc = gc(&world, start, StdRng::seed_from_u64(rng.random()), seen);
    let places = (0..PLACES).map(|number| {
        let rng = StdRng::seed_from_u64(rng.random());
        place(&world, number.to_string(), start, rng, &story, seen)
    });
    let (stalled, ()) = tokio::join!(join_all(places), gc);
    for stalled in stalled.into_iter().flatten() {
        stalled.controls.heal();
        stalled.producer.drain(Duration::from_secs(600)).await.unwrap();
        seen.lock().unwrap().count(&stalled.registry);
    }
    // Late writes of killed producers.
    sleep(LATE_BY_MAX * 2).await;
    let log = segments(&world.honest).await;
    check(seed, log, &story, &mut seen.lock().unwrap());
}

fn check(seed: u64, log: Vec<Vec<String>>, story: &Story, seen: &mut Seen) {
    let story = story.0.lock().unwrap();
    let mut found: HashMap<String, u64> = HashMap::new();
    let mut last_of: HashMap<String, String> = HashMap::new();
    for (sequence, messages) in (0..).zip(log) {
        for message in messages {
            let (client, _) = message.split_once(' ').unwrap();
            let last = last_of.entry(client.to_owned()).or_default();
            assert!(*last < message, "seed {seed}: {message:?} comes after {last:?}");
            last.clone_from(&message);
            let twice = found.insert(message.clone(), sequence);
            assert_eq!(twice, None, "seed {seed}: {message:?} is in the log twice");
            assert!(
                story.contains_key(&message),
                "seed {seed}: nobody sent {message:?}"
            );
        }
    }
    for (message, answer) in &*story {
        let found = found.get(message).copied();
        match answer {
            Answer::Committed(sequence) => {
                assert_eq!(
                    found,
                    Some(*sequence),
                    "seed {seed}: {message:?} was acknowledged"
                );
                seen.acknowledged += 1;
            }
            Answer::NotAppended => assert_eq!(found, None, "seed {seed}: {message:?} was not appended"),
            Answer::Unknown if found.is_some() => seen.landed_untold += 1,
            Answer::Unknown => seen.lost_untold += 1,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_acknowledged_record_is_lost_or_doubled_whoever_dies() {
    let seen = Mutex::new(Seen::default());
    for seed in 0..6 {
        run(seed, &seen).await;
    }
    let seen = seen.into_inner().unwrap();
    println!("{seen:?}");
    assert!(seen.acknowledged > 1_000, "{seen:?}");
    let rare = [seen.landed_untold, seen.lost_untold, seen.deleted];
    assert!(rare.iter().all(|times| *times > 3), "{seen:?}");
    let rare = [seen.reuploads, seen.commits_found, seen.expired];
    assert!(rare.iter().all(|times| *times > 3), "{seen:?}");
}
