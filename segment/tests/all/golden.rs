//! The golden file: readers accept it forever, and today's writer produces the same content.
//!
//! `cargo test -p millpond-segment golden:: -- --ignored regenerate` rewrites it. Do that only together with a new
//! format version (or before the first release).

use std::path::PathBuf;

use bytes::Bytes;
use millpond_segment::{
    BlockBuilder, Compression, Compressor, Decompressor, EncodedSegment, Encoding, Limits, SegmentBuilder,
    blocks, verify,
};

const BASE_US: i64 = 1_767_225_600_000_000;

/// Stream, encoding, and for each block: compression, record count and messages.
type Content = Vec<(
    &'static str,
    Encoding,
    Vec<(Compression, u64, Vec<(i64, Vec<u8>)>)>,
)>;

fn content() -> Content {
    let repeated = |byte: u8| vec![byte; 400];
    vec![
        (
            "otlp.logs",
            Encoding::Otlp,
            vec![
                (
                    Compression::Zstd,
                    7,
                    vec![
                        (BASE_US, repeated(b'a')),
                        (BASE_US + 1_500, Vec::new()),
                        (BASE_US - 20, repeated(b'b')),
                    ],
                ),
                (
                    Compression::Stored,
                    1,
                    vec![(BASE_US + 2_000_000, vec![0x0a, 0x00, 0xff])],
                ),
            ],
        ),
        (
            "events.signup",
            Encoding::Ndjson,
            vec![(
                Compression::Stored,
                2,
                vec![
                    (i64::MIN, b"{\"a\":1}\n{\"a\":2}\n".to_vec()),
                    (i64::MAX, Vec::new()),
                ],
            )],
        ),
    ]
}

fn encode() -> EncodedSegment {
    let mut compressor = Compressor::new(1).unwrap();
    let mut segment = SegmentBuilder::new();
    for (stream, encoding, stream_blocks) in content() {
        for (_, records, messages) in stream_blocks {
            let mut block = BlockBuilder::new(messages[0].0);
            for (received_at_us, payload) in messages {
                block.push(received_at_us, &payload).unwrap();
            }
            segment
                .push(stream, encoding, compressor.compress(&block, records).unwrap())
                .unwrap();
        }
    }
    segment.finish()
}

fn decode(object: &Bytes) -> Content {
    let mut decompressor = Decompressor::new().unwrap();
    let index = verify(object, &Limits::default()).unwrap();
    let mut found = Vec::new();
    for (part, (name, _, expected)) in index.streams.iter().zip(content()) {
        assert_eq!(part.stream, name);
        assert_eq!(part.records, expected.iter().map(|block| block.1).sum::<u64>());
        let part_bytes = part.slice(object).unwrap();
        let mut stream_blocks = Vec::new();
        // Only the index has the number of records, for the whole part.
        for (block, (_, records, _)) in blocks(&part_bytes, part.offset, &Limits::default()).zip(expected) {
            let block = block.unwrap();
            let raw = block.decode(&mut decompressor).unwrap();
            let messages = raw.messages().map(Result::unwrap);
            let messages = messages
                .map(|message| (message.received_at_us, message.payload.to_vec()))
                .collect();
            stream_blocks.push((block.compression(), records, messages));
        }
        found.push((name, part.encoding, stream_blocks));
    }
    found
}

fn testdata(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("testdata")
        .join(name)
}

fn path() -> PathBuf {
    testdata("two-streams.segment")
}

/// The Go producer writes the second file (otel-exporter/internal/segment/golden_test.go) and reads both.
#[test]
fn the_golden_files_have_the_content_they_were_written_with() {
    for name in ["two-streams.segment", "two-streams-go.segment"] {
        let object = Bytes::from(std::fs::read(testdata(name)).unwrap());
        assert_eq!(decode(&object), content(), "{name}");
    }
}

#[test]
fn a_new_segment_has_the_content_and_shape_of_the_golden_file() {
    let today = encode();
    let object = Bytes::from(today.parts.concat());
    assert_eq!(decode(&object), content());
    // zstd's bytes may change with its version; everything else must not.
    let golden = Bytes::from(std::fs::read(path()).unwrap());
    assert_eq!(object[..6], golden[..6]);
    let golden = verify(&golden, &Limits::default()).unwrap().streams;
    for (today, golden) in today.streams.iter().zip(golden) {
        assert_eq!(
            (&today.stream, today.raw_len, today.blocks),
            (&golden.stream, golden.raw_len, golden.blocks)
        );
    }
}

#[test]
#[ignore = "writes the golden file"]
fn regenerate() {
    std::fs::write(path(), encode().parts.concat()).unwrap();
}
