//! The one place that reads and swaps the manifest, the cursors and the buffer object. It makes one attempt with one of
//! three outcomes; retries are up to the callers.

use crate::{FormatError, envelope};
use millpond_storage::{Cas, Created, Fetched, Store, Version, Versioned};
use thiserror::Error;

pub use crate::object::{Object, Stamp};

/// A state as read or committed, with the version that a swap must name to replace it.
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
    /// The store refused the write: another state is in force. A proxy that repeats requests may have written ours with
    /// a first copy, so read again and compare.
    Mismatch,
    /// The write may have landed, or may still land. Read again and compare. If readers would refuse the new state, it was
    /// not sent, and the error is [`Misconfigured`](millpond_storage::ErrorKind::Misconfigured).
    Unknown(millpond_storage::Error),
}

/// An object could not be read.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The store did not answer, or refused.
    #[error(transparent)]
    Store(#[from] millpond_storage::Error),
    /// The store returned something other than the expected object.
    #[error("{key}: {wrong}: {}", .wrong.remedy())]
    Format {
        /// The object's key, relative to the buffer's URL.
        key: String,
        /// The fault. The error text contains it, so it is not a `source`, which would print it twice.
        wrong: FormatError,
    },
}

fn decode<T: Object>(key: &str, bytes: &[u8]) -> Result<T, FormatError> {
    T::decode(bytes).and_then(|state| match state.key() {
        Some(right) if right != key => Err(FormatError::Misplaced {
            object: T::NAME,
            key: right,
        }),
        _ => Ok(state),
    })
}

fn too_large<T: Object>(bytes: u64) -> FormatError {
    FormatError::TooLarge {
        object: T::NAME,
        bytes,
        max: T::BYTES_MAX,
    }
}

fn damaged(key: &str, wrong: FormatError) -> ReadError {
    ReadError::Format {
        key: key.to_owned(),
        wrong,
    }
}

/// Reads an object, or returns `None` if it does not exist.
pub async fn read<T: Object>(store: &Store, key: &str) -> Result<Option<Snapshot<T>>, ReadError> {
    Ok(match get::<T>(store, key, None).await? {
        Reread::Changed(found) => Some(found),
        // No version was known, so "unchanged" can only come from a faulty store, for an absent object.
        Reread::Absent | Reread::Unchanged => None,
    })
}

/// Reads an object and its version, which a damaged object has, too. Returns `None` if it does not exist. `bytes_max`: does not read a larger
/// one, and reports its size as the damage.
///
/// # Errors
/// The store did not answer, or refused.
pub async fn read_with_version<T: Object>(
    store: &Store,
    key: &str,
    bytes_max: u64,
) -> Result<Option<(Version, Result<T, ReadError>)>, millpond_storage::Error> {
    Ok(
        match store.get_at_most(key, None, bytes_max.min(T::BYTES_MAX)).await? {
            Fetched::Changed(Versioned { bytes, version }) => {
                let state = decode::<T>(key, &bytes).map_err(|wrong| damaged(key, wrong));
                Some((version, state))
            }
            Fetched::TooLarge { bytes, version } => Some((version, Err(damaged(key, too_large::<T>(bytes))))),
            Fetched::Absent | Fetched::Unchanged => None,
        },
    )
}

async fn get<T: Object>(store: &Store, key: &str, known: Option<&Version>) -> Result<Reread<T>, ReadError> {
    Ok(match store.get_at_most(key, known, T::BYTES_MAX).await? {
        Fetched::Unchanged => Reread::Unchanged,
        Fetched::Changed(Versioned { bytes, version }) => Reread::Changed(Snapshot {
            state: decode::<T>(key, &bytes).map_err(|wrong| damaged(key, wrong))?,
            version,
            bytes: bytes.len(),
        }),
        Fetched::Absent => Reread::Absent,
        Fetched::TooLarge { bytes, .. } => return Err(damaged(key, too_large::<T>(bytes))),
    })
}

/// The result of a conditional read.
#[derive(Debug)]
pub enum Reread<T> {
    /// The object still has the known state; no body was sent.
    Unchanged,
    /// Another state.
    Changed(Snapshot<T>),
    /// No such object.
    Absent,
}

/// Reads an object unless it still has the known version.
pub async fn read_if_changed<T: Object>(
    store: &Store,
    key: &str,
    known: &Version,
) -> Result<Reread<T>, ReadError> {
    get(store, key, Some(known)).await
}

/// Replaces the expected state (`None`: the object does not exist) with `next`. It sends no state with more bytes or
/// repeated fields than readers accept, because nobody could repair it.
///
/// # Panics
/// In debug builds, if the encoded bytes do not decode to the same state: writing them would lose data.
pub async fn swap<T: Object>(store: &Store, key: &str, expected: Option<&Version>, next: T) -> Swap<T> {
    let body = next.encode();
    if let Err(wrong) = envelope::check_limits::<T>(&body) {
        let reason = format!("it was not sent, because readers would refuse it: {wrong}");
        return Swap::Unknown(store.unsent(key, reason));
    }
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

/// Writes an object that is written once, or reads the existing one.
pub async fn create_once<T: Object>(store: &Store, key: &str, object: T) -> Result<T, ReadError> {
    loop {
        match store.put_if_absent(key, vec![object.encode()]).await? {
            Created::New => return Ok(object),
            Created::Existed => {
                if let Some(found) = read(store, key).await? {
                    return Ok(found.state);
                }
                // Somebody deleted it between the two requests: write it after all.
            }
        }
    }
}
