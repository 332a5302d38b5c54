//! The newest segment that a consumer has seen, by which it recognizes its log.

use crate::manifest::Manifest;
use ulid::Ulid;

/// A segment and its place in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Its sequence.
    pub sequence: u64,
    /// Its name.
    pub segment: Ulid,
}

impl Seen {
    /// The sequence after it.
    pub fn end(&self) -> u64 {
        self.sequence.saturating_add(1)
    }

    /// The newest segment of a log. `None`: its tail is empty.
    pub fn newest(log: &Manifest) -> Option<Seen> {
        let newest = log.tail.last()?;
        Some(Seen {
            sequence: log.next_sequence.checked_sub(1)?,
            segment: newest.segment,
        })
    }
}
