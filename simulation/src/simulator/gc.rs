//! Collectors: one after another in each place, killed in the middle of a round.

use super::process::Process;
use super::record::{Event, Oracle};
use super::scenario::between;
use super::world::World;
use millpond_consumer::gc::{CollectError, GarbageCollector, GcConfig};
use millpond_manifest::ReadError;
use millpond_storage::Store;
use prometheus_client::registry::Registry;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

pub(crate) async fn place(world: Arc<World>, place: usize, mut rng: StdRng) {
    for incarnation in 0.. {
        if world.is_over() {
            return;
        }
        let process = world.process(format!("gc-{place}.{incarnation}"), &mut rng);
        let store = world.connect(&process, &mut rng);
        let mut gc = gc(&world, &process, store);
        let rounds = {
            let (world, process) = (Arc::clone(&world), Arc::clone(&process));
            let mut rng = StdRng::seed_from_u64(rng.random());
            tokio::spawn(async move {
                loop {
                    sleep(between(&mut rng, 100..1_500)).await;
                    round(&world, &process, &mut gc).await;
                }
            })
        };
        world.stalls(&process, &mut rng, Event::CollectorsStalled).await;
        rounds.abort();
        world.record.count(Event::CollectorsKilled);
        world.record.event(&process.name, format_args!("is killed"));
    }
}

pub(crate) fn gc(world: &World, process: &Arc<Process>, store: Store) -> GarbageCollector {
    let config = GcConfig {
        interval: Duration::from_secs(1),
        grace: world.scenario.grace,
        max_age: world.scenario.retention,
    };
    GarbageCollector::new(store, config, &mut Registry::default())
        .with_environment(Arc::clone(process) as Arc<_>)
}

/// Runs one round. Returns whether it completed.
pub(crate) async fn round(world: &World, process: &Process, gc: &mut GarbageCollector) -> bool {
    let Ok(result) = timeout(Duration::from_secs(600), gc.round(false)).await else {
        let detail = format!("a round of {} has no end", process.name);
        world.record.violated(Oracle::Liveness, detail);
        return false;
    };
    match result {
        Ok(done) => {
            world.record.event(&process.name, format_args!("{done:?}"));
            true
        }
        Err(error) => {
            world.record.event(&process.name, format_args!("{error}"));
            if !matches!(
                error,
                CollectError::Contended(_) | CollectError::Read(ReadError::Store(_))
            ) {
                let detail = format!("{}: {error}", process.name);
                world.record.violated(Oracle::Failure, detail);
            }
            false
        }
    }
}
