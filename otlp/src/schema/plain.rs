//! The usual form of attributes and values: every sender writes nearly all of them so, and a record is mostly attributes.

use crate::value::tag;
use crate::wire::Reader;

/// A message with a usual form.
#[derive(Clone, Copy)]
pub(crate) enum Plain {
    /// A `KeyValue` that is a key followed by a plain value.
    Pair,
    /// An `AnyValue` that is one scalar, or empty.
    Value,
}

impl Plain {
    /// Returns true if the message has this form. Then it is well-formed, without a record, and at most one message is in
    /// it. False says nothing.
    #[inline]
    pub(crate) fn fits(self, bytes: &[u8]) -> bool {
        match self {
            Plain::Pair => is_pair(bytes),
            Plain::Value => is_value(bytes),
        }
    }
}

#[inline]
fn is_pair(bytes: &[u8]) -> bool {
    let mut reader = Reader::new(bytes);
    reader.take(tag::KEY)
        && reader.bytes().is_ok()
        && reader.take(tag::VALUE)
        && reader.bytes().is_ok_and(is_value)
        && reader.is_empty()
}

#[inline]
fn is_value(bytes: &[u8]) -> bool {
    let mut reader = Reader::new(bytes);
    if reader.take(tag::STRING) {
        reader.bytes().is_ok() && reader.is_empty()
    } else if reader.take(tag::INT) || reader.take(tag::BOOL) {
        reader.varint().is_ok() && reader.is_empty()
    } else if reader.take(tag::DOUBLE) {
        reader.fixed64().is_ok() && reader.is_empty()
    } else {
        bytes.is_empty()
    }
}
