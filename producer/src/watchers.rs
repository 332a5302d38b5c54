//! The newest manifest, for the consumers that watch this producer while it leads. It shows only states that the store returned, or
//! whose swap the store confirmed: rows of any other state could be those of nobody. One copy of the bytes serves all consumers, and
//! both the producer's memory and a part of it pay for each copy.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use millpond_manifest::{Manifest, Object, Stamp};
use millpond_runtime::{Budget, Reservation};
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::lead::Lead;
use crate::metrics::Metrics;
use crate::peers::PeerRefusal;

/// Copies for consumers, old ones included, may take this fraction of the producer's memory.
const SHARE: usize = 8;

/// Without a manifest, a watcher asks for one at this interval.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The states that consumers see. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Watchers(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    changed: Notify,
    budget: Budget,
    share: Budget,
}

#[derive(Default)]
struct State {
    watchers: usize,
    leads: bool,
    shown: Option<Shown>,
}

/// A state of the manifest.
struct Shown {
    stamp: Stamp,
    /// `None`: there was no memory for it.
    bytes: Option<Bytes>,
}

/// The bytes of a state, and the memory that they take until the last reader has gone.
struct Copy {
    bytes: Bytes,
    _held: [Reservation; 2],
}

impl AsRef<[u8]> for Copy {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Watchers {
    pub(crate) fn new(budget: &Budget) -> Watchers {
        Watchers(Arc::new(Inner {
            state: Mutex::default(),
            changed: Notify::new(),
            budget: budget.clone(),
            share: budget.part(SHARE),
        }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows the manifest in force to the consumers that watch, as long as this producer leads.
    pub(crate) fn show(&self, manifest: &Manifest, leads: bool) {
        let mut state = self.state();
        state.leads = leads;
        if !leads || state.watchers == 0 {
            // Nobody waits, or everybody goes.
            state.shown = None;
        } else if state.shown.as_ref().map(|shown| shown.stamp) != Some(manifest.stamp) {
            state.shown = Some(Shown {
                stamp: manifest.stamp,
                bytes: self.copy(manifest),
            });
        }
        drop(state);
        self.0.changed.notify_waiters();
    }

    fn copy(&self, manifest: &Manifest) -> Option<Bytes> {
        let bytes = manifest.encode();
        let held = [
            self.0.share.try_reserve(bytes.len())?,
            self.0.budget.try_reserve(bytes.len())?,
        ];
        Some(Bytes::from_owner(Copy { bytes, _held: held }))
    }

    /// The answer to a consumer that has this version. `None`: it waits.
    fn answer(&self, newer_than: u64) -> Option<Result<Bytes, PeerRefusal>> {
        let state = self.state();
        if !state.leads {
            return Some(Err(PeerRefusal::NotLeading));
        }
        let shown = state
            .shown
            .as_ref()
            .filter(|shown| shown.stamp.version > newer_than)?;
        Some(shown.bytes.clone().ok_or(PeerRefusal::OverBudget))
    }
}

/// A consumer that watches a producer. Cheap to clone. The producer keeps the manifest's bytes ready until the last clone is dropped.
#[derive(Clone)]
pub struct Watcher(Arc<Guard>);

struct Guard {
    watchers: Watchers,
    lead: Lead,
    closing: CancellationToken,
    metrics: Metrics,
}

impl Watcher {
    pub(crate) fn new(
        watchers: Watchers,
        lead: Lead,
        closing: CancellationToken,
        metrics: Metrics,
    ) -> Watcher {
        watchers.state().watchers += 1;
        metrics.watchers.inc();
        Watcher(Arc::new(Guard {
            watchers,
            lead,
            closing,
            metrics,
        }))
    }

    /// Waits for a manifest whose version is above this one, and returns its bytes.
    ///
    /// # Errors
    /// The producer does not lead, stops, or is short of memory.
    pub async fn next(&self, newer_than: u64) -> Result<Bytes, PeerRefusal> {
        let guard = &*self.0;
        tokio::select! {
            biased;
            () = guard.closing.cancelled() => Err(PeerRefusal::Leaving),
            answer = guard.answer(newer_than) => {
                if answer.is_ok() {
                    guard.metrics.watch_answers.inc();
                }
                answer
            }
        }
    }
}

impl Guard {
    async fn answer(&self, newer_than: u64) -> Result<Bytes, PeerRefusal> {
        loop {
            let mut changed = std::pin::pin!(self.watchers.0.changed.notified());
            changed.as_mut().enable();
            if let Some(answer) = self.watchers.answer(newer_than) {
                return answer;
            }
            if self.watchers.state().shown.is_some() {
                changed.await;
            } else {
                // Nobody has watched before this consumer.
                self.lead.look();
                let _ = timeout(LOOK_AGAIN, changed).await;
            }
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.metrics.watchers.dec();
        let mut state = self.watchers.state();
        state.watchers -= 1;
        if state.watchers == 0 {
            state.shown = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::registry::Registry;
    use uuid::Uuid;

    fn manifest(version: u64) -> Manifest {
        let mut manifest = Manifest::new(Uuid::nil(), 0);
        manifest.stamp = Stamp { version, nonce: 7 };
        manifest
    }

    fn version(bytes: &Bytes) -> u64 {
        Manifest::decode(bytes).unwrap().stamp.version
    }

    struct Leader {
        watchers: Watchers,
        budget: Budget,
        lead: Lead,
        closing: CancellationToken,
        metrics: Metrics,
    }

    impl Leader {
        fn new(memory: usize) -> Leader {
            let budget = Budget::new(memory, Duration::ZERO);
            let lead = Lead::new(Duration::from_secs(1), &budget);
            Leader {
                watchers: Watchers::new(&budget),
                metrics: Metrics::register(&mut Registry::default(), &budget),
                closing: CancellationToken::new(),
                budget,
                lead,
            }
        }

        fn watcher(&self) -> Watcher {
            Watcher::new(
                self.watchers.clone(),
                self.lead.clone(),
                self.closing.clone(),
                self.metrics.clone(),
            )
        }
    }

    #[tokio::test]
    async fn a_watcher_gets_what_is_newer_and_no_memory_stays() {
        let leader = Leader::new(1 << 20);
        leader.watchers.show(&manifest(3), true);
        assert_eq!(leader.budget.held(), 0, "nobody watches");
        let (one, two) = (leader.watcher(), leader.watcher());
        leader.watchers.show(&manifest(4), true);
        assert_eq!(version(&one.next(0).await.unwrap()), 4);
        let held = leader.budget.held();
        assert!(held > 0);
        let (waits, ()) = tokio::join!(two.next(4), async {
            leader.watchers.show(&manifest(4), true);
            leader.watchers.show(&manifest(5), true);
        });
        assert_eq!(version(&waits.unwrap()), 5);
        // Somebody restored the bucket, and another state got the number.
        let mut other = manifest(5);
        other.stamp.nonce ^= 1;
        leader.watchers.show(&other, true);
        let shown = Manifest::decode(&one.next(4).await.unwrap()).unwrap();
        assert_eq!(shown.stamp, other.stamp);
        assert_eq!(leader.budget.held(), held, "one copy for both");
        let slow = one.next(4).await.unwrap();
        leader.watchers.show(&manifest(6), true);
        assert_eq!(
            leader.budget.held(),
            2 * held,
            "a slow reader holds the older one"
        );
        drop((one, two));
        assert_eq!(leader.budget.held(), held);
        drop(slow);
        assert_eq!(leader.budget.held(), 0);
    }

    #[tokio::test]
    async fn watches_end_with_the_lead_with_the_producer_and_without_memory() {
        let leader = Leader::new(1 << 20);
        let watcher = leader.watcher();
        assert_eq!(watcher.next(0).await, Err(PeerRefusal::NotLeading));
        leader.watchers.show(&manifest(1), true);
        let (ended, ()) = tokio::join!(watcher.next(1), async {
            leader.watchers.show(&manifest(2), false);
        });
        assert_eq!(ended, Err(PeerRefusal::NotLeading));
        leader.watchers.show(&manifest(3), true);
        let (ended, ()) = tokio::join!(watcher.next(3), async { leader.closing.cancel() });
        assert_eq!(ended, Err(PeerRefusal::Leaving));
        let poor = Leader::new(100);
        let watcher = poor.watcher();
        poor.watchers.show(&manifest(1), true);
        assert_eq!(watcher.next(0).await, Err(PeerRefusal::OverBudget));
        assert_eq!(poor.budget.held(), 0);
    }
}
