//! Which rows are duplicates: the keys of the rows that were kept, and the clock that forgets them. Pure: the log alone
//! decides.

mod table;
#[cfg(test)]
mod tests;

use super::keys::{PartKeys, RowKey, lower_median};
use super::limit::{KeyLimit, TooManyKeys};
use millpond_manifest::unique::{EARLIER_MAX, EarlierSnapshot, RECENT_MAX};
use millpond_manifest::{UniqueReference, UniqueSetting, UniqueSnapshot};
use std::collections::VecDeque;
use std::sync::Arc;
use table::{Look, Table};
use uuid::Uuid;

/// Rows whose keys are fetched into the caches at a time.
const FETCHED: usize = 64;

/// A window has this many buckets.
const BUCKETS: i64 = 16;

/// The number of parts whose median is the clock by the old rule.
const RECENT_OLD: usize = 15;

/// The most snapshots that the next one merges, and the keys from which on it merges no third one.
const MERGED_MAX: usize = 16;
const MERGED_KEYS: u64 = 1 << 18;

/// The numbers of the records of a part that the consumer drops, as a set of bits.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Dropped(Option<Arc<[u64]>>);

impl Dropped {
    /// The set of these record numbers.
    pub fn of(records: &[u32]) -> Dropped {
        let Some(last) = records.iter().max() else {
            return Dropped::default();
        };
        let mut bits = vec![0; *last as usize / 64 + 1];
        for record in records {
            bits[*record as usize / 64] |= 1 << (record % 64);
        }
        Dropped(Some(bits.into()))
    }

    /// Returns true if this record is dropped.
    pub fn contains(&self, record: u64) -> bool {
        let word = usize::try_from(record / 64).ok();
        let bits = self.0.as_ref().zip(word).and_then(|(bits, word)| bits.get(word));
        bits.is_some_and(|bits| bits & (1 << (record % 64)) != 0)
    }

    /// The number of dropped records.
    pub fn len(&self) -> u64 {
        let bits = self.0.iter().flat_map(|bits| bits.iter());
        bits.map(|bits| u64::from(bits.count_ones())).sum()
    }

    /// Returns true if no record is dropped.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }
}

/// The stream that a state belongs to, for its snapshots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Of {
    pub(crate) buffer_id: Uuid,
    pub(crate) shard: u32,
    pub(crate) consumer: String,
    pub(crate) stream: String,
    pub(crate) setting: UniqueSetting,
    pub(crate) since: u64,
}

/// The keys that a stream remembers before a sequence.
pub(crate) struct State {
    of: Of,
    window_us: i64,
    /// As in [`millpond_manifest::cursor::Deduplication`].
    medians_from: Option<u64>,
    /// The times of the last parts.
    recent: VecDeque<i64>,
    /// Times in buckets below this one are forgotten.
    floor: i64,
    table: Table,
    limit: KeyLimit,
    /// Entries that no snapshot has yet.
    fresh: Vec<(u128, i64)>,
    /// The snapshots that have the others.
    stored: Vec<EarlierSnapshot>,
    /// From this number of earlier snapshots on, the next one merges the smallest of them.
    merges_from: usize,
    /// The number of rows dropped so far.
    duplicates: u64,
    /// The state is the one before this sequence.
    next: u64,
    /// The sequence of the last snapshot.
    snapshot_at: u64,
}

/// The decisions about a part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Decisions {
    pub(crate) dropped: Dropped,
    /// Rows below the floor: nothing remembers them.
    pub(crate) late: u64,
}

impl State {
    /// The state before the first sequence of a setting. The places of its keys depend on a random number that senders do not know.
    pub(crate) fn new(
        of: Of,
        medians_from: Option<u64>,
        limit: KeyLimit,
        merges_from: usize,
        secret: u128,
    ) -> State {
        let window_us = i64::try_from(of.setting.window_ms.saturating_mul(1_000)).unwrap_or(i64::MAX);
        State {
            window_us,
            medians_from,
            recent: VecDeque::with_capacity(RECENT_MAX),
            floor: i64::MIN,
            table: Table::new(secret),
            limit,
            fresh: Vec::new(),
            stored: Vec::new(),
            merges_from,
            duplicates: 0,
            next: of.since,
            snapshot_at: of.since,
            of,
        }
    }

    /// Takes over a snapshot: everything but the entries.
    pub(crate) fn resume(&mut self, snapshot: &UniqueSnapshot, name: UniqueReference) {
        self.recent = snapshot.recent.iter().copied().collect();
        self.floor = snapshot.floor;
        self.duplicates = snapshot.duplicates;
        self.stored = with_itself(snapshot, name);
        self.next = snapshot.next;
        self.snapshot_at = snapshot.next;
    }

    /// Adds the entries of a snapshot.
    pub(crate) fn load(&mut self, entries: &[(u128, i64)]) -> Result<(), TooManyKeys> {
        for &(key, at_us) in entries {
            if self.remembers(at_us) {
                let look = self.table.look(key);
                self.remember(&look, at_us)?;
            }
        }
        Ok(())
    }

    /// The stream and its setting.
    pub(crate) fn of(&self) -> &Of {
        &self.of
    }

    /// The state is the one before this sequence.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// The number of rows dropped since the setting took effect.
    pub(crate) fn duplicates(&self) -> u64 {
        self.duplicates
    }

    /// The number of keys.
    pub(crate) fn keys(&self) -> u64 {
        self.table.len() as u64
    }

    /// The number of entries that no snapshot has yet.
    pub(crate) fn fresh(&self) -> u64 {
        self.fresh.len() as u64
    }

    /// Returns true if snapshots have everything.
    pub(crate) fn is_stored(&self) -> bool {
        self.fresh.is_empty() && self.next == self.snapshot_at
    }

    /// The sequence of the last snapshot.
    pub(crate) fn snapshot_at(&self) -> u64 {
        self.snapshot_at
    }

    /// The snapshots that the next one names: those with times that are not all below the floor.
    fn named(&self) -> impl Iterator<Item = &EarlierSnapshot> {
        let earlier = self.stored.iter();
        earlier.filter(|earlier| self.remembers(earlier.newest_us))
    }

    /// The snapshots that the next one replaces, because the list is long: the smallest, so that it takes no memory to speak of. Each
    /// snapshot is a step for itself, which a successor does not depend on.
    pub(crate) fn merges(&self) -> Vec<UniqueReference> {
        let mut named: Vec<&EarlierSnapshot> = self.named().collect();
        if named.len() < self.merges_from.max(2) {
            return Vec::new();
        }
        named.sort_by_key(|earlier| (earlier.keys, earlier.reference));
        let mut keys = 0;
        let merged = named
            .iter()
            .take(MERGED_MAX)
            .enumerate()
            .take_while(|(place, earlier)| {
                keys += earlier.keys;
                *place < 2 || keys <= MERGED_KEYS
            });
        merged.map(|(_, earlier)| earlier.reference).collect()
    }

    /// Returns true if there is room in the list for another snapshot, which replaces `merged` of those in it.
    pub(crate) fn may_snapshot(&self, merged: usize) -> bool {
        self.named().count() < EARLIER_MAX + merged
    }

    /// Decides about the rows of the next part. The setting does not apply before its beginning.
    pub(crate) fn part(&mut self, part: &PartKeys) -> Result<Decisions, TooManyKeys> {
        if part.sequence < self.of.since {
            return Ok(Decisions::default());
        }
        let medians = self.medians_from.is_some_and(|from| from <= part.sequence);
        let at_us = match medians {
            true => part.received.median_us,
            false => part.received.newest_us,
        };
        if let Some(at_us) = at_us {
            self.advance(at_us, medians);
        }
        let mut dropped = Vec::new();
        let mut late = 0;
        for (place, &RowKey { record, at_us, key }) in part.keys.iter().enumerate() {
            if place % FETCHED == 0 {
                let next = part.keys[place..].iter().take(FETCHED);
                self.table.fetch(next.map(|row| row.key));
            }
            let look = self.table.look(key);
            let known = look.at_us;
            if known.is_some_and(|known| known.abs_diff(at_us) < self.window_us.unsigned_abs()) {
                dropped.push(record);
            } else if !self.remembers(at_us) {
                late += 1;
            } else if known.is_none_or(|known| known < at_us) {
                self.remember(&look, at_us)?;
                self.fresh.push((key, at_us));
            }
        }
        self.next = part.sequence + 1;
        self.duplicates += dropped.len() as u64;
        Ok(Decisions {
            dropped: Dropped::of(&dropped),
            late,
        })
    }

    /// Moves on over sequences without a part of the stream, and over skipped parts.
    pub(crate) fn pass(&mut self, next: u64) {
        self.next = self.next.max(next);
    }

    /// Advances the clock to a part, and forgets what is below the floor.
    fn advance(&mut self, at_us: i64, medians: bool) {
        // Programs that know the old rule alone accept no more times in its snapshots.
        let parts = if medians { RECENT_MAX } else { RECENT_OLD };
        while self.recent.len() >= parts {
            self.recent.pop_front();
        }
        self.recent.push_back(at_us);
        let now_us = match medians {
            true => self.earliest(),
            false => lower_median(&mut self.recent.iter().copied().collect::<Vec<_>>()),
        };
        let Some(now_us) = now_us else {
            return;
        };
        let floor = self.bucket(now_us.saturating_sub(self.window_us));
        if floor > self.floor {
            self.floor = floor;
            let (limit, width) = (self.limit.clone(), self.width());
            let gone = self.table.retain(|at_us| at_us.div_euclid(width) >= floor);
            limit.give_back(gone as u64);
            // They wait for long if no snapshot is possible.
            self.fresh.retain(|(_, at_us)| at_us.div_euclid(width) >= floor);
        }
    }

    /// The earliest of the last parts' times. The floor never moves back, so one moment with a clock that is ahead would be enough to
    /// forget everything, while a late clock costs memory only. `None`: the few known parts may all have a wrong clock.
    fn earliest(&self) -> Option<i64> {
        let known = self.recent.len();
        let earliest = self.recent.iter().copied().min();
        earliest.filter(|_| known == RECENT_MAX)
    }

    fn width(&self) -> i64 {
        (self.window_us / BUCKETS).max(1)
    }

    fn bucket(&self, at_us: i64) -> i64 {
        at_us.div_euclid(self.width())
    }

    fn remembers(&self, at_us: i64) -> bool {
        self.bucket(at_us) >= self.floor
    }

    /// Remembers the later of this time and the one that the look has found.
    fn remember(&mut self, look: &Look, at_us: i64) -> Result<(), TooManyKeys> {
        if look.at_us.is_none() {
            self.limit.take()?;
        }
        self.table.raise(look, at_us);
        Ok(())
    }

    /// Makes the next snapshot, which the store does not have yet. It replaces the merged ones: a key of theirs with another time now is in
    /// a later snapshot, or fresh.
    pub(crate) fn snapshot(&self, merged: &[UniqueSnapshot]) -> UniqueSnapshot {
        let Of {
            buffer_id,
            shard,
            consumer,
            stream,
            setting,
            since,
        } = self.of.clone();
        let all = merged
            .iter()
            .map(|snapshot| snapshot.entries.len())
            .sum::<usize>();
        let mut entries = Vec::with_capacity(self.fresh.len() + all);
        let fresh = self.fresh.iter().copied();
        entries.extend(fresh.filter(|(_, at_us)| self.remembers(*at_us)));
        let all = merged.iter().flat_map(|snapshot| &snapshot.entries).copied();
        entries.extend(all.filter(|(key, at_us)| self.table.look(*key).at_us == Some(*at_us)));
        let is_merged = |next| merged.iter().any(|snapshot| snapshot.next == next);
        let earlier = self.named().filter(|earlier| !is_merged(earlier.reference.next));
        UniqueSnapshot {
            buffer_id,
            shard,
            consumer,
            stream,
            setting,
            since,
            next: self.next,
            floor: self.floor,
            recent: self.recent.iter().copied().collect(),
            duplicates: self.duplicates,
            earlier: earlier.copied().collect(),
            entries,
        }
    }

    /// The store has this snapshot, the last one that [`snapshot`](Self::snapshot) made.
    pub(crate) fn stored(&mut self, snapshot: &UniqueSnapshot, name: UniqueReference) {
        self.fresh = Vec::new();
        let (recent, floor) = (std::mem::take(&mut self.recent), self.floor);
        self.resume(snapshot, name);
        debug_assert!(
            recent == self.recent && floor == self.floor,
            "a snapshot of this state"
        );
    }
}

/// The snapshots that have the keys before `snapshot.next`: the earlier ones, and this one.
fn with_itself(snapshot: &UniqueSnapshot, name: UniqueReference) -> Vec<EarlierSnapshot> {
    let mut stored = snapshot.earlier.clone();
    if !snapshot.entries.is_empty() {
        stored.push(EarlierSnapshot {
            reference: name,
            newest_us: snapshot.newest_us(),
            keys: snapshot.entries.len() as u64,
        });
    }
    stored
}

/// The snapshot that a state without parts between `snapshot.next` and `next` would make: no part, no new key, and no other time.
pub(crate) fn unchanged(snapshot: UniqueSnapshot, name: UniqueReference, next: u64) -> UniqueSnapshot {
    UniqueSnapshot {
        next,
        earlier: with_itself(&snapshot, name),
        entries: Vec::new(),
        ..snapshot
    }
}

impl Drop for State {
    fn drop(&mut self) {
        self.limit.give_back(self.table.len() as u64);
    }
}
