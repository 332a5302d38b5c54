//! Why a request is not accepted, whatever envelope it came in. Each envelope says it in its own words, which make OTLP
//! clients do the right thing: retry, or drop the data.

use std::fmt::Display;

use millpond_producer::OverBudget;
use tokio::task::JoinError;
use tonic::Code;

/// Why a request is not accepted.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) why: Why,
    /// For the client's log.
    pub(crate) message: String,
}

/// What the client should make of it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Its bytes are wrong, in this field if there is one, and would be again: it must not retry.
    Invalid { field: Option<String> },
    /// Its message is longer than allowed, and would be again.
    TooLarge,
    /// A compressed gRPC message in a request that does not say how it is compressed.
    NoEncoding,
    /// A compression that the gateway does not have.
    UnknownEncoding,
    /// No room at the moment: it should retry after a pause.
    Exhausted,
    /// The gateway cannot commit now: it should retry.
    Unavailable,
    /// It was too slow to send its request.
    TooSlow,
    /// It went away.
    Cancelled,
}

impl Refusal {
    pub(crate) fn new(why: Why, message: impl Display) -> Refusal {
        let message = message.to_string();
        Refusal { why, message }
    }

    /// The bytes are wrong.
    pub(crate) fn invalid(what: impl Display) -> Refusal {
        Refusal::new(Why::Invalid { field: None }, what)
    }

    /// The bytes of this field are wrong.
    pub(crate) fn invalid_field(field: String, what: impl Display) -> Refusal {
        Refusal::new(Why::Invalid { field: Some(field) }, what)
    }

    /// The message is longer than `limit`, in this form.
    pub(crate) fn too_large(form: &str, length: impl Display, limit: usize) -> Refusal {
        Refusal::new(
            Why::TooLarge,
            format_args!(
                "message too large: {length} bytes {form}, the limit is {limit}; send smaller batches, or raise the gateway's max_message_bytes and, if that is below four times as much, its memory_limit"
            ),
        )
    }

    /// There was no room.
    pub(crate) fn exhausted(what: impl Display) -> Refusal {
        Refusal::new(Why::Exhausted, what)
    }

    /// The thread that worked on the request ended.
    pub(crate) fn stopping(error: &JoinError) -> Refusal {
        Refusal::new(Why::Unavailable, format_args!("the gateway is stopping: {error}"))
    }

    /// Its code in gRPC, which is also what metrics call it.
    pub(crate) fn code(&self) -> Code {
        match self.why {
            // Not RESOURCE_EXHAUSTED for what is too large, as gRPC libraries have it, nor tonic's OUT_OF_RANGE: some OTLP
            // clients retry those, and the same bytes can never be accepted.
            Why::Invalid { .. } | Why::TooLarge => Code::InvalidArgument,
            // The gRPC specification's ("Compression", test cases).
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
