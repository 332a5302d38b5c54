//! The hot pieces. Each is prepared once and then does the same work in every run.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use bytes::Bytes;
use millpond_clickhouse::transform::Transform;
use millpond_clickhouse::{Columns, Encoder, EventEncoder, Signal};
use millpond_consumer::{Batch, BatchId, BatchingPolicy, Cut, Part};
use millpond_manifest::plan::{self, Size};
use millpond_manifest::{Claim, Manifest, NewPart, NewSegment, Object, ProducerId};
use millpond_segment::{BlockBuilder, Compressor, Decompressor, Encoding, Limits};
use ulid::Ulid;
use uuid::Uuid;

use crate::data;

/// A piece of the pipeline.
pub(crate) struct Piece {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    /// Prepares the work over this many records.
    pub(crate) prepare: fn(bodies: Option<&Path>, records: u64) -> anyhow::Result<Work>,
}

/// Prepared work. A run returns the number of its units.
pub(crate) struct Work(Box<dyn FnMut() -> u64>);

impl Work {
    fn new(run: impl FnMut() -> u64 + 'static) -> Self {
        Work(Box::new(run))
    }

    pub(crate) fn run(&mut self) -> u64 {
        (self.0)()
    }
}

/// Raw bytes of a block, as a producer's.
const BLOCK_BYTES: usize = 1 << 20;

/// Entries of the tail: about the mean from one sealing to the next.
const TAIL: u64 = 1_024;

/// Commits and plans of one run.
const TIMES: u64 = 20;

macro_rules! piece {
    ($name:literal, $unit:literal, $prepare:expr) => {
        Piece {
            name: $name,
            unit: $unit,
            prepare: $prepare,
        }
    };
}

/// `zstd` is the floor of the gateway. `…-columns` is what the consumer does with a batch, without its order and
/// Millpond's columns; `…-insert` is everything up to the INSERT, and `…-transform` the same with a program over each event.
/// `events-parse` is the floor of `events-columns`.
pub(crate) const PIECES: [Piece; 19] = [
    piece!("zstd", "record", |bodies, records| zstd_alone(bodies, records)),
    piece!("logs-validate", "record", |bodies, records| validate(
        Signal::Logs,
        bodies,
        records
    )),
    piece!("traces-validate", "record", |bodies, records| validate(
        Signal::Traces,
        bodies,
        records
    )),
    piece!("metrics-validate", "record", |bodies, records| validate(
        Signal::Metrics,
        bodies,
        records
    )),
    piece!("block-encode", "record", |bodies, records| block_encode(
        bodies, records
    )),
    piece!("block-decode", "record", |bodies, records| block_decode(
        bodies, records
    )),
    piece!("logs-columns", "record", |bodies, records| insert(
        Signal::Logs,
        Columns::None,
        bodies,
        records
    )),
    piece!("traces-columns", "record", |bodies, records| insert(
        Signal::Traces,
        Columns::None,
        bodies,
        records
    )),
    piece!("metrics-columns", "record", |bodies, records| insert(
        Signal::Metrics,
        Columns::None,
        bodies,
        records
    )),
    piece!("logs-insert", "record", |bodies, records| insert(
        Signal::Logs,
        Columns::All,
        bodies,
        records
    )),
    piece!("traces-insert", "record", |bodies, records| insert(
        Signal::Traces,
        Columns::All,
        bodies,
        records
    )),
    piece!("metrics-insert", "record", |bodies, records| insert(
        Signal::Metrics,
        Columns::All,
        bodies,
        records
    )),
    piece!("events-parse", "record", |_, records| parse(records)),
    piece!("events-columns", "record", |_, records| event_columns(records)),
    piece!("events-insert", "record", |_, records| events(None, records)),
    piece!("events-transform", "record", |_, records| events(
        Some(PROGRAM),
        records
    )),
    piece!("events-transform-whole", "record", |_, records| events(
        Some(WHOLE_PROGRAM),
        records
    )),
    piece!("commit", "commit", |_, _| commit()),
    piece!("plan", "plan", |_, _| plan()),
];

fn zstd_alone(bodies: Option<&Path>, records: u64) -> anyhow::Result<Work> {
    let requests = data::requests(Signal::Logs, bodies, records)?;
    let raw = requests.concat();
    let mut compressor = zstd::bulk::Compressor::new(1)?;
    let mut compressed = vec![1; zstd::zstd_safe::compress_bound(BLOCK_BYTES)];
    Ok(Work::new(move || {
        for block in raw.chunks(BLOCK_BYTES) {
            let written = compressor.compress_to_buffer(block, &mut compressed);
            assert!(written.is_ok_and(|written| written > 0), "zstd has compressed");
        }
        records
    }))
}

fn validate(signal: Signal, bodies: Option<&Path>, records: u64) -> anyhow::Result<Work> {
    let requests = data::requests(signal, bodies, records)?;
    Ok(Work::new(move || {
        let counts = requests.iter().map(|request| {
            let counts = millpond_otlp::validate(signal, request);
            counts.expect("our own request").records
        });
        let found: u64 = counts.sum();
        assert_eq!(found, records);
        found
    }))
}

/// The blocks of these requests, as a producer makes them.
fn encode(
    compressor: &mut Compressor,
    mut buffer: Vec<u8>,
    requests: &[Bytes],
    blocks: &mut Vec<Bytes>,
) -> Vec<u8> {
    blocks.clear();
    let mut left = requests.iter().peekable();
    while left.peek().is_some() {
        let mut builder = BlockBuilder::with_buffer(1, buffer, &Limits::default());
        while let Some(request) = left.next_if(|request| {
            builder.is_empty()
                || builder.raw_len() + BlockBuilder::message_len_max(request.len()) <= BLOCK_BYTES
        }) {
            builder.push(1, request).expect("a message of a usual size");
        }
        let block = compressor.compress(&builder, 0).expect("there is memory");
        blocks.push(block.bytes);
        buffer = builder.into_buffer();
    }
    buffer
}

fn block_encode(bodies: Option<&Path>, records: u64) -> anyhow::Result<Work> {
    let requests = data::requests(Signal::Logs, bodies, records)?;
    let mut compressor = Compressor::new(1)?;
    let (mut buffer, mut blocks) = (Vec::new(), Vec::new());
    Ok(Work::new(move || {
        buffer = encode(
            &mut compressor,
            std::mem::take(&mut buffer),
            &requests,
            &mut blocks,
        );
        records
    }))
}

fn blocks(signal: Signal, bodies: Option<&Path>, records: u64) -> anyhow::Result<Bytes> {
    let requests = data::requests(signal, bodies, records)?;
    let mut blocks = Vec::new();
    encode(&mut Compressor::new(1)?, Vec::new(), &requests, &mut blocks);
    Ok(blocks.concat().into())
}

fn block_decode(bodies: Option<&Path>, records: u64) -> anyhow::Result<Work> {
    let blocks = blocks(Signal::Logs, bodies, records)?;
    let mut decompressor = Decompressor::new()?;
    Ok(Work::new(move || {
        let mut messages = 0;
        for block in millpond_segment::blocks(&blocks, 0, &Limits::default()) {
            let block = block.expect("our own block");
            let raw = block.decode(&mut decompressor).expect("our own block");
            messages += raw.messages().filter(Result::is_ok).count();
        }
        assert!(messages > 0);
        records
    }))
}

/// Everything from the blocks of one batch to the chunks of the INSERTs.
fn insert(signal: Signal, columns: Columns, bodies: Option<&Path>, records: u64) -> anyhow::Result<Work> {
    let batch = batch(signal.stream(), Encoding::Otlp, blocks(signal, bodies, records)?);
    let policy = policy();
    let mut encoder = Encoder::new()?;
    Ok(Work::new(move || {
        let mut rows = 0;
        let encoded = encoder.encode(&batch, &policy, columns, &mut |chunk| {
            rows += chunk.rows;
            true
        });
        encoded.expect("our own batch");
        assert_eq!(rows, records);
        rows
    }))
}

/// A program that drops a tenth of the events, renames a member and computes two.
const PROGRAM: &str = r#"
if .kind == "test" { abort }
.user_id = del(.user)
.name = upcase(string!(.name))
.total = int!(.price) * int!(.count)
"#;

/// The same over the event as a whole.
const WHOLE_PROGRAM: &str = r#"
if .kind == "test" { abort }
event = object(.)
event.user_id = del(event.user)
event.name = upcase(string!(event.name))
event.total = int!(event.price) * int!(event.count)
. = event
"#;

/// The columns of a table for the events.
const EVENT_COLUMNS: [(&str, &str); 8] = [
    ("event_id", "UUID"),
    ("user_id", "String"),
    ("name", "String"),
    ("email", "String"),
    ("price", "UInt32"),
    ("count", "UInt32"),
    ("total", "UInt64"),
    ("created_at", "DateTime"),
];

/// Messages of 1,000 events each. `user`: the key of the user.
fn event_messages(user: &str, records: u64) -> Vec<Bytes> {
    let event = |number: u64| {
        let kind = if number % 10 == 3 { "test" } else { "order" };
        let id = u128::from(number) * 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
        let id = Uuid::from_u128(id);
        format!(
            r#"{{"event_id":"{id}","{user}":"u{number}","kind":"{kind}","name":"user {number}","email":"{number}@example.com","price":{},"count":{},"total":0,"created_at":"2026-11-25 01:{:02}:00"}}"#,
            number % 1_000,
            number % 7,
            number % 60
        )
    };
    let all: Vec<u64> = (0..records).collect();
    let message = |numbers: &[u64]| {
        let rows: Vec<String> = numbers.iter().map(|number| event(*number)).collect();
        Bytes::from(rows.join("\n"))
    };
    all.chunks(1_000).map(message).collect()
}

/// The bare parse: each event becomes a tree of values.
fn parse(records: u64) -> anyhow::Result<Work> {
    let messages = event_messages("user_id", records);
    Ok(Work::new(move || {
        let rows = messages.iter().flat_map(|message| {
            serde_json::Deserializer::from_slice(message).into_iter::<serde_json::Value>()
        });
        let objects = rows.filter(|row| row.as_ref().is_ok_and(serde_json::Value::is_object));
        assert_eq!(objects.count() as u64, records);
        records
    }))
}

/// From the text of events to the values of the columns, without a block before or after.
fn event_columns(records: u64) -> anyhow::Result<Work> {
    let messages = event_messages("user_id", records);
    let encoder = EventEncoder::new(&EVENT_COLUMNS, None).map_err(anyhow::Error::msg)?;
    Ok(Work::new(move || {
        assert_eq!(encoder.fill(&messages), records);
        records
    }))
}

/// Everything from the blocks of one batch of events to the chunks of the INSERTs, with a program or without.
fn events(program: Option<&str>, records: u64) -> anyhow::Result<Work> {
    let user = if program.is_some() { "user" } else { "user_id" };
    let messages = event_messages(user, records);
    let mut blocks = Vec::new();
    encode(&mut Compressor::new(1)?, Vec::new(), &messages, &mut blocks);
    let batch = batch("events.order", Encoding::Ndjson, blocks.concat().into());
    let transform = program
        .map(|program| Transform::new("benchmark", program))
        .transpose();
    let transform = transform
        .map_err(anyhow::Error::msg)?
        .map(|(transform, _)| transform);
    let expected = if program.is_some() {
        records - records.div_ceil(10)
    } else {
        records
    };
    let mut encoder = EventEncoder::new(&EVENT_COLUMNS, transform).map_err(anyhow::Error::msg)?;
    let policy = policy();
    Ok(Work::new(move || {
        let mut rows = 0;
        let encoded = encoder.encode(&batch, &policy, &mut |cut| {
            match cut {
                Cut::Chunk(chunk) => rows += chunk.rows,
                Cut::Unreadable { reason, .. } => panic!("{reason}"),
            }
            true
        });
        encoded.expect("our own batch");
        assert!(rows.abs_diff(expected) <= 1, "{rows} rows");
        records
    }))
}

fn batch(stream: &str, encoding: Encoding, data: Bytes) -> Batch {
    let id = BatchId {
        buffer_id: Uuid::nil(),
        shard: 0,
        stream: stream.into(),
        consumer: "default".into(),
        cursor: "default".into(),
        generation: 0,
        sink: "clickhouse:otel.otel_logs".into(),
        low: 1,
        high: 1,
        schema_version: 2,
    };
    let part = Part {
        sequence: 1,
        first_record: 0,
        segment: Ulid::nil(),
        offset: 0,
        data,
        raw_len: 0,
        records: 0,
        dropped: Default::default(),
    };
    Batch {
        id,
        encoding,
        parts: vec![part],
    }
}

fn policy() -> BatchingPolicy {
    BatchingPolicy {
        batch_records: 100_000,
        batch_bytes: 64 << 20,
        chunk_rows: 100_000,
        chunk_bytes: 64 << 20,
        max_partitions_per_chunk: 50,
        max_in_flight: 16,
        sink: "clickhouse:otel.otel_logs".into(),
        schema_version: 2,
    }
}

const OURS: ProducerId = ProducerId([7; 16]);
const NOW_MS: u64 = 1_764_000_000_000;

fn segment(number: u64) -> NewSegment {
    let part = NewPart {
        stream: "otlp.logs".to_owned(),
        encoding: Encoding::Otlp,
        offset: 6,
        length: 9_876_000,
        raw_len: 53_500_000,
        messages: 125,
        records: 125_000,
        first_received_at_us: 1_763_999_999_000_000,
        last_received_at_us: 1_764_000_000_000_000,
    };
    NewSegment {
        segment: Ulid::from_parts(NOW_MS, number.into()),
        size: 9_877_000,
        parts: vec![part],
    }
}

fn committed(state: &Manifest, segments: &[NewSegment]) -> anyhow::Result<Manifest> {
    let row = state.producer(OURS).context("the producer is registered")?;
    let claims = [Claim::one(OURS, row.commit + 1, 0..segments.len())];
    Ok(*state.commit(&claims, segments, NOW_MS)?.state)
}

/// Reading a manifest, committing a segment, and writing it.
fn commit() -> anyhow::Result<Work> {
    let mut state = Manifest::new(Uuid::nil(), 0).register(OURS, NOW_MS);
    for first in (0..TAIL).step_by(256) {
        let segments: Vec<NewSegment> = (first..first + 256).map(segment).collect();
        state = committed(&state, &segments)?;
    }
    let bytes = state.encode();
    let new = [segment(TAIL)];
    Ok(Work::new(move || {
        for _ in 0..TIMES {
            let read = Manifest::decode(&bytes).expect("our own manifest");
            let written = committed(&read, &new).expect("a valid claim").stamped(1).encode();
            assert!(written.len() > bytes.len());
        }
        TIMES
    }))
}

/// Cutting the parts of a tail into batches: half of them large, the others a few to a batch.
fn plan() -> anyhow::Result<Work> {
    let policy = Arc::new(policy());
    let parts: Vec<(u64, Size)> = (1..=TAIL)
        .map(|sequence| {
            let records = if sequence % 16 < 8 { 125_000 } else { 20_000 };
            let raw_bytes = records * 428;
            (sequence, Size { records, raw_bytes })
        })
        .collect();
    Ok(Work::new(move || {
        for _ in 0..TIMES {
            let found = plan::candidates(&policy, [], parts.iter().copied(), usize::MAX);
            assert!(found.len() > parts.len() / 2);
        }
        TIMES
    }))
}
