//! Where batches go: the [`Sink`] trait and what it is given. The identities made here are the
//! deduplication tokens, so nothing here may depend on the time, the process or the attempt.

use async_trait::async_trait;
use bytes::Bytes;
use millpond_manifest::cursor::Rule;
use millpond_manifest::planted::{self, Bug};
use millpond_segment::Encoding;
use std::fmt;
use std::ops::Range;
use thiserror::Error;
use ulid::Ulid;
use uuid::Uuid;

/// The identity of a batch: it never changes, whoever sends the batch and however often.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BatchId {
    /// Which buffer.
    pub buffer_id: Uuid,
    /// Which shard of it.
    pub shard: u32,
    /// Which stream.
    pub stream: String,
    /// For which consumer.
    pub consumer: String,
    /// Into which sink, e.g. `clickhouse:otel.otel_logs`.
    pub sink: String,
    /// First sequence.
    pub low: u64,
    /// Last sequence, inclusive.
    pub high: u64,
    /// The version of the sink's mapping from messages to rows.
    pub schema_version: u32,
}

impl BatchId {
    /// The deduplication token of one chunk of this batch.
    ///
    /// `millpond/1/<buffer>/<shard>/<stream>/<consumer>/<sink>/v<schema version>/<low>-<high>/<chunk>`:
    /// stable and printable. None of the names can contain a slash but the sink's, which is
    /// followed by the fixed-form rest, so two identities never share a token.
    pub fn token(&self, chunk: u32) -> String {
        let chunk = if planted::is(Bug::TokenWithoutChunk) {
            0
        } else {
            chunk
        };
        format!("{self}/{chunk}")
    }

    /// Where rows of this batch come from, for Millpond's own column: `<buffer>/<shard>/<stream>/<consumer>`.
    pub fn source(&self) -> String {
        let BatchId {
            buffer_id,
            shard,
            stream,
            consumer,
            ..
        } = self;
        format!("{buffer_id}/{shard:04}/{stream}/{consumer}")
    }
}

impl fmt::Display for BatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BatchId {
            buffer_id,
            shard,
            stream,
            consumer,
            sink,
            low,
            high,
            schema_version,
        } = self;
        write!(
            f,
            "millpond/1/{buffer_id}/{shard:04}/{stream}/{consumer}/{sink}/v{schema_version}/{low}-{high}"
        )
    }
}

/// One stream's part of one committed segment, fetched.
#[derive(Debug, Clone)]
pub struct Part {
    /// The segment's place in the log.
    pub sequence: u64,
    /// The segment's name, for errors.
    pub segment: Ulid,
    /// Where `data` begins in the segment object, for errors.
    pub offset: u64,
    /// The stream's blocks, compressed, as stored.
    pub data: Bytes,
    /// Uncompressed, in bytes.
    pub raw_length: u64,
    /// How many records the manifest says it has.
    pub records: u64,
}

/// What a sink is given: the parts of a contiguous range of sequences of one stream.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Who it is.
    pub id: BatchId,
    /// What its messages are.
    pub encoding: Encoding,
    /// In order of their sequences.
    pub parts: Vec<Part>,
}

/// A run of a batch's rows, encoded, sent as one unit with one token.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// Its place in the batch; of a piece of a chunk, its number ([`millpond_manifest::piece`]).
    pub index: u32,
    /// Which of the sink's tables it is for: the sink's own number of it, 0 where it has one table alone.
    pub table: u32,
    /// How many rows.
    pub rows: u64,
    /// Bytes in the sink's format before compression.
    pub raw_bytes: u64,
    /// What is sent, in pieces.
    pub body: Vec<Bytes>,
    /// When the messages that these rows come from were received, for the latency that users feel.
    pub received: Vec<Received>,
}

impl Chunk {
    /// The place in the batch of the record that this row of the chunk was made of.
    pub fn record(&self, row: u64) -> Option<u64> {
        let mut before = 0;
        self.received.iter().find_map(|run| {
            let record = (row < before + run.rows).then(|| run.first + (row - before));
            before += run.rows;
            record
        })
    }

    /// When the messages of these rows were received.
    pub fn received(&self, rows: &Range<u64>) -> Vec<Received> {
        let mut before = 0;
        let runs = self.received.iter().map(|run| {
            let from = rows.start.saturating_sub(before).min(run.rows);
            let to = rows.end.saturating_sub(before).min(run.rows);
            before += run.rows;
            Received {
                at_us: run.at_us,
                rows: to - from,
                first: run.first + from,
            }
        });
        runs.filter(|run| run.rows > 0).collect()
    }
}

/// Neighbouring rows of a chunk that come from neighbouring records, received at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Unix time in microseconds.
    pub at_us: i64,
    /// How many rows.
    pub rows: u64,
    /// The first one's record, by its place among the batch's records.
    pub first: u64,
}

/// What a batch is cut into.
#[derive(Debug, Clone)]
pub enum Cut {
    /// Rows to be written.
    Chunk(Chunk),
    /// A message that is none of its encoding. It has no rows and no records.
    Unreadable {
        /// Its place among the batch's messages.
        place: u32,
        /// The message.
        message: Record,
        /// What is wrong with it.
        reason: String,
    },
}

/// A message out of a batch; or a record of it, as a message of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The segment that it was in.
    pub sequence: u64,
    /// When it was received, in unix microseconds.
    pub received_at_us: i64,
    /// In the batch's encoding, if it is readable.
    pub payload: Vec<u8>,
}

/// Why a sink did not take something, by what the consumer should do.
#[derive(Debug, Error)]
pub enum SinkError {
    /// It may take it later: try again for as long as it takes.
    #[error("{0}")]
    Transient(String),
    /// The sink's table does not fit: nothing can be written until somebody mends it.
    #[error("{0}")]
    Schema(String),
    /// It will never take all of these rows, and has taken none of them in this attempt: it may take some without the others.
    #[error("{0}")]
    Refused(String),
}

/// What a sink that was asked has found of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Found {
    /// None of its rows, or the sink cannot ask: all were sent.
    Nothing,
    /// Some of them: the others were sent.
    Some,
    /// All of them: nothing was sent.
    All,
}

/// Where batches go.
#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// Its name, part of every batch's identity, e.g. `clickhouse:otel.otel_logs`.
    fn name(&self) -> &str;

    /// The version of its mapping from messages to rows: changed whenever the same batch would
    /// give other rows, another order or other chunks.
    fn schema_version(&self) -> u32;

    /// Whether it takes this stream.
    fn accepts(&self, stream: &str, encoding: Encoding) -> bool;

    /// Cuts a batch into chunks and gives each to `emit`, in order. CPU work, called on a blocking
    /// thread; `emit` blocks for backpressure and returns false to stop early (which is no error).
    /// The chunks' boundaries and rows follow from the batch and the rule alone. An error means that the
    /// batch is damaged.
    fn chunks(&self, batch: &Batch, rule: &Rule, emit: &mut dyn FnMut(Cut) -> bool) -> Result<(), SinkError>;

    /// These rows of a chunk, or of a piece of one, as a piece with this number. CPU work.
    fn piece(&self, chunk: &Chunk, rows: Range<u64>, number: u32) -> Chunk;

    /// The records at these places in the batch ([`Received::first`]), in that order, each as a message of its own. CPU work.
    fn records(&self, batch: &Batch, places: &[u64]) -> Result<Vec<Record>, SinkError>;

    /// Writes a chunk: one attempt. Success means that the rows are in the sink, whether this
    /// attempt put them there or an earlier one.
    async fn write(&self, id: &BatchId, chunk: &Chunk) -> Result<(), SinkError>;

    /// Writes a chunk of which some rows may be in the sink, because an attempt before this one, ours or a
    /// predecessor's, ended unknown to us; or a piece of a chunk, of which that may be so. A sink that can ask what it has asks here, and does not depend on
    /// recognising the repetition alone.
    async fn write_again(&self, id: &BatchId, chunk: &Chunk) -> Result<Found, SinkError> {
        self.write(id, chunk).await.map(|()| Found::Nothing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> BatchId {
        BatchId {
            buffer_id: Uuid::from_u128(7),
            shard: 3,
            stream: "otlp.logs".into(),
            consumer: "default".into(),
            sink: "clickhouse:otel.otel_logs".into(),
            low: 12,
            high: 15,
            schema_version: 1,
        }
    }

    #[test]
    fn the_token_is_documented_and_stable() {
        assert_eq!(
            id().token(2),
            "millpond/1/00000000-0000-0000-0000-000000000007/0003/otlp.logs/default/\
             clickhouse:otel.otel_logs/v1/12-15/2"
        );
        assert_eq!(
            id().source(),
            "00000000-0000-0000-0000-000000000007/0003/otlp.logs/default"
        );
    }

    #[test]
    fn a_piece_knows_the_records_of_its_rows() {
        let run = |at_us, rows, first| Received { at_us, rows, first };
        let chunk = Chunk {
            index: 0,
            table: 0,
            rows: 9,
            raw_bytes: 0,
            body: Vec::new(),
            received: vec![run(1, 3, 10), run(2, 2, 13), run(3, 4, 50)],
        };
        assert_eq!(chunk.received(&(0..9)), chunk.received);
        assert_eq!(
            chunk.received(&(2..6)),
            [run(1, 1, 12), run(2, 2, 13), run(3, 1, 50)]
        );
        let records: Vec<_> = (0..10).map(|row| chunk.record(row)).collect();
        let expected = [10, 11, 12, 13, 14, 50, 51, 52, 53].map(Some);
        assert_eq!((&records[..9], records[9]), (&expected[..], None));
    }

    #[test]
    fn every_part_of_the_identity_is_in_the_token() {
        let change: [fn(&mut BatchId); 8] = [
            |id| id.buffer_id = Uuid::from_u128(8),
            |id| id.shard = 4,
            |id| id.stream = "otlp.traces".into(),
            |id| id.consumer = "other".into(),
            |id| id.sink = "clickhouse:otel.other".into(),
            |id| id.low = 11,
            |id| id.high = 16,
            |id| id.schema_version = 2,
        ];
        for change in change {
            let mut other = id();
            change(&mut other);
            assert_ne!(other.token(2), id().token(2));
        }
        assert_ne!(id().token(1), id().token(2));
    }
}
