//! The end of a term: releases the cursor, with an error if there is one, or reports that another owner has it.

use super::{Tenure, TermEnd, accepts};
use crate::error::ConsumeError;
use crate::owner::Outcome;
use crate::shard::{RELEASE_PATIENCE, Shard};
use crate::tenure::Known;
use millpond_manifest::Cursor;
use millpond_manifest::cursor::Ownership;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{info, warn};

/// The maximum time that a process that ends with an error takes to release the cursor.
const LAST_WORDS: Duration = Duration::from_secs(5);

impl Tenure<'_> {
    /// Returns true if this is a repair and all of its range is in the sink.
    pub(super) fn is_repaired(&self) -> bool {
        let Some(Known { log, .. }) = self.log.as_ref().filter(|_| self.may_send()) else {
            return false;
        };
        let accepts = accepts(&self.shard.worker, log);
        self.schedule.running() == 0 && self.schedule.is_complete(&self.durable.state, log, &accepts)
    }

    /// Releases the cursor and records whether any batch in the log is unfinished. A repair that has reached its end leaves
    /// a tombstone.
    pub(super) async fn release(&mut self) -> Result<TermEnd, ConsumeError> {
        self.work.abort_all();
        // A swap in flight may still land. The release then finds its state and continues from there.
        self.swapping = None;
        let patience = Instant::now() + RELEASE_PATIENCE;
        loop {
            // A swap that landed late may have moved a position past the loaded pages.
            let decision = self.decide();
            let mut next = self.durable.state.clone();
            self.acknowledge(&mut next, &decision)?;
            // Another log says nothing about the batches that earlier owners have sent.
            let log = self.log.as_ref().filter(|_| self.recognized);
            let log = log.map(|known| &known.log);
            let unsent = log.map(|log| self.schedule.unsent(&next, log));
            for (stream, plan) in unsent.unwrap_or_default() {
                next.withdraw(&stream, plan);
            }
            next.wait_for(&[]);
            let repaired = self.is_repaired();
            if self.has_settled() {
                next.settle();
            }
            next.release(log.map_or(u64::MAX, |log| log.next_sequence));
            // The store may be down for a long time.
            match timeout_at(patience, self.give_back(next, repaired)).await {
                Ok(Ok(Some(term))) => return Ok(term),
                Ok(Err(error)) => return Err(error),
                Ok(Ok(None)) | Err(_) => {}
            }
            if Instant::now() >= patience {
                warn!(
                    shard = self.shard.claim.shard,
                    "the cursor could not be released: the next owner waits for the lease"
                );
                return Ok(TermEnd::Released);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Releases the cursor with the reason why this process ends. The next owner then does not wait for the lease, and
    /// an operator sees the reason. Gives up if the release takes long. Returns the end of the term as the store shows it, if it does.
    ///
    /// # Errors
    /// The cursor was removed.
    pub(super) async fn leave(&mut self, error: &ConsumeError) -> Result<Option<TermEnd>, ConsumeError> {
        self.work.abort_all();
        // Wait for the swap in flight. Otherwise it could win against the release.
        let giving_back = async {
            if let Some(swapping) = self.swapping.take()
                && let Outcome::Ours(durable) = swapping.await?
            {
                self.durable = *durable;
            }
            loop {
                let mut next = self.durable.state.clone();
                next.wait_for(&[format!("it ended: {error}")]);
                self.remember_seen(&mut next);
                next.release(u64::MAX);
                if let Some(end) = self.give_back(next, false).await? {
                    return Ok::<_, ConsumeError>(end);
                }
            }
        };
        match timeout(LAST_WORDS, giving_back).await {
            Ok(Ok(end)) => return Ok(Some(end)),
            Ok(Err(removed @ ConsumeError::Removed { .. })) => return Err(removed),
            Ok(Err(_)) => {}
            // A swap on a connection that died while this machine stood still takes long. A new request shows who was faster.
            Err(_) if error.is_of_trimmed() => match timeout(RELEASE_PATIENCE, self.successor()).await {
                Ok(Ok(Some(end))) => return Ok(Some(end)),
                Ok(Err(removed @ ConsumeError::Removed { .. })) => return Err(removed),
                Ok(_) | Err(_) => {}
            },
            Err(_) => {}
        }
        warn!(
            shard = self.shard.claim.shard,
            "the cursor could not be given back: the next owner waits for the lease"
        );
        Ok(None)
    }

    /// Asks the store whether another process has opened the cursor since.
    async fn successor(&mut self) -> Result<Option<TermEnd>, ConsumeError> {
        match self.shard.claim.look(&self.durable.state).await? {
            Outcome::Fenced { owner, epoch } => Ok(Some(self.fenced(&owner, epoch))),
            Outcome::Removed => Err(self.shard.claim.removed()),
            Outcome::Ours(_) => Ok(None),
        }
    }

    /// Makes one attempt to write a released cursor, and removes it if it is `done`. `None`: an earlier swap of ours was in
    /// force, and its state is known now.
    async fn give_back(&mut self, mut next: Cursor, done: bool) -> Result<Option<TermEnd>, ConsumeError> {
        if done {
            // A success under the same token followed every request of the batch, as before a clean release.
            next = next.remove();
            next.settle();
        }
        let ownership = next.ownership.clone();
        match self.shard.claim.swap(self.durable.clone(), next).await? {
            Outcome::Fenced { owner, epoch } => Ok(Some(self.fenced(&owner, epoch))),
            // This process or an operator removed the cursor: all rows are in the sink.
            Outcome::Removed if done => Ok(Some(self.repaired())),
            Outcome::Removed => Err(self.shard.claim.removed()),
            Outcome::Ours(durable) if done && durable.state.is_removed() => Ok(Some(self.repaired())),
            Outcome::Ours(durable) if durable.state.ownership == ownership => {
                self.trace_acknowledged(&durable.state);
                let clean = ownership == Ownership::Released;
                // An earlier owner's plans for segments that nobody has committed yet.
                let planned_ahead = clean.then(|| durable.state.plans()).filter(|plans| *plans > 0);
                info!(
                    shard = self.shard.claim.shard,
                    clean, planned_ahead, "released the cursor"
                );
                Ok(Some(TermEnd::Released))
            }
            Outcome::Ours(durable) => {
                self.durable = *durable;
                Ok(None)
            }
        }
    }

    fn repaired(&self) -> TermEnd {
        let (shard, consumer) = (self.shard.claim.shard, &self.shard.claim.consumer);
        info!(shard, consumer, "the range is repaired");
        if let Some(tally) = &self.shard.worker.repair {
            tally.shard();
        }
        TermEnd::Released
    }

    pub(super) fn fenced(&self, owner: &str, epoch: u64) -> TermEnd {
        let Shard { claim, worker, .. } = self.shard;
        worker.metrics.fenced.inc();
        warn!(
            shard = claim.shard,
            consumer = claim.consumer,
            "fenced: {owner} owns the cursor since epoch {epoch}; this process stops sending and stands by"
        );
        TermEnd::Fenced
    }
}
