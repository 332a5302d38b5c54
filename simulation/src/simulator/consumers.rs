//! Owners of the cursors: one after another in each place, stopped or killed.

use super::process::Process;
use super::record::{Event, Oracle};
use super::scenario::{Scenario, of, one_in, up_to};
use super::sink::Connection;
use super::world::{World, consumer_name};
use millpond_consumer::{Config, ConsumeError, Consumer};
use millpond_manifest::UniqueSetting;
use millpond_manifest::cursor::UniqueSettings;
use millpond_runtime::Readiness;
use millpond_storage::Store;
use prometheus_client::registry::Registry;
use rand::RngExt;
use rand::rngs::StdRng;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

/// Time limit for an owner to stop before it is killed.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) async fn place(world: Arc<World>, consumer: usize, place: usize, mut rng: StdRng) {
    let mut instance = String::new();
    for incarnation in 0.. {
        if world.is_over() {
            return;
        }
        let process = world.process(format!("owner-{consumer}.{place}.{incarnation}"), &mut rng);
        // A restarted process may keep its name.
        if incarnation == 0 || one_in(&mut rng, 2) {
            instance.clone_from(&process.name);
        }
        let forces = one_in(&mut rng, world.scenario.forces);
        let store = world.connect(&process, &mut rng);
        let Some(mut owner) = start(&world, consumer, &process, store, &instance, forces, &mut rng) else {
            return;
        };
        let lived = {
            let stalls = world.stalls(&process, &mut rng, Event::OwnersStalled);
            tokio::select! {
                biased;
                ended = &mut owner.task => Some(ended),
                () = stalls => None,
            }
        };
        let ended = match lived {
            Some(ended) => Some(ended),
            None if one_in(&mut rng, 2) => {
                owner.shutdown.cancel();
                timeout(PATIENCE, &mut owner.task).await.ok()
            }
            None => None,
        };
        process.wake();
        match ended {
            None => {
                owner.task.abort();
                world.record.count(Event::OwnersKilled);
                world.record.event(&process.name, format_args!("is killed"));
            }
            Some(Ok(Ok(()))) => {
                world.record.count(Event::OwnersStopped);
                world.record.event(&process.name, format_args!("has stopped"));
            }
            Some(Ok(Err(error))) => {
                world.record.event(&process.name, format_args!("{error}"));
                let operators = world.scenario.operators;
                let expected = match &error {
                    // Retention trimmed it, or a collector that read the cursors before this consumer began or was moved back.
                    // Or the cursor has moved on, through another owner or an operator, while this owner was suspended.
                    ConsumeError::Trimmed { key, sequence, .. } => {
                        let consumer = consumer_name(consumer);
                        world.witness.may_be_trimmed(&consumer, key, *sequence)
                    }
                    ConsumeError::Removed { .. } => operators && !world.rivals().contains(&consumer),
                    ConsumeError::SharedTables { .. } => {
                        world.record.count(Event::ConsumersRefused);
                        // Its supervisor waits.
                        sleep(up_to(&mut rng, Duration::from_secs(2))).await;
                        may_be_refused(&world, consumer)
                    }
                    _ => false,
                };
                if !expected {
                    let detail = format!("{} gave up: {error}", process.name);
                    world.record.violated(Oracle::Failure, detail);
                }
            }
            // A panic is already a violation.
            Some(Err(_)) => {}
        }
    }
}

/// Returns true if others may have the consumer's table.
pub(crate) fn may_be_refused(world: &World, consumer: usize) -> bool {
    world.rivals().contains(&consumer) && world.scenario.sharing != Some(consumer)
}

/// A running consumer.
pub(crate) struct Owner {
    pub(crate) task: JoinHandle<Result<(), ConsumeError>>,
    pub(crate) shutdown: CancellationToken,
    pub(crate) readiness: Readiness,
}

/// The settings of an owner for repeated rows.
fn unique(world: &World, rng: &mut StdRng) -> UniqueSettings {
    let Scenario { windows, streams, .. } = &world.scenario;
    if windows.is_empty() {
        return UniqueSettings::new();
    }
    let window_ms = u64::try_from(of(rng, windows).as_millis()).unwrap_or(u64::MAX);
    let streams = (0..*streams).filter(|_| window_ms > 0);
    let setting = |stream| {
        let key = vec!["text".to_owned()];
        (format!("events.{stream}"), UniqueSetting { key, window_ms })
    };
    streams.map(setting).collect()
}

pub(crate) fn start(
    world: &World,
    consumer: usize,
    process: &Arc<Process>,
    store: Store,
    instance: &str,
    take_over: bool,
    rng: &mut StdRng,
) -> Option<Owner> {
    let policies = of(rng, &world.scenario.policies);
    let config = Config {
        consumer: consumer_name(consumer),
        instance: instance.to_owned(),
        lease: of(rng, &[world.scenario.lease, world.scenario.lease / 2]),
        take_over,
        poll_interval: Duration::from_millis(300),
        ack_interval: Duration::from_millis(rng.random_range(100..600)),
        memory_limit: 64 << 10,
        fetchers: 2,
        decoders: rng.random_range(1..=2),
        writers: rng.random_range(1..=3),
        drain_timeout: Duration::from_secs(2),
        batch_records: policies.batch_records,
        chunk_rows: policies.chunk_rows,
        max_in_flight: policies.max_in_flight,
        share_tables: world.scenario.sharing == Some(consumer),
        dead_letters_max: 1_000,
        unique: unique(world, rng),
        unique_memory: 16 << 10,
        snapshot_keys: world.scenario.snapshot_keys,
        snapshots_named: world.scenario.snapshots_named,
        snapshot_interval: world.scenario.snapshot_interval,
        keys_rest: world.scenario.keys_rest,
        ..Config::default()
    };
    let sink = Connection {
        table: Arc::clone(&world.tables[consumer]),
        process: Arc::clone(process),
        identity: if world.rivals().contains(&consumer) {
            "of the rivals".to_owned()
        } else {
            consumer_name(consumer)
        },
    };
    world.record.event(
        &process.name,
        format_args!("starts as {instance}, {policies:?}, take over: {take_over}"),
    );
    let started = Consumer::new(store, config, Arc::new(sink), &mut Registry::default());
    let owner = match started {
        Ok(owner) => owner.with_environment(Arc::clone(process) as Arc<_>),
        Err(error) => {
            world.record.violated(Oracle::Failure, error.to_string());
            return None;
        }
    };
    let (shutdown, readiness) = (CancellationToken::new(), owner.readiness());
    let task = tokio::spawn(owner.run(shutdown.clone()));
    Some(Owner {
        task,
        shutdown,
        readiness,
    })
}
