//! A batch in delivery: chunk by chunk in rounds as in `consumer/src/rounds.rs`, and refused chunks piece by piece as
//! in `consumer/src/bisect.rs`. It knows neither the cursor nor the sink.

use millpond_manifest::cursor::Refused;
use millpond_manifest::piece;
use std::collections::VecDeque;
use ulid::Ulid;

/// Rounds of one attempt.
const ROUNDS: u8 = 3;

/// The progress of a batch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Sending {
    rows: Vec<Ulid>,
    /// Maximum rows of a chunk.
    chunk_rows: usize,
    /// An earlier term may have sent rows of the batch.
    inherited: bool,
    /// The current chunk.
    chunk: u32,
    /// Unsent pieces of the chunk at one level of halving. The first is the current one.
    level: VecDeque<u32>,
    /// Refused pieces of this level. Their halves wait until the cursor records the refusals.
    refused: Vec<u32>,
    /// Rows refused individually, without a dead letter yet.
    dead: Vec<Ulid>,
    /// Ask the sink before sending the piece.
    in_doubt: bool,
    round: u8,
    /// The rows of the piece that the sink lacked at the last question.
    lacks: Option<Vec<Ulid>>,
}

/// The next step of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Ask the sink which rows of the piece it lacks.
    Ask,
    /// Send the piece, or the rows that the sink lacks.
    Send,
    /// Wait until the cursor records the refused pieces.
    Refusal,
    /// Write the dead letters.
    DeadLetters,
    /// The batch is finished.
    Nothing,
}

impl Sending {
    /// A batch with these rows. `known`: its refusals in the cursor.
    pub(crate) fn new(rows: Vec<Ulid>, chunk_rows: u64, inherited: bool, known: Option<&Refused>) -> Sending {
        let mut sending = Sending {
            level: (!rows.is_empty()).then_some(0).into_iter().collect(),
            rows,
            chunk_rows: usize::try_from(chunk_rows).unwrap_or(usize::MAX),
            inherited,
            chunk: 0,
            refused: Vec::new(),
            dead: Vec::new(),
            in_doubt: inherited,
            round: 0,
            lacks: None,
        };
        sending.go_on(known);
        sending
    }

    /// The next step.
    pub(crate) fn next(&self) -> Next {
        match (
            self.level.is_empty(),
            self.refused.is_empty(),
            self.dead.is_empty(),
        ) {
            (false, ..) if self.in_doubt && self.lacks.is_none() => Next::Ask,
            (false, ..) => Next::Send,
            (true, false, _) => Next::Refusal,
            (true, true, false) => Next::DeadLetters,
            (true, true, true) => Next::Nothing,
        }
    }

    /// The number of the current piece, and the round of its next request.
    pub(crate) fn request(&self) -> Option<(u32, u8)> {
        self.level.front().map(|number| (*number, self.round))
    }

    /// The rows of the next request.
    pub(crate) fn to_send(&self) -> Vec<Ulid> {
        self.lacks.clone().unwrap_or_else(|| self.piece())
    }

    /// The rows of the current piece.
    pub(crate) fn piece(&self) -> Vec<Ulid> {
        let number = self.level.front();
        number.map_or_else(Vec::new, |number| self.rows_of(*number).to_vec())
    }

    /// The refused pieces that the cursor should record.
    pub(crate) fn undurable(&self) -> &[u32] {
        if self.next() == Next::Refusal {
            &self.refused
        } else {
            &[]
        }
    }

    /// The sink lacks these rows of the piece. Returns `false` if it lacks rows after the last round.
    #[must_use]
    pub(crate) fn lacks(&mut self, rows: Vec<Ulid>, known: Option<&Refused>) -> bool {
        if rows.is_empty() {
            self.taken(known);
        } else if self.round == ROUNDS {
            return false;
        } else {
            self.lacks = Some(rows);
        }
        true
    }

    /// The sink accepted the request.
    pub(crate) fn accepted(&mut self, known: Option<&Refused>) {
        if self.in_doubt {
            // Success proves nothing if an earlier attempt may exist.
            self.lacks = None;
            self.round += 1;
        } else {
            self.taken(known);
        }
    }

    /// The request got no answer: any row of the chunk's pieces may be in the sink.
    pub(crate) fn unanswered(&mut self) {
        (self.in_doubt, self.round, self.lacks) = (true, 0, None);
    }

    /// The sink refused a row of the request.
    pub(crate) fn rejected(&mut self, known: Option<&Refused>) {
        self.refused.extend(self.level.pop_front());
        self.unanswered();
        self.go_on(known);
    }

    /// The cursor has been saved.
    pub(crate) fn go_on(&mut self, known: Option<&Refused>) {
        let covers = |number: u32| known.is_some_and(|known| known.covers(number));
        loop {
            // Nobody resends a piece that the cursor records as refused.
            while let Some(&number) = self.level.front()
                && covers(number)
            {
                self.refused.extend(self.level.pop_front());
            }
            let durable = self.refused.iter().all(|of| covers(*of));
            if !self.level.is_empty() || self.refused.is_empty() || !durable {
                break;
            }
            for number in std::mem::take(&mut self.refused) {
                match self.rows_of(number) {
                    [row] => self.dead.push(*row),
                    _ => self.level.extend(piece::halves(number)),
                }
            }
            // Rows may have landed before the refusal.
            self.unanswered();
        }
        if self.next() == Next::Nothing {
            self.next_chunk(known);
        }
    }

    /// The dead letters exist. Returns their rows.
    pub(crate) fn take_dead(&mut self, known: Option<&Refused>) -> Vec<Ulid> {
        let dead = std::mem::take(&mut self.dead);
        self.go_on(known);
        dead
    }

    /// The piece is in the sink. Rows of the chunk's other pieces may be too.
    fn taken(&mut self, known: Option<&Refused>) {
        self.level.pop_front();
        self.unanswered();
        self.go_on(known);
    }

    fn next_chunk(&mut self, known: Option<&Refused>) {
        if self.rows_of(self.chunk).is_empty() {
            return;
        }
        self.chunk += 1;
        if !self.rows_of(self.chunk).is_empty() {
            self.level.push_back(self.chunk);
        }
        (self.in_doubt, self.round, self.lacks) = (self.inherited, 0, None);
        self.go_on(known);
    }

    /// The rows of a chunk or a piece.
    fn rows_of(&self, number: u32) -> &[Ulid] {
        let Some(parent) = piece::parent(number) else {
            let place = usize::try_from(number).unwrap_or(usize::MAX);
            return self.rows.chunks(self.chunk_rows).nth(place).unwrap_or_default();
        };
        let whole = self.rows_of(parent);
        let (first, second) = whole.split_at(whole.len().div_ceil(2));
        let [is_first, _] = piece::halves(parent);
        if number == is_first { first } else { second }
    }
}
