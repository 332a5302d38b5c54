//! The cursor of one consumer in one shard, and its pure transitions: open, plan, acknowledge, renew, release. It never
//! reads a clock or touches a store, and refuses every step that would break invariants 3 to 5 of the protocol.

mod codec;
mod programs;
mod refused;
mod seen;
pub(crate) mod tables;
mod unique;

use crate::entry::STREAMS_MAX;
use crate::manifest::Fingerprint;
use crate::object::Stamp;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use tables::SinkTables;
use thiserror::Error;
use uuid::Uuid;

pub use crate::plan::{BatchingPolicy, Plan};
pub use programs::{OtherProgram, ProgramHash, Programs};
pub use refused::{PIECES_MAX, Refused};
pub use seen::Seen;
pub use unique::{Deduplication, NO_UNIQUE, UniqueSettings};

/// Maximum planned and unacknowledged batches of a stream.
pub const PLANS_MAX: usize = 4_096;

/// Maximum planned and unacknowledged batches of all streams: 256 for each of the maximum number of streams.
pub const ALL_PLANS_MAX: usize = 256 * STREAMS_MAX;

/// A consumer's position in one stream.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct StreamCursor {
    /// Everything below this sequence is acknowledged.
    pub next: u64,
    /// Planned batches in order: only these may be sent.
    pub planned: VecDeque<Plan>,
}

/// [`Cursor::sent_below`] of a new cursor: an earlier one may have been deleted, so any row may have been sent.
pub const SENT_UNKNOWN: u64 = u64::MAX;

/// Maximum skipped parts that a cursor remembers.
pub const SKIPS_MAX: usize = 1_000;

/// A stream's part of a segment that an operator skips because it cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Skip {
    /// The stream.
    pub stream: String,
    /// The sequence.
    pub sequence: u64,
    /// Time of the request, unix ms.
    pub at_ms: u64,
    /// The operator's reason.
    pub reason: String,
}

/// Maximum batches with refusals in a cursor.
const REFUSED_MAX: usize = 16 * STREAMS_MAX;

/// Maximum number of reasons for waiting in a cursor, and characters of each.
const WAITS_MAX: (usize, usize) = (8, 1_000);

/// The owner of the cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ownership {
    /// Nobody owns it, and its last owner finished everything in the log. Batches that an earlier owner planned ahead of
    /// the log may remain: see [`Cursor::is_clean`].
    Released,
    /// An owner holds it until the lease expires.
    Held {
        /// The owner's name.
        owner: String,
        /// Unix ms.
        lease_expires_at_ms: u64,
    },
    /// Nobody owns it, but batches may be in doubt.
    Abandoned,
    /// An operator removed the consumer. The cursor stays as a tombstone. It informs an owner that still runs, and
    /// keeps a consumer of the same name from treating rows in the sink as never sent.
    Removed,
}

/// The state of a consumer in one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// The buffer of this cursor.
    pub buffer_id: Uuid,
    /// The shard.
    pub shard: u32,
    /// The consumer.
    pub consumer: String,
    /// Distinguishes states.
    pub stamp: Stamp,
    /// Counts the openings, for people: [`Cursor::opening`] is the fence.
    pub epoch: u64,
    /// The random id of the newest opening: an owner acts only while this is its own.
    pub opening: u64,
    /// The current ownership.
    pub ownership: Ownership,
    /// The longest lease of any owner since the last clean release, in milliseconds. A fenced owner may continue
    /// sending for that long.
    pub lease_ms: u64,
    /// Counts the changes after which rows may be sent in different chunks: resets, skips, removals. Part of every
    /// token.
    pub generation: u64,
    /// Requests of an earlier generation may still be in flight to the sink. Nothing is sent until they have ended.
    pub unsettled: bool,
    /// Rows below this sequence may be in the sink under tokens that no plan names, so the sink is asked before they
    /// are sent. [`SENT_UNKNOWN`] until the first owner has read the log.
    pub sent_below: u64,
    /// The batching policy in force.
    pub policy: BatchingPolicy,
    /// The start of streams without a position.
    pub start: u64,
    /// Positions by stream.
    pub streams: BTreeMap<String, StreamCursor>,
    /// The skipped parts in the order of the requests, kept as a record.
    pub skipped: Vec<Skip>,
    /// The sink's refusals in unacknowledged batches, one entry per batch.
    pub refused: Vec<Refused>,
    /// The owner's reasons for waiting when it wrote this, for people: no decision depends on them.
    pub waiting_for: Vec<String>,
    /// The tables of the sink, so that other consumers of them are noticed.
    pub tables: SinkTables,
    /// In shard 0, the number of the buffer's shards when the consumer began: it begins at sequence 0 in those that came later. 0: unknown,
    /// an older program wrote the cursor.
    pub shards: u32,
    /// The certificate that the owner presents to the leader, which then tells it about commits. It allows nothing else. `None`: the owner
    /// polls.
    pub certificate: Option<Fingerprint>,
    /// The streams whose repeated events are or were dropped.
    pub unique: BTreeMap<String, Deduplication>,
    /// An earlier cursor is lost, under which any row below this sequence may have been dropped as a duplicate. [`SENT_UNKNOWN`] until the
    /// next owner has read the log.
    pub deduplicated_below: u64,
    /// The newest segment of the log that an owner has seen in the store. A log with another one in its place is not the one that the
    /// consumer has read. `None`: unknown.
    pub seen: Option<Seen>,
    /// The programs of the newest owner's sink. `None`: unknown.
    pub programs: Option<Programs>,
}

/// A request to open a cursor.
#[derive(Debug, Clone)]
pub struct Opening<'a> {
    /// The name of the new owner.
    pub owner: &'a str,
    /// The random id of this opening.
    pub id: u64,
    /// Unix ms.
    pub now_ms: u64,
    /// Duration of the lease without renewal, in milliseconds.
    pub lease_ms: u64,
    /// The configured batching policy.
    pub policy: &'a BatchingPolicy,
    /// The configured settings for repeated events.
    pub unique: &'a UniqueSettings,
    /// Take the cursor even if its owner's lease still runs.
    pub take_over: bool,
}

/// An opened cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// The state to swap in, not yet stamped.
    pub state: Cursor,
    /// The predecessor did not release it: its planned batches may have been sent.
    pub in_doubt: bool,
    /// The pinned policy stays in force although another one is configured.
    pub policy_pinned: bool,
    /// The pinned settings for repeated events stay in force although others are configured.
    pub unique_pinned: bool,
}

/// Why a cursor cannot be opened now.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("it is held by {owner} until unix ms {lease_expires_at_ms}")]
pub struct HeldByAnother {
    /// The owner.
    pub owner: String,
    /// Unix ms.
    pub lease_expires_at_ms: u64,
}

/// A step that the protocol forbids: the caller has a bug.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("stream {stream}: {reason}")]
pub struct Forbidden {
    /// The stream.
    pub stream: String,
    /// The request and why it is impossible.
    pub reason: String,
}

impl Cursor {
    /// A new cursor: released, at `start`. An operator may have deleted an earlier one, so anything in the log may have
    /// been sent: see [`limit_sent`](Self::limit_sent).
    pub fn new(buffer_id: Uuid, shard: u32, consumer: &str, start: u64, policy: BatchingPolicy) -> Self {
        Cursor {
            buffer_id,
            shard,
            consumer: consumer.to_owned(),
            stamp: Stamp { version: 0, nonce: 0 },
            epoch: 0,
            opening: 0,
            ownership: Ownership::Released,
            lease_ms: 0,
            generation: 0,
            unsettled: false,
            sent_below: SENT_UNKNOWN,
            policy,
            start,
            streams: BTreeMap::new(),
            skipped: Vec::new(),
            refused: Vec::new(),
            waiting_for: Vec::new(),
            tables: SinkTables::default(),
            shards: 0,
            certificate: None,
            unique: BTreeMap::new(),
            deduplicated_below: 0,
            seen: None,
            programs: None,
        }
    }

    /// The next state, distinguished from every other by its counter and `nonce`.
    #[must_use]
    pub fn stamped(mut self, nonce: u64) -> Self {
        self.stamp = Stamp {
            version: self.stamp.version.wrapping_add(1),
            nonce,
        };
        self
    }

    /// Everything of the stream below this sequence is acknowledged.
    pub fn next(&self, stream: &str) -> u64 {
        self.streams.get(stream).map_or(self.start, |s| s.next)
    }

    /// The position of the stream that is furthest behind.
    pub fn hindmost(&self) -> u64 {
        let next = self.streams.values().map(|stream| stream.next);
        next.min().unwrap_or(self.start)
    }

    /// The sequence after the newest one that the consumer knows of: its furthest position, its beginning or the newest segment that
    /// it has seen. It is never beyond the end of the log that the consumer has read.
    pub fn furthest(&self) -> u64 {
        let next = self.streams.values().map(|stream| stream.next);
        let seen = self.seen.map_or(0, |seen| seen.end());
        next.max().unwrap_or(0).max(self.start).max(seen)
    }

    /// Remembers the newest segment of a state of the log in the store, unless it knows a newer one.
    pub fn see(&mut self, newest: Seen) {
        if self.seen.is_none_or(|seen| seen.sequence < newest.sequence) {
            self.seen = Some(newest);
        }
    }

    /// The stream's planned batches.
    pub fn planned(&self, stream: &str) -> impl Iterator<Item = Plan> {
        self.streams
            .get(stream)
            .into_iter()
            .flat_map(|s| s.planned.iter().copied())
    }

    /// The owner at this time (unix ms), if its lease still runs.
    pub fn held_at(&self, now_ms: u64) -> Option<HeldByAnother> {
        match &self.ownership {
            Ownership::Held {
                owner,
                lease_expires_at_ms,
            } if *lease_expires_at_ms > now_ms => Some(HeldByAnother {
                owner: owner.clone(),
                lease_expires_at_ms: *lease_expires_at_ms,
            }),
            _ => None,
        }
    }

    /// Returns true if this state belongs to the same opening as `own`: an owner that finds another one is fenced.
    pub fn is_of(&self, own: &Cursor) -> bool {
        self.opening == own.opening
    }

    /// Returns true if an operator removed the consumer: it has no positions, and nothing is kept for it.
    pub fn is_removed(&self) -> bool {
        self.ownership == Ownership::Removed
    }

    /// Returns true if it is released or removed and no batch is planned: unless it is unsettled, nobody sends anything more.
    pub fn is_clean(&self) -> bool {
        matches!(self.ownership, Ownership::Released | Ownership::Removed) && self.plans() == 0
    }

    /// The number of planned batches of all streams.
    pub fn plans(&self) -> usize {
        self.streams.values().map(|stream| stream.planned.len()).sum()
    }

    /// Returns true if somebody may have tried to send this batch before, not counting the current generation.
    pub fn may_have_sent(&self, batch: Plan) -> bool {
        batch.low < self.sent_below
    }

    /// Takes the cursor with a new epoch and owner, who then enters its certificate and its programs. The configured policy comes into force only if the cursor
    /// [is clean](Self::is_clean).
    pub fn open(&self, opening: &Opening<'_>) -> Result<Opened, HeldByAnother> {
        let &Opening {
            owner,
            id,
            now_ms,
            lease_ms,
            policy,
            unique,
            take_over,
        } = opening;
        if let Some(held) = self.held_at(now_ms)
            && held.owner != owner
            && !take_over
        {
            return Err(held);
        }
        let in_doubt = !matches!(self.ownership, Ownership::Released | Ownership::Removed);
        let mut state = self.clone();
        state.epoch += 1;
        state.opening = id;
        // A fenced owner may have a longer lease than its successor, and sends until that expires. After a clean
        // release its tokens are known.
        state.lease_ms = match self.is_clean() && !self.unsettled {
            true => lease_ms,
            false => self.lease_ms.max(lease_ms),
        };
        state.ownership = Ownership::Held {
            owner: owner.to_owned(),
            lease_expires_at_ms: now_ms.saturating_add(lease_ms),
        };
        state.waiting_for.clear();
        state.certificate = None;
        state.programs = None;
        // A fenced owner may still send what it planned ahead of the log, in chunks of the pinned policy.
        if self.is_clean() {
            state.policy = policy.clone();
            state.set_unique(unique);
        }
        let policy_pinned = *policy != state.policy;
        let unique_pinned = *unique != state.unique_settings();
        Ok(Opened {
            state,
            in_doubt,
            policy_pinned,
            unique_pinned,
        })
    }

    /// Records the boundaries of a batch. It may be sent only once the state with this plan is in force: then a
    /// successor knows exactly what its predecessors may have sent, or may still be sending.
    pub fn plan(&mut self, stream: &str, plan: Plan) -> Result<(), Forbidden> {
        let start = self.start;
        let planned = self.plans();
        let cursor = self.stream(stream, start);
        let from = cursor.planned.back().map_or(cursor.next, |last| last.high + 1);
        let reason = if plan.low > plan.high {
            format!("the plan {}..={} is empty", plan.low, plan.high)
        } else if plan.high == u64::MAX {
            format!(
                "the plan {}..={} ends past the last sequence",
                plan.low, plan.high
            )
        } else if plan.low < from {
            format!(
                "the plan {}..={} begins before {from}, which is decided already",
                plan.low, plan.high
            )
        } else if cursor.planned.len() >= PLANS_MAX {
            format!("{PLANS_MAX} batches are planned already")
        } else if planned >= ALL_PLANS_MAX {
            format!("{ALL_PLANS_MAX} batches of all streams are planned already")
        } else {
            cursor.planned.push_back(plan);
            return Ok(());
        };
        Err(Forbidden {
            stream: stream.to_owned(),
            reason,
        })
    }

    /// Withdraws a plan that nobody has begun to send, nor can.
    pub fn withdraw(&mut self, stream: &str, plan: Plan) {
        if let Some(cursor) = self.streams.get_mut(stream) {
            cursor.planned.retain(|planned| *planned != plan);
        }
    }

    /// Acknowledges that everything of the stream below `next` is in the sink.
    pub fn acknowledge(&mut self, stream: &str, next: u64) -> Result<(), Forbidden> {
        let start = self.start;
        let cursor = self.stream(stream, start);
        let cut = cursor.planned.iter().find(|p| p.low < next && next <= p.high);
        if next < cursor.next {
            let reason = format!("position {next} lies before the acknowledged {}", cursor.next);
            return Err(Forbidden {
                stream: stream.to_owned(),
                reason,
            });
        }
        if let Some(Plan { low, high }) = cut {
            let reason = format!("position {next} cuts the planned batch {low}..={high}");
            return Err(Forbidden {
                stream: stream.to_owned(),
                reason,
            });
        }
        self.postpone_unique(stream, next);
        let cursor = self.stream(stream, start);
        cursor.next = next;
        while cursor.planned.front().is_some_and(|p| p.high < next) {
            cursor.planned.pop_front();
        }
        self.refused
            .retain(|refused| refused.stream != stream || refused.batch.low >= next);
        Ok(())
    }

    /// Records that the sink refused these pieces of an unacknowledged batch. Only then may their halves be sent.
    pub fn refuse(
        &mut self,
        stream: &str,
        batch: Plan,
        pieces: &[u32],
        reason: &str,
    ) -> Result<(), Forbidden> {
        let forbidden = |reason: String| Forbidden {
            stream: stream.to_owned(),
            reason,
        };
        let place = self
            .refused
            .iter()
            .position(|r| r.stream == stream && r.batch == batch);
        let mut refused = match place {
            Some(place) => self.refused[place].clone(),
            None => Refused {
                stream: stream.to_owned(),
                batch,
                pieces: BTreeSet::new(),
                reason: String::new(),
            },
        };
        for &number in pieces {
            refused.add(number);
        }
        reason.clone_into(&mut refused.reason);
        refused.check(self.next(stream)).map_err(forbidden)?;
        match place {
            Some(place) => self.refused[place] = refused,
            None => self.refused.push(refused),
        }
        Ok(())
    }

    /// The known refusals of a batch.
    pub fn refused(&self, stream: &str, batch: Plan) -> Option<&Refused> {
        self.refused
            .iter()
            .find(|refused| refused.stream == stream && refused.batch == batch)
    }

    /// Rereads every stream from `position` on, and nothing before it, including later streams. Drops all plans, and
    /// fences a running owner. Rows in the sink stay: the next owner asks for them before it sends.
    #[must_use]
    pub fn reset(&self, position: u64) -> Cursor {
        let mut next = Cursor {
            ownership: Ownership::Released,
            start: position,
            streams: BTreeMap::new(),
            refused: Vec::new(),
            waiting_for: Vec::new(),
            // The operator decides which log it is.
            seen: None,
            ..self.next_generation()
        };
        next.restart_unique(position);
        next
    }

    /// Removes the consumer, and fences and ends a running owner. The tombstone keeps what protects the rows in the
    /// sink from a consumer of the same name.
    #[must_use]
    pub fn remove(&self) -> Cursor {
        let mut tombstone = Cursor {
            ownership: Ownership::Removed,
            start: 0,
            streams: BTreeMap::new(),
            skipped: Vec::new(),
            refused: Vec::new(),
            waiting_for: Vec::new(),
            tables: SinkTables::default(),
            seen: None,
            programs: None,
            ..self.next_generation()
        };
        tombstone.end_unique();
        tombstone
    }

    /// Restarts a removed consumer at `start` with this policy.
    #[must_use]
    pub fn begin_again(&self, start: u64, policy: BatchingPolicy) -> Cursor {
        Cursor {
            ownership: Ownership::Released,
            start,
            policy,
            ..self.clone()
        }
    }

    /// This state with all tokens changed and all previous owners fenced.
    fn next_generation(&self) -> Cursor {
        Cursor {
            epoch: self.epoch + 1,
            opening: 0,
            generation: self.generation + 1,
            unsettled: true,
            // After a clean release nobody sends anymore. An operator's change releases the cursor too, but not
            // cleanly.
            lease_ms: match self.ownership {
                Ownership::Released if self.is_clean() && !self.unsettled => 0,
                _ => self.lease_ms,
            },
            sent_below: self.sent_below.max(self.reached()),
            certificate: None,
            ..self.clone()
        }
    }

    /// The sequence after the last one that any owner can have sent.
    fn reached(&self) -> u64 {
        let ends = self.streams.values().map(|stream| {
            let planned = stream.planned.back().map_or(0, |last| last.high + 1);
            stream.next.max(planned)
        });
        ends.max().unwrap_or(0).max(self.start)
    }

    /// Skips a part that is not acknowledged yet. An owner simply continues, unless the part is in a planned batch. Its
    /// rows may then have been sent in chunks that will differ from now on. So the owner is fenced, and the next one
    /// asks the sink for the rows of every planned batch.
    pub fn skip(&mut self, skip: Skip) -> Result<(), Forbidden> {
        let next = self.next(&skip.stream);
        let reason = if skip.sequence < next {
            format!("sequence {} lies before the acknowledged {next}", skip.sequence)
        } else if self.is_skipped(&skip.stream, skip.sequence) {
            format!("sequence {} is skipped already", skip.sequence)
        } else if self.skipped.len() >= SKIPS_MAX {
            format!("{SKIPS_MAX} parts are skipped already")
        } else {
            let planned = self
                .planned(&skip.stream)
                .any(|plan| (plan.low..=plan.high).contains(&skip.sequence));
            if planned {
                *self = Cursor {
                    ownership: Ownership::Abandoned,
                    refused: Vec::new(),
                    ..self.next_generation()
                };
            }
            self.skipped.push(skip);
            return Ok(());
        };
        Err(Forbidden {
            stream: skip.stream,
            reason,
        })
    }

    /// Limits what a new cursor's predecessor may have sent to the log that its first owner finds. `end` is the
    /// sequence after the log's last one, read after opening the cursor: by then nobody else can have sent later
    /// sequences.
    pub fn limit_sent(&mut self, end: u64) {
        if self.sent_below == SENT_UNKNOWN {
            self.sent_below = end;
        }
        if self.deduplicated_below == SENT_UNKNOWN {
            self.deduplicated_below = end;
        }
    }

    /// Requests of later rounds may be in flight from now on, and a successor must wait until they have ended.
    pub fn unsettle(&mut self) {
        self.unsettled = true;
    }

    /// All requests that a successor would have to wait for have ended.
    pub fn settle(&mut self) {
        self.unsettled = false;
    }

    /// Returns true if an operator skipped this part.
    pub fn is_skipped(&self, stream: &str, sequence: u64) -> bool {
        self.skipped
            .iter()
            .any(|s| s.sequence == sequence && s.stream == stream)
    }

    /// Nothing from this sequence on may be deleted. A stream without a position is not consumed, or begins further on:
    /// an owner that moves any position writes one for every consumed stream that it has seen. A successor reads again
    /// from the snapshot of a stream's deduplication on.
    pub fn needs(&self) -> u64 {
        let positions = self.streams.iter().map(|(name, stream)| {
            let state = self.deduplicates(name).map(|(_, of)| of.needs());
            state.map_or(stream.next, |state| state.min(stream.next))
        });
        positions.min().unwrap_or(self.start)
    }

    /// Renews the owner's lease.
    pub fn renew(&mut self, now_ms: u64, lease_ms: u64) {
        if let Ownership::Held {
            lease_expires_at_ms, ..
        } = &mut self.ownership
        {
            *lease_expires_at_ms = now_ms.saturating_add(lease_ms);
        }
    }

    /// Records the owner's reasons for waiting, shortened; empty while it works.
    pub fn wait_for(&mut self, reasons: &[String]) {
        let (reasons_max, chars_max) = WAITS_MAX;
        let shortened = reasons
            .iter()
            .map(|reason| reason.chars().take(chars_max).collect());
        self.waiting_for = shortened.take(reasons_max).collect();
    }

    /// Releases the cursor. The owner may have sent planned batches that begin below `end`, the end of the log that it
    /// knows. It has sent none after that. An earlier owner that does not know that it is fenced may still send those, so
    /// they stay planned.
    pub fn release(&mut self, end: u64) {
        self.certificate = None;
        let mut planned = self.streams.values().flat_map(|stream| &stream.planned);
        self.ownership = if planned.any(|plan| plan.low < end) {
            Ownership::Abandoned
        } else {
            Ownership::Released
        };
    }

    fn stream(&mut self, stream: &str, start: u64) -> &mut StreamCursor {
        // Not `entry`: copy the name only for a new stream.
        if !self.streams.contains_key(stream) {
            let cursor = StreamCursor {
                next: start,
                planned: VecDeque::new(),
            };
            self.streams.insert(stream.to_owned(), cursor);
        }
        self.streams.get_mut(stream).expect("it was just put there")
    }
}
