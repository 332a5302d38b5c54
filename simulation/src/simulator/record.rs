//! The record of a run: the trace, the counts, and the first violation, in the order in which events happen.

use clap::ValueEnum;
use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use tokio::time::Instant;

/// The promises that are checked during a run and at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Oracle {
    /// The log is one sequence without holes that never changes, and the store has every object that it refers to.
    Log,
    /// An acknowledged message is in the log at the reported position; a refused one is not; nothing occurs twice.
    Answer,
    /// The messages of a client to a stream are in the log, and in the table, in the order of acceptance.
    Order,
    /// No row identity occurs twice in a table, and each belongs to the right record in the log.
    ExactlyOnce,
    /// The owner of a cursor never sends a row as new that anybody has sent before.
    Announced,
    /// Cursors only move forward, one owner after another, and never past rows that are missing from the table.
    Cursor,
    /// Nothing is trimmed or deleted that anybody still needs.
    Needed,
    /// After all faults have ended, everything in the log reaches the table, and no garbage is left.
    Liveness,
    /// No process gives up without a valid reason.
    Failure,
    /// No two consumers have one table, unless one of them was told to share it.
    Tables,
    /// Nothing panics.
    Panic,
}

/// The counted events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Event {
    /// Acknowledged messages.
    Acknowledged,
    /// Messages without an answer.
    Unanswered,
    /// Messages with an unknown outcome.
    UnknownOutcome,
    /// Messages that were refused.
    Refused,
    /// Rows that the table already had when they landed.
    RowsRecognised,
    /// Chunks or pieces that the table refused permanently.
    ChunksRefused,
    /// Rows that became dead letters.
    DeadLetters,
    /// Acknowledged rows that repeat others.
    RowsRepeated,
    /// Snapshots of keys.
    KeysStored,
    /// Snapshots of keys that garbage collection deleted.
    KeysDeleted,
    /// Other keys or windows that came into force.
    KeysChanged,
    /// Producers that finished everything they had accepted.
    ProducersDrained,
    /// Producers that were killed.
    ProducersKilled,
    /// Stalls of producers.
    ProducersStalled,
    /// Owners that were stopped.
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
    /// Cursors taken from an owner whose lease was still running.
    TakeoversByForce,
    /// Cursors taken after a release with batches in doubt.
    TakeoversOfAbandoned,
    /// Cursors taken with plans beyond the committed log.
    TakenOverAhead,
    /// Openings of a cleanly released cursor.
    CleanOpenings,
    /// Openings of a cleanly released cursor with plans beyond the log of the owner that released it.
    CleanOpeningsAhead,
    /// Changes of the batching policy.
    RulesChanged,
    /// Writes that never reached the store.
    WritesLost,
    /// Writes that landed or were refused, and were reported as failed.
    WritesUnreported,
    /// Writes that landed after they were reported as failed.
    WritesLate,
    /// Requests without an answer.
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
    /// Writes to the sink that failed between two partitions.
    SinkBroken,
    /// Tokens that a partition recorded without the rows.
    TokensPoisoned,
    /// Tokens that a partition forgot.
    TokensForgotten,
    /// Requests of earlier generations that the sink ended.
    SettledByEnding,
    /// Requests of earlier generations that an owner waited for.
    SettledByWaiting,
    /// Cursors moved by an operator.
    Resets,
    /// Skips of parts without a planned batch.
    Skips,
    /// Skips of parts in a planned batch.
    SkipsOfPlanned,
    /// Consumers removed.
    Removals,
    /// Starts of consumers whose table another one had.
    ConsumersRefused,
    /// Consumers that restarted after their removal.
    BegunAgain,
    /// Cursors deleted by hand.
    CursorsDeleted,
    /// Jumps of a machine's clock.
    ClockJumps,
    /// Pages added to a log.
    PagesSealed,
    /// Segments uploaded again because of the orphan floor.
    SegmentsUploadedAgain,
    /// Producers that a manifest had forgotten.
    ProducersForgotten,
    /// Commits found in the producer table.
    CommitsFound,
    /// Sequences trimmed from a log.
    SequencesTrimmed,
    /// Sequences that retention dropped before a consumer read them.
    SequencesDroppedUnread,
    /// Segments deleted.
    SegmentsDeleted,
    /// Pages deleted.
    PagesDeleted,
}

/// The count of each [`Event`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Counts(Vec<u64>);

impl Default for Counts {
    fn default() -> Self {
        Counts(vec![0; Event::value_variants().len()])
    }
}

impl Counts {
    /// The count of this event.
    pub fn of(&self, event: Event) -> u64 {
        self.0[event as usize]
    }

    /// Adds the counts of another run.
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

/// A variant's name on the command line.
struct Name<'a, T>(&'a T);

impl<T: ValueEnum> fmt::Display for Name<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0.to_possible_value();
        f.write_str(value.as_ref().map_or("?", |value| value.get_name()))
    }
}

/// A violated promise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The promise.
    pub oracle: Oracle,
    /// The details.
    pub detail: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", Name(&self.oracle), self.detail)
    }
}

/// The events of a run in order: equal for equal seeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// Number of events.
    pub events: u64,
    /// Hash of all lines.
    pub hash: u64,
    /// The lines, if kept.
    pub lines: Vec<String>,
}

/// More events than any normal run has: beyond this, something loops.
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

    /// Records an action of an actor.
    pub(crate) fn event(&self, actor: &str, what: fmt::Arguments<'_>) {
        use fmt::Write;
        let now_ms = self.elapsed_ms();
        let mut state = self.state();
        let mut line = std::mem::take(&mut state.line);
        line.clear();
        // Writing to a String cannot fail.
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

    /// Records a violation; the first one ends the run.
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

    /// Takes the whole record.
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
