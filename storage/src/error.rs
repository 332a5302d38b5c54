//! Errors of requests: one sentence and one of three kinds.
//!
//! `object_store` hides the HTTP status of a refusal: only the text of an error's source has it. This module alone
//! parses that text, and the conformance suite checks it against a real server.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::time::Duration;

/// A request that did not succeed. For a write this does *not* mean that nothing was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot {operation} {key:?} in {url}: {cause}")]
pub struct Error {
    kind: ErrorKind,
    operation: &'static str,
    key: String,
    url: String,
    cause: String,
}

/// What the caller can do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The store or the network has a problem: retry.
    Transient,
    /// The store refuses these credentials: somebody must grant access. After that a retry succeeds.
    Denied,
    /// The request can never succeed (no such bucket, wrong region, bad key, an unexpected object).
    Misconfigured,
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Transient => "transient",
            Self::Denied => "denied",
            Self::Misconfigured => "misconfigured",
        })
    }
}

impl Error {
    /// What the caller can do about it.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The key of the request, relative to the buffer.
    pub fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn unsent(key: &str, url: &str, reason: String) -> Self {
        Self {
            kind: ErrorKind::Misconfigured,
            operation: "compare and set",
            key: key.to_owned(),
            url: url.to_owned(),
            cause: reason,
        }
    }

    pub(crate) fn new(operation: &'static str, key: &str, url: &str, failure: &Failure) -> Self {
        Self {
            kind: failure.kind(),
            operation,
            key: key.to_owned(),
            url: url.to_owned(),
            cause: failure.cause(),
        }
    }
}

/// Why one attempt failed, in a form that the caller never sees.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The store, or the client in front of it, returned an error.
    Store(object_store::Error),
    /// No answer within the request's timeout.
    Timeout(Duration),
    /// The request or its answer is invalid.
    Invalid(String),
}

impl From<object_store::Error> for Failure {
    fn from(error: object_store::Error) -> Self {
        Self::Store(error)
    }
}

/// The start of `object_store` 0.14's text for an HTTP server's refusal, at some depth of its error.
const REFUSAL: &str = "Server returned non-2xx status code: ";
/// How stores without a server refuse a range that starts behind the object's end.
const RANGE_BEYOND: &str = "Wanted range starting at";
const BARE_REDIRECT: &str = "Received redirect without LOCATION";

impl Failure {
    /// Returns true if the object itself is absent, and not its bucket.
    pub(crate) fn is_absent(&self) -> bool {
        matches!(self, Self::Store(object_store::Error::NotFound { .. })) && !self.is_missing_bucket()
    }

    pub(crate) fn is_missing_bucket(&self) -> bool {
        let Self::Store(error) = self else {
            return false;
        };
        let Some(refusal) = refusal(error) else {
            return false;
        };
        // S3, GCS and MinIO; Azure.
        matches!(code(&refusal), Some("NoSuchBucket" | "ContainerNotFound"))
    }

    /// Returns true if the store refused a conditional write because the condition does not hold.
    ///
    /// A 409 is no such decision. S3 answers `ConditionalRequestConflict` while another conditional write to the key is
    /// in progress: it wrote nothing and did not evaluate the condition. `object_store` maps that to `AlreadyExists`
    /// too. Only Azure uses 409 the way S3 uses 412, with the code `BlobAlreadyExists`.
    pub(crate) fn is_refused_condition(&self) -> bool {
        let Self::Store(error) = self else {
            return false;
        };
        if !matches!(
            error,
            object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }
        ) {
            return false;
        }
        match refusal(error) {
            None => true,
            Some(text) if status(&text) == Some(409) => code(&text) == Some("BlobAlreadyExists"),
            Some(_) => !self.is_missing_bucket(),
        }
    }

    pub(crate) fn kind(&self) -> ErrorKind {
        let error = match self {
            Self::Timeout(_) => return ErrorKind::Transient,
            Self::Invalid(_) => return ErrorKind::Misconfigured,
            Self::Store(error) => error,
        };
        if self.is_missing_bucket() {
            return ErrorKind::Misconfigured;
        }
        if let Some(text) = refusal(error) {
            return refusal_kind(&text);
        }
        for cause in chain(error) {
            if cause.to_string().starts_with(RANGE_BEYOND) {
                return ErrorKind::Misconfigured;
            }
            if let Some(io) = cause.downcast_ref::<io::Error>() {
                return io_kind(io);
            }
        }
        match error {
            object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
                ErrorKind::Denied
            }
            object_store::Error::InvalidPath { .. }
            | object_store::Error::NotSupported { .. }
            | object_store::Error::NotImplemented { .. }
            | object_store::Error::UnknownConfigurationKey { .. } => ErrorKind::Misconfigured,
            _ => ErrorKind::Transient,
        }
    }

    pub(crate) fn cause(&self) -> String {
        match self {
            Self::Timeout(after) => format!("no answer within {} s", after.as_secs_f64()),
            Self::Invalid(what) => what.clone(),
            Self::Store(error) => match refusal(error) {
                Some(text) => readable_refusal(&text),
                // The outer layers repeat the address and the operation; only the innermost explains the error.
                None => chain(error)
                    .last()
                    .map_or_else(|| error.to_string(), ToString::to_string),
            },
        }
    }
}

fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    let mut next = Some(error);
    std::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    })
}

/// The server's refusal as "<status> <reason>: <body>", if a server refused.
fn refusal(error: &object_store::Error) -> Option<String> {
    chain(error).find_map(|cause| {
        let text = cause.to_string();
        if text.starts_with(BARE_REDIRECT) {
            return Some(format!("301 {text}"));
        }
        text.strip_prefix(REFUSAL).map(str::to_owned)
    })
}

fn status(refusal: &str) -> Option<u16> {
    refusal.get(..3)?.parse().ok()
}

pub(crate) fn refusal_kind(refusal: &str) -> ErrorKind {
    match status(refusal) {
        Some(401 | 403) => ErrorKind::Denied,
        Some(400) if code(refusal) == Some("ExpiredToken") => ErrorKind::Denied,
        // Another conditional request in progress; a timeout on the server's side; a request to slow down.
        Some(408 | 409 | 429) => ErrorKind::Transient,
        // S3 answers 400 RequestTimeout when an upload stalls.
        Some(400) if code(refusal) == Some("RequestTimeout") => ErrorKind::Transient,
        Some(501) => ErrorKind::Misconfigured,
        Some(300..=499) => ErrorKind::Misconfigured,
        _ => ErrorKind::Transient,
    }
}

fn io_kind(error: &io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::PermissionDenied => ErrorKind::Denied,
        io::ErrorKind::ReadOnlyFilesystem
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::IsADirectory
        | io::ErrorKind::InvalidFilename
        | io::ErrorKind::Unsupported => ErrorKind::Misconfigured,
        _ => ErrorKind::Transient,
    }
}

/// Builds "403 Forbidden: AccessDenied: Access Denied." from the status line and the XML after it.
pub(crate) fn readable_refusal(refusal: &str) -> String {
    let line = refusal.split_once(": ").map_or(refusal, |(line, _)| line);
    let told: Vec<&str> = [element(refusal, "Code"), element(refusal, "Message")]
        .into_iter()
        .flatten()
        .collect();
    if told.is_empty() {
        // Not S3's XML: keep a bounded piece of it.
        return refusal.chars().take(300).collect();
    }
    format!("{line}: {}", told.join(": "))
}

/// The store's code for the refusal. The rest of the text repeats the key, which others choose.
fn code(refusal: &str) -> Option<&str> {
    element(refusal, "Code")
}

fn element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    Some(text.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("Error performing PUT")]
    struct Outer(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Inner(String);

    fn source(text: &str) -> Box<Outer> {
        Box::new(Outer(Inner(format!("{REFUSAL}{text}"))))
    }

    fn exists(text: &str) -> Failure {
        Failure::Store(object_store::Error::AlreadyExists {
            path: "k".into(),
            source: source(text),
        })
    }

    #[test]
    fn a_412_is_a_refused_condition() {
        let inner = object_store::Error::Precondition {
            path: "k".into(),
            source: source("412 Precondition Failed: <Code>PreconditionFailed</Code>"),
        };
        let failure = Failure::Store(object_store::Error::AlreadyExists {
            path: "k".into(),
            source: Box::new(inner),
        });
        assert!(failure.is_refused_condition());
    }

    #[test]
    fn a_409_of_s3_decides_nothing_and_is_transient() {
        let failure = exists("409 Conflict: <Code>ConditionalRequestConflict</Code>");
        assert!(!failure.is_refused_condition());
        assert_eq!(failure.kind(), ErrorKind::Transient);
    }

    #[test]
    fn a_409_of_azure_means_that_the_object_exists() {
        assert!(exists("409 Conflict: <Code>BlobAlreadyExists</Code>").is_refused_condition());
    }

    #[test]
    fn an_update_in_a_missing_bucket_is_no_mismatch() {
        let failure = Failure::Store(object_store::Error::Precondition {
            path: "k".into(),
            source: source("404 Not Found: <Code>NoSuchBucket</Code>"),
        });
        assert!(!failure.is_refused_condition());
        assert_eq!(failure.kind(), ErrorKind::Misconfigured);
    }

    #[test]
    fn a_key_decides_nothing() {
        let absent = Failure::Store(object_store::Error::NotFound {
            path: "k".into(),
            source: source("404 Not Found: <Code>NoSuchKey</Code><Key>consumers/NoSuchBucket/cursor</Key>"),
        });
        assert!(absent.is_absent());
        let busy =
            exists("409 Conflict: <Code>ConditionalRequestConflict</Code><Key>BlobAlreadyExists</Key>");
        assert!(!busy.is_refused_condition());
        let wrong = Failure::Store(object_store::Error::Generic {
            store: "S3",
            source: source(
                "400 Bad Request: <Code>InvalidArgument</Code><Key>RequestTimeout/ExpiredToken</Key>",
            ),
        });
        assert_eq!(wrong.kind(), ErrorKind::Misconfigured);
    }

    #[test]
    fn a_refusal_shows_the_servers_message_without_its_xml() {
        let failure = exists(
            "503 Service Unavailable: <?xml?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>",
        );
        let error = Error::new("put", "a/b", "s3://bucket", &failure);
        assert_eq!(
            error.to_string(),
            "cannot put \"a/b\" in s3://bucket: 503 Service Unavailable: SlowDown: Please reduce your request rate."
        );
        assert_eq!(error.kind(), ErrorKind::Transient);
    }
}
