//! The tables: the columns of the Collector's clickhouseexporter (v0.161) and Millpond's own. Generates the DDL, and
//! checks existing tables. Pure: it contacts no server.

pub(crate) mod ddl;
pub(crate) mod distributed;
pub(crate) mod judge;
mod logs;
mod metrics;
pub(crate) mod partition;
mod traces;

use crate::config::{Columns, Config};
use millpond_otlp::Signal;

/// A destination table. Chunks refer to it by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    Logs,
    Traces,
    Gauge,
    Sum,
    Histogram,
    ExponentialHistogram,
    Summary,
    /// The table of a stream of events, by its place in [`Config::event_tables`].
    Event(u16),
}

impl Table {
    pub(crate) const ALL: [Table; 7] = [
        Table::Logs,
        Table::Traces,
        Table::Gauge,
        Table::Sum,
        Table::Histogram,
        Table::ExponentialHistogram,
        Table::Summary,
    ];

    pub(crate) fn number(self) -> u32 {
        match self {
            Table::Logs => 0,
            Table::Traces => 1,
            Table::Gauge => 2,
            Table::Sum => 3,
            Table::Histogram => 4,
            Table::ExponentialHistogram => 5,
            Table::Summary => 6,
            Table::Event(place) => 1_000 + u32::from(place),
        }
    }

    /// The signal of its rows; `None` for events.
    pub(crate) fn signal(self) -> Option<Signal> {
        Some(match self {
            Table::Logs => Signal::Logs,
            Table::Traces => Signal::Traces,
            Table::Gauge | Table::Sum | Table::Histogram | Table::ExponentialHistogram | Table::Summary => {
                Signal::Metrics
            }
            Table::Event(_) => return None,
        })
    }

    /// Its name in settings.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Table::Logs => "logs",
            Table::Traces => "traces",
            Table::Gauge => "gauge",
            Table::Sum => "sum",
            Table::Histogram => "histogram",
            Table::ExponentialHistogram => "exponential_histogram",
            Table::Summary => "summary",
            Table::Event(_) => "event",
        }
    }

    pub(crate) fn name(self, config: &Config) -> &str {
        match self {
            Table::Logs => &config.logs_table,
            Table::Traces => &config.traces_table,
            Table::Gauge => &config.gauge_table,
            Table::Sum => &config.sum_table,
            Table::Histogram => &config.histogram_table,
            Table::ExponentialHistogram => &config.exponential_histogram_table,
            Table::Summary => &config.summary_table,
            Table::Event(place) => &config.event_tables[usize::from(place)].table,
        }
    }

    /// Its full, quoted name.
    pub(crate) fn path(self, config: &Config) -> String {
        path(config, self.name(config))
    }

    /// The exporter's columns, in its order.
    pub(crate) fn columns(self) -> impl Iterator<Item = &'static ColumnKind> {
        let parts: &'static [&'static [ColumnKind]] = match self {
            Table::Logs => &[&logs::COLUMNS],
            Table::Traces => &[&traces::COLUMNS],
            Table::Gauge => &metrics::GAUGE,
            Table::Sum => &metrics::SUM,
            Table::Histogram => &metrics::HISTOGRAM,
            Table::ExponentialHistogram => &metrics::EXPONENTIAL_HISTOGRAM,
            Table::Summary => &metrics::SUMMARY,
            Table::Event(_) => &[],
        };
        parts.iter().copied().flatten()
    }

    /// The columns that the sink fills.
    pub(crate) fn filled(self, columns: Columns) -> impl Iterator<Item = &'static ColumnKind> {
        let own: &'static [ColumnKind] = match columns {
            Columns::All => &MILLPOND,
            Columns::None => &[],
        };
        self.columns().chain(own)
    }

    /// The column whose day is the partition; `None` for events, whose tables have any partitions.
    pub(crate) fn time(self) -> Option<&'static str> {
        self.signal().map(time)
    }
}

fn time(signal: Signal) -> &'static str {
    match signal {
        Signal::Logs | Signal::Traces => "Timestamp",
        Signal::Metrics => "TimeUnix",
    }
}

pub(crate) fn sorting_key(signal: Signal) -> &'static str {
    match signal {
        Signal::Logs => "toStartOfFiveMinutes(Timestamp), ServiceName, Timestamp",
        Signal::Traces => "ServiceName, SpanName, toDateTime(Timestamp)",
        Signal::Metrics => {
            "ServiceName, MetricName, toStartOfHour(TimeUnix), cityHash64(Attributes), TimeUnix"
        }
    }
}

pub(crate) struct ColumnKind {
    pub(crate) name: &'static str,
    pub(crate) kind: &'static str,
    codec: &'static str,
    comment: &'static str,
}

const fn column(
    name: &'static str,
    kind: &'static str,
    codec: &'static str,
    comment: &'static str,
) -> ColumnKind {
    ColumnKind {
        name,
        kind,
        codec,
        comment,
    }
}

pub(crate) const STRING: &str = "String";
pub(crate) const WORD: &str = "LowCardinality(String)";
pub(crate) const MAP: &str = "Map(LowCardinality(String), String)";
const STRINGS: &str = "Array(String)";
const WORDS: &str = "Array(LowCardinality(String))";
const MAPS: &str = "Array(Map(LowCardinality(String), String))";
const ZSTD: &str = "ZSTD(1)";
const DELTA: &str = "Delta(8), ZSTD(1)";

pub(crate) const RECEIVED_AT: &str = "_millpond_received_at";
pub(crate) const SOURCE: &str = "_millpond_source";
pub(crate) const SEQUENCE: &str = "_millpond_sequence";
pub(crate) const RECORD: &str = "_millpond_record";

/// Millpond's own columns. Source, sequence and record are a row's identity.
pub(crate) const MILLPOND: [ColumnKind; 5] = [
    column(
        RECEIVED_AT,
        "DateTime64(6)",
        DELTA,
        "When the buffer received the record",
    ),
    column(
        "_millpond_inserted_at",
        "DateTime64(3)",
        DELTA,
        "When the row was encoded for its insert",
    ),
    column(
        SOURCE,
        WORD,
        ZSTD,
        "Buffer, shard, stream and consumer that the row came through",
    ),
    column(
        SEQUENCE,
        "UInt64",
        DELTA,
        "Sequence of the segment that the record is in",
    ),
    column(
        RECORD,
        "UInt32",
        "Delta(4), ZSTD(1)",
        "Number of the record among those of its stream in the segment",
    ),
];

/// Quotes any name as an SQL identifier.
pub(crate) fn identifier(name: &str) -> String {
    let mut quoted = String::from("`");
    for character in name.chars() {
        if matches!(character, '`' | '\\') {
            quoted.push('\\');
        }
        quoted.push(character);
    }
    quoted.push('`');
    quoted
}

/// Quotes a string for SQL.
pub(crate) fn literal(text: &str) -> String {
    let mut quoted = String::from("'");
    for character in text.chars() {
        if matches!(character, '\'' | '\\') {
            quoted.push('\\');
        }
        quoted.push(character);
    }
    quoted.push('\'');
    quoted
}

/// The name of a cluster as SQL: `{macro}` becomes what the server substitutes for it, as in the arguments of an engine.
pub(crate) fn cluster_name(name: &str) -> String {
    let mut parts = Vec::new();
    let mut rest = name;
    while let Some((before, (inside, after))) = rest
        .split_once('{')
        .and_then(|(before, rest)| Some((before, rest.split_once('}')?)))
    {
        parts.extend([literal(before), format!("getMacro({})", literal(inside))]);
        rest = after;
    }
    parts.push(literal(rest));
    match &parts[..] {
        [name] => name.clone(),
        parts => format!("concat({})", parts.join(", ")),
    }
}

fn path(config: &Config, table: &str) -> String {
    format!("{}.{}", identifier(&config.database), identifier(table))
}

pub(crate) fn insert(config: &Config, table: Table) -> String {
    let columns: Vec<_> = table
        .filled(config.columns)
        .map(|column| identifier(column.name))
        .collect();
    format!(
        "INSERT INTO {} ({}) FORMAT Native",
        table.path(config),
        columns.join(", ")
    )
}

/// The table that finds the time range of a trace. A view of the traces table fills it.
pub(crate) fn lookup(config: &Config) -> String {
    format!("{}_trace_id_ts", config.traces_table)
}

pub(crate) fn lookup_path(config: &Config) -> String {
    path(config, &lookup(config))
}

/// The view that fills that table.
pub(crate) fn view(config: &Config) -> String {
    format!("{}_mv", lookup(config))
}

/// The statement that adds the time ranges of the selected spans' traces, unless the table already has them.
pub(crate) fn lookup_rows_missing(config: &Config, condition: &str) -> String {
    let (lookup, traces) = (lookup_path(config), Table::Traces.path(config));
    let rows = ddl::lookup_rows(config, &format!("{condition} AND TraceId != ''"));
    format!(
        "INSERT INTO {lookup} (TraceId, Start, End)\n\
         SELECT TraceId, toDateTime(Start), toDateTime(End) FROM ({rows})\n\
         WHERE (TraceId, toDateTime(Start), toDateTime(End)) GLOBAL NOT IN (\
         SELECT TraceId, Start, End FROM {lookup} WHERE TraceId GLOBAL IN (\
         SELECT TraceId FROM {traces} WHERE {condition}))"
    )
}

/// The columns of the trace lookup table.
pub(crate) const LOOKUP: [ColumnKind; 3] = [
    column("TraceId", STRING, ZSTD, ""),
    column("Start", "DateTime", "Delta(4), ZSTD(1)", ""),
    column("End", "DateTime", "Delta(4), ZSTD(1)", ""),
];

/// The `ON CLUSTER` clause of a statement, if there is a cluster.
pub(crate) fn on_cluster(config: &Config) -> String {
    let cluster = config.cluster.as_deref();
    cluster.map_or(String::new(), |cluster| {
        format!(" ON CLUSTER {}", identifier(cluster))
    })
}

/// The item type of an array.
pub(crate) fn item_kind(kind: &str) -> Option<&str> {
    kind.strip_prefix("Array(")?.strip_suffix(')')
}

#[cfg(test)]
mod tests;
