//! The cursor of one consumer in one shard, and its pure transitions: open, plan, acknowledge, renew, release. It never
//! reads a clock or touches a store, and refuses every step that would break invariants 3 to 5 of the protocol.

use crate::cas::{Object, Stamp};
use crate::manifest::STREAMS_MAX;
use crate::planted::{self, Bug};
use crate::tables::{IDENTITIES_MAX, SinkTables, TABLES_MAX};
use crate::{Count, FormatError, envelope, layout, limits, piece, proto};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use thiserror::Error;
use uuid::Uuid;

/// Maximum planned and unacknowledged batches of a stream.
pub const PLANS_MAX: usize = 4_096;

/// Maximum planned and unacknowledged batches of all streams: 256 for each of the maximum number of streams.
pub const ALL_PLANS_MAX: usize = 256 * STREAMS_MAX;

/// The highest credible epoch: nobody opens a cursor that often.
const EPOCH_MAX: u64 = u64::MAX / 2;

/// Decides how batches are formed and which bytes are sent under a token. It is pinned while batches may be in doubt: a
/// successor must cut the same batches into the same chunks.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct BatchingPolicy {
    /// Target number of records in a batch. A segment with half of it is a batch by itself.
    pub batch_records: u64,
    /// Target raw bytes of a batch. A segment with half of it is a batch by itself.
    pub batch_bytes: u64,
    /// Maximum rows in a chunk.
    pub chunk_rows: u64,
    /// Maximum bytes in a chunk, uncompressed in the sink's format.
    pub chunk_bytes: u64,
    /// Maximum partitions of the sink's table in a chunk's rows.
    pub max_partitions_per_chunk: u32,
    /// Maximum batches of a stream in flight past the acknowledged position.
    pub max_in_flight: u32,
    /// The sink's name, part of every batch's identity.
    pub sink: String,
    /// The version of the sink's mapping from messages to rows, part of every batch's identity.
    pub schema_version: u32,
}

impl BatchingPolicy {
    /// Returns an error for the first invalid setting.
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

/// Maximum refused pieces of one batch in a cursor.
pub const PIECES_MAX: usize = 1_000;

/// The sink's refusals of a batch. Until the batch is acknowledged, nobody sends any refused part in the same form
/// again: its halves may already be in the sink.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Refused {
    /// The stream.
    pub stream: String,
    /// The batch.
    pub batch: Plan,
    /// Numbers ([`crate::piece`]) of the smallest refused pieces. Their ancestors were refused too, and are not listed.
    pub pieces: BTreeSet<u32>,
    /// The sink's error for the latest of them, shortened.
    pub reason: String,
}

impl Refused {
    /// Returns true if this chunk or piece was refused.
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

    /// Names the first rule of the format that this refusal breaks.
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

/// Maximum number of reasons for waiting in a cursor, and characters of each.
const WAITS_MAX: (usize, usize) = (8, 1_000);

/// The owner of the cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ownership {
    /// Nobody owns it, and nothing is in doubt.
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
    /// Take the cursor even if its owner's lease still runs.
    pub take_over: bool,
}

/// An opened cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Opened {
    /// The state to swap in, not yet stamped.
    pub state: Cursor,
    /// The predecessor did not release it cleanly: its planned batches may have been sent.
    pub in_doubt: bool,
    /// The pinned policy stays in force although another one is configured.
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
            tables: SinkTables::default(),
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
        let same_epoch = self.epoch == own.epoch && planted::is(Bug::EpochFences);
        self.opening == own.opening || same_epoch || planted::is(Bug::FenceIgnored)
    }

    /// Returns true if an operator removed the consumer: it has no positions, and nothing is kept for it.
    pub fn is_removed(&self) -> bool {
        self.ownership == Ownership::Removed
    }

    /// Returns true if somebody may have tried to send this batch before, not counting the current generation.
    pub fn may_have_sent(&self, batch: Plan) -> bool {
        batch.low < self.sent_below && !planted::is(Bug::ResetForgetsSent)
    }

    /// Takes the cursor with a new epoch and owner. The configured policy comes into force only if nothing is in doubt.
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
        // A fenced owner may have a longer lease than its successor, and sends until that expires. After a clean
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

    /// Records the boundaries of a batch. It may be sent only once the state with this plan is in force: then a
    /// successor knows exactly what its predecessors may have sent, or may still be sending.
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
        Cursor {
            ownership: Ownership::Released,
            start: position,
            streams: BTreeMap::new(),
            refused: Vec::new(),
            waiting_for: Vec::new(),
            ..self.next_generation()
        }
    }

    /// Removes the consumer, and fences and ends a running owner. The tombstone keeps what protects the rows in the
    /// sink from a consumer of the same name.
    #[must_use]
    pub fn remove(&self) -> Cursor {
        Cursor {
            ownership: Ownership::Removed,
            start: 0,
            streams: BTreeMap::new(),
            skipped: Vec::new(),
            refused: Vec::new(),
            waiting_for: Vec::new(),
            tables: SinkTables::default(),
            ..self.next_generation()
        }
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
        let fences = !planted::is(Bug::FenceIgnored);
        Cursor {
            epoch: self.epoch + 1,
            opening: if fences { 0 } else { self.opening },
            generation: self.generation + u64::from(!planted::is(Bug::GenerationKept)),
            unsettled: !planted::is(Bug::ResetUnsettled),
            // After a clean release nobody sends anymore. An operator's change releases the cursor too, but not
            // cleanly.
            lease_ms: match self.ownership {
                Ownership::Released if !self.unsettled || planted::is(Bug::SecondResetForgetsLease) => 0,
                _ => self.lease_ms,
            },
            sent_below: self.sent_below.max(self.reached()),
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

    /// Limits what a new cursor's predecessor may have sent to the log that its first owner finds. `end` is the
    /// sequence after the log's last one, read after opening the cursor: by then nobody else can have sent later
    /// sequences.
    pub fn limit_sent(&mut self, end: u64) {
        if self.sent_below == SENT_UNKNOWN {
            self.sent_below = end;
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
    /// an owner that moves any position writes one for every consumed stream that it has seen.
    pub fn needs(&self) -> u64 {
        let positions = self.streams.values().map(|stream| stream.next);
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

    /// Releases the cursor. Batches that were planned and not acknowledged may have been sent.
    pub fn release(&mut self) {
        let planned = self.streams.values().any(|s| !s.planned.is_empty());
        self.ownership = if planned && !planted::is(Bug::ReleasedInDoubt) {
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

    /// Names the first rule of the format that this state breaks.
    pub fn check(&self) -> Result<(), String> {
        self.policy.check()?;
        layout::check_consumer_name(&self.consumer).map_err(|error| error.to_string())?;
        let skipped = self.skipped.iter().map(|skip| &skip.stream);
        let refused = self.refused.iter().map(|refused| &refused.stream);
        for stream in self.streams.keys().chain(skipped).chain(refused) {
            millpond_segment::check_stream_name(stream).map_err(|error| error.to_string())?;
        }
        // Each opening and each reset takes the next value.
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
        self.tables.check()
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
            of: "skipped parts",
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
        Count {
            of: "tables",
            path: &[21, 1],
            max: TABLES_MAX,
        },
        Count {
            of: "identities of tables",
            path: &[21, 1, 2],
            max: IDENTITIES_MAX.1,
        },
        Count {
            of: "claimed tables",
            path: &[21, 4, 2],
            max: TABLES_MAX,
        },
        Count {
            of: "identities of claimed tables",
            path: &[21, 4, 2, 2],
            max: IDENTITIES_MAX.1,
        },
    ];

    fn encode(&self) -> Bytes {
        // Destructured completely: a forgotten new field does not compile.
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
            tables,
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
                tables: (*tables != SinkTables::default()).then(|| tables.encode()),
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
            tables: c.tables.map(SinkTables::decode).unwrap_or_default(),
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
