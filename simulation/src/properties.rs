//! The invariants of every state, by their numbers in `design/protocols.md`, and the situations that some state must
//! reach for a search to be meaningful.

use crate::bounds::Bounds;
use crate::model::{System, World};
use crate::producer::{STREAM, number, upload};
use crate::store::Broken;
use millpond_manifest::Entry;
use stateright::Property;
use std::collections::BTreeSet;
use ulid::Ulid;

/// The properties that a search within `bounds` checks.
pub fn all(bounds: &Bounds) -> Vec<Property<System>> {
    let mut all = vec![
        Property::always(
            "1: the log is whole and nothing is in it twice",
            |_, world: &World| log_is_whole(world),
        ),
        Property::always("1: what the log refers to is in the store", |_, world: &World| {
            nothing_lost(world)
        }),
        Property::always("1: nothing unread is trimmed", |_, world: &World| {
            let first = world.store.manifest.first_sequence;
            let cursor = world.store.cursor.as_ref();
            cursor.map_or(first == 0, |cursor| cursor.needs() >= first)
        }),
        Property::always(
            "2: a success implies the records are in the log, once",
            |_, w: &World| told_is_true(w),
        ),
        Property::always(
            "2: an outcome is unknown only to a producer that was forgotten",
            |_, world: &World| world.store.broken != Some(Broken::Doubt),
        ),
        Property::always(
            "3: all below next is in the sink or in a letter",
            |_, world: &World| nothing_skipped(world),
        ),
        Property::always("3: nothing is in the sink twice", |_, world: &World| {
            let mut seen = BTreeSet::new();
            let mut rows = world.store.sink.iter();
            rows.all(|segment| seen.insert(number(*segment)))
        }),
        Property::always(
            "3: a letter is of a row that is refused, and not in the sink",
            |system: &System, w: &World| letters_are_right(system, w),
        ),
        Property::always("4: three rounds bring every row", |_, world: &World| {
            world.store.broken != Some(Broken::Missing)
        }),
        Property::always(
            "5: only the last to open the cursor moves it",
            |_, world: &World| world.store.broken != Some(Broken::Fence),
        ),
        Property::always(
            "3: batches planned ahead keep their batching policy",
            |_, world: &World| world.store.broken != Some(Broken::Policy),
        ),
        Property::always("6: the tail is bounded", |system: &System, world: &World| {
            let group = system.bounds.segments.iter().map(Vec::len).max().unwrap_or(0);
            world.store.manifest.tail.len() < system.bounds.tail_max + group
        }),
        Property::always("no actor's bookkeeping is wrong", |_, world: &World| {
            world.store.broken != Some(Broken::Forbidden)
        }),
    ];
    all.extend(reached(bounds));
    all
}

/// Situations that some state must reach, depending on the bounds.
fn reached(bounds: &Bounds) -> Vec<Property<System>> {
    let sealed = bounds.tail_max < bounds.segments.iter().map(Vec::len).sum();
    let collected = bounds.rounds > 0 && bounds.ticks > 0;
    let retried = bounds.producer_faults > 0;
    let owned = bounds.owners > 0;
    let taken = bounds.owners > 1 && bounds.epochs > 1;
    let sometimes = [
        (
            sealed,
            Property::sometimes("a tail is sealed", |_, w: &World| {
                !w.store.manifest.pages.is_empty()
            }),
        ),
        (
            collected && owned,
            Property::sometimes("the log is trimmed", |_, w: &World| {
                w.store.manifest.first_sequence > 0
            }),
        ),
        (
            collected && owned,
            Property::sometimes("a trimmed segment is deleted", |_, w: &World| {
                let deleted = |segment: &Ulid| !w.store.segments.contains(segment);
                w.store.history.iter().any(deleted)
            }),
        ),
        (
            collected,
            Property::sometimes("a segment is committed under a second name", |_, w: &World| {
                w.store.history.iter().any(|segment| upload(*segment) > 0)
            }),
        ),
        (
            retried,
            Property::sometimes("a commit lands unreported", |_, w: &World| {
                let mut producers = w.producers.iter();
                producers.any(|producer| producer.landed_unreported(&w.store))
            }),
        ),
        (
            retried,
            Property::sometimes("a commit lands and is reported as refused", |_, w: &World| {
                let mut producers = w.producers.iter();
                producers.any(|producer| producer.landed_refused(&w.store))
            }),
        ),
        (
            retried && bounds.expiries > 0,
            Property::sometimes(
                "a producer is forgotten with an attempt in doubt",
                |_, w: &World| !w.unknown.is_empty(),
            ),
        ),
        (
            true,
            Property::sometimes("every caller is told", |s: &System, w: &World| {
                w.told.len() == s.bounds.segments.iter().map(Vec::len).sum::<usize>()
            }),
        ),
        (
            owned,
            Property::sometimes("everything is delivered", |s: &System, w: &World| {
                let cursor = w.store.cursor.as_ref();
                let all: usize = s.bounds.segments.iter().map(Vec::len).sum();
                cursor.is_some_and(|cursor| cursor.next(STREAM) == all as u64)
            }),
        ),
        (
            taken,
            Property::sometimes("a successor replays", |_, w: &World| {
                w.owners.iter().any(super::owner::Owner::replays)
            }),
        ),
        (
            taken && bounds.ahead > 0,
            Property::sometimes("a successor waits for what was planned ahead", |_, w: &World| {
                w.owners.iter().any(super::owner::Owner::replays_ahead)
            }),
        ),
        (
            taken && bounds.ahead > 0 && bounds.releases > 0 && bounds.epochs > 2,
            Property::sometimes(
                "an owner after a clean release sends what was planned ahead",
                |_, w: &World| {
                    let mut owners = w.owners.iter();
                    owners.any(super::owner::Owner::sends_after_clean_release)
                },
            ),
        ),
        (
            bounds.resets > 0,
            Property::sometimes("requests of an earlier generation are settled", |_, w: &World| {
                w.owners.iter().any(super::owner::Owner::has_settled)
            }),
        ),
        (
            !bounds.forbidden.is_empty(),
            Property::sometimes("a row is in a dead letter", |_, w: &World| {
                !w.store.dead_letters.is_empty()
            }),
        ),
        (
            !bounds.forbidden.is_empty() && taken,
            Property::sometimes("a successor repeats cuts", |_, w: &World| {
                w.owners.iter().any(super::owner::Owner::repeats_cuts)
            }),
        ),
        (
            bounds.skips > 0,
            Property::sometimes("a segment that is planned is left out", |_, w: &World| {
                w.store
                    .cursor
                    .as_ref()
                    .is_some_and(|cursor| cursor.generation > 0)
            }),
        ),
        (
            taken,
            Property::sometimes("a fenced owner does not know it yet", |_, w: &World| {
                w.owners.iter().any(|owner| owner.is_fenced(&w.store))
            }),
        ),
    ];
    let wanted = sometimes.into_iter().filter(|(wanted, _)| *wanted);
    wanted.map(|(_, property)| property).collect()
}

/// Contiguous, as committed, without duplicate records.
fn log_is_whole(World { store, .. }: &World) -> bool {
    let log = &store.manifest;
    let as_committed = |(sequence, entry): (u64, &Entry)| {
        let place = usize::try_from(sequence).unwrap_or(usize::MAX);
        store.history.get(place) == Some(&entry.segment)
    };
    let mut seen = BTreeSet::new();
    !matches!(store.broken, Some(Broken::Format | Broken::Log))
        && store.history.len() as u64 == log.next_sequence
        && (log.tail_start()..).zip(&log.tail).all(as_committed)
        && log.pages.iter().all(|reference| {
            let page = store.pages.get(&reference.page);
            // Another property covers missing pages.
            page.is_none_or(|found| {
                found.page.reference(reference.page) == *reference
                    && (found.page.first..).zip(&found.page.entries).all(as_committed)
            })
        })
        && store.history.iter().all(|segment| seen.insert(number(*segment)))
}

fn nothing_lost(World { store, .. }: &World) -> bool {
    let first = usize::try_from(store.manifest.first_sequence).unwrap_or(usize::MAX);
    let mut retained = store.history.iter().skip(first);
    let mut pages = store.manifest.pages.iter();
    store.broken != Some(Broken::Lost)
        && retained.all(|segment| store.segments.contains(segment))
        && pages.all(|reference| store.pages.contains_key(&reference.page))
}

fn told_is_true(world: &World) -> bool {
    let history = &world.store.history;
    world.told.iter().all(|&(told, sequence)| {
        let place = usize::try_from(sequence).unwrap_or(usize::MAX);
        let count = history.iter().filter(|segment| number(**segment) == told).count();
        count == 1 && history.get(place).is_some_and(|segment| number(*segment) == told)
    })
}

fn nothing_skipped(World { store, .. }: &World) -> bool {
    let Some(cursor) = &store.cursor else {
        return true;
    };
    let taken: BTreeSet<Ulid> = store.sink.iter().copied().collect();
    let next = cursor.next(STREAM);
    let mut below = (0..next).zip(&store.history);
    below.all(|(sequence, segment)| {
        taken.contains(segment) || store.dead_letters.contains(segment) || cursor.is_skipped(STREAM, sequence)
    }) && next <= store.history.len() as u64
}

/// After a reset or a removal, a fixed sink may accept a row that has a dead letter.
fn letters_are_right(system: &System, World { store, .. }: &World) -> bool {
    let Bounds {
        forbidden,
        resets,
        removals,
        ..
    } = &system.bounds;
    let begins_again = resets + removals > 0;
    let mut dead_letters = store.dead_letters.iter();
    dead_letters.all(|row| forbidden.contains(&number(*row)) && (begins_again || !store.sink.contains(row)))
}
