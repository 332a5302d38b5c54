//! The engine and partitions of the tables that Millpond creates.

use std::fmt;
use std::str::FromStr;

/// The engine of new tables, in the form of `ENGINE =`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Engine(String);

/// Engines that keep every row.
const ENGINES: [&str; 3] = ["MergeTree", "ReplicatedMergeTree", "SharedMergeTree"];

impl Engine {
    /// Returns true if tables of this engine replicate.
    pub(crate) fn is_replicated(&self) -> bool {
        !self.0.starts_with(ENGINES[0])
    }

    /// Returns true if the same statement on two servers creates replicas of one table: the path in Keeper must not
    /// follow from the UUID that each server gives its table.
    pub(crate) fn has_path(&self) -> bool {
        self.0.contains('(') && !self.0.contains("{uuid}")
    }
}

impl Default for Engine {
    fn default() -> Self {
        Engine(ENGINES[0].to_owned())
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Engine {
    type Err = String;

    /// A name, with parameters in brackets if it takes any.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (name, parameters) = match text.split_once('(') {
            None => (text, ""),
            Some((name, rest)) => {
                let inner = rest.strip_suffix(')');
                let inner = inner.ok_or_else(|| format!("{text} has no closing bracket at its end"))?;
                (name.trim_end(), inner.trim())
            }
        };
        if !ENGINES.contains(&name) {
            return Err(format!(
                "use {}; create a table with another engine yourself (`millpond tables print`)",
                ENGINES.join(", ")
            ));
        }
        if parameters.is_empty() {
            return Ok(Engine(name.to_owned()));
        }
        if name == ENGINES[0] {
            return Err(format!("{name} takes no parameters"));
        }
        if !parameters.contains("{table}") && !parameters.contains("{uuid}") {
            return Err(format!(
                "{parameters} would be the same for all tables: use {{table}} or {{uuid}} in the path"
            ));
        }
        Ok(Engine(format!("{name}({parameters})")))
    }
}

/// The partitions of new tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PartitionBy {
    /// The whole table in one partition.
    None,
    /// One per hour.
    Hour,
    /// One per day.
    #[default]
    Day,
    /// One per month.
    Month,
    /// An expression, with `{time}` for the table's time column.
    Expression(String),
}

/// The placeholder for the table's time column.
const TIME: &str = "{time}";

impl PartitionBy {
    /// The partition key of a table with this time column.
    pub(crate) fn key(&self, time: &str) -> Option<String> {
        match self {
            PartitionBy::None => None,
            PartitionBy::Hour => Some(format!("toStartOfHour({time})")),
            PartitionBy::Day => Some(format!("toDate({time})")),
            PartitionBy::Month => Some(format!("toYYYYMM({time})")),
            PartitionBy::Expression(text) => Some(text.replace(TIME, time)),
        }
    }
}

impl fmt::Display for PartitionBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PartitionBy::None => "none",
            PartitionBy::Hour => "hour",
            PartitionBy::Day => "day",
            PartitionBy::Month => "month",
            PartitionBy::Expression(text) => text,
        })
    }
}

impl FromStr for PartitionBy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text.trim() {
            "none" => PartitionBy::None,
            "hour" => PartitionBy::Hour,
            "day" => PartitionBy::Day,
            "month" => PartitionBy::Month,
            other if other.contains(TIME) => PartitionBy::Expression(other.to_owned()),
            _ => {
                return Err(format!(
                    "use none, hour, day or month, or an expression with {TIME} in it for the table's time, such as \
                     toMonday({TIME})"
                ));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_engine_is_one_that_keeps_every_row() {
        for (text, engine) in [
            ("MergeTree", "MergeTree"),
            (" MergeTree() ", "MergeTree"),
            ("ReplicatedMergeTree", "ReplicatedMergeTree"),
            ("SharedMergeTree", "SharedMergeTree"),
            (
                "ReplicatedMergeTree ('/clickhouse/tables/{shard}/{database}/{table}', '{replica}')",
                "ReplicatedMergeTree('/clickhouse/tables/{shard}/{database}/{table}', '{replica}')",
            ),
            (
                "ReplicatedMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}')",
                "ReplicatedMergeTree('/clickhouse/tables/{uuid}/{shard}', '{replica}')",
            ),
        ] {
            assert_eq!(text.parse::<Engine>().unwrap().to_string(), engine);
        }
        assert_eq!(Engine::default().to_string(), "MergeTree");
        for (text, reason) in [
            ("ReplacingMergeTree", "another engine yourself"),
            ("Distributed(c, d, t)", "another engine yourself"),
            ("Memory", "another engine yourself"),
            ("", "another engine yourself"),
            ("MergeTree(Date, (a, b), 8192)", "takes no parameters"),
            ("ReplicatedMergeTree('/a/{table}'", "closing bracket"),
            (
                "ReplicatedMergeTree('/a/{shard}', '{replica}')",
                "use {table} or {uuid}",
            ),
        ] {
            let error = text.parse::<Engine>().unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }

    #[test]
    fn a_partition_is_of_the_time() {
        for (text, key) in [
            ("none", None),
            ("hour", Some("toStartOfHour(T)")),
            ("day", Some("toDate(T)")),
            ("month", Some("toYYYYMM(T)")),
            (
                "(toYear({time}), toMonth({time}))",
                Some("(toYear(T), toMonth(T))"),
            ),
        ] {
            let partition: PartitionBy = text.parse().unwrap();
            assert_eq!(partition.key("T").as_deref(), key);
            assert_eq!(partition.to_string(), text);
        }
        for text in ["", "week", "toDate(Timestamp)"] {
            assert!(text.parse::<PartitionBy>().unwrap_err().contains("{time}"));
        }
    }
}
