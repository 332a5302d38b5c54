//! `millpond consumer repair`: inserts each row of an acknowledged range that the tables lack, once.

use super::{Target, read_log};
use crate::inspect::{buffer, cursor};
use crate::output::say;
use crate::shutdown;
use crate::store::StoreArgs;
use crate::table::{ClickHouseArgs, TableArgs};
use crate::units::count;
use anyhow::{Context, bail, ensure};
use millpond_clickhouse::{ClickHouse, Columns};
use millpond_consumer::{Consumer, Repair, StreamPattern};
use millpond_manifest::{Buffer, Cursor, Log, layout};
use millpond_storage::Store;
use prometheus_client::registry::Registry;
use serde_json::json;
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::process::ExitCode;
use std::sync::Arc;

/// The arguments of `millpond consumer repair`.
#[derive(Debug, clap::Args)]
pub(crate) struct RepairArgs {
    #[command(flatten)]
    store: StoreArgs,
    /// The consumer's name.
    consumer: String,
    /// The first sequence, as `millpond doctor --rows` names it; or earliest, or a time.
    #[arg(long, value_name = "SEQUENCE|TIME")]
    from: Target,
    /// The last sequence; or a time: the last segment committed before it; or latest: all that is acknowledged.
    #[arg(long, value_name = "SEQUENCE|TIME")]
    to: Target,
    /// Repair only this shard. Required for sequences in a buffer with several shards.
    #[arg(long, value_name = "N")]
    shard: Option<u32>,
    /// Repair only this stream. May be given more than once, and may end with *.
    #[arg(long = "stream", value_name = "NAME")]
    streams: Vec<StreamPattern>,
    #[command(flatten)]
    clickhouse: ClickHouseArgs,
    #[command(flatten)]
    table: TableArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Exits 1 if the repair was stopped before its end.
pub(super) async fn run(args: RepairArgs) -> anyhow::Result<ExitCode> {
    layout::check_reader_name(&args.consumer)?;
    ensure!(
        args.table.columns == Columns::All,
        "with --columns none the tables do not keep the identities of rows, so that nothing can be compared"
    );
    let shutdown = shutdown::on_signal()?;
    let store = args.store.open(false).await?;
    let ranges = args.ranges(&store).await?;
    let shards = ranges.len() as u64;
    let config = millpond_clickhouse::Config {
        create: false,
        ..args.table.at(&args.clickhouse.clickhouse)?
    };
    let sink = ClickHouse::open(config).await?;
    args.check_identities(&store, &sink, &ranges).await?;
    let streams = match args.streams.is_empty() {
        true => vec![StreamPattern::any()],
        false => args.streams.clone(),
    };
    let config = millpond_consumer::Config {
        consumer: args.consumer.clone(),
        instance: format!("repair-{}-{:08x}", std::process::id(), rand::random::<u32>()),
        streams,
        repair: Some(Repair { ranges }),
        ..millpond_consumer::Config::default()
    };
    let consumer = Consumer::new(store, config, Arc::new(sink), &mut Registry::default())?;
    let tally = consumer.tally();
    consumer.run(shutdown).await?;
    let (found, inserted, dead_letters) = (tally.found(), tally.inserted(), tally.dead_letters());
    let complete = tally.shards() == shards;
    if args.json {
        say!(
            "{}",
            json!({
                "complete": complete, "rows_asked_for": found + inserted, "rows_found": found, "rows_inserted": inserted,
                "dead_letters": dead_letters,
            })
        )?;
    } else {
        say!(
            "{}: asked for {}, found {found}, inserted {inserted}; {}",
            args.consumer,
            count(found + inserted, "row"),
            count(dead_letters, "dead letter")
        )?;
        if !complete {
            say!("the repair was stopped before its end: the same command goes on with it")?;
        }
    }
    Ok(if complete {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

impl RepairArgs {
    /// The sequences of each shard.
    async fn ranges(&self, store: &Store) -> anyhow::Result<BTreeMap<u32, RangeInclusive<u64>>> {
        let Buffer { shards, .. } = buffer(store).await?;
        if let Some(shard) = self.shard {
            ensure!(
                shard < shards,
                "there is no shard {shard}: the buffer has {shards}, numbered from 0"
            );
        }
        let is_sequence = |target| matches!(target, Target::Sequence(_));
        if shards > 1 && self.shard.is_none() && (is_sequence(self.from) || is_sequence(self.to)) {
            bail!("a sequence belongs to one shard: say which with --shard");
        }
        let mut ranges = BTreeMap::new();
        for shard in (0..shards).filter(|shard| self.shard.is_none_or(|own| own == *shard)) {
            let found = cursor(store, shard, &self.consumer).await?;
            let (Some(log), Some(cursor)) = (read_log(store, shard).await?, found) else {
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
                    "rows of {stream} below sequence {first} were inserted before rows had identities, so that they cannot be \
                     compared: use --from {first} or a later one"
                );
            }
        }
        Ok(())
    }
}

/// Resolves the range to sequences of a log.
fn range(from: Target, to: Target, log: &Log, cursor: &Cursor) -> anyhow::Result<RangeInclusive<u64>> {
    let from = from.position(log)?;
    let acknowledged = || {
        let positions = cursor.streams.values().map(|stream| stream.next);
        positions.min().unwrap_or(cursor.start)
    };
    let end = match to {
        Target::Sequence(sequence) => {
            ensure!(from <= sequence, "--from {from} lies behind --to {sequence}");
            sequence + 1
        }
        Target::Latest => acknowledged(),
        Target::Time(_) => to.position(log)?.min(acknowledged()),
        Target::Earliest => bail!("--to earliest is an empty range: use a sequence, a time or latest"),
    };
    Ok(match end.checked_sub(1) {
        Some(last) => from..=last,
        #[expect(clippy::reversed_empty_ranges, reason = "an empty one is meant")]
        None => 1..=0,
    })
}
