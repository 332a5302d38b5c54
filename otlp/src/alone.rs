//! Extracts one record of a request as a separate request, with everything that the record shares with its neighbours.

use crate::schema::{Kind, Message};
use crate::signal::Signal;
use crate::wire::{LEN, Reader};
use prost::encoding::encode_varint;

/// The request with only one of its records (log record, span, or data point): the one at index `place` in the order of
/// the views. Everything but the other records is copied unchanged, including unknown fields. `None` if the request has
/// fewer records or is malformed.
pub fn record_alone(signal: Signal, payload: &[u8], place: u64) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut search = Search {
        before: place,
        found: false,
    };
    search.copy(signal.request(), payload, &mut out)?;
    search.found.then_some(out)
}

/// The maximum number of messages between a request and its records: metrics have two below their scopes.
const DEPTH: u32 = 4;

struct Search {
    /// Records to skip.
    before: u64,
    found: bool,
}

impl Search {
    /// Copies a message without the unwanted records and the messages that contain nothing else.
    fn copy(&mut self, message: &'static Message, bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let counting = Counting::of(message, bytes)?;
        let mut reader = Reader::new(bytes);
        while !reader.is_empty() {
            let whole = reader.rest();
            let (number, wire) = reader.tag().ok()?;
            let head = whole.len() - reader.rest().len();
            reader.value(wire).ok()?;
            let (field, _) = whole.split_at(whole.len() - reader.rest().len());
            match message.kind(number) {
                Kind::Record(_) => {
                    if self.passes() {
                        out.extend_from_slice(field);
                    }
                }
                Kind::OldScopes(_) if counting.has_scopes => {}
                Kind::Data(_) if counting.last_data != whole.len() => {}
                Kind::Scopes(inner) | Kind::OldScopes(inner) | Kind::Data(inner) | Kind::Message(inner)
                    if holds_records(inner, DEPTH) =>
                {
                    let was_found = self.found;
                    let mut copied = Vec::new();
                    self.copy(inner, Reader::new(&field[head..]).bytes().ok()?, &mut copied)?;
                    if self.found && !was_found {
                        out.extend_from_slice(&field[..head]);
                        encode_varint(copied.len() as u64, out);
                        out.append(&mut copied);
                    }
                }
                _ => out.extend_from_slice(field),
            }
        }
        Some(())
    }

    /// Returns true if the next record is the wanted one.
    fn passes(&mut self) -> bool {
        if self.found {
            return false;
        }
        self.found = self.before == 0;
        self.before = self.before.saturating_sub(1);
        self.found
    }
}

/// Selects the fields that count where other occurrences in a message may hold records that do not.
#[derive(Default)]
struct Counting {
    has_scopes: bool,
    /// For a metric: the bytes left where the last of its data begins.
    last_data: usize,
}

impl Counting {
    fn of(message: &'static Message, bytes: &[u8]) -> Option<Self> {
        let mut counting = Self::default();
        let mut reader = Reader::new(bytes);
        while !reader.is_empty() {
            let left = reader.rest().len();
            let (number, wire) = reader.tag().ok()?;
            reader.value(wire).ok()?;
            match message.kind(number) {
                Kind::Scopes(_) if wire == LEN => counting.has_scopes = true,
                Kind::Data(_) if wire == LEN => counting.last_data = left,
                _ => {}
            }
        }
        Some(counting)
    }
}

fn holds_records(message: &'static Message, depth: u32) -> bool {
    let fields = message
        .fields
        .iter()
        .chain(message.sparse.iter().map(|(_, field)| field));
    fields.into_iter().any(|field| match field.kind {
        Kind::Record(_) => true,
        Kind::Scopes(inner) | Kind::OldScopes(inner) | Kind::Data(inner) | Kind::Message(inner) => {
            depth > 0 && holds_records(inner, depth - 1)
        }
        _ => false,
    })
}
