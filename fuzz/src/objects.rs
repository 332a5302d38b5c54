//! The properties of every object with an envelope.

use crate::memory;
use millpond_manifest::{FORMAT_VERSION, Object};
use std::fmt::Debug;

/// Bytes of an envelope: magic, version, CRC32C.
const ENVELOPE: usize = 4 + 2 + 4;

/// Reads `data` as it is, and then the data after its first bytes in a valid envelope, so that the decoder reaches the
/// message. Returns the state if the message is valid.
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

/// Checks that a written state reads back as the same state.
///
/// # Panics
/// If it does not.
pub fn check<T: Object + PartialEq + Debug>(state: &T) {
    let again = T::decode(&state.encode());
    assert_eq!(again.as_ref(), Ok(state));
}
