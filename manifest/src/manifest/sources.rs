//! The positions of bridges, which read other logs: the transitions that enter each record of a partition into the log
//! once. The position is the fence: a claim that does not begin where the row ends is no part of any commit. A position
//! that was set by hand begins a new incarnation, so that no claim from before it fits by chance.

use std::fmt;
use std::sync::Arc;

use millpond_segment::check_stream_name;
use thiserror::Error;

use super::clients::{CheckedClients, ClientClaim, ClientRefusal};
use super::{Manifest, Numbers};

/// Maximum number of partitions with a row in a shard. No row is ever forgotten, so the manifest refuses further ones.
pub const SOURCES_MAX: usize = 4_096;
/// Maximum length of the name of a source in bytes. Kafka's clusters have ids of 22 to 36.
pub const SOURCE_NAME_MAX: usize = 128;
/// Maximum length of the name of a topic in bytes, as in Kafka.
pub const TOPIC_NAME_MAX: usize = 249;
/// The largest number of a partition, as in Kafka.
pub const PARTITION_MAX: u32 = i32::MAX as u32;

/// A partition of another log on its way into a stream. Each stream that takes a partition has all of its records.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SourcePartition {
    /// The log; for Kafka, the id of the cluster.
    pub source: String,
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: u32,
    /// The stream that takes its records.
    pub stream: String,
}

impl fmt::Display for SourcePartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SourcePartition {
            source,
            topic,
            partition,
            stream,
        } = self;
        write!(f, "{topic}/{partition} of {source} into {stream}")
    }
}

impl SourcePartition {
    /// Names the first limit that this breaks.
    fn check(&self) -> Result<(), String> {
        for (name, of, max) in [
            ("source", &self.source, SOURCE_NAME_MAX),
            ("topic", &self.topic, TOPIC_NAME_MAX),
        ] {
            if of.is_empty() || of.len() > max {
                let length = of.len();
                return Err(format!(
                    "the name of a {name} has {length} bytes; the limits are 1 and {max}"
                ));
            }
            if of.chars().any(char::is_control) {
                return Err(format!("the name of {name} {of:?} has a control character"));
            }
        }
        if self.partition > PARTITION_MAX {
            return Err(format!("partition {} is above {PARTITION_MAX}", self.partition));
        }
        check_stream_name(&self.stream).map_err(|error| error.to_string())
    }
}

/// The manifest's record of a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceRow {
    /// The partition.
    pub of: Arc<SourcePartition>,
    /// The shard with its position and its records. Shard 0 has a row for each partition in another shard, so that all bridges
    /// know the same one.
    pub shard: u32,
    /// Counts how many times the position was set without records. Claims from before are void.
    pub incarnation: u64,
    /// The offset of the next record: those below are in the log, or were left out on purpose. 0 in a row for another shard.
    pub next: u64,
    /// Unix time in milliseconds of the commit, for people.
    pub seen_at_ms: u64,
}

/// Why the row of a partition cannot be set.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SourceRefusal {
    /// The row is not the expected one: another bridge was first.
    #[error("the manifest has another row of the partition")]
    Moved(Option<SourceRow>),
    /// The table is full.
    #[error("the shard has positions in {SOURCES_MAX} partitions already, which is the maximum")]
    Full,
    /// A name is too long, or the shard is wrong.
    #[error("{0}")]
    Invalid(String),
}

impl Manifest {
    /// The row of a partition.
    pub fn source(&self, of: &SourcePartition) -> Option<&SourceRow> {
        let place = self.sources.binary_search_by(|row| (*row.of).cmp(of)).ok()?;
        self.sources.get(place)
    }

    /// The position of a partition whose records are in this shard.
    pub fn position(&self, of: &SourcePartition) -> Option<u64> {
        let row = self.source(of)?;
        (row.shard == self.shard).then_some(row.next)
    }

    /// Sets the position of a partition without appending records, if the present row is `expected`, or if there is no row
    /// and `expected` is `None`. The new row gets the next incarnation, whatever the caller passes: a frozen bridge may still
    /// hold records of an earlier topic with this name, whose offsets may begin at the new position.
    ///
    /// # Errors
    /// See [`SourceRefusal`].
    pub fn set_source(
        &self,
        expected: Option<&SourceRow>,
        mut row: SourceRow,
    ) -> Result<Manifest, SourceRefusal> {
        let found = self.source(&row.of);
        if found != expected {
            return Err(SourceRefusal::Moved(found.cloned()));
        }
        row.incarnation = expected.map_or(0, |row| row.incarnation.wrapping_add(1));
        let mut next = self.clone();
        match next.sources.binary_search_by(|it| it.of.cmp(&row.of)) {
            Ok(place) => next.sources[place] = row,
            Err(_) if next.sources.len() >= SOURCES_MAX => return Err(SourceRefusal::Full),
            Err(place) => next.sources.insert(place, row),
        }
        next.check_sources().map_err(SourceRefusal::Invalid)?;
        Ok(next)
    }

    /// Checks a claim on offsets, and enters its end for the claims after it.
    pub(super) fn check_offsets(
        &self,
        claim: &ClientClaim,
        checked: &mut CheckedClients,
    ) -> Result<(), ClientRefusal> {
        let Numbers::Offsets {
            incarnation,
            from,
            to,
        } = claim.numbers
        else {
            return Err(ClientRefusal::Invalid("a partition has offsets"));
        };
        let Some(of) = &claim.source else {
            return Err(ClientRefusal::Invalid("offsets belong to a partition"));
        };
        if to <= from {
            return Err(ClientRefusal::Invalid("it has no offsets"));
        }
        if self.source(of).is_some_and(|row| row.incarnation != incarnation) {
            return Err(ClientRefusal::SetAnew);
        }
        let in_log = self.position(of);
        let entered = checked.sources.get(of).copied();
        if entered.or(in_log) != Some(from) {
            return Err(ClientRefusal::Position { next: in_log });
        }
        checked.sources.insert(Arc::clone(of), to);
        Ok(())
    }

    /// Moves the positions of a commit's partitions.
    pub(super) fn enter_sources(
        &mut self,
        checked: impl IntoIterator<Item = (Arc<SourcePartition>, u64)>,
        now_ms: u64,
    ) {
        for (of, next) in checked {
            if let Ok(place) = self.sources.binary_search_by(|row| row.of.cmp(&of)) {
                self.sources[place].next = next;
                self.sources[place].seen_at_ms = now_ms;
            }
        }
    }

    /// Names the first rule that the table breaks.
    pub(super) fn check_sources(&self) -> Result<(), String> {
        if !self.sources.is_sorted_by(|a, b| a.of < b.of) {
            return Err("the table of sources is not in order".into());
        }
        for row in &self.sources {
            row.of.check()?;
            let is_elsewhere = row.shard != self.shard;
            if is_elsewhere && (self.shard != 0 || row.next != 0) {
                let (of, shard) = (&row.of, row.shard);
                return Err(format!(
                    "the row of {of} is for shard {shard}, and must be in shard 0 without a position"
                ));
            }
        }
        Ok(())
    }
}
