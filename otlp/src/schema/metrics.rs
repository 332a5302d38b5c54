//! The messages of OTLP metrics.

use super::{KEY_VALUE, Kind, Message, NONE, RESOURCE, SCOPE, many, one};

pub(crate) static EXPORT: Message = Message {
    fields: &[NONE, many("resource_metrics", Kind::Message(&RESOURCE_METRICS))],
    sparse: &[],
};

static RESOURCE_METRICS: Message = Message {
    fields: &[
        NONE,
        one("resource", Kind::Message(&RESOURCE)),
        many("scope_metrics", Kind::Scopes(&SCOPE_METRICS)),
        one("schema_url", Kind::Bytes),
    ],
    sparse: &[(
        1000,
        many("instrumentation_library_metrics", Kind::OldScopes(&SCOPE_METRICS)),
    )],
};

static SCOPE_METRICS: Message = Message {
    fields: &[
        NONE,
        one("scope", Kind::Message(&SCOPE)),
        many("metrics", Kind::Message(&METRIC)),
        one("schema_url", Kind::Bytes),
    ],
    sparse: &[],
};

static METRIC: Message = Message {
    fields: &[
        NONE,
        one("name", Kind::Bytes),
        one("description", Kind::Bytes),
        one("unit", Kind::Bytes),
        NONE,
        one("gauge", Kind::Data(&GAUGE)),
        NONE,
        one("sum", Kind::Data(&SUM)),
        NONE,
        one("histogram", Kind::Data(&HISTOGRAM)),
        one("exponential_histogram", Kind::Data(&EXPONENTIAL_HISTOGRAM)),
        one("summary", Kind::Data(&SUMMARY)),
        many("metadata", Kind::Message(&KEY_VALUE)),
    ],
    sparse: &[],
};

static GAUGE: Message = Message {
    fields: &[NONE, many("data_points", Kind::Record(&NUMBER_DATA_POINT))],
    sparse: &[],
};

static SUM: Message = Message {
    fields: &[
        NONE,
        many("data_points", Kind::Record(&NUMBER_DATA_POINT)),
        one("aggregation_temporality", Kind::Varint),
        one("is_monotonic", Kind::Varint),
    ],
    sparse: &[],
};

static HISTOGRAM: Message = Message {
    fields: &[
        NONE,
        many("data_points", Kind::Record(&HISTOGRAM_DATA_POINT)),
        one("aggregation_temporality", Kind::Varint),
    ],
    sparse: &[],
};

static EXPONENTIAL_HISTOGRAM: Message = Message {
    fields: &[
        NONE,
        many("data_points", Kind::Record(&EXPONENTIAL_HISTOGRAM_DATA_POINT)),
        one("aggregation_temporality", Kind::Varint),
    ],
    sparse: &[],
};

static SUMMARY: Message = Message {
    fields: &[NONE, many("data_points", Kind::Record(&SUMMARY_DATA_POINT))],
    sparse: &[],
};

static NUMBER_DATA_POINT: Message = Message {
    fields: &[
        NONE,
        NONE,
        one("start_time_unix_nano", Kind::Fixed64),
        one("time_unix_nano", Kind::Fixed64),
        one("as_double", Kind::Fixed64),
        many("exemplars", Kind::Message(&EXEMPLAR)),
        one("as_int", Kind::Fixed64),
        many("attributes", Kind::Message(&KEY_VALUE)),
        one("flags", Kind::Varint),
    ],
    sparse: &[],
};

static HISTOGRAM_DATA_POINT: Message = Message {
    fields: &[
        NONE,
        NONE,
        one("start_time_unix_nano", Kind::Fixed64),
        one("time_unix_nano", Kind::Fixed64),
        one("count", Kind::Fixed64),
        one("sum", Kind::Fixed64),
        many("bucket_counts", Kind::Fixed64s),
        many("explicit_bounds", Kind::Fixed64s),
        many("exemplars", Kind::Message(&EXEMPLAR)),
        many("attributes", Kind::Message(&KEY_VALUE)),
        one("flags", Kind::Varint),
        one("min", Kind::Fixed64),
        one("max", Kind::Fixed64),
    ],
    sparse: &[],
};

static EXPONENTIAL_HISTOGRAM_DATA_POINT: Message = Message {
    fields: &[
        NONE,
        many("attributes", Kind::Message(&KEY_VALUE)),
        one("start_time_unix_nano", Kind::Fixed64),
        one("time_unix_nano", Kind::Fixed64),
        one("count", Kind::Fixed64),
        one("sum", Kind::Fixed64),
        one("scale", Kind::Varint),
        one("zero_count", Kind::Fixed64),
        one("positive", Kind::Message(&BUCKETS)),
        one("negative", Kind::Message(&BUCKETS)),
        one("flags", Kind::Varint),
        many("exemplars", Kind::Message(&EXEMPLAR)),
        one("min", Kind::Fixed64),
        one("max", Kind::Fixed64),
        one("zero_threshold", Kind::Fixed64),
    ],
    sparse: &[],
};

static BUCKETS: Message = Message {
    fields: &[
        NONE,
        one("offset", Kind::Varint),
        many("bucket_counts", Kind::Varints),
    ],
    sparse: &[],
};

static SUMMARY_DATA_POINT: Message = Message {
    fields: &[
        NONE,
        NONE,
        one("start_time_unix_nano", Kind::Fixed64),
        one("time_unix_nano", Kind::Fixed64),
        one("count", Kind::Fixed64),
        one("sum", Kind::Fixed64),
        many("quantile_values", Kind::Message(&VALUE_AT_QUANTILE)),
        many("attributes", Kind::Message(&KEY_VALUE)),
        one("flags", Kind::Varint),
    ],
    sparse: &[],
};

static VALUE_AT_QUANTILE: Message = Message {
    fields: &[NONE, one("quantile", Kind::Fixed64), one("value", Kind::Fixed64)],
    sparse: &[],
};

static EXEMPLAR: Message = Message {
    fields: &[
        NONE,
        NONE,
        one("time_unix_nano", Kind::Fixed64),
        one("as_double", Kind::Fixed64),
        one("span_id", Kind::Bytes),
        one("trace_id", Kind::Bytes),
        one("as_int", Kind::Fixed64),
        many("filtered_attributes", Kind::Message(&KEY_VALUE)),
    ],
    sparse: &[],
};
