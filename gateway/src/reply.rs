//! What the gateway answers: the empty success message, and gRPC statuses in the words that make OTLP clients do the
//! right thing. A client retries UNAVAILABLE, and RESOURCE_EXHAUSTED only with RetryInfo (OTLP specification,
//! "Failures"); it drops the data on INVALID_ARGUMENT. It never answers success by itself: the caller decides.

use std::convert::Infallible;
use std::fmt::Display;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Response, StatusCode};
use prost::Message;
use tonic::{Code, Status};

/// An uncompressed gRPC message of length 0: any Export…ServiceResponse without a partial success.
const EMPTY_MESSAGE: &[u8] = &[0, 0, 0, 0, 0];

/// The body of an answer.
#[derive(Debug, Default)]
pub(crate) enum Reply {
    /// The empty message is next, then the trailers.
    Message,
    /// Only the trailers are left.
    Trailers,
    /// A few words to a client that does not speak gRPC.
    Text(&'static str),
    /// Nothing is left.
    #[default]
    Done,
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let (frame, next) = match *self {
            Reply::Message => (Frame::data(Bytes::from_static(EMPTY_MESSAGE)), Reply::Trailers),
            Reply::Trailers => {
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
                (Frame::trailers(trailers), Reply::Done)
            }
            Reply::Text(text) => (Frame::data(Bytes::from_static(text.as_bytes())), Reply::Done),
            Reply::Done => return Poll::Ready(None),
        };
        *self = next;
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Reply::Done)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}

/// Success: everything in the request is committed.
pub(crate) fn success() -> Response<Reply> {
    let mut response = Response::new(Reply::Message);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// An answer to a client that does not speak gRPC.
pub(crate) fn not_grpc(status: StatusCode, text: &'static str) -> Response<Reply> {
    let mut response = Response::new(Reply::Text(text));
    *response.status_mut() = status;
    response
}

/// The client's bytes are wrong, and would be again: it must not retry.
pub(crate) fn invalid(what: impl Display) -> Status {
    Status::invalid_argument(what.to_string())
}

/// The message is longer than allowed. Not RESOURCE_EXHAUSTED, as gRPC libraries have it, nor tonic's OUT_OF_RANGE:
/// some OTLP clients retry those, and the same bytes can never be accepted.
pub(crate) fn too_large(form: &str, length: impl Display, limit: usize) -> Status {
    invalid(format_args!(
        "message too large: {length} bytes {form}, the limit is {limit}; send smaller batches, or raise the gateway's max_message_bytes and, if that is below four times as much, its memory_limit"
    ))
}

/// No room at the moment: the client should retry after a pause.
pub(crate) fn exhausted(what: &str, retry_after: Duration) -> Status {
    let details = google_rpc::Status {
        code: Code::ResourceExhausted as i32,
        message: what.to_owned(),
        details: vec![google_rpc::Any {
            type_url: google_rpc::RETRY_INFO.to_owned(),
            value: google_rpc::RetryInfo {
                retry_delay: Some(google_rpc::Duration {
                    seconds: i64::try_from(retry_after.as_secs()).unwrap_or(i64::MAX),
                    nanos: i32::try_from(retry_after.subsec_nanos()).unwrap_or(0),
                }),
            }
            .encode_to_vec(),
        }],
    };
    Status::with_details(Code::ResourceExhausted, what, details.encode_to_vec().into())
}

/// The parts of google/rpc/status.proto and error_details.proto that a retry needs.
pub(crate) mod google_rpc {
    pub(crate) const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Status {
        #[prost(int32, tag = "1")]
        pub(crate) code: i32,
        #[prost(string, tag = "2")]
        pub(crate) message: String,
        #[prost(message, repeated, tag = "3")]
        pub(crate) details: Vec<Any>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Any {
        #[prost(string, tag = "1")]
        pub(crate) type_url: String,
        #[prost(bytes = "vec", tag = "2")]
        pub(crate) value: Vec<u8>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct RetryInfo {
        #[prost(message, optional, tag = "1")]
        pub(crate) retry_delay: Option<Duration>,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub(crate) struct Duration {
        #[prost(int64, tag = "1")]
        pub(crate) seconds: i64,
        #[prost(int32, tag = "2")]
        pub(crate) nanos: i32,
    }
}
