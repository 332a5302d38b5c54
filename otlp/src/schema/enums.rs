//! The value names of OTLP's enumerations. On the wire they are numbers, and any number may occur.

/// OTLP's enumerations. The values of each count up from 0 without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enum {
    SeverityNumber,
    SpanKind,
    StatusCode,
    AggregationTemporality,
}

impl Enum {
    /// The common prefix of the value names, and the rest of each name in numeric order.
    pub(crate) fn names(self) -> (&'static str, &'static [&'static str]) {
        match self {
            Enum::SeverityNumber => (
                "SEVERITY_NUMBER_",
                &[
                    "UNSPECIFIED",
                    "TRACE",
                    "TRACE2",
                    "TRACE3",
                    "TRACE4",
                    "DEBUG",
                    "DEBUG2",
                    "DEBUG3",
                    "DEBUG4",
                    "INFO",
                    "INFO2",
                    "INFO3",
                    "INFO4",
                    "WARN",
                    "WARN2",
                    "WARN3",
                    "WARN4",
                    "ERROR",
                    "ERROR2",
                    "ERROR3",
                    "ERROR4",
                    "FATAL",
                    "FATAL2",
                    "FATAL3",
                    "FATAL4",
                ],
            ),
            Enum::SpanKind => (
                "SPAN_KIND_",
                &[
                    "UNSPECIFIED",
                    "INTERNAL",
                    "SERVER",
                    "CLIENT",
                    "PRODUCER",
                    "CONSUMER",
                ],
            ),
            Enum::StatusCode => ("STATUS_CODE_", &["UNSET", "OK", "ERROR"]),
            Enum::AggregationTemporality => (
                "AGGREGATION_TEMPORALITY_",
                &["UNSPECIFIED", "DELTA", "CUMULATIVE"],
            ),
        }
    }
}
