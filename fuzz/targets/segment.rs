//! A segment as a whole, its tail alone, and a stream's part. The messages of a valid segment can be written again.
#![no_main]

use bytes::Bytes;
use millpond_fuzz::{memory, segments};
use millpond_segment::{
    BlockBuilder, Compressor, Decompressor, Index, Limits, SegmentBuilder, blocks, read_index,
    read_index_tail, verify,
};

/// Small limits, so that the fuzzer soon finds a length beyond them.
fn limits() -> Limits {
    Limits {
        block_raw_max: 1 << 20,
        ..Limits::default()
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for object in [Bytes::copy_from_slice(data), segments::repaired(data)] {
        read_object(&object);
    }
    for part in [Bytes::copy_from_slice(data), segments::repaired_part(data)] {
        read_part(&part);
    }
});

fn read_object(object: &Bytes) {
    let limits = limits();
    let bound = memory::of_protobuf(object.len());
    let index = memory::bounded(bound, || read_index(object, &limits));
    for object_size in [object.len() as u64, u64::MAX, limits.segment_max] {
        let _ = memory::bounded(bound, || read_index_tail(object, object_size, &limits));
    }
    if let Ok(verified) = verify(object, &limits) {
        assert_eq!(index.as_ref(), Ok(&verified));
        write_again(object, &verified, &limits);
    }
}

/// Reads the blocks one after another, as a consumer does.
fn read_part(part: &Bytes) {
    let limits = limits();
    let mut decompressor = Decompressor::new().expect("a zstd context is a few kilobytes");
    let mut read = 0;
    for block in blocks(part, 0, &limits).map_while(Result::ok) {
        read += block.encoded_len();
        // The count leaves out zstd's own allocations, because zstd is C.
        let raw_max = usize::try_from(limits.block_raw_max).unwrap_or(usize::MAX);
        let Ok(raw) = memory::bounded(raw_max + 4096, || block.decode(&mut decompressor)) else {
            continue;
        };
        assert_eq!(raw.len() as u64, block.raw_len());
        let messages = raw.messages().map_while(Result::ok);
        let payloads: usize = messages.map(|message| message.payload.len()).sum();
        assert!(payloads <= raw.len());
    }
    assert!(read <= part.len() as u64);
}

fn write_again(object: &Bytes, index: &Index, limits: &Limits) {
    let mut compressor = Compressor::new(1).expect("a zstd context is a few kilobytes");
    let mut segment = SegmentBuilder::new();
    for part in &index.streams {
        for message in messages(object, index, &part.stream, limits) {
            let mut block = BlockBuilder::new(message.0);
            block.push(message.0, &message.1).expect("it was in a block");
            let block = compressor.compress(&block, 1).expect("zstd takes anything");
            segment
                .push(&part.stream, part.encoding, block)
                .expect("a part that was read can be written");
        }
    }
    let written = segment.finish();
    let again: Bytes = written.parts.concat().into();
    let found = verify(&again, limits).expect("what was written is right");
    for part in &index.streams {
        assert_eq!(
            messages(&again, &found, &part.stream, limits),
            messages(object, index, &part.stream, limits)
        );
    }
}

fn messages(object: &Bytes, index: &Index, stream: &str, limits: &Limits) -> Vec<(i64, Vec<u8>)> {
    let mut decompressor = Decompressor::new().expect("a zstd context is a few kilobytes");
    let mut found = Vec::new();
    for part in index.streams.iter().filter(|part| part.stream == stream) {
        let part = part.slice(object).expect("the index was verified");
        for block in blocks(&part, 0, limits) {
            let block = block.expect("it was verified");
            let raw = block.decode(&mut decompressor).expect("it was verified");
            found.extend(raw.messages().map(|message| {
                let message = message.expect("it was verified");
                (message.received_at_us, message.payload.to_vec())
            }));
        }
    }
    found
}
