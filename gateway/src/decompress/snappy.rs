//! Snappy as Kafka's clients send it: one raw block, or the blocks of snappy-java with a length before each.

use std::io;

use bytes::{Buf, Bytes};
use snap::raw::{Decoder, decompress_len};

use super::Progress;

/// The first bytes of snappy-java's format, before two version numbers of four bytes.
const MAGIC: &[u8] = b"\x82SNAPPY\0";

const VERSIONS: usize = 8;

/// The blocks that are left.
pub(super) struct Blocks {
    rest: Bytes,
    /// A length is before each block.
    framed: bool,
}

impl Blocks {
    pub(super) fn new(wire: Bytes) -> Blocks {
        let framed = wire.len() >= MAGIC.len() + VERSIONS && wire.starts_with(MAGIC);
        let rest = if framed {
            wire.slice(MAGIC.len() + VERSIONS..)
        } else {
            wire
        };
        Blocks { rest, framed }
    }

    /// Decompresses whole blocks behind `out` until there are no more, or the next one exceeds `room`.
    pub(super) fn step(&mut self, out: &mut Vec<u8>, room: usize) -> io::Result<Progress> {
        while !self.rest.is_empty() {
            let (skip, block) = self.block()?;
            let (start, length) = (out.len(), decompress_len(&block)?);
            if length > room.saturating_sub(start) {
                return Ok(Progress::MoreRoom);
            }
            out.resize(start + length, 0);
            Decoder::new().decompress(&block, &mut out[start..])?;
            self.rest.advance(skip + block.len());
        }
        Ok(Progress::Done)
    }

    /// The bytes before the next block, and the block.
    fn block(&self) -> io::Result<(usize, Bytes)> {
        if !self.framed {
            return Ok((0, self.rest.clone()));
        }
        let length = self
            .rest
            .first_chunk()
            .map(|length| u32::from_be_bytes(*length) as usize);
        match length {
            Some(length) if length <= self.rest.len() - 4 => Ok((4, self.rest.slice(4..4 + length))),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(parts: &[&[u8]]) -> Vec<u8> {
        let mut wire = [MAGIC, &[0, 0, 0, 1, 0, 0, 0, 1]].concat();
        for part in parts {
            let block = snap::raw::Encoder::new().compress_vec(part).unwrap();
            wire.extend(u32::try_from(block.len()).unwrap().to_be_bytes());
            wire.extend(block);
        }
        wire
    }

    fn all(wire: Vec<u8>, room: usize) -> io::Result<(Progress, Vec<u8>)> {
        let mut out = Vec::new();
        let progress = Blocks::new(wire.into()).step(&mut out, room)?;
        Ok((progress, out))
    }

    #[test]
    fn raw_and_framed_blocks_come_back_and_never_exceed_the_room() {
        let raw = snap::raw::Encoder::new().compress_vec(&[7; 1000]).unwrap();
        assert_eq!(all(raw.clone(), 1000).unwrap(), (Progress::Done, vec![7; 1000]));
        assert_eq!(all(raw, 999).unwrap(), (Progress::MoreRoom, vec![]));
        let wire = framed(&[b"one", b"", b"two"]);
        assert_eq!(
            all(wire.clone(), 6).unwrap(),
            (Progress::Done, b"onetwo".to_vec())
        );
        assert_eq!(all(wire, 5).unwrap(), (Progress::MoreRoom, b"one".to_vec()));
    }

    #[test]
    fn more_room_continues_where_it_stopped() {
        let mut blocks = Blocks::new(framed(&[b"one", b"two"]).into());
        let mut out = Vec::new();
        assert_eq!(blocks.step(&mut out, 4).unwrap(), Progress::MoreRoom);
        assert_eq!(blocks.step(&mut out, 8).unwrap(), Progress::Done);
        assert_eq!(out, b"onetwo");
    }

    #[test]
    fn damaged_blocks_are_errors_whatever_they_claim() {
        let wire = framed(&[b"a block that is long enough"]);
        for end in MAGIC.len() + VERSIONS + 1..wire.len() {
            assert!(all(wire[..end].to_vec(), 1 << 20).is_err(), "{end}");
        }
        // A raw block that claims 4 GiB takes no memory: it never fits.
        let claim = [0xff, 0xff, 0xff, 0xff, 0x0f, 0];
        assert_eq!(all(claim.to_vec(), 1 << 20).unwrap().0, Progress::MoreRoom);
    }
}
