//! The keys of rows, as a sink reads them out of messages. The hash must never change: snapshots hold it.

use sha2::{Digest, Sha256};

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

/// The key of a row. Packed: a third of the memory of a batch's keys would be gaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(Rust, packed(8))]
pub struct RowKey {
    /// The number of the row's record in its part.
    pub record: u32,
    /// When its message was received, unix microseconds.
    pub at_us: i64,
    /// The key's hash.
    pub key: u128,
}

/// The keys of the rows of a part, in the order of their records. Rows without a key are left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PartKeys {
    /// The part's sequence.
    pub sequence: u64,
    /// The latest reception of its messages, unix microseconds. `None` without messages.
    pub newest_us: Option<i64>,
    /// The keys.
    pub keys: Vec<RowKey>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(values: &[KeyValue<'_>]) -> u128 {
        let mut hasher = KeyHasher::default();
        values.iter().for_each(|value| hasher.add(*value));
        hasher.hash()
    }

    #[test]
    fn the_hash_never_changes() {
        let values = [
            KeyValue::Text("é"),
            KeyValue::Number("1.50"),
            KeyValue::Flag(true),
        ];
        assert_eq!(
            format!("{:032x}", hash(&values)),
            "7de56b25f1f9c9cb696c30778c7933f3"
        );
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
        let hashes: std::collections::BTreeSet<u128> = keys.iter().map(|key| hash(key)).collect();
        assert_eq!(hashes.len(), keys.len());
    }
}
