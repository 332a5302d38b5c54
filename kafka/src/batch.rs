//! Record batches (message format 2): the header, and the records once they are decompressed.

use bytes::Bytes;

use crate::wire::{Malformed, Reader, put_varint, varint};

/// The bytes before those that the checksum covers.
const UNCHECKED: usize = 21;

/// The bytes before those that the length counts.
const UNCOUNTED: usize = 12;

/// The message format of Kafka 0.11 and later.
const MAGIC: i8 = 2;

const CODEC: i16 = 0b111;
const LOG_APPEND_TIME: i16 = 1 << 3;
const TRANSACTIONAL: i16 = 1 << 4;
const CONTROL: i16 = 1 << 5;

/// The shortest record: its length, attributes, two deltas, a key and a value of null, no headers.
const RECORD_MIN: usize = 7;

/// A record batch whose checksum is right.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// The compression of the records.
    pub codec: Codec,
    /// The records as sent: compressed, unless the codec is [`Codec::None`].
    pub body: Bytes,
    /// The number of records; at least 1.
    pub count: u32,
    /// The idempotent producer and its number for the batch.
    pub sequence: Option<Sequence>,
    base_timestamp_ms: i64,
}

/// A batch's place among those of an idempotent producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequence {
    /// The id of the producer.
    pub producer_id: i64,
    /// Its epoch.
    pub epoch: i16,
    /// The number of the first record in its partition.
    pub first: i32,
}

/// The compression of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// None.
    None,
    /// gzip (RFC 1952).
    Gzip,
    /// Snappy, raw or in the blocks of snappy-java.
    Snappy,
    /// LZ4's frame format.
    Lz4,
    /// zstd (RFC 8878).
    Zstd,
}

/// The reasons to refuse a batch.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// The checksum is wrong.
    #[error("the checksum of the batch is wrong: it was damaged on its way")]
    Checksum,
    /// It has message format 0 or 1.
    #[error("the batch has message format {0}: the gateway takes format 2, of Kafka 0.11 and later")]
    Format(i8),
    /// The codec is unknown.
    #[error("codec {0} is unknown: use {codecs}", codecs = crate::CODECS)]
    Codec(i16),
    /// It belongs to a transaction.
    #[error("the batch belongs to a transaction, and Millpond has none")]
    Transactional,
    /// The bytes do not follow the format.
    #[error("the batch is {0}")]
    Malformed(#[from] Malformed),
}

impl Batch {
    /// Reads the records of a partition: exactly one batch.
    ///
    /// # Errors
    /// See [`BatchError`].
    pub fn read(bytes: &Bytes) -> Result<Batch, BatchError> {
        let mut reader = Reader::new(bytes.clone());
        let _base_offset = reader.i64()?;
        let length = usize::try_from(reader.i32()?).unwrap_or(usize::MAX);
        let _leader_epoch = reader.i32()?;
        let magic = reader.i8()?;
        if magic != MAGIC {
            return Err(BatchError::Format(magic));
        }
        match length.cmp(&(bytes.len() - UNCOUNTED)) {
            std::cmp::Ordering::Less => reader.fail("more than one batch for a partition")?,
            std::cmp::Ordering::Equal => {}
            std::cmp::Ordering::Greater => reader.fail("shorter than its length")?,
        }
        let checksum = reader.u32()?;
        if crc32c::crc32c(&bytes[UNCHECKED..]) != checksum {
            return Err(BatchError::Checksum);
        }
        let attributes = reader.i16()?;
        let last_offset_delta = reader.i32()?;
        let base_timestamp_ms = reader.i64()?;
        let max_timestamp_ms = reader.i64()?;
        let sequence = Sequence {
            producer_id: reader.i64()?,
            epoch: reader.i16()?,
            first: reader.i32()?,
        };
        let records = reader.i32()?;
        let codec = codec(attributes)?;
        if attributes & (TRANSACTIONAL | CONTROL) != 0 {
            return Err(BatchError::Transactional);
        }
        let count = match u32::try_from(records) {
            Ok(count) if count > 0 && last_offset_delta == records - 1 => count,
            _ => return Ok(reader.fail("wrong about the number of its records")?),
        };
        Ok(Batch {
            codec,
            body: reader.rest(),
            count,
            sequence: (sequence.producer_id >= 0).then_some(sequence),
            base_timestamp_ms: if attributes & LOG_APPEND_TIME != 0 {
                max_timestamp_ms
            } else {
                base_timestamp_ms
            },
        })
    }

    /// The records in `body`, which is the batch's after decompression.
    pub fn records<'a>(&self, body: &'a [u8]) -> Records<'a> {
        Records {
            rest: body,
            at: 0,
            left: self.count,
            base_timestamp_ms: self.base_timestamp_ms,
        }
    }
}

fn codec(attributes: i16) -> Result<Codec, BatchError> {
    Ok(match attributes & CODEC {
        0 => Codec::None,
        1 => Codec::Gzip,
        2 => Codec::Snappy,
        3 => Codec::Lz4,
        4 => Codec::Zstd,
        other => return Err(BatchError::Codec(other)),
    })
}

/// A record, as parts of its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its time, unix milliseconds.
    pub timestamp_ms: i64,
    /// Its key.
    pub key: Option<&'a [u8]>,
    /// Its value.
    pub value: Option<&'a [u8]>,
    /// Its headers.
    pub headers: Headers<'a>,
}

/// A header of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<'a> {
    /// Its name. A name may occur more than once.
    pub key: &'a [u8],
    /// Its value.
    pub value: Option<&'a [u8]>,
}

/// The headers of a record, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers<'a> {
    rest: &'a [u8],
    left: u64,
}

/// The records of a batch, in their order. It ends after the first malformed one.
#[derive(Debug, Clone)]
pub struct Records<'a> {
    rest: &'a [u8],
    at: usize,
    left: u32,
    base_timestamp_ms: i64,
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            if self.rest.is_empty() {
                return None;
            }
            self.rest = &[];
            return Some(Err(self.malformed("more bytes than its records have")));
        }
        self.left -= 1;
        let length_before = self.rest.len();
        let record = self.record();
        self.at += length_before - self.rest.len();
        if record.is_none() {
            (self.left, self.rest) = (0, &[]);
        }
        Some(record.ok_or_else(|| self.malformed("not a record")))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let most = self.rest.len() / RECORD_MIN + 1;
        (0, Some(most.min(self.left as usize + 1)))
    }
}

impl<'a> Records<'a> {
    fn malformed(&self, what: &'static str) -> Malformed {
        Malformed { at: self.at, what }
    }

    fn record(&mut self) -> Option<Record<'a>> {
        let mut record = bytes(&mut self.rest)??;
        let _attributes = record.split_off_first()?;
        let timestamp_delta = signed(&mut record, 10)?;
        let _offset_delta = signed(&mut record, 5)?;
        let key = bytes(&mut record)?;
        let value = bytes(&mut record)?;
        let left = u64::try_from(signed(&mut record, 5)?).ok()?;
        let headers = Headers { rest: record, left };
        // Later, headers are only read again.
        let mut walk = headers;
        while walk.left > 0 {
            walk.header()?;
        }
        walk.rest.is_empty().then_some(Record {
            timestamp_ms: self.base_timestamp_ms.saturating_add(timestamp_delta),
            key,
            value,
            headers,
        })
    }
}

impl<'a> Headers<'a> {
    /// Headers that a client library has decoded: writes them to `buffer` as in a batch, and reads them there.
    pub fn of<'h>(
        headers: impl IntoIterator<Item = (&'h [u8], Option<&'h [u8]>)>,
        buffer: &'a mut Vec<u8>,
    ) -> Headers<'a> {
        let mut left = 0;
        for (key, value) in headers {
            put_bytes(Some(key), buffer);
            put_bytes(value, buffer);
            left += 1;
        }
        Headers { rest: buffer, left }
    }

    fn header(&mut self) -> Option<Header<'a>> {
        self.left -= 1;
        Some(Header {
            key: bytes(&mut self.rest)??,
            value: bytes(&mut self.rest)?,
        })
    }
}

impl<'a> Iterator for Headers<'a> {
    type Item = Header<'a>;

    fn next(&mut self) -> Option<Header<'a>> {
        if self.left == 0 {
            return None;
        }
        self.header()
    }
}

/// Writes bytes after their length.
fn put_bytes(bytes: Option<&[u8]>, out: &mut Vec<u8>) {
    // The length's sign is in its lowest bit; null has the length -1.
    put_varint(bytes.map_or(1, |bytes| (bytes.len() as u64) << 1), out);
    out.extend_from_slice(bytes.unwrap_or_default());
}

/// A variable-length number with its sign in the lowest bit.
fn signed(rest: &mut &[u8], bytes_max: usize) -> Option<i64> {
    let (value, length) = varint(rest, bytes_max)?;
    *rest = &rest[length..];
    Some((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
}

/// Bytes after their length; the inner `None` is null, which has the length -1.
fn bytes<'a>(rest: &mut &'a [u8]) -> Option<Option<&'a [u8]>> {
    let length = signed(rest, 5)?;
    if length == -1 {
        return Some(None);
    }
    let length = usize::try_from(length).ok()?;
    Some(Some(rest.split_off(..length)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_a_library_are_read_as_those_of_a_batch() {
        let long = vec![7; 300];
        let all: [(&[u8], Option<&[u8]>); 3] = [(b"a", None), (b"", Some(b"")), (b"b", Some(&long))];
        let mut buffer = Vec::new();
        let read: Vec<_> = Headers::of(all, &mut buffer)
            .map(|it| (it.key, it.value))
            .collect();
        assert_eq!(read, all);
    }
}
