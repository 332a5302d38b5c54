//! Borrowed views of an `ExportTraceServiceRequest`.

use crate::request::{Item, Messages};
use crate::signal::Signal;
use crate::value::{KeyValues, low_i32, low_u32};
use crate::wire::{Reader, Stretch, Value};

/// A validated request for traces.
pub type Request<'a> = crate::Request<'a, Span<'a>>;

/// One span.
#[derive(Clone, Copy, Debug, Default)]
pub struct Span<'a> {
    attributes: Stretch<'a>,
    events: Stretch<'a>,
    links: Stretch<'a>,
    /// The trace id as sent: valid only with 16 bytes.
    pub trace_id: &'a [u8],
    /// The span id as sent: valid only with 8 bytes.
    pub span_id: &'a [u8],
    /// The id of the parent span as sent; empty for a root span.
    pub parent_span_id: &'a [u8],
    /// W3C trace state.
    pub trace_state: &'a [u8],
    /// The name of the operation.
    pub name: &'a [u8],
    /// OTLP defines 0 to 5: unspecified, internal, server, client, producer, consumer.
    pub kind: i32,
    /// Start time in unix nanoseconds; 0 if unknown.
    pub start_time_unix_nano: u64,
    /// End time in unix nanoseconds; 0 if unknown.
    pub end_time_unix_nano: u64,
    /// The status message.
    pub status_message: &'a [u8],
    /// OTLP defines 0 to 2: unset, ok, error.
    pub status_code: i32,
    /// The low eight bits are the W3C trace flags.
    pub flags: u32,
    /// Number of attributes that the source dropped.
    pub dropped_attributes_count: u32,
    /// Number of events that the source dropped.
    pub dropped_events_count: u32,
    /// Number of links that the source dropped.
    pub dropped_links_count: u32,
}

impl<'a> Item<'a> for Span<'a> {
    const SIGNAL: Signal = Signal::Traces;

    #[inline]
    fn read(bytes: &'a [u8]) -> Self {
        let mut span = Self::default();
        let mut reader = Reader::new(bytes);
        loop {
            let field = reader.rest();
            let Some((number, value)) = reader.next_field() else {
                break;
            };
            match (number, value) {
                (1, Value::Len(id)) => span.trace_id = id,
                (2, Value::Len(id)) => span.span_id = id,
                (3, Value::Len(state)) => span.trace_state = state,
                (4, Value::Len(id)) => span.parent_span_id = id,
                (5, Value::Len(name)) => span.name = name,
                (6, Value::Varint(kind)) => span.kind = low_i32(kind),
                (7, Value::Fixed64(time)) => span.start_time_unix_nano = time,
                (8, Value::Fixed64(time)) => span.end_time_unix_nano = time,
                (9, Value::Len(_)) => span.attributes.add(field, &reader),
                (10, Value::Varint(count)) => span.dropped_attributes_count = low_u32(count),
                (11, Value::Len(_)) => span.events.add(field, &reader),
                (12, Value::Varint(count)) => span.dropped_events_count = low_u32(count),
                (13, Value::Len(_)) => span.links.add(field, &reader),
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
        KeyValues::new(self.attributes.bytes(), 9)
    }

    /// The span's events, in order.
    pub fn events(&self) -> impl Iterator<Item = Event<'a>> + use<'a> {
        Messages::new(self.events.bytes(), 11).map(Event::read)
    }

    /// The span's links, in order.
    pub fn links(&self) -> impl Iterator<Item = Link<'a>> + use<'a> {
        Messages::new(self.links.bytes(), 13).map(Link::read)
    }
}

/// An event within a span.
#[derive(Clone, Copy, Debug, Default)]
pub struct Event<'a> {
    bytes: &'a [u8],
    /// Time of the event in unix nanoseconds.
    pub time_unix_nano: u64,
    /// The name of the event.
    pub name: &'a [u8],
    /// Number of attributes that the source dropped.
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

/// A span's reference to another span.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link<'a> {
    bytes: &'a [u8],
    /// The other span's trace id as sent.
    pub trace_id: &'a [u8],
    /// The other span's id as sent.
    pub span_id: &'a [u8],
    /// The other span's W3C trace state.
    pub trace_state: &'a [u8],
    /// Number of attributes that the source dropped.
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
