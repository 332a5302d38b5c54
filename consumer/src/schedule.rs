//! What to do next, decided from the durable cursor, the log and what is under way. Pure: it starts
//! nothing and waits for nothing. Public for the model check of the protocols, which walks through its decisions.

use millpond_manifest::cursor::Plan;
use millpond_manifest::plan::{Candidate, PlanStatus, Size, candidates};
use millpond_manifest::planted::{self, Bug};
use millpond_manifest::{Cursor, Log};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A batch of a stream.
pub type Key = (String, Plan);

/// How far a batch that was started is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Progress {
    Running,
    Done,
}

/// What is under way, and what must be done before anything new.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Schedule {
    work: BTreeMap<Key, Progress>,
    doubt: BTreeSet<Key>,
    /// Of each stream, the last sequence that was planned when the cursor was opened.
    inherited: BTreeMap<String, u64>,
    /// Earlier owners have sent no sequence from this one on, and never will.
    unsent_from: Option<u64>,
    /// Nothing is planned from this sequence on.
    until: Option<u64>,
}

/// What the driver should do now.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Batches to start: their boundaries are durable.
    pub start: Vec<Key>,
    /// Boundaries to make durable.
    pub plans: Vec<Key>,
    /// Batches of segments that are not committed yet, after those: a swap that is made anyway makes them durable, and then
    /// their segments wait for none.
    pub ahead: Vec<Key>,
    /// How far each stream can be acknowledged.
    pub acknowledge: Vec<(String, u64)>,
    /// Some batch's acknowledgement is among them: they are worth a request.
    pub progress: bool,
    /// Batches, or pages, wait only because so much is finished and not acknowledged.
    pub blocked: bool,
}

/// How much there is room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Batches that the writers can take at once.
    pub writers: usize,
    /// Sequences after the end of the log that are planned ahead, each as a batch by itself. 0 while several come at a time:
    /// they would better share one.
    pub ahead: u64,
}

/// When a read of the log began and ended, on the clock of the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogRead {
    /// When the request was sent.
    pub began: Duration,
    /// When its answer was here.
    pub ended: Duration,
}

/// What the decision is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Take on everything.
    Working,
    /// Finish what was started or planned, and take on nothing else.
    Draining,
}

impl Schedule {
    /// A successor's schedule: all that its predecessor may have sent comes first.
    pub fn in_doubt(cursor: &Cursor, log: &Log, accepts: &dyn Fn(&str) -> bool) -> Self {
        let mut doubt = BTreeSet::new();
        for (_, stream) in streams(log, accepts) {
            let from = begins(cursor, log, stream);
            let planned = cursor.planned(stream).filter(|plan| plan.low >= from);
            doubt.extend(planned.map(|plan| (stream.to_owned(), plan)));
        }
        Schedule {
            work: BTreeMap::new(),
            doubt,
            ..Schedule::after(cursor)
        }
    }

    /// The schedule of an owner that opened the cursor so, and sees no log yet.
    pub fn after(cursor: &Cursor) -> Self {
        let planned = cursor.streams.iter();
        let last = planned.filter_map(|(stream, of)| Some((stream.clone(), of.planned.back()?.high)));
        Schedule {
            inherited: last.collect(),
            ..Schedule::default()
        }
    }

    /// Limits the schedule to sequences below `until`: it plans no further batches there, and finishes those already planned.
    #[must_use]
    pub fn until(self, until: Option<u64>) -> Self {
        Schedule { until, ..self }
    }

    /// Whether a predecessor may have sent this batch.
    pub fn is_in_doubt(&self, key: &Key) -> bool {
        self.doubt.contains(key)
    }

    /// Whether a predecessor planned this batch.
    pub fn is_inherited(&self, key: &Key) -> bool {
        if planted::is(Bug::InheritedSentAsNew) {
            return self.doubt.contains(key);
        }
        let (stream, plan) = key;
        let inherited = self.inherited.get(stream).is_some_and(|last| plan.high <= *last);
        inherited && self.unsent_from.is_none_or(|from| plan.low < from)
    }

    /// Notes a read of the log. `outlived_at`: when the leases of all earlier owners have run out.
    ///
    /// An earlier owner sends only what it has seen in the log while its lease ran. So a read that began after that shows all
    /// that earlier owners can have sent. From then on, what they planned ahead of it counts as this owner's plans. A read that
    /// began before may miss a segment that an earlier owner saw later, and sent.
    pub fn log_read(&mut self, log: &Log, read: LogRead, outlived_at: Duration) {
        let seen_at = match planted::is(Bug::ReadBeforeLeaseRanOut) {
            true => read.ended,
            false => read.began,
        };
        if seen_at < outlived_at || self.unsent_from.is_some() {
            return;
        }
        self.unsent_from = Some(log.next_sequence);
        self.doubt.retain(|(_, plan)| plan.low < log.next_sequence);
    }

    /// Whether the cursor has plans ahead of the log that an earlier owner made and may still send.
    pub fn inherits_ahead(&self, cursor: &Cursor, log: &Log) -> bool {
        cursor.streams.iter().any(|(stream, of)| {
            let mut ahead = of.planned.iter().filter(|plan| plan.low >= log.next_sequence);
            ahead.any(|plan| self.is_inherited(&(stream.clone(), *plan)))
        })
    }

    /// How many batches are still to be replayed before anything new.
    pub fn doubtful(&self) -> usize {
        self.doubt.len()
    }

    /// How many batches are being worked on.
    pub fn running(&self) -> usize {
        self.work.values().filter(|p| **p == Progress::Running).count()
    }

    /// A batch was started.
    pub fn started(&mut self, key: Key) {
        self.work.insert(key, Progress::Running);
    }

    /// A batch is in the sink.
    pub fn finished(&mut self, key: &Key) {
        if let Some(progress) = self.work.get_mut(key) {
            *progress = Progress::Done;
        }
        self.doubt.remove(key);
    }

    /// The cursor is durable: what lies below its positions is forgotten.
    pub fn acknowledged(&mut self, cursor: &Cursor) {
        self.work
            .retain(|(stream, plan), _| plan.high >= cursor.next(stream));
        // Retention may have dropped what was in doubt.
        self.doubt
            .retain(|(stream, plan)| plan.high >= cursor.next(stream));
    }

    /// The last sequence of a stream that must be seen for anything to go on: the batch that comes first may be planned
    /// over more of the log than is looked at otherwise, and nothing new begins before what is in doubt is done.
    pub fn reaches(&self, cursor: &Cursor, log: &Log, stream: &str) -> Option<u64> {
        let from = begins(cursor, log, stream);
        let planned = cursor.planned(stream).find(|plan| plan.high >= from);
        let doubtful = self.doubt.iter().filter(|(of, _)| of == stream);
        let plans = planned.into_iter().chain(doubtful.map(|(_, plan)| *plan));
        plans.map(|plan| plan.high).max()
    }

    /// What to do now.
    pub fn decide(
        &self,
        cursor: &Cursor,
        log: &Log,
        accepts: &dyn Fn(&str) -> bool,
        mode: Mode,
        room: Room,
    ) -> Decision {
        let mut decision = Decision::default();
        let limit = cursor.policy.max_in_flight as usize;
        let streams = streams(log, accepts);
        let settled = !streams
            .iter()
            .any(|&(index, stream)| self.presses(log, index, stream));
        let calm = settled && mode == Mode::Working;
        let mut busy = self.running();
        for (index, stream) in streams {
            let seen = self.candidates(cursor, log, index, stream, limit);
            let paged = seen.end < self.end(cursor, log, stream);
            self.acknowledge(&mut decision, cursor, log, stream, &seen);
            let found = seen.candidates;
            let (mut waiting, mut left_open) = (0, paged || found.len() > limit);
            for candidate in found.iter().take(limit) {
                let key = (stream.to_owned(), candidate.plan);
                if self.work.contains_key(&key) {
                    continue;
                }
                waiting += 1;
                match candidate.status {
                    PlanStatus::Planned if settled || self.doubt.contains(&key) => {
                        busy += 1;
                        decision.start.push(key);
                    }
                    PlanStatus::Full
                        if calm
                            && planted::is(Bug::LargeNotPlanned)
                            && cursor.policy.is_large(candidate.size) =>
                    {
                        decision.start.push(key);
                    }
                    PlanStatus::Full if calm => {
                        busy += 1;
                        decision.plans.push(key);
                    }
                    // More could still join it: it goes only when a writer would be idle otherwise.
                    PlanStatus::Open if calm && busy < room.writers => {
                        busy += 1;
                        decision.plans.push(key);
                    }
                    status => left_open |= status != PlanStatus::Planned,
                }
            }
            decision.blocked |= (found.len() > limit || paged) && waiting == 0;
            if calm && !left_open && self.until.is_none() {
                plan_ahead(&mut decision, cursor, log, stream, room.ahead);
            }
        }
        if planted::is(Bug::PlanAfterSink) {
            decision.start.append(&mut decision.plans.clone());
        }
        decision
    }

    /// Whether something of this stream is in doubt and can be sent: it is committed, and there is a part of it, or it is not
    /// seen whether there is.
    fn presses(&self, log: &Log, index: u32, stream: &str) -> bool {
        let doubtful = self.doubt.iter().filter(|(of, _)| of == stream);
        let mut committed = doubtful.filter(|(_, plan)| plan.low < log.next_sequence);
        committed.any(|(_, plan)| {
            let part = log.parts(index, plan.low).next();
            log.horizon(plan.low) <= plan.high || part.is_some_and(|(sequence, ..)| sequence <= plan.high)
        })
    }

    /// Over finished batches that are contiguous, never over a hole; sequences without a part of this
    /// stream are no hole.
    fn acknowledge(&self, decision: &mut Decision, cursor: &Cursor, log: &Log, stream: &str, seen: &Seen) {
        let (finished, next) = self.finished_to(stream, seen);
        let moves = next > cursor.next(stream);
        // A stream that is taken and has no position gets one: the garbage collector keeps what comes after it.
        if moves || (!cursor.streams.contains_key(stream) && !planted::is(Bug::PositionNotWritten)) {
            decision.acknowledge.push((stream.to_owned(), next));
            // Over pages without a part of this stream, too: which pages are looked at follows the position.
            decision.progress |= moves && (finished > 0 || next < log.tail_start());
        }
    }

    /// How many batches from the position on are in the sink, and the sequence that comes after them.
    fn finished_to(&self, stream: &str, Seen { candidates, end }: &Seen) -> (usize, u64) {
        let done = |plan: Plan| self.work.get(&(stream.to_owned(), plan)) == Some(&Progress::Done);
        let finished = match planted::is(Bug::AcknowledgeOverHole) {
            true => candidates
                .iter()
                .rposition(|c| done(c.plan))
                .map_or(0, |last| last + 1),
            false => candidates.iter().take_while(|c| done(c.plan)).count(),
        };
        let next = match candidates.get(finished) {
            Some(unfinished) => unfinished.plan.low,
            None => *end,
        };
        (finished, next)
    }

    /// How far a stream is in the sink without a hole; the cursor may not say so yet.
    pub fn reached(&self, cursor: &Cursor, log: &Log, index: u32, stream: &str) -> u64 {
        let seen = self.candidates(cursor, log, index, stream, cursor.policy.max_in_flight as usize);
        let (_, next) = self.finished_to(stream, &seen);
        next.max(cursor.next(stream))
    }

    /// Whether everything below [`until`](Self::until) is in the sink and known to be.
    pub fn is_complete(&self, cursor: &Cursor, log: &Log, accepts: &dyn Fn(&str) -> bool) -> bool {
        let mut streams = streams(log, accepts).into_iter();
        self.until.is_some()
            && streams.all(|(index, stream)| {
                self.reached(cursor, log, index, stream) >= self.end(cursor, log, stream)
            })
    }

    /// The sequence after the last one of a stream that may be worked on.
    fn end(&self, cursor: &Cursor, log: &Log, stream: &str) -> u64 {
        let Some(until) = self.until else {
            return log.next_sequence;
        };
        let planned = cursor.planned(stream).last().map_or(0, |last| last.high + 1);
        until.max(planned).min(log.next_sequence)
    }

    /// Returns one more than `limit`, so that the caller sees whether there are more. Leaves out a batch that could still change
    /// when more of the log is loaded.
    fn candidates(&self, cursor: &Cursor, log: &Log, index: u32, stream: &str, limit: usize) -> Seen {
        let (from, log_end) = (begins(cursor, log, stream), self.end(cursor, log, stream));
        let parts = log.parts(index, from).map(|(sequence, _, part)| {
            (
                sequence,
                Size {
                    records: part.records,
                    raw_bytes: part.raw_len,
                },
            )
        });
        let parts = parts.take_while(|(sequence, _)| *sequence < log_end);
        let mut found = candidates(&cursor.policy, cursor.planned(stream), parts, limit + 1);
        let horizon = match planted::is(Bug::HorizonIgnored) {
            true => log_end,
            false => log.horizon(from).min(log_end),
        };
        let mut end = horizon.max(from);
        if end < log_end
            && let Some(last) = found.last()
            // A group that fills everything that is loaded is large enough.
            && (last.plan.high >= end || (last.status == PlanStatus::Open && found.len() > 1))
        {
            end = last.plan.low;
            found.pop();
        } else if found.len() > limit
            && let Some(last) = found.last()
        {
            end = last.plan.high + 1;
        }
        Seen {
            candidates: found,
            end,
        }
    }

    /// Plans ahead that nobody has begun with, since their segments are not in this owner's log: who ends takes them back.
    /// What an earlier owner planned, it may have sent, unless [`log_read`](Self::log_read) has shown that it has not.
    pub fn unsent(&self, cursor: &Cursor, log: &Log) -> Vec<Key> {
        let all = planted::is(Bug::WithdrawnInDoubt);
        let plans = cursor.streams.iter().flat_map(|(stream, of)| {
            let plans = of.planned.iter().map(|plan| (stream.clone(), *plan));
            plans.filter(|key| key.1.low >= log.next_sequence && (all || !self.is_inherited(key)))
        });
        plans.collect()
    }
}

/// Plans the sequences after the end of the log, as far as they are not planned.
fn plan_ahead(decision: &mut Decision, cursor: &Cursor, log: &Log, stream: &str, ahead: u64) {
    let planned = cursor.planned(stream).last().map_or(0, |last| last.high + 1);
    let end = log.next_sequence.saturating_add(ahead);
    for sequence in planned.max(log.next_sequence)..end {
        let plan = Plan {
            low: sequence,
            high: sequence,
        };
        decision.ahead.push((stream.to_owned(), plan));
    }
}

fn streams<'a>(log: &'a Log, accepts: &dyn Fn(&str) -> bool) -> Vec<(u32, &'a str)> {
    let numbered = (0_u32..).zip(&log.streams);
    numbered
        .map(|(i, s)| (i, s.name.as_str()))
        .filter(|(_, name)| accepts(name))
        .collect()
}

/// A stream's batches to be, as far as the log is seen.
struct Seen {
    candidates: Vec<Candidate>,
    /// They say all about the sequences below this one.
    end: u64,
}

/// Where a stream's batches begin: at its position, or after a planned batch of which retention dropped a part. Some of it
/// may have been sent: under its tokens the rest would be taken for that, under others it could be there twice. So it is
/// lost as a whole.
pub fn begins(cursor: &Cursor, log: &Log, stream: &str) -> u64 {
    let cut = cursor
        .planned(stream)
        .take_while(|plan| plan.low < log.first_sequence);
    cut.last().map_or(cursor.next(stream), |plan| plan.high + 1)
}

#[cfg(test)]
mod tests;
