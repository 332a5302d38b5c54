//! Which certificates may watch: those in the cursors of consumers. Decides when a cursor is read, so that nobody can make the leader
//! read more than a few a second. Pure: the caller has the clock, and reads.

use std::collections::HashMap;
use std::time::Duration;

use millpond_manifest::Fingerprint;
use tokio::time::Instant;

/// A cursor is read again after this time: its consumer may have been removed.
const TRUSTED: Duration = Duration::from_secs(60);
/// The cursor of one consumer is read at most this often, and so are those of all consumers that are not known.
const READ_EVERY: Duration = Duration::from_secs(1);
/// Maximum number of known consumers.
const KNOWN_MAX: usize = 256;

/// The certificates of the consumers whose cursors were found.
#[derive(Debug, Default)]
pub(crate) struct Consumers {
    /// By the keys of their cursors.
    known: HashMap<String, Known>,
    /// When the cursor of a consumer that was not known was last read.
    unknown_read_at: Option<Instant>,
}

#[derive(Debug)]
struct Known {
    certificate: Option<Fingerprint>,
    read_at: Instant,
}

/// The next step for a consumer's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The consumer's cursor vouches for it.
    Vouched,
    /// Read the cursor now. The read counts from now on.
    Read,
    /// Ask again at this time.
    Wait(Instant),
}

impl Consumers {
    /// Judges the certificate that somebody presents as the consumer with this cursor.
    pub(crate) fn judge(&mut self, cursor: &str, presented: Fingerprint, now: Instant) -> Verdict {
        let read_at = match self.known.get_mut(cursor) {
            Some(known) if known.certificate == Some(presented) && now < known.read_at + TRUSTED => {
                return Verdict::Vouched;
            }
            Some(known) => {
                if now < known.read_at + READ_EVERY {
                    return Verdict::Wait(known.read_at + READ_EVERY);
                }
                if now >= known.read_at + TRUSTED {
                    known.certificate = None;
                }
                &mut known.read_at
            }
            None => {
                if let Some(read_at) = self.unknown_read_at
                    && now < read_at + READ_EVERY
                {
                    return Verdict::Wait(read_at + READ_EVERY);
                }
                self.unknown_read_at.insert(now)
            }
        };
        *read_at = now;
        Verdict::Read
    }

    /// Records what the cursor of a consumer says.
    pub(crate) fn found(&mut self, cursor: &str, certificate: Option<Fingerprint>, now: Instant) {
        if let Some(known) = self.known.get_mut(cursor) {
            known.certificate = certificate;
            return;
        }
        if certificate.is_none() {
            return;
        }
        if self.known.len() >= KNOWN_MAX {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.read_at);
            let oldest = oldest.map(|(consumer, _)| consumer.clone());
            oldest.and_then(|oldest| self.known.remove(&oldest));
        }
        let known = Known {
            certificate,
            read_at: now,
        };
        self.known.insert(cursor.to_owned(), known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Fingerprint = Fingerprint([1; 32]);
    const OTHER: Fingerprint = Fingerprint([2; 32]);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_cursor_is_read_once_and_again_for_another_certificate() {
        let (mut consumers, start) = (Consumers::default(), Instant::now());
        assert_eq!(consumers.judge("a", OURS, start), Verdict::Read);
        consumers.found("a", Some(OURS), start);
        assert_eq!(consumers.judge("a", OURS, start + SECOND), Verdict::Vouched);
        // Another process took the cursor, a moment after it was read.
        assert_eq!(consumers.judge("a", OTHER, start), Verdict::Wait(start + SECOND));
        assert_eq!(consumers.judge("a", OTHER, start + SECOND), Verdict::Read);
        // Until the answer is there, a stranger keeps nobody out.
        assert_eq!(consumers.judge("a", OURS, start + SECOND), Verdict::Vouched);
        consumers.found("a", Some(OTHER), start + SECOND);
        assert_eq!(consumers.judge("a", OTHER, start + SECOND), Verdict::Vouched);
        assert_eq!(
            consumers.judge("a", OURS, start + SECOND),
            Verdict::Wait(start + 2 * SECOND)
        );
        // The consumer was removed.
        let later = start + SECOND + TRUSTED;
        assert_eq!(consumers.judge("a", OTHER, later), Verdict::Read);
        assert_eq!(consumers.judge("a", OTHER, later), Verdict::Wait(later + SECOND));
        consumers.found("a", None, later);
        assert_eq!(consumers.judge("a", OTHER, later), Verdict::Wait(later + SECOND));
    }

    #[test]
    fn strangers_cause_one_read_a_second_and_none_of_a_known_consumer() {
        let (mut consumers, start) = (Consumers::default(), Instant::now());
        consumers.found("known", Some(OURS), start);
        let mut reads = 0;
        for step in 0..1_000 {
            let now = start + Duration::from_millis(10) * step;
            let name = format!("stranger-{step}");
            if consumers.judge(&name, OTHER, now) == Verdict::Read {
                consumers.found(&name, None, now);
                reads += 1;
            }
            assert_eq!(consumers.judge("known", OURS, now), Verdict::Vouched);
        }
        assert_eq!(reads, 10);
    }

    #[test]
    fn the_number_of_known_consumers_is_bounded() {
        let (mut consumers, start) = (Consumers::default(), Instant::now());
        for number in 0..512 {
            consumers.found(&format!("{number}"), Some(OURS), start + SECOND * number);
        }
        assert_eq!(consumers.known.len(), KNOWN_MAX);
        assert!(consumers.known.contains_key("511") && !consumers.known.contains_key("255"));
    }
}
