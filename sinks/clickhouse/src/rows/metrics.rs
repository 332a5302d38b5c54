//! Data points as rows of the five tables `otel_metrics_…`.

use super::attributes::{AttributeMaps, Space};
use super::shared_maps::SharedMaps;
use super::{Resource, Rows, Scope, TableColumns, columns, push_hex};
use crate::native::{Array, Dictionary, Numbers, Strings};
use crate::schema::Table;
use millpond_otlp::KeyValue;
use millpond_otlp::metrics::{
    Exemplar, ExponentialHistogramDataPoint, HistogramDataPoint, Metric, Number, NumberDataPoint,
    SummaryDataPoint,
};

columns! {
    /// Columns of every data point.
    Head {
        resource_attributes: SharedMaps,
        resource_schema_url: Strings,
        scope_name: Strings,
        scope_version: Strings,
        scope_attributes: SharedMaps,
        scope_dropped: Numbers<u32>,
        scope_schema_url: Strings,
        service_name: Dictionary,
        metric_name: Dictionary,
        metric_description: Strings,
        metric_unit: Strings,
        attributes: AttributeMaps,
        start_time: Numbers<u32>,
        time: Numbers<u32>,
    }
}

columns! {
    Exemplars {
        filtered_attributes: Array<AttributeMaps>,
        times: Array<Numbers<u32>>,
        values: Array<Numbers<f64>>,
        span_ids: Array<Strings>,
        trace_ids: Array<Strings>,
    }
}

columns! {
    GaugeColumns {
        head: Head,
        value: Numbers<f64>,
        flags: Numbers<u32>,
        exemplars: Exemplars,
    }
}

columns! {
    SumColumns {
        head: Head,
        value: Numbers<f64>,
        flags: Numbers<u32>,
        exemplars: Exemplars,
        aggregation_temporality: Numbers<i32>,
        is_monotonic: Numbers<u8>,
    }
}

columns! {
    HistogramColumns {
        head: Head,
        count: Numbers<u64>,
        sum: Numbers<f64>,
        bucket_counts: Array<Numbers<u64>>,
        explicit_bounds: Array<Numbers<f64>>,
        exemplars: Exemplars,
        flags: Numbers<u32>,
        min: Numbers<f64>,
        max: Numbers<f64>,
        aggregation_temporality: Numbers<i32>,
    }
}

columns! {
    ExponentialHistogramColumns {
        head: Head,
        count: Numbers<u64>,
        sum: Numbers<f64>,
        scale: Numbers<i32>,
        zero_count: Numbers<u64>,
        positive_offset: Numbers<i32>,
        positive_bucket_counts: Array<Numbers<u64>>,
        negative_offset: Numbers<i32>,
        negative_bucket_counts: Array<Numbers<u64>>,
        exemplars: Exemplars,
        flags: Numbers<u32>,
        min: Numbers<f64>,
        max: Numbers<f64>,
        aggregation_temporality: Numbers<i32>,
    }
}

columns! {
    SummaryColumns {
        head: Head,
        count: Numbers<u64>,
        sum: Numbers<f64>,
        quantiles: Array<Numbers<f64>>,
        values: Array<Numbers<f64>>,
        flags: Numbers<u32>,
    }
}

/// The columns of a metrics table.
pub(crate) trait MetricColumns: TableColumns {
    fn head(&mut self) -> &mut Head;
}

macro_rules! tables {
    ($($columns:ty: $table:ident,)*) => {$(
        impl TableColumns for $columns {
            const TABLE: Table = Table::$table;

            fn days(&self) -> impl Iterator<Item = i64> {
                self.head.time.0.iter().map(|&seconds| i64::from(seconds / 86_400))
            }
        }

        impl MetricColumns for $columns {
            fn head(&mut self) -> &mut Head {
                &mut self.head
            }
        }
    )*};
}

tables! {
    GaugeColumns: Gauge,
    SumColumns: Sum,
    HistogramColumns: Histogram,
    ExponentialHistogramColumns: ExponentialHistogram,
    SummaryColumns: Summary,
}

/// Dictionary indexes of the values that a resource and a scope share among their rows, until the next `clear`.
pub(crate) struct Shared {
    service: u32,
    resource_attributes: u32,
    scope_attributes: u32,
}

/// Values that all data points of a metric share.
pub(crate) struct Common<'a> {
    pub(crate) resource: &'a Resource<'a>,
    pub(crate) scope: &'a Scope<'a>,
    pub(crate) metric: &'a Metric<'a>,
    pub(crate) aggregation_temporality: i32,
    pub(crate) is_monotonic: bool,
}

/// Parts of every kind of data point.
struct Times<A> {
    attributes: A,
    start: u64,
    time: u64,
}

/// A kind of data point and its columns.
pub(crate) trait PointRow<'a> {
    type Columns: MetricColumns;

    fn push(&self, columns: &mut Self::Columns, common: &Common, shared: &Shared, space: &mut Space<'a>);
}

impl<C: MetricColumns> Rows<C> {
    pub(crate) fn shared(&mut self, resource: &Resource, scope: &Scope) -> Shared {
        let head = self.columns.head();
        Shared {
            service: head.service_name.number(&resource.service),
            resource_attributes: head.resource_attributes.number(&resource.attributes),
            scope_attributes: head.scope_attributes.number(&scope.attributes),
        }
    }
}

impl Head {
    fn push<'a, A: Iterator<Item = KeyValue<'a>>>(
        &mut self,
        common: &Common,
        shared: &Shared,
        times: Times<A>,
        space: &mut Space<'a>,
    ) {
        let Common {
            resource,
            scope,
            metric,
            ..
        } = common;
        self.resource_attributes.push(shared.resource_attributes);
        self.resource_schema_url.push(resource.schema_url);
        self.scope_name.push(scope.name);
        self.scope_version.push(scope.version);
        self.scope_attributes.push(shared.scope_attributes);
        self.scope_dropped.0.push(scope.dropped_attributes_count);
        self.scope_schema_url.push(scope.schema_url);
        self.service_name.push_number(shared.service);
        self.metric_name.push(metric.name);
        self.metric_description.push(metric.description);
        self.metric_unit.push(metric.unit);
        self.attributes.push(times.attributes, space);
        self.start_time.0.push(seconds(times.start));
        self.time.0.push(seconds(times.time));
    }
}

/// DateTime: the low 32 bits of the seconds in Go's time, which treats nanoseconds as signed.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the exporter's driver cuts the same bits off"
)]
fn seconds(nanoseconds: u64) -> u32 {
    nanoseconds
        .cast_signed()
        .div_euclid(1_000_000_000)
        .cast_unsigned() as u32
}

/// One column takes both kinds of numbers; a missing number is 0.
#[expect(clippy::cast_precision_loss, reason = "the column is a double")]
fn double(number: Number) -> f64 {
    match number {
        Number::Empty => 0.0,
        Number::Int(number) => number as f64,
        Number::Double(number) => number,
    }
}

/// An id as hexadecimal of its full length; a missing id is zeros. The exporter does this only for exemplars.
fn push_full_id<const LENGTH: usize>(id: &[u8], column: &mut Strings) {
    let id: [u8; LENGTH] = id.try_into().unwrap_or([0; LENGTH]);
    push_hex(&id, column);
}

impl Exemplars {
    fn push<'a>(&mut self, exemplars: impl Iterator<Item = Exemplar<'a>>, space: &mut Space<'a>) {
        for exemplar in exemplars {
            self.filtered_attributes
                .items
                .push(exemplar.filtered_attributes(), space);
            self.times.items.0.push(seconds(exemplar.time_unix_nano));
            self.values.items.0.push(double(exemplar.value));
            push_full_id::<8>(exemplar.span_id, &mut self.span_ids.items);
            push_full_id::<16>(exemplar.trace_id, &mut self.trace_ids.items);
        }
        self.filtered_attributes.end_row();
        self.times.end_row();
        self.values.end_row();
        self.span_ids.end_row();
        self.trace_ids.end_row();
    }
}

/// A gauge's data point.
pub(crate) struct GaugePoint<'a>(pub(crate) NumberDataPoint<'a>);

impl<'a> PointRow<'a> for GaugePoint<'a> {
    type Columns = GaugeColumns;

    fn push(&self, columns: &mut GaugeColumns, common: &Common, shared: &Shared, space: &mut Space<'a>) {
        let GaugePoint(point) = self;
        columns.head.push(common, shared, number_times(point), space);
        columns.value.0.push(double(point.value));
        columns.flags.0.push(point.flags);
        columns.exemplars.push(point.exemplars(), space);
    }
}

fn number_times<'a>(point: &NumberDataPoint<'a>) -> Times<impl Iterator<Item = KeyValue<'a>> + use<'a>> {
    Times {
        attributes: point.attributes(),
        start: point.start_time_unix_nano,
        time: point.time_unix_nano,
    }
}

/// A sum's data point.
pub(crate) struct SumPoint<'a>(pub(crate) NumberDataPoint<'a>);

impl<'a> PointRow<'a> for SumPoint<'a> {
    type Columns = SumColumns;

    fn push(&self, columns: &mut SumColumns, common: &Common, shared: &Shared, space: &mut Space<'a>) {
        let SumPoint(point) = self;
        columns.head.push(common, shared, number_times(point), space);
        columns.value.0.push(double(point.value));
        columns.flags.0.push(point.flags);
        columns.exemplars.push(point.exemplars(), space);
        columns
            .aggregation_temporality
            .0
            .push(common.aggregation_temporality);
        columns.is_monotonic.0.push(common.is_monotonic.into());
    }
}

impl<'a> PointRow<'a> for HistogramDataPoint<'a> {
    type Columns = HistogramColumns;

    fn push(&self, columns: &mut HistogramColumns, common: &Common, shared: &Shared, space: &mut Space<'a>) {
        let times = Times {
            attributes: self.attributes(),
            start: self.start_time_unix_nano,
            time: self.time_unix_nano,
        };
        columns.head.push(common, shared, times, space);
        columns.count.0.push(self.count);
        columns.sum.0.push(self.sum.unwrap_or_default());
        columns.bucket_counts.items.0.extend(self.bucket_counts());
        columns.bucket_counts.end_row();
        columns.explicit_bounds.items.0.extend(self.explicit_bounds());
        columns.explicit_bounds.end_row();
        columns.exemplars.push(self.exemplars(), space);
        columns.flags.0.push(self.flags);
        columns.min.0.push(self.min.unwrap_or_default());
        columns.max.0.push(self.max.unwrap_or_default());
        columns
            .aggregation_temporality
            .0
            .push(common.aggregation_temporality);
    }
}

impl<'a> PointRow<'a> for ExponentialHistogramDataPoint<'a> {
    type Columns = ExponentialHistogramColumns;

    fn push(
        &self,
        columns: &mut ExponentialHistogramColumns,
        common: &Common,
        shared: &Shared,
        space: &mut Space<'a>,
    ) {
        let times = Times {
            attributes: self.attributes(),
            start: self.start_time_unix_nano,
            time: self.time_unix_nano,
        };
        columns.head.push(common, shared, times, space);
        columns.count.0.push(self.count);
        columns.sum.0.push(self.sum.unwrap_or_default());
        columns.scale.0.push(self.scale);
        columns.zero_count.0.push(self.zero_count);
        let (positive, negative) = (self.positive(), self.negative());
        columns.positive_offset.0.push(positive.offset);
        columns.positive_bucket_counts.items.0.extend(positive.counts());
        columns.positive_bucket_counts.end_row();
        columns.negative_offset.0.push(negative.offset);
        columns.negative_bucket_counts.items.0.extend(negative.counts());
        columns.negative_bucket_counts.end_row();
        columns.exemplars.push(self.exemplars(), space);
        columns.flags.0.push(self.flags);
        columns.min.0.push(self.min.unwrap_or_default());
        columns.max.0.push(self.max.unwrap_or_default());
        columns
            .aggregation_temporality
            .0
            .push(common.aggregation_temporality);
    }
}

impl<'a> PointRow<'a> for SummaryDataPoint<'a> {
    type Columns = SummaryColumns;

    fn push(&self, columns: &mut SummaryColumns, common: &Common, shared: &Shared, space: &mut Space<'a>) {
        let times = Times {
            attributes: self.attributes(),
            start: self.start_time_unix_nano,
            time: self.time_unix_nano,
        };
        columns.head.push(common, shared, times, space);
        columns.count.0.push(self.count);
        columns.sum.0.push(self.sum);
        for quantile in self.quantiles() {
            columns.quantiles.items.0.push(quantile.quantile);
            columns.values.items.0.push(quantile.value);
        }
        columns.quantiles.end_row();
        columns.values.end_row();
        columns.flags.0.push(self.flags);
    }
}
