//! What the sink costs before the network: CPU-seconds per million records from stored blocks to compressed Native
//! blocks, beside zstd's decompression of the same blocks alone. Linux only (`/proc/self/schedstat`).
//!
//!     cargo run --release -p millpond-clickhouse --example encode -- [logs|traces|metrics] [FOLDER OF LOG FILES]
//!
//! Without a folder the bodies of logs are generated.

use bytes::Bytes;
use millpond_clickhouse::{Columns, Signal, encode};
use millpond_consumer::{Batch, BatchId, BatchingPolicy, Part};
use millpond_segment::{BlockBuilder, Compressor, Decompressor, Encoding, Limits};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::logs::v1::{LogRecord, ResourceLogs, ScopeLogs};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum,
    number_data_point::Value as Number,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::Event;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message as _;

/// As a Collector's batches.
const RECORDS_PER_REQUEST: usize = 1000;
const REQUESTS: usize = 500;
const BLOCK_BYTES: usize = 1 << 20;
const REPEATS: usize = 5;

fn main() {
    let word = std::env::args().nth(1).unwrap_or_else(|| "logs".into());
    let signal = Signal::ALL.into_iter().find(|signal| signal.name() == word);
    let signal = signal.expect("the first word is logs, traces or metrics");
    let bodies = bodies();
    let request = |number| match signal {
        Signal::Logs => logs(number, &bodies),
        Signal::Traces => traces(number),
        Signal::Metrics => metrics(number),
    };
    let requests: Vec<Vec<u8>> = (0..REQUESTS).map(request).collect();
    let raw: usize = requests.iter().map(Vec::len).sum();
    let records = REQUESTS * RECORDS_PER_REQUEST;
    let blocks = blocks(&requests);
    drop(requests);
    println!(
        "{records} records of {word}, {} raw bytes each, {} stored",
        raw / records,
        blocks.iter().map(Bytes::len).sum::<usize>() / records
    );
    // Batches of the default policy's size.
    let batches: Vec<Batch> = blocks
        .chunks((100_000 * blocks.len() / records).max(1))
        .map(|blocks| batch(signal, blocks))
        .collect();
    for _ in 0..REPEATS {
        let before = cpu_seconds();
        let mut decompressor = Decompressor::new().expect("zstd starts");
        for block in &blocks {
            for block in millpond_segment::blocks(block, 0, &Limits::default()) {
                let block = block.expect("our own block");
                block.decode(&mut decompressor).expect("our own block");
            }
        }
        let decompressed = cpu_seconds();
        let (mut rows, mut native, mut sent) = (0, 0, 0);
        for batch in &batches {
            encode(batch, &policy(), Columns::All, &mut |chunk| {
                rows += chunk.rows;
                native += chunk.raw_bytes;
                sent += chunk.body.iter().map(Bytes::len).sum::<usize>() as u64;
                true
            })
            .expect("our own batch");
        }
        let encoded = cpu_seconds();
        assert_eq!(rows, records as u64);
        let per_million = |seconds: f64| seconds * 1e6 / records as f64;
        println!(
            "CPU-seconds per million records: {:.3} (zstd decompression alone {:.3}); {} bytes a row in Native, {} sent",
            per_million(encoded - decompressed),
            per_million(decompressed - before),
            native / rows,
            sent / rows
        );
    }
}

/// Of this process's only thread.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/schedstat").expect("Linux");
    let nanoseconds: f64 = stat
        .split(' ')
        .next()
        .and_then(|text| text.parse().ok())
        .expect("a number");
    nanoseconds / 1e9
}

fn bodies() -> Vec<String> {
    let Some(folder) = std::env::args().nth(2) else {
        return (0..20_000_u64)
            .map(|number| {
                let id = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                format!(
                    "request {id:016x} from 10.0.{}.{} took {} us",
                    id % 256,
                    id % 251,
                    id % 100_000
                )
            })
            .collect();
    };
    let mut files: Vec<_> = std::fs::read_dir(&folder)
        .expect("the folder can be read")
        .map(|file| file.expect("a file").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    files.sort();
    let bodies: Vec<String> = files
        .iter()
        .flat_map(|path| {
            let bytes = std::fs::read(path).expect("a file that can be read");
            let text = String::from_utf8_lossy(&bytes).into_owned();
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    assert!(!bodies.is_empty(), "there is no *.log in {folder}");
    bodies
}

fn pair(key: &str, value: impl Into<String>) -> KeyValue {
    let value = Some(AnyValue {
        value: Some(Value::StringValue(value.into())),
    });
    KeyValue {
        key: key.into(),
        value,
        ..KeyValue::default()
    }
}

fn logs(number: usize, bodies: &[String]) -> Vec<u8> {
    let record = |index: usize| {
        let at = number * RECORDS_PER_REQUEST + index;
        let time = 1_704_067_200_000_000_000 + at as u64 * 1_000_000;
        let id = (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        LogRecord {
            time_unix_nano: time,
            observed_time_unix_nano: time + 1000,
            severity_number: 9,
            severity_text: "INFO".into(),
            body: Some(AnyValue {
                value: Some(Value::StringValue(bodies[at % bodies.len()].clone())),
            }),
            attributes: vec![
                pair("log.file.name", "app.log"),
                pair("log.record.uid", format!("{id:016x}{at:016x}")),
                pair("http.request.method", "GET"),
                pair("thread.name", format!("worker-{}", at % 16)),
            ],
            trace_id: [id.to_be_bytes(), (id ^ 7).to_be_bytes()].concat(),
            span_id: id.to_le_bytes().to_vec(),
            flags: 1,
            ..LogRecord::default()
        }
    };
    let logs = ResourceLogs {
        resource: Some(resource(number)),
        scope_logs: vec![ScopeLogs {
            scope: Some(scope()),
            log_records: (0..RECORDS_PER_REQUEST).map(record).collect(),
            ..ScopeLogs::default()
        }],
        ..ResourceLogs::default()
    };
    ExportLogsServiceRequest {
        resource_logs: vec![logs],
    }
    .encode_to_vec()
}

fn resource(number: usize) -> Resource {
    let attributes = [
        ("service.name", format!("service-{}", number % 8)),
        ("service.version", "1.4.2".into()),
        ("service.instance.id", format!("instance-{}", number % 32)),
        ("host.name", format!("node-{}", number % 16)),
        ("k8s.namespace.name", "shop".into()),
        ("k8s.pod.name", format!("shop-{}", number % 32)),
        ("k8s.node.name", format!("node-{}", number % 16)),
        ("deployment.environment.name", "production".into()),
    ];
    Resource {
        attributes: attributes.map(|(key, value)| pair(key, value)).to_vec(),
        ..Resource::default()
    }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope {
        name: "example".into(),
        version: "0.1".into(),
        ..InstrumentationScope::default()
    }
}

/// As an instrumented HTTP service makes them; every eighth has an event.
fn traces(number: usize) -> Vec<u8> {
    let span = |index: usize| {
        let at = number * RECORDS_PER_REQUEST + index;
        let time = 1_704_067_200_000_000_000 + at as u64 * 1_000_000;
        let id = (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let event = Event {
            name: "cache miss".into(),
            time_unix_nano: time + 500,
            attributes: vec![pair("cache.key", format!("{id:x}"))],
            ..Event::default()
        };
        Span {
            trace_id: [id.to_be_bytes(), (id ^ 7).to_be_bytes()].concat(),
            span_id: id.to_le_bytes().to_vec(),
            parent_span_id: (id ^ 1).to_le_bytes().to_vec(),
            name: [
                "GET /cart",
                "GET /orders/{id}",
                "POST /orders",
                "SELECT shop.orders",
            ][at % 4]
                .into(),
            kind: 2 + i32::from(at % 4 == 3),
            start_time_unix_nano: time,
            end_time_unix_nano: time + id % 50_000_000,
            attributes: vec![
                pair("http.request.method", "GET"),
                pair("http.route", "/orders/{id}"),
                pair("http.response.status_code", "200"),
                pair("url.path", format!("/orders/{}", id % 100_000)),
                pair("network.peer.address", format!("10.0.{}.{}", id % 256, id % 251)),
                pair("thread.name", format!("worker-{}", at % 16)),
            ],
            events: if at.is_multiple_of(8) {
                vec![event]
            } else {
                Vec::new()
            },
            ..Span::default()
        }
    };
    let spans = ResourceSpans {
        resource: Some(resource(number)),
        scope_spans: vec![ScopeSpans {
            scope: Some(scope()),
            spans: (0..RECORDS_PER_REQUEST).map(span).collect(),
            ..ScopeSpans::default()
        }],
        ..ResourceSpans::default()
    };
    ExportTraceServiceRequest {
        resource_spans: vec![spans],
    }
    .encode_to_vec()
}

/// As a host's and a service's: gauges, sums and histograms of ten points each.
fn metrics(number: usize) -> Vec<u8> {
    const POINTS: usize = 10;
    let metric = |index: usize| {
        let time_unix_nano = 1_704_067_200_000_000_000 + number as u64 * 15_000_000_000;
        let attributes = |point: usize| {
            vec![
                pair("device", format!("device-{point}")),
                pair("state", ["used", "free"][point % 2]),
                pair("http.route", format!("/orders/{}", index % 7)),
            ]
        };
        let numbers = || {
            let point = |point: usize| NumberDataPoint {
                attributes: attributes(point),
                start_time_unix_nano: time_unix_nano - 60_000_000_000,
                time_unix_nano,
                value: Some(Number::AsDouble((number * index + point) as f64)),
                ..NumberDataPoint::default()
            };
            (0..POINTS).map(point).collect()
        };
        let histograms = || {
            let point = |point: usize| HistogramDataPoint {
                attributes: attributes(point),
                time_unix_nano,
                count: 100,
                sum: Some(12.5),
                bucket_counts: (0..15).collect(),
                explicit_bounds: (0..14_u8).map(f64::from).collect(),
                ..HistogramDataPoint::default()
            };
            (0..POINTS).map(point).collect()
        };
        let data = match index % 3 {
            0 => Data::Gauge(Gauge {
                data_points: numbers(),
            }),
            1 => Data::Sum(Sum {
                data_points: numbers(),
                aggregation_temporality: 2,
                is_monotonic: true,
            }),
            _ => Data::Histogram(Histogram {
                data_points: histograms(),
                aggregation_temporality: 2,
            }),
        };
        Metric {
            name: format!("system.metric.{}", index % 40),
            description: "What the host has of it".into(),
            unit: "By".into(),
            data: Some(data),
            ..Metric::default()
        }
    };
    let group = ResourceMetrics {
        resource: Some(resource(number)),
        scope_metrics: vec![ScopeMetrics {
            scope: Some(scope()),
            metrics: (0..RECORDS_PER_REQUEST / POINTS).map(metric).collect(),
            ..ScopeMetrics::default()
        }],
        ..ResourceMetrics::default()
    };
    ExportMetricsServiceRequest {
        resource_metrics: vec![group],
    }
    .encode_to_vec()
}

/// As a producer stores them.
fn blocks(requests: &[Vec<u8>]) -> Vec<Bytes> {
    let mut compressor = Compressor::new(1).expect("zstd starts");
    let per_block = (BLOCK_BYTES / requests[0].len()).max(1);
    requests
        .chunks(per_block)
        .map(|requests| {
            let mut builder = BlockBuilder::with_buffer(1, Vec::new(), &Limits::default());
            for request in requests {
                builder.push(1, request).expect("a message of a usual size");
            }
            compressor
                .compress(&builder, 0)
                .expect("a block of a usual size")
                .bytes
        })
        .collect()
}

fn batch(signal: Signal, blocks: &[Bytes]) -> Batch {
    let id = BatchId {
        buffer_id: uuid::Uuid::nil(),
        shard: 0,
        stream: signal.stream().into(),
        consumer: "default".into(),
        cursor: "default".into(),
        generation: 0,
        sink: "clickhouse:otel.otel_logs".into(),
        low: 1,
        high: 1,
        schema_version: 2,
    };
    let part = Part {
        sequence: 1,
        first_record: 0,
        segment: ulid::Ulid::nil(),
        offset: 0,
        data: blocks.concat().into(),
        raw_len: 0,
        records: 0,
        dropped: Default::default(),
    };
    Batch {
        id,
        encoding: Encoding::Otlp,
        parts: vec![part],
    }
}

fn policy() -> BatchingPolicy {
    BatchingPolicy {
        batch_records: 100_000,
        batch_bytes: 64 << 20,
        chunk_rows: 100_000,
        chunk_bytes: 64 << 20,
        max_partitions_per_chunk: 50,
        max_in_flight: 16,
        sink: "clickhouse:otel.otel_logs".into(),
        schema_version: 2,
    }
}
