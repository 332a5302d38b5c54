//! The log on standard error: one line per event.

use crate::events::Keep;
use crate::output::{inline, plain, wants_colour};
use chrono::{DateTime, SecondsFormat};
use millpond_clickhouse::transform;
use millpond_manifest::trace::TARGET;
use millpond_runtime::{Environment as _, SystemEnvironment};
use millpond_telemetry::Spans;
use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, Write};
use std::panic::PanicHookInfo;
use tracing::Subscriber;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    /// Text for people.
    Text,
    /// One JSON object per line.
    Json,
}

/// Logs INFO and above for a service, WARN and above for other commands. `MILLPOND_LOG` overrides the level (`debug`,
/// `millpond_consumer=debug`, …).
///
/// Spans of the process's own work are not part of the log. Without `spans` they cost nothing.
pub(crate) fn start(format: LogFormat, is_service: bool, spans: Option<Spans>) {
    let level = if is_service { "info" } else { "warn" };
    let filter = EnvFilter::try_from_env("MILLPOND_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    let ansi = format == LogFormat::Text && wants_colour(&io::stderr());
    let lines = tracing_subscriber::fmt::layer().with_writer(move || Lines {
        to: io::stderr(),
        ansi,
    });
    let lines = match format {
        LogFormat::Text => lines.with_ansi(ansi).with_target(false).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).boxed(),
    };
    subscriber(filter, lines, spans).init();
    let print = match format {
        LogFormat::Text => std::panic::take_hook(),
        LogFormat::Json => Box::new(|panic: &PanicHookInfo<'_>| {
            let backtrace = Backtrace::capture();
            let traced = backtrace.status() == BacktraceStatus::Captured;
            let backtrace = traced.then(|| backtrace.to_string());
            eprintln!("{}", json_line("panic", &panic.to_string(), backtrace));
        }),
    };
    std::panic::set_hook(Box::new(move |panic| {
        // The panic becomes a dead letter.
        if transform::is_running() {
            return;
        }
        print(panic);
        // Nothing else may go on after a panic. The profile unwinds for programs of --transform alone.
        if !cfg!(debug_assertions) {
            std::process::abort();
        }
    }));
}

/// Writes one line per event, and escapes what a terminal would obey. The layer writes each event in one call.
struct Lines<W> {
    to: W,
    /// Keeps colours: the layer adds them, and escapes those in the data.
    ansi: bool,
}

impl<W: Write> Write for Lines<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let (line, end) = match text.strip_suffix('\n') {
            Some(line) => (line, "\n"),
            None => (&*text, ""),
        };
        let line = if self.ansi {
            let parts: Vec<_> = line.split('\x1b').map(inline).collect();
            parts.join("\x1b")
        } else {
            inline(line).into_owned()
        };
        self.to.write_all(format!("{line}{end}").as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

/// The subscriber of the log and the traces.
fn subscriber(
    filter: EnvFilter,
    lines: Box<dyn Layer<Registry> + Send + Sync>,
    spans: Option<Spans>,
) -> impl Subscriber {
    let no_spans = format!("{TARGET}=off").parse().expect("it is a directive");
    let log = lines.and_then(Keep).with_filter(filter.add_directive(no_spans));
    // Filter even without spans: a layer without a filter enables every callsite.
    let level = spans.as_ref().map_or(LevelFilter::OFF, |_| LevelFilter::INFO);
    let spans = spans.with_filter(Targets::new().with_target(TARGET, level));
    tracing_subscriber::registry().with(log).with(spans)
}

/// Logs the error that ended the program, whatever the filter.
pub(crate) fn print_error(format: LogFormat, text: &str) {
    match format {
        LogFormat::Text => eprintln!("millpond: {}", plain(text)),
        LogFormat::Json => eprintln!("{}", plain(&json_line("millpond", text, None))),
    }
}

/// An error as a line of the log.
fn json_line(target: &str, message: &str, backtrace: Option<String>) -> String {
    let now = DateTime::from_timestamp_nanos(i64::try_from(SystemEnvironment.now_ns()).unwrap_or(i64::MAX));
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
    use millpond_manifest::trace::ORIGIN;
    use millpond_telemetry::{Identity, Options, Telemetry};
    use std::sync::{Arc, Mutex};
    use tracing::{Level, span};

    /// Records every segment's spans. Nothing exports them.
    fn spans() -> Option<Spans> {
        let options = Options {
            endpoint: Some("http://127.0.0.1:9".to_owned()),
            traces: Some(1.0),
            ..Options::default()
        };
        let identity = Identity {
            service: "test",
            instance: None,
            attributes: Vec::new(),
        };
        let telemetry = Telemetry::prepare(&options, &identity, &"memory:///".parse().unwrap());
        telemetry.unwrap().spans()
    }

    /// Returns true if spans are recorded at this log level, and the most verbose level that a callsite must check.
    fn recorded(logged: &str, spans: Option<Spans>) -> (bool, Option<LevelFilter>) {
        let lines = tracing_subscriber::fmt::layer()
            .with_writer(std::io::sink)
            .boxed();
        let subscriber = subscriber(EnvFilter::new(logged), lines, spans);
        let most = subscriber.max_level_hint();
        let origin = || span!(target: TARGET, parent: None, Level::INFO, ORIGIN);
        let made = tracing::subscriber::with_default(subscriber, || !origin().is_disabled());
        (made, most)
    }

    #[test]
    fn spans_are_made_when_they_are_recorded_and_cost_nothing_else() {
        for logged in ["info", "trace", "millpond=trace", "warn,millpond::trace=trace"] {
            assert!(!recorded(logged, None).0, "{logged}");
        }
        for logged in ["off", "info", "trace"] {
            assert!(recorded(logged, spans()).0, "{logged}");
        }
        // One comparison dismisses everything below.
        let info = Some(LevelFilter::INFO);
        assert_eq!(recorded("info", None).1, info);
        assert_eq!(recorded("info", spans()).1, info);
    }

    /// Logs a message and a field, and returns the bytes for the terminal.
    fn logged(text: &str, ansi: bool) -> String {
        let out: Arc<Mutex<Vec<u8>>> = Arc::default();
        let to = out.clone();
        let lines = tracing_subscriber::fmt::layer()
            .with_ansi(ansi)
            .with_writer(move || Lines {
                to: Shared(to.clone()),
                ansi,
            })
            .boxed();
        // One without a filter would enable every callsite for the tests beside this one, too.
        let subscriber = subscriber(EnvFilter::new("info"), lines, None);
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!(field = text, "{text}");
        });
        String::from_utf8(out.lock().unwrap().clone()).unwrap()
    }

    #[derive(Debug)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_one_line_without_control_characters() {
        let hostile = "Code: 6. 'a\n2026-01-01 ERROR forged\x1b]0;x\x07\u{9b}2J\x7f\u{202e}'";
        let plain = logged(hostile, false);
        assert_eq!(plain.lines().count(), 1, "{plain:?}");
        assert!(
            !plain
                .trim_end()
                .contains(|c: char| c.is_control() || c == '\u{202e}'),
            "{plain:?}"
        );
        let coloured = logged(hostile, true);
        assert_eq!(coloured.lines().count(), 1, "{coloured:?}");
        for (place, _) in coloured.match_indices('\x1b') {
            // Only colours remain.
            let rest = coloured[place + 1..]
                .trim_start_matches(|c: char| c == '[' || c == ';' || c.is_ascii_digit());
            assert!(rest.starts_with('m'), "{coloured:?}");
        }
        assert!(
            !coloured.contains(['\x07', '\x7f', '\u{9b}', '\u{202e}']),
            "{coloured:?}"
        );
    }

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
