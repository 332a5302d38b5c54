//! Every written segment reads back unchanged.

use bytes::Bytes;
use millpond_segment::{
    BlockBuilder, Compression, Compressor, Decompressor, Encoding, Index, Limits, SegmentBuilder, StreamPart,
    TailIndex, blocks, read_index, read_index_tail, verify,
};
use proptest::collection::vec;
use proptest::prelude::*;

/// (received at, payload)
type Messages = Vec<(i64, Vec<u8>)>;
/// A stream's name, encoding, and messages block by block.
type Stream = (String, Encoding, Vec<Messages>);

fn encode(streams: &[Stream]) -> (Bytes, Vec<StreamPart>) {
    let mut compressor = Compressor::new(1).unwrap();
    let mut segment = SegmentBuilder::new();
    // Blocks of the streams alternate, as they do when several streams fill at the same time.
    let most = streams.iter().map(|stream| stream.2.len()).max().unwrap_or(0);
    for number in 0..most {
        for (name, encoding, blocks) in streams {
            let Some(messages) = blocks.get(number) else {
                continue;
            };
            let mut block = BlockBuilder::new(messages.first().map_or(0, |message| message.0));
            for (received_at_us, payload) in messages {
                block.push(*received_at_us, payload).unwrap();
            }
            let records = messages.len() as u64 * 2;
            segment
                .push(name, *encoding, compressor.compress(&block, records).unwrap())
                .unwrap();
        }
    }
    let encoded = segment.finish();
    let object: Vec<u8> = encoded.parts.concat();
    assert_eq!(object.len() as u64, encoded.size);
    (object.into(), encoded.streams)
}

fn decode_part(object: &Bytes, part: &StreamPart) -> Messages {
    let mut decompressor = Decompressor::new().unwrap();
    let mut found = Vec::new();
    for block in blocks(&part.slice(object).unwrap(), part.offset, &Limits::default()) {
        let block = block.unwrap();
        for message in block.decode(&mut decompressor).unwrap().messages() {
            let message = message.unwrap();
            found.push((message.received_at_us, message.payload.to_vec()));
        }
    }
    found
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        Just(Vec::new()),
        vec(any::<u8>(), 0..200),
        (any::<u8>(), 0..5000_usize).prop_map(|(byte, len)| vec![byte; len]),
    ]
}

fn streams() -> impl Strategy<Value = Vec<Stream>> {
    let time = prop_oneof![any::<i64>(), 1_700_000_000_000_000..1_700_000_100_000_000_i64];
    let messages = vec((time, payload()), 1..8);
    let stream = (any::<bool>(), vec(messages, 1..4));
    vec(stream, 0..5).prop_map(|streams| {
        let numbered = streams.into_iter().enumerate();
        numbered
            .map(|(number, (otlp, blocks))| {
                let encoding = if otlp { Encoding::Otlp } else { Encoding::Ndjson };
                (format!("stream-{number}.logs"), encoding, blocks)
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn any_streams_come_back_as_they_were(streams in streams()) {
        let (object, parts) = encode(&streams);
        let index = verify(&object, &Limits::default()).unwrap();
        prop_assert_eq!(&index.streams, &parts);
        prop_assert_eq!(index.streams.len(), streams.len());
        for (part, (name, encoding, blocks)) in index.streams.iter().zip(&streams) {
            let messages = blocks.concat();
            prop_assert_eq!((&part.stream, part.encoding), (name, *encoding));
            prop_assert_eq!(part.blocks as usize, blocks.len());
            prop_assert_eq!(part.messages, messages.len() as u64);
            prop_assert_eq!(part.records, messages.len() as u64 * 2);
            prop_assert_eq!(Some(part.first_received_at_us), messages.iter().map(|message| message.0).min());
            prop_assert_eq!(Some(part.last_received_at_us), messages.iter().map(|message| message.0).max());
            prop_assert_eq!(decode_part(&object, part), messages);
        }
    }

    #[test]
    fn a_tail_of_any_length_gives_the_index_or_says_how_much_it_needs(
        streams in streams(),
        cut in any::<prop::sample::Index>(),
    ) {
        let (object, parts) = encode(&streams);
        let size = object.len() as u64;
        let tail = object.slice(cut.index(object.len() + 1)..);
        let whole = Index { streams: parts };
        match read_index_tail(&tail, size, &Limits::default()).unwrap() {
            TailIndex::Index(index) => prop_assert_eq!(index, whole),
            TailIndex::Needs(needed) => {
                prop_assert!(needed > tail.len() as u64 && needed <= size);
                // At most one further request: the first answer may cover only the footer.
                let mut needed = needed;
                let index = loop {
                    let start = object.len() - usize::try_from(needed).unwrap();
                    match read_index_tail(&object[start..], size, &Limits::default()).unwrap() {
                        TailIndex::Index(index) => break index,
                        TailIndex::Needs(more) => {
                            prop_assert!(more > needed);
                            needed = more;
                        }
                    }
                };
                prop_assert_eq!(index, whole);
            }
        }
    }
}

#[test]
fn an_empty_segment_has_an_empty_index() {
    let encoded = SegmentBuilder::new().finish();
    let index = read_index(&encoded.parts.concat(), &Limits::default()).unwrap();
    assert_eq!(index.streams, []);
}

#[test]
fn a_message_bigger_than_a_usual_block_gets_through() {
    let payload: Vec<u8> = (0..5_000_000_u32).map(|i| (i % 251) as u8).collect();
    let streams = vec![("big".to_owned(), Encoding::Ndjson, vec![vec![(1, payload)]])];
    let (object, parts) = encode(&streams);
    assert_eq!(decode_part(&object, &parts[0]), streams[0].2[0]);
}

#[test]
fn a_message_over_the_limit_is_refused_and_the_block_stays_good() {
    let limits = Limits {
        block_raw_max: 100,
        ..Limits::default()
    };
    let mut block = BlockBuilder::with_buffer(0, Vec::new(), &limits);
    block.push(0, &[1; 50]).unwrap();
    let refused = block.push(0, &[1; 60]).unwrap_err();
    assert_eq!(
        (refused.payload_len, refused.raw_len, refused.limit),
        (60, 52, 100)
    );
    assert_eq!((block.messages(), block.raw_len()), (1, 52));
    block.push(0, &[1; 46]).unwrap();
    assert_eq!(block.raw_len(), 100);
}

#[test]
fn incompressible_blocks_are_stored_and_others_are_zstd() {
    // A small xorshift generator: deterministic noise.
    let mut state = 88_172_645_463_325_252_u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    })
    .take(1000)
    .flatten()
    .collect();
    let blocks_of = vec![vec![(0, noise.clone())], vec![(0, vec![7; 8000])]];
    let (object, parts) = encode(&[("s".to_owned(), Encoding::Otlp, blocks_of)]);
    let found: Vec<_> = blocks(
        &parts[0].slice(&object).unwrap(),
        parts[0].offset,
        &Limits::default(),
    )
    .map(|block| block.unwrap().compression())
    .collect();
    assert_eq!(found, [Compression::Stored, Compression::Zstd]);
    assert_eq!(decode_part(&object, &parts[0])[0].1, noise);
}

#[test]
fn a_buffer_and_a_compressor_used_again_give_the_same_bytes() {
    let mut compressor = Compressor::new(1).unwrap();
    let mut compress = |buffer: Vec<u8>, payload: &[u8]| {
        let mut block = BlockBuilder::with_buffer(5, buffer, &Limits::default());
        block.push(5, payload).unwrap();
        (compressor.compress(&block, 1).unwrap().bytes, block.into_buffer())
    };
    let (first, buffer) = compress(Vec::new(), &[1; 10_000]);
    let (_, buffer) = compress(buffer, b"something else");
    let (again, _) = compress(buffer, &[1; 10_000]);
    assert_eq!(first, again);
}

#[test]
fn a_full_segment_says_so_and_stays_good() {
    let block = |len: usize| {
        let mut block = BlockBuilder::new(0);
        block
            .push(0, &(0..len).map(|i| (i * i).to_le_bytes()[0]).collect::<Vec<_>>())
            .unwrap();
        Compressor::new(1).unwrap().compress(&block, 1).unwrap()
    };
    let limits = Limits {
        segment_max: 400,
        streams_max: 2,
        blocks_max: 3,
        ..Limits::default()
    };
    let mut segment = SegmentBuilder::with_limits(limits.clone());
    segment.push("a", Encoding::Otlp, block(10)).unwrap();
    segment.push("b", Encoding::Otlp, block(10)).unwrap();
    let refused = segment
        .push("c", Encoding::Otlp, block(10))
        .unwrap_err()
        .to_string();
    assert_eq!(
        refused,
        "the segment is full: number of streams would be 3, the limit is 2"
    );
    assert!(segment.push("a", Encoding::Otlp, block(10_000)).is_err());
    assert!(segment.push("no/slash", Encoding::Otlp, block(10)).is_err());
    let refused = segment
        .push("a", Encoding::Ndjson, block(10))
        .unwrap_err()
        .to_string();
    assert_eq!(refused, "stream \"a\" holds otlp messages, not ndjson");
    let object = Bytes::from(segment.finish().parts.concat());
    let index = verify(&object, &limits).unwrap();
    assert_eq!(
        index.streams.iter().map(|part| part.blocks).collect::<Vec<_>>(),
        [1, 1]
    );
}
