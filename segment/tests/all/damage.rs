//! Damaged, hostile and random bytes are an error: never a wrong result, a panic or a large allocation.

use bytes::Bytes;
use millpond_segment::{
    BlockBuilder, Blocks, Compressor, Decompressor, Encoding, Limits, Problem, SegmentBuilder, StreamPart,
    blocks, verify,
};
use proptest::collection::vec;
use proptest::prelude::*;

const HEADER: usize = 25;

fn object(payloads: &[Vec<u8>]) -> (Bytes, Vec<StreamPart>) {
    let mut compressor = Compressor::new(1).unwrap();
    let mut segment = SegmentBuilder::new();
    for (number, payload) in payloads.iter().enumerate() {
        let mut block = BlockBuilder::new(1000);
        block.push(1000, payload).unwrap();
        block.push(2000, b"second").unwrap();
        let stream = ["otlp.logs", "events"][number % 2];
        segment
            .push(stream, Encoding::Otlp, compressor.compress(&block, 2).unwrap())
            .unwrap();
    }
    let encoded = segment.finish();
    (encoded.parts.concat().into(), encoded.streams)
}

fn small() -> (Bytes, Vec<StreamPart>) {
    object(&[vec![b'a'; 300], b"short".to_vec(), Vec::new()])
}

/// Reads a part like a consumer, which never sees the rest of the object.
fn read_part(part: &Bytes, limits: &Limits) -> Result<Vec<(i64, Vec<u8>)>, Problem> {
    let mut decompressor = Decompressor::new().unwrap();
    let mut found = Vec::new();
    for block in blocks(part, 0, limits) {
        for message in block
            .map_err(|e| e.problem)?
            .decode(&mut decompressor)
            .map_err(|e| e.problem)?
            .messages()
        {
            let message = message.map_err(|e| e.problem)?;
            found.push((message.received_at_us, message.payload.to_vec()));
        }
    }
    Ok(found)
}

fn flipped(bytes: &Bytes, bit: usize) -> Bytes {
    let mut damaged = bytes.to_vec();
    damaged[bit / 8] ^= 1 << (bit % 8);
    damaged.into()
}

#[test]
fn every_flipped_bit_of_an_object_is_found() {
    let (object, parts) = small();
    for bit in 0..object.len() * 8 {
        assert!(
            verify(&flipped(&object, bit), &Limits::default()).is_err(),
            "bit {bit} of {}",
            object.len() * 8
        );
    }
    for part in &parts {
        let part = part.slice(&object).unwrap();
        for bit in 0..part.len() * 8 {
            assert!(
                read_part(&flipped(&part, bit), &Limits::default()).is_err(),
                "bit {bit} of the part"
            );
        }
    }
}

#[test]
fn every_truncation_of_an_object_is_found() {
    let (object, parts) = small();
    for length in 0..object.len() {
        assert!(
            verify(&object.slice(..length), &Limits::default()).is_err(),
            "cut to {length}"
        );
    }
    // A part with one block is invalid if it is cut anywhere. (A cut at a block boundary shows in the length in the
    // manifest.)
    let part = parts[1].slice(&object).unwrap();
    for length in 1..part.len() {
        assert!(
            read_part(&part.slice(..length), &Limits::default()).is_err(),
            "part cut to {length}"
        );
    }
}

#[test]
fn something_after_the_end_is_found() {
    let (object, _) = small();
    assert!(verify(&[&object[..], &[0]].concat().into(), &Limits::default()).is_err());
    assert!(verify(&[&object[..], &object[..]].concat().into(), &Limits::default()).is_err());
}

#[test]
fn each_block_is_refused_for_the_limit_it_breaks() {
    let (object, parts) = object(&[vec![b'a'; 100_000]]);
    let part = parts[0].slice(&object).unwrap();
    let limits = Limits {
        block_raw_max: 50_000,
        ..Limits::default()
    };
    assert!(matches!(
        read_part(&part, &limits),
        Err(Problem::OverLimit { limit: 50_000, .. })
    ));
    let limits = Limits {
        blocks_max: 0,
        ..Limits::default()
    };
    assert!(matches!(
        read_part(&part, &limits),
        Err(Problem::OverLimit { found: 1, limit: 0 })
    ));
    for limits in [
        Limits {
            segment_max: 100,
            ..Limits::default()
        },
        Limits {
            streams_max: 0,
            ..Limits::default()
        },
        Limits {
            blocks_max: 0,
            ..Limits::default()
        },
        Limits {
            index_max: 10,
            ..Limits::default()
        },
    ] {
        assert!(matches!(
            verify(&object, &limits).unwrap_err().problem,
            Problem::OverLimit { .. }
        ));
    }
}

/// A block with a valid checksum, whatever else is wrong with it.
fn forged(compressed_len: u32, raw_len: u32, messages: u32, compression: u8, payload: &[u8]) -> Bytes {
    let mut header = [0; HEADER];
    header[0..4].copy_from_slice(&compressed_len.to_le_bytes());
    header[4..8].copy_from_slice(&raw_len.to_le_bytes());
    header[8..12].copy_from_slice(&messages.to_le_bytes());
    header[24] = compression;
    let covered = [&header[..12], &header[16..], payload].concat();
    header[12..16].copy_from_slice(&crc32c::crc32c(&covered).to_le_bytes());
    [&header[..], payload].concat().into()
}

#[test]
fn a_forged_block_is_an_error_that_names_the_field() {
    let bomb = zstd::bulk::compress(&vec![0; 10 << 20], 1).unwrap();
    let bomb_len = u32::try_from(bomb.len()).unwrap();
    let limits = Limits::default();
    let problem = |part: &Bytes| {
        let read = blocks(part, 100, &limits).next().unwrap().and_then(|block| {
            let mut decompressor = Decompressor::new().unwrap();
            block
                .decode(&mut decompressor)?
                .messages()
                .find_map(Result::err)
                .map_or(Ok(()), Err)
        });
        read.unwrap_err().to_string()
    };
    let cases = [
        (
            forged(bomb_len, 1000, 1, 1, &bomb),
            "payload: zstd: Destination buffer is too small",
        ),
        (forged(3, 10, 1, 0, b"abc"), "raw length: is 10, must be 3"),
        (
            forged(2, 2, 1, 7, b"\0\0"),
            "compression: compression 7 is unknown",
        ),
        (
            forged(4, 100, 1, 1, b"abcd"),
            "payload: zstd: Src size is incorrect",
        ),
        (
            forged(3, 3, 1, 0, b"\0\x02a"),
            "message length: truncated: needs 2 bytes, 1 are left",
        ),
        (
            forged(3, 3, 2, 0, b"\0\x01a"),
            "message time: malformed variable-length integer",
        ),
        (
            forged(4, 4, 1, 0, b"\0\x01aa"),
            "raw length after the last message: is 4, must be 3",
        ),
        (
            forged(10, 10, 1, 0, &[0xff; 10]),
            "message time: malformed variable-length integer",
        ),
        (
            forged(u32::MAX, 1, 1, 1, b"a"),
            "compressed length: truncated: needs 4294967295 bytes, 1 are left",
        ),
        (
            forged(1, u32::MAX, 1, 1, b"a"),
            "raw length: 4294967295 is over the limit of 67108864",
        ),
    ];
    for (part, expected) in cases {
        assert_eq!(
            problem(&part),
            format!("segment at offset 100, block 0, {expected}")
        );
    }
}

#[test]
fn an_error_ends_the_blocks() {
    let (object, parts) = small();
    let part = flipped(&parts[0].slice(&object).unwrap(), 0);
    let found: Vec<_> = Blocks::collect(blocks(&part, 0, &Limits::default()));
    assert_eq!(found.len(), 1);
    assert!(found[0].is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn any_flipped_bit_of_any_object_is_found(
        payloads in vec(vec(any::<u8>(), 0..2000), 1..5),
        bit in any::<prop::sample::Index>(),
    ) {
        let (object, _) = object(&payloads);
        let bit = bit.index(object.len() * 8);
        prop_assert!(verify(&flipped(&object, bit), &Limits::default()).is_err());
    }

    #[test]
    fn random_bytes_are_read_without_a_panic(bytes in vec(any::<u8>(), 0..300)) {
        crate::support::read_anything(&bytes.into());
    }

    #[test]
    fn an_object_with_random_patches_is_read_without_a_panic(
        patches in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = small().0.to_vec();
        for (at, byte) in patches {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        crate::support::read_anything(&bytes.into());
    }

    #[test]
    fn random_payloads_under_a_right_checksum_are_read_without_a_panic(
        payload in vec(any::<u8>(), 0..100),
        raw_len in 0..200_u32,
        messages in 0..5_u32,
        compression in 0..3_u8,
    ) {
        let compressed_len = u32::try_from(payload.len()).unwrap();
        let raw_len = if compression == 0 { compressed_len } else { raw_len };
        crate::support::read_anything(&forged(compressed_len, raw_len, messages, compression, &payload));
    }
}
