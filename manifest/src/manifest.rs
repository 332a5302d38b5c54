//! The manifest: the ordered log of a shard's committed segments, and the producers' pure transitions. It never reads a
//! clock, draws a random number or touches a store.

mod clients;
mod codec;
mod commit;
mod leader;
mod sources;

use crate::object::Stamp;
use crate::page::{Page, PageReference};
use millpond_segment::Encoding;
use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;
use ulid::Ulid;
use uuid::Uuid;

pub use crate::entry::{ENTRIES_MAX, Entry, Part, STREAMS_MAX, TAIL_MAX};
pub use clients::{
    CLIENTS_MAX, CheckedClients, ClientClaim, ClientId, ClientRefusal, ClientRow, KEY_EXPIRY_MS, KEYS_MAX,
    Numbers, UnusableClient,
};
pub use commit::{Claim, ClaimRefusal, Commit, CommitRefusal, NewPart, NewSegment, Unusable};
pub use leader::{ADDRESS_MAX, Fingerprint, Leader};
pub use sources::{
    PARTITION_MAX, SOURCE_NAME_MAX, SOURCES_MAX, SourcePartition, SourceRefusal, SourceRow, TOPIC_NAME_MAX,
};

/// Maximum number of producers remembered. Beyond it, the manifest forgets the producer whose last commit is furthest
/// back in the log.
pub const PRODUCERS_MAX: usize = 4_096;
/// Number of producers, by newest commit in the log, that the manifest remembers whatever any clock shows.
pub const PRODUCERS_KEPT: usize = 256;
/// Expiry of producers beyond [`PRODUCERS_KEPT`] in milliseconds: a registration forgets those last seen this long
/// before or after the median producer.
pub const PRODUCER_EXPIRY_MS: u64 = 24 * 3_600 * 1_000;

/// A random id that a producer draws when it starts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProducerId(pub [u8; 16]);

impl fmt::Display for ProducerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Uuid::from_bytes(self.0))
    }
}

impl FromStr for ProducerId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<ProducerId, uuid::Error> {
        Ok(ProducerId(Uuid::parse_str(text)?.into_bytes()))
    }
}

impl fmt::Debug for ProducerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A stream of this shard. Entries refer to it by its index in the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// For example `otlp.logs`.
    pub name: String,
    /// The format of its messages.
    pub encoding: Encoding,
}

/// The manifest's record of a producer: enough to recognise its last commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerRow {
    /// The producer.
    pub id: ProducerId,
    /// The number of its last commit; 0: registered, nothing committed yet.
    pub commit: u64,
    /// Sequence of the first segment that holds records of that commit, or of the run that ends with it.
    pub first_sequence: u64,
    /// Number of these segments; 0: the number was spent without records.
    pub count: u64,
    /// Unix time in milliseconds of that commit.
    pub seen_at_ms: u64,
    /// The certificate that it presents to other producers, if it has one. Whoever may write the manifest vouches for it.
    pub certificate: Option<Fingerprint>,
}

impl ProducerRow {
    /// Returns true if the last number was spent without records ([`Manifest::spend`]).
    pub fn is_spent(&self) -> bool {
        self.commit > 0 && self.count == 0
    }
}

/// The state of a shard's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// The buffer of this manifest.
    pub buffer_id: Uuid,
    /// The shard.
    pub shard: u32,
    /// Distinguishes states.
    pub stamp: Stamp,
    /// The oldest sequence retained.
    pub first_sequence: u64,
    /// The sequence that the next committed segment gets.
    pub next_sequence: u64,
    /// No segment named before this time (unix ms) can be committed anymore.
    pub orphan_floor_ms: u64,
    /// The table of streams; it only grows.
    pub streams: Vec<Stream>,
    /// Sealed runs, oldest first.
    pub pages: Vec<PageReference>,
    /// The newest entries; the last one has sequence `next_sequence - 1`.
    pub tail: Vec<Entry>,
    /// Ordered by id.
    pub producers: Vec<ProducerRow>,
    /// The producer that commits for others, if there is one.
    pub leader: Option<Leader>,
    /// Clients that number their requests, ordered by id.
    pub clients: Vec<ClientRow>,
    /// Idempotency keys, ordered by id.
    pub keys: Vec<ClientRow>,
    /// Positions of bridges, ordered by what they read. No transition forgets one.
    pub sources: Vec<SourceRow>,
}

impl Manifest {
    /// A shard before its first commit.
    pub fn new(buffer_id: Uuid, shard: u32) -> Self {
        Manifest {
            buffer_id,
            shard,
            stamp: Stamp { version: 0, nonce: 0 },
            first_sequence: 0,
            next_sequence: 0,
            orphan_floor_ms: 0,
            streams: Vec::new(),
            pages: Vec::new(),
            tail: Vec::new(),
            producers: Vec::new(),
            leader: None,
            clients: Vec::new(),
            keys: Vec::new(),
            sources: Vec::new(),
        }
    }

    /// The next state, distinguished from every other by its counter and `nonce`.
    #[must_use]
    pub fn stamped(mut self, nonce: u64) -> Self {
        self.stamp = Stamp {
            version: self.stamp.version.wrapping_add(1),
            nonce,
        };
        self
    }

    /// The sequence of the tail's first entry.
    pub fn tail_start(&self) -> u64 {
        self.next_sequence - self.tail.len() as u64
    }

    /// The row of a producer, if the manifest remembers it.
    pub fn producer(&self, id: ProducerId) -> Option<&ProducerRow> {
        self.producers
            .binary_search_by_key(&id, |row| row.id)
            .ok()
            .map(|i| &self.producers[i])
    }

    /// The index of a stream in the table.
    pub fn stream_index(&self, name: &str) -> Option<u32> {
        self.streams
            .iter()
            .position(|s| s.name == name)
            .and_then(|i| u32::try_from(i).ok())
    }

    /// Registers a producer with commit number 0, and forgets others if the table grows too large. Only the new row
    /// uses `now_ms`: the registering producer's clock never decides who is forgotten.
    #[must_use]
    pub fn register(&self, producer: ProducerId, now_ms: u64) -> Manifest {
        let mut next = self.clone();
        if next.producer(producer).is_some() {
            return next;
        }
        next.forget_producers();
        let row = ProducerRow {
            id: producer,
            commit: 0,
            first_sequence: 0,
            count: 0,
            seen_at_ms: now_ms,
            certificate: None,
        };
        let place = next.producers.partition_point(|r| r.id < producer);
        next.producers.insert(place, row);
        next
    }

    /// Makes room for one more producer. A forgotten producer cannot resolve an unknown outcome, so no single clock
    /// decides which one goes. The log's order ranks the rows; the median of their times is the reference.
    fn forget_producers(&mut self) {
        if self.producers.len() < PRODUCERS_KEPT {
            return;
        }
        let mut seen_ms: Vec<u64> = self
            .producers
            .iter()
            .filter(|row| row.commit > 0)
            .map(|row| row.seen_at_ms)
            .collect();
        seen_ms.sort_unstable();
        let median_ms = seen_ms.get(seen_ms.len().saturating_sub(1) / 2);
        // A row without a commit ends at 0 and sorts after every row that the log depends on.
        self.producers
            .sort_by_key(|row| Reverse(row.first_sequence.saturating_add(row.count)));
        let mut rank = 0;
        self.producers.retain(|row| {
            rank += 1;
            rank <= PRODUCERS_KEPT
                || median_ms.is_none_or(|ms| row.seen_at_ms.abs_diff(*ms) < PRODUCER_EXPIRY_MS)
        });
        self.producers.truncate(PRODUCERS_MAX - 1);
        self.producers.sort_unstable_by_key(|row| row.id);
    }

    /// Returns true if the log has exactly these segments from `first_sequence` on, as far as the tail shows. Ignores pages and
    /// trimmed entries.
    pub fn may_have(&self, first_sequence: u64, segments: &[Ulid]) -> bool {
        let start = self.tail_start();
        (first_sequence..).zip(segments).all(|(sequence, segment)| {
            let Some(place) = sequence.checked_sub(start) else {
                return true;
            };
            let entry = usize::try_from(place).ok().and_then(|place| self.tail.get(place));
            entry.is_some_and(|entry| entry.segment == *segment)
        })
    }

    /// Returns true if the tail proves that the log does not have these segments from `first_sequence` on.
    pub fn lacks(&self, first_sequence: u64, segments: &[Ulid]) -> bool {
        self.tail_start() <= first_sequence && !self.may_have(first_sequence, segments)
    }

    /// Moves the tail's entries up to and including sequence `last` into a page named `page`. `None` if the tail does
    /// not have that sequence, or if the name is before the orphan floor: such a page may be deleted at any moment.
    pub fn seal(&self, page: Ulid, last: u64) -> Option<(Page, Manifest)> {
        let first = self.tail_start();
        if page.timestamp_ms() < self.orphan_floor_ms || last < first || last >= self.next_sequence {
            return None;
        }
        let count = usize::try_from(last - first).ok()? + 1;
        let mut next = self.clone();
        let tail = next.tail.split_off(count);
        let sealed = Page {
            buffer_id: self.buffer_id,
            shard: self.shard,
            first,
            entries: std::mem::replace(&mut next.tail, tail),
        };
        next.pages.push(sealed.reference(page));
        Some((sealed, next))
    }

    /// Trims the log for the garbage collector: it begins at `first_sequence` from now on (never earlier than before),
    /// and no segment or page named before `orphan_floor_ms` can join it anymore. Drops pages without remaining
    /// entries. Nothing may be deleted until this state is in force.
    #[must_use]
    pub fn collect(&self, first_sequence: u64, orphan_floor_ms: u64) -> Manifest {
        let mut next = self.clone();
        next.first_sequence = first_sequence.clamp(self.first_sequence, self.next_sequence);
        next.orphan_floor_ms = orphan_floor_ms.max(self.orphan_floor_ms);
        next.pages.retain(|page| page.last >= next.first_sequence);
        if next.pages.is_empty() {
            let gone = next.first_sequence.saturating_sub(self.tail_start());
            next.tail
                .drain(..usize::try_from(gone).unwrap_or(usize::MAX).min(next.tail.len()));
        }
        next
    }
}
