//! How long full segments wait for others to share their commit: a commit costs the same whatever it carries.
//!
//! A segment that its linger closed does not wait. One that was full before has the rest of its linger for it: so no
//! message is committed later than it would be at a trickle. It does not wait when that helps nobody: nothing is
//! coming, as when callers wait for their answers before they send more, or memory is getting scarce.

use std::time::Duration;

use tokio::time::Instant;

use crate::Budget;
use crate::flow::Flow;

/// Nothing is coming when no message has come for so long, and no segment is on its way (50 ms: a fraction of what
/// an upload and a commit take, and longer than the gaps between the messages of a load that fills segments).
const QUIET: Duration = Duration::from_millis(50);

/// Looks at what comes down the pipeline while a group waits.
pub(crate) struct CommitDelay {
    flow: Flow,
    budget: Budget,
    /// Segments that have come from the uploaders, or will never come.
    arrived: u64,
    /// The messages that had been taken when it was looked last, and when to look again.
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

    /// One of the segments that were closed has come.
    pub(crate) fn arrived(&mut self) {
        self.arrived += 1;
    }

    /// A group begins to wait.
    pub(crate) fn begin(&mut self) {
        self.seen = self.flow.messages();
        self.next_look = Instant::now() + QUIET;
    }

    /// Until when a group that is due then may wait before it is asked again; `None`: it is to be committed now.
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

    /// Three quarters of the memory are held: what waits here is better given back.
    fn is_scarce(&self) -> bool {
        self.budget.held() / 3 >= self.budget.limit() / 4
    }
}
