//! The newest warnings and errors of this process, for its status page.

use millpond_runtime::{Environment as _, SystemEnvironment};
use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::sync::{Mutex, PoisonError};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Number of events to keep.
const KEPT: usize = 50;

/// Maximum length of a message, in characters.
const CHARS_MAX: usize = 1_000;

static RECENT: Mutex<VecDeque<Recent>> = Mutex::new(VecDeque::new());

/// A logged warning or error.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct Recent {
    /// Unix ms.
    pub(crate) at_ms: u64,
    pub(crate) level: &'static str,
    pub(crate) message: String,
}

/// The kept events, newest first.
pub(crate) fn recent() -> Vec<Recent> {
    let recent = RECENT.lock().unwrap_or_else(PoisonError::into_inner);
    recent.iter().rev().cloned().collect()
}

/// A layer that keeps warnings and errors.
pub(crate) struct Keep;

impl<S: Subscriber> Layer<S> for Keep {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = match *event.metadata().level() {
            Level::ERROR => "ERROR",
            Level::WARN => "WARN",
            _ => return,
        };
        let mut line = Line::default();
        event.record(&mut line);
        let mut message = line.message + &line.fields;
        if let Some((end, _)) = message.char_indices().nth(CHARS_MAX) {
            message.truncate(end);
        }
        let mut recent = RECENT.lock().unwrap_or_else(PoisonError::into_inner);
        if recent.len() == KEPT {
            recent.pop_front();
        }
        recent.push_back(Recent {
            at_ms: SystemEnvironment.now_ms(),
            level,
            message,
        });
    }
}

/// The text of an event: the message, then the other fields.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a string succeeds.
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;

    #[test]
    fn the_newest_warnings_and_errors_are_kept() {
        let registry = tracing_subscriber::registry().with(Keep);
        tracing::subscriber::with_default(registry, || {
            tracing::info!("not this");
            for number in 0..60 {
                tracing::warn!(number, "a warning");
            }
            tracing::error!("{}", "ü".repeat(2_000));
        });
        let kept = recent();
        assert_eq!(kept.len(), KEPT);
        assert_eq!(
            (kept[0].level, kept[0].message.chars().count()),
            ("ERROR", CHARS_MAX)
        );
        assert_eq!(
            (kept[1].level, kept[1].message.as_str()),
            ("WARN", "a warning number=59")
        );
        assert_eq!(kept[KEPT - 1].message, "a warning number=11");
    }
}
