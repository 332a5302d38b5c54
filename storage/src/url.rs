//! The URL of a buffer: `s3://bucket/prefix`, `gs://…`, `az://…`, `file:///dir`, `memory:///`.
//!
//! This module only parses; it opens nothing.

use object_store::path::Path;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The URL of a buffer. Paths and prefixes are literal: `%20` is three characters.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct BufferUrl(pub(crate) Place);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    Bucket {
        service: Service,
        bucket: String,
        prefix: String,
    },
    Directory(PathBuf),
    Memory,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Service {
    S3,
    Gcs,
    Azure,
}

/// Why a text is not a buffer's URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{url:?} is not a buffer URL: {why}; write s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, file:///dir or memory:///"
)]
pub struct BufferUrlError {
    url: String,
    why: String,
}

impl BufferUrl {
    /// Parses a URL and ignores trailing slashes.
    ///
    /// # Errors
    /// The text is not a valid URL. The error names the problem.
    pub fn parse(url: &str) -> Result<Self, BufferUrlError> {
        parse(url).map(Self).map_err(|why| BufferUrlError {
            url: url.to_owned(),
            why,
        })
    }
}

impl FromStr for BufferUrl {
    type Err = BufferUrlError;

    fn from_str(url: &str) -> Result<Self, Self::Err> {
        Self::parse(url)
    }
}

impl fmt::Display for BufferUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Bucket {
                service,
                bucket,
                prefix,
            } => {
                write!(f, "{service}://{bucket}")?;
                if !prefix.is_empty() {
                    write!(f, "/{prefix}")?;
                }
                Ok(())
            }
            Place::Directory(path) => write!(f, "file://{}", path.display()),
            Place::Memory => f.write_str("memory:///"),
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::S3 => "s3",
            Self::Gcs => "gs",
            Self::Azure => "az",
        })
    }
}

fn parse(url: &str) -> Result<Place, String> {
    let Some((scheme, rest)) = url.split_once("://") else {
        return Err("it has no scheme".to_owned());
    };
    match scheme {
        "s3" => bucket(Service::S3, rest),
        "gs" => bucket(Service::Gcs, rest),
        "az" => bucket(Service::Azure, rest),
        "file" => directory(rest),
        "memory" if rest.is_empty() || rest == "/" => Ok(Place::Memory),
        "memory" => Err("memory:/// takes no path".to_owned()),
        _ => Err(format!("the scheme {scheme:?} is unknown")),
    }
}

fn bucket(service: Service, rest: &str) -> Result<Place, String> {
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    if bucket.is_empty() {
        return Err("it names no bucket".to_owned());
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':');
    if let Some(odd) = bucket.chars().find(|&c| !allowed(c)) {
        return Err(format!("a bucket's name has no {odd:?}"));
    }
    if let Some(odd) = prefix.chars().find(|c| matches!(c, '?' | '#')) {
        return Err(format!(
            "a prefix has no {odd:?}; settings are options, not a part of the URL"
        ));
    }
    let prefix = prefix.trim_end_matches('/');
    Path::parse(prefix).map_err(|error| format!("its prefix is not a valid key: {error}"))?;
    if prefix.starts_with('/') {
        return Err("its prefix starts with a slash".to_owned());
    }
    Ok(Place::Bucket {
        service,
        bucket: bucket.to_owned(),
        prefix: prefix.to_owned(),
    })
}

fn directory(rest: &str) -> Result<Place, String> {
    if !rest.starts_with('/') {
        return Err("a directory needs an absolute path after three slashes, file:///dir".to_owned());
    }
    let path = rest.trim_end_matches('/');
    if path.is_empty() {
        return Err("it names no directory".to_owned());
    }
    Ok(Place::Directory(PathBuf::from(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn good_urls_are_read_and_written_back() {
        for (text, written) in [
            ("s3://bucket", "s3://bucket"),
            ("s3://bucket/", "s3://bucket"),
            ("s3://my.bucket-1/a/b c/", "s3://my.bucket-1/a/b c"),
            ("gs://b_1/x", "gs://b_1/x"),
            ("az://container/x", "az://container/x"),
            ("file:///tmp/x/", "file:///tmp/x"),
            ("memory:///", "memory:///"),
            ("memory://", "memory:///"),
        ] {
            let url = BufferUrl::parse(text).expect(text);
            assert_eq!(url.to_string(), written);
            assert_eq!(written.parse(), Ok(url));
        }
    }

    #[test]
    fn bad_urls_are_refused_with_a_reason() {
        for (text, reason) in [
            ("", "no scheme"),
            ("/tmp/x", "no scheme"),
            ("http://x/y", "\"http\" is unknown"),
            ("S3://bucket", "\"S3\" is unknown"),
            ("s3://", "no bucket"),
            ("s3:///prefix", "no bucket"),
            ("s3://user@bucket/x", "no '@'"),
            ("s3://bucket/a//b", "prefix is not a valid key"),
            ("s3://bucket//a", "prefix"),
            ("s3://bucket/../x", "prefix is not a valid key"),
            ("s3://bucket/x?region=y", "no '?'"),
            ("file://tmp/x", "three slashes"),
            ("file:///", "no directory"),
            ("memory:///x", "no path"),
        ] {
            let error = BufferUrl::parse(text).expect_err(text).to_string();
            assert!(error.contains(reason), "{text}: {error}");
            assert!(error.contains("write s3://"), "{text}: {error}");
        }
    }
}
