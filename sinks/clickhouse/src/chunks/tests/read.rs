//! Reads Native blocks back as text.

use crate::frame::decompress;
use crate::schema::{MAP, STRING, WORD, item_kind};
use millpond_consumer::Chunk;
use std::collections::BTreeMap;

/// Reads one Native block of our types: every row as column name and text.
pub(super) fn read(chunk: &Chunk) -> Vec<BTreeMap<String, String>> {
    let raw = decompress(&chunk.body);
    assert_eq!(raw.len() as u64, chunk.raw_bytes);
    let mut bytes = Native(&raw);
    let columns = bytes.varint();
    let rows = bytes.varint();
    assert_eq!(rows as u64, chunk.rows);
    assert_eq!(
        chunk.received.iter().map(|received| received.rows).sum::<u64>(),
        chunk.rows
    );
    let mut table = vec![BTreeMap::new(); rows];
    for _ in 0..columns {
        let name = bytes.text();
        let kind = bytes.text();
        let values = bytes.column(&kind, rows);
        for (row, value) in table.iter_mut().zip(values) {
            row.insert(name.clone(), value);
        }
    }
    assert!(bytes.0.is_empty());
    table
}

struct Native<'a>(&'a [u8]);

impl Native<'_> {
    fn word(&mut self, size: usize) -> u64 {
        let (word, rest) = self.0.split_at(size);
        self.0 = rest;
        word.iter()
            .rev()
            .fold(0, |value, &byte| value << 8 | u64::from(byte))
    }

    fn varint(&mut self) -> usize {
        let byte = usize::try_from(self.word(1)).unwrap();
        if byte < 0x80 {
            byte
        } else {
            byte - 0x80 + (self.varint() << 7)
        }
    }

    fn text(&mut self) -> String {
        let length = self.varint();
        let (text, rest) = self.0.split_at(length);
        self.0 = rest;
        String::from_utf8(text.to_vec()).unwrap()
    }

    /// The values of a column, as text.
    fn column(&mut self, kind: &str, rows: usize) -> Vec<String> {
        for _ in kind.matches("LowCardinality") {
            assert_eq!(self.word(8), 1);
        }
        let Some(item) = item_kind(kind) else {
            return self.values(kind, rows);
        };
        let ends = self.ends(rows);
        let items = self.values(item, ends.last().copied().unwrap_or(0));
        grouped(&ends, &items)
    }

    fn values(&mut self, kind: &str, rows: usize) -> Vec<String> {
        let size = match kind {
            STRING => return (0..rows).map(|_| self.text()).collect(),
            WORD => return self.dictionary(rows),
            MAP => {
                let ends = self.ends(rows);
                let entries = ends.last().copied().unwrap_or(0);
                let keys = self.dictionary(entries);
                let values: Vec<String> = (0..entries).map(|_| self.text()).collect();
                let pairs: Vec<_> = keys.iter().zip(&values).collect();
                return grouped(&ends, &pairs);
            }
            "UInt8" | "Bool" => 1,
            "UInt32" | "Int32" | "DateTime" => 4,
            "UInt64" | "Float64" => 8,
            kind if kind.starts_with("DateTime64") => 8,
            other => panic!("{other}"),
        };
        (0..rows).map(|_| self.word(size).to_string()).collect()
    }

    /// The end of each row's items.
    fn ends(&mut self, rows: usize) -> Vec<usize> {
        (0..rows)
            .map(|_| usize::try_from(self.word(8)).unwrap())
            .collect()
    }

    fn dictionary(&mut self, rows: usize) -> Vec<String> {
        if rows == 0 {
            return Vec::new();
        }
        let width = 1 << (self.word(8) & 0xff);
        let values: Vec<String> = (0..self.word(8)).map(|_| self.text()).collect();
        assert_eq!(self.word(8), rows as u64);
        (0..rows)
            .map(|_| values[usize::try_from(self.word(width)).unwrap()].clone())
            .collect()
    }
}

fn grouped<T: std::fmt::Debug>(ends: &[usize], items: &[T]) -> Vec<String> {
    let starts = std::iter::once(0).chain(ends.iter().copied());
    starts
        .zip(ends)
        .map(|(start, &end)| format!("{:?}", &items[start..end]))
        .collect()
}
