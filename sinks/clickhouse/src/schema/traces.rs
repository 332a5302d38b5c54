//! `otel_traces`, and the table and view that find a trace's time range.

use super::{ColumnKind, DELTA, MAP, MAPS, STRING, STRINGS, WORD, WORDS, ZSTD, column};

/// In the order of [`crate::rows::traces::SpanColumns`].
pub(super) const COLUMNS: [ColumnKind; 22] = [
    column("Timestamp", "DateTime64(9)", DELTA, ""),
    column("TraceId", STRING, ZSTD, ""),
    column("SpanId", STRING, ZSTD, ""),
    column("ParentSpanId", STRING, ZSTD, ""),
    column("TraceState", STRING, ZSTD, ""),
    column("SpanName", WORD, ZSTD, ""),
    column("SpanKind", WORD, ZSTD, ""),
    column("ServiceName", WORD, ZSTD, ""),
    column("ResourceAttributes", MAP, ZSTD, ""),
    column("ScopeName", STRING, ZSTD, ""),
    column("ScopeVersion", STRING, ZSTD, ""),
    column("SpanAttributes", MAP, ZSTD, ""),
    column("Duration", "UInt64", ZSTD, ""),
    column("StatusCode", WORD, ZSTD, ""),
    column("StatusMessage", STRING, ZSTD, ""),
    column("Events.Timestamp", "Array(DateTime64(9))", ZSTD, ""),
    column("Events.Name", WORDS, ZSTD, ""),
    column("Events.Attributes", MAPS, ZSTD, ""),
    column("Links.TraceId", STRINGS, ZSTD, ""),
    column("Links.SpanId", STRINGS, ZSTD, ""),
    column("Links.TraceState", STRINGS, ZSTD, ""),
    column("Links.Attributes", MAPS, ZSTD, ""),
];
