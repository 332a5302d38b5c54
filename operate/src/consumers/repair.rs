//! Inserts each row of an acknowledged range that the tables lack, once.

use crate::Target;
use crate::buffer::{buffer, cursor, read_log, read_log_of, read_tail, shards};
use anyhow::{Context, bail, ensure};
use millpond_clickhouse::{ClickHouse, Columns, Config};
use millpond_consumer::{Consumer, Repair, StreamPattern};
use millpond_manifest::{Cursor, Log, layout};
use millpond_runtime::{Environment as _, SystemEnvironment};
use millpond_storage::Store;
use prometheus_client::registry::Registry;
use serde::Serialize;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The range to repair.
#[derive(Debug)]
pub struct Options {
    /// The consumer's name.
    pub consumer: String,
    /// The first sequence.
    pub from: Target,
    /// The last sequence; for a time, the last segment committed before it; for the end of the log, all that is acknowledged.
    pub to: Target,
    /// The shard; `None` for all.
    pub shard: Option<u32>,
    /// The streams; empty for all.
    pub streams: Vec<StreamPattern>,
    /// The consumer's tables.
    pub tables: Config,
    /// Make rows by the programs of `tables` even if the consumer has others.
    pub other_programs: bool,
}

/// The result of a repair.
#[derive(Debug, Serialize)]
pub struct Repaired {
    /// The repair reached its end.
    pub complete: bool,
    /// Rows that the repair compared.
    pub rows_asked_for: u64,
    /// Rows that the tables had.
    pub rows_found: u64,
    /// Rows that the repair inserted.
    pub rows_inserted: u64,
    /// Dead letters that it wrote.
    pub dead_letters: u64,
}

/// The interval between two reports of the progress.
const EVERY: Duration = Duration::from_millis(200);

/// Repairs a range, until `shutdown` is cancelled. `on_progress` hears how many records of how many were compared.
///
/// # Errors
/// The range cannot be compared, or the store or ClickHouse fails for good.
pub async fn repair(
    store: Store,
    options: Options,
    shutdown: CancellationToken,
    on_progress: impl Fn(u64, u64),
) -> anyhow::Result<Repaired> {
    layout::check_reader_name(&options.consumer)?;
    ensure!(
        options.tables.columns == Columns::All,
        "with --columns none the tables do not keep the identities of rows, so rows cannot be compared"
    );
    let ranges = options.ranges(&store).await?;
    let shards = ranges.len() as u64;
    let sink = ClickHouse::open(Config {
        create: false,
        ..options.tables.clone()
    });
    let sink = sink.await?;
    options.check_identities(&store, &sink, &ranges).await?;
    let records = options.records(&store, &ranges).await?;
    let streams = match options.streams.is_empty() {
        true => vec![StreamPattern::any()],
        false => options.streams,
    };
    let config = millpond_consumer::Config {
        consumer: options.consumer,
        instance: format!(
            "repair-{}-{:08x}",
            std::process::id(),
            SystemEnvironment.random_u32()
        ),
        streams,
        repair: Some(Repair {
            ranges,
            other_programs: options.other_programs,
        }),
        ..millpond_consumer::Config::default()
    };
    let consumer = Consumer::new(store, config, Arc::new(sink), &mut Registry::default())?;
    let tally = consumer.tally();
    let done = || tally.found() + tally.inserted() + tally.dead_letters();
    let reports = async {
        loop {
            on_progress(done(), records);
            tokio::time::sleep(EVERY).await;
        }
    };
    tokio::select! {
        ended = consumer.run(shutdown) => ended?,
        () = reports => unreachable!("the reports never end"),
    }
    let (found, inserted) = (tally.found(), tally.inserted());
    Ok(Repaired {
        complete: tally.shards() == shards,
        rows_asked_for: found + inserted,
        rows_found: found,
        rows_inserted: inserted,
        dead_letters: tally.dead_letters(),
    })
}

impl Options {
    /// The sequences of each shard.
    async fn ranges(&self, store: &Store) -> anyhow::Result<BTreeMap<u32, RangeInclusive<u64>>> {
        let shards = shards(&buffer(store).await?, self.shard)?;
        if shards.len() > 1 && (self.from.is_sequence() || self.to.is_sequence()) {
            bail!("a sequence belongs to one shard: select it with --shard");
        }
        let mut ranges = BTreeMap::new();
        for shard in shards {
            let found = cursor(store, shard, &self.consumer).await?;
            // Only a time needs the pages: those outside of the range may be damaged.
            let log = match (self.from, self.to) {
                (Target::Time(_), _) | (_, Target::Time(_)) => read_log(store, shard).await?,
                _ => read_tail(store, shard).await?,
            };
            let (Some(log), Some(cursor)) = (log, found) else {
                continue;
            };
            let range = range(self.from, self.to, &log, &cursor.state)?;
            if !range.is_empty() {
                ranges.insert(shard, range);
            }
        }
        ensure!(
            !ranges.is_empty(),
            "there is nothing to repair: consumer {} has acknowledged nothing in that range; `millpond consumer list` shows its \
             positions",
            self.consumer
        );
        Ok(ranges)
    }

    /// Counts the records of the ranges. A mistyped stream is an error: it would repair nothing, and report success.
    async fn records(
        &self,
        store: &Store,
        ranges: &BTreeMap<u32, RangeInclusive<u64>>,
    ) -> anyhow::Result<u64> {
        let mut there = Vec::new();
        let mut records = 0;
        for (&shard, range) in ranges {
            let found = cursor(store, shard, &self.consumer).await?;
            let cursor = found.context("the consumer was removed meanwhile")?.state;
            let log = read_log_of(store, shard, range).await?;
            let log = log.context("the shard has no log anymore")?;
            for stream in cursor.streams.into_keys() {
                let wanted = self.streams.is_empty() || self.streams.iter().any(|it| it.matches(&stream));
                if let Some(index) = log.stream_index(&stream).filter(|_| wanted) {
                    let behind = log.records(index, range.end().saturating_add(1));
                    records += log.records(index, *range.start()).saturating_sub(behind);
                }
                there.push(stream);
            }
        }
        for pattern in &self.streams {
            ensure!(
                there.iter().any(|stream| pattern.matches(stream)),
                "consumer {} has read no stream that matches {pattern}: `millpond consumer list` lists its streams",
                self.consumer
            );
        }
        Ok(records)
    }

    /// Rows that were inserted before rows had identities look missing, and would be inserted again.
    async fn check_identities(
        &self,
        store: &Store,
        sink: &ClickHouse,
        ranges: &BTreeMap<u32, RangeInclusive<u64>>,
    ) -> anyhow::Result<()> {
        let buffer = buffer(store).await?;
        for (&shard, range) in ranges {
            let found = cursor(store, shard, &self.consumer).await?;
            let cursor = found.context("the consumer was removed meanwhile")?.state;
            for stream in cursor.streams.keys() {
                let source = crate::rows::source(&buffer, shard, stream, &self.consumer);
                let first = crate::rows::first_with_identity(sink, &source, stream).await?;
                ensure!(
                    *range.start() >= first,
                    "rows of {stream} below sequence {first} were inserted before rows had identities, and cannot be \
                     compared: use --from {first} or later"
                );
            }
        }
        Ok(())
    }
}

/// Resolves the range to sequences of a log.
fn range(from: Target, to: Target, log: &Log, cursor: &Cursor) -> anyhow::Result<RangeInclusive<u64>> {
    let from = from.position(log)?;
    let end = match to {
        Target::Sequence(sequence) => {
            ensure!(from <= sequence, "--from {from} is after --to {sequence}");
            sequence + 1
        }
        Target::Latest => cursor.hindmost(),
        Target::Time(_) => to.position(log)?.min(cursor.hindmost()),
        Target::Earliest => bail!("--to earliest is an empty range: use a sequence, a time or latest"),
    };
    Ok(match end.checked_sub(1) {
        Some(last) => from..=last,
        #[expect(clippy::reversed_empty_ranges, reason = "an empty one is meant")]
        None => 1..=0,
    })
}
