//! The cursor of one consumer in one shard, and its pure transitions: open, plan, acknowledge,
//! renew, release. It never reads a clock or touches a store; it refuses every step that would
//! break invariants 3 to 5 of the protocol.

use crate::cas::{Object, Stamp};
use crate::manifest::STREAMS_MAX;
use crate::planted::{self, Bug};
use crate::{Count, FormatError, envelope, layout, limits, piece, proto};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use thiserror::Error;
use uuid::Uuid;

/// The most batches of a stream that may be planned and not acknowledged.
pub const PLANS_MAX: usize = 4_096;

/// The most batches of all streams that may be planned and not acknowledged: 256 for each of as many streams as there may be.
pub const ALL_PLANS_MAX: usize = 256 * STREAMS_MAX;

/// The highest epoch that is believed: nobody opens a cursor that often.
const EPOCH_MAX: u64 = u64::MAX / 2;

/// How batches are made, and what decides the bytes that are sent under a token. It is pinned while batches may be in
/// doubt: a successor must cut the same batches into the same chunks.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct BatchingPolicy {
    /// Records that a batch should have. A segment with half of it is a batch by itself.
    pub batch_records: u64,
    /// Raw bytes that a batch should have. A segment with half of it is a batch by itself.
    pub batch_bytes: u64,
    /// The most rows in a chunk.
    pub chunk_rows: u64,
    /// The most bytes in a chunk, uncompressed in the sink's format.
    pub chunk_bytes: u64,
    /// The most partitions of the sink's table that a chunk's rows may fall in.
    pub max_partitions_per_chunk: u32,
    /// How many batches of a stream may be in flight past the acknowledged position.
    pub max_in_flight: u32,
    /// The sink's name, part of every batch's identity.
    pub sink: String,
    /// The version of the sink's mapping from messages to rows, part of every batch's identity.
    pub schema_version: u32,
}

impl BatchingPolicy {
    /// Names the first setting that cannot be meant.
    pub fn check(&self) -> Result<(), String> {
        let limits = [
            ("batch_records", self.batch_records),
            ("batch_bytes", self.batch_bytes),
            ("chunk_rows", self.chunk_rows),
            ("chunk_bytes", self.chunk_bytes),
            ("max_partitions_per_chunk", self.max_partitions_per_chunk.into()),
            ("max_in_flight", self.max_in_flight.into()),
        ];
        match limits.into_iter().find(|(_, value)| *value == 0) {
            Some((name, _)) => Err(format!("{name} is 0: it must be at least 1")),
            None => Ok(()),
        }
    }
}

/// A contiguous range of sequences that one batch covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
pub struct Plan {
    /// First sequence.
    pub low: u64,
    /// Last sequence, inclusive.
    pub high: u64,
}

/// Where a consumer is in one stream.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct StreamCursor {
    /// Everything below is acknowledged.
    pub next: u64,
    /// Batches whose boundaries are decided, in order: no other may be sent.
    pub planned: VecDeque<Plan>,
}

/// [`Cursor::sent_below`] of a new cursor: an earlier one may have been deleted, so any row may have been sent.
pub const SENT_UNKNOWN: u64 = u64::MAX;

/// The most parts that a cursor remembers to leave out.
pub const SKIPS_MAX: usize = 1_000;

/// A stream's part of a segment that an operator said to leave out, because it cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Skip {
    /// Which stream.
    pub stream: String,
    /// Which sequence.
    pub sequence: u64,
    /// When it was said, unix ms.
    pub at_ms: u64,
    /// Why, in the operator's words.
    pub reason: String,
}

/// The most batches with something refused that are read of a cursor.
const REFUSED_MAX: usize = 16 * STREAMS_MAX;

/// The most pieces of one batch that a cursor remembers as refused.
pub const PIECES_MAX: usize = 1_000;

/// What the sink refused of a batch. As long as the batch is not acknowledged, nobody sends any of it as it was refused:
/// its halves may be in the sink already.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Refused {
    /// Which stream.
    pub stream: String,
    /// Which batch.
    pub batch: Plan,
    /// Numbers ([`crate::piece`]) of the smallest pieces that are known to be refused. What they were cut from was refused,
    /// too, and is not among them.
    pub pieces: BTreeSet<u32>,
    /// The sink's error for the last of them, shortened.
    pub reason: String,
}

impl Refused {
    /// Whether this chunk or piece was refused.
    pub fn covers(&self, number: u32) -> bool {
        self.pieces
            .iter()
            .any(|&piece| piece::lineage(piece).any(|of| of == number))
    }

    fn add(&mut self, number: u32) {
        if !self.covers(number) {
            for of in piece::lineage(number) {
                self.pieces.remove(&of);
            }
            self.pieces.insert(number);
        }
    }

    /// Names the first rule of the format that this breaks.
    fn check(&self, next: u64) -> Result<(), String> {
        let Refused { stream, batch, .. } = self;
        let Plan { low, high } = *batch;
        if low < next || high < low {
            return Err(format!(
                "stream {stream}: the refused batch {low}..={high} does not follow {next}"
            ));
        }
        let pieces = &self.pieces;
        if pieces.is_empty() || pieces.len() > PIECES_MAX {
            return Err(format!("stream {stream}: {} refused pieces", pieces.len()));
        }
        for &number in pieces {
            let known = number < piece::CHUNKS_MAX || piece::is_piece(number);
            let implied = piece::lineage(number).skip(1).any(|of| pieces.contains(&of));
            if !known || implied {
                return Err(format!("stream {stream}: no piece can have the number {number}"));
            }
        }
        Ok(())
    }
}

/// The most reasons for waiting that a cursor holds, and characters of each.
const WAITS_MAX: (usize, usize) = (8, 1_000);

/// Whose the cursor is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ownership {
    /// Nobody's, and nothing is in doubt.
    Released,
    /// An owner's until the lease has run out.
    Held {
        /// The owner's name.
        owner: String,
        /// Unix ms.
        lease_expires_at_ms: u64,
    },
    /// Nobody's, but batches may be in doubt.
    Abandoned,
    /// Nobody's: an operator removed the consumer. The cursor stays as a tombstone, so that an owner that still lives learns
    /// of it and a consumer of the same name does not take rows in the sink for rows never sent.
    Removed,
}

/// The state of a consumer in one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cursor {
    /// Which buffer this is part of.
    pub buffer_id: Uuid,
    /// Which shard.
    pub shard: u32,
    /// Whose cursor.
    pub consumer: String,
    /// Tells states apart.
    pub stamp: Stamp,
    /// Counts the openings. For people: [`Cursor::opening`] is what fences.
    pub epoch: u64,
    /// The random id of the newest opening: an owner acts only while this is the id of its own.
    pub opening: u64,
    /// Whose it is.
    pub ownership: Ownership,
    /// The longest lease of any owner since the last clean release, in milliseconds: how long one that was fenced may go on
    /// sending.
    pub lease_ms: u64,
    /// Counts the changes that let rows go out in other chunks than before: resets, skips, removals. Part of every token.
    pub generation: u64,
    /// Requests of an earlier generation may still be under way to the sink. Nothing is sent until they have ended.
    pub unsettled: bool,
    /// Rows below this sequence may be in the sink under tokens that no plan names: the sink is asked before they are sent.
    /// [`SENT_UNKNOWN`] until the first owner has read the log.
    pub sent_below: u64,
    /// The batching policy in force.
    pub policy: BatchingPolicy,
    /// Where a stream without a position of its own begins.
    pub start: u64,
    /// By stream.
    pub streams: BTreeMap<String, StreamCursor>,
    /// The skipped ranges, in the order of the requests. Kept as a record.
    pub skipped: Vec<Skip>,
    /// What the sink refused of batches that are not acknowledged; one entry a batch.
    pub refused: Vec<Refused>,
    /// The reason why its owner waited when it wrote this, in words. For people: no decision reads it.
    pub waiting_for: Vec<String>,
}

/// The process that wants to open a cursor, and how.
#[derive(Debug, Clone)]
pub struct Opening<'a> {
    /// The name of the owner to be.
    pub owner: &'a str,
    /// The random id of this opening.
    pub id: u64,
    /// Unix ms.
    pub now_ms: u64,
    /// How long the lease lasts without being renewed, in milliseconds.
    pub lease_ms: u64,
    /// The batching policy as configured.
    pub policy: &'a BatchingPolicy,
    /// Take it from an owner whose lease still runs.
    pub take_over: bool,
}

/// A cursor that was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// The state to swap in, not yet stamped.
    pub state: Cursor,
    /// The predecessor did not release it cleanly: what it planned may have been sent.
    pub in_doubt: bool,
    /// The pinned policy stays in force although another is configured.
    pub policy_pinned: bool,
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

/// A step that the protocol forbids: the caller's own bookkeeping is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("stream {stream}: {reason}")]
pub struct Forbidden {
    /// Which stream.
    pub stream: String,
    /// The request and the reason why it cannot be met.
    pub reason: String,
}

impl Cursor {
    /// The cursor of a consumer that has none: released, at `start`. An operator may have deleted an earlier cursor, so anything
    /// in the log may have been sent: see [`limit_sent`](Self::limit_sent).
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
            sent_below: if planted::is(Bug::NewCursorSentNothing) {
                0
            } else {
                SENT_UNKNOWN
            },
            policy,
            start,
            streams: BTreeMap::new(),
            skipped: Vec::new(),
            refused: Vec::new(),
            waiting_for: Vec::new(),
        }
    }

    /// The state after this one, told apart from every other by its counter and `nonce`.
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

    /// The batches of the stream whose boundaries are written down.
    pub fn planned(&self, stream: &str) -> impl Iterator<Item = Plan> {
        self.streams
            .get(stream)
            .into_iter()
            .flat_map(|s| s.planned.iter().copied())
    }

    /// Whose the cursor is at this time (unix ms), if the owner's lease still runs.
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

    /// Whether this state is of the same opening as `own`: an owner that finds another is fenced.
    pub fn is_of(&self, own: &Cursor) -> bool {
        let same_epoch = self.epoch == own.epoch && planted::is(Bug::EpochFences);
        self.opening == own.opening || same_epoch || planted::is(Bug::FenceIgnored)
    }

    /// Whether an operator removed the consumer: it has no positions, and nothing is kept for it.
    pub fn is_removed(&self) -> bool {
        self.ownership == Ownership::Removed
    }

    /// Whether an attempt to send this batch may not be the first, apart from what its own generation has done.
    pub fn may_have_sent(&self, batch: Plan) -> bool {
        batch.low < self.sent_below && !planted::is(Bug::ResetForgetsSent)
    }

    /// Takes the cursor: a new epoch and a new owner. The configured policy comes into force only
    /// where nothing is in doubt.
    pub fn open(&self, opening: &Opening<'_>) -> Result<Opened, HeldByAnother> {
        let &Opening {
            owner,
            id,
            now_ms,
            lease_ms,
            policy,
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
        // An owner that was fenced may have a longer one than its successor, and it sends until that has run out. After a clean
        // release its tokens are known.
        state.lease_ms = if (in_doubt || self.unsettled) && !planted::is(Bug::LongestLeaseForgotten) {
            self.lease_ms.max(lease_ms)
        } else {
            lease_ms
        };
        state.ownership = Ownership::Held {
            owner: owner.to_owned(),
            lease_expires_at_ms: now_ms.saturating_add(lease_ms),
        };
        state.waiting_for.clear();
        let policy_pinned = in_doubt && *policy != state.policy;
        if !in_doubt || planted::is(Bug::PolicyNotPinned) {
            state.policy = policy.clone();
        }
        Ok(Opened {
            state,
            in_doubt,
            policy_pinned,
        })
    }

    /// Writes down the boundaries of a batch. It may be sent when the state that says so is in force, and not before:
    /// so a successor knows exactly what anybody before it may have sent, or may still be sending.
    pub fn plan(&mut self, stream: &str, plan: Plan) -> Result<(), Forbidden> {
        let start = self.start;
        let planned: usize = self.streams.values().map(|cursor| cursor.planned.len()).sum();
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

    /// Takes a plan back that nobody has sent anything of, nor can: its owner made it and did not begin with it.
    pub fn withdraw(&mut self, stream: &str, plan: Plan) {
        if let Some(cursor) = self.streams.get_mut(stream) {
            cursor.planned.retain(|planned| *planned != plan);
        }
    }

    /// Everything of the stream below `next` is in the sink.
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
        cursor.next = next;
        while cursor.planned.front().is_some_and(|p| p.high < next) {
            cursor.planned.pop_front();
        }
        self.refused
            .retain(|refused| refused.stream != stream || refused.batch.low >= next);
        Ok(())
    }

    /// Writes down that the sink refused these pieces of a batch that is not acknowledged. Only then may their halves be sent.
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

    /// The known refusals of a batch by the sink.
    pub fn refused(&self, stream: &str, batch: Plan) -> Option<&Refused> {
        self.refused
            .iter()
            .find(|refused| refused.stream == stream && refused.batch == batch)
    }

    /// Everything from `position` on is to be read again, and nothing before it: of every stream, those that come later
    /// included. Plans are forgotten, and an owner that still lives is fenced. What was sent stays in the sink: the next owner
    /// asks for it before it sends.
    #[must_use]
    pub fn reset(&self, position: u64) -> Cursor {
        Cursor {
            ownership: Ownership::Released,
            start: position,
            streams: BTreeMap::new(),
            refused: Vec::new(),
            waiting_for: Vec::new(),
            ..self.next_generation()
        }
    }

    /// The consumer is forgotten, and an owner that still lives is fenced and ends. The tombstone keeps what protects the rows
    /// in the sink from a consumer of the same name.
    #[must_use]
    pub fn remove(&self) -> Cursor {
        Cursor {
            ownership: Ownership::Removed,
            start: 0,
            streams: BTreeMap::new(),
            skipped: Vec::new(),
            refused: Vec::new(),
            waiting_for: Vec::new(),
            ..self.next_generation()
        }
    }

    /// A consumer begins again after a removal, at `start`, under this policy.
    #[must_use]
    pub fn begin_again(&self, start: u64, policy: BatchingPolicy) -> Cursor {
        Cursor {
            ownership: Ownership::Released,
            start,
            policy,
            ..self.clone()
        }
    }

    /// This state, in which no token is the same as before and no owner of before acts any more.
    fn next_generation(&self) -> Cursor {
        let fences = !planted::is(Bug::FenceIgnored);
        Cursor {
            epoch: self.epoch + 1,
            opening: if fences { 0 } else { self.opening },
            generation: self.generation + u64::from(!planted::is(Bug::GenerationKept)),
            unsettled: !planted::is(Bug::ResetUnsettled),
            // After a clean release nobody sends any more. An operator's change releases the cursor as well, but not cleanly.
            lease_ms: match self.ownership {
                Ownership::Released if !self.unsettled || planted::is(Bug::SecondResetForgetsLease) => 0,
                _ => self.lease_ms,
            },
            sent_below: self.sent_below.max(self.reached()),
            ..self.clone()
        }
    }

    /// The sequence after the last one that any owner can have sent anything of.
    fn reached(&self) -> u64 {
        let ends = self.streams.values().map(|stream| {
            let planned = stream.planned.back().map_or(0, |last| last.high + 1);
            stream.next.max(planned)
        });
        ends.max().unwrap_or(0).max(self.start)
    }

    /// Leaves a part out that is not acknowledged yet. An owner goes on with that, unless the part is in a planned batch: then
    /// rows of it may have been sent, in chunks that are to be others from now on, so that the owner is fenced and the next one
    /// asks the sink for the rows of every planned batch.
    pub fn skip(&mut self, skip: Skip) -> Result<(), Forbidden> {
        let next = self.next(&skip.stream);
        let reason = if skip.sequence < next {
            format!("sequence {} lies before the acknowledged {next}", skip.sequence)
        } else if self.is_skipped(&skip.stream, skip.sequence) {
            format!("sequence {} is left out already", skip.sequence)
        } else if self.skipped.len() >= SKIPS_MAX {
            format!("{SKIPS_MAX} parts are left out already")
        } else {
            let planned = self
                .planned(&skip.stream)
                .any(|plan| (plan.low..=plan.high).contains(&skip.sequence));
            if planned && !planted::is(Bug::SkipKeepsTokens) {
                let keeps = planted::is(Bug::SkipKeepsRefusals);
                *self = Cursor {
                    ownership: Ownership::Abandoned,
                    refused: if keeps { self.refused.clone() } else { Vec::new() },
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

    /// Limits what a new cursor's predecessor may have sent to the log as its first owner finds it. `end`: the sequence after
    /// the last one of the log, read after the cursor was opened. Nobody else can have sent later sequences by then.
    pub fn limit_sent(&mut self, end: u64) {
        if self.sent_below == SENT_UNKNOWN {
            self.sent_below = end;
        }
    }

    /// Requests of later rounds may be under way from now on, and a successor must wait until they have ended.
    pub fn unsettle(&mut self) {
        self.unsettled = true;
    }

    /// Every request that a successor would have to wait for has ended.
    pub fn settle(&mut self) {
        self.unsettled = false;
    }

    /// Whether an operator said to leave this part out.
    pub fn is_skipped(&self, stream: &str, sequence: u64) -> bool {
        self.skipped
            .iter()
            .any(|s| s.sequence == sequence && s.stream == stream)
    }

    /// Nothing from here on may be deleted. A stream without a position is one that the consumer does not take, or one that
    /// begins further on: an owner that moves any position writes one for every stream that it takes and has seen.
    pub fn needs(&self) -> u64 {
        let positions = self.streams.values().map(|stream| stream.next);
        positions.min().unwrap_or(self.start)
    }

    /// The owner lives.
    pub fn renew(&mut self, now_ms: u64, lease_ms: u64) {
        if let Ownership::Held {
            lease_expires_at_ms, ..
        } = &mut self.ownership
        {
            *lease_expires_at_ms = now_ms.saturating_add(lease_ms);
        }
    }

    /// Writes down what the owner waits for, shortened; nothing when it is at work.
    pub fn wait_for(&mut self, reasons: &[String]) {
        let (reasons_max, chars_max) = WAITS_MAX;
        let shortened = reasons
            .iter()
            .map(|reason| reason.chars().take(chars_max).collect());
        self.waiting_for = shortened.take(reasons_max).collect();
    }

    /// The owner goes. What it planned and did not acknowledge may have been sent.
    pub fn release(&mut self) {
        let planned = self.streams.values().any(|s| !s.planned.is_empty());
        self.ownership = if planned && !planted::is(Bug::ReleasedInDoubt) {
            Ownership::Abandoned
        } else {
            Ownership::Released
        };
    }

    fn stream(&mut self, stream: &str, start: u64) -> &mut StreamCursor {
        // Not `entry`: a name is copied only when the stream is new.
        if !self.streams.contains_key(stream) {
            let cursor = StreamCursor {
                next: start,
                planned: VecDeque::new(),
            };
            self.streams.insert(stream.to_owned(), cursor);
        }
        self.streams.get_mut(stream).expect("it was just put there")
    }

    /// Names the first rule of the format that this state breaks.
    pub fn check(&self) -> Result<(), String> {
        self.policy.check()?;
        layout::check_consumer_name(&self.consumer).map_err(|error| error.to_string())?;
        let skipped = self.skipped.iter().map(|skip| &skip.stream);
        let refused = self.refused.iter().map(|refused| &refused.stream);
        for stream in self.streams.keys().chain(skipped).chain(refused) {
            millpond_segment::check_stream_name(stream).map_err(|error| error.to_string())?;
        }
        // Each opening and each reset takes the next.
        if self.epoch.max(self.generation) > EPOCH_MAX {
            let (epoch, generation) = (self.epoch, self.generation);
            return Err(format!(
                "its epoch {epoch} or its generation {generation} is over {EPOCH_MAX}"
            ));
        }
        for (stream, cursor) in &self.streams {
            let mut from = cursor.next;
            for plan in &cursor.planned {
                if plan.low < from || plan.high < plan.low || plan.high == u64::MAX {
                    let Plan { low, high } = plan;
                    return Err(format!(
                        "stream {stream}: the plan {low}..={high} does not follow {from}"
                    ));
                }
                from = plan.high + 1;
            }
        }
        for refused in &self.refused {
            refused.check(self.next(&refused.stream))?;
        }
        Ok(())
    }
}

impl Object for Cursor {
    const NAME: &'static str = "cursor";
    const MAGIC: [u8; 4] = *b"MPCR";
    const BYTES_MAX: u64 = 8 << 20;
    const COUNTS: &'static [Count] = &[
        Count {
            of: "streams",
            path: &[12],
            max: STREAMS_MAX,
        },
        Count {
            of: "planned batches",
            path: &[12, 3],
            max: ALL_PLANS_MAX,
        },
        Count {
            of: "parts to leave out",
            path: &[13],
            max: SKIPS_MAX,
        },
        Count {
            of: "refused batches",
            path: &[14],
            max: REFUSED_MAX,
        },
        Count {
            of: "refused pieces",
            path: limits::PIECES,
            max: ALL_PLANS_MAX,
        },
        Count {
            of: "reasons for waiting",
            path: &[15],
            max: 1_000,
        },
    ];

    fn encode(&self) -> Bytes {
        // Destructured whole: a field added and forgotten here does not compile.
        let Cursor {
            buffer_id,
            shard,
            consumer,
            stamp,
            epoch,
            opening,
            ownership,
            lease_ms,
            generation,
            unsettled,
            sent_below,
            policy,
            start,
            streams,
            skipped,
            refused,
            waiting_for,
        } = self;
        let (kind, owner, lease_expires_at_ms) = match ownership {
            Ownership::Released => (proto::Ownership::Released, String::new(), 0),
            Ownership::Abandoned => (proto::Ownership::Abandoned, String::new(), 0),
            Ownership::Removed => (proto::Ownership::Removed, String::new(), 0),
            Ownership::Held {
                owner,
                lease_expires_at_ms,
            } => (proto::Ownership::Held, owner.clone(), *lease_expires_at_ms),
        };
        envelope::wrap(
            Self::MAGIC,
            &proto::Cursor {
                buffer_id: buffer_id.as_bytes().to_vec(),
                shard: *shard,
                consumer: consumer.clone(),
                version: stamp.version,
                writer_nonce: stamp.nonce,
                epoch: *epoch,
                ownership: kind.into(),
                owner,
                lease_expires_at_ms,
                policy: Some(encode_policy(policy)),
                start: *start,
                streams: streams.iter().map(encode_stream).collect(),
                skipped: skipped.iter().map(encode_skip).collect(),
                refused: refused.iter().map(encode_refused).collect(),
                waiting_for: waiting_for.clone(),
                opening: *opening,
                generation: *generation,
                sent_below: *sent_below,
                unsettled: *unsettled,
                lease_ms: *lease_ms,
            },
        )
    }

    fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let c: proto::Cursor = envelope::unwrap::<Self, _>(bytes)?;
        let content = |reason: String| FormatError::Content {
            object: Self::NAME,
            reason,
        };
        let ownership = match proto::Ownership::try_from(c.ownership) {
            Ok(proto::Ownership::Released) => Ownership::Released,
            Ok(proto::Ownership::Abandoned) => Ownership::Abandoned,
            Ok(proto::Ownership::Removed) => Ownership::Removed,
            Ok(proto::Ownership::Held) => Ownership::Held {
                owner: c.owner,
                lease_expires_at_ms: c.lease_expires_at_ms,
            },
            Err(_) => return Err(content(format!("unknown ownership {}", c.ownership))),
        };
        let policy = c
            .policy
            .ok_or_else(|| content("it has no batching policy".into()))?;
        let mut streams = BTreeMap::new();
        for stream in c.streams {
            let planned = stream
                .planned
                .iter()
                .map(|p| Plan {
                    low: p.low,
                    high: p.high,
                })
                .collect();
            streams.insert(
                stream.stream,
                StreamCursor {
                    next: stream.next,
                    planned,
                },
            );
        }
        let cursor = Cursor {
            buffer_id: Uuid::from_bytes(envelope::sixteen(Self::NAME, "buffer_id", &c.buffer_id)?),
            shard: c.shard,
            consumer: c.consumer,
            stamp: Stamp {
                version: c.version,
                nonce: c.writer_nonce,
            },
            epoch: c.epoch,
            opening: c.opening,
            ownership,
            lease_ms: c.lease_ms,
            generation: c.generation,
            unsettled: c.unsettled,
            sent_below: c.sent_below,
            policy: decode_policy(policy),
            start: c.start,
            streams,
            skipped: c.skipped.into_iter().map(decode_skip).collect(),
            refused: c.refused.into_iter().map(decode_refused).collect(),
            waiting_for: c.waiting_for,
        };
        cursor.check().map_err(content)?;
        Ok(cursor)
    }

    fn stamp(&self) -> Stamp {
        self.stamp
    }
}

fn encode_stream((stream, cursor): (&String, &StreamCursor)) -> proto::StreamCursor {
    let StreamCursor { next, planned } = cursor;
    proto::StreamCursor {
        stream: stream.clone(),
        next: *next,
        planned: planned
            .iter()
            .map(|p| proto::Plan {
                low: p.low,
                high: p.high,
            })
            .collect(),
    }
}

fn encode_skip(skip: &Skip) -> proto::Skip {
    let Skip {
        stream,
        sequence,
        at_ms,
        reason,
    } = skip.clone();
    proto::Skip {
        stream,
        sequence,
        at_ms,
        reason,
    }
}

fn decode_skip(skip: proto::Skip) -> Skip {
    let proto::Skip {
        stream,
        sequence,
        at_ms,
        reason,
    } = skip;
    Skip {
        stream,
        sequence,
        at_ms,
        reason,
    }
}

fn encode_refused(refused: &Refused) -> proto::Refused {
    let Refused {
        stream,
        batch: Plan { low, high },
        pieces,
        reason,
    } = refused.clone();
    proto::Refused {
        stream,
        low,
        high,
        pieces: pieces.into_iter().collect(),
        reason,
    }
}

fn decode_refused(refused: proto::Refused) -> Refused {
    let proto::Refused {
        stream,
        low,
        high,
        pieces,
        reason,
    } = refused;
    Refused {
        stream,
        batch: Plan { low, high },
        pieces: pieces.into_iter().collect(),
        reason,
    }
}

fn encode_policy(policy: &BatchingPolicy) -> proto::BatchingPolicy {
    let BatchingPolicy {
        batch_records,
        batch_bytes,
        chunk_rows,
        chunk_bytes,
        max_partitions_per_chunk,
        max_in_flight,
        sink,
        schema_version,
    } = policy.clone();
    proto::BatchingPolicy {
        batch_records,
        batch_bytes,
        chunk_rows,
        chunk_bytes,
        max_partitions_per_chunk,
        max_in_flight,
        sink,
        schema_version,
    }
}

fn decode_policy(policy: proto::BatchingPolicy) -> BatchingPolicy {
    let proto::BatchingPolicy {
        batch_records,
        batch_bytes,
        chunk_rows,
        chunk_bytes,
        max_partitions_per_chunk,
        max_in_flight,
        sink,
        schema_version,
    } = policy;
    BatchingPolicy {
        batch_records,
        batch_bytes,
        chunk_rows,
        chunk_bytes,
        max_partitions_per_chunk,
        max_in_flight,
        sink,
        schema_version,
    }
}
