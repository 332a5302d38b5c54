//! Streams with `--unique` that are silent: their keys are stored all the same, or their last snapshot would hold back the
//! log of all streams. After a window they leave the memory. This module decides about no row.

use super::Tenure;
use crate::unique::{next_snapshot_in, snapshot_interval};
use millpond_manifest::Log;
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
                        // Owners before this one were not there for long enough.
                        (None, None) if needs < position.next => Duration::ZERO,
                        _ => snapshot_interval(setting),
                    };
                    self.held.insert(stream.clone(), (needs, now + due_in));
                    now + due_in
                }
            };
            let line = self.unique.get_mut(stream);
            let (is_loaded, rests) =
                line.map_or((false, false), |line| (line.is_loaded(), line.may_rest(now)));
            // A stream whose batches wait is not silent.
            let rests = rests && !has_more(&known.log, stream, position.next);
            let mut streams = known.log.streams.iter();
            let stores = needs < position.next
                && now >= due_at
                && (is_loaded || may_begin)
                && streams.any(|found| found.name == *stream && worker.takes(stream, found.encoding));
            if stores {
                self.held
                    .insert(stream.clone(), (needs, now + snapshot_interval(setting)));
                may_begin &= is_loaded;
            }
            if stores || rests {
                due.push((stream.clone(), position.next, rests));
            }
        }
        for (stream, next, rests) in due {
            if let Some(turn) = self.line(&stream, next).map(|line| line.turn_to_keep(next)) {
                self.keeping.spawn(turn.keep(rests));
            }
        }
    }
}

/// Returns true if the log may have a part of the stream from this sequence on.
fn has_more(log: &Log, stream: &str, next: u64) -> bool {
    let index = log.stream_index(stream);
    index.is_some_and(|index| log.parts(index, next).next().is_some()) || log.missing(next).is_some()
}
