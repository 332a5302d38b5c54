//! Global faults: clock jumps, manifests that forget producers, and outages of the store and the sink.

use super::record::Event;
use super::scenario::{of, one_in, up_to};
use super::world::World;
use millpond_manifest::{Manifest, Snapshot, Swap, cas, layout};
use millpond_storage::unreliable::Outage;
use rand::RngExt;
use rand::rngs::StdRng;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Maximum pause between two faults.
const CALM_MAX: Duration = Duration::from_secs(4);

pub(crate) async fn clocks(world: Arc<World>, mut rng: StdRng) {
    let most = i64::try_from(world.scenario.jump_max.as_millis()).unwrap_or(i64::MAX);
    while !world.scenario.jump_max.is_zero() {
        sleep(up_to(&mut rng, CALM_MAX)).await;
        if world.is_over() {
            return;
        }
        let machine = rng.random_range(0..world.machines.len());
        let by_ms = of(&mut rng, &[-most, most, most / 10, -most / 10]);
        world.record.count(Event::ClockJumps);
        world
            .record
            .event("clock", format_args!("of machine {machine} jumps by {by_ms} ms"));
        world.machines[machine].jump(by_ms);
    }
}

pub(crate) async fn forgetting(world: Arc<World>, mut rng: StdRng) {
    let process = world.process("others".into(), &mut rng);
    let store = world.connect_well(&process);
    loop {
        sleep(up_to(&mut rng, CALM_MAX)).await;
        if world.is_over() || !world.scenario.forgets {
            return;
        }
        let key = layout::manifest(rng.random_range(0..world.scenario.shards));
        let Ok(Some(Snapshot {
            mut state, version, ..
        })) = cas::read::<Manifest>(&store, &key).await
        else {
            continue;
        };
        if state.producers.is_empty() {
            continue;
        }
        let gone = state.producers.remove(rng.random_range(0..state.producers.len()));
        let state = state.stamped(rng.random());
        if let Swap::Committed(_) = cas::swap(&store, &key, Some(&version), state).await {
            world
                .record
                .event("others", format_args!("make {key} forget producer {}", gone.id));
        }
    }
}

pub(crate) async fn outages(world: Arc<World>, mut rng: StdRng) {
    while !world.scenario.outage_max.is_zero() {
        sleep(up_to(&mut rng, CALM_MAX)).await;
        if world.is_over() {
            return;
        }
        let outage = if one_in(&mut rng, 2) {
            Outage::Fails
        } else {
            Outage::Hangs
        };
        world.record.count(Event::StoreOutages);
        world.record.event("store", format_args!("{outage:?}"));
        world.set_outage(Some(outage));
        sleep(up_to(&mut rng, world.scenario.outage_max)).await;
        world.set_outage(None);
        world.record.event("store", format_args!("is back"));
    }
}

pub(crate) async fn sink_outages(world: Arc<World>, mut rng: StdRng) {
    while !world.scenario.outage_max.is_zero() {
        sleep(up_to(&mut rng, CALM_MAX)).await;
        if world.is_over() {
            return;
        }
        let table = &world.tables[rng.random_range(0..world.tables.len())];
        world.record.count(Event::SinkOutages);
        world.record.event("sink", format_args!("is away"));
        table.set_down(true);
        sleep(up_to(&mut rng, world.scenario.outage_max)).await;
        table.set_down(false);
        world.record.event("sink", format_args!("is back"));
    }
}
