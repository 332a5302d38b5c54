//! Compares the rows of a stream with the records of a segment by their identities. Reads only.

use anyhow::Context;
use millpond_clickhouse::ClickHouse;
use millpond_consumer::{Batch, BatchId, BatchingPolicy, Chunk, Cut, Part, Presence, Sink};
use millpond_manifest::Buffer;
use millpond_runtime::{SystemEnvironment, blocking};
use millpond_segment::Encoding;
use serde::Serialize;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The source of rows, as the tables store it.
pub(crate) fn source(buffer: &Buffer, shard: u32, stream: &str, consumer: &str) -> String {
    id(buffer, shard, stream, consumer).source()
}

/// A batch id for its source only.
pub(crate) fn id(buffer: &Buffer, shard: u32, stream: &str, consumer: &str) -> BatchId {
    BatchId {
        buffer_id: buffer.id,
        shard,
        stream: stream.to_owned(),
        consumer: consumer.to_owned(),
        cursor: consumer.to_owned(),
        generation: 0,
        sink: String::new(),
        low: 0,
        high: 0,
        schema_version: 0,
    }
}

/// The first sequence whose rows have identities. Earlier versions inserted rows without one.
pub(crate) async fn first_with_identity(
    sink: &ClickHouse,
    source: &str,
    stream: &str,
) -> anyhow::Result<u64> {
    if !sink.has_rows_without_identity(source, stream).await? {
        return Ok(0);
    }
    let counts = sink.counts(source, stream, 0..=u64::MAX - 1).await?;
    Ok(counts.keys().next().copied().unwrap_or(u64::MAX))
}

/// Record numbers, from the first to the last of each run.
pub type Runs = Vec<[u32; 2]>;

/// How the rows of one part of a segment differ from its records.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The segment's sequence.
    pub sequence: u64,
    /// Records without a row.
    pub missing: Runs,
    /// Records with more than one row.
    pub duplicate: Runs,
    /// Rows whose number no record has.
    pub unknown: Runs,
}

/// The records of a part of a segment.
#[derive(Debug, Default)]
pub(crate) struct Records {
    /// Records that can be read.
    readable: BTreeSet<u32>,
    /// Records whose row the table lacks and its TTL does not remove.
    lacking: BTreeSet<u32>,
}

/// Number of rows in the runs.
pub(crate) fn rows(runs: &Runs) -> u64 {
    runs.iter().map(|[low, high]| u64::from(high - low) + 1).sum()
}

impl Difference {
    /// `table`: the record numbers of all rows, sorted. `excused`: record numbers that may be missing.
    pub(crate) fn new(sequence: u64, records: &Records, table: &[u32], excused: &BTreeSet<u32>) -> Self {
        let repeated = table.windows(2).filter(|pair| pair[0] == pair[1]);
        let there: BTreeSet<u32> = table.iter().copied().collect();
        Difference {
            sequence,
            missing: runs(records.lacking.difference(excused).copied()),
            duplicate: runs(repeated.map(|pair| pair[0]).collect::<BTreeSet<_>>()),
            unknown: runs(there.difference(&records.readable).copied()),
        }
    }

    /// Returns true if there is any difference.
    pub(crate) fn is_any(&self) -> bool {
        !(self.missing.is_empty() && self.duplicate.is_empty() && self.unknown.is_empty())
    }
}

fn runs(numbers: impl IntoIterator<Item = u32>) -> Runs {
    let mut runs = Runs::new();
    for number in numbers {
        match runs.last_mut() {
            Some([_, high]) if high.checked_add(1) == Some(number) => *high = number,
            _ => runs.push([number, number]),
        }
    }
    runs
}

/// Reads a part, and asks the table for each of its rows.
pub(crate) async fn ask(
    sink: &Arc<ClickHouse>,
    id: BatchId,
    encoding: Encoding,
    part: Part,
    policy: BatchingPolicy,
) -> anyhow::Result<Records> {
    let (source, cutter) = (id.source(), sink.clone());
    let batch = Batch {
        id,
        encoding,
        parts: vec![part],
    };
    let cut = blocking::run(&SystemEnvironment, move || {
        let mut chunks: Vec<Chunk> = Vec::new();
        let done = cutter.chunks(&batch, &policy, &mut |cut| {
            if let Cut::Chunk(chunk) = cut {
                chunks.push(chunk);
            }
            true
        });
        done.map(|()| chunks)
    });
    let chunks = cut.await.context("reading a segment")??;
    let mut records = Records::default();
    for chunk in chunks {
        let ids: Vec<_> = chunk.ids().map(|id| id.record).collect();
        if let Presence::Lacks { rows, .. } = sink.presence(&source, &chunk).await? {
            let lacking = rows.iter().filter_map(|row| ids.get(usize::try_from(*row).ok()?));
            records.lacking.extend(lacking);
        }
        records.readable.extend(ids);
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_duplicate_and_unknown_rows_are_told_apart() {
        let records = Records {
            readable: (0..10).collect(),
            lacking: [2, 3, 4, 8].into(),
        };
        let table = [0, 1, 1, 1, 5, 6, 6, 7, 9, 12];
        let found = Difference::new(7, &records, &table, &BTreeSet::from([3]));
        let expected = Difference {
            sequence: 7,
            missing: vec![[2, 2], [4, 4], [8, 8]],
            duplicate: vec![[1, 1], [6, 6]],
            unknown: vec![[12, 12]],
        };
        assert_eq!(found, expected);
        assert!(found.is_any());
        let table: Vec<u32> = (0..10).collect();
        let same = Records {
            readable: (0..10).collect(),
            lacking: BTreeSet::new(),
        };
        assert!(!Difference::new(7, &same, &table, &BTreeSet::new()).is_any());
    }

    #[test]
    fn numbers_become_runs() {
        assert_eq!(runs([0, 1, 2, 5, 7, 8]), [[0, 2], [5, 5], [7, 8]]);
        assert_eq!(rows(&runs([0, 1, 2, 5, 7, 8])), 6);
        assert_eq!(runs([u32::MAX]), [[u32::MAX, u32::MAX]]);
        assert!(runs([]).is_empty());
    }
}
