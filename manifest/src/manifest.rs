//! The manifest: the ordered log of a shard's committed segments, and the producers' pure transitions. It never reads a
//! clock, draws a random number or touches a store.

mod codec;

use crate::entry::check_entry;
use crate::object::Stamp;
use crate::page::{Page, PageReference};
use millpond_segment::Encoding;
use std::cmp::Reverse;
use std::fmt;
use thiserror::Error;
use ulid::Ulid;
use uuid::Uuid;

pub use crate::entry::{Entry, Part, STREAMS_MAX, TAIL_MAX};

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
    /// Sequence of that commit's first segment.
    pub first_sequence: u64,
    /// Number of segments in that commit.
    pub count: u64,
    /// Unix time in milliseconds of that commit.
    pub seen_at_ms: u64,
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
}

/// A segment that a producer wants to commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSegment {
    /// The segment's name.
    pub segment: Ulid,
    /// The object's size in bytes.
    pub size: u64,
    /// At most one for each stream.
    pub parts: Vec<NewPart>,
}

/// A part that refers to its stream by name instead of by index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPart {
    /// For example `otlp.logs`.
    pub stream: String,
    /// The format of its messages.
    pub encoding: Encoding,
    /// Offset in the segment object, in bytes.
    pub offset: u64,
    /// Length in the segment object, in bytes.
    pub length: u64,
    /// Uncompressed, in bytes.
    pub raw_len: u64,
    /// Number of messages.
    pub messages: u64,
    /// Number of records.
    pub records: u64,
    /// Unix time in microseconds of the earliest message.
    pub first_received_at_us: i64,
    /// Unix time in microseconds of the latest message.
    pub last_received_at_us: i64,
}

/// The outcome of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Commit {
    /// The state to swap in. The segments get sequences from `first_sequence` on.
    Next {
        /// The new state, not yet stamped.
        state: Box<Manifest>,
        /// Sequence of the first segment.
        first_sequence: u64,
    },
    /// An earlier attempt already put this commit in the log.
    Already {
        /// Sequence of the first segment.
        first_sequence: u64,
        /// Number of its segments.
        count: u64,
    },
}

/// Why a commit is impossible.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CommitRefusal {
    /// The manifest has forgotten the producer, or never knew it: an unknown outcome cannot be resolved.
    #[error("producer {0} is not registered in this shard")]
    NotRegistered(ProducerId),
    /// Segments named before the orphan floor may be deleted at any moment: upload them again.
    #[error("{} segments are named before the orphan floor {floor_ms}", .segments.len())]
    BelowFloor {
        /// Their indexes in the commit.
        segments: Vec<usize>,
        /// Unix ms.
        floor_ms: u64,
    },
    /// The number precedes the last commit, whose sequences are no longer known.
    #[error("commit {commit} of producer {producer} is older than its last commit {last}")]
    Superseded {
        /// The producer.
        producer: ProducerId,
        /// The requested commit.
        commit: u64,
        /// Its last commit.
        last: u64,
    },
    /// A number is missing: the producer has a bug.
    #[error("commit {commit} of producer {producer} does not follow its last commit {last}")]
    Gap {
        /// The producer.
        producer: ProducerId,
        /// The requested commit.
        commit: u64,
        /// Its last commit.
        last: u64,
    },
    /// No segments, a duplicate segment or stream, an invalid name…
    #[error("commit is not valid: {0}")]
    Invalid(String),
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

    /// Appends `segments` to the log in order, as commit number `commit` of `producer`.
    pub fn commit(
        &self,
        producer: ProducerId,
        commit: u64,
        segments: &[NewSegment],
        now_ms: u64,
    ) -> Result<Commit, CommitRefusal> {
        let place = self
            .producers
            .binary_search_by_key(&producer, |row| row.id)
            .map_err(|_| CommitRefusal::NotRegistered(producer))?;
        let row = &self.producers[place];
        let last = row.commit;
        if commit == last && commit > 0 {
            return Ok(Commit::Already {
                first_sequence: row.first_sequence,
                count: row.count,
            });
        }
        if commit <= last {
            return Err(CommitRefusal::Superseded {
                producer,
                commit,
                last,
            });
        }
        if commit - last > 1 {
            return Err(CommitRefusal::Gap {
                producer,
                commit,
                last,
            });
        }
        self.check_segments(segments)?;

        let mut next = self.clone();
        for segment in segments {
            let entry = next.entry(segment, now_ms)?;
            next.tail.push(entry);
        }
        let (first_sequence, count) = (self.next_sequence, segments.len() as u64);
        next.next_sequence = first_sequence
            .checked_add(count)
            .ok_or_else(|| CommitRefusal::Invalid("the log has no sequences left".into()))?;
        next.producers[place] = ProducerRow {
            id: producer,
            commit,
            first_sequence,
            count,
            seen_at_ms: now_ms,
        };
        Ok(Commit::Next {
            state: Box::new(next),
            first_sequence,
        })
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

    fn check_segments(&self, segments: &[NewSegment]) -> Result<(), CommitRefusal> {
        if segments.is_empty() {
            return Err(CommitRefusal::Invalid("it has no segments".into()));
        }
        let below: Vec<usize> = segments
            .iter()
            .enumerate()
            .filter(|(_, s)| s.segment.timestamp_ms() < self.orphan_floor_ms)
            .map(|(i, _)| i)
            .collect();
        if !below.is_empty() {
            return Err(CommitRefusal::BelowFloor {
                segments: below,
                floor_ms: self.orphan_floor_ms,
            });
        }
        // The tail is long and the new segments are few: look up each name of the tail among the new ones.
        let mut names: Vec<Ulid> = segments.iter().map(|s| s.segment).collect();
        names.sort_unstable();
        let twice = names
            .windows(2)
            .find(|pair| pair[0] == pair[1])
            .map(|pair| pair[0]);
        let there = || {
            let mut tail = self.tail.iter().map(|entry| entry.segment);
            tail.find(|name| names.binary_search(name).is_ok())
        };
        match twice.or_else(there) {
            Some(twice) => Err(CommitRefusal::Invalid(format!(
                "segment {twice} is in the log already"
            ))),
            None => Ok(()),
        }
    }

    /// Assigns indexes to a new segment's streams, and adds new ones to the table.
    fn entry(&mut self, segment: &NewSegment, now_ms: u64) -> Result<Entry, CommitRefusal> {
        let invalid =
            |reason: String| CommitRefusal::Invalid(format!("segment {}: {reason}", segment.segment));
        let mut parts = Vec::with_capacity(segment.parts.len());
        for part in &segment.parts {
            let index = match self.stream_index(&part.stream) {
                Some(index) => index,
                None => {
                    millpond_segment::check_stream_name(&part.stream).map_err(|e| invalid(e.to_string()))?;
                    if self.streams.len() >= STREAMS_MAX {
                        return Err(invalid(format!(
                            "the shard has its {STREAMS_MAX} streams already"
                        )));
                    }
                    self.streams.push(Stream {
                        name: part.stream.clone(),
                        encoding: part.encoding,
                    });
                    u32::try_from(self.streams.len() - 1).map_err(|e| invalid(e.to_string()))?
                }
            };
            let known = self.streams[index as usize].encoding;
            if known != part.encoding {
                return Err(invalid(format!(
                    "stream {} holds {known} messages, not {}",
                    part.stream, part.encoding
                )));
            }
            parts.push(Part {
                stream: index,
                offset: part.offset,
                length: part.length,
                raw_len: part.raw_len,
                messages: part.messages,
                records: part.records,
                first_received_at_us: part.first_received_at_us,
                last_received_at_us: part.last_received_at_us,
            });
        }
        let entry = Entry {
            segment: segment.segment,
            size: segment.size,
            committed_at_ms: now_ms,
            parts,
        };
        check_entry(&entry, self.streams.len()).map_err(invalid)?;
        Ok(entry)
    }
}
