//! The properties of every object that has an envelope.

use crate::memory;
use millpond_manifest::{FORMAT_VERSION, Object};
use std::fmt::Debug;

/// Bytes of an envelope: magic, version, CRC32C.
const ENVELOPE: usize = 4 + 2 + 4;

/// Reads `data` as it is; then what follows its first bytes, in an envelope that is right, so that the message is
/// reached whatever the checksum. The state, if the message is one.
pub fn read<T: Object + PartialEq + Debug>(data: &[u8]) -> Option<T> {
    decode::<T>(data);
    let body = data.get(ENVELOPE..)?;
    let version = FORMAT_VERSION.to_le_bytes();
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&version), body);
    let enveloped = [&T::MAGIC[..], &version, &checksum.to_le_bytes(), body].concat();
    decode(&enveloped)
}

fn decode<T: Object + PartialEq + Debug>(bytes: &[u8]) -> Option<T> {
    match memory::bounded(memory::of_protobuf(bytes.len()), || T::decode(bytes)) {
        Ok(state) => {
            check(&state);
            Some(state)
        }
        Err(error) => {
            assert!(error.to_string().starts_with(T::NAME), "{error}");
            None
        }
    }
}

/// What is written is read as the same.
///
/// # Panics
/// When it is not.
pub fn check<T: Object + PartialEq + Debug>(state: &T) {
    let again = T::decode(&state.encode());
    assert_eq!(again.as_ref(), Ok(state));
}
