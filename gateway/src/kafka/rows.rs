//! Makes rows of events from records. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use millpond_kafka::{Header, Record};

use super::topics::Shape;

/// Where a row goes: into memory, or nowhere to find out its length.
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
            out.put(b",\"_kafka_timestamp\":");
            out.put(record.timestamp_ms.to_string().as_bytes());
            out.put(b",\"_kafka_headers\":");
            headers(record, out);
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
            out.put(b",\"timestamp\":");
            out.put(record.timestamp_ms.to_string().as_bytes());
            out.put(b",\"headers\":");
            headers(record, out);
            out.put(b"}");
        }
    }
}

fn headers(record: &Record<'_>, out: &mut impl Out) {
    let mut before: &[u8] = b"{";
    for Header { key, value } in record.headers {
        out.put(before);
        bytes(&String::from_utf8_lossy(key), value, out);
        before = b",";
    }
    if before == b"{" {
        out.put(before);
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
    out.put(b"\"");
    let mut rest = text;
    while let Some(at) = rest.find(|character: char| character < ' ' || character == '"' || character == '\\')
    {
        out.put(&rest.as_bytes()[..at]);
        let byte = rest.as_bytes()[at];
        match byte {
            b'"' => out.put(b"\\\""),
            b'\\' => out.put(b"\\\\"),
            b'\n' => out.put(b"\\n"),
            b'\t' => out.put(b"\\t"),
            b'\r' => out.put(b"\\r"),
            _ => out.put(format!("\\u{byte:04x}").as_bytes()),
        }
        rest = &rest[at + 1..];
    }
    out.put(rest.as_bytes());
    out.put(b"\"");
}
