//! Every sent message: the answer to its client, and its position in the log.

use super::record::{Oracle, Record};
use super::repetitions::Part;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A position in a shard's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) shard: u32,
    pub(crate) sequence: u64,
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of shard {:04}", self.sequence, self.shard)
    }
}

/// The answer to a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Committed(Position),
    NotAppended,
    Unknown,
}

#[derive(Debug, Default)]
struct Message {
    /// `None`: no answer yet, or never.
    answer: Option<Answer>,
    position: Option<Position>,
}

/// The wire form of a message: client name, number and record count.
pub(crate) fn message(client: &str, number: u64, records: u64) -> String {
    format!("{client}:{number}:{records}")
}

/// The client and number of a message.
pub(crate) fn sender(message: &str) -> (&str, u64) {
    let mut parts = message.split(':');
    let client = parts.next().unwrap_or_default();
    (
        client,
        parts.next().and_then(|part| part.parse().ok()).unwrap_or(0),
    )
}

/// The rows of a message.
pub(crate) fn rows(message: &str) -> impl Iterator<Item = String> {
    let records = message.rsplit(':').next().and_then(|part| part.parse().ok());
    (0..records.unwrap_or(0_u64)).map(move |row| format!("{message}:{row}"))
}

pub(crate) struct Ledger {
    record: Arc<Record>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    messages: BTreeMap<String, Message>,
    /// For each client and stream, the last message in the log.
    last: BTreeMap<(String, String), u64>,
    /// The rows of each part of a segment, by shard, stream and sequence. A row's index is its record's number.
    parts: BTreeMap<(u32, String, u64), Arc<Vec<String>>>,
    /// The times of reception of these rows.
    received: BTreeMap<(u32, String, u64), Arc<Received>>,
}

/// When the messages of a part were received, in unix microseconds.
#[derive(Debug, Default)]
pub(crate) struct Received {
    /// The time of each message.
    pub(crate) messages_us: Vec<i64>,
    /// The time of each row.
    pub(crate) rows_us: Vec<i64>,
}

/// A message in a segment.
pub(crate) struct Stored {
    pub(crate) text: String,
    pub(crate) received_at_us: i64,
}

impl Ledger {
    pub(crate) fn new(record: Arc<Record>) -> Arc<Ledger> {
        Arc::new(Ledger {
            record,
            state: Mutex::default(),
        })
    }

    pub(crate) fn sent(&self, message: &str) {
        self.state()
            .messages
            .insert(message.to_owned(), Message::default());
    }

    /// Records the answer to a client, which must be true.
    pub(crate) fn answered(&self, message: &str, answer: Answer) {
        let mut state = self.state();
        let Some(known) = state.messages.get_mut(message) else {
            return;
        };
        known.answer = Some(answer);
        let position = known.position;
        drop(state);
        match (answer, position) {
            (Answer::Committed(told), Some(found)) if told == found => {}
            (Answer::Committed(told), found) => self.record.violated(
                Oracle::Answer,
                format!("{message} was acknowledged at {told}, and is at {found:?}"),
            ),
            (Answer::NotAppended, Some(found)) => self.record.violated(
                Oracle::Answer,
                format!("{message} was reported as not appended, and is at {found}"),
            ),
            _ => {}
        }
    }

    /// Records that the message is in the log from now on.
    pub(crate) fn committed(&self, message: &str, stream: &str, position: Position) {
        let mut state = self.state();
        let Some(known) = state.messages.get_mut(message) else {
            drop(state);
            let detail = format!("nobody sent {message}, which is at {position}");
            return self.record.violated(Oracle::Answer, detail);
        };
        if let Some(before) = known.position {
            drop(state);
            let detail = format!("{message} is in the log twice: at {before} and at {position}");
            return self.record.violated(Oracle::Answer, detail);
        }
        known.position = Some(position);
        let answer = known.answer;
        let (client, number) = sender(message);
        let last = state.last.insert((client.to_owned(), stream.to_owned()), number);
        drop(state);
        if answer == Some(Answer::NotAppended) {
            let detail = format!("{message} was reported as not appended, and is now at {position}");
            self.record.violated(Oracle::Answer, detail);
        }
        if let Some(last) = last.filter(|last| *last > number) {
            let detail = format!("{message} comes after its client's message {last} in {stream}");
            self.record.violated(Oracle::Order, detail);
        }
    }

    /// Records that a stream's part of a segment is in the log.
    pub(crate) fn part(&self, stream: &str, position: Position, messages: &[Stored]) {
        let texts = messages.iter().flat_map(|message| rows(&message.text)).collect();
        let times = messages.iter();
        let received = Received {
            messages_us: times.clone().map(|message| message.received_at_us).collect(),
            rows_us: times
                .flat_map(|message| rows(&message.text).map(|_| message.received_at_us))
                .collect(),
        };
        let key = (position.shard, stream.to_owned(), position.sequence);
        let mut state = self.state();
        state.parts.insert(key.clone(), Arc::new(texts));
        state.received.insert(key, Arc::new(received));
    }

    /// The parts of a stream in the log from a sequence on, up to another one (exclusive): sequence, rows, times.
    pub(crate) fn parts(&self, shard: u32, stream: &str, sequences: Range<u64>) -> Vec<Part> {
        let state = self.state();
        let of = |sequence| (shard, stream.to_owned(), sequence);
        let parts = state.parts.range(of(sequences.start)..of(sequences.end));
        let parts = parts.map(|(key, rows)| (key.2, Arc::clone(rows), Arc::clone(&state.received[key])));
        parts.collect()
    }

    /// The rows of a stream's part of a segment in the log.
    pub(crate) fn rows_at(&self, shard: u32, stream: &str, sequence: u64) -> Arc<Vec<String>> {
        let key = (shard, stream.to_owned(), sequence);
        self.state().parts.get(&key).map(Arc::clone).unwrap_or_default()
    }

    /// The number of messages without an answer.
    pub(crate) fn unanswered(&self) -> u64 {
        let state = self.state();
        state
            .messages
            .values()
            .filter(|message| message.answer.is_none())
            .count() as u64
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
