//! What the program says while it runs: one line an event, on standard error.

use crate::clock::now_ns;
use crate::events::Keep;
use chrono::{DateTime, SecondsFormat};
use std::backtrace::{Backtrace, BacktraceStatus};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Logs INFO and worse, unless `MILLPOND_LOG` says otherwise (`debug`, `millpond_consumer=debug`, …).
pub(crate) fn start(format: LogFormat) {
    let filter = EnvFilter::try_from_env("MILLPOND_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter).with(Keep);
    match format {
        LogFormat::Text => {
            let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
            registry.with(lines.with_ansi(ansi).with_target(false)).init();
        }
        LogFormat::Json => {
            registry.with(lines.json().flatten_event(true)).init();
            std::panic::set_hook(Box::new(|panic| {
                let backtrace = Backtrace::capture();
                let traced = backtrace.status() == BacktraceStatus::Captured;
                let backtrace = traced.then(|| backtrace.to_string());
                eprintln!("{}", json_line("panic", &panic.to_string(), backtrace));
            }));
        }
    }
}

/// What ended the program: said whatever is filtered, in the form of the log.
pub(crate) fn last_words(format: LogFormat, said: &str) {
    match format {
        LogFormat::Text => eprintln!("millpond: {said}"),
        LogFormat::Json => eprintln!("{}", json_line("millpond", said, None)),
    }
}

/// An error as a line of the log.
fn json_line(target: &str, message: &str, backtrace: Option<String>) -> String {
    let now = DateTime::from_timestamp_nanos(i64::try_from(now_ns()).unwrap_or(i64::MAX));
    let mut line = serde_json::json!({
        "timestamp": now.to_rfc3339_opts(SecondsFormat::Micros, true),
        "level": "ERROR",
        "message": message,
        "target": target,
    });
    if let Some(backtrace) = backtrace {
        line["backtrace"] = backtrace.into();
    }
    line.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line_of_the_fields_that_every_line_has() {
        let line = json_line("panic", "two\nlines, \"quoted\"", Some("0: main".to_owned()));
        assert!(!line.contains('\n'));
        let line: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(line["message"], "two\nlines, \"quoted\"");
        assert_eq!(
            (&line["level"], &line["target"]),
            (&"ERROR".into(), &"panic".into())
        );
        assert_eq!(line["backtrace"], "0: main");
        let at = line["timestamp"].as_str().unwrap();
        assert!(
            DateTime::parse_from_rfc3339(at).is_ok() && at.ends_with('Z'),
            "{at}"
        );
    }
}
