//! One budget of bytes for all memory that a process holds. It grants requests in order, so that small requests do not
//! starve a large one. It never grants more than its limit.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The budget had no room within the wait: retry later.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "over the memory limit: {needed} bytes more than the {held} held would pass the limit of {limit}; retry later"
)]
pub struct OverBudget {
    /// The bytes requested.
    pub needed: usize,
    /// The bytes held at the time.
    pub held: usize,
    /// The limit in bytes.
    pub limit: usize,
}

/// The limit of the bytes that a process may hold. Clones share one budget.
#[derive(Clone, Debug)]
pub struct Budget {
    free: Arc<Semaphore>,
    limit: usize,
    max_wait: Duration,
}

impl Budget {
    /// Creates a budget of `limit` bytes. A caller of [`reserve`](Self::reserve) waits for it at most `max_wait`.
    pub fn new(limit: usize, max_wait: Duration) -> Self {
        let limit = limit.min(Semaphore::MAX_PERMITS);
        Self {
            free: Arc::new(Semaphore::new(limit)),
            limit,
            max_wait,
        }
    }

    /// Reserves `bytes`, first come, first served. Dropping the future gives up the place in the queue.
    ///
    /// # Errors
    /// If the budget stays exhausted for `max_wait`, or `bytes` exceeds its limit.
    pub async fn reserve(&self, bytes: usize) -> Result<Reservation, OverBudget> {
        let over = || OverBudget {
            needed: bytes,
            held: self.held(),
            limit: self.limit,
        };
        if bytes > self.limit {
            return Err(over());
        }
        let permits = u32::try_from(bytes).map_err(|_| over())?;
        match timeout(self.max_wait, Arc::clone(&self.free).acquire_many_owned(permits)).await {
            // The semaphore is never closed.
            Ok(Ok(permit)) => Ok(Reservation { permit }),
            Ok(Err(_)) | Err(_) => Err(over()),
        }
    }

    /// Reserves `bytes`, first come, first served, and waits without a time limit. A request for more than the whole budget,
    /// or for more than 4 GiB, gets that much: it runs alone instead of never.
    pub async fn reserve_at_most(&self, bytes: u64) -> Reservation {
        let most = u32::try_from(self.limit).unwrap_or(u32::MAX);
        let permits = u32::try_from(bytes).unwrap_or(u32::MAX).min(most);
        let permit = Arc::clone(&self.free).acquire_many_owned(permits).await;
        Reservation {
            permit: permit.expect("the semaphore is never closed"),
        }
    }

    /// Reserves `bytes` if they are free now and nobody waits for them.
    pub fn try_reserve(&self, bytes: usize) -> Option<Reservation> {
        let permits = u32::try_from(bytes).ok()?;
        let permit = Arc::clone(&self.free).try_acquire_many_owned(permits).ok()?;
        Some(Reservation { permit })
    }

    /// The bytes held now, including those gathered for the first request in the queue.
    pub fn held(&self) -> usize {
        self.limit - self.free.available_permits().min(self.limit)
    }

    /// The limit in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Creates a separate budget with one `share`th of this one's limit and the same wait.
    pub fn part(&self, share: usize) -> Self {
        Self::new(self.limit / share, self.max_wait)
    }

    /// An empty reservation, to [`merge`](Reservation::merge) into.
    pub fn nothing(&self) -> Reservation {
        // Acquiring zero permits always succeeds and cannot block.
        let permit = Arc::clone(&self.free).try_acquire_many_owned(0);
        Reservation {
            permit: permit.expect("zero permits of a semaphore that is never closed"),
        }
    }
}

/// Bytes drawn from a [`Budget`], which a drop returns. The reservation travels with the data that it pays for.
#[derive(Debug)]
pub struct Reservation {
    permit: OwnedSemaphorePermit,
}

impl Reservation {
    /// The number of reserved bytes.
    pub fn bytes(&self) -> usize {
        self.permit.num_permits()
    }

    /// Takes over the bytes of another reservation of the same budget.
    ///
    /// # Panics
    /// If the other reservation is from another budget, or both together exceed 4 GiB.
    pub fn merge(&mut self, other: Reservation) {
        self.permit.merge(other.permit);
    }

    /// Takes `bytes` out of this reservation, or all of it if it has fewer.
    pub fn split(&mut self, bytes: usize) -> Reservation {
        let bytes = bytes.min(self.bytes());
        let permit = self.permit.split(bytes);
        Reservation {
            permit: permit.expect("no more than there is"),
        }
    }

    /// Returns the excess over `bytes` to the budget.
    pub fn shrink(&mut self, bytes: usize) {
        drop(self.split(self.bytes().saturating_sub(bytes)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(limit: usize) -> Budget {
        Budget::new(limit, Duration::from_secs(10))
    }

    #[tokio::test]
    async fn a_reservation_can_be_split_merged_and_shrunk_and_goes_back_when_dropped() {
        let budget = budget(100);
        let mut all = budget.nothing();
        all.merge(budget.reserve(60).await.unwrap());
        assert_eq!((all.bytes(), budget.held()), (60, 60));
        let part = all.split(20);
        assert_eq!((all.bytes(), part.bytes(), budget.held()), (40, 20, 60));
        all.shrink(10);
        assert_eq!((all.bytes(), budget.held()), (10, 30));
        all.shrink(50);
        assert_eq!(all.bytes(), 10);
        drop((all, part));
        assert_eq!(budget.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_is_refused_after_the_wait_and_not_before() {
        let budget = budget(100);
        let _held = budget.reserve(90).await.unwrap();
        let start = tokio::time::Instant::now();
        let refused = budget.reserve(20).await.unwrap_err();
        assert_eq!((refused.needed, refused.limit), (20, 100));
        assert_eq!(start.elapsed().as_secs(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_does_not_wait_gets_what_is_free() {
        let budget = Budget::new(100, Duration::ZERO);
        let start = tokio::time::Instant::now();
        let _held = budget.reserve(100).await.unwrap();
        assert!(budget.reserve(1).await.is_err());
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_over_the_whole_budget_is_refused_at_once() {
        let start = tokio::time::Instant::now();
        assert!(budget(100).reserve(101).await.is_err());
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_for_more_than_the_whole_budget_gets_all_of_it_and_waits_longer_than_others() {
        let budget = budget(100);
        let held = budget.reserve(1).await.unwrap();
        let start = tokio::time::Instant::now();
        let (all, ()) = tokio::join!(budget.reserve_at_most(1 << 40), async {
            tokio::time::sleep(Duration::from_secs(60)).await;
            drop(held);
        });
        assert_eq!((all.bytes(), start.elapsed().as_secs()), (100, 60));
        drop(all);
        assert_eq!(budget.reserve_at_most(30).await.bytes(), 30);
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_request_is_not_starved_by_small_ones_that_come_later() {
        let budget = budget(100);
        let held = budget.reserve(50).await.unwrap();
        let (large, small, ()) = tokio::join!(budget.reserve(100), budget.reserve(1), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop(held);
        });
        // The large request holds everything until the small one has timed out.
        assert_eq!(large.unwrap().bytes(), 100);
        assert!(small.is_err());
    }
}
