//! Data points, each extracted into a metric.

use crate::field;
use millpond_otlp::metrics::{Data, Request};
use millpond_otlp::{Signal, record_alone, validate};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric;
use opentelemetry_proto::tonic::metrics::v1::{
    Exemplar, ExponentialHistogram, ExponentialHistogramDataPoint, Gauge, Histogram, HistogramDataPoint,
    Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics, Sum, Summary, SummaryDataPoint,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use proptest::prelude::*;
use prost::Message;

/// Data of this kind with points at these times.
fn data(kind: usize, times: &[u64]) -> metric::Data {
    let number = |&time_unix_nano: &u64| NumberDataPoint {
        time_unix_nano,
        exemplars: vec![Exemplar::default(); 2],
        ..NumberDataPoint::default()
    };
    match kind {
        0 => metric::Data::Gauge(Gauge {
            data_points: times.iter().map(number).collect(),
        }),
        1 => metric::Data::Sum(Sum {
            data_points: times.iter().map(number).collect(),
            aggregation_temporality: 2,
            is_monotonic: true,
        }),
        2 => metric::Data::Histogram(Histogram {
            data_points: times
                .iter()
                .map(|&time_unix_nano| HistogramDataPoint {
                    time_unix_nano,
                    bucket_counts: vec![1, 2],
                    ..HistogramDataPoint::default()
                })
                .collect(),
            aggregation_temporality: 1,
        }),
        3 => metric::Data::ExponentialHistogram(ExponentialHistogram {
            data_points: times
                .iter()
                .map(|&time_unix_nano| ExponentialHistogramDataPoint {
                    time_unix_nano,
                    ..ExponentialHistogramDataPoint::default()
                })
                .collect(),
            aggregation_temporality: 2,
        }),
        _ => metric::Data::Summary(Summary {
            data_points: times
                .iter()
                .map(|&time_unix_nano| SummaryDataPoint {
                    time_unix_nano,
                    ..SummaryDataPoint::default()
                })
                .collect(),
        }),
    }
}

/// A scope with a metric of each of these kinds, and as many points.
fn scope_metrics(name: usize, metrics: Vec<Metric>) -> ScopeMetrics {
    ScopeMetrics {
        scope: Some(InstrumentationScope {
            name: format!("scope {name}"),
            ..InstrumentationScope::default()
        }),
        metrics,
        schema_url: format!("url {name}"),
    }
}

fn request(scope_metrics: Vec<ScopeMetrics>) -> ExportMetricsServiceRequest {
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(Resource {
                dropped_attributes_count: 7,
                ..Resource::default()
            }),
            scope_metrics,
            schema_url: "url of the resource".into(),
        }],
    }
}

proptest! {
    #[test]
    fn each_point_comes_with_what_it_shares_and_nothing_else(
        shape in prop::collection::vec(prop::collection::vec((0_usize..5, 0_usize..4), 0..5), 0..4),
    ) {
        let (mut scopes, mut expected) = (Vec::new(), Vec::new());
        let mut times = 1_u64..;
        for (scope, metrics) in shape.into_iter().enumerate() {
            let mut all = Vec::new();
            for (kind, points) in metrics {
                let times: Vec<u64> = times.by_ref().take(points).collect();
                let metric = |times: &[u64]| Metric {
                    name: format!("metric {kind}"),
                    unit: "s".into(),
                    metadata: vec![KeyValue { key: "k".into(), ..KeyValue::default() }],
                    data: Some(data(kind, times)),
                    ..Metric::default()
                };
                all.push(metric(&times));
                expected.extend(times.iter().map(|time| request(vec![scope_metrics(scope, vec![metric(&[*time])])])));
            }
            scopes.push(scope_metrics(scope, all));
        }
        let bytes = request(scopes).encode_to_vec();
        for (place, expected) in (0..).zip(&expected) {
            let alone = record_alone(Signal::Metrics, &bytes, place).expect("a record");
            prop_assert_eq!(&ExportMetricsServiceRequest::decode(&*alone).expect("valid OTLP"), expected);
        }
        prop_assert_eq!(record_alone(Signal::Metrics, &bytes, expected.len() as u64), None);
    }

    #[test]
    fn every_counted_record_can_be_extracted(bytes in prop::collection::vec(any::<u8>(), 0..60), place in 0_u64..3) {
        // Inside a resource's scope, where random bytes have a chance to be metrics.
        let request = field(1, &field(2, &field(2, &bytes)));
        if let Ok(counts) = validate(Signal::Metrics, &request) {
            prop_assert_eq!(record_alone(Signal::Metrics, &request, place).is_some(), place < counts.records);
        }
    }
}

/// The same choice as in the views and the Collector.
#[test]
fn only_the_last_data_of_a_metric_counts() {
    let (gauge, sum, name) = (5, 7, 1);
    let point = |time: u8| field(1, &[0x19, time, 0, 0, 0, 0, 0, 0, 0]);
    let metric = [
        field(sum, &point(1)),
        field(gauge, &[point(2), point(3)].concat()),
        field(name, b"m"),
        field(gauge, &[point(4), point(5)].concat()),
    ]
    .concat();
    let request = field(1, &field(2, &field(2, &metric)));
    for (place, time) in [(0, 4), (1, 5)] {
        let alone = record_alone(Signal::Metrics, &request, place).expect("a record");
        let expected = [field(name, b"m"), field(gauge, &point(time))].concat();
        assert_eq!(alone, field(1, &field(2, &field(2, &expected))));
        let parsed = Request::parse(&alone).expect("valid OTLP");
        let scope = parsed
            .resources()
            .next()
            .and_then(|resource| resource.scopes().next());
        let metric = scope.and_then(|scope| scope.items().next()).expect("a record");
        let Data::Gauge(points) = metric.data else {
            panic!("{:?}", metric.data)
        };
        let times: Vec<u64> = points.map(|point| point.time_unix_nano).collect();
        assert_eq!(times, [u64::from(time)]);
    }
    assert_eq!(record_alone(Signal::Metrics, &request, 2), None);
}
