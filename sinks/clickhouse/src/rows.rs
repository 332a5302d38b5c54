//! OTLP log records as rows of `otel_logs`, column by column, as the Collector's clickhouseexporter (v0.161)
//! fills them. Never decides where a chunk ends.

use crate::native::{Bytes8, Column, Dictionary, Maps, Strings, Ticks};
use crate::text;
use millpond_otlp::KeyValue;
use millpond_otlp::logs::LogRecord;

/// What all records of a resource share.
pub(crate) struct Resource<'a> {
    service: Vec<u8>,
    schema_url: &'a [u8],
    attributes: Attributes<'a>,
}

impl<'a> Resource<'a> {
    pub(crate) fn new(logs: &millpond_otlp::Resource<'a, LogRecord<'a>>) -> Self {
        let pairs: Vec<_> = logs.attributes().collect();
        let mut service = Vec::new();
        // The first of several, as in the exporter.
        if let Some(pair) = pairs.iter().find(|pair| pair.key == b"service.name") {
            text::render(pair.value, &mut service);
        }
        Self {
            service,
            schema_url: logs.schema_url,
            attributes: Attributes::new(pairs),
        }
    }
}

/// What all records of a scope share.
pub(crate) struct Scope<'a> {
    logs: millpond_otlp::Scope<'a, LogRecord<'a>>,
    attributes: Attributes<'a>,
}

impl<'a> Scope<'a> {
    pub(crate) fn new(logs: millpond_otlp::Scope<'a, LogRecord<'a>>) -> Self {
        Self {
            logs,
            attributes: Attributes::new(logs.attributes().collect()),
        }
    }
}

/// Attributes as a map column takes them.
struct Attributes<'a> {
    keys: Vec<&'a [u8]>,
    values: Strings,
}

impl<'a> Attributes<'a> {
    fn new(mut pairs: Vec<KeyValue<'a>>) -> Self {
        pairs.sort_by(|one, other| one.key.cmp(other.key));
        let mut attributes = Self {
            keys: Vec::with_capacity(pairs.len()),
            values: Strings::default(),
        };
        let mut scratch = Vec::new();
        for pair in pairs {
            attributes.keys.push(pair.key);
            text::push(pair.value, &mut attributes.values, &mut scratch);
        }
        attributes
    }
}

/// The dictionary numbers of what a resource and a scope give to each of their rows.
#[derive(Default)]
pub(crate) struct Numbers {
    service: u32,
    resource_schema_url: u32,
    resource_keys: Vec<u32>,
    scope_schema_url: u32,
    scope_version: u32,
    scope_keys: Vec<u32>,
}

/// A sequence of attribute keys that records have: how it sorts, and the keys' numbers in that order. Most
/// records repeat the keys of the one before, so that neither sorting nor looking up is done for each.
struct Shape {
    keys: Vec<Box<[u8]>>,
    order: Vec<usize>,
    numbers: Vec<u32>,
}

impl Shape {
    fn fits(&self, pairs: &[KeyValue]) -> bool {
        self.keys.len() == pairs.len() && self.keys.iter().zip(pairs).all(|(key, pair)| **key == *pair.key)
    }
}

/// How many shapes are remembered.
const SHAPES_MAX: usize = 16;

/// The columns of a chunk that is being filled.
#[derive(Default)]
pub(crate) struct Rows {
    pub(crate) timestamp: Ticks,
    pub(crate) trace_id: Strings,
    pub(crate) span_id: Strings,
    pub(crate) trace_flags: Bytes8,
    pub(crate) severity_text: Dictionary,
    pub(crate) severity_number: Bytes8,
    pub(crate) service_name: Dictionary,
    pub(crate) body: Strings,
    pub(crate) resource_schema_url: Dictionary,
    pub(crate) resource_attributes: Maps,
    pub(crate) scope_schema_url: Dictionary,
    pub(crate) scope_name: Strings,
    pub(crate) scope_version: Dictionary,
    pub(crate) scope_attributes: Maps,
    pub(crate) log_attributes: Maps,
    pub(crate) event_name: Strings,
    /// When the message was received, in microseconds.
    pub(crate) received_at: Ticks,
    shapes: Vec<Shape>,
    /// The shape that fitted last, or the one to forget next.
    shape: usize,
    scratch: Vec<u8>,
}

impl Rows {
    pub(crate) fn len(&self) -> usize {
        self.timestamp.0.len()
    }

    /// The exporter's columns, in its order.
    pub(crate) fn columns(&self) -> [&dyn Column; 16] {
        [
            &self.timestamp,
            &self.trace_id,
            &self.span_id,
            &self.trace_flags,
            &self.severity_text,
            &self.severity_number,
            &self.service_name,
            &self.body,
            &self.resource_schema_url,
            &self.resource_attributes,
            &self.scope_schema_url,
            &self.scope_name,
            &self.scope_version,
            &self.scope_attributes,
            &self.log_attributes,
            &self.event_name,
        ]
    }

    /// Bytes in the exporter's columns. Decides where a chunk ends, so it follows from the rows alone.
    pub(crate) fn raw_len(&self) -> usize {
        self.columns().iter().map(|column| column.raw_len()).sum()
    }

    pub(crate) fn clear(&mut self) {
        let Self {
            timestamp,
            trace_id,
            span_id,
            trace_flags,
            severity_text,
            severity_number,
            service_name,
            body,
            resource_schema_url,
            resource_attributes,
            scope_schema_url,
            scope_name,
            scope_version,
            scope_attributes,
            log_attributes,
            event_name,
            received_at,
            shapes,
            shape,
            scratch: _,
        } = self;
        let columns: [&mut dyn Column; 17] = [
            timestamp,
            trace_id,
            span_id,
            trace_flags,
            severity_text,
            severity_number,
            service_name,
            body,
            resource_schema_url,
            resource_attributes,
            scope_schema_url,
            scope_name,
            scope_version,
            scope_attributes,
            log_attributes,
            event_name,
            received_at,
        ];
        for column in columns {
            column.clear();
        }
        shapes.clear();
        *shape = 0;
    }

    /// Appends these rows of `from`.
    pub(crate) fn append(&mut self, from: &Rows, rows: &[usize]) {
        self.timestamp.append(&from.timestamp, rows);
        self.trace_id.append(&from.trace_id, rows);
        self.span_id.append(&from.span_id, rows);
        self.trace_flags.append(&from.trace_flags, rows);
        self.severity_text.append(&from.severity_text, rows);
        self.severity_number.append(&from.severity_number, rows);
        self.service_name.append(&from.service_name, rows);
        self.body.append(&from.body, rows);
        self.resource_schema_url.append(&from.resource_schema_url, rows);
        self.resource_attributes.append(&from.resource_attributes, rows);
        self.scope_schema_url.append(&from.scope_schema_url, rows);
        self.scope_name.append(&from.scope_name, rows);
        self.scope_version.append(&from.scope_version, rows);
        self.scope_attributes.append(&from.scope_attributes, rows);
        self.log_attributes.append(&from.log_attributes, rows);
        self.event_name.append(&from.event_name, rows);
        self.received_at.append(&from.received_at, rows);
    }

    /// Looks up what the rows of this resource and scope share. Holds until the next `clear`.
    pub(crate) fn number(&mut self, resource: &Resource, scope: &Scope) -> Numbers {
        let keys = |map: &mut Maps, keys: &[&[u8]]| keys.iter().map(|key| map.keys.number(key)).collect();
        Numbers {
            service: self.service_name.number(&resource.service),
            resource_schema_url: self.resource_schema_url.number(resource.schema_url),
            resource_keys: keys(&mut self.resource_attributes, &resource.attributes.keys),
            scope_schema_url: self.scope_schema_url.number(scope.logs.schema_url),
            scope_version: self.scope_version.number(scope.logs.version),
            scope_keys: keys(&mut self.scope_attributes, &scope.attributes.keys),
        }
    }

    /// Appends one record. `pairs` is only to save allocations.
    pub(crate) fn push<'a>(
        &mut self,
        (resource, scope, numbers): (&Resource, &Scope, &Numbers),
        record: &LogRecord<'a>,
        received_at_us: i64,
        pairs: &mut Vec<KeyValue<'a>>,
    ) {
        let time = if record.time_unix_nano == 0 {
            record.observed_time_unix_nano
        } else {
            record.time_unix_nano
        };
        // Go's time takes the same 64 bits, so times after 2262 become times before 1970 in both.
        self.timestamp.0.push(time.cast_signed());
        push_id(record.trace_id, 16, &mut self.trace_id);
        push_id(record.span_id, 8, &mut self.span_id);
        // Both columns are UInt8; the exporter too keeps the low eight bits.
        self.trace_flags.0.push(record.flags.to_le_bytes()[0]);
        self.severity_text.push(record.severity_text);
        self.severity_number
            .0
            .push(record.severity_number.to_le_bytes()[0]);
        self.service_name.push_number(numbers.service);
        text::push(record.body, &mut self.body, &mut self.scratch);
        self.resource_schema_url.push_number(numbers.resource_schema_url);
        self.resource_attributes
            .push(&numbers.resource_keys, &resource.attributes.values);
        self.scope_schema_url.push_number(numbers.scope_schema_url);
        self.scope_name.push(scope.logs.name);
        self.scope_version.push_number(numbers.scope_version);
        self.scope_attributes
            .push(&numbers.scope_keys, &scope.attributes.values);
        pairs.clear();
        pairs.extend(record.attributes());
        self.push_attributes(pairs);
        self.event_name.push(record.event_name);
        self.received_at.0.push(received_at_us);
    }

    fn push_attributes(&mut self, pairs: &[KeyValue]) {
        if !pairs.is_empty() {
            if !self.shapes.get(self.shape).is_some_and(|shape| shape.fits(pairs)) {
                self.shape = self
                    .shapes
                    .iter()
                    .position(|shape| shape.fits(pairs))
                    .unwrap_or_else(|| self.learn(pairs));
            }
            let shape = &self.shapes[self.shape];
            for (&place, &number) in shape.order.iter().zip(&shape.numbers) {
                self.log_attributes.keys.push_number(number);
                text::push(
                    pairs[place].value,
                    &mut self.log_attributes.values,
                    &mut self.scratch,
                );
            }
        }
        self.log_attributes.end_row();
    }

    /// Remembers the shape of `pairs`, in place of the one after the last when there are too many.
    fn learn(&mut self, pairs: &[KeyValue]) -> usize {
        let mut order: Vec<usize> = (0..pairs.len()).collect();
        // Stable: equal keys stay in the order in which they were given.
        order.sort_by(|&one, &other| pairs[one].key.cmp(pairs[other].key));
        let numbers = order
            .iter()
            .map(|&place| self.log_attributes.keys.number(pairs[place].key))
            .collect();
        let shape = Shape {
            keys: pairs.iter().map(|pair| pair.key.into()).collect(),
            order,
            numbers,
        };
        if self.shapes.len() < SHAPES_MAX {
            self.shapes.push(shape);
            return self.shapes.len() - 1;
        }
        let place = (self.shape + 1) % SHAPES_MAX;
        self.shapes[place] = shape;
        place
    }
}

/// An id as lower-case hexadecimal; empty where it is all zeros, or not of its length, which OTLP says to read
/// as no id (the Collector refuses such a request).
fn push_id(id: &[u8], length: usize, column: &mut Strings) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    if id.len() != length || id.iter().all(|&byte| byte == 0) {
        column.push(b"");
        return;
    }
    let mut text = [0; 32];
    for (digits, byte) in text.chunks_exact_mut(2).zip(id) {
        digits[0] = HEX[usize::from(byte >> 4)];
        digits[1] = HEX[usize::from(byte & 15)];
    }
    column.push(&text[..2 * length]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frames, decompress};
    use millpond_otlp::logs::Request;

    #[derive(serde::Deserialize)]
    struct Truth {
        bodies: Vec<Body>,
        attributes: Vec<Map>,
    }

    #[derive(serde::Deserialize)]
    struct Body {
        name: String,
        request: String,
        text: String,
    }

    #[derive(serde::Deserialize)]
    struct Map {
        name: String,
        request: String,
        pairs: Vec<(String, String)>,
    }

    /// What the Collector's own code (pdata 1.67, clickhouse-go 2.47) makes of requests; all in hexadecimal.
    fn truth() -> Truth {
        serde_json::from_str(include_str!("../testdata/collector.json")).unwrap()
    }

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
            .collect()
    }

    fn rows(requests: &[&[u8]]) -> Rows {
        let mut rows = Rows::default();
        for request in requests {
            let request = Request::parse(request).unwrap();
            for logs in request.resources() {
                let resource = Resource::new(&logs);
                for logs in logs.scopes() {
                    let items = logs.items();
                    let scope = Scope::new(logs);
                    let numbers = rows.number(&resource, &scope);
                    let mut pairs = Vec::new();
                    for record in items {
                        rows.push((&resource, &scope, &numbers), &record, 0, &mut pairs);
                    }
                }
            }
        }
        rows
    }

    fn written(column: &dyn Column) -> Vec<u8> {
        let mut frames = Frames::default();
        column.write(&mut frames);
        decompress(&frames.finish().0)
    }

    #[test]
    fn bodies_are_the_text_that_the_collector_writes() {
        for Body { name, request, text } in truth().bodies {
            let mut expected = Strings::default();
            expected.push(&hex(&text));
            let found = rows(&[&hex(&request)]);
            let (found, expected) = (written(&found.body), written(&expected));
            assert_eq!(found, expected, "{name}: {}", String::from_utf8_lossy(&found));
        }
    }

    #[test]
    fn attributes_are_the_map_that_the_collector_writes() {
        let mut all = Maps::default();
        let truth = truth().attributes;
        // Twice, so that a known shape is used as well as a new one.
        let requests: Vec<_> = truth.iter().chain(&truth).map(|map| hex(&map.request)).collect();
        for Map { name, request, pairs } in truth.iter().chain(&truth) {
            let mut expected = Maps::default();
            for (key, value) in pairs {
                for map in [&mut expected, &mut all] {
                    map.keys.push(&hex(key));
                    map.values.push(&hex(value));
                }
            }
            expected.end_row();
            all.end_row();
            let found = rows(&[&hex(request)]);
            // The dictionary's own order is ours: compare what rows say.
            assert_eq!(entries(&found.log_attributes), entries(&expected), "{name}");
        }
        let requests: Vec<_> = requests.iter().map(|request| &request[..]).collect();
        assert_eq!(entries(&rows(&requests).log_attributes), entries(&all));
    }

    /// A column brought into one order of its dictionary.
    fn entries(map: &Maps) -> Vec<u8> {
        let mut same = Maps::default();
        let rows: Vec<usize> = (0..map.rows()).collect();
        same.append(map, &rows);
        written(&same)
    }

    #[test]
    fn more_shapes_than_are_remembered_still_fit() {
        use opentelemetry_proto::tonic::{collector::logs::v1::ExportLogsServiceRequest, common, logs};
        use prost::Message as _;
        let record = |number: usize| logs::v1::LogRecord {
            attributes: ["b".to_owned(), format!("key{}", number % 40), "a".to_owned()]
                .map(|key| common::v1::KeyValue {
                    key,
                    ..Default::default()
                })
                .to_vec(),
            ..Default::default()
        };
        let request = ExportLogsServiceRequest {
            resource_logs: vec![logs::v1::ResourceLogs {
                scope_logs: vec![logs::v1::ScopeLogs {
                    log_records: (0..100).map(record).collect(),
                    ..Default::default()
                }],
                ..Default::default()
            }],
        };
        let mut expected = Maps::default();
        for number in 0..100 {
            for key in ["a".to_owned(), "b".to_owned(), format!("key{}", number % 40)] {
                expected.keys.push(key.as_bytes());
                expected.values.push(b"");
            }
            expected.end_row();
        }
        let found = rows(&[&request.encode_to_vec()]);
        assert_eq!(entries(&found.log_attributes), entries(&expected));
    }
}
