//! `millpond gc`: one round of garbage collection, and the settings of the collector in a consumer.

use crate::output::say;
use crate::progress::Progress;
use crate::store::StoreArgs;
use crate::units::{Time, count, grouped, readable};
use anyhow::bail;
use millpond_consumer::gc::{Collected, GcConfig};
use millpond_operate::gc::round;
use std::time::Duration;

/// A shorter grace earns a warning: commits to a busy shard, or over a slow network, take seconds.
const GRACE_SHORT: Duration = Duration::from_secs(60);

/// The conditions of deletion.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct GcSettings {
    /// Minimum age of an unreferenced object before it is deleted. A gateway uploads a segment again that has waited longer
    /// for its commit.
    #[arg(long, env = "MILLPOND_GC_GRACE", value_name = "TIME", default_value = "1h")]
    pub(crate) gc_grace: Time,

    /// Delete segments committed longer ago than this, READ OR NOT. 0s deletes only segments that every consumer has
    /// acknowledged.
    #[arg(
        long,
        env = "MILLPOND_RETENTION_MAX_AGE",
        value_name = "TIME",
        default_value = "0s"
    )]
    pub(crate) retention_max_age: Time,
}

impl GcSettings {
    pub(crate) fn gc(&self, interval: Duration) -> GcConfig {
        if self.gc_grace.0 < GRACE_SHORT {
            tracing::warn!(
                "gc-grace is {}: no data is lost, but a gateway whose commits take longer uploads the same segments over and over and \
                 commits none; use 1m or more",
                self.gc_grace
            );
        }
        GcConfig {
            interval,
            grace: self.gc_grace.0,
            max_age: (!self.retention_max_age.0.is_zero()).then_some(self.retention_max_age.0),
        }
    }
}

/// The flags of `millpond gc`.
#[derive(Debug, clap::Args)]
pub(crate) struct GcArgs {
    /// Delete nothing, and report what a round would delete. A later round may delete more: objects that trimming releases
    /// must first reach the grace.
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten, next_help_heading = "Garbage collection")]
    settings: GcSettings,
    #[command(flatten, next_help_heading = "Buffer")]
    store: StoreArgs,
}

/// Collects the garbage of all shards.
pub(crate) async fn run(args: GcArgs) -> anyhow::Result<()> {
    let store = args.store.open(false).await?;
    let config = args.settings.gc(Duration::ZERO);
    let progress = Progress::towards(0, "objects deleted");
    let done = round(store, config, args.dry_run, |step| {
        progress.set(step.deleted, step.found);
        progress.because(&format!(
            "{} of {} done",
            step.shards_done,
            count(step.shards.into(), "shard")
        ));
    })
    .await?;
    drop(progress);
    if args.json {
        say!("{}", serde_json::to_string(&done)?)?;
    } else {
        print(&done, args.dry_run)?;
    }
    let unreadable = done.unreadable_cursors.len() as u64;
    if unreadable > 0 {
        bail!(
            "{} cannot be read, cannot be compared with the log or have read another log, so the logs of their shards are not trimmed:\n{}",
            count(unreadable, "cursor"),
            done.unreadable_cursors.join("\n")
        );
    }
    Ok(())
}

fn print(done: &Collected, dry_run: bool) -> anyhow::Result<()> {
    let Collected {
        trimmed_sequences,
        unread_sequences,
        segments,
        bytes,
        pages,
        member_lists,
        unique_snapshots,
        unreadable_cursors: _,
    } = &done;
    let would = if dry_run { "would be " } else { "" };
    say!(
        "{} {would}trimmed, {} of them before every consumer had read them",
        count(*trimmed_sequences, "sequence"),
        grouped(*unread_sequences)
    )?;
    say!(
        "{} with {} and {} {would}deleted",
        count(*segments, "segment"),
        readable(*bytes),
        count(*pages, "page")
    )?;
    if *member_lists > 0 {
        say!(
            "{} with processes of removed consumers {would}deleted",
            count(*member_lists, "list")
        )?;
    }
    if *unique_snapshots > 0 {
        say!(
            "{} of keys {would}deleted",
            count(*unique_snapshots, "old snapshot")
        )?;
    }
    Ok(())
}
