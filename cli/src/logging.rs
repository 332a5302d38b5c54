//! What the program says while it runs: one line an event, on standard error.

use crate::events::Keep;
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

/// Logs INFO and worse of a service, WARN and worse of other commands, unless `MILLPOND_LOG` says otherwise (`debug`,
/// `millpond_consumer=debug`, …).
pub(crate) fn start(format: LogFormat, is_service: bool) {
    let level = if is_service { "info" } else { "warn" };
    let filter = EnvFilter::try_from_env("MILLPOND_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter).with(Keep);
    match format {
        LogFormat::Text => {
            let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
            registry.with(lines.with_ansi(ansi).with_target(false)).init();
        }
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).init(),
    }
}
