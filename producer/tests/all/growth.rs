//! A process whose buffer grows: it moves to another shard, and none of its requests fails or is stored twice.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use millpond_manifest::cas::{self, Object, Swap};
use millpond_manifest::{Buffer, layout};
use millpond_producer::{Append, AppendError, Committed, Config, Producers, Serving};
use millpond_runtime::Environment;
use millpond_segment::Encoding;
use millpond_storage::unreliable::On;
use millpond_storage::{Cas, Store};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::time::sleep;

use crate::support::{STREAM, Seeded, World, config, until};

const LOOK: Duration = Duration::from_secs(1);

/// With so many shards, every seed of these tests draws a new one.
const MANY: u32 = 1_000;

/// Enough looks for whatever is going to happen.
const AGES: Duration = Duration::from_secs(120);

pub(crate) struct Process {
    pub(crate) producers: Producers,
    registry: Registry,
}

impl Process {
    pub(crate) async fn start(world: &World, config: Config, seed: u64) -> Process {
        let mut registry = Registry::default();
        let environment = Seeded::standing(seed);
        let config = Config {
            growth_interval: LOOK,
            ..config
        };
        let producers = Producers::start(environment, world.store.clone(), config, None, &mut registry).await;
        let producers = producers.unwrap();
        let following = producers.clone();
        tokio::spawn(async move { following.follow_growth().await });
        Process { producers, registry }
    }

    pub(crate) fn message(&self, text: &str) -> Append {
        Append {
            stream: STREAM.into(),
            encoding: Encoding::Ndjson,
            payload: Bytes::copy_from_slice(text.as_bytes()),
            records: 1,
            received_at_us: 1,
            reservation: self.producers.budget().nothing(),
        }
    }

    pub(crate) async fn append(&self, text: &str) -> Result<Committed, AppendError> {
        self.producers.append(self.message(text)).await
    }

    /// Appends in the background.
    fn begin(&self, text: &str) -> tokio::task::JoinHandle<Result<Committed, AppendError>> {
        let (producers, message) = (self.producers.clone(), self.message(text));
        tokio::spawn(async move { producers.append(message).await })
    }

    async fn moves(&self) {
        let from = self.producers.shard();
        until(async || self.producers.shard() != from).await;
    }

    /// The producers that are open for others: one, unless an old one has not finished.
    fn serving(&self) -> usize {
        Serving::from(self.producers.clone()).all().len()
    }

    pub(crate) fn metric(&self, name: &str) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).unwrap();
        let found = text
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
            .collect::<Vec<_>>();
        assert_eq!(found.len(), 1, "{name} is there once: {text}");
        found[0].to_owned()
    }
}

/// The object `buffer` with this number of shards.
pub(crate) async fn grow(store: &Store, shards: u32) {
    grow_by(store, shards, |grown| grown).await;
}

/// The same, by a program that writes another state than this one.
pub(crate) async fn grow_by(store: &Store, shards: u32, program: impl FnOnce(Buffer) -> Buffer) {
    let found = cas::read::<Buffer>(store, layout::BUFFER).await.unwrap().unwrap();
    let next = program(found.state.grow(shards, 7).unwrap().unwrap());
    let swapped = cas::swap(store, layout::BUFFER, Some(&found.version), next).await;
    assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
}

pub(crate) async fn log(store: &Store, shard: u32) -> Vec<String> {
    let segments = millpond_producer::testing::segments(store, shard).await;
    let messages = segments.into_iter().flatten();
    messages
        .map(|message| String::from_utf8(message).unwrap())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_process_moves_and_its_old_producer_answers_what_it_accepted() {
    let world = World::new();
    let process = Process::start(&world, config(), 1).await;
    process.append("first").await.unwrap();
    let mut commit = world.controls.hold(On::Put, "shards/0000/manifest");
    let in_flight = process.begin("in flight");
    commit.arrived().await;
    grow(&world.honest, MANY).await;
    process.moves().await;
    let shard = process.producers.shard();
    assert_eq!(process.producers.shards(), MANY);
    assert_eq!(process.metric("millpond_producer_shard"), shard.to_string());
    process.append("after").await.unwrap();
    assert_eq!(log(&world.honest, shard).await, ["after"]);
    assert!(!in_flight.is_finished());
    assert_eq!(process.serving(), 2, "the old producer waits for its commit");
    assert!(process.producers.drain(LOOK).await.is_err());
    commit.release();
    in_flight.await.unwrap().unwrap();
    process.producers.drain(AGES).await.unwrap();
    assert_eq!(process.serving(), 1);
    assert_eq!(log(&world.honest, 0).await, ["first", "in flight"]);
    let late = process.append("late").await.unwrap_err();
    assert!(matches!(late, AppendError::Closed), "{late}");
}

/// It waits for memory when the process moves, so the producer of its shard has not accepted it yet.
#[tokio::test(start_paused = true)]
async fn a_request_that_is_being_handed_over_keeps_its_producer_open() {
    let world = World::new();
    let patient = Config {
        max_wait: AGES,
        ..config()
    };
    let process = Process::start(&world, patient, 2).await;
    let budget = process.producers.budget();
    let memory = budget.reserve(budget.limit()).await.unwrap();
    let waiting = process.begin("waiting");
    grow(&world.honest, MANY).await;
    process.moves().await;
    sleep(LOOK).await;
    drop(memory);
    let answer = waiting.await.unwrap();
    answer.expect("the move fails no request");
    until(async || process.serving() == 1).await;
    assert_eq!(log(&world.honest, 0).await, ["waiting"]);
}

#[tokio::test(start_paused = true)]
async fn a_shard_that_cannot_be_opened_is_tried_again_and_fails_nothing() {
    let world = World::new();
    let process = Process::start(&world, config(), 3).await;
    for shard in 1..MANY {
        let damaged = vec![Bytes::from_static(b"damaged")];
        let key = layout::manifest(shard);
        world.honest.put_if_absent(&key, damaged).await.unwrap();
    }
    grow(&world.honest, MANY).await;
    sleep(AGES).await;
    assert_eq!((process.producers.shard(), process.producers.shards()), (0, MANY));
    process.append("meanwhile").await.unwrap();
    assert_eq!(
        process.producers.readiness().waiting_for(),
        Vec::<String>::new(),
        "the process is ready"
    );
    for shard in 1..MANY {
        world.honest.delete(&layout::manifest(shard)).await.unwrap();
    }
    process.moves().await;
    process.append("moved").await.unwrap();
    assert_eq!(log(&world.honest, 0).await, ["meanwhile"]);
    assert_eq!(log(&world.honest, process.producers.shard()).await, ["moved"]);
}

/// Neither a damaged object nor one of another buffer moves anything, and the next look counts.
#[tokio::test(start_paused = true)]
async fn a_look_that_fails_is_repeated() {
    let world = World::new();
    let process = Process::start(&world, config(), 4).await;
    let found = cas::read::<Buffer>(&world.honest, layout::BUFFER).await;
    let found = found.unwrap().unwrap();
    let other = Buffer::new(uuid::Uuid::from_u128(43), MANY);
    let mut version = found.version;
    for wrong in [b"damaged".to_vec(), other.encode().to_vec()] {
        let swapped = world
            .honest
            .compare_and_set(layout::BUFFER, Some(&version), wrong.into())
            .await;
        let Cas::Committed(new) = swapped else {
            panic!("an undisturbed swap fails")
        };
        version = new;
        sleep(AGES).await;
        assert_eq!((process.producers.shard(), process.producers.shards()), (0, 1));
        process.append("still here").await.unwrap();
    }
    let grown = found.state.grow(MANY, 7).unwrap().unwrap();
    let swapped = cas::swap(&world.honest, layout::BUFFER, Some(&version), grown).await;
    assert!(matches!(swapped, Swap::Committed(_)), "{swapped:?}");
    process.moves().await;
}

#[tokio::test(start_paused = true)]
async fn a_fixed_shard_stays_and_the_number_of_shards_follows() {
    let world = World::new();
    let fixed = Config {
        shard: Some(0),
        ..config()
    };
    let process = Process::start(&world, fixed, 5).await;
    grow(&world.honest, MANY).await;
    until(async || process.producers.shards() == MANY).await;
    sleep(AGES).await;
    assert_eq!(process.producers.shard(), 0);
}

/// A client knows of a shard before the process does.
#[tokio::test(start_paused = true)]
async fn a_shard_that_a_client_names_is_looked_for_at_once() {
    let world = World::new();
    let rare = Config {
        shard: Some(0),
        ..config()
    };
    let mut registry = Registry::default();
    let environment: Arc<dyn Environment> = Seeded::standing(6);
    let producers = Producers::start(environment, world.store.clone(), rare, None, &mut registry).await;
    let producers = producers.unwrap();
    assert!(producers.has_shard(0).await);
    assert!(!producers.has_shard(2).await);
    grow(&world.honest, 3).await;
    assert!(!producers.has_shard(2).await, "it has just looked");
    sleep(LOOK).await;
    assert!(producers.has_shard(2).await);
    sleep(LOOK).await;
    assert!(!producers.has_shard(3).await);
}
