//! Errors in a segment and their positions.

use std::fmt;

use crate::InvalidStreamName;

/// A segment, or a part of one, that cannot be read: position, field and problem.
///
/// The bytes are damaged, come from a newer version, or exceed the reader's [`Limits`](crate::Limits). Reading the same
/// copy again does not help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Offset of the problem in the object.
    pub offset: u64,
    /// Number of the block within its stream's part, counted from 0; `None` outside of blocks.
    pub block: Option<u32>,
    /// The invalid field, by its name in `design/segment-format.md`.
    pub field: &'static str,
    /// The problem with the field.
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

/// The problem with a field of a segment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The bytes end before the field does.
    #[error("truncated: needs {needed} bytes, {left} are left")]
    Truncated {
        /// Bytes the field takes.
        needed: u64,
        /// Bytes that remain.
        left: u64,
    },
    /// The magic bytes are missing.
    #[error("not a segment: the magic bytes \"MPSG\" are missing")]
    Magic,
    /// This reader does not know the format version.
    #[error("format version {found} is not supported, this program reads version {supported}")]
    Version {
        /// The version in the object.
        found: u16,
        /// The version this crate reads.
        supported: u16,
    },
    /// The checksum does not match: the bytes are damaged.
    #[error("{found:08x} does not match the bytes, which have {computed:08x}: the object is damaged")]
    Checksum {
        /// CRC32C in the object.
        found: u32,
        /// CRC32C of the bytes.
        computed: u32,
    },
    /// A size exceeds the reader's limit. The reader allocated nothing for it.
    #[error("{found} is over the limit of {limit}")]
    OverLimit {
        /// The size in the object.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// This reader does not know the compression.
    #[error("compression {0} is unknown")]
    Compression(u8),
    /// zstd refused the payload.
    #[error("zstd: {0}")]
    Zstd(String),
    /// A number contradicts the rest of the segment.
    #[error("is {found}, must be {expected}")]
    Inconsistent {
        /// The number in the object.
        found: u64,
        /// The expected number.
        expected: u64,
    },
    /// The index is not a valid protobuf message.
    #[error("not a valid index: {0}")]
    Protobuf(String),
    /// This reader does not know the encoding.
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
