//! Some rows of a chunk: what it has that the table has not, when it landed in part (the partitions of one INSERT land one by
//! one, each whole), or a piece of it. Reads back the Native blocks that `chunks` has encoded, so it knows only their types.

use crate::frame::{Frames, decompress};
use crate::native::{self, Bytes8, Column, Dictionary, Maps, Strings, Ticks};
use crate::schema::{MAP, MILLPOND, STRING, WORD};
use bytes::Bytes;
use std::collections::HashSet;
use std::ops::Range;

/// The rows of a chunk whose timestamps are not among `times`, and how many they are.
pub(crate) fn without(body: &[Bytes], times: &HashSet<i64>) -> (Vec<Bytes>, u64) {
    let missing = |times_of: &Ticks| {
        let rows = times_of.0.iter().enumerate();
        rows.filter(|(_, time)| !times.contains(time))
            .map(|(row, _)| row)
            .collect()
    };
    let Block { body, rows, .. } = some(body, &missing, None);
    (body, rows)
}

/// These rows of a chunk, as if it had this number.
pub(crate) fn piece(body: &[Bytes], rows: Range<usize>, number: u32) -> Block {
    some(body, &|_| rows.clone().collect(), Some(number))
}

/// A block, encoded.
pub(crate) struct Block {
    pub(crate) body: Vec<Bytes>,
    pub(crate) rows: u64,
    pub(crate) raw_bytes: u64,
}

/// The rows that `choose` takes, by their timestamps; in a chunk of another number, if one is given.
fn some(body: &[Bytes], choose: &dyn Fn(&Ticks) -> Vec<usize>, number: Option<u32>) -> Block {
    let number_column = MILLPOND[MILLPOND.len() - 1].name;
    let raw = decompress(body);
    let mut block = Encoded(&raw);
    let columns = block.varint();
    let rows = block.varint();
    let mut frames = Frames::default();
    let mut kept: Vec<usize> = Vec::new();
    for column in 0..columns {
        let (name, kind) = (block.text(), block.text());
        if column == 0 {
            // The timestamp is the first column: it says which rows of the others are kept.
            kept = choose(&Encoded(block.0).ticks(rows));
            native::write_block_head(columns, kept.len(), &mut frames);
        }
        native::write_column_head(name, kind, &mut frames);
        match kind {
            "UInt8" => copy(&Bytes8(block.take(rows).to_vec()), &kept, &mut frames),
            "UInt32" if name == number_column && number.is_some() => {
                block.take(4 * rows);
                let number = number.unwrap_or_default().to_le_bytes();
                native::write_constant(&number, kept.len(), &mut frames);
            }
            "UInt32" => block
                .take(4 * rows)
                .chunks_exact(4)
                .enumerate()
                .for_each(|(row, word)| {
                    if kept.binary_search(&row).is_ok() {
                        frames.write(word);
                    }
                }),
            STRING => copy(&block.strings(rows), &kept, &mut frames),
            WORD => {
                block.take(8);
                copy(&block.dictionary(rows), &kept, &mut frames);
            }
            MAP => copy(&block.maps(rows), &kept, &mut frames),
            // DateTime64 and UInt64.
            _ => copy(&block.ticks(rows), &kept, &mut frames),
        }
    }
    let (body, raw_bytes) = frames.finish();
    Block {
        body,
        rows: kept.len() as u64,
        raw_bytes,
    }
}

fn copy<C: Column + Default>(column: &C, rows: &[usize], frames: &mut Frames) {
    let mut some = C::default();
    some.append(column, rows);
    some.write(frames);
}

/// What is left to read of a block. We have written it, so it is whole.
struct Encoded<'a>(&'a [u8]);

impl<'a> Encoded<'a> {
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

    fn ticks(&mut self, rows: usize) -> Ticks {
        let words = self.take(8 * rows).chunks_exact(8);
        Ticks(
            words
                .map(|word| i64::from_le_bytes(word.try_into().expect("eight bytes")))
                .collect(),
        )
    }

    fn strings(&mut self, count: usize) -> Strings {
        let mut strings = Strings::default();
        for _ in 0..count {
            let length = self.varint();
            strings.push(self.take(length));
        }
        strings
    }

    /// After its version.
    fn dictionary(&mut self, rows: usize) -> Dictionary {
        let mut dictionary = Dictionary::default();
        if rows > 0 {
            let width = 1 << (self.word(8) & 0xff);
            let values: Vec<&[u8]> = (0..self.word(8))
                .map(|_| {
                    let length = self.varint();
                    self.take(length)
                })
                .collect();
            self.take(8);
            for _ in 0..rows {
                dictionary.push(values[self.word(width)]);
            }
        }
        dictionary
    }

    fn maps(&mut self, rows: usize) -> Maps {
        self.take(8);
        let ends: Vec<u64> = (0..rows).map(|_| self.word(8) as u64).collect();
        let entries = ends
            .last()
            .map_or(0, |&end| usize::try_from(end).expect("a chunk is in memory"));
        Maps {
            ends,
            keys: self.dictionary(entries),
            values: self.strings(entries),
        }
    }
}
