//! The streams that a consumer reads, of those that its sink accepts.

use std::fmt;
use std::str::FromStr;

/// A stream's name, or a prefix of names with `*` at its end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamPattern {
    text: String,
    open: bool,
}

/// A pattern that no stream can match.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no stream's name: use the characters a-z A-Z 0-9 . _ - and, at its end alone, * for any rest"
)]
pub struct BadPattern(String);

impl StreamPattern {
    /// The pattern that matches every stream.
    pub fn any() -> StreamPattern {
        StreamPattern {
            text: String::new(),
            open: true,
        }
    }

    /// Matches only the stream with this name.
    pub(crate) fn exactly(stream: &str) -> StreamPattern {
        StreamPattern {
            text: stream.to_owned(),
            open: false,
        }
    }

    /// Returns true if the pattern matches this name.
    pub fn matches(&self, stream: &str) -> bool {
        match self.open {
            true => stream.starts_with(&self.text),
            false => stream == self.text,
        }
    }
}

impl FromStr for StreamPattern {
    type Err = BadPattern;

    fn from_str(pattern: &str) -> Result<StreamPattern, BadPattern> {
        let (text, open) = match pattern.strip_suffix('*') {
            Some(text) => (text, true),
            None => (pattern, false),
        };
        let named = text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if pattern.is_empty() || !named {
            return Err(BadPattern(pattern.to_owned()));
        }
        Ok(StreamPattern {
            text: text.to_owned(),
            open,
        })
    }
}

impl fmt::Display for StreamPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.text, if self.open { "*" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_at_the_end_stands_for_any_rest() {
        for (pattern, matching, other) in [
            ("*", &["otlp.logs", "acme.otlp.logs"][..], &[][..]),
            (
                "acme.*",
                &["acme.otlp.logs", "acme.events"],
                &["acme", "acme-2.otlp.logs", "otlp.logs"],
            ),
            ("otlp.*", &["otlp.logs"], &["acme.otlp.logs"]),
            (
                "otlp.logs",
                &["otlp.logs"],
                &["otlp.logs2", "otlp", "acme.otlp.logs"],
            ),
        ] {
            let parsed: StreamPattern = pattern.parse().unwrap();
            assert_eq!(parsed.to_string(), pattern);
            assert!(matching.iter().all(|name| parsed.matches(name)), "{pattern}");
            assert!(!other.iter().any(|name| parsed.matches(name)), "{pattern}");
        }
        assert_eq!(StreamPattern::any(), "*".parse().unwrap());
        for bad in ["", "*.logs", "a*b", "a b", "**", "acme/*"] {
            assert!(bad.parse::<StreamPattern>().is_err(), "{bad:?}");
        }
    }
}
