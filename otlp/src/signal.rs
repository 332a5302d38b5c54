//! OTLP's signals and their names.

use crate::schema::{self, Message};

/// A kind of telemetry with its own OTLP service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Signal {
    /// Log records.
    Logs,
    /// Spans.
    Traces,
    /// Data points of metrics.
    Metrics,
}

impl Signal {
    /// All of them.
    pub const ALL: [Signal; 3] = [Signal::Logs, Signal::Traces, Signal::Metrics];

    /// The name in settings and metric labels.
    pub fn name(self) -> &'static str {
        match self {
            Signal::Logs => "logs",
            Signal::Traces => "traces",
            Signal::Metrics => "metrics",
        }
    }

    /// The signal with this name.
    pub fn of_name(name: &str) -> Option<Signal> {
        Signal::ALL.into_iter().find(|signal| signal.name() == name)
    }

    /// The stream of its requests.
    pub fn stream(self) -> &'static str {
        match self {
            Signal::Logs => "otlp.logs",
            Signal::Traces => "otlp.traces",
            Signal::Metrics => "otlp.metrics",
        }
    }

    /// The signal of a stream: the last part of the stream's name, after a dot if there is a prefix.
    pub fn of_stream(stream: &str) -> Option<Signal> {
        Signal::ALL.into_iter().find(|signal| {
            let prefix = stream.strip_suffix(signal.stream());
            prefix.is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('.'))
        })
    }

    /// Its `Export…ServiceRequest`.
    pub(crate) fn request(self) -> &'static Message {
        match self {
            Signal::Logs => &schema::logs::EXPORT,
            Signal::Traces => &schema::traces::EXPORT,
            Signal::Metrics => &schema::metrics::EXPORT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_of_a_streams_name_is_its_signal() {
        for signal in Signal::ALL {
            assert_eq!(Signal::of_stream(signal.stream()), Some(signal));
            let prefixed = format!("acme-1.{}", signal.stream());
            assert_eq!(Signal::of_stream(&prefixed), Some(signal));
        }
        for other in [
            "otlp.profiles",
            "acmeotlp.logs",
            "otlp.logs.old",
            "logs",
            "otlp",
            "",
        ] {
            assert_eq!(Signal::of_stream(other), None, "{other}");
        }
    }
}
