//! Writes the subset of protobuf that OTLP log records need.

/// Appends protobuf fields to a buffer.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
}

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH_DELIMITED: u64 = 2;
const FIXED32: u64 = 5;

impl Writer {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value.to_le_bytes()[0] | 0x80);
            value >>= 7;
        }
        self.bytes.push(value.to_le_bytes()[0]);
    }

    fn tag(&mut self, field: u64, wire_type: u64) {
        self.varint(field << 3 | wire_type);
    }

    pub(crate) fn uint(&mut self, field: u64, value: u64) {
        self.tag(field, VARINT);
        self.varint(value);
    }

    pub(crate) fn fixed32(&mut self, field: u64, value: u32) {
        self.tag(field, FIXED32);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Returns the position of the eight-byte value.
    pub(crate) fn fixed64(&mut self, field: u64, value: u64) -> usize {
        self.tag(field, FIXED64);
        self.bytes.extend_from_slice(&value.to_le_bytes());
        self.bytes.len() - 8
    }

    /// Writes the head of a length-delimited field; the caller appends its `length` bytes.
    pub(crate) fn head(&mut self, field: u64, length: usize) {
        self.tag(field, LENGTH_DELIMITED);
        self.varint(length as u64);
    }

    /// Returns the position of the value.
    pub(crate) fn bytes(&mut self, field: u64, value: &[u8]) -> usize {
        self.head(field, value.len());
        self.bytes.extend_from_slice(value);
        self.bytes.len() - value.len()
    }

    /// Writes a message with its length and the content from `fill`. Returns the result of `fill` and the position of
    /// the content.
    pub(crate) fn message<T>(&mut self, field: u64, fill: impl FnOnce(&mut Writer) -> T) -> (T, usize) {
        let mut inner = Writer::default();
        let result = fill(&mut inner);
        (result, self.bytes(field, &inner.bytes))
    }

    /// Writes a KeyValue with a string and returns the string's position.
    pub(crate) fn attribute(&mut self, field: u64, key: &str, value: &str) -> usize {
        let ((in_any, any), start) = self.message(field, |pair| {
            pair.bytes(1, key.as_bytes());
            pair.message(2, |any| any.bytes(1, value.as_bytes()))
        });
        start + any + in_any
    }

    /// Writes a KeyValue with an integer.
    pub(crate) fn int_attribute(&mut self, field: u64, key: &str, value: u64) {
        self.message(field, |pair| {
            pair.bytes(1, key.as_bytes());
            pair.message(2, |any| any.uint(3, value));
        });
    }
}
