//! Looks whether the buffer has grown. It only reads, and takes no state that cannot follow the known one.

use std::ops::Range;

use millpond_storage::{Store, Version};
use thiserror::Error;
use uuid::Uuid;

use crate::buffer::Buffer;
use crate::cas::{self, ReadError, Reread, Snapshot};
use crate::layout;

/// The buffer as last seen.
#[derive(Debug, Clone)]
pub struct KnownBuffer {
    buffer: Buffer,
    /// `None`: unknown, so the first look reads the whole object.
    version: Option<Version>,
}

/// Why a look at the buffer shows nothing. The next one may.
#[derive(Debug, Error)]
pub enum LookError {
    /// The object cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The object does not exist.
    #[error("the object {} is gone", layout::BUFFER)]
    Gone,
    /// It has another id.
    #[error("{key} belongs to another buffer, {0}", key = layout::BUFFER)]
    OtherBuffer(Uuid),
    /// It has fewer shards than before.
    #[error("{} shrank from {known} shards to {found}", layout::BUFFER)]
    Shrank {
        /// The number of shards before.
        known: u32,
        /// The number of shards that it shows.
        found: u32,
    },
}

impl From<Snapshot<Buffer>> for KnownBuffer {
    fn from(found: Snapshot<Buffer>) -> KnownBuffer {
        KnownBuffer {
            buffer: found.state,
            version: Some(found.version),
        }
    }
}

impl From<Buffer> for KnownBuffer {
    fn from(buffer: Buffer) -> KnownBuffer {
        KnownBuffer {
            buffer,
            version: None,
        }
    }
}

impl KnownBuffer {
    /// The state as last seen.
    pub fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Looks at the object with one conditional GET. Returns the new shards, which may be none.
    ///
    /// # Errors
    /// See [`LookError`]. The known state stays.
    pub async fn look(&mut self, store: &Store) -> Result<Range<u32>, LookError> {
        let found = match &self.version {
            Some(version) => cas::read_if_changed::<Buffer>(store, layout::BUFFER, version).await?,
            None => match cas::read::<Buffer>(store, layout::BUFFER).await? {
                Some(found) => Reread::Changed(found),
                None => Reread::Absent,
            },
        };
        let known = self.buffer.shards;
        match found {
            Reread::Unchanged => Ok(known..known),
            Reread::Absent => Err(LookError::Gone),
            Reread::Changed(found) if found.state.id != self.buffer.id => {
                Err(LookError::OtherBuffer(found.state.id))
            }
            Reread::Changed(found) if found.state.shards < known => Err(LookError::Shrank {
                known,
                found: found.state.shards,
            }),
            Reread::Changed(found) => {
                *self = found.into();
                Ok(known..self.buffer.shards)
            }
        }
    }
}
