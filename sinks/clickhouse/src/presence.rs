//! Finds rows of a chunk in a table by their identities. Pure: builds the question and interprets the answer.

use crate::recovery;
use crate::schema::distributed::Distributed;
use crate::schema::{RECORD, SEQUENCE, SOURCE, Table, identifier, literal};
use millpond_consumer::{Chunk, RowId};
use millpond_otlp::Signal;
use std::collections::{BTreeMap, HashMap};
use std::ops::RangeInclusive;

/// The strategy for a table: which servers answer, so that the answer covers every server that may have taken a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// One server has all rows.
    Here,
    /// A replica answers after it has caught up.
    Replicas,
    /// The tables behind a Distributed table answer, on all servers of its cluster. A row is there if this many servers have it: more
    /// than one where the Distributed table itself writes to every replica of a shard.
    Behind(Box<Distributed>, usize),
    /// The table does not keep the identities of its rows.
    Never,
    /// The user has no right to ask the servers that have the rows, for this reason.
    Denied(String),
}

/// The record numbers of one segment that a server has, with repetitions.
#[derive(Debug, serde::Deserialize)]
pub(crate) struct There {
    /// The server, where several answer.
    #[expect(dead_code, reason = "the server groups by it")]
    server: String,
    sequence: u64,
    records: Vec<u32>,
}

/// The server that a row comes from, in SQL.
pub(crate) const SERVER: &str = "concat(hostName(), ':', toString(tcpPort()))";

/// A table expression in SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReadFrom {
    server: &'static str,
    from: String,
}

impl ReadFrom {
    pub(crate) fn table(path: &str) -> Self {
        ReadFrom {
            server: "''",
            from: path.to_owned(),
        }
    }

    /// A table of this name on every server of a cluster.
    pub(crate) fn cluster(cluster: &str, database: &str, table: &str) -> Self {
        ReadFrom {
            server: SERVER,
            from: all_servers(cluster, database, table),
        }
    }

    /// The record numbers of each segment.
    pub(crate) fn numbers(&self, condition: &str) -> String {
        let ReadFrom { server, from } = self;
        format!(
            "SELECT {server} AS server, {SEQUENCE} AS sequence, groupArray({RECORD}) AS records FROM {from} \
             WHERE {condition} GROUP BY server, sequence"
        )
    }

    /// Each identity, with the largest number of times that one server has it.
    pub(crate) fn identities(&self, condition: &str) -> String {
        let ReadFrom { server, from } = self;
        format!(
            "SELECT sequence, record, max(times) AS times FROM (\
             SELECT {server} AS server, {SEQUENCE} AS sequence, {RECORD} AS record, count() AS times FROM {from} \
             WHERE {condition} GROUP BY server, sequence, record) GROUP BY sequence, record"
        )
    }
}

impl Ask {
    /// The number of servers that must have a row.
    pub(crate) fn copies(&self) -> usize {
        match self {
            Ask::Behind(_, copies) => *copies,
            Ask::Here | Ask::Replicas | Ask::Never | Ask::Denied(_) => 1,
        }
    }
}

pub(crate) fn all_servers(cluster: &str, database: &str, table: &str) -> String {
    format!(
        "clusterAllReplicas({}, {}, {})",
        literal(cluster),
        identifier(database),
        identifier(table)
    )
}

/// The range of a chunk's identities and times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Span {
    low: RowId,
    high: RowId,
    /// In seconds; absent where functions of the time confuse times.
    seconds: Option<RangeInclusive<i64>>,
}

/// 1970 to the end of 2105: the range of `DateTime`, to which many functions convert.
const TELLABLE: std::ops::Range<i64> = 0..4_291_747_200;

impl Span {
    /// `ticks`: the times of the chunk's rows, as the table's column has them.
    pub(crate) fn new(table: Table, chunk: &Chunk, ticks: &[i64]) -> Self {
        let first = chunk.received.iter().map(|run| run.first);
        let nothing = RowId {
            sequence: 0,
            record: 0,
        };
        let second = ticks_of_a_second(table);
        let seconds = |ticks: &i64| second.map(|second| ticks.div_euclid(second));
        let low = ticks.iter().min().and_then(seconds);
        let high = ticks.iter().max().and_then(seconds);
        let seconds = low.zip(high).map(|(low, high)| low..=high);
        Span {
            low: first.min().unwrap_or(nothing),
            high: chunk.ids().max().unwrap_or(nothing),
            seconds: seconds
                .filter(|seconds| TELLABLE.contains(seconds.start()) && TELLABLE.contains(seconds.end())),
        }
    }

    /// The condition on rows of this source, in SQL.
    pub(crate) fn condition(&self, table: Table, source: &str) -> String {
        let Span { low, high, seconds } = self;
        let mut condition = format!(
            "{SOURCE} = {} AND {SEQUENCE} BETWEEN {} AND {} AND ({SEQUENCE}, {RECORD}) BETWEEN ({}, {}) AND ({}, {})",
            literal(source),
            low.sequence,
            high.sequence,
            low.sequence,
            low.record,
            high.sequence,
            high.record
        );
        let (Some(seconds), Some(time)) = (seconds, table.time()) else {
            return condition;
        };
        let between = |what: &str, low: i64, high: i64| {
            format!(" AND {what} BETWEEN toDateTime({low}) AND toDateTime({high})")
        };
        // The column can have fractions of the last second.
        condition.push_str(&between(time, *seconds.start(), *seconds.end() + 1));
        if table == Table::Logs {
            // The first expression of the sorting key. The margin covers the column's time zone.
            let low = (seconds.start() - 900).max(0);
            let start = format!("toStartOfFiveMinutes({time})");
            condition.push_str(&between(&start, low, seconds.end() + 900));
        }
        condition
    }
}

fn ticks_of_a_second(table: Table) -> Option<i64> {
    table.signal().map(|signal| match signal {
        Signal::Logs | Signal::Traces => 1_000_000_000,
        Signal::Metrics => 1,
    })
}

/// The times of a chunk's rows, in ticks of the table's column; none for events. CPU work.
pub(crate) fn ticks(table: Table, chunk: &Chunk) -> Vec<i64> {
    table
        .time()
        .map_or_else(Vec::new, |time| recovery::ticks(&chunk.body, time))
}

/// A chunk compared with an answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Compared {
    /// The places of rows that too few servers have.
    pub(crate) lacks: Vec<u64>,
    /// Some of those rows are on a server. Only the first token keeps them from being stored there twice.
    pub(crate) partial: bool,
    /// The number of surplus rows of each sequence.
    pub(crate) repeated: BTreeMap<u64, u64>,
}

/// Compares a chunk with what servers have. A row is there if `copies` of them have it.
pub(crate) fn compare(chunk: &Chunk, there: Vec<There>, copies: usize) -> Compared {
    let mut found: HashMap<u64, HashMap<u32, usize>> = HashMap::new();
    let mut repeated: BTreeMap<u64, u64> = BTreeMap::new();
    for There {
        sequence,
        mut records,
        ..
    } in there
    {
        let all = records.len();
        records.sort_unstable();
        records.dedup();
        if records.len() < all {
            let most = repeated.entry(sequence).or_default();
            *most = (*most).max((all - records.len()) as u64);
        }
        let servers = found.entry(sequence).or_default();
        for record in records {
            *servers.entry(record).or_default() += 1;
        }
    }
    let servers = |id: &RowId| {
        let records = found.get(&id.sequence);
        records
            .and_then(|records| records.get(&id.record))
            .copied()
            .unwrap_or(0)
    };
    let mut compared = Compared {
        lacks: Vec::new(),
        partial: false,
        repeated,
    };
    for (id, row) in chunk.ids().zip(0..) {
        let servers = servers(&id);
        if servers < copies {
            compared.lacks.push(row);
            compared.partial |= servers > 0;
        }
    }
    compared
}

#[cfg(test)]
mod tests;
