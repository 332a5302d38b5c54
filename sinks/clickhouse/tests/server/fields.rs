//! Odd records, read back from the table column by column as the engine shows them. `testdata/collector.json` has the
//! results of the Collector's own code for the same values; `src/rows.rs` compares them.

use crate::support::{NEW_YEAR, Server, any, batch, chunk, pair, text, write};

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{
    AnyValue, ArrayValue, InstrumentationScope, KeyValueList, any_value::Value,
};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;

/// Writes the records and returns the answer for all rows, in order.
async fn answer(records: Vec<LogRecord>, expressions: &str) -> Vec<String> {
    let logs = ResourceLogs {
        resource: Some(Resource {
            attributes: vec![
                pair("service.name", text("shop")),
                pair("a", any(Value::IntValue(-1))),
            ],
            ..Resource::default()
        }),
        scope_logs: vec![ScopeLogs {
            scope: Some(InstrumentationScope {
                name: "library".into(),
                version: "1.2".into(),
                attributes: vec![pair("scoped", any(Value::BoolValue(true)))],
                ..InstrumentationScope::default()
            }),
            log_records: records,
            schema_url: "https://scope".into(),
        }],
        schema_url: "https://resource".into(),
    };
    let request = ExportLogsServiceRequest {
        resource_logs: vec![logs],
    };
    raw_answer(request.encode_to_vec(), expressions).await
}

async fn raw_answer(request: Vec<u8>, expressions: &str) -> Vec<String> {
    let server = Server::start();
    let sink = server.open().await;
    let batch = batch(1, &[request]);
    let chunk = chunk(&sink, &batch);
    let rows = chunk.rows;
    write(&sink, &batch.id, &chunk).await.unwrap();
    // The order of the records is the order of their attribute `n` where it matters.
    let sql = format!("SELECT {expressions} FROM otel.otel_logs ORDER BY toUInt32OrZero(LogAttributes['n'])");
    let answer: Vec<String> = server.ask(&sql).await.split('\n').map(str::to_owned).collect();
    assert_eq!(answer.len() as u64, rows);
    answer
}

fn numbered(records: impl IntoIterator<Item = LogRecord>) -> Vec<LogRecord> {
    records
        .into_iter()
        .enumerate()
        .map(|(number, mut record)| {
            record.attributes.push(pair("n", text(number.to_string())));
            record
        })
        .collect()
}

fn nested() -> Value {
    Value::KvlistValue(KeyValueList {
        values: vec![
            pair("z", any(Value::BytesValue(vec![0, 255]))),
            pair(
                "a",
                any(Value::ArrayValue(ArrayValue {
                    values: vec![
                        AnyValue { value: None },
                        AnyValue {
                            value: Some(Value::DoubleValue(1e21)),
                        },
                        AnyValue {
                            value: Some(Value::StringValue("\"é\"\n".into())),
                        },
                    ],
                })),
            ),
        ],
    })
}

#[tokio::test]
async fn every_kind_of_value_is_text_as_a_body_and_as_an_attribute() {
    let values = [
        (None, ""),
        (any(Value::StringValue("grüß' \\ dich".into())), "grüß' \\ dich"),
        (any(Value::BoolValue(true)), "true"),
        (any(Value::BoolValue(false)), "false"),
        (any(Value::IntValue(i64::MIN)), "-9223372036854775808"),
        (any(Value::IntValue(i64::MAX)), "9223372036854775807"),
        (any(Value::IntValue(0)), "0"),
        (any(Value::DoubleValue(-0.5)), "-0.5"),
        (any(Value::DoubleValue(f64::NAN)), "NaN"),
        (any(Value::DoubleValue(f64::INFINITY)), "Infinity"),
        (any(Value::DoubleValue(f64::NEG_INFINITY)), "-Infinity"),
        (any(Value::DoubleValue(f64::MAX)), "1.7976931348623157e+308"),
        (any(Value::BytesValue(vec![1, 2, 3, 4])), "AQIDBA=="),
        (any(Value::BytesValue(vec![])), ""),
        (
            any(nested()),
            "{\"a\":[null,1e+21,\"\\\"é\\\"\\n\"],\"z\":\"AP8=\"}",
        ),
        (any(Value::ArrayValue(ArrayValue { values: vec![] })), "[]"),
        (any(Value::KvlistValue(KeyValueList { values: vec![] })), "{}"),
        (
            any(Value::ArrayValue(ArrayValue {
                values: vec![AnyValue {
                    value: Some(Value::DoubleValue(f64::NAN)),
                }],
            })),
            "",
        ),
    ];
    let records = numbered(values.iter().map(|(value, _)| LogRecord {
        time_unix_nano: NEW_YEAR,
        body: value.clone(),
        attributes: vec![pair("value", value.clone())],
        ..LogRecord::default()
    }));
    let found = answer(
        records,
        "base64Encode(Body) = base64Encode(LogAttributes['value']), Body",
    )
    .await;
    let expected: Vec<String> = values.iter().map(|(_, text)| format!("1\t{text}")).collect();
    assert_eq!(found, expected);
}

#[tokio::test]
async fn every_field_has_its_column() {
    let record = LogRecord {
        time_unix_nano: NEW_YEAR + 123_456_789,
        observed_time_unix_nano: 1,
        severity_number: 17,
        severity_text: "ERROR".into(),
        body: text("b".repeat(100_000)),
        attributes: vec![pair("k", text("2")), pair("a", text("1")), pair("n", text("0"))],
        dropped_attributes_count: 3,
        flags: 0x1ff,
        trace_id: (1..=16).collect(),
        span_id: (1..=8).collect(),
        event_name: "started".into(),
    };
    let found = answer(
        vec![record],
        "toUnixTimestamp64Nano(Timestamp), TraceId, SpanId, TraceFlags, SeverityText, SeverityNumber, ServiceName, \
         length(Body), ResourceSchemaUrl, ResourceAttributes, ScopeSchemaUrl, ScopeName, ScopeVersion, \
         ScopeAttributes, LogAttributes, EventName",
    )
    .await;
    assert_eq!(
        found[0].split('\t').collect::<Vec<_>>(),
        [
            "1704067200123456789",
            "0102030405060708090a0b0c0d0e0f10",
            "0102030405060708",
            "255",
            "ERROR",
            "17",
            "shop",
            "100000",
            "https://resource",
            "{'a':'-1','service.name':'shop'}",
            "https://scope",
            "library",
            "1.2",
            "{'scoped':'true'}",
            "{'a':'1','k':'2','n':'0'}",
            "started",
        ]
    );
}

#[tokio::test]
async fn a_record_without_anything_is_a_row() {
    let found = answer(
        vec![LogRecord::default()],
        "toUnixTimestamp64Nano(Timestamp), TraceId, SpanId, TraceFlags, SeverityText, SeverityNumber, Body, \
         LogAttributes, EventName",
    )
    .await;
    assert_eq!(found, ["0\t\t\t0\t\t0\t\t{}\t"]);
}

#[tokio::test]
async fn times_and_ids_at_their_limits() {
    let records = numbered([
        // No time: the row takes the observed time.
        LogRecord {
            observed_time_unix_nano: 5,
            ..LogRecord::default()
        },
        LogRecord {
            time_unix_nano: i64::MAX as u64,
            trace_id: vec![0; 16],
            span_id: vec![0; 8],
            ..LogRecord::default()
        },
        // After the year 2262, where the Collector's time overflows too.
        LogRecord {
            time_unix_nano: u64::MAX,
            trace_id: vec![1; 15],
            span_id: vec![1; 9],
            ..LogRecord::default()
        },
    ]);
    let found = answer(records, "toUnixTimestamp64Nano(Timestamp), TraceId, SpanId").await;
    assert_eq!(found, ["5\t\t", "9223372036854775807\t\t", "-1\t\t"]);
}

#[tokio::test]
async fn bytes_that_are_not_utf_8_come_through() {
    let mut record = LogRecord {
        time_unix_nano: NEW_YEAR,
        severity_text: "XXXX".into(),
        body: text("XXXX"),
        ..LogRecord::default()
    };
    record.attributes = vec![pair("XXXX", text("XXXX"))];
    let logs = ResourceLogs {
        scope_logs: vec![ScopeLogs {
            log_records: vec![record],
            ..ScopeLogs::default()
        }],
        ..ResourceLogs::default()
    };
    let mut request = ExportLogsServiceRequest {
        resource_logs: vec![logs],
    }
    .encode_to_vec();
    while let Some(at) = request.windows(4).position(|bytes| bytes == b"XXXX") {
        request[at..at + 4].copy_from_slice(b"a\xff\x00\xc3");
    }
    let found = raw_answer(
        request,
        "hex(Body), hex(SeverityText), hex(mapKeys(LogAttributes)[1]), hex(mapValues(LogAttributes)[1])",
    )
    .await;
    assert_eq!(found, ["61FF00C3\t61FF00C3\t61FF00C3\t61FF00C3"]);
}
