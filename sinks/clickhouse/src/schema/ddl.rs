//! The DDL of everything that Millpond creates.

use super::judge::{is_replicated, window_setting};
use super::{
    ColumnKind, LOOKUP, MILLPOND, Table, WORD, ZSTD, identifier, logs, lookup, lookup_path, on_cluster, path,
    sorting_key, time, view,
};
use crate::config::{Columns, Config, Indexes, PartitionBy};
use millpond_otlp::Signal;
use std::fmt::Write as _;

/// Deduplication window of new tables (tokens × partitions): ClickHouse's default for replicated tables.
pub(super) const WINDOW: u64 = 10_000;

/// The same for 24 partitions per day: by default 16 chunks of 50 days each can be in doubt.
const WINDOW_BY_HOUR: u64 = 20_000;

/// The time for which a new replicated table remembers a token: a week, ClickHouse's default until 25.10 reduced it to
/// an hour.
const WINDOW_SECONDS: u64 = 604_800;

/// An object that Millpond creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Object {
    Database,
    Table(Table),
    /// The trace lookup table.
    Lookup,
    /// The view that fills the lookup table.
    View,
}

impl Object {
    /// Everything that these tables need, in creation order.
    pub(crate) fn all(tables: &[Table]) -> Vec<Object> {
        let mut objects = vec![Object::Database];
        objects.extend(tables.iter().copied().map(Object::Table));
        if tables.contains(&Table::Traces) {
            objects.extend([Object::Lookup, Object::View]);
        }
        objects
    }

    pub(crate) fn name(self, config: &Config) -> String {
        match self {
            Object::Database => config.database.clone(),
            Object::Table(table) => table.name(config).to_owned(),
            Object::Lookup => lookup(config),
            Object::View => view(config),
        }
    }

    /// Its kind and its full, quoted name.
    pub(crate) fn title(self, config: &Config) -> String {
        let name = self.name(config);
        match self {
            Object::Database => format!("database {}", identifier(&name)),
            Object::Table(_) | Object::Lookup => format!("table {}", path(config, &name)),
            Object::View => format!("view {}", path(config, &name)),
        }
    }

    /// The statement that creates it if it does not exist. `server`: the server's version, major and minor. `None` for
    /// tables of events, which their owners create.
    pub(crate) fn create(self, config: &Config, server: (u32, u32)) -> Option<String> {
        Some(match self {
            Object::Database => {
                let name = identifier(&config.database);
                format!("CREATE DATABASE IF NOT EXISTS {name}{}", on_cluster(config))
            }
            Object::Table(table) => create_table(config, table, table.signal()?, server),
            Object::Lookup => create_lookup(config),
            Object::View => create_view(config),
        })
    }
}

/// The index of Millpond's own column.
pub(crate) const SEQUENCE_INDEX: &str =
    "`_millpond_sequence_range` `_millpond_sequence` TYPE minmax GRANULARITY 1";

fn create_table(config: &Config, table: Table, signal: Signal, server: (u32, u32)) -> String {
    let mut items: Vec<String> = table.columns().map(definition).collect();
    if table == Table::Logs {
        items.extend(logs::MATERIALIZED.iter().map(|attribute| {
            let name = identifier(&format!("__otel_materialized_{attribute}"));
            format!("{name} {WORD} MATERIALIZED ResourceAttributes['{attribute}'] CODEC({ZSTD})")
        }));
    }
    if config.columns == Columns::All {
        items.extend(MILLPOND.iter().map(definition));
        items.push(format!("INDEX {SEQUENCE_INDEX}"));
    }
    // The exporter creates text indexes only for logs, on servers that support them.
    let text = match config.indexes {
        Indexes::Exporter => table == Table::Logs && server >= TEXT_INDEXES,
        Indexes::Text => true,
        Indexes::Bloom | Indexes::None => false,
    };
    if config.indexes != Indexes::None {
        items.extend(indexes(signal, text));
    }
    Making {
        path: table.path(config),
        items,
        time: time(signal),
        sorting_key: sorting_key(signal),
        ttl_seconds: config.ttl_seconds_of(signal),
    }
    .sql(config)
}

/// A table for events with these columns. `time` and the expressions of the key are quoted.
pub(crate) fn create_event_table(
    config: &Config,
    table: &str,
    columns: Vec<String>,
    time: &str,
    sorting_key: &str,
) -> String {
    let mut items = columns;
    items.extend(MILLPOND.iter().map(definition));
    items.push(format!("INDEX {SEQUENCE_INDEX}"));
    Making {
        path: path(config, table),
        items,
        time,
        sorting_key,
        ttl_seconds: config.ttl_seconds,
    }
    .sql(config)
}

/// The first version on which the exporter uses text indexes.
pub(crate) const TEXT_INDEXES: (u32, u32) = (26, 2);

fn create_lookup(config: &Config) -> String {
    let mut items: Vec<String> = LOOKUP.iter().map(definition).collect();
    if config.indexes != Indexes::None {
        items.push("INDEX idx_trace_id TraceId TYPE bloom_filter(0.01) GRANULARITY 1".to_owned());
    }
    Making {
        path: lookup_path(config),
        items,
        time: "Start",
        sorting_key: "TraceId, Start",
        ttl_seconds: config.ttl_seconds_of(Signal::Traces),
    }
    .sql(config)
}

/// The parts of a CREATE TABLE.
struct Making<'m> {
    path: String,
    /// Columns and indexes.
    items: Vec<String>,
    time: &'m str,
    sorting_key: &'m str,
    ttl_seconds: u64,
}

impl Making<'_> {
    fn sql(&self, config: &Config) -> String {
        let Making {
            path,
            items,
            time,
            sorting_key,
            ttl_seconds,
        } = self;
        let mut sql = format!(
            "CREATE TABLE IF NOT EXISTS {path}{} (\n    {}\n)\nENGINE = {}\n",
            on_cluster(config),
            items.join(",\n    "),
            config.engine
        );
        if let Some(key) = config.partition_by.key(time) {
            let _ = writeln!(sql, "PARTITION BY {key}");
        }
        let _ = writeln!(sql, "ORDER BY ({sorting_key})");
        if *ttl_seconds > 0 {
            let _ = writeln!(sql, "TTL toDateTime({time}) + {}", interval(*ttl_seconds));
        }
        let _ = write!(sql, "SETTINGS {}", settings(config));
        sql
    }
}

/// The exporter's settings, and those that make a table of this engine remember tokens for long enough.
fn settings(config: &Config) -> String {
    let mut settings = String::from("index_granularity = 8192");
    // In a table with a single partition, no part ever expires as a whole.
    if config.partition_by != PartitionBy::None {
        settings.push_str(", ttl_only_drop_parts = 1");
    }
    let window = match config.partition_by {
        PartitionBy::Hour => WINDOW_BY_HOUR,
        _ => WINDOW,
    };
    let engine = config.engine.to_string();
    let _ = write!(settings, ", {} = {window}", window_setting(&engine));
    if is_replicated(&engine) {
        let _ = write!(
            settings,
            ", replicated_deduplication_window_seconds = {WINDOW_SECONDS}"
        );
    } else {
        // No replica can restore what a power loss destroys.
        settings.push_str(", fsync_after_insert = 1");
    }
    settings
}

fn create_view(config: &Config) -> String {
    format!(
        "CREATE MATERIALIZED VIEW IF NOT EXISTS {}{} TO {} AS\n{}",
        path(config, &view(config)),
        on_cluster(config),
        lookup_path(config),
        lookup_rows(config, "TraceId != ''")
    )
}

/// The view's rows for the spans that match the condition.
pub(super) fn lookup_rows(config: &Config, condition: &str) -> String {
    format!(
        "SELECT TraceId, min(Timestamp) AS Start, max(Timestamp) AS End\nFROM {}\nWHERE {condition}\nGROUP BY TraceId",
        Table::Traces.path(config)
    )
}

pub(super) fn definition(column: &ColumnKind) -> String {
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

/// The exporter's indexes: text indexes or bloom filters.
fn indexes(signal: Signal, text: bool) -> Vec<String> {
    let (ids, maps) = if text {
        ("text(tokenizer = 'array')", "text(tokenizer = 'array')")
    } else {
        (
            "bloom_filter(0.001) GRANULARITY 1",
            "bloom_filter(0.01) GRANULARITY 1",
        )
    };
    let indexed: &[(&str, &str)] = match signal {
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
    if signal != Signal::Metrics {
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
    items.push(match (signal, text) {
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
