//! The messages of OTLP metrics.

use super::{
    BOOL, DOUBLE, Enum, FIXED64, Fixed64, ID, KEY_VALUE, Kind, Message, NONE, RESOURCE, SCOPE, SFIXED64,
    SINT32, STRING, UINT32, Varint, many, one,
};

const TEMPORALITY: Kind = Kind::Varint(Varint::Enum(Enum::AggregationTemporality));

pub(crate) static EXPORT: Message = Message {
    fields: &[NONE, many("resource_metrics", Kind::Message(&RESOURCE_METRICS))],
    sparse: &[],
    plain: None,
};

static RESOURCE_METRICS: Message = Message {
    fields: &[
        NONE,
        one("resource", Kind::Message(&RESOURCE)),
        many("scope_metrics", Kind::Scopes(&SCOPE_METRICS)),
        one("schema_url", STRING),
    ],
    sparse: &[(
        1000,
        many("instrumentation_library_metrics", Kind::OldScopes(&SCOPE_METRICS)),
    )],
    plain: None,
};

static SCOPE_METRICS: Message = Message {
    fields: &[
        NONE,
        one("scope", Kind::Message(&SCOPE)),
        many("metrics", Kind::Message(&METRIC)),
        one("schema_url", STRING),
    ],
    sparse: &[],
    plain: None,
};

static METRIC: Message = Message {
    fields: &[
        NONE,
        one("name", STRING),
        one("description", STRING),
        one("unit", STRING),
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
    plain: None,
};

static GAUGE: Message = Message {
    fields: &[NONE, many("data_points", Kind::Record(&NUMBER_DATA_POINT))],
    sparse: &[],
    plain: None,
};

static SUM: Message = Message {
    fields: &[
        NONE,
        many("data_points", Kind::Record(&NUMBER_DATA_POINT)),
        one("aggregation_temporality", TEMPORALITY),
        one("is_monotonic", BOOL),
    ],
    sparse: &[],
    plain: None,
};

static HISTOGRAM: Message = Message {
    fields: &[
        NONE,
        many("data_points", Kind::Record(&HISTOGRAM_DATA_POINT)),
        one("aggregation_temporality", TEMPORALITY),
    ],
    sparse: &[],
    plain: None,
};

static EXPONENTIAL_HISTOGRAM: Message = Message {
    fields: &[
        NONE,
        many("data_points", Kind::Record(&EXPONENTIAL_HISTOGRAM_DATA_POINT)),
        one("aggregation_temporality", TEMPORALITY),
    ],
    sparse: &[],
    plain: None,
};

static SUMMARY: Message = Message {
    fields: &[NONE, many("data_points", Kind::Record(&SUMMARY_DATA_POINT))],
    sparse: &[],
    plain: None,
};

static NUMBER_DATA_POINT: Message = Message {
    fields: &[
        NONE,
        NONE,
        one("start_time_unix_nano", FIXED64),
        one("time_unix_nano", FIXED64),
        one("as_double", DOUBLE),
        many("exemplars", Kind::Message(&EXEMPLAR)),
        one("as_int", SFIXED64),
        many("attributes", Kind::Message(&KEY_VALUE)),
        one("flags", UINT32),
    ],
    sparse: &[],
    plain: None,
};

static HISTOGRAM_DATA_POINT: Message = Message {
    fields: &[
        NONE,
        NONE,
        one("start_time_unix_nano", FIXED64),
        one("time_unix_nano", FIXED64),
        one("count", FIXED64),
        one("sum", DOUBLE),
        many("bucket_counts", Kind::Fixed64s(Fixed64::Unsigned)),
        many("explicit_bounds", Kind::Fixed64s(Fixed64::Double)),
        many("exemplars", Kind::Message(&EXEMPLAR)),
        many("attributes", Kind::Message(&KEY_VALUE)),
        one("flags", UINT32),
        one("min", DOUBLE),
        one("max", DOUBLE),
    ],
    sparse: &[],
    plain: None,
};

static EXPONENTIAL_HISTOGRAM_DATA_POINT: Message = Message {
    fields: &[
        NONE,
        many("attributes", Kind::Message(&KEY_VALUE)),
        one("start_time_unix_nano", FIXED64),
        one("time_unix_nano", FIXED64),
        one("count", FIXED64),
        one("sum", DOUBLE),
        one("scale", SINT32),
        one("zero_count", FIXED64),
        one("positive", Kind::Message(&BUCKETS)),
        one("negative", Kind::Message(&BUCKETS)),
        one("flags", UINT32),
        many("exemplars", Kind::Message(&EXEMPLAR)),
        one("min", DOUBLE),
        one("max", DOUBLE),
        one("zero_threshold", DOUBLE),
    ],
    sparse: &[],
    plain: None,
};

static BUCKETS: Message = Message {
    fields: &[
        NONE,
        one("offset", SINT32),
        many("bucket_counts", Kind::Varints(Varint::Uint64)),
    ],
    sparse: &[],
    plain: None,
};

static SUMMARY_DATA_POINT: Message = Message {
    fields: &[
        NONE,
        NONE,
        one("start_time_unix_nano", FIXED64),
        one("time_unix_nano", FIXED64),
        one("count", FIXED64),
        one("sum", DOUBLE),
        many("quantile_values", Kind::Message(&VALUE_AT_QUANTILE)),
        many("attributes", Kind::Message(&KEY_VALUE)),
        one("flags", UINT32),
    ],
    sparse: &[],
    plain: None,
};

static VALUE_AT_QUANTILE: Message = Message {
    fields: &[NONE, one("quantile", DOUBLE), one("value", DOUBLE)],
    sparse: &[],
    plain: None,
};

static EXEMPLAR: Message = Message {
    fields: &[
        NONE,
        NONE,
        one("time_unix_nano", FIXED64),
        one("as_double", DOUBLE),
        one("span_id", ID),
        one("trace_id", ID),
        one("as_int", SFIXED64),
        many("filtered_attributes", Kind::Message(&KEY_VALUE)),
    ],
    sparse: &[],
    plain: None,
};
