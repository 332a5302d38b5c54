//! Streams with `--unique` that are silent: their keys are stored all the same, or their last snapshot would hold back the
//! log of all streams. This module decides about no row.

use super::Tenure;
use crate::unique::{next_snapshot_in, snapshot_interval};
use millpond_manifest::cursor::Plan;
use std::time::Duration;

/// The sequence from which a stream needs the log for its keys, and when it is to need less, by the environment's uptime.
pub(super) type Held = (u64, Duration);

impl Tenure<'_> {
    /// Stores the keys of each stream whose position has been past its last snapshot for an interval.
    pub(super) fn keep_keys(&mut self) {
        let may_send = self.may_send();
        let Some(known) = self.log.as_ref().filter(|_| may_send) else {
            return;
        };
        if self.drain_until.is_some() || !self.term.lease.runs() {
            return;
        }
        let worker = &self.shard.worker;
        let environment = &self.shard.claim.environment;
        let now = environment.uptime();
        let cursor = &self.durable.state;
        let mut due = Vec::new();
        // Putting the keys of a stream together takes memory, so one stream begins at a time.
        let mut may_begin = self.keeping.is_empty();
        for (stream, position) in &cursor.streams {
            let Some((setting, of)) = cursor.deduplicates(stream) else {
                continue;
            };
            let needs = of.needs();
            let due_at = match self.held.get(stream) {
                Some((from, due_at)) if *from == needs => *due_at,
                held => {
                    let due_in = match (held, of.snapshot) {
                        (None, Some(last)) => next_snapshot_in(setting, last, environment.now_ms()),
                        _ => snapshot_interval(setting),
                    };
                    self.held.insert(stream.clone(), (needs, now + due_in));
                    now + due_in
                }
            };
            let has_begun = self.unique.contains_key(stream);
            let mut streams = known.log.streams.iter();
            if needs < position.next
                && now >= due_at
                && (has_begun || may_begin)
                && streams.any(|found| found.name == *stream && worker.takes(stream, found.encoding))
            {
                self.held
                    .insert(stream.clone(), (needs, now + snapshot_interval(setting)));
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
