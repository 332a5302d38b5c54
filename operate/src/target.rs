//! A position in a log, as operators name it.

use anyhow::ensure;
use millpond_manifest::Log;
use millpond_runtime::{Environment as _, SystemEnvironment};
use std::str::FromStr;
use std::time::{Duration, UNIX_EPOCH};

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
            _ => instant(text, SystemEnvironment.now_ms()).map(Target::Time).ok_or_else(|| {
                format!(
                    "{text:?} is neither earliest, latest, a sequence nor a time: write 5m for five minutes ago, or 2026-11-22T10:00Z"
                )
            }),
        }
    }
}

/// Parses a time to look back to: `1h`, or a point in time, as the length of time from then to now.
///
/// # Errors
/// It is neither, or is in the future.
pub fn look_back(text: &str) -> Result<Duration, String> {
    let now = SystemEnvironment.now_ms();
    let then = instant(text, now).filter(|then| *then <= now);
    let ago = then.map(|then| Duration::from_millis(now - then));
    ago.ok_or_else(|| {
        format!("{text:?} is not a time in the past: write 1h for an hour ago, or 2026-11-22T10:00Z")
    })
}

/// Parses a point in time as Unix time in ms: `5m` is five minutes before now, `2026-11-22`, `2026-11-22T10:00Z` and
/// `2026-11-22T10:00:30.5Z` are in UTC. `None` for anything else.
fn instant(text: &str, now_ms: u64) -> Option<u64> {
    if let Ok(ago) = humantime::parse_duration(text) {
        return now_ms.checked_sub(u64::try_from(ago.as_millis()).ok()?);
    }
    let given = text.strip_suffix('Z').unwrap_or(text);
    // The parser wants seconds.
    let whole = match given.len() {
        10 => format!("{given}T00:00:00"),
        16 => format!("{given}:00"),
        _ => given.to_owned(),
    };
    let time = humantime::parse_rfc3339_weak(&whole).ok()?;
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
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
                    "sequence {sequence} is not in the log of shard {:04}, which goes from {first} (earliest) to {next} (latest)",
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
        assert_eq!("1970-01-01T00:02Z".parse(), Ok(Target::Time(120_000)));
        assert_eq!("1970-01-02".parse(), Ok(Target::Time(86_400_000)));
        assert_eq!(instant("5m", 301_000), Some(1_000));
        assert_eq!(instant("1h 30m", 5_400_007), Some(7));
        assert_eq!(instant("5m", 1_000), None);
        assert!(look_back("1h").is_ok_and(|ago| ago >= Duration::from_secs(3_600)));
        look_back("2999-01-01").expect_err("it is in the future");
        for bad in [
            "",
            "-1",
            "yesterday",
            "1960-01-01T00:00:00Z",
            "1970-01-01T00Z",
            "5 o'clock",
        ] {
            let error = bad.parse::<Target>().expect_err(bad);
            assert!(error.contains("neither earliest"), "{error}");
        }
    }
}
