//! Measures the walk: `cargo run --release -p millpond-otlp --example walk`. Prints nanoseconds per record.
#![expect(clippy::disallowed_methods, reason = "measures real time")]

use millpond_otlp::Signal;
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;
use std::time::Instant;

fn pair(key: &str, value: String) -> KeyValue {
    let value = Some(AnyValue {
        value: Some(Value::StringValue(value)),
    });
    KeyValue {
        key: key.into(),
        value,
        ..KeyValue::default()
    }
}

fn main() {
    let record = |i: u64| LogRecord {
        time_unix_nano: 1_700_000_000_000_000_000 + i,
        observed_time_unix_nano: 1_700_000_000_000_000_000 + i,
        severity_number: 9,
        severity_text: "INFO".into(),
        body: Some(AnyValue {
            value: Some(Value::StringValue(format!(
                "{i} {}",
                "Receiving block of the dfs data ".repeat(3)
            ))),
        }),
        attributes: vec![
            pair("http.request.method", "GET".into()),
            pair("http.route", "/api/v1/things/{id}".into()),
            pair("http.response.status_code", "200".into()),
            pair("log.file.name", "access.log".into()),
            pair("unique.id", format!("{i:032x}")),
            pair("thread.name", format!("worker-{}", i % 16)),
        ],
        trace_id: vec![7; 16],
        span_id: vec![7; 8],
        ..LogRecord::default()
    };
    let request = ExportLogsServiceRequest {
        resource_logs: vec![ResourceLogs {
            resource: Some(Resource {
                attributes: vec![
                    pair("service.name", "shop".into()),
                    pair("host.name", "host-1".into()),
                ],
                ..Resource::default()
            }),
            scope_logs: vec![ScopeLogs {
                log_records: (0..1000).map(record).collect(),
                ..ScopeLogs::default()
            }],
            ..ResourceLogs::default()
        }],
    };
    let bytes = request.encode_to_vec();
    for _ in 0..3 {
        let start = Instant::now();
        let mut records = 0;
        for _ in 0..1000 {
            records += millpond_otlp::validate(Signal::Logs, std::hint::black_box(&bytes))
                .map_or(0, |counts| counts.records);
        }
        let nanoseconds = start.elapsed().as_secs_f64() * 1e9;
        #[expect(clippy::cast_precision_loss, reason = "a figure to read")]
        let per_record = nanoseconds / records as f64;
        println!("{per_record:.1} ns a record of {} bytes", bytes.len() / 1000);
    }
}
