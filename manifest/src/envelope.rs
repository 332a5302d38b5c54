//! The header of every compare-and-set object: magic, format version, CRC32C. It detects any changed byte before
//! protobuf sees the content.

use crate::error::{FormatError, HEADER};
use crate::object::Object;
use crate::{FORMAT_VERSION, limits};
use bytes::{BufMut, Bytes};

/// Puts the envelope around an encoded message of the first version.
pub(crate) fn wrap(magic: [u8; 4], message: &impl prost::Message) -> Bytes {
    wrap_version(magic, FORMAT_VERSION, message)
}

/// Like [`wrap`], with another version of the format.
pub(crate) fn wrap_version(magic: [u8; 4], version: u16, message: &impl prost::Message) -> Bytes {
    // A vector rather than a BytesMut: prost puts single bytes, which takes a BytesMut twice as long.
    let mut out = Vec::with_capacity(HEADER + message.encoded_len());
    out.put_slice(&magic);
    out.put_u16_le(version);
    out.put_u32_le(0);
    // Encoding into a vector cannot run out of room: it grows.
    message.encode(&mut out).expect("a vector grows");
    let crc = checksum(version, &out[HEADER..]);
    out[6..HEADER].copy_from_slice(&crc.to_le_bytes());
    out.into()
}

/// Checks the size of an object about to be written and the number of its repeated fields, as every reader does.
pub(crate) fn check_limits<T: Object>(bytes: &[u8]) -> Result<(), FormatError> {
    check_len::<T>(bytes)?;
    limits::check(T::NAME, T::COUNTS, bytes.get(HEADER..).unwrap_or_default())
}

fn check_len<T: Object>(bytes: &[u8]) -> Result<(), FormatError> {
    let len = bytes.len() as u64;
    if len > T::BYTES_MAX {
        return Err(FormatError::TooLarge {
            object: T::NAME,
            bytes: len,
            max: T::BYTES_MAX,
        });
    }
    Ok(())
}

/// Checks the envelope and the number of repeated fields, and decodes the message.
pub(crate) fn unwrap<T: Object, M: prost::Message + Default>(bytes: &[u8]) -> Result<M, FormatError> {
    let (object, magic) = (T::NAME, T::MAGIC);
    check_len::<T>(bytes)?;
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
    if version == 0 || version > T::VERSION_MAX {
        return Err(FormatError::Version {
            object,
            found: version,
            newest: T::VERSION_MAX,
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
