//! The committer: one task that commits uploaded segments in order, as many as are ready with one compare-and-set,
//! never two at a time. `commit.rs` decides the next step, and `millpond-manifest` defines a commit. This file makes
//! the requests, waits and answers the callers. It never gives up while the process lives.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use millpond_manifest::{Manifest, NewSegment, Object, ProducerId, Snapshot, Swap, cas, layout};
use millpond_runtime::{Backoff, Environment, Level};
use millpond_storage::Version;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};
use ulid::Ulid;
use uuid::Uuid;

use crate::commit::{
    Answer, COMMIT_SEGMENTS_MAX, Commits, Draw, Group, Landed, NewPage, News, Next, Own, Renewal, Settlement,
};
use crate::commit_delay::CommitDelay;
use crate::reads_first::ReadsFirst;
use crate::segment::{UploadedWork, fail};
use crate::streams::Streams;
use crate::turns::Turns;
use crate::uploader::{Arrival, Upload};
use crate::{AppendError, Committed};

/// The wait of a commit, as `/readyz` shows it.
const COMMIT: &str = "waiting for the store (commit)";

/// The maximum pause after a lost race. The producers' turns spread out those that wait, so that a longer pause would only
/// give the turn away.
const RACE_WAIT_MAX: Duration = Duration::from_millis(250);

impl Draw for &dyn Environment {
    fn unix_ms(&mut self) -> u64 {
        self.now_ms()
    }

    fn nonce(&mut self) -> u64 {
        self.random()
    }

    fn ulid(&mut self, not_before_ms: u64) -> Ulid {
        Environment::ulid(*self, not_before_ms)
    }

    fn producer_id(&mut self) -> ProducerId {
        ProducerId(self.random_u128().to_be_bytes())
    }
}

pub(crate) struct Committer {
    upload: Upload,
    buffer_id: Uuid,
    streams: Streams,
    commits: Commits<Snapshot<Manifest>>,
    reads_first: ReadsFirst,
    next_number: u64,
    waiting: BTreeMap<u64, Arrival>,
    commit_delay: CommitDelay,
    turns: Turns,
    /// Another producer was first, and this one has not read the manifest since.
    lost_race: bool,
    /// How long the last read of the manifest took.
    read_took: Duration,
    began: Instant,
}

/// The result of a step.
enum Progress {
    /// Segments are in the log.
    Committed,
    /// The next step can follow at once.
    Made,
    /// The store did not perform the step: repeat it after a wait.
    HeldUp,
    /// Another producer was first.
    LostRace,
}

impl Committer {
    pub(crate) fn new(
        upload: Upload,
        buffer_id: Uuid,
        tail_max: usize,
        streams: Streams,
        commit_delay: CommitDelay,
    ) -> Self {
        let producer = (&*upload.environment).producer_id();
        Self {
            commits: Commits::new(buffer_id, upload.shard, tail_max, producer),
            upload,
            buffer_id,
            streams,
            reads_first: ReadsFirst::default(),
            next_number: 0,
            waiting: BTreeMap::new(),
            commit_delay,
            turns: Turns::default(),
            lost_race: false,
            read_took: Duration::ZERO,
            began: Instant::now(),
        }
    }

    /// Runs until the uploaders have ended and all their segments are committed.
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

    /// Moves the segments that have arrived and are next in order into the group.
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

    /// Lets segments that filled before the end of their linger wait for others to share their commit, as long as that
    /// is worthwhile.
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

    /// Commits a group of segments. Retries without limit.
    async fn commit(&mut self, mut group: Vec<UploadedWork>, arrivals: &mut mpsc::Receiver<Arrival>) {
        let started = Instant::now();
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(3));
        let mut races = Backoff::new(Duration::from_millis(20), RACE_WAIT_MAX);
        self.reads_first.begin(&mut self.commits);
        while !group.is_empty() {
            if let Some(wait) = self.turns.wait(self.began.elapsed()) {
                sleep(wait).await;
                self.commits.doubt_known();
            }
            if self.commits.may_grow() {
                self.extend(&mut group, arrivals);
            }
            match self.step(&mut group).await {
                Progress::Committed => {
                    self.upload.readiness.goes_on(COMMIT);
                    self.upload
                        .metrics
                        .commit_seconds
                        .observe(started.elapsed().as_secs_f64());
                }
                Progress::Made => {}
                Progress::HeldUp => {
                    self.turns.held_up();
                    self.trace_attempt(&mut group);
                    self.trace_failure(&group);
                    backoff.pause(&*self.upload.environment).await;
                }
                Progress::LostRace => {
                    self.trace_attempt(&mut group);
                    self.trace_failure(&group);
                    self.lost_race = true;
                    races.pause(&*self.upload.environment).await;
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
        let reason = self.upload.readiness.reason(COMMIT);
        let reason = reason.unwrap_or_else(|| "another producer was first".to_owned());
        for uploaded in group {
            uploaded.work.trace.again(&reason);
        }
    }

    /// Takes one step of the group's commit.
    async fn step(&mut self, group: &mut Vec<UploadedWork>) -> Progress {
        let segments: Vec<NewSegment> = group.iter().map(UploadedWork::describe).collect();
        let next = self
            .commits
            .next(Group::of(&segments), &mut &*self.upload.environment);
        if next != Next::Read {
            self.trace_attempt(group);
        }
        match next {
            Next::Read => {
                let began = Instant::now();
                let progress = self.read_manifest().await;
                self.read_took = began.elapsed();
                progress
            }
            Next::StorePage(page) => self.store_page(page).await,
            Next::Swap(swap) => {
                let began = Instant::now();
                let (answer, progress) = self.swap(swap.expected, *swap.next).await;
                if !matches!(answer, Answer::Unknown) {
                    self.turns.took(self.read_took + began.elapsed());
                }
                let news = self.commits.swapped(answer);
                self.hear(news);
                let Some(landed) = news.landed else {
                    return progress;
                };
                if let Some(manifest) = self.commits.manifest() {
                    self.turns
                        .committed(manifest, self.commits.producer(), self.began.elapsed());
                }
                self.succeed(group, landed);
                Progress::Committed
            }
            Next::Registered => {
                let (producer, shard) = (self.commits.producer(), self.upload.shard);
                tracing::info!("registered as producer {producer} in shard {shard}");
                Progress::Made
            }
            Next::Settle(settlement) => {
                self.upload.metrics.commits_found.inc();
                self.settle(group, &settlement);
                Progress::Committed
            }
            Next::UploadAgain { places, floor_ms } => {
                self.upload_again(group, &places, floor_ms).await;
                Progress::Made
            }
            Next::Drop { place, reason } => {
                self.drop_invalid(group, place, reason);
                Progress::Made
            }
            Next::Renew(renewal) => {
                self.go_on_anew(group, renewal);
                Progress::Made
            }
        }
    }

    /// Reads the manifest.
    async fn read_manifest(&mut self) -> Progress {
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
                let news = self.commits.read(found);
                self.hear(news);
                if std::mem::take(&mut self.lost_race)
                    && let Some(manifest) = self.commits.manifest()
                {
                    self.turns
                        .lost(manifest, self.commits.producer(), self.began.elapsed());
                }
                return Progress::Made;
            }
            Err(error) => error.to_string(),
        };
        self.upload.readiness.waits(COMMIT, problem, Level::Warn);
        Progress::HeldUp
    }

    /// Puts the page of a full tail into the store.
    async fn store_page(&mut self, new: NewPage) -> Progress {
        let key = layout::page(self.upload.shard, new.page.first, new.name);
        let put = self
            .upload
            .store
            .put_if_absent(&key, vec![new.page.encode()])
            .await;
        self.commits.stored(put.is_ok());
        let Err(error) = put else { return Progress::Made };
        self.upload.readiness.waits(COMMIT, &error, Level::Warn);
        Progress::HeldUp
    }

    fn hear(&mut self, news: News) {
        self.reads_first.hear(news);
        self.upload.metrics.pages.inc_by(u64::from(news.page_joined));
    }

    /// Makes one compare-and-set.
    async fn swap(
        &self,
        expected: Option<Version>,
        next: Manifest,
    ) -> (Answer<Snapshot<Manifest>>, Progress) {
        let metrics = &self.upload.metrics;
        let key = layout::manifest(self.upload.shard);
        match cas::swap(&self.upload.store, &key, expected.as_ref(), next).await {
            Swap::Committed(snapshot) => {
                metrics.attempt("committed");
                (Answer::Committed(snapshot), Progress::Made)
            }
            Swap::Mismatch => {
                metrics.attempt("mismatch");
                (Answer::Mismatch, Progress::LostRace)
            }
            Swap::Unknown(error) => {
                metrics.attempt("unknown");
                self.upload.readiness.waits(COMMIT, &error, Level::Warn);
                (Answer::Unknown, Progress::HeldUp)
            }
        }
    }

    /// Registers before the first segment is there. Returns true if the producer is registered now.
    pub(crate) async fn try_register(&mut self) -> bool {
        let mut group = Vec::new();
        while !self.commits.is_registered() {
            if let Progress::HeldUp | Progress::LostRace = self.step(&mut group).await {
                return false;
            }
        }
        self.upload.readiness.goes_on(COMMIT);
        true
    }

    /// Handles the first segments of the group, which are in the log.
    fn succeed(&mut self, group: &mut Vec<UploadedWork>, landed: Landed) {
        let shard = self.upload.shard;
        let metrics = &self.upload.metrics;
        metrics.commit_segments.observe(landed.count as f64);
        for (sequence, uploaded) in (landed.first_sequence..).zip(group.drain(..landed.count)) {
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
                // The caller may have gone away.
                let _ = waiter.send(Ok(Committed { shard, sequence }));
            }
        }
    }

    /// Handles what the table shows about the group. This producer has forwarded nothing and holds nobody's records.
    fn settle(&mut self, group: &mut Vec<UploadedWork>, settlement: &Settlement) {
        if let Some(Own::Landed(landed)) = settlement.own {
            if let Some(manifest) = self.commits.manifest() {
                self.turns
                    .committed(manifest, self.commits.producer(), self.began.elapsed());
            }
            self.succeed(group, landed);
        }
    }

    /// Uploads segments again under names above the orphan floor: the objects under the present names may be deleted at
    /// any time.
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

    /// Takes a segment that the manifest refuses out of the group and tells its callers.
    fn drop_invalid(&self, group: &mut Vec<UploadedWork>, place: usize, reason: String) {
        let UploadedWork { name, work, .. } = group.remove(place);
        tracing::error!("segment {name} cannot be committed: {reason}");
        self.upload.metrics.segments_uncommitted.dec();
        work.trace.fail(&reason);
        fail(work.waiters, &AppendError::NotCommitted(reason.into()));
    }

    /// Continues under a new id. If the outcome is in doubt, tells the callers of the group that it is unknown.
    fn go_on_anew(&self, group: &mut Vec<UploadedWork>, renewal: Renewal) {
        let metrics = &self.upload.metrics;
        let reason = renewal.reason;
        metrics.expired.inc();
        if renewal.contradicted {
            tracing::error!("{reason}: was the buffer restored from a copy?");
        }
        if !renewal.in_doubt {
            tracing::warn!("going on under a new producer id: {reason}");
            return;
        }
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
    }
}
