//! OTLP's enumerations: the names of their values. On the wire they are numbers, and any number may come.

/// OTLP's enumerations. The numbers of each go up from 0 without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enum {
    SeverityNumber,
    SpanKind,
    StatusCode,
    AggregationTemporality,
}

impl Enum {
    /// What the names of all its values begin with, and how they go on, in the order of their numbers.
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
