//! The chunks and dead letters of one batch in flight: writes several at a time, and takes apart the chunks that the sink
//! refuses. This module neither cuts chunks nor retries them.

use crate::bisect::Bisection;
use crate::error::ConsumeError;
use crate::sink::Cut;
use crate::write::{ChunkWriter, RefusedChunk};
use futures::StreamExt;
use futures::future::{BoxFuture, FutureExt};
use futures::stream::FuturesUnordered;
use tokio::sync::mpsc;

/// Dead letters in flight at a time. A sender of events decides how many there are, and its stream must not wait for each.
const LETTERS_MAX: usize = 32;

/// The bytes of their messages, but for the last one.
const LETTER_BYTES_MAX: usize = 1 << 20;

/// Writes the chunks of one batch.
///
/// Every chunk has its own token, its own rows and its own requests, so the sink may get them in any order. Nothing else
/// of the batch is awaited while a chunk is in flight, because only a chunk that is polled notices that the lease has
/// run out.
pub(crate) struct ChunksInFlight<'w> {
    writer: &'w ChunkWriter<'w>,
    bisection: Bisection<'w>,
    writing: FuturesUnordered<BoxFuture<'w, Result<Option<RefusedChunk>, ConsumeError>>>,
    /// Dead letters on their way, each with the bytes of its message.
    burying: FuturesUnordered<BoxFuture<'w, usize>>,
    burying_bytes: usize,
    /// Refused chunks, to take apart when no other chunk is in flight.
    refused: Vec<RefusedChunk>,
    at_a_time: usize,
    in_doubt: bool,
}

impl<'w> ChunksInFlight<'w> {
    /// `in_doubt`: the sink may have some of the batch's rows.
    pub(crate) fn new(
        writer: &'w ChunkWriter<'w>,
        bisection: Bisection<'w>,
        at_a_time: usize,
        in_doubt: bool,
    ) -> Self {
        ChunksInFlight {
            writer,
            bisection,
            writing: FuturesUnordered::new(),
            burying: FuturesUnordered::new(),
            burying_bytes: 0,
            refused: Vec::new(),
            at_a_time: at_a_time.max(1),
            in_doubt,
        }
    }

    /// Writes everything that comes. When it returns, the sink has all of it except the dead letters, which the store
    /// has.
    pub(crate) async fn write_all(mut self, mut cuts: mpsc::Receiver<Cut>) -> Result<(), ConsumeError> {
        while let Some(cut) = self.next(&mut cuts).await? {
            match cut {
                Cut::Chunk(chunk) => {
                    let written = self.writer.write(chunk, self.in_doubt);
                    self.writing.push(written.boxed());
                }
                Cut::Unreadable { id, message, reason } => {
                    let bytes = message.payload.len();
                    let written = self.bisection.dead_letters.unreadable(id, message, reason)?;
                    self.burying_bytes += bytes;
                    self.burying.push(written.map(move |()| bytes).boxed());
                }
            }
        }
        self.finish().await
    }

    /// The next chunk or message, once there is room for it. `None` after the last one.
    async fn next(&mut self, cuts: &mut mpsc::Receiver<Cut>) -> Result<Option<Cut>, ConsumeError> {
        loop {
            if !self.refused.is_empty() {
                self.finish().await?;
            }
            let room = self.writing.len() < self.at_a_time
                && self.burying.len() < LETTERS_MAX
                && self.burying_bytes < LETTER_BYTES_MAX;
            tokio::select! {
                biased;
                Some(written) = self.writing.next() => self.refused.extend(written?),
                Some(bytes) = self.burying.next() => self.burying_bytes -= bytes,
                cut = cuts.recv(), if room => return Ok(cut),
            }
        }
    }

    /// Waits for all that is in flight, then takes apart the chunks that the sink refused, one after another.
    async fn finish(&mut self) -> Result<(), ConsumeError> {
        loop {
            tokio::select! {
                biased;
                Some(written) = self.writing.next() => self.refused.extend(written?),
                Some(bytes) = self.burying.next() => self.burying_bytes -= bytes,
                else => break,
            }
        }
        // The chunks may end in any order, the dead letters follow the log's.
        self.refused.sort_by_key(|refused| refused.chunk.index);
        for refused in std::mem::take(&mut self.refused) {
            self.bisection.take_apart(refused).await?;
        }
        Ok(())
    }
}
