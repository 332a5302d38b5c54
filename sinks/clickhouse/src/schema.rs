//! The tables: the columns that the Collector's clickhouseexporter (v0.161) gives them, and Millpond's own. Makes the
//! DDL, and judges a table that is there. Pure: talks to no server.

mod logs;
mod metrics;
mod traces;

use crate::config::{Columns, Config, Indexes};
use millpond_otlp::Signal;
use std::fmt::Write as _;

/// A table that rows go into. Its number is that of a chunk for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    Logs = 0,
    Traces,
    Gauge,
    Sum,
    Histogram,
    ExponentialHistogram,
    Summary,
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
        self as u32
    }

    pub(crate) fn signal(self) -> Signal {
        match self {
            Table::Logs => Signal::Logs,
            Table::Traces => Signal::Traces,
            _ => Signal::Metrics,
        }
    }

    /// What it is called in settings.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Table::Logs => "logs",
            Table::Traces => "traces",
            Table::Gauge => "gauge",
            Table::Sum => "sum",
            Table::Histogram => "histogram",
            Table::ExponentialHistogram => "exponential_histogram",
            Table::Summary => "summary",
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
        }
    }

    /// Its full name, quoted.
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
        };
        parts.iter().copied().flatten()
    }

    /// The columns that we fill.
    pub(crate) fn filled(self, columns: Columns) -> impl Iterator<Item = &'static ColumnKind> {
        let own: &'static [ColumnKind] = match columns {
            Columns::All => &MILLPOND,
            Columns::None => &[],
        };
        self.columns().chain(own)
    }

    /// The column whose day is the partition.
    pub(crate) fn time(self) -> &'static str {
        match self.signal() {
            Signal::Logs | Signal::Traces => "Timestamp",
            Signal::Metrics => "TimeUnix",
        }
    }

    /// That column's ticks, as a block has them, in SQL.
    pub(crate) fn ticks(self) -> &'static str {
        match self.signal() {
            Signal::Logs | Signal::Traces => "toUnixTimestamp64Nano(Timestamp)",
            Signal::Metrics => "toInt64(toUnixTimestamp(TimeUnix))",
        }
    }

    fn sorting_key(self) -> &'static str {
        match self.signal() {
            Signal::Logs => "toStartOfFiveMinutes(Timestamp), ServiceName, Timestamp",
            Signal::Traces => "ServiceName, SpanName, toDateTime(Timestamp)",
            Signal::Metrics => {
                "ServiceName, MetricName, toStartOfHour(TimeUnix), cityHash64(Attributes), TimeUnix"
            }
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

/// Millpond's own: constant in a chunk but for the first, so that they compress to almost nothing.
pub(crate) const MILLPOND: [ColumnKind; 5] = [
    column(
        "_millpond_received_at",
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
        "_millpond_source",
        WORD,
        ZSTD,
        "Buffer, shard, stream and consumer that the row came through",
    ),
    column(
        "_millpond_batch",
        "UInt64",
        DELTA,
        "First sequence of the batch that the row came in",
    ),
    column(
        "_millpond_chunk",
        "UInt32",
        "Delta(4), ZSTD(1)",
        "Chunk of the batch that the row came in",
    ),
];

/// Deduplication tokens that a table of ours remembers (tokens × partitions): ClickHouse's default for replicated
/// tables.
pub(crate) const WINDOW: u64 = 10_000;

/// The exporter's settings, and our window.
fn settings() -> String {
    format!(
        "SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = {WINDOW}"
    )
}

/// A name as SQL takes it, whatever is in it.
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

pub(crate) fn create_database(config: &Config) -> String {
    format!("CREATE DATABASE IF NOT EXISTS {}", identifier(&config.database))
}

/// `server`: the server's version, major and minor.
pub(crate) fn create_table(config: &Config, table: Table, server: (u32, u32)) -> String {
    let mut items: Vec<String> = table.columns().map(definition).collect();
    if table == Table::Logs {
        items.extend(logs::MATERIALIZED.iter().map(|attribute| {
            let name = identifier(&format!("__otel_materialized_{attribute}"));
            format!("{name} {WORD} MATERIALIZED ResourceAttributes['{attribute}'] CODEC({ZSTD})")
        }));
    }
    if config.columns == Columns::All {
        items.extend(MILLPOND.iter().map(definition));
        items.push("INDEX `_millpond_batch_range` `_millpond_batch` TYPE minmax GRANULARITY 1".to_owned());
    }
    // The exporter makes text indexes for logs alone, where the server has them.
    let text = match config.indexes {
        Indexes::Exporter => table == Table::Logs && server >= (26, 2),
        Indexes::Text => true,
        Indexes::Bloom | Indexes::None => false,
    };
    if config.indexes != Indexes::None {
        items.extend(indexes(table, text));
    }
    let time = table.time();
    let mut sql = create(&table.path(config), &items, time, table.sorting_key());
    sql.push_str(&ttl(config, time));
    sql.push_str(&settings());
    sql
}

fn create(path: &str, items: &[String], time: &str, sorting_key: &str) -> String {
    format!(
        "CREATE TABLE IF NOT EXISTS {path} (\n    {}\n)\nENGINE = MergeTree\nPARTITION BY toDate({time})\n\
         ORDER BY ({sorting_key})\n",
        items.join(",\n    ")
    )
}

fn ttl(config: &Config, time: &str) -> String {
    match config.ttl_seconds {
        0 => String::new(),
        seconds => format!("TTL toDateTime({time}) + {}\n", interval(seconds)),
    }
}

/// The table by which the time of a trace's spans is found: filled by a view of the traces' table.
pub(crate) fn lookup(config: &Config) -> String {
    format!("{}_trace_id_ts", config.traces_table)
}

pub(crate) fn lookup_path(config: &Config) -> String {
    path(config, &lookup(config))
}

pub(crate) fn create_lookup(config: &Config) -> String {
    let mut items = vec![
        "TraceId String CODEC(ZSTD(1))".to_owned(),
        "Start DateTime CODEC(Delta(4), ZSTD(1))".to_owned(),
        "End DateTime CODEC(Delta(4), ZSTD(1))".to_owned(),
    ];
    if config.indexes != Indexes::None {
        items.push("INDEX idx_trace_id TraceId TYPE bloom_filter(0.01) GRANULARITY 1".to_owned());
    }
    let mut sql = create(&lookup_path(config), &items, "Start", "TraceId, Start");
    sql.push_str(&ttl(config, "Start"));
    sql.push_str(&settings());
    sql
}

pub(crate) fn create_view(config: &Config) -> String {
    format!(
        "CREATE MATERIALIZED VIEW IF NOT EXISTS {} TO {} AS\n{}",
        path(config, &format!("{}_trace_id_ts_mv", config.traces_table)),
        lookup_path(config),
        lookup_rows(config, "TraceId != ''")
    )
}

/// The view's rows of those spans for which the condition holds.
pub(crate) fn lookup_rows(config: &Config, condition: &str) -> String {
    format!(
        "SELECT TraceId, min(Timestamp) AS Start, max(Timestamp) AS End\nFROM {}\nWHERE {condition}\nGROUP BY TraceId",
        Table::Traces.path(config)
    )
}

fn definition(column: &ColumnKind) -> String {
    let mut text = format!("{} {}", identifier(column.name), column.kind);
    if !column.comment.is_empty() {
        let _ = write!(text, " COMMENT '{}'", column.comment);
    }
    if !column.codec.is_empty() {
        let _ = write!(text, " CODEC({})", column.codec);
    }
    text
}

/// The largest unit that fits, as in the exporter's DDL.
fn interval(seconds: u64) -> String {
    let units = [("Day", 86_400), ("Hour", 3_600), ("Minute", 60)];
    let (unit, length) = units
        .into_iter()
        .find(|(_, length)| seconds.is_multiple_of(*length))
        .unwrap_or(("Second", 1));
    format!("toInterval{unit}({})", seconds / length)
}

/// The exporter's indexes: of text, or bloom filters.
fn indexes(table: Table, text: bool) -> Vec<String> {
    let (ids, maps) = if text {
        ("text(tokenizer = 'array')", "text(tokenizer = 'array')")
    } else {
        (
            "bloom_filter(0.001) GRANULARITY 1",
            "bloom_filter(0.01) GRANULARITY 1",
        )
    };
    let indexed: &[(&str, &str)] = match table.signal() {
        Signal::Logs => &[
            ("res", "ResourceAttributes"),
            ("scope", "ScopeAttributes"),
            ("log", "LogAttributes"),
        ],
        Signal::Traces => &[("res", "ResourceAttributes"), ("span", "SpanAttributes")],
        Signal::Metrics => &[
            ("res", "ResourceAttributes"),
            ("scope", "ScopeAttributes"),
            ("", "Attributes"),
        ],
    };
    let mut items = Vec::new();
    if table.signal() != Signal::Metrics {
        items.push(format!("INDEX idx_trace_id TraceId TYPE {ids}"));
    }
    for (name, map) in indexed {
        let name = if name.is_empty() {
            String::new()
        } else {
            format!("{name}_")
        };
        items.push(format!("INDEX idx_{name}attr_key mapKeys({map}) TYPE {maps}"));
        items.push(format!("INDEX idx_{name}attr_value mapValues({map}) TYPE {maps}"));
    }
    items.push(match (table.signal(), text) {
        (Signal::Logs, true) => {
            "INDEX idx_lower_body lower(Body) TYPE text(tokenizer = 'splitByNonAlpha')".to_owned()
        }
        (Signal::Logs, false) => {
            "INDEX idx_lower_body lower(Body) TYPE tokenbf_v1(32768, 3, 0) GRANULARITY 8".to_owned()
        }
        (Signal::Traces, _) => "INDEX idx_duration Duration TYPE minmax GRANULARITY 1".to_owned(),
        (Signal::Metrics, _) => "INDEX idx_time_minmax TimeUnix TYPE minmax GRANULARITY 1".to_owned(),
    });
    items
}

/// A column of a table that is there.
#[derive(Clone, Debug, clickhouse::Row, serde::Deserialize)]
pub(crate) struct Found {
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) default_kind: String,
    pub(crate) is_in_partition_key: u8,
}

/// Everything that keeps us from writing to a table with these columns, each with what mends it.
pub(crate) fn faults(config: &Config, table: Table, found: &[Found]) -> Vec<String> {
    let kinds = table.filled(config.columns);
    let table = table.path(config);
    kinds
        .filter_map(|column| {
            let (name, kind) = (column.name, column.kind);
            let quoted = identifier(name);
            let Some(there) = found.iter().find(|found| found.name == name) else {
                return Some(format!(
                    "table {table} has no column {name} (expected type {kind}): ALTER TABLE {table} ADD COLUMN {}",
                    definition(column)
                ));
            };
            if !matches!(there.default_kind.as_str(), "" | "DEFAULT") {
                return Some(format!(
                    "column {name} of table {table} is {} and cannot be written: ALTER TABLE {table} MODIFY COLUMN \
                     {quoted} REMOVE {}",
                    there.default_kind, there.default_kind
                ));
            }
            (!same_kind(kind, &there.kind)).then(|| {
                format!(
                    "column {name} of table {table} has type {} where {kind} is expected: ALTER TABLE {table} MODIFY \
                     COLUMN {quoted} {kind}",
                    there.kind
                )
            })
        })
        .collect()
}

/// A time zone is how a time is shown, not what it holds.
fn same_kind(expected: &str, found: &str) -> bool {
    if let (Some(expected), Some(found)) = (item_kind(expected), item_kind(found)) {
        return same_kind(expected, found);
    }
    let without_zone = |kind: &str| match kind.strip_suffix("')").and_then(|kind| kind.split_once('\'')) {
        Some(("DateTime(", _)) => "DateTime".to_owned(),
        Some((kind, _)) if kind.starts_with("DateTime64(") => {
            format!("{})", kind.trim_end_matches([',', ' ']))
        }
        _ => kind.to_owned(),
    };
    expected == found || expected == without_zone(found)
}

/// What an array is of.
pub(crate) fn item_kind(kind: &str) -> Option<&str> {
    kind.strip_prefix("Array(")?.strip_suffix(')')
}

/// What to warn of about deduplication: a table forgets tokens once more than its window have followed.
/// `settings` are the table's own (`engine_full`), `default` the server's for tables that say nothing.
pub(crate) fn window_warning(
    table: &str,
    engine: &str,
    engine_full: &str,
    default: u64,
    needed: u64,
) -> Option<String> {
    if !lands_by_partition(engine) {
        return Some(format!(
            "table {table} has engine {engine}: whether a repeated insert is recognised depends on the tables behind it; \
             give each of them a deduplication window of at least {needed}"
        ));
    }
    let setting = window_setting(engine);
    let window = setting_in(engine_full, setting).unwrap_or(default);
    (window < needed).then(|| {
        let most = needed.max(WINDOW);
        format!(
            "table {table} remembers {window} inserts where {needed} can be in doubt: a repeated insert may be stored \
             twice. ALTER TABLE {table} MODIFY SETTING {setting} = {most}"
        )
    })
}

/// What makes a replica fetch all that other replicas have now; nothing where there are no replicas.
pub(crate) fn sync_replica(config: &Config, table: Table, engine: &str) -> Option<String> {
    let replicated = engine.starts_with("Replicated") || engine.starts_with("Shared");
    replicated.then(|| format!("SYSTEM SYNC REPLICA {} LIGHTWEIGHT", table.path(config)))
}

/// Whether the rows of one INSERT land partition by partition, each whole. Behind a Distributed table they land shard by shard as well.
pub(crate) fn lands_by_partition(engine: &str) -> bool {
    engine.ends_with("MergeTree")
}

/// The setting that holds the window of tables of this engine.
pub(crate) fn window_setting(engine: &str) -> &'static str {
    if engine.starts_with("Replicated") || engine.starts_with("Shared") {
        "replicated_deduplication_window"
    } else {
        "non_replicated_deduplication_window"
    }
}

fn setting_in(engine_full: &str, setting: &str) -> Option<u64> {
    let (_, settings) = engine_full.rsplit_once("SETTINGS ")?;
    settings
        .split(", ")
        .find_map(|item| item.strip_prefix(setting)?.strip_prefix(" = ")?.parse().ok())
}

#[cfg(test)]
mod tests;
