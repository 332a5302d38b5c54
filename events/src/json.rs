//! Splits JSON that a parser has accepted. It builds no tree: a value is its text.

use memchr::memmem::Finder;
use memchr::{memchr2, memchr3};
use std::borrow::Cow;
use std::convert::Infallible;

/// Passes each key and value of an object, with the key's text between its quotes, until `take` fails.
pub fn members<'a, E>(
    object: &'a str,
    mut take: impl FnMut(&'a str, &'a str) -> Result<(), E>,
) -> Result<(), E> {
    let mut rest = Rest { text: object, at: 1 };
    while let Some(key) = rest.value() {
        rest.skip(b':');
        let Some(value) = rest.value() else { break };
        take(&key[1..key.len() - 1], value)?;
        rest.skip(b',');
    }
    Ok(())
}

/// Returns true if all values of an object are strings or scalars, and no string has an escape. A flat object may be taken for another
/// one if a string has a bracket.
#[inline]
pub(crate) fn is_flat(object: &str) -> bool {
    let members = object.as_bytes().get(1..).unwrap_or_default();
    memchr3(b'{', b'[', b'\\', members).is_none()
}

/// The last value of a key in a flat object. `quoted`: the key in quotes, a letter, digit or other sign that JSON has in strings alone after
/// the first. So the first quote begins a string, which without escapes ends at the second.
#[inline]
pub(crate) fn member_of_flat<'a>(object: &'a str, quoted: &Finder<'_>) -> Option<&'a str> {
    let mut found = None;
    for start in quoted.find_iter(object.as_bytes()) {
        let mut rest = Rest {
            text: object,
            at: start + quoted.needle().len(),
        };
        rest.blank();
        if rest.peek() == Some(b':') {
            rest.at += 1;
            found = rest.value();
        }
    }
    found
}

/// Passes each item of an array, until `take` fails.
pub fn items<'a, E>(array: &'a str, mut take: impl FnMut(&'a str) -> Result<(), E>) -> Result<(), E> {
    let mut rest = Rest { text: array, at: 1 };
    while let Some(value) = rest.value() {
        take(value)?;
        rest.skip(b',');
    }
    Ok(())
}

/// The value of a string, given the text between its quotes. `None` if an escape is half of a surrogate pair.
#[inline]
pub fn unescaped(inner: &str) -> Option<Cow<'_, str>> {
    if !inner.contains('\\') {
        return Some(Cow::Borrowed(inner));
    }
    serde_json::from_str(&format!("\"{inner}\"")).ok().map(Cow::Owned)
}

/// The value at the end of these keys of objects within objects.
pub fn descend<'a>(value: &'a str, keys: &[String]) -> Option<&'a str> {
    let Some((first, keys)) = keys.split_first() else {
        return Some(value);
    };
    if !value.starts_with('{') {
        return None;
    }
    let mut found = None;
    let _ = members(value, |key, value| {
        if unescaped(key).as_deref() == Some(first.as_str()) {
            found = Some(value);
        }
        Ok::<_, Infallible>(())
    });
    descend(found?, keys)
}

/// The unread rest of an object or an array.
struct Rest<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Rest<'a> {
    #[inline]
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    #[inline]
    fn blank(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    #[inline]
    fn skip(&mut self, byte: u8) {
        self.blank();
        if self.peek() == Some(byte) {
            self.at += 1;
        }
    }

    /// The next value; `None` at the closing bracket.
    #[inline]
    fn value(&mut self) -> Option<&'a str> {
        self.blank();
        let start = self.at;
        match self.peek()? {
            b'"' => self.string(),
            b'{' | b'[' => self.nested(),
            _ => self.scalar(),
        }
        self.text.get(start..self.at).filter(|value| !value.is_empty())
    }

    #[inline]
    fn string(&mut self) {
        self.at += 1;
        while let Some(found) = memchr2(
            b'"',
            b'\\',
            self.text.as_bytes().get(self.at..).unwrap_or_default(),
        ) {
            self.at += found + 1;
            if self.text.as_bytes()[self.at - 1] == b'"' {
                return;
            }
            self.at += 1;
        }
        self.at = self.text.len();
    }

    #[inline]
    fn nested(&mut self) {
        let mut depth = 0usize;
        while let Some(byte) = self.peek() {
            match byte {
                b'"' => {
                    self.string();
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return;
            }
        }
    }

    #[inline]
    fn scalar(&mut self) {
        let is_end = |byte: &u8| matches!(byte, b',' | b':' | b'}' | b']') || byte.is_ascii_whitespace();
        let rest = &self.text.as_bytes()[self.at..];
        self.at += rest.iter().position(is_end).unwrap_or(rest.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(object: &str) -> Vec<(&str, &str)> {
        let mut found = Vec::new();
        let Ok(()) = members(object, |key, value| {
            found.push((key, value));
            Ok::<_, Infallible>(())
        });
        found
    }

    #[test]
    fn an_object_is_its_members_as_they_are() {
        assert_eq!(split("{}"), []);
        assert_eq!(split("{ }"), []);
        assert_eq!(
            split(r#"{ "a" : 1.50 , "b":{"c":[1,{"d":"}"}]}, "e\"":"x\\" ,"f": [ ] ,"g":null }"#),
            [
                ("a", "1.50"),
                ("b", r#"{"c":[1,{"d":"}"}]}"#),
                ("e\\\"", r#""x\\""#),
                ("f", "[ ]"),
                ("g", "null")
            ]
        );
    }

    #[test]
    fn an_array_is_its_items_as_they_are() {
        let mut found = Vec::new();
        let Ok(()) = items(r#"[ 1 ,"a,]",[2,3] , {"b":[4]},true]"#, |item| {
            found.push(item);
            Ok::<_, Infallible>(())
        });
        assert_eq!(found, ["1", "\"a,]\"", "[2,3]", "{\"b\":[4]}", "true"]);
    }

    #[test]
    fn a_string_is_unescaped_and_half_a_pair_is_none() {
        assert_eq!(unescaped("é").as_deref(), Some("é"));
        assert_eq!(unescaped(r"a\n\u00e9\ud83d\ude00").as_deref(), Some("a\né😀"));
        assert_eq!(unescaped(r"\ud800"), None);
    }
}
