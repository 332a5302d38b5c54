//! Writes the subset of protobuf that OTLP log records need.

use prost::encoding::{WireType, encode_key, encode_varint};

/// Appends protobuf fields to a buffer.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
}

impl Writer {
    fn tag(&mut self, field: u32, wire_type: WireType) {
        encode_key(field, wire_type, &mut self.bytes);
    }

    pub(crate) fn uint(&mut self, field: u32, value: u64) {
        self.tag(field, WireType::Varint);
        encode_varint(value, &mut self.bytes);
    }

    pub(crate) fn fixed32(&mut self, field: u32, value: u32) {
        self.tag(field, WireType::ThirtyTwoBit);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Returns the position of the eight-byte value.
    pub(crate) fn fixed64(&mut self, field: u32, value: u64) -> usize {
        self.tag(field, WireType::SixtyFourBit);
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self.bytes.len() - 8
    }

    /// Writes the head of a length-delimited field; the caller appends its `length` bytes.
    pub(crate) fn head(&mut self, field: u32, length: usize) {
        self.tag(field, WireType::LengthDelimited);
        encode_varint(length as u64, &mut self.bytes);
    }

    /// Returns the position of the value.
    pub(crate) fn bytes(&mut self, field: u32, value: &[u8]) -> usize {
        self.head(field, value.len());
        self.bytes.extend_from_slice(value);
        self.bytes.len() - value.len()
    }

    /// Writes a message with its length and the content from `fill`. Returns the result of `fill` and the position of
    /// the content.
    pub(crate) fn message<T>(&mut self, field: u32, fill: impl FnOnce(&mut Writer) -> T) -> (T, usize) {
        let mut inner = Writer::default();
        let result = fill(&mut inner);
        (result, self.bytes(field, &inner.bytes))
    }

    /// Writes a KeyValue with a string and returns the string's position.
    pub(crate) fn attribute(&mut self, field: u32, key: &str, value: &str) -> usize {
        let ((in_any, any), start) = self.message(field, |pair| {
            pair.bytes(1, key.as_bytes());
            pair.message(2, |any| any.bytes(1, value.as_bytes()))
        });
        start + any + in_any
    }

    /// Writes a KeyValue with an integer.
    pub(crate) fn int_attribute(&mut self, field: u32, key: &str, value: u64) {
        self.message(field, |pair| {
            pair.bytes(1, key.as_bytes());
            pair.message(2, |any| any.uint(3, value));
        });
    }
}
