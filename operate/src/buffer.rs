//! Reads a buffer's objects: the buffer itself, logs with their pages, and cursors.

use anyhow::{Context, ensure};
use millpond_manifest::cas::{self, ReadError, Snapshot};
use millpond_manifest::{Buffer, Cursor, Log, Manifest, Page, PageReference, layout};
use millpond_storage::Store;
use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

/// The remedy for a missing buffer.
pub const NO_BUFFER: &str = "check the URL; a gateway makes the buffer when it starts";

/// Reads the buffer.
///
/// # Errors
/// There is no buffer, or it cannot be read.
pub async fn buffer(store: &Store) -> anyhow::Result<Buffer> {
    let found = find_buffer(store).await?;
    found.with_context(|| format!("there is no buffer at {}: {NO_BUFFER}", store.url()))
}

/// Reads the buffer, if there is one.
pub(crate) async fn find_buffer(store: &Store) -> Result<Option<Buffer>, ReadError> {
    let found = cas::read::<Buffer>(store, layout::BUFFER).await?;
    Ok(found.map(|found| found.state))
}

/// The shards to work on: `shard`, or all.
///
/// # Errors
/// The buffer has no such shard.
pub(crate) fn shards(buffer: &Buffer, shard: Option<u32>) -> anyhow::Result<Range<u32>> {
    let shards = buffer.shards;
    let Some(shard) = shard else {
        return Ok(0..shards);
    };
    ensure!(
        shard < shards,
        "there is no shard {shard}: the buffer has {shards}, numbered from 0"
    );
    Ok(shard..shard + 1)
}

/// Reads a shard's log with all of its pages. `None` before the first commit.
pub(crate) async fn read_log(store: &Store, shard: u32) -> anyhow::Result<Option<Log>> {
    read_log_with(store, shard, |_| true).await
}

/// Reads a shard's log with the pages of these sequences. The others may be damaged.
pub(crate) async fn read_log_of(
    store: &Store,
    shard: u32,
    sequences: &RangeInclusive<u64>,
) -> anyhow::Result<Option<Log>> {
    let has_some = |page: &PageReference| page.first <= *sequences.end() && *sequences.start() <= page.last;
    read_log_with(store, shard, has_some).await
}

/// Reads a shard's log without its pages: it has the newest segments alone.
pub(crate) async fn read_tail(store: &Store, shard: u32) -> anyhow::Result<Option<Log>> {
    read_log_with(store, shard, |_| false).await
}

async fn read_log_with(
    store: &Store,
    shard: u32,
    is_wanted: impl Fn(&PageReference) -> bool,
) -> anyhow::Result<Option<Log>> {
    let Some(found) = cas::read::<Manifest>(store, &layout::manifest(shard)).await? else {
        return Ok(None);
    };
    let mut log = Log::new(found.state);
    let wanted: Vec<PageReference> = log.pages.iter().filter(|page| is_wanted(page)).cloned().collect();
    for reference in &wanted {
        load(store, &mut log, reference).await?;
    }
    Ok(Some(log))
}

/// The log of a manifest with all of its pages.
pub(crate) async fn whole(store: &Store, manifest: Manifest) -> anyhow::Result<Log> {
    let mut log = Log::new(manifest);
    complete(store, &mut log).await?;
    Ok(log)
}

/// Loads the missing pages of a log.
pub(crate) async fn complete(store: &Store, log: &mut Log) -> anyhow::Result<()> {
    while let Some(reference) = log.missing(0).cloned() {
        load(store, log, &reference).await?;
    }
    Ok(())
}

/// Loads a page of a log.
pub(crate) async fn load(store: &Store, log: &mut Log, reference: &PageReference) -> anyhow::Result<()> {
    let key = layout::page(log.shard, reference.first, reference.page);
    let page = cas::read::<Page>(store, &key).await?;
    let page = page.with_context(|| format!("{key} is in the manifest but not in the store"))?;
    log.load(reference, Arc::new(page.state)).with_context(|| key)
}

/// Reads a consumer's cursor. The tombstone of a removed consumer does not count as one.
pub(crate) async fn cursor(
    store: &Store,
    shard: u32,
    consumer: &str,
) -> Result<Option<Snapshot<Cursor>>, ReadError> {
    let found = cas::read::<Cursor>(store, &layout::cursor(shard, consumer)).await?;
    Ok(found.filter(|found| !found.state.is_removed()))
}

/// Reads the cursors of a shard, except those of removed consumers.
pub(crate) async fn cursors(store: &Store, shard: u32) -> anyhow::Result<Vec<Cursor>> {
    let found = each_cursor(store, shard).await?;
    found.into_iter().map(|cursor| Ok(cursor?)).collect()
}

/// Like [`cursors`], with a separate result for each damaged cursor.
pub(crate) async fn each_cursor(store: &Store, shard: u32) -> anyhow::Result<Vec<Result<Cursor, ReadError>>> {
    let mut cursors = with_tombstones(store, shard).await?;
    cursors.retain(|cursor| !cursor.as_ref().is_ok_and(Cursor::is_removed));
    Ok(cursors)
}

/// Like [`each_cursor`], with those of removed consumers: they may ask for tables.
pub(crate) async fn with_tombstones(
    store: &Store,
    shard: u32,
) -> anyhow::Result<Vec<Result<Cursor, ReadError>>> {
    let mut cursors = Vec::new();
    for found in store.list(&layout::consumers(shard)).await? {
        if found.key.ends_with("/cursor") {
            match cas::read::<Cursor>(store, &found.key).await {
                Ok(found) => cursors.extend(found.map(|found| Ok(found.state))),
                Err(damaged @ ReadError::Format { .. }) => cursors.push(Err(damaged)),
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(cursors)
}
