//! Borrowed views of an `ExportLogsServiceRequest`: request, resource, scope, record.
//!
//! Messages are read as protobuf defines them: fields in any order (a scope may follow its records), the
//! last scalar wins, occurrences of an embedded message merge, unknown fields are skipped. Only a request
//! that passed [`validate_logs`] has views, so that reading them cannot fail.

use crate::validate::{Counts, Malformed, validate_logs};
use crate::value::{AnyValue, KeyValues, low_i32};
use crate::wire::{Reader, Value};

/// A validated request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    payload: &'a [u8],
    counts: Counts,
}

impl<'a> Request<'a> {
    /// Validates `payload`.
    ///
    /// # Errors
    /// [`Malformed`], as [`validate_logs`] gives it.
    pub fn parse(payload: &'a [u8]) -> Result<Self, Malformed> {
        Ok(Self {
            payload,
            counts: validate_logs(payload)?,
        })
    }

    /// How many records it holds.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The resources, each with its scopes and records.
    pub fn resource_logs(&self) -> impl Iterator<Item = ResourceLogs<'a>> + use<'a> {
        Messages::new(self.payload, 1).map(ResourceLogs::read)
    }
}

/// The embedded messages in one repeated field.
#[derive(Clone, Copy, Debug)]
struct Messages<'a> {
    reader: Reader<'a>,
    number: u32,
}

impl<'a> Messages<'a> {
    fn new(bytes: &'a [u8], number: u32) -> Self {
        Self {
            reader: Reader::new(bytes),
            number,
        }
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            let (number, value) = self.reader.next_field()?;
            if number == self.number
                && let Value::Len(message) = value
            {
                return Some(message);
            }
        }
    }
}

/// What one resource logged.
#[derive(Clone, Copy, Debug)]
pub struct ResourceLogs<'a> {
    bytes: &'a [u8],
    scopes_field: u32,
    /// The schema of the resource.
    pub schema_url: &'a [u8],
}

impl<'a> ResourceLogs<'a> {
    fn read(bytes: &'a [u8]) -> Self {
        // Without scope_logs (2) the field that it replaced (1000) counts, as in the Collector.
        let mut logs = Self {
            bytes,
            scopes_field: 1000,
            schema_url: &[],
        };
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.next_field() {
            match (number, value) {
                (2, Value::Len(_)) => logs.scopes_field = 2,
                (3, Value::Len(url)) => logs.schema_url = url,
                _ => {}
            }
        }
        logs
    }

    /// The resource's attributes.
    pub fn resource_attributes(&self) -> impl Iterator<Item = crate::KeyValue<'a>> + use<'a> {
        Messages::new(self.bytes, 1).flat_map(|resource| KeyValues::new(resource, 1))
    }

    /// The scopes within it.
    pub fn scope_logs(&self) -> impl Iterator<Item = ScopeLogs<'a>> + use<'a> {
        Messages::new(self.bytes, self.scopes_field).map(ScopeLogs::read)
    }
}

/// What one instrumentation scope logged.
#[derive(Clone, Copy, Debug)]
pub struct ScopeLogs<'a> {
    bytes: &'a [u8],
    /// The schema of the scope and its records.
    pub schema_url: &'a [u8],
    /// The scope's name.
    pub scope_name: &'a [u8],
    /// The scope's version.
    pub scope_version: &'a [u8],
}

impl<'a> ScopeLogs<'a> {
    fn read(bytes: &'a [u8]) -> Self {
        let mut logs = Self {
            bytes,
            schema_url: &[],
            scope_name: &[],
            scope_version: &[],
        };
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.next_field() {
            match (number, value) {
                (1, Value::Len(scope)) => logs.merge_scope(scope),
                (3, Value::Len(url)) => logs.schema_url = url,
                _ => {}
            }
        }
        logs
    }

    fn merge_scope(&mut self, scope: &'a [u8]) {
        let mut reader = Reader::new(scope);
        while let Some((number, value)) = reader.next_field() {
            match (number, value) {
                (1, Value::Len(name)) => self.scope_name = name,
                (2, Value::Len(version)) => self.scope_version = version,
                _ => {}
            }
        }
    }

    /// The scope's attributes.
    pub fn scope_attributes(&self) -> impl Iterator<Item = crate::KeyValue<'a>> + use<'a> {
        Messages::new(self.bytes, 1).flat_map(|scope| KeyValues::new(scope, 3))
    }

    /// The records.
    pub fn log_records(&self) -> impl Iterator<Item = LogRecord<'a>> + use<'a> {
        Messages::new(self.bytes, 2).map(LogRecord::read)
    }
}

/// One log record.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogRecord<'a> {
    bytes: &'a [u8],
    /// When it happened, in unix nanoseconds; 0 is unknown.
    pub time_unix_nano: u64,
    /// When it was first seen, in unix nanoseconds; 0 is unknown.
    pub observed_time_unix_nano: u64,
    /// The severity, 1 to 24 where OTLP defines it.
    pub severity_number: i32,
    /// The severity as its source named it.
    pub severity_text: &'a [u8],
    /// The body.
    pub body: AnyValue<'a>,
    /// How many attributes its source dropped.
    pub dropped_attributes_count: u32,
    /// The low eight bits are the W3C trace flags.
    pub flags: u32,
    /// The trace, as sent: valid only with 16 bytes.
    pub trace_id: &'a [u8],
    /// The span, as sent: valid only with 8 bytes.
    pub span_id: &'a [u8],
    /// The name of the event that this record is.
    pub event_name: &'a [u8],
}

impl<'a> LogRecord<'a> {
    #[inline]
    fn read(bytes: &'a [u8]) -> Self {
        let mut record = Self {
            bytes,
            ..Self::default()
        };
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.next_field() {
            match (number, value) {
                (1, Value::Fixed64(time)) => record.time_unix_nano = time,
                (2, Value::Varint(number)) => record.severity_number = low_i32(number),
                (3, Value::Len(text)) => record.severity_text = text,
                (5, Value::Len(body)) => record.body.merge(body),
                (7, Value::Varint(count)) => record.dropped_attributes_count = low_i32(count).cast_unsigned(),
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

    /// The record's attributes, in order.
    pub fn attributes(&self) -> KeyValues<'a> {
        KeyValues::new(self.bytes, 6)
    }
}
