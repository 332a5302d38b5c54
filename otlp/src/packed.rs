//! Repeated numbers: packed into one field, as writers do, or one per field, which readers must accept too.

use crate::wire::{Reader, Value};

/// Repeated fixed64 or double, as 64 bits each. As in the Collector, a packed field replaces earlier values (protobuf
/// itself would append).
#[derive(Clone, Copy, Debug)]
pub struct Fixed64s<'a> {
    packed: &'a [u8],
    /// The message after the last packed field, for unpacked values.
    rest: Reader<'a>,
    number: u32,
}

impl<'a> Fixed64s<'a> {
    pub(crate) fn new(message: &'a [u8], number: u32) -> Self {
        let mut reader = Reader::new(message);
        let mut numbers = Self {
            packed: &[],
            rest: reader,
            number,
        };
        while let Some((found, value)) = reader.next_field() {
            if found == number
                && let Value::Len(packed) = value
            {
                numbers.packed = packed;
                numbers.rest = reader;
            }
        }
        numbers
    }
}

impl Iterator for Fixed64s<'_> {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        if let Some((bytes, rest)) = self.packed.split_first_chunk() {
            self.packed = rest;
            return Some(u64::from_le_bytes(*bytes));
        }
        loop {
            let (number, value) = self.rest.next_field()?;
            if number == self.number
                && let Value::Fixed64(bits) = value
            {
                return Some(bits);
            }
        }
    }
}

/// Repeated uint64.
#[derive(Clone, Copy, Debug)]
pub struct Varints<'a> {
    packed: Reader<'a>,
    rest: Reader<'a>,
    number: u32,
}

impl<'a> Varints<'a> {
    pub(crate) fn new(message: &'a [u8], number: u32) -> Self {
        Self {
            packed: Reader::new(&[]),
            rest: Reader::new(message),
            number,
        }
    }
}

impl Iterator for Varints<'_> {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        loop {
            if !self.packed.is_empty() {
                return self.packed.varint().ok();
            }
            let (number, value) = self.rest.next_field()?;
            if number == self.number {
                match value {
                    Value::Len(packed) => self.packed = Reader::new(packed),
                    Value::Varint(number) => return Some(number),
                    _ => {}
                }
            }
        }
    }
}
