//! The sink can encode every message of any signal that the gateway accepts: otherwise the message would become a dead
//! letter. It makes a row for each record, and chunks that follow the policy. Every attempt cuts the same chunks,
//! because tokens stand for them. Each record can be extracted, for its dead letter.
#![no_main]

use bytes::Bytes;
use millpond_clickhouse::{Columns, encode};
use millpond_consumer::{Batch, BatchId, BatchingPolicy, Chunk, Part};
use millpond_otlp::{Signal, record_alone, validate};
use millpond_segment::{BlockBuilder, Compressor, Encoding};
use ulid::Ulid;
use uuid::Uuid;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    for signal in Signal::ALL {
        if let Ok(counts) = validate(signal, data) {
            encoded(signal, data, counts.records);
            taken_out(signal, data, counts.records);
        }
    }
});

fn encoded(signal: Signal, data: &[u8], records: u64) {
    let records = 2 * records;
    let batch = batch(signal, data, records);
    for (chunk_rows, chunk_bytes, max_partitions_per_chunk) in [(100_000, 64 << 20, 50), (3, 1000, 1)] {
        let policy = BatchingPolicy {
            chunk_rows,
            chunk_bytes,
            max_partitions_per_chunk,
            ..policy()
        };
        let chunks = chunks(&batch, &policy);
        assert_eq!(chunks.iter().map(|chunk| chunk.rows).sum::<u64>(), records);
        for (place, chunk) in chunks.iter().enumerate() {
            assert_eq!(chunk.index as usize, place);
            assert!((1..=chunk_rows).contains(&chunk.rows));
        }
        let again = self::chunks(&batch, &policy);
        let same = |one: &Chunk, other: &Chunk| {
            (one.table, one.rows) == (other.table, other.rows) && one.body == other.body
        };
        assert!(
            chunks.len() == again.len() && chunks.iter().zip(&again).all(|(one, other)| same(one, other))
        );
    }
}

/// The first record, the last, and nothing beyond.
fn taken_out(signal: Signal, data: &[u8], records: u64) {
    for place in [0, records.saturating_sub(1), records] {
        let alone = record_alone(signal, data, place);
        assert_eq!(alone.is_some(), place < records);
        if let Some(alone) = alone {
            let counts = validate(signal, &alone).expect("what is taken out of OTLP is OTLP");
            assert_eq!(counts.records, 1);
        }
    }
}

fn chunks(batch: &Batch, policy: &BatchingPolicy) -> Vec<Chunk> {
    let mut chunks = Vec::new();
    encode(batch, policy, Columns::All, &mut |chunk| {
        chunks.push(chunk);
        true
    })
    .expect("the sink encodes every accepted message");
    chunks
}

/// The message twice: the second time after itself, when the encoder knows all its names.
fn batch(signal: Signal, message: &[u8], records: u64) -> Batch {
    let mut block = BlockBuilder::new(1_000_000);
    for received_at_us in [1_000_000, 2_000_000] {
        block
            .push(received_at_us, message)
            .expect("a fuzzer's input is small");
    }
    let mut compressor = Compressor::new(1).expect("a zstd context is a few kilobytes");
    let block = compressor.compress(&block, records).expect("zstd takes anything");
    let part = Part {
        sequence: 0,
        first_record: 0,
        segment: Ulid::nil(),
        offset: 6,
        data: Bytes::clone(&block.bytes),
        raw_len: block.raw_len,
        records,
        dropped: Default::default(),
    };
    Batch {
        id: BatchId {
            buffer_id: Uuid::nil(),
            shard: 0,
            stream: signal.stream().into(),
            consumer: "fuzz".into(),
            cursor: "fuzz".into(),
            generation: 0,
            sink: "clickhouse:otel.otel_logs".into(),
            low: 0,
            high: 0,
            schema_version: 2,
        },
        encoding: Encoding::Otlp,
        parts: vec![part],
    }
}

fn policy() -> BatchingPolicy {
    BatchingPolicy {
        batch_records: 1,
        batch_bytes: 1,
        chunk_rows: 1,
        chunk_bytes: 1,
        max_partitions_per_chunk: 1,
        max_in_flight: 1,
        sink: "clickhouse:otel.otel_logs".into(),
        schema_version: 2,
    }
}
