//! The content of `/metrics` as OTLP metrics, with the same names, labels, help texts and values.
//!
//! | `/metrics` | OTLP |
//! | --- | --- |
//! | counter `x_total` | sum `x_total`, monotonic, cumulative since the process began |
//! | gauge `x` | gauge `x` |
//! | histogram `x_bucket`, `x_sum`, `x_count` | histogram `x` with the same bounds, cumulative since the process began |
//! | labels | attributes of the data point, strings |
//! | units in names: `_seconds`, `_bytes`, … | the same names, and UCUM's unit beside them: `s`, `By`, … |

use crate::settings::attribute;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Number;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum,
};
use prometheus_client::encoding::prometheus_protobuf::encode;
use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model as model;
use prometheus_client::registry::Registry;

/// The time of the values, in Unix nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    /// The start of the counters.
    pub(crate) start: u64,
    pub(crate) now: u64,
}

/// Every metric of a registry that has a value.
///
/// # Errors
/// A metric cannot be encoded; `/metrics` then fails too.
pub(crate) fn read(registry: &Registry, span: Span) -> Result<Vec<Metric>, std::fmt::Error> {
    let families = encode(registry)?.into_iter();
    let shown = families.filter(|family| !family.metric.is_empty());
    Ok(shown.map(|family| metric(family, span)).collect())
}

fn metric(family: model::MetricFamily, span: Span) -> Metric {
    let kind = family.r#type();
    let points = family.metric.into_iter().map(|metric| {
        let labels = metric.label.into_iter();
        let attributes = labels.map(|label| attribute(label.name, label.value)).collect();
        (attributes, metric.counter, metric.gauge, metric.histogram)
    });
    let data = match kind {
        model::MetricType::Counter => Data::Sum(Sum {
            data_points: points
                .filter_map(|(attributes, counter, ..)| {
                    Some(number(attributes, counter?.value, span.start, span.now))
                })
                .collect(),
            aggregation_temporality: AggregationTemporality::Cumulative.into(),
            is_monotonic: true,
        }),
        model::MetricType::Histogram => Data::Histogram(Histogram {
            data_points: points
                .filter_map(|(attributes, .., measured)| Some(histogram(attributes, &measured?, span)))
                .collect(),
            aggregation_temporality: AggregationTemporality::Cumulative.into(),
        }),
        // prometheus-client has no other types.
        _ => Data::Gauge(Gauge {
            data_points: points
                // A gauge has no start.
                .filter_map(|(attributes, _, gauge, _)| Some(number(attributes, gauge?.value, 0, span.now)))
                .collect(),
        }),
    };
    Metric {
        name: family.name,
        description: family.help,
        unit: ucum(&family.unit).to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

fn number(attributes: Vec<KeyValue>, value: f64, start: u64, now: u64) -> NumberDataPoint {
    NumberDataPoint {
        attributes,
        start_time_unix_nano: start,
        time_unix_nano: now,
        value: Some(Number::AsDouble(value)),
        ..NumberDataPoint::default()
    }
}

fn histogram(attributes: Vec<KeyValue>, measured: &model::Histogram, span: Span) -> HistogramDataPoint {
    // Prometheus counts up to each bound, OTLP between two bounds.
    let up_to = measured.bucket.iter().map(|bucket| bucket.cumulative_count);
    let before = std::iter::once(0).chain(up_to.clone());
    // The last bound is f64::MAX, for what /metrics calls +Inf; OTLP leaves it out.
    let bounds = measured.bucket.iter().map(|bucket| bucket.upper_bound);
    HistogramDataPoint {
        attributes,
        start_time_unix_nano: span.start,
        time_unix_nano: span.now,
        count: measured.sample_count,
        sum: Some(measured.sample_sum),
        bucket_counts: up_to.zip(before).map(|(up_to, before)| up_to - before).collect(),
        explicit_bounds: bounds.filter(|bound| *bound < f64::MAX).collect(),
        ..HistogramDataPoint::default()
    }
}

/// OpenMetrics' unit in UCUM, as OpenTelemetry requires.
fn ucum(unit: &str) -> &str {
    match unit {
        "seconds" => "s",
        "bytes" => "By",
        "ratios" => "1",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::encoding::text::encode as encode_text;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::gauge::Gauge as PlainGauge;
    use prometheus_client::metrics::histogram::Histogram as PlainHistogram;
    use prometheus_client::registry::Unit;
    use std::sync::atomic::AtomicU64;

    const SPAN: Span = Span {
        start: 1_000,
        now: 2_000,
    };

    type Labels = Vec<(String, String)>;

    fn labels(stream: &str) -> Labels {
        vec![("stream".to_owned(), stream.to_owned())]
    }

    /// One of each kind, under a prefix.
    fn registry() -> Registry {
        let mut registry = Registry::default();
        let below = registry.sub_registry_with_prefix("pond");
        let records = Family::<Labels, Counter>::default();
        records.get_or_create(&labels("otlp.logs")).inc_by(7);
        records.get_or_create(&labels("a \"b\"\n")).inc_by(5_000_000);
        below.register("records", "Records taken", records);
        let held = PlainGauge::<i64>::default();
        held.set(-3);
        below.register_with_unit("held", "Bytes held", Unit::Bytes, held);
        let price = PlainGauge::<f64, AtomicU64>::default();
        price.set(0.25);
        below.register("price", "Dollars", price);
        let took = PlainHistogram::new([0.5, 1.0]);
        [0.5, 0.75, 0.75, 9.0]
            .into_iter()
            .for_each(|seconds| took.observe(seconds));
        below.register_with_unit("took", "Time", Unit::Seconds, took);
        below.register("silent", "Nothing yet", Family::<Labels, Counter>::default());
        registry
    }

    fn named(metrics: &[Metric], name: &str) -> Metric {
        let found = metrics.iter().find(|metric| metric.name == name);
        found
            .unwrap_or_else(|| panic!("no {name} in {metrics:?}"))
            .clone()
    }

    #[test]
    fn a_counter_is_a_cumulative_sum_with_its_labels() {
        let records = named(&read(&registry(), SPAN).unwrap(), "pond_records_total");
        assert_eq!(
            (records.description.as_str(), records.unit.as_str()),
            ("Records taken.", "")
        );
        let Some(Data::Sum(sum)) = records.data else {
            panic!("no sum")
        };
        assert!(sum.is_monotonic);
        assert_eq!(sum.aggregation_temporality(), AggregationTemporality::Cumulative);
        let mut points = sum.data_points;
        points.sort_by_key(|point| {
            point.attributes[0]
                .value
                .clone()
                .map(|value| format!("{value:?}"))
        });
        let expected = |stream: &str, value| {
            let attributes = vec![attribute("stream", stream)];
            number(attributes, value, SPAN.start, SPAN.now)
        };
        assert_eq!(points, [expected("a \"b\"\n", 5e6), expected("otlp.logs", 7.0)]);
    }

    #[test]
    fn a_gauge_is_a_gauge_with_the_unit_in_its_name_and_beside_it() {
        let metrics = read(&registry(), SPAN).unwrap();
        let held = named(&metrics, "pond_held_bytes");
        assert_eq!(held.unit, "By");
        let Some(Data::Gauge(gauge)) = held.data else {
            panic!("no gauge")
        };
        assert_eq!(gauge.data_points, [number(Vec::new(), -3.0, 0, SPAN.now)]);
        let Some(Data::Gauge(gauge)) = named(&metrics, "pond_price").data else {
            panic!("no gauge")
        };
        assert_eq!(gauge.data_points[0].value, Some(Number::AsDouble(0.25)));
    }

    #[test]
    fn a_histogram_has_a_count_for_each_bound_and_one_above_them() {
        let took = named(&read(&registry(), SPAN).unwrap(), "pond_took_seconds");
        assert_eq!(took.unit, "s");
        let Some(Data::Histogram(histogram)) = took.data else {
            panic!("no histogram")
        };
        assert_eq!(
            histogram.aggregation_temporality(),
            AggregationTemporality::Cumulative
        );
        let [point] = &histogram.data_points[..] else {
            panic!("not one point")
        };
        assert_eq!(
            (point.start_time_unix_nano, point.time_unix_nano),
            (SPAN.start, SPAN.now)
        );
        assert_eq!((point.count, point.sum), (4, Some(11.0)));
        assert_eq!(point.explicit_bounds, [0.5, 1.0]);
        assert_eq!(point.bucket_counts, [1, 2, 1]);
    }

    #[test]
    fn every_name_that_metrics_shows_with_a_value_is_there_and_no_other() {
        let mut text = String::new();
        encode_text(&mut text, &registry()).unwrap();
        let shown = |name: &str| {
            text.lines().any(|line| {
                let sample = line.split(['{', ' ']).next().unwrap_or_default();
                sample == name || sample.strip_suffix("_count") == Some(name)
            })
        };
        let metrics = read(&registry(), SPAN).unwrap();
        let names: Vec<&str> = metrics.iter().map(|metric| metric.name.as_str()).collect();
        assert_eq!(names.len(), 4, "{names:?}");
        for name in names {
            assert!(shown(name), "{name} is not in {text}");
        }
    }
}
