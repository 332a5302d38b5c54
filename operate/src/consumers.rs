//! Consumers and their cursors: positions, an operator's changes, repairs.

pub mod change;
pub mod repair;
mod wait;

pub use wait::{Look, until_read};

use crate::buffer::{buffer, cursor, cursors, read_log, shards};
use anyhow::{anyhow, bail};
use millpond_manifest::cas::Snapshot;
use millpond_manifest::cursor::{Ownership, Skip};
use millpond_manifest::{Cursor, layout};
use millpond_runtime::{Environment as _, SystemEnvironment};
use millpond_storage::Store;
use serde::Serialize;
use std::ops::Range;

/// A consumer of a shard.
#[derive(Debug, Serialize)]
pub struct Consumer {
    /// Its name.
    pub consumer: String,
    /// The shard.
    pub shard: u32,
    /// The cursor's epoch.
    pub epoch: u64,
    /// The state of the cursor, for people.
    pub ownership: String,
    /// The name of its sink.
    pub sink: String,
    /// Its position in each stream.
    pub streams: Vec<Position>,
    /// Parts that an operator skipped.
    pub skipped: Vec<Skip>,
}

/// The position of a consumer in a stream.
#[derive(Debug, Serialize)]
pub struct Position {
    /// The stream.
    pub stream: String,
    /// Everything below this sequence is acknowledged.
    pub next: u64,
    /// Records that are not acknowledged.
    pub records_behind: u64,
}

/// Reads the consumers of a shard.
///
/// # Errors
/// A cursor, or the log, cannot be read.
pub async fn list(store: &Store, shard: u32) -> anyhow::Result<Vec<Consumer>> {
    let log = read_log(store, shard).await?;
    let consumer = |cursor: Cursor| {
        let ownership = match &cursor.ownership {
            Ownership::Released if !cursor.is_clean() => {
                "released, and its settings stay until the batches planned ahead are written".to_owned()
            }
            Ownership::Released => "released".to_owned(),
            Ownership::Abandoned => "abandoned with batches in doubt".to_owned(),
            Ownership::Removed => "removed".to_owned(),
            Ownership::Held { owner, .. } if cursor.held_at(SystemEnvironment.now_ms()).is_some() => {
                format!("held by {owner}")
            }
            Ownership::Held { owner, .. } => format!("left by {owner}, whose lease has run out"),
        };
        let streams = (0_u32..).zip(log.iter().flat_map(|log| &log.streams));
        let streams = streams.map(|(index, stream)| {
            let next = cursor.next(&stream.name);
            Position {
                stream: stream.name.clone(),
                next,
                records_behind: log.as_ref().map_or(0, |log| log.records(index, next)),
            }
        });
        Consumer {
            shard,
            epoch: cursor.epoch,
            ownership,
            streams: streams.collect(),
            consumer: cursor.consumer,
            sink: cursor.policy.sink,
            skipped: cursor.skipped,
        }
    };
    Ok(cursors(store, shard).await?.into_iter().map(consumer).collect())
}

/// The cursors to change.
#[derive(Debug, Clone)]
pub struct Selection {
    /// The consumer's name.
    pub consumer: String,
    /// The shard; `None` for all.
    pub shard: Option<u32>,
    /// Change a cursor although its owner, or a repair, is running.
    pub force: bool,
}

impl Selection {
    async fn shards(&self, store: &Store) -> anyhow::Result<Range<u32>> {
        layout::check_consumer_name(&self.consumer)?;
        shards(&buffer(store).await?, self.shard)
    }

    fn unknown(&self, store: &Store) -> anyhow::Error {
        anyhow!(
            "no consumer {} has read the buffer at {}: `millpond consumer list` shows those that have",
            self.consumer,
            store.url()
        )
    }

    /// Reads the selected cursors. Fails without any, and at one whose owner is running unless forced.
    async fn cursors(&self, store: &Store) -> anyhow::Result<Vec<(u32, Snapshot<Cursor>)>> {
        let found = self.there(store).await?;
        if found.is_empty() {
            return Err(self.unknown(store));
        }
        Ok(found)
    }

    /// Reads the selected cursors. Fails at one whose owner is running unless forced.
    async fn there(&self, store: &Store) -> anyhow::Result<Vec<(u32, Snapshot<Cursor>)>> {
        let mut found = Vec::new();
        for shard in self.shards(store).await? {
            let cursor = cursor(store, shard, &self.consumer).await?;
            found.extend(cursor.map(|cursor| (shard, cursor)));
        }
        let now_ms = SystemEnvironment.now_ms();
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
