//! Writes the chunks of one batch: retries each until the sink takes it or refuses it for good. It never takes a refused
//! chunk apart.

use crate::error::ConsumeError;
use crate::lease::Lease;
use crate::metrics::{Stage, label};
use crate::rounds::{self, Attempts, Failed, LaterRounds, Sender};
use crate::sink::{Batch, BatchId, Chunk, Sink, SinkError};
use crate::trace::{BatchTrace, Step};
use crate::worker::BatchWorker;
use async_trait::async_trait;
use bytes::Bytes;
use millpond_manifest::cursor::Refused;
use millpond_runtime::{Backoff, Level, blocking};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The wait of chunks that the sink did not take, in [`millpond_runtime::Readiness`].
pub(crate) const WRITING: &str = "writing to the sink";

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

/// Writes the chunks of one batch under a term.
pub(crate) struct ChunkWriter<'w> {
    pub(crate) worker: &'w BatchWorker,
    pub(crate) batch: Arc<Batch>,
    /// The refusals that the cursor already records: a predecessor's work.
    pub(crate) known: Option<Refused>,
    pub(crate) trace: BatchTrace,
    pub(crate) term: Term,
}

/// A chunk or a piece that the sink refused.
pub(crate) struct RefusedChunk {
    pub(crate) chunk: Chunk,
    pub(crate) reason: String,
    /// An earlier attempt at this piece may still be in flight.
    pub(crate) in_doubt: bool,
}

/// The reasons why a chunk is not in the sink.
enum Undone {
    /// The sink refuses the chunk for good, with this reason. `in_doubt`: an earlier attempt may still be in flight.
    Refused { reason: String, in_doubt: bool },
    /// The sink accepted every round and still lacks this many rows.
    Missing(u64),
    /// The sink cannot tell which of its rows it has.
    CannotTell,
}

impl ChunkWriter<'_> {
    /// Inserts a chunk or a piece. Returns it if the sink refuses it, in this term or in a predecessor's. `in_doubt`: the
    /// sink may have some of its rows.
    pub(crate) async fn write(
        &self,
        chunk: Chunk,
        in_doubt: bool,
    ) -> Result<Option<RefusedChunk>, ConsumeError> {
        let known = self.known.as_ref().filter(|known| known.covers(chunk.index));
        if let Some(known) = known {
            let reason = known.reason.clone();
            return Ok(Some(RefusedChunk {
                chunk,
                reason,
                in_doubt: true,
            }));
        }
        let step = self.trace.insert(self.id(), &chunk);
        match self.insert(&chunk, in_doubt, &step).await {
            Ok(()) => Ok(None),
            Err(Undone::Refused { reason, in_doubt }) => Ok(Some(RefusedChunk {
                chunk,
                reason,
                in_doubt,
            })),
            Err(Undone::Missing(rows)) => Err(ConsumeError::Missing {
                batch: self.id().to_string(),
                chunk: chunk.index,
                rows,
            }),
            Err(Undone::CannotTell) => Err(ConsumeError::CannotCompare {
                sink: self.id().sink.clone(),
                stream: self.id().stream.clone(),
            }),
        }
    }

    pub(crate) fn id(&self) -> &BatchId {
        &self.batch.id
    }

    /// Retries until the sink has the chunk or refuses it for good. `in_doubt`: the sink may have some of its rows.
    async fn insert(&self, chunk: &Chunk, mut in_doubt: bool, step: &Step) -> Result<(), Undone> {
        let (worker, id) = (self.worker, self.id());
        let mut attempts = Attempts::default();
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(10));
        let _queued = worker.metrics.enter(Stage::write);
        loop {
            let writer = worker.writers.acquire().await.expect("never closed");
            let began = Instant::now();
            let outcome = if in_doubt {
                let found = rounds::again(self, &worker.sink, id, chunk, &mut attempts).await;
                found.map(|found| worker.metrics.count_asked(found))
            } else {
                rounds::first(self, &*worker.sink, id, chunk).await
            };
            worker
                .metrics
                .write_seconds
                .observe(began.elapsed().as_secs_f64());
            drop(writer);
            let (reason, level) = match outcome {
                Ok(()) => break,
                Err(Failed::Sink(SinkError::Transient(reason))) => (reason, Level::Warn),
                Err(Failed::Sink(SinkError::Schema(reason))) => (reason, Level::Error),
                Err(Failed::Sink(SinkError::Refused(reason))) => {
                    worker.readiness.goes_on(WRITING);
                    step.fail(&reason);
                    return Err(Undone::Refused { reason, in_doubt });
                }
                Err(Failed::Missing(rows)) => return Err(Undone::Missing(rows)),
                Err(Failed::CannotTell) => return Err(Undone::CannotTell),
            };
            // The rows may have landed before the error, whatever it says.
            in_doubt = true;
            worker.metrics.write_retries.inc();
            step.again(&reason);
            worker.readiness.waits(WRITING, &reason, level);
            backoff.pause(&*worker.environment).await;
        }
        worker.readiness.goes_on(WRITING);
        self.count(chunk);
        if let Some(tally) = &worker.repair {
            tally.compared(chunk.rows, attempts.lacked.unwrap_or(chunk.rows));
        }
        Ok(())
    }

    fn count(&self, chunk: &Chunk) {
        let BatchWorker {
            environment,
            metrics,
            written,
            ..
        } = self.worker;
        let stream = label(&self.id().stream);
        let now_us = environment.now_us();
        written.add(chunk);
        metrics.chunks.get_or_create(&stream).inc();
        metrics.records.get_or_create(&stream).inc_by(chunk.rows);
        metrics
            .inserted_bytes
            .inc_by(chunk.body.iter().map(|b: &Bytes| b.len() as u64).sum());
        let latency = metrics.latency.get_or_create(&stream);
        for received in &chunk.received {
            // Clocks may disagree, so clamp the latency at zero.
            latency.observe(
                Duration::from_micros(now_us.saturating_sub(received.at_us).max(0).unsigned_abs())
                    .as_secs_f64(),
            );
        }
    }
}

/// Sends under the lease and the opening of the term.
#[async_trait]
impl Sender for ChunkWriter<'_> {
    async fn may_send(&self) -> u64 {
        self.term.lease.wait().await
    }

    fn may_still_send(&self, since: u64) -> bool {
        self.term.lease.has_run_since(since)
    }

    async fn must_stop_sending(&self) {
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
        blocking::compute(&*self.worker.environment, move || sink.some(&chunk, &rows)).await
    }
}
