//! Reads objects, and retries until the store answers.

use crate::error::ConsumeError;
use millpond_manifest::cas::{self, ReadError, Snapshot};
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
