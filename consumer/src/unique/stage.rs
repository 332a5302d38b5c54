//! The place of a stream's batches in the order of the log: each asks for memory, and decides, after the one before it.
//! Writes the snapshots. `state` decides.

use super::keys::PartKeys;
use super::restore::{Source, restore, snapshot, too_many};
use super::routing;
use super::state::{Decisions, State};
use super::times::SHARE;
use crate::error::ConsumeError;
use crate::metrics::label;
use crate::shard::Shard;
use crate::sink::{Batch, Opened};
use futures::future;
use millpond_manifest::cursor::Plan;
use millpond_manifest::{Cursor, Object as _, UniqueReference, UniqueSetting, UniqueSnapshot, layout};
use millpond_runtime::{Backoff, Level, blocking};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::warn;
use ulid::Ulid;

/// The deduplication of one stream in one term.
pub(crate) struct Stage {
    pub(super) shard: Shard,
    pub(super) stream: String,
    setting: UniqueSetting,
    pub(super) state: tokio::sync::Mutex<Option<Kept>>,
    /// The state is in memory. Whoever has the turn to ask for memory reads and sets it.
    pub(super) loaded: AtomicBool,
    reached: Mutex<Reached>,
}

/// The state between two batches.
pub(super) struct Kept {
    pub(super) state: State,
    /// When the next snapshot is due, by the environment's uptime.
    pub(super) due_at: Duration,
    /// The bytes of the parts since the last one, which a successor reads again.
    pub(super) raw_bytes: u64,
}

/// The part of the state that a swap of the cursor may record once the positions have moved so far.
#[derive(Default)]
pub(super) struct Reached {
    /// Snapshots that the store has.
    snapshots: VecDeque<UniqueReference>,
    /// The last of them, or the one that the cursor named at the beginning.
    pub(super) newest: Option<UniqueReference>,
    /// The number of dropped rows before a sequence.
    duplicates: VecDeque<(u64, u64)>,
}

/// The batches of a stream, in the order in which they start.
pub(crate) struct Line {
    stage: Arc<Stage>,
    /// The hand-overs of the last batch.
    memory: Option<oneshot::Receiver<()>>,
    decision: Option<oneshot::Receiver<()>>,
    /// The start of the last batch, or of the last wait for one, by the environment's uptime.
    silent_since: Duration,
    /// A batch has come since the last turn to keep the keys.
    overtaken: CancellationToken,
}

/// A batch's place in the line.
pub(crate) struct Turn {
    pub(super) stage: Arc<Stage>,
    pub(super) source: Source,
    pub(super) plan: Plan,
    memory: Handover,
    decision: Handover,
    /// A batch has come after this turn.
    pub(super) overtaken: CancellationToken,
}

/// The end of the wait for the batch before, and the signal to the batch after.
struct Handover {
    /// `None` for the first batch.
    before: Option<oneshot::Receiver<()>>,
    after: Option<oneshot::Sender<()>>,
}

impl Handover {
    fn new(line: &mut Option<oneshot::Receiver<()>>) -> Handover {
        let (sender, receiver) = oneshot::channel();
        Handover {
            before: line.replace(receiver),
            after: Some(sender),
        }
    }

    /// Returns when it is this batch's turn.
    async fn wait(&mut self) {
        if let Some(before) = self.before.take()
            && before.await.is_err()
        {
            // The batch before ended with an error, and so does the term.
            std::future::pending::<()>().await;
        }
    }

    fn pass_on(&mut self) {
        if let Some(after) = self.after.take() {
            // No batch follows if the receiver does not exist any more.
            let _ = after.send(());
        }
    }
}

impl Line {
    /// The line of a stream whose repeated events are dropped.
    pub(crate) fn new(shard: &Shard, source: &Source) -> Line {
        let reached = Reached {
            newest: source.of.snapshot,
            ..Reached::default()
        };
        Line {
            stage: Arc::new(Stage {
                shard: shard.clone(),
                stream: source.stream.clone(),
                setting: source.setting.clone(),
                state: tokio::sync::Mutex::default(),
                loaded: AtomicBool::new(false),
                reached: Mutex::new(reached),
            }),
            memory: None,
            decision: None,
            silent_since: shard.claim.environment.uptime(),
            overtaken: CancellationToken::new(),
        }
    }

    /// Returns true if the keys are in memory.
    pub(crate) fn is_loaded(&self) -> bool {
        self.stage.loaded.load(Ordering::Relaxed)
    }

    /// Returns true if no turn before the next one has anything left to do with the keys.
    pub(crate) fn is_idle(&mut self) -> bool {
        let decided = self.decision.as_mut().is_none_or(|last| last.try_recv().is_ok());
        if decided {
            // It has passed on the memory before. A hand-over is received once.
            (self.memory, self.decision) = (None, None);
        }
        decided
    }

    /// Returns true, once, if there was no batch for so long that the keys need not stay in memory.
    pub(crate) fn may_rest(&mut self, now: Duration) -> bool {
        let times = &self.stage.shard.worker.key_times;
        let rests = self.is_loaded()
            && now.saturating_sub(self.silent_since) >= times.rests_after(&self.stage.setting);
        if rests {
            self.silent_since = now;
        }
        rests
    }

    /// The next batch.
    pub(crate) fn turn(&mut self, source: Source, plan: Plan) -> Turn {
        self.silent_since = self.stage.shard.claim.environment.uptime();
        self.overtaken.cancel();
        self.turn_of(source, plan)
    }

    /// The next turn, which is not of a batch: the state before this sequence is kept.
    pub(crate) fn turn_to_keep(&mut self, source: Source, next: u64) -> Turn {
        self.overtaken = CancellationToken::new();
        self.turn_of(
            source,
            Plan {
                low: next,
                high: next,
            },
        )
    }

    fn turn_of(&mut self, source: Source, plan: Plan) -> Turn {
        Turn {
            stage: self.stage.clone(),
            source,
            plan,
            memory: Handover::new(&mut self.memory),
            decision: Handover::new(&mut self.decision),
            overtaken: self.overtaken.clone(),
        }
    }

    /// Records in a cursor what its position allows.
    pub(crate) fn record(&self, cursor: &mut Cursor) -> Result<(), ConsumeError> {
        let stream = &*self.stage.stream;
        let next = cursor.next(stream);
        let reached = self.stage.reached();
        let named = cursor.deduplicates(stream).map_or(0, |(_, of)| of.needs());
        let snapshots = reached.snapshots.iter().rev();
        if let Some(snapshot) = snapshots.copied().find(|snapshot| snapshot.next <= next)
            && snapshot.next > named
        {
            cursor.snapshot_unique(stream, snapshot)?;
        }
        let mut counts = reached.duplicates.iter().rev();
        if let Some((_, duplicates)) = counts.find(|(before, _)| *before <= next) {
            cursor.count_duplicates(stream, *duplicates);
        }
        Ok(())
    }

    /// Forgets what a durable cursor has.
    pub(crate) fn recorded(&self, cursor: &Cursor) {
        let stream = &*self.stage.stream;
        let (next, named) = (
            cursor.next(stream),
            cursor.deduplicates(stream).map_or(0, |(_, of)| of.needs()),
        );
        let mut reached = self.stage.reached();
        reached.snapshots.retain(|snapshot| snapshot.next > named);
        // The last one that the position allows stays, since the swap may not have had it yet.
        while reached
            .duplicates
            .get(1)
            .is_some_and(|(before, _)| *before <= next)
        {
            reached.duplicates.pop_front();
        }
    }
}

impl Turn {
    /// Returns when the batch may ask for memory. The first one puts the state together before.
    pub(crate) async fn before_memory(&mut self) -> Result<(), ConsumeError> {
        self.memory.wait().await;
        let source = &self.source;
        let Stage { shard, loaded, .. } = &*self.stage;
        if loaded.load(Ordering::Relaxed) {
            return Ok(());
        }
        let limit = shard.worker.keys.clone();
        let newest = self.stage.reached().newest;
        // A successor would read these bytes again, too.
        let (state, raw_bytes) = restore(shard, source, newest, limit, self.plan.low).await?;
        let environment = &shard.worker.environment;
        let times = &shard.worker.key_times;
        let due_in = match newest {
            Some(last) => times.next_in(&source.setting, last, environment.now_ms()),
            None if source.of.since < self.plan.low => Duration::ZERO,
            None => times.interval(&source.setting),
        };
        *self.stage.state.lock().await = Some(Kept {
            state,
            due_at: environment.uptime().saturating_add(due_in),
            raw_bytes,
        });
        loaded.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The batch has its memory.
    pub(crate) fn has_memory(&mut self) {
        self.memory.pass_on();
    }

    /// The next batch may decide.
    pub(super) fn has_decided(&mut self) {
        self.decision.pass_on();
    }

    /// Decides about the rows of the batch, and marks those that repeat earlier ones.
    /// Returns what the sink keeps for their chunks, which is nothing unless it `keeps_rows`.
    pub(crate) async fn decide(
        mut self,
        batch: &mut Batch,
        keeps_rows: bool,
    ) -> Result<Opened, ConsumeError> {
        let (keys, opened) = self.open(batch, keeps_rows).await?;
        self.decision.wait().await;
        let stage = self.stage.clone();
        let (shard, source) = (&stage.shard, &self.source);
        let worker = &shard.worker;
        if keys.len() != batch.parts.len() {
            return Err(bug(
                batch,
                &format!("the sink read the keys of {} parts", keys.len()),
            ));
        }
        let mut kept = stage.state.lock().await;
        let Some(Kept {
            mut state,
            due_at,
            raw_bytes,
        }) = kept.take()
        else {
            return Err(bug(batch, "its stream has no state"));
        };
        if state.next() > self.plan.low.max(source.of.since) {
            return Err(bug(
                batch,
                &format!("sequence {} is decided already", state.next()),
            ));
        }
        let next = self.plan.high + 1;
        let route = worker.routing.route(&source.stream);
        let in_shard = shard.claim.shard;
        let (state, decided, misrouted) = blocking::compute(&*worker.environment, move || {
            let misrouted = route.map_or(0, |route| routing::misrouted(&route, in_shard, &keys));
            let decided: Result<Vec<Decisions>, _> = keys.iter().map(|part| state.part(part)).collect();
            state.pass(next);
            (state, decided, misrouted)
        })
        .await;
        worker.routing.count(
            (&source.stream, in_shard),
            misrouted,
            &worker.metrics,
            &*worker.environment,
        );
        let raw_bytes = batch
            .parts
            .iter()
            .fold(raw_bytes, |sum, part| sum.saturating_add(part.raw_len));
        let decided = decided.map_err(|full| too_many(&source.stream, full))?;
        let before = Kept {
            state,
            due_at,
            raw_bytes,
        };
        *kept = Some(stage.store(shard, source, before).await);
        if let Some(Kept { state, .. }) = &*kept {
            stage.reached().duplicates.push_back((next, state.duplicates()));
        }
        drop(kept);
        self.decision.pass_on();
        let label = label(&source.stream);
        let (duplicates, late) = (&worker.metrics.duplicates, &worker.metrics.unique_late);
        for (part, Decisions { dropped, late: rows }) in batch.parts.iter_mut().zip(decided) {
            duplicates.get_or_create(&label).inc_by(dropped.len());
            late.get_or_create(&label).inc_by(rows);
            part.dropped = dropped;
        }
        stage.count_keys();
        Ok(opened)
    }

    /// Reads the keys of the batch. Several batches do so at a time.
    async fn open(&self, batch: &Batch, keeps_rows: bool) -> Result<(Vec<PartKeys>, Opened), ConsumeError> {
        let worker = &self.stage.shard.worker;
        let decoder = worker.decoders.clone().acquire_owned();
        let decoder = decoder.await.expect("never closed");
        let (sink, paths) = (worker.sink.clone(), self.source.setting.key.clone());
        // Its bytes are shared.
        let copy = batch.clone();
        let found = blocking::compute(&*worker.environment, move || {
            // A thread goes on when the term ends.
            let _decoder = decoder;
            match keeps_rows {
                true => sink.open(&copy, &paths),
                false => Ok((sink.keys(&copy, &paths)?, Opened::default())),
            }
        })
        .await;
        found.map_err(|error| ConsumeError::Refused {
            batch: batch.id.to_string(),
            reason: error.to_string(),
        })
    }
}

fn bug(batch: &Batch, reason: &str) -> ConsumeError {
    ConsumeError::Refused {
        batch: batch.id.to_string(),
        reason: format!("its rows cannot be compared with earlier ones, because {reason}; this is a bug"),
    }
}

impl Stage {
    pub(super) fn reached(&self) -> MutexGuard<'_, Reached> {
        self.reached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count_keys(&self) {
        let worker = &self.shard.worker;
        let keys = i64::try_from(worker.keys.used()).unwrap_or(i64::MAX);
        worker.metrics.unique_keys.set(keys);
    }

    /// Stores a snapshot if one is due, and returns when the store has it: the next one names it. Few new keys wait until
    /// `due_at`, or until a successor would read many bytes again for them.
    pub(super) async fn store(&self, shard: &Shard, source: &Source, kept: Kept) -> Kept {
        let worker = &shard.worker;
        let now = worker.environment.uptime();
        let Kept {
            mut state,
            due_at,
            raw_bytes,
        } = kept;
        let many = worker.snapshot_keys.max(state.keys() / u64::from(SHARE));
        let long = now >= due_at || raw_bytes >= worker.snapshot_bytes;
        let due = state.fresh() >= many || (long && state.next() > state.snapshot_at());
        let merged = match due {
            true => merged(shard, source, &state).await,
            false => Vec::new(),
        };
        if !due || !state.may_snapshot(merged.len()) {
            return Kept {
                state,
                due_at,
                raw_bytes,
            };
        }
        let snapshot = state.snapshot(&merged);
        drop(merged);
        source.progress.goes_on();
        let name = self.put_new(shard, &snapshot).await;
        state.stored(&snapshot, name);
        Kept {
            state,
            due_at: now.saturating_add(worker.key_times.interval(&source.setting)),
            raw_bytes: 0,
        }
    }

    /// Returns the snapshot's name when the store has it.
    pub(super) async fn put_new(&self, shard: &Shard, snapshot: &UniqueSnapshot) -> UniqueReference {
        let (worker, readiness) = (&shard.worker, &shard.claim.readiness);
        let random = worker.environment.random_u128();
        let name = UniqueReference {
            next: snapshot.next,
            id: Ulid::from_parts(worker.environment.now_ms(), random),
        };
        let UniqueSnapshot { consumer, stream, .. } = snapshot;
        let key = layout::unique(snapshot.shard, consumer, stream, name.next, name.id);
        let (what, body) = (format!("writing {key}"), snapshot.encode());
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(5));
        loop {
            // Nobody else uses this name: an object with it is from an earlier attempt.
            match worker.store.put_if_absent(&key, vec![body.clone()]).await {
                Ok(_) => break,
                Err(error) => readiness.waits(&what, error, Level::Warn),
            }
            backoff.pause(&*worker.environment).await;
        }
        readiness.goes_on(&what);
        let mut reached = self.reached();
        reached.snapshots.push_back(name);
        reached.newest = Some(name);
        name
    }
}

/// Reads the snapshots that the next one replaces. The others stay if one of them cannot be read, which is then a matter of the owner
/// that needs it.
async fn merged(shard: &Shard, source: &Source, state: &State) -> Vec<UniqueSnapshot> {
    let reads = state.merges().into_iter();
    let reads: Vec<_> = reads
        .map(|name| snapshot(shard, source, state.of(), name))
        .collect();
    match future::try_join_all(reads).await {
        Ok(merged) => merged,
        Err(lost) => {
            warn!(
                shard = shard.claim.shard,
                "snapshots of keys cannot be merged: {lost}"
            );
            Vec::new()
        }
    }
}
