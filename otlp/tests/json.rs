//! OTLP/JSON by example: OTLP's deviations from protobuf's mapping, the extensions, and rejected input with position
//! and reason.

use millpond_otlp::{JsonError, JsonReason, MalformedJson, Signal, protobuf_of_json};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::logs::v1::LogRecord;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{HistogramDataPoint, number_data_point};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;

fn protobuf(signal: Signal, json: &str) -> Result<Vec<u8>, JsonError> {
    protobuf_of_json(signal, json.as_bytes(), 5 * json.len())
}

/// The log record with these members.
fn record(members: &str) -> LogRecord {
    let json = format!(r#"{{"resourceLogs":[{{"scopeLogs":[{{"logRecords":[{{{members}}}]}}]}}]}}"#);
    let bytes = protobuf(Signal::Logs, &json).unwrap_or_else(|error| panic!("{error} in {json}"));
    let mut request = ExportLogsServiceRequest::decode(&bytes[..]).expect("protobuf");
    request.resource_logs[0].scope_logs[0].log_records.remove(0)
}

fn body(value: &str) -> Option<Value> {
    record(&format!(r#""body":{value}"#)).body.expect("a body").value
}

fn span(members: &str) -> Span {
    let json = format!(r#"{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{{{members}}}]}}]}}]}}"#);
    let bytes = protobuf(Signal::Traces, &json).unwrap_or_else(|error| panic!("{error} in {json}"));
    let mut request = ExportTraceServiceRequest::decode(&bytes[..]).expect("protobuf");
    request.resource_spans[0].scope_spans[0].spans.remove(0)
}

fn histogram_point(members: &str) -> HistogramDataPoint {
    let json = format!(
        r#"{{"resourceMetrics":[{{"scopeMetrics":[{{"metrics":[{{"histogram":{{"dataPoints":[{{{members}}}]}}}}]}}]}}]}}"#
    );
    let bytes = protobuf(Signal::Metrics, &json).unwrap_or_else(|error| panic!("{error} in {json}"));
    let mut request = ExportMetricsServiceRequest::decode(&bytes[..]).expect("protobuf");
    let Some(Data::Histogram(mut histogram)) = request.resource_metrics[0].scope_metrics[0]
        .metrics
        .remove(0)
        .data
    else {
        panic!("no histogram in {json}")
    };
    histogram.data_points.remove(0)
}

fn refusal(signal: Signal, json: &str) -> MalformedJson {
    match protobuf(signal, json) {
        Err(JsonError::Malformed(malformed)) => malformed,
        other => panic!("{other:?} for {json}"),
    }
}

#[test]
fn ids_are_hexadecimal_of_either_case_and_bytes_are_base64() {
    let record = record(r#""traceId":"5B8EFFF798038103D269B633813FC60C","spanId":"eee19b7ec3c1b174""#);
    assert_eq!(
        record.trace_id,
        0x5b8e_fff7_9803_8103_d269_b633_813f_c60c_u128.to_be_bytes()
    );
    assert_eq!(record.span_id, 0xeee1_9b7e_c3c1_b174_u64.to_be_bytes());
    for base64 in ["+/8=", "-_8", "-_8=", "+\\/8"] {
        let bytes = body(&format!(r#"{{"bytesValue":"{base64}"}}"#));
        assert_eq!(bytes, Some(Value::BytesValue(vec![0xfb, 0xff])), "{base64}");
    }
}

#[test]
fn integers_are_numbers_or_strings_and_exact() {
    for (text, nanos) in [
        ("18446744073709551615", u64::MAX),
        ("\"18446744073709551615\"", u64::MAX),
        ("1.5e3", 1500),
        ("\"0\"", 0),
    ] {
        assert_eq!(record(&format!(r#""timeUnixNano":{text}"#)).time_unix_nano, nanos);
    }
    for (text, value) in [
        ("-9223372036854775808", i64::MIN),
        ("\"9007199254740993\"", 9_007_199_254_740_993),
    ] {
        assert_eq!(
            body(&format!(r#"{{"intValue":{text}}}"#)),
            Some(Value::IntValue(value))
        );
    }
}

#[test]
fn doubles_are_exact_and_may_be_nan_or_infinite() {
    for (text, value) in [
        ("0.1", 0.1),
        ("-0", -0.0),
        ("\"1e300\"", 1e300),
        ("\"-Infinity\"", f64::NEG_INFINITY),
    ] {
        let Some(Value::DoubleValue(double)) = body(&format!(r#"{{"doubleValue":{text}}}"#)) else {
            panic!("no double for {text}")
        };
        assert_eq!(double.to_bits(), f64::to_bits(value));
    }
    let Some(Value::DoubleValue(nan)) = body(r#"{"doubleValue":"NaN"}"#) else {
        panic!("no double")
    };
    assert!(nan.is_nan());
    let point = histogram_point(
        r#""bucketCounts":["1",2,"3"],"explicitBounds":[-1.5,"Infinity"],"sum":0,"min":null"#,
    );
    assert_eq!(point.bucket_counts, [1, 2, 3]);
    assert_eq!(point.explicit_bounds, [-1.5, f64::INFINITY]);
    assert_eq!((point.sum, point.min), (Some(0.0), None));
}

/// The specification requires numbers; the Collector accepts names too.
#[test]
fn enumerations_are_numbers_or_names() {
    for (kind, number) in [
        ("2", 2),
        ("\"2\"", 2),
        ("\"SPAN_KIND_CLIENT\"", 3),
        ("77", 77),
        ("-1", -1),
    ] {
        assert_eq!(span(&format!(r#""kind":{kind}"#)).kind, number);
    }
    assert_eq!(
        record(r#""severityNumber":"SEVERITY_NUMBER_FATAL4""#).severity_number,
        24
    );
    assert_eq!(
        span(r#""status":{"code":"STATUS_CODE_ERROR"}"#)
            .status
            .expect("a status")
            .code,
        2
    );
}

#[test]
fn fields_have_their_names_in_either_spelling_and_others_are_ignored() {
    let members = r#""observed_time_unix_nano":"1","severity\u0054ext":"x","a_field_of_tomorrow":[{"deep":[1,"",null]}],
        "tImeUnixNano":5,"time__unix_nano":5,"":5"#;
    let record = record(members);
    let expected = LogRecord {
        observed_time_unix_nano: 1,
        severity_text: "x".to_owned(),
        ..LogRecord::default()
    };
    assert_eq!(record, expected);
}

#[test]
fn null_is_the_default_and_in_a_list_a_message_with_nothing_in_it() {
    let members = r#""timeUnixNano":null,"body":null,"traceId":null,"attributes":null,"flags":null"#;
    assert_eq!(record(members), LogRecord::default());
    let Some(Value::ArrayValue(array)) = body(r#"{"arrayValue":{"values":[null,{"boolValue":true}]}}"#)
    else {
        panic!("no array")
    };
    assert_eq!(array.values.len(), 2);
    assert_eq!(array.values[0].value, None);
}

/// As in protobuf's wire format.
#[test]
fn a_repeated_value_keeps_the_last_and_repeated_lists_are_joined() {
    assert_eq!(
        body(r#"{"stringValue":"a","boolValue":false}"#),
        Some(Value::BoolValue(false))
    );
    let record =
        record(r#""timeUnixNano":1,"timeUnixNano":2,"attributes":[{"key":"a"}],"attributes":[{"key":"b"}]"#);
    assert_eq!(record.time_unix_nano, 2);
    assert_eq!(record.attributes.len(), 2);
}

#[test]
fn strings_are_unescaped_and_half_a_character_is_replaced() {
    for (text, value) in [
        (
            r#"naïve \"\\\/\b\f\n\r\t\u0000\u20ac"#,
            "naïve \"\\/\u{8}\u{c}\n\r\t\0€",
        ),
        (r"\ud83d\ude00 \ud83d", "😀 \u{fffd}"),
    ] {
        let body = body(&format!(r#"{{"stringValue":"{text}"}}"#));
        assert_eq!(body, Some(Value::StringValue(value.to_owned())));
    }
}

#[test]
fn signs_are_kept_where_the_wire_has_them_otherwise() {
    let json = r#"{"resourceMetrics":[{"scopeMetrics":[{"metrics":[
        {"exponentialHistogram":{"dataPoints":[{"scale":-3,"positive":{"offset":"-7","bucketCounts":[1,"2"]}}],
         "aggregationTemporality":"AGGREGATION_TEMPORALITY_DELTA"}},
        {"sum":{"dataPoints":[{"asInt":"-12"}],"isMonotonic":true}}]}]}]}"#;
    let bytes = protobuf(Signal::Metrics, json).expect("OTLP/JSON");
    let request = ExportMetricsServiceRequest::decode(&bytes[..]).expect("protobuf");
    let metrics = &request.resource_metrics[0].scope_metrics[0].metrics;
    let Some(Data::ExponentialHistogram(histogram)) = &metrics[0].data else {
        panic!("no histogram")
    };
    let positive = histogram.data_points[0].positive.as_ref().expect("buckets");
    assert_eq!((histogram.data_points[0].scale, positive.offset), (-3, -7));
    assert_eq!(
        (&positive.bucket_counts[..], histogram.aggregation_temporality),
        (&[1, 2][..], 1)
    );
    let Some(Data::Sum(sum)) = &metrics[1].data else {
        panic!("no sum")
    };
    assert_eq!(
        sum.data_points[0].value,
        Some(number_data_point::Value::AsInt(-12))
    );
}

#[test]
fn faults_are_reported_with_their_place() {
    let faults = [
        ("", 0, "the request itself", "incomplete"),
        ("  [1]", 2, "the request itself", "expected an object"),
        ("null", 0, "the request itself", "expected an object"),
        ("{} x", 3, "the request itself", "there is more"),
        (r#"{"resourceLogs":{}}"#, 16, "resourceLogs", "expected an array"),
        (
            r#"{"resourceLogs":[{} {}]}"#,
            20,
            "resourceLogs[1]",
            "a comma or the end of the array",
        ),
        (
            r#"{"resourceLogs":[{"schemaUrl":1}]}"#,
            30,
            "resourceLogs[0].schemaUrl",
            "expected a string",
        ),
        (
            r#"{"resourceLogs":[{"schemaUrl":"a"#,
            32,
            "resourceLogs[0].schemaUrl",
            "incomplete",
        ),
        (
            "{\"resourceLogs\":[{\"schemaUrl\":\"a\n\"}]}",
            32,
            "resourceLogs[0].schemaUrl",
            "control character",
        ),
        (
            r#"{"resourceLogs":[{"schemaUrl":"\x"}]}"#,
            31,
            "resourceLogs[0].schemaUrl",
            "escape",
        ),
        (
            r#"{"resourceLogs":[{"schemaUrl":"\u12g4"}]}"#,
            31,
            "resourceLogs[0].schemaUrl",
            "escape",
        ),
        (
            r#"{"x":[01]}"#,
            7,
            "the request itself",
            "a comma or the end of the array",
        ),
        (r#"{"x":tru}"#, 5, "the request itself", "expected a value"),
        (r#"{"x":NaN}"#, 5, "the request itself", "expected a value"),
        (r#"{"x"}"#, 4, "the request itself", "expected a colon"),
        (r#"{x:1}"#, 1, "the request itself", "expected a string"),
        (r#"{"x":1,}"#, 7, "the request itself", "expected a string"),
    ];
    for (json, offset, field, reason) in faults {
        let malformed = refusal(Signal::Logs, json);
        assert_eq!(
            (malformed.offset, malformed.field.as_str()),
            (offset, field),
            "{json}"
        );
        assert!(
            malformed.reason.to_string().contains(reason),
            "{json} {malformed}"
        );
    }
}

#[test]
fn values_of_another_kind_or_out_of_range_are_refused() {
    for (members, reason) in [
        (r#""flags":4294967296"#, "range of uint32"),
        (r#""flags":-1"#, "range of uint32"),
        (r#""flags":1.5"#, "an integer"),
        (r#""flags":true"#, "an integer"),
        (r#""flags":"""#, "an integer"),
        (r#""flags":" 1""#, "an integer"),
        (r#""timeUnixNano":18446744073709551616"#, "range of uint64"),
        (r#""timeUnixNano":{"low":1,"high":2}"#, "an integer"),
        (r#""severityNumber":"WARN""#, "SEVERITY_NUMBER_"),
        (r#""severityNumber":2147483648"#, "range of int32"),
        (r#""severityNumber":"2147483648""#, "SEVERITY_NUMBER_"),
        (r#""severityText":7"#, "a string"),
        (r#""traceId":"5B8EFFF798038103D269B633813FC60"#, "incomplete"),
        (r#""traceId":"5B8EFFF798038103D269B633813FC60""#, "hexadecimal"),
        (r#""traceId":"W47/95gDgQPSabYzgT/GDA==""#, "hexadecimal"),
        (r#""body":"text""#, "an object"),
        (r#""body":{"stringValue":{}}"#, "a string"),
        (r#""body":{"boolValue":"true"}"#, "true or false"),
        (r#""body":{"boolValue":1}"#, "true or false"),
        (r#""body":{"doubleValue":1e309}"#, "a number"),
        (r#""body":{"doubleValue":"Inf"}"#, "a number"),
        (r#""body":{"bytesValue":"a"}"#, "base64"),
        (r#""attributes":{"a":"b"}"#, "an array"),
        (r#""attributes":["a"]"#, "an object"),
    ] {
        let json = format!(r#"{{"resourceLogs":[{{"scopeLogs":[{{"logRecords":[{{{members}}}]}}]}}]}}"#);
        let malformed = refusal(Signal::Logs, &json);
        assert!(
            malformed.reason.to_string().contains(reason),
            "{json} {malformed}"
        );
        let within = "resourceLogs[0].scopeLogs[0].logRecords[0].";
        assert!(malformed.field.starts_with(within), "{malformed}");
    }
    let nulls = r#"{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"histogram":{"dataPoints":[{"explicitBounds":[1,null]}]}}]}]}]}"#;
    let malformed = refusal(Signal::Metrics, nulls);
    assert!(malformed.field.ends_with("explicitBounds[1]"), "{malformed}");
}

#[test]
fn nesting_is_limited_as_in_protobuf() {
    let nested = |levels: usize| {
        let (open, close) = (
            r#"{"arrayValue":{"values":["#.repeat(levels),
            "]}}".repeat(levels),
        );
        format!(r#"{{"resourceLogs":[{{"scopeLogs":[{{"logRecords":[{{"body":{open}{close}}}]}}]}}]}}"#)
    };
    protobuf(Signal::Logs, &nested(48)).expect("48 arrays within one another");
    assert_eq!(refusal(Signal::Logs, &nested(49)).reason, JsonReason::Depth);
    assert_eq!(refusal(Signal::Logs, &nested(100_000)).reason, JsonReason::Depth);

    let unknown = |levels: usize| format!(r#"{{"x":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
    protobuf(Signal::Logs, &unknown(100)).expect("100 arrays within one another");
    assert_eq!(refusal(Signal::Logs, &unknown(101)).reason, JsonReason::Depth);
    assert_eq!(
        refusal(Signal::Logs, &unknown(1_000_000)).reason,
        JsonReason::Depth
    );
}
