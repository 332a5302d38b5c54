//! The objects of a shard's state, as bytes.

use crate::{Count, FORMAT_VERSION, FormatError};
use bytes::Bytes;

/// Distinguishes two states of an object even if their ETags are equal. An ETag may depend on the content alone, so
/// every state carries a counter and its writer's nonce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Counts the states of the object.
    pub version: u64,
    /// A random number drawn for each write.
    pub nonce: u64,
}

/// A compare-and-set object.
pub trait Object: Sized {
    /// The name for errors, e.g. "manifest".
    const NAME: &'static str;
    /// The envelope's first bytes.
    const MAGIC: [u8; 4];
    /// Maximum bytes to read: more than Millpond ever writes.
    const BYTES_MAX: u64;
    /// The newest format version that this code reads. It reads all versions from 1 on.
    const VERSION_MAX: u16 = FORMAT_VERSION;
    /// Limits on the object's repeated fields, checked before any allocation for them.
    const COUNTS: &'static [Count] = &[];
    /// The object's bytes, envelope included.
    fn encode(&self) -> Bytes;
    /// Parses and checks the object's bytes.
    fn decode(bytes: &[u8]) -> Result<Self, FormatError>;
    /// The stamp of this state.
    fn stamp(&self) -> Stamp;
    /// The key that the content belongs at. `None`: the content does not tell.
    fn key(&self) -> Option<String> {
        None
    }
}
