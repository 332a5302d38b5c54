//! Requests like those of real senders: logs are those of the load generator, with real lines if there are any.

use std::path::Path;

use bytes::Bytes;
use millpond_clickhouse::Signal;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value::Value};
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
const RECORDS_PER_REQUEST: u64 = 1_000;

/// Data points of a metric.
const POINTS: usize = 10;

/// Requests with this many records in all, a multiple of [`POINTS`].
pub(crate) fn requests(signal: Signal, bodies: Option<&Path>, records: u64) -> anyhow::Result<Vec<Bytes>> {
    let each = records.min(RECORDS_PER_REQUEST);
    let number = records / each;
    if signal == Signal::Logs {
        return Ok(millpond_load::requests(bodies, number, each)?);
    }
    let each = usize::try_from(each)?;
    let request = |number| match signal {
        Signal::Metrics => metrics(number, each),
        Signal::Logs | Signal::Traces => traces(number, each),
    };
    Ok((0..usize::try_from(number)?)
        .map(|number| request(number).into())
        .collect())
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
fn traces(number: usize, records: usize) -> Vec<u8> {
    let span = |index: usize| {
        let at = number * records + index;
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
            spans: (0..records).map(span).collect(),
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
fn metrics(number: usize, records: usize) -> Vec<u8> {
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
            metrics: (0..records / POINTS).map(metric).collect(),
            ..ScopeMetrics::default()
        }],
        ..ResourceMetrics::default()
    };
    ExportMetricsServiceRequest {
        resource_metrics: vec![group],
    }
    .encode_to_vec()
}
