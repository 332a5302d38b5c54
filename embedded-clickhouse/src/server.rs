//! The HTTP side: paths, bodies, headers, responses. It reads a whole body before anything runs, admits a bounded
//! number of requests and never blocks on the engine, which lives on threads of its own.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body as HttpBody, HttpBody as _};
use axum::extract::{
    DefaultBodyLimit, FromRequest as _, Multipart, Query as UrlQuery, Request as HttpRequest, State,
};
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get};
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt as _, stream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::encoding::{self, Encoding};
use crate::engine::Job;
use crate::exception::{Code, Exception};
use crate::ffi::Counters;
use crate::hello::Server;
use crate::output::{Body, Cut, Reply};
use crate::request::Request;

/// What the handlers share.
pub(crate) struct Front {
    pub(crate) jobs: mpsc::Sender<Job>,
    pub(crate) server: Server,
    /// Requests that may be here at once, with their bodies; the next one is refused.
    pub(crate) admission: Semaphore,
    /// KiB that the bodies of all requests may take together; a request that would take more is refused.
    pub(crate) body_memory: Arc<Semaphore>,
    pub(crate) body_bytes_max: usize,
}

/// The routes of ClickHouse's HTTP interface.
pub(crate) fn router(front: Arc<Front>) -> Router {
    let ok = || async { "Ok.\n" };
    Router::new()
        .route("/", any(handle))
        .route("/ping", get(ok))
        .route("/replicas_status", get(ok))
        .fallback(|request: HttpRequest| async move {
            let message = format!(
                "There is no handle {}\n\nUse / or /ping for health checks.\n",
                request.uri().path()
            );
            (StatusCode::NOT_FOUND, message)
        })
        .with_state(front)
}

const DISPLAY_NAME: HeaderName = HeaderName::from_static("x-clickhouse-server-display-name");
const TIMEZONE: HeaderName = HeaderName::from_static("x-clickhouse-timezone");
const QUERY_ID: HeaderName = HeaderName::from_static("x-clickhouse-query-id");
const SUMMARY: HeaderName = HeaderName::from_static("x-clickhouse-summary");
const FORMAT: HeaderName = HeaderName::from_static("x-clickhouse-format");
const EXCEPTION_CODE: HeaderName = HeaderName::from_static("x-clickhouse-exception-code");
const EXCEPTION_TAG: HeaderName = HeaderName::from_static("x-clickhouse-exception-tag");

async fn handle(State(front): State<Arc<Front>>, http: HttpRequest) -> Response {
    let exception_tag = uuid::Uuid::new_v4().simple().to_string()[..16].to_owned();
    let mut headers = vec![
        (DISPLAY_NAME, front.server.name.clone()),
        (TIMEZONE, front.server.timezone.clone()),
        (EXCEPTION_TAG, exception_tag.clone()),
    ];
    let mut encoding = Encoding::Identity;
    let mut response = match answer(&front, http, exception_tag, &mut encoding).await {
        Ok(Answer::Alive) => "Ok.\n".into_response(),
        Ok(Answer::Ran { query_id, reply }) => {
            headers.push((QUERY_ID, query_id));
            headers.push((SUMMARY, summary(reply.counters)));
            if let Some(format) = reply.format {
                headers.push((CONTENT_TYPE, content_type(&format).to_owned()));
                headers.push((FORMAT, format));
            }
            let (body, empty) = match reply.body {
                Body::Whole(bytes) => (HttpBody::from(bytes.clone()), bytes.is_empty()),
                Body::Stream(begun, rest) => (HttpBody::from_stream(pieces(begun, rest)), false),
            };
            if let Some(name) = encoding.name().filter(|_| !empty) {
                headers.push((CONTENT_ENCODING, name.to_owned()));
            }
            Response::new(body)
        }
        Err(exception) => {
            headers.push((EXCEPTION_CODE, exception.code.to_string()));
            headers.push((CONTENT_TYPE, "text/plain; charset=UTF-8".to_owned()));
            // Compressed like a result: it is what a ClickHouse server does, and clients expect it.
            let text = exception.body(&front.server.version);
            let body = match encoding::encode(encoding, text.clone().into()) {
                Ok(body) => {
                    headers.extend(encoding.name().map(|name| (CONTENT_ENCODING, name.to_owned())));
                    body
                }
                Err(_) => text.into(),
            };
            (exception.status, HttpBody::from(body)).into_response()
        }
    };
    for (name, value) in headers {
        // A query id with bytes that no header can carry is not echoed.
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().insert(name, value);
        }
    }
    response
}

enum Answer {
    /// There is no query: a health check.
    Alive,
    Ran {
        query_id: String,
        reply: Reply,
    },
}

/// Runs a request; `encoding` becomes how its answer, also an exception, is to be compressed.
async fn answer(
    front: &Front,
    http: HttpRequest,
    exception_tag: String,
    encoding: &mut Encoding,
) -> Result<Answer, Exception> {
    let Ok(_admitted) = front.admission.try_acquire() else {
        let message = "too many simultaneous queries: try again later";
        return Err(Exception::new(Code::TooManySimultaneousQueries, message));
    };
    let read_only = matches!(*http.method(), Method::GET | Method::HEAD);
    let (parts, body) = http.into_parts();
    let UrlQuery(mut parameters) =
        UrlQuery::<Vec<(String, String)>>::try_from_uri(&parts.uri).map_err(|error| {
            Exception::new(
                Code::BadArguments,
                format!("the URL's parameters are malformed: {error}"),
            )
        })?;
    let (mut body, body_memory) = read(body, front).await?;
    let is_form = |value: &HeaderValue| value.as_bytes().starts_with(b"multipart/form-data");
    if parts.headers.get(header::CONTENT_TYPE).is_some_and(is_form) {
        let mut form = HttpRequest::new(HttpBody::from(std::mem::take(&mut body)));
        *form.headers_mut() = parts.headers.clone();
        parameters.extend(fields(form).await?);
    }
    let mut request = Request::new(parameters, &parts.headers, read_only)?;
    *encoding = request.response_encoding;
    if request.query.is_empty() && body.is_empty() {
        if read_only {
            return Ok(Answer::Alive);
        }
        return Err(Exception::new(
            Code::SyntaxError,
            "syntax error: the query is empty",
        ));
    }
    request.body = body;
    let query_id = request
        .query_id
        .clone()
        .unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
    let (reply, replied) = oneshot::channel();
    let gone = || Exception::new(Code::Unknown, "the server is shutting down");
    front
        .jobs
        .send(Job {
            request,
            body_memory,
            exception_tag,
            reply,
        })
        .await
        .map_err(|_| gone())?;
    let reply = replied.await.map_err(|_| gone())??;
    Ok(Answer::Ran { query_id, reply })
}

/// The whole body, held once, and its share of the memory for bodies. A body that is too large or that ends early
/// (its client died on the way) is an exception: nothing was run.
async fn read(body: HttpBody, front: &Front) -> Result<(Bytes, OwnedSemaphorePermit), Exception> {
    let limit = front.body_bytes_max;
    let too_large = || {
        let message = format!("the body is larger than {limit} bytes: raise --max-body");
        Exception::new(Code::RequestTooLarge, message)
    };
    let too_many = |_| {
        let message = "the bodies of simultaneous queries take too much memory: try again later";
        Exception::new(Code::TooManySimultaneousQueries, message)
    };
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let mut share = Arc::clone(&front.body_memory)
        .try_acquire_many_owned(0)
        .map_err(too_many)?;
    let mut bytes = BytesMut::new();
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| {
            let message = format!("the body ended early, nothing was run: {error}");
            Exception::new(Code::CannotReadAllData, message)
        })?;
        if bytes.len() + piece.len() > limit {
            return Err(too_large());
        }
        bytes.extend_from_slice(&piece);
        let missing = bytes.len().div_ceil(1024) - share.num_permits();
        let missing = u32::try_from(missing).map_err(|_| too_large())?;
        share.merge(
            Arc::clone(&front.body_memory)
                .try_acquire_many_owned(missing)
                .map_err(too_many)?,
        );
    }
    Ok((bytes.freeze(), share))
}

/// The fields of a form, which count as parameters. Files (external tables) are refused.
async fn fields(mut form: HttpRequest) -> Result<Vec<(String, String)>, Exception> {
    // The whole body is here already, within our own limit.
    DefaultBodyLimit::disable().apply(&mut form);
    let malformed = |error: &dyn std::fmt::Display| {
        Exception::new(Code::BadArguments, format!("the form is malformed: {error}"))
    };
    let mut form = Multipart::from_request(form, &())
        .await
        .map_err(|error| malformed(&error.body_text()))?;
    let mut fields = Vec::new();
    while let Some(field) = form
        .next_field()
        .await
        .map_err(|error| malformed(&error.body_text()))?
    {
        let name = field.name().unwrap_or_default().to_owned();
        if name != "query" && !name.starts_with("param_") {
            let message = format!(
                "form field {name:?} is neither query nor param_…: external tables are not supported"
            );
            return Err(Exception::new(Code::NotImplemented, message));
        }
        let value = field
            .text()
            .await
            .map_err(|error| malformed(&error.body_text()))?;
        fields.push((name, value));
    }
    Ok(fields)
}

/// The pieces of a streaming result; an error at the end cuts the connection.
fn pieces(
    begun: Bytes,
    rest: mpsc::Receiver<Result<Bytes, Cut>>,
) -> impl Stream<Item = Result<Bytes, std::io::Error>> {
    stream::unfold((Some(begun), rest), |(begun, mut rest)| async move {
        if let Some(begun) = begun {
            return Some((Ok(begun), (None, rest)));
        }
        match rest.recv().await? {
            Ok(piece) => Some((Ok(piece), (None, rest))),
            Err(Cut) => {
                // What was sent before, the exception's text among it, goes out while this waits for its turn.
                tokio::task::yield_now().await;
                Some((
                    Err(std::io::Error::other(
                        "the query failed in the middle of its result",
                    )),
                    (None, rest),
                ))
            }
        }
    })
}

/// `X-ClickHouse-Summary`: numbers as strings, as ClickHouse sends them.
fn summary(counters: Counters) -> String {
    let Counters {
        read_rows,
        read_bytes,
        written_rows,
        written_bytes,
        result_rows,
    } = counters;
    serde_json::json!({
        "read_rows": read_rows.to_string(),
        "read_bytes": read_bytes.to_string(),
        "written_rows": written_rows.to_string(),
        "written_bytes": written_bytes.to_string(),
        "total_rows_to_read": "0",
        "result_rows": result_rows.max(written_rows).to_string(),
        "result_bytes": "0",
        "elapsed_ns": "0",
    })
    .to_string()
}

fn content_type(format: &str) -> &'static str {
    match format {
        _ if format.starts_with("JSON") && !format.contains("EachRow") => "application/json; charset=UTF-8",
        _ if format.starts_with("JSON") || format == "NDJSON" => "application/x-ndjson; charset=UTF-8",
        _ if format.starts_with("CSV") => "text/csv; charset=UTF-8; header=absent",
        _ if format.starts_with("TabSeparated") || format.starts_with("TSV") => {
            "text/tab-separated-values; charset=UTF-8"
        }
        "Native" | "Parquet" | "ORC" | "Arrow" | "ArrowStream" | "Avro" => "application/octet-stream",
        _ if format.starts_with("RowBinary") => "application/octet-stream",
        _ => "text/plain; charset=UTF-8",
    }
}
