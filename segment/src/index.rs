//! The ends of a segment: header, index and footer, with encoding and decoding.

use std::collections::HashSet;
use std::fmt;

use bytes::Bytes;
use prost::Message as _;

use crate::limits::STREAM_NAME_MAX;
use crate::{BLOCK_HEADER_LEN, Error, Limits, Problem, proto};

/// The only format version that this crate reads and writes.
pub const FORMAT_VERSION: u16 = 1;
/// Bytes of a segment's header: the magic and the version.
pub const HEADER_LEN: usize = 6;
/// Bytes of a segment's footer: index length, checksum, magic.
pub const FOOTER_LEN: usize = 12;

const MAGIC: [u8; 4] = *b"MPSG";

/// How to interpret a stream's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Encoding {
    /// A message is the bytes of one OTLP `Export…ServiceRequest` in protobuf.
    Otlp,
    /// A message is newline-delimited JSON, one record a line.
    Ndjson,
}

impl Encoding {
    /// Its name in documents, dumps and metrics: `otlp` or `ndjson`.
    pub fn name(self) -> &'static str {
        match self {
            Encoding::Otlp => "otlp",
            Encoding::Ndjson => "ndjson",
        }
    }

    fn to_proto(self) -> proto::Encoding {
        match self {
            Encoding::Otlp => proto::Encoding::Otlp,
            Encoding::Ndjson => proto::Encoding::Ndjson,
        }
    }

    fn from_proto(value: i32) -> Option<Self> {
        match proto::Encoding::try_from(value).ok()? {
            proto::Encoding::Unspecified => None,
            proto::Encoding::Otlp => Some(Encoding::Otlp),
            proto::Encoding::Ndjson => Some(Encoding::Ndjson),
        }
    }
}

impl fmt::Display for Encoding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A stream name that breaks the rules of [`check_stream_name`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "stream name {0:?} is not allowed: use 1 to 100 of the characters a-z A-Z 0-9 . _ - with a letter or digit first"
)]
pub struct InvalidStreamName(pub String);

/// Checks that a stream name is 1 to 100 ASCII letters, digits, `.`, `_` and `-`, starting with a letter or digit.
/// Names become part of tokens and metric labels; these characters keep them unambiguous.
pub fn check_stream_name(name: &str) -> Result<(), InvalidStreamName> {
    let good_first = name
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_alphanumeric());
    let good_rest = name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
    if good_first && good_rest && name.len() <= STREAM_NAME_MAX {
        return Ok(());
    }
    // Shorten the name in the error: it may be a megabyte of untrusted bytes.
    Err(InvalidStreamName(name.chars().take(STREAM_NAME_MAX).collect()))
}

/// Describes one stream's contiguous run of blocks in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPart {
    /// Name of the stream, for example `otlp.logs`.
    pub stream: String,
    /// How to interpret its messages.
    pub encoding: Encoding,
    /// Offset of the first block in the object.
    pub offset: u64,
    /// Bytes of all the blocks, headers included.
    pub length: u64,
    /// Sum of the blocks' raw lengths, in bytes.
    pub raw_len: u64,
    /// Number of blocks.
    pub blocks: u32,
    /// Number of messages.
    pub messages: u64,
    /// Number of records, as counted by the writer.
    pub records: u64,
    /// Earliest receive time of a message, unix microseconds.
    pub first_received_at_us: i64,
    /// Latest receive time of a message, unix microseconds.
    pub last_received_at_us: i64,
}

impl StreamPart {
    /// The part's bytes in the whole object, shared. `None` if they are out of bounds.
    pub fn slice(&self, object: &Bytes) -> Option<Bytes> {
        let start = usize::try_from(self.offset).ok()?;
        let end = start.checked_add(usize::try_from(self.length).ok()?)?;
        (end <= object.len()).then(|| object.slice(start..end))
    }
}

/// The content of a segment. The parts are ordered by offset and leave no gap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    /// One part for each stream.
    pub streams: Vec<StreamPart>,
}

/// The result of reading the tail of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TailIndex {
    /// The complete index.
    Index(Index),
    /// The tail is too short to hold the index: read this many bytes from the object's end.
    Needs(u64),
}

pub(crate) fn encode_header() -> [u8; HEADER_LEN] {
    let mut out = [0; HEADER_LEN];
    out[..4].copy_from_slice(&MAGIC);
    out[4..].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
    out
}

/// The index and the footer. `None` if the index is over 4 GiB, which [`Limits`] rule out.
pub(crate) fn encode_tail(streams: &[StreamPart]) -> Option<Vec<u8>> {
    let index = proto::Index {
        streams: streams.iter().map(part_to_proto).collect(),
    };
    let index_len = u32::try_from(index.encoded_len()).ok()?;
    let mut out = index.encode_to_vec();
    out.extend_from_slice(&index_len.to_le_bytes());
    // The checksum covers the length too: a reader has to trust the length first.
    let crc = crc32c::crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(&MAGIC);
    Some(out)
}

/// Reads the index of a whole object: checks header, footer and index, and that the parts fill the object.
///
/// It does not check the blocks; [`verify`](crate::verify) does.
pub fn read_index(object: &[u8], limits: &Limits) -> Result<Index, Error> {
    let Some(header) = object.first_chunk::<HEADER_LEN>() else {
        let problem = Problem::Truncated {
            needed: HEADER_LEN as u64,
            left: object.len() as u64,
        };
        return Err(Error::new(0, None, "header", problem));
    };
    if header[..4] != MAGIC {
        return Err(Error::new(0, None, "header", Problem::Magic));
    }
    let version = u16::from_le_bytes([header[4], header[5]]);
    if version != FORMAT_VERSION {
        let problem = Problem::Version {
            found: version,
            supported: FORMAT_VERSION,
        };
        return Err(Error::new(4, None, "format version", problem));
    }
    match read_index_tail(object, object.len() as u64, limits)? {
        TailIndex::Index(index) => Ok(index),
        TailIndex::Needs(needed) => {
            let problem = Problem::Truncated {
                needed,
                left: object.len() as u64,
            };
            Err(Error::new(0, None, "index length", problem))
        }
    }
}

/// Reads the index from the last bytes of an object of `object_size` bytes. A short tail is not an error: the result is
/// the number of bytes needed.
pub fn read_index_tail(tail: &[u8], object_size: u64, limits: &Limits) -> Result<TailIndex, Error> {
    let fail = |offset, field, problem| Error::new(offset, None, field, problem);
    let least = (HEADER_LEN + FOOTER_LEN) as u64;
    if object_size < least {
        let problem = Problem::Truncated {
            needed: least,
            left: object_size,
        };
        return Err(fail(0, "object size", problem));
    }
    if object_size > limits.segment_max {
        let problem = Problem::OverLimit {
            found: object_size,
            limit: limits.segment_max,
        };
        return Err(fail(0, "object size", problem));
    }
    let Some((before, footer)) = tail.split_last_chunk::<FOOTER_LEN>() else {
        return Ok(TailIndex::Needs(FOOTER_LEN as u64));
    };
    let footer_at = object_size - FOOTER_LEN as u64;
    if footer[8..] != MAGIC {
        return Err(fail(footer_at + 8, "footer", Problem::Magic));
    }
    let index_len = u32::from_le_bytes([footer[0], footer[1], footer[2], footer[3]]);
    let found = u32::from_le_bytes([footer[4], footer[5], footer[6], footer[7]]);
    let wide_len = u64::from(index_len);
    if wide_len > limits.index_max {
        let problem = Problem::OverLimit {
            found: wide_len,
            limit: limits.index_max,
        };
        return Err(fail(footer_at, "index length", problem));
    }
    if wide_len > object_size - least {
        let problem = Problem::Truncated {
            needed: wide_len,
            left: object_size - least,
        };
        return Err(fail(footer_at, "index length", problem));
    }
    let needed = wide_len + FOOTER_LEN as u64;
    let Some(start) = usize::try_from(wide_len)
        .ok()
        .and_then(|length| before.len().checked_sub(length))
    else {
        return Ok(TailIndex::Needs(needed));
    };
    let index = &before[start..];
    let computed = crc32c::crc32c_append(crc32c::crc32c(index), &footer[..4]);
    let index_at = object_size - needed;
    if found != computed {
        return Err(fail(
            index_at,
            "index checksum",
            Problem::Checksum { found, computed },
        ));
    }
    // prost allocates no more than a small multiple of the bytes it reads, which index_max bounds.
    let index = proto::Index::decode(index)
        .map_err(|error| fail(index_at, "index", Problem::Protobuf(error.to_string())))?;
    check_index(index, index_at, limits).map(TailIndex::Index)
}

/// Checks the rules of the index: known encodings, valid unique names, and parts without a gap from the header to the
/// index.
fn check_index(index: proto::Index, index_at: u64, limits: &Limits) -> Result<Index, Error> {
    let fail = |field, problem| Error::new(index_at, None, field, problem);
    if index.streams.len() > limits.streams_max {
        let problem = Problem::OverLimit {
            found: index.streams.len() as u64,
            limit: limits.streams_max as u64,
        };
        return Err(fail("number of streams", problem));
    }
    let mut streams: Vec<StreamPart> = Vec::with_capacity(index.streams.len());
    let mut next_offset = HEADER_LEN as u64;
    let mut seen = HashSet::new();
    for stream in index.streams {
        let part = part_from_proto(stream).map_err(|(field, problem)| fail(field, problem))?;
        if !seen.insert(part.stream.clone()) {
            return Err(fail("name", Problem::DuplicateStream(part.stream)));
        }
        if part.offset != next_offset {
            return Err(fail(
                "offset",
                Problem::Inconsistent {
                    found: part.offset,
                    expected: next_offset,
                },
            ));
        }
        if part.length > index_at - next_offset {
            let problem = Problem::Truncated {
                needed: part.length,
                left: index_at - next_offset,
            };
            return Err(fail("length", problem));
        }
        if part.blocks > limits.blocks_max {
            let (found, limit) = (u64::from(part.blocks), u64::from(limits.blocks_max));
            return Err(fail("blocks", Problem::OverLimit { found, limit }));
        }
        let blocks_least = u64::from(part.blocks.max(1)) * BLOCK_HEADER_LEN as u64;
        if part.length < blocks_least {
            let problem = Problem::Inconsistent {
                found: part.length,
                expected: blocks_least,
            };
            return Err(fail("length", problem));
        }
        next_offset += part.length;
        streams.push(part);
    }
    if next_offset != index_at {
        let problem = Problem::Inconsistent {
            found: next_offset,
            expected: index_at,
        };
        return Err(fail("end of the last stream", problem));
    }
    Ok(Index { streams })
}

fn part_to_proto(part: &StreamPart) -> proto::Stream {
    // Destructured so that a new field cannot be forgotten.
    let StreamPart {
        stream,
        encoding,
        offset,
        length,
        raw_len,
        blocks,
        messages,
        records,
        first_received_at_us,
        last_received_at_us,
    } = part;
    proto::Stream {
        name: stream.clone(),
        encoding: encoding.to_proto().into(),
        offset: *offset,
        length: *length,
        raw_len: *raw_len,
        blocks: *blocks,
        messages: *messages,
        records: *records,
        first_received_at_us: *first_received_at_us,
        last_received_at_us: *last_received_at_us,
    }
}

fn part_from_proto(stream: proto::Stream) -> Result<StreamPart, (&'static str, Problem)> {
    check_stream_name(&stream.name).map_err(|error| ("name", error.into()))?;
    let encoding =
        Encoding::from_proto(stream.encoding).ok_or(("encoding", Problem::Encoding(stream.encoding)))?;
    Ok(StreamPart {
        stream: stream.name,
        encoding,
        offset: stream.offset,
        length: stream.length,
        raw_len: stream.raw_len,
        blocks: stream.blocks,
        messages: stream.messages,
        records: stream.records,
        first_received_at_us: stream.first_received_at_us,
        last_received_at_us: stream.last_received_at_us,
    })
}
