//! Warnings about clients' mistakes, at most one per kind and minute: a misconfigured client retries again and again.

use std::collections::HashMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

const PAUSE: Duration = Duration::from_secs(60);

/// Past warnings by kind.
#[derive(Debug, Default)]
pub(crate) struct ThrottledWarnings {
    logged: Mutex<HashMap<&'static str, Logged>>,
}

#[derive(Debug)]
struct Logged {
    at: Instant,
    suppressed: u64,
}

impl ThrottledWarnings {
    /// Warns about this client, unless a warning of the kind was just logged. The kinds must be few.
    pub(crate) fn warn(&self, kind: &'static str, peer: SocketAddr, what: impl Display) {
        match self.how_many(kind, Instant::now()) {
            None => tracing::debug!(%peer, "{what}"),
            Some(0) => tracing::warn!(%peer, "{what}"),
            Some(more) => tracing::warn!(%peer, "{what} ({more} more of this kind since the last warning)"),
        }
    }

    /// The number of suppressed warnings since the last one, or `None` to suppress this one too.
    fn how_many(&self, kind: &'static str, now: Instant) -> Option<u64> {
        let mut logged = self.logged.lock().unwrap_or_else(PoisonError::into_inner);
        let before = logged.get_mut(kind).filter(|logged| now - logged.at < PAUSE);
        if let Some(before) = before {
            before.suppressed += 1;
            return None;
        }
        let before = logged.insert(
            kind,
            Logged {
                at: now,
                suppressed: 0,
            },
        );
        Some(before.map_or(0, |before| before.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_logged_once_a_minute_with_its_count() {
        let (throttled_warnings, start) = (ThrottledWarnings::default(), Instant::now());
        let at = |kind, seconds| throttled_warnings.how_many(kind, start + Duration::from_secs(seconds));
        assert_eq!(
            [at("a", 0), at("a", 1), at("b", 1), at("a", 59)],
            [Some(0), None, Some(0), None]
        );
        assert_eq!([at("a", 60), at("a", 61), at("a", 120)], [Some(2), None, Some(1)]);
    }
}
