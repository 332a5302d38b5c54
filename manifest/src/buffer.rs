//! The object `buffer`: the buffer's identity and number of shards. The first producer writes it, and the number only grows.

use crate::manifest::ClientId;
use crate::object::{Object, Stamp};
use crate::{FormatError, envelope, proto};
use bytes::Bytes;
use thiserror::Error;
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
    /// The number of shards that have numbered requests, the first ones. `None`: all, because the buffer has not grown.
    pub home_shards: Option<u32>,
    /// Distinguishes states. Zero in an object of an older program.
    pub stamp: Stamp,
}

/// Why a buffer cannot have this number of shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CannotGrow {
    /// Sequences and cursors of the last shards would be lost.
    #[error(
        "the buffer has {has} shards and cannot shrink to {asked}: make a buffer at another URL and move the producers to it"
    )]
    Shrinks {
        /// The number of shards that it has.
        has: u32,
        /// The number that was asked for.
        asked: u32,
    },
    /// Keys have four digits.
    #[error("a buffer has at most {SHARDS_MAX} shards, not {0}: use a smaller number")]
    TooMany(u32),
}

impl Buffer {
    /// A new buffer, in its first state. Half of its random id is the nonce of its writer.
    pub fn new(id: Uuid, shards: u32) -> Buffer {
        let nonce = id.as_u64_pair().1;
        let stamp = Stamp { version: 1, nonce };
        Buffer {
            id,
            shards,
            home_shards: None,
            stamp,
        }
    }

    /// The number of shards that have numbered requests, the first ones. It never changes.
    pub fn homes(&self) -> u32 {
        self.home_shards.unwrap_or(self.shards)
    }

    /// The shard that has the row of a client or of a key, for as long as the buffer lives.
    pub fn home_of(&self, client: ClientId) -> u32 {
        let [_, _, _, _, _, _, _, _, digest @ ..] = client.0;
        let home = u64::from_be_bytes(digest) % u64::from(self.homes());
        u32::try_from(home).expect("less than the number of shards")
    }

    /// The state with more shards. `None`: it has this number already.
    ///
    /// # Errors
    /// The number is smaller than before, or too large.
    pub fn grow(&self, shards: u32, nonce: u64) -> Result<Option<Buffer>, CannotGrow> {
        let has = self.shards;
        if shards > SHARDS_MAX {
            return Err(CannotGrow::TooMany(shards));
        }
        if shards < has {
            return Err(CannotGrow::Shrinks { has, asked: shards });
        }
        let version = self.stamp.version.wrapping_add(1);
        let stamp = Stamp { version, nonce };
        let grown = Buffer {
            id: self.id,
            shards,
            home_shards: Some(self.homes()),
            stamp,
        };
        Ok((shards > has).then_some(grown))
    }
}

impl Object for Buffer {
    const NAME: &'static str = "buffer object";
    const MAGIC: [u8; 4] = *b"MPBF";
    const BYTES_MAX: u64 = 64 << 10;

    fn encode(&self) -> Bytes {
        // Destructured completely: a forgotten new field does not compile.
        let Buffer {
            id,
            shards,
            home_shards,
            stamp,
        } = self;
        envelope::wrap(
            Self::MAGIC,
            &proto::Buffer {
                buffer_id: id.as_bytes().to_vec(),
                shards: *shards,
                version: stamp.version,
                writer_nonce: stamp.nonce,
                home_shards: home_shards.unwrap_or(0),
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
        if message.home_shards > message.shards {
            return Err(FormatError::Content {
                object: Self::NAME,
                reason: format!(
                    "{} home shards, which is more than its {} shards",
                    message.home_shards, message.shards
                ),
            });
        }
        Ok(Buffer {
            id,
            shards: message.shards,
            home_shards: Some(message.home_shards).filter(|homes| *homes > 0),
            stamp: Stamp {
                version: message.version,
                nonce: message.writer_nonce,
            },
        })
    }

    fn stamp(&self) -> Stamp {
        self.stamp
    }
}
