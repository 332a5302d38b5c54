//! What is in the log of a gateway.

use millpond_manifest::{Manifest, Object as _, layout};
use millpond_segment::{Decompressor, Encoding, Limits};

use super::Running;

/// The messages of a stream in shard 0 with the records that the log counts for it, in the order of the log.
pub async fn messages(gateway: &Running, encoding: Encoding, stream: &str) -> (Vec<Vec<u8>>, u64) {
    messages_of(gateway, 0, encoding, stream).await
}

async fn messages_of(gateway: &Running, shard: u32, encoding: Encoding, stream: &str) -> (Vec<Vec<u8>>, u64) {
    let (mut messages, mut records) = (Vec::new(), 0);
    let bytes = gateway.store.get(&layout::manifest(shard)).await;
    let Some(bytes) = bytes.expect("an answer") else {
        return (messages, records);
    };
    let log = Manifest::decode(&bytes.bytes).expect("a manifest");
    let mut decompressor = Decompressor::new().expect("zstd");
    for entry in &log.tail {
        for part in &entry.parts {
            let table = &log.streams[part.stream as usize];
            if table.name != stream {
                continue;
            }
            assert_eq!(table.encoding, encoding);
            records += part.records;
            let key = layout::segment(shard, entry.segment);
            let range = part.offset..part.offset + part.length;
            let bytes = gateway.store.get_range(&key, range).await.expect("an answer");
            let bytes = bytes.expect("a segment");
            for block in millpond_segment::blocks(&bytes, part.offset, &Limits::default()) {
                let block = block.expect("a block");
                let raw = block.decode(&mut decompressor).expect("a block");
                for message in raw.messages() {
                    let payload = message.expect("a message").payload.to_vec();
                    messages.push(payload);
                }
            }
        }
    }
    (messages, records)
}

/// The messages of a stream of events in shard 0, as text.
pub async fn rows(gateway: &Running, stream: &str) -> (Vec<String>, u64) {
    rows_of(gateway, 0, stream).await
}

/// The messages of a stream of events in a shard, as text.
pub async fn rows_of(gateway: &Running, shard: u32, stream: &str) -> (Vec<String>, u64) {
    let (messages, records) = messages_of(gateway, shard, Encoding::Ndjson, stream).await;
    let text = |message| String::from_utf8(message).expect("text");
    (messages.into_iter().map(text).collect(), records)
}
