//! The destination of batches: the [`Sink`] trait and its arguments. This module makes the identities of rows and the
//! deduplication tokens, so it must not depend on the time, the process or the attempt.

use crate::unique::{Dropped, PartKeys};
use async_trait::async_trait;
use bytes::Bytes;
use millpond_manifest::SinkTable;
use millpond_manifest::cursor::{BatchingPolicy, Programs};
use millpond_segment::{Decompressor, Encoding, Limits, blocks};
use std::any::Any;
use std::fmt;
use std::time::Duration;
use thiserror::Error;
use ulid::Ulid;
use uuid::Uuid;

/// The identity of a batch. It never changes, for any sender and any number of attempts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BatchId {
    /// The buffer.
    pub buffer_id: Uuid,
    /// The shard.
    pub shard: u32,
    /// The stream.
    pub stream: String,
    /// The consumer, which is part of the identity of the rows.
    pub consumer: String,
    /// The name of the cursor that plans the batch: the consumer's, or its repair's.
    pub cursor: String,
    /// The cursor's generation ([`millpond_manifest::Cursor::generation`]).
    pub generation: u64,
    /// The sink, e.g. `clickhouse:otel.otel_logs`.
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
    /// `millpond/2/<buffer>/<shard>/<stream>/<cursor>/<sink>/v<schema version>/g<generation>/<low>-<high>/<chunk>`, and
    /// `/<round>` in rounds after the first: stable and printable. Only the sink's name can contain a slash. The rest
    /// after it has a fixed form, so two identities never share a token.
    pub fn token(&self, chunk: u32, round: u32) -> String {
        match round {
            0 => format!("{self}/{chunk}"),
            _ => format!("{self}/{chunk}/{round}"),
        }
    }

    /// The source of the batch's rows, the first part of their identity: `<buffer>/<shard>/<stream>/<consumer>`.
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
            consumer: _,
            cursor,
            generation,
            sink,
            low,
            high,
            schema_version,
        } = self;
        write!(
            f,
            "millpond/2/{buffer_id}/{shard:04}/{stream}/{cursor}/{sink}/v{schema_version}/g{generation}/{low}-{high}"
        )
    }
}

/// Data that a sink keeps from reading the keys of a batch until it cuts the chunks. The consumer only passes it on.
#[derive(Default)]
pub struct Opened(Option<Box<dyn Any + Send>>);

impl Opened {
    /// Memory of a record beside its bytes.
    pub const ROW_BYTES: usize = 40;

    /// Keeps this.
    pub fn new<T: Any + Send>(kept: T) -> Opened {
        Opened(Some(Box::new(kept)))
    }

    /// Returns the data, or `None` if there is none of this type.
    pub fn into_inner<T: Any>(self) -> Option<T> {
        let kept = self.0?.downcast().ok()?;
        Some(*kept)
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Opened").finish_non_exhaustive()
    }
}

/// The fetched part of a committed segment that holds one stream.
#[derive(Debug, Clone)]
pub struct Part {
    /// The segment's sequence in the log.
    pub sequence: u64,
    /// The number of the part's first record: 0, except for a record that stands alone.
    pub first_record: u32,
    /// The segment's name, for errors.
    pub segment: Ulid,
    /// The offset of `data` in the segment object, for errors.
    pub offset: u64,
    /// The stream's blocks, compressed, as stored.
    pub data: Bytes,
    /// The uncompressed length in bytes.
    pub raw_len: u64,
    /// The number of records according to the manifest.
    pub records: u64,
    /// The records that repeat earlier ones. They keep their numbers and have no rows.
    pub dropped: Dropped,
}

impl Part {
    /// Decompresses and copies the messages of the part, in order. For sinks that keep messages whole.
    ///
    /// # Errors
    /// `Refused` if a block is damaged.
    pub fn messages(&self) -> Result<Vec<Record>, SinkError> {
        let damaged = |error: &dyn fmt::Display| SinkError::Refused(error.to_string());
        let mut decompressor = Decompressor::new().map_err(|error| damaged(&error))?;
        let mut found = Vec::new();
        for block in blocks(&self.data, self.offset, &Limits::default()) {
            let block = block.map_err(|error| damaged(&error))?;
            let raw = block.decode(&mut decompressor).map_err(|error| damaged(&error))?;
            for message in raw.messages() {
                let message = message.map_err(|error| damaged(&error))?;
                found.push(Record {
                    received_at_us: message.received_at_us,
                    payload: message.payload.to_vec(),
                });
            }
        }
        Ok(found)
    }
}

/// A batch for a sink: the parts of a contiguous range of sequences of one stream.
#[derive(Debug, Clone)]
pub struct Batch {
    /// The batch's identity.
    pub id: BatchId,
    /// The encoding of its messages.
    pub encoding: Encoding,
    /// The parts, in order of their sequences.
    pub parts: Vec<Part>,
}

/// A run of a batch's rows, encoded, sent as one unit with one token.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// The chunk's number in the batch, or a piece's number ([`millpond_manifest::piece`]).
    pub index: u32,
    /// The sink's number of the table for these rows. 0 for a sink with one table.
    pub table: u32,
    /// The number of rows.
    pub rows: u64,
    /// Bytes in the sink's format before compression.
    pub raw_bytes: u64,
    /// The encoded rows, in buffers to send in order.
    pub body: Vec<Bytes>,
    /// The times at which the messages of these rows were received, for the end-to-end latency.
    pub received: Vec<Received>,
}

impl Chunk {
    /// Returns the identity of a row of the chunk.
    pub fn id(&self, row: u64) -> Option<RowId> {
        let mut before = 0;
        self.received.iter().find_map(|run| {
            let id = (row < before + run.rows).then(|| run.first.after(row - before));
            before += run.rows;
            id
        })
    }

    /// Returns the identities of all rows, in order.
    pub fn ids(&self) -> impl Iterator<Item = RowId> {
        let runs = self.received.iter();
        runs.flat_map(|run| (0..run.rows).map(|row| run.first.after(row)))
    }

    /// Returns the reception times of the messages of these rows. `rows` must ascend.
    pub fn received(&self, rows: &[u64]) -> Vec<Received> {
        let mut some: Vec<Received> = Vec::new();
        let mut runs = self.received.iter();
        let (mut run, mut before) = (runs.next(), 0);
        for &row in rows {
            while let Some(passed) = run.filter(|run| row >= before + run.rows) {
                before += passed.rows;
                run = runs.next();
            }
            let Some(run) = run else { break };
            some.push(Received {
                at_us: run.at_us,
                rows: 1,
                first: run.first.after(row - before),
            });
        }
        Received::joined(some)
    }
}

/// The identity of a row within its source ([`BatchId::source`]). It follows from the log alone, however the rows are
/// sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowId {
    /// The sequence of the segment that has the record.
    pub sequence: u64,
    /// The record's number among those of the stream in that segment. An unreadable message takes one number.
    pub record: u32,
}

impl RowId {
    /// Returns the record `records` places after this one in the same segment.
    fn after(self, records: u64) -> RowId {
        let records = u32::try_from(records).expect("a segment has under 2^32 records of a stream");
        RowId {
            record: self.record + records,
            ..self
        }
    }
}

/// Neighbouring rows of a chunk that come from neighbouring records of one segment, received at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Received {
    /// Unix time in microseconds.
    pub at_us: i64,
    /// The number of rows.
    pub rows: u64,
    /// The identity of the first row. The identities of the others follow it.
    pub first: RowId,
}

impl Received {
    /// Joins runs of rows into as few runs as possible.
    pub fn joined(runs: impl IntoIterator<Item = Received>) -> Vec<Received> {
        let mut joined: Vec<Received> = Vec::new();
        for next in runs {
            match joined.last_mut() {
                Some(last) if last.at_us == next.at_us && last.first.after(last.rows) == next.first => {
                    last.rows += next.rows;
                }
                _ => joined.push(next),
            }
        }
        joined
    }
}

/// A part of a batch after the sink has cut it.
#[derive(Debug, Clone)]
pub enum Cut {
    /// Rows to write.
    Chunk(Chunk),
    /// A message that cannot be read in its encoding. It has no rows and takes one record number.
    Unreadable {
        /// The number of the message.
        id: RowId,
        /// The message.
        message: Record,
        /// The reason why it cannot be read.
        reason: String,
    },
}

/// A message of a batch, or one of its records as a separate message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The time of reception, in unix microseconds.
    pub received_at_us: i64,
    /// The payload in the batch's encoding, or the bytes of an unreadable message.
    pub payload: Vec<u8>,
}

/// The reasons why a sink did not take rows, by the consumer's next action.
#[derive(Debug, Error)]
pub enum SinkError {
    /// The sink may take the rows later: the consumer retries without limit.
    #[error("{0}")]
    Transient(String),
    /// The sink's table does not fit: nothing can be written until somebody repairs it.
    #[error("{0}")]
    Schema(String),
    /// The sink will never take all of these rows and has taken none of them in this attempt. It may take some without
    /// the others.
    #[error("{0}")]
    Refused(String),
}

/// One request that writes rows.
#[derive(Debug, Clone)]
pub struct Attempt {
    /// The deduplication token.
    pub token: String,
    /// The request's name at the sink:
    /// `millpond/<buffer>/<shard>/<consumer>/<cursor>/<stream>/<low>-<high>/<chunk>/<opening>/<random>`. It lets a
    /// consumer find and end requests by their content and consumer.
    pub query_id: String,
    /// Nothing was ever sent under this token.
    pub first: bool,
}

/// A sink's answer to the question which rows of a chunk it has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Presence {
    /// The sink cannot tell. Only its tokens prevent duplicates.
    Unknown,
    /// The sink lacks these rows of the chunk.
    Lacks {
        /// The rows' places in the chunk, ascending.
        rows: Vec<u64>,
        /// No replica has any of these rows. If this is not certain, no round may follow the first.
        certain: bool,
    },
}

/// The outcome of ending the requests of earlier openings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// No request is under way.
    Ended,
    /// The sink could not end the requests. They end by themselves within [`Sink::attempt_max`].
    Waits,
}

/// A destination of batches.
#[async_trait]
pub trait Sink: Send + Sync + 'static {
    /// The sink's name, part of every batch's identity, e.g. `clickhouse:otel.otel_logs`.
    fn name(&self) -> &str;

    /// The version of the mapping from messages to rows. It changes whenever the same batch would give other rows,
    /// another order or other chunks.
    fn schema_version(&self) -> u32;

    /// Returns true if the sink takes this stream.
    fn accepts(&self, stream: &str, encoding: Encoding) -> bool;

    /// Cuts a batch into chunks and passes each to `emit`, in order. CPU work on a blocking thread. `emit` blocks for
    /// backpressure and returns false to stop early, which is not an error. The batch and the policy alone determine
    /// the chunks' boundaries and rows, and leave out dropped records. An error means that the batch is damaged.
    fn chunks(
        &self,
        batch: &Batch,
        policy: &BatchingPolicy,
        emit: &mut dyn FnMut(Cut) -> bool,
    ) -> Result<(), SinkError>;

    /// Reads the keys of a batch's rows, for each part in order: the values at these JSON paths. The batch and the paths
    /// alone determine the result. CPU work. An error means that the batch is damaged, or that the stream has no keys.
    fn keys(&self, batch: &Batch, _paths: &[String]) -> Result<Vec<PartKeys>, SinkError> {
        Err(SinkError::Refused(format!(
            "rows of stream {} ({}) have no keys: --unique is for streams of events",
            batch.id.stream, batch.encoding
        )))
    }

    /// Like [`Sink::keys`], and keeps what [`Sink::chunks_of`] would read again. It takes at most the batch's uncompressed length
    /// and [`Opened::ROW_BYTES`] for each record.
    ///
    /// # Errors
    /// As [`Sink::keys`].
    fn open(&self, batch: &Batch, paths: &[String]) -> Result<(Vec<PartKeys>, Opened), SinkError> {
        Ok((self.keys(batch, paths)?, Opened::default()))
    }

    /// Like [`Sink::chunks`], of a batch that was opened. The result does not depend on what was kept.
    ///
    /// # Errors
    /// As [`Sink::chunks`].
    fn chunks_of(
        &self,
        batch: &Batch,
        _opened: Opened,
        policy: &BatchingPolicy,
        emit: &mut dyn FnMut(Cut) -> bool,
    ) -> Result<(), SinkError> {
        self.chunks(batch, policy, emit)
    }

    /// Cuts rows out of a chunk by their ascending places. The result keeps the chunk's number. CPU work.
    fn some(&self, chunk: &Chunk, rows: &[u64]) -> Chunk;

    /// Returns the records with these identities in the given order, each as a separate message. Runs on a CPU thread.
    fn records(&self, batch: &Batch, ids: &[RowId]) -> Result<Vec<Record>, SinkError>;

    /// Returns when the sink has chosen the destination of the next request. The lease is checked after this wait and
    /// before the request.
    async fn ready(&self) {}

    /// The tables that it writes to, as far as it can tell them from others: so that a consumer notices another one of the same
    /// tables. Empty: it cannot.
    fn tables(&self) -> Vec<SinkTable> {
        Vec::new()
    }

    /// The programs by which it makes rows of events, by stream. With another program, the same event may have another row or none. Owners
    /// enter them into their cursors, so that a repair with other programs is noticed.
    fn programs(&self) -> Programs {
        Programs::new()
    }

    /// Writes the rows of a chunk: one request, in one block, under one token. A success means that the sink knows the
    /// token. For a token's first request it also means that the rows are in the sink. ClickHouse can know a token and
    /// lack its rows. A dropped future sends nothing more of the request.
    async fn insert(&self, chunk: &Chunk, attempt: &Attempt) -> Result<(), SinkError>;

    /// Asks which rows of a chunk of this source the sink lacks.
    async fn presence(&self, _source: &str, _chunk: &Chunk) -> Result<Presence, SinkError> {
        Ok(Presence::Unknown)
    }

    /// Ends requests whose [`Attempt::query_id`] begins with `of`, where that is possible and quick.
    async fn end_requests(&self, _of: &str) {}

    /// Completes the data that the sink derives from the rows of a chunk, such as tables that views fill. All rows are
    /// in the sink, and several requests may have inserted them.
    async fn complete(&self, _source: &str, _chunk: &Chunk) -> Result<(), SinkError> {
        Ok(())
    }

    /// The longest time that the sink works on one [`insert`](Self::insert), even after its sender has ended.
    fn attempt_max(&self) -> Duration {
        Duration::ZERO
    }

    /// Ends requests whose [`Attempt::query_id`] begins with `of` and does not contain `spared`, and returns when they have ended.
    async fn settle(&self, _of: &str, _spared: Option<&str>) -> Result<Settled, SinkError> {
        Ok(Settled::Waits)
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
            cursor: "default".into(),
            generation: 4,
            sink: "clickhouse:otel.otel_logs".into(),
            low: 12,
            high: 15,
            schema_version: 1,
        }
    }

    #[test]
    fn the_token_is_documented_and_stable() {
        let token = "millpond/2/00000000-0000-0000-0000-000000000007/0003/otlp.logs/default/\
                     clickhouse:otel.otel_logs/v1/g4/12-15/2";
        assert_eq!(id().token(2, 0), token);
        assert_eq!(id().token(2, 1), format!("{token}/1"));
        assert_eq!(
            id().source(),
            "00000000-0000-0000-0000-000000000007/0003/otlp.logs/default"
        );
    }

    #[test]
    fn some_rows_of_a_chunk_keep_their_identities() {
        let run = |at_us, rows, sequence, record| Received {
            at_us,
            rows,
            first: RowId { sequence, record },
        };
        let chunk = Chunk {
            index: 0,
            table: 0,
            rows: 9,
            raw_bytes: 0,
            body: Vec::new(),
            received: vec![run(1, 3, 7, 10), run(2, 2, 7, 13), run(3, 4, 8, 0)],
        };
        assert_eq!(chunk.received(&[0, 1, 2, 3, 4, 5, 6, 7, 8]), chunk.received);
        assert_eq!(
            chunk.received(&[2, 3, 4, 5]),
            [run(1, 1, 7, 12), run(2, 2, 7, 13), run(3, 1, 8, 0)]
        );
        assert_eq!(
            chunk.received(&[0, 2, 8]),
            [run(1, 1, 7, 10), run(1, 1, 7, 12), run(3, 1, 8, 3)]
        );
        let all: Vec<_> = (0..10).map_while(|row| chunk.id(row)).collect();
        assert_eq!(all, chunk.ids().collect::<Vec<_>>());
        assert_eq!(
            (all.len(), all[8]),
            (
                9,
                RowId {
                    sequence: 8,
                    record: 3
                }
            )
        );
    }

    #[test]
    fn every_part_of_the_identity_is_in_the_token() {
        let change: [fn(&mut BatchId); 9] = [
            |id| id.buffer_id = Uuid::from_u128(8),
            |id| id.shard = 4,
            |id| id.stream = "otlp.traces".into(),
            |id| id.cursor = "other".into(),
            |id| id.generation = 5,
            |id| id.sink = "clickhouse:otel.other".into(),
            |id| id.low = 11,
            |id| id.high = 16,
            |id| id.schema_version = 2,
        ];
        for change in change {
            let mut other = id();
            change(&mut other);
            assert_ne!(other.token(2, 0), id().token(2, 0));
        }
        assert_ne!(id().token(1, 0), id().token(2, 0));
    }
}
