//! `millpond gc`: one round of the garbage collector by hand, and the settings of the one that runs beside a consumer.

use crate::output::say;
use crate::store::StoreArgs;
use crate::units::{Time, count, grouped, readable};
use anyhow::bail;
use millpond_consumer::gc::{Collected, GcConfig};
use millpond_operate::gc::round;
use std::time::Duration;

/// Commits of a busy shard, or over a slow network, take seconds.
const GRACE_SHORT: Duration = Duration::from_secs(60);

/// What may be deleted, and when.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct GcSettings {
    /// How old an object must be that no manifest refers to before it is deleted. 1h: a gateway whose segment has
    /// waited longer for its commit has to upload it again.
    #[arg(long, env = "MILLPOND_GC_GRACE", value_name = "TIME", default_value = "1h")]
    pub(crate) gc_grace: Time,

    /// Delete what was committed longer ago than this, READ OR NOT. 0s: never; only what every consumer has
    /// acknowledged goes.
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
                "gc-grace is {}: nothing is lost by it, but a gateway whose commits take longer uploads again and again and \
                 commits nothing; 1m or more is safe",
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

/// Which buffer, and how.
#[derive(Debug, clap::Args)]
pub(crate) struct GcArgs {
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    settings: GcSettings,
    /// Change nothing; say what would go. (What trimming sets free is younger than the grace at first, so a later round
    /// may delete more.)
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// One round over all shards.
pub(crate) async fn run(args: GcArgs) -> anyhow::Result<()> {
    let store = args.store.open(false).await?;
    let done = round(store, args.settings.gc(Duration::ZERO), args.dry_run).await?;
    if args.json {
        say!("{}", serde_json::to_string(&done)?)?;
    } else {
        print(&done, args.dry_run)?;
    }
    let unreadable = done.unreadable_cursors.len() as u64;
    if unreadable > 0 {
        bail!(
            "{} cannot be read, so that the logs of their shards are not trimmed:\n{}",
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
        unreadable_cursors: _,
    } = &done;
    let would = if dry_run { "would be " } else { "" };
    say!(
        "{} {would}trimmed, {} of them before some consumer had read them",
        count(*trimmed_sequences, "sequence"),
        grouped(*unread_sequences)
    )?;
    say!(
        "{} with {} and {} {would}deleted",
        count(*segments, "segment"),
        readable(*bytes),
        count(*pages, "page")
    )
}
