//! Takes messages out of encoded blocks, for requests of clients that the log has already. Rare: it decompresses and
//! compresses the blocks again. Pure.

use millpond_segment::{BlockBuilder, Compressor, Decompressor, EncodedBlock, Limits, blocks};

use crate::clients::MessagePlace;
use crate::peers::StreamBlock;

/// Returns the blocks without these messages, at most once each. Blocks without remaining messages are gone.
pub(crate) fn strip(
    own: Vec<StreamBlock>,
    gone: &[MessagePlace],
    level: i32,
) -> Result<Vec<StreamBlock>, String> {
    let mut left = Vec::with_capacity(own.len());
    for (place, block) in own.into_iter().enumerate() {
        let gone: Vec<MessagePlace> = gone.iter().filter(|at| at.block == place).copied().collect();
        if gone.is_empty() {
            left.push(block);
        } else if let Some(rest) = without(&block.block, &gone, level)? {
            left.push(StreamBlock { block: rest, ..block });
        }
    }
    Ok(left)
}

/// The new place of a message that stays.
pub(crate) fn moved(at: MessagePlace, own: &[StreamBlock], gone: &[MessagePlace]) -> MessagePlace {
    let is_emptied = |block: usize| {
        let leave = gone.iter().filter(|it| it.block == block).count() as u64;
        own.get(block).is_some_and(|it| it.block.messages == leave)
    };
    let before = gone
        .iter()
        .filter(|it| it.block == at.block && it.message < at.message);
    MessagePlace {
        block: at.block - (0..at.block).filter(|block| is_emptied(*block)).count(),
        message: at.message - before.count() as u64,
        records: at.records,
    }
}

fn without(block: &EncodedBlock, gone: &[MessagePlace], level: i32) -> Result<Option<EncodedBlock>, String> {
    let limits = Limits::default();
    let mut decompressor = Decompressor::new().map_err(|error| error.to_string())?;
    let mut all = blocks(&block.bytes, 0, &limits);
    let encoded = all
        .next()
        .ok_or("a block is empty")?
        .map_err(|error| error.to_string())?;
    let raw = encoded
        .decode(&mut decompressor)
        .map_err(|error| error.to_string())?;
    let mut rest = BlockBuilder::with_buffer(block.first_received_at_us, Vec::new(), &limits);
    for (place, message) in (0_u64..).zip(raw.messages()) {
        let message = message.map_err(|error| error.to_string())?;
        if gone.iter().all(|it| it.message != place) {
            rest.push(message.received_at_us, message.payload)
                .map_err(|error| error.to_string())?;
        }
    }
    if rest.is_empty() {
        return Ok(None);
    }
    let records = gone
        .iter()
        .fold(block.records, |records, it| records.saturating_sub(it.records));
    let mut compressor = Compressor::new(level).map_err(|error| error.to_string())?;
    compressor
        .compress(&rest, records)
        .map(Some)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_segment::Encoding;
    use std::sync::Arc;

    fn block(messages: &[&str]) -> StreamBlock {
        let mut builder = BlockBuilder::new(1_000);
        for message in messages {
            builder.push(1_000, message.as_bytes()).unwrap();
        }
        let encoded = Compressor::new(1)
            .unwrap()
            .compress(&builder, 2 * messages.len() as u64);
        StreamBlock {
            stream: Arc::from("events.test"),
            encoding: Encoding::Ndjson,
            block: encoded.unwrap(),
        }
    }

    fn content(block: &StreamBlock) -> Vec<String> {
        let encoded = blocks(&block.block.bytes, 0, &Limits::default())
            .next()
            .unwrap()
            .unwrap();
        let mut decompressor = Decompressor::new().unwrap();
        let raw = encoded.decode(&mut decompressor).unwrap();
        let text =
            |message: millpond_segment::Message<'_>| String::from_utf8(message.payload.to_vec()).unwrap();
        raw.messages().map(|message| text(message.unwrap())).collect()
    }

    #[test]
    fn only_the_named_messages_leave_and_the_others_are_found_again() {
        let own = vec![block(&["a", "b"]), block(&["c"]), block(&["d", "e", "f"])];
        let at = |block, message| MessagePlace {
            block,
            message,
            records: 2,
        };
        let gone = [at(0, 1), at(1, 0), at(2, 0), at(2, 2)];
        let places = [at(0, 0), at(2, 1)].map(|it| moved(it, &own, &gone));
        let left = strip(own, &gone, 1).unwrap();
        let contents: Vec<_> = left.iter().map(content).collect();
        assert_eq!(contents, [["a"], ["e"]]);
        assert_eq!(places, [at(0, 0), at(1, 0)]);
        assert_eq!(left.iter().map(|it| it.block.records).collect::<Vec<_>>(), [2, 2]);
        assert_eq!(
            left.iter().map(|it| it.block.messages).collect::<Vec<_>>(),
            [1, 1]
        );
    }
}
