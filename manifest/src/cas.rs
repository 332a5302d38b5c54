//! The one seam through which the manifest, the cursors and the buffer object are read and
//! swapped. It makes one attempt and tells its outcome in three words; retrying is the callers'.

use crate::{Count, FormatError};
use bytes::Bytes;
use millpond_storage::{Cas, Created, Fetched, Store, Version, Versioned};
use thiserror::Error;

/// What tells two states of one object apart even where their ETags are equal: an ETag can be
/// derived from the content alone, so every state carries a counter and its writer's nonce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Counts the states of the object.
    pub version: u64,
    /// Drawn at random for each write.
    pub nonce: u64,
}

/// A compare-and-set object.
pub trait Object: Sized {
    /// For errors, e.g. "manifest".
    const NAME: &'static str;
    /// The envelope's first bytes.
    const MAGIC: [u8; 4];
    /// The most bytes that are read: more than any that Millpond writes.
    const BYTES_MAX: u64;
    /// The most of everything that the object repeats. Checked before anything is allocated for it.
    const COUNTS: &'static [Count] = &[];
    /// The object's bytes, envelope included.
    fn encode(&self) -> Bytes;
    /// Reads and checks the object's bytes.
    fn decode(bytes: &[u8]) -> Result<Self, FormatError>;
    /// Which state this is.
    fn stamp(&self) -> Stamp;
}

/// A state as it was read or as it was committed, and what a swap must name to replace it.
#[derive(Debug, Clone)]
pub struct Snapshot<T> {
    /// The state.
    pub state: T,
    /// The store's version of it.
    pub version: Version,
    /// The object's size in bytes.
    pub bytes: usize,
}

/// The outcome of a swap. A lost swap is not an error.
#[derive(Debug)]
pub enum Swap<T> {
    /// The new state is in force.
    Committed(Snapshot<T>),
    /// The store refused the write: another state is in force than the one named. A proxy that repeats requests may have
    /// written ours with a first copy, so read again and compare.
    Mismatch,
    /// It may have landed, it may yet land. Read again and compare.
    Unknown(millpond_storage::Error),
}

/// An object that could not be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The store did not answer, or refused.
    #[error(transparent)]
    Store(#[from] millpond_storage::Error),
    /// The store answered with something that is not the object.
    #[error("{key}: {wrong}: {}", .wrong.remedy())]
    Format {
        /// The object's key below the buffer's URL.
        key: String,
        /// The fault. The text above contains it, so it is not a `source`, which would be printed twice.
        wrong: FormatError,
    },
}

fn open<T: Object>(key: &str, found: &Versioned) -> Result<Snapshot<T>, ReadError> {
    let state = T::decode(&found.bytes).map_err(|wrong| ReadError::Format {
        key: key.to_owned(),
        wrong,
    })?;
    Ok(Snapshot {
        state,
        version: found.version.clone(),
        bytes: found.bytes.len(),
    })
}

/// Reads an object; `None` where there is none.
pub async fn read<T: Object>(store: &Store, key: &str) -> Result<Option<Snapshot<T>>, ReadError> {
    Ok(match get::<T>(store, key, None).await? {
        Reread::Changed(found) => Some(found),
        // Nothing was known, so "unchanged" can only be a confused store's way to say nothing.
        Reread::Absent | Reread::Unchanged => None,
    })
}

async fn get<T: Object>(store: &Store, key: &str, known: Option<&Version>) -> Result<Reread<T>, ReadError> {
    Ok(match store.get_at_most(key, known, T::BYTES_MAX).await? {
        Fetched::Unchanged => Reread::Unchanged,
        Fetched::Changed(found) => Reread::Changed(open(key, &found)?),
        Fetched::Absent => Reread::Absent,
        Fetched::TooLarge { bytes, .. } => {
            return Err(ReadError::Format {
                key: key.to_owned(),
                wrong: FormatError::TooLarge {
                    object: T::NAME,
                    bytes,
                    max: T::BYTES_MAX,
                },
            });
        }
    })
}

/// The result of a conditional read.
#[derive(Debug)]
pub enum Reread<T> {
    /// Still the state that was known; no body was sent.
    Unchanged,
    /// Another state.
    Changed(Snapshot<T>),
    /// No such object.
    Absent,
}

/// Reads an object unless it is still the known one.
pub async fn read_if_changed<T: Object>(
    store: &Store,
    key: &str,
    known: &Version,
) -> Result<Reread<T>, ReadError> {
    get(store, key, Some(known)).await
}

/// Replaces the state that `expected` names (`None`: there must be none) by `next`.
///
/// # Panics
/// In debug builds, when what was encoded does not read back as the same state: writing it would lose data.
pub async fn swap<T: Object>(store: &Store, key: &str, expected: Option<&Version>, next: T) -> Swap<T> {
    let body = next.encode();
    debug_assert_eq!(
        T::decode(&body).map(|s| s.stamp()).ok(),
        Some(next.stamp()),
        "{key}"
    );
    let bytes = body.len();
    match store.compare_and_set(key, expected, body).await {
        Cas::Committed(version) => Swap::Committed(Snapshot {
            state: next,
            version,
            bytes,
        }),
        Cas::Mismatch => Swap::Mismatch,
        Cas::Unknown(error) => Swap::Unknown(error),
    }
}

/// Writes an object that is written once, or reads the one that is already there.
pub async fn create_once<T: Object>(store: &Store, key: &str, object: T) -> Result<T, ReadError> {
    loop {
        match store.put_if_absent(key, vec![object.encode()]).await? {
            Created::New => return Ok(object),
            Created::Existed => {
                if let Some(found) = read(store, key).await? {
                    return Ok(found.state);
                }
                // It was deleted between the two requests; write it after all.
            }
        }
    }
}
