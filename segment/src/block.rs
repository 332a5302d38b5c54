//! The 25-byte header of a block: encoding and decoding. It never touches the payload, except to checksum it.

use crate::{Error, Limits, Problem};

/// Bytes of a block's header.
pub const BLOCK_HEADER_LEN: usize = 25;

const CRC_AT: std::ops::Range<usize> = 12..16;

/// How a block's payload is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// As is, for content that zstd does not shrink.
    Stored,
    /// One zstd frame.
    Zstd,
}

impl Compression {
    fn to_byte(self) -> u8 {
        match self {
            Compression::Stored => 0,
            Compression::Zstd => 1,
        }
    }

    fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Compression::Stored),
            1 => Some(Compression::Zstd),
            _ => None,
        }
    }

    /// Its name: `stored` or `zstd`.
    pub fn name(self) -> &'static str {
        match self {
            Compression::Stored => "stored",
            Compression::Zstd => "zstd",
        }
    }
}

/// A block's header without its checksum, which needs the payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BlockHeader {
    pub(crate) compressed_len: u32,
    pub(crate) raw_len: u32,
    pub(crate) messages: u32,
    pub(crate) base_received_at_us: i64,
    pub(crate) compression: Compression,
}

impl BlockHeader {
    /// The header's bytes with the checksum over them and `payload`.
    pub(crate) fn encode(&self, payload: &[u8]) -> [u8; BLOCK_HEADER_LEN] {
        let mut out = [0; BLOCK_HEADER_LEN];
        out[0..4].copy_from_slice(&self.compressed_len.to_le_bytes());
        out[4..8].copy_from_slice(&self.raw_len.to_le_bytes());
        out[8..12].copy_from_slice(&self.messages.to_le_bytes());
        out[16..24].copy_from_slice(&self.base_received_at_us.to_le_bytes());
        out[24] = self.compression.to_byte();
        let crc = checksum(&out, payload);
        out[CRC_AT].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads the header at the start of `bytes`, which begin at `offset` in the object, and verifies it and the payload
    /// that follows. It does not allocate.
    pub(crate) fn decode(bytes: &[u8], offset: u64, block: u32, limits: &Limits) -> Result<Self, Error> {
        let fail = |field, problem| Error::new(offset, Some(block), field, problem);
        let Some(header) = bytes.first_chunk::<BLOCK_HEADER_LEN>() else {
            let problem = Problem::Truncated {
                needed: BLOCK_HEADER_LEN as u64,
                left: bytes.len() as u64,
            };
            return Err(fail("block header", problem));
        };
        let u32_at =
            |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let compressed_len = u32_at(0);
        let raw_len = u32_at(4);
        let messages = u32_at(8);

        let left = bytes.len() - BLOCK_HEADER_LEN;
        let payload = usize::try_from(compressed_len)
            .ok()
            .and_then(|length| bytes[BLOCK_HEADER_LEN..].get(..length))
            .ok_or_else(|| {
                let problem = Problem::Truncated {
                    needed: u64::from(compressed_len),
                    left: left as u64,
                };
                fail("compressed length", problem)
            })?;
        if u64::from(raw_len) > limits.block_raw_max {
            let problem = Problem::OverLimit {
                found: u64::from(raw_len),
                limit: limits.block_raw_max,
            };
            return Err(fail("raw length", problem));
        }
        let (found, computed) = (u32_at(CRC_AT.start), checksum(header, payload));
        if found != computed {
            return Err(fail("checksum", Problem::Checksum { found, computed }));
        }
        let compression = Compression::from_byte(header[24])
            .ok_or_else(|| fail("compression", Problem::Compression(header[24])))?;
        if compression == Compression::Stored && compressed_len != raw_len {
            let (found, expected) = (u64::from(raw_len), u64::from(compressed_len));
            return Err(fail("raw length", Problem::Inconsistent { found, expected }));
        }
        let mut base = [0; 8];
        base.copy_from_slice(&header[16..24]);
        let base_received_at_us = i64::from_le_bytes(base);
        Ok(Self {
            compressed_len,
            raw_len,
            messages,
            base_received_at_us,
            compression,
        })
    }
}

/// CRC32C of the rest of the header and the payload, so that it detects a flipped bit anywhere in a block.
fn checksum(header: &[u8; BLOCK_HEADER_LEN], payload: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&header[..CRC_AT.start]);
    let crc = crc32c::crc32c_append(crc, &header[CRC_AT.end..]);
    crc32c::crc32c_append(crc, payload)
}
