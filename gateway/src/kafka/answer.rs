//! Turns reasons into Kafka's errors, so that clients do the right thing: retry, or tell the application.

use millpond_kafka::{BatchError, ErrorCode, PartitionOutcome};
use millpond_producer::{AppendError, ClientRefusal};
use tonic::Code;

use crate::refusal::{Refusal, Why};

/// The reason that the records for a partition are not committed.
#[derive(Debug, Clone)]
pub(super) struct Fault {
    pub(super) error: ErrorCode,
    pub(super) message: String,
    /// The malformed records: their places in the batch, and the reasons.
    pub(super) records: Vec<(i32, String)>,
}

impl Fault {
    pub(super) fn new(error: ErrorCode, message: impl Into<String>) -> Fault {
        Fault {
            error,
            message: message.into(),
            records: Vec::new(),
        }
    }

    /// The equivalent gRPC code, for metrics.
    pub(super) fn grpc_code(&self) -> Code {
        match self.error {
            ErrorCode::NotEnoughReplicas => Code::ResourceExhausted,
            ErrorCode::NotLeaderOrFollower | ErrorCode::NotEnoughReplicasAfterAppend => Code::Unavailable,
            ErrorCode::TopicAuthorizationFailed => Code::PermissionDenied,
            ErrorCode::UnknownTopicId | ErrorCode::UnknownTopicOrPartition => Code::NotFound,
            ErrorCode::InvalidTopic
            | ErrorCode::OutOfOrderSequenceNumber
            | ErrorCode::InvalidProducerEpoch
            | ErrorCode::UnknownProducerId => Code::FailedPrecondition,
            _ => Code::InvalidArgument,
        }
    }

    pub(super) fn outcome(self, index: i32) -> PartitionOutcome {
        PartitionOutcome {
            index,
            error: self.error,
            message: Some(self.message),
            records: self.records,
        }
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Fault {
        let error = match refusal.why {
            Why::Denied(_) | Why::Forbidden => ErrorCode::TopicAuthorizationFailed,
            Why::Conflict => ErrorCode::InvalidTopic,
            Why::Number { .. } | Why::Reused => ErrorCode::OutOfOrderSequenceNumber,
            Why::Invalid { .. } | Why::NoEncoding | Why::UnknownEncoding => ErrorCode::InvalidRecord,
            Why::TooLarge => ErrorCode::MessageTooLarge,
            Why::Exhausted | Why::TooSlow | Why::Cancelled => ErrorCode::NotEnoughReplicas,
            Why::Unavailable => ErrorCode::NotLeaderOrFollower,
        };
        Fault::new(error, refusal.message)
    }
}

impl From<BatchError> for Fault {
    fn from(error: BatchError) -> Fault {
        let code = match &error {
            BatchError::Checksum => ErrorCode::CorruptMessage,
            BatchError::Format(_) => ErrorCode::UnsupportedForMessageFormat,
            BatchError::Codec(_) => ErrorCode::UnsupportedCompressionType,
            BatchError::Transactional => ErrorCode::TransactionalIdAuthorizationFailed,
            BatchError::Malformed(_) => ErrorCode::InvalidRecord,
        };
        Fault::new(code, error.to_string())
    }
}

impl From<AppendError> for Fault {
    fn from(error: AppendError) -> Fault {
        let code = match &error {
            AppendError::Client(ClientRefusal::Unknown) => ErrorCode::UnknownProducerId,
            AppendError::Client(ClientRefusal::Fenced { .. }) => ErrorCode::InvalidProducerEpoch,
            AppendError::Client(_) => ErrorCode::OutOfOrderSequenceNumber,
            AppendError::OverBudget(_) | AppendError::NotCommitted(_) => ErrorCode::NotEnoughReplicas,
            AppendError::Closed => ErrorCode::NotLeaderOrFollower,
            AppendError::OutcomeUnknown(_) => ErrorCode::NotEnoughReplicasAfterAppend,
            // A stream of another encoding, no room for a new stream, or a message that never fits.
            AppendError::Refused(_) => ErrorCode::InvalidTopic,
        };
        Fault::new(code, error.to_string())
    }
}
