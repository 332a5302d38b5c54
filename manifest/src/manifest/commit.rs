//! The transition that appends segments to the log, and the claims that make it exactly once.

use super::codec::PAGES_MAX;
use super::{Manifest, ProducerId, ProducerRow, Stream};
use crate::entry::{ENTRIES_MAX, Entry, Part, STREAMS_MAX, check_entry};
use millpond_segment::Encoding;
use std::ops::Range;
use thiserror::Error;
use ulid::Ulid;

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

/// A run of one producer's numbers, and the place of their records in the commit. Whoever commits them, each number
/// enters the log at most once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The producer of the records, which need not be the one that commits them.
    pub producer: ProducerId,
    /// The first number of the run.
    pub first: u64,
    /// The last number of the run.
    pub last: u64,
    /// The indexes of the commit's segments that hold the records. Claims may share a segment.
    pub segments: Range<usize>,
}

impl Claim {
    /// A single number whose records are in these segments.
    pub fn one(producer: ProducerId, number: u64, segments: Range<usize>) -> Claim {
        Claim {
            producer,
            first: number,
            last: number,
            segments,
        }
    }
}

/// A commit that is possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// The state to swap in, not yet stamped.
    pub state: Box<Manifest>,
    /// Sequence of the first segment. The others follow in order.
    pub first_sequence: u64,
}

/// Why a commit is impossible.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CommitRefusal {
    /// Some of its claims are unusable. The others may be usable without them.
    #[error("{} claims of the commit are unusable; the first: {}", .0.len(), Unusable::first(.0))]
    Claims(Vec<Unusable>),
    /// Segments named before the orphan floor may be deleted at any moment: upload them again.
    #[error("{} segments are named before the orphan floor {floor_ms}", .segments.len())]
    BelowFloor {
        /// Their indexes in the commit.
        segments: Vec<usize>,
        /// Unix ms.
        floor_ms: u64,
    },
    /// No segments, a duplicate segment or stream, an invalid name…
    #[error("commit is not valid: {0}")]
    Invalid(String),
}

/// A claim that prevents its commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unusable {
    /// Its index in the commit.
    pub claim: usize,
    /// The reason.
    pub reason: ClaimRefusal,
}

impl Unusable {
    fn first(all: &[Unusable]) -> String {
        all.first().map_or_else(String::new, |one| one.reason.to_string())
    }
}

/// Why a claim is unusable.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ClaimRefusal {
    /// The manifest has forgotten the producer, or never knew it: an unknown outcome cannot be resolved.
    #[error("producer {0} is not registered in this shard")]
    NotRegistered(ProducerId),
    /// The log has the first number of the run, and perhaps more of them.
    #[error("commit {first} of producer {} is in the log already: its last commit is {}", .row.id, .row.commit)]
    Taken {
        /// The first number of the run.
        first: u64,
        /// The producer's row. It has the place of the last commit only.
        row: ProducerRow,
    },
    /// A number is missing: the producer has a bug.
    #[error("commit {first} of producer {producer} does not follow its last commit {last}")]
    Gap {
        /// The producer.
        producer: ProducerId,
        /// The first number of the run.
        first: u64,
        /// The producer's last commit.
        last: u64,
    },
    /// The commit has several claims of the producer. Two copies of one request would otherwise both enter the log.
    #[error("producer {0} occurs twice in the commit")]
    Twice(ProducerId),
    /// A run without numbers or without segments.
    #[error("claim of producer {producer} is not valid: {reason}")]
    Invalid {
        /// The producer.
        producer: ProducerId,
        /// The rule that it breaks.
        reason: &'static str,
    },
}

impl Manifest {
    /// Appends `segments` to the log in order and records `claims`: all of them, or none.
    ///
    /// # Errors
    /// [`CommitRefusal::Claims`] names every unusable claim.
    pub fn commit(
        &self,
        claims: &[Claim],
        segments: &[NewSegment],
        now_ms: u64,
    ) -> Result<Commit, CommitRefusal> {
        let rows = self.check_claims(claims, segments.len())?;
        self.check_segments(claims, segments)?;
        let mut next = self.clone();
        for segment in segments {
            let entry = next.entry(segment, now_ms)?;
            next.tail.push(entry);
        }
        next.check_size()?;
        let first_sequence = self.next_sequence;
        next.next_sequence = first_sequence
            .checked_add(segments.len() as u64)
            .ok_or_else(|| CommitRefusal::Invalid("the log has no sequences left".into()))?;
        for (claim, row) in claims.iter().zip(rows) {
            next.producers[row] = ProducerRow {
                id: claim.producer,
                commit: claim.last,
                first_sequence: first_sequence + claim.segments.start as u64,
                count: claim.segments.len() as u64,
                seen_at_ms: now_ms,
                certificate: next.producers[row].certificate,
            };
        }
        Ok(Commit {
            state: Box::new(next),
            first_sequence,
        })
    }

    /// Refuses a log that readers would refuse: nobody could read what is in it, or repair it.
    fn check_size(&self) -> Result<(), CommitRefusal> {
        let sizes = [
            ("entries in the manifest", self.tail.len(), ENTRIES_MAX),
            ("pages", self.pages.len(), PAGES_MAX),
        ];
        for (of, found, max) in sizes {
            if found > max {
                return Err(CommitRefusal::Invalid(format!(
                    "the log would have {found} {of}, and readers accept {max}"
                )));
            }
        }
        Ok(())
    }

    /// Uses up the next number of a producer without a record: whoever still has records for it cannot commit them any more.
    /// `None`: it is not the producer's next number.
    #[must_use]
    pub fn spend(&self, producer: ProducerId, number: u64, now_ms: u64) -> Option<Manifest> {
        let mut next = self.clone();
        let place = next
            .producers
            .binary_search_by_key(&producer, |row| row.id)
            .ok()?;
        let row = next.producers.get_mut(place)?;
        if row.commit.checked_add(1) != Some(number) {
            return None;
        }
        row.commit = number;
        // The table ranks producers by the end of their last commit in the log.
        row.first_sequence = self.next_sequence;
        row.count = 0;
        row.seen_at_ms = now_ms;
        Some(next)
    }

    /// Returns the index of each claim's row in the producer table.
    fn check_claims(&self, claims: &[Claim], segments: usize) -> Result<Vec<usize>, CommitRefusal> {
        let mut ids: Vec<ProducerId> = claims.iter().map(|claim| claim.producer).collect();
        ids.sort_unstable();
        let is_twice = |id: ProducerId| {
            let place = ids.partition_point(|other| *other < id);
            ids.get(place + 1) == Some(&id)
        };
        let mut rows = Vec::with_capacity(claims.len());
        let mut unusable = Vec::new();
        for (place, claim) in claims.iter().enumerate() {
            let checked = match is_twice(claim.producer) {
                true => Err(ClaimRefusal::Twice(claim.producer)),
                false => self.check_claim(claim, segments),
            };
            match checked {
                Ok(row) => rows.push(row),
                Err(reason) => unusable.push(Unusable { claim: place, reason }),
            }
        }
        if unusable.is_empty() {
            Ok(rows)
        } else {
            Err(CommitRefusal::Claims(unusable))
        }
    }

    /// Returns the index of a claim's row in the producer table.
    fn check_claim(&self, claim: &Claim, segments: usize) -> Result<usize, ClaimRefusal> {
        let &Claim {
            producer,
            first,
            last,
            segments: Range { start, end },
        } = claim;
        let invalid = |reason| Err(ClaimRefusal::Invalid { producer, reason });
        if first == 0 || last < first {
            return invalid("it has no number");
        }
        if start >= end || end > segments {
            return invalid("its segments are not in the commit");
        }
        let place = self
            .producers
            .binary_search_by_key(&producer, |row| row.id)
            .map_err(|_| ClaimRefusal::NotRegistered(producer))?;
        let row = &self.producers[place];
        if first <= row.commit {
            let row = row.clone();
            return Err(ClaimRefusal::Taken { first, row });
        }
        if first > row.commit + 1 {
            let last = row.commit;
            return Err(ClaimRefusal::Gap {
                producer,
                first,
                last,
            });
        }
        Ok(place)
    }

    fn check_segments(&self, claims: &[Claim], segments: &[NewSegment]) -> Result<(), CommitRefusal> {
        if segments.is_empty() {
            return Err(CommitRefusal::Invalid("it has no segments".into()));
        }
        let mut claimed = vec![false; segments.len()];
        for claim in claims {
            claimed[claim.segments.clone()].fill(true);
        }
        if let Some(place) = claimed.iter().position(|claimed| !claimed) {
            let segment = segments[place].segment;
            return Err(CommitRefusal::Invalid(format!(
                "segment {segment} belongs to no claim"
            )));
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
