//! The table `otel_logs`: the columns that the Collector's clickhouseexporter (v0.161) gives it, and Millpond's
//! own. Makes the DDL, and judges a table that is there. Pure: talks to no server.

use crate::config::{Columns, Config, Indexes};
use std::fmt::Write as _;

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
const ZSTD: &str = "ZSTD(1)";
const DELTA: &str = "Delta(8), ZSTD(1)";

/// The exporter's, in the order in which [`crate::rows::Rows::columns`] gives their data.
pub(crate) const EXPORTER: [ColumnKind; 16] = [
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

/// Resource attributes that the exporter also keeps as columns.
const MATERIALIZED: [&str; 8] = [
    "k8s.cluster.name",
    "k8s.container.name",
    "k8s.deployment.name",
    "k8s.namespace.name",
    "k8s.node.name",
    "k8s.pod.name",
    "k8s.pod.uid",
    "deployment.environment.name",
];

/// Deduplication tokens that a table of ours remembers (tokens × partitions): ClickHouse's default for replicated
/// tables.
pub(crate) const WINDOW: u64 = 10_000;

/// The columns that we fill.
pub(crate) fn filled(columns: Columns) -> impl Iterator<Item = &'static ColumnKind> {
    let own: &'static [ColumnKind] = match columns {
        Columns::All => &MILLPOND,
        Columns::None => &[],
    };
    EXPORTER.iter().chain(own)
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

/// The table's full name.
pub(crate) fn table(config: &Config) -> String {
    format!("{}.{}", identifier(&config.database), identifier(&config.table))
}

pub(crate) fn insert(config: &Config) -> String {
    let columns: Vec<_> = filled(config.columns)
        .map(|column| identifier(column.name))
        .collect();
    format!(
        "INSERT INTO {} ({}) FORMAT Native",
        table(config),
        columns.join(", ")
    )
}

pub(crate) fn create_database(config: &Config) -> String {
    format!("CREATE DATABASE IF NOT EXISTS {}", identifier(&config.database))
}

/// `server`: the server's version, major and minor.
pub(crate) fn create_table(config: &Config, server: (u32, u32)) -> String {
    let mut items: Vec<String> = EXPORTER.iter().map(definition).collect();
    items.extend(MATERIALIZED.iter().map(|attribute| {
        let name = identifier(&format!("__otel_materialized_{attribute}"));
        format!("{name} {WORD} MATERIALIZED ResourceAttributes['{attribute}'] CODEC({ZSTD})")
    }));
    if config.columns == Columns::All {
        items.extend(MILLPOND.iter().map(definition));
        items.push("INDEX `_millpond_batch_range` `_millpond_batch` TYPE minmax GRANULARITY 1".to_owned());
    }
    // Text indexes are what the exporter makes where the server has them.
    match (config.indexes, server >= (26, 2)) {
        (Indexes::None, _) => {}
        (Indexes::Text, _) | (Indexes::Exporter, true) => items.extend(text_indexes()),
        (Indexes::Bloom, _) | (Indexes::Exporter, false) => items.extend(bloom_indexes()),
    }
    let mut sql = format!(
        "CREATE TABLE IF NOT EXISTS {} (\n    {}\n)\n",
        table(config),
        items.join(",\n    ")
    );
    sql.push_str("ENGINE = MergeTree\nPARTITION BY toDate(Timestamp)\n");
    sql.push_str("ORDER BY (toStartOfFiveMinutes(Timestamp), ServiceName, Timestamp)\n");
    if config.ttl_seconds > 0 {
        let _ = writeln!(
            sql,
            "TTL toDateTime(Timestamp) + {}",
            interval(config.ttl_seconds)
        );
    }
    let _ = write!(
        sql,
        "SETTINGS index_granularity = 8192, ttl_only_drop_parts = 1, non_replicated_deduplication_window = {WINDOW}"
    );
    sql
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

/// The exporter's indexes over maps: name and map.
const MAP_INDEXES: [(&str, &str); 3] = [
    ("res", "ResourceAttributes"),
    ("scope", "ScopeAttributes"),
    ("log", "LogAttributes"),
];

fn indexes(ids: &str, maps: &str, body: &str) -> Vec<String> {
    let mut items = vec![format!("INDEX idx_trace_id TraceId TYPE {ids}")];
    for (name, map) in MAP_INDEXES {
        items.push(format!("INDEX idx_{name}_attr_key mapKeys({map}) TYPE {maps}"));
        items.push(format!(
            "INDEX idx_{name}_attr_value mapValues({map}) TYPE {maps}"
        ));
    }
    items.push(format!("INDEX idx_lower_body lower(Body) TYPE {body}"));
    items
}

fn text_indexes() -> Vec<String> {
    indexes(
        "text(tokenizer = 'array')",
        "text(tokenizer = 'array')",
        "text(tokenizer = 'splitByNonAlpha')",
    )
}

fn bloom_indexes() -> Vec<String> {
    indexes(
        "bloom_filter(0.001) GRANULARITY 1",
        "bloom_filter(0.01) GRANULARITY 1",
        "tokenbf_v1(32768, 3, 0) GRANULARITY 8",
    )
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
pub(crate) fn faults(config: &Config, found: &[Found]) -> Vec<String> {
    let table = table(config);
    filled(config.columns)
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

/// A time zone is how a DateTime64 is shown, not what it holds.
fn same_kind(expected: &str, found: &str) -> bool {
    let without_zone = |kind: &str| match kind.strip_suffix("')").and_then(|kind| kind.split_once(", '")) {
        Some((kind, _)) if kind.starts_with("DateTime64(") => format!("{kind})"),
        _ => kind.to_owned(),
    };
    expected == found || expected == without_zone(found)
}

/// What to warn of about deduplication: a table forgets tokens once more than its window have followed.
/// `settings` are the table's own (`engine_full`), `default` the server's for tables that say nothing.
pub(crate) fn window_warning(
    config: &Config,
    engine: &str,
    engine_full: &str,
    default: u64,
    needed: u64,
) -> Option<String> {
    let table = table(config);
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
pub(crate) fn sync_replica(config: &Config, engine: &str) -> Option<String> {
    let replicated = engine.starts_with("Replicated") || engine.starts_with("Shared");
    replicated.then(|| format!("SYSTEM SYNC REPLICA {} LIGHTWEIGHT", table(config)))
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
mod tests {
    use super::*;

    fn found(config: &Config) -> Vec<Found> {
        filled(config.columns)
            .map(|column| Found {
                name: column.name.to_owned(),
                kind: column.kind.to_owned(),
                default_kind: String::new(),
                is_in_partition_key: 0,
            })
            .collect()
    }

    #[test]
    fn names_are_quoted_whatever_is_in_them() {
        assert_eq!(identifier("otel_logs"), "`otel_logs`");
        assert_eq!(
            identifier("a`; DROP TABLE x; --\\"),
            "`a\\`; DROP TABLE x; --\\\\`"
        );
    }

    #[test]
    fn a_table_that_fits_has_no_fault() {
        let config = Config::default();
        assert_eq!(faults(&config, &found(&config)), Vec::<String>::new());
        let mut zoned = found(&config);
        zoned[0].kind = "DateTime64(9, 'Europe/Berlin')".to_owned();
        zoned.push(Found {
            name: "Mine".into(),
            kind: "UInt8".into(),
            default_kind: String::new(),
            is_in_partition_key: 0,
        });
        assert_eq!(faults(&config, &zoned), Vec::<String>::new());
    }

    #[test]
    fn a_fault_names_the_column_and_what_mends_it() {
        let config = Config::default();
        let mut columns = found(&config);
        columns.retain(|column| column.name != "EventName");
        columns[0].kind = "DateTime64(3)".to_owned();
        columns[1].default_kind = "MATERIALIZED".to_owned();
        assert_eq!(
            faults(&config, &columns),
            [
                "column Timestamp of table `otel`.`otel_logs` has type DateTime64(3) where DateTime64(9) is expected: \
                 ALTER TABLE `otel`.`otel_logs` MODIFY COLUMN `Timestamp` DateTime64(9)",
                "column TraceId of table `otel`.`otel_logs` is MATERIALIZED and cannot be written: \
                 ALTER TABLE `otel`.`otel_logs` MODIFY COLUMN `TraceId` REMOVE MATERIALIZED",
                "table `otel`.`otel_logs` has no column EventName (expected type String): \
                 ALTER TABLE `otel`.`otel_logs` ADD COLUMN `EventName` String \
                 COMMENT 'Event name for log records representing events' CODEC(ZSTD(1))",
            ]
        );
    }

    #[test]
    fn the_exporters_own_table_fits_without_our_columns() {
        let theirs = Config {
            columns: Columns::None,
            ..Config::default()
        };
        let columns = found(&theirs);
        assert_eq!(faults(&theirs, &columns), Vec::<String>::new());
        assert_eq!(faults(&Config::default(), &columns).len(), MILLPOND.len());
    }

    #[test]
    fn indexes_are_those_of_the_exporter_unless_told_otherwise() {
        let sql = |indexes, server| {
            create_table(
                &Config {
                    indexes,
                    ..Config::default()
                },
                server,
            )
        };
        for (indexes, server, text, bloom) in [
            (Indexes::Exporter, (26, 2), 8, 0),
            (Indexes::Exporter, (26, 1), 0, 7),
            (Indexes::Exporter, (25, 12), 0, 7),
            (Indexes::Text, (25, 8), 8, 0),
            (Indexes::Bloom, (26, 9), 0, 7),
            (Indexes::None, (26, 9), 0, 0),
        ] {
            let sql = sql(indexes, server);
            assert_eq!(sql.matches("TYPE text(").count(), text, "{indexes:?} {server:?}");
            assert_eq!(
                sql.matches("TYPE bloom_filter(").count(),
                bloom,
                "{indexes:?} {server:?}"
            );
        }
    }

    #[test]
    fn a_ttl_is_in_the_largest_unit_that_fits() {
        for (seconds, unit) in [
            (0, None),
            (86_400 * 3, Some("toIntervalDay(3)")),
            (3_600 * 25, Some("toIntervalHour(25)")),
            (90 * 60, Some("toIntervalMinute(90)")),
            (61, Some("toIntervalSecond(61)")),
        ] {
            let sql = create_table(
                &Config {
                    ttl_seconds: seconds,
                    ..Config::default()
                },
                (26, 2),
            );
            let ttl = sql
                .lines()
                .find_map(|line| line.strip_prefix("TTL toDateTime(Timestamp) + "));
            assert_eq!(ttl, unit);
        }
    }

    /// The embedded engine has no replicas: this is what is sent to a server that has.
    #[test]
    fn a_replica_is_told_to_catch_up() {
        let config = Config::default();
        assert_eq!(
            sync_replica(&config, "ReplicatedMergeTree").as_deref(),
            Some("SYSTEM SYNC REPLICA `otel`.`otel_logs` LIGHTWEIGHT")
        );
        assert!(sync_replica(&config, "SharedMergeTree").is_some());
        assert!(
            ["MergeTree", "Distributed"]
                .iter()
                .all(|engine| sync_replica(&config, engine).is_none())
        );
    }

    #[test]
    fn only_a_merge_tree_is_known_to_land_by_partitions() {
        assert!(
            ["MergeTree", "ReplicatedMergeTree", "SharedMergeTree"]
                .iter()
                .all(|engine| lands_by_partition(engine))
        );
        assert!(
            ["Distributed", "Buffer", "Null"]
                .iter()
                .all(|engine| !lands_by_partition(engine))
        );
    }

    #[test]
    fn a_window_that_is_too_small_is_warned_of() {
        let config = Config::default();
        let warn = |engine: &str, full: &str, default| window_warning(&config, engine, full, default, 400);
        let ours = "MergeTree ORDER BY x SETTINGS index_granularity = 8192, non_replicated_deduplication_window = 10000";
        assert_eq!(warn("MergeTree", ours, 0), None);
        assert_eq!(warn("MergeTree", "MergeTree ORDER BY x", 1000), None);
        assert_eq!(
            warn("ReplicatedMergeTree", "ReplicatedMergeTree ORDER BY x", 10_000),
            None
        );
        let warning = warn(
            "MergeTree",
            "MergeTree ORDER BY x SETTINGS index_granularity = 8192",
            0,
        )
        .unwrap();
        assert!(
            warning.ends_with(
                "ALTER TABLE `otel`.`otel_logs` MODIFY SETTING non_replicated_deduplication_window = 10000"
            ),
            "{warning}"
        );
        assert!(warn("Distributed", "Distributed('c', 'd', 't')", 0).is_some());
    }
}
