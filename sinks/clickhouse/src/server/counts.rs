//! Counts rows by their identities, for operators.

use super::Server;
use crate::presence::{Ask, ReadFrom};
use crate::schema::{RECORD, SEQUENCE, SOURCE, Table, literal};
use millpond_consumer::SinkError;
use std::ops::RangeInclusive;

/// Rows of one sequence.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct Count {
    pub(crate) sequence: u64,
    pub(crate) rows: u64,
    pub(crate) distinct: u64,
    /// The highest record number.
    pub(crate) last: u32,
}

/// The number of times that a table has a record.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct Number {
    pub(crate) record: u32,
    pub(crate) times: u64,
}

/// The sequence of rows from before version 2. No segment has it.
pub(crate) const WITHOUT_IDENTITY: u64 = u64::MAX;

impl Server {
    pub(crate) async fn counts(
        &self,
        table: Table,
        ask: &Ask,
        source: &str,
        sequences: &RangeInclusive<u64>,
    ) -> Result<Vec<Count>, SinkError> {
        let condition = format!(
            "{SOURCE} = {} AND {SEQUENCE} BETWEEN {} AND {}",
            literal(source),
            sequences.start(),
            sequences.end()
        );
        let here = format!(
            "SELECT {SEQUENCE} AS sequence, count() AS rows, uniqExact({RECORD}) AS distinct, max({RECORD}) AS last FROM {} \
             WHERE {condition} GROUP BY sequence",
            table.path(&self.config)
        );
        let question = |from: &ReadFrom| {
            format!(
                "SELECT sequence, sum(times) AS rows, count() AS distinct, max(record) AS last FROM ({}) GROUP BY sequence",
                from.identities(&condition)
            )
        };
        self.asked(table, ask, here, &question)
            .await
            .map(|(rows, _)| rows)
    }

    pub(crate) async fn numbers(
        &self,
        table: Table,
        ask: &Ask,
        source: &str,
        sequence: u64,
    ) -> Result<Vec<Number>, SinkError> {
        let condition = format!("{SOURCE} = {} AND {SEQUENCE} = {sequence}", literal(source));
        let question =
            |from: &ReadFrom| format!("SELECT record, times FROM ({})", from.identities(&condition));
        let here = question(&ReadFrom::table(&table.path(&self.config)));
        self.asked(table, ask, here, &question)
            .await
            .map(|(rows, _)| rows)
    }

    pub(crate) async fn has_rows_without_identity(
        &self,
        table: Table,
        source: &str,
    ) -> Result<bool, SinkError> {
        let sql = format!(
            "SELECT count() FROM (SELECT 1 FROM {} WHERE {SOURCE} = {} AND {SEQUENCE} = {WITHOUT_IDENTITY} LIMIT 1)",
            table.path(&self.config),
            literal(source)
        );
        let found: u64 = self.one("looking for rows without an identity", &sql).await?;
        Ok(found > 0)
    }
}
