//! A repair compares the rows of a range that a consumer has acknowledged with those in the sink, and inserts the
//! missing ones. It is a consumer with a separate cursor, `<name>.repair`, and therefore separate tokens. It stops at
//! the end of its range. Its rows have the consumer's identities. It asks the sink for every row before it sends one.

use crate::claim::Claim;
use crate::error::ConsumeError;
use crate::reading::read_patiently;
use crate::streams::StreamPattern;
use millpond_manifest::cursor::{OtherProgram, Ownership, Seen, Skip};
use millpond_manifest::{Cursor, Manifest, layout};
use millpond_segment::Encoding;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The ranges to repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// The sequences by shard, both ends inclusive.
    pub ranges: BTreeMap<u32, RangeInclusive<u64>>,
    /// Make rows by the sink's programs even if the consumer has others.
    pub other_programs: bool,
}

/// Counts the rows that a repair found and inserted, during and after the run. Counts this process alone.
#[derive(Debug, Clone, Default)]
pub struct Tally(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    found: AtomicU64,
    inserted: AtomicU64,
    dead_letters: AtomicU64,
    shards: AtomicU64,
}

impl Tally {
    /// Rows that the sink already had.
    pub fn found(&self) -> u64 {
        self.0.found.load(Ordering::Relaxed)
    }

    /// Rows that the repair inserted.
    pub fn inserted(&self) -> u64 {
        self.0.inserted.load(Ordering::Relaxed)
    }

    /// Records that the sink refuses and messages that cannot be read. Each has a dead letter.
    pub fn dead_letters(&self) -> u64 {
        self.0.dead_letters.load(Ordering::Relaxed)
    }

    /// Shards whose range is complete.
    pub fn shards(&self) -> u64 {
        self.0.shards.load(Ordering::Relaxed)
    }

    pub(crate) fn compared(&self, rows: u64, lacked: u64) {
        self.0.found.fetch_add(rows - lacked, Ordering::Relaxed);
        self.0.inserted.fetch_add(lacked, Ordering::Relaxed);
    }

    pub(crate) fn dead_letter(&self) {
        self.0.dead_letters.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn shard(&self) {
        self.0.shards.fetch_add(1, Ordering::Relaxed);
    }
}

/// The state that a repair's new cursor copies from the consumer's cursor.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    /// Requests of the consumer's earlier owners may be in flight without a process that settles them.
    pub(crate) unsettled: bool,
    /// The time for which those owners may continue to send.
    lease_ms: u64,
    /// Parts that an operator skipped.
    skipped: Vec<Skip>,
    /// The newest segment that the consumer has seen.
    seen: Option<Seen>,
}

impl Origin {
    fn of(cursor: Cursor, now_ms: u64) -> Origin {
        let dirty = match &cursor.ownership {
            Ownership::Released | Ownership::Removed => false,
            Ownership::Abandoned => true,
            // A living owner has asked the sink for every row that its predecessors may have sent.
            Ownership::Held { .. } => cursor.held_at(now_ms).is_none(),
        };
        let unsettled = cursor.unsettled || dirty;
        Origin {
            unsettled,
            lease_ms: if unsettled { cursor.lease_ms } else { 0 },
            skipped: cursor.skipped,
            seen: cursor.seen,
        }
    }

    /// Prepares a repair's cursor that nobody has opened since its creation or removal.
    pub(crate) fn begin(&self, cursor: Cursor) -> Cursor {
        Cursor {
            unsettled: cursor.unsettled || self.unsettled,
            lease_ms: cursor.lease_ms.max(self.lease_ms),
            skipped: self.skipped.clone(),
            seen: self.seen,
            ..cursor
        }
    }

    /// Prepares a repair's cursor that another process has opened, maybe of a version that did not copy what the consumer had seen.
    pub(crate) fn resume(&self, mut cursor: Cursor) -> Cursor {
        if let Some(seen) = self.seen {
            cursor.see(seen);
        }
        cursor
    }
}

impl Claim {
    /// Checks that the consumer has acknowledged a range, that the log has it, and that the consumer has the sink's programs, unless
    /// `other_programs` says that others are meant. The repair checks before it opens its cursor, and again afterwards: from then
    /// on the garbage collector keeps the range, and a reset of the consumer ends the repair.
    pub(crate) async fn origin(
        &self,
        range: &RangeInclusive<u64>,
        log: Option<&Manifest>,
        takes: impl Fn(&str) -> bool,
        other_programs: bool,
    ) -> Result<Origin, ConsumeError> {
        let (from, to) = (*range.start(), *range.end());
        let (first, next) = log.map_or((0, 0), |log| (log.first_sequence, log.next_sequence));
        if from > to || to >= next {
            return Err(self.unrepairable(format!(
                "{from} to {to} is not in the log, which has sequences {first} to {}",
                next.saturating_sub(1)
            )));
        }
        if from < first {
            return Err(self.unrepairable(format!(
                "the buffer no longer holds sequences before {first}: use --from {first} or a later one"
            )));
        }
        let consumer = self.reader().await?;
        let streams = log.into_iter().flat_map(|log| &log.streams);
        for stream in streams.filter(|stream| takes(&stream.name)) {
            let acknowledged = consumer.next(&stream.name);
            if acknowledged <= to {
                return Err(self.unrepairable(format!(
                    "the consumer has acknowledged {} only below sequence {acknowledged}, and sends the rest itself",
                    stream.name
                )));
            }
            let other = consumer.other_program(&stream.name, &self.programs);
            if let Some(other) = other.filter(|_| !other_programs) {
                let advice = match other {
                    OtherProgram::Another | OtherProgram::Missing => "give the consumer's --transform",
                    OtherProgram::Added => "leave the program out of --transform",
                };
                return Err(self.unrepairable(format!(
                    "stream {}: {other}: {advice}, or add --other-transform to go on all the same",
                    stream.name
                )));
            }
        }
        let below = consumer.deduplicated_below;
        let mut streams = log.into_iter().flat_map(|log| &log.streams);
        if from < below
            && let Some(stream) =
                streams.find(|stream| takes(&stream.name) && stream.encoding == Encoding::Ndjson)
        {
            return Err(self.unrepairable(format!(
                "a lost cursor of the consumer may have dropped repeated events (--unique) of {} below sequence {below}, which a repair \
                 cannot tell from missing ones: begin the range there, or leave the stream out (--stream)",
                stream.name
            )));
        }
        for (stream, of) in &consumer.unique {
            if takes(stream) && of.deduplicated_from <= to {
                return Err(self.unrepairable(format!(
                    "from sequence {} of {stream} on the consumer drops repeated events (--unique), which a repair cannot tell from \
                     missing ones: end the range before it, or leave the stream out (--stream)",
                    of.deduplicated_from
                )));
            }
        }
        Ok(Origin::of(consumer, self.environment.now_ms()))
    }

    /// Reads the cursor of the consumer whose rows the repair compares.
    async fn reader(&self) -> Result<Cursor, ConsumeError> {
        let key = layout::cursor(self.shard, &self.consumer);
        let found = read_patiently::<Cursor>(&self.store, &key, &self.readiness, &*self.environment).await?;
        let cursor = found
            .map(|found| found.state)
            .filter(|cursor| !cursor.is_removed());
        cursor.ok_or_else(|| self.unrepairable("the consumer has never read it".into()))
    }

    /// Returns the streams that match these patterns and that the consumer reads. A stream that it reads has a
    /// position.
    pub(crate) async fn streams_read(
        &self,
        patterns: &[StreamPattern],
    ) -> Result<BTreeSet<StreamPattern>, ConsumeError> {
        let streams = self.reader().await?.streams;
        if streams.is_empty() {
            // The consumer has acknowledged nothing since its last reset, so every stream begins at the same sequence.
            return Ok(patterns.iter().cloned().collect());
        }
        let named = streams
            .into_keys()
            .filter(|stream| patterns.iter().any(|pattern| pattern.matches(stream)));
        Ok(named.map(|stream| StreamPattern::exactly(&stream)).collect())
    }
}
