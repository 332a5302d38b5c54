//! A chunk that the sink refused, taken apart: halved, and each half that is refused too, until single rows are left.
//! Those become dead letters; everything else goes in. Nobody sends the halves of a piece before the cursor says that it was
//! refused: otherwise a successor could send it whole, to a table that has been mended meanwhile and has its halves.

use crate::dead_letters::DeadLetterWriter;
use crate::decode::cpu;
use crate::error::ConsumeError;
use crate::rounds;
use crate::sink::{Batch, BatchId, Chunk, RowId};
use crate::trace::BatchTrace;
use crate::work::{BatchWorker, Term, Undone};
use millpond_manifest::cursor::{Plan, Refused};
use millpond_manifest::piece;
use millpond_manifest::planted::{self, Bug};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

/// A reason is kept in the cursor only until the dead letter is written.
const REASON_MAX: usize = 500;

/// Pieces of a batch that the sink refused, for the owner of the cursor to write down.
pub(crate) struct Refusal {
    pub(crate) stream: String,
    pub(crate) batch: Plan,
    pub(crate) pieces: Vec<u32>,
    pub(crate) reason: String,
    /// Told when it is durable.
    pub(crate) durable: oneshot::Sender<()>,
}

/// How the refusals of a batch are made durable.
pub(crate) type Refusals = mpsc::UnboundedSender<Refusal>;

/// What takes the chunks of one batch apart.
pub(crate) struct Bisection<'w> {
    worker: &'w BatchWorker,
    batch: Arc<Batch>,
    refusals: Refusals,
    /// What the cursor knows of the batch: a predecessor's work.
    known: Option<Refused>,
    trace: BatchTrace,
    term: Term,
}

/// A chunk or a piece that was refused.
struct Piece {
    chunk: Chunk,
    reason: String,
    /// An earlier attempt at it may still be under way.
    in_doubt: bool,
}

impl<'w> Bisection<'w> {
    pub(crate) fn new(
        worker: &'w BatchWorker,
        batch: Arc<Batch>,
        refusals: Refusals,
        known: Option<Refused>,
        trace: BatchTrace,
        term: Term,
    ) -> Self {
        Bisection {
            worker,
            batch,
            refusals,
            known,
            trace,
            term,
        }
    }

    /// Gets a chunk into the sink, but for rows that it refuses. `in_doubt`: some of it may be there.
    pub(crate) async fn write(
        &self,
        chunk: Chunk,
        in_doubt: bool,
        dead_letters: &mut DeadLetterWriter<'_>,
    ) -> Result<(), ConsumeError> {
        match self.try_piece(chunk, in_doubt).await? {
            None => Ok(()),
            Some(piece) => self.take_apart(piece, dead_letters).await,
        }
    }

    /// The piece, if the sink refuses it, now or before a predecessor ended.
    async fn try_piece(&self, chunk: Chunk, in_doubt: bool) -> Result<Option<Piece>, ConsumeError> {
        let known = self.known.as_ref().filter(|known| known.covers(chunk.index));
        let known = known.filter(|_| !planted::is(Bug::RefusedSentAgain));
        if let Some(known) = known {
            let reason = known.reason.clone();
            return Ok(Some(Piece {
                chunk,
                reason,
                in_doubt: true,
            }));
        }
        let step = self.trace.insert(self.id(), &chunk);
        let written = self.worker.write(&self.term, self.id(), &chunk, in_doubt, &step);
        match written.await {
            Ok(()) => Ok(None),
            Err(Undone::Refused { reason, in_doubt }) => Ok(Some(Piece {
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

    /// Level by level, so that however many rows are refused, the cursor is written once a level.
    async fn take_apart(
        &self,
        whole: Piece,
        dead_letters: &mut DeadLetterWriter<'_>,
    ) -> Result<(), ConsumeError> {
        let Piece {
            chunk,
            reason,
            in_doubt,
        } = &whole;
        let (number, rows) = (chunk.index, chunk.rows);
        if !piece::can_be_halved(number, rows) {
            return Err(ConsumeError::Refused {
                batch: self.id().to_string(),
                reason: format!("chunk {number} with {rows} rows, too many to be taken apart: {reason}"),
            });
        }
        dead_letters.check(1, reason)?;
        warn!(batch = %self.id(), chunk = number, rows, "the sink refuses a chunk, which is taken apart: {reason}");
        if *in_doubt {
            // It would bring rows whole beside its halves, if somebody repaired the table meanwhile.
            let requests = rounds::requests_of_batch(self.id());
            self.worker.sink.end_requests(&requests).await;
        }
        let mut level = vec![whole];
        let mut rows_refused = Vec::new();
        while !level.is_empty() {
            dead_letters.check(rows_refused.len() + level.len(), &level[0].reason)?;
            if !planted::is(Bug::HalvesBeforeRefusal) {
                self.write_down(&level).await;
            }
            let mut next = Vec::new();
            for refused in level {
                if refused.chunk.rows == 1 {
                    rows_refused.push(refused);
                    continue;
                }
                for half in self.halves(&refused.chunk).await {
                    // Part of what it was cut from may have landed before that was refused.
                    next.extend(self.try_piece(half, true).await?);
                }
            }
            level = next;
        }
        let dead = rows_refused.len();
        if !planted::is(Bug::LetterForgotten) {
            self.bury(rows_refused, dead_letters).await?;
        }
        info!(batch = %self.id(), chunk = number, rows, dead, "the chunk is in the sink, but for its dead letters");
        Ok(())
    }

    async fn halves(&self, chunk: &Chunk) -> Vec<Chunk> {
        let middle = chunk.rows.div_ceil(2);
        let [first, second] = piece::halves(chunk.index);
        let (sink, whole) = (self.worker.sink.clone(), chunk.clone());
        let cut = move || {
            let half = |rows: std::ops::Range<u64>, index| Chunk {
                index,
                ..sink.some(&whole, &rows.collect::<Vec<_>>())
            };
            vec![half(0..middle, first), half(middle..whole.rows, second)]
        };
        cpu(&*self.worker.environment, cut).await
    }

    /// Returns when the cursor has it.
    async fn write_down(&self, level: &[Piece]) {
        let known = |number| self.known.as_ref().is_some_and(|known| known.covers(number));
        let numbers = level.iter().map(|piece| piece.chunk.index);
        let pieces: Vec<u32> = numbers.filter(|number| !known(*number)).collect();
        let Some(last) = level.last().filter(|_| !pieces.is_empty()) else {
            return;
        };
        let BatchId {
            stream, low, high, ..
        } = self.id();
        let (durable, done) = oneshot::channel();
        let refusal = Refusal {
            stream: stream.clone(),
            batch: Plan {
                low: *low,
                high: *high,
            },
            pieces,
            reason: last.reason.chars().take(REASON_MAX).collect(),
            durable,
        };
        let sent = self.refusals.send(refusal).is_ok();
        if !sent || done.await.is_err() {
            // The term has ended, and this task is about to.
            std::future::pending::<()>().await;
        }
    }

    /// Writes the dead letters of rows that the cursor says are refused.
    async fn bury(
        &self,
        rows: Vec<Piece>,
        dead_letters: &mut DeadLetterWriter<'_>,
    ) -> Result<(), ConsumeError> {
        let wanted: Vec<RowId> = rows.iter().filter_map(|row| row.chunk.id(0)).collect();
        let ids = wanted.clone();
        let (sink, batch) = (self.worker.sink.clone(), self.batch.clone());
        let found = cpu(&*self.worker.environment, move || sink.records(&batch, &wanted)).await;
        let records = found.map_err(|error| ConsumeError::Refused {
            batch: self.id().to_string(),
            reason: error.to_string(),
        })?;
        for ((row, id), record) in rows.into_iter().zip(ids).zip(records) {
            dead_letters.refused(id, record, row.reason).await?;
        }
        Ok(())
    }

    fn id(&self) -> &BatchId {
        &self.batch.id
    }
}
