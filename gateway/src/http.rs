//! The envelope of OTLP/HTTP: path, format, compression, and the answer of the OTLP specification ("OTLP/HTTP
//! Response"): an Export…ServiceResponse or a google.rpc.Status in the format of the request. A client retries 429,
//! 502, 503 and 504, and drops the data on anything else. Events on this port have an envelope of their own (`events`).

use std::time::Duration;

use bytes::Bytes;
use hyper::body::Body;
use hyper::header::{
    ACCEPT_ENCODING, ALLOW, CONTENT_ENCODING, CONTENT_TYPE, EXPECT, HeaderMap, HeaderName, HeaderValue,
    RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response, StatusCode, Version};
use millpond_otlp::Signal;
use prost::Message;
use serde_json::json;
use tonic::Code;

use crate::decompress::Encoding;
use crate::envelope::{Envelope, Format, essence};
use crate::events;
use crate::google_rpc::{self, BadRequest, FieldViolation};
use crate::grpc;
use crate::metrics::{Content, Transport};
use crate::numbering::{LAST_NUMBER, REPEATED};
use crate::refusal::{Refusal, Why};
use crate::reply::Reply;
use crate::request::{Outcome, Service};

pub(crate) const ACCEPT_POST: HeaderName = HeaderName::from_static("accept-post");
const FORMS: &str = "application/x-protobuf, application/json";
const ENCODINGS: &str = "gzip, zstd, identity";

const WELCOME: &str = "This is a Millpond gateway's port for OTLP/HTTP.\n\
    POST /v1/logs, /v1/traces or /v1/metrics; content-type application/x-protobuf or application/json; \
    content-encoding gzip or zstd, or none.\n\
    POST /v1/streams/STREAM takes events: JSON objects, one a line or in an array.\n\
    OTLP/gRPC uses another port (--listen), as do /healthz, /readyz and /metrics (--admin).\n";

/// Answers one request.
pub(crate) async fn answer<B>(service: &Service, request: Request<B>) -> Response<Reply>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error,
{
    let (head, mut body) = request.into_parts();
    let answered = if head.uri.path().starts_with(events::PATH) && !grpc::is_grpc(&head.headers) {
        events::answer(service, &head, &mut body).await
    } else {
        answer_otlp(service, &head, &mut body).await
    };
    let response = match answered {
        Ok(response) => return response,
        Err(response) => response,
    };
    // An HTTP/1 client that is still sending would see a reset and never read the answer. A client that waits for `100
    // Continue` does not get it.
    if head.version < Version::HTTP_2 && !head.headers.contains_key(EXPECT) {
        service.discard(&mut body).await;
    }
    response
}

/// Answers an export, or a request to an unknown path. `Err` if it may have left its body unread.
async fn answer_otlp<B>(
    service: &Service,
    head: &Parts,
    body: &mut B,
) -> Result<Response<Reply>, Response<Reply>>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error,
{
    let signal = Signal::ALL
        .into_iter()
        .find(|signal| path(*signal) == head.uri.path());
    let mut in_flight = service.begin(Transport::Http, signal.map(Content::Signal));
    let (signal, format) = target(head, signal).map_err(|response| {
        in_flight.not_otlp();
        *response
    })?;
    let result = export(service, signal, format, head, body).await;
    in_flight.answered(result.as_ref().map_or_else(Refusal::code, |_| Code::Ok));
    match result {
        Ok(outcome) => {
            let mut response = success(format);
            tell_repeated(&mut response, outcome);
            Ok(response)
        }
        Err(refusal) => {
            tracing::debug!(code = ?refusal.code(), message = refusal.message, "request refused");
            Err(refused(format, &refusal, service.retry_after()))
        }
    }
}

/// The path of the signal's requests (OTLP specification, "OTLP/HTTP Request").
fn path(signal: Signal) -> &'static str {
    match signal {
        Signal::Logs => "/v1/logs",
        Signal::Traces => "/v1/traces",
        Signal::Metrics => "/v1/metrics",
    }
}

/// The signal and format of an export, or the answer to any other request.
fn target(head: &Parts, signal: Option<Signal>) -> Result<(Signal, Format), Box<Response<Reply>>> {
    let format = format(&head.headers);
    // People read these answers, so use JSON unless the request was protobuf.
    let refuse =
        |status, code, message: &str| failure(status, format.unwrap_or(Format::Json), code, message, None);
    if grpc::is_grpc(&head.headers) {
        return Err(Box::new(grpc::elsewhere()));
    }
    let Some(signal) = signal else {
        if head.uri.path() == "/" && matches!(head.method, Method::GET | Method::HEAD) {
            return Err(Box::new(welcome()));
        }
        let message = format!(
            "nothing is at {}; POST to one of {}, {}STREAM",
            head.uri.path(),
            Signal::ALL.map(path).join(", "),
            events::PATH
        );
        return Err(Box::new(refuse(StatusCode::NOT_FOUND, Code::NotFound, &message)));
    };
    if head.method != Method::POST {
        let message = format!("{} takes POST, not {}", head.uri.path(), head.method);
        let mut response = refuse(StatusCode::METHOD_NOT_ALLOWED, Code::Unimplemented, &message);
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("POST"));
        return Err(Box::new(response));
    }
    let Some(format) = format else {
        let message = match head.headers.get(CONTENT_TYPE) {
            Some(other) => format!(
                "content-type {} is not supported; use one of {FORMS}",
                String::from_utf8_lossy(other.as_bytes())
            ),
            None => format!("content-type is missing; use one of {FORMS}"),
        };
        let mut response = refuse(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Code::InvalidArgument,
            &message,
        );
        response
            .headers_mut()
            .insert(ACCEPT_POST, HeaderValue::from_static(FORMS));
        return Err(Box::new(response));
    };
    Ok((signal, format))
}

fn format(headers: &HeaderMap) -> Option<Format> {
    let essence = essence(headers);
    [Format::Protobuf, Format::Json]
        .into_iter()
        .find(|format| essence.eq_ignore_ascii_case(content_type(*format).as_bytes()))
}

fn content_type(format: Format) -> &'static str {
    match format {
        Format::Protobuf => "application/x-protobuf",
        Format::Json => "application/json",
    }
}

async fn export<B>(
    service: &Service,
    signal: Signal,
    format: Format,
    head: &Parts,
    body: &mut B,
) -> Result<Outcome, Refusal>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error,
{
    let caller = service.authorize(head)?;
    let envelope = Envelope {
        transport: Transport::Http,
        encoding: encoding(&head.headers)?,
        format,
    };
    service.export(signal, &caller, envelope, body).await
}

pub(crate) fn encoding(headers: &HeaderMap) -> Result<Option<Encoding>, Refusal> {
    let mut all = headers.get_all(CONTENT_ENCODING).iter();
    let Some(name) = all.next() else {
        return Ok(None);
    };
    let known = match name.as_bytes().to_ascii_lowercase().as_slice() {
        b"" | b"identity" => Some(None),
        b"gzip" | b"x-gzip" => Some(Some(Encoding::Gzip)),
        b"zstd" => Some(Some(Encoding::Zstd)),
        _ => None,
    };
    match (known, all.next()) {
        (Some(encoding), None) => Ok(encoding),
        _ => Err(Refusal::new(
            Why::UnknownEncoding,
            format_args!(
                "content-encoding {} is not supported; use one of {ENCODINGS}",
                String::from_utf8_lossy(name.as_bytes())
            ),
        )),
    }
}

/// Success: everything in the request is committed. Never a partial one: a request is accepted or refused as a whole.
fn success(format: Format) -> Response<Reply> {
    let body: &[u8] = match format {
        Format::Protobuf => b"",
        Format::Json => b"{}",
    };
    response(StatusCode::OK, content_type(format), Bytes::from_static(body))
}

fn welcome() -> Response<Reply> {
    let body = Bytes::from_static(WELCOME.as_bytes());
    response(StatusCode::OK, "text/plain; charset=utf-8", body)
}

/// The status of a refusal's answer.
pub(crate) fn status(why: &Why) -> StatusCode {
    match why {
        Why::Denied(_) => StatusCode::UNAUTHORIZED,
        Why::Forbidden => StatusCode::FORBIDDEN,
        Why::Conflict | Why::Number { .. } => StatusCode::CONFLICT,
        Why::Reused => StatusCode::UNPROCESSABLE_ENTITY,
        Why::Invalid { .. } | Why::NoEncoding => StatusCode::BAD_REQUEST,
        Why::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Why::UnknownEncoding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Why::Exhausted => StatusCode::TOO_MANY_REQUESTS,
        Why::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        // 408 would fit, but OTLP clients do not retry it.
        Why::TooSlow => StatusCode::GATEWAY_TIMEOUT,
        // The client has left and never sees it.
        Why::Cancelled => StatusCode::BAD_REQUEST,
    }
}

fn refused(format: Format, refusal: &Refusal, retry_after: Duration) -> Response<Reply> {
    let field = match &refusal.why {
        Why::Invalid { field } => Some(field.as_deref().unwrap_or_default()),
        _ => None,
    };
    let status = status(&refusal.why);
    let mut response = failure(status, format, refusal.code(), &refusal.message, field);
    advise(&mut response, &refusal.why, retry_after);
    response
}

/// Adds the headers that tell a client what to do about a refusal.
pub(crate) fn advise(response: &mut Response<Reply>, why: &Why, retry_after: Duration) {
    let headers = response.headers_mut();
    match why {
        Why::Exhausted | Why::Unavailable => {
            headers.insert(RETRY_AFTER, seconds(retry_after).into());
        }
        Why::Denied(denied) => {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static(denied.challenge()));
        }
        Why::UnknownEncoding => {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(ENCODINGS));
        }
        Why::Number { last: Some(last) } => {
            headers.insert(LAST_NUMBER, (*last).into());
        }
        _ => {}
    }
}

/// Tells a client that the log had its records already.
pub(crate) fn tell_repeated(response: &mut Response<Reply>, outcome: Outcome) {
    if outcome == Outcome::Repeated {
        response
            .headers_mut()
            .insert(REPEATED, HeaderValue::from_static("true"));
    }
}

/// Rounds up to whole seconds, the unit of the header.
fn seconds(retry_after: Duration) -> u64 {
    retry_after.as_secs() + u64::from(retry_after.subsec_nanos() > 0)
}

/// A Status in this format. An invalid field is named in a BadRequest ("Bad Data").
fn failure(
    status: StatusCode,
    format: Format,
    code: Code,
    message: &str,
    wrong_field: Option<&str>,
) -> Response<Reply> {
    let body = match format {
        Format::Protobuf => protobuf_status(code, message, wrong_field),
        Format::Json => json_status(code, message, wrong_field),
    };
    response(status, content_type(format), body.into())
}

fn protobuf_status(code: Code, message: &str, wrong_field: Option<&str>) -> Vec<u8> {
    let details = wrong_field.map(|field| {
        let violation = FieldViolation {
            field: field.to_owned(),
            description: message.to_owned(),
        };
        google_rpc::Any {
            type_url: google_rpc::BAD_REQUEST.to_owned(),
            value: BadRequest {
                field_violations: vec![violation],
            }
            .encode_to_vec(),
        }
    });
    let status = google_rpc::Status {
        code: code as i32,
        message: message.to_owned(),
        details: details.into_iter().collect(),
    };
    status.encode_to_vec()
}

fn json_status(code: Code, message: &str, wrong_field: Option<&str>) -> Vec<u8> {
    let mut status = json!({ "code": code as i32, "message": message });
    if let Some(field) = wrong_field {
        status["details"] = json!([{
            "@type": google_rpc::BAD_REQUEST,
            "fieldViolations": [{ "field": field, "description": message }],
        }]);
    }
    status.to_string().into_bytes()
}

pub(crate) fn response(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Reply> {
    let mut response = Response::new(Reply::Whole(body));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
