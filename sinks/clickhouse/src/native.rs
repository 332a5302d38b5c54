//! Columns of a ClickHouse Native block, filled row by row in their wire form.
//!
//! It supports only the types of our tables. Native over HTTP (protocol revision 0) is, per block: varint columns,
//! varint rows, then each column's name, type and data.

use crate::frame::Frames;
use crate::sorting::Ranks;
use std::collections::HashMap;
use std::ops::Range;

/// The places of rows in the order in which they are written. `None`: in the order of the column.
pub(crate) type Order<'o> = Option<&'o [u32]>;

/// A column of a block.
pub(crate) trait Column {
    /// Writes the prefix before the data: the versions of its dictionaries.
    fn write_versions(&self, _: &mut Frames) {}
    /// Writes the data.
    fn write_values(&self, order: Order<'_>, frames: &mut Frames);
    /// Writes everything after name and type.
    fn write(&self, frames: &mut Frames) {
        self.write_in(None, frames);
    }
    /// The same, with the rows in this order.
    fn write_in(&self, order: Order<'_>, frames: &mut Frames) {
        self.write_versions(frames);
        self.write_values(order, frames);
    }
    /// The values as numbers, if the server orders them in a way that is known here.
    fn ranks(&self) -> Option<Ranks> {
        None
    }
    /// The number of values.
    fn rows(&self) -> usize;
    /// Bytes in memory: close to the encoded size, and the same in every process.
    fn raw_len(&self) -> usize;
    /// Empties the column and keeps its memory for the next block.
    fn clear(&mut self);
    /// Appends these rows of another column.
    fn append(&mut self, from: &Self, rows: &[usize])
    where
        Self: Sized;
}

pub(crate) fn put_varint(mut value: usize, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

/// The runs of neighbouring rows in an order, which mostly come from one request: their values lie together.
fn runs(order: &[u32]) -> impl Iterator<Item = Range<usize>> {
    order
        .chunk_by(|row, next| *row + 1 == *next)
        .map(|run| run[0] as usize..run[0] as usize + run.len())
}

/// A fixed-size number.
pub(crate) trait Word: Copy {
    /// The rank of 0, if these numbers have ranks.
    const ZERO: Option<u64>;
    /// Appends the bytes, little-endian.
    fn put(self, out: &mut Vec<u8>);
    /// Reads it back.
    fn get(bytes: &[u8]) -> Self;
    /// A number in the same order.
    fn rank(self) -> u64;
}

macro_rules! words {
    ($($type:ty: $zero:expr, $rank:expr;)*) => {$(
        impl Word for $type {
            const ZERO: Option<u64> = $zero;

            #[inline]
            fn put(self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            fn get(bytes: &[u8]) -> Self {
                <$type>::from_le_bytes(bytes.try_into().expect("as many bytes as the number has"))
            }

            #[inline]
            fn rank(self) -> u64 {
                let rank: fn($type) -> u64 = $rank;
                rank(self)
            }
        }
    )*};
}

words! {
    u8: Some(0), u64::from;
    u16: Some(0), u64::from;
    u32: Some(0), u64::from;
    u64: Some(0), |word| word;
    i32: Some(SIGN), |word| i64::from(word).cast_unsigned() ^ SIGN;
    i64: Some(SIGN), |word| word.cast_unsigned() ^ SIGN;
    f64: None, f64::to_bits;
}

const SIGN: u64 = 1 << 63;

/// Fixed-size numbers: UInt8, Bool, Int32, UInt32, DateTime, UInt64, Float64.
pub(crate) struct Numbers<T>(pub(crate) Vec<T>);

/// DateTime64 of any precision: ticks since the epoch.
pub(crate) type Ticks = Numbers<i64>;

impl<T> Default for Numbers<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Word> Column for Numbers<T> {
    fn write_values(&self, order: Order<'_>, frames: &mut Frames) {
        match order {
            None => write_words(self.0.iter().copied(), frames),
            Some(order) => write_words(order.iter().map(|&row| self.0[row as usize]), frames),
        }
    }

    fn ranks(&self) -> Option<Ranks> {
        let zero = T::ZERO?;
        let values = self.0.iter().map(|word| word.rank()).collect();
        Some(Ranks { values, zero })
    }

    fn rows(&self) -> usize {
        self.0.len()
    }

    fn raw_len(&self) -> usize {
        size_of::<T>() * self.0.len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }

    fn append(&mut self, from: &Self, rows: &[usize]) {
        self.0.extend(rows.iter().map(|&row| from.0[row]));
    }
}

/// Writes numbers a few thousand at a time.
pub(crate) fn write_words<T: Word>(words: impl Iterator<Item = T>, frames: &mut Frames) {
    const BUFFER: usize = 32 << 10;
    let mut buffer = Vec::with_capacity(BUFFER);
    for word in words {
        if buffer.len() + size_of::<T>() > BUFFER {
            frames.write(&buffer);
            buffer.clear();
        }
        word.put(&mut buffer);
    }
    frames.write(&buffer);
}

/// String: for each value a varint length and the bytes.
#[derive(Debug, Default)]
pub(crate) struct Strings {
    bytes: Vec<u8>,
    /// The start of each value.
    starts: Vec<usize>,
}

impl Strings {
    #[inline]
    pub(crate) fn push(&mut self, value: &[u8]) {
        self.starts.push(self.bytes.len());
        put_varint(value.len(), &mut self.bytes);
        self.bytes.extend_from_slice(value);
    }

    /// Removes all values after the first `rows`.
    pub(crate) fn truncate(&mut self, rows: usize) {
        if let Some(&end) = self.starts.get(rows) {
            self.bytes.truncate(end);
            self.starts.truncate(rows);
        }
    }

    /// The values.
    pub(crate) fn values(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.rows()).map(|value| {
            let encoded = self.encoded(value..value + 1);
            let length = encoded.iter().take_while(|byte| **byte >= 0x80).count() + 1;
            &encoded[length..]
        })
    }

    /// The bytes of these values.
    pub(crate) fn encoded(&self, values: Range<usize>) -> &[u8] {
        let start = |value: usize| self.starts.get(value).copied().unwrap_or(self.bytes.len());
        &self.bytes[start(values.start)..start(values.end)]
    }
}

impl Column for Strings {
    fn write_values(&self, order: Order<'_>, frames: &mut Frames) {
        match order {
            None => frames.write(&self.bytes),
            Some(order) => runs(order).for_each(|rows| frames.write(self.encoded(rows))),
        }
    }

    fn rows(&self) -> usize {
        self.starts.len()
    }

    fn raw_len(&self) -> usize {
        self.bytes.len()
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.starts.clear();
    }

    fn append(&mut self, from: &Self, rows: &[usize]) {
        for &row in rows {
            self.starts.push(self.bytes.len());
            self.bytes.extend_from_slice(from.encoded(row..row + 1));
        }
    }
}

/// LowCardinality(String): each distinct value once, and its index per row. As in the server's own blocks, index 0 is
/// the empty string whether it occurs or not.
pub(crate) struct Dictionary {
    numbers: HashMap<Box<[u8]>, u32>,
    values: Vec<Box<[u8]>>,
    values_len: usize,
    rows: Vec<u32>,
}

/// The version of the dictionary's serialization, written once before a column's data.
const DICTIONARY_VERSION: u64 = 1;
/// The block contains the complete dictionary.
const DICTIONARY_FLAGS: u64 = 0x600;

impl Default for Dictionary {
    fn default() -> Self {
        let mut dictionary = Self {
            numbers: HashMap::new(),
            values: Vec::new(),
            values_len: 0,
            rows: Vec::new(),
        };
        dictionary.clear();
        dictionary
    }
}

impl Dictionary {
    /// The index of `value` until the next `clear`.
    pub(crate) fn number(&mut self, value: &[u8]) -> u32 {
        if let Some(&number) = self.numbers.get(value) {
            return number;
        }
        // A chunk has under 2^32 rows and map entries: its bytes are limited.
        let number = u32::try_from(self.values.len()).expect("a chunk has under 2^32 distinct values");
        self.numbers.insert(value.into(), number);
        self.values.push(value.into());
        self.values_len += value.len() + 1;
        number
    }

    #[inline]
    pub(crate) fn push_number(&mut self, number: u32) {
        self.rows.push(number);
    }

    /// The value with this index.
    pub(crate) fn value(&self, number: u32) -> &[u8] {
        &self.values[number as usize]
    }

    /// Writes everything before the indexes of this many rows, and returns the width of an index for [`put_number`].
    pub(crate) fn write_head(&self, rows: usize, frames: &mut Frames) -> u64 {
        let width = match self.values.len() {
            0..=0x100 => 0u64,
            0x101..=0x1_0000 => 1,
            _ => 2,
        };
        frames.write(&(DICTIONARY_FLAGS | width).to_le_bytes());
        frames.write(&(self.values.len() as u64).to_le_bytes());
        let mut values = Strings::default();
        for value in &self.values {
            values.push(value);
        }
        values.write(frames);
        frames.write(&(rows as u64).to_le_bytes());
        width
    }

    /// Writes the data with the rows of these ranges, which together are all rows, in this order.
    fn write_ranges(&self, ranges: impl Iterator<Item = Range<usize>>, frames: &mut Frames) {
        const BUFFER: usize = 32 << 10;
        if self.rows.is_empty() {
            return;
        }
        let width = self.write_head(self.rows.len(), frames);
        let mut buffer = Vec::with_capacity(BUFFER);
        for range in ranges {
            let numbers = &self.rows[range];
            if buffer.len() + 4 * numbers.len() > BUFFER {
                frames.write(&buffer);
                buffer.clear();
            }
            match width {
                0 => buffer.extend(numbers.iter().map(|number| number.to_le_bytes()[0])),
                _ => numbers
                    .iter()
                    .for_each(|&number| put_number(number, width, &mut buffer)),
            }
        }
        frames.write(&buffer);
    }

    pub(crate) fn push(&mut self, value: &[u8]) {
        // Neighbouring values are mostly equal.
        let number = match self.rows.last() {
            Some(&last) if *self.values[last as usize] == *value => last,
            _ => self.number(value),
        };
        self.rows.push(number);
    }
}

impl Column for Dictionary {
    fn write_versions(&self, frames: &mut Frames) {
        frames.write(&DICTIONARY_VERSION.to_le_bytes());
    }

    fn write_values(&self, order: Order<'_>, frames: &mut Frames) {
        if self.rows.is_empty() {
            return;
        }
        let width = self.write_head(self.rows.len(), frames);
        match order {
            None => write_numbers(self.rows.iter().copied(), width, frames),
            Some(order) => write_numbers(order.iter().map(|&row| self.rows[row as usize]), width, frames),
        }
    }

    fn ranks(&self) -> Option<Ranks> {
        let mut sorted: Vec<(&[u8], usize)> = self.values.iter().map(|value| &**value).zip(0..).collect();
        sorted.sort_unstable();
        let mut ranks = vec![0; sorted.len()];
        for ((_, number), rank) in sorted.into_iter().zip(0..) {
            ranks[number] = rank;
        }
        Some(Ranks {
            values: self.rows.iter().map(|&number| ranks[number as usize]).collect(),
            zero: 0,
        })
    }

    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn raw_len(&self) -> usize {
        self.values_len + 4 * self.rows.len()
    }

    fn clear(&mut self) {
        self.numbers.clear();
        self.values.clear();
        self.values_len = 0;
        self.rows.clear();
        self.number(b"");
    }

    fn append(&mut self, from: &Self, rows: &[usize]) {
        for &row in rows {
            self.push(&from.values[from.rows[row] as usize]);
        }
    }
}

/// Appends the index of a dictionary's value, in 1, 2 or 4 bytes.
pub(crate) fn put_number(number: u32, width: u64, out: &mut Vec<u8>) {
    let bytes = match width {
        0 => 1,
        1 => 2,
        _ => 4,
    };
    out.extend_from_slice(&number.to_le_bytes()[..bytes]);
}

/// Writes the numbers of a dictionary's values in 1, 2 or 4 bytes each.
fn write_numbers(numbers: impl Iterator<Item = u32>, width: u64, frames: &mut Frames) {
    match width {
        0 => write_words(numbers.map(|number| number.to_le_bytes()[0]), frames),
        1 => write_words(
            numbers.map(|number| u16::from_le_bytes([number.to_le_bytes()[0], number.to_le_bytes()[1]])),
            frames,
        ),
        _ => write_words(numbers, frames),
    }
}

/// Map(LowCardinality(String), String).
#[derive(Default)]
pub(crate) struct Maps {
    /// The end of each row's entries.
    pub(crate) ends: Vec<u64>,
    pub(crate) keys: Dictionary,
    pub(crate) values: Strings,
}

impl Maps {
    /// Ends a row: its entries were pushed to `keys` and `values` since the last row.
    #[inline]
    pub(crate) fn end_row(&mut self) {
        self.ends.push(self.values.rows() as u64);
    }
}

impl Column for Maps {
    fn write_versions(&self, frames: &mut Frames) {
        self.keys.write_versions(frames);
    }

    fn write_values(&self, order: Order<'_>, frames: &mut Frames) {
        let Some(order) = order else {
            write_words(self.ends.iter().copied(), frames);
            self.keys.write_values(None, frames);
            return self.values.write_values(None, frames);
        };
        let entries = || order.iter().map(|&row| items_of(&self.ends, row as usize));
        let ends = entries().scan(0, |end, entries| {
            *end += entries.len() as u64;
            Some(*end)
        });
        write_words(ends, frames);
        let runs = || {
            runs(order).map(|rows| {
                let last = items_of(&self.ends, rows.end - 1);
                items_of(&self.ends, rows.start).start..last.end
            })
        };
        self.keys.write_ranges(runs(), frames);
        for entries in runs() {
            frames.write(self.values.encoded(entries));
        }
    }

    fn rows(&self) -> usize {
        self.ends.len()
    }

    fn raw_len(&self) -> usize {
        8 * self.ends.len() + self.keys.raw_len() + self.values.raw_len()
    }

    fn clear(&mut self) {
        self.ends.clear();
        self.keys.clear();
        self.values.clear();
    }

    fn append(&mut self, from: &Self, rows: &[usize]) {
        for &row in rows {
            let entries: Vec<usize> = items_of(&from.ends, row).collect();
            self.keys.append(&from.keys, &entries);
            self.values.append(&from.values, &entries);
            self.end_row();
        }
    }
}

/// An Array of any of these columns.
#[derive(Default)]
pub(crate) struct Array<C> {
    /// The end of each row's items.
    pub(crate) ends: Vec<u64>,
    pub(crate) items: C,
}

impl<C: Column> Array<C> {
    /// Ends a row: its items were pushed to `items` since the last row.
    #[inline]
    pub(crate) fn end_row(&mut self) {
        self.ends.push(self.items.rows() as u64);
    }
}

impl<C: Column> Column for Array<C> {
    fn write_versions(&self, frames: &mut Frames) {
        self.items.write_versions(frames);
    }

    fn write_values(&self, order: Order<'_>, frames: &mut Frames) {
        let items = write_ends(&self.ends, order, frames);
        self.items.write_values(items.as_deref(), frames);
    }

    fn rows(&self) -> usize {
        self.ends.len()
    }

    fn raw_len(&self) -> usize {
        8 * self.ends.len() + self.items.raw_len()
    }

    fn clear(&mut self) {
        self.ends.clear();
        self.items.clear();
    }

    fn append(&mut self, from: &Self, rows: &[usize]) {
        for &row in rows {
            let items: Vec<usize> = items_of(&from.ends, row).collect();
            self.items.append(&from.items, &items);
            self.end_row();
        }
    }
}

/// Writes where each row's items end, and returns the order of the items.
fn write_ends(ends: &[u64], order: Order<'_>, frames: &mut Frames) -> Option<Vec<u32>> {
    let Some(order) = order else {
        write_words(ends.iter().copied(), frames);
        return None;
    };
    let mut items = Vec::with_capacity(ends.last().map_or(0, |&end| usize::try_from(end).unwrap_or(0)));
    let ends = order.iter().map(|&row| {
        for item in items_of(ends, row as usize) {
            items.push(u32::try_from(item).expect("a chunk has under 2^32 items"));
        }
        items.len() as u64
    });
    write_words(ends, frames);
    Some(items)
}

/// The range of a row whose items end at `ends[row]`.
#[expect(
    clippy::cast_possible_truncation,
    reason = "ends count values that are in memory"
)]
fn items_of(ends: &[u64], row: usize) -> Range<usize> {
    let start = row.checked_sub(1).map_or(0, |before| ends[before] as usize);
    start..ends[row] as usize
}

/// Writes the same encoded value for every row.
pub(crate) fn write_constant(value: &[u8], rows: usize, frames: &mut Frames) {
    let mut buffer = Vec::with_capacity(4096 * value.len());
    let mut left = rows;
    while left > 0 {
        let now = left.min(4096);
        buffer.clear();
        for _ in 0..now {
            buffer.extend_from_slice(value);
        }
        frames.write(&buffer);
        left -= now;
    }
}

/// Writes the head of a block.
pub(crate) fn write_block_head(columns: usize, rows: usize, frames: &mut Frames) {
    let mut head = Vec::new();
    put_varint(columns, &mut head);
    put_varint(rows, &mut head);
    frames.write(&head);
}

/// Writes the head of a column.
pub(crate) fn write_column_head(name: &str, kind: &str, frames: &mut Frames) {
    let mut head = Vec::new();
    for text in [name, kind] {
        put_varint(text.len(), &mut head);
        head.extend_from_slice(text.as_bytes());
    }
    frames.write(&head);
}

#[cfg(test)]
mod tests;
