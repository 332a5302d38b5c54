//! The manifest: the ordered log of a shard's committed segments, and the pure transitions that
//! producers make. It never reads a clock, draws a random number or touches a store.

use crate::cas::{Object, Stamp};
use crate::page::{Page, PageReference};
use crate::planted::{self, Bug};
use crate::{Count, FormatError, envelope, proto};
use bytes::Bytes;
use millpond_segment::Encoding;
use std::cmp::Reverse;
use std::collections::HashSet;
use std::fmt;
use thiserror::Error;
use ulid::Ulid;
use uuid::Uuid;

/// The most streams in one shard: each costs its name in every commit.
pub const STREAMS_MAX: usize = 1_024;
/// The most producers remembered. Past it, the one whose last commit is furthest back in the log is forgotten.
pub const PRODUCERS_MAX: usize = 4_096;
/// The producers with the newest commits in the log. The manifest remembers these whatever any clock says.
pub const PRODUCERS_KEPT: usize = 256;
/// A tail with this many entries is sealed into a page by the next commit, so that a commit moves a bounded number of
/// bytes whatever the backlog.
pub const TAIL_MAX: usize = 2_048;
/// The most entries that are read of a tail or a page: a commit adds its segments to a tail that is not sealed yet.
pub(crate) const ENTRIES_MAX: usize = 2 * TAIL_MAX;
/// The most parts of all these entries.
pub(crate) const PARTS_MAX: usize = ENTRIES_MAX * STREAMS_MAX;
/// The most bytes of a manifest or a page that are read: as many entries as may be, with all streams in each.
pub(crate) const LOG_BYTES_MAX: u64 = 256 << 20;
/// The most pages that are read of a manifest: two billion segments.
const PAGES_MAX: usize = 1 << 20;
/// A registration forgets the producers beyond [`PRODUCERS_KEPT`] that were seen this long before or after the median
/// producer (milliseconds).
pub const PRODUCER_EXPIRY_MS: u64 = 24 * 3_600 * 1_000;

/// A producer's random name, drawn when it starts.
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

/// A stream of this shard. Its place in the table is its name in the entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stream {
    /// As in `otlp.logs`.
    pub name: String,
    /// The format of its messages.
    pub encoding: Encoding,
}

/// One stream's blocks within one segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Index into [`Manifest::streams`].
    pub stream: u32,
    /// In the segment object, in bytes.
    pub offset: u64,
    /// In the segment object, in bytes.
    pub length: u64,
    /// Uncompressed, in bytes.
    pub raw_len: u64,
    /// How many messages.
    pub messages: u64,
    /// How many records in those messages.
    pub records: u64,
    /// Unix time in microseconds of the earliest message.
    pub first_received_at_us: i64,
    /// Unix time in microseconds of the latest message.
    pub last_received_at_us: i64,
}

/// A committed segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The segment's name.
    pub segment: Ulid,
    /// The object's size in bytes.
    pub size: u64,
    /// Unix time in milliseconds at the committing producer.
    pub committed_at_ms: u64,
    /// At most one for each stream.
    pub parts: Vec<Part>,
}

/// The manifest's memory of a producer: enough to recognise its last commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerRow {
    /// Which producer.
    pub id: ProducerId,
    /// The number of its last commit; 0: registered, nothing committed yet.
    pub commit: u64,
    /// Sequence of that commit's first segment.
    pub first_sequence: u64,
    /// How many segments that commit had.
    pub count: u64,
    /// Unix time in milliseconds of that commit.
    pub seen_at_ms: u64,
}

/// The state of a shard's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manifest {
    /// Which buffer this is part of.
    pub buffer_id: Uuid,
    /// Which shard this is.
    pub shard: u32,
    /// Tells states apart.
    pub stamp: Stamp,
    /// The oldest sequence retained.
    pub first_sequence: u64,
    /// The sequence that the next committed segment gets.
    pub next_sequence: u64,
    /// No segment named before this time (unix ms) can be committed any more.
    pub orphan_floor_ms: u64,
    /// The table of streams; grows only.
    pub streams: Vec<Stream>,
    /// Sealed runs, oldest first.
    pub pages: Vec<PageReference>,
    /// The newest entries; the last one has sequence `next_sequence - 1`.
    pub tail: Vec<Entry>,
    /// In order of their ids.
    pub producers: Vec<ProducerRow>,
}

/// A segment as its producer describes it for a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSegment {
    /// The segment's name.
    pub segment: Ulid,
    /// The object's size in bytes.
    pub size: u64,
    /// At most one for each stream.
    pub parts: Vec<NewPart>,
}

/// A part whose stream is still named, not numbered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPart {
    /// As in `otlp.logs`.
    pub stream: String,
    /// The format of its messages.
    pub encoding: Encoding,
    /// In the segment object, in bytes.
    pub offset: u64,
    /// In the segment object, in bytes.
    pub length: u64,
    /// Uncompressed, in bytes.
    pub raw_len: u64,
    /// How many messages.
    pub messages: u64,
    /// How many records.
    pub records: u64,
    /// Unix time in microseconds of the earliest message.
    pub first_received_at_us: i64,
    /// Unix time in microseconds of the latest message.
    pub last_received_at_us: i64,
}

/// The outcome of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Commit {
    /// The state to swap in; the segments get the sequences from `first_sequence` on.
    Next {
        /// The new state, not yet stamped.
        state: Box<Manifest>,
        /// Sequence of the first segment.
        first_sequence: u64,
    },
    /// This commit is in the log already: an earlier attempt of ours landed.
    Already {
        /// Sequence of the first segment.
        first_sequence: u64,
        /// How many segments it had.
        count: u64,
    },
}

/// Why a commit cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CommitRefusal {
    /// The producer was forgotten, or never registered: what became of an unknown outcome cannot be known.
    #[error("producer {0} is not registered in this shard")]
    NotRegistered(ProducerId),
    /// Segments named before the orphan floor may be deleted at any moment: upload them anew.
    #[error("{} segments are named before the orphan floor {floor_ms}", .segments.len())]
    BelowFloor {
        /// Their places in the commit.
        segments: Vec<usize>,
        /// Unix ms.
        floor_ms: u64,
    },
    /// The number is older than the last commit, whose sequences are no longer known.
    #[error("commit {commit} of producer {producer} is older than its last commit {last}")]
    Superseded {
        /// Which producer.
        producer: ProducerId,
        /// The commit asked for.
        commit: u64,
        /// Its last commit.
        last: u64,
    },
    /// A number was left out: the producer's own bookkeeping is wrong.
    #[error("commit {commit} of producer {producer} does not follow its last commit {last}")]
    Gap {
        /// Which producer.
        producer: ProducerId,
        /// The commit asked for.
        commit: u64,
        /// Its last commit.
        last: u64,
    },
    /// Nothing to commit, a segment named twice, a stream twice in a segment, an invalid name…
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

    /// The state after this one, told apart from every other by its counter and `nonce`.
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

    /// The memory of a producer.
    pub fn producer(&self, id: ProducerId) -> Option<&ProducerRow> {
        self.producers
            .binary_search_by_key(&id, |row| row.id)
            .ok()
            .map(|i| &self.producers[i])
    }

    /// The place of a stream in the table.
    pub fn stream_index(&self, name: &str) -> Option<u32> {
        self.streams
            .iter()
            .position(|s| s.name == name)
            .and_then(|i| u32::try_from(i).ok())
    }

    /// Registers a producer (its commit number 0), and forgets others where the table grows too large. `now_ms` goes into
    /// the new row alone: the clock of the producer that registers forgets nobody.
    #[must_use]
    pub fn register(&self, producer: ProducerId, now_ms: u64) -> Manifest {
        let mut next = self.clone();
        if next.producer(producer).is_some() {
            return next;
        }
        if planted::is(Bug::ClockEmptiesProducerTable) {
            next.producers
                .retain(|row| row.seen_at_ms.saturating_add(PRODUCER_EXPIRY_MS) > now_ms);
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

    /// Makes room for one more producer. A forgotten producer cannot resolve an unknown outcome, so no single clock may
    /// decide who goes: the log's order ranks the rows, and the time is what half of the producers agree on.
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
        // A row without a commit ends at 0, so it comes after every row that the log depends on.
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

    /// Commit number `commit` of `producer`: its `segments` go to the end of the log, in their order.
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
        let last = match planted::is(Bug::ProducerTableIgnored) {
            true => commit.saturating_sub(1),
            false => row.commit,
        };
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

    /// Whether the log has exactly these segments from `first_sequence` on, as far as the tail shows. The pages and what
    /// was trimmed are not looked at.
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

    /// Whether the log certainly does not have these segments from `first_sequence` on: the tail shows other ones, or none.
    pub fn lacks(&self, first_sequence: u64, segments: &[Ulid]) -> bool {
        self.tail_start() <= first_sequence && !self.may_have(first_sequence, segments)
    }

    /// Takes the tail's entries up to and including sequence `last` into a page named `page`. `None` when the page cannot
    /// be referenced: its name is before the orphan floor, so that it may be deleted any moment, or the tail does not
    /// have that sequence.
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
        if !planted::is(Bug::PageReferenceDropped) {
            next.pages.push(sealed.reference(page));
        }
        Some((sealed, next))
    }

    /// Trims the log, as the garbage collector does: it begins at `first_sequence` from now on (never earlier than it does now), and no
    /// segment or page named before `orphan_floor_ms` can join it any more. Pages of which nothing is left are dropped.
    /// Nothing may be deleted before this state is in force.
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
        if !below.is_empty() && !planted::is(Bug::OrphanFloorIgnored) {
            return Err(CommitRefusal::BelowFloor {
                segments: below,
                floor_ms: self.orphan_floor_ms,
            });
        }
        // The new ones are few and the tail is long: each name of the tail is looked up among the new.
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

    /// Numbers a new segment's streams, adding to the table those that are new.
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

/// The rules that an entry keeps, checked before it is written and after it is read.
pub(crate) fn check_entry(entry: &Entry, streams: usize) -> Result<(), String> {
    // Most have one part, and this is done for every entry of the tail: a set for each would be an allocation each.
    let mut seen = (entry.parts.len() > 1).then(HashSet::new);
    for part in &entry.parts {
        let end = part.offset.checked_add(part.length);
        if part.stream as usize >= streams {
            return Err(format!("stream {} is not in the table of {streams}", part.stream));
        }
        if seen.as_mut().is_some_and(|seen| !seen.insert(part.stream)) {
            return Err(format!("stream {} is in it twice", part.stream));
        }
        if end.is_none_or(|end| end > entry.size) {
            return Err(format!(
                "the part at {}+{} lies outside its {} bytes",
                part.offset, part.length, entry.size
            ));
        }
        if part.last_received_at_us < part.first_received_at_us {
            return Err("a part's last message was received before its first".into());
        }
    }
    Ok(())
}

impl Object for Manifest {
    const NAME: &'static str = "manifest";
    const MAGIC: [u8; 4] = *b"MPMF";
    const BYTES_MAX: u64 = LOG_BYTES_MAX;
    const COUNTS: &'static [Count] = &[
        Count {
            of: "streams",
            path: &[8],
            max: STREAMS_MAX,
        },
        Count {
            of: "pages",
            path: &[9],
            max: PAGES_MAX,
        },
        Count {
            of: "entries",
            path: &[10],
            max: ENTRIES_MAX,
        },
        Count {
            of: "parts of segments",
            path: &[10, 4],
            max: PARTS_MAX,
        },
        Count {
            of: "producers",
            path: &[11],
            max: PRODUCERS_MAX,
        },
    ];

    fn encode(&self) -> Bytes {
        // Destructured whole: a field added and forgotten here does not compile.
        let Manifest {
            buffer_id,
            shard,
            stamp,
            first_sequence,
            next_sequence,
            orphan_floor_ms,
            streams,
            pages,
            tail,
            producers,
        } = self;
        envelope::wrap(
            Self::MAGIC,
            &proto::Manifest {
                buffer_id: buffer_id.as_bytes().to_vec(),
                shard: *shard,
                version: stamp.version,
                writer_nonce: stamp.nonce,
                first_sequence: *first_sequence,
                next_sequence: *next_sequence,
                orphan_floor_ms: *orphan_floor_ms,
                streams: streams.iter().map(encode_stream).collect(),
                pages: pages.iter().map(PageReference::encode).collect(),
                tail: tail.iter().map(encode_entry).collect(),
                producers: producers.iter().map(encode_producer).collect(),
            },
        )
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let m: proto::Manifest = envelope::unwrap::<Self, _>(bytes)?;
        let content = |reason: String| FormatError::Content {
            object: Self::NAME,
            reason,
        };
        let manifest = Manifest {
            buffer_id: Uuid::from_bytes(envelope::sixteen(Self::NAME, "buffer_id", &m.buffer_id)?),
            shard: m.shard,
            stamp: Stamp {
                version: m.version,
                nonce: m.writer_nonce,
            },
            first_sequence: m.first_sequence,
            next_sequence: m.next_sequence,
            orphan_floor_ms: m.orphan_floor_ms,
            streams: m
                .streams
                .into_iter()
                .map(decode_stream)
                .collect::<Result<_, _>>()
                .map_err(content)?,
            pages: m
                .pages
                .iter()
                .map(PageReference::decode)
                .collect::<Result<_, _>>()?,
            tail: m
                .tail
                .into_iter()
                .map(|entry| decode_entry(Self::NAME, &entry))
                .collect::<Result<_, _>>()?,
            producers: m
                .producers
                .iter()
                .map(decode_producer)
                .collect::<Result<_, _>>()?,
        };
        manifest.check().map_err(content)?;
        Ok(manifest)
    }

    fn stamp(&self) -> Stamp {
        self.stamp
    }
}

impl Manifest {
    /// Names the first rule of the format that this state breaks.
    pub fn check(&self) -> Result<(), String> {
        // The oldest page goes when all of it has; until then the log may begin inside of it.
        let mut at = self.pages.first().map_or(self.first_sequence, |page| page.first);
        if self
            .pages
            .first()
            .is_some_and(|page| self.first_sequence < page.first || self.first_sequence > page.last)
        {
            return Err(format!(
                "first_sequence {} is not in the oldest page",
                self.first_sequence
            ));
        }
        for page in &self.pages {
            if page.first != at || page.last < page.first {
                return Err(format!(
                    "page {}..={} does not begin at {at}",
                    page.first, page.last
                ));
            }
            at = page
                .last
                .checked_add(1)
                .ok_or("a page ends past the last sequence")?;
        }
        if at.checked_add(self.tail.len() as u64) != Some(self.next_sequence) {
            return Err(format!(
                "{} entries from sequence {at} do not end at next_sequence {}",
                self.tail.len(),
                self.next_sequence
            ));
        }
        for (i, entry) in self.tail.iter().enumerate() {
            check_entry(entry, self.streams.len()).map_err(|e| format!("sequence {}: {e}", at + i as u64))?;
        }
        if !self.producers.is_sorted_by(|a, b| a.id < b.id) {
            return Err("the producer table is not in order".into());
        }
        Ok(())
    }
}

fn encode_stream(stream: &Stream) -> proto::Stream {
    let encoding = match stream.encoding {
        Encoding::Otlp => proto::Encoding::Otlp,
        Encoding::Ndjson => proto::Encoding::Ndjson,
    };
    proto::Stream {
        name: stream.name.clone(),
        encoding: encoding.into(),
    }
}

fn decode_stream(stream: proto::Stream) -> Result<Stream, String> {
    let encoding = match stream.encoding() {
        proto::Encoding::Otlp => Encoding::Otlp,
        proto::Encoding::Ndjson => Encoding::Ndjson,
        proto::Encoding::Unspecified => {
            return Err(format!(
                "stream {:?} has the unknown encoding {}",
                stream.name, stream.encoding
            ));
        }
    };
    millpond_segment::check_stream_name(&stream.name).map_err(|error| error.to_string())?;
    Ok(Stream {
        name: stream.name,
        encoding,
    })
}

pub(crate) fn encode_entry(entry: &Entry) -> proto::Entry {
    let Entry {
        segment,
        size,
        committed_at_ms,
        parts,
    } = entry;
    let parts = parts.iter().map(|part| {
        let &Part {
            stream,
            offset,
            length,
            raw_len,
            messages,
            records,
            first_received_at_us,
            last_received_at_us,
        } = part;
        let received_span_us = last_received_at_us.abs_diff(first_received_at_us);
        proto::Part {
            stream,
            offset,
            length,
            raw_len,
            messages,
            records,
            first_received_at_us,
            received_span_us,
        }
    });
    proto::Entry {
        segment: segment.to_bytes().to_vec(),
        size: *size,
        committed_at_ms: *committed_at_ms,
        parts: parts.collect(),
    }
}

pub(crate) fn decode_entry(object: &'static str, entry: &proto::Entry) -> Result<Entry, FormatError> {
    let segment = Ulid::from_bytes(envelope::sixteen(object, "entry.segment", &entry.segment)?);
    let parts = entry.parts.iter().map(|part| {
        let last = part
            .first_received_at_us
            .checked_add_unsigned(part.received_span_us);
        let last_received_at_us = last.ok_or_else(|| FormatError::Content {
            object,
            reason: format!(
                "segment {segment}: received_span_us {} overflows",
                part.received_span_us
            ),
        })?;
        Ok(Part {
            stream: part.stream,
            offset: part.offset,
            length: part.length,
            raw_len: part.raw_len,
            messages: part.messages,
            records: part.records,
            first_received_at_us: part.first_received_at_us,
            last_received_at_us,
        })
    });
    Ok(Entry {
        segment,
        size: entry.size,
        committed_at_ms: entry.committed_at_ms,
        parts: parts.collect::<Result<_, FormatError>>()?,
    })
}

fn encode_producer(row: &ProducerRow) -> proto::Producer {
    let &ProducerRow {
        id,
        commit,
        first_sequence,
        count,
        seen_at_ms,
    } = row;
    proto::Producer {
        id: id.0.to_vec(),
        commit,
        first_sequence,
        count,
        seen_at_ms,
    }
}

fn decode_producer(row: &proto::Producer) -> Result<ProducerRow, FormatError> {
    Ok(ProducerRow {
        id: ProducerId(envelope::sixteen(Manifest::NAME, "producers.id", &row.id)?),
        commit: row.commit,
        first_sequence: row.first_sequence,
        count: row.count,
        seen_at_ms: row.seen_at_ms,
    })
}
