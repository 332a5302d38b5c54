//! Reads arbitrary bytes, for the tests.

use bytes::Bytes;
use millpond_segment::{Block, Decompressor, Limits, blocks, read_index, read_index_tail, verify};

/// Reads `bytes` as an object, the tail of one, and a stream's part. It returns for any bytes.
pub(crate) fn read_anything(bytes: &Bytes) {
    let limits = Limits {
        block_raw_max: 1 << 20,
        ..Limits::default()
    };
    let _ = read_index(bytes, &limits);
    let _ = verify(bytes, &limits);
    for object_size in [bytes.len() as u64, u64::MAX, limits.segment_max] {
        let _ = read_index_tail(bytes, object_size, &limits);
    }
    let mut decompressor = Decompressor::new().expect("a zstd context is a few kilobytes");
    for block in blocks(bytes, 0, &limits).map_while(Result::ok) {
        read_messages(&block, &mut decompressor);
    }
}

fn read_messages(block: &Block, decompressor: &mut Decompressor) {
    if let Ok(raw) = block.decode(decompressor) {
        let read: usize = raw
            .messages()
            .map_while(Result::ok)
            .map(|message| message.payload.len())
            .sum();
        assert!(read <= raw.len());
    }
}
