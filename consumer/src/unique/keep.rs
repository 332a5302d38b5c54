//! Stores the keys of silent streams, so that their last snapshot does not hold back the log of all streams. Decides about no row.

use super::restore::{has_parts, restore, snapshot};
use super::stage::{Kept, Turn};
use super::state::unchanged;
use crate::error::ConsumeError;
use crate::shard::Shard;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::timeout;
use tracing::warn;

/// How the keys of a stream are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    /// They are in memory. `rests`: they leave it.
    Loaded { rests: bool },
    /// The last snapshot is repeated at a later sequence, which loads no key.
    Unchanged,
    /// They are loaded for this.
    Loading,
}

/// How a keep ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The keys are stored, or this attempt has failed.
    Done,
    /// The last snapshot cannot be repeated.
    MustLoad,
}

/// The longest time that an attempt takes, whether the store answers or not. The stream's next batch waits for it, and other streams for
/// its place.
const UNCHANGED_PATIENCE: Duration = Duration::from_secs(30);
const LOADING_PATIENCE: Duration = Duration::from_secs(600);

impl Turn {
    /// Stores the keys before this turn's sequence instead of deciding about a batch. The line has no turn before it.
    pub(crate) async fn keep(mut self, keep: Keep) -> Ended {
        let mut shard = self.stage.shard.clone();
        let (number, stream) = (shard.claim.shard, &self.stage.stream);
        let name = format!("storing the keys of {stream} in shard {number}");
        // Whatever it still waits for at its end is no wait of the process any more.
        shard.claim.readiness = shard.claim.readiness.part(name, false);
        let kept = match keep {
            Keep::Loaded { rests } => {
                self.keep_loaded(&shard, rests).await;
                Ok(Ended::Done)
            }
            Keep::Unchanged => within(UNCHANGED_PATIENCE, self.keep_unchanged(&shard)).await,
            Keep::Loading => within(LOADING_PATIENCE, self.keep_loading(&shard)).await,
        };
        shard.claim.readiness.forget();
        // The next batch may have to load the keys, so it must not ask for memory earlier.
        self.has_memory();
        self.has_decided();
        kept.unwrap_or_else(|lost| {
            // Only the next batch of the stream needs the keys, and it will tell.
            warn!(
                shard = number,
                "the keys of a silent stream cannot be stored: {lost}"
            );
            Ended::Done
        })
    }

    async fn keep_loaded(&mut self, shard: &Shard, rests: bool) {
        if !rests {
            self.has_memory();
        }
        let stage = self.stage.clone();
        let mut kept = stage.state.lock().await;
        let Some(mut before) = kept.take() else {
            return;
        };
        before.state.pass(self.plan.low);
        let due_at = std::mem::take(&mut before.due_at);
        let stored = stage.store(shard, &self.source, before).await;
        // A state past the position is one that retention may overtake: a batch that is decided waits for the table.
        if rests && stored.state.is_stored() && stored.state.next() == self.plan.low {
            drop(stored);
            stage.loaded.store(false, Ordering::Relaxed);
        } else {
            *kept = Some(Kept {
                due_at: stored.due_at.max(due_at),
                ..stored
            });
        }
        stage.count_keys();
    }

    /// Stores the snapshot of the state before `next` without loading a key, if the log has no part of the stream between the last
    /// snapshot and there: then it is the last one, which this one names.
    async fn keep_unchanged(&self, shard: &Shard) -> Result<Ended, ConsumeError> {
        let (source, next) = (&self.source, self.plan.low);
        let Some(name) = self.stage.reached().newest else {
            return Ok(Ended::MustLoad);
        };
        if name.next >= next {
            return Ok(Ended::Done);
        }
        let last = snapshot(shard, source, &source.of(shard), name).await?;
        // A long list waits for a merge.
        if last.earlier.len() >= shard.worker.snapshots_named
            || has_parts(shard, source, name.next, next).await?
        {
            return Ok(Ended::MustLoad);
        }
        self.stage.put_new(shard, &unchanged(last, name, next)).await;
        Ok(Ended::Done)
    }

    /// Loads the keys, stores them and drops them again.
    async fn keep_loading(&self, shard: &Shard) -> Result<Ended, ConsumeError> {
        let newest = self.stage.reached().newest;
        let limit = shard.worker.keys.with_room();
        let (state, raw_bytes) = restore(shard, &self.source, newest, limit, self.plan.low).await?;
        let loaded = Kept {
            state,
            due_at: Duration::ZERO,
            raw_bytes,
        };
        drop(self.stage.store(shard, &self.source, loaded).await);
        self.stage.count_keys();
        Ok(Ended::Done)
    }
}

async fn within(
    patience: Duration,
    keeping: impl Future<Output = Result<Ended, ConsumeError>>,
) -> Result<Ended, String> {
    match timeout(patience, keeping).await {
        Ok(kept) => kept.map_err(|lost| lost.to_string()),
        Err(_) => Err(format!("it took longer than {} s", patience.as_secs())),
    }
}
