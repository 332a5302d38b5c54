//! Decides how long full segments wait for others to share their commit. The cost of a commit does not depend on the
//! number of its segments.
//!
//! A segment that its linger closed does not wait. A segment that was full before waits for at most the rest of its
//! linger, so no message is committed later than it would be at a trickle. It does not wait when no other segment is
//! likely to come: callers may wait for their answers before they send more. It does not wait when memory is scarce
//! either.

use std::time::Duration;

use tokio::time::Instant;

use crate::flow::Flow;
use millpond_runtime::Budget;

/// No segment is likely to come if no message has come for this long and no segment is in the pipeline. 50 ms is a
/// fraction of an upload and a commit, and longer than the gaps between messages of a load that fills segments.
const QUIET: Duration = Duration::from_millis(50);

/// Watches the pipeline while a group waits.
pub(crate) struct CommitDelay {
    flow: Flow,
    budget: Budget,
    /// Segments that have come from the uploaders, or never will.
    arrived: u64,
    /// The number of messages at the last look, and the time of the next look.
    seen: u64,
    next_look: Instant,
}

impl CommitDelay {
    pub(crate) fn new(flow: Flow, budget: Budget) -> Self {
        Self {
            flow,
            budget,
            arrived: 0,
            seen: 0,
            next_look: Instant::now(),
        }
    }

    /// Records that one of the closed segments has come.
    pub(crate) fn arrived(&mut self) {
        self.arrived += 1;
    }

    /// Records that a group starts to wait.
    pub(crate) fn begin(&mut self) {
        self.seen = self.flow.messages();
        self.next_look = Instant::now() + QUIET;
    }

    /// Returns the time until which a group with this due time may wait before it asks again. `None`: commit it now.
    pub(crate) fn wait_until(&mut self, due: Instant) -> Option<Instant> {
        let now = Instant::now();
        if now >= due || self.is_scarce() {
            return None;
        }
        if now >= self.next_look {
            let messages = self.flow.messages();
            if messages == self.seen && self.flow.closed() == self.arrived {
                return None;
            }
            self.seen = messages;
            self.next_look = now + QUIET;
        }
        Some(due.min(self.next_look))
    }

    /// Returns true if three quarters of the memory are held: a commit then frees memory that the group would hold.
    fn is_scarce(&self) -> bool {
        self.budget.held() / 3 >= self.budget.limit() / 4
    }
}
