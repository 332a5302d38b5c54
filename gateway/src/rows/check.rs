//! Checks one row: one JSON object within the limits, with each key once. It never builds a value.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

/// Maximum length of a row.
pub const ROW_BYTES_MAX: usize = 1 << 20;

/// Maximum depth of a row: its own object counts as one. serde_json, which readers use, stops at the 128th.
pub const DEPTH_MAX: usize = 127;

/// Maximum number of keys in the object itself.
pub const KEYS_MAX: usize = 4_096;

/// A key in an error is cut after this number of characters.
const KEY_SHOWN: usize = 64;

/// Why a row is rejected, or the rest of a body is not read.
#[derive(Debug, thiserror::Error)]
pub(super) enum Wrong {
    #[error("expected a JSON object")]
    Nothing,
    #[error("malformed JSON: {}", without_place(.0))]
    Malformed(#[source] serde_json::Error),
    #[error("nested deeper than {DEPTH_MAX} levels")]
    TooDeep { at: usize },
    #[error("not UTF-8")]
    NotText { at: usize },
    #[error("a row is a JSON object, not {0}")]
    NotAnObject(&'static str),
    #[error("the row has {0} bytes, the limit is {ROW_BYTES_MAX}")]
    TooLong(usize),
    #[error("the key {0:?} occurs twice")]
    KeyTwice(String),
    #[error("more than {KEYS_MAX} keys")]
    TooManyKeys,
    #[error("expected `,` or `]` after an element of the array")]
    NoComma,
    #[error("the array has no end")]
    NoEnd,
    #[error("expected nothing after the array")]
    AfterArray,
    #[error("expected a newline after an object")]
    NoGap,
}

impl Wrong {
    /// Returns true if the end of the row is uncertain, so that nothing after it can be read unless a newline ends it.
    pub(super) fn ends_reading(&self) -> bool {
        !matches!(
            self,
            Wrong::NotAnObject(_) | Wrong::TooLong(_) | Wrong::KeyTwice(_) | Wrong::TooManyKeys
        )
    }

    /// The offset in the row.
    pub(super) fn at(&self, row: &[u8]) -> usize {
        match self {
            Wrong::Malformed(error) => place(row, error),
            Wrong::TooDeep { at } | Wrong::NotText { at } => *at,
            _ => 0,
        }
    }
}

/// Checks a row without whitespace around it.
pub(super) fn check(row: &[u8]) -> Result<(), Wrong> {
    if row.is_empty() {
        return Err(Wrong::Nothing);
    }
    // serde_json remembers each open bracket, so check the depth before it reads.
    if let Some(at) = too_deep(row) {
        return Err(Wrong::TooDeep { at });
    }
    if let Err(error) = std::str::from_utf8(row) {
        return Err(Wrong::NotText {
            at: error.valid_up_to(),
        });
    }
    let is_object = row.first() == Some(&b'{');
    if !is_object || row.len() > ROW_BYTES_MAX {
        serde_json::from_slice::<IgnoredAny>(row).map_err(Wrong::Malformed)?;
    }
    if !is_object {
        return Err(Wrong::NotAnObject(kind(row)));
    }
    if row.len() > ROW_BYTES_MAX {
        return Err(Wrong::TooLong(row.len()));
    }
    match serde_json::from_slice(row).map_err(Wrong::Malformed)? {
        Keys::Good => Ok(()),
        Keys::Twice(key) => Err(Wrong::KeyTwice(key)),
        Keys::TooMany => Err(Wrong::TooManyKeys),
    }
}

/// The offset of the first bracket that is too deep.
fn too_deep(row: &[u8]) -> Option<usize> {
    let brackets = row.iter().filter(|byte| matches!(byte, b'{' | b'[')).count();
    if brackets <= DEPTH_MAX {
        return None;
    }
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for (at, byte) in row.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' if depth == DEPTH_MAX => return Some(at),
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

/// The offset of an error in the row.
fn place(row: &[u8], error: &serde_json::Error) -> usize {
    let line_start = match error.line().saturating_sub(1) {
        0 => 0,
        line => row
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'\n')
            .nth(line - 1)
            .map_or(row.len(), |(at, _)| at + 1),
    };
    (line_start + error.column().saturating_sub(1)).min(row.len())
}

/// The error without its line and column, which are those in the row.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((reason, _)) => reason.to_owned(),
        None => text,
    }
}

/// The kind of a JSON value, by its first byte.
fn kind(value: &[u8]) -> &'static str {
    match value.first() {
        Some(b'[') => "an array",
        Some(b'"') => "a string",
        Some(b't' | b'f') => "a boolean",
        Some(b'n') => "null",
        _ => "a number",
    }
}

/// The verdict on an object's keys. To deserialize it reads the whole object, whatever the verdict.
enum Keys {
    Good,
    /// This key, shortened.
    Twice(String),
    TooMany,
}

impl<'de> Deserialize<'de> for Keys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Keys, D::Error> {
        deserializer.deserialize_map(KeysVisitor)
    }
}

struct KeysVisitor;

impl<'de> Visitor<'de> for KeysVisitor {
    type Value = Keys;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Keys, A::Error> {
        let mut seen = Seen::default();
        let mut keys = Keys::Good;
        while let Some(Key(key)) = map.next_key()? {
            map.next_value::<IgnoredAny>()?;
            if !matches!(keys, Keys::Good) {
                continue;
            }
            if seen.count() == KEYS_MAX {
                keys = Keys::TooMany;
            } else if let Some(key) = seen.insert(key) {
                keys = Keys::Twice(key.chars().take(KEY_SHOWN).collect());
            }
        }
        Ok(keys)
    }
}

/// Comparing with a few keys is faster than hashing.
const FEW_KEYS: usize = 24;

#[derive(Default)]
struct Seen<'de> {
    few: Vec<Cow<'de, str>>,
    more: HashSet<Cow<'de, str>>,
}

impl<'de> Seen<'de> {
    fn count(&self) -> usize {
        self.few.len() + self.more.len()
    }

    /// Returns the key if it is not new.
    fn insert(&mut self, key: Cow<'de, str>) -> Option<Cow<'de, str>> {
        if self.few.contains(&key) || self.more.contains(&key) {
            return Some(key);
        }
        if self.few.len() < FEW_KEYS {
            self.few.push(key);
        } else {
            self.more.insert(key);
        }
        None
    }
}

/// A key, borrowed unless it has escapes.
struct Key<'de>(Cow<'de, str>);

impl<'de> Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Key<'de>, D::Error> {
        deserializer.deserialize_str(KeyVisitor)
    }
}

struct KeyVisitor;

impl<'de> Visitor<'de> for KeyVisitor {
    type Value = Key<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a key")
    }

    fn visit_borrowed_str<E>(self, key: &'de str) -> Result<Key<'de>, E> {
        Ok(Key(Cow::Borrowed(key)))
    }

    fn visit_str<E>(self, key: &str) -> Result<Key<'de>, E> {
        Ok(Key(Cow::Owned(key.to_owned())))
    }
}
