//! The key of a row: a hash of the values at some paths. The last of equal keys of an object counts, as in columns.
//!
//! The hash must never change: snapshots hold it, and rows are in the shard that follows from it.

use crate::json::{self, descend, unescaped};
use memchr::memmem::Finder;
use sha2::{Digest, Sha256};
use std::convert::Infallible;

/// A value of a row that is a part of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyValue<'a> {
    /// The characters of a string.
    Text(&'a str),
    /// The text of a number.
    Number(&'a str),
    /// `true` or `false`.
    Flag(bool),
}

/// Hashes the values of one key, in the order of its paths.
#[derive(Debug, Clone, Default)]
pub struct KeyHasher {
    /// For each value its kind, the length of its text, and the text, so that no two keys have the same bytes.
    bytes: Vec<u8>,
}

impl KeyHasher {
    /// Begins another key.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Adds the next value.
    pub fn add(&mut self, value: KeyValue<'_>) {
        let (kind, text) = match value {
            KeyValue::Text(text) => (b's', text),
            KeyValue::Number(text) => (b'n', text),
            KeyValue::Flag(true) => (b'b', "true"),
            KeyValue::Flag(false) => (b'b', "false"),
        };
        self.bytes.push(kind);
        self.bytes.extend_from_slice(&(text.len() as u64).to_le_bytes());
        self.bytes.extend_from_slice(text.as_bytes());
    }

    /// The first 128 bits of the key's SHA-256.
    pub fn hash(&self) -> u128 {
        let digest = Sha256::digest(&self.bytes);
        let first = digest.first_chunk::<16>();
        u128::from_le_bytes(*first.expect("a digest has 32 bytes"))
    }
}

/// The paths of a key.
#[derive(Debug, Clone)]
pub struct KeyPaths {
    /// The keys of each path, from the outside to the inside.
    paths: Vec<Vec<String>>,
    /// For each path its key in quotes, if all paths are plain names of members.
    quoted: Option<Vec<Finder<'static>>>,
}

impl KeyPaths {
    /// `paths` with dots between the keys of objects.
    pub fn new(paths: &[String]) -> KeyPaths {
        let keys = paths
            .iter()
            .map(|path| path.split('.').map(str::to_owned).collect());
        let is_plain = |path: &String| {
            let mut bytes = path.bytes();
            !path.is_empty() && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"_-@$".contains(&byte))
        };
        let quoted = paths.iter().all(is_plain).then(|| {
            let quoted = paths.iter().map(|path| format!("\"{path}\""));
            quoted.map(|key| Finder::new(&key).into_owned()).collect()
        });
        KeyPaths {
            paths: keys.collect(),
            quoted,
        }
    }

    /// The hash of the key of a row, which is valid JSON. `None` if a value is missing, null, an object or an array.
    pub fn key(&self, row: &str, hasher: &mut KeyHasher) -> Option<u128> {
        if !row.starts_with('{') {
            return None;
        }
        let (mut few, mut many) = ([None; 4], Vec::new());
        let values: &mut [Option<&str>] = match few.get_mut(..self.paths.len()) {
            Some(few) => few,
            None => {
                many.resize(self.paths.len(), None);
                &mut many
            }
        };
        match &self.quoted {
            Some(quoted) if json::is_flat(row) => {
                for (quoted, found) in quoted.iter().zip(&mut *values) {
                    *found = json::member_of_flat(row, quoted);
                }
            }
            _ => self.find(row, values),
        }
        hasher.clear();
        for value in values.iter() {
            let text = (*value)?;
            if let Some(inner) = text.strip_prefix('"') {
                let inner = unescaped(&inner[..inner.len() - 1])?;
                hasher.add(KeyValue::Text(&inner));
                continue;
            }
            hasher.add(match text.as_bytes().first()? {
                b't' => KeyValue::Flag(true),
                b'f' => KeyValue::Flag(false),
                b'-' | b'0'..=b'9' => KeyValue::Number(text),
                _ => return None,
            });
        }
        Some(hasher.hash())
    }

    /// Finds the value at each path.
    fn find<'a>(&self, row: &'a str, values: &mut [Option<&'a str>]) {
        let _ = json::members(row, |key, value| {
            let Some(key) = unescaped(key) else { return Ok(()) };
            for (path, found) in self.paths.iter().zip(&mut *values) {
                if let Some((first, rest)) = path.split_first()
                    && *first == key
                {
                    *found = descend(value, rest);
                }
            }
            Ok::<_, Infallible>(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(paths: &[&str], row: &str) -> Option<u128> {
        let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
        KeyPaths::new(&paths).key(row, &mut KeyHasher::default())
    }

    fn hash(values: &[KeyValue<'_>]) -> Option<u128> {
        let mut hasher = KeyHasher::default();
        values.iter().for_each(|value| hasher.add(*value));
        Some(hasher.hash())
    }

    #[test]
    fn the_hash_never_changes() {
        let values = [
            KeyValue::Text("é"),
            KeyValue::Number("1.50"),
            KeyValue::Flag(true),
        ];
        let hash = hash(&values).expect("it has values");
        assert_eq!(format!("{hash:032x}"), "7de56b25f1f9c9cb696c30778c7933f3");
    }

    #[test]
    fn different_values_are_different_keys() {
        use KeyValue::{Flag, Number, Text};
        let keys: [&[KeyValue<'_>]; 8] = [
            &[Text("1")],
            &[Number("1")],
            &[Number("1.0")],
            &[Text("true")],
            &[Flag(true)],
            &[Text("a"), Text("b")],
            &[Text("ab"), Text("")],
            &[Text("b"), Text("a")],
        ];
        let hashes: std::collections::BTreeSet<_> = keys.iter().map(|key| hash(key)).collect();
        assert_eq!(hashes.len(), keys.len());
    }

    #[test]
    fn a_key_is_the_values_at_its_paths_in_their_order() {
        use KeyValue::{Flag, Number, Text};
        let row = r#"{"id": "a\u00e9", "n" : -1.50, "user":{"id":7,"ok":true}, "x":{"id":1}}"#;
        assert_eq!(key(&["id"], row), hash(&[Text("aé")]));
        assert_eq!(key(&["n", "id"], row), hash(&[Number("-1.50"), Text("aé")]));
        assert_eq!(
            key(&["user.id", "user.ok"], row),
            hash(&[Number("7"), Flag(true)])
        );
    }

    proptest! {
        #[test]
        fn the_members_of_a_flat_row_are_those_of_any_other(
            members in prop::collection::vec(
                (
                    prop::sample::select(vec!["id", "n", "ident", "", ":", "i\\u0064", "é"]),
                    prop::sample::select(vec![
                        "1", " -2.5e3 ", "\"\"", "\"id\"", " \"a b\"", "\",\"", "\":1\"", "\"{\"", "\"é\"", "\"\\\"id\\\":1\"", "true",
                        "null", "[\"id\"]", "{\"id\":1}",
                    ]),
                    prop::sample::select(vec!["", " ", "\t\r\n"]),
                ),
                0..6,
            ),
        ) {
            let members: Vec<String> = members
                .iter()
                .map(|(key, value, blank)| format!("{blank}\"{key}\"{blank}:{value}"))
                .collect();
            let row = format!("{{{}}}", members.join(","));
            prop_assert!(serde_json::from_str::<serde_json::Value>(&row).is_ok());
            for paths in [&["id"][..], &["n", "id"]] {
                let paths: Vec<String> = paths.iter().map(|path| (*path).to_owned()).collect();
                let quick = KeyPaths::new(&paths);
                prop_assert!(quick.quoted.is_some());
                let slow = KeyPaths { quoted: None, ..quick.clone() };
                let mut hasher = KeyHasher::default();
                prop_assert_eq!(quick.key(&row, &mut hasher), slow.key(&row, &mut hasher), "{}", row);
            }
        }
    }

    #[test]
    fn only_plain_names_are_looked_for_as_text() {
        for (path, is_plain) in [
            ("id", true),
            ("@time-stamp_1", true),
            ("user.id", false),
            ("a b", false),
            ("é", false),
            (",", false),
            ("", false),
        ] {
            assert_eq!(
                KeyPaths::new(&[path.to_owned()]).quoted.is_some(),
                is_plain,
                "{path}"
            );
        }
    }

    #[test]
    fn the_last_of_equal_keys_counts_however_it_is_written() {
        assert_eq!(
            key(&["id"], r#"{"id":1,"\u0069d":2}"#),
            hash(&[KeyValue::Number("2")])
        );
        assert_eq!(key(&["a.b"], r#"{"a":{"b":1},"a":{"c":2}}"#), None);
    }

    #[test]
    fn a_row_without_a_value_at_each_path_has_no_key() {
        for row in [
            "{}",
            r#"{"id":null}"#,
            r#"{"id":[1]}"#,
            r#"{"id":{"a":1}}"#,
            r#"{"id":"\ud800"}"#,
            "[1]",
            "7",
        ] {
            assert_eq!(key(&["id"], row), None, "{row}");
        }
        assert_eq!(key(&["id", "n"], r#"{"id":1}"#), None);
        assert_eq!(key(&["id.n"], r#"{"id":1}"#), None);
    }
}
