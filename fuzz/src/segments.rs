//! Segments with valid checksums, whatever else is wrong with them.

use bytes::Bytes;
use crc32c::{crc32c, crc32c_append};
use std::ops::Range;

const HEADER: usize = 6;
const FOOTER: usize = 12;
const BLOCK_HEADER: usize = 25;
const BLOCK_CHECKSUM: Range<usize> = 12..16;

/// Returns `data` with the magic bytes and the checksums of a segment with these bytes. Trusts the lengths in it as far
/// as they lie within it.
pub fn repaired(data: &[u8]) -> Bytes {
    let mut object = data.to_vec();
    let length = object.len();
    let Some(index) = length
        .checked_sub(FOOTER)
        .filter(|footer| *footer >= HEADER)
        .map(|footer| footer.saturating_sub(u32_at(&object, footer)).max(HEADER)..footer)
    else {
        return object.into();
    };
    object[..4].copy_from_slice(b"MPSG");
    object[length - 4..].copy_from_slice(b"MPSG");
    // The checksum covers the index and its length after it.
    let checksum = crc32c(&object[index.start..index.end + 4]);
    put(&mut object, index.end + 4, checksum);
    repair_blocks(&mut object[HEADER..index.start]);
    object.into()
}

/// Returns a stream's part with the checksums of its blocks.
pub fn repaired_part(data: &[u8]) -> Bytes {
    let mut part = data.to_vec();
    repair_blocks(&mut part);
    part.into()
}

fn repair_blocks(mut rest: &mut [u8]) {
    while rest.len() >= BLOCK_HEADER {
        let length = u32_at(rest, 0).min(rest.len() - BLOCK_HEADER) + BLOCK_HEADER;
        let (block, after) = rest.split_at_mut(length);
        let covered = crc32c_append(
            crc32c(&block[..BLOCK_CHECKSUM.start]),
            &block[BLOCK_CHECKSUM.end..],
        );
        put(block, BLOCK_CHECKSUM.start, covered);
        rest = after;
    }
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize
}

fn put(bytes: &mut [u8], at: usize, number: u32) {
    bytes[at..at + 4].copy_from_slice(&number.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_segment::{Limits, verify};

    #[test]
    fn a_segment_whose_checksums_were_lost_is_repaired() {
        let golden = std::fs::read(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../segment/testdata/two-streams.segment"
        ))
        .unwrap();
        let mut damaged = golden.clone();
        for at in [0, 18, golden.len() - 8, golden.len() - 1] {
            damaged[at] ^= 0xff;
        }
        assert!(verify(&damaged.clone().into(), &Limits::default()).is_err());
        assert_eq!(repaired(&damaged), golden);
    }
}
