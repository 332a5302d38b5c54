//! Requests to ClickHouse's HTTP interface: one attempt each, within the timeout, and no answer larger than its limit.

use crate::answer::{self, ANSWER_BYTES_MAX, AnswerError, Rows};
use crate::config::Config;
use bytes::Bytes;
use reqwest::header::{HeaderMap, HeaderValue, USER_AGENT};
use reqwest::{Body, Response, Url};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;
use thiserror::Error;

/// A server closes an idle connection after 3 seconds by default (`keep_alive_timeout`).
const IDLE: Duration = Duration::from_secs(2);

/// A server that is away may not even refuse a connection.
const CONNECT: Duration = Duration::from_secs(10);

const TCP_KEEPALIVE: Duration = Duration::from_secs(60);

/// A failed request.
#[derive(Debug, Error)]
pub(crate) enum Error {
    /// The URL, the user or the password cannot be sent.
    #[error("{0}")]
    Settings(String),
    /// No connection, or a cut one.
    #[error("network error: {0}")]
    Network(String),
    /// An answer in another protocol.
    #[error("the answer is not HTTP; for TLS give https://")]
    NotHttp,
    /// No answer in time.
    #[error("timeout: no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    /// An HTTP status that is no exception of ClickHouse's.
    #[error("HTTP status {status}: {text}")]
    Status {
        /// The number.
        status: u16,
        /// The beginning of the body.
        text: String,
    },
    /// ClickHouse refused the request.
    #[error("{text}")]
    Exception {
        /// ClickHouse's number.
        code: u32,
        /// As the server wrote it: at most 64 KiB.
        text: String,
    },
    /// An answer of which the sink can make nothing.
    #[error("{0}")]
    Answer(AnswerError),
}

impl From<AnswerError> for Error {
    fn from(error: AnswerError) -> Self {
        match error {
            AnswerError::Exception { code, text } => Error::Exception { code, text },
            error => Error::Answer(error),
        }
    }
}

impl From<reqwest::Error> for Error {
    fn from(error: reqwest::Error) -> Self {
        if speaks_no_http(&error) {
            return Error::NotHttp;
        }
        // The URL has a token and a query.
        let error = error.without_url();
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(inner) = cause {
            let inner_text = inner.to_string();
            if !text.contains(&inner_text) {
                text = format!("{text}: {inner_text}");
            }
            cause = inner.source();
        }
        Error::Network(text)
    }
}

/// Reports whether the other side sent what no HTTP server sends. A server that greets its clients may do so before the request.
fn speaks_no_http(error: &reqwest::Error) -> bool {
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        // hyper has no method that recognises the second kind. Without it, a start against an SSH port retries forever.
        if let Some(hyper) = inner.downcast_ref::<hyper::Error>()
            && (hyper.is_parse() || hyper.to_string().contains("unexpected message"))
        {
            return true;
        }
        cause = inner.source();
    }
    false
}

/// A server, and the settings of every request to it. Cheap to clone but for the settings; clones share connections.
#[derive(Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    url: Url,
    settings: BTreeMap<String, String>,
    timeout: Duration,
}

impl Client {
    /// Sends nothing yet. `url`: without parameters.
    pub(crate) fn new(config: &Config, url: &str) -> Result<Self, Error> {
        let unusable = |what: &str| Error::Settings(format!("{what} cannot be sent in an HTTP header"));
        let mut headers = HeaderMap::new();
        let agent = concat!("millpond/", env!("CARGO_PKG_VERSION"));
        headers.insert(USER_AGENT, HeaderValue::from_static(agent));
        let credentials = [
            ("x-clickhouse-user", &config.user, "the user"),
            ("x-clickhouse-key", &config.password, "the password"),
        ];
        for (name, value, what) in credentials {
            if let Some(value) = value {
                let mut value = HeaderValue::from_str(value).map_err(|_| unusable(what))?;
                value.set_sensitive(true);
                headers.insert(name, value);
            }
        }
        let http = reqwest::Client::builder()
            .default_headers(headers)
            .http1_only()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .pool_idle_timeout(IDLE)
            .tcp_keepalive(TCP_KEEPALIVE)
            .connect_timeout(CONNECT)
            .build()
            .map_err(|error| Error::Settings(format!("no HTTP client can be made: {error}")))?;
        let url =
            Url::parse(url).map_err(|error| Error::Settings(format!("{url:?} is not a URL: {error}")))?;
        Ok(Client {
            http,
            url,
            settings: BTreeMap::new(),
            timeout: Duration::from_secs(config.timeout_seconds),
        })
    }

    /// The same server, with one more setting or another value of it.
    #[must_use]
    pub(crate) fn with_setting(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.insert(name.into(), value.into());
        self
    }

    /// Runs a statement that answers nothing of interest.
    pub(crate) async fn execute(&self, sql: &str) -> Result<(), Error> {
        let request = self.http.post(self.address(&[])).body(sql.to_owned());
        self.in_time(statement(request)).await
    }

    /// Asks for at most 1 MiB of rows. A row is an array of JSON.
    pub(crate) async fn rows<T: DeserializeOwned>(&self, sql: &str) -> Result<Vec<T>, Error> {
        self.rows_of(sql, ANSWER_BYTES_MAX).await
    }

    /// Asks for rows of at most `limit` bytes.
    pub(crate) async fn rows_of<T: DeserializeOwned>(
        &self,
        sql: &str,
        limit: usize,
    ) -> Result<Vec<T>, Error> {
        let format = [
            ("default_format", answer::FORMAT),
            ("output_format_json_quote_64bit_integers", "0"),
        ];
        let request = self.http.post(self.address(&format)).body(sql.to_owned());
        self.in_time(rows(request, limit)).await
    }

    /// Asks for rows of one column.
    pub(crate) async fn values<T: DeserializeOwned>(&self, sql: &str) -> Result<Vec<T>, Error> {
        let rows = self.rows::<(T,)>(sql).await?;
        Ok(rows.into_iter().map(|(value,)| value).collect())
    }

    /// Asks for one value.
    pub(crate) async fn value<T: DeserializeOwned>(&self, sql: &str) -> Result<T, Error> {
        let value = self.values(sql).await?.pop();
        value.ok_or_else(|| AnswerError::Unreadable("it has no rows".to_owned()).into())
    }

    /// Sends rows: `frames` are the body, one after the other.
    pub(crate) async fn insert(&self, sql: &str, frames: &[Bytes]) -> Result<(), Error> {
        let frames: Vec<_> = frames.iter().cloned().map(Ok::<_, Infallible>).collect();
        let body = Body::wrap_stream(futures::stream::iter(frames));
        let request = self.http.post(self.address(&[("query", sql)])).body(body);
        self.in_time(statement(request)).await
    }

    fn address(&self, further: &[(&str, &str)]) -> Url {
        let mut url = self.url.clone();
        let settings = self
            .settings
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        let further = further.iter().copied();
        url.query_pairs_mut().extend_pairs(further.chain(settings));
        url
    }

    async fn in_time<T>(&self, request: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let outcome = tokio::time::timeout(self.timeout, request).await;
        outcome.unwrap_or(Err(Error::Timeout(self.timeout)))
    }
}

async fn statement(request: reqwest::RequestBuilder) -> Result<(), Error> {
    let mut response = accepted(request.send().await?).await?;
    let mut text = Vec::new();
    let mut length = 0;
    while let Some(piece) = response.chunk().await? {
        length += piece.len();
        if length > ANSWER_BYTES_MAX {
            return Err(AnswerError::TooLarge(ANSWER_BYTES_MAX).into());
        }
        text.extend_from_slice(&piece);
    }
    match answer::late_exception(&String::from_utf8_lossy(&text)) {
        Some(exception) => Err(exception.into()),
        None => Ok(()),
    }
}

async fn rows<T: DeserializeOwned>(request: reqwest::RequestBuilder, limit: usize) -> Result<Vec<T>, Error> {
    let mut response = accepted(request.send().await?).await?;
    let mut rows = Rows::new(limit);
    while let Some(piece) = response.chunk().await? {
        rows.push(&piece)?;
    }
    Ok(rows.end()?)
}

/// Returns a response that is no error. Of an error's body it reads the beginning, and drops the connection with the rest.
async fn accepted(mut response: Response) -> Result<Response, Error> {
    let code = response.headers().get("x-clickhouse-exception-code");
    let code: Option<u32> = code.and_then(|code| code.to_str().ok()?.parse().ok());
    let status = response.status();
    if status == reqwest::StatusCode::OK && code.is_none() {
        return Ok(response);
    }
    let mut text = Vec::new();
    // The status is known, whatever becomes of the body.
    while let Ok(Some(piece)) = response.chunk().await {
        answer::keep(&mut text, &piece);
        if text.len() == answer::ERROR_BYTES_MAX {
            break;
        }
    }
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    Err(match code.or_else(|| answer::exception_code(&text)) {
        Some(code) => Error::Exception { code, text },
        None => Error::Status {
            status: status.as_u16(),
            text: if text.is_empty() {
                status.canonical_reason().unwrap_or("no reason given").to_owned()
            } else {
                text
            },
        },
    })
}

#[cfg(test)]
mod tests;
