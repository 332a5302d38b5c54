//! The last ten minutes of the process for its status page: a few figures, sampled from its metrics every five seconds and kept in
//! memory. A restart begins anew; Prometheus keeps what must last longer.

use prometheus_client::encoding::prometheus_protobuf::encode;
use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::{Metric, MetricFamily};
use prometheus_client::registry::Registry;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The time between two samples. 5 s: a chart of ten minutes has 120 points, and reading the metrics takes under a millisecond.
pub(super) const EVERY: Duration = Duration::from_secs(5);

/// The number of samples kept: ten minutes.
const KEPT: usize = 120;

/// How a metric becomes a figure.
#[derive(Clone, Copy, Debug)]
enum Figure {
    /// The increase of a counter per second.
    Rate,
    /// The 99th percentile of a histogram's observations since the last sample.
    P99,
    /// The sum of a gauge's values.
    Sum,
    /// The largest of a gauge's values.
    Max,
}

/// A chart of the page.
struct Chart {
    title: &'static str,
    unit: &'static str,
    metric: &'static str,
    figure: Figure,
}

const CHARTS: [Chart; 8] = [
    Chart::new(
        "records in",
        "records/s",
        "millpond_gateway_records_total",
        Figure::Rate,
    ),
    Chart::new(
        "p99 of a request",
        "seconds",
        "millpond_gateway_request_duration_seconds",
        Figure::P99,
    ),
    Chart::new(
        "stored",
        "bytes/s",
        "millpond_producer_stored_bytes_total",
        Figure::Rate,
    ),
    Chart::new(
        "memory held",
        "bytes",
        "millpond_producer_memory_held_bytes",
        Figure::Sum,
    ),
    Chart::new(
        "records out",
        "records/s",
        "millpond_consumer_records_total",
        Figure::Rate,
    ),
    Chart::new(
        "p99 from gateway to table",
        "seconds",
        "millpond_consumer_latency_seconds",
        Figure::P99,
    ),
    Chart::new(
        "behind by",
        "seconds",
        "millpond_consumer_backlog_seconds",
        Figure::Max,
    ),
    Chart::new(
        "backlog",
        "records",
        "millpond_consumer_backlog_records",
        Figure::Sum,
    ),
];

impl Chart {
    const fn new(title: &'static str, unit: &'static str, metric: &'static str, figure: Figure) -> Chart {
        Chart {
            title,
            unit,
            metric,
            figure,
        }
    }
}

/// The samples of the last ten minutes.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Each has one value for each chart; `None` where the process has no such figure.
    samples: VecDeque<[Option<f64>; CHARTS.len()]>,
    before: Option<Reading>,
}

/// The metrics behind the charts at one time.
#[derive(Debug)]
struct Reading {
    /// Since an arbitrary start.
    at: Duration,
    metrics: BTreeMap<&'static str, Vec<Metric>>,
}

impl History {
    /// Adds a sample. `at` is a monotonic time. Metrics that cannot be encoded leave a gap.
    pub(super) fn sample(&mut self, registries: &[Registry], at: Duration) {
        let now = Reading {
            at,
            metrics: read(registries),
        };
        let values = CHARTS.map(|chart| chart.value(&now, self.before.as_ref()));
        if self.samples.len() == KEPT {
            self.samples.pop_front();
        }
        self.samples.push_back(values);
        self.before = Some(now);
    }

    /// The charts that have a value, for the page.
    pub(super) fn charts(&self) -> Vec<Shown> {
        let charts = CHARTS.iter().enumerate().map(|(place, chart)| Shown {
            title: chart.title,
            unit: chart.unit,
            metric: chart.metric,
            values: self.samples.iter().map(|sample| sample[place]).collect(),
        });
        charts
            .filter(|chart| chart.values.iter().any(Option::is_some))
            .collect()
    }
}

/// A chart with its values, the oldest first.
#[derive(Debug, Serialize)]
pub(super) struct Shown {
    title: &'static str,
    unit: &'static str,
    metric: &'static str,
    values: Vec<Option<f64>>,
}

fn read(registries: &[Registry]) -> BTreeMap<&'static str, Vec<Metric>> {
    let families = registries
        .iter()
        .filter_map(|registry| encode(registry).ok())
        .flatten();
    let known = families.filter_map(|MetricFamily { name, metric, .. }| {
        let chart = CHARTS
            .iter()
            .find(|chart| chart.metric.trim_end_matches("_total") == name.trim_end_matches("_total"))?;
        Some((chart.metric, metric))
    });
    let mut metrics: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (name, found) in known {
        metrics.entry(name).or_default().extend(found);
    }
    metrics
}

impl Chart {
    fn value(&self, now: &Reading, before: Option<&Reading>) -> Option<f64> {
        let metrics = now.metrics.get(self.metric)?;
        let gauges = metrics
            .iter()
            .filter_map(|metric| Some(metric.gauge.as_ref()?.value));
        match self.figure {
            Figure::Sum => gauges.reduce(|sum, value| sum + value),
            Figure::Max => gauges.reduce(f64::max),
            Figure::Rate => {
                let before = before?;
                let seconds = now.at.saturating_sub(before.at).as_secs_f64();
                let increase = total(metrics)
                    - before
                        .metrics
                        .get(self.metric)
                        .map_or(0.0, |metrics| total(metrics));
                (seconds > 0.0).then(|| increase.max(0.0) / seconds)
            }
            Figure::P99 => {
                let mut counts = buckets(metrics);
                for (bound, (_, count)) in before?
                    .metrics
                    .get(self.metric)
                    .map(|metrics| buckets(metrics))
                    .unwrap_or_default()
                {
                    counts
                        .entry(bound)
                        .and_modify(|(_, all)| *all = all.saturating_sub(count));
                }
                quantile(0.99, &counts.into_values().collect::<Vec<_>>())
            }
        }
    }
}

fn total(metrics: &[Metric]) -> f64 {
    metrics
        .iter()
        .filter_map(|metric| Some(metric.counter.as_ref()?.value))
        .sum()
}

/// By the bits of its bound, which sort as positive numbers do: each bucket's upper bound and the observations up to it.
fn buckets(metrics: &[Metric]) -> BTreeMap<u64, (f64, u64)> {
    let mut counts = BTreeMap::new();
    let histograms = metrics.iter().filter_map(|metric| metric.histogram.as_ref());
    for bucket in histograms.flat_map(|histogram| &histogram.bucket) {
        let (_, count) = counts
            .entry(bucket.upper_bound.to_bits())
            .or_insert((bucket.upper_bound, 0));
        *count += bucket.cumulative_count;
    }
    counts
}

/// Interpolates within a bucket as Prometheus's `histogram_quantile` does. The last bucket has no upper bound, so its lower one counts.
#[expect(clippy::cast_precision_loss, reason = "a chart shows three digits")]
fn quantile(q: f64, buckets: &[(f64, u64)]) -> Option<f64> {
    let (_, all) = *buckets.last()?;
    let wanted = q * all as f64;
    let (mut lower, mut below) = (0.0, 0);
    for &(bound, count) in buckets {
        if all > 0 && count as f64 >= wanted {
            let share = (wanted - below as f64) / (count.saturating_sub(below).max(1)) as f64;
            return Some(if bound < f64::MAX {
                lower + (bound - lower) * share
            } else {
                lower
            });
        }
        (lower, below) = (bound, count);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::histogram::Histogram;
    use prometheus_client::registry::Unit;

    fn values(history: &History, title: &str) -> Vec<Option<f64>> {
        let charts = history.charts().into_iter();
        let found = charts
            .filter(|chart| chart.title == title)
            .map(|chart| chart.values)
            .next();
        found.unwrap_or_default()
    }

    #[test]
    fn a_chart_shows_what_its_metric_did_between_two_samples() {
        let (records, held) = (Counter::<u64>::default(), Gauge::<i64>::default());
        let latency = Histogram::new([0.1, 1.0, 10.0]);
        let mut gateway = Registry::with_prefix("millpond_gateway");
        gateway.register("records", "…", records.clone());
        gateway.register_with_unit("request_duration", "…", Unit::Seconds, latency.clone());
        let mut producer = Registry::with_prefix("millpond_producer");
        producer.register_with_unit("memory_held", "…", Unit::Bytes, held.clone());
        let registries = [gateway, producer];

        let mut history = History::default();
        records.inc_by(1_000);
        latency.observe(5.0);
        held.set(7);
        history.sample(&registries, Duration::from_secs(100));
        records.inc_by(500);
        for _ in 0..100 {
            latency.observe(0.05);
        }
        history.sample(&registries, Duration::from_secs(105));
        history.sample(&registries, Duration::from_secs(110));

        assert_eq!(values(&history, "records in"), [None, Some(100.0), Some(0.0)]);
        assert_eq!(
            values(&history, "p99 of a request"),
            [None, Some(0.099), None],
            "the first observation is older"
        );
        assert_eq!(values(&history, "memory held"), [Some(7.0); 3]);
        assert!(
            values(&history, "records out").is_empty(),
            "a gateway writes no rows"
        );
    }

    #[test]
    fn ten_minutes_are_kept() {
        let (held, mut registry) = (
            Gauge::<i64>::default(),
            Registry::with_prefix("millpond_producer"),
        );
        registry.register_with_unit("memory_held", "…", Unit::Bytes, held.clone());
        let (registries, mut history) = ([registry], History::default());
        for sample in 0..200_i32 {
            held.set(sample.into());
            history.sample(&registries, EVERY * sample.unsigned_abs());
        }
        let values = values(&history, "memory held");
        assert_eq!(
            (values.len(), values[0], values[119]),
            (120, Some(80.0), Some(199.0))
        );
    }

    #[test]
    fn a_quantile_is_interpolated_and_has_a_lower_bound_where_no_upper_one_is() {
        let buckets = [(0.1, 0), (1.0, 50), (10.0, 100), (f64::MAX, 100)];
        assert_eq!(quantile(0.5, &buckets), Some(1.0));
        assert_eq!(quantile(0.75, &buckets), Some(5.5));
        assert_eq!(quantile(0.99, &[(0.1, 0), (f64::MAX, 10)]), Some(0.1));
        assert_eq!(quantile(0.99, &[(0.1, 0), (f64::MAX, 0)]), None);
        assert_eq!(quantile(0.99, &[]), None);
    }
}
