//! The key of a row: the values at some paths. The last of equal keys of an object counts, as in columns.

use super::descend;
use super::json::{self, unescaped};
use millpond_consumer::{KeyHasher, KeyValue};
use std::convert::Infallible;

/// The paths of a key.
pub(crate) struct KeyPaths(Vec<Vec<String>>);

impl KeyPaths {
    /// `paths` with dots between the keys of objects.
    pub(crate) fn new(paths: &[String]) -> KeyPaths {
        let keys = paths
            .iter()
            .map(|path| path.split('.').map(str::to_owned).collect());
        KeyPaths(keys.collect())
    }

    /// The hash of the key of a row, which is valid JSON. `None` if a value is missing, null, an object or an array.
    pub(crate) fn key(&self, row: &str, hasher: &mut KeyHasher) -> Option<u128> {
        if !row.starts_with('{') {
            return None;
        }
        let (mut few, mut many) = ([None; 4], Vec::new());
        let values: &mut [Option<&str>] = match few.get_mut(..self.0.len()) {
            Some(few) => few,
            None => {
                many.resize(self.0.len(), None);
                &mut many
            }
        };
        let _ = json::members(row, |key, value| {
            let Some(key) = unescaped(key) else { return Ok(()) };
            for (path, found) in self.0.iter().zip(&mut *values) {
                if let Some((first, rest)) = path.split_first()
                    && *first == key
                {
                    *found = descend(value, rest);
                }
            }
            Ok::<_, Infallible>(())
        });
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
}

#[cfg(test)]
mod tests {
    use super::*;

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
