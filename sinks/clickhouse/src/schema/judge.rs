//! Checks whether an existing table fits, and what its engine implies.

use super::ddl::{SEQUENCE_INDEX, WINDOW, definition};
use super::partition::Partitioning;
use super::{ColumnKind, LOOKUP, RECORD, SEQUENCE, Table, identifier, item_kind, lookup_path, on_cluster};
use crate::config::Config;
use crate::events::Plan;
use crate::presence::Ask;
use crate::server::RowTtl;
use crate::sorting::SortingKey;
use millpond_manifest::BatchingPolicy;
use std::fmt;
use std::sync::Arc;

/// A column of an existing table.
#[derive(Clone, Debug, serde::Deserialize)]
pub(crate) struct Found {
    pub(crate) name: String,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) default_kind: String,
    pub(crate) default_expression: String,
    pub(crate) is_in_partition_key: u8,
}

/// A problem that prevents writing to a table, and its fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The problem and its table.
    pub what: String,
    /// A statement for the server, or an instruction for the operator.
    pub remedy: String,
    /// The column, if the table lacks one.
    pub(crate) missing: Option<&'static str>,
}

impl Fault {
    pub(crate) fn new(what: String, remedy: impl Into<String>) -> Fault {
        Fault {
            what,
            remedy: remedy.into(),
            missing: None,
        }
    }

    /// The action of its ALTER statement for this table; `None` if an operator must do something else.
    pub(crate) fn action(&self, config: &Config, table: &str) -> Option<&str> {
        self.remedy.strip_prefix(&alter(config, table))
    }
}

/// The beginning of an ALTER statement.
pub(crate) fn alter(config: &Config, table: &str) -> String {
    format!("ALTER TABLE {table}{} ", on_cluster(config))
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.remedy)
    }
}

/// A table without columns: a server shows a user only those that it has a right to.
pub(crate) fn hidden(table: &str) -> Fault {
    Fault::new(
        format!("the user does not see the columns of table {table}"),
        format!("GRANT SELECT, INSERT ON {table} to it"),
    )
}

/// Lists everything that prevents writing to a table with these columns.
pub(crate) fn faults(config: &Config, table: Table, found: &[Found]) -> Vec<Fault> {
    let migration = migration(config, table, found);
    let replaced = |column: &&ColumnKind| migration.is_some() && [SEQUENCE, RECORD].contains(&column.name);
    let kinds = table.filled(config.columns).filter(|column| !replaced(column));
    let table = table.path(config);
    let alter = alter(config, &table);
    let faults = kinds.filter_map(|column| {
        let (name, kind) = (column.name, column.kind);
        let quoted = identifier(name);
        let Some(there) = found.iter().find(|found| found.name == name) else {
            return Some(missing(config, &table, column));
        };
        if !matches!(there.default_kind.as_str(), "" | "DEFAULT") {
            return Some(Fault::new(
                format!(
                    "column {name} of table {table} is {} and cannot be written",
                    there.default_kind
                ),
                format!("{alter}MODIFY COLUMN {quoted} REMOVE {}", there.default_kind),
            ));
        }
        (!same_kind(kind, &there.kind)).then(|| {
            Fault::new(
                format!(
                    "column {name} of table {table} has type {} where {kind} is expected",
                    there.kind
                ),
                format!("{alter}MODIFY COLUMN {quoted} {kind}"),
            )
        })
    });
    faults.chain(migration.clone()).collect()
}

/// Lists everything that prevents the view from writing to the trace lookup table.
pub(crate) fn lookup_faults(config: &Config, found: &[Found]) -> Vec<Fault> {
    let table = lookup_path(config);
    let there = |column: &&ColumnKind| found.iter().all(|found| found.name != column.name);
    LOOKUP
        .iter()
        .filter(there)
        .map(|column| missing(config, &table, column))
        .collect()
}

fn missing(config: &Config, table: &str, column: &ColumnKind) -> Fault {
    let (name, kind) = (column.name, column.kind);
    Fault {
        what: format!("table {table} has no column {name} (expected type {kind})"),
        remedy: format!(
            "{}ADD COLUMN IF NOT EXISTS {}",
            alter(config, table),
            added(column)
        ),
        missing: Some(name),
    }
}

/// The definition of a column that an ALTER adds. Existing rows get no identity.
fn added(column: &ColumnKind) -> String {
    let definition = definition(column);
    if column.name == SEQUENCE {
        let typed = format!("{} {}", identifier(SEQUENCE), column.kind);
        definition.replacen(&typed, &format!("{typed} DEFAULT {}", u64::MAX), 1)
    } else {
        definition
    }
}

/// The columns of schema version 1 that version 2 replaces.
const REPLACED: [&str; 2] = ["_millpond_batch", "_millpond_chunk"];

/// The ALTER that makes a table of schema version 1 fit. Its rows get no identity.
pub(crate) fn migration(config: &Config, table: Table, found: &[Found]) -> Option<Fault> {
    let is_there = |name: &str| found.iter().any(|found| found.name == name);
    let new: Vec<&ColumnKind> = table
        .filled(config.columns)
        .filter(|column| [SEQUENCE, RECORD].contains(&column.name) && !is_there(column.name))
        .collect();
    if new.len() != 2 || !REPLACED.iter().all(|name| is_there(name)) {
        return None;
    }
    let path = table.path(config);
    let mut changes: Vec<String> = new
        .iter()
        .map(|column| format!("ADD COLUMN {}", added(column)))
        .collect();
    changes.push(format!("ADD INDEX {SEQUENCE_INDEX}"));
    changes.push("DROP INDEX IF EXISTS `_millpond_batch_range`".to_owned());
    changes.extend(REPLACED.map(|name| format!("DROP COLUMN {}", identifier(name))));
    Some(Fault::new(
        format!("table {path} has the columns of an earlier version of Millpond"),
        format!("{}{}", alter(config, &path), changes.join(", ")),
    ))
}

/// A time zone changes how a time is displayed, not its value.
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

/// The properties of a table that matter for tokens.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub(crate) engine: String,
    pub(crate) engine_full: String,
    /// The server's default deduplication window for tables of this engine.
    pub(crate) default_window: u64,
    pub(crate) partitioning: Partitioning,
    /// The strategy of questions about its rows.
    pub(crate) ask: Ask,
    /// The TTL of its rows, if the server can evaluate it.
    pub(crate) ttl: Option<RowTtl>,
    /// The way from rows of events to its columns.
    pub(crate) plan: Option<Arc<Plan>>,
    /// The order in which it wants its rows, as far as the sink can compute it.
    pub(crate) sorting_key: Option<SortingKey>,
}

/// The chunks that can be in doubt at once under a policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InDoubt {
    pub(crate) chunks: u64,
    /// Maximum number of days in a chunk's rows.
    pub(crate) days: u64,
}

/// The number of days that a `DateTime64(9)` since 1970 can name.
const DAYS_MAX: u64 = i64::MAX as u64 / 1_000_000_000 / 86_400 + 1;

impl InDoubt {
    /// Tokens times partitions can be in doubt at once: every batch in flight, at its target size.
    pub(crate) fn of(policy: &BatchingPolicy) -> InDoubt {
        let chunks = policy
            .batch_records
            .div_ceil(policy.chunk_rows.max(1))
            .max(policy.batch_bytes.div_ceil(policy.chunk_bytes.max(1)))
            .max(1);
        InDoubt {
            chunks: chunks.saturating_mul(policy.max_in_flight.into()),
            days: u64::from(policy.max_partitions_per_chunk).min(policy.chunk_rows.max(1)),
        }
    }
}

impl Known {
    /// A window that is too small: a table forgets a token after as many later ones as its window holds.
    pub(crate) fn window_fault(&self, config: &Config, table: &str, in_doubt: InDoubt) -> Option<Fault> {
        let InDoubt { chunks, days } = in_doubt;
        let days = days.min(DAYS_MAX);
        let setting = window_setting(&self.engine);
        let window = setting_in(&self.engine_full, setting).unwrap_or(self.default_window);
        let partitions = match &self.partitioning {
            Partitioning::Elsewhere => {
                return Some(Fault::new(
                    format!(
                        "table {table} has engine {}: whether a repeated insert is recognised depends on the tables behind it",
                        self.engine
                    ),
                    format!(
                        "give each of them a deduplication window of at least {}",
                        chunks.saturating_mul(days)
                    ),
                ));
            }
            Partitioning::Rows { key } => {
                return Some(Fault::new(
                    format!(
                        "table {table} is partitioned by {key}, which does not depend on the time alone: each insert takes one of \
                         the {window} tokens that the table remembers for every partition that it touches"
                    ),
                    format!("make sure that {chunks} inserts touch fewer partitions"),
                ));
            }
            Partitioning::Whole => 1,
            Partitioning::Time { a_day } => days.saturating_mul(*a_day),
        };
        let needed = chunks.saturating_mul(partitions);
        (window < needed).then(|| {
            let most = needed.max(WINDOW);
            Fault::new(
                format!(
                    "table {table} remembers {window} inserts where {needed} can be in doubt: a repeated insert may be stored twice"
                ),
                format!("{}MODIFY SETTING {setting} = {most}", alter(config, table)),
            )
        })
    }
}

/// The statement that makes a replica fetch the others' data.
pub(crate) fn sync_replica(config: &Config, table: Table) -> String {
    format!("SYSTEM SYNC REPLICA {} LIGHTWEIGHT", table.path(config))
}

/// Engines that keep every row unchanged.
const KEEPS_ROWS: [&str; 3] = ["MergeTree", "ReplicatedMergeTree", "SharedMergeTree"];

/// Reports whether a table of this engine keeps the identities of its rows.
pub(crate) fn keeps_rows(engine: &str) -> bool {
    KEEPS_ROWS.contains(&engine)
}

/// Returns true if tables of this engine have replicas.
pub(crate) fn is_replicated(engine: &str) -> bool {
    engine.starts_with("Replicated") || engine.starts_with("Shared")
}

/// Returns true if the rows of one INSERT land partition by partition, each partition atomically. Behind a Distributed table
/// they also land shard by shard.
pub(crate) fn lands_by_partition(engine: &str) -> bool {
    engine.ends_with("MergeTree")
}

/// The name of the deduplication window setting for tables of this engine.
pub(crate) fn window_setting(engine: &str) -> &'static str {
    if is_replicated(engine) {
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
