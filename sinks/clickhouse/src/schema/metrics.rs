//! `otel_metrics_…`: five similar tables.

use super::{ColumnKind, MAP, MAPS, STRING, STRINGS, WORD, ZSTD, column};

const DELTA_4: &str = "Delta(4), ZSTD(1)";
const DELTA_8: &str = "Delta(8), ZSTD(1)";
const DOUBLES: &str = "Array(Float64)";
const COUNTS: &str = "Array(UInt64)";

/// Columns of every data point, in the order of [`crate::rows::metrics::Head`].
const HEAD: [ColumnKind; 14] = [
    column("ResourceAttributes", MAP, ZSTD, ""),
    column("ResourceSchemaUrl", STRING, ZSTD, ""),
    column("ScopeName", STRING, ZSTD, ""),
    column("ScopeVersion", STRING, ZSTD, ""),
    column("ScopeAttributes", MAP, ZSTD, ""),
    column("ScopeDroppedAttrCount", "UInt32", ZSTD, ""),
    column("ScopeSchemaUrl", STRING, ZSTD, ""),
    column("ServiceName", WORD, ZSTD, ""),
    column("MetricName", WORD, ZSTD, ""),
    column("MetricDescription", STRING, ZSTD, ""),
    column("MetricUnit", STRING, ZSTD, ""),
    column("Attributes", MAP, ZSTD, ""),
    column("StartTimeUnix", "DateTime", DELTA_4, ""),
    column("TimeUnix", "DateTime", DELTA_4, ""),
];

/// In the order of [`crate::rows::metrics::Exemplars`].
const EXEMPLARS: [ColumnKind; 5] = [
    column("Exemplars.FilteredAttributes", MAPS, ZSTD, ""),
    column("Exemplars.TimeUnix", "Array(DateTime)", ZSTD, ""),
    column("Exemplars.Value", DOUBLES, ZSTD, ""),
    column("Exemplars.SpanId", STRINGS, ZSTD, ""),
    column("Exemplars.TraceId", STRINGS, ZSTD, ""),
];

const COUNT: ColumnKind = column("Count", "UInt64", DELTA_8, "");
const VALUE: ColumnKind = column("Value", "Float64", ZSTD, "");
const SUM_OF_VALUES: ColumnKind = column("Sum", "Float64", ZSTD, "");
const FLAGS: ColumnKind = column("Flags", "UInt32", ZSTD, "");
const MIN: ColumnKind = column("Min", "Float64", ZSTD, "");
const MAX: ColumnKind = column("Max", "Float64", ZSTD, "");
const TEMPORALITY: ColumnKind = column("AggregationTemporality", "Int32", ZSTD, "");

/// In the order of [`crate::rows::metrics::GaugeColumns`].
pub(super) const GAUGE: [&[ColumnKind]; 3] = [&HEAD, &[VALUE, FLAGS], &EXEMPLARS];

/// In the order of [`crate::rows::metrics::SumColumns`].
pub(super) const SUM: [&[ColumnKind]; 4] = [
    &HEAD,
    &[VALUE, FLAGS],
    &EXEMPLARS,
    &[
        TEMPORALITY,
        column("IsMonotonic", "Bool", "Delta(1), ZSTD(1)", ""),
    ],
];

/// In the order of [`crate::rows::metrics::HistogramColumns`].
pub(super) const HISTOGRAM: [&[ColumnKind]; 4] = [
    &HEAD,
    &[
        COUNT,
        SUM_OF_VALUES,
        column("BucketCounts", COUNTS, ZSTD, ""),
        column("ExplicitBounds", DOUBLES, ZSTD, ""),
    ],
    &EXEMPLARS,
    &[FLAGS, MIN, MAX, TEMPORALITY],
];

/// In the order of [`crate::rows::metrics::ExponentialHistogramColumns`].
pub(super) const EXPONENTIAL_HISTOGRAM: [&[ColumnKind]; 4] = [
    &HEAD,
    &[
        COUNT,
        SUM_OF_VALUES,
        column("Scale", "Int32", ZSTD, ""),
        column("ZeroCount", "UInt64", ZSTD, ""),
        column("PositiveOffset", "Int32", ZSTD, ""),
        column("PositiveBucketCounts", COUNTS, ZSTD, ""),
        column("NegativeOffset", "Int32", ZSTD, ""),
        column("NegativeBucketCounts", COUNTS, ZSTD, ""),
    ],
    &EXEMPLARS,
    &[FLAGS, MIN, MAX, TEMPORALITY],
];

/// In the order of [`crate::rows::metrics::SummaryColumns`].
pub(super) const SUMMARY: [&[ColumnKind]; 2] = [
    &HEAD,
    &[
        COUNT,
        SUM_OF_VALUES,
        column("ValueAtQuantiles.Quantile", DOUBLES, ZSTD, ""),
        column("ValueAtQuantiles.Value", DOUBLES, ZSTD, ""),
        FLAGS,
    ],
];
