//! Why a request is refused, in any envelope. Each envelope translates the reason into the code that makes OTLP clients
//! do the right thing: retry, or drop the data.

use std::fmt::Display;

use millpond_runtime::OverBudget;
use tokio::task::JoinError;
use tonic::Code;

use crate::tokens::Denied;

/// A refused request.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) why: Why,
    /// For the client's log.
    pub(crate) message: String,
}

/// The reason, which determines what the client should do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The token is missing or invalid: the client must not retry with the same one.
    Denied(Denied),
    /// The token is valid, and the stream belongs to others: the client must not retry with the same one.
    Forbidden,
    /// The stream cannot take such messages: the client must not retry.
    Conflict,
    /// The number of the request does not follow the last one in the log, if the log has one: the client must not retry.
    Number { last: Option<u64> },
    /// The number or key of the request belongs to another message: the client must not retry.
    Reused,
    /// The bytes are invalid, in this field if given: the client must not retry.
    Invalid { field: Option<String> },
    /// The message is longer than allowed: the client must not retry.
    TooLarge,
    /// A compressed gRPC message in a request without `grpc-encoding`.
    NoEncoding,
    /// An unsupported compression.
    UnknownEncoding,
    /// No memory at the moment: the client should retry after a pause.
    Exhausted,
    /// The gateway cannot commit now: the client should retry.
    Unavailable,
    /// The client sent its request too slowly.
    TooSlow,
    /// The client disconnected.
    Cancelled,
}

impl Refusal {
    pub(crate) fn new(why: Why, message: impl Display) -> Refusal {
        let message = message.to_string();
        Refusal { why, message }
    }

    /// The bytes are invalid.
    pub(crate) fn invalid(what: impl Display) -> Refusal {
        Refusal::new(Why::Invalid { field: None }, what)
    }

    /// The bytes of this field are invalid.
    pub(crate) fn invalid_field(field: String, what: impl Display) -> Refusal {
        Refusal::new(Why::Invalid { field: Some(field) }, what)
    }

    /// The stream cannot take such messages.
    pub(crate) fn conflict(what: impl Display) -> Refusal {
        Refusal::new(Why::Conflict, what)
    }

    /// The message is longer than `limit` in this form.
    pub(crate) fn too_large(form: &str, length: impl Display, limit: usize) -> Refusal {
        Refusal::new(
            Why::TooLarge,
            format_args!(
                "message too large: {length} bytes {form}, the limit is {limit}; send smaller batches, or raise the gateway's max_message_bytes and, if that is below four times as much, its memory_limit"
            ),
        )
    }

    /// No memory is free.
    pub(crate) fn exhausted(what: impl Display) -> Refusal {
        Refusal::new(Why::Exhausted, what)
    }

    /// The worker thread of the request ended.
    pub(crate) fn stopping(error: &JoinError) -> Refusal {
        Refusal::new(Why::Unavailable, format_args!("the gateway is stopping: {error}"))
    }

    /// The gRPC code, which metrics use too.
    pub(crate) fn code(&self) -> Code {
        match self.why {
            Why::Denied(_) => Code::Unauthenticated,
            Why::Forbidden => Code::PermissionDenied,
            Why::Conflict | Why::Number { .. } => Code::FailedPrecondition,
            // Neither RESOURCE_EXHAUSTED for a message that is too large, as in gRPC libraries, nor tonic's
            // OUT_OF_RANGE: some OTLP clients retry those, and these bytes can never be accepted.
            Why::Invalid { .. } | Why::TooLarge | Why::Reused => Code::InvalidArgument,
            // From the gRPC specification ("Compression", test cases).
            Why::NoEncoding => Code::Internal,
            Why::UnknownEncoding => Code::Unimplemented,
            Why::Exhausted => Code::ResourceExhausted,
            Why::Unavailable => Code::Unavailable,
            Why::TooSlow => Code::DeadlineExceeded,
            Why::Cancelled => Code::Cancelled,
        }
    }
}

impl From<OverBudget> for Refusal {
    fn from(over: OverBudget) -> Refusal {
        Refusal::exhausted(over)
    }
}
