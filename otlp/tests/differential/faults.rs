//! Error messages for rejected requests, and the cases where we follow the Collector rather than protobuf.

use crate::draw::{put_bytes, put_fixed64, put_varint};
use millpond_otlp::logs::Request;
use millpond_otlp::{AnyValue, Malformed, Reason, Signal, metrics, validate};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use prost::Message as _;

/// Embeds `bytes` in `path`, innermost first.
fn wrap(bytes: &[u8], path: &[u64]) -> Vec<u8> {
    path.iter().fold(bytes.to_vec(), |inner, &number| {
        let mut out = Vec::new();
        put_bytes(number, &inner, &mut out);
        out
    })
}

const RECORD: [u64; 3] = [2, 2, 1];

#[test]
fn an_error_says_where() {
    let mut record = Vec::new();
    put_bytes(6, &[], &mut record);
    let mut pair = Vec::new();
    put_bytes(1, b"key", &mut pair);
    put_varint(2, 1, &mut pair);
    put_bytes(6, &pair, &mut record);
    let mut scope = wrap(&[], &[2]);
    put_bytes(2, &record, &mut scope);
    let bytes = wrap(&scope, &[2, 1]);
    let error = validate(Signal::Logs, &bytes).unwrap_err();
    assert_eq!(
        error,
        Malformed {
            offset: bytes.len() - 2,
            field: "resource_logs[0].scope_logs[0].log_records[1].attributes[1].value".into(),
            reason: Reason::WireType,
        }
    );
    assert_eq!(
        error.to_string(),
        "malformed OTLP at byte 17 (resource_logs[0].scope_logs[0].log_records[1].attributes[1].value): \
         the wire type is not the one that OTLP gives this field"
    );
    let error = validate(Signal::Logs, &[0x0a]).unwrap_err();
    assert_eq!(
        (error.offset, error.field.as_str(), error.reason),
        (0, "resource_logs[0]", Reason::Truncated)
    );
    let error = validate(Signal::Logs, &[0x00]).unwrap_err();
    assert_eq!(
        (error.offset, error.field.as_str(), error.reason),
        (0, "the request itself", Reason::FieldNumber)
    );
    let error = validate(Signal::Logs, &wrap(&[0xfa, 0x06, 0xff], &RECORD)).unwrap_err();
    assert_eq!(
        error.field,
        "resource_logs[0].scope_logs[0].log_records[0].unknown field 111"
    );
}

#[test]
fn each_fault_has_its_reason() {
    for (record, reason) in [
        (&[0x0b, 0x0c][..], Reason::Group),
        (&[0xa3, 0x06, 0xa4, 0x06], Reason::Group),
        (&[0xa6, 0x06], Reason::UnknownWireType),
        (&[0x08, 0x01], Reason::WireType),
        (&[0x09, 1, 2, 3], Reason::Truncated),
        (&[0x2a, 0x05, 0x0a], Reason::Truncated),
        (
            &[0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
            Reason::Varint,
        ),
        (
            &[0x2a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
            Reason::Truncated,
        ),
        (&[0x05, 0, 0, 0, 0], Reason::FieldNumber),
    ] {
        assert_eq!(
            validate(Signal::Logs, &wrap(record, &RECORD)).unwrap_err().reason,
            reason,
            "{record:x?}"
        );
    }
}

#[test]
fn an_empty_request_has_no_records() {
    assert_eq!(validate(Signal::Logs, &[]).unwrap().records, 0);
    assert_eq!(validate(Signal::Logs, &wrap(&[], &RECORD)).unwrap().records, 1);
}

#[test]
fn strings_that_are_not_utf8_pass_as_in_the_collector() {
    let mut record = Vec::new();
    put_bytes(3, &[0xff, 0xfe], &mut record);
    let bytes = wrap(&record, &RECORD);
    assert!(ExportLogsServiceRequest::decode(&*bytes).is_err());
    let request = Request::parse(&bytes).unwrap();
    let record = request
        .resources()
        .next()
        .unwrap()
        .scopes()
        .next()
        .unwrap()
        .items()
        .next()
        .unwrap();
    assert_eq!(record.severity_text, [0xff, 0xfe]);
}

/// Protobuf merges occurrences of a message, oneof or not; the Collector replaces the array or map.
#[test]
fn a_second_array_replaces_the_first_as_in_the_collector() {
    let mut body = wrap(&wrap(b"a", &[1]), &[1, 5]);
    body.extend(wrap(&wrap(b"b", &[1]), &[1, 5]));
    let bytes = wrap(&wrap(&body, &[5]), &RECORD);
    let request = Request::parse(&bytes).unwrap();
    let record = request
        .resources()
        .next()
        .unwrap()
        .scopes()
        .next()
        .unwrap()
        .items()
        .next()
        .unwrap();
    let AnyValue::Array(values) = record.body else {
        panic!("{:?}", record.body)
    };
    assert_eq!(values.collect::<Vec<_>>(), [AnyValue::String(b"b")]);
}

/// Senders older than OTLP 0.15 use field 1000; the Collector reads it if scope_logs is absent.
#[test]
fn the_field_that_scope_logs_replaced_counts_alone() {
    let old = wrap(&wrap(&[], &[2]), &[1000]);
    let bytes = wrap(&old, &[1]);
    assert_eq!(validate(Signal::Logs, &bytes).unwrap().records, 1);
    let request = Request::parse(&bytes).unwrap();
    assert_eq!(
        request
            .resources()
            .flat_map(|logs| logs.scopes())
            .flat_map(|s| s.items())
            .count(),
        1
    );

    let mut both = old;
    both.extend(wrap(&[], &[2]));
    let bytes = wrap(&both, &[1]);
    assert_eq!(validate(Signal::Logs, &bytes).unwrap().records, 0);
    let request = Request::parse(&bytes).unwrap();
    assert_eq!(
        request
            .resources()
            .flat_map(|logs| logs.scopes())
            .flat_map(|s| s.items())
            .count(),
        0
    );
}

#[test]
fn nesting_is_bounded() {
    // Four messages down to the body, then two per nested array.
    let nested = |arrays: usize| {
        let mut value = Vec::new();
        for _ in 0..arrays {
            value = wrap(&value, &[1, 5]);
        }
        wrap(&wrap(&value, &[5]), &RECORD)
    };
    assert!(validate(Signal::Logs, &nested(48)).is_ok());
    assert!(ExportLogsServiceRequest::decode(&*nested(48)).is_ok());
    assert_eq!(
        validate(Signal::Logs, &nested(49)).unwrap_err().reason,
        Reason::Depth
    );
    assert!(ExportLogsServiceRequest::decode(&*nested(49)).is_err());
    assert_eq!(
        validate(Signal::Logs, &nested(20_000)).unwrap_err().reason,
        Reason::Depth
    );
}

/// Wraps these bytes in a metric.
fn metric(bytes: &[u8]) -> Vec<u8> {
    wrap(bytes, &[2, 2, 1])
}

fn data(bytes: &[u8]) -> metrics::Data<'_> {
    let request = metrics::Request::parse(bytes).unwrap();
    let scope = request.resources().next().unwrap().scopes().next().unwrap();
    scope.items().next().unwrap().data
}

/// Protobuf would merge two gauges; the Collector uses only the last data of any kind.
#[test]
fn a_metric_keeps_only_its_last_data() {
    let points = |count: usize| wrap(&[], &[1]).repeat(count);
    for (first, second, expected) in [(5, 5, 3), (5, 7, 3), (9, 11, 3)] {
        let mut both = wrap(&points(2), &[first]);
        both.extend(wrap(&points(3), &[second]));
        let bytes = metric(&both);
        assert_eq!(validate(Signal::Metrics, &bytes).unwrap().records, expected);
        let found = match data(&bytes) {
            metrics::Data::Gauge(points) | metrics::Data::Sum(points) => points.count(),
            metrics::Data::Summary(points) => points.count(),
            other => panic!("{other:?}"),
        };
        assert_eq!(found as u64, expected);
    }
}

/// Protobuf would append the second packed field to the first. Both append unpacked values.
#[test]
fn a_second_packed_field_replaces_the_first_as_in_the_collector() {
    let mut point = Vec::new();
    put_bytes(6, &1u64.to_le_bytes(), &mut point);
    put_fixed64(6, 2, &mut point);
    put_bytes(6, &[3u64.to_le_bytes(), 4u64.to_le_bytes()].concat(), &mut point);
    put_fixed64(6, 5, &mut point);
    let bytes = metric(&wrap(&point, &[1, 9]));
    let metrics::Data::Histogram(mut points) = data(&bytes) else {
        panic!("no histogram")
    };
    let counts: Vec<u64> = points.next().unwrap().bucket_counts().collect();
    assert_eq!(counts, [3, 4, 5]);
}

#[test]
fn packed_numbers_that_do_not_fit_are_refused() {
    for (point, reason) in [
        (wrap(&[0; 9], &[6]), Reason::Truncated),
        (wrap(&[0x80], &[2, 8]), Reason::Truncated),
        (wrap(&[0xff; 10], &[2, 8]), Reason::Varint),
    ] {
        let kind = if point[0] == 0x32 { 9 } else { 10 };
        let error = validate(Signal::Metrics, &metric(&wrap(&point, &[1, kind]))).unwrap_err();
        assert_eq!(error.reason, reason, "{error}");
        assert!(error.field.ends_with("bucket_counts[0]"), "{error}");
    }
    let mut point = Vec::new();
    put_varint(6, 1, &mut point);
    let error = validate(Signal::Metrics, &metric(&wrap(&point, &[1, 9]))).unwrap_err();
    assert_eq!(error.reason, Reason::WireType, "{error}");
}

#[test]
fn a_metric_without_data_has_no_records() {
    let bytes = metric(&wrap(b"name", &[1]));
    assert_eq!(validate(Signal::Metrics, &bytes).unwrap().records, 0);
    assert!(matches!(data(&bytes), metrics::Data::Empty));
}

#[test]
fn every_signal_has_its_fields_paths() {
    for (signal, expected) in [
        (
            Signal::Logs,
            "resource_logs[0].scope_logs[0].log_records[0].attributes[0]",
        ),
        (Signal::Traces, "resource_spans[0].scope_spans[0].spans[0].kind"),
        (
            Signal::Metrics,
            "resource_metrics[0].scope_metrics[0].metrics[0].unknown field 6",
        ),
    ] {
        let error = validate(signal, &wrap(&[0x32, 0x05], &[2, 2, 1])).unwrap_err();
        assert_eq!(error.field, expected);
    }
}
