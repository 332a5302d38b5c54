//! The model's store: two compare-and-set objects, segments, pages, writes that may still land, and the sink behind the
//! consumers. It also keeps the history of the log for the properties.

use crate::producer::number;
use millpond_manifest::cursor::Plan;
use millpond_manifest::{Cursor, Manifest, Object};
use millpond_producer::commit::NewPage;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Deref;
use std::sync::Arc;
use ulid::Ulid;
use uuid::Uuid;

/// A state of a compare-and-set object. Equality and hash use its bytes.
pub struct Versioned<T> {
    state: Arc<T>,
    digest: u64,
}

impl<T: Object> Versioned<T> {
    /// A state to write or to read.
    pub fn new(state: T) -> Self {
        let mut hasher = DefaultHasher::new();
        state.encode().hash(&mut hasher);
        Versioned {
            state: Arc::new(state),
            digest: hasher.finish(),
        }
    }

    /// The number of the object's state; each number is in force at most once.
    pub fn version(&self) -> u64 {
        self.state.stamp().version
    }
}

impl<T: Object + PartialEq> Versioned<T> {
    /// Returns true if a reader accepts the written bytes, by checking every rule of the format.
    fn reads_back(&self) -> bool {
        T::decode(&self.state.encode()).is_ok_and(|read| read == *self.state)
    }
}

impl<T> Clone for Versioned<T> {
    fn clone(&self) -> Self {
        Versioned {
            state: Arc::clone(&self.state),
            digest: self.digest,
        }
    }
}

impl<T> Deref for Versioned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.state
    }
}

impl<T> PartialEq for Versioned<T> {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl<T> Eq for Versioned<T> {}

impl<T> Hash for Versioned<T> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.digest.hash(hasher);
    }
}

impl<T: fmt::Debug> fmt::Debug for Versioned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state.fmt(f)
    }
}

/// A new state of one of the two objects. It replaces only the state with the preceding number.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Write {
    /// A state of the manifest.
    Manifest(Versioned<Manifest>),
    /// A state of the cursor.
    Cursor(Versioned<Cursor>),
}

/// The outcome of a swap. A swap from a state that is no longer in force never lands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It lands or not, and the store reports which.
    Reported,
    /// It lands if it can; the answer is lost.
    Unreported,
    /// It has not landed when the answer is lost. It may land while its base state is in force, or never.
    Late,
    /// It lands, and a proxy sends it again: the store refuses the second copy.
    Repeated,
}

/// All possible outcomes of a swap, as far as `faults` allows.
pub fn outcomes(faults: u8) -> &'static [Outcome] {
    match faults {
        0 => &[Outcome::Reported],
        _ => &[
            Outcome::Reported,
            Outcome::Unreported,
            Outcome::Late,
            Outcome::Repeated,
        ],
    }
}

/// The answer to the writer of a swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It is in force.
    Committed,
    /// It is not in force and never will be, unless it landed before: a proxy may have sent it twice.
    Mismatch,
    /// The outcome is unknown.
    Unknown,
}

/// A step that no protocol may reach; the properties report it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Broken {
    /// A writer produced an object that readers reject.
    Format,
    /// The log lost entries or was rewritten.
    Log,
    /// An owner moved the cursor after another one had opened it.
    Fence,
    /// The sink accepted every round, but lacks rows.
    Missing,
    /// The store lacks an object that the log refers to.
    Lost,
    /// A producer told callers that an outcome is unknown, although the table knows the producer.
    Doubt,
    /// A pure function refused a step as the caller's bug.
    Forbidden,
    /// Another batching policy came into force after a clean release while batches were planned ahead.
    Policy,
}

/// The nonce of an operator. Owners use smaller ones.
const OPERATOR: u64 = u64::MAX;

/// The token of a request's rows: generation, batch, chunk or piece, and round.
pub type Token = (u64, Plan, u32, u8);

/// The answer of the sink to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It accepted the request.
    Accepted,
    /// It permanently refuses one of the rows, and took none.
    Refused,
}

/// The shared state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Store {
    /// The manifest in force; number 0 means that it does not exist yet.
    pub manifest: Versioned<Manifest>,
    /// The cursor in force.
    pub cursor: Option<Versioned<Cursor>>,
    /// Segment objects.
    pub segments: BTreeSet<Ulid>,
    /// Page objects.
    pub pages: BTreeMap<Ulid, NewPage>,
    /// Swaps that may still land.
    pub late: Vec<Write>,
    /// The rows in the sink. A segment is one row.
    pub sink: Vec<Ulid>,
    /// The tokens that the sink has recorded: it drops repeated requests.
    pub tokens: BTreeSet<Token>,
    /// Numbers of the segments with rows that the sink refuses.
    pub forbidden: BTreeSet<u8>,
    /// Rows with a dead letter.
    pub dead_letters: BTreeSet<Ulid>,
    /// Not in the store: the segment of every committed sequence.
    pub history: Vec<Ulid>,
    /// Not in the store: the first wrong step.
    pub broken: Option<Broken>,
}

impl Store {
    /// An empty buffer.
    pub fn new() -> Self {
        Store {
            manifest: Versioned::new(Manifest::new(Uuid::nil(), 0)),
            cursor: None,
            segments: BTreeSet::new(),
            pages: BTreeMap::new(),
            late: Vec::new(),
            sink: Vec::new(),
            tokens: BTreeSet::new(),
            forbidden: BTreeSet::new(),
            dead_letters: BTreeSet::new(),
            history: Vec::new(),
            broken: None,
        }
    }

    /// One compare-and-set. `None`: another outcome gives the same result.
    pub fn swap(&mut self, write: Write, outcome: Outcome) -> Option<Answer> {
        match (self.is_next(&write), outcome) {
            (true, Outcome::Reported) => {
                self.land(write);
                Some(Answer::Committed)
            }
            (true, Outcome::Unreported) => {
                self.land(write);
                Some(Answer::Unknown)
            }
            (true, Outcome::Late) => {
                if !self.late.contains(&write) {
                    self.late.push(write);
                }
                Some(Answer::Unknown)
            }
            (true, Outcome::Repeated) => {
                self.land(write);
                Some(Answer::Mismatch)
            }
            (false, Outcome::Reported) => Some(Answer::Mismatch),
            (false, Outcome::Unreported) => Some(Answer::Unknown),
            (false, Outcome::Late | Outcome::Repeated) => None,
        }
    }

    /// A late swap lands.
    pub fn land_late(&mut self, place: usize) {
        let write = self.late.remove(place);
        self.land(write);
    }

    fn is_next(&self, write: &Write) -> bool {
        match write {
            Write::Manifest(next) => next.version() == self.manifest.version() + 1,
            Write::Cursor(next) => next.version() == self.cursor_version() + 1,
        }
    }

    /// The number of the cursor's state; 0 if it does not exist.
    pub fn cursor_version(&self) -> u64 {
        self.cursor.as_ref().map_or(0, Versioned::version)
    }

    /// Puts a state in force.
    pub fn land(&mut self, write: Write) {
        match write {
            Write::Manifest(next) => self.land_manifest(next),
            Write::Cursor(next) => self.land_cursor(next),
        }
        let late = std::mem::take(&mut self.late);
        self.late = late.into_iter().filter(|write| self.is_next(write)).collect();
    }

    fn land_manifest(&mut self, next: Versioned<Manifest>) {
        if !next.reads_back() {
            self.broken.get_or_insert(Broken::Format);
        }
        let (from, start) = (self.manifest.next_sequence, next.tail_start());
        if start > from || next.next_sequence < from {
            self.broken.get_or_insert(Broken::Log);
        }
        let new = usize::try_from(next.next_sequence.saturating_sub(from)).unwrap_or(usize::MAX);
        let known = next.tail.len().saturating_sub(new);
        self.history
            .extend(next.tail[known..].iter().map(|entry| entry.segment));
        self.manifest = next;
    }

    fn land_cursor(&mut self, next: Versioned<Cursor>) {
        if !next.reads_back() {
            self.broken.get_or_insert(Broken::Format);
        }
        if let Some(before) = &self.cursor {
            // The nonce names the writer; an owner's opening id is the nonce plus one.
            let nonce = next.stamp.nonce;
            let is_owner = nonce == OPERATOR || next.opening == nonce + 1;
            if next.epoch < before.epoch || !is_owner {
                self.broken.get_or_insert(Broken::Fence);
            }
        }
        self.cursor = Some(next);
    }

    /// An operator changes the cursor in force.
    pub fn operate(&mut self, change: impl Fn(&Cursor) -> Cursor) -> Option<()> {
        let next = change(self.cursor.as_ref()?).stamped(OPERATOR);
        self.land(Write::Cursor(Versioned::new(next)));
        Some(())
    }

    /// The sink takes rows under a token, unless it has recorded the token or refuses a row. `poisoned`: it records the
    /// token and loses the rows.
    pub fn insert(&mut self, token: Token, rows: &[Ulid], poisoned: bool) -> Taken {
        if rows.iter().any(|row| self.forbidden.contains(&number(*row))) {
            return Taken::Refused;
        }
        if self.tokens.insert(token) && !poisoned {
            self.sink.extend(rows);
            self.sink.sort_unstable();
        }
        Taken::Accepted
    }
}

impl Default for Store {
    fn default() -> Self {
        Store::new()
    }
}
