//! Derives a live buffer's load from its manifests, pages and cursors, and from the ULIDs in the names of its objects, which
//! hold their times. Reads only.

use crate::buffer::{buffer, cursors, read_log};
use millpond_cost::Observed;
use millpond_manifest::layout;
use millpond_runtime::{Environment as _, SystemEnvironment};
use millpond_storage::{Listed, Store};
use std::collections::BTreeSet;
use std::time::Duration;
use ulid::Ulid;

/// The load of a live buffer.
#[derive(Debug)]
pub struct Seen {
    /// The buffer's URL.
    pub url: String,
    /// The time to observe.
    pub asked_seconds: f64,
    /// The load, and the part of the time that the buffer still shows.
    pub observed: Observed,
}

/// Observes the last `since` of a buffer.
///
/// # Errors
/// There is no buffer, or one of its objects cannot be read.
pub async fn observe(store: &Store, since: Duration) -> anyhow::Result<Seen> {
    let buffer = buffer(store).await?;
    let now = SystemEnvironment.now_ms();
    let asked_ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);

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
    // The buffer does not show the time before its oldest segment.
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
        peers: false,
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
            cursors(store, shard)
                .await?
                .into_iter()
                .map(|cursor| cursor.consumer),
        );
        add_log(store, shard, from, &mut observed).await?;
    }
    observed.consumers = u32::try_from(consumers.len()).unwrap_or(u32::MAX);
    Ok(Seen {
        url: store.url().to_owned(),
        asked_seconds: seconds(asked_ms),
        observed,
    })
}

/// The Unix time in ms of the ULID at the end of a key.
fn named_at(found: &Listed) -> Option<u64> {
    let name = found.key.rsplit(['/', '-']).next()?;
    Ulid::from_string(name).ok().map(|ulid| ulid.timestamp_ms())
}

/// How far before the newest commit a producer's last commit may lie if it still runs.
const ACTIVE_MS: u64 = 60_000;

/// Adds the entries of a shard's log since `from`.
async fn add_log(store: &Store, shard: u32, from: u64, observed: &mut Observed) -> anyhow::Result<()> {
    let Some(log) = read_log(store, shard).await? else {
        return Ok(());
    };
    // A restarted gateway is another producer to the log, so only those of the last minute with commits count.
    let newest = log.producers.iter().map(|row| row.seen_at_ms).max().unwrap_or(0);
    let since = from.max(newest.saturating_sub(ACTIVE_MS));
    let active = log
        .producers
        .iter()
        .filter(|row| row.commit > 0 && row.seen_at_ms >= since);
    observed.producers += u32::try_from(active.count()).unwrap_or(u32::MAX);
    observed.peers |= log.leader.as_ref().is_some_and(|leader| leader.shared > 0);
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
