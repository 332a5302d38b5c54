//! The owner's swaps of its cursor: when a swap is worth a request, its content, and the steps after it is durable.

use super::Tenure;
use crate::Config;
use crate::error::ConsumeError;
use crate::owner::Outcome;
use crate::rounds::LaterRound;
use crate::schedule::Decision;
use futures::future::{BoxFuture, FutureExt};
use millpond_manifest::Cursor;
use millpond_manifest::cas::Snapshot;
use std::time::Duration;
use tokio::time::Instant;

pub(super) type Swapping = BoxFuture<'static, Result<Outcome, ConsumeError>>;

impl Tenure<'_> {
    /// The idle time after which finished batches are acknowledged without waiting for `ack_interval`: no other swap is
    /// near that could carry the acknowledgement.
    fn rest(&self) -> Duration {
        self.shard.config.ack_interval / 3
    }

    /// Starts a swap if one is due. Returns true while one is due or in flight.
    pub(super) fn begin_swap(&mut self, decision: &Decision) -> Result<bool, ConsumeError> {
        let now = Instant::now();
        let Config {
            ack_interval, lease, ..
        } = self.shard.config;
        let since = now - self.swapped_at;
        let acknowledge = decision.progress
            && (since >= ack_interval
                || self.finished_at.elapsed() >= self.rest()
                || decision.blocked
                || self.drain_until.is_some());
        let renew = since >= lease / 3;
        // While batches run, requests of their later rounds may be in flight.
        let settled = self.durable.state.unsettled && self.has_settled();
        let write_down = !decision.plans.is_empty()
            || !self.undurable.is_empty()
            || !self.unannounced.is_empty()
            || settled;
        if !(acknowledge || renew || write_down) {
            return Ok(false);
        }
        if self.swapping.is_some() || now < self.swap_again_at {
            return Ok(true);
        }
        let mut next = self.durable.state.clone();
        if let Some(known) = self.log.as_ref().filter(|_| self.recognized) {
            next.limit_sent(known.log.next_sequence);
        }
        self.acknowledge(&mut next, decision)?;
        for (stream, plan) in decision.plans.iter().chain(&decision.ahead) {
            next.plan(stream, *plan)?;
        }
        for refusal in &self.undurable {
            // Retention may have moved the position past a batch that is still in flight.
            if next.next(&refusal.stream) <= refusal.batch.low {
                next.refuse(&refusal.stream, refusal.batch, &refusal.pieces, &refusal.reason)?;
            }
        }
        if settled {
            next.settle();
        }
        if !self.unannounced.is_empty() {
            next.unsettle();
        }
        let claim = self.shard.claim.clone();
        next.renew(
            claim.environment.now_ms(),
            u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
        );
        next.wait_for(&self.shard.worker.waiting_for());
        let before = self.durable.clone();
        self.swap_began = claim.environment.uptime();
        // After a failure the next swap waits a little. After a success this has no effect.
        self.swap_again_at = now + Duration::from_millis(200);
        self.swapping = Some(async move { claim.swap(before, next).await }.boxed());
        Ok(true)
    }

    /// Records the acknowledged positions, and what follows from them.
    pub(super) fn acknowledge(&self, next: &mut Cursor, decision: &Decision) -> Result<(), ConsumeError> {
        self.remember_seen(next);
        if let Some(known) = self.log.as_ref().filter(|_| self.recognized) {
            let acknowledged = decision.acknowledge.iter().map(|(stream, _)| stream);
            let planned = decision
                .plans
                .iter()
                .chain(&decision.ahead)
                .map(|(stream, _)| stream);
            for stream in acknowledged.chain(planned) {
                next.begin_unique(stream, known.log.first_sequence);
            }
        }
        for (stream, position) in &decision.acknowledge {
            next.acknowledge(stream, *position)?;
        }
        for line in self.unique.values() {
            line.record(next)?;
        }
        Ok(())
    }

    /// Returns true if no request of an earlier generation or of a later round can be in flight.
    pub(super) fn has_settled(&self) -> bool {
        self.settling.is_none() && self.unannounced.is_empty() && self.later_rounds.is_empty()
    }

    pub(super) fn swapped(&mut self, durable: Snapshot<Cursor>) {
        let is_new = durable.state.stamp != self.durable.state.stamp;
        if is_new {
            self.swapped_at = Instant::now();
            self.term.lease.renew(self.swap_began, self.shard.config.lease);
            self.swap_again_at = self.swapped_at;
        }
        self.trace_acknowledged(&durable.state);
        for line in self.unique.values() {
            line.recorded(&durable.state);
        }
        let before = std::mem::replace(&mut self.durable, durable);
        self.schedule.acknowledged(&before.state, &self.durable.state);
        // A swap that settles the cursor may still land on a state that was read again. It cannot land on a new state.
        if self.durable.state.unsettled && is_new {
            for LaterRound { batch, durable } in self.unannounced.drain(..) {
                self.later_rounds.insert(batch);
                // The receiver no longer exists if the batch was given up.
                let _ = durable.send(());
            }
        }
        for refusal in std::mem::take(&mut self.undurable) {
            let known = self.durable.state.refused(&refusal.stream, refusal.batch);
            let written = known.is_some_and(|known| refusal.pieces.iter().all(|piece| known.covers(*piece)));
            // Nobody sends an acknowledged batch again.
            if written || self.durable.state.next(&refusal.stream) > refusal.batch.low {
                // The receiver no longer exists if the batch was given up.
                let _ = refusal.durable.send(());
            } else {
                self.undurable.push(refusal);
            }
        }
    }

    pub(super) fn trace_acknowledged(&mut self, cursor: &Cursor) {
        self.traces
            .retain(|(stream, plan), _| cursor.next(stream) <= plan.low);
    }

    /// The time of the next decision if nothing happens before.
    pub(super) fn next_timer(&self, decision: &Decision) -> Instant {
        let Config {
            ack_interval, lease, ..
        } = self.shard.config;
        let mut timer = if self.swapping.is_some() {
            // The end of the swap wakes the loop. Until then only changes of the log matter.
            Instant::now() + lease
        } else {
            let mut timer = self.swapped_at + lease / 3;
            if decision.progress {
                timer = timer
                    .min(self.swapped_at + ack_interval)
                    .min(self.finished_at + self.rest());
            }
            // A swap that is due starts as soon as the pause after a failure ends.
            timer.max(self.swap_again_at)
        };
        if self.reading.is_none() {
            timer = timer.min(self.poll_at);
        }
        if let Some(again_at) = self.unreadable.values().map(|it| it.again_at).min() {
            timer = timer.min(again_at);
        }
        if let Some(wakes_at) = self.discovery.wakes_at(Instant::now()) {
            timer = timer.min(wakes_at);
        }
        self.drain_until.map_or(timer, |until| timer.min(until))
    }
}
