//! Writing: messages to blocks, blocks to a segment. Payload bytes are copied once into the block's raw content, and
//! never again after compression.

use std::collections::HashMap;
use std::io::Cursor;
use std::ops::RangeInclusive;

use bytes::Bytes;
use prost::encoding::{encode_varint, encoded_len_varint};
use zstd::zstd_safe::CParameter;

use crate::block::BlockHeader;
use crate::index::{HEADER_LEN, encode_header, encode_tail};
use crate::{
    BLOCK_HEADER_LEN, Compression, Encoding, Error, FOOTER_LEN, InvalidStreamName, Limits, Problem,
    StreamPart, check_stream_name,
};

/// A message that does not fit in a block.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a message of {payload_len} bytes does not fit in a block that holds {raw_len} of at most {limit} bytes"
)]
pub struct MessageTooLarge {
    /// Bytes of the message.
    pub payload_len: usize,
    /// Raw bytes already in the block.
    pub raw_len: usize,
    /// Maximum raw bytes of a block.
    pub limit: u64,
}

/// zstd could not compress a block for lack of memory.
#[derive(Debug, thiserror::Error)]
#[error("zstd could not compress a block: {0}")]
pub struct CompressError(#[from] std::io::Error);

/// A block that does not fit in a segment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The name of the stream breaks the rules.
    #[error(transparent)]
    StreamName(#[from] InvalidStreamName),
    /// A stream has exactly one encoding.
    #[error("stream {stream:?} holds {known} messages, not {found}")]
    Encoding {
        /// The stream.
        stream: String,
        /// The encoding of its blocks so far.
        known: Encoding,
        /// The encoding of this block.
        found: Encoding,
    },
    /// The segment is full: close it and push to the next.
    #[error("the segment is full: {what} would be {found}, the limit is {limit}")]
    Full {
        /// What would exceed its limit.
        what: &'static str,
        /// The size it would have.
        found: u64,
        /// The limit.
        limit: u64,
    },
}

/// Collects the messages of one block of one stream.
#[derive(Clone, Debug)]
pub struct BlockBuilder {
    raw: Vec<u8>,
    base_received_at_us: i64,
    messages: u32,
    first_received_at_us: i64,
    last_received_at_us: i64,
    raw_max: u64,
}

impl BlockBuilder {
    /// An empty block. Times are stored relative to `base_received_at_us` (unix microseconds), ideally the time of its
    /// first message.
    pub fn new(base_received_at_us: i64) -> Self {
        Self::with_buffer(base_received_at_us, Vec::new(), &Limits::default())
    }

    /// Like [`new`](Self::new), with a reused buffer (see [`into_buffer`](Self::into_buffer)) and the raw limit of
    /// `limits`.
    pub fn with_buffer(base_received_at_us: i64, mut buffer: Vec<u8>, limits: &Limits) -> Self {
        buffer.clear();
        Self {
            raw: buffer,
            base_received_at_us,
            messages: 0,
            first_received_at_us: i64::MAX,
            last_received_at_us: i64::MIN,
            raw_max: limits.block_raw_max.min(u64::from(u32::MAX)),
        }
    }

    /// Maximum raw bytes that [`push`](Self::push) adds for a payload of `payload_len` bytes.
    pub const fn message_len_max(payload_len: usize) -> usize {
        payload_len + 20
    }

    /// Appends a message with one copy of the payload. If the message does not fit, the block stays unchanged.
    pub fn push(&mut self, received_at_us: i64, payload: &[u8]) -> Result<(), MessageTooLarge> {
        // Wrapping, so that every pair of times has a delta; the reader wraps it back.
        let delta = zigzag(received_at_us.wrapping_sub(self.base_received_at_us));
        let payload_len = payload.len() as u64;
        let needed = (encoded_len_varint(delta) + encoded_len_varint(payload_len)) as u64 + payload_len;
        if self.raw.len() as u64 + needed > self.raw_max {
            let (payload_len, raw_len) = (payload.len(), self.raw.len());
            return Err(MessageTooLarge {
                payload_len,
                raw_len,
                limit: self.raw_max,
            });
        }
        encode_varint(delta, &mut self.raw);
        encode_varint(payload_len, &mut self.raw);
        self.raw.extend_from_slice(payload);
        // Cannot overflow: a message takes at least two raw bytes, and there are at most u32::MAX of them.
        self.messages += 1;
        self.first_received_at_us = self.first_received_at_us.min(received_at_us);
        self.last_received_at_us = self.last_received_at_us.max(received_at_us);
        Ok(())
    }

    /// Bytes of the raw content so far.
    pub fn raw_len(&self) -> usize {
        self.raw.len()
    }

    /// Messages so far.
    pub fn messages(&self) -> u64 {
        u64::from(self.messages)
    }

    /// Returns true if there is no message yet.
    pub fn is_empty(&self) -> bool {
        self.messages == 0
    }

    /// Drops the content and returns the buffer for the next block.
    pub fn into_buffer(self) -> Vec<u8> {
        let mut buffer = self.raw;
        buffer.clear();
        buffer
    }
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)).cast_unsigned()
}

/// A block as it goes into a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedBlock {
    /// Header and payload.
    pub bytes: Bytes,
    /// Bytes of the raw content.
    pub raw_len: u64,
    /// Number of messages.
    pub messages: u64,
    /// Number of records, as counted by the writer.
    pub records: u64,
    /// Earliest receive time of a message, unix microseconds.
    pub first_received_at_us: i64,
    /// Latest receive time of a message, unix microseconds.
    pub last_received_at_us: i64,
}

impl EncodedBlock {
    /// A block from another process, as it was encoded there. Verifies the header and the checksum, and decodes nothing: the
    /// number of records and the receive times are the other process's.
    ///
    /// # Errors
    /// The bytes are not exactly one block, it is damaged, or it has more records than bytes.
    pub fn verified(
        bytes: Bytes,
        records: u64,
        received_at_us: RangeInclusive<i64>,
        limits: &Limits,
    ) -> Result<EncodedBlock, Error> {
        let header = BlockHeader::decode(&bytes, 0, 0, limits)?;
        let (found, expected) = (
            bytes.len() as u64,
            BLOCK_HEADER_LEN as u64 + u64::from(header.compressed_len),
        );
        if found != expected {
            return Err(Error::new(
                0,
                Some(0),
                "block length",
                Problem::Inconsistent { found, expected },
            ));
        }
        // A record takes at least a byte. Sums of wrong counts could overflow.
        let (found, limit) = (records, u64::from(header.raw_len));
        if found > limit {
            return Err(Error::new(
                0,
                Some(0),
                "records",
                Problem::OverLimit { found, limit },
            ));
        }
        Ok(EncodedBlock {
            bytes,
            raw_len: u64::from(header.raw_len),
            messages: u64::from(header.messages),
            records,
            first_received_at_us: *received_at_us.start(),
            last_received_at_us: *received_at_us.end(),
        })
    }
}

/// A zstd context and an output buffer, which a worker reuses for every block.
pub struct Compressor {
    zstd: zstd::bulk::Compressor<'static>,
    scratch: Vec<u8>,
}

/// Level 1 would look back 512 KiB only. A window as long as a block saves bytes and time; higher levels have it anyway.
const WINDOW_LOG: u32 = 20;

/// A larger scratch buffer is freed after use: one giant message must not pin memory forever.
pub(crate) const SCRATCH_KEPT_MAX: usize = 8 << 20;

impl Compressor {
    /// A compressor at the zstd `level` (1 is the fastest of the standard levels).
    pub fn new(level: i32) -> Result<Self, CompressError> {
        let mut zstd = zstd::bulk::Compressor::new(level)?;
        if level == 1 {
            zstd.set_parameter(CParameter::WindowLog(WINDOW_LOG))?;
        }
        Ok(Self {
            zstd,
            scratch: Vec::new(),
        })
    }

    /// Compresses a block that holds `records` records, or stores it as is when zstd does not shrink it. The builder
    /// can be reused afterwards.
    ///
    /// CPU work of about 1.5 ms per MiB: run it on a blocking thread.
    pub fn compress(&mut self, block: &BlockBuilder, records: u64) -> Result<EncodedBlock, CompressError> {
        let raw = &block.raw[..];
        self.scratch.clear();
        self.scratch.resize(BLOCK_HEADER_LEN, 0);
        self.scratch.reserve(zstd::zstd_safe::compress_bound(raw.len()));
        let mut output = Cursor::new(&mut self.scratch);
        output.set_position(BLOCK_HEADER_LEN as u64);
        let compressed_len = self.zstd.compress_to_buffer(raw, &mut output)?;

        let compression = if compressed_len < raw.len() {
            Compression::Zstd
        } else {
            Compression::Stored
        };
        if compression == Compression::Stored {
            self.scratch.truncate(BLOCK_HEADER_LEN);
            self.scratch.extend_from_slice(raw);
        }
        let too_long = |_| std::io::Error::other("a block is over 4 GiB");
        let payload = &self.scratch[BLOCK_HEADER_LEN..];
        let header = BlockHeader {
            compressed_len: u32::try_from(payload.len()).map_err(too_long)?,
            raw_len: u32::try_from(raw.len()).map_err(too_long)?,
            messages: block.messages,
            base_received_at_us: block.base_received_at_us,
            compression,
        };
        let header = header.encode(payload);
        self.scratch[..BLOCK_HEADER_LEN].copy_from_slice(&header);
        // Copy to the exact size: the scratch buffer has room for the worst case and is reused.
        let bytes = Bytes::copy_from_slice(&self.scratch);
        if self.scratch.capacity() > SCRATCH_KEPT_MAX {
            self.scratch = Vec::new();
        }
        Ok(EncodedBlock {
            bytes,
            raw_len: raw.len() as u64,
            messages: block.messages(),
            records,
            first_received_at_us: block.first_received_at_us,
            last_received_at_us: block.last_received_at_us,
        })
    }
}

/// A whole segment, ready to be uploaded.
#[derive(Clone, Debug)]
pub struct EncodedSegment {
    /// The object in ordered pieces, never concatenated.
    pub parts: Vec<Bytes>,
    /// Bytes of the object.
    pub size: u64,
    /// Its content, as in its index.
    pub streams: Vec<StreamPart>,
}

struct StreamBlocks {
    part: StreamPart,
    blocks: Vec<Bytes>,
}

/// Combines blocks of many streams into one segment, each stream's blocks together.
///
/// Streams are ordered by their first block, a stream's blocks by their push.
pub struct SegmentBuilder {
    streams: Vec<StreamBlocks>,
    places: HashMap<String, usize>,
    blocks_len: u64,
    /// Upper bound of the index's size for the streams so far.
    index_len_max: u64,
    limits: Limits,
}

/// Maximum size of a stream in the index without its name: ten fields of a tag and a varint each, plus its own tag and
/// length.
const INDEX_ENTRY_MAX: u64 = 10 * 11 + 6;

impl Default for SegmentBuilder {
    fn default() -> Self {
        Self::new()
    }
}

impl SegmentBuilder {
    /// An empty segment with the default limits.
    pub fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    /// An empty segment with `limits`.
    pub fn with_limits(limits: Limits) -> Self {
        let (streams, places) = (Vec::new(), HashMap::new());
        Self {
            streams,
            places,
            blocks_len: 0,
            index_len_max: 0,
            limits,
        }
    }

    /// Adds a block of `stream`. On an error the segment stays unchanged.
    pub fn push(&mut self, stream: &str, encoding: Encoding, block: EncodedBlock) -> Result<(), PushError> {
        let place = self.places.get(stream).copied();
        let full = |what, found, limit| {
            if found > limit {
                Err(PushError::Full { what, found, limit })
            } else {
                Ok(())
            }
        };

        let mut index_len_max = self.index_len_max;
        if place.is_none() {
            check_stream_name(stream)?;
            index_len_max += INDEX_ENTRY_MAX + stream.len() as u64;
            full(
                "number of streams",
                self.streams.len() as u64 + 1,
                self.limits.streams_max as u64,
            )?;
            full("index", index_len_max, self.limits.index_max)?;
        }
        if let Some(known) = place.map(|place| self.streams[place].part.encoding)
            && known != encoding
        {
            return Err(PushError::Encoding {
                stream: stream.to_owned(),
                known,
                found: encoding,
            });
        }
        let blocks = place.map_or(1, |place| self.streams[place].part.blocks + 1);
        full(
            "number of blocks of a stream",
            u64::from(blocks),
            u64::from(self.limits.blocks_max),
        )?;
        let block_len = block.bytes.len() as u64;
        let size = self.size_max() - self.index_len_max + index_len_max + block_len;
        full("size", size, self.limits.segment_max)?;

        self.index_len_max = index_len_max;
        self.blocks_len += block_len;
        let place = place.unwrap_or_else(|| {
            self.streams.push(StreamBlocks {
                part: empty_part(stream, encoding),
                blocks: Vec::new(),
            });
            self.places.insert(stream.to_owned(), self.streams.len() - 1);
            self.streams.len() - 1
        });
        let entry = &mut self.streams[place];
        let part = &mut entry.part;
        part.length += block_len;
        part.raw_len += block.raw_len;
        part.blocks = blocks;
        part.messages += block.messages;
        part.records += block.records;
        part.first_received_at_us = part.first_received_at_us.min(block.first_received_at_us);
        part.last_received_at_us = part.last_received_at_us.max(block.last_received_at_us);
        entry.blocks.push(block.bytes);
        Ok(())
    }

    /// Bytes of the blocks so far, compressed, with their headers.
    pub fn compressed_len(&self) -> u64 {
        self.blocks_len
    }

    /// Returns true if there is no block yet.
    pub fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Upper bound of the object's current size.
    fn size_max(&self) -> u64 {
        (HEADER_LEN + FOOTER_LEN) as u64 + self.blocks_len + self.index_len_max
    }

    /// Closes the segment.
    pub fn finish(self) -> EncodedSegment {
        let mut parts = vec![Bytes::copy_from_slice(&encode_header())];
        let mut streams = Vec::with_capacity(self.streams.len());
        let mut offset = HEADER_LEN as u64;
        for StreamBlocks { mut part, blocks } in self.streams {
            part.offset = offset;
            offset += part.length;
            parts.extend(blocks);
            streams.push(part);
        }
        let tail = encode_tail(&streams);
        // Every push keeps the index within `index_max`.
        debug_assert!(
            tail.as_ref()
                .is_some_and(|tail| tail.len() as u64 <= self.index_len_max + FOOTER_LEN as u64)
        );
        let tail = tail.unwrap_or_default();
        let size = offset + tail.len() as u64;
        parts.push(Bytes::from(tail));
        EncodedSegment { parts, size, streams }
    }
}

fn empty_part(stream: &str, encoding: Encoding) -> StreamPart {
    StreamPart {
        stream: stream.to_owned(),
        encoding,
        offset: 0,
        length: 0,
        raw_len: 0,
        blocks: 0,
        messages: 0,
        records: 0,
        first_received_at_us: i64::MAX,
        last_received_at_us: i64::MIN,
    }
}
