//! Metrics and their data points.

use crate::compare::{Group, Scoped, Signal, properties, same_pairs};
use crate::draw::{Draw, key_value, put_bytes, put_fixed64, put_varint, unknown, varint};
use millpond_otlp::metrics::{self, Number, Point, Points, Request};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::metrics::v1::{
    Exemplar, ExponentialHistogramDataPoint, HistogramDataPoint, Metric, NumberDataPoint, SummaryDataPoint,
    exemplar, exponential_histogram_data_point::Buckets, metric::Data, number_data_point,
};

properties!(Metrics);

struct Metrics;

impl Signal for Metrics {
    type Ours<'a> = metrics::Metric<'a>;
    type Theirs = ExportMetricsServiceRequest;
    type TheirItem = Metric;

    fn item(draw: &mut Draw) -> Vec<u8> {
        metric(draw)
    }

    fn resources(theirs: &Self::Theirs) -> Vec<Group<'_, Self::TheirItem>> {
        theirs
            .resource_metrics
            .iter()
            .map(|group| Group {
                resource: group.resource.as_ref(),
                schema_url: &group.schema_url,
                scopes: group
                    .scope_metrics
                    .iter()
                    .map(|scope| Scoped {
                        scope: scope.scope.as_ref(),
                        schema_url: &scope.schema_url,
                        items: &scope.metrics,
                    })
                    .collect(),
            })
            .collect()
    }

    fn records(theirs: &Metric) -> usize {
        match &theirs.data {
            None => 0,
            Some(Data::Gauge(data)) => data.data_points.len(),
            Some(Data::Sum(data)) => data.data_points.len(),
            Some(Data::Histogram(data)) => data.data_points.len(),
            Some(Data::ExponentialHistogram(data)) => data.data_points.len(),
            Some(Data::Summary(data)) => data.data_points.len(),
        }
    }

    fn assert_same(ours: metrics::Metric, theirs: &Metric) -> usize {
        assert_eq!(ours.name, theirs.name.as_bytes());
        assert_eq!(ours.description, theirs.description.as_bytes());
        assert_eq!(ours.unit, theirs.unit.as_bytes());
        assert!(same_pairs(ours.metadata(), &theirs.metadata));
        match (ours.data, &theirs.data) {
            (metrics::Data::Empty, None) => {}
            (metrics::Data::Gauge(ours), Some(Data::Gauge(theirs))) => {
                same_points(ours, &theirs.data_points, same_number);
            }
            (metrics::Data::Sum(ours), Some(Data::Sum(theirs))) => {
                assert_eq!(ours.aggregation_temporality, theirs.aggregation_temporality);
                assert_eq!(ours.is_monotonic, theirs.is_monotonic);
                same_points(ours, &theirs.data_points, same_number);
            }
            (metrics::Data::Histogram(ours), Some(Data::Histogram(theirs))) => {
                assert_eq!(ours.aggregation_temporality, theirs.aggregation_temporality);
                same_points(ours, &theirs.data_points, same_histogram);
            }
            (metrics::Data::ExponentialHistogram(ours), Some(Data::ExponentialHistogram(theirs))) => {
                assert_eq!(ours.aggregation_temporality, theirs.aggregation_temporality);
                same_points(ours, &theirs.data_points, same_exponential);
            }
            (metrics::Data::Summary(ours), Some(Data::Summary(theirs))) => {
                same_points(ours, &theirs.data_points, same_summary);
            }
            (ours, theirs) => panic!("{ours:?} is not {theirs:?}"),
        }
        Self::records(theirs)
    }

    /// A metric with two kinds of data, or one kind twice.
    fn is_counted_otherwise(bytes: &[u8]) -> bool {
        let request = Request::parse(bytes).unwrap();
        let scopes = request.resources().flat_map(|resource| resource.scopes());
        let mut points = 0;
        for metric in scopes.flat_map(|scope| scope.items()) {
            points += match metric.data {
                metrics::Data::Empty => 0,
                metrics::Data::Gauge(data) | metrics::Data::Sum(data) => data.count(),
                metrics::Data::Histogram(data) => data.count(),
                metrics::Data::ExponentialHistogram(data) => data.count(),
                metrics::Data::Summary(data) => data.count(),
            };
        }
        request.counts().records == points as u64
    }
}

fn same_points<'a, O: Point<'a>, T>(ours: Points<'a, O>, theirs: &[T], same: fn(&O, &T)) {
    let ours: Vec<O> = ours.collect();
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(theirs) {
        same(ours, theirs);
    }
}

fn same_double(ours: f64, theirs: f64) {
    assert_eq!(ours.to_bits(), theirs.to_bits());
}

fn same_option(ours: Option<f64>, theirs: Option<f64>) {
    assert_eq!(ours.map(f64::to_bits), theirs.map(f64::to_bits));
}

fn same_number(ours: &metrics::NumberDataPoint, theirs: &NumberDataPoint) {
    assert_eq!(ours.start_time_unix_nano, theirs.start_time_unix_nano);
    assert_eq!(ours.time_unix_nano, theirs.time_unix_nano);
    assert_eq!(ours.flags, theirs.flags);
    match (ours.value, theirs.value) {
        (Number::Empty, None) => {}
        (Number::Int(ours), Some(number_data_point::Value::AsInt(theirs))) => assert_eq!(ours, theirs),
        (Number::Double(ours), Some(number_data_point::Value::AsDouble(theirs))) => same_double(ours, theirs),
        (ours, theirs) => panic!("{ours:?} is not {theirs:?}"),
    }
    assert!(same_pairs(ours.attributes(), &theirs.attributes));
    same_exemplars(ours.exemplars(), &theirs.exemplars);
}

fn same_histogram(ours: &metrics::HistogramDataPoint, theirs: &HistogramDataPoint) {
    assert_eq!(ours.start_time_unix_nano, theirs.start_time_unix_nano);
    assert_eq!(ours.time_unix_nano, theirs.time_unix_nano);
    assert_eq!(ours.count, theirs.count);
    same_option(ours.sum, theirs.sum);
    same_option(ours.min, theirs.min);
    same_option(ours.max, theirs.max);
    assert_eq!(ours.flags, theirs.flags);
    assert!(ours.bucket_counts().eq(theirs.bucket_counts.iter().copied()));
    let bits = |bounds: &[f64]| bounds.iter().map(|bound| bound.to_bits()).collect::<Vec<_>>();
    assert_eq!(
        bits(&ours.explicit_bounds().collect::<Vec<_>>()),
        bits(&theirs.explicit_bounds)
    );
    assert!(same_pairs(ours.attributes(), &theirs.attributes));
    same_exemplars(ours.exemplars(), &theirs.exemplars);
}

fn same_exponential(ours: &metrics::ExponentialHistogramDataPoint, theirs: &ExponentialHistogramDataPoint) {
    assert_eq!(ours.start_time_unix_nano, theirs.start_time_unix_nano);
    assert_eq!(ours.time_unix_nano, theirs.time_unix_nano);
    assert_eq!(ours.count, theirs.count);
    same_option(ours.sum, theirs.sum);
    same_option(ours.min, theirs.min);
    same_option(ours.max, theirs.max);
    assert_eq!(ours.scale, theirs.scale);
    assert_eq!(ours.zero_count, theirs.zero_count);
    same_double(ours.zero_threshold, theirs.zero_threshold);
    assert_eq!(ours.flags, theirs.flags);
    let same_buckets = |ours: metrics::Buckets, theirs: &Option<Buckets>| {
        let theirs = theirs.clone().unwrap_or_default();
        assert_eq!(ours.offset, theirs.offset);
        assert!(ours.counts().eq(theirs.bucket_counts));
    };
    same_buckets(ours.positive(), &theirs.positive);
    same_buckets(ours.negative(), &theirs.negative);
    assert!(same_pairs(ours.attributes(), &theirs.attributes));
    same_exemplars(ours.exemplars(), &theirs.exemplars);
}

fn same_summary(ours: &metrics::SummaryDataPoint, theirs: &SummaryDataPoint) {
    assert_eq!(ours.start_time_unix_nano, theirs.start_time_unix_nano);
    assert_eq!(ours.time_unix_nano, theirs.time_unix_nano);
    assert_eq!(ours.count, theirs.count);
    same_double(ours.sum, theirs.sum);
    assert_eq!(ours.flags, theirs.flags);
    assert_eq!(ours.quantiles().count(), theirs.quantile_values.len());
    for (ours, theirs) in ours.quantiles().zip(&theirs.quantile_values) {
        same_double(ours.quantile, theirs.quantile);
        same_double(ours.value, theirs.value);
    }
    assert!(same_pairs(ours.attributes(), &theirs.attributes));
}

fn same_exemplars<'a>(ours: impl Iterator<Item = metrics::Exemplar<'a>>, theirs: &[Exemplar]) {
    let ours: Vec<_> = ours.collect();
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(theirs) {
        assert_eq!(ours.time_unix_nano, theirs.time_unix_nano);
        assert_eq!(ours.span_id, theirs.span_id);
        assert_eq!(ours.trace_id, theirs.trace_id);
        match (ours.value, theirs.value) {
            (Number::Empty, None) => {}
            (Number::Int(ours), Some(exemplar::Value::AsInt(theirs))) => assert_eq!(ours, theirs),
            (Number::Double(ours), Some(exemplar::Value::AsDouble(theirs))) => same_double(ours, theirs),
            (ours, theirs) => panic!("{ours:?} is not {theirs:?}"),
        }
        assert!(same_pairs(
            ours.filtered_attributes(),
            &theirs.filtered_attributes
        ));
    }
}

/// A metric with at most one occurrence of data: for more we follow the Collector and not protobuf (see `faults`).
fn metric(draw: &mut Draw) -> Vec<u8> {
    let mut out = Vec::new();
    let mut first = true;
    for _ in 0..draw.below(8) {
        match draw.below(8) {
            0 => unknown(draw, &mut out),
            number @ 1..=3 => put_bytes(number.into(), &draw.text(), &mut out),
            4 => put_bytes(12, &key_value(draw, 0), &mut out),
            _ if first => {
                first = false;
                let (number, point): (u64, fn(&mut Draw) -> Vec<u8>) = match draw.below(5) {
                    0 => (5, number_point),
                    1 => (7, number_point),
                    2 => (9, histogram_point),
                    3 => (10, exponential_point),
                    _ => (11, summary_point),
                };
                put_bytes(number, &data(draw, point), &mut out);
            }
            _ => {}
        }
    }
    out
}

fn data(draw: &mut Draw, point: fn(&mut Draw) -> Vec<u8>) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..draw.below(6) {
        match draw.below(6) {
            0 => unknown(draw, &mut out),
            // Kinds without such fields skip them.
            number @ (2 | 3) => put_varint(number.into(), draw.u64(), &mut out),
            _ => put_bytes(1, &point(draw), &mut out),
        }
    }
    out
}

fn number_point(draw: &mut Draw) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..draw.below(10) {
        match draw.below(9) {
            number @ (2 | 3 | 4 | 6) => put_fixed64(number.into(), draw.u64(), &mut out),
            5 => put_bytes(5, &exemplar(draw), &mut out),
            7 => put_bytes(7, &key_value(draw, 0), &mut out),
            8 => put_varint(8, draw.u64(), &mut out),
            _ => unknown(draw, &mut out),
        }
    }
    out
}

/// Perhaps a packed field, then unpacked numbers: for a packed field after others we follow the Collector.
fn fixed64s(draw: &mut Draw, number: u64, out: &mut Vec<u8>) {
    if draw.below(2) == 0 {
        let packed: Vec<u8> = (0..draw.below(5))
            .flat_map(|_| draw.u64().to_le_bytes())
            .collect();
        put_bytes(number, &packed, out);
    }
    for _ in 0..draw.below(3) {
        put_fixed64(number, draw.u64(), out);
    }
}

fn histogram_point(draw: &mut Draw) -> Vec<u8> {
    let mut out = Vec::new();
    fixed64s(draw, 6, &mut out);
    fixed64s(draw, 7, &mut out);
    for _ in 0..draw.below(10) {
        match draw.below(13) {
            number @ (2..=5 | 11 | 12) => put_fixed64(number.into(), draw.u64(), &mut out),
            6 => put_fixed64(6, draw.u64(), &mut out),
            7 => put_fixed64(7, draw.u64(), &mut out),
            8 => put_bytes(8, &exemplar(draw), &mut out),
            9 => put_bytes(9, &key_value(draw, 0), &mut out),
            10 => put_varint(10, draw.u64(), &mut out),
            _ => unknown(draw, &mut out),
        }
    }
    out
}

fn exponential_point(draw: &mut Draw) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..draw.below(14) {
        match draw.below(15) {
            1 => put_bytes(1, &key_value(draw, 0), &mut out),
            number @ (2..=5 | 7 | 12..=14) => put_fixed64(number.into(), draw.u64(), &mut out),
            number @ (6 | 10) => put_varint(number.into(), draw.u64(), &mut out),
            number @ (8 | 9) => put_bytes(number.into(), &buckets(draw), &mut out),
            11 => put_bytes(11, &exemplar(draw), &mut out),
            _ => unknown(draw, &mut out),
        }
    }
    out
}

fn buckets(draw: &mut Draw) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..draw.below(5) {
        match draw.below(4) {
            0 => unknown(draw, &mut out),
            1 => put_varint(1, draw.u64(), &mut out),
            2 => put_varint(2, draw.u64(), &mut out),
            _ => {
                let mut packed = Vec::new();
                for _ in 0..draw.below(5) {
                    varint(draw.u64(), &mut packed);
                }
                put_bytes(2, &packed, &mut out);
            }
        }
    }
    out
}

fn summary_point(draw: &mut Draw) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..draw.below(10) {
        match draw.below(9) {
            number @ 2..=5 => put_fixed64(number.into(), draw.u64(), &mut out),
            6 => {
                let mut quantile = Vec::new();
                put_fixed64(1, draw.u64(), &mut quantile);
                put_fixed64(2, draw.u64(), &mut quantile);
                put_bytes(6, &quantile, &mut out);
            }
            7 => put_bytes(7, &key_value(draw, 0), &mut out),
            8 => put_varint(8, draw.u64(), &mut out),
            _ => unknown(draw, &mut out),
        }
    }
    out
}

fn exemplar(draw: &mut Draw) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..draw.below(7) {
        match draw.below(8) {
            number @ (2 | 3 | 6) => put_fixed64(number.into(), draw.u64(), &mut out),
            4 => put_bytes(4, &[draw.byte(); 8], &mut out),
            5 => put_bytes(5, &[draw.byte(); 16], &mut out),
            7 => put_bytes(7, &key_value(draw, 0), &mut out),
            _ => unknown(draw, &mut out),
        }
    }
    out
}
