//! `millpond consumer`: who reads a buffer and how far, and an operator's hand on a cursor.

mod change;
mod repair;
mod wait;

use crate::clock::now_ms;
use crate::inspect::{buffer, cursor, cursors, whole};
use crate::output::{inline, say};
use crate::store::StoreArgs;
use crate::units::Time;
use anyhow::{anyhow, bail, ensure};
use change::Consent;
use millpond_manifest::cas::{self, Snapshot};
use millpond_manifest::cursor::{Ownership, Skip};
use millpond_manifest::{Cursor, Log, Manifest, layout};
use millpond_storage::Store;
use serde_json::json;
use std::ops::Range;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::UNIX_EPOCH;

/// What can be done about a buffer's consumers.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ConsumerCommand {
    /// Show every consumer: its owner, its position in every stream, and how many records it is behind.
    List {
        #[command(flatten)]
        store: StoreArgs,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Wait until a consumer has read all that is committed now. For scripts; exits 1 when the time is up.
    Wait {
        #[command(flatten)]
        store: StoreArgs,
        /// The consumer's name.
        #[arg(default_value = "default")]
        consumer: String,
        /// For how long. Without it, for as long as it takes.
        #[arg(long, value_name = "TIME")]
        timeout: Option<Time>,
    },
    /// Set a consumer's position in all streams, to repair its table or to leave something out. From there on the consumer
    /// compares the table with the buffer and inserts what is missing. It does not insert again what the table has. Rows that a
    /// mutation or a person removed come back, and so may rows that a TTL removed. The reset ends an unfinished repair. To fill another table, use another consumer name. To repair a range while
    /// the consumer runs, use `millpond consumer repair`.
    Reset {
        #[command(flatten)]
        hand: Hand,
        /// earliest, latest, a sequence, or a time like 2026-11-21T09:00:00Z: the first segment committed then or later.
        #[arg(long, value_name = "WHERE")]
        to: Target,
        /// Do not ask for confirmation. Required where standard input is not a terminal.
        #[arg(long)]
        yes: bool,
        /// Accept duplicates. Required for a consumer with `--columns none`: its table does not keep the identities of rows, so
        /// that rows whose tokens ClickHouse has forgotten are inserted again.
        #[arg(long)]
        may_duplicate: bool,
    },
    /// Compare a range that a consumer has acknowledged with its tables, and insert each missing row once. The consumer may run
    /// meanwhile. The buffer must still hold the range. A repair that was stopped or killed goes on with the same command;
    /// `millpond consumer remove NAME.repair` gives it up.
    Repair(Box<repair::RepairArgs>),
    /// Leave out one stream's part of one segment that cannot be read. The cursor keeps it with the reason. An owner that may
    /// have sent rows of it is fenced, and the next owner asks the table before it sends the rest.
    Skip {
        #[command(flatten)]
        store: StoreArgs,
        /// The consumer's name.
        consumer: String,
        /// As the consumer's error names it, like otlp.logs.
        #[arg(long)]
        stream: String,
        /// The segment's sequence, as the consumer's error names it.
        #[arg(long)]
        sequence: u64,
        /// The shard that the segment is in.
        #[arg(long, value_name = "N", default_value_t = 0)]
        shard: u32,
        /// Why, for those who ask later.
        #[arg(long)]
        reason: String,
    },
    /// Forget a consumer, so that nothing is kept for it any more. A running one ends. A tombstone of the cursor stays, so that
    /// a consumer of the same name does not insert rows again.
    Remove {
        #[command(flatten)]
        hand: Hand,
    },
}

/// Which consumer, and how hard.
#[derive(Debug, clap::Args)]
pub(crate) struct Hand {
    #[command(flatten)]
    store: StoreArgs,
    /// The consumer's name.
    consumer: String,
    /// Only in this shard.
    #[arg(long, value_name = "N")]
    shard: Option<u32>,
    /// Change the cursor although its owner, or a repair, is running: either is fenced. `remove` also needs this for a
    /// cursor that cannot be read.
    #[arg(long)]
    force: bool,
}

/// Where a consumer is to go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Earliest,
    Latest,
    Sequence(u64),
    /// Unix ms.
    Time(u64),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(sequence) = text.parse() {
            return Ok(Target::Sequence(sequence));
        }
        match text {
            "earliest" => Ok(Target::Earliest),
            "latest" => Ok(Target::Latest),
            _ => {
                let wrong = || {
                    format!(
                        "{text:?} is neither earliest, latest, a sequence nor a time like 2026-11-21T09:00:00Z"
                    )
                };
                let time = humantime::parse_rfc3339_weak(text).map_err(|_| wrong())?;
                let since = time.duration_since(UNIX_EPOCH).map_err(|_| wrong())?;
                Ok(Target::Time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)))
            }
        }
    }
}

impl Target {
    /// The sequence to go on from.
    pub(crate) fn position(self, log: &Log) -> anyhow::Result<u64> {
        let (first, next) = (log.first_sequence, log.next_sequence);
        Ok(match self {
            Target::Earliest => first,
            Target::Latest => next,
            Target::Sequence(sequence) => {
                ensure!(
                    (first..=next).contains(&sequence),
                    "sequence {sequence} is not in the log of shard {:04}, which goes from {first} to {next}",
                    log.shard
                );
                sequence
            }
            Target::Time(at_ms) => {
                let found = log.entries(0).find(|(_, entry)| entry.committed_at_ms >= at_ms);
                found.map_or(next, |(sequence, _)| sequence)
            }
        })
    }
}

impl ConsumerCommand {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            ConsumerCommand::Repair(args) => return repair::run(*args).await,
            ConsumerCommand::List { store, json } => list(&store, json).await?,
            ConsumerCommand::Wait {
                store,
                consumer,
                timeout,
            } => wait::until_read(&store.open(false).await?, &consumer, timeout.map(|time| time.0)).await?,
            ConsumerCommand::Reset {
                hand,
                to,
                yes,
                may_duplicate,
            } => {
                let consent = Consent { yes, may_duplicate };
                change::reset(&hand, to, consent).await?;
            }
            ConsumerCommand::Remove { hand } => change::remove(&hand).await?,
            ConsumerCommand::Skip {
                store,
                consumer,
                stream,
                sequence,
                shard,
                reason,
            } => {
                let skip = Skip {
                    stream,
                    sequence,
                    at_ms: now_ms(),
                    reason,
                };
                change::leave_out(&store.open(false).await?, &consumer, shard, skip).await?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn list(args: &StoreArgs, as_json: bool) -> anyhow::Result<()> {
    let store = args.open(false).await?;
    let mut all = Vec::new();
    for shard in 0..buffer(&store).await?.shards {
        let log = read_log(&store, shard).await?;
        for cursor in cursors(&store, shard).await? {
            let owner = match &cursor.ownership {
                Ownership::Released => "released".to_owned(),
                Ownership::Abandoned => "abandoned with batches in doubt".to_owned(),
                Ownership::Removed => "removed".to_owned(),
                Ownership::Held { owner, .. } if cursor.held_at(now_ms()).is_some() => {
                    format!("held by {owner}")
                }
                Ownership::Held { owner, .. } => format!("left by {owner}, whose lease has run out"),
            };
            if !as_json {
                say!(
                    "{} in shard {shard:04}: {owner}, epoch {}",
                    cursor.consumer,
                    cursor.epoch
                )?;
            }
            let mut streams = Vec::new();
            for (index, stream) in (0_u32..).zip(log.iter().flat_map(|log| &log.streams)) {
                let next = cursor.next(&stream.name);
                let behind = log.as_ref().map_or(0, |log| log.records(index, next));
                if as_json {
                    streams.push(json!({ "stream": stream.name, "next": next, "records_behind": behind }));
                } else {
                    say!("    {:<24} next {next}, {behind} records behind", stream.name)?;
                }
            }
            if !as_json {
                for skip in &cursor.skipped {
                    say!(
                        "    left out: sequence {} of {}: {}",
                        skip.sequence,
                        skip.stream,
                        inline(&skip.reason)
                    )?;
                }
            }
            all.push(json!({
                "consumer": cursor.consumer, "shard": shard, "epoch": cursor.epoch, "ownership": owner,
                "sink": cursor.policy.sink, "streams": streams, "skipped": cursor.skipped,
            }));
        }
    }
    if as_json {
        say!("{}", json!({ "consumers": all }))?;
    } else if all.is_empty() {
        say!("no consumer has read this buffer")?;
    }
    Ok(())
}

impl Hand {
    /// The shards that are meant.
    async fn shards(&self, store: &Store) -> anyhow::Result<Range<u32>> {
        layout::check_consumer_name(&self.consumer)?;
        let shards = buffer(store).await?.shards;
        let Some(shard) = self.shard else {
            return Ok(0..shards);
        };
        ensure!(
            shard < shards,
            "there is no shard {shard}: the buffer has {shards}, numbered from 0"
        );
        Ok(shard..shard + 1)
    }

    fn unknown(&self, store: &Store) -> anyhow::Error {
        anyhow!(
            "no consumer {} has read the buffer at {}: `millpond consumer list` shows those that have",
            self.consumer,
            store.url()
        )
    }

    /// The cursors that are meant; an error when there is none, or when an owner lives and force was not asked for.
    async fn cursors(&self, store: &Store) -> anyhow::Result<Vec<(u32, Snapshot<Cursor>)>> {
        let mut found = Vec::new();
        for shard in self.shards(store).await? {
            let cursor = cursor(store, shard, &self.consumer).await?;
            found.extend(cursor.map(|cursor| (shard, cursor)));
        }
        if found.is_empty() {
            return Err(self.unknown(store));
        }
        let now_ms = now_ms();
        for (shard, cursor) in &found {
            if let Some(held) = cursor.state.held_at(now_ms)
                && !self.force
            {
                bail!(
                    "{} owns the cursor of {} in shard {shard:04} for another {} ms: stop it first, or use --force",
                    held.owner,
                    self.consumer,
                    held.lease_expires_at_ms - now_ms
                );
            }
        }
        Ok(found)
    }
}

async fn read_log(store: &Store, shard: u32) -> anyhow::Result<Option<Log>> {
    match cas::read::<Manifest>(store, &layout::manifest(shard)).await? {
        Some(found) => Ok(Some(whole(store, found.state).await?)),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_read_as_people_write_them() {
        assert_eq!("earliest".parse(), Ok(Target::Earliest));
        assert_eq!("latest".parse(), Ok(Target::Latest));
        assert_eq!("12".parse(), Ok(Target::Sequence(12)));
        assert_eq!("1970-01-01T00:00:01Z".parse(), Ok(Target::Time(1_000)));
        assert_eq!("1970-01-01 00:00:02".parse(), Ok(Target::Time(2_000)));
        for bad in ["", "-1", "yesterday", "1960-01-01T00:00:00Z"] {
            let error = bad.parse::<Target>().expect_err(bad);
            assert!(error.contains("neither earliest"), "{error}");
        }
    }
}
