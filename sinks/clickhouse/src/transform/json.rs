//! JSON to VRL's values and back, without a change of any number. A number that VRL cannot hold exactly is a string of its
//! digits, which a column of numbers takes as well.

use crate::events::json::{items, members, unescaped};
use bytes::Bytes;
use chrono::SecondsFormat;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt::Write as _;
use vrl::value::{KeyString, ObjectMap, Value};

/// Levels of objects and arrays within each other. A deeper value needs more of a thread's stack than there may be.
const DEPTH_MAX: usize = 128;

/// Decimal digits that a double always keeps.
const EXACT_DIGITS: usize = 15;

/// A value that cannot become the other kind of value.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// The way to it from the value: `[2].name`.
    pub(super) path: String,
    pub(super) reason: String,
}

impl Fault {
    fn here(reason: impl Into<String>) -> Fault {
        Fault {
            path: String::new(),
            reason: reason.into(),
        }
    }

    fn within(self, step: &str) -> Fault {
        Fault {
            path: format!("{step}{}", self.path),
            ..self
        }
    }
}

fn too_deep() -> Fault {
    Fault::here(format!(
        "objects and arrays lie more than {DEPTH_MAX} deep within each other"
    ))
}

pub(super) fn too_large(max: usize) -> String {
    format!("the row has more than {} MiB", max >> 20)
}

/// Parses text that is valid JSON. Returns false with the value if [`write`] may give another text that a table could tell from
/// this one.
pub(super) fn read(text: &str) -> Result<(Value, bool), Fault> {
    let mut reader = Reader {
        text,
        at: 0,
        is_plain: true,
    };
    let value = reader.value(0)?;
    Ok((value, reader.is_plain))
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
    is_plain: bool,
}

impl<'a> Reader<'a> {
    /// Skips blanks. 0 at the end.
    fn peek(&mut self) -> u8 {
        let bytes = self.text.as_bytes();
        while bytes.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        bytes.get(self.at).copied().unwrap_or(0)
    }

    fn skip(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == byte;
        self.at += usize::from(is_next);
        is_next
    }

    fn value(&mut self, depth: usize) -> Result<Value, Fault> {
        match self.peek() {
            b'"' => {
                let text = self.string();
                Ok(Value::Bytes(match text {
                    Cow::Borrowed(text) => Bytes::copy_from_slice(text.as_bytes()),
                    Cow::Owned(text) => Bytes::from(text),
                }))
            }
            b'{' | b'[' if depth >= DEPTH_MAX => Err(too_deep()),
            b'{' => {
                self.at += 1;
                self.is_plain = false;
                let mut object = ObjectMap::new();
                while self.peek() == b'"' {
                    let key = KeyString::from(&*self.string());
                    self.skip(b':');
                    let value = self.value(depth + 1)?;
                    object.insert(key, value);
                    self.skip(b',');
                }
                self.skip(b'}');
                Ok(Value::Object(object))
            }
            b'[' => {
                self.at += 1;
                self.is_plain = false;
                let mut items = Vec::new();
                while !matches!(self.peek(), b']' | 0) {
                    items.push(self.value(depth + 1)?);
                    self.skip(b',');
                }
                self.skip(b']');
                Ok(Value::Array(items))
            }
            _ => {
                let word = self.word();
                Ok(match word {
                    "true" => Value::Boolean(true),
                    "false" => Value::Boolean(false),
                    "null" => Value::Null,
                    number => self.number(number),
                })
            }
        }
    }

    fn word(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let is_end = |byte: u8| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
        let end = rest.bytes().position(is_end).unwrap_or(rest.len());
        // A word that is empty would be read for ever.
        self.at += end.max(1);
        &rest[..end]
    }

    fn number(&mut self, number: &str) -> Value {
        if !number.contains(['.', 'e', 'E'])
            && let Ok(integer) = number.parse()
        {
            self.is_plain &= number != "-0";
            return Value::Integer(integer);
        }
        self.is_plain = false;
        match number.parse() {
            Ok(float) if is_exact(number, float) => Value::from_f64_or_zero(float),
            _ => Value::Bytes(Bytes::copy_from_slice(number.as_bytes())),
        }
    }

    fn string(&mut self) -> Cow<'a, str> {
        let start = self.at + 1;
        let bytes = self.text.as_bytes();
        let mut end = start;
        let mut has_escapes = false;
        while let Some(byte) = bytes.get(end).filter(|byte| **byte != b'"') {
            has_escapes |= *byte == b'\\';
            end += 1 + usize::from(*byte == b'\\');
        }
        let end = end.min(bytes.len());
        self.at = (end + 1).min(bytes.len());
        let inner = &self.text[start..end];
        if !has_escapes {
            return Cow::Borrowed(inner);
        }
        let parsed = serde_json::from_str(&format!("\"{inner}\""));
        Cow::Owned(parsed.unwrap_or_else(|_| {
            self.is_plain = false;
            let whole = without_half_pairs(inner);
            serde_json::from_str(&format!("\"{whole}\"")).unwrap_or_default()
        }))
    }
}

/// The same text with U+FFFD for each escape that is half of a surrogate pair.
fn without_half_pairs(inner: &str) -> String {
    let code = |at: usize| {
        let escape = inner.get(at..at + 6)?.strip_prefix("\\u")?;
        u16::from_str_radix(escape, 16).ok()
    };
    let (mut whole, mut at) = (String::new(), 0);
    while let Some(next) = inner[at..].chars().next() {
        let length = match (code(at), code(at + 6)) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                whole.push_str("\\ufffd");
                at += 6;
                continue;
            }
            (Some(_), _) => 6,
            _ if next == '\\' => 2,
            _ => next.len_utf8(),
        };
        whole.push_str(&inner[at..at + length]);
        at += length;
    }
    whole
}

/// Returns true if a double's shortest text is the same number.
fn is_exact(text: &str, float: f64) -> bool {
    let (Some(digits), true) = (Digits::of(text), float.is_finite()) else {
        return false;
    };
    // Such numbers come back from a double as they were.
    let is_short = digits.significant.len() <= EXACT_DIGITS && (-300..300).contains(&digits.exponent);
    is_short || Digits::of(&format!("{float:e}")).is_some_and(|shortest| shortest == digits)
}

/// A decimal number without its zeros at both ends.
#[derive(Debug, PartialEq, Eq)]
struct Digits {
    is_negative: bool,
    significant: Vec<u8>,
    /// The power of ten of the first digit.
    exponent: i64,
}

impl Digits {
    fn of(text: &str) -> Option<Digits> {
        let is_negative = text.starts_with('-');
        let text = text.trim_start_matches('-');
        let (number, exponent) = match text.split_once(['e', 'E']) {
            Some((number, exponent)) => (number, exponent.parse().ok()?),
            None => (text, 0_i64),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let mut significant: Vec<u8> = whole.bytes().chain(fraction.bytes()).collect();
        while significant.last() == Some(&b'0') {
            significant.pop();
        }
        let zeros = significant.iter().take_while(|digit| **digit == b'0').count();
        significant.drain(..zeros);
        let exponent = match significant.is_empty() {
            true => 0,
            false => exponent.checked_add(whole.len() as i64 - zeros as i64)?,
        };
        Some(Digits {
            is_negative,
            significant,
            exponent,
        })
    }
}

/// Appends a value as JSON. `max`: the length that the text may have.
pub(super) fn write(value: &Value, text: &mut String, max: usize) -> Result<(), Fault> {
    write_at(value, text, max, 0)
}

fn write_at(value: &Value, text: &mut String, max: usize, depth: usize) -> Result<(), Fault> {
    if text.len() > max {
        return Err(Fault::here(too_large(max)));
    }
    // Writing to a string succeeds.
    match value {
        Value::Null => text.push_str("null"),
        Value::Boolean(value) => text.push_str(if *value { "true" } else { "false" }),
        Value::Integer(value) => _ = write!(text, "{value}"),
        Value::Float(value) if value.is_infinite() => _ = write!(text, "\"{value}\""),
        Value::Float(value) => _ = write!(text, "{:?}", value.into_inner()),
        Value::Timestamp(at) => {
            let at = at.to_rfc3339_opts(SecondsFormat::AutoSi, true);
            _ = write!(text, "\"{at}\"");
        }
        Value::Regex(regex) => write_text(regex.as_str(), text),
        Value::Bytes(bytes) => {
            let string = std::str::from_utf8(bytes);
            write_text(string.map_err(|_| Fault::here("the string is not UTF-8"))?, text);
        }
        Value::Object(_) | Value::Array(_) if depth >= DEPTH_MAX => return Err(too_deep()),
        Value::Object(object) => {
            text.push('{');
            for (place, (key, value)) in object.iter().enumerate() {
                if place > 0 {
                    text.push(',');
                }
                write_text(key, text);
                text.push(':');
                let written = write_at(value, text, max, depth + 1);
                written.map_err(|fault| fault.within(&format!(".{key}")))?;
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for (place, value) in items.iter().enumerate() {
                if place > 0 {
                    text.push(',');
                }
                let written = write_at(value, text, max, depth + 1);
                written.map_err(|fault| fault.within(&format!("[{place}]")))?;
            }
            text.push(']');
        }
    }
    Ok(())
}

/// Appends a value that takes the place of `before`, which was read from `before_text`. Parts that are as before keep their text.
pub(super) fn write_over(
    value: &Value,
    before: &Value,
    before_text: &str,
    text: &mut String,
    max: usize,
) -> Result<(), Fault> {
    if value == before {
        text.push_str(before_text);
        return Ok(());
    }
    match (value, before) {
        (Value::Object(object), Value::Object(before)) => {
            let mut texts: BTreeMap<KeyString, &str> = BTreeMap::new();
            let _ = members(before_text, |key, member| {
                // The last of equal keys counts.
                texts.extend(unescaped(key).map(|key| (KeyString::from(&*key), member)));
                Ok::<_, Infallible>(())
            });
            text.push('{');
            for (place, (key, value)) in object.iter().enumerate() {
                if place > 0 {
                    text.push(',');
                }
                write_text(key, text);
                text.push(':');
                let written = match (before.get(key), texts.get(key)) {
                    (Some(before), Some(member)) => write_over(value, before, member, text, max),
                    _ => write(value, text, max),
                };
                written.map_err(|fault| fault.within(&format!(".{key}")))?;
            }
            text.push('}');
            Ok(())
        }
        (Value::Array(values), Value::Array(before)) => {
            let mut texts: Vec<&str> = Vec::new();
            let _ = items(before_text, |item| {
                texts.push(item);
                Ok::<_, Infallible>(())
            });
            text.push('[');
            for (place, value) in values.iter().enumerate() {
                if place > 0 {
                    text.push(',');
                }
                let written = match (before.get(place), texts.get(place)) {
                    (Some(before), Some(item)) => write_over(value, before, item, text, max),
                    _ => write(value, text, max),
                };
                written.map_err(|fault| fault.within(&format!("[{place}]")))?;
            }
            text.push(']');
            Ok(())
        }
        _ => write(value, text, max),
    }
}

/// Appends a string with its quotes.
pub(super) fn write_text(string: &str, text: &mut String) {
    text.push('"');
    let mut rest = string;
    while let Some(place) = rest
        .bytes()
        .position(|byte| byte < b' ' || byte == b'"' || byte == b'\\')
    {
        text.push_str(&rest[..place]);
        match rest.as_bytes()[place] {
            b'"' => text.push_str("\\\""),
            b'\\' => text.push_str("\\\\"),
            b'\n' => text.push_str("\\n"),
            other => _ = write!(text, "\\u{other:04x}"),
        }
        rest = &rest[place + 1..];
    }
    text.push_str(rest);
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn again(text: &str) -> String {
        let mut again = String::new();
        write(&read(text).unwrap().0, &mut again, 1 << 20).unwrap();
        again
    }

    #[test]
    fn values_come_back() {
        for (text, expected) in [
            ("null", "null"),
            ("true", "true"),
            ("-9223372036854775808", "-9223372036854775808"),
            ("9223372036854775808", r#""9223372036854775808""#),
            ("1.50", "1.5"),
            ("5.0", "5.0"),
            ("1e3", "1000.0"),
            ("0.1", "0.1"),
            ("0e-999", "0.0"),
            ("0.30000000000000004", "0.30000000000000004"),
            ("1.7976931348623157e308", "1.7976931348623157e308"),
            ("1e309", r#""1e309""#),
            ("1e-400", r#""1e-400""#),
            ("1e99999999999999999999", r#""1e99999999999999999999""#),
            ("0.12345678901234567890", r#""0.12345678901234567890""#),
            ("12345678901234567890.5", r#""12345678901234567890.5""#),
            ("-0.0", "-0.0"),
            (r#""é\u00e9\n\"\ud83d\ude00\u0001""#, "\"éé\\n\\\"😀\\u0001\""),
            (r#""\ud800\\\ud83d\ude00\udc00x""#, "\"\u{fffd}\\\\😀\u{fffd}x\""),
            (r#"{ "b" : [ 1 ,{ } ] , "a":"x" ,"b":[ ]}"#, r#"{"a":"x","b":[]}"#),
        ] {
            assert_eq!(again(text), expected, "{text}");
        }
        let plain = |text| read(text).unwrap().1;
        assert!(["null", "7", "-1", r#""a\nb""#, "false"].into_iter().all(plain));
        let others = ["-0", "1.0", "9223372036854775808", r#""\ud800""#, "[]", "{}"];
        assert!(!others.into_iter().any(plain));
    }

    #[test]
    fn values_have_a_greatest_depth_and_length() {
        let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert_eq!(again(&deep(DEPTH_MAX)), deep(DEPTH_MAX));
        assert_eq!(read(&deep(DEPTH_MAX + 1)), Err(too_deep()));
        assert_eq!(read(&deep(1_000_000)), Err(too_deep()));
        let mut value = read(&deep(DEPTH_MAX)).unwrap().0;
        value = Value::Array(vec![Value::Null, value]);
        let fault = write(&value, &mut String::new(), 1 << 20).unwrap_err();
        assert!(fault.path.starts_with("[1][0][0]"), "{fault:?}");
        let many = read(&format!("[{}1]", "1,".repeat(1_000))).unwrap().0;
        let fault = write(&many, &mut String::new(), 1_000).unwrap_err();
        assert_eq!(fault.path, "[500]");
        let fault = write(&Value::Bytes(Bytes::from_static(b"\xff")), &mut String::new(), 9).unwrap_err();
        assert_eq!(fault.reason, "the string is not UTF-8");
    }

    proptest! {
        #[test]
        fn a_float_keeps_its_value(float in any::<f64>().prop_filter("JSON has no such numbers", |float| float.is_finite())) {
            let text = format!("{float:?}");
            prop_assert_eq!(again(&text), text);
        }

        #[test]
        fn a_decimal_keeps_its_digits(text in "-?(0|[1-9][0-9]{0,25})(\\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?") {
            let back = again(&text);
            let back = back.trim_matches('"');
            if text != "-0" {
                prop_assert_eq!(Digits::of(back), Digits::of(&text));
            }
        }

        #[test]
        fn a_string_comes_back(string in ".*") {
            let mut text = String::new();
            write_text(&string, &mut text);
            prop_assert_eq!(&serde_json::from_str::<String>(&text).unwrap(), &string);
            prop_assert_eq!(read(&text).unwrap(), (Value::from(string), true));
        }
    }
}
