//! Row identities for operators: those in a table, and those from the log.

use crate::chunks;
use crate::node::{Node, Target};
use crate::presence::Ask;
use crate::schema::Table;
use crate::sink::ClickHouse;
use millpond_consumer::{Batch, RowId, SinkError};
use millpond_otlp::Signal;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// Rows of one sequence, in all tables of its stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowCount {
    /// The number of rows.
    pub rows: u64,
    /// The number of distinct identities.
    pub distinct: u64,
    /// The highest record number among them.
    pub last: u32,
}

/// A record of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NumberedRecord {
    /// The identity of its row.
    pub id: RowId,
    /// False for a message that cannot be read, which has no row.
    pub readable: bool,
}

impl ClickHouse {
    /// Counts the rows of a source ([`millpond_consumer::BatchId::source`]) that the tables of its stream have, by sequence. A
    /// sequence without rows is left out.
    ///
    /// # Errors
    /// `Schema` if a table does not keep the identities of its rows; otherwise those of a request.
    pub async fn counts(
        &self,
        source: &str,
        stream: &str,
        sequences: RangeInclusive<u64>,
    ) -> Result<BTreeMap<u64, RowCount>, SinkError> {
        let mut counts: BTreeMap<u64, RowCount> = BTreeMap::new();
        let node = self.addresses.node().await;
        for (table, ask) in node.tables_of(stream) {
            for found in node.server.counts(table, ask, source, &sequences).await? {
                let count = counts.entry(found.sequence).or_default();
                count.rows += found.rows;
                count.distinct += found.distinct;
                count.last = count.last.max(found.last);
            }
        }
        Ok(counts)
    }

    /// Lists the record numbers of a sequence that the tables of its stream have, in order and with repetitions.
    ///
    /// # Errors
    /// As [`counts`](Self::counts).
    pub async fn numbers(&self, source: &str, stream: &str, sequence: u64) -> Result<Vec<u32>, SinkError> {
        let mut numbers = Vec::new();
        let node = self.addresses.node().await;
        for (table, ask) in node.tables_of(stream) {
            for found in node.server.numbers(table, ask, source, sequence).await? {
                numbers.extend((0..found.times).map(|_| found.record));
            }
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Lists the records of a batch with their numbers, in order.
    ///
    /// # Errors
    /// `Refused` if the batch is damaged.
    pub fn numbering(&self, batch: &Batch) -> Result<Vec<NumberedRecord>, SinkError> {
        self.with_workspace(batch, |workspace| {
            chunks::numbering(batch, self.event(&batch.id.stream), workspace)
        })
    }

    /// Reports whether the tables of a stream have rows of the source from before rows had identities.
    ///
    /// # Errors
    /// Those of a request.
    pub async fn has_rows_without_identity(&self, source: &str, stream: &str) -> Result<bool, SinkError> {
        let node = self.addresses.node().await;
        for (table, ask) in node.tables_of(stream) {
            if *ask != Ask::Never && node.server.has_rows_without_identity(table, source).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Node {
    fn tables_of(&self, stream: &str) -> impl Iterator<Item = (Table, &Ask)> {
        let signal = Signal::of_stream(stream);
        let config = &self.server.config;
        let event = config.events().find(|(_, events)| events.stream == stream);
        let event = event.map(|(table, _)| table);
        let of_stream = move |target: &&Target| match target.table.signal() {
            Some(of) => signal == Some(of),
            None => event == Some(target.table),
        };
        let targets = self.tables.iter().filter(of_stream);
        targets.map(|target| (target.table, &target.known.ask))
    }
}
