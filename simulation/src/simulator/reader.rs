//! The witness's record of one consumer in one shard: its cursor, its acknowledgements, and the parts that it may miss.

use super::record::{Event, Record};
use millpond_manifest::cursor::Ownership;
use millpond_manifest::{Cursor, UniqueReference};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// The process of an operator.
pub(crate) const OPERATOR: &str = "operator";

/// A stream's part of a segment.
pub(crate) type PartKey = (String, u64);

#[derive(Default)]
pub(crate) struct Reader {
    /// `None`: it does not exist yet, or somebody has deleted it.
    pub(crate) cursor: Option<Cursor>,
    /// Parts trimmed before it read them: by retention, or by a garbage collector that read the cursor before a reset.
    pub(crate) missed: BTreeSet<PartKey>,
    /// Acknowledged parts, whose rows must be in the table.
    pub(crate) acknowledged: BTreeSet<PartKey>,
    /// A garbage collector may have read the cursor before an operator moved it, and may trim below this sequence.
    pub(crate) stale_below: u64,
    /// The beginning of the log when an operator last moved the cursor, or when it was created.
    pub(crate) gone_below: u64,
    /// The records of acknowledged parts that repeat earlier ones.
    pub(crate) repeated: BTreeMap<PartKey, BTreeSet<u32>>,
    /// Snapshots of keys, with those that they name.
    pub(crate) snapshots: BTreeMap<UniqueReference, BTreeSet<UniqueReference>>,
    /// The owners by opening id.
    openings: BTreeMap<u64, String>,
}

impl Reader {
    /// Returns true if it needs this part. A removed consumer needs none.
    pub(crate) fn needs(&self, stream: &str, sequence: u64) -> bool {
        let cursor = self.cursor.as_ref().filter(|cursor| !cursor.is_removed());
        cursor.is_some_and(|cursor| {
            let keys = cursor.deduplicates(stream).map(|(_, of)| of.needs());
            let keys = keys.filter(|_| cursor.streams.contains_key(stream));
            keys.unwrap_or(u64::MAX).min(cursor.next(stream)) <= sequence
        })
    }

    /// Returns true if the state of a stream needs this snapshot, or may need it once the owner moves on.
    pub(crate) fn needs_keys(&self, stream: &str, name: UniqueReference) -> bool {
        let cursor = self.cursor.as_ref();
        let Some((_, of)) = cursor.and_then(|cursor| cursor.deduplicates(stream)) else {
            return false;
        };
        let Some(named) = of.snapshot else {
            // What an earlier setting left before this one began has another window, so nobody names it. A snapshot of this one has
            // a part from `since` on.
            return name.next > of.since;
        };
        let of_named = self.snapshots.get(&named);
        name == named || name.next > named.next || of_named.is_none_or(|earlier| earlier.contains(&name))
    }

    /// Applies a new state of the cursor. Returns the parts that it newly acknowledges. `range`: the log's sequences.
    pub(crate) fn replaced(
        &mut self,
        record: &Record,
        actor: &str,
        next: &Cursor,
        Range { start: first, end }: Range<u64>,
    ) -> Result<Vec<(String, Range<u64>)>, String> {
        let before = self.cursor.replace(next.clone());
        match &before {
            Some(before) => self.check(record, actor, before, next, end)?,
            None => {
                // A process that asks for tables writes a cursor before anybody opens it.
                if next.epoch > 1 || next.generation != 0 {
                    let Cursor {
                        epoch, generation, ..
                    } = next;
                    return Err(format!(
                        "it begins with epoch {epoch} and generation {generation}"
                    ));
                }
            }
        }
        if before
            .as_ref()
            .is_none_or(|before| before.opening != next.opening)
            && actor != OPERATOR
        {
            self.openings.insert(next.opening, actor.to_owned());
        }
        let begun = before.as_ref().is_none_or(Cursor::is_removed);
        if begun && !next.is_removed() {
            if before.as_ref().is_some_and(|before| before.generation > 0) {
                record.count(Event::BegunAgain);
            }
            self.stale_below = self.stale_below.max(end);
        }
        let continued = before.filter(|before| !begun && before.generation == next.generation);
        if continued.is_none() {
            self.gone_below = first;
        }
        let from = |stream: &str| {
            let before = continued.as_ref();
            before.map_or(next.start, |before| before.next(stream))
        };
        let moved = next
            .streams
            .iter()
            .map(|(stream, at)| (stream.clone(), from(stream)..at.next));
        Ok(moved.collect())
    }

    /// Somebody deletes the cursor by hand.
    pub(crate) fn deleted(&mut self) {
        self.cursor = None;
    }

    fn check(
        &mut self,
        record: &Record,
        actor: &str,
        before: &Cursor,
        next: &Cursor,
        end: u64,
    ) -> Result<(), String> {
        if next.stamp.version != before.stamp.version + 1 {
            return Err("it does not follow the cursor that it replaces".into());
        }
        let taken = next.epoch == before.epoch + 1;
        if !taken && (next.epoch != before.epoch || next.opening != before.opening) {
            let (was, is) = ((before.epoch, before.opening), (next.epoch, next.opening));
            return Err(format!("epoch and opening {is:?} follow {was:?}"));
        }
        let owner = self.openings.get(&before.opening);
        if !taken && actor != OPERATOR && owner.is_none_or(|owner| owner != actor) && !asks(before, next) {
            return Err(format!("{owner:?} opened it, and {actor} moves it"));
        }
        let renewed = next.generation != before.generation;
        if renewed {
            self.stale_below = self.stale_below.max(before.needs());
            if actor != OPERATOR || next.generation != before.generation + 1 {
                let (was, is) = (before.generation, next.generation);
                return Err(format!("generation {is} follows {was}"));
            }
        } else if !before.is_removed() {
            for (stream, was) in &before.streams {
                if next.next(stream) < was.next {
                    return Err(format!("{stream} went back from {}", was.next));
                }
            }
        }
        if next.policy != before.policy {
            record.count(Event::RulesChanged);
            if !before.is_clean() {
                return Err("another policy came into force while batches were planned or in doubt".into());
            }
        }
        if next.unique_settings() != before.unique_settings() {
            record.count(Event::KeysChanged);
            if !before.is_clean() {
                return Err(
                    "another key or window came into force while batches were planned or in doubt".into(),
                );
            }
        }
        if taken && actor != OPERATOR {
            record.count(opened(before, next));
            let mut planned = before.streams.values().flat_map(|stream| &stream.planned);
            if planned.any(|plan| plan.low >= end) {
                record.count(Event::TakenOverAhead);
            }
            if before.ownership == Ownership::Released && before.plans() > 0 {
                record.count(Event::CleanOpeningsAhead);
            }
        }
        Ok(())
    }
}

/// Returns true if a process that asks for tables may make this change: it moves nothing.
fn asks(before: &Cursor, next: &Cursor) -> bool {
    let begins = before.is_removed() && next.ownership == Ownership::Released;
    let same = match begins {
        true => Cursor {
            shards: next.shards,
            ..before.begin_again(next.start, next.policy.clone())
        },
        false => before.clone(),
    };
    let asked = Cursor {
        stamp: next.stamp,
        tables: next.tables.clone(),
        ..same
    };
    asked == *next
}

/// The way a cursor was taken.
fn opened(before: &Cursor, next: &Cursor) -> Event {
    match (&before.ownership, &next.ownership) {
        (Ownership::Released, _) => Event::CleanOpenings,
        (Ownership::Abandoned, _) => Event::TakeoversOfAbandoned,
        (Ownership::Removed, _) => Event::CleanOpenings,
        (
            Ownership::Held {
                lease_expires_at_ms, ..
            },
            Ownership::Held {
                lease_expires_at_ms: after,
                ..
            },
        ) if after.saturating_sub(next.lease_ms) >= *lease_expires_at_ms => Event::TakeoversByLease,
        (Ownership::Held { .. }, _) => Event::TakeoversByForce,
    }
}
