//! The sink's refusals of a batch, as the cursor records them.

use crate::piece;
use crate::plan::Plan;
use std::collections::BTreeSet;

/// Maximum refused pieces of one batch in a cursor.
pub const PIECES_MAX: usize = 1_000;

/// The sink's refusals of a batch. Until the batch is acknowledged, nobody sends any refused part in the same form
/// again: its halves may already be in the sink.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Refused {
    /// The stream.
    pub stream: String,
    /// The batch.
    pub batch: Plan,
    /// Numbers ([`crate::piece`]) of the smallest refused pieces. Their ancestors were refused too, and are not listed.
    pub pieces: BTreeSet<u32>,
    /// The sink's error for the latest of them, shortened.
    pub reason: String,
}

impl Refused {
    /// Returns true if this chunk or piece was refused.
    pub fn covers(&self, number: u32) -> bool {
        self.pieces
            .iter()
            .any(|&piece| piece::lineage(piece).any(|of| of == number))
    }

    pub(super) fn add(&mut self, number: u32) {
        if !self.covers(number) {
            for of in piece::lineage(number) {
                self.pieces.remove(&of);
            }
            self.pieces.insert(number);
        }
    }

    /// Names the first rule of the format that this refusal breaks.
    pub(super) fn check(&self, next: u64) -> Result<(), String> {
        let Refused { stream, batch, .. } = self;
        let Plan { low, high } = *batch;
        if low < next || high < low {
            return Err(format!(
                "stream {stream}: the refused batch {low}..={high} does not follow {next}"
            ));
        }
        let pieces = &self.pieces;
        if pieces.is_empty() || pieces.len() > PIECES_MAX {
            return Err(format!("stream {stream}: {} refused pieces", pieces.len()));
        }
        for &number in pieces {
            let known = number < piece::CHUNKS_MAX || piece::is_piece(number);
            let implied = piece::lineage(number).skip(1).any(|of| pieces.contains(&of));
            if !known || implied {
                return Err(format!("stream {stream}: no piece can have the number {number}"));
            }
        }
        Ok(())
    }
}
