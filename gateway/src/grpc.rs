//! The envelope of OTLP/gRPC: method, compression, and the answer as a gRPC status. A client retries UNAVAILABLE, and
//! RESOURCE_EXHAUSTED only with RetryInfo (OTLP specification, "Failures"); it drops the data on INVALID_ARGUMENT.

use std::time::Duration;

use bytes::Bytes;
use hyper::body::Body;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use millpond_otlp::Signal;
use prost::Message;
use tonic::{Code, Status};

use crate::decompress::Encoding;
use crate::envelope::{Caller, Envelope, Format, essence};
use crate::google_rpc;
use crate::http::tell_repeated;
use crate::metrics::{Content, Transport};
use crate::refusal::{Refusal, Why};
use crate::reply::Reply;
use crate::request::{Outcome, Service};

const ACCEPT_ENCODING: &str = "grpc-accept-encoding";
const ACCEPTED: &str = "identity,gzip,zstd";

/// Answers one request.
pub(crate) async fn answer<B>(service: &Service, request: Request<B>) -> Response<Reply>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error,
{
    let signal = Signal::ALL
        .into_iter()
        .find(|signal| path(*signal) == request.uri().path());
    let mut in_flight = service.begin(Transport::Grpc, signal.map(Content::Signal));
    if let Some(refusal) = not_grpc(&request) {
        in_flight.not_otlp();
        return refusal;
    }
    let (head, mut body) = request.into_parts();
    let refused = |refusal| status(refusal, service.retry_after());
    let result = match (service.authorize(&head), signal) {
        (Err(refusal), _) => Err(refused(refusal)),
        (Ok(caller), Some(signal)) => export(service, signal, &caller, &head.headers, &mut body)
            .await
            .map_err(refused),
        (Ok(_), None) => Err(unknown(head.uri.path())),
    };
    match result {
        Ok(outcome) => {
            in_flight.answered(Code::Ok);
            let mut response = success();
            tell_repeated(&mut response, outcome);
            response
        }
        Err(status) => {
            in_flight.answered(status.code());
            tracing::debug!(code = ?status.code(), message = status.message(), "request refused");
            status.into_http()
        }
    }
}

async fn export<B>(
    service: &Service,
    signal: Signal,
    caller: &Caller,
    headers: &HeaderMap,
    body: &mut B,
) -> Result<Outcome, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error,
{
    let envelope = Envelope {
        transport: Transport::Grpc,
        encoding: encoding(headers)?,
        format: Format::Protobuf,
    };
    service.export(signal, caller, envelope, body).await
}

/// The path of the signal's Export method.
fn path(signal: Signal) -> &'static str {
    match signal {
        Signal::Logs => "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
        Signal::Traces => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
        Signal::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    }
}

fn encoding(headers: &HeaderMap) -> Result<Option<Encoding>, Refusal> {
    match headers.get("grpc-encoding").map(HeaderValue::as_bytes) {
        None | Some(b"identity") => Ok(None),
        Some(b"gzip") => Ok(Some(Encoding::Gzip)),
        Some(b"zstd") => Ok(Some(Encoding::Zstd)),
        Some(other) => Err(Refusal::new(
            Why::UnknownEncoding,
            format_args!(
                "grpc-encoding {} is not supported; use one of {ACCEPTED}",
                String::from_utf8_lossy(other)
            ),
        )),
    }
}

/// Success: everything in the request is committed.
fn success() -> Response<Reply> {
    let mut response = Response::new(Reply::Message);
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

fn status(refusal: Refusal, retry_after: Duration) -> Status {
    let code = refusal.code();
    match refusal.why {
        Why::Exhausted => exhausted(&refusal.message, retry_after),
        Why::UnknownEncoding => {
            let mut status = Status::new(code, refusal.message);
            status.metadata_mut().insert(
                ACCEPT_ENCODING,
                tonic::metadata::MetadataValue::from_static(ACCEPTED),
            );
            status
        }
        _ => Status::new(code, refusal.message),
    }
}

fn exhausted(what: &str, retry_after: Duration) -> Status {
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

fn unknown(method: &str) -> Status {
    Status::unimplemented(format!(
        "unknown method {method}; this gateway serves {}",
        Signal::ALL.map(path).join(", ")
    ))
}

/// Returns true if a request's content type is gRPC's.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let essence = essence(headers);
    essence.eq_ignore_ascii_case(b"application/grpc")
        || essence.eq_ignore_ascii_case(b"application/grpc+proto")
}

/// The answer to a request that is not gRPC; `None` when it is.
fn not_grpc<B>(request: &Request<B>) -> Option<Response<Reply>> {
    let (status, text) = if request.method() != Method::POST {
        (
            StatusCode::METHOD_NOT_ALLOWED,
            "this port speaks OTLP/gRPC: POST only\n",
        )
    } else if !is_grpc(request.headers()) {
        (
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "this port speaks OTLP/gRPC: content-type must be application/grpc; OTLP/HTTP uses another port (--listen-http, 4318 by default)\n",
        )
    } else {
        return None;
    };
    let mut response = Response::new(Reply::Whole(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    Some(response)
}

/// The answer to gRPC on another port.
pub(crate) fn elsewhere() -> Response<Reply> {
    Status::unimplemented(
        "this port speaks OTLP/HTTP; OTLP/gRPC uses another port (--listen, 4317 by default)",
    )
    .into_http()
}
