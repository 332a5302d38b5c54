//! What can be wrong with a segment, and where.

use std::fmt;

use crate::InvalidStreamName;

/// A segment, or a part of one, that cannot be read: where, which field, and what is wrong with it.
///
/// The bytes are damaged, were written by a newer version, or are over the reader's [`Limits`](crate::Limits):
/// reading them again from the same copy will not help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Offset in the object of the thing that is wrong.
    pub offset: u64,
    /// Number of the block within its stream's part, counted from 0; `None` outside of blocks.
    pub block: Option<u32>,
    /// The field of the format that is wrong, in the words of `design/segment-format.md`.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: Problem,
}

impl Error {
    pub(crate) fn new(offset: u64, block: Option<u32>, field: &'static str, problem: Problem) -> Self {
        Self {
            offset,
            block,
            field,
            problem,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "segment at offset {}", self.offset)?;
        if let Some(block) = self.block {
            write!(f, ", block {block}")?;
        }
        write!(f, ", {}: {}", self.field, self.problem)
    }
}

impl std::error::Error for Error {}

/// What is wrong with a field of a segment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The bytes end before the field does.
    #[error("truncated: needs {needed} bytes, {left} are left")]
    Truncated {
        /// Bytes the field takes.
        needed: u64,
        /// Bytes that are there.
        left: u64,
    },
    /// The magic bytes are not there.
    #[error("not a segment: the magic bytes \"MPSG\" are missing")]
    Magic,
    /// The format version is not one this reader knows.
    #[error("format version {found} is not supported, this program reads version {supported}")]
    Version {
        /// The version in the object.
        found: u16,
        /// The version this crate reads.
        supported: u16,
    },
    /// The checksum does not match: the bytes were damaged.
    #[error("{found:08x} does not match the bytes, which have {computed:08x}: the object is damaged")]
    Checksum {
        /// CRC32C in the object.
        found: u32,
        /// CRC32C of the bytes.
        computed: u32,
    },
    /// A size is over the reader's limit; nothing was allocated for it.
    #[error("{found} is over the limit of {limit}")]
    OverLimit {
        /// The size in the object.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// The compression is not one this reader knows.
    #[error("compression {0} is unknown")]
    Compression(u8),
    /// zstd refused the payload.
    #[error("zstd: {0}")]
    Zstd(String),
    /// A number is not what the rest of the segment says it must be.
    #[error("is {found}, must be {expected}")]
    Inconsistent {
        /// The number in the object.
        found: u64,
        /// What it must be.
        expected: u64,
    },
    /// The index is not the protobuf message that it should be.
    #[error("not a valid index: {0}")]
    Protobuf(String),
    /// The encoding is not one this reader knows.
    #[error("encoding {0} is unknown")]
    Encoding(i32),
    /// A stream name breaks the rules for names.
    #[error(transparent)]
    StreamName(#[from] InvalidStreamName),
    /// The same stream is listed twice.
    #[error("stream {0:?} is listed twice")]
    DuplicateStream(String),
    /// A variable-length integer is malformed or cut off.
    #[error("malformed variable-length integer")]
    Varint,
}
