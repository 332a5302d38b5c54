//! A request as ClickHouse's HTTP interface understands it: which URL parameters are the interface's own, which
//! are the query's parameters, and that all others are settings. Pure: no I/O and no engine.

use axum::http::HeaderMap;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use bytes::Bytes;

use crate::encoding::Encoding;
use crate::exception::{Code, Exception};

/// A request that is ready to run.
#[derive(Debug)]
pub(crate) struct Request {
    /// The SQL of the `query` parameter; empty when the body has it.
    pub(crate) query: String,
    pub(crate) body: Bytes,
    /// The body's `Content-Encoding`.
    pub(crate) content_encoding: String,
    /// The body is in ClickHouse's compressed frames.
    pub(crate) decompress: bool,
    pub(crate) response_encoding: Encoding,
    pub(crate) database: Option<String>,
    pub(crate) default_format: Option<String>,
    /// Values of `{name:Type}` in the SQL.
    pub(crate) params: Vec<(String, String)>,
    pub(crate) settings: Vec<(String, String)>,
    /// Answer only when the whole result is there.
    pub(crate) wait_end_of_query: bool,
    /// A GET must not change anything.
    pub(crate) read_only: bool,
    /// A client that wants Native blocks of the native protocol's revision; see [`crate::hello`].
    pub(crate) client_protocol_version: u32,
    pub(crate) query_id: Option<String>,
}

/// Parameters of the interface that mean nothing here: there are no users, roles, quotas or sessions, and
/// what a response buffers is fixed.
const IGNORED: [&str; 14] = [
    "user",
    "password",
    "role",
    "quota_key",
    "session_id",
    "session_timeout",
    "session_check",
    "close_session",
    "buffer_size",
    "stacktrace",
    "http_response_headers",
    "framing",
    "add_http_cors_header",
    "_request_body",
];

impl Request {
    /// From the URL's parameters, the headers and, for a form, the body's fields (which count as parameters).
    pub(crate) fn new(
        parameters: Vec<(String, String)>,
        headers: &HeaderMap,
        read_only: bool,
    ) -> Result<Request, Exception> {
        let header = |name: &str| {
            headers
                .get(name)
                .and_then(|value| value.to_str().ok())
                .map(str::to_owned)
        };
        let mut request = Request {
            query: String::new(),
            body: Bytes::new(),
            content_encoding: header(CONTENT_ENCODING.as_str()).unwrap_or_default(),
            decompress: false,
            response_encoding: Encoding::accepted(&header(ACCEPT_ENCODING.as_str()).unwrap_or_default()),
            database: header("x-clickhouse-database"),
            default_format: header("x-clickhouse-format"),
            params: Vec::new(),
            settings: Vec::new(),
            wait_end_of_query: false,
            read_only,
            client_protocol_version: 0,
            query_id: header("x-clickhouse-query-id"),
        };
        let mut frames = false;
        for (name, value) in parameters {
            match name.as_str() {
                "query" => request.query.push_str(&value),
                "database" => request.database = Some(value),
                "default_format" => request.default_format = Some(value),
                "query_id" => request.query_id = Some(value),
                "compress" => frames = flag(&name, &value)?,
                "decompress" => request.decompress = flag(&name, &value)?,
                "wait_end_of_query" => request.wait_end_of_query = flag(&name, &value)?,
                "client_protocol_version" => request.client_protocol_version = value.parse().unwrap_or(0),
                "enable_http_compression" => {
                    if !flag(&name, &value)? {
                        request.response_encoding = Encoding::Identity;
                    }
                }
                ignored if IGNORED.contains(&ignored) => {}
                other => match other.strip_prefix("param_") {
                    Some(parameter) => request.params.push((parameter.to_owned(), value)),
                    None => request.settings.push((name, value)),
                },
            }
        }
        if frames {
            request.response_encoding = Encoding::Frames;
        }
        request.database = request.database.filter(|name| !name.is_empty());
        request.default_format = request.default_format.filter(|name| !name.is_empty());
        request.query_id = request.query_id.filter(|id| !id.is_empty());
        Ok(request)
    }

    /// The statements that prepare a fresh session for this request: its database and its settings.
    pub(crate) fn preparation(&self) -> Result<Vec<String>, Exception> {
        let mut statements = Vec::new();
        if let Some(database) = &self.database {
            statements.push(format!("USE {}", quoted(database, '`')));
        }
        let mut settings = Vec::new();
        for (name, value) in &self.settings {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'.';
            if name.is_empty() || !name.bytes().all(plain) || name.as_bytes()[0].is_ascii_digit() {
                return Err(Exception::new(
                    Code::UnknownSetting,
                    format!("unknown setting {name:?}"),
                ));
            }
            settings.push(format!("{name} = {}", quoted(value, '\'')));
        }
        if self.read_only && !self.settings.iter().any(|(name, _)| name == "readonly") {
            settings.push("readonly = 2".to_owned());
        }
        if !settings.is_empty() {
            statements.push(format!("SET {}", settings.join(", ")));
        }
        Ok(statements)
    }
}

fn flag(name: &str, value: &str) -> Result<bool, Exception> {
    match value {
        "1" | "true" => Ok(true),
        "0" | "false" | "" => Ok(false),
        _ => Err(Exception::new(
            Code::BadArguments,
            format!("parameter {name} is {value:?}, neither 0 nor 1"),
        )),
    }
}

fn quoted(text: &str, quote: char) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push(quote);
    for character in text.chars() {
        match character {
            '\\' => out.push_str("\\\\"),
            '\0' => out.push_str("\\0"),
            _ if character == quote => out.extend(['\\', quote]),
            _ => out.push(character),
        }
    }
    out.push(quote);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(parameters: &[(&str, &str)]) -> Result<Request, Exception> {
        let parameters = parameters
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Request::new(parameters.collect(), &HeaderMap::new(), false)
    }

    #[test]
    fn what_the_interface_does_not_know_is_a_setting() {
        let request = request(&[
            ("query", "SELECT 1"),
            ("database", "d`b"),
            ("user", "me"),
            ("session_id", "x"),
            ("param_a", "1"),
            ("max_threads", "4"),
            ("insert_deduplication_token", "it's \\ me"),
            ("wait_end_of_query", "1"),
        ])
        .unwrap();
        assert!(request.wait_end_of_query);
        assert_eq!(request.params, [("a".to_owned(), "1".to_owned())]);
        assert_eq!(
            request.preparation().unwrap(),
            [
                "USE `d\\`b`",
                "SET max_threads = '4', insert_deduplication_token = 'it\\'s \\\\ me'"
            ]
        );
    }

    #[test]
    fn a_settings_name_cannot_carry_sql() {
        for name in ["a = 1, b", "", "1a", "a'"] {
            assert_eq!(
                request(&[(name, "1")]).unwrap().preparation().unwrap_err().code,
                115,
                "{name:?}"
            );
        }
    }

    #[test]
    fn a_get_is_read_only() {
        let request = Request::new(Vec::new(), &HeaderMap::new(), true).unwrap();
        assert_eq!(request.preparation().unwrap(), ["SET readonly = 2"]);
    }

    #[test]
    fn frames_win_over_content_encodings() {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT_ENCODING, "gzip".parse().unwrap());
        let parameters = vec![("compress".to_owned(), "1".to_owned())];
        assert_eq!(
            Request::new(parameters, &headers, false)
                .unwrap()
                .response_encoding,
            Encoding::Frames
        );
        assert_eq!(
            Request::new(Vec::new(), &headers, false)
                .unwrap()
                .response_encoding,
            Encoding::Gzip
        );
        assert_eq!(request(&[("compress", "x")]).unwrap_err().code, 36);
    }
}
