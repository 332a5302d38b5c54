//! The object `buffer`: the buffer's identity and number of shards. It is written once.

use crate::object::{Object, Stamp};
use crate::{FormatError, envelope, proto};
use bytes::Bytes;
use uuid::Uuid;

/// Maximum number of shards in a buffer: keys have four digits.
pub const SHARDS_MAX: u32 = 10_000;

/// The content of the object `buffer`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buffer {
    /// Part of every batch's identity: a buffer created again at the same URL gets a new id.
    pub id: Uuid,
    /// At least one.
    pub shards: u32,
}

impl Object for Buffer {
    const NAME: &'static str = "buffer object";
    const MAGIC: [u8; 4] = *b"MPBF";
    const BYTES_MAX: u64 = 64 << 10;

    fn encode(&self) -> Bytes {
        envelope::wrap(
            Self::MAGIC,
            &proto::Buffer {
                buffer_id: self.id.as_bytes().to_vec(),
                shards: self.shards,
            },
        )
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let message: proto::Buffer = envelope::unwrap::<Self, _>(bytes)?;
        let id = Uuid::from_bytes(envelope::sixteen(Self::NAME, "buffer_id", &message.buffer_id)?);
        if message.shards == 0 || message.shards > SHARDS_MAX {
            return Err(FormatError::Content {
                object: Self::NAME,
                reason: format!(
                    "{} shards, which is not between 1 and {SHARDS_MAX}",
                    message.shards
                ),
            });
        }
        Ok(Buffer {
            id,
            shards: message.shards,
        })
    }

    fn stamp(&self) -> Stamp {
        // The object is never replaced, so its id suffices to distinguish two writes of it.
        let (version, nonce) = self.id.as_u64_pair();
        Stamp { version, nonce }
    }
}
