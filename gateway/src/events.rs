//! The envelope of events: `POST /v1/streams/STREAM` with rows of JSON on the port of OTLP/HTTP. Answers are JSON, with
//! the reason in `error`. It never answers 200 before the accepted rows are committed.

use std::time::Duration;

use bytes::Bytes;
use hyper::body::Body;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use serde_json::{Value, json};
use tonic::Code;

use crate::decompress::Encoding;
use crate::envelope::{essence, show_header};
use crate::http::{ACCEPT_POST, advise, encoding, response, status, tell_repeated};
use crate::metrics::{Content, Transport};
use crate::refusal::Refusal;
use crate::reply::Reply;
use crate::request::{Outcome, Service};
use crate::rows::{Form, Rows};

/// Paths of events; the name of the stream follows.
pub(crate) const PATH: &str = "/v1/streams/";

const FORMS: &str = "application/json, application/x-ndjson, application/ndjson";
const JSON: &str = "application/json";

/// A request for events, by its headers alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Delivery<'a> {
    /// The stream, without the prefix of the sender's token.
    pub(crate) stream: &'a str,
    /// The compression of its body, if any.
    pub(crate) encoding: Option<Encoding>,
    pub(crate) form: Form,
    pub(crate) on_error: OnError,
}

/// The effect of a malformed row on the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnError {
    /// The gateway accepts the others.
    Skip,
    /// The gateway accepts none.
    Refuse,
}

/// Answers a request to a path of events. `Err` if it may have left its body unread.
pub(crate) async fn answer<B>(
    service: &Service,
    head: &Parts,
    body: &mut B,
) -> Result<Response<Reply>, Response<Reply>>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error,
{
    let mut in_flight = service.begin(Transport::Http, Some(Content::Events));
    let (form, on_error) = match target(head) {
        Ok(target) => target,
        Err(response) => {
            in_flight.not_otlp();
            return Err(*response);
        }
    };
    match deliver(service, head, form, on_error, body).await {
        Ok((rows, repeated)) => {
            let (status, content) = outcome(&rows, on_error);
            in_flight.answered(if status == StatusCode::OK {
                Code::Ok
            } else {
                Code::InvalidArgument
            });
            let mut response = json_response(status, &content);
            tell_repeated(&mut response, repeated);
            Ok(response)
        }
        Err(refusal) => {
            in_flight.answered(refusal.code());
            tracing::debug!(code = ?refusal.code(), message = refusal.message, "request refused");
            Err(refused(&refusal, service.retry_after()))
        }
    }
}

async fn deliver<B>(
    service: &Service,
    head: &Parts,
    form: Form,
    on_error: OnError,
    body: &mut B,
) -> Result<(Rows, Outcome), Refusal>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error,
{
    let caller = service.authorize(head)?;
    let delivery = Delivery {
        stream: head.uri.path().strip_prefix(PATH).unwrap_or_default(),
        encoding: encoding(&head.headers)?,
        form,
        on_error,
    };
    service.deliver(delivery, &caller, body).await
}

/// The form of the rows and the effect of a malformed one, or the answer to a request that cannot be for events.
fn target(head: &Parts) -> Result<(Form, OnError), Box<Response<Reply>>> {
    if head.method != Method::POST {
        let message = format!("{} takes POST, not {}", head.uri.path(), head.method);
        let mut response = failure(StatusCode::METHOD_NOT_ALLOWED, &message);
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("POST"));
        return Err(Box::new(response));
    }
    let essence = essence(&head.headers);
    let form = match essence.to_ascii_lowercase().as_slice() {
        b"application/x-ndjson" | b"application/ndjson" => Form::Lines,
        b"application/json" => Form::Any,
        _ if !head.headers.contains_key(CONTENT_TYPE) => Form::Any,
        _ => {
            let message = format!(
                "content-type {} is not supported; use one of {FORMS}, or none",
                show_header(essence)
            );
            let mut response = failure(StatusCode::UNSUPPORTED_MEDIA_TYPE, &message);
            response
                .headers_mut()
                .insert(ACCEPT_POST, HeaderValue::from_static(FORMS));
            return Err(Box::new(response));
        }
    };
    let on_error = on_error(head.uri.query().unwrap_or_default())
        .map_err(|message| Box::new(failure(StatusCode::BAD_REQUEST, &message)))?;
    Ok((form, on_error))
}

fn on_error(query: &str) -> Result<OnError, String> {
    let mut on_error = None;
    for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
        let value = match parameter {
            "on_error=skip" => OnError::Skip,
            "on_error=refuse" => OnError::Refuse,
            other => {
                return Err(format!(
                    "the query parameter {} is unknown; use on_error=skip or on_error=refuse",
                    show_header(other.as_bytes())
                ));
            }
        };
        if on_error.replace(value).is_some() {
            return Err("the query parameter on_error occurs twice".to_owned());
        }
    }
    Ok(on_error.unwrap_or(OnError::Skip))
}

/// Whether the gateway appends the accepted rows.
pub(crate) fn appends(rows: &Rows, on_error: OnError) -> bool {
    rows.accepted > 0 && (rows.rejected == 0 || on_error == OnError::Skip)
}

fn outcome(rows: &Rows, on_error: OnError) -> (StatusCode, Value) {
    if rows.is_blank {
        let error = "the body is empty; send at least one JSON object";
        return (StatusCode::BAD_REQUEST, json!({ "error": error }));
    }
    if rows.rejected == 0 {
        return (StatusCode::OK, json!({ "accepted": rows.accepted }));
    }
    let errors: Vec<Value> = rows
        .errors
        .iter()
        .map(|error| json!({ "line": error.line, "column": error.column, "reason": error.reason }))
        .collect();
    let accepted = if appends(rows, on_error) { rows.accepted } else { 0 };
    let mut content = json!({ "accepted": accepted, "rejected": rows.rejected, "errors": errors });
    if rows.unread_bytes > 0 {
        content["unread_bytes"] = rows.unread_bytes.into();
    }
    if accepted > 0 {
        return (StatusCode::OK, content);
    }
    let malformed = format!("malformed rows: {}", rows.rejected);
    content["error"] = if rows.accepted > 0 {
        format!("{malformed}; on_error=refuse accepts all rows or none").into()
    } else {
        format!("{malformed}; no row is accepted").into()
    };
    (StatusCode::BAD_REQUEST, content)
}

fn refused(refusal: &Refusal, retry_after: Duration) -> Response<Reply> {
    let mut response = failure(status(&refusal.why), &refusal.message);
    advise(&mut response, &refusal.why, retry_after);
    response
}

fn failure(status: StatusCode, message: &str) -> Response<Reply> {
    json_response(status, &json!({ "error": message }))
}

fn json_response(status: StatusCode, content: &Value) -> Response<Reply> {
    response(status, JSON, content.to_string().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_error_is_skip_or_refuse_once_and_nothing_else() {
        for (query, expected) in [
            ("", Some(OnError::Skip)),
            ("on_error=skip", Some(OnError::Skip)),
            ("on_error=refuse&", Some(OnError::Refuse)),
            ("on_error=refuse&on_error=refuse", None),
            ("on_error=", None),
            ("on_error=REFUSE", None),
            ("table=x", None),
        ] {
            assert_eq!(on_error(query).ok(), expected, "{query}");
        }
    }

    #[test]
    fn refusal_accepts_none_and_skipping_accepts_the_others() {
        let rows = |accepted, rejected| Rows {
            accepted,
            rejected,
            ..Rows::default()
        };
        for (rows, on_error, status, accepted) in [
            (rows(2, 0), OnError::Refuse, StatusCode::OK, 2),
            (rows(2, 1), OnError::Skip, StatusCode::OK, 2),
            (rows(2, 1), OnError::Refuse, StatusCode::BAD_REQUEST, 0),
            (rows(0, 3), OnError::Skip, StatusCode::BAD_REQUEST, 0),
            (rows(0, 0), OnError::Skip, StatusCode::OK, 0),
        ] {
            let (found, content) = outcome(&rows, on_error);
            assert_eq!(
                (found, &content["accepted"]),
                (status, &json!(accepted)),
                "{content}"
            );
            assert_eq!(appends(&rows, on_error), accepted > 0);
            assert_eq!(content.get("error").is_some(), status != StatusCode::OK);
        }
    }
}
