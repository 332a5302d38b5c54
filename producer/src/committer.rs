//! The committer: one task that commits uploaded segments in their order, as many as there are with one
//! compare-and-set, never two at a time. What a commit means is decided by `millpond-manifest`; here is only
//! what to do about its outcomes. It never gives up while the process lives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millpond_manifest::planted::{self, Bug};
use millpond_manifest::{
    Commit, CommitRefusal, Manifest, NewSegment, Object, Page, ProducerId, Snapshot, Swap, cas, layout,
};
use millpond_storage::{Backoff, Version};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use ulid::Ulid;
use uuid::Uuid;

use crate::commit_delay::CommitDelay;
use crate::health::Stage;
use crate::segment::{UploadedWork, fail};
use crate::streams::Streams;
use crate::uploader::{Arrival, Upload};
use crate::{AppendError, Committed};

/// Segments in one commit at most: the manifest's tail has room for so many at a time.
const COMMIT_SEGMENTS_MAX: usize = 512;

/// Once another producer has committed between two commits of ours, so many more read the manifest before they swap
/// it (12: a read costs a twelfth of a swap that is refused).
const READS_FIRST: u32 = 12;

/// A commit that was sent and not confirmed.
///
/// While the manifest still has the version that it expected, the write may yet land. Once the manifest has another
/// version, either the table shows the commit, or the write never happened and never will. A mismatch proves no more
/// than an unknown outcome: where a proxy repeats a request, the store refuses the second copy because the first landed.
struct Attempt {
    expected: Version,
    number: u64,
    /// The sequence that its first segment gets if it lands.
    first_sequence: u64,
    /// The names of its segments, in their order.
    segments: Vec<Ulid>,
    /// The store answered that it refused the write.
    refused: bool,
}

impl Attempt {
    /// Whether the table's answer is about this attempt, and the group still begins with what it named.
    fn is_confirmed(&self, state: &Manifest, number: u64, found: (u64, u64), group: &[UploadedWork]) -> bool {
        let (first_sequence, count) = found;
        self.number == number
            && self.first_sequence == first_sequence
            && self.segments.len() as u64 == count
            && self.segments.len() <= group.len()
            && self
                .segments
                .iter()
                .zip(group)
                .all(|(name, uploaded)| *name == uploaded.name)
            && state.may_have(first_sequence, &self.segments)
    }

    /// Whether `state`, which replaced the expected one, certainly does not have the segments. A refusal is worth the
    /// look: it nearly always means that another producer was first.
    fn is_disproved(&self, state: &Manifest) -> bool {
        self.refused && state.lacks(self.first_sequence, &self.segments)
    }
}

/// What became of a compare-and-set.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Committed,
    Mismatch,
    Unknown,
}

/// What is known of the manifest: `None` when it must be read again.
type Known = Option<Option<Snapshot<Manifest>>>;

/// A page on its way into the manifest.
struct NewPage {
    name: Ulid,
    page: Page,
    /// It is in the store: a manifest may refer to it.
    stored: bool,
}

pub(crate) struct Committer {
    upload: Upload,
    buffer_id: Uuid,
    tail_max: usize,
    page: Option<NewPage>,
    streams: Streams,
    producer: ProducerId,
    registered: bool,
    /// The number of this producer's last commit.
    last: u64,
    known: Known,
    /// So many commits more read the manifest first, though they know one.
    reads_first: u32,
    /// The version of the one that they knew.
    outdated: Option<Version>,
    /// More segments join the group only when this is `None`.
    unresolved: Option<Attempt>,
    next_number: u64,
    waiting: BTreeMap<u64, Arrival>,
    commit_delay: CommitDelay,
}

/// What to do after an attempt.
enum Next {
    Done,
    AtOnce,
    AfterAWait,
}

impl Committer {
    pub(crate) fn new(
        upload: Upload,
        buffer_id: Uuid,
        tail_max: usize,
        streams: Streams,
        commit_delay: CommitDelay,
    ) -> Self {
        let producer = upload.environment.producer_id();
        Self {
            upload,
            buffer_id,
            tail_max,
            page: None,
            streams,
            producer,
            registered: false,
            last: 0,
            known: None,
            reads_first: 0,
            outdated: None,
            unresolved: None,
            next_number: 0,
            waiting: BTreeMap::new(),
            commit_delay,
        }
    }

    /// Runs until the uploaders are gone and everything that they brought is committed.
    pub(crate) async fn run(mut self, mut arrivals: mpsc::Receiver<Arrival>) {
        while let Some(arrival) = arrivals.recv().await {
            self.arrive(arrival);
            loop {
                let mut group = Vec::new();
                self.extend(&mut group, &mut arrivals);
                if group.is_empty() {
                    break;
                }
                self.gather(&mut group, &mut arrivals).await;
                self.commit(group, &mut arrivals).await;
            }
        }
    }

    fn arrive(&mut self, arrival: Arrival) {
        self.commit_delay.arrived();
        let number = match &arrival {
            Arrival::Uploaded(uploaded) => {
                self.upload.metrics.segments_uncommitted.inc();
                uploaded.work.number
            }
            Arrival::Skipped(number) => *number,
        };
        self.waiting.insert(number, arrival);
    }

    /// Moves what has arrived and is next in order into the group.
    fn extend(&mut self, group: &mut Vec<UploadedWork>, arrivals: &mut mpsc::Receiver<Arrival>) {
        while let Ok(arrival) = arrivals.try_recv() {
            self.arrive(arrival);
        }
        while group.len() < COMMIT_SEGMENTS_MAX
            && let Some(arrival) = self.waiting.remove(&self.next_number)
        {
            self.next_number += 1;
            match arrival {
                Arrival::Uploaded(uploaded) => group.push(uploaded),
                Arrival::Skipped(_) => {}
            }
        }
    }

    /// Lets segments that were full before their linger was over wait for others to share their commit, as long as
    /// that is worth it.
    async fn gather(&mut self, group: &mut Vec<UploadedWork>, arrivals: &mut mpsc::Receiver<Arrival>) {
        self.commit_delay.begin();
        while group.len() < COMMIT_SEGMENTS_MAX
            && let Some(due) = group.iter().map(|uploaded| uploaded.commit_by).min()
            && let Some(next_look) = self.commit_delay.wait_until(due)
        {
            tokio::select! {
                biased;
                arrival = arrivals.recv() => match arrival {
                    Some(arrival) => self.arrive(arrival),
                    None => return,
                },
                () = sleep_until(next_look) => {}
            }
            self.extend(group, arrivals);
        }
    }

    /// Commits a group of segments, however long it takes.
    async fn commit(&mut self, mut group: Vec<UploadedWork>, arrivals: &mut mpsc::Receiver<Arrival>) {
        let started = Instant::now();
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(3));
        self.invalidate();
        while !group.is_empty() {
            // What an unresolved attempt named must not change, or its landing would be misread. Reading comes first: it
            // may show that the attempt is lost.
            let grows_early = planted::is(Bug::GroupGrowsAfterMismatch)
                && self.unresolved.as_ref().is_some_and(|attempt| attempt.refused);
            if grows_early {
                self.extend(&mut group, arrivals);
            }
            let is_read = self.read_manifest().await;
            if self.unresolved.is_none() {
                self.extend(&mut group, arrivals);
            }
            self.trace_attempt(&mut group);
            let next = match is_read {
                true => self.attempt(&mut group).await,
                false => Next::AfterAWait,
            };
            match next {
                Next::Done => {
                    self.upload.health.got_on(Stage::Commit);
                    self.upload
                        .metrics
                        .commit_seconds
                        .observe(started.elapsed().as_secs_f64());
                }
                Next::AtOnce => {}
                Next::AfterAWait => {
                    self.trace_failure(&group);
                    sleep(self.upload.environment.next_wait(&mut backoff)).await;
                }
            }
        }
    }

    fn trace_attempt(&self, group: &mut [UploadedWork]) {
        let (key, segments) = (layout::manifest(self.upload.shard), group.len());
        for uploaded in group {
            uploaded.work.trace.commit(&key, segments);
        }
    }

    fn trace_failure(&self, group: &[UploadedWork]) {
        let reason = self.upload.health.reason(Stage::Commit);
        let reason = reason.unwrap_or_else(|| "another producer was first".to_owned());
        for uploaded in group {
            uploaded.work.trace.again(&reason);
        }
    }

    /// Forgets a manifest that others have probably changed: to swap it would be in vain.
    fn invalidate(&mut self) {
        if self.reads_first > 0
            && let Some(known) = self.known.take()
        {
            self.reads_first -= 1;
            self.outdated = known.map(|snapshot| snapshot.version);
        }
    }

    /// Makes sure that the manifest, which was read, knows this producer; then tries to commit.
    async fn attempt(&mut self, group: &mut Vec<UploadedWork>) -> Next {
        if !self.registered {
            return self.register().await;
        }
        if !self.store_page().await {
            return Next::AfterAWait;
        }
        let now_ms = self.upload.environment.unix_ms();
        let Some(Some(snapshot)) = &self.known else {
            // It was registered, and the manifest is gone: as if it had been forgotten.
            return self.forgotten(group, "the manifest is gone");
        };
        let number = self.last + 1;
        let segments: Vec<NewSegment> = group.iter().map(UploadedWork::describe).collect();
        let sealed = self.sealed(&snapshot.state);
        let base = sealed.as_ref().unwrap_or(&snapshot.state);
        match base.commit(self.producer, number, &segments, now_ms) {
            Ok(Commit::Next {
                state,
                first_sequence,
            }) => {
                let expected = snapshot.version.clone();
                let state = state.stamped(self.upload.environment.nonce());
                let seals = sealed.is_some();
                let outcome = self.swap(Some(expected.clone()), state).await;
                if outcome != Outcome::Committed {
                    self.unresolved = Some(Attempt {
                        expected,
                        number,
                        first_sequence,
                        segments: segments.iter().map(|segment| segment.segment).collect(),
                        refused: outcome == Outcome::Mismatch,
                    });
                    return Next::AfterAWait;
                }
                if seals {
                    self.page = None;
                    self.upload.metrics.pages.inc();
                }
                self.succeed(group, number, first_sequence, segments.len());
                Next::Done
            }
            Ok(Commit::Already {
                first_sequence,
                count,
            }) => {
                let found = (first_sequence, count);
                let attempt = self.unresolved.as_ref();
                let confirmed = attempt.filter(|it| it.is_confirmed(&snapshot.state, number, found, group));
                let segments = match confirmed {
                    Some(_) if planted::is(Bug::GroupGrowsAfterMismatch) => group.len(),
                    Some(attempt) => attempt.segments.len(),
                    None => {
                        let reason = format!(
                            "the manifest has a commit {number} of producer {} that this producer did not make: \
                             {count} segments from sequence {first_sequence} on",
                            self.producer
                        );
                        tracing::error!("{reason}: was the buffer restored from a copy?");
                        return self.go_on_anew(group, &reason, true);
                    }
                };
                self.upload.metrics.commits_found.inc();
                self.succeed(group, number, first_sequence, segments);
                Next::Done
            }
            Err(CommitRefusal::BelowFloor { segments, floor_ms }) => {
                self.upload_again(group, &segments, floor_ms).await;
                Next::AtOnce
            }
            Err(CommitRefusal::Invalid(_)) => {
                self.drop_invalid(group, number, now_ms);
                Next::AtOnce
            }
            Err(refusal @ CommitRefusal::NotRegistered(_)) => self.forgotten(group, &refusal.to_string()),
            Err(refusal @ (CommitRefusal::Superseded { .. } | CommitRefusal::Gap { .. })) => {
                // Someone else uses our id, or the manifest was put back to an older state.
                tracing::error!("{refusal}: was the buffer restored from a copy?");
                self.go_on_anew(group, &refusal.to_string(), true)
            }
        }
    }

    /// Puts the page of a full tail into the store, before any manifest refers to it. Whether a commit can go on.
    async fn store_page(&mut self) -> bool {
        let Some(Some(snapshot)) = &self.known else {
            return true;
        };
        let state = &snapshot.state;
        // The swap that brought it in may have landed unreported.
        let landed = |new: &mut NewPage| state.pages.iter().any(|page| page.page == new.name);
        if self.page.take_if(landed).is_some() {
            self.upload.metrics.pages.inc();
        }
        if state.tail.len() < self.tail_max {
            self.page = None;
            return true;
        }
        if self.sealed(state).is_some() {
            return true;
        }
        // One that was begun is gone on with as long as the log does: its name is our own.
        let begun = self.page.take().filter(|begun| {
            let again = state.seal(begun.name, begun.page.last());
            again.is_some_and(|(page, _)| page == begun.page)
        });
        let begun = begun.or_else(|| {
            let name = self.upload.environment.ulid(state.orphan_floor_ms);
            let (page, _) = state.seal(name, state.next_sequence - 1)?;
            Some(NewPage {
                name,
                page,
                stored: false,
            })
        });
        let Some(mut begun) = begun else { return true };
        let key = layout::page(self.upload.shard, begun.page.first, begun.name);
        let put = self
            .upload
            .store
            .put_if_absent(&key, vec![begun.page.encode()])
            .await;
        begun.stored = put.is_ok() || planted::is(Bug::PageNotStored);
        self.page = Some(begun);
        if let Err(error) = &put {
            self.upload.health.held_up(Stage::Commit, error);
        }
        put.is_ok()
    }

    /// The state with its full tail sealed, once that page is in the store.
    fn sealed(&self, state: &Manifest) -> Option<Manifest> {
        let new = self.page.as_ref().filter(|new| new.stored)?;
        let (page, sealed) = state.seal(new.name, new.page.last())?;
        (page == new.page).then_some(sealed)
    }

    /// Reads the manifest unless it is known. Whether it is known now.
    async fn read_manifest(&mut self) -> bool {
        if self.known.is_some() {
            return true;
        }
        let key = layout::manifest(self.upload.shard);
        let problem = match cas::read::<Manifest>(&self.upload.store, &key).await {
            Ok(Some(found)) if found.state.buffer_id != self.buffer_id => {
                format!(
                    "{key} belongs to buffer {}, not to {}",
                    found.state.buffer_id, self.buffer_id
                )
            }
            Ok(found) => {
                self.streams
                    .learn(found.as_ref().map_or(&[], |found| &found.state.streams));
                self.resolve(found.as_ref());
                let version = found.as_ref().map(|found| &found.version);
                if self
                    .outdated
                    .take()
                    .is_some_and(|outdated| version != Some(&outdated))
                {
                    self.reads_first = READS_FIRST;
                }
                self.known = Some(found);
                return true;
            }
            Err(error) => error.to_string(),
        };
        self.upload.health.held_up(Stage::Commit, &problem);
        false
    }

    /// Forgets an unresolved attempt once it is certain that it did not land and never will. One that did land
    /// is found in the table by `commit` itself.
    fn resolve(&mut self, found: Option<&Snapshot<Manifest>>) {
        let Some(attempt) = &self.unresolved else { return };
        let changed = Some(&attempt.expected) != found.map(|found| &found.version);
        let row = found.and_then(|found| found.state.producer(self.producer));
        if changed && row.is_some_and(|row| row.commit <= self.last) {
            self.unresolved = None;
        }
    }

    /// One compare-and-set.
    async fn swap(&mut self, expected: Option<Version>, next: Manifest) -> Outcome {
        let metrics = &self.upload.metrics;
        let key = layout::manifest(self.upload.shard);
        self.known = None;
        match cas::swap(&self.upload.store, &key, expected.as_ref(), next).await {
            Swap::Committed(snapshot) => {
                metrics.attempt("committed");
                self.known = Some(Some(snapshot));
                Outcome::Committed
            }
            Swap::Mismatch => {
                metrics.attempt("mismatch");
                self.reads_first = READS_FIRST;
                Outcome::Mismatch
            }
            Swap::Unknown(error) => {
                metrics.attempt("unknown");
                self.upload.health.held_up(Stage::Commit, &error);
                Outcome::Unknown
            }
        }
    }

    /// Enters this producer into the manifest's table, which is its commit number 0.
    async fn register(&mut self) -> Next {
        let now_ms = self.upload.environment.unix_ms();
        let snapshot = self.known.clone().flatten();
        let new = || Manifest::new(self.buffer_id, self.upload.shard);
        let (version, state) =
            snapshot.map_or_else(|| (None, new()), |found| (Some(found.version), found.state));
        if state.producer(self.producer).is_none() {
            let next = state
                .register(self.producer, now_ms)
                .stamped(self.upload.environment.nonce());
            if self.swap(version, next).await != Outcome::Committed {
                // Whether it landed is seen in the table; there is nothing else to resolve.
                return Next::AfterAWait;
            }
        }
        tracing::info!(
            "registered as producer {} in shard {}",
            self.producer,
            self.upload.shard
        );
        self.registered = true;
        Next::AtOnce
    }

    /// Registers before the first segment is there. Whether it is registered now.
    pub(crate) async fn try_register(&mut self) -> bool {
        if !self.registered && self.read_manifest().await {
            self.register().await;
        }
        if self.registered {
            self.upload.health.got_on(Stage::Commit);
        }
        self.registered
    }

    /// The first `segments` of the group are in the log, from `first_sequence` on.
    fn succeed(&mut self, group: &mut Vec<UploadedWork>, number: u64, first_sequence: u64, segments: usize) {
        let shard = self.upload.shard;
        let metrics = self.upload.metrics.clone();
        self.last = number;
        self.unresolved = None;
        metrics.commit_segments.observe(segments as f64);
        for (sequence, uploaded) in (first_sequence..).zip(group.drain(..segments)) {
            uploaded.work.trace.committed(shard, sequence);
            metrics.segments_uncommitted.dec();
            metrics.segments.inc();
            metrics.stored_bytes.inc_by(uploaded.work.encoded.size);
            for part in &uploaded.work.encoded.streams {
                metrics.blocks.inc_by(u64::from(part.blocks));
                metrics.messages.inc_by(part.messages);
                metrics.records.inc_by(part.records);
                metrics.raw_bytes.inc_by(part.raw_len);
            }
            for waiter in uploaded.work.waiters {
                // A caller that has gone away does not want to know.
                let _ = waiter.send(Ok(Committed { shard, sequence }));
            }
        }
    }

    /// Uploads segments again, under names above the orphan floor: those they had may be deleted any moment.
    async fn upload_again(&mut self, group: &mut Vec<UploadedWork>, places: &[usize], floor_ms: u64) {
        tracing::warn!(
            "{} segments are named before the orphan floor {floor_ms}: uploading again",
            places.len()
        );
        for (place, uploaded) in std::mem::take(group).into_iter().enumerate() {
            group.push(if places.contains(&place) {
                self.upload.metrics.reuploads.inc();
                self.upload.put(uploaded.work, floor_ms).await
            } else {
                uploaded
            });
        }
    }

    /// Takes the first segment that the manifest refuses out of the group and tells its callers. The state that
    /// refuses it is not the one that an earlier attempt was made on, so it is certain that it did not land.
    fn drop_invalid(&mut self, group: &mut Vec<UploadedWork>, number: u64, now_ms: u64) {
        let Some(Some(snapshot)) = &self.known else { return };
        let segments: Vec<NewSegment> = group.iter().map(UploadedWork::describe).collect();
        let refused = (1..=segments.len()).find_map(|count| {
            match snapshot
                .state
                .commit(self.producer, number, &segments[..count], now_ms)
            {
                Err(CommitRefusal::Invalid(reason)) => Some((count - 1, reason)),
                _ => None,
            }
        });
        let Some((place, reason)) = refused else { return };
        tracing::error!(
            "segment {} cannot be committed: {reason}",
            segments[place].segment
        );
        self.upload.metrics.segments_uncommitted.dec();
        let work = group.remove(place).work;
        work.trace.fail(&reason);
        fail(work.waiters, &AppendError::NotCommitted(reason.into()));
    }

    /// The manifest does not know this producer (any more), so its table cannot resolve an attempt. The end of the log may.
    fn forgotten(&mut self, group: &mut Vec<UploadedWork>, reason: &str) -> Next {
        let log = self.known.as_ref().and_then(Option::as_ref);
        let in_doubt = self.unresolved.as_ref().is_some_and(|attempt| {
            let disproved = log.is_some_and(|log| attempt.is_disproved(&log.state));
            !disproved && !planted::is(Bug::ForgottenSentAgain)
        });
        self.go_on_anew(group, reason, in_doubt)
    }

    /// Goes on under a new id. Where it is in doubt whether the group is in the log, its callers are told just that.
    fn go_on_anew(&mut self, group: &mut Vec<UploadedWork>, reason: &str, in_doubt: bool) -> Next {
        let metrics = &self.upload.metrics;
        metrics.expired.inc();
        self.unresolved = None;
        if in_doubt {
            tracing::error!(
                "the outcome of a commit of {} segments is unknown: {reason}",
                group.len()
            );
            let error = AppendError::OutcomeUnknown(Arc::from(reason));
            for uploaded in group.drain(..) {
                metrics.segments_uncommitted.dec();
                uploaded.work.trace.fail(&error);
                fail(uploaded.work.waiters, &error);
            }
        } else {
            tracing::warn!("going on under a new producer id: {reason}");
        }
        self.producer = self.upload.environment.producer_id();
        self.registered = false;
        self.last = 0;
        Next::AtOnce
    }
}
