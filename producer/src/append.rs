//! What a caller gives, and what it gets.

use std::sync::Arc;

use bytes::Bytes;
use millpond_segment::{BlockBuilder, Encoding};

use crate::{OverBudget, Reservation};

/// One message to be appended to a stream.
#[derive(Debug)]
pub struct Append {
    /// The stream, for example `otlp.logs`.
    pub stream: Arc<str>,
    /// How the payload is to be read. A stream has one encoding for ever.
    pub encoding: Encoding,
    /// The message.
    pub payload: Bytes,
    /// Records in it, as counted by the caller.
    pub records: u64,
    /// When it was received, unix microseconds.
    pub received_at_us: i64,
    /// Pays for the payload: [`Append::cost`] bytes. What is missing is reserved by
    /// [`Producer::append`](crate::Producer::append), what is too much is given back.
    pub reservation: Reservation,
}

/// Bytes for a waiting caller and its place in a list, beside the payload.
pub(crate) const WAITER_BYTES: usize = 192;

impl Append {
    /// Bytes of budget that a payload takes until it is compressed.
    pub const fn cost(payload_len: usize) -> usize {
        BlockBuilder::message_len_max(payload_len) + WAITER_BYTES
    }
}

/// A message is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The shard.
    pub shard: u32,
    /// The sequence of the segment that holds it.
    pub sequence: u64,
}

/// A message was not appended, or nobody knows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// No memory within the wait. Nothing was accepted: retry later.
    #[error(transparent)]
    OverBudget(#[from] OverBudget),
    /// The producer is shutting down. Nothing was accepted: retry elsewhere.
    #[error("the producer is shutting down; retry elsewhere")]
    Closed,
    /// The message was accepted, but its commit was not made and never will be: retry.
    #[error("not committed: {0}; retry")]
    NotCommitted(Arc<str>),
    /// The store did not say what became of the commit, and the manifest has forgotten this producer. The
    /// message may be in the log: to retry is to accept that it may be there twice.
    #[error("the outcome of the commit is unknown: {0}; retry if a duplicate does less harm than a loss")]
    OutcomeUnknown(Arc<str>),
    /// The message itself cannot be accepted: do not retry.
    #[error("refused: {0}")]
    Refused(Arc<str>),
}

impl AppendError {
    /// Whether the same message may be accepted another time.
    pub fn is_retryable(&self) -> bool {
        !matches!(self, AppendError::Refused(_))
    }

    /// Whether it is certain that the message is not in the log.
    pub fn has_no_side_effects(&self) -> bool {
        !matches!(self, AppendError::OutcomeUnknown(_))
    }
}
