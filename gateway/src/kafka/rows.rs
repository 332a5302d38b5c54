//! Makes rows of events from records. Pure.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use millpond_kafka::{Header, Record};

use super::topics::Shape;

/// A destination of rows: memory, or a counter that finds their length.
pub(super) trait Out {
    fn put(&mut self, bytes: &[u8]);
}

impl Out for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Counts bytes.
#[derive(Debug, Default)]
pub(super) struct Length(pub(super) usize);

impl Out for Length {
    fn put(&mut self, bytes: &[u8]) {
        self.0 = self.0.saturating_add(bytes.len());
    }
}

/// Writes the row of a record. Whether it is one JSON object is for others to check.
pub(super) fn row(record: &Record<'_>, shape: Shape, out: &mut impl Out) {
    let value = record.value.unwrap_or_default().trim_ascii();
    match shape {
        Shape::Value => out.put(value),
        Shape::ValueAndMetadata => {
            // Without a brace the value is no object, and is rejected as it is.
            let Some(rest) = value.strip_prefix(b"{") else {
                return out.put(value);
            };
            out.put(b"{");
            bytes("_kafka_key", record.key, out);
            time_and_headers("_kafka_", record, out);
            if !rest.trim_ascii_start().starts_with(b"}") {
                out.put(b",");
            }
            out.put(rest);
        }
        Shape::Raw => {
            out.put(b"{");
            bytes("key", record.key, out);
            out.put(b",");
            bytes("value", record.value, out);
            time_and_headers("", record, out);
            out.put(b"}");
        }
    }
}

/// Writes further members: the timestamp, and the headers as an object.
fn time_and_headers(prefix: &str, record: &Record<'_>, out: &mut impl Out) {
    let timestamp = record.timestamp_ms;
    out.put(format!(",\"{prefix}timestamp\":{timestamp},\"{prefix}headers\":{{").as_bytes());
    for (place, Header { key, value }) in record.headers.enumerate() {
        if place > 0 {
            out.put(b",");
        }
        bytes(&String::from_utf8_lossy(key), value, out);
    }
    out.put(b"}");
}

/// Writes a member with these bytes as text. Bytes that are not UTF-8 go as base64 into the member NAME_base64.
fn bytes(name: &str, value: Option<&[u8]>, out: &mut impl Out) {
    match value.map(|value| (std::str::from_utf8(value), value)) {
        None => {
            string(name, out);
            out.put(b":null");
        }
        Some((Ok(text), _)) => {
            string(name, out);
            out.put(b":");
            string(text, out);
        }
        Some((Err(_), value)) => {
            string(&format!("{name}_base64"), out);
            out.put(b":\"");
            // Whole groups, so that the pieces together are the text of all of it.
            for piece in value.chunks(3 << 10) {
                out.put(STANDARD.encode(piece).as_bytes());
            }
            out.put(b"\"");
        }
    }
}

fn string(text: &str, out: &mut impl Out) {
    // Neither memory nor a count refuses bytes.
    let _ = serde_json::to_writer(Writer(out), text);
}

/// Lets serde_json write.
struct Writer<'a, O>(&'a mut O);

impl<O: Out> io::Write for Writer<'_, O> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.put(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
