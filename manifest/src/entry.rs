//! The entries of a shard's log, which its manifest and its pages hold: their limits, rules and bytes.

use crate::{FormatError, envelope, proto};
use std::collections::HashSet;
use ulid::Ulid;

/// Maximum number of streams in a shard: every commit carries each name.
pub const STREAMS_MAX: usize = 1_024;
/// The next commit seals a tail with this many entries into a page, which bounds the bytes of a commit whatever the
/// backlog.
pub const TAIL_MAX: usize = 2_048;
/// Maximum entries to write into a tail: a commit adds its segments before the tail is sealed.
pub const ENTRIES_MAX: usize = 2 * TAIL_MAX;
/// Maximum entries to read of a tail or a page. Earlier versions let a tail grow to 65,536 entries before a commit added
/// its segments, although they did not read more than [`ENTRIES_MAX`].
pub(crate) const ENTRIES_READ_MAX: usize = 65_536 + ENTRIES_MAX;
/// Maximum parts in all these entries.
pub(crate) const PARTS_MAX: usize = ENTRIES_MAX * STREAMS_MAX;
/// Maximum bytes to read of a manifest or a page: the maximum number of entries, each with all streams.
pub(crate) const LOG_BYTES_MAX: u64 = 256 << 20;

/// The run of one stream's blocks in a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Index into [`crate::Manifest::streams`].
    pub stream: u32,
    /// Offset in the segment object, in bytes.
    pub offset: u64,
    /// Length in the segment object, in bytes.
    pub length: u64,
    /// Uncompressed, in bytes.
    pub raw_len: u64,
    /// Number of messages.
    pub messages: u64,
    /// Number of records in those messages.
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

/// The rules for an entry, checked before every write and after every read.
pub(crate) fn check_entry(entry: &Entry, streams: usize) -> Result<(), String> {
    // Most entries have one part. This runs for every entry of the tail, so a set for each would allocate each time.
    let mut seen = (entry.parts.len() > 1).then(HashSet::new);
    for part in &entry.parts {
        let end = part.offset.checked_add(part.length);
        if part.stream as usize >= streams {
            return Err(format!("stream {} is not in the table of {streams}", part.stream));
        }
        if seen.as_mut().is_some_and(|seen| !seen.insert(part.stream)) {
            return Err(format!("stream {} occurs twice", part.stream));
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
