//! A batch on its way into the sink: chunk by chunk, each in rounds as in `consumer/src/rounds.rs`, and a chunk that the sink
//! refuses piece by piece, as in `consumer/src/bisect.rs`. It knows neither the cursor nor the sink.

use millpond_manifest::cursor::Refused;
use millpond_manifest::piece;
use millpond_manifest::planted::{self, Bug};
use std::collections::VecDeque;
use ulid::Ulid;

/// Rounds of one attempt.
const ROUNDS: u8 = 3;

/// How far a batch is on its way into the sink.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Sending {
    rows: Vec<Ulid>,
    /// The most rows of a chunk.
    chunk_rows: usize,
    /// Rows of the batch may have been sent before this term.
    inherited: bool,
    /// The chunk that is on its way.
    chunk: u32,
    /// Pieces of the chunk to send, of one level of halving. The first is on its way.
    level: VecDeque<u32>,
    /// The pieces of this level that the sink refused. Their halves wait until the cursor has them.
    refused: Vec<u32>,
    /// Rows that the sink refused alone, and that have no dead letter yet.
    dead: Vec<Ulid>,
    /// The sink is asked before the piece is sent.
    in_doubt: bool,
    round: u8,
    /// The rows of the piece that the sink lacked when it was asked.
    lacks: Option<Vec<Ulid>>,
}

/// The next step of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Ask the sink which rows of the piece it lacks.
    Ask,
    /// Send the piece, or the rows that the sink lacks.
    Send,
    /// Wait until the cursor has the refused pieces.
    Refusal,
    /// Write the dead letters.
    DeadLetters,
    /// Nothing: the batch is finished.
    Nothing,
}

impl Sending {
    /// A batch of these rows. `known`: what the cursor says that the sink refused of it.
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

    /// What comes next.
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

    /// The number of the piece that is on its way, and the round of its next request.
    pub(crate) fn request(&self) -> Option<(u32, u8)> {
        self.level.front().map(|number| (*number, self.round))
    }

    /// The rows of the next request.
    pub(crate) fn to_send(&self) -> Vec<Ulid> {
        self.lacks.clone().unwrap_or_else(|| self.piece())
    }

    /// The rows of the piece that is on its way.
    pub(crate) fn piece(&self) -> Vec<Ulid> {
        let number = self.level.front();
        number.map_or_else(Vec::new, |number| self.rows_of(*number).to_vec())
    }

    /// The refused pieces that the cursor is to record.
    pub(crate) fn undurable(&self) -> &[u32] {
        if self.next() == Next::Refusal {
            &self.refused
        } else {
            &[]
        }
    }

    /// The sink was asked, and lacks these rows of the piece. `false`: it lacks rows after the last round.
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

    /// The sink said yes.
    pub(crate) fn accepted(&mut self, known: Option<&Refused>) {
        if self.in_doubt {
            // A success of an attempt that may not be the first proves nothing.
            self.lacks = None;
            self.round += 1;
        } else {
            self.taken(known);
        }
    }

    /// Another attempt, at this piece or another one of its chunk: rows of it may be there.
    pub(crate) fn unanswered(&mut self) {
        (self.in_doubt, self.round, self.lacks) = (true, 0, None);
    }

    /// The sink refused a row of the request.
    pub(crate) fn rejected(&mut self, known: Option<&Refused>) {
        self.refused.extend(self.level.pop_front());
        self.unanswered();
        self.go_on(known);
    }

    /// The cursor has been written.
    pub(crate) fn go_on(&mut self, known: Option<&Refused>) {
        let covers = |number: u32| known.is_some_and(|known| known.covers(number));
        loop {
            // Nobody sends again what the cursor records as refused.
            while let Some(&number) = self.level.front()
                && covers(number)
                && !planted::is(Bug::RefusedSentAgain)
            {
                self.refused.extend(self.level.pop_front());
            }
            let durable = planted::is(Bug::HalvesBeforeRefusal) || self.refused.iter().all(|of| covers(*of));
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
        if planted::is(Bug::LetterForgotten) {
            self.dead.clear();
        }
        if self.next() == Next::Nothing {
            self.next_chunk(known);
        }
    }

    /// The dead letters are written: returns the rows that they are of.
    pub(crate) fn take_dead(&mut self, known: Option<&Refused>) -> Vec<Ulid> {
        let dead = std::mem::take(&mut self.dead);
        self.go_on(known);
        dead
    }

    /// The piece is in the sink. Of any other piece of its chunk, rows may be there.
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
