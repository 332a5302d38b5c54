//! The header of every compare-and-set object: magic, format version, CRC32C. It detects any changed byte before
//! protobuf sees the content.

use crate::cas::Object;
use crate::limits;
use crate::{Cursor, FORMAT_VERSION, Page};
use bytes::{BufMut, Bytes};
use thiserror::Error;

const HEADER: usize = 4 + 2 + 4;

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
        "{object} has format version {found}, this program reads version {FORMAT_VERSION}: use a newer millpond"
    )]
    Version {
        /// The expected kind.
        object: &'static str,
        /// The version found.
        found: u16,
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
            | FormatError::Content { object, .. } => match *object {
                Page::NAME => {
                    "restore it from a backup or the bucket's versions; or continue after it with `millpond consumer reset`"
                }
                Cursor::NAME => {
                    "restore it from a backup or the bucket's versions; or remove it with `millpond consumer remove --force`, and start again under another name or into another table"
                }
                _ => "restore it from a backup or the bucket's versions; nothing works without it",
            },
        }
    }
}

/// Puts the envelope around an encoded message. The CRC covers the version and the message.
pub(crate) fn wrap(magic: [u8; 4], message: &impl prost::Message) -> Bytes {
    // A vector rather than a BytesMut: prost puts single bytes, which takes a BytesMut twice as long.
    let mut out = Vec::with_capacity(HEADER + message.encoded_len());
    out.put_slice(&magic);
    out.put_u16_le(FORMAT_VERSION);
    out.put_u32_le(0);
    // Encoding into a vector cannot run out of room: it grows.
    message.encode(&mut out).expect("a vector grows");
    let crc = checksum(FORMAT_VERSION, &out[HEADER..]);
    out[6..HEADER].copy_from_slice(&crc.to_le_bytes());
    out.into()
}

/// Checks the envelope and the number of repeated fields, and decodes the message.
pub(crate) fn unwrap<T: Object, M: prost::Message + Default>(bytes: &[u8]) -> Result<M, FormatError> {
    let (object, magic) = (T::NAME, T::MAGIC);
    if bytes.len() as u64 > T::BYTES_MAX {
        return Err(FormatError::TooLarge {
            object,
            bytes: bytes.len() as u64,
            max: T::BYTES_MAX,
        });
    }
    let (Some(found), Some(version), Some(crc), Some(body)) = (
        bytes.first_chunk::<4>(),
        bytes.get(4..6).and_then(|b| b.first_chunk::<2>()),
        bytes.get(6..HEADER).and_then(|b| b.first_chunk::<4>()),
        bytes.get(HEADER..),
    ) else {
        return Err(FormatError::Short {
            object,
            len: bytes.len(),
        });
    };
    if *found != magic {
        return Err(FormatError::Magic {
            object,
            found: *found,
            expected: magic,
        });
    }
    let version = u16::from_le_bytes(*version);
    if version != FORMAT_VERSION {
        return Err(FormatError::Version {
            object,
            found: version,
        });
    }
    let (found, expected) = (checksum(version, body), u32::from_le_bytes(*crc));
    if found != expected {
        return Err(FormatError::Checksum {
            object,
            found,
            expected,
        });
    }
    limits::check(object, T::COUNTS, body)?;
    M::decode(body).map_err(|e| FormatError::Content {
        object,
        reason: e.to_string(),
    })
}

fn checksum(version: u16, body: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&version.to_le_bytes()), body)
}

/// Sixteen bytes, or the name of the field that does not have them.
pub(crate) fn sixteen(object: &'static str, field: &str, bytes: &[u8]) -> Result<[u8; 16], FormatError> {
    bytes.try_into().map_err(|_| FormatError::Content {
        object,
        reason: format!("{field} has {} bytes instead of 16", bytes.len()),
    })
}
