//! What a chunk has that the table has not, when it landed in part: the partitions of one INSERT land one by one,
//! each whole. Reads back the Native blocks that `chunks` has encoded, so it knows only their types.

use crate::frame::{Frames, decompress};
use crate::native::{self, Array, Column, Dictionary, Maps, Numbers, Strings, Word};
use crate::schema::{MAP, STRING, Table, WORD, item_kind};
use bytes::Bytes;
use std::collections::HashSet;

/// The rows of a chunk whose times, in ticks of the table's column, are not among `times`, and how many they are.
pub(crate) fn without(body: &[Bytes], table: Table, times: &HashSet<i64>) -> (Vec<Bytes>, u64) {
    let raw = decompress(body);
    let mut block = Block(&raw);
    let count = block.varint();
    let rows = block.varint();
    let mut columns = Vec::with_capacity(count);
    for _ in 0..count {
        let (name, kind) = (block.text(), block.text());
        let data = block.0;
        columns.push((name, kind, block.column(kind, rows), data));
    }
    let time = columns.iter().find(|(name, ..)| *name == table.time());
    let (_, kind, _, data) = time.expect("every table has a time");
    let mut block = Block(data);
    let ticks: Vec<i64> = match *kind {
        "DateTime" => block.numbers::<u32>(rows).0.into_iter().map(i64::from).collect(),
        _ => block.numbers::<i64>(rows).0,
    };
    let kept: Vec<usize> = (0..rows).filter(|&row| !times.contains(&ticks[row])).collect();
    let mut frames = Frames::default();
    native::write_block_head(count, kept.len(), &mut frames);
    for (name, kind, column, _) in columns {
        native::write_column_head(name, kind, &mut frames);
        column.write_some(&kept, &mut frames);
    }
    (frames.finish().0, kept.len() as u64)
}

/// A column of which some rows can be written.
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

/// A column whose values can be read back.
trait Readable: Column + Default + 'static {
    fn read(block: &mut Block, rows: usize) -> Self;
}

impl<T: Word + 'static> Readable for Numbers<T> {
    fn read(block: &mut Block, rows: usize) -> Self {
        block.numbers(rows)
    }
}

impl Readable for Strings {
    fn read(block: &mut Block, rows: usize) -> Self {
        let mut strings = Strings::default();
        for _ in 0..rows {
            let length = block.varint();
            strings.push(block.take(length));
        }
        strings
    }
}

impl Readable for Dictionary {
    fn read(block: &mut Block, rows: usize) -> Self {
        let mut dictionary = Dictionary::default();
        if rows > 0 {
            let width = 1 << (block.word(8) & 0xff);
            let values: Vec<&[u8]> = (0..block.word(8))
                .map(|_| {
                    let length = block.varint();
                    block.take(length)
                })
                .collect();
            block.take(8);
            for _ in 0..rows {
                dictionary.push(values[block.word(width)]);
            }
        }
        dictionary
    }
}

impl Readable for Maps {
    fn read(block: &mut Block, rows: usize) -> Self {
        let (ends, entries) = block.ends(rows);
        Maps {
            ends,
            keys: Dictionary::read(block, entries),
            values: Strings::read(block, entries),
        }
    }
}

impl<C: Readable> Readable for Array<C> {
    fn read(block: &mut Block, rows: usize) -> Self {
        let (ends, items) = block.ends(rows);
        Array {
            ends,
            items: C::read(block, items),
        }
    }
}

/// What is left to read of a block. We have written it, so it is whole.
struct Block<'a>(&'a [u8]);

impl<'a> Block<'a> {
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

    /// Where the items of each row end, and how many there are.
    fn ends(&mut self, rows: usize) -> (Vec<u64>, usize) {
        let ends = self.numbers::<u64>(rows).0;
        let items = ends.last().copied().unwrap_or(0);
        (ends, usize::try_from(items).expect("a chunk is in memory"))
    }

    fn column(&mut self, kind: &str, rows: usize) -> Box<dyn Selectable> {
        // The versions of the dictionaries within it.
        self.take(8 * kind.matches("LowCardinality").count());
        match item_kind(kind) {
            None => self.values::<Plain>(kind, rows),
            Some(kind) => self.values::<Within>(kind, rows),
        }
    }

    fn values<S: Shape>(&mut self, kind: &str, rows: usize) -> Box<dyn Selectable> {
        match kind {
            STRING => S::read::<Strings>(self, rows),
            WORD => S::read::<Dictionary>(self, rows),
            MAP => S::read::<Maps>(self, rows),
            "UInt8" | "Bool" => S::read::<Numbers<u8>>(self, rows),
            "UInt32" | "Int32" | "DateTime" => S::read::<Numbers<u32>>(self, rows),
            // DateTime64, UInt64 and Float64.
            _ => S::read::<Numbers<u64>>(self, rows),
        }
    }
}

/// A column of values, or of arrays of them.
trait Shape {
    fn read<C: Readable>(block: &mut Block, rows: usize) -> Box<dyn Selectable>;
}

struct Plain;

impl Shape for Plain {
    fn read<C: Readable>(block: &mut Block, rows: usize) -> Box<dyn Selectable> {
        Box::new(C::read(block, rows))
    }
}

struct Within;

impl Shape for Within {
    fn read<C: Readable>(block: &mut Block, rows: usize) -> Box<dyn Selectable> {
        Box::new(Array::<C>::read(block, rows))
    }
}
