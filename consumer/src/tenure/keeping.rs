//! Streams with `--unique` that are silent: their keys are stored all the same, or their last snapshot would hold back the
//! log of all streams. After a window they leave the memory. This module decides about no row.

use super::Tenure;
use crate::unique::{Ended, Keep};
use millpond_manifest::Log;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::task::JoinSet;

/// Streams whose last snapshot is repeated at a time.
const UNCHANGED_AT_A_TIME: usize = 4;

/// Streams whose keys are loaded at a time, which takes memory.
const LOADING_AT_A_TIME: usize = 1;

/// The keys of silent streams on their way to the store, and the streams that need the log for their keys.
#[derive(Default)]
pub(super) struct Keeping {
    held: BTreeMap<String, Held>,
    tasks: JoinSet<(String, Ended)>,
    /// A stream has one task at a time.
    running: BTreeMap<String, Keep>,
}

/// A stream whose keys a successor reads from the log.
struct Held {
    /// The first sequence of that.
    needs: u64,
    /// When it is to need less, by the environment's uptime.
    due_at: Duration,
    must_load: bool,
    /// The number of attempts that loaded keys and failed, or for which there was no room.
    failures: u32,
}

/// A stream whose keys are to be stored, or to leave the memory.
struct Due {
    at: Duration,
    stream: String,
    next: u64,
    keep: Keep,
}

impl Keeping {
    /// The next stream whose task has ended, and how.
    pub(super) async fn next_ended(&mut self) -> Option<(String, Ended)> {
        let ended = self.tasks.join_next().await?;
        Some(ended.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic())))
    }

    fn has_room(&self, keep: Keep) -> bool {
        let at_a_time = match keep {
            Keep::Loaded { .. } => return true,
            Keep::Unchanged => UNCHANGED_AT_A_TIME,
            Keep::Loading => LOADING_AT_A_TIME,
        };
        self.running.values().filter(|running| **running == keep).count() < at_a_time
    }
}

impl Tenure<'_> {
    /// Stores the keys of each stream whose position has been past its last snapshot for an interval.
    pub(super) fn keep_keys(&mut self) {
        let mut due = self.due_keys();
        // One that the limits hold back comes before those that become due later.
        due.sort_by_key(|due| due.at);
        for Due {
            stream, next, keep, ..
        } in due
        {
            if !self.keeping.has_room(keep) {
                continue;
            }
            let Some(turn) = self
                .line(&stream, next)
                .map(|(line, source)| line.turn_to_keep(source, next))
            else {
                continue;
            };
            self.keeping.running.insert(stream.clone(), keep);
            self.keeping
                .tasks
                .spawn(async move { (stream, turn.keep(keep).await) });
        }
    }

    fn due_keys(&mut self) -> Vec<Due> {
        let may_send = self.may_send();
        let Some(known) = self.log.as_ref().filter(|_| may_send) else {
            return Vec::new();
        };
        if self.drain_until.is_some() || !self.term.lease.runs() {
            return Vec::new();
        }
        let worker = &self.shard.worker;
        let environment = &self.shard.claim.environment;
        let now = environment.uptime();
        let cursor = &self.durable.state;
        let mut all = Vec::new();
        for (stream, position) in &cursor.streams {
            let Some((setting, of)) = cursor.deduplicates(stream) else {
                continue;
            };
            let needs = of.needs();
            let held = self.keeping.held.get(stream);
            if held.is_none_or(|held| held.needs != needs) {
                let due_in = match (held, of.snapshot) {
                    (None, Some(last)) => worker.key_times.next_in(setting, last, environment.now_ms()),
                    // Owners before this one were not there for long enough.
                    (None, None) if needs < position.next => Duration::ZERO,
                    _ => worker.key_times.interval(setting),
                };
                let held = Held {
                    needs,
                    due_at: now + due_in,
                    must_load: false,
                    failures: 0,
                };
                self.keeping.held.insert(stream.clone(), held);
            }
            let mut line = self.unique.get_mut(stream);
            let is_busy = line.as_mut().is_some_and(|line| !line.is_idle());
            if is_busy || self.keeping.running.contains_key(stream) {
                continue;
            }
            let (is_loaded, rests) =
                line.map_or((false, false), |line| (line.is_loaded(), line.may_rest(now)));
            // A stream whose batches wait is not silent.
            let rests = rests && !has_more(&known.log, stream, position.next);
            let held = &self.keeping.held[stream];
            let mut streams = known.log.streams.iter();
            let stores = needs < position.next
                && now >= held.due_at
                && streams.any(|found| found.name == *stream && worker.takes(stream, found.encoding))
                // The next batch loads them anyhow, and must not wait for this.
                && (is_loaded || !has_parts(&known.log, stream, position.next));
            if stores || rests {
                let keep = match (is_loaded, held.must_load) {
                    (true, _) => Keep::Loaded { rests },
                    (false, false) => Keep::Unchanged,
                    (false, true) => Keep::Loading,
                };
                all.push(Due {
                    at: held.due_at,
                    stream: stream.clone(),
                    next: position.next,
                    keep,
                });
            }
        }
        all
    }

    /// Sets the time of the next attempt.
    pub(super) fn kept(&mut self, stream: &str, ended: Ended) {
        let keep = self.keeping.running.remove(stream);
        let now = self.shard.claim.environment.uptime();
        let setting = self
            .durable
            .state
            .deduplicates(stream)
            .map(|(setting, _)| setting);
        let times = &self.shard.worker.key_times;
        if let Some((held, setting)) = self.keeping.held.get_mut(stream).zip(setting) {
            held.must_load = ended == Ended::MustLoad;
            let pause = match ended {
                Ended::Done | Ended::Overtaken => times.interval(setting),
                Ended::MustLoad => return,
                Ended::Failed | Ended::NoRoom if keep == Some(Keep::Loading) => {
                    held.failures += 1;
                    times.after_failure(setting, held.failures)
                }
                Ended::Failed | Ended::NoRoom => times.after_failure(setting, 0),
            };
            held.due_at = now + pause;
        }
    }
}

/// Returns true if the log may have a part of the stream from this sequence on.
fn has_more(log: &Log, stream: &str, next: u64) -> bool {
    has_parts(log, stream, next) || log.missing(next).is_some()
}

/// Returns true if what is known of the log has a part of the stream from this sequence on.
fn has_parts(log: &Log, stream: &str, next: u64) -> bool {
    let index = log.stream_index(stream);
    index.is_some_and(|index| log.parts(index, next).next().is_some())
}
