//! Reads objects, and retries until the store answers. Tells whether the store is behind what a leader has shown.

use crate::error::ConsumeError;
use millpond_manifest::cas::{self, ReadError, Snapshot};
use millpond_manifest::{Manifest, layout};
use millpond_runtime::{Backoff, Environment, Level, Readiness};
use millpond_storage::Store;
use std::time::Duration;

/// Reads a compare-and-set object, and retries until the store answers.
pub(crate) async fn read_patiently<T: cas::Object>(
    store: &Store,
    key: &str,
    readiness: &Readiness,
    environment: &dyn Environment,
) -> Result<Option<Snapshot<T>>, ConsumeError> {
    let what = format!("reading {key}");
    let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
    loop {
        match cas::read(store, key).await {
            Ok(found) => {
                readiness.goes_on(&what);
                return Ok(found);
            }
            Err(ReadError::Format { key, wrong }) => return Err(ConsumeError::Format { key, wrong }),
            Err(ReadError::Store(error)) => readiness.waits(&what, error, Level::Warn),
        }
        backoff.pause(environment).await;
    }
}

/// A store that is behind gets this long to catch up. After that an object that is missing is lost, or somebody restored the bucket.
pub(crate) const BEHIND_WAIT: Duration = Duration::from_secs(60);

/// The reason for the wait for an object, for people.
pub(crate) const NOT_YET: &str = "the leader has shown it, and the store does not have it yet";

/// Returns true if the store's manifest lacks this sequence, which a leader has shown: the store may return older states for a while. True
/// without a manifest or an answer, too.
pub(crate) async fn is_behind(store: &Store, shard: u32, sequence: u64) -> bool {
    match cas::read::<Manifest>(store, &layout::manifest(shard)).await {
        Ok(found) => found.is_none_or(|found| found.state.next_sequence <= sequence),
        Err(ReadError::Format { .. }) => false,
        Err(ReadError::Store(_)) => true,
    }
}
