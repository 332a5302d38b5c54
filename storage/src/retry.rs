//! Repeats a one-attempt operation for as long as it takes, and says what it is waiting for.
//!
//! For operations that may simply be repeated: reads, and writes whose second attempt is harmless. What to
//! do about an unknown outcome is the caller's to know, and no business of this loop.

use crate::Backoff;
use std::fmt::Display;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// The caller was told to stop before the operation succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stopped before it succeeded")]
pub struct Cancelled;

/// A wait is in the log when it begins and then this often.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Repeats `attempt` with backoff until it succeeds. `what` completes the sentence "waiting to …".
///
/// The first failure is logged as a warning, then one every 10 s at most, and the success after it.
///
/// # Errors
/// Only [`Cancelled`], as soon as `cancel` is; an attempt under way is dropped then.
pub async fn retrying<T, E, F>(
    what: &str,
    mut backoff: Backoff,
    cancel: &CancellationToken,
    mut attempt: impl FnMut() -> F,
) -> Result<T, Cancelled>
where
    E: Display,
    F: Future<Output = Result<T, E>>,
{
    let started = Instant::now();
    let mut logged: Option<Instant> = None;
    let mut attempts = 0u64;
    loop {
        attempts += 1;
        let error = match cancel.run_until_cancelled(attempt()).await {
            None => return Err(Cancelled),
            Some(Ok(value)) => {
                if logged.is_some() {
                    let waited_s = started.elapsed().as_secs();
                    tracing::info!(attempts, waited_s, "no longer waiting to {what}");
                }
                return Ok(value);
            }
            Some(Err(error)) => error,
        };
        if logged.is_none_or(|last| last.elapsed() >= LOG_EVERY) {
            logged = Some(Instant::now());
            let waited_s = started.elapsed().as_secs();
            tracing::warn!(%error, attempts, waited_s, "waiting to {what}");
        }
        let wait = backoff.next(&mut rand::rng());
        if cancel
            .run_until_cancelled(tokio::time::sleep(wait))
            .await
            .is_none()
        {
            return Err(Cancelled);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Store;
    use crate::unreliable::{Faults, On, Outage, Unreliable};
    use object_store::memory::InMemory;
    use std::sync::Arc;

    fn backoff() -> Backoff {
        Backoff::new(Duration::from_millis(1), Duration::from_millis(5))
    }

    #[tokio::test]
    async fn an_operation_is_repeated_until_the_store_is_back() {
        let unreliable = Unreliable::new(Arc::new(InMemory::new()), Faults::default());
        let controls = unreliable.controls();
        let store = Store::over(Arc::new(unreliable), "");
        controls.set_outage(Some(Outage::Fails));
        let cancel = CancellationToken::new();
        let mut attempts = 0;
        let read = retrying("read the manifest", backoff(), &cancel, || {
            attempts += 1;
            if attempts == 5 {
                controls.set_outage(None);
            }
            store.get("k")
        })
        .await;
        assert_eq!(read, Ok(None));
        assert_eq!(attempts, 5);
    }

    #[tokio::test]
    async fn cancelling_ends_an_attempt_and_a_wait() {
        let unreliable = Unreliable::new(Arc::new(InMemory::new()), Faults::default());
        let controls = unreliable.controls();
        let store = Store::over(Arc::new(unreliable), "");
        let mut held = controls.hold(On::Get, "k");
        let cancel = CancellationToken::new();
        let stop = async {
            held.arrived().await;
            cancel.cancel();
        };
        let read = retrying("read", backoff(), &cancel, || store.get("k"));
        assert_eq!(tokio::join!(read, stop).0, Err(Cancelled));

        let forever = Backoff::new(Duration::from_secs(3600), Duration::from_secs(3600));
        let cancel = CancellationToken::new();
        let read = retrying("read", forever, &cancel, || {
            cancel.cancel();
            std::future::ready(Err::<(), _>("no"))
        });
        assert_eq!(read.await, Err(Cancelled));
    }
}
