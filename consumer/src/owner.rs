//! Takes, keeps and releases a cursor. The holder of an `Owned` won the swap that created its epoch. Every later swap
//! names the state before it, so a fenced owner loses all of them.

use crate::claim::Claim;
use crate::error::ConsumeError;
use crate::repair::Origin;
use millpond_manifest::Cursor;
use millpond_manifest::cas::{self, Snapshot, Swap};
use millpond_manifest::cursor::{HeldByAnother, Opened, Opening};
use millpond_runtime::{Backoff, Level};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tracing::{info, warn};

/// A cursor that this process owns.
pub(crate) struct Owned {
    pub(crate) durable: Snapshot<Cursor>,
    /// The predecessor may have sent what it did not acknowledge.
    pub(crate) in_doubt: bool,
    /// The start of the swap that opened the cursor, by [`Environment::uptime`]: the lease runs from then on.
    pub(crate) leased_at: Duration,
    /// The time for which earlier owners may continue to send.
    pub(crate) outlived: Duration,
    /// The consumer had no cursor.
    pub(crate) fresh: bool,
}

/// The outcome of a swap after every unknown outcome has been looked up.
pub(crate) enum Outcome {
    /// A state of ours is in force, perhaps one of an earlier attempt.
    Ours(Box<Snapshot<Cursor>>),
    /// Another owner took the cursor.
    Fenced { owner: String, epoch: u64 },
    /// An operator removed the consumer.
    Removed,
}

/// The result of an attempt to take the cursor.
pub(crate) enum Attempt {
    Opened(Box<Owned>),
    Held(HeldByAnother),
    /// The cursor no longer exists.
    Removed,
}

/// The position at which a consumer without a cursor starts.
#[derive(Debug, Clone)]
pub(crate) struct Beginning {
    /// The first sequence of the log, or of a repair's range.
    pub(crate) start: u64,
    /// Set for a repair.
    pub(crate) origin: Option<Origin>,
}

impl Claim {
    /// Tries once to take the cursor. `known`: this process has seen the cursor, so a missing one was removed. `is_taking` is set from
    /// the first swap on: if it lands, now or later, and nobody goes on with it, the cursor is held for the lease.
    pub(crate) async fn open(
        &self,
        beginning: &Beginning,
        take_over: bool,
        known: bool,
        is_taking: &AtomicBool,
    ) -> Result<Attempt, ConsumeError> {
        let key = self.key();
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        loop {
            let found = self.read().await?;
            let start = beginning.start;
            let fresh = found.as_ref().is_none_or(|found| found.state.is_removed());
            let mut cursor = match &found {
                Some(found) if !found.state.is_removed() => found.state.clone(),
                _ if known => return Ok(Attempt::Removed),
                Some(tombstone) => tombstone.state.begin_again(start, self.policy.clone()),
                None => {
                    let (id, shard, policy) = (self.buffer_id, self.shard, self.policy.clone());
                    Cursor::new(id, shard, &self.cursor, start, policy)
                }
            };
            self.check_buffer(&cursor)?;
            if fresh {
                cursor.shards = self.shards;
            }
            let cursor = match &beginning.origin {
                Some(origin) if fresh => origin.begin(cursor),
                Some(origin) => origin.resume(cursor),
                // The process may have been suspended since it was admitted.
                None if self.shard == 0 => match cursor.still_admits(&self.tables, self.share_tables) {
                    Some(cursor) => cursor,
                    None => return Ok(Attempt::Removed),
                },
                _ => cursor,
            };
            let leased_at = self.environment.uptime();
            let opening = Opening {
                owner: &self.instance,
                id: self.environment.random(),
                now_ms: self.environment.now_ms(),
                lease_ms: u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX),
                policy: &self.policy,
                unique: &self.unique,
                take_over,
            };
            let mut opened = match cursor.open(&opening) {
                Ok(opened) => opened,
                Err(held) => {
                    self.readiness.goes_on(&self.what());
                    return Ok(Attempt::Held(held));
                }
            };
            if beginning.origin.is_some() && opened.state.start != start {
                return Err(self.unrepairable(format!(
                    "an unfinished repair begins at sequence {0}: finish it with --from {0}, or give it up with `millpond consumer \
                     remove {1}`",
                    opened.state.start, self.cursor
                )));
            }
            self.check_rule(&opened.state, opened.policy_pinned)?;
            if self.shard > 0 && beginning.origin.is_none() && self.lost_register().await? {
                return Ok(Attempt::Removed);
            }
            opened.state.certificate = self.certificate;
            opened.state.programs = Some(self.programs.clone());
            let next = opened.state.clone().stamped(self.environment.random());
            let ours = next.stamp;
            let version = found.map(|snapshot| snapshot.version);
            is_taking.store(true, Ordering::Relaxed);
            let durable = match cas::swap(&self.store, &key, version.as_ref(), next).await {
                Swap::Committed(snapshot) => Some(snapshot),
                Swap::Mismatch => {
                    self.metrics.cursor_conflicts.inc();
                    None
                }
                Swap::Unknown(error) => {
                    self.metrics.cursor_unknown.inc();
                    self.readiness.waits(&self.what(), error, Level::Warn);
                    self.read().await?.filter(|snapshot| snapshot.state.stamp == ours)
                }
            };
            if let Some(durable) = durable {
                self.readiness.goes_on(&self.what());
                self.announce(&durable.state, &opened);
                self.announce_programs(&cursor, &opened);
                return Ok(Attempt::Opened(Box::new(Owned {
                    durable,
                    in_doubt: opened.in_doubt,
                    leased_at,
                    outlived: Duration::from_millis(cursor.lease_ms),
                    fresh,
                })));
            }
            backoff.pause(&*self.environment).await;
        }
    }

    fn announce(&self, cursor: &Cursor, opened: &Opened) {
        let &Opened {
            in_doubt,
            policy_pinned,
            unique_pinned,
            ..
        } = opened;
        let (shard, consumer, epoch) = (self.shard, &self.consumer, cursor.epoch);
        info!(shard, consumer, epoch, in_doubt, "owns the cursor");
        if policy_pinned {
            warn!(
                shard,
                consumer,
                "the batching settings differ from those pinned in the cursor ({:?}); the pinned ones stay in \
                 force until all planned batches are written and the consumer is next stopped cleanly",
                cursor.policy
            );
        }
        if unique_pinned {
            let memory = match self.unique.is_empty() {
                true => "; without --unique their keys take memory in addition to --memory-limit",
                false => "",
            };
            warn!(
                shard,
                consumer,
                "the settings of --unique differ from those pinned in the cursor ({:?}); the pinned ones stay in force until all \
                 planned batches are written and the consumer is next stopped cleanly{memory}",
                cursor.unique_settings()
            );
        }
        if cursor.goes_by_latest_times() {
            warn!(
                shard,
                consumer,
                "--unique goes by the latest clock of each segment, as an earlier version did, so one clock that is ahead lets repeated events \
                 pass; this ends when all planned batches are written and the consumer is next stopped cleanly"
            );
        }
    }

    /// Says that the programs are others than those of the last owner, if it entered them.
    fn announce_programs(&self, before: &Cursor, opened: &Opened) {
        let theirs = before.programs.iter().flatten();
        let streams: BTreeSet<&str> = theirs
            .chain(&self.programs)
            .map(|(stream, _)| stream.as_str())
            .filter(|stream| before.other_program(stream, &self.programs).is_some())
            .collect();
        if streams.is_empty() {
            return;
        }
        let streams = streams.into_iter().collect::<Vec<_>>().join(", ");
        let (shard, consumer) = (self.shard, &self.consumer);
        if opened.in_doubt && opened.state.plans() > 0 {
            warn!(
                shard,
                consumer,
                "the programs of {streams} have changed (--transform), and the last owner may have sent batches in part: their other rows \
                 come from the new programs"
            );
        } else {
            info!(
                shard,
                consumer, "the programs of {streams} have changed (--transform)"
            );
        }
    }

    pub(crate) fn check_buffer(&self, cursor: &Cursor) -> Result<(), ConsumeError> {
        if cursor.buffer_id == self.buffer_id {
            return Ok(());
        }
        Err(ConsumeError::OtherBuffer {
            key: self.key(),
            found: cursor.buffer_id,
            expected: self.buffer_id,
        })
    }

    /// Refuses the settings of a process that could not open the cursor as it is. Otherwise its consumer would keep tables that it
    /// never wrote to. The owner that has the cursor now may still release it.
    pub(crate) fn check_rule_before_asking(&self, cursor: &Cursor) -> Result<(), ConsumeError> {
        let held = cursor.held_at(self.environment.now_ms());
        match held.filter(|held| held.owner != self.instance) {
            Some(_) => Ok(()),
            None => self.check_rule(cursor, !cursor.is_clean()),
        }
    }

    /// Checks that this process can follow a pinned policy. It cannot if the policy names another sink, because only
    /// that sink can build the same rows again.
    fn check_rule(&self, cursor: &Cursor, pinned: bool) -> Result<(), ConsumeError> {
        let (theirs, ours) = (&cursor.policy, &self.policy);
        if !pinned || (theirs.sink == ours.sink && theirs.schema_version == ours.schema_version) {
            return Ok(());
        }
        Err(ConsumeError::PinnedSink {
            consumer: self.consumer.clone(),
            pinned_sink: theirs.sink.clone(),
            pinned_version: theirs.schema_version,
            sink: ours.sink.clone(),
            version: ours.schema_version,
        })
    }

    /// Swaps a cursor that this process owns, and looks up unknown outcomes.
    pub(crate) async fn swap(&self, before: Snapshot<Cursor>, next: Cursor) -> Result<Outcome, ConsumeError> {
        let next = next.stamped(self.environment.random());
        let began = Instant::now();
        let swap = cas::swap(&self.store, &self.key(), Some(&before.version), next).await;
        self.metrics
            .cursor_commit_seconds
            .observe(began.elapsed().as_secs_f64());
        match swap {
            Swap::Committed(snapshot) => {
                self.metrics.cursor_commits.inc();
                self.readiness.goes_on(&self.what());
                return Ok(Outcome::Ours(Box::new(snapshot)));
            }
            Swap::Mismatch => {
                self.metrics.cursor_conflicts.inc();
            }
            Swap::Unknown(error) => {
                self.metrics.cursor_unknown.inc();
                self.readiness.waits(&self.what(), error, Level::Warn);
            }
        }
        self.look(&before.state).await
    }

    /// Asks the store who has the cursor that this process had in this state.
    pub(crate) async fn look(&self, before: &Cursor) -> Result<Outcome, ConsumeError> {
        let found = self.read().await?;
        Ok(match found {
            // This process wrote any state that carries its opening (in this attempt, or in an earlier one that landed
            // late), or an operator did without fencing it. In both cases that state is in force, plans included.
            Some(snapshot) if snapshot.state.is_of(before) => Outcome::Ours(Box::new(snapshot)),
            Some(snapshot) if snapshot.state.is_removed() => Outcome::Removed,
            Some(snapshot) => Outcome::Fenced {
                owner: match snapshot.state.ownership {
                    millpond_manifest::cursor::Ownership::Held { owner, .. } => owner,
                    _ => "an owner that is gone again".into(),
                },
                epoch: snapshot.state.epoch,
            },
            None => Outcome::Removed,
        })
    }

    /// Removes a cursor whose owner has sent nothing in this term.
    pub(crate) async fn forgo(&self, owned: Owned) {
        let mut state = owned.durable.state.clone();
        state.release(u64::MAX);
        let mut tombstone = state.remove();
        if !owned.in_doubt && state.is_clean() && !state.unsettled {
            tombstone.settle();
        }
        if self.swap(owned.durable, tombstone).await.is_err() {
            warn!(
                shard = self.shard,
                "the cursor {} could not be removed", self.cursor
            );
        }
    }
}
