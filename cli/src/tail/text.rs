//! A record as one line: its time, service, content and attributes.

use crate::output::inline;
use serde_json::Value;
use std::fmt::Write as _;

/// The line of a record.
pub(super) fn line(record: &Value) -> String {
    let of = |name: &str| plain(&record[name]);
    let service = plain(&record["resource"]["service.name"]);
    let what = if record.get("metric").is_some() {
        let value = match of("value") {
            value if value.is_empty() => format!("count={} sum={}", of("count"), of("sum")),
            value => value,
        };
        vec![of("time"), of("kind"), service, of("metric"), value, of("unit")]
    } else if record.get("start_time").is_some() || record.get("kind").is_some() {
        let duration = format!("{}s", of("duration_seconds"));
        let status = format!("status={}", of("status"));
        vec![
            of("start_time"),
            of("kind"),
            service,
            of("name"),
            duration,
            status,
            of("trace_id"),
        ]
    } else {
        let time = if record.get("time").is_some() {
            "time"
        } else {
            "observed_time"
        };
        vec![of(time), severity(record), service, of("event_name"), of("body")]
    };
    let mut line = what
        .into_iter()
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    if let Value::Object(attributes) = &record["attributes"] {
        for (key, value) in attributes {
            // Writing to a string succeeds.
            let _ = write!(line, " {key}={}", plain(value));
        }
    }
    // One record, one line.
    inline(&line).into_owned()
}

fn severity(record: &Value) -> String {
    match (&record["severity_text"], &record["severity_number"]) {
        (Value::String(text), _) => text.clone(),
        (_, Value::Number(number)) if number.as_i64() != Some(0) => {
            const NAMES: [&str; 6] = ["TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"];
            let level = number
                .as_u64()
                .and_then(|n| usize::try_from(n.checked_sub(1)? / 4).ok());
            let name = level.and_then(|level| NAMES.get(level));
            name.map_or_else(|| number.to_string(), |name| (*name).to_owned())
        }
        _ => String::new(),
    }
}

fn plain(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_log_record_is_a_line() {
        let record = json!({
            "time": "2026-11-21T09:00:00.000000001Z", "severity_number": 9, "body": "two\nlines",
            "resource": { "service.name": "shop" }, "attributes": { "n": 7, "list": [1, "a"] },
        });
        assert_eq!(
            line(&record),
            r#"2026-11-21T09:00:00.000000001Z INFO shop two\nlines list=[1,"a"] n=7"#
        );
    }

    #[test]
    fn a_severity_is_its_text_or_its_range() {
        let of = |record: Value| severity(&record);
        assert_eq!(
            of(json!({ "severity_text": "Notice", "severity_number": 9 })),
            "Notice"
        );
        for (number, name) in [
            (1, "TRACE"),
            (8, "DEBUG"),
            (17, "ERROR"),
            (24, "FATAL"),
            (25, "25"),
            (0, ""),
        ] {
            assert_eq!(of(json!({ "severity_number": number })), name);
        }
    }

    #[test]
    fn spans_and_data_points_are_lines() {
        let span = json!({
            "name": "GET /", "kind": "server", "start_time": "T0", "duration_seconds": 0.25, "status": "ok",
            "trace_id": "0af7", "resource": { "service.name": "shop" },
        });
        assert_eq!(line(&span), "T0 server shop GET / 0.25s status=ok 0af7");
        let point = json!({ "metric": "load", "kind": "gauge", "time": "T1", "value": 1.5, "unit": "1" });
        assert_eq!(line(&point), "T1 gauge load 1.5 1");
        let histogram = json!({ "metric": "t", "kind": "histogram", "time": "T1", "count": 2, "sum": 3.0 });
        assert_eq!(line(&histogram), "T1 histogram t count=2 sum=3.0");
    }
}
