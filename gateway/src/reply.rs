//! The body of an answer, in either envelope. It never decides on the answer.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{HeaderMap, HeaderValue};
use tonic::Status;

/// An uncompressed gRPC message of length 0: any Export…ServiceResponse without a partial success.
const EMPTY_MESSAGE: &[u8] = &[0, 0, 0, 0, 0];

/// The body of an answer.
#[derive(Debug, Default)]
pub(crate) enum Reply {
    /// gRPC's success: the empty message, then the trailers.
    Message,
    /// Only the trailers of gRPC's success are left.
    Trailers,
    /// A whole body without trailers.
    Whole(Bytes),
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
        let (frame, next) = match std::mem::take(&mut *self) {
            Reply::Message => (Frame::data(Bytes::from_static(EMPTY_MESSAGE)), Reply::Trailers),
            Reply::Trailers => {
                let mut trailers = HeaderMap::with_capacity(1);
                trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
                (Frame::trailers(trailers), Reply::Done)
            }
            Reply::Whole(body) if !body.is_empty() => (Frame::data(body), Reply::Done),
            Reply::Whole(_) | Reply::Done => return Poll::Ready(None),
        };
        *self = next;
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Reply::Message | Reply::Trailers => false,
            Reply::Whole(body) => body.is_empty(),
            Reply::Done => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Reply::Message | Reply::Trailers => SizeHint::default(),
            Reply::Whole(body) => SizeHint::with_exact(body.len() as u64),
            Reply::Done => SizeHint::with_exact(0),
        }
    }
}
