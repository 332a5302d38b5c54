//! Bisects a chunk that the sink refused: sends each half, and halves again each half that the sink refuses, down to
//! single rows. These rows become dead letters; the sink takes all others. The consumer sends the halves of a piece
//! only after the cursor records that the sink refused it. Otherwise a successor could send the whole piece to a table
//! that was repaired meanwhile and already has its halves.

use crate::dead_letters::DeadLetterWriter;
use crate::error::ConsumeError;
use crate::rounds;
use crate::sink::{BatchId, Chunk, RowId};
use crate::write::{ChunkWriter, RefusedChunk};
use millpond_manifest::cursor::Plan;
use millpond_manifest::piece;
use millpond_runtime::blocking;
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

/// The cursor keeps a reason only until the dead letter is written.
const REASON_MAX: usize = 500;

/// Refused pieces of a batch, for the owner of the cursor to record.
pub(crate) struct Refusal {
    pub(crate) stream: String,
    pub(crate) batch: Plan,
    pub(crate) pieces: Vec<u32>,
    pub(crate) reason: String,
    /// Signalled when the cursor has the refusal.
    pub(crate) durable: oneshot::Sender<()>,
}

/// The channel that takes a batch's refusals to the owner of the cursor.
pub(crate) type Refusals = mpsc::Sender<Refusal>;

/// Bisects the refused chunks of one batch.
pub(crate) struct Bisection<'w> {
    pub(crate) writer: &'w ChunkWriter<'w>,
    pub(crate) refusals: Refusals,
    pub(crate) dead_letters: DeadLetterWriter<'w>,
}

impl Bisection<'_> {
    /// Works level by level, so the cursor is written once per level however many rows the sink refuses.
    pub(crate) async fn take_apart(&mut self, whole: RefusedChunk) -> Result<(), ConsumeError> {
        let RefusedChunk {
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
        self.dead_letters.check(1, reason)?;
        warn!(batch = %self.id(), chunk = number, rows, "the sink refuses a chunk, which is taken apart: {reason}");
        if *in_doubt {
            // A late request would insert whole the rows that the halves insert too, if an operator repaired the table
            // meanwhile.
            let requests = rounds::requests_of_chunk(self.id(), number);
            self.writer.worker.sink.end_requests(&requests).await;
        }
        let mut level = vec![whole];
        let mut rows_refused = Vec::new();
        while !level.is_empty() {
            self.dead_letters
                .check(rows_refused.len() + level.len(), &level[0].reason)?;
            self.write_down(&level).await;
            let mut next = Vec::new();
            for refused in level {
                if refused.chunk.rows == 1 {
                    rows_refused.push(refused);
                    continue;
                }
                for half in self.halves(&refused.chunk).await {
                    // Part of the parent piece may have landed before the sink refused it.
                    next.extend(self.writer.write(half, true).await?);
                }
            }
            level = next;
        }
        let dead = rows_refused.len();
        self.bury(rows_refused).await?;
        info!(batch = %self.id(), chunk = number, rows, dead, "the chunk is in the sink, but for its dead letters");
        Ok(())
    }

    async fn halves(&self, chunk: &Chunk) -> Vec<Chunk> {
        let middle = chunk.rows.div_ceil(2);
        let [first, second] = piece::halves(chunk.index);
        let (sink, whole) = (self.writer.worker.sink.clone(), chunk.clone());
        let cut = move || {
            let half = |rows: std::ops::Range<u64>, index| Chunk {
                index,
                ..sink.some(&whole, &rows.collect::<Vec<_>>())
            };
            vec![half(0..middle, first), half(middle..whole.rows, second)]
        };
        blocking::compute(&*self.writer.worker.environment, cut).await
    }

    /// Returns when the cursor records these refusals.
    async fn write_down(&self, level: &[RefusedChunk]) {
        let known = |number| {
            self.writer
                .known
                .as_ref()
                .is_some_and(|known| known.covers(number))
        };
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
        let sent = self.refusals.send(refusal).await.is_ok();
        if !sent || done.await.is_err() {
            // The term has ended, and this task is about to end.
            std::future::pending::<()>().await;
        }
    }

    /// Writes the dead letters of rows that the cursor records as refused.
    async fn bury(&mut self, rows: Vec<RefusedChunk>) -> Result<(), ConsumeError> {
        let wanted: Vec<RowId> = rows.iter().filter_map(|row| row.chunk.id(0)).collect();
        let ids = wanted.clone();
        let (sink, batch) = (self.writer.worker.sink.clone(), self.writer.batch.clone());
        let found = blocking::compute(&*self.writer.worker.environment, move || {
            sink.records(&batch, &wanted)
        })
        .await;
        let records = found.map_err(|error| ConsumeError::Refused {
            batch: self.id().to_string(),
            reason: error.to_string(),
        })?;
        for ((row, id), record) in rows.into_iter().zip(ids).zip(records) {
            self.dead_letters.refused(id, record, row.reason).await;
        }
        Ok(())
    }

    fn id(&self) -> &BatchId {
        self.writer.id()
    }
}
