//! The way of one batch: fetch its parts, have the sink cut them into chunks, and write each chunk until the sink takes
//! or refuses it. This module never plans or acknowledges.

use crate::bisect::{Bisection, Refusals};
use crate::dead_letters::DeadLetterWriter;
use crate::decode::{Decode, cpu};
use crate::error::ConsumeError;
use crate::lease::Lease;
use crate::metrics::{self, Metrics, Stage, label};
use crate::repair::Tally;
use crate::rounds::{self, Attempts, Failed, LaterRounds, Sender};
use crate::sink::{Batch, Chunk, Cut, Part, Sink, SinkError};
use crate::status::{Level, Status};
use crate::streams::StreamPattern;
use crate::trace::{BatchTrace, Step};
use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use millpond_manifest::BatchingPolicy;
use millpond_manifest::cursor::Refused;
use millpond_runtime::{Backoff, Environment};
use millpond_segment::Encoding;
use millpond_storage::Store;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// Parts of one batch to fetch in parallel. A separate limit bounds the fetchers of all batches.
const PARTS_AT_A_TIME: usize = 16;

/// The state that all batches of a process share.
pub(crate) struct BatchWorker {
    pub(crate) store: Store,
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) streams: Vec<StreamPattern>,
    pub(crate) metrics: Metrics,
    pub(crate) status: Status,
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) memory: Memory,
    pub(crate) fetchers: Arc<Semaphore>,
    pub(crate) decoders: Arc<Semaphore>,
    pub(crate) writers: Arc<Semaphore>,
    pub(crate) dead_letters_max: usize,
    /// The counts of a repair.
    pub(crate) repair: Option<Tally>,
}

/// The one memory budget for all bytes held for batches.
pub(crate) struct Memory {
    free: Arc<Semaphore>,
    limit_kib: u32,
}

impl Memory {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        let limit_kib = u32::try_from(limit_bytes / 1024).unwrap_or(u32::MAX).max(1);
        Memory {
            free: Arc::new(Semaphore::new(limit_kib as usize)),
            limit_kib,
        }
    }

    /// Waits for memory, first come, first served, so that no batch starves. A request for more than the whole budget
    /// gets the whole budget and runs alone.
    async fn reserve(&self, bytes: u64) -> OwnedSemaphorePermit {
        let kib = u32::try_from(bytes.div_ceil(1024))
            .unwrap_or(u32::MAX)
            .min(self.limit_kib);
        let permit = self.free.clone().acquire_many_owned(kib).await;
        permit.expect("the semaphore is never closed")
    }

    pub(crate) fn held(&self) -> u64 {
        (u64::from(self.limit_kib) - self.free.available_permits() as u64) * 1024
    }
}

/// A part to fetch.
#[derive(Debug, Clone)]
pub(crate) struct Wanted {
    pub(crate) key: String,
    pub(crate) length: u64,
    /// The part, without its data.
    pub(crate) part: Part,
}

/// The opening and the lease under which a batch is sent.
#[derive(Clone)]
pub(crate) struct Term {
    pub(crate) lease: Arc<Lease>,
    /// Rows of the batch may be in the sink under tokens of another generation.
    pub(crate) other_tokens: bool,
    pub(crate) opening: u64,
    /// The channel on which batches announce later rounds.
    pub(crate) later_rounds: LaterRounds,
}

/// The reasons why a chunk is not in the sink.
pub(crate) enum Undone {
    /// The sink refuses the chunk for good, with this reason. `in_doubt`: an earlier attempt may still be in flight.
    Refused { reason: String, in_doubt: bool },
    /// The sink accepted every round and still lacks this many rows.
    Missing(u64),
    /// The sink cannot tell which of its rows it has.
    CannotTell,
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
}

impl Job {
    /// The maximum memory of a batch: the fetched blocks, a chunk under construction (columns and their compressed
    /// copy), and the chunks that wait for an INSERT or are in one.
    fn memory(&self) -> u64 {
        let fetched: u64 = self.wanted.iter().map(|w| w.length).sum();
        let raw: u64 = self.wanted.iter().map(|w| w.part.raw_len).sum();
        fetched + 2 * raw.saturating_mul(3).div_ceil(2).min(self.policy.chunk_bytes)
    }
}

impl BatchWorker {
    /// Returns true if the settings select this stream.
    pub(crate) fn selects(&self, stream: &str) -> bool {
        self.streams.iter().any(|pattern| pattern.matches(stream))
    }

    /// Returns true if the settings select this stream and the sink accepts it.
    pub(crate) fn takes(&self, stream: &str, encoding: Encoding) -> bool {
        self.selects(stream) && self.sink.accepts(stream, encoding)
    }

    /// Writes a batch. When it returns, the sink has all of the batch except its dead letters, which the store has.
    pub(crate) async fn work(self: Arc<Self>, mut job: Job) -> Result<(), ConsumeError> {
        let queued = self.metrics.enter(Stage::memory);
        let _memory = self.memory.reserve(job.memory()).await;
        drop(queued);
        self.metrics
            .held_bytes
            .set(i64::try_from(self.memory.held()).unwrap_or(i64::MAX));
        let wanted = std::mem::take(&mut job.wanted);
        let trace = job.trace;
        let fetches = (0..).zip(wanted).map(|(place, wanted)| {
            let step = trace.fetch(place, &wanted);
            self.fetch(wanted, step)
        });
        let mut fetched = stream::iter(fetches).buffered(PARTS_AT_A_TIME);
        while let Some(part) = fetched.next().await {
            job.batch.parts.push(part?);
        }
        drop(fetched);

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
            policy,
            decoder,
        };
        let (mut cuts, decoding) = work.begin(&*self.environment);
        let mut dead_letters =
            DeadLetterWriter::new(&self, id.clone(), batch.encoding, self.dead_letters_max);
        let bisection = Bisection::new(&self, batch, refusals, refused, trace, term);
        while let Some(cut) = cuts.recv().await {
            match cut {
                Cut::Chunk(chunk) => bisection.write(chunk, in_doubt, &mut dead_letters).await?,
                Cut::Unreadable { id, message, reason } => {
                    dead_letters.unreadable(id, message, reason).await?;
                }
            }
        }
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

    async fn fetch(&self, wanted: Wanted, step: Step) -> Result<Part, ConsumeError> {
        let Wanted {
            key,
            length,
            mut part,
        } = wanted;
        let what = format!("fetching {key}");
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        let _queued = self.metrics.enter(Stage::fetch);
        loop {
            let fetcher = self.fetchers.acquire().await.expect("never closed");
            let began = Instant::now();
            let fetched = self
                .store
                .get_range(&key, part.offset..part.offset + length)
                .await;
            self.metrics.fetch_seconds.observe(began.elapsed().as_secs_f64());
            match fetched {
                Ok(Some(data)) => {
                    self.status.goes_on(&what);
                    self.metrics.fetched_bytes.inc_by(data.len() as u64);
                    part.data = data;
                    return Ok(part);
                }
                Ok(None) => {
                    return Err(ConsumeError::Lost {
                        key,
                        sequence: part.sequence,
                    });
                }
                Err(error) => {
                    step.again(&error);
                    self.status.waits(&what, &error.to_string(), Level::Warn);
                }
            }
            drop(fetcher);
            backoff.pause(&*self.environment).await;
        }
    }

    /// Retries until the sink has the chunk or refuses it for good. `in_doubt`: the sink may have some of its rows.
    pub(crate) async fn write(
        &self,
        term: &Term,
        id: &crate::BatchId,
        chunk: &Chunk,
        mut in_doubt: bool,
        step: &Step,
    ) -> Result<(), Undone> {
        let sender = OfTerm { worker: self, term };
        let mut attempts = Attempts::default();
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
        let _queued = self.metrics.enter(Stage::write);
        loop {
            let writer = self.writers.acquire().await.expect("never closed");
            let began = Instant::now();
            let outcome = if in_doubt {
                let found = rounds::again(&sender, &self.sink, id, chunk, &mut attempts).await;
                found.map(|found| self.metrics.count_asked(found))
            } else {
                rounds::first(&sender, &*self.sink, id, chunk).await
            };
            self.metrics.write_seconds.observe(began.elapsed().as_secs_f64());
            drop(writer);
            let (reason, level) = match outcome {
                Ok(()) => break,
                Err(Failed::Sink(SinkError::Transient(reason))) => (reason, Level::Warn),
                Err(Failed::Sink(SinkError::Schema(reason))) => (reason, Level::Error),
                Err(Failed::Sink(SinkError::Refused(reason))) => {
                    self.status.goes_on("writing to the sink");
                    step.fail(&reason);
                    return Err(Undone::Refused { reason, in_doubt });
                }
                Err(Failed::Missing(rows)) => return Err(Undone::Missing(rows)),
                Err(Failed::CannotTell) => return Err(Undone::CannotTell),
            };
            // The rows may have landed before the error, whatever it says.
            in_doubt = true;
            self.metrics.write_retries.inc();
            step.again(&reason);
            self.status.waits("writing to the sink", &reason, level);
            backoff.pause(&*self.environment).await;
        }
        self.status.goes_on("writing to the sink");
        self.count(id, chunk);
        if let Some(tally) = &self.repair {
            tally.compared(chunk.rows, attempts.lacked.unwrap_or(chunk.rows));
        }
        Ok(())
    }

    fn count(&self, id: &crate::BatchId, chunk: &Chunk) {
        let stream = label(&id.stream);
        let now_us = self.environment.now_us();
        self.metrics.chunks.get_or_create(&stream).inc();
        self.metrics.records.get_or_create(&stream).inc_by(chunk.rows);
        self.metrics
            .inserted_bytes
            .inc_by(chunk.body.iter().map(|b: &Bytes| b.len() as u64).sum());
        let latency = self.metrics.latency.get_or_create(&stream);
        for received in &chunk.received {
            // Clocks may disagree, so clamp the latency at zero.
            latency.observe(
                Duration::from_micros(now_us.saturating_sub(received.at_us).max(0).unsigned_abs())
                    .as_secs_f64(),
            );
        }
    }
}

/// Sends under the lease and the opening of a term.
struct OfTerm<'a> {
    worker: &'a BatchWorker,
    term: &'a Term,
}

#[async_trait]
impl Sender for OfTerm<'_> {
    async fn may_send(&self) -> u64 {
        self.term.lease.wait().await
    }

    fn may_still_send(&self, since: u64) -> bool {
        self.term.lease.has_run_since(since)
    }

    async fn may_send_no_more(&self) {
        self.term.lease.lapsed().await;
    }

    fn opening(&self) -> u64 {
        self.term.opening
    }

    fn random(&self) -> u64 {
        self.worker.environment.random()
    }

    fn sent_under_other_tokens(&self) -> bool {
        self.term.other_tokens
    }

    fn trusts_tokens(&self) -> bool {
        self.worker.repair.is_none()
    }

    async fn announce_later_round(&self) {
        self.term.later_rounds.announce().await;
    }

    async fn some(&self, sink: Arc<dyn Sink>, chunk: Chunk, rows: Vec<u64>) -> Chunk {
        cpu(&*self.worker.environment, move || sink.some(&chunk, &rows)).await
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
