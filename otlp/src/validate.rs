//! The structural walk of an `Export…ServiceRequest`: rejects malformed input with its position, and counts records.
//!
//! The gateway runs it on every request, so the walk tracks neither positions nor names. Only after a failure does it
//! run again, with a [`Recorder`] that tracks both.

use crate::schema::{Kind, Message};
use crate::signal::Signal;
use crate::wire::{LEN, Reader, Reason};

/// Maximum nesting of messages below the request: protobuf's default (C++, Java, prost). About 48 nested arrays or 32
/// nested maps.
pub const DEPTH_MAX: u32 = 100;

/// The content of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of log records, spans, or data points.
    pub records: u64,
}

/// A request that is not OTLP.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed OTLP at byte {offset} ({field}): {reason}")]
pub struct Malformed {
    /// Start of the invalid field, in bytes from the start of the request.
    pub offset: usize,
    /// The path of that field, such as `resource_logs[3].scope_logs[0].log_records[7].body`.
    pub field: String,
    /// The problem with it.
    pub reason: Reason,
}

/// Walks every message that OTLP defines within the signal's `Export…ServiceRequest` and counts the records.
///
/// Unknown fields are skipped after the same checks of their structure. An id of the wrong length is not malformed:
/// OTLP says to treat the record as one without that id.
///
/// # Errors
/// [`Malformed`] for truncated bytes, a varint over 64 bits, field number 0, a known field with the wrong wire type, a
/// group, and messages nested more than [`DEPTH_MAX`] deep.
pub fn validate(signal: Signal, payload: &[u8]) -> Result<Counts, Malformed> {
    match walk(signal.request(), payload, 0, &mut Silent) {
        Ok(records) => Ok(Counts { records }),
        Err(reason) => Err(locate(signal, payload, reason)),
    }
}

#[cold]
fn locate(signal: Signal, payload: &[u8], reason: Reason) -> Malformed {
    let mut recorder = Recorder::new(payload);
    let again = walk(signal.request(), payload, 0, &mut recorder);
    debug_assert_eq!(again, Err(reason));
    Malformed {
        offset: recorder.offset,
        field: recorder.path(),
        reason,
    }
}

/// Observes a walk.
trait Trace {
    /// Whether the walk may skip messages that are plain at a glance.
    const GLANCES: bool;
    /// A message begins in the last field.
    fn enter(&mut self, message: &'static Message);
    /// The message has ended without a fault.
    fn leave(&mut self);
    /// A field begins here.
    fn field(&mut self, rest: &[u8]);
    /// The field has this number.
    fn number(&mut self, number: u32);
}

struct Silent;

impl Trace for Silent {
    const GLANCES: bool = true;

    #[inline]
    fn enter(&mut self, _: &'static Message) {}
    #[inline]
    fn leave(&mut self) {}
    #[inline]
    fn field(&mut self, _: &[u8]) {}
    #[inline]
    fn number(&mut self, _: u32) {}
}

fn walk<T: Trace>(message: &'static Message, bytes: &[u8], depth: u32, trace: &mut T) -> Result<u64, Reason> {
    if depth > DEPTH_MAX {
        return Err(Reason::Depth);
    }
    trace.enter(message);
    let mut records = 0;
    let mut old_records = 0;
    let mut data_records = 0;
    let mut has_scopes = false;
    let mut reader = Reader::new(bytes);
    while !reader.is_empty() {
        trace.field(reader.rest());
        let (number, wire) = reader.tag()?;
        trace.number(number);
        let kind = message.kind(number);
        if !kind.takes(wire) {
            return Err(if matches!(wire, 3 | 4) {
                Reason::Group
            } else {
                Reason::WireType
            });
        }
        match kind {
            Kind::Bytes(_) => {
                reader.bytes()?;
            }
            Kind::Message(inner) => {
                let bytes = reader.bytes()?;
                // A plain message has at most one more in it.
                let plain = inner.plain.filter(|_| T::GLANCES && depth + 2 <= DEPTH_MAX);
                if !plain.is_some_and(|plain| plain.fits(bytes)) {
                    records += walk(inner, bytes, depth + 1, trace)?;
                }
            }
            Kind::Varint(_) => {
                reader.varint()?;
            }
            Kind::Fixed64(_) => {
                reader.fixed64()?;
            }
            Kind::Fixed32 => {
                reader.fixed32()?;
            }
            Kind::Record(inner) => records += 1 + walk(inner, reader.bytes()?, depth + 1, trace)?,
            Kind::Scopes(inner) => {
                has_scopes = true;
                records += walk(inner, reader.bytes()?, depth + 1, trace)?;
            }
            Kind::OldScopes(inner) => old_records += walk(inner, reader.bytes()?, depth + 1, trace)?,
            Kind::Data(inner) => data_records = walk(inner, reader.bytes()?, depth + 1, trace)?,
            Kind::Fixed64s(_) if wire == LEN => {
                if !reader.bytes()?.len().is_multiple_of(8) {
                    return Err(Reason::Truncated);
                }
            }
            Kind::Varints(_) if wire == LEN => {
                let mut packed = Reader::new(reader.bytes()?);
                while !packed.is_empty() {
                    packed.varint()?;
                }
            }
            Kind::Fixed64s(_) | Kind::Varints(_) | Kind::Unknown => {
                reader.value(wire)?;
            }
        }
    }
    trace.leave();
    if !has_scopes {
        records += old_records;
    }
    Ok(records + data_records)
}

/// Tracks the path from the request to the current field. A fault leaves it in place.
struct Recorder {
    /// The address of the request. Messages are slices of it, so an address gives a position.
    start: usize,
    offset: usize,
    /// Level `i` is the message open at depth `i`; levels past `open` are kept for reuse.
    levels: Vec<Level>,
    open: usize,
}

struct Level {
    message: &'static Message,
    /// The number of the current field, once known.
    number: Option<u32>,
    /// The occurrences of each repeated field in this message, by field number.
    seen: Vec<(u32, u64)>,
}

impl Recorder {
    fn new(payload: &[u8]) -> Self {
        Self {
            start: payload.as_ptr().addr(),
            offset: 0,
            levels: Vec::new(),
            open: 0,
        }
    }

    fn path(&self) -> String {
        let steps: Vec<String> = self.levels[..self.open]
            .iter()
            .filter_map(|level| Some((level, level.number?)))
            .map(|(level, number)| match level.message.field(number) {
                Some(field) if field.repeated => {
                    let seen = level
                        .seen
                        .iter()
                        .find(|(seen, _)| *seen == number)
                        .map_or(1, |(_, times)| *times);
                    format!("{}[{}]", field.name, seen - 1)
                }
                Some(field) if !field.name.is_empty() => field.name.to_owned(),
                _ => format!("unknown field {number}"),
            })
            .collect();
        if steps.is_empty() {
            "the request itself".to_owned()
        } else {
            steps.join(".")
        }
    }
}

impl Trace for Recorder {
    const GLANCES: bool = false;

    fn enter(&mut self, message: &'static Message) {
        match self.levels.get_mut(self.open) {
            Some(level) => {
                level.message = message;
                level.number = None;
                level.seen.clear();
            }
            None => self.levels.push(Level {
                message,
                number: None,
                seen: Vec::new(),
            }),
        }
        self.open += 1;
    }

    fn leave(&mut self) {
        self.open -= 1;
    }

    fn field(&mut self, rest: &[u8]) {
        self.offset = rest.as_ptr().addr() - self.start;
        if let Some(level) = self.levels[..self.open].last_mut() {
            level.number = None;
        }
    }

    fn number(&mut self, number: u32) {
        let Some(level) = self.levels[..self.open].last_mut() else {
            return;
        };
        level.number = Some(number);
        if !level.message.field(number).is_some_and(|field| field.repeated) {
            return;
        }
        match level.seen.iter_mut().find(|(seen, _)| *seen == number) {
            Some((_, times)) => *times += 1,
            None => level.seen.push((number, 1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::{AnyValue, KeyValue};
    use proptest::prelude::*;

    /// Bytes that are often an attribute, or nearly one: fields of both messages, some cut short, and any others.
    fn nearly_a_pair() -> impl Strategy<Value = Vec<u8>> {
        fn field(tag: u8, content: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
            (content, 0..40_u8).prop_map(move |(content, off)| {
                let length = u8::try_from(content.len()).unwrap_or(0x7f);
                // Now and then the length is wrong.
                let length = if off == 0 { length + 1 } else { length };
                [&[tag, length][..], &content].concat()
            })
        }
        let bytes = || prop::collection::vec(any::<u8>(), 0..5);
        let number = prop_oneof![
            Just(vec![0x18, 5]),
            Just(vec![0x10, 0x81, 0x00]),
            Just(vec![0x18, 0x80])
        ];
        let scalar = prop_oneof![
            4 => field(0x0a, bytes()),
            2 => number,
            1 => Just(vec![0x21, 1, 2, 3, 4, 5, 6, 7, 8]),
            1 => Just(vec![0x21, 1]),
            1 => field(0x2a, bytes()),
            1 => field(0x3a, bytes()),
            1 => bytes(),
        ];
        let value = prop::collection::vec(scalar, 0..3).prop_map(|fields| fields.concat());
        let part = prop_oneof![
            4 => field(0x0a, bytes()),
            4 => field(0x12, value),
            1 => bytes(),
        ];
        prop::collection::vec(part, 0..4).prop_map(|parts| parts.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn a_glance_sees_what_a_walk_finds(pairs in prop::collection::vec(nearly_a_pair(), 1..4)) {
            // A resource with these attributes.
            let head = |tag: u8, content: &[u8]| {
                let length = u8::try_from(content.len()).expect("short");
                [&[tag, 0x80 | (length & 0x7f), length >> 7][..], content].concat()
            };
            let pairs: Vec<u8> = pairs.iter().flat_map(|pair| head(0x0a, pair)).collect();
            prop_assume!(pairs.len() < 200);
            let request = head(0x0a, &head(0x0a, &pairs));
            for signal in Signal::ALL {
                let glanced = walk(signal.request(), &request, 0, &mut Silent);
                let walked = walk(signal.request(), &request, 0, &mut Recorder::new(&request));
                prop_assert_eq!(glanced, walked);
            }
        }

        #[test]
        fn a_plain_attribute_is_read_like_any_other(pair in nearly_a_pair()) {
            prop_assert_eq!(format!("{:?}", KeyValue::read(&pair)), format!("{:?}", KeyValue::read_any(&pair)));
            let mut value = AnyValue::Empty;
            value.merge(&pair);
            prop_assert_eq!(format!("{:?}", AnyValue::read(&pair)), format!("{value:?}"));
        }
    }
}
