//! Operators: they reset cursors, skip parts and remove consumers, whoever owns the cursor.

use super::process::Process;
use super::reader::OPERATOR;
use super::record::{Event, Oracle};
use super::scenario::up_to;
use super::world::{World, consumer_name};
use millpond_manifest::cursor::{Ownership, Skip};
use millpond_manifest::{Cursor, Manifest, Snapshot, Swap, cas, layout};
use millpond_storage::Store;
use rand::RngExt;
use rand::rngs::StdRng;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

/// Maximum pause between two operations.
const CALM_MAX: Duration = Duration::from_secs(5);

pub(crate) async fn operators(world: Arc<World>, mut rng: StdRng) {
    let process = world.process(OPERATOR.into(), &mut rng);
    let store = world.connect_well(&process);
    if !world.scenario.operators {
        return;
    }
    loop {
        sleep(up_to(&mut rng, CALM_MAX)).await;
        if world.is_over() {
            return;
        }
        act(&world, &process, &store, &mut rng).await;
    }
}

async fn act(world: &World, process: &Process, store: &Store, rng: &mut StdRng) {
    let shard = rng.random_range(0..world.scenario.shards);
    let consumer = consumer_name(rng.random_range(0..world.scenario.consumers));
    let key = layout::cursor(shard, &consumer);
    let (Ok(Some(log)), Ok(Some(found))) = (
        cas::read::<Manifest>(store, &layout::manifest(shard)).await,
        cas::read::<Cursor>(store, &key).await,
    ) else {
        return;
    };
    let Snapshot {
        state: cursor,
        version,
        ..
    } = found;
    if cursor.is_removed() {
        return;
    }
    let log = log.state;
    let (event, next) = match rng.random_range(0..10) {
        0..4 => {
            let position = rng.random_range(log.first_sequence..=log.next_sequence);
            (Event::Resets, cursor.reset(position))
        }
        4..8 => {
            let stream = format!("events.{}", rng.random_range(0..world.scenario.streams));
            let from = cursor.next(&stream).max(log.first_sequence);
            let skip = Skip {
                sequence: rng.random_range(from..=log.next_sequence.max(from)),
                stream,
                at_ms: 1,
                reason: "it cannot be read".into(),
            };
            let mut next = cursor.clone();
            if next.skip(skip).is_err() {
                return;
            }
            match next.epoch == cursor.epoch {
                true => (Event::Skips, next),
                false => (Event::SkipsOfPlanned, next),
            }
        }
        8 => (Event::Removals, cursor.remove()),
        // Deletion by hand, only after a clean release: otherwise the next owner could not know that an earlier one may
        // still send. `remove` covers that case.
        _ if cursor.ownership != Ownership::Released || !cursor.is_clean() || cursor.unsettled => return,
        _ => {
            world.record.count(Event::CursorsDeleted);
            world.record.event(OPERATOR, format_args!("deletes {key}"));
            if let Err(error) = store.delete(&key).await {
                world.record.violated(Oracle::Failure, error.to_string());
            }
            return;
        }
    };
    let next = next.stamped(rng.random());
    if let Swap::Committed(_) = cas::swap(store, &key, Some(&version), next).await {
        world.record.count(event);
        world
            .record
            .event(&process.name, format_args!("{event:?} of {key}"));
    }
}
