//! The inputs of a row's partition or shard. A server stores tokens per partition and shard, so both must not change
//! between attempts.

use super::judge::{Fault, Found};
use super::{MILLPOND, Table, identifier};
use crate::config::Config;
use std::collections::BTreeSet;

/// The distribution of a chunk's rows over partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Partitioning {
    /// One partition: a chunk lands as a whole.
    Whole,
    /// A row's partition depends on its time alone. A day has at most this many partitions.
    Time { a_day: u64 },
    /// The partition also depends on other columns, so rows with the same time may land in different ones.
    Rows { key: String },
    /// Rows land by shard, or in an unknown way.
    Elsewhere,
}

/// The columns and functions of an expression.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) columns: BTreeSet<String>,
    pub(crate) functions: BTreeSet<String>,
}

impl Terms {
    /// Parses the answer to `EXPLAIN AST SELECT <expression>`, one line per node.
    pub(crate) fn of_tree(lines: &[String]) -> Self {
        let mut terms = Terms::default();
        for line in lines {
            let line = line.trim_start();
            // A literal is escaped: it stays on one line, which begins with its own keyword.
            if let Some(name) = line.strip_prefix("Identifier ") {
                terms.columns.insert(name.to_owned());
            } else if let Some(rest) = line.strip_prefix("Function ") {
                let name = rest.split(" (").next().unwrap_or(rest);
                terms.functions.insert(name.to_lowercase());
            }
        }
        terms
    }
}

/// A key column that the sink does not fill: the server computes it.
#[derive(Clone, Debug)]
pub(crate) struct Computed {
    pub(crate) name: String,
    pub(crate) expression: String,
}

/// The inputs of a partition key: the filled columns, and the computed columns that lead to them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    pub(crate) filled: BTreeSet<String>,
    pub(crate) computed: Vec<Computed>,
    /// All functions in those computations.
    pub(crate) functions: BTreeSet<String>,
    unread: Vec<String>,
}

impl Sources {
    /// Starts from the key's own columns.
    pub(crate) fn new(found: &[Found]) -> Self {
        let key = found.iter().filter(|column| column.is_in_partition_key != 0);
        Sources {
            unread: key.map(|column| column.name.clone()).collect(),
            ..Sources::default()
        }
    }

    /// The columns and functions of an expression.
    pub(crate) fn of_expression(terms: Terms) -> Self {
        Sources {
            functions: terms.functions,
            unread: terms.columns.into_iter().collect(),
            ..Sources::default()
        }
    }

    /// The key's own columns, unchanged.
    pub(crate) fn of_key(found: &[Found]) -> Self {
        Sources {
            filled: Self::new(found).unread.into_iter().collect(),
            ..Sources::default()
        }
    }

    /// The next computed column whose expression is still unread. [`Self::add`] takes its content.
    pub(crate) fn next(&mut self, config: &Config, table: Table, found: &[Found]) -> Option<Computed> {
        while let Some(name) = self.unread.pop() {
            let there = found.iter().find(|column| column.name == name);
            let filled = match table {
                Table::Event(place) => {
                    let named = &config.event_tables[usize::from(place)].columns;
                    named.contains_key(&name) || there.is_some_and(|there| there.default_kind.is_empty())
                }
                _ => table.filled(config.columns).any(|column| column.name == name),
            };
            match there {
                Some(there) if !filled => {
                    if there.default_expression.is_empty()
                        || self.computed.iter().any(|known| known.name == name)
                    {
                        // The same for every row, or known.
                        continue;
                    }
                    return Some(Computed {
                        name,
                        expression: there.default_expression.clone(),
                    });
                }
                // A subcolumn, or something we do not understand, is certainly not the time.
                _ => {
                    self.filled.insert(name);
                }
            }
        }
        None
    }

    pub(crate) fn add(&mut self, computed: Computed, terms: Terms) {
        self.computed.push(computed);
        self.functions.extend(terms.functions);
        self.unread.extend(terms.columns);
    }

    /// The first input that changes between attempts, so that a retried row would go elsewhere. `volatile`: the
    /// non-deterministic functions.
    fn changing(&self, volatile: &[String]) -> Option<String> {
        let inserted_at = MILLPOND[1].name;
        if self.filled.contains(inserted_at) {
            return Some(inserted_at.to_owned());
        }
        volatile.first().map(|function| format!("{function}()"))
    }

    /// The fault of a partition key that changes between attempts.
    pub(crate) fn fault(&self, config: &Config, table: Table, volatile: &[String]) -> Option<Fault> {
        let of = self.changing(volatile)?;
        Some(Fault::new(
            format!(
                "the partitions of table {} depend on {of}, which changes when a row is sent again: it would land in \
                 another partition, which does not know its token, and occur twice",
                table.path(config)
            ),
            "create the table again with a partition key that depends on the row alone, such as its time (`millpond tables print`)",
        ))
    }

    /// The fault of a sharding key that changes between attempts.
    pub(crate) fn shard_fault(&self, config: &Config, table: Table, volatile: &[String]) -> Option<Fault> {
        let of = self.changing(volatile)?;
        Some(Fault::new(
            format!(
                "the sharding key of table {} depends on {of}, which changes when a row is sent again: the row would go \
                 to another shard, which does not know its token, and occur twice",
                table.path(config)
            ),
            "create the table again with a sharding key that depends on the row alone, such as \
                   cityHash64(TraceId)",
        ))
    }

    /// Returns true if it depends on this time column alone.
    pub(crate) fn only_time(&self, time: &str) -> bool {
        self.filled.iter().all(|name| name == time)
    }

    /// An SQL expression for the number of partitions per day, for a table with this time column.
    pub(crate) fn partitions_of_a_day(&self, time: &str, key: &str, found: &[Found]) -> String {
        let kind = found.iter().find(|column| column.name == time);
        let kind = kind.map_or("DateTime", |column| column.kind.as_str());
        let mut columns = format!(
            "CAST('2024-01-15 00:00:00' AS {kind}) + number AS {}",
            identifier(time)
        );
        for Computed { name, expression } in &self.computed {
            columns.push_str(&format!(", {expression} AS {}", identifier(name)));
        }
        format!("SELECT uniqExact(tuple({key})) FROM (SELECT {columns} FROM numbers(86400))")
    }
}
