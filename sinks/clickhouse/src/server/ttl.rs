//! Evaluates a table's TTL: the sink does not send rows again that the TTL removes.

use super::Server;
use crate::schema::judge::Found;
use crate::schema::{Table, identifier};
use millpond_consumer::SinkError;
use std::collections::HashSet;
use std::fmt::Write as _;

/// A TTL that depends on the time of a row alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowTtl {
    /// The columns of `expression` as expressions of `tick`, in SQL.
    columns: String,
    expression: String,
}

/// Times per question: a query has at most 256 KiB.
const TIMES_MAX: usize = 10_000;

impl RowTtl {
    /// Finds the TTL in the engine of a table.
    pub(crate) fn of(table: Table, engine_full: &str, found: &[Found]) -> Option<Self> {
        let expression = expression(engine_full)?;
        let time = table.time()?;
        let kind = &found.iter().find(|column| column.name == time)?.kind;
        let value = if kind.starts_with("DateTime64") {
            "fromUnixTimestamp64Nano(tick)"
        } else {
            "toDateTime(tick)"
        };
        let mut columns = format!("CAST({value} AS {kind}) AS {}", identifier(time));
        // Computed columns that the expression may use.
        let computed = found.iter().filter(|column| {
            !column.default_expression.is_empty() && expression.contains(column.name.as_str())
        });
        for column in computed {
            let _ = write!(
                columns,
                ", {} AS {}",
                column.default_expression,
                identifier(&column.name)
            );
        }
        Some(RowTtl { columns, expression })
    }

    fn question(&self, ticks: &[i64]) -> String {
        let RowTtl { columns, expression } = self;
        // ClickHouse takes a TTL of zero for no TTL.
        format!(
            "SELECT tick FROM (SELECT arrayJoin(CAST({ticks:?} AS Array(Int64))) AS tick, {columns}) \
             WHERE toUnixTimestamp(toDateTime({expression})) BETWEEN 1 AND toUnixTimestamp(now())"
        )
    }
}

/// Finds the expression that deletes whole rows without a condition. A table has at most one.
fn expression(engine_full: &str) -> Option<String> {
    let (_, rest) = engine_full.split_once(" TTL ")?;
    let rest = rest.rsplit_once(" SETTINGS ").map_or(rest, |(ttl, _)| ttl);
    let mut elements = vec![String::new()];
    let mut depth = 0;
    for character in rest.chars() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                elements.push(String::new());
                continue;
            }
            _ => {}
        }
        elements.last_mut()?.push(character);
    }
    let other = [
        " WHERE ",
        " TO DISK ",
        " TO VOLUME ",
        " GROUP BY ",
        " RECOMPRESS ",
    ];
    let mut deleting = elements
        .iter()
        .map(|element| element.trim())
        .filter(|element| !other.iter().any(|word| element.contains(word)));
    let element = deleting.next()?;
    let element = element.strip_suffix(" DELETE").unwrap_or(element);
    Some(element.to_owned())
}

impl Server {
    /// Keeps the TTL if the server can evaluate it from a row's time.
    pub(super) async fn usable_ttl(&self, ttl: Option<RowTtl>) -> Result<Option<RowTtl>, SinkError> {
        let Some(ttl) = ttl else { return Ok(None) };
        match self.all::<i64>(EVALUATING, &ttl.question(&[0])).await {
            Ok(_) => Ok(Some(ttl)),
            Err(SinkError::Schema(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the times whose rows the table removes.
    pub(crate) async fn expired(&self, ttl: &RowTtl, mut ticks: Vec<i64>) -> Result<HashSet<i64>, SinkError> {
        ticks.sort_unstable();
        ticks.dedup();
        let mut expired = HashSet::new();
        for ticks in ticks.chunks(TIMES_MAX) {
            expired.extend(self.all::<i64>(EVALUATING, &ttl.question(ticks)).await?);
        }
        Ok(expired)
    }
}

const EVALUATING: &str = "evaluating the table's TTL";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_expressions_that_delete_rows_count() {
        let of = |ttl: &str| {
            let engine =
                format!("MergeTree PARTITION BY toDate(t) ORDER BY a{ttl} SETTINGS index_granularity = 8192");
            expression(&engine)
        };
        let plain = Some("toDateTime(t) + toIntervalDay(3)".to_owned());
        assert_eq!(of(" TTL toDateTime(t) + toIntervalDay(3)"), plain);
        assert_eq!(of(" TTL toDateTime(t) + toIntervalDay(3) DELETE"), plain);
        assert_eq!(
            of(
                " TTL CAST(t, 'DateTime') + toIntervalDay(1) RECOMPRESS CODEC(ZSTD(3)), toDateTime(t) + toIntervalDay(3)"
            ),
            plain
        );
        for none in [
            "",
            " TTL toDateTime(t) + toIntervalDay(1) WHERE a = 3",
            " TTL toDateTime(t) + toIntervalDay(1) TO DISK 'slow'",
        ] {
            assert_eq!(of(none), None, "{none}");
        }
    }
}
