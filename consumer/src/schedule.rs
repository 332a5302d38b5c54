//! Decides the next actions from the durable cursor, the log and the work in flight. Pure: it starts nothing and waits
//! for nothing. Public because the model check of the protocols explores its decisions.

use millpond_manifest::cursor::Plan;
use millpond_manifest::plan::{Candidate, PlanStatus, Size, candidates};
use millpond_manifest::{BatchingPolicy, Cursor, Log};
use std::collections::{BTreeMap, BTreeSet};

/// A batch of a stream.
pub type Key = (String, Plan);

/// The progress of a batch that was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Progress {
    Running,
    Done,
}

/// The work in flight, and the batches that must be done before anything new.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Schedule {
    work: BTreeMap<Key, Progress>,
    doubt: BTreeSet<Key>,
    /// For each stream, the last sequence that was planned when this owner opened the cursor.
    inherited: BTreeMap<String, u64>,
    /// Streams that this owner gave a position after others had one, and the highest of these.
    late: BTreeMap<String, u64>,
    /// The schedule plans nothing from this sequence on.
    until: Option<u64>,
}

/// The actions for the driver to take now.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Decision {
    /// Batches to start: their boundaries are durable.
    pub start: Vec<Key>,
    /// Boundaries to make durable.
    pub plans: Vec<Key>,
    /// Further batches, of segments that are not committed yet. Any swap makes them durable, and their segments then
    /// wait for no swap.
    pub ahead: Vec<Key>,
    /// The new acknowledged position of each stream.
    pub acknowledge: Vec<(String, u64)>,
    /// True if the acknowledgements include a finished batch and justify a request.
    pub progress: bool,
    /// True if batches or pages wait only because too many finished batches are not acknowledged.
    pub blocked: bool,
}

/// The capacity for new work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// The number of batches that the writers can take at once.
    pub writers: usize,
    /// The number of sequences after the end of the log to plan ahead, each as a separate batch. 0 while several
    /// segments come at a time: they should share a batch.
    pub ahead: u64,
}

/// The purpose of the decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Start all work.
    Working,
    /// Finish the batches that were started or planned, and start no other.
    Draining,
}

impl Schedule {
    /// A successor's schedule: the batches that its predecessor may have sent come first.
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

    /// The schedule of an owner that opened this cursor and has not read the log.
    pub fn after(cursor: &Cursor) -> Self {
        let planned = cursor.streams.iter();
        let last = planned.filter_map(|(stream, of)| Some((stream.clone(), of.planned.back()?.high)));
        Schedule {
            inherited: last.collect(),
            ..Schedule::default()
        }
    }

    /// Limits the schedule to sequences below `until`: it plans no further batches there, and finishes those already
    /// planned.
    #[must_use]
    pub fn until(self, until: Option<u64>) -> Self {
        Schedule { until, ..self }
    }

    /// Returns true if a predecessor may have sent this batch.
    pub fn is_in_doubt(&self, key: &Key) -> bool {
        self.doubt.contains(key)
    }

    /// Returns true if a predecessor planned this batch.
    pub fn is_inherited(&self, key: &Key) -> bool {
        let (stream, plan) = key;
        self.inherited.get(stream).is_some_and(|last| plan.high <= *last)
    }

    /// The number of batches in this log to resend before anything new.
    pub fn doubtful(&self, log: &Log) -> usize {
        let committed = |(_, plan): &&Key| plan.low < log.next_sequence;
        self.doubt.iter().filter(committed).count()
    }

    /// The number of batches in flight.
    pub fn running(&self) -> usize {
        self.work.values().filter(|p| **p == Progress::Running).count()
    }

    /// Records that a batch was started.
    pub fn started(&mut self, key: Key) {
        self.work.insert(key, Progress::Running);
    }

    /// Records that a batch is in the sink.
    pub fn finished(&mut self, key: &Key) {
        if let Some(progress) = self.work.get_mut(key) {
            *progress = Progress::Done;
        }
        self.doubt.remove(key);
    }

    /// Forgets the work below the positions of the durable cursor, and learns which streams came late to it.
    pub fn acknowledged(&mut self, before: &Cursor, cursor: &Cursor) {
        let highest = highest(before);
        let new = cursor
            .streams
            .keys()
            .filter(|stream| highest > 0 && !before.streams.contains_key(*stream));
        self.late.extend(new.map(|stream| (stream.clone(), highest)));
        self.work
            .retain(|(stream, plan), _| plan.high >= cursor.next(stream));
        // Retention may have trimmed batches in doubt.
        self.doubt
            .retain(|(stream, plan)| plan.high >= cursor.next(stream));
    }

    /// The last sequence of a stream that the log must show before any work can continue. The first batch may be
    /// planned over more of the log than the two loaded pages, and nothing new starts before the batches in doubt are
    /// done.
    pub fn reaches(&self, cursor: &Cursor, log: &Log, stream: &str) -> Option<u64> {
        let from = begins(cursor, log, stream);
        let planned = cursor.planned(stream).find(|plan| plan.high >= from);
        let doubtful = self.doubt.iter().filter(|(of, _)| of == stream);
        let plans = planned.into_iter().chain(doubtful.map(|(_, plan)| *plan));
        plans.map(|plan| plan.high).max()
    }

    /// Returns the actions to take now.
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
            let held = self.held(cursor, log, stream);
            let free = limit.saturating_sub(held);
            let (mut waiting, mut left_open) = (0, paged || found.len() > free);
            for candidate in found.iter().take(free) {
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
                    PlanStatus::Full if calm => {
                        busy += 1;
                        decision.plans.push(key);
                    }
                    // The batch may still grow, so it starts only if a writer would be idle otherwise.
                    PlanStatus::Open if calm && busy < room.writers => {
                        busy += 1;
                        decision.plans.push(key);
                    }
                    status => left_open |= status != PlanStatus::Planned,
                }
            }
            // An acknowledgement does not move past the batches that are held.
            decision.blocked |= held == 0 && (found.len() > limit || paged) && waiting == 0;
            if calm && !left_open && self.until.is_none() {
                plan_ahead(&mut decision, cursor, log, stream, room.ahead);
            }
        }
        decision
    }

    /// Returns true if a batch of this stream is in doubt and can be sent: it is committed, and it has a part of the
    /// stream or the loaded pages do not show whether it has.
    fn presses(&self, log: &Log, index: u32, stream: &str) -> bool {
        let doubtful = self.doubt.iter().filter(|(of, _)| of == stream);
        let mut committed = doubtful.filter(|(_, plan)| plan.low < log.next_sequence);
        committed.any(|(_, plan)| {
            let part = log.parts(index, plan.low).next();
            log.horizon(plan.low) <= plan.high || part.is_some_and(|(sequence, ..)| sequence <= plan.high)
        })
    }

    /// Acknowledges contiguous finished batches, never past a hole. Sequences without a part of this stream are not
    /// holes.
    fn acknowledge(&self, decision: &mut Decision, cursor: &Cursor, log: &Log, stream: &str, seen: &Seen) {
        let (finished, mut next) = self.finished_to(stream, seen);
        if let Some(plan) = self.compared(cursor, log, stream).next() {
            next = next.min(plan.low).max(cursor.next(stream));
        }
        let moves = next > cursor.next(stream);
        // A consumed stream without a position gets one, so that the garbage collector keeps the log from there on.
        if moves || !cursor.streams.contains_key(stream) {
            decision.acknowledge.push((stream.to_owned(), next));
            // Also acknowledge pages without a part of this stream, because the position decides which pages to load.
            decision.progress |= moves && (finished > 0 || next < log.tail_start());
        }
    }

    /// The batches in flight that retention has cut, of a stream whose rows are compared with earlier ones: later rows may be dropped
    /// because these have the first of their keys. So nothing after them is acknowledged before they are in the sink. A successor
    /// that cannot read them again ends.
    fn compared<'a>(
        &'a self,
        cursor: &Cursor,
        log: &Log,
        stream: &'a str,
    ) -> impl Iterator<Item = Plan> + 'a {
        let begins = begins(cursor, log, stream);
        let is_compared = cursor.deduplicates(stream).is_some();
        let work = self.work.iter().filter(move |_| is_compared);
        work.filter_map(move |((of, plan), progress)| {
            (of == stream && plan.low < begins && *progress == Progress::Running).then_some(*plan)
        })
    }

    /// The number of planned batches that retention has cut, and that wait for one of them to be acknowledged, running or not. They stay in
    /// the cursor, so they count as in flight: retention may cut more at any time, and the cursor has a limit of plans.
    fn held(&self, cursor: &Cursor, log: &Log, stream: &str) -> usize {
        if self.compared(cursor, log, stream).next().is_none() {
            return 0;
        }
        let begins = begins(cursor, log, stream);
        cursor
            .planned(stream)
            .take_while(|plan| plan.low < begins)
            .count()
    }

    /// Returns the number of finished batches from the position on, and the sequence after them.
    fn finished_to(&self, stream: &str, Seen { candidates, end }: &Seen) -> (usize, u64) {
        let done = |plan: Plan| self.work.get(&(stream.to_owned(), plan)) == Some(&Progress::Done);
        let finished = candidates.iter().take_while(|c| done(c.plan)).count();
        let next = match candidates.get(finished) {
            Some(unfinished) => unfinished.plan.low,
            None => *end,
        };
        (finished, next)
    }

    /// Returns the sequence up to which the sink has the stream without a hole. The cursor may not record it yet.
    pub fn reached(&self, cursor: &Cursor, log: &Log, index: u32, stream: &str) -> u64 {
        let seen = self.candidates(cursor, log, index, stream, cursor.policy.max_in_flight as usize);
        let (_, next) = self.finished_to(stream, &seen);
        next.max(cursor.next(stream))
    }

    /// Returns true if the sink has everything below [`until`](Self::until) and the cursor records it.
    pub fn is_complete(&self, cursor: &Cursor, log: &Log, accepts: &dyn Fn(&str) -> bool) -> bool {
        let mut streams = streams(log, accepts).into_iter();
        self.until.is_some()
            && streams.all(|(index, stream)| {
                self.reached(cursor, log, index, stream) >= self.end(cursor, log, stream)
            })
    }

    /// The end (exclusive) of the sequences of a stream that the schedule may work on.
    fn end(&self, cursor: &Cursor, log: &Log, stream: &str) -> u64 {
        let Some(until) = self.until else {
            return log.next_sequence;
        };
        let planned = cursor.planned(stream).last().map_or(0, |last| last.high + 1);
        until.max(planned).min(log.next_sequence)
    }

    /// Returns up to `limit` + 1 candidates, so that the caller sees whether there are more. Leaves out a batch that
    /// could still change when more of the log is loaded, and one that the log does not have to its end.
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
        let mut found = self.batches(cursor, stream, parts, limit + 1);
        let horizon = log.horizon(from).min(log_end);
        let mut end = horizon.max(from);
        if let Some(last) = found.last()
            && last.plan.high >= log.next_sequence
        {
            // Its owner knew more of the log. The first part of a batch must not pass for all of it.
            end = last.plan.low;
            found.pop();
        } else if end < log_end
            && let Some(last) = found.last()
            // A group that fills all loaded pages is large enough.
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

    /// Cuts a stream's parts into at most `limit` batches. A collection that read the cursor before the stream had a position may
    /// still trim the log up to the positions of the others, and a batch over the new start of the log is lost as a whole. So each
    /// part below them is a batch.
    fn batches(
        &self,
        cursor: &Cursor,
        stream: &str,
        parts: impl Iterator<Item = (u64, Size)>,
        limit: usize,
    ) -> Vec<Candidate> {
        let alone_below = match cursor.streams.contains_key(stream) {
            true => self.late.get(stream).copied().unwrap_or(0),
            false => highest(cursor),
        };
        let mut parts = parts.peekable();
        let mut found = Vec::new();
        if parts.peek().is_some_and(|(sequence, _)| *sequence < alone_below) {
            let alone = BatchingPolicy {
                batch_records: 0,
                ..cursor.policy.clone()
            };
            let below = std::iter::from_fn(|| parts.next_if(|(sequence, _)| *sequence < alone_below));
            found = candidates(&alone, cursor.planned(stream), below, limit);
        }
        if found.len() < limit {
            let left = limit - found.len();
            found.extend(candidates(&cursor.policy, cursor.planned(stream), parts, left));
        }
        found
    }

    /// Plans ahead that this owner made and has not started, because their segments are not in its log: an owner that
    /// ends withdraws them. A predecessor may send its own plans at any time, because clocks alone tell it that its lease
    /// has run out. So these stay, and every later owner sends them as planned.
    pub fn unsent(&self, cursor: &Cursor, log: &Log) -> Vec<Key> {
        let plans = cursor.streams.iter().flat_map(|(stream, of)| {
            let inherited = self.inherited.get(stream);
            let own = inherited.map_or(0, |last| last + 1).max(log.next_sequence);
            let unsent = of.planned.iter().filter(move |plan| plan.low >= own);
            unsent.map(|plan| (stream.clone(), *plan))
        });
        plans.collect()
    }
}

/// A stream with this many plans gets none ahead of the log. A batch that takes long keeps all plans after it in the cursor, also those of
/// sequences without a part of the stream, and the cursor has a limit of plans.
const PLANS_BEFORE_AHEAD: usize = 256;

/// Plans the sequences after the end of the log that have no plan yet.
fn plan_ahead(decision: &mut Decision, cursor: &Cursor, log: &Log, stream: &str, ahead: u64) {
    if cursor.planned(stream).count() >= PLANS_BEFORE_AHEAD {
        return;
    }
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

/// The highest position of any stream.
fn highest(cursor: &Cursor) -> u64 {
    cursor
        .streams
        .values()
        .map(|stream| stream.next)
        .max()
        .unwrap_or(0)
}

fn streams<'a>(log: &'a Log, accepts: &dyn Fn(&str) -> bool) -> Vec<(u32, &'a str)> {
    let numbered = (0_u32..).zip(&log.streams);
    numbered
        .map(|(i, s)| (i, s.name.as_str()))
        .filter(|(_, name)| accepts(name))
        .collect()
}

/// A stream's candidate batches, as far as the log is loaded.
struct Seen {
    candidates: Vec<Candidate>,
    /// The candidates cover all sequences below this one.
    end: u64,
}

/// The start of a stream's batches: its position, or the end of a planned batch that retention trimmed in part. The
/// predecessor may have sent some of that batch. Under the same tokens the sink would take the rest for a duplicate;
/// under others it could insert rows twice. So the whole batch is lost.
pub fn begins(cursor: &Cursor, log: &Log, stream: &str) -> u64 {
    let cut = cursor
        .planned(stream)
        .take_while(|plan| plan.low < log.first_sequence);
    cut.last().map_or(cursor.next(stream), |plan| plan.high + 1)
}
