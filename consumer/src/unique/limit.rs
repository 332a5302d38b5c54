//! The number of keys that the streams of a process may remember.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The number of keys that all streams of a process may remember. Clones share one count.
#[derive(Debug, Clone)]
pub(crate) struct KeyLimit {
    counts: Arc<Counts>,
    max: u64,
    is_spare: bool,
}

#[derive(Debug, Default)]
struct Counts {
    /// The keys of batches.
    needed: AtomicU64,
    /// Those of work that batches do not wait for.
    spare: AtomicU64,
    /// Batches need the memory of spare keys.
    crowded: Notify,
}

/// More keys than the limit allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TooManyKeys {
    pub(crate) max: u64,
}

impl KeyLimit {
    pub(crate) fn new(max: u64) -> KeyLimit {
        KeyLimit {
            counts: Arc::default(),
            max,
            is_spare: false,
        }
    }

    /// The limit of work that is not urgent. Its keys take none of the last sixteenth, and never keep a batch from taking a key: the work
    /// has to drop them when batches need their memory ([`crowded`](Self::crowded)).
    pub(crate) fn spare(&self) -> KeyLimit {
        KeyLimit {
            counts: self.counts.clone(),
            max: self.max - self.max / 16,
            is_spare: true,
        }
    }

    /// Returns when batches need the memory of spare keys, from the first poll on.
    pub(crate) fn crowded(&self) -> Notified<'_> {
        self.counts.crowded.notified()
    }

    pub(crate) fn used(&self) -> u64 {
        let Counts { needed, spare, .. } = &*self.counts;
        needed.load(Ordering::Relaxed) + spare.load(Ordering::Relaxed)
    }

    pub(super) fn take(&self) -> Result<(), TooManyKeys> {
        let Counts {
            needed,
            spare,
            crowded,
        } = &*self.counts;
        let (own, others) = match self.is_spare {
            true => (spare, needed.load(Ordering::Relaxed)),
            false => (needed, 0),
        };
        let taken = own.fetch_add(1, Ordering::Relaxed) + 1;
        if taken + others > self.max {
            own.fetch_sub(1, Ordering::Relaxed);
            return Err(TooManyKeys { max: self.max });
        }
        if !self.is_spare {
            let spare = spare.load(Ordering::Relaxed);
            if spare > 0 && taken + spare > self.max {
                crowded.notify_waiters();
            }
        }
        Ok(())
    }

    pub(super) fn give_back(&self, keys: u64) {
        let Counts { needed, spare, .. } = &*self.counts;
        let own = if self.is_spare { spare } else { needed };
        own.fetch_sub(keys, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt as _;

    fn take(limit: &KeyLimit, keys: u64) -> Result<(), TooManyKeys> {
        (0..keys).try_for_each(|_| limit.take())
    }

    #[test]
    fn work_that_is_not_urgent_leaves_keys_to_the_batches() {
        let batches = KeyLimit::new(32);
        let work = batches.spare();
        take(&batches, 5).unwrap();
        assert_eq!(take(&work, 40), Err(TooManyKeys { max: 30 }));
        assert_eq!(batches.used(), 30);
        work.give_back(25);
        assert_eq!(batches.used(), 5);
    }

    #[test]
    fn batches_have_all_keys_whatever_else_has_some() {
        let batches = KeyLimit::new(32);
        let work = batches.spare();
        take(&work, 20).unwrap();
        let mut crowded = std::pin::pin!(work.crowded());
        assert!(crowded.as_mut().now_or_never().is_none());
        take(&batches, 12).unwrap();
        assert!(
            crowded.as_mut().now_or_never().is_none(),
            "there is room for both"
        );
        take(&batches, 1).unwrap();
        assert!(crowded.as_mut().now_or_never().is_some());
        assert_eq!(take(&work, 1), Err(TooManyKeys { max: 30 }));
        take(&batches, 19).unwrap();
        assert_eq!(take(&batches, 1), Err(TooManyKeys { max: 32 }));
    }
}
