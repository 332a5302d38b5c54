//! The garbage collector: advances the log's beginning and the orphan floor, then deletes, like `consumer/src/gc.rs`.

use crate::model::World;
use crate::store::{Answer, Outcome, Store, Versioned, Write, outcomes};
use millpond_manifest::Manifest;
use std::collections::BTreeSet;
use ulid::Ulid;

/// The state of the garbage collector's round.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum GarbageCollector {
    /// Between rounds.
    #[default]
    Idle,
    /// It has read the manifest and the cursor, and is about to swap in this state.
    Swapping(Versioned<Manifest>),
    /// This state is or was in force: its garbage can be listed.
    InForce(Versioned<Manifest>),
    /// It is deleting these segments and pages.
    Deleting(Vec<Ulid>, Vec<Ulid>),
}

/// The next steps of the garbage collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Reads the manifest and the cursor.
    Read,
    /// Swaps the manifest.
    Swap(Outcome),
    /// Lists the garbage.
    List,
    /// Deletes the garbage.
    Delete,
    /// Gives up the round, or crashes and restarts.
    Crash,
}

impl GarbageCollector {
    /// Adds the possible steps.
    pub fn steps(&self, world: &World, steps: &mut Vec<Step>) {
        match self {
            GarbageCollector::Idle => {
                if world.left.rounds > 0 {
                    steps.push(Step::Read);
                }
                return;
            }
            GarbageCollector::Swapping(_) => {
                let outcomes = outcomes(world.left.gc_faults);
                steps.extend(outcomes.iter().map(|&outcome| Step::Swap(outcome)));
            }
            GarbageCollector::InForce(_) => steps.push(Step::List),
            GarbageCollector::Deleting(..) => steps.push(Step::Delete),
        }
        steps.push(Step::Crash);
    }

    /// Takes a step; `None` if it is impossible.
    pub fn step(step: Step, world: &mut World) -> Option<()> {
        let World {
            store,
            gc,
            clock,
            left,
            ..
        } = world;
        *gc = match (step, std::mem::take(gc)) {
            (Step::Read, GarbageCollector::Idle) => {
                left.rounds -= 1;
                let log = &store.manifest;
                let needed = store
                    .cursor
                    .as_ref()
                    .map_or(log.first_sequence, |cursor| cursor.needs());
                let next = log.collect(needed, u64::from(*clock));
                if next == **log {
                    GarbageCollector::InForce(log.clone())
                } else {
                    GarbageCollector::Swapping(Versioned::new(next.stamped(0)))
                }
            }
            (Step::Swap(outcome), GarbageCollector::Swapping(next)) => {
                left.gc_faults -= u8::from(outcome != Outcome::Reported);
                match store.swap(Write::Manifest(next.clone()), outcome)? {
                    Answer::Committed => GarbageCollector::InForce(next),
                    Answer::Mismatch | Answer::Unknown => GarbageCollector::Idle,
                }
            }
            (Step::List, GarbageCollector::InForce(log)) => garbage(&log, store),
            (Step::Delete, GarbageCollector::Deleting(segments, pages)) => {
                store.segments.retain(|name| !segments.contains(name));
                store.pages.retain(|name, _| !pages.contains(name));
                GarbageCollector::Idle
            }
            (Step::Crash, _) => GarbageCollector::Idle,
            _ => return None,
        };
        Some(())
    }
}

/// Objects named before the floor without a reference.
fn garbage(log: &Manifest, store: &Store) -> GarbageCollector {
    let mut live: BTreeSet<Ulid> = log.tail.iter().map(|entry| entry.segment).collect();
    for reference in &log.pages {
        let Some(found) = store.pages.get(&reference.page) else {
            // A page is missing: delete nothing until it is back.
            return GarbageCollector::Idle;
        };
        let gone = log.first_sequence.saturating_sub(reference.first);
        let kept = found
            .page
            .entries
            .iter()
            .skip(usize::try_from(gone).unwrap_or(usize::MAX));
        live.extend(kept.map(|entry| entry.segment));
    }
    let below = |name: &Ulid| name.timestamp_ms() < log.orphan_floor_ms;
    let referred = |name: &Ulid| log.pages.iter().any(|page| page.page == *name);
    let segments = store
        .segments
        .iter()
        .filter(|name| below(name) && !live.contains(name));
    let pages = store.pages.keys().filter(|name| below(name) && !referred(name));
    let (segments, pages): (Vec<_>, Vec<_>) = (segments.copied().collect(), pages.copied().collect());
    if segments.is_empty() && pages.is_empty() {
        GarbageCollector::Idle
    } else {
        GarbageCollector::Deleting(segments, pages)
    }
}
