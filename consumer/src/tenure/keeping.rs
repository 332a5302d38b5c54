//! Streams with `--unique` that are silent: their keys are stored all the same, or their last snapshot would hold back the
//! log of all streams. This module decides about no row.

use super::Tenure;
use crate::unique::snapshot_interval;
use millpond_manifest::cursor::Plan;
use std::time::Duration;

/// The sequence from which a stream needs the log for its keys, and since when, by the environment's uptime.
pub(super) type Held = (u64, Duration);

impl Tenure<'_> {
    /// Stores the keys of each stream whose position has been past its last snapshot for an interval.
    pub(super) fn keep_keys(&mut self) {
        let Some(known) = self.log.as_ref().filter(|_| self.settling.is_none()) else {
            return;
        };
        if self.drain_until.is_some() || !self.term.lease.runs() {
            return;
        }
        let worker = &self.shard.worker;
        let now = self.shard.claim.environment.uptime();
        let cursor = &self.durable.state;
        let mut due = Vec::new();
        // Putting the keys of a stream together takes memory, so one stream begins at a time.
        let mut may_begin = self.keeping.is_empty();
        for (stream, position) in &cursor.streams {
            let Some((setting, of)) = cursor.deduplicates(stream) else {
                continue;
            };
            let needs = of.needs();
            let since = match self.held.get(stream) {
                Some((from, since)) if *from == needs => *since,
                _ => {
                    self.held.insert(stream.clone(), (needs, now));
                    now
                }
            };
            let has_begun = self.unique.contains_key(stream);
            // An owner without these keys goes on after retention has trimmed their log: only the next batch needs them.
            let can_begin = has_begun || (may_begin && known.log.first_sequence <= needs);
            let is_due = now.saturating_sub(since) >= snapshot_interval(setting);
            let mut streams = known.log.streams.iter();
            if needs < position.next
                && is_due
                && can_begin
                && streams.any(|found| found.name == *stream && worker.takes(stream, found.encoding))
            {
                self.held.insert(stream.clone(), (needs, now));
                may_begin &= has_begun;
                due.push((stream.clone(), position.next));
            }
        }
        for (stream, next) in due {
            let before = Plan {
                low: next,
                high: next,
            };
            if let Some(turn) = self.turn(&(stream, before)) {
                self.keeping.spawn(turn.keep());
            }
        }
    }
}
