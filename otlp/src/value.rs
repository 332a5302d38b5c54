//! Borrowed views of `AnyValue` and `KeyValue`.
//!
//! They read validated bytes. Bytes that validation excludes end an iteration early and never panic.

use crate::wire::{Reader, Value};

/// A value in OTLP. As in the Collector, the last field wins, whichever it is, and a second array or map replaces the
/// first (protobuf itself would append it).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum AnyValue<'a> {
    /// No value.
    #[default]
    Empty,
    /// The bytes of a string, which need not be UTF-8.
    String(&'a [u8]),
    /// A boolean.
    Bool(bool),
    /// A signed integer.
    Int(i64),
    /// A double, with the bits of any NaN unchanged.
    Double(f64),
    /// A list of values.
    Array(Values<'a>),
    /// Key-value pairs in order; keys may repeat.
    Map(KeyValues<'a>),
    /// Bytes.
    Bytes(&'a [u8]),
    /// An index into a table of strings. Only OTLP profiles have one; elsewhere it has no meaning.
    StringIndex(i32),
}

/// Tags of `AnyValue` and `KeyValue`.
pub(crate) mod tag {
    pub(crate) const STRING: u8 = 1 << 3 | 2;
    pub(crate) const BOOL: u8 = 2 << 3;
    pub(crate) const INT: u8 = 3 << 3;
    pub(crate) const DOUBLE: u8 = 4 << 3 | 1;
    pub(crate) const KEY: u8 = 1 << 3 | 2;
    pub(crate) const VALUE: u8 = 2 << 3 | 2;
}

impl<'a> AnyValue<'a> {
    /// Reads the only occurrence of the message.
    #[inline]
    pub(crate) fn read(bytes: &'a [u8]) -> Self {
        // The usual values first, which are one string or one number.
        let mut reader = Reader::new(bytes);
        if reader.take(tag::STRING) {
            if let Ok(string) = reader.bytes()
                && reader.is_empty()
            {
                return AnyValue::String(string);
            }
        } else if reader.take(tag::INT)
            && let Ok(number) = reader.varint()
            && reader.is_empty()
        {
            return AnyValue::Int(number.cast_signed());
        }
        let mut value = AnyValue::Empty;
        value.merge(bytes);
        value
    }

    /// Merges one occurrence of the message into `self`, as protobuf does.
    pub(crate) fn merge(&mut self, bytes: &'a [u8]) {
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.next_field() {
            *self = match (number, value) {
                (1, Value::Len(string)) => AnyValue::String(string),
                (2, Value::Varint(number)) => AnyValue::Bool(number != 0),
                (3, Value::Varint(number)) => AnyValue::Int(number.cast_signed()),
                (4, Value::Fixed64(bits)) => AnyValue::Double(f64::from_bits(bits)),
                (5, Value::Len(message)) => AnyValue::Array(Values {
                    reader: Reader::new(message),
                }),
                (6, Value::Len(message)) => AnyValue::Map(KeyValues {
                    reader: Reader::new(message),
                    number: 1,
                }),
                (7, Value::Len(bytes)) => AnyValue::Bytes(bytes),
                (8, Value::Varint(index)) => AnyValue::StringIndex(low_i32(index)),
                _ => continue,
            };
        }
    }
}

/// Protobuf's int32: the low 32 bits of the varint.
#[expect(
    clippy::cast_possible_truncation,
    reason = "protobuf defines int32 by truncation"
)]
pub(crate) fn low_i32(varint: u64) -> i32 {
    (varint as u32).cast_signed()
}

/// Protobuf's uint32: the low 32 bits of the varint.
pub(crate) fn low_u32(varint: u64) -> u32 {
    low_i32(varint).cast_unsigned()
}

/// Protobuf's sint32: zigzag in the low 32 bits of the varint.
pub(crate) fn zigzag_i32(varint: u64) -> i32 {
    let bits = low_u32(varint);
    (bits >> 1).cast_signed() ^ -(bits & 1).cast_signed()
}

/// The values of an array, in order.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    reader: Reader<'a>,
}

impl<'a> Iterator for Values<'a> {
    type Item = AnyValue<'a>;

    fn next(&mut self) -> Option<AnyValue<'a>> {
        self.reader.next_message(1).map(AnyValue::read)
    }
}

/// Equal if the bytes are equal.
impl PartialEq for Values<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.reader.rest() == other.reader.rest()
    }
}

/// A key and its value.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct KeyValue<'a> {
    /// The bytes of the key, which need not be UTF-8.
    pub key: &'a [u8],
    /// The value.
    pub value: AnyValue<'a>,
}

impl<'a> KeyValue<'a> {
    #[inline]
    pub(crate) fn read(bytes: &'a [u8]) -> Self {
        // The usual order first.
        let mut reader = Reader::new(bytes);
        if reader.take(tag::KEY)
            && let Ok(key) = reader.bytes()
            && reader.take(tag::VALUE)
            && let Ok(value) = reader.bytes()
            && reader.is_empty()
        {
            let value = AnyValue::read(value);
            return KeyValue { key, value };
        }
        Self::read_any(bytes)
    }

    pub(crate) fn read_any(bytes: &'a [u8]) -> Self {
        let mut pair = KeyValue::default();
        let mut reader = Reader::new(bytes);
        while let Some((number, value)) = reader.next_field() {
            match (number, value) {
                (1, Value::Len(key)) => pair.key = key,
                (2, Value::Len(message)) => pair.value.merge(message),
                _ => {}
            }
        }
        pair
    }
}

/// The key-value pairs of a map or of a message with attributes, in order.
#[derive(Clone, Copy, Debug)]
pub struct KeyValues<'a> {
    reader: Reader<'a>,
    /// The field number of the pairs.
    number: u32,
}

impl<'a> KeyValues<'a> {
    pub(crate) fn new(message: &'a [u8], number: u32) -> Self {
        Self {
            reader: Reader::new(message),
            number,
        }
    }
}

impl<'a> Iterator for KeyValues<'a> {
    type Item = KeyValue<'a>;

    #[inline]
    fn next(&mut self) -> Option<KeyValue<'a>> {
        self.reader.next_message(self.number).map(KeyValue::read)
    }
}

/// Equal if the bytes are equal.
impl PartialEq for KeyValues<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number && self.reader.rest() == other.reader.rest()
    }
}
