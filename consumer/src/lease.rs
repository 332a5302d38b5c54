//! The lease as senders see it. They check it before each request and drop a request when it runs out, because another owner
//! may have sent the same rows since. The lease runs out by the first of two clocks: the uptime, which counts the time for
//! which the machine was suspended, and the wall clock, which alone shows that a hypervisor paused the machine.

use millpond_runtime::Environment;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The interval at which a task that waits for a renewal checks the lease.
const LOOK: Duration = Duration::from_millis(50);

/// The lease of one term.
pub(crate) struct Lease {
    environment: Arc<dyn Environment>,
    /// When the lease runs out, by [`Environment::uptime`], in milliseconds.
    runs_out_at_ms: AtomicU64,
    /// The same time by the wall clock, unix ms.
    runs_out_at_unix_ms: AtomicU64,
    /// The number of renewals after the lease had run out.
    lapses: AtomicU64,
}

impl Lease {
    /// Creates a lease that was taken by a request begun at this uptime.
    pub(crate) fn new(environment: Arc<dyn Environment>, began: Duration, lasts: Duration) -> Arc<Lease> {
        let lease = Lease {
            environment,
            runs_out_at_ms: AtomicU64::new(0),
            runs_out_at_unix_ms: AtomicU64::new(0),
            lapses: AtomicU64::new(0),
        };
        lease.renew(began, lasts);
        Arc::new(lease)
    }

    /// Records a renewal by a request begun at this uptime.
    pub(crate) fn renew(&self, began: Duration, lasts: Duration) {
        if !self.runs() {
            self.lapses.fetch_add(1, Ordering::AcqRel);
        }
        let ago = self.environment.uptime().saturating_sub(began);
        let left = lasts.saturating_sub(ago);
        let unix_ms = self.environment.now_ms().saturating_add(ms(left));
        self.runs_out_at_unix_ms.store(unix_ms, Ordering::Release);
        self.runs_out_at_ms.store(ms(began + lasts), Ordering::Release);
    }

    /// Returns true if the lease runs.
    pub(crate) fn runs(&self) -> bool {
        let uptime = ms(self.environment.uptime()) < self.runs_out_at_ms.load(Ordering::Acquire);
        let wall = self.environment.now_ms() < self.runs_out_at_unix_ms.load(Ordering::Acquire);
        uptime && wall
    }

    /// Waits until the lease runs. If it is never renewed, the end of the term aborts the waiting task. Returns the number of
    /// lapses so far, for [`has_run_since`](Self::has_run_since).
    pub(crate) async fn wait(&self) -> u64 {
        while !self.runs() {
            tokio::time::sleep(LOOK).await;
        }
        self.lapses.load(Ordering::Acquire)
    }

    /// Returns true if the lease runs and has not lapsed since [`wait`](Self::wait) returned `lapses`.
    pub(crate) fn has_run_since(&self, lapses: u64) -> bool {
        let same = self.lapses.load(Ordering::Acquire) == lapses;
        self.runs() && same
    }

    /// Waits until the lease has run out.
    pub(crate) async fn lapsed(&self) {
        while self.runs() {
            tokio::time::sleep(LOOK).await;
        }
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Clock(AtomicU64);

    impl Environment for Clock {
        fn now_us(&self) -> i64 {
            0
        }

        fn uptime(&self) -> Duration {
            Duration::from_secs(self.0.load(Ordering::Acquire))
        }

        fn random(&self) -> u64 {
            0
        }
    }

    #[tokio::test]
    async fn a_lease_that_ran_out_meanwhile_has_not_run_since() {
        let clock = Arc::new(Clock(AtomicU64::new(0)));
        let lasts = Duration::from_secs(10);
        let lease = Lease::new(clock.clone(), Duration::ZERO, lasts);
        let asked = lease.wait().await;
        clock.0.store(9, Ordering::Release);
        lease.renew(clock.uptime(), lasts);
        clock.0.store(18, Ordering::Release);
        assert!(lease.has_run_since(asked), "it was renewed in time");
        clock.0.store(3_600, Ordering::Release);
        assert!(!lease.has_run_since(asked));
        lease.renew(clock.uptime(), lasts);
        assert!(
            lease.runs() && !lease.has_run_since(asked),
            "it was renewed too late"
        );
    }
}
