//! Borrowed views of an `ExportTraceServiceRequest`.

use crate::request::{Item, Messages};
use crate::signal::Signal;
use crate::value::{KeyValues, low_i32, low_u32};
use crate::wire::{Reader, Value};

/// A validated request for traces.
pub type Request<'a> = crate::Request<'a, Span<'a>>;

/// One span.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span<'a> {
    bytes: &'a [u8],
    /// The trace, as sent: valid only with 16 bytes.
    pub trace_id: &'a [u8],
    /// The span, as sent: valid only with 8 bytes.
    pub span_id: &'a [u8],
    /// The span that this one is part of; empty for a root. As sent.
    pub parent_span_id: &'a [u8],
    /// W3C trace state.
    pub trace_state: &'a [u8],
    /// What was done.
    pub name: &'a [u8],
    /// 0 to 5 where OTLP defines it: unspecified, internal, server, client, producer, consumer.
    pub kind: i32,
    /// When it began, in unix nanoseconds; 0 is unknown.
    pub start_time_unix_nano: u64,
    /// When it ended, in unix nanoseconds; 0 is unknown.
    pub end_time_unix_nano: u64,
    /// How it ended, for people.
    pub status_message: &'a [u8],
    /// 0 to 2 where OTLP defines it: unset, ok, error.
    pub status_code: i32,
    /// The low eight bits are the W3C trace flags.
    pub flags: u32,
    /// How many attributes its source dropped.
    pub dropped_attributes_count: u32,
    /// How many events its source dropped.
    pub dropped_events_count: u32,
    /// How many links its source dropped.
    pub dropped_links_count: u32,
}

impl<'a> Item<'a> for Span<'a> {
    const SIGNAL: Signal = Signal::Traces;

    #[inline]
    fn read(bytes: &'a [u8]) -> Self {
        let mut span = Self {
            bytes,
            ..Self::default()
        };
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.next_field() {
            match (number, value) {
                (1, Value::Len(id)) => span.trace_id = id,
                (2, Value::Len(id)) => span.span_id = id,
                (3, Value::Len(state)) => span.trace_state = state,
                (4, Value::Len(id)) => span.parent_span_id = id,
                (5, Value::Len(name)) => span.name = name,
                (6, Value::Varint(kind)) => span.kind = low_i32(kind),
                (7, Value::Fixed64(time)) => span.start_time_unix_nano = time,
                (8, Value::Fixed64(time)) => span.end_time_unix_nano = time,
                (10, Value::Varint(count)) => span.dropped_attributes_count = low_u32(count),
                (12, Value::Varint(count)) => span.dropped_events_count = low_u32(count),
                (14, Value::Varint(count)) => span.dropped_links_count = low_u32(count),
                (15, Value::Len(status)) => span.merge_status(status),
                (16, Value::Fixed32(flags)) => span.flags = flags,
                _ => {}
            }
        }
        span
    }
}

impl<'a> Span<'a> {
    fn merge_status(&mut self, status: &'a [u8]) {
        let mut reader = Reader::new(status);
        while let Some((number, value)) = reader.next_field() {
            match (number, value) {
                (2, Value::Len(message)) => self.status_message = message,
                (3, Value::Varint(code)) => self.status_code = low_i32(code),
                _ => {}
            }
        }
    }

    /// The span's attributes, in order.
    pub fn attributes(&self) -> KeyValues<'a> {
        KeyValues::new(self.bytes, 9)
    }

    /// What happened within it, in order.
    pub fn events(&self) -> impl Iterator<Item = Event<'a>> + use<'a> {
        Messages::new(self.bytes, 11).map(Event::read)
    }

    /// The spans that it refers to, in order.
    pub fn links(&self) -> impl Iterator<Item = Link<'a>> + use<'a> {
        Messages::new(self.bytes, 13).map(Link::read)
    }
}

/// An event within a span.
#[derive(Clone, Copy, Debug, Default)]
pub struct Event<'a> {
    bytes: &'a [u8],
    /// When it happened, in unix nanoseconds.
    pub time_unix_nano: u64,
    /// What happened.
    pub name: &'a [u8],
    /// How many attributes its source dropped.
    pub dropped_attributes_count: u32,
}

impl<'a> Event<'a> {
    fn read(bytes: &'a [u8]) -> Self {
        let mut event = Self {
            bytes,
            ..Self::default()
        };
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.next_field() {
            match (number, value) {
                (1, Value::Fixed64(time)) => event.time_unix_nano = time,
                (2, Value::Len(name)) => event.name = name,
                (4, Value::Varint(count)) => event.dropped_attributes_count = low_u32(count),
                _ => {}
            }
        }
        event
    }

    /// The event's attributes, in order.
    pub fn attributes(&self) -> KeyValues<'a> {
        KeyValues::new(self.bytes, 3)
    }
}

/// A span's reference to another.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link<'a> {
    bytes: &'a [u8],
    /// The other span's trace, as sent.
    pub trace_id: &'a [u8],
    /// The other span, as sent.
    pub span_id: &'a [u8],
    /// W3C trace state of the other.
    pub trace_state: &'a [u8],
    /// How many attributes its source dropped.
    pub dropped_attributes_count: u32,
    /// The low eight bits are the W3C trace flags.
    pub flags: u32,
}

impl<'a> Link<'a> {
    fn read(bytes: &'a [u8]) -> Self {
        let mut link = Self {
            bytes,
            ..Self::default()
        };
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.next_field() {
            match (number, value) {
                (1, Value::Len(id)) => link.trace_id = id,
                (2, Value::Len(id)) => link.span_id = id,
                (3, Value::Len(state)) => link.trace_state = state,
                (5, Value::Varint(count)) => link.dropped_attributes_count = low_u32(count),
                (6, Value::Fixed32(flags)) => link.flags = flags,
                _ => {}
            }
        }
        link
    }

    /// The link's attributes, in order.
    pub fn attributes(&self) -> KeyValues<'a> {
        KeyValues::new(self.bytes, 4)
    }
}
