//! Selects rows of a chunk: those that a table lacks, or a piece of a refused chunk. It parses the Native blocks of
//! `chunks`, so it supports only their types.

use crate::events::{self, Values};
use crate::frame::{Frames, decompress};
use crate::native::{self, Array, Column, Dictionary, Maps, Numbers, Strings, Word};
use crate::schema::{MAP, RECORD, SEQUENCE, SOURCE, STRING, WORD, item_kind};
use bytes::Bytes;

/// Encodes the rows with these places in a chunk.
pub(crate) fn some(body: &[Bytes], places: &[usize]) -> Encoded {
    let raw = decompress(body);
    let order = places_of(&raw);
    let rows: Vec<usize> = match &order {
        None => places.to_vec(),
        Some(order) => places.iter().map(|&place| order[place]).collect(),
    };
    Block::read(&raw).some(&rows)
}

/// The row of each place of a chunk. Places follow the identities; rows may have the order of the table. `None` if both
/// are in the same order, which they are without identities.
fn places_of(raw: &[u8]) -> Option<Vec<usize>> {
    let (mut sequences, _, rows) = seek(raw, SEQUENCE)?;
    let (mut records, ..) = seek(raw, RECORD)?;
    let ids = sequences.numbers::<u64>(rows).0;
    let ids: Vec<(u64, u32)> = ids.into_iter().zip(records.numbers::<u32>(rows).0).collect();
    if ids.is_sorted() {
        return None;
    }
    let mut order: Vec<usize> = (0..rows).collect();
    order.sort_unstable_by_key(|&row| ids[row]);
    Some(order)
}

/// The values of a chunk's time column, in its ticks and in the order of places.
pub(crate) fn ticks(body: &[Bytes], name: &str) -> Vec<i64> {
    let raw = decompress(body);
    let (mut values, kind, rows) = seek(&raw, name).expect("every table has a time");
    let ticks: Vec<i64> = if kind == "DateTime" {
        let seconds = values.numbers::<u32>(rows).0;
        seconds.into_iter().map(i64::from).collect()
    } else {
        values.numbers::<i64>(rows).0
    };
    match places_of(&raw) {
        None => ticks,
        Some(order) => order.into_iter().map(|row| ticks[row]).collect(),
    }
}

/// The source of a chunk's rows.
pub(crate) fn source(body: &[Bytes]) -> Option<String> {
    let raw = decompress(body);
    let (mut values, ..) = seek(&raw, SOURCE)?;
    // Version and flags of the dictionary precede its values; its last value applies to all rows.
    values.take(16);
    let distinct = values.word(8);
    (0..distinct).map(|_| values.text().to_owned()).last()
}

/// Finds a column: its values, type and number of rows.
fn seek<'a>(raw: &'a [u8], name: &str) -> Option<(Rest<'a>, &'a str, usize)> {
    let mut rest = Rest(raw);
    let (count, rows) = (rest.varint(), rest.varint());
    for _ in 0..count {
        let (found, kind) = (rest.text(), rest.text());
        if found == name {
            return Some((rest, kind, rows));
        }
        rest.skip_column(kind, rows);
    }
    None
}

/// An encoded block.
pub(crate) struct Encoded {
    pub(crate) body: Vec<Bytes>,
    pub(crate) rows: u64,
    pub(crate) raw_bytes: u64,
}

/// A parsed block.
struct Block<'a> {
    columns: Vec<ReadColumn<'a>>,
}

struct ReadColumn<'a> {
    name: &'a str,
    kind: &'a str,
    values: Box<dyn Selectable>,
}

impl<'a> Block<'a> {
    fn read(raw: &'a [u8]) -> Self {
        let mut rest = Rest(raw);
        let count = rest.varint();
        let rows = rest.varint();
        let columns = (0..count).map(|_| {
            let (name, kind) = (rest.text(), rest.text());
            ReadColumn {
                name,
                kind,
                values: rest.column(kind, rows),
            }
        });
        Block {
            columns: columns.collect(),
        }
    }

    fn some(&self, rows: &[usize]) -> Encoded {
        let mut frames = Frames::default();
        native::write_block_head(self.columns.len(), rows.len(), &mut frames);
        for column in &self.columns {
            native::write_column_head(column.name, column.kind, &mut frames);
            column.values.write_some(rows, &mut frames);
        }
        let (body, raw_bytes) = frames.finish();
        Encoded {
            body,
            rows: rows.len() as u64,
            raw_bytes,
        }
    }
}

/// A column that can write a selection of its rows.
trait Selectable {
    fn write_some(&self, rows: &[usize], frames: &mut Frames);
}

impl<C: Column + Default> Selectable for C {
    fn write_some(&self, rows: &[usize], frames: &mut Frames) {
        let mut some = C::default();
        some.append(self, rows);
        some.write(frames);
    }
}

/// A column that can be parsed.
trait Readable: Column + Default + 'static {
    fn read(rest: &mut Rest, rows: usize) -> Self;
}

impl<T: Word + 'static> Readable for Numbers<T> {
    fn read(rest: &mut Rest, rows: usize) -> Self {
        rest.numbers(rows)
    }
}

impl Readable for Strings {
    fn read(rest: &mut Rest, rows: usize) -> Self {
        let mut strings = Strings::default();
        for _ in 0..rows {
            let length = rest.varint();
            strings.push(rest.take(length));
        }
        strings
    }
}

impl Readable for Dictionary {
    fn read(rest: &mut Rest, rows: usize) -> Self {
        let mut dictionary = Dictionary::default();
        if rows > 0 {
            let width = 1 << (rest.word(8) & 0xff);
            let values: Vec<&[u8]> = (0..rest.word(8))
                .map(|_| {
                    let length = rest.varint();
                    rest.take(length)
                })
                .collect();
            rest.take(8);
            for _ in 0..rows {
                dictionary.push(values[rest.word(width)]);
            }
        }
        dictionary
    }
}

impl Readable for Maps {
    fn read(rest: &mut Rest, rows: usize) -> Self {
        let (ends, entries) = rest.ends(rows);
        Maps {
            ends,
            keys: Dictionary::read(rest, entries),
            values: Strings::read(rest, entries),
        }
    }
}

impl<C: Readable> Readable for Array<C> {
    fn read(rest: &mut Rest, rows: usize) -> Self {
        let (ends, items) = rest.ends(rows);
        Array {
            ends,
            items: C::read(rest, items),
        }
    }
}

/// The unread rest of a block. We wrote the block, so it is complete.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn take(&mut self, length: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken
    }

    fn word(&mut self, size: usize) -> usize {
        let bytes = self.take(size).iter().rev();
        bytes.fold(0, |value, &byte| value << 8 | usize::from(byte))
    }

    fn varint(&mut self) -> usize {
        let byte = self.word(1);
        if byte < 0x80 {
            byte
        } else {
            byte - 0x80 + (self.varint() << 7)
        }
    }

    fn text(&mut self) -> &'a str {
        let length = self.varint();
        std::str::from_utf8(self.take(length)).expect("names of columns and types are text")
    }

    fn numbers<T: Word>(&mut self, rows: usize) -> Numbers<T> {
        let words = self.take(size_of::<T>() * rows).chunks_exact(size_of::<T>());
        Numbers(words.map(T::get).collect())
    }

    /// The end of each row's items, and their total number.
    fn ends(&mut self, rows: usize) -> (Vec<u64>, usize) {
        let ends = self.numbers::<u64>(rows).0;
        let items = ends.last().copied().unwrap_or(0);
        (ends, usize::try_from(items).expect("a chunk is in memory"))
    }

    fn column(&mut self, kind: &str, rows: usize) -> Box<dyn Selectable> {
        // The blocks of events have no dictionaries, whatever the names in an Enum are.
        if !is_ours(kind) {
            return self.events(kind, rows);
        }
        // The versions of its dictionaries.
        self.take(8 * kind.matches("LowCardinality").count());
        match item_kind(kind) {
            None => self.values::<Plain>(kind, rows),
            Some(kind) => self.values::<Within>(kind, rows),
        }
    }

    /// Skips what [`column`](Self::column) reads.
    fn skip_column(&mut self, kind: &str, rows: usize) {
        if !is_ours(kind) {
            self.column(kind, rows);
            return;
        }
        self.take(8 * kind.matches("LowCardinality").count());
        match item_kind(kind) {
            None => self.skip_values(kind, rows),
            Some(kind) => {
                let items = self.skip_ends(rows);
                self.skip_values(kind, items);
            }
        }
    }

    fn skip_values(&mut self, kind: &str, rows: usize) {
        match kind {
            STRING => self.skip_strings(rows),
            WORD => self.skip_dictionary(rows),
            MAP => {
                let entries = self.skip_ends(rows);
                self.skip_dictionary(entries);
                self.skip_strings(entries);
            }
            "UInt8" | "Bool" => _ = self.take(rows),
            "UInt32" | "Int32" | "DateTime" => _ = self.take(4 * rows),
            // DateTime64, UInt64 and Float64 (`is_ours`).
            _ => _ = self.take(8 * rows),
        }
    }

    fn skip_strings(&mut self, rows: usize) {
        for _ in 0..rows {
            let length = self.varint();
            self.take(length);
        }
    }

    fn skip_dictionary(&mut self, rows: usize) {
        if rows > 0 {
            let width = 1 << (self.word(8) & 0xff);
            let distinct = self.word(8);
            self.skip_strings(distinct);
            self.take(8 + width * rows);
        }
    }

    fn skip_ends(&mut self, rows: usize) -> usize {
        let ends = self.take(8 * rows);
        let mut last = Rest(&ends[ends.len().saturating_sub(8)..]);
        last.word(last.0.len())
    }

    /// A column of a type that only events fill.
    fn events(&mut self, kind: &str, rows: usize) -> Box<dyn Selectable> {
        let mut values = events::read(kind).expect("we wrote the block");
        self.fill(&mut values, rows);
        Box::new(values)
    }

    fn fill(&mut self, values: &mut Values, rows: usize) {
        match values {
            Values::Fixed { width, bytes } => bytes.extend_from_slice(self.take(*width * rows)),
            Values::Text(strings) => *strings = Strings::read(self, rows),
            Values::Nullable { nulls, values } => {
                nulls.extend_from_slice(self.take(rows));
                self.fill(values, rows);
            }
            Values::List { ends, items } => {
                let (found, count) = self.ends(rows);
                *ends = found;
                self.fill(items, count);
            }
            Values::Tuple(fields) => fields.iter_mut().for_each(|field| self.fill(field, rows)),
        }
    }

    fn values<S: Shape>(&mut self, kind: &str, rows: usize) -> Box<dyn Selectable> {
        match kind {
            STRING => S::read::<Strings>(self, rows),
            WORD => S::read::<Dictionary>(self, rows),
            MAP => S::read::<Maps>(self, rows),
            "UInt8" | "Bool" => S::read::<Numbers<u8>>(self, rows),
            "UInt32" | "Int32" | "DateTime" => S::read::<Numbers<u32>>(self, rows),
            // DateTime64, UInt64 and Float64 (`is_ours`).
            _ => S::read::<Numbers<u64>>(self, rows),
        }
    }
}

/// The types of the tables of OTLP.
fn is_ours(kind: &str) -> bool {
    const NUMBERS: [&str; 7] = [
        "UInt8", "Bool", "UInt32", "Int32", "DateTime", "UInt64", "Float64",
    ];
    let kind = item_kind(kind).unwrap_or(kind);
    [STRING, WORD, MAP].contains(&kind) || NUMBERS.contains(&kind) || kind.starts_with("DateTime64(")
}

/// A selection of a column that events filled.
impl Selectable for Values {
    fn write_some(&self, rows: &[usize], frames: &mut Frames) {
        let mut some = self.emptied();
        some.append(self, rows);
        some.write(frames);
    }
}

/// A column of values, or of arrays of values.
trait Shape {
    fn read<C: Readable>(rest: &mut Rest, rows: usize) -> Box<dyn Selectable>;
}

struct Plain;

impl Shape for Plain {
    fn read<C: Readable>(rest: &mut Rest, rows: usize) -> Box<dyn Selectable> {
        Box::new(C::read(rest, rows))
    }
}

struct Within;

impl Shape for Within {
    fn read<C: Readable>(rest: &mut Rest, rows: usize) -> Box<dyn Selectable> {
        Box::new(Array::<C>::read(rest, rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::Table;

    fn filled(kind: &str) -> Box<dyn Selectable> {
        let text = |text: &str| text.as_bytes().to_vec();
        let mut strings = Strings::default();
        let mut words = Dictionary::default();
        let mut maps = Maps::default();
        for row in 0..300_usize {
            let long = text(&"x".repeat(row));
            strings.push(&long);
            words.push(&long);
            for entry in 0..row % 3 {
                maps.keys.push(&text(&format!("key{entry}")));
                maps.values.push(&long);
            }
            maps.end_row();
        }
        fn numbers<T: Word + 'static>(zero: T) -> Box<dyn Selectable> {
            Box::new(Numbers(vec![zero; 300]))
        }
        match kind {
            STRING => Box::new(strings),
            WORD => Box::new(words),
            MAP => Box::new(maps),
            "UInt8" | "Bool" => numbers(0_u8),
            "UInt32" | "Int32" | "DateTime" => numbers(0_u32),
            _ => numbers(0_u64),
        }
    }

    /// Two rows of two and one items.
    fn listed(kind: &str) -> Box<dyn Selectable> {
        fn list<C: Column + Default + 'static>(push: impl Fn(&mut C)) -> Box<dyn Selectable> {
            let mut list = Array::<C>::default();
            for items in [2, 1] {
                (0..items).for_each(|_| push(&mut list.items));
                list.end_row();
            }
            Box::new(list)
        }
        match kind {
            STRING => list(|items: &mut Strings| items.push(b"item")),
            WORD => list(|items: &mut Dictionary| items.push(b"item")),
            MAP => list(|items: &mut Maps| {
                items.keys.push(b"key");
                items.values.push(b"value");
                items.end_row();
            }),
            "UInt32" | "DateTime" => list(|items: &mut Numbers<u32>| items.0.push(7)),
            _ => list(|items: &mut Numbers<u64>| items.0.push(7)),
        }
    }

    #[test]
    fn every_column_is_skipped_as_far_as_it_is_read() {
        let mut kinds: Vec<&str> = Table::ALL
            .into_iter()
            .flat_map(|table| table.columns().map(|column| column.kind))
            .collect();
        kinds.sort_unstable();
        kinds.dedup();
        assert!(kinds.len() > 8, "{kinds:?}");
        for kind in kinds {
            let (column, rows) = match item_kind(kind) {
                None => (filled(kind), 300),
                Some(item) => (listed(item), 2),
            };
            for rows in [rows, 0] {
                let mut frames = Frames::default();
                column.write_some(&(0..rows).collect::<Vec<_>>(), &mut frames);
                let mut raw = decompress(&frames.finish().0);
                raw.extend_from_slice(b"rest");
                let (mut read, mut skipped) = (Rest(&raw), Rest(&raw));
                read.column(kind, rows);
                skipped.skip_column(kind, rows);
                assert_eq!(read.0, b"rest", "{kind}");
                assert_eq!(skipped.0, b"rest", "{kind}");
            }
        }
    }
}
