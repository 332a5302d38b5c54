//! `millpond consumer`: the positions of consumers, and an operator's changes to them.

use crate::output::{inline, say};
use crate::progress::Progress;
use crate::shutdown;
use crate::store::StoreArgs;
use crate::table::{ClickHouseArgs, TableArgs};
use crate::units::{Time, count};
use anyhow::ensure;
use millpond_clickhouse::keeps_identities;
use millpond_consumer::StreamPattern;
use millpond_operate::Target;
use millpond_operate::buffer::buffer;
use millpond_operate::consumers::repair::{Options, repair};
use millpond_operate::consumers::{self, Consumer, Selection, change};
use millpond_storage::Store;
use serde_json::json;
use std::io::{BufRead, IsTerminal, Write};
use std::process::ExitCode;

/// The commands about consumers.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum ConsumerCommand {
    /// List consumers with their owners, positions and lags.
    List {
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        #[command(flatten, next_help_heading = "Buffer")]
        store: StoreArgs,
    },
    /// Wait until a consumer has read everything that is committed now. For scripts; exits 1 when the time is up.
    Wait {
        /// The consumer's name.
        #[arg(default_value = "default")]
        consumer: String,
        /// Maximum time to wait. Default: forever.
        #[arg(long, value_name = "TIME")]
        timeout: Option<Time>,
        #[command(flatten, next_help_heading = "Buffer")]
        store: StoreArgs,
    },
    /// Set a consumer's position in all streams, to repair its table or to leave out records. From this position on, the consumer
    /// compares the table with the buffer and inserts only missing rows. Rows that a mutation or a person removed come back, and so
    /// may rows that a TTL removed. The command says how many unacknowledged records it passes over. The reset ends an unfinished
    /// repair. To fill another table, use another consumer name. To repair a range while the consumer runs, use `millpond consumer
    /// repair`.
    Reset {
        #[command(flatten)]
        selected: Selected,
        /// The new position: earliest, latest, a sequence, or the first segment committed at or after a time: 5m for five minutes ago,
        /// or 2026-11-22T10:00Z.
        #[arg(long, value_name = "WHERE")]
        to: Target,
        /// Do not ask for confirmation. Required where standard input is not a terminal.
        #[arg(long)]
        yes: bool,
        /// Accept duplicates. Required for a consumer with `--columns none`: its table does not keep the identities of rows, and
        /// the consumer inserts rows again whose tokens ClickHouse has forgotten.
        #[arg(long)]
        may_duplicate: bool,
    },
    /// Compare an acknowledged range with the consumer's tables, and insert each missing row once. The consumer may run
    /// meanwhile. The buffer must still hold the range. The same command continues a repair that was stopped or killed;
    /// `millpond consumer remove NAME.repair` gives it up.
    Repair(Box<RepairArgs>),
    /// Leave out one stream's part of a segment that cannot be read. The cursor records it with the reason. The command fences
    /// an owner that may have sent rows of the part; the next owner asks the table before it sends the rest.
    Skip {
        /// The consumer's name.
        consumer: String,
        /// The stream that the consumer's error names, such as otlp.logs.
        #[arg(long)]
        stream: String,
        /// The sequence that the consumer's error names.
        #[arg(long)]
        sequence: u64,
        /// The shard of the segment.
        #[arg(long, value_name = "N", default_value_t = 0)]
        shard: u32,
        /// The reason, for the record.
        #[arg(long)]
        reason: String,
        #[command(flatten, next_help_heading = "Buffer")]
        store: StoreArgs,
    },
    /// Remove a consumer, so that the buffer keeps nothing for it. A running one exits. A tombstone of its cursor stays, so that
    /// a later consumer with the same name does not insert rows again.
    Remove {
        #[command(flatten)]
        selected: Selected,
    },
}

/// The cursors to change.
#[derive(Debug, clap::Args)]
pub(crate) struct Selected {
    /// The consumer's name.
    consumer: String,
    /// Change only the cursor in this shard.
    #[arg(long, value_name = "N")]
    shard: Option<u32>,
    /// Change the cursor although its owner, or a repair, is running, and fence it. `remove` also needs this flag for a
    /// cursor that cannot be read.
    #[arg(long)]
    force: bool,
    #[command(flatten, next_help_heading = "Buffer")]
    store: StoreArgs,
}

/// The arguments of `millpond consumer repair`.
#[derive(Debug, clap::Args)]
pub(crate) struct RepairArgs {
    /// The consumer's name.
    consumer: String,
    /// First sequence, as `millpond doctor --rows` names it; or earliest, or a time such as 5m (ago) or 2026-11-22T10:00Z.
    #[arg(long, value_name = "SEQUENCE|TIME")]
    from: Target,
    /// Last sequence; or a time, for the last segment committed before it; or latest, for everything acknowledged.
    #[arg(long, value_name = "SEQUENCE|TIME")]
    to: Target,
    /// Repair only this shard. Required for sequences in a buffer with several shards.
    #[arg(long, value_name = "N")]
    shard: Option<u32>,
    /// Repair only this stream. May be given more than once, and may end with *.
    #[arg(long = "stream", value_name = "NAME")]
    streams: Vec<StreamPattern>,
    /// Make rows by these programs although the consumer has others: for a range whose rows an earlier --transform made.
    #[arg(long)]
    other_transform: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "ClickHouse")]
    clickhouse: ClickHouseArgs,
    #[command(flatten, next_help_heading = "ClickHouse")]
    table: TableArgs,
    #[command(flatten, next_help_heading = "Buffer")]
    store: StoreArgs,
}

impl ConsumerCommand {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        match self {
            ConsumerCommand::Repair(args) => return args.run().await,
            ConsumerCommand::List { store, json } => list(&store.open(false).await?, json).await?,
            ConsumerCommand::Wait {
                store,
                consumer,
                timeout,
            } => {
                let store = store.open(false).await?;
                let timeout = timeout.map(|time| time.0);
                let progress = Progress::towards(0, "records");
                let mut named = false;
                let records = consumers::until_read(&store, &consumer, timeout, |look| {
                    progress.set(look.records - look.behind, look.records);
                    progress.because(&reason(look));
                    if !look.is_known && !named {
                        // A mistyped name would otherwise wait without a word.
                        progress.aside(|| {
                            eprintln!("millpond: consumer {consumer} has never run: waiting for it");
                        });
                        named = true;
                    }
                })
                .await?;
                drop(progress);
                say!(
                    "{consumer} has read everything committed: the buffer still keeps {records} of these records"
                )?;
            }
            ConsumerCommand::Reset {
                selected,
                to,
                yes,
                may_duplicate,
            } => {
                let consent = Consent { yes, may_duplicate };
                reset(selected, to, consent).await?;
            }
            ConsumerCommand::Remove { selected } => remove(selected).await?,
            ConsumerCommand::Skip {
                store,
                consumer,
                stream,
                sequence,
                shard,
                reason,
            } => {
                let store = store.open(false).await?;
                let skipped = change::skip(&store, &consumer, shard, stream, sequence, reason).await?;
                say!(
                    "{consumer} skips {} records of segment {} (sequence {sequence})",
                    skipped.records,
                    skipped.segment
                )?;
                if let Some(owner) = skipped.fenced {
                    say!(
                        "rows of that segment may have been sent, so {owner} was fenced: the next owner asks the table before it \
                         sends the rest"
                    )?;
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The reason why a consumer does not proceed.
fn reason(look: &consumers::Look<'_>) -> String {
    if !look.is_known {
        return "the consumer has never run".to_owned();
    }
    look.waiting_for.first().cloned().unwrap_or_default()
}

async fn list(store: &Store, as_json: bool) -> anyhow::Result<()> {
    let mut all = Vec::new();
    for shard in 0..buffer(store).await?.shards {
        for consumer in consumers::list(store, shard).await? {
            if !as_json {
                print(&consumer)?;
            }
            all.push(consumer);
        }
    }
    if as_json {
        say!("{}", json!({ "consumers": all }))?;
    } else if all.is_empty() {
        say!("no consumer has read this buffer")?;
    }
    Ok(())
}

fn print(consumer: &Consumer) -> anyhow::Result<()> {
    say!(
        "{} in shard {:04}: {}, epoch {}",
        consumer.consumer,
        consumer.shard,
        consumer.ownership,
        consumer.epoch
    )?;
    for position in &consumer.streams {
        say!(
            "    {:<24} next {}, {} records behind",
            position.stream,
            position.next,
            position.records_behind
        )?;
    }
    for skip in &consumer.skipped {
        say!(
            "    skipped: sequence {} of {}: {}",
            skip.sequence,
            skip.stream,
            inline(&skip.reason)
        )?;
    }
    Ok(())
}

impl Selected {
    async fn open(self) -> anyhow::Result<(Store, Selection)> {
        let selection = Selection {
            consumer: self.consumer,
            shard: self.shard,
            force: self.force,
        };
        Ok((self.store.open(false).await?, selection))
    }
}

/// The risks that an operator has accepted.
#[derive(Debug, Clone, Copy)]
struct Consent {
    yes: bool,
    may_duplicate: bool,
}

impl Consent {
    /// Asks for the missing consent. `resets`: shard, position and sink of each cursor.
    fn ask(self, consumer: &str, resets: &[(u32, u64, &str)]) -> anyhow::Result<()> {
        let lacking = resets.iter().find(|(.., sink)| !keeps_identities(sink));
        if let Some((.., sink)) = lacking {
            ensure!(
                self.may_duplicate,
                "{consumer} writes to {sink}, which does not keep the identities of rows: a reset inserts rows again whose tokens \
                 ClickHouse has forgotten; use --may-duplicate to accept that"
            );
        }
        if self.yes {
            return Ok(());
        }
        ensure!(
            std::io::stdin().is_terminal(),
            "a reset brings back rows that a mutation or a person removed from the table, and perhaps rows that a TTL removed: \
             confirm it with --yes"
        );
        for (shard, position, _) in resets {
            eprintln!("{consumer} in shard {shard:04} continues from sequence {position}.");
        }
        eprintln!("Rows that the table has are not inserted again.");
        eprintln!("Rows that a mutation or a person removed come back, and so may rows that a TTL removed.");
        eprint!("Reset {consumer}? [y/N] ");
        std::io::stderr().flush()?;
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer)?;
        ensure!(matches!(answer.trim(), "y" | "Y" | "yes"), "nothing was changed");
        Ok(())
    }
}

async fn reset(selected: Selected, to: Target, consent: Consent) -> anyhow::Result<()> {
    let (store, selection) = selected.open().await?;
    let consumer = &selection.consumer;
    let resets = change::plan_reset(&store, &selection, to).await?;
    let changes: Vec<_> = resets
        .iter()
        .map(|reset| (reset.shard, reset.position, reset.sink.as_str()))
        .collect();
    for passed_over in resets.iter().filter_map(|reset| passed_over(consumer, reset)) {
        eprintln!("{passed_over}");
    }
    consent.ask(consumer, &changes)?;
    for reset in &resets {
        let changed = change::reset(&store, &selection, reset).await?;
        report_ended_repair(&changed, consumer, reset.shard);
        // Change the other shards even if standard output is closed.
        let _ = say!(
            "{consumer} in shard {:04} continues from sequence {}, and inserts the rows that its table lacks from there on",
            reset.shard,
            reset.position
        );
    }
    Ok(())
}

/// Says which unread records a reset passes over.
fn passed_over(consumer: &str, reset: &change::Reset) -> Option<String> {
    let what = match &reset.passed_over {
        None => {
            "may pass over records that it has not acknowledged: a page of the log cannot be read".to_owned()
        }
        Some(streams) if streams.is_empty() => return None,
        Some(streams) => {
            let each = streams
                .iter()
                .map(|(stream, records)| format!("{} of {stream}", count(*records, "record")));
            let each: Vec<String> = each.collect();
            format!("passes over {} that it has not acknowledged", each.join(", "))
        }
    };
    Some(format!("{consumer} in shard {:04} {what}", reset.shard))
}

async fn remove(selected: Selected) -> anyhow::Result<()> {
    let (store, selection) = selected.open().await?;
    let consumer = &selection.consumer;
    for removal in change::plan_removal(&store, &selection).await? {
        let changed = change::remove(&store, &selection, &removal).await?;
        report_ended_repair(&changed, consumer, removal.shard);
        // Change the other shards even if standard output is closed.
        let _ = say!("{consumer} is removed from shard {:04}", removal.shard);
    }
    change::forget_processes(&store, &selection).await?;
    change::check_removed(&store, &selection).await
}

fn report_ended_repair(changed: &change::Changed, consumer: &str, shard: u32) {
    if changed.repair_ended {
        let _ = say!("the unfinished repair of {consumer} in shard {shard:04} is given up");
    }
}

impl RepairArgs {
    /// Exits 1 if the repair was stopped before its end.
    async fn run(self) -> anyhow::Result<ExitCode> {
        let shutdown = shutdown::on_signal()?;
        let store = self.store.open(false).await?;
        let options = Options {
            tables: self.table.at(&self.clickhouse.clickhouse)?,
            consumer: self.consumer.clone(),
            from: self.from,
            to: self.to,
            shard: self.shard,
            streams: self.streams,
            other_programs: self.other_transform,
        };
        let progress = Progress::towards(0, "records");
        let repaired = repair(store, options, shutdown, |done, total| progress.set(done, total)).await?;
        drop(progress);
        if self.json {
            say!("{}", serde_json::to_value(&repaired)?)?;
        } else {
            say!(
                "{}: asked for {}, found {}, inserted {}; {}",
                self.consumer,
                count(repaired.rows_asked_for, "row"),
                repaired.rows_found,
                repaired.rows_inserted,
                count(repaired.dead_letters, "dead letter")
            )?;
            if !repaired.complete {
                say!("the repair was stopped before its end: run the same command again to continue")?;
            }
        }
        Ok(if repaired.complete {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_without_identities_needs_more_than_a_yes() {
        let yes = Consent {
            yes: true,
            may_duplicate: false,
        };
        let changes = [(0, 3, "clickhouse:otel.otel_logs;columns=none")];
        let refused = yes.ask("e2e", &changes).unwrap_err().to_string();
        assert!(refused.contains("--may-duplicate"), "{refused}");
        let both = Consent {
            may_duplicate: true,
            ..yes
        };
        both.ask("e2e", &changes).unwrap();
        yes.ask("e2e", &[(0, 3, "clickhouse:otel.otel_logs")]).unwrap();
    }
}
