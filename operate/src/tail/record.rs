//! A message's records as JSON for people and their tools, with OTLP's names: a resource, a scope, and a log record, a span
//! or a data point. The segment has the exact bytes.

use millpond_otlp::metrics::{Data, Exemplar, Number, Point, Points};
use millpond_otlp::{AnyValue, Item, KeyValue, Malformed, Signal, logs, metrics, traces};
use serde_json::{Map, Value, json};
use std::time::{Duration, UNIX_EPOCH};

/// Gives each record of a message to `each`.
pub(crate) fn records(signal: Signal, payload: &[u8], mut each: impl FnMut(Value)) -> Result<(), Malformed> {
    match signal {
        Signal::Logs => of::<logs::LogRecord<'_>>(payload, |log, common| each(with(common, log_record(log)))),
        Signal::Traces => {
            of::<traces::Span<'_>>(payload, |span, common| each(with(common, self::span(span))))
        }
        Signal::Metrics => of::<metrics::Metric<'_>>(payload, |metric, common| {
            data_points(metric, |point| each(with(common, point)));
        }),
    }
}

/// Gives each item with its resource and scope.
fn of<'a, T: Item<'a>>(payload: &'a [u8], mut each: impl FnMut(&T, &Value)) -> Result<(), Malformed> {
    for resource in millpond_otlp::Request::<T>::parse(payload)?.resources() {
        let attributes = attributes(resource.attributes());
        for scope in resource.scopes() {
            let common = filled(json!({
                "resource": attributes,
                "scope": filled(json!({
                    "name": text(scope.name), "version": text(scope.version),
                    "attributes": self::attributes(scope.attributes()),
                })),
            }));
            for item in scope.items() {
                each(&item, &common);
            }
        }
    }
    Ok(())
}

fn with(common: &Value, record: Value) -> Value {
    let mut all = common.clone();
    if let (Value::Object(all), Value::Object(own)) = (&mut all, record) {
        all.extend(own);
    }
    all
}

fn log_record(log: &logs::LogRecord<'_>) -> Value {
    filled(json!({
        "time": time(log.time_unix_nano), "observed_time": time(log.observed_time_unix_nano),
        "severity_number": log.severity_number, "severity_text": text(log.severity_text), "body": value(log.body),
        "event_name": text(log.event_name), "trace_id": hex(log.trace_id), "span_id": hex(log.span_id),
        "attributes": attributes(log.attributes()),
    }))
}

fn span(span: &traces::Span<'_>) -> Value {
    let kind = [
        "unspecified",
        "internal",
        "server",
        "client",
        "producer",
        "consumer",
    ];
    let status = ["unset", "ok", "error"];
    filled(json!({
        "name": text(span.name), "kind": word(&kind, span.kind), "start_time": time(span.start_time_unix_nano),
        "end_time": time(span.end_time_unix_nano),
        "duration_seconds": Duration::from_nanos(
            span.end_time_unix_nano.saturating_sub(span.start_time_unix_nano)).as_secs_f64(),
        "status": word(&status, span.status_code), "status_message": text(span.status_message),
        "trace_id": hex(span.trace_id), "span_id": hex(span.span_id), "parent_span_id": hex(span.parent_span_id),
        "trace_state": text(span.trace_state), "attributes": attributes(span.attributes()),
        "events": span.events().map(|event| filled(json!({
            "time": time(event.time_unix_nano), "name": text(event.name), "attributes": attributes(event.attributes()),
        }))).collect::<Vec<_>>(),
        "links": span.links().map(|link| filled(json!({
            "trace_id": hex(link.trace_id), "span_id": hex(link.span_id), "attributes": attributes(link.attributes()),
        }))).collect::<Vec<_>>(),
    }))
}

fn data_points(metric: &metrics::Metric<'_>, mut each: impl FnMut(Value)) {
    let head = |kind: &str, start: u64, at: u64, flags: u32| {
        json!({
            "metric": text(metric.name), "description": text(metric.description), "unit": text(metric.unit), "kind": kind,
            "start_time": time(start), "time": time(at), "no_recorded_value": flags & 1 == 1,
        })
    };
    match metric.data {
        Data::Empty => {}
        Data::Gauge(points) => {
            for p in points {
                let head = head("gauge", p.start_time_unix_nano, p.time_unix_nano, p.flags);
                each(number_point(&p, &head));
            }
        }
        Data::Sum(points) => {
            let shared = shared(&points, json!({ "monotonic": points.is_monotonic }));
            for p in points {
                let head = head("sum", p.start_time_unix_nano, p.time_unix_nano, p.flags);
                each(with(&shared, number_point(&p, &head)));
            }
        }
        Data::Histogram(points) => {
            let shared = shared(&points, json!({}));
            for p in points {
                let head = head("histogram", p.start_time_unix_nano, p.time_unix_nano, p.flags);
                let own = json!({
                    "count": p.count, "sum": p.sum, "min": p.min, "max": p.max,
                    "bounds": p.explicit_bounds().collect::<Vec<_>>(),
                    "bucket_counts": p.bucket_counts().collect::<Vec<_>>(),
                    "attributes": attributes(p.attributes()), "exemplars": exemplars(p.exemplars()),
                });
                each(filled(with(&shared, with(&head, own))));
            }
        }
        Data::ExponentialHistogram(points) => {
            let shared = shared(&points, json!({}));
            for p in points {
                let at = p.time_unix_nano;
                let head = head("exponential_histogram", p.start_time_unix_nano, at, p.flags);
                let side = |buckets: metrics::Buckets<'_>| json!({ "offset": buckets.offset, "bucket_counts": buckets.counts().collect::<Vec<_>>() });
                let own = json!({
                    "count": p.count, "sum": p.sum, "min": p.min, "max": p.max, "scale": p.scale,
                    "zero_count": p.zero_count, "zero_threshold": p.zero_threshold,
                    "positive": side(p.positive()), "negative": side(p.negative()),
                    "attributes": attributes(p.attributes()), "exemplars": exemplars(p.exemplars()),
                });
                each(filled(with(&shared, with(&head, own))));
            }
        }
        Data::Summary(points) => {
            for p in points {
                let quantiles = p
                    .quantiles()
                    .map(|q| json!({ "quantile": q.quantile, "value": q.value }));
                let own = json!({
                    "count": p.count, "sum": p.sum, "quantiles": quantiles.collect::<Vec<_>>(),
                    "attributes": attributes(p.attributes()),
                });
                let head = head("summary", p.start_time_unix_nano, p.time_unix_nano, p.flags);
                each(filled(with(&head, own)));
            }
        }
    }
}

fn number_point(point: &metrics::NumberDataPoint<'_>, head: &Value) -> Value {
    let own = json!({
        "value": number(point.value), "attributes": attributes(point.attributes()),
        "exemplars": exemplars(point.exemplars()),
    });
    filled(with(head, own))
}

fn shared<'a, P: Point<'a>>(points: &Points<'a, P>, more: Value) -> Value {
    let temporality = ["unspecified", "delta", "cumulative"];
    with(
        &json!({ "temporality": word(&temporality, points.aggregation_temporality) }),
        more,
    )
}

fn exemplars<'a>(exemplars: impl Iterator<Item = Exemplar<'a>>) -> Vec<Value> {
    let exemplar = |e: Exemplar<'a>| {
        filled(json!({
            "time": time(e.time_unix_nano), "value": number(e.value), "trace_id": hex(e.trace_id),
            "span_id": hex(e.span_id), "attributes": attributes(e.filtered_attributes()),
        }))
    };
    exemplars.map(exemplar).collect()
}

/// Removes empty fields: null, "", [], {} and false.
fn filled(mut object: Value) -> Value {
    if let Value::Object(fields) = &mut object {
        fields.retain(|_, value| match value {
            Value::Null | Value::Bool(false) => false,
            Value::String(text) => !text.is_empty(),
            Value::Array(values) => !values.is_empty(),
            Value::Object(fields) => !fields.is_empty(),
            Value::Bool(true) | Value::Number(_) => true,
        });
    }
    object
}

/// The last value of a repeated key wins.
fn attributes<'a>(pairs: impl Iterator<Item = KeyValue<'a>>) -> Value {
    let fields = pairs.map(|pair| (text(pair.key), value(pair.value)));
    Value::Object(fields.collect::<Map<_, _>>())
}

fn value(any: AnyValue<'_>) -> Value {
    match any {
        AnyValue::Empty | AnyValue::StringIndex(_) => Value::Null,
        AnyValue::String(string) => text(string).into(),
        AnyValue::Bool(truth) => truth.into(),
        AnyValue::Int(int) => int.into(),
        AnyValue::Double(double) => float(double),
        AnyValue::Array(values) => values.map(value).collect(),
        AnyValue::Map(pairs) => attributes(pairs),
        AnyValue::Bytes(bytes) => hex(bytes).into(),
    }
}

fn number(number: Number) -> Value {
    match number {
        Number::Empty => Value::Null,
        Number::Int(int) => int.into(),
        Number::Double(double) => float(double),
    }
}

/// JSON has no infinities and no NaN.
fn float(double: f64) -> Value {
    serde_json::Number::from_f64(double).map_or_else(|| double.to_string().into(), Value::Number)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn word(words: &[&str], number: i32) -> String {
    let known = usize::try_from(number).ok().and_then(|number| words.get(number));
    known.map_or_else(|| number.to_string(), |word| (*word).to_owned())
}

fn time(unix_nano: u64) -> Value {
    match unix_nano {
        0 => Value::Null,
        _ => humantime::format_rfc3339_nanos(UNIX_EPOCH + Duration::from_nanos(unix_nano))
            .to_string()
            .into(),
    }
}
