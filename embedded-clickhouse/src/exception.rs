//! ClickHouse's exceptions as an HTTP client sees them: a code, a text in ClickHouse's own form and the HTTP
//! status that a ClickHouse server answers for that code. It never invents a code for an engine's error.

use axum::http::StatusCode;

/// An error of the engine, or one of ours in the same form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exception {
    /// ClickHouse's number, sent as `X-ClickHouse-Exception-Code`.
    pub(crate) code: u32,
    /// The status of the response, when nothing of a result was sent before.
    pub(crate) status: StatusCode,
    /// `Code: N. DB::Exception: … (NAME)`, perhaps with the version after it.
    text: String,
}

/// The codes of ClickHouse that this program raises itself.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Code {
    CannotReadAllData = 33,
    BadArguments = 36,
    ChecksumDoesntMatch = 40,
    NotImplemented = 48,
    SyntaxError = 62,
    UnknownCompressionMethod = 89,
    UnknownSetting = 115,
    TooManySimultaneousQueries = 202,
    CannotDecompress = 271,
    RequestTooLarge = 307,
    Unknown = 1001,
}

impl Code {
    fn name(self) -> &'static str {
        match self {
            Code::CannotReadAllData => "CANNOT_READ_ALL_DATA",
            Code::BadArguments => "BAD_ARGUMENTS",
            Code::ChecksumDoesntMatch => "CHECKSUM_DOESNT_MATCH",
            Code::NotImplemented => "NOT_IMPLEMENTED",
            Code::SyntaxError => "SYNTAX_ERROR",
            Code::UnknownCompressionMethod => "UNKNOWN_COMPRESSION_METHOD",
            Code::UnknownSetting => "UNKNOWN_SETTING",
            Code::TooManySimultaneousQueries => "TOO_MANY_SIMULTANEOUS_QUERIES",
            Code::CannotDecompress => "CANNOT_DECOMPRESS",
            Code::RequestTooLarge => "TOO_MANY_BYTES",
            Code::Unknown => "STD_EXCEPTION",
        }
    }
}

impl Exception {
    /// One of ours. `message` says what, to what and what to do.
    pub(crate) fn new(code: Code, message: impl std::fmt::Display) -> Exception {
        let number = code as u32;
        let text = format!("Code: {number}. DB::Exception: {message} ({})", code.name());
        let status = match code {
            Code::CannotReadAllData | Code::ChecksumDoesntMatch | Code::CannotDecompress => {
                StatusCode::BAD_REQUEST
            }
            Code::UnknownCompressionMethod | Code::BadArguments => StatusCode::BAD_REQUEST,
            Code::TooManySimultaneousQueries => StatusCode::SERVICE_UNAVAILABLE,
            Code::RequestTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            _ => status_of(number),
        };
        Exception {
            code: number,
            status,
            text,
        }
    }

    /// The engine's text, which opens with its code. A text without one is of no ClickHouse exception.
    pub(crate) fn from_engine(text: String) -> Exception {
        let code = text
            .split_once("Code: ")
            .and_then(|(_, rest)| rest.split_once('.'))
            .and_then(|(number, _)| number.parse().ok());
        match code {
            Some(code) => Exception {
                code,
                status: status_of(code),
                text,
            },
            None => Exception::new(Code::Unknown, text),
        }
    }

    /// The body of the response: the text, ClickHouse's version and a line end.
    pub(crate) fn body(&self, version: &str) -> String {
        // The engine adds its version to some texts; a server has it on all, and clients cut at it.
        let text = self.text.trim_end();
        let text = text
            .strip_suffix(&format!(" (version {version})"))
            .unwrap_or(text);
        format!("{text} (version {version} (official build))\n")
    }
}

/// The status that ClickHouse's HTTP server gives each exception code (its `exceptionCodeToHTTPStatus`).
fn status_of(code: u32) -> StatusCode {
    match code {
        // Something cannot be parsed, or makes no sense.
        6 | 25 | 26 | 27 | 37 | 38 | 41 | 53 | 62 | 72 | 117 | 123 | 167 | 168 | 223 => {
            StatusCode::BAD_REQUEST
        }
        // Something that the query names does not exist: a function, column, type, table, setting, …
        46 | 47 | 50 | 56 | 60 | 63 | 73 | 78 | 81 | 115 | 152 | 336 => StatusCode::NOT_FOUND,
        194 => StatusCode::UNAUTHORIZED,
        192 | 193 | 516 => StatusCode::FORBIDDEN,
        229 => StatusCode::PAYLOAD_TOO_LARGE,
        48 => StatusCode::NOT_IMPLEMENTED,
        76 | 209 => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engines_text_keeps_its_code_and_gets_the_servers_status() {
        let missing = Exception::from_engine("Code: 60. DB::Exception: no table. (UNKNOWN_TABLE)".to_owned());
        assert_eq!((missing.code, missing.status), (60, StatusCode::NOT_FOUND));
        assert_eq!(
            missing.body("26.7.2.1"),
            "Code: 60. DB::Exception: no table. (UNKNOWN_TABLE) (version 26.7.2.1 (official build))\n"
        );
    }

    #[test]
    fn the_version_is_in_the_body_once() {
        let text = "Code: 27. DB::Exception: what. (X) (version 26.7.2.1)".to_owned();
        let body = Exception::from_engine(text).body("26.7.2.1");
        assert_eq!(body.matches("26.7.2.1").count(), 1, "{body}");
    }

    #[test]
    fn a_text_without_a_code_is_a_standard_exception() {
        let odd = Exception::from_engine("boom".to_owned());
        assert_eq!((odd.code, odd.status), (1001, StatusCode::INTERNAL_SERVER_ERROR));
    }
}
