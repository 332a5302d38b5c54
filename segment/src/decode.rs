//! Reading: from the bytes of a stream's part to its messages. Blocks share the bytes of the part; messages borrow
//! them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use prost::encoding::decode_varint;

use crate::block::BlockHeader;
use crate::encode::SCRATCH_KEPT_MAX;
use crate::{BLOCK_HEADER_LEN, Compression, Error, Index, Limits, Problem, StreamPart, read_index};

/// Iterates over the blocks of one stream. `part` is the result of a ranged GET of [`StreamPart::offset`] and
/// [`StreamPart::length`], `base_offset` its offset in the object (for errors only).
///
/// Each step verifies a block's header and checksum. After an error the iterator ends.
pub fn blocks(part: &Bytes, base_offset: u64, limits: &Limits) -> Blocks {
    Blocks {
        rest: part.clone(),
        offset: base_offset,
        number: 0,
        limits: limits.clone(),
    }
}

/// The iterator of [`blocks`].
#[derive(Clone, Debug)]
pub struct Blocks {
    rest: Bytes,
    offset: u64,
    number: u32,
    limits: Limits,
}

impl Iterator for Blocks {
    type Item = Result<Block, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let block = self.read();
        if block.is_err() {
            self.rest.clear();
        }
        Some(block)
    }
}

impl Blocks {
    fn read(&mut self) -> Result<Block, Error> {
        let (offset, number) = (self.offset, self.number);
        if number >= self.limits.blocks_max {
            let limit = u64::from(self.limits.blocks_max);
            let problem = Problem::OverLimit {
                found: limit + 1,
                limit,
            };
            return Err(Error::new(offset, Some(number), "blocks", problem));
        }
        let header = BlockHeader::decode(&self.rest, offset, number, &self.limits)?;
        // Lossless: `decode` has found that many bytes in memory.
        let length = BLOCK_HEADER_LEN + header.compressed_len as usize;
        let payload = self.rest.split_to(length).slice(BLOCK_HEADER_LEN..);
        self.offset += length as u64;
        self.number += 1;
        Ok(Block {
            header,
            payload,
            offset,
            number,
        })
    }
}

/// One verified block, still compressed. Cheap to clone and to send to another thread.
#[derive(Clone, Debug)]
pub struct Block {
    header: BlockHeader,
    payload: Bytes,
    offset: u64,
    number: u32,
}

impl Block {
    /// Offset of the block's header in the object.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes of the block with its header.
    pub fn encoded_len(&self) -> u64 {
        (BLOCK_HEADER_LEN + self.payload.len()) as u64
    }

    /// Declared length of the raw content in bytes; at most the limit given to [`blocks`].
    pub fn raw_len(&self) -> u64 {
        u64::from(self.header.raw_len)
    }

    /// Declared number of messages.
    pub fn messages(&self) -> u64 {
        u64::from(self.header.messages)
    }

    /// How the payload is stored.
    pub fn compression(&self) -> Compression {
        self.header.compression
    }

    /// The block's raw content: in the decompressor's buffer or, for a stored block, in place.
    ///
    /// CPU work: run it on a blocking thread.
    pub fn decode<'a>(&'a self, decompressor: &'a mut Decompressor) -> Result<RawBlock<'a>, Error> {
        let raw = match self.header.compression {
            Compression::Stored => &self.payload[..],
            Compression::Zstd => decompressor
                .decompress(&self.payload, self.header.raw_len)
                .map_err(|problem| Error::new(self.offset, Some(self.number), "payload", problem))?,
        };
        Ok(RawBlock { block: self, raw })
    }

    /// The block with its raw content, for as long as the caller keeps it. [`OpenBlock::close`] gives the buffer back.
    ///
    /// CPU work: run it on a blocking thread.
    pub fn open(self, decompressor: &mut Decompressor) -> Result<OpenBlock, Error> {
        self.decode(decompressor)?;
        let raw = match self.header.compression {
            Compression::Stored => None,
            Compression::Zstd => Some(decompressor.take()),
        };
        Ok(OpenBlock { block: self, raw })
    }
}

/// A block and its raw content.
#[derive(Debug)]
pub struct OpenBlock {
    block: Block,
    /// `None` for a stored block, whose content is in place.
    raw: Option<Vec<u8>>,
}

impl OpenBlock {
    /// Its content.
    pub fn raw(&self) -> RawBlock<'_> {
        RawBlock {
            block: &self.block,
            raw: self.raw.as_deref().unwrap_or(&self.block.payload),
        }
    }

    /// Leaves its buffer to the next block: fresh memory costs as much time as the decompression.
    pub fn close(self, decompressor: &mut Decompressor) {
        if let Some(raw) = self.raw {
            decompressor.spare.push(raw);
        }
    }
}

/// Bytes of the buffers in a [`Spare`].
const SPARE_MAX: usize = 16 << 20;

/// Buffers that decompressors share: at most 16 MiB. Clones share them, too.
#[derive(Debug, Clone, Default)]
pub struct Spare(Arc<Mutex<Vec<Vec<u8>>>>);

impl Spare {
    fn buffers(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pop(&self) -> Option<Vec<u8>> {
        self.buffers().pop()
    }

    fn push(&self, buffer: Vec<u8>) {
        let mut buffers = self.buffers();
        let kept: usize = buffers.iter().map(Vec::capacity).sum();
        if kept + buffer.capacity() <= SPARE_MAX {
            buffers.push(buffer);
        }
    }
}

/// A zstd context and buffers, which a worker reuses for every block.
pub struct Decompressor {
    zstd: zstd::bulk::Decompressor<'static>,
    buffer: Vec<u8>,
    spare: Spare,
}

impl Decompressor {
    /// Creates a decompressor. It fails only for lack of memory.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            zstd: zstd::bulk::Decompressor::new()?,
            buffer: Vec::new(),
            spare: Spare::default(),
        })
    }

    /// Takes and leaves buffers here.
    #[must_use]
    pub fn sharing(mut self, spare: Spare) -> Self {
        self.spare = spare;
        self
    }

    /// The last block's content, in memory of about its length. Another buffer takes its place.
    fn take(&mut self) -> Vec<u8> {
        let length = self.buffer.len();
        if self.buffer.capacity() > length + length / 16 {
            return self.buffer.clone();
        }
        std::mem::replace(&mut self.buffer, self.spare.pop().unwrap_or_default())
    }

    /// Never writes more than `raw_len` bytes, whatever the frame declares.
    fn decompress(&mut self, payload: &[u8], raw_len: u32) -> Result<&[u8], Problem> {
        let capacity = raw_len as usize;
        self.buffer.clear();
        if self.buffer.capacity() > SCRATCH_KEPT_MAX && capacity <= SCRATCH_KEPT_MAX {
            self.buffer = Vec::new();
        }
        self.buffer.reserve_exact(capacity);
        // zstd stops at the buffer's capacity, which may exceed what was reserved for this block.
        let written = self
            .zstd
            .decompress_to_buffer(payload, &mut self.buffer)
            .map_err(|error| Problem::Zstd(error.to_string()))?;
        if written != capacity {
            return Err(Problem::Inconsistent {
                found: written as u64,
                expected: u64::from(raw_len),
            });
        }
        Ok(&self.buffer)
    }
}

/// The raw content of a block.
#[derive(Clone, Copy, Debug)]
pub struct RawBlock<'a> {
    block: &'a Block,
    raw: &'a [u8],
}

impl<'a> RawBlock<'a> {
    /// The messages in order, borrowed. After an error the iterator ends.
    pub fn messages(&self) -> Messages<'a> {
        Messages {
            block: self.block,
            raw_len: self.raw.len(),
            rest: self.raw,
            left: self.block.header.messages,
        }
    }

    /// Offset of the block's header in the object.
    pub fn offset(&self) -> u64 {
        self.block.offset
    }

    /// Bytes of the raw content.
    pub fn len(&self) -> usize {
        self.raw.len()
    }

    /// Returns true if the raw content is empty. Writers never produce that.
    pub fn is_empty(&self) -> bool {
        self.raw.is_empty()
    }
}

/// One message of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Receive time, unix microseconds.
    pub received_at_us: i64,
    /// The bytes of the message.
    pub payload: &'a [u8],
}

/// The iterator of [`RawBlock::messages`]. It yields exactly as many messages as the header declares, or an error.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    block: &'a Block,
    raw_len: usize,
    rest: &'a [u8],
    left: u32,
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 && self.rest.is_empty() {
            return None;
        }
        let message = self.read();
        if message.is_err() {
            (self.left, self.rest) = (0, &[]);
        }
        Some(message)
    }
}

impl<'a> Messages<'a> {
    fn read(&mut self) -> Result<Message<'a>, Error> {
        let block = self.block;
        let raw_offset = self.raw_len - self.rest.len();
        let fail = |field, problem| Error::new(block.offset, Some(block.number), field, problem);
        if self.left == 0 {
            let (found, expected) = (self.raw_len as u64, raw_offset as u64);
            return Err(fail(
                "raw length after the last message",
                Problem::Inconsistent { found, expected },
            ));
        }
        let delta = decode_varint(&mut self.rest).map_err(|_| fail("message time", Problem::Varint))?;
        let length = decode_varint(&mut self.rest).map_err(|_| fail("message length", Problem::Varint))?;
        let split = usize::try_from(length)
            .ok()
            .and_then(|length| self.rest.split_at_checked(length));
        let Some((payload, rest)) = split else {
            let problem = Problem::Truncated {
                needed: length,
                left: self.rest.len() as u64,
            };
            return Err(fail("message length", problem));
        };
        self.rest = rest;
        self.left -= 1;
        let received_at_us = block.header.base_received_at_us.wrapping_add(unzigzag(delta));
        Ok(Message {
            received_at_us,
            payload,
        })
    }
}

fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

/// Verifies a whole object: every header, checksum and message, and that the index matches the blocks. It trusts the
/// record counts, which only the writer knew.
pub fn verify(object: &Bytes, limits: &Limits) -> Result<Index, Error> {
    let index = read_index(object, limits)?;
    let mut decompressor = Decompressor::new()
        .map_err(|error| Error::new(0, None, "payload", Problem::Zstd(error.to_string())))?;
    for part in &index.streams {
        verify_part(object, part, &mut decompressor, limits)?;
    }
    Ok(index)
}

fn verify_part(
    object: &Bytes,
    part: &StreamPart,
    decompressor: &mut Decompressor,
    limits: &Limits,
) -> Result<(), Error> {
    let slice = part.slice(object).ok_or_else(|| {
        let problem = Problem::Truncated {
            needed: part.length,
            left: object.len() as u64,
        };
        Error::new(part.offset, None, "length", problem)
    })?;
    let (mut number, mut raw_len, mut messages) = (0_u64, 0_u64, 0_u64);
    let (mut first, mut last) = (i64::MAX, i64::MIN);
    for block in blocks(&slice, part.offset, limits) {
        let block = block?;
        number += 1;
        raw_len += block.raw_len();
        for message in block.decode(decompressor)?.messages() {
            let message = message?;
            messages += 1;
            first = first.min(message.received_at_us);
            last = last.max(message.received_at_us);
        }
    }
    let fail = |field, found, expected| {
        Err(Error::new(
            part.offset,
            None,
            field,
            Problem::Inconsistent { found, expected },
        ))
    };
    if u64::from(part.blocks) != number {
        return fail("blocks", u64::from(part.blocks), number);
    }
    if part.raw_len != raw_len {
        return fail("raw length", part.raw_len, raw_len);
    }
    if part.messages != messages {
        return fail("messages", part.messages, messages);
    }
    if part.first_received_at_us != first {
        return fail(
            "first received_at",
            part.first_received_at_us.cast_unsigned(),
            first.cast_unsigned(),
        );
    }
    if part.last_received_at_us != last {
        return fail(
            "last received_at",
            part.last_received_at_us.cast_unsigned(),
            last.cast_unsigned(),
        );
    }
    Ok(())
}
