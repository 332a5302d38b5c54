//! Converts an OTLP value to text for a String column, like the Collector's `AsString`.
//!
//! Strings are unchanged, bytes become base64, arrays and maps become the JSON of Go's `encoding/json` (sorted keys,
//! the last of equal keys, no HTML escapes). A NaN or infinity inside an array or map makes the text empty, as in the
//! Collector.

use crate::native::Strings;
use millpond_otlp::{AnyValue, KeyValues};
use std::io::Write as _;

/// Appends `value` as one string. `scratch` saves allocations.
#[inline]
pub(crate) fn push(value: AnyValue, column: &mut Strings, scratch: &mut Vec<u8>) {
    match value {
        AnyValue::String(text) => column.push(text),
        AnyValue::Empty | AnyValue::StringIndex(_) => column.push(b""),
        AnyValue::Bool(true) => column.push(b"true"),
        AnyValue::Bool(false) => column.push(b"false"),
        _ => {
            scratch.clear();
            render(value, scratch);
            column.push(scratch);
        }
    }
}

/// Appends the text of `value` to `out`.
pub(crate) fn render(value: AnyValue, out: &mut Vec<u8>) {
    match value {
        AnyValue::String(text) => out.extend_from_slice(text),
        AnyValue::Empty | AnyValue::StringIndex(_) => {}
        AnyValue::Bool(truth) => out.extend_from_slice(if truth { b"true" } else { b"false" }),
        AnyValue::Int(number) => integer(number, out),
        AnyValue::Double(number) if number.is_nan() => out.extend_from_slice(b"NaN"),
        AnyValue::Double(number) if number.is_infinite() => {
            out.extend_from_slice(if number > 0.0 { b"Infinity" } else { b"-Infinity" });
        }
        AnyValue::Double(number) => double(number, out),
        AnyValue::Bytes(bytes) => base64(bytes, out),
        AnyValue::Array(_) | AnyValue::Map(_) => {
            let start = out.len();
            if json(value, out).is_err() {
                out.truncate(start);
            }
        }
    }
}

fn integer(number: i64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    let mut left = number.unsigned_abs();
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10).to_le_bytes()[0];
        left /= 10;
        if left == 0 {
            break;
        }
    }
    if number < 0 {
        out.push(b'-');
    }
    out.extend_from_slice(&digits[at..]);
}

/// The shortest text that parses to the same double, in ECMAScript's form: with an exponent below 1e-6 and from 1e21
/// on.
fn double(number: f64, out: &mut Vec<u8>) {
    let size = number.abs();
    // Writing to a Vec cannot fail.
    if size == 0.0 || (1e-6..1e21).contains(&size) {
        let _ = write!(out, "{number}");
        return;
    }
    let start = out.len();
    let _ = write!(out, "{number:e}");
    // Rust writes 1e21 for ECMAScript's 1e+21.
    if let Some(exponent) = out[start..]
        .iter()
        .position(|&byte| byte == b'e')
        .map(|at| start + at + 1)
        && out.get(exponent) != Some(&b'-')
    {
        out.insert(exponent, b'+');
    }
}

fn base64(bytes: &[u8], out: &mut Vec<u8>) {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for group in bytes.chunks(3) {
        let byte = |index: usize| usize::from(group.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            out.push(if place <= group.len() {
                ALPHABET[bits >> (18 - 6 * place) & 63]
            } else {
                b'='
            });
        }
    }
}

/// The value is a NaN or infinity, which JSON cannot represent.
struct NotJson;

/// Validation has limited the nesting, which bounds the recursion.
fn json(value: AnyValue, out: &mut Vec<u8>) -> Result<(), NotJson> {
    match value {
        // The Collector's empty bytes are Go's nil, which becomes null in JSON.
        AnyValue::Empty | AnyValue::StringIndex(_) | AnyValue::Bytes([]) => out.extend_from_slice(b"null"),
        AnyValue::String(text) => json_string(text, out),
        AnyValue::Bool(_) | AnyValue::Int(_) => render(value, out),
        AnyValue::Double(number) if !number.is_finite() => return Err(NotJson),
        AnyValue::Double(number) => double(number, out),
        AnyValue::Bytes(bytes) => {
            out.push(b'"');
            base64(bytes, out);
            out.push(b'"');
        }
        AnyValue::Array(values) => {
            out.push(b'[');
            for (index, value) in values.enumerate() {
                if index > 0 {
                    out.push(b',');
                }
                json(value, out)?;
            }
            out.push(b']');
        }
        AnyValue::Map(pairs) => json_object(pairs, out)?,
    }
    Ok(())
}

fn json_object(pairs: KeyValues, out: &mut Vec<u8>) -> Result<(), NotJson> {
    let mut pairs: Vec<_> = pairs.collect();
    pairs.sort_by(|one, other| one.key.cmp(other.key));
    out.push(b'{');
    let mut first = true;
    for (index, pair) in pairs.iter().enumerate() {
        // The sort is stable, so the last of equal keys is the last one given.
        if pairs.get(index + 1).is_some_and(|next| next.key == pair.key) {
            continue;
        }
        if !std::mem::take(&mut first) {
            out.push(b',');
        }
        json_string(pair.key, out);
        out.push(b':');
        json(pair.value, out)?;
    }
    out.push(b'}');
    Ok(())
}

/// Escapes what JSON requires, plus U+2028 and U+2029. Each invalid UTF-8 byte becomes an escaped U+FFFD.
fn json_string(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for chunk in text.utf8_chunks() {
        json_escaped(chunk.valid(), out);
        for _ in chunk.invalid() {
            out.extend_from_slice(b"\\ufffd");
        }
    }
    out.push(b'"');
}

fn json_escaped(text: &str, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let bytes = text.as_bytes();
    let mut copied = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        let (escape, length): ([u8; 6], usize) = match byte {
            b'"' => (*b"\\\"    ", 2),
            b'\\' => (*b"\\\\    ", 2),
            b'\n' => (*b"\\n    ", 2),
            b'\r' => (*b"\\r    ", 2),
            b'\t' => (*b"\\t    ", 2),
            0x08 => (*b"\\b    ", 2),
            0x0c => (*b"\\f    ", 2),
            0..=0x1f => {
                let digits = [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]];
                ([b'\\', b'u', b'0', b'0', digits[0], digits[1]], 6)
            }
            0xe2 if bytes[at..].starts_with("\u{2028}".as_bytes()) => (*b"\\u2028", 6),
            0xe2 if bytes[at..].starts_with("\u{2029}".as_bytes()) => (*b"\\u2029", 6),
            _ => continue,
        };
        out.extend_from_slice(&bytes[copied..at]);
        out.extend_from_slice(&escape[..length]);
        copied = at + if byte == 0xe2 { 3 } else { 1 };
    }
    out.extend_from_slice(&bytes[copied..]);
}
