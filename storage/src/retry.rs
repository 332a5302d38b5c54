//! Repeats a one-attempt operation until it succeeds, and logs what it is waiting for.
//!
//! For operations that may simply be repeated: reads, and writes whose second attempt is harmless. Only the caller can
//! handle an unknown outcome.

use crate::Backoff;
use std::fmt::Display;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// The caller cancelled the operation before it succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("stopped before it succeeded")]
pub struct Cancelled;

/// A wait is logged when it begins and then at this interval.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Repeats `attempt` with backoff until it succeeds. `what` completes the sentence "waiting to …".
///
/// It logs the first failure as a warning, then at most one every 10 s, and the success after it.
///
/// # Errors
/// Only [`Cancelled`], as soon as `cancel` is; this drops an attempt in progress.
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
