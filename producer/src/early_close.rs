//! Decides when a segment closes before its linger ends: when every caller that could add to it is waiting for an answer.
//!
//! Callers that send their next message after the answer to the last one return together when a segment is committed. All
//! of them would then wait for the whole linger, although nobody is left who could add anything. One caller alone would.
//!
//! A producer does not know its callers. It takes the most that were waiting at once while the last segments filled for
//! all there are. The linger still sets the cost: closing early takes from an allowance that grows by one segment per
//! linger, and every segment takes from it. So over time a producer makes no more requests than one that always lingers.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::flow::Flow;

/// Number of past segments that tell how many callers there are. A caller that has left delays this many at most.
const SEGMENTS: usize = 16;
/// Number of segments that an idle producer saves up. 4: a person who tries a few requests hardly waits, and the cost of
/// a short run stays that of the linger.
const SAVED: u32 = 4;
/// The part of the linger without a message after which callers that came together are all there.
const GAPS_PER_LINGER: u32 = 50;

pub(crate) struct EarlyClose {
    linger: Duration,
    flow: Flow,
    /// The most callers that were waiting at once, for the open segment and the ones before it.
    peak: u64,
    peaks: VecDeque<u64>,
    last_message: Instant,
    /// The end of the time that the segments so far have used up, at one per linger.
    used_until: Instant,
}

impl EarlyClose {
    pub(crate) fn new(linger: Duration, flow: Flow) -> Self {
        let now = Instant::now();
        Self {
            linger,
            flow,
            peak: 0,
            peaks: VecDeque::with_capacity(SEGMENTS),
            last_message: now,
            used_until: now,
        }
    }

    /// Records that the open segment took a message.
    pub(crate) fn message(&mut self, now: Instant) {
        self.last_message = now;
        self.peak = self.peak.max(self.flow.waiting());
    }

    /// Records that the open segment closed, for whatever reason.
    pub(crate) fn closed(&mut self, now: Instant) {
        if self.peaks.len() == SEGMENTS {
            self.peaks.pop_front();
        }
        self.peaks.push_back(self.peak);
        self.peak = 0;
        self.used_until = self.used_until.max(now) + self.linger;
    }

    /// Returns the time to close a segment whose linger ends at `due`. Later messages and answers change it.
    pub(crate) fn close_at(&self, due: Instant) -> Instant {
        let callers = self.peaks.iter().max().copied().unwrap_or(0);
        if self.flow.waiting() < callers {
            return due;
        }
        let gap = self.last_message + self.linger / GAPS_PER_LINGER;
        // The allowance is one segment when the time used up ends `SAVED - 1` lingers ahead.
        let allowed = self
            .used_until
            .checked_sub(self.linger.saturating_mul(SAVED - 1))
            .unwrap_or(gap);
        due.min(gap.max(allowed))
    }
}
