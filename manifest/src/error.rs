//! Why bytes are not the expected object.

use thiserror::Error;

/// The name of a page in errors.
pub(crate) const PAGE: &str = "page";

/// The name of a cursor in errors.
pub(crate) const CURSOR: &str = "cursor";

/// The length of every object's envelope in bytes: magic, format version, CRC32C.
pub(crate) const HEADER: usize = 4 + 2 + 4;

/// An object that does not match its key.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FormatError {
    /// Shorter than the envelope.
    #[error(
        "{object} is {len} bytes long, shorter than its {HEADER}-byte envelope: it was cut off or is not Millpond's"
    )]
    Short {
        /// The expected kind, e.g. "manifest".
        object: &'static str,
        /// Bytes found.
        len: usize,
    },
    /// A different kind of object.
    #[error(
        "{object} begins with {found:?}, not with its magic {expected:?}: it is not Millpond's or is damaged"
    )]
    Magic {
        /// The expected kind.
        object: &'static str,
        /// The bytes found.
        found: [u8; 4],
        /// The bytes expected.
        expected: [u8; 4],
    },
    /// Written by a newer (or unknown) version.
    #[error(
        "{object} has format version {found}, this program reads versions up to {newest}: use a newer millpond"
    )]
    Version {
        /// The expected kind.
        object: &'static str,
        /// The version found.
        found: u16,
        /// The newest version that this program reads.
        newest: u16,
    },
    /// Damaged.
    #[error("{object} is damaged: its CRC32C is {found:08x}, its envelope says {expected:08x}")]
    Checksum {
        /// The expected kind.
        object: &'static str,
        /// Computed over the bytes.
        found: u32,
        /// Stated in the envelope.
        expected: u32,
    },
    /// Larger than Millpond ever writes. It was not read.
    #[error("{object} is {bytes} bytes long, more than the maximum of {max}: it is not Millpond's")]
    TooLarge {
        /// The expected kind.
        object: &'static str,
        /// Bytes found.
        bytes: u64,
        /// Maximum bytes to read.
        max: u64,
    },
    /// The content is that of an object with another key.
    #[error("{object} is that of {key}: somebody put it in the wrong place")]
    Misplaced {
        /// The expected kind.
        object: &'static str,
        /// The right key.
        key: String,
    },
    /// The checksum matches, but the content breaks a rule of the format.
    #[error("{object} is not valid: {reason}")]
    Content {
        /// The expected kind.
        object: &'static str,
        /// The rule broken.
        reason: String,
    },
}

impl FormatError {
    /// A remedy as a sentence: what is blocked meanwhile, and how to continue without the object.
    pub fn remedy(&self) -> &'static str {
        match self {
            FormatError::Version { .. } => "nothing was changed",
            FormatError::Short { object, .. }
            | FormatError::Magic { object, .. }
            | FormatError::Checksum { object, .. }
            | FormatError::TooLarge { object, .. }
            | FormatError::Misplaced { object, .. }
            | FormatError::Content { object, .. } => match *object {
                PAGE => {
                    "restore it from a backup or the bucket's versions; or continue after it with `millpond consumer reset`"
                }
                CURSOR => {
                    "restore it from a backup or the bucket's versions; or remove it with `millpond consumer remove --force`, and start again under another name or into another table"
                }
                _ => "restore it from a backup or the bucket's versions; nothing works without it",
            },
        }
    }
}
