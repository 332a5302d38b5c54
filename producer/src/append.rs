//! The arguments and results of an append.

use std::sync::Arc;

use bytes::Bytes;
use millpond_manifest::ClientRefusal;
use millpond_segment::{BlockBuilder, Encoding};
use tokio::sync::oneshot;

use millpond_runtime::{OverBudget, Reservation};

use crate::flow::Waiting;

/// One message to append to a stream.
#[derive(Debug)]
pub struct Append {
    /// The stream, for example `otlp.logs`.
    pub stream: Arc<str>,
    /// The encoding of the payload. A stream has one encoding forever.
    pub encoding: Encoding,
    /// The message.
    pub payload: Bytes,
    /// The number of records in the payload, counted by the caller.
    pub records: u64,
    /// The time of reception, unix microseconds.
    pub received_at_us: i64,
    /// Pays for the payload with [`Append::cost`] bytes. [`Producer::append`](crate::Producer::append) reserves a
    /// shortfall and returns an excess.
    pub reservation: Reservation,
}

/// The bytes that a waiting caller and its list entry take, beside the payload.
pub(crate) const WAITER_BYTES: usize = 192;

impl Append {
    /// Returns the bytes of budget that a payload takes until it is compressed.
    pub const fn cost(payload_len: usize) -> usize {
        BlockBuilder::message_len_max(payload_len) + WAITER_BYTES
    }
}

/// A message that the producer has taken over. If this is dropped, the message is still committed.
pub struct Submitted {
    pub(crate) outcome: oneshot::Receiver<Result<Committed, AppendError>>,
    pub(crate) _waiting: Waiting,
}

impl Submitted {
    /// Waits until the message is committed, without a time limit.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub async fn committed(self) -> Result<Committed, AppendError> {
        // The sender is dropped without an answer only when the runtime shuts down.
        let gone = || AppendError::OutcomeUnknown("the producer's tasks are gone".into());
        self.outcome.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// A message is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The shard.
    pub shard: u32,
    /// The sequence of the segment that has the message. If it is a repetition, of the segment with the client's last
    /// message.
    pub sequence: u64,
    /// The client had sent the message under the same number before, and the log has it from then.
    pub is_repeated: bool,
}

/// A message was not appended, or the outcome is unknown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    /// The budget had no room within `max_wait`. Nothing was accepted: retry later.
    #[error(transparent)]
    OverBudget(#[from] OverBudget),
    /// The producer is shutting down. Nothing was accepted: retry elsewhere.
    #[error("the producer is shutting down; retry elsewhere")]
    Closed,
    /// The message was accepted, but it was not committed and never will be: retry.
    #[error("not committed: {0}; retry")]
    NotCommitted(Arc<str>),
    /// The store did not report the outcome of the commit, and the manifest has forgotten this producer. The message
    /// may be in the log: a retry may duplicate it.
    #[error("the outcome of the commit is unknown: {0}; retry if a duplicate does less harm than a loss")]
    OutcomeUnknown(Arc<str>),
    /// The client's number cannot be accepted.
    #[error("refused: {0}")]
    Client(ClientRefusal),
    /// The message itself cannot be accepted: do not retry.
    #[error("refused: {0}")]
    Refused(Arc<str>),
}

impl AppendError {
    /// Returns true if a later attempt with the same message may succeed.
    pub fn is_retryable(&self) -> bool {
        match self {
            AppendError::Refused(_) => false,
            AppendError::Client(refusal) => *refusal == ClientRefusal::Full,
            AppendError::OverBudget(_)
            | AppendError::Closed
            | AppendError::NotCommitted(_)
            | AppendError::OutcomeUnknown(_) => true,
        }
    }

    /// Returns true if the message is certainly not in the log.
    pub fn has_no_side_effects(&self) -> bool {
        !matches!(self, AppendError::OutcomeUnknown(_))
    }
}
