//! The whole system as a `stateright` model.

use crate::bounds::Bounds;
use crate::gc::{self, GarbageCollector};
use crate::owner::{self, Owner};
use crate::producer::{self, Producer};
use crate::properties;
use crate::store::Store;
use millpond_manifest::BatchingPolicy;
use millpond_manifest::cursor::Skip;
use stateright::{Model, Property};

/// The system to search.
#[derive(Debug, Clone)]
pub struct System {
    /// The limits of the search.
    pub bounds: Bounds,
}

/// The remaining number of each bounded event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "`Bounds` documents the same fields")]
pub struct Left {
    pub rounds: u8,
    pub producer_faults: u8,
    pub owner_faults: u8,
    pub gc_faults: u8,
    pub producer_crashes: u8,
    pub owner_crashes: u8,
    pub releases: u8,
    pub poisons: u8,
    pub resets: u8,
    pub removals: u8,
    pub skips: u8,
    pub repairs: u8,
    pub expiries: u8,
}

/// A state of the whole system.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    /// The store that all actors share.
    pub store: Store,
    /// The producers.
    pub producers: Vec<Producer>,
    /// The owners of the cursor.
    pub owners: Vec<Owner>,
    /// The garbage collector.
    pub gc: GarbageCollector,
    /// The time.
    pub clock: u8,
    /// The remaining events.
    pub left: Left,
    /// The callers with a success, and the sequence in their answer.
    pub told: Vec<(u8, u64)>,
    /// The callers with an unknown outcome.
    pub unknown: Vec<u8>,
}

/// A step of the whole system.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// The clock advances.
    Tick,
    /// A late swap lands.
    Land(usize),
    /// An operator resets the cursor to the beginning of the log.
    Reset,
    /// An operator removes the cursor.
    Remove,
    /// An operator skips a segment.
    Skip(u64),
    /// Somebody repairs the sink, and it refuses no row any more.
    Repair,
    /// A step of a producer.
    Producer(usize, producer::Step),
    /// A step of an owner.
    Owner(usize, owner::Step),
    /// A step of the garbage collector.
    Gc(gc::Step),
}

impl World {
    /// Returns true if the sink may be repaired now. The promises exclude one case: a fenced owner sends a chunk whole
    /// that its successor has bisected, to a sink that was repaired meanwhile (`design/protocols.md`, "Dead letters").
    fn may_be_repaired(&self) -> bool {
        let refuses = !self.store.forbidden.is_empty();
        refuses && !self.owners.iter().any(|owner| owner.is_fenced(&self.store))
    }
}

fn skip(sequence: u64) -> Skip {
    Skip {
        stream: producer::STREAM.to_owned(),
        sequence,
        at_ms: 0,
        reason: String::new(),
    }
}

impl System {
    /// Returns an owner's configured policy.
    pub fn policy(&self, owner: usize) -> BatchingPolicy {
        let differs = self.bounds.policies_differ && owner > 0;
        BatchingPolicy {
            batch_records: if differs { 5 } else { 3 },
            batch_bytes: 1_000,
            chunk_rows: if differs { 1 } else { 1_000 },
            chunk_bytes: 1_000,
            max_partitions_per_chunk: 1,
            max_in_flight: self.bounds.max_in_flight,
            sink: "clickhouse:otel.otel_logs".into(),
            schema_version: 1,
        }
    }
}

impl Model for System {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let bounds = &self.bounds;
        vec![World {
            store: Store {
                forbidden: bounds.forbidden.iter().copied().collect(),
                ..Store::new()
            },
            producers: (0..bounds.segments.len())
                .map(|place| Producer::new(place, bounds))
                .collect(),
            owners: vec![Owner::default(); bounds.owners],
            gc: GarbageCollector::default(),
            clock: 0,
            left: Left {
                rounds: bounds.rounds,
                producer_faults: bounds.producer_faults,
                owner_faults: bounds.owner_faults,
                gc_faults: bounds.gc_faults,
                producer_crashes: bounds.producer_crashes,
                owner_crashes: bounds.owner_crashes,
                releases: bounds.releases,
                poisons: bounds.poisons,
                resets: bounds.resets,
                removals: bounds.removals,
                skips: bounds.skips,
                repairs: bounds.repairs,
                expiries: bounds.expiries,
            },
            told: Vec::new(),
            unknown: Vec::new(),
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        // A search beyond a violation shows nothing more.
        if world.store.broken.is_some() {
            return;
        }
        if world.clock < self.bounds.ticks {
            actions.push(Action::Tick);
        }
        actions.extend((0..world.store.late.len()).map(Action::Land));
        if world
            .store
            .cursor
            .as_ref()
            .is_some_and(|cursor| !cursor.is_removed())
        {
            actions.extend((world.left.resets > 0).then_some(Action::Reset));
            actions.extend((world.left.removals > 0).then_some(Action::Remove));
            if world.left.skips > 0 {
                actions.extend((0..world.store.manifest.next_sequence).map(Action::Skip));
            }
        }
        if world.left.repairs > 0 && world.may_be_repaired() {
            actions.push(Action::Repair);
        }
        for (i, producer) in world.producers.iter().enumerate() {
            let mut steps = Vec::new();
            producer.steps(i, self, world, &mut steps);
            actions.extend(steps.into_iter().map(|step| Action::Producer(i, step)));
        }
        for (i, owner) in world.owners.iter().enumerate() {
            let mut steps = Vec::new();
            owner.steps(self, world, &mut steps);
            actions.extend(steps.into_iter().map(|step| Action::Owner(i, step)));
        }
        let mut steps = Vec::new();
        world.gc.steps(world, &mut steps);
        actions.extend(steps.into_iter().map(Action::Gc));
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        match action {
            Action::Tick => next.clock += 1,
            Action::Land(place) => next.store.land_late(place),
            Action::Reset => {
                next.left.resets -= 1;
                let first = next.store.manifest.first_sequence;
                next.store.operate(|cursor| cursor.reset(first))?;
            }
            Action::Remove => {
                next.left.removals -= 1;
                next.store.operate(millpond_manifest::Cursor::remove)?;
            }
            Action::Skip(sequence) => {
                next.left.skips -= 1;
                let cursor = next.store.cursor.as_ref()?;
                let mut skipped = (**cursor).clone();
                skipped.skip(skip(sequence)).ok()?;
                next.store.operate(|_| skipped.clone())?;
            }
            Action::Repair => {
                next.left.repairs -= 1;
                next.store.forbidden.clear();
            }
            Action::Producer(place, step) => Producer::step(place, step, self, &mut next)?,
            Action::Owner(place, step) => Owner::step(place, step, self, &mut next)?,
            Action::Gc(step) => GarbageCollector::step(step, &mut next)?,
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all(&self.bounds)
    }
}
