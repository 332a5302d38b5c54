//! The lease as those see it who send. They look at it before each request, and give a request up when it runs out: whoever
//! sends later may send what another has sent meanwhile. It runs out by the first of two clocks. The uptime counts the time for
//! which the machine was suspended; only the wall clock shows that a hypervisor has paused it.

use crate::environment::{Environment, now_ms};
use millpond_manifest::planted::{self, Bug};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often somebody who waits for a renewal looks again.
const LOOK: Duration = Duration::from_millis(50);

/// The lease of one term.
pub(crate) struct Lease {
    environment: Arc<dyn Environment>,
    /// By [`Environment::uptime`], in milliseconds.
    runs_out_at_ms: AtomicU64,
    /// The same by the wall clock.
    runs_out_at_unix_ms: AtomicU64,
    /// How often it was renewed after it had run out.
    lapses: AtomicU64,
}

impl Lease {
    /// A lease that was taken by a request begun at this uptime.
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

    /// It was renewed by a request begun at this uptime.
    pub(crate) fn renew(&self, began: Duration, lasts: Duration) {
        if !self.runs() {
            self.lapses.fetch_add(1, Ordering::AcqRel);
        }
        let ago = self.environment.uptime().saturating_sub(began);
        let left = lasts.saturating_sub(ago);
        let unix_ms = now_ms(&*self.environment).saturating_add(ms(left));
        self.runs_out_at_unix_ms.store(unix_ms, Ordering::Release);
        self.runs_out_at_ms.store(ms(began + lasts), Ordering::Release);
    }

    /// Whether it runs.
    pub(crate) fn runs(&self) -> bool {
        let uptime = ms(self.environment.uptime()) < self.runs_out_at_ms.load(Ordering::Acquire);
        let wall = now_ms(&*self.environment) < self.runs_out_at_unix_ms.load(Ordering::Acquire)
            || planted::is(Bug::WallClockIgnored);
        (uptime && wall) || planted::is(Bug::LeaseIgnored)
    }

    /// Returns when it runs: at once, or after its renewal. Where there is none, whoever waits is aborted with the term.
    /// Returns how often it has lapsed, for [`has_run_since`](Self::has_run_since).
    pub(crate) async fn wait(&self) -> u64 {
        while !self.runs() {
            tokio::time::sleep(LOOK).await;
        }
        self.lapses.load(Ordering::Acquire)
    }

    /// Whether it runs and has not lapsed since [`wait`](Self::wait) returned this.
    pub(crate) fn has_run_since(&self, lapses: u64) -> bool {
        let same = self.lapses.load(Ordering::Acquire) == lapses;
        self.runs() && (same || planted::is(Bug::AnswerOutlivesLease))
    }

    /// Returns when it has run out.
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
