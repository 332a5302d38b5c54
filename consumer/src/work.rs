//! The way of one batch: fetch its parts, have the sink cut them into chunks, write each chunk, and take apart those that
//! the sink refuses. This module never plans or acknowledges.

use crate::bisect::{Bisection, Refusals};
use crate::dead_letters::DeadLetterWriter;
use crate::decode::Decode;
use crate::error::ConsumeError;
use crate::in_flight::ChunksInFlight;
use crate::metrics::{self, Stage, label};
use crate::reading::{BEHIND_WAIT, NOT_YET, is_behind};
use crate::sink::{Batch, Opened, Part};
use crate::trace::{BatchTrace, Step};
use crate::unique::{Dropped, ROW_BYTES, Turn};
use crate::worker::BatchWorker;
use crate::write::{ChunkWriter, Term};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use millpond_manifest::cursor::Refused;
use millpond_manifest::{BatchingPolicy, Entry, layout};
use millpond_runtime::{Backoff, Level, Readiness};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Parts of one batch to fetch in parallel. A separate limit bounds the fetchers of all batches.
const PARTS_AT_A_TIME: usize = 16;

/// A part to fetch.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) key: String,
    pub(crate) length: u64,
    /// The part, without its data.
    pub(crate) part: Part,
}

impl Wanted {
    /// The part of a segment in the log, with nothing dropped.
    pub(crate) fn of(shard: u32, sequence: u64, entry: &Entry, part: &millpond_manifest::Part) -> Wanted {
        Wanted {
            key: layout::segment(shard, entry.segment),
            length: part.length,
            part: Part {
                sequence,
                first_record: 0,
                segment: entry.segment,
                offset: part.offset,
                data: Bytes::new(),
                raw_len: part.raw_len,
                records: part.records,
                dropped: Dropped::default(),
            },
        }
    }
}

/// A batch to write.
pub(crate) struct Job {
    /// The batch, with its parts still empty.
    pub(crate) batch: Batch,
    pub(crate) wanted: Vec<Wanted>,
    pub(crate) policy: BatchingPolicy,
    /// A predecessor may have sent it.
    pub(crate) in_doubt: bool,
    /// The pieces that the cursor records as refused.
    pub(crate) refused: Option<Refused>,
    /// The channel to the owner of the cursor, which records refusals.
    pub(crate) refusals: Refusals,
    pub(crate) trace: BatchTrace,
    pub(crate) term: Term,
    /// The batch's turn in the deduplication of its stream.
    pub(crate) unique: Option<Turn>,
    /// The sink keeps the rows that it reads for their keys.
    pub(crate) keeps_rows: bool,
}

impl Job {
    /// The maximum memory of a batch: the fetched blocks, a chunk under construction (columns and their compressed
    /// copy), and the chunks that wait for an INSERT or are in one.
    fn memory(&self, chunks_at_a_time: usize) -> u64 {
        let written = self
            .all()
            .div_ceil(self.chunk())
            .clamp(1, chunks_at_a_time as u64);
        self.chunk()
            .saturating_mul(1 + written)
            .saturating_add(self.fetched())
            .saturating_add(self.opened())
    }

    /// The memory of all rows that are read for their keys: the keys, and what the sink keeps.
    fn opened(&self) -> u64 {
        if self.unique.is_none() {
            return 0;
        }
        let records: u64 = self.wanted.iter().map(|wanted| wanted.part.records).sum();
        let keys = records.saturating_mul(ROW_BYTES);
        match self.keeps_rows {
            true => keys
                .saturating_add(self.raw())
                .saturating_add(records.saturating_mul(Opened::ROW_BYTES as u64)),
            false => keys,
        }
    }

    /// The sink reads the rows of a batch again after the decisions if they do not fit into this memory.
    fn limit_rows(&mut self, memory: usize) {
        self.keeps_rows = true;
        self.keeps_rows = self.opened().saturating_add(self.fetched()) <= memory as u64;
    }

    fn raw(&self) -> u64 {
        self.wanted.iter().map(|wanted| wanted.part.raw_len).sum()
    }

    /// The chunks to write at a time: one for each writer, if all of them fit into this memory.
    fn chunks_at_a_time(&self, writers: usize, memory: usize) -> usize {
        let left = (memory as u64).saturating_sub(self.fetched().saturating_add(self.opened()));
        let fit = (left / self.chunk()).saturating_sub(1);
        writers.min(usize::try_from(fit).unwrap_or(usize::MAX)).max(1)
    }

    fn fetched(&self) -> u64 {
        self.wanted.iter().map(|wanted| wanted.length).sum()
    }

    /// The maximum memory of all chunks together.
    fn all(&self) -> u64 {
        self.raw().saturating_mul(3).div_ceil(2)
    }

    /// The maximum memory of one chunk.
    fn chunk(&self) -> u64 {
        self.all().min(self.policy.chunk_bytes).max(1)
    }
}

impl BatchWorker {
    /// Writes a batch. When it returns, the sink has all of the batch except its dead letters, which the store has.
    pub(crate) async fn work(self: Arc<Self>, mut job: Job) -> Result<(), ConsumeError> {
        job.limit_rows(self.memory.limit());
        let chunks_at_a_time = job.chunks_at_a_time(self.writers_max, self.memory.limit());
        let queued = self.metrics.enter(Stage::memory);
        if let Some(turn) = &mut job.unique {
            turn.before_memory().await?;
        }
        let _memory = self.memory.reserve_at_most(job.memory(chunks_at_a_time)).await;
        drop(queued);
        if let Some(turn) = &mut job.unique {
            turn.has_memory();
        }
        self.metrics
            .held_bytes
            .set(i64::try_from(self.memory.held()).unwrap_or(i64::MAX));
        let wanted = std::mem::take(&mut job.wanted);
        let trace = job.trace;
        let shard = job.batch.id.shard;
        let fetches = (0..).zip(wanted).map(|(place, wanted)| {
            let step = trace.fetch(place, &wanted.key, wanted.length);
            self.fetch(shard, wanted, Some(step), &self.readiness)
        });
        let mut fetched = stream::iter(fetches).buffered(PARTS_AT_A_TIME);
        while let Some(part) = fetched.next().await {
            job.batch.parts.push(part?);
        }
        drop(fetched);
        let opened = match job.unique.take() {
            Some(turn) => turn.decide(&mut job.batch, job.keeps_rows).await?,
            None => Opened::default(),
        };

        let Job {
            batch,
            policy,
            in_doubt,
            refused,
            refusals,
            term,
            ..
        } = job;
        let (id, batch) = (batch.id.clone(), Arc::new(batch));
        let decoding = self.metrics.enter(Stage::decode);
        let decoder = self.decoders.clone().acquire_owned().await.expect("never closed");
        let work = Decode {
            seconds: self.metrics.decode_seconds.clone(),
            step: trace.decode(),
            queued: decoding,
            sink: self.sink.clone(),
            batch: batch.clone(),
            opened,
            policy,
            decoder,
        };
        let (cuts, decoding) = work.begin(&*self.environment);
        let writer = ChunkWriter {
            worker: &self,
            batch: batch.clone(),
            known: refused,
            trace,
            term,
        };
        let bisection = Bisection {
            writer: &writer,
            refusals,
            dead_letters: DeadLetterWriter::new(&self, id.clone(), batch.encoding, self.dead_letters_max),
        };
        ChunksInFlight::new(&writer, bisection, chunks_at_a_time, in_doubt)
            .write_all(cuts)
            .await?;
        match decoding.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(ConsumeError::Refused {
                batch: id.to_string(),
                reason: error.to_string(),
            }),
            Err(panic) => Err(ConsumeError::Refused {
                batch: id.to_string(),
                reason: panic.to_string(),
            }),
        }?;
        self.metrics.batches.get_or_create(&label(&id.stream)).inc();
        Ok(())
    }

    /// Fetches a part, and retries until the store answers.
    pub(crate) async fn fetch(
        &self,
        shard: u32,
        wanted: Wanted,
        step: Option<Step>,
        readiness: &Readiness,
    ) -> Result<Part, ConsumeError> {
        let Wanted {
            key,
            length,
            mut part,
        } = wanted;
        let what = format!("fetching {key}");
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        let _queued = self.metrics.enter(Stage::fetch);
        let queued_at = Instant::now();
        loop {
            let fetcher = self.fetchers.acquire().await.expect("never closed");
            let began = Instant::now();
            let range = part.offset..part.offset + length;
            let fetched = self
                .hedge
                .first_answer(length, || self.store.get_range(&key, range.clone()))
                .await;
            self.metrics.fetch_seconds.observe(began.elapsed().as_secs_f64());
            match fetched {
                Ok(Some(data)) => {
                    readiness.goes_on(&what);
                    self.metrics.fetched_bytes.inc_by(data.len() as u64);
                    part.data = data;
                    return Ok(part);
                }
                Ok(None) => {
                    let sequence = part.sequence;
                    let is_behind =
                        queued_at.elapsed() < BEHIND_WAIT && is_behind(&self.store, shard, sequence).await;
                    if !is_behind {
                        return Err(ConsumeError::Lost { key, sequence });
                    }
                    readiness.waits(&what, NOT_YET, Level::Warn);
                }
                Err(error) => {
                    if let Some(step) = &step {
                        step.again(&error);
                    }
                    readiness.waits(&what, error, Level::Warn);
                }
            }
            drop(fetcher);
            backoff.pause(&*self.environment).await;
        }
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let plan = millpond_manifest::cursor::Plan {
            low: self.batch.id.low,
            high: self.batch.id.high,
        };
        write!(f, "{} {}", self.batch.id.stream, metrics::range(plan))
    }
}
