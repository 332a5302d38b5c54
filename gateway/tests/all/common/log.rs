//! What is in the log of a gateway.

use millpond_manifest::{Manifest, Object as _};
use millpond_segment::{Decompressor, Encoding, Limits};

use super::Running;

/// The messages of a stream with the records that the log counts for it, in the order of the log.
pub async fn messages(gateway: &Running, encoding: Encoding, stream: &str) -> (Vec<Vec<u8>>, u64) {
    let bytes = gateway
        .store
        .get("shards/0000/manifest")
        .await
        .expect("an answer");
    let log = Manifest::decode(&bytes.expect("a manifest").bytes).expect("a manifest");
    let (mut messages, mut records) = (Vec::new(), 0);
    let mut decompressor = Decompressor::new().expect("zstd");
    for entry in &log.tail {
        for part in &entry.parts {
            let table = &log.streams[part.stream as usize];
            if table.name != stream {
                continue;
            }
            assert_eq!(table.encoding, encoding);
            records += part.records;
            let key = format!("shards/0000/segments/{}", entry.segment);
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

/// The messages of a stream of events, as text.
pub async fn rows(gateway: &Running, stream: &str) -> (Vec<String>, u64) {
    let (messages, records) = messages(gateway, Encoding::Ndjson, stream).await;
    let text = |message| String::from_utf8(message).expect("text");
    (messages.into_iter().map(text).collect(), records)
}
