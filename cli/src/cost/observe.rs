//! What a live buffer shows of what was done to it: its manifests, pages and cursors, and the names of its objects, which
//! tell when they were made. It changes nothing.

use super::args::LiveArgs;
use crate::clock::now_ms;
use crate::inspect::{buffer, cursors, whole};
use anyhow::Context;
use millpond_cost::Observed;
use millpond_manifest::{Manifest, cas, layout};
use millpond_storage::{Listed, Store};
use std::collections::BTreeSet;
use ulid::Ulid;

/// What was seen, and of how much of the time that was asked for.
pub(super) struct Seen {
    pub(super) url: String,
    pub(super) asked_seconds: f64,
    pub(super) observed: Observed,
}

pub(super) async fn observe(args: &LiveArgs) -> anyhow::Result<Seen> {
    let url = args.buffer.clone().context("--buffer is missing")?;
    let store = args.s3.clone().store(url).open(false).await?;
    let buffer = buffer(&store).await?;
    let now = now_ms();
    let asked_ms = u64::try_from(args.since.0.as_millis()).unwrap_or(u64::MAX);

    let mut segments: Vec<(u64, u64)> = Vec::new();
    let mut pages: Vec<u64> = Vec::new();
    for shard in 0..buffer.shards {
        let listed = store.list(&layout::segments(shard)).await?;
        segments.extend(
            listed
                .iter()
                .filter_map(|found| Some((named_at(found)?, found.size))),
        );
        pages.extend(
            store
                .list(&layout::pages(shard))
                .await?
                .iter()
                .filter_map(named_at),
        );
    }
    // Before the oldest that is left, nothing can be seen.
    let oldest = segments.iter().map(|(named, _)| *named).min().unwrap_or(now);
    let from = now.saturating_sub(asked_ms).max(oldest);
    let seconds = |ms: u64| {
        #[expect(clippy::cast_precision_loss, reason = "milliseconds")]
        let ms = ms as f64;
        ms / 1_000.0
    };
    let recent = segments.iter().filter(|(named, _)| *named >= from);
    let mut observed = Observed {
        seconds: seconds(now.saturating_sub(from)),
        segments: recent.clone().count() as u64,
        bytes: recent.map(|(_, size)| size).sum(),
        pages: pages.iter().filter(|named| **named >= from).count() as u64,
        bytes_kept: segments.iter().map(|(_, size)| size).sum(),
        shards: buffer.shards,
        producers: 0,
        consumers: 0,
        segments_in_log: 0,
        commits_in_log: 0,
        parts_in_log: 0,
        raw_bytes_in_log: 0,
        bytes_in_log: 0,
    };
    let mut consumers = BTreeSet::new();
    for shard in 0..buffer.shards {
        consumers.extend(
            cursors(&store, shard)
                .await?
                .into_iter()
                .map(|cursor| cursor.consumer),
        );
        add_log(&store, shard, from, &mut observed).await?;
    }
    observed.consumers = u32::try_from(consumers.len()).unwrap_or(u32::MAX);
    Ok(Seen {
        url: store.url().to_owned(),
        asked_seconds: seconds(asked_ms),
        observed,
    })
}

/// When an object was named, from the ULID at the end of its key, in unix ms.
fn named_at(found: &Listed) -> Option<u64> {
    let name = found.key.rsplit(['/', '-']).next()?;
    Ulid::from_string(name).ok().map(|ulid| ulid.timestamp_ms())
}

/// How far before the newest commit a producer's last commit may lie if it still runs.
const ACTIVE_MS: u64 = 60_000;

/// Adds what a shard's log says of the time since `from`.
async fn add_log(store: &Store, shard: u32, from: u64, observed: &mut Observed) -> anyhow::Result<()> {
    let Some(found) = cas::read::<Manifest>(store, &layout::manifest(shard)).await? else {
        return Ok(());
    };
    let log = whole(store, found.state).await?;
    // A restarted gateway is another producer to the log, so only those of the last minute with commits count.
    let newest = log.producers.iter().map(|row| row.seen_at_ms).max().unwrap_or(0);
    let since = from.max(newest.saturating_sub(ACTIVE_MS));
    let active = log
        .producers
        .iter()
        .filter(|row| row.commit > 0 && row.seen_at_ms >= since);
    observed.producers += u32::try_from(active.count()).unwrap_or(u32::MAX);
    // All entries of a commit have its time.
    let mut commits = BTreeSet::new();
    for (_, entry) in log.entries(0).filter(|(_, entry)| entry.committed_at_ms >= from) {
        commits.insert(entry.committed_at_ms);
        observed.segments_in_log += 1;
        observed.bytes_in_log += entry.size;
        observed.parts_in_log += entry.parts.len() as u64;
        observed.raw_bytes_in_log += entry.parts.iter().map(|part| part.raw_len).sum::<u64>();
    }
    observed.commits_in_log += commits.len() as u64;
    Ok(())
}
