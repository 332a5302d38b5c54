//! Traces and metrics: the tables that take their rows, once each, however often they are sent.
//! `tests/test_fidelity.py` compares every column with the exporter's.

use crate::support::{
    DAY, NEW_YEAR, Proxy, Server, batch_of, chunk, chunks, open, pair, text, write, write_again,
};
use millpond_clickhouse::{ClickHouse, Config, Signal};
use millpond_consumer::Batch;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::metrics::v1::exponential_histogram_data_point::Buckets;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    ExponentialHistogram, ExponentialHistogramDataPoint, Gauge, Histogram, HistogramDataPoint, Metric,
    NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum, Summary, SummaryDataPoint, number_data_point::Value,
    summary_data_point::ValueAtQuantile,
};
use opentelemetry_proto::tonic::trace::v1::span::{Event, Link};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message as _;
use std::sync::Arc;

pub(crate) const TABLES: [&str; 5] = ["gauge", "sum", "histogram", "exponential_histogram", "summary"];

/// Spans with these times, each in a separate trace, with as many events as its number.
pub(crate) fn traces(low: u64, times: &[u64]) -> Batch {
    let span = |(number, &time): (usize, &u64)| Span {
        trace_id: vec![u8::try_from(number + 1).unwrap(); 16],
        span_id: vec![1; 8],
        name: format!("span {number}"),
        start_time_unix_nano: time,
        end_time_unix_nano: time + 5,
        attributes: vec![pair("number", text(number.to_string()))],
        events: (0..number)
            .map(|event| Event {
                name: format!("event {event}"),
                time_unix_nano: time,
                attributes: vec![pair("event", text(event.to_string()))],
                ..Event::default()
            })
            .collect(),
        links: vec![Link {
            trace_id: vec![9; 16],
            ..Link::default()
        }],
        ..Span::default()
    };
    let spans = ResourceSpans {
        scope_spans: vec![ScopeSpans {
            spans: times.iter().enumerate().map(span).collect(),
            ..ScopeSpans::default()
        }],
        ..ResourceSpans::default()
    };
    let request = ExportTraceServiceRequest {
        resource_spans: vec![spans],
    };
    batch_of(Signal::Traces, low, &[request.encode_to_vec()])
}

/// A metric of every kind with a point at each of these times.
pub(crate) fn metrics(low: u64, times: &[u64]) -> Batch {
    let numbers: Vec<NumberDataPoint> = times
        .iter()
        .map(|&time_unix_nano| NumberDataPoint {
            time_unix_nano,
            value: Some(Value::AsInt(7)),
            ..NumberDataPoint::default()
        })
        .collect();
    let histograms = times.iter().map(|&time_unix_nano| HistogramDataPoint {
        time_unix_nano,
        bucket_counts: vec![1, 2],
        explicit_bounds: vec![0.5],
        ..HistogramDataPoint::default()
    });
    let exponential = times.iter().map(|&time_unix_nano| ExponentialHistogramDataPoint {
        time_unix_nano,
        negative: Some(Buckets {
            offset: -3,
            bucket_counts: vec![4, 5, 6],
        }),
        ..ExponentialHistogramDataPoint::default()
    });
    let summaries = times.iter().map(|&time_unix_nano| SummaryDataPoint {
        time_unix_nano,
        quantile_values: vec![ValueAtQuantile {
            quantile: 0.5,
            value: -1.5,
        }],
        ..SummaryDataPoint::default()
    });
    let kinds = [
        Data::Gauge(Gauge {
            data_points: numbers.clone(),
        }),
        Data::Sum(Sum {
            data_points: numbers,
            aggregation_temporality: 2,
            is_monotonic: true,
        }),
        Data::Histogram(Histogram {
            data_points: histograms.collect(),
            aggregation_temporality: 1,
        }),
        Data::ExponentialHistogram(ExponentialHistogram {
            data_points: exponential.collect(),
            aggregation_temporality: 1,
        }),
        Data::Summary(Summary {
            data_points: summaries.collect(),
        }),
    ];
    let metric = |data| Metric {
        name: "metric".into(),
        data: Some(data),
        ..Metric::default()
    };
    let resource = ResourceMetrics {
        scope_metrics: vec![ScopeMetrics {
            metrics: kinds.into_iter().map(metric).collect(),
            ..ScopeMetrics::default()
        }],
        ..ResourceMetrics::default()
    };
    let request = ExportMetricsServiceRequest {
        resource_metrics: vec![resource],
    };
    batch_of(Signal::Metrics, low, &[request.encode_to_vec()])
}

const SPANS: &str = "SELECT SpanName, TraceId, Duration, SpanAttributes['number'], Events.Name, \
                     arrayMap(event -> event['event'], Events.Attributes), Links.TraceId[1] \
                     FROM otel.otel_traces WHERE _millpond_sequence = 1 ORDER BY SpanName";
pub(crate) const TIMES: &str = "SELECT TraceId, toUnixTimestamp(Start), toUnixTimestamp(End) \
                     FROM otel.otel_traces_trace_id_ts ORDER BY TraceId, Start";

fn expected_spans(times: &[u64]) -> (String, String) {
    let nine = "09".repeat(16);
    let (spans, traces): (Vec<_>, Vec<_>) = times
        .iter()
        .enumerate()
        .map(|(number, time)| {
            let trace = format!("{:02x}", number + 1).repeat(16);
            let names: Vec<String> = (0..number).map(|event| format!("'event {event}'")).collect();
            let values: Vec<String> = (0..number).map(|event| format!("'{event}'")).collect();
            let (names, values) = (names.join(","), values.join(","));
            let seconds = time / 1_000_000_000;
            (
                format!("span {number}\t{trace}\t5\t{number}\t[{names}]\t[{values}]\t{nine}"),
                format!("{trace}\t{seconds}\t{seconds}"),
            )
        })
        .unzip();
    (spans.join("\n"), traces.join("\n"))
}

#[tokio::test]
async fn spans_and_their_traces_times_are_written_once() {
    let server = Server::start();
    let sink = server.open().await;
    let times = [NEW_YEAR, NEW_YEAR + DAY, NEW_YEAR + 1];
    let batch = traces(1, &times);
    let chunk = chunk(&sink, &batch);
    let (spans, traces) = expected_spans(&times);
    for _ in 0..2 {
        write(&sink, &batch.id, &chunk).await.unwrap();
        assert_eq!(server.ask(SPANS).await, spans);
        assert_eq!(server.ask(TIMES).await, traces);
    }
    write_again(&sink, &batch.id, &chunk).await.unwrap();
    assert_eq!(server.ask(SPANS).await, spans);
    assert_eq!(server.ask(TIMES).await, traces);
}

/// A server that dies between a table and its view leaves spans whose trace nobody can find.
#[tokio::test]
async fn times_that_the_view_did_not_write_are_added() {
    let server = Server::start();
    let sink = server.open().await;
    let times = [NEW_YEAR, NEW_YEAR + DAY, NEW_YEAR + 2];
    let batch = traces(1, &times);
    let chunk = chunk(&sink, &batch);
    write(&sink, &batch.id, &chunk).await.unwrap();
    let other = traces(2, &[NEW_YEAR + 2 * DAY]);
    write(&sink, &other.id, &self::chunk(&sink, &other))
        .await
        .unwrap();
    let whole = server.ask(TIMES).await;
    server
        .run("ALTER TABLE otel.otel_traces_trace_id_ts DELETE WHERE Start = toDateTime(1704067200) SETTINGS mutations_sync = 2")
        .await;
    assert_ne!(server.ask(TIMES).await, whole);
    for _ in 0..2 {
        write_again(&sink, &batch.id, &chunk).await.unwrap();
        assert_eq!(server.ask(TIMES).await, whole);
    }
}

#[tokio::test]
async fn only_the_partitions_of_spans_that_the_table_lacks_are_sent() {
    let server = Server::start();
    let sink = server.open().await;
    let times: Vec<u64> = (0..6).map(|row| NEW_YEAR + row % 3 * DAY).collect();
    let batch = traces(1, &times);
    let chunk = chunk(&sink, &batch);
    write(&sink, &batch.id, &chunk).await.unwrap();
    // Dropping a partition drops its tokens; the window of one forgets the others.
    forget(&server, &sink, "otel_traces", &traces).await;
    server
        .run("ALTER TABLE otel.otel_traces DROP PARTITION ID '20240102'")
        .await;
    write_again(&sink, &batch.id, &chunk).await.unwrap();
    let (spans, _) = expected_spans(&times);
    assert_eq!(server.ask(SPANS).await, spans);
}

/// Makes a table forget earlier INSERTs.
async fn forget(server: &Server, sink: &Arc<ClickHouse>, table: &str, batch: &dyn Fn(u64, &[u64]) -> Batch) {
    server
        .run(&format!(
            "ALTER TABLE otel.{table} MODIFY SETTING non_replicated_deduplication_window = 1"
        ))
        .await;
    for low in 100..105 {
        let other = batch(low, &[NEW_YEAR, NEW_YEAR + DAY, NEW_YEAR + 2 * DAY]);
        for chunk in chunks(sink, &other) {
            write(sink, &other.id, &chunk).await.unwrap();
        }
    }
}

pub(crate) async fn points(server: &Server) -> Vec<String> {
    let mut found = Vec::new();
    for table in TABLES {
        let sql = format!(
            "SELECT toDate(TimeUnix), count() FROM otel.otel_metrics_{table} WHERE _millpond_sequence = 1 \
             GROUP BY 1 ORDER BY 1"
        );
        found.push(server.ask(&sql).await);
    }
    found
}

#[tokio::test]
async fn a_batch_of_metrics_goes_into_five_tables_once() {
    let server = Server::start();
    let sink = server.open().await;
    let batch = metrics(1, &[NEW_YEAR, NEW_YEAR + DAY, NEW_YEAR]);
    let chunks = chunks(&sink, &batch);
    let places: Vec<(u32, u32, u64)> = chunks
        .iter()
        .map(|chunk| (chunk.index, chunk.table, chunk.rows))
        .collect();
    assert_eq!(places, [(0, 2, 3), (1, 3, 3), (2, 4, 3), (3, 5, 3), (4, 6, 3)]);
    for _ in 0..2 {
        for chunk in &chunks {
            write(&sink, &batch.id, chunk).await.unwrap();
        }
        assert_eq!(points(&server).await, ["2024-01-01\t2\n2024-01-02\t1"; 5]);
    }
}

#[tokio::test]
async fn only_the_partitions_of_points_that_a_table_lacks_are_sent() {
    let server = Server::start();
    let sink = server.open().await;
    let times: Vec<u64> = (0..6).map(|row| NEW_YEAR + row % 3 * DAY).collect();
    let batch = metrics(1, &times);
    let all = chunks(&sink, &batch);
    for chunk in &all {
        write(&sink, &batch.id, chunk).await.unwrap();
    }
    for table in TABLES {
        forget(&server, &sink, &format!("otel_metrics_{table}"), &metrics).await;
        server
            .run(&format!(
                "ALTER TABLE otel.otel_metrics_{table} DROP PARTITION ID '20240102'"
            ))
            .await;
    }
    for chunk in &all {
        write_again(&sink, &batch.id, chunk).await.unwrap();
    }
    let whole = "2024-01-01\t2\n2024-01-02\t2\n2024-01-03\t2";
    assert_eq!(points(&server).await, [whole; 5]);
    // Those rows are unchanged.
    for (table, odd) in [
        (
            "sum",
            "Value != 7 OR AggregationTemporality != 2 OR NOT IsMonotonic",
        ),
        ("histogram", "BucketCounts != [1, 2] OR ExplicitBounds != [0.5]"),
        (
            "exponential_histogram",
            "NegativeBucketCounts != [4, 5, 6] OR NegativeOffset != -3",
        ),
        (
            "summary",
            "ValueAtQuantiles.Value != [-1.5] OR MetricName != 'metric'",
        ),
    ] {
        let sql = format!("SELECT count() FROM otel.otel_metrics_{table} WHERE {odd}");
        assert_eq!(server.ask(&sql).await, "0", "{table}");
    }
}

/// The embedded engine has no Distributed tables, so this checks the query to a server that has them: no subquery that
/// each shard would answer for itself.
#[tokio::test]
async fn traces_times_are_completed_over_all_shards_at_once() {
    let server = Server::start();
    let proxy = Proxy::start(&server).await;
    let config = Config {
        urls: vec![proxy.url.clone()],
        ..server.config()
    };
    let sink = open(config).await;
    let batch = traces(1, &[NEW_YEAR, NEW_YEAR + 1]);
    let chunk = chunk(&sink, &batch);
    write(&sink, &batch.id, &chunk).await.unwrap();
    let before = proxy.requests().len();
    write_again(&sink, &batch.id, &chunk).await.unwrap();
    let requests = proxy.requests();
    let completing = requests[before..]
        .split("POST ")
        .find(|request| request.contains("INSERT INTO"))
        .unwrap();
    let line = completing.lines().next().unwrap();
    for setting in [
        "skip_unavailable_shards=0",
        "insert_distributed_sync=1",
        "parallel_distributed_insert_select=0",
        "async_insert=0",
    ] {
        assert!(
            line.split(['?', '&', ' ']).any(|parameter| parameter == setting),
            "{setting} is not in {line}"
        );
    }
    assert_eq!(completing.matches(" IN (SELECT").count(), 2, "{completing}");
    assert_eq!(completing.matches(" GLOBAL NOT IN (SELECT").count(), 1);
    assert_eq!(completing.matches(" GLOBAL IN (SELECT").count(), 1);
}
