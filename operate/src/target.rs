//! A position in a log, as operators name it.

use anyhow::ensure;
use millpond_manifest::Log;
use std::str::FromStr;
use std::time::UNIX_EPOCH;

/// A position in a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The oldest segment that the log has.
    Earliest,
    /// The end of the log.
    Latest,
    /// A sequence.
    Sequence(u64),
    /// The first segment committed at this Unix time in ms, or later.
    Time(u64),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(sequence) = text.parse() {
            return Ok(Target::Sequence(sequence));
        }
        match text {
            "earliest" => Ok(Target::Earliest),
            "latest" => Ok(Target::Latest),
            _ => {
                let wrong = || {
                    format!(
                        "{text:?} is neither earliest, latest, a sequence nor a time like 2026-11-21T09:00:00Z"
                    )
                };
                let time = humantime::parse_rfc3339_weak(text).map_err(|_| wrong())?;
                let since = time.duration_since(UNIX_EPOCH).map_err(|_| wrong())?;
                Ok(Target::Time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)))
            }
        }
    }
}

impl Target {
    /// The sequence at this position.
    ///
    /// # Errors
    /// The log does not have the sequence.
    pub(crate) fn position(self, log: &Log) -> anyhow::Result<u64> {
        let (first, next) = (log.first_sequence, log.next_sequence);
        Ok(match self {
            Target::Earliest => first,
            Target::Latest => next,
            Target::Sequence(sequence) => {
                ensure!(
                    (first..=next).contains(&sequence),
                    "sequence {sequence} is not in the log of shard {:04}, which goes from {first} to {next}",
                    log.shard
                );
                sequence
            }
            Target::Time(at_ms) => {
                let found = log.entries(0).find(|(_, entry)| entry.committed_at_ms >= at_ms);
                found.map_or(next, |(sequence, _)| sequence)
            }
        })
    }

    pub(crate) fn is_sequence(self) -> bool {
        matches!(self, Target::Sequence(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_read_as_people_write_them() {
        assert_eq!("earliest".parse(), Ok(Target::Earliest));
        assert_eq!("latest".parse(), Ok(Target::Latest));
        assert_eq!("12".parse(), Ok(Target::Sequence(12)));
        assert_eq!("1970-01-01T00:00:01Z".parse(), Ok(Target::Time(1_000)));
        assert_eq!("1970-01-01 00:00:02".parse(), Ok(Target::Time(2_000)));
        for bad in ["", "-1", "yesterday", "1960-01-01T00:00:00Z"] {
            let error = bad.parse::<Target>().expect_err(bad);
            assert!(error.contains("neither earliest"), "{error}");
        }
    }
}
