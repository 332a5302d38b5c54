//! The primitive types of Kafka's protocol. Requests and answers of *flexible* versions have compact lengths, and tagged
//! fields after each structure.

use bytes::Bytes;

/// Bytes that do not follow the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed at byte {at}: {what}")]
pub struct Malformed {
    /// The offset in the request or the record batch.
    pub at: usize,
    /// The broken rule.
    pub what: &'static str,
}

/// Reads values one after another.
#[derive(Debug, Clone)]
pub(crate) struct Reader {
    bytes: Bytes,
    at: usize,
    /// The version is flexible.
    pub(crate) flexible: bool,
}

impl Reader {
    pub(crate) fn new(bytes: Bytes) -> Reader {
        Reader {
            bytes,
            at: 0,
            flexible: false,
        }
    }

    pub(crate) fn fail<T>(&self, what: &'static str) -> Result<T, Malformed> {
        Err(Malformed { at: self.at, what })
    }

    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The rest, without a copy.
    pub(crate) fn rest(&self) -> Bytes {
        self.bytes.slice(self.at..)
    }

    fn take(&mut self, length: usize) -> Result<Bytes, Malformed> {
        if length > self.remaining() {
            return self.fail("it ends too early");
        }
        let taken = self.bytes.slice(self.at..self.at + length);
        self.at += length;
        Ok(taken)
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let Some(value) = self.bytes[self.at..].first_chunk().copied() else {
            return self.fail("it ends too early");
        };
        self.at += N;
        Ok(value)
    }

    pub(crate) fn i8(&mut self) -> Result<i8, Malformed> {
        self.fixed().map(i8::from_be_bytes)
    }

    pub(crate) fn bool(&mut self) -> Result<bool, Malformed> {
        self.i8().map(|value| value != 0)
    }

    pub(crate) fn i16(&mut self) -> Result<i16, Malformed> {
        self.fixed().map(i16::from_be_bytes)
    }

    pub(crate) fn i32(&mut self) -> Result<i32, Malformed> {
        self.fixed().map(i32::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.fixed().map(u32::from_be_bytes)
    }

    pub(crate) fn i64(&mut self) -> Result<i64, Malformed> {
        self.fixed().map(i64::from_be_bytes)
    }

    pub(crate) fn uuid(&mut self) -> Result<[u8; 16], Malformed> {
        self.fixed()
    }

    fn unsigned_varint(&mut self) -> Result<u32, Malformed> {
        match varint(&self.bytes[self.at..], 5) {
            Some((value, length)) => {
                let Ok(value) = u32::try_from(value) else {
                    return self.fail("a length over 32 bits");
                };
                self.at += length;
                Ok(value)
            }
            None => self.fail("an unfinished variable-length number"),
        }
    }

    /// The length of what follows; `None` for null. `wide`: 32 bits in versions that are not flexible.
    fn length(&mut self, wide: bool) -> Result<Option<usize>, Malformed> {
        let length = if self.flexible {
            i64::from(self.unsigned_varint()?) - 1
        } else if wide {
            self.i32()?.into()
        } else {
            self.i16()?.into()
        };
        match usize::try_from(length) {
            Ok(length) => Ok(Some(length)),
            Err(_) if length == -1 => Ok(None),
            Err(_) => self.fail("a negative length"),
        }
    }

    pub(crate) fn nullable_string(&mut self) -> Result<Option<String>, Malformed> {
        let Some(length) = self.length(false)? else {
            return Ok(None);
        };
        let bytes = self.take(length)?;
        match std::str::from_utf8(&bytes) {
            Ok(text) => Ok(Some(text.to_owned())),
            Err(_) => self.fail("a string that is not UTF-8"),
        }
    }

    pub(crate) fn string(&mut self) -> Result<String, Malformed> {
        match self.nullable_string()? {
            Some(text) => Ok(text),
            None => self.fail("null instead of a string"),
        }
    }

    pub(crate) fn nullable_bytes(&mut self) -> Result<Option<Bytes>, Malformed> {
        match self.length(true)? {
            Some(length) => self.take(length).map(Some),
            None => Ok(None),
        }
    }

    /// The number of elements; `None` for null. At most `max`, each of at least `least` bytes.
    pub(crate) fn nullable_array(&mut self, least: usize, max: usize) -> Result<Option<usize>, Malformed> {
        let Some(length) = self.length(true)? else {
            return Ok(None);
        };
        // Callers allocate this many elements, which take more memory than bytes.
        if length > self.remaining() / least {
            return self.fail("an array that ends too early");
        }
        if length > max {
            return self.fail("an array with more elements than the gateway takes in a request");
        }
        Ok(Some(length))
    }

    /// Skips the tagged fields at the end of a structure.
    pub(crate) fn tags(&mut self) -> Result<(), Malformed> {
        if !self.flexible {
            return Ok(());
        }
        let mut count = self.unsigned_varint()?;
        while count > 0 {
            self.unsigned_varint()?;
            let length = self.unsigned_varint()?;
            self.take(usize::try_from(length).unwrap_or(usize::MAX))?;
            count -= 1;
        }
        Ok(())
    }
}

/// A variable-length number of at most `bytes_max` bytes, and its length.
pub(crate) fn varint(bytes: &[u8], bytes_max: usize) -> Option<(u64, usize)> {
    let mut value = 0_u64;
    for (at, byte) in bytes.iter().take(bytes_max).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, at + 1));
        }
    }
    None
}

/// Writes a variable-length number.
pub(crate) fn put_varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.push(value.to_le_bytes()[0]);
}

/// Writes an answer: its length, the correlation id, and what follows.
#[derive(Debug)]
pub(crate) struct Writer {
    out: Vec<u8>,
    flexible: bool,
}

impl Writer {
    /// `tagged`: the header of the answer has tagged fields.
    pub(crate) fn answer(correlation_id: i32, tagged: bool, flexible: bool) -> Writer {
        let mut writer = Writer {
            out: vec![0; 4],
            flexible,
        };
        writer.i32(correlation_id);
        if tagged {
            writer.out.push(0);
        }
        writer
    }

    pub(crate) fn i8(&mut self, value: i8) {
        self.out.extend(value.to_be_bytes());
    }

    pub(crate) fn bool(&mut self, value: bool) {
        self.i8(value.into());
    }

    pub(crate) fn i16(&mut self, value: i16) {
        self.out.extend(value.to_be_bytes());
    }

    pub(crate) fn i32(&mut self, value: i32) {
        self.out.extend(value.to_be_bytes());
    }

    pub(crate) fn i64(&mut self, value: i64) {
        self.out.extend(value.to_be_bytes());
    }

    pub(crate) fn uuid(&mut self, value: [u8; 16]) {
        self.out.extend(value);
    }

    pub(crate) fn unsigned_varint(&mut self, value: u32) {
        put_varint(value.into(), &mut self.out);
    }

    /// The length of what follows; `None` for null.
    fn length(&mut self, length: Option<usize>, wide: bool) {
        if self.flexible {
            let length = length.map_or(0, |length| length.saturating_add(1));
            self.unsigned_varint(u32::try_from(length).unwrap_or(u32::MAX));
        } else if wide {
            self.i32(length.map_or(-1, |length| i32::try_from(length).unwrap_or(i32::MAX)));
        } else {
            self.i16(length.map_or(-1, |length| i16::try_from(length).unwrap_or(i16::MAX)));
        }
    }

    /// A string. What exceeds the longest that every version can hold is cut off.
    pub(crate) fn nullable_string(&mut self, text: Option<&str>) {
        let text = text.map(|text| &text[..text.floor_char_boundary(STRING_MAX)]);
        self.length(text.map(str::len), false);
        self.out.extend_from_slice(text.unwrap_or_default().as_bytes());
    }

    pub(crate) fn string(&mut self, text: &str) {
        self.nullable_string(Some(text));
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.length(Some(bytes.len()), true);
        self.out.extend_from_slice(bytes);
    }

    pub(crate) fn array(&mut self, length: usize) {
        self.length(Some(length), true);
    }

    /// Ends a structure without tagged fields.
    pub(crate) fn tags(&mut self) {
        if self.flexible {
            self.out.push(0);
        }
    }

    /// The answer as it goes to the client.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.out.len() - 4).unwrap_or(u32::MAX);
        self.out[..4].copy_from_slice(&length.to_be_bytes());
        self.out
    }
}

const STRING_MAX: usize = i16::MAX as usize;
