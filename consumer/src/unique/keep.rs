//! Stores the keys of silent streams, so that their last snapshot does not hold back the log of all streams. Decides about no row.

use super::limit::KeyLimit;
use super::restore::{has_parts, restore, snapshot};
use super::stage::{Kept, Turn};
use super::state::unchanged;
use crate::error::ConsumeError;
use crate::shard::Shard;
use millpond_runtime::Readiness;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::timeout_at;
use tracing::{info, warn};

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
    /// The keys are stored, or need not be.
    Done,
    /// The last snapshot cannot be repeated.
    MustLoad,
    /// The attempt has failed.
    Failed,
    /// Other streams need the memory that the keys would take.
    NoRoom,
    /// A batch has come, which loads the keys.
    Overtaken,
}

/// An attempt fails when it has not gone on for this long, or for three times the limit of a request if that is longer. Other streams wait for its place, and
/// for memory behind it. The time covers two requests that hang, or a store whose log is up to a minute behind.
const PATIENCE: Duration = Duration::from_secs(90);

/// The waits of an attempt, which are no waits of the process once it has ended.
struct Waits(Readiness);

impl Drop for Waits {
    fn drop(&mut self) {
        self.0.forget();
    }
}

impl Turn {
    /// Stores the keys before this turn's sequence instead of deciding about a batch. The line has no turn before it.
    pub(crate) async fn keep(mut self, keep: Keep) -> Ended {
        let mut shard = self.stage.shard.clone();
        let (number, stream) = (shard.claim.shard, self.stage.stream.clone());
        let name = format!("storing the keys of {stream} in shard {number}");
        shard.claim.readiness = shard.claim.readiness.part(name, false);
        let waits = Waits(shard.claim.readiness.clone());
        self.source.progress.goes_on();
        let kept = match keep {
            Keep::Loaded { rests } => {
                self.keep_loaded(&shard, rests).await;
                Ok(Ended::Done)
            }
            Keep::Unchanged => {
                let keeping = self.patiently(self.keep_unchanged(&shard));
                self.unless_overtaken(keeping).await
            }
            Keep::Loading => {
                let loading = async {
                    // An attempt that waits here holds no keys, so a lack of room must not end it.
                    let loads = &shard.worker.loads;
                    if loads.available_permits() == 0 {
                        info!(
                            shard = number,
                            "the keys of the silent stream {stream} wait to be loaded and stored: the process does this for one stream at a time"
                        );
                    }
                    let _place = loads.acquire().await.expect("never closed");
                    self.source.progress.goes_on();
                    let limit = shard.worker.keys.spare();
                    tokio::select! {
                        biased;
                        () = limit.crowded() => Ok(Ended::NoRoom),
                        kept = self.patiently(self.keep_loading(&shard, &limit)) => kept,
                    }
                };
                self.unless_overtaken(loading).await
            }
        };
        drop(waits);
        self.stage.count_keys();
        // The next batch may have to load the keys, so it must not ask for memory earlier.
        self.has_memory();
        self.has_decided();
        // Only the next batch of the stream needs the keys, and it will tell.
        match kept {
            Ok(Ended::NoRoom) => {
                warn!(
                    shard = number,
                    "the keys of the silent stream {stream} are not stored, and the log is kept for them: --unique-memory has no room to load them beside the keys of other streams"
                );
                Ended::NoRoom
            }
            Ok(ended) => ended,
            Err(reason) => {
                warn!(
                    shard = number,
                    "the keys of the silent stream {stream} are not stored, and the log is kept for them: {reason}"
                );
                Ended::Failed
            }
        }
    }

    /// Gives up when a batch comes.
    async fn unless_overtaken(
        &self,
        keeping: impl Future<Output = Result<Ended, String>>,
    ) -> Result<Ended, String> {
        tokio::select! {
            biased;
            () = self.overtaken.cancelled() => Ok(Ended::Overtaken),
            kept = keeping => kept,
        }
    }

    /// Gives up when nothing goes on for too long.
    async fn patiently(
        &self,
        keeping: impl Future<Output = Result<Ended, ConsumeError>>,
    ) -> Result<Ended, String> {
        let mut keeping = pin!(keeping);
        let progress = &self.source.progress;
        let patience = PATIENCE.max(self.stage.shard.claim.store.request_timeout().saturating_mul(3));
        loop {
            let last = progress.last();
            match timeout_at(last + patience, &mut keeping).await {
                Ok(Err(ConsumeError::UniqueMemory { .. })) => return Ok(Ended::NoRoom),
                Ok(kept) => return kept.map_err(|lost| lost.to_string()),
                Err(_) if progress.last() > last => {}
                // Batches of other streams may wait for memory behind this attempt, so it must not wait for as long as it takes.
                Err(_) => return Err(progress.standstill(patience)),
            }
        }
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
    async fn keep_loading(&self, shard: &Shard, limit: &KeyLimit) -> Result<Ended, ConsumeError> {
        let newest = self.stage.reached().newest;
        let (state, raw_bytes) = restore(shard, &self.source, newest, limit.clone(), self.plan.low).await?;
        let loaded = Kept {
            state,
            due_at: Duration::ZERO,
            raw_bytes,
        };
        let stored = self.stage.store(shard, &self.source, loaded).await;
        let ended = match stored.state.is_stored() {
            true => Ended::Done,
            // The warning about its snapshots says why.
            false => Ended::Failed,
        };
        drop(stored);
        Ok(ended)
    }
}
