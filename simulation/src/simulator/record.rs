//! What happened in a run: the trace, the counts, and the first violation. Everything that happens is told here in the one
//! order in which it happened.

use clap::ValueEnum;
use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use tokio::time::Instant;

/// What is promised, and checked while a seed runs and at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Oracle {
    /// The log is one sequence without holes that never changes, and all that it refers to is in the store.
    Log,
    /// What was acknowledged to a client is in the log where the answer said; what was refused is not; nothing is there
    /// twice.
    Answer,
    /// The messages of a client to a stream are in the log, and in the table, in the order in which they were accepted.
    Order,
    /// No row is twice in a table, by its identity, and none has an identity that is another's in the log.
    ExactlyOnce,
    /// The owner of a cursor sends no row as if for the first time that anybody has sent before.
    Announced,
    /// Cursors only go forward, one owner after another, and over nothing that is not in the table.
    Cursor,
    /// Nothing is trimmed or deleted that somebody needs.
    Needed,
    /// When nothing goes wrong any more, all that is in the log gets into the table, and no garbage is left.
    Liveness,
    /// Nobody gives up for a reason that there is not.
    Failure,
    /// Nothing panics.
    Panic,
}

/// What a run is counted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Event {
    /// Messages that were acknowledged.
    Acknowledged,
    /// Messages whose sender never got an answer.
    Unanswered,
    /// Messages of which the producer said that it does not know.
    UnknownOutcome,
    /// Messages that were not accepted.
    Refused,
    /// Rows that were in the table already when they landed.
    RowsRecognised,
    /// Writes of a chunk, or of a piece of one, that the table refused for good.
    ChunksRefused,
    /// Rows that became dead letters.
    DeadLetters,
    /// Producers that finished what they had accepted.
    ProducersDrained,
    /// Producers that were killed.
    ProducersKilled,
    /// Stalls of producers.
    ProducersStalled,
    /// Owners of cursors that were stopped.
    OwnersStopped,
    /// Owners that were killed.
    OwnersKilled,
    /// Stalls of owners.
    OwnersStalled,
    /// Collectors that were killed.
    CollectorsKilled,
    /// Stalls of garbage collectors.
    CollectorsStalled,
    /// Cursors taken from an owner whose lease had run out.
    TakeoversByLease,
    /// Cursors taken from an owner whose lease was running.
    TakeoversByForce,
    /// Cursors taken that were given back with batches in doubt.
    TakeoversOfAbandoned,
    /// Cursors taken with plans of what was not committed yet.
    TakenOverAhead,
    /// Openings of a cursor that was released.
    CleanOpenings,
    /// Rules that changed.
    RulesChanged,
    /// Writes that never reached the store.
    WritesLost,
    /// Writes that landed, or were refused, and were reported as failed.
    WritesUnreported,
    /// Writes that landed after they were reported as failed.
    WritesLate,
    /// Requests that were never answered.
    RequestsHung,
    /// Reads that failed.
    ReadsFailed,
    /// Swaps of manifests and cursors that lost.
    SwapsLost,
    /// Outages of the store.
    StoreOutages,
    /// Outages of the sink.
    SinkOutages,
    /// Writes to the sink that landed and were reported as failed.
    SinkUnreported,
    /// Writes to the sink that landed after they were reported as failed.
    SinkLate,
    /// Writes to the sink that failed.
    SinkFailed,
    /// Writes to the sink that broke off between two partitions.
    SinkBroken,
    /// Tokens that a partition recorded and whose rows it never got.
    TokensPoisoned,
    /// Tokens that a partition forgot.
    TokensForgotten,
    /// Requests of earlier generations that the sink ended.
    SettledByEnding,
    /// Requests of earlier generations that an owner waited for.
    SettledByWaiting,
    /// Cursors moved by an operator.
    Resets,
    /// Parts left out that no batch was planned over.
    Skips,
    /// Parts left out of planned batches.
    SkipsOfPlanned,
    /// Consumers removed.
    Removals,
    /// Consumers that began again after their removal.
    BegunAgain,
    /// Cursors deleted by hand.
    CursorsDeleted,
    /// Jumps of a machine's clock.
    ClockJumps,
    /// Pages that came into a log.
    PagesSealed,
    /// Segments uploaded again for the orphan floor.
    SegmentsUploadedAgain,
    /// Producers that a manifest had forgotten.
    ProducersForgotten,
    /// Commits that were found in the table.
    CommitsFound,
    /// Sequences that left a log.
    SequencesTrimmed,
    /// Sequences that retention dropped before a consumer had read them.
    SequencesDroppedUnread,
    /// Segments deleted.
    SegmentsDeleted,
    /// Pages deleted.
    PagesDeleted,
}

/// How often each [`Event`] happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts(Vec<u64>);

impl Default for Counts {
    fn default() -> Self {
        Counts(vec![0; Event::value_variants().len()])
    }
}

impl Counts {
    /// How often it happened.
    pub fn of(&self, event: Event) -> u64 {
        self.0[event as usize]
    }

    /// Adds those of another run.
    pub fn add(&mut self, other: &Counts) {
        for (mine, others) in self.0.iter_mut().zip(&other.0) {
            *mine += others;
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for event in Event::value_variants() {
            writeln!(f, "{:>12} {}", self.of(*event), Name(event))?;
        }
        Ok(())
    }
}

/// A variant's name, as on the command line.
struct Name<'a, T>(&'a T);

impl<T: ValueEnum> fmt::Display for Name<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0.to_possible_value();
        f.write_str(value.as_ref().map_or("?", |value| value.get_name()))
    }
}

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which one.
    pub oracle: Oracle,
    /// How.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", Name(&self.oracle), self.detail)
    }
}

/// All that happened in a run, in order: equal for equal seeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// How many events there are.
    pub events: u64,
    /// Of all their lines.
    pub hash: u64,
    /// The lines, if they were to be kept.
    pub lines: Vec<String>,
}

/// More events than any run has: beyond, something turns in a circle.
const EVENTS_MAX: u64 = 2_000_000;

pub(crate) struct Record {
    begun: Instant,
    keep: bool,
    state: Mutex<State>,
    violated: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    line: String,
    hasher: DefaultHasher,
    events: u64,
    lines: Vec<String>,
    requests: u64,
    counts: Counts,
    violation: Option<Violation>,
}

impl Record {
    pub(crate) fn new(keep: bool) -> Record {
        Record {
            begun: Instant::now(),
            keep,
            state: Mutex::default(),
            violated: watch::Sender::new(false),
        }
    }

    /// The time since the run began.
    pub(crate) fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Somebody did something.
    pub(crate) fn event(&self, actor: &str, what: fmt::Arguments<'_>) {
        use fmt::Write;
        let now_ms = self.elapsed_ms();
        let mut state = self.state();
        let mut line = std::mem::take(&mut state.line);
        line.clear();
        // A String takes everything.
        let _ = write!(line, "{now_ms:>8} {actor}: {what}");
        state.hasher.write(line.as_bytes());
        state.hasher.write_u8(b'\n');
        state.events += 1;
        if self.keep {
            state.lines.push(line.clone());
        }
        state.line = line;
        let endless = state.events == EVENTS_MAX;
        drop(state);
        if endless {
            self.violated(Oracle::Liveness, format!("{EVENTS_MAX} events and no end"));
        }
    }

    /// The number of the next request to the store.
    pub(crate) fn request(&self) -> u64 {
        let mut state = self.state();
        state.requests += 1;
        state.requests
    }

    pub(crate) fn count(&self, event: Event) {
        self.add(event, 1);
    }

    pub(crate) fn add(&self, event: Event, times: u64) {
        self.state().counts.0[event as usize] += times;
    }

    /// A promise is broken: the first ends the run.
    pub(crate) fn violated(&self, oracle: Oracle, detail: String) {
        let mut state = self.state();
        if state.violation.is_none() {
            let violation = Violation { oracle, detail };
            if self.keep {
                state.lines.push(format!("violated: {violation}"));
            }
            state.violation = Some(violation);
            drop(state);
            self.violated.send_replace(true);
        }
    }

    /// Waits for the first violation.
    pub(crate) async fn violation(&self) {
        // The sender lives in `self`.
        let _ = self.violated.subscribe().wait_for(|violated| *violated).await;
    }

    /// All of it; nothing is left.
    pub(crate) fn take(&self) -> (Trace, Counts, Option<Violation>) {
        let state = std::mem::take(&mut *self.state());
        let trace = Trace {
            events: state.events,
            hash: state.hasher.finish(),
            lines: state.lines,
        };
        (trace, state.counts, state.violation)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").finish_non_exhaustive()
    }
}
