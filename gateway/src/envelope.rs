//! What surrounds a message: who sent it, by which transport, in which format and compression.

use std::net::SocketAddr;

use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};

use crate::connections::Seat;
use crate::decompress::Encoding;
use crate::metrics::Transport;
use crate::numbering::Numbering;
use crate::tokens::Identity;

/// The origin of a request, stored in its extensions.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) seat: Seat,
}

/// The sender of a request: the owner of its records, and its connection.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) identity: Identity,
    /// `None` in tests of requests without a connection.
    pub(crate) seat: Option<Seat>,
    /// The number of the request. Kafka's are in the batches.
    pub(crate) numbering: Option<Numbering>,
}

/// The encoding of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Envelope {
    pub(crate) transport: Transport,
    /// The compression of its message, if any.
    pub(crate) encoding: Option<Encoding>,
    pub(crate) format: Format,
}

/// The format of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// Binary protobuf.
    Protobuf,
    /// OTLP/JSON.
    Json,
}

/// A request's content type, without its parameters.
pub(crate) fn essence(headers: &HeaderMap) -> &[u8] {
    let value = headers.get(CONTENT_TYPE).map_or(&b""[..], HeaderValue::as_bytes);
    let essence = value.split(|byte| *byte == b';').next();
    essence.unwrap_or_default().trim_ascii()
}

/// A header or a parameter of a client for an error: at most 100 bytes of it, escaped.
pub(crate) fn show_header(value: &[u8]) -> String {
    value[..value.len().min(100)].escape_ascii().to_string()
}
