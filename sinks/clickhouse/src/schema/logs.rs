//! `otel_logs`.

use super::{ColumnKind, DELTA, MAP, STRING, WORD, ZSTD, column};

/// In the order of [`crate::rows::logs::LogColumns`].
pub(super) const COLUMNS: [ColumnKind; 16] = [
    column(
        "Timestamp",
        "DateTime64(9)",
        DELTA,
        "Event timestamp with nanosecond precision",
    ),
    column("TraceId", STRING, ZSTD, "W3C trace identifier"),
    column("SpanId", STRING, ZSTD, "W3C span identifier"),
    column("TraceFlags", "UInt8", "", "W3C trace flags"),
    column("SeverityText", WORD, ZSTD, "Log severity as text"),
    column("SeverityNumber", "UInt8", "", "Log severity as number (1-24)"),
    column("ServiceName", WORD, ZSTD, "Service that emitted the log"),
    column("Body", STRING, ZSTD, "Log message body"),
    column("ResourceSchemaUrl", WORD, ZSTD, "Schema URL for the resource"),
    column(
        "ResourceAttributes",
        MAP,
        ZSTD,
        "Resource attributes as key-value pairs",
    ),
    column(
        "ScopeSchemaUrl",
        WORD,
        ZSTD,
        "Schema URL for the instrumentation scope",
    ),
    column("ScopeName", STRING, ZSTD, "Instrumentation scope name"),
    column("ScopeVersion", WORD, ZSTD, "Instrumentation scope version"),
    column("ScopeAttributes", MAP, ZSTD, "Instrumentation scope attributes"),
    column("LogAttributes", MAP, ZSTD, "Log record attributes"),
    column(
        "EventName",
        STRING,
        ZSTD,
        "Event name for log records representing events",
    ),
];

/// Resource attributes that the exporter also keeps as columns.
pub(super) const MATERIALIZED: [&str; 8] = [
    "k8s.cluster.name",
    "k8s.container.name",
    "k8s.deployment.name",
    "k8s.namespace.name",
    "k8s.node.name",
    "k8s.pod.name",
    "k8s.pod.uid",
    "deployment.environment.name",
];
