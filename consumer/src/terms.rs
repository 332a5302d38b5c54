//! The terms of this process as the owner of a shard's cursor: it waits until it can take the cursor, serves a term
//! ([`crate::tenure`]), and waits again.

use crate::error::ConsumeError;
use crate::owner::{Attempt, Beginning, Owned};
use crate::repair::Origin;
use crate::shard::{Admitted, RELEASE_PATIENCE, Shard};
use crate::tenure::{Known, Tenure, TermEnd};
use millpond_manifest::Manifest;
use millpond_manifest::cas::Snapshot;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// The process leaves a shard alone for now.
struct LetsBe {
    /// The owner of the cursor.
    owner: Option<String>,
    /// The time until the next look.
    wait: Duration,
}

/// The end of a process's work on a shard.
pub(crate) struct Ended {
    pub(crate) shard: u32,
    /// This process has seen the cursor, so a missing one was removed.
    pub(crate) known: bool,
    /// It was to take over, and has not.
    pub(crate) take_over: bool,
    pub(crate) end: Result<(), ConsumeError>,
}

impl Shard {
    /// Consumes the shard until the shutdown, as the cursor's owner or in standby.
    pub(crate) async fn run(self) -> Ended {
        let known = self.admitted != Admitted::Unasked;
        self.run_knowing(known).await
    }

    /// Like [`run`](Self::run). `known`: this process has seen the cursor, so a missing one was removed.
    pub(crate) async fn run_knowing(self, mut known: bool) -> Ended {
        let (claim, mut take_over) = (self.claim.clone(), self.take_over);
        let end = match self.serve_terms(&mut known, &mut take_over).await {
            Err(removed @ ConsumeError::Removed { .. }) => Err(claim.why_removed(removed).await),
            end => end,
        };
        Ended {
            shard: claim.shard,
            known,
            take_over,
            end,
        }
    }

    async fn serve_terms(self, known: &mut bool, take_over: &mut bool) -> Result<(), ConsumeError> {
        loop {
            let Some(owned) = self.stand_by(*take_over, known).await? else {
                return Ok(());
            };
            // If this process took the cursor back at once, it and the next owner would fight over it.
            *take_over = false;
            self.worker.metrics.owned_shards.inc();
            // The term ends with the process, or before.
            let here = Shard {
                shutdown: self.shutdown.child_token(),
                ..self.clone()
            };
            let term = async {
                let stopped = async {
                    here.shutdown.cancelled().await;
                    tokio::time::sleep(RELEASE_PATIENCE).await;
                };
                // Read after the epoch was won: it shows all that the predecessor can have seen.
                let log = tokio::select! {
                    biased;
                    log = self.read_log() => log?,
                    () = stopped => return Ok(TermEnd::Released),
                };
                if let Err(refused) = self.origin(log.as_ref()).await {
                    self.claim.forgo(*owned).await;
                    return Err(refused);
                }
                self.announce_start(&owned, log.as_ref().map(|log| &log.state));
                let log = log.map(Known::new);
                Tenure::begin(&here, *owned, log).serve().await
            };
            let term = tokio::select! {
                biased;
                end = term => end,
                never = self.give_away(&here.shutdown) => match never {},
            };
            self.worker.metrics.owned_shards.dec();
            // A repair ends by itself. A shard that was given away may come back.
            let was_given = here.shutdown.is_cancelled() && !self.shutdown.is_cancelled();
            if matches!(term?, TermEnd::Released) && !was_given {
                return Ok(());
            }
            // Nothing of that term waits any more.
            self.claim.readiness.forget();
        }
    }

    /// Ends the term when the shard is another member's.
    async fn give_away(&self, term: &CancellationToken) -> Infallible {
        if let Some(membership) = &self.membership {
            let to = membership.gives(self.claim.shard).await;
            info!(shard = self.claim.shard, "gives the shard to {to}");
            term.cancel();
        }
        std::future::pending().await
    }

    /// Asks the division whether this process leaves the shard alone for now. `None`: it may take the cursor. `known`: this process
    /// has seen the cursor, so a missing one was removed.
    async fn lets_be(
        &self,
        free_since: &mut Option<Duration>,
        known: &mut bool,
    ) -> Result<Option<LetsBe>, ConsumeError> {
        let Some(membership) = &self.membership else {
            return Ok(None);
        };
        if !membership.division().is_needed() {
            return Ok(None);
        }
        let found = self.claim.read().await?;
        let is_there = found.as_ref().is_some_and(|found| !found.state.is_removed());
        if *known && !is_there {
            return Err(self.claim.removed());
        }
        *known |= is_there;
        let now_ms = self.claim.environment.now_ms();
        let held = found.and_then(|found| found.state.held_at(now_ms));
        let shard = self.claim.shard;
        let soon = Duration::from_secs(1).min(membership.lease / 3);
        let Some(held) = held.filter(|held| held.owner != self.claim.instance) else {
            let since = *free_since.get_or_insert(membership.now());
            let may_take = || membership.division().may_take(shard, since, membership.now());
            if !may_take() {
                // Its member may have left.
                membership.look().await;
            }
            if !may_take() {
                // Whoever released it may divide more shards than this process knows.
                membership.growth_wanted.notify_one();
            }
            return Ok((!may_take()).then_some(LetsBe {
                owner: None,
                wait: soon,
            }));
        };
        *free_since = None;
        let is_mine = membership.division().is_mine(shard);
        Ok(Some(LetsBe {
            owner: Some(held.owner),
            wait: if is_mine { soon } else { membership.lease / 3 },
        }))
    }

    /// Stands by until this process takes the cursor. `None`: the shutdown came first.
    async fn stand_by(&self, take_over: bool, known: &mut bool) -> Result<Option<Box<Owned>>, ConsumeError> {
        let mut announced = false;
        let mut free_since = None;
        loop {
            if !take_over {
                let lets_be = tokio::select! {
                    biased;
                    lets_be = self.lets_be(&mut free_since, known) => lets_be?,
                    () = self.shutdown.cancelled() => return Ok(None),
                };
                if let Some(LetsBe { owner, wait }) = lets_be {
                    if !std::mem::replace(&mut announced, true) {
                        self.announce_standby(owner.as_deref());
                    }
                    self.wait_for_turn(wait).await;
                    if self.shutdown.is_cancelled() {
                        return Ok(None);
                    }
                    continue;
                }
            }
            let (is_known, is_taking) = (*known, AtomicBool::new(false));
            let attempt = async {
                let log = self.read_log().await?;
                let origin = self.origin(log.as_ref()).await?;
                let log = log.as_ref().map(|log| &log.state);
                let start = match &self.repair {
                    Some(range) => *range.start(),
                    None => self.first_sequence(log, is_known).await?,
                };
                let beginning = Beginning { start, origin };
                self.claim.open(&beginning, take_over, is_known, &is_taking).await
            };
            let mut attempt = pin!(attempt);
            let attempt = tokio::select! {
                biased;
                attempt = &mut attempt => attempt?,
                () = self.shutdown.cancelled() => {
                    if !is_taking.load(Ordering::Relaxed) {
                        return Ok(None);
                    }
                    // The cursor may be ours already. The term that begins then releases it.
                    let Ok(attempt) = timeout(RELEASE_PATIENCE, attempt).await else {
                        let shard = self.claim.shard;
                        warn!(shard, "the cursor was about to be taken, and the store does not answer: the next owner may wait for the lease");
                        return Ok(None);
                    };
                    attempt?
                }
            };
            // If another process finished the repair meanwhile, this one starts a new repair.
            *known = self.repair.is_none();
            let held = match attempt {
                Attempt::Opened(owned) => {
                    if let Some(membership) = &self.membership {
                        membership.division().took(self.claim.shard, membership.now());
                    }
                    return Ok(Some(owned));
                }
                Attempt::Held(held) => held,
                Attempt::Removed => return Err(self.claim.removed()),
            };
            if !std::mem::replace(&mut announced, true) {
                self.announce_standby(Some(&held.owner));
            }
            let now = self.claim.environment.now_ms();
            let left = Duration::from_millis(held.lease_expires_at_ms.saturating_sub(now));
            tokio::select! {
                biased;
                () = tokio::time::sleep(left.clamp(Duration::from_millis(100), Duration::from_secs(1))) => {}
                () = self.shutdown.cancelled() => return Ok(None),
            }
        }
    }

    fn announce_standby(&self, owner: Option<&str>) {
        let shard = self.claim.shard;
        match owner {
            Some(owner) => info!(shard, "standing by: the cursor is held by {owner}"),
            None => info!(shard, "standing by: the shard is another member's"),
        }
        // The waits of this process as an owner now concern another owner.
        self.claim.readiness.forget();
    }

    /// Waits for a change of the division or for the shutdown, at most so long.
    async fn wait_for_turn(&self, most: Duration) {
        let changes = async {
            match &self.membership {
                Some(membership) => membership.changes_within(most).await,
                None => tokio::time::sleep(most).await,
            }
        };
        tokio::select! {
            biased;
            () = self.shutdown.cancelled() => {}
            () = changes => {}
        }
    }

    /// Checks a repair's range. `None` if this is not a repair.
    async fn origin(&self, log: Option<&Snapshot<Manifest>>) -> Result<Option<Origin>, ConsumeError> {
        let Some(range) = &self.repair else {
            return Ok(None);
        };
        let log = log.map(|log| &log.state);
        let takes = |name: &str| {
            let mut streams = log.into_iter().flat_map(|log| &log.streams);
            streams.any(|stream| stream.name == name && self.worker.takes(name, stream.encoding))
        };
        let repair = self.config.repair.as_ref();
        let other_programs = repair.is_some_and(|repair| repair.other_programs);
        let origin = self.claim.origin(range, log, takes, other_programs).await?;
        Ok(Some(origin))
    }
}
