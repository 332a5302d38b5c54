//! The protobuf wire format: tags, varints, lengths, and skipping unknown fields.
//!
//! Every read checks the remaining length. It never panics or allocates.

/// Why bytes are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The bytes end inside a field.
    #[error("the message ends inside this field")]
    Truncated,
    /// A varint takes more than ten bytes or more than 64 bits.
    #[error("a varint is longer than 64 bits")]
    Varint,
    /// A tag has field number 0 or one above protobuf's maximum of 2^29 - 1.
    #[error("the field number is 0 or over 2^29 - 1")]
    FieldNumber,
    /// A known field has another wire type than its definition.
    #[error("the wire type is not the one that OTLP gives this field")]
    WireType,
    /// Groups are not part of OTLP and have been deprecated in protobuf since 2008.
    #[error("groups (wire types 3 and 4) are not accepted")]
    Group,
    /// Wire types 6 and 7 do not exist.
    #[error("the wire type does not exist")]
    UnknownWireType,
    /// Messages are nested more deeply than [`crate::DEPTH_MAX`].
    #[error("messages are nested more than 100 deep")]
    Depth,
}

pub(crate) const VARINT: u32 = 0;
pub(crate) const FIXED64: u32 = 1;
pub(crate) const LEN: u32 = 2;
pub(crate) const FIXED32: u32 = 5;

/// The bytes of one message that have not been read yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    #[inline]
    pub(crate) fn varint(&mut self) -> Result<u64, Reason> {
        match *self.rest {
            [byte, ref rest @ ..] if byte < 0x80 => {
                self.rest = rest;
                Ok(u64::from(byte))
            }
            // The lengths of most records and bodies.
            [low, high, ref rest @ ..] if high < 0x80 => {
                self.rest = rest;
                Ok(u64::from(low & 0x7f) | u64::from(high) << 7)
            }
            _ => self.long_varint(),
        }
    }

    #[cold]
    fn long_varint(&mut self) -> Result<u64, Reason> {
        let mut value = 0;
        for (index, &byte) in self.rest.iter().take(10).enumerate() {
            // The tenth byte carries only the 64th bit.
            if index == 9 && byte > 1 {
                return Err(Reason::Varint);
            }
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte < 0x80 {
                self.rest = &self.rest[index + 1..];
                return Ok(value);
            }
        }
        Err(Reason::Truncated)
    }

    /// A field's number (never 0) and its wire type (0 to 7).
    #[inline]
    pub(crate) fn tag(&mut self) -> Result<(u32, u32), Reason> {
        let tag = u32::try_from(self.varint()?).map_err(|_| Reason::FieldNumber)?;
        if tag < 8 {
            Err(Reason::FieldNumber)
        } else {
            Ok((tag >> 3, tag & 7))
        }
    }

    /// Reads a tag of one byte if it comes next.
    #[inline]
    pub(crate) fn take(&mut self, tag: u8) -> bool {
        match *self.rest {
            [found, ref rest @ ..] if found == tag => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    #[inline]
    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Reason> {
        let length = usize::try_from(self.varint()?).map_err(|_| Reason::Truncated)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Reason::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    #[inline]
    pub(crate) fn fixed64(&mut self) -> Result<u64, Reason> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(Reason::Truncated)?;
        self.rest = rest;
        Ok(u64::from_le_bytes(*bytes))
    }

    #[inline]
    pub(crate) fn fixed32(&mut self) -> Result<u32, Reason> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(Reason::Truncated)?;
        self.rest = rest;
        Ok(u32::from_le_bytes(*bytes))
    }

    /// The value after a tag with this wire type.
    #[inline]
    pub(crate) fn value(&mut self, wire: u32) -> Result<Value<'a>, Reason> {
        match wire {
            VARINT => self.varint().map(Value::Varint),
            FIXED64 => self.fixed64().map(Value::Fixed64),
            LEN => self.bytes().map(Value::Len),
            FIXED32 => self.fixed32().map(Value::Fixed32),
            3 | 4 => Err(Reason::Group),
            _ => Err(Reason::UnknownWireType),
        }
    }

    /// The next embedded message of a validated message in the field with this number. Skips other fields.
    #[inline]
    pub(crate) fn next_message(&mut self, number: u32) -> Option<&'a [u8]> {
        while !self.rest.is_empty() {
            let (found, wire) = self.tag().ok()?;
            if wire == LEN {
                let bytes = self.bytes().ok()?;
                if found == number {
                    return Some(bytes);
                }
            } else {
                self.value(wire).ok()?;
            }
        }
        None
    }

    /// The next field of a validated message, or `None` at its end. Malformed bytes, which validation excludes, end it
    /// too.
    #[inline]
    pub(crate) fn next_field(&mut self) -> Option<(u32, Value<'a>)> {
        if self.rest.is_empty() {
            return None;
        }
        let (number, wire) = self.tag().ok()?;
        let value = self.value(wire).ok()?;
        Some((number, value))
    }
}

/// The part of a message from the first to the last field with some number: a second look skips what lies before and
/// after.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stretch<'a> {
    /// The message from the first such field on.
    from: &'a [u8],
    /// Bytes of the message after the last.
    after: usize,
}

impl<'a> Stretch<'a> {
    /// Adds a field that begins at the start of `field` and ends where the reader is.
    #[inline]
    pub(crate) fn add(&mut self, field: &'a [u8], reader: &Reader<'a>) {
        if self.from.is_empty() {
            self.from = field;
        }
        self.after = reader.rest.len();
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &'a [u8] {
        &self.from[..self.from.len() - self.after]
    }
}

/// A field's value on the wire.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    Varint(u64),
    Fixed64(u64),
    Len(&'a [u8]),
    Fixed32(u32),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints_are_read_whatever_their_padding() {
        let read = |bytes: &[u8]| Reader::new(bytes).varint();
        assert_eq!(read(&[0]), Ok(0));
        assert_eq!(read(&[0x7f]), Ok(127));
        assert_eq!(read(&[0x80, 0x01]), Ok(128));
        assert_eq!(read(&[0x81, 0x80, 0x00]), Ok(1));
        assert_eq!(
            read(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]),
            Ok(u64::MAX)
        );
    }

    #[test]
    fn varints_over_64_bits_are_refused() {
        let read = |bytes: &[u8]| Reader::new(bytes).varint();
        assert_eq!(read(&[]), Err(Reason::Truncated));
        assert_eq!(read(&[0x80]), Err(Reason::Truncated));
        assert_eq!(read(&[0xff; 9]), Err(Reason::Truncated));
        assert_eq!(read(&[0xff; 10]), Err(Reason::Varint));
        assert_eq!(
            read(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02]),
            Err(Reason::Varint)
        );
    }

    #[test]
    fn field_numbers_are_one_to_two_to_the_29() {
        let read = |bytes: &[u8]| Reader::new(bytes).tag();
        assert_eq!(read(&[0x02]), Err(Reason::FieldNumber));
        assert_eq!(read(&[0x0a]), Ok((1, LEN)));
        assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0x0f]), Ok(((1 << 29) - 1, 7)));
        assert_eq!(read(&[0xff, 0xff, 0xff, 0xff, 0x1f]), Err(Reason::FieldNumber));
    }
}
