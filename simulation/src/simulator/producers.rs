//! Producers and their clients: one producer after another in each place, drained or killed.

use super::ledger::{Answer, Position, message};
use super::process::Process;
use super::record::{Event, Oracle};
use super::scenario::{one_in, up_to};
use super::world::{World, counter};
use millpond_producer::{Append, AppendError, Committed, Config, Producer};
use millpond_segment::Encoding;
use millpond_storage::Store;
use prometheus_client::registry::Registry;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

/// Time limit for a producer to stop: the faults may last longer than its patience.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) async fn place(world: Arc<World>, place: usize, mut rng: StdRng) {
    for incarnation in 0.. {
        if world.is_over() {
            return;
        }
        let name = format!("producer-{place}.{incarnation}");
        let process = world.process(name.clone(), &mut rng);
        let store = world.connect(&process, &mut rng);
        let Some((producer, registry)) = start(&world, &process, store, None, &mut rng).await else {
            continue;
        };
        let mut clients = JoinSet::new();
        for number in 0..world.scenario.clients {
            let (world, producer) = (Arc::clone(&world), producer.clone());
            let rng = StdRng::seed_from_u64(rng.random());
            clients.spawn(client(world, producer, format!("{name}.{number}"), rng));
        }
        world.stalls(&process, &mut rng, Event::ProducersStalled).await;
        if one_in(&mut rng, 2) && producer.drain(PATIENCE).await.is_ok() {
            drained(&world, &process, clients).await;
        } else {
            // Its tasks live on, but nobody sees them.
            process.die();
            clients.shutdown().await;
            world.record.count(Event::ProducersKilled);
            world.record.event(&name, format_args!("is killed"));
        }
        tally(&world, &registry);
    }
}

/// A producer in the simulated environment. `None`: it gave up because the store was unreachable.
pub(crate) async fn start(
    world: &World,
    process: &Arc<Process>,
    store: Store,
    shard: Option<u32>,
    rng: &mut StdRng,
) -> Option<(Producer, Registry)> {
    let config = Config {
        linger: up_to(rng, Duration::from_millis(200)),
        segment_bytes: 400,
        segment_raw_bytes: rng.random_range(1..300),
        block_bytes: 128,
        max_uploads: rng.random_range(1..=3),
        memory_limit: 8 << 10,
        max_wait: Duration::from_secs(2),
        encoders: 2,
        shard,
        shards_when_created: world.scenario.shards,
        tail_max: world.scenario.tail_max,
        start_timeout: Duration::from_secs(2),
        ..Config::default()
    };
    let mut registry = Registry::default();
    match Producer::start_in(process.clone(), store, config, &mut registry).await {
        Ok(producer) => {
            let shard = producer.shard();
            world
                .record
                .event(&process.name, format_args!("has started in shard {shard:04}"));
            Some((producer, registry))
        }
        Err(error) => {
            world
                .record
                .event(&process.name, format_args!("has not started: {error}"));
            None
        }
    }
}

/// Adds the producer's counters to the run's counts.
pub(crate) fn tally(world: &World, registry: &Registry) {
    for (event, name) in [
        (Event::SegmentsUploadedAgain, "reuploads"),
        (Event::ProducersForgotten, "expired"),
        (Event::CommitsFound, "commits_found"),
    ] {
        let times = counter(registry, &format!("millpond_producer_{name}"));
        world.record.add(event, times);
    }
}

/// Checks that a drained producer has answered all clients.
async fn drained(world: &World, process: &Process, mut clients: JoinSet<()>) {
    world.record.count(Event::ProducersDrained);
    world.record.event(&process.name, format_args!("has drained"));
    let answered = async { while clients.join_next().await.is_some() {} };
    // A client may be pausing when its producer closes.
    if timeout(world.scenario.pause_max * 2, answered).await.is_err() {
        let detail = format!("{} has drained, and has not answered all clients", process.name);
        world.record.violated(Oracle::Liveness, detail);
    }
}

/// Sends messages, some without waiting for earlier answers, until its producer closes.
async fn client(world: Arc<World>, producer: Producer, name: String, mut rng: StdRng) {
    let free = Arc::new(Semaphore::new(world.scenario.pipelined));
    let mut appends = JoinSet::new();
    for number in 0.. {
        sleep(up_to(&mut rng, world.scenario.pause_max)).await;
        // The semaphore is never closed.
        let turn = Arc::clone(&free).acquire_owned().await;
        let message = message(&name, number, rng.random_range(1..=4));
        let stream = format!("events.{}", rng.random_range(0..world.scenario.streams));
        world.ledger.sent(&message);
        let (world, producer) = (Arc::clone(&world), producer.clone());
        appends.spawn(async move {
            let closed = append(&world, &producer, &stream, &message).await;
            drop(turn);
            closed
        });
        while let Some(Ok(closed)) = appends.try_join_next() {
            if closed {
                while appends.join_next().await.is_some() {}
                return;
            }
        }
    }
}

/// Appends a message and records the answer. Returns whether the producer is closed.
async fn append(world: &World, producer: &Producer, stream: &str, message: &str) -> bool {
    let append = Append {
        stream: stream.into(),
        encoding: Encoding::Ndjson,
        payload: message.to_owned().into(),
        records: message
            .rsplit(':')
            .next()
            .and_then(|part| part.parse().ok())
            .unwrap_or(1),
        received_at_us: 1,
        reservation: producer.budget().nothing(),
    };
    let result = producer.append(append).await;
    world
        .record
        .event("client", format_args!("{message} to {stream}: {result:?}"));
    let (answer, event) = match &result {
        Ok(Committed { shard, sequence, .. }) => {
            let position = Position {
                shard: *shard,
                sequence: *sequence,
            };
            (Answer::Committed(position), Event::Acknowledged)
        }
        Err(error) if error.has_no_side_effects() => (Answer::NotAppended, Event::Refused),
        Err(_) => (Answer::Unknown, Event::UnknownOutcome),
    };
    world.record.count(event);
    world.ledger.answered(message, answer);
    match result {
        Err(AppendError::Closed) => return true,
        Err(AppendError::Refused(reason)) => {
            let detail = format!("{message} was refused: {reason}");
            world.record.violated(Oracle::Failure, detail);
        }
        Ok(_) | Err(_) => {}
    }
    false
}

/// Appends one message after all faults have ended.
pub(crate) async fn append_one(world: &World, producer: &Producer, name: &str) {
    let message = message(name, 0, 1);
    world.ledger.sent(&message);
    append(world, producer, "events.0", &message).await;
}
