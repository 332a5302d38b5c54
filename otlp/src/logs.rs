//! Borrowed views of an `ExportLogsServiceRequest`.

use crate::request::Item;
use crate::signal::Signal;
use crate::value::{AnyValue, KeyValues, low_i32, low_u32};
use crate::wire::{Reader, Stretch, Value};

/// A validated request for logs.
pub type Request<'a> = crate::Request<'a, LogRecord<'a>>;

/// One log record.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogRecord<'a> {
    attributes: Stretch<'a>,
    /// When the event occurred, in unix nanoseconds; 0 if unknown.
    pub time_unix_nano: u64,
    /// When the record was first observed, in unix nanoseconds; 0 if unknown.
    pub observed_time_unix_nano: u64,
    /// The severity; OTLP defines 1 to 24.
    pub severity_number: i32,
    /// The severity by its name at the source.
    pub severity_text: &'a [u8],
    /// The body.
    pub body: AnyValue<'a>,
    /// Number of attributes that the source dropped.
    pub dropped_attributes_count: u32,
    /// The low eight bits are the W3C trace flags.
    pub flags: u32,
    /// The trace id as sent: valid only with 16 bytes.
    pub trace_id: &'a [u8],
    /// The span id as sent: valid only with 8 bytes.
    pub span_id: &'a [u8],
    /// The name of the event, if the record is one.
    pub event_name: &'a [u8],
}

impl<'a> Item<'a> for LogRecord<'a> {
    const SIGNAL: Signal = Signal::Logs;

    #[inline]
    fn read(bytes: &'a [u8]) -> Self {
        let mut record = Self::default();
        let mut reader = Reader::new(bytes);
        loop {
            let field = reader.rest();
            let Some((number, value)) = reader.next_field() else {
                break;
            };
            match (number, value) {
                (1, Value::Fixed64(time)) => record.time_unix_nano = time,
                (2, Value::Varint(number)) => record.severity_number = low_i32(number),
                (3, Value::Len(text)) => record.severity_text = text,
                (5, Value::Len(body)) => record.body.merge(body),
                (6, Value::Len(_)) => record.attributes.add(field, &reader),
                (7, Value::Varint(count)) => record.dropped_attributes_count = low_u32(count),
                (8, Value::Fixed32(flags)) => record.flags = flags,
                (9, Value::Len(id)) => record.trace_id = id,
                (10, Value::Len(id)) => record.span_id = id,
                (11, Value::Fixed64(time)) => record.observed_time_unix_nano = time,
                (12, Value::Len(name)) => record.event_name = name,
                _ => {}
            }
        }
        record
    }
}

impl<'a> LogRecord<'a> {
    /// The record's attributes, in order.
    pub fn attributes(&self) -> KeyValues<'a> {
        KeyValues::new(self.attributes.bytes(), 6)
    }
}
