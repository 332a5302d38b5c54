//! The inputs of a row's partition or shard. A server knows a token by both, so they must not change between attempts.

use super::judge::{Fault, Found};
use super::{MILLPOND, Table, identifier};
use crate::config::Config;
use std::collections::BTreeSet;

/// How a chunk's rows fall into partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Partitioning {
    /// There is one partition: a chunk lands whole.
    Whole,
    /// A row's partition follows from its time alone; a day has at most so many.
    Time { a_day: u64 },
    /// It follows from other columns too, so that rows of one time may be here and there.
    Rows { key: String },
    /// Rows land by shards, or in ways that we know nothing of.
    Elsewhere,
}

/// The columns and functions of an expression.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    pub(crate) columns: BTreeSet<String>,
    pub(crate) functions: BTreeSet<String>,
}

impl Terms {
    /// Of what `EXPLAIN AST SELECT <expression>` answers, a line a node.
    pub(crate) fn of_tree(lines: &[String]) -> Self {
        let mut terms = Terms::default();
        for line in lines {
            let line = line.trim_start();
            // A literal is escaped, so that it is one line and begins with its own word.
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

/// A column of the key that we do not fill: the server computes it.
#[derive(Clone, Debug)]
pub(crate) struct Computed {
    pub(crate) name: String,
    pub(crate) expression: String,
}

/// What a partition key is of: the columns that we fill, and the computed ones on the way to them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sources {
    pub(crate) filled: BTreeSet<String>,
    pub(crate) computed: Vec<Computed>,
    /// All functions that compute those.
    pub(crate) functions: BTreeSet<String>,
    unread: Vec<String>,
}

impl Sources {
    /// Of the key's own columns.
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

    /// The key's own columns, taken as they are.
    pub(crate) fn of_key(found: &[Found]) -> Self {
        Sources {
            filled: Self::new(found).unread.into_iter().collect(),
            ..Sources::default()
        }
    }

    /// The next computed column whose expression is to be read, if there is one; [`Self::add`] takes what is in it.
    pub(crate) fn next(&mut self, config: &Config, table: Table, found: &[Found]) -> Option<Computed> {
        while let Some(name) = self.unread.pop() {
            let filled = table.filled(config.columns).any(|column| column.name == name);
            let there = found.iter().find(|column| column.name == name);
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
                // A part of a column, or what we do not understand, is certainly not the time.
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

    /// The first input that changes between attempts, so that a row that is sent again would go elsewhere. `volatile`: the functions
    /// that are not deterministic.
    fn changing(&self, volatile: &[String]) -> Option<String> {
        let inserted_at = MILLPOND[1].name;
        if self.filled.contains(inserted_at) {
            return Some(inserted_at.to_owned());
        }
        volatile.first().map(|function| format!("{function}()"))
    }

    /// The fault of partitions that change between attempts.
    pub(crate) fn fault(&self, config: &Config, table: Table, volatile: &[String]) -> Option<Fault> {
        let of = self.changing(volatile)?;
        Some(Fault {
            what: format!(
                "the partitions of table {} depend on {of}, which is another when a row is sent again: it would land in \
                 another partition, where its token is not known, and be there twice",
                table.path(config)
            ),
            mend: "make the table anew, partitioned by what is in its rows, such as their time (`millpond tables print`)"
                .to_owned(),
        })
    }

    /// The fault of shards that change between attempts.
    pub(crate) fn shard_fault(&self, config: &Config, table: Table, volatile: &[String]) -> Option<Fault> {
        let of = self.changing(volatile)?;
        Some(Fault {
            what: format!(
                "the sharding key of table {} depends on {of}, which changes when a row is sent again: the row would go \
                 to another shard, which does not know its token, and be there twice",
                table.path(config)
            ),
            mend: "create the table again with a sharding key that depends on the row alone, such as \
                   cityHash64(TraceId)"
                .to_owned(),
        })
    }

    /// Whether it is of nothing but this column of time.
    pub(crate) fn only_time(&self, time: &str) -> bool {
        self.filled.iter().all(|name| name == time)
    }

    /// How many partitions one day is of, in SQL: of a table with this column of time.
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
