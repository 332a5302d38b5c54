//! One shard's loop: look for news, decide, start batches, make plans and acknowledgements durable.
//! It carries what [`crate::schedule`] decides; the batches themselves are [`crate::work`]'s.

use crate::Config;
use crate::environment::{now_ms, pause};
use crate::error::ConsumeError;
use crate::isolate::{Refusal, Refusals};
use crate::lease::Lease;
use crate::metrics::range;
use crate::owner::{Attempt, Beginning, Claim, Outcome, Owned, read_patiently};
use crate::repair::Origin;
use crate::rounds::{requests_of, requests_of_opening};
use crate::schedule::{Decision, Key, Mode, Room, Schedule, begins};
use crate::sink::{Batch, BatchId, Part, Settled};
use crate::status::Level;
use crate::trace::BatchTrace;
use crate::work::{self, Job, Wanted, Workshop};
use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt, OptionFuture};
use millpond_manifest::cas::{self, ReadError, Reread, Snapshot};
use millpond_manifest::cursor::Ownership;
use millpond_manifest::{Cursor, Log, Manifest, Page, PageReference, layout};
use millpond_storage::{Backoff, Version};
use std::collections::{BTreeMap, HashSet};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// A shard of the buffer, and what is needed to consume it.
pub(crate) struct Shard {
    pub(crate) config: Config,
    pub(crate) claim: Claim,
    pub(crate) workshop: Arc<Workshop>,
    pub(crate) shutdown: CancellationToken,
    /// The sequences to repair, if that is what it is for.
    pub(crate) repair: Option<RangeInclusive<u64>>,
}

/// How a term as the cursor's owner ended.
enum Term {
    Released,
    Fenced,
}

impl Shard {
    /// Consumes the shard until the shutdown: as its cursor's owner, or waiting to become it.
    pub(crate) async fn run(self) -> Result<(), ConsumeError> {
        let (mut take_over, mut known) = (self.config.take_over, false);
        loop {
            let Some(owned) = self.stand_by(take_over, &mut known).await? else {
                return Ok(());
            };
            self.workshop.metrics.owned_shards.inc();
            let term = async {
                // Read after the epoch was won: it shows all that the predecessor can have seen.
                let stopped = async {
                    self.shutdown.cancelled().await;
                    tokio::time::sleep(RELEASE_PATIENCE).await;
                };
                let log = tokio::select! {
                    biased;
                    log = self.read_log() => log?,
                    () = stopped => return Ok(Term::Released),
                };
                if let Err(refused) = self.origin(log.as_ref()).await {
                    self.forgo(*owned).await;
                    return Err(refused);
                }
                let log = log.map(Known::new);
                Tenure::begin(&self, *owned, log).serve().await
            }
            .await;
            self.workshop.metrics.owned_shards.dec();
            match term? {
                Term::Released => return Ok(()),
                // Whoever took it knows why; taking it back at once would be a tug of war.
                Term::Fenced => take_over = false,
            }
        }
    }

    /// Waits until the cursor can be had. `None`: the shutdown came first.
    async fn stand_by(&self, take_over: bool, known: &mut bool) -> Result<Option<Box<Owned>>, ConsumeError> {
        let mut said = false;
        loop {
            let attempt = async {
                let log = self.read_log().await?;
                let origin = self.origin(log.as_ref()).await?;
                let log = log.as_ref().map(|log| &log.state);
                let first = log.map_or(0, |log| log.first_sequence);
                let beginning = Beginning {
                    start: self.repair.as_ref().map_or(first, |range| *range.start()),
                    origin,
                };
                self.claim.open(&beginning, take_over, *known).await
            };
            let attempt = tokio::select! {
                biased;
                attempt = attempt => attempt?,
                () = self.shutdown.cancelled() => return Ok(None),
            };
            // A repair that another process has finished meanwhile begins anew.
            *known = self.repair.is_none();
            let held = match attempt {
                Attempt::Opened(owned) => return Ok(Some(owned)),
                Attempt::Held(held) => held,
                Attempt::Removed => return Err(self.claim.removed()),
            };
            if !said {
                info!(
                    shard = self.claim.shard,
                    "standing by: the cursor is held by {}", held.owner
                );
                said = true;
                // What was waited for as the owner is another's to wait for.
                self.claim.status.forget();
            }
            let now = now_ms(&*self.claim.environment);
            let left = Duration::from_millis(held.lease_expires_at_ms.saturating_sub(now));
            tokio::select! {
                biased;
                () = tokio::time::sleep(left.clamp(Duration::from_millis(100), Duration::from_secs(1))) => {}
                () = self.shutdown.cancelled() => return Ok(None),
            }
        }
    }

    /// Of a repair: its range, checked.
    async fn origin(&self, log: Option<&Snapshot<Manifest>>) -> Result<Option<Origin>, ConsumeError> {
        let Some(range) = &self.repair else {
            return Ok(None);
        };
        let log = log.map(|log| &log.state);
        let takes = |name: &str| {
            let mut streams = log.into_iter().flat_map(|log| &log.streams);
            streams.any(|stream| stream.name == name && self.workshop.takes(name, stream.encoding))
        };
        self.claim.origin(range, log, takes).await.map(Some)
    }

    /// Gives up a repair that has sent nothing in this term.
    async fn forgo(&self, owned: Owned) {
        let mut state = owned.durable.state.clone();
        state.release();
        let mut tombstone = state.remove();
        tombstone.settle();
        if self.claim.swap(owned.durable, tombstone).await.is_err() {
            warn!(
                shard = self.claim.shard,
                "the cursor {} could not be removed", self.claim.cursor
            );
        }
    }

    async fn read_log(&self) -> Result<Option<Snapshot<Manifest>>, ConsumeError> {
        let key = layout::manifest(self.claim.shard);
        let log = read_patiently::<Manifest>(
            &self.claim.store,
            &key,
            &self.claim.status,
            &*self.claim.environment,
        )
        .await?;
        if let Some(log) = &log {
            self.check_log(&log.state)?;
        }
        Ok(log)
    }

    /// Reads a page, for as long as that takes.
    async fn read_page(&self, reference: &PageReference) -> Result<PageRead, ConsumeError> {
        let key = layout::page(self.claim.shard, reference.first, reference.page);
        let Claim {
            store,
            status,
            environment,
            ..
        } = &self.claim;
        let page = read_patiently::<Page>(store, &key, status, &**environment).await?;
        if let Some(page) = page {
            return Ok(PageRead::Page(Arc::new(page.state)));
        }
        match self.read_log().await? {
            Some(log) if reference.last < log.state.first_sequence => Ok(PageRead::Trimmed(Box::new(log))),
            // As long as the log begins inside of it, it must be there.
            _ => Err(ConsumeError::Lost {
                key,
                sequence: reference.last,
            }),
        }
    }

    /// Why a segment is not there: the log no longer begins before it, or it was taken away.
    async fn gone(&self, key: &str, sequence: u64) -> Result<ConsumeError, ConsumeError> {
        let log = self.read_log().await?;
        let first = log.map_or(0, |log| log.state.first_sequence);
        let key = key.to_owned();
        Ok(if sequence < first {
            ConsumeError::Trimmed { key, sequence, first }
        } else {
            ConsumeError::Lost { key, sequence }
        })
    }

    /// Waits until no request of an earlier generation is under way to the sink: owners before this one may have begun some until
    /// their leases ran out, `outlived` from now at the latest. Ends those that the sink can end, and waits for the others.
    fn settle(&self, term: &work::Term, outlived: Duration) -> Settling {
        let Claim {
            buffer_id,
            shard,
            consumer,
            status,
            environment,
            ..
        } = self.claim.clone();
        let (sink, own) = (self.workshop.sink.clone(), requests_of_opening(term.opening));
        let all = requests_of(buffer_id, shard, &consumer);
        let what = format!("requests of earlier owners of shard {shard:04}");
        let settle = async move {
            status.waits(&what, "they may still be under way to the sink", Level::Warn);
            tokio::time::sleep(outlived).await;
            let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
            loop {
                match sink.settle(&all, Some(&own)).await {
                    Ok(Settled::Ended) => break,
                    Ok(Settled::Waits) => {
                        tokio::time::sleep(sink.attempt_max()).await;
                        break;
                    }
                    Err(error) => status.waits(&what, &error.to_string(), Level::Warn),
                }
                pause(&*environment, &mut backoff).await;
            }
            status.goes_on(&what);
        };
        settle.boxed()
    }

    fn check_log(&self, log: &Manifest) -> Result<(), ConsumeError> {
        if log.buffer_id == self.claim.buffer_id {
            return Ok(());
        }
        Err(ConsumeError::OtherBuffer {
            key: layout::manifest(self.claim.shard),
            found: log.buffer_id,
            expected: self.claim.buffer_id,
        })
    }
}

/// The answer to the read of a page.
enum PageRead {
    Page(Arc<Page>),
    /// The collector deleted the page: this manifest begins after it.
    Trimmed(Box<Snapshot<Manifest>>),
}

/// The log as last read.
struct Known {
    log: Log,
    version: Version,
}

impl Known {
    fn new(snapshot: Snapshot<Manifest>) -> Known {
        Known {
            log: Log::new(snapshot.state),
            version: snapshot.version,
        }
    }

    fn load(&mut self, reference: &PageReference, page: Arc<Page>) -> Result<(), ConsumeError> {
        let key = layout::page(self.log.shard, reference.first, reference.page);
        self.log
            .load(reference, page)
            .map_err(|wrong| ConsumeError::WrongPage { key, wrong })
    }
}

/// How long a process that stops takes to release the cursor, and for what it must read before it can.
const RELEASE_PATIENCE: Duration = Duration::from_secs(10);

/// How long a process that ends by an error takes to give the cursor back.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// While segments come one at a time, so many after the end of the log are planned ahead (8: more than come between two
/// acknowledgements at one a second).
const PLANNED_AHEAD: u64 = 8;

/// Of each stream, so many pages from its position on are kept loaded.
const PAGES_AHEAD: usize = 2;

type Loading<'a> = BoxFuture<'a, (PageReference, Result<PageRead, ConsumeError>)>;
type Reading = BoxFuture<'static, Result<Option<Snapshot<Manifest>>, ReadError>>;
type Settling = BoxFuture<'static, ()>;
type Swapping = BoxFuture<'static, Result<Outcome, ConsumeError>>;

/// One term as the owner of the cursor.
struct Tenure<'a> {
    shard: &'a Shard,
    durable: Snapshot<Cursor>,
    log: Option<Known>,
    schedule: Schedule,
    /// The predecessor may have sent what it planned.
    inherits_doubt: bool,
    work: JoinSet<(Key, Result<(), ConsumeError>)>,
    /// Of batches that are not acknowledged yet.
    traces: BTreeMap<Key, BatchTrace>,
    reading: Option<Reading>,
    loading: Option<Loading<'a>>,
    swapping: Option<Swapping>,
    /// Given to each batch, to say what the sink refuses of it.
    refusals: Refusals,
    refused: mpsc::UnboundedReceiver<Refusal>,
    /// Refusals that the cursor does not have yet.
    undurable: Vec<Refusal>,
    poll_at: Instant,
    swapped_at: Instant,
    /// When the swap under way was begun, by the clock of the lease.
    swap_began: Duration,
    term: work::Term,
    /// Requests of earlier generations are waited for: nothing is sent meanwhile.
    settling: Option<Settling>,
    /// After a failure, no swap before this.
    swap_again_at: Instant,
    drain_until: Option<Instant>,
    /// When the last batch was finished.
    finished_at: Instant,
    /// Segments came one at a time when the log was last found changed.
    one_by_one: bool,
    ignored: HashSet<String>,
    /// Where the log began when it was last said that something was trimmed unread.
    trimmed: u64,
}

impl<'a> Tenure<'a> {
    fn begin(shard: &'a Shard, owned: Owned, log: Option<Known>) -> Tenure<'a> {
        let schedule = match &log {
            Some(known) if owned.in_doubt => replay(shard, &owned.durable.state, &known.log),
            _ => Schedule::after(&owned.durable.state),
        };
        let schedule = schedule.until(shard.repair.as_ref().map(|range| range.end() + 1));
        let now = Instant::now();
        let environment = &shard.claim.environment;
        let since_leased = environment.uptime().saturating_sub(owned.leased_at);
        let state = &owned.durable.state;
        let term = work::Term {
            lease: Lease::new(environment.clone(), owned.leased_at, shard.config.lease),
            opening: state.opening,
            other_tokens: false,
        };
        let settling = state.unsettled.then(|| shard.settle(&term, owned.outlived));
        let (refusals, refused) = mpsc::unbounded_channel();
        let mut tenure = Tenure {
            shard,
            durable: owned.durable,
            log,
            schedule,
            inherits_doubt: owned.in_doubt,
            work: JoinSet::new(),
            traces: BTreeMap::new(),
            reading: None,
            loading: None,
            swapping: None,
            refusals,
            refused,
            undurable: Vec::new(),
            poll_at: now,
            // Reading the log has taken its time: the lease is due for renewal the sooner.
            swapped_at: now.checked_sub(since_leased).unwrap_or(now),
            swap_began: owned.leased_at,
            term,
            settling,
            swap_again_at: now,
            drain_until: None,
            finished_at: now,
            one_by_one: false,
            ignored: HashSet::new(),
            trimmed: 0,
        };
        tenure.warn_of_trimmed();
        tenure
    }

    async fn serve(mut self) -> Result<Term, ConsumeError> {
        let term = self.serve_until_it_ends().await;
        if let Err(error) = &term
            && !matches!(error, ConsumeError::Removed { .. })
        {
            self.leave(error).await;
        }
        for trace in self.traces.values() {
            trace.give_up(&"this process ended its work before it was acknowledged");
        }
        self.forget_backlog();
        term
    }

    async fn serve_until_it_ends(&mut self) -> Result<Term, ConsumeError> {
        let shutdown = self.shard.shutdown.clone();
        loop {
            let decision = self.decide();
            // Another may own the cursor and have done all of it, so long ago that the sink would take it again.
            if self.term.lease.runs() {
                for key in &decision.start {
                    self.start(key.clone());
                }
            }
            let wants_swap = self.begin_swap(&decision)?;
            let idle = self.schedule.running() == 0 && !wants_swap && self.swapping.is_none();
            if self.is_repaired() {
                return self.release().await;
            }
            if let Some(until) = self.drain_until
                && (idle || Instant::now() >= until)
            {
                return self.release().await;
            }
            self.begin_read();
            self.begin_load();
            let timer = self.next_timer(&decision);
            // None of these can be ready for ever, so none starves another; a seed gives the same order each time.
            tokio::select! {
                biased;
                Some(done) = self.work.join_next(), if !self.work.is_empty() => {
                    let (key, outcome) = done.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()));
                    match outcome {
                        Ok(()) => self.finished(&key),
                        Err(ConsumeError::Lost { key, sequence }) => {
                            return Err(self.shard.gone(&key, sequence).await?);
                        }
                        Err(error) => return Err(error),
                    }
                }
                Some(outcome) = OptionFuture::from(self.swapping.as_mut()), if self.swapping.is_some() => {
                    self.swapping = None;
                    match outcome? {
                        Outcome::Ours(durable) => self.swapped(*durable),
                        Outcome::Fenced { owner, epoch } => return Ok(self.fenced(&owner, epoch)),
                        Outcome::Removed => return Err(self.shard.claim.removed()),
                    }
                }
                Some(()) = OptionFuture::from(self.settling.as_mut()), if self.settling.is_some() => {
                    self.settling = None;
                }
                Some(refusal) = self.refused.recv() => self.undurable.push(refusal),
                Some(outcome) = OptionFuture::from(self.reading.as_mut()), if self.reading.is_some() => {
                    self.reading = None;
                    self.read(outcome)?;
                }
                Some((reference, page)) = OptionFuture::from(self.loading.as_mut()), if self.loading.is_some() => {
                    self.loading = None;
                    self.loaded(&reference, page)?;
                }
                () = shutdown.cancelled(), if self.drain_until.is_none() => {
                    info!(shard = self.shard.claim.shard, "stopping: finishing {} batches", self.schedule.running());
                    self.drain_until = Some(Instant::now() + self.shard.config.drain_timeout);
                }
                () = sleep_until(timer) => {}
            }
        }
    }

    fn decide(&mut self) -> Decision {
        let Some(log) = self.log.as_ref().filter(|_| self.settling.is_none()) else {
            return Decision::default();
        };
        for stream in &log.log.streams {
            let workshop = &self.shard.workshop;
            if workshop.selects(&stream.name)
                && !workshop.takes(&stream.name, stream.encoding)
                && self.ignored.insert(stream.name.clone())
            {
                let kept = if self.durable.state.streams.contains_key(&stream.name) {
                    "what this consumer has not read of it is kept, for a sink that takes it"
                } else {
                    "nothing of it is kept for this consumer"
                };
                warn!(
                    "stream {} ({}) has no place in this sink: it is left alone, and {kept}",
                    stream.name, stream.encoding
                );
            }
        }
        let mode = if self.drain_until.is_some() {
            Mode::Draining
        } else {
            Mode::Working
        };
        let accepts = accepts(&self.shard.workshop, &log.log);
        let room = Room {
            writers: self.shard.config.writers,
            ahead: if self.one_by_one { PLANNED_AHEAD } else { 0 },
        };
        self.schedule
            .decide(&self.durable.state, &log.log, &accepts, mode, room)
    }

    fn start(&mut self, key: Key) {
        let Some(log) = &self.log else { return };
        let Some(job) = self.job(&log.log, &key) else {
            return;
        };
        debug!(?job, "starts");
        let workshop = self.shard.workshop.clone();
        self.schedule.started(key.clone());
        self.traces.insert(key.clone(), job.trace.clone());
        self.work.spawn(async move { (key, workshop.work(job).await) });
        self.shard.workshop.metrics.running.inc();
    }

    fn finished(&mut self, key: &Key) {
        debug!(stream = key.0, batch = range(key.1), "is in the sink");
        self.schedule.finished(key);
        if let Some(trace) = self.traces.get_mut(key) {
            trace.finished();
        }
        self.finished_at = Instant::now();
        self.shard.workshop.metrics.running.dec();
        self.shard
            .workshop
            .metrics
            .held_bytes
            .set(self.shard.workshop.memory.held().try_into().unwrap_or(i64::MAX));
    }

    /// The batch's identity and what to fetch for it.
    fn job(&self, log: &Log, key: &Key) -> Option<Job> {
        let (stream, plan) = key;
        let claim = &self.shard.claim;
        let index = log.stream_index(stream)?;
        let rule = self.durable.state.rule.clone();
        let id = BatchId {
            buffer_id: claim.buffer_id,
            shard: claim.shard,
            stream: stream.clone(),
            consumer: claim.consumer.clone(),
            cursor: claim.cursor.clone(),
            generation: self.durable.state.generation,
            sink: rule.sink.clone(),
            low: plan.low,
            high: plan.high,
            schema_version: rule.schema_version,
        };
        let within = log
            .parts(index, plan.low)
            .take_while(|(sequence, ..)| *sequence <= plan.high);
        let wanted = within.filter(|(sequence, entry, part)| {
            let skipped = self.durable.state.is_skipped(stream, *sequence);
            if skipped {
                warn!(
                    shard = claim.shard,
                    stream,
                    sequence,
                    "{} records of segment {} are left out, as an operator said",
                    part.records,
                    entry.segment
                );
            }
            !skipped
        });
        let wanted = wanted.map(|(sequence, entry, part)| Wanted {
            key: layout::segment(claim.shard, entry.segment),
            length: part.length,
            part: Part {
                sequence,
                first_record: 0,
                segment: entry.segment,
                offset: part.offset,
                data: Bytes::new(),
                raw_length: part.raw_length,
                records: part.records,
            },
        });
        let wanted: Vec<Wanted> = wanted.collect();
        let inherited = self.inherits_doubt && self.schedule.is_inherited(key);
        let in_doubt = inherited || self.durable.state.may_have_sent(*plan) || self.shard.repair.is_some();
        let trace = BatchTrace::begin(&id, &wanted, in_doubt);
        let encoding = log.streams[index as usize].encoding;
        let batch = Batch {
            id,
            encoding,
            parts: Vec::new(),
        };
        Some(Job {
            wanted,
            batch,
            rule,
            in_doubt,
            refused: self.durable.state.refused(stream, *plan).cloned(),
            refusals: self.refusals.clone(),
            trace,
            term: work::Term {
                other_tokens: self.durable.state.generation > 0 && self.durable.state.may_have_sent(*plan),
                ..self.term.clone()
            },
        })
    }

    /// What is finished is made durable sooner when nothing has been finished for so long: no other swap is near that
    /// could carry it.
    fn rest(&self) -> Duration {
        self.shard.config.ack_interval / 3
    }

    /// Starts a swap if one is called for. True while one is called for or under way.
    fn begin_swap(&mut self, decision: &Decision) -> Result<bool, ConsumeError> {
        let now = Instant::now();
        let Config {
            ack_interval, lease, ..
        } = self.shard.config;
        let since = now - self.swapped_at;
        let acknowledge = decision.progress
            && (since >= ack_interval
                || self.finished_at.elapsed() >= self.rest()
                || decision.blocked
                || self.drain_until.is_some());
        let renew = since >= lease / 3;
        let settled = self.durable.state.unsettled && self.settling.is_none();
        let write_down = !decision.plans.is_empty() || !self.undurable.is_empty() || settled;
        if !(acknowledge || renew || write_down) {
            return Ok(false);
        }
        if self.swapping.is_some() || now < self.swap_again_at {
            return Ok(true);
        }
        let mut next = self.durable.state.clone();
        if let Some(known) = &self.log {
            next.limit_sent(known.log.next_sequence);
        }
        for (stream, position) in &decision.acknowledge {
            next.acknowledge(stream, *position)?;
        }
        for (stream, plan) in decision.plans.iter().chain(&decision.ahead) {
            next.plan(stream, *plan)?;
        }
        for refusal in &self.undurable {
            // What retention dropped is acknowledged, though its batch is under way.
            if next.next(&refusal.stream) <= refusal.batch.low {
                next.refuse(&refusal.stream, refusal.batch, &refusal.pieces, &refusal.reason)?;
            }
        }
        if settled {
            next.settle();
        }
        let claim = self.shard.claim.clone();
        next.renew(
            now_ms(&*claim.environment),
            u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
        );
        next.wait_for(&claim.status.waiting_for());
        let before = self.durable.clone();
        self.swap_began = claim.environment.uptime();
        // If it fails, the next one waits a little; if it does not, this is of no effect.
        self.swap_again_at = now + Duration::from_millis(200);
        self.swapping = Some(async move { claim.swap(before, next).await }.boxed());
        Ok(true)
    }

    fn swapped(&mut self, durable: Snapshot<Cursor>) {
        if durable.state.stamp != self.durable.state.stamp {
            self.swapped_at = Instant::now();
            self.term.lease.renew(self.swap_began, self.shard.config.lease);
            self.swap_again_at = self.swapped_at;
        }
        self.trace_acknowledged(&durable.state);
        self.durable = durable;
        self.schedule.acknowledged(&self.durable.state);
        for refusal in std::mem::take(&mut self.undurable) {
            let known = self.durable.state.refused(&refusal.stream, refusal.batch);
            let written = known.is_some_and(|known| refusal.pieces.iter().all(|piece| known.covers(*piece)));
            // Of a batch that is acknowledged, nobody sends anything whole any more.
            if written || self.durable.state.next(&refusal.stream) > refusal.batch.low {
                // Nobody listens where the batch was given up.
                let _ = refusal.durable.send(());
            } else {
                self.undurable.push(refusal);
            }
        }
    }

    fn trace_acknowledged(&mut self, cursor: &Cursor) {
        self.traces
            .retain(|(stream, plan), _| cursor.next(stream) <= plan.low);
    }

    fn begin_read(&mut self) {
        if self.reading.is_some() || Instant::now() < self.poll_at {
            return;
        }
        let store = self.shard.claim.store.clone();
        let key = layout::manifest(self.shard.claim.shard);
        let known = self.log.as_ref().map(|log| log.version.clone());
        let read = async move {
            match known {
                None => cas::read::<Manifest>(&store, &key).await,
                Some(known) => match cas::read_if_changed(&store, &key, &known).await? {
                    Reread::Changed(log) => Ok(Some(log)),
                    Reread::Unchanged | Reread::Absent => Ok(None),
                },
            }
        };
        self.reading = Some(read.boxed());
    }

    fn read(&mut self, outcome: Result<Option<Snapshot<Manifest>>, ReadError>) -> Result<(), ConsumeError> {
        self.poll_at = Instant::now() + self.shard.config.poll_interval;
        let what = format!("reading {}", layout::manifest(self.shard.claim.shard));
        match outcome {
            Ok(news) => {
                self.shard.claim.status.goes_on(&what);
                if let Some(news) = news {
                    self.shard.check_log(&news.state)?;
                    self.log = Some(match self.log.take() {
                        None => Known::new(news),
                        Some(known) => {
                            let came = news.state.next_sequence.saturating_sub(known.log.next_sequence);
                            // A collector changes it too, and nothing comes.
                            if came > 0 {
                                self.one_by_one = came == 1;
                            }
                            Known {
                                log: known.log.advanced(news.state),
                                version: news.version,
                            }
                        }
                    });
                    self.warn_of_trimmed();
                }
                self.show_backlog();
                Ok(())
            }
            Err(ReadError::Format { key, wrong }) => Err(ConsumeError::Format { key, wrong }),
            Err(ReadError::Store(error)) => {
                self.shard
                    .claim
                    .status
                    .waits(&what, &error.to_string(), Level::Warn);
                Ok(())
            }
        }
    }

    /// Keeps the pages loaded that the positions and the batches under way need next, and no others.
    fn begin_load(&mut self) {
        let Some(known) = &mut self.log else { return };
        if known.log.pages.is_empty() {
            return;
        }
        let workshop = &self.shard.workshop;
        let accepted = known
            .log
            .streams
            .iter()
            .filter(|s| workshop.takes(&s.name, s.encoding));
        let mut wanted = Vec::new();
        for stream in accepted {
            let cursor = &self.durable.state;
            let next = begins(cursor, &known.log, &stream.name);
            let from = known.log.pages.partition_point(|page| page.last < next);
            let through = self.schedule.reaches(cursor, &known.log, &stream.name);
            let ahead = (0..).zip(&known.log.pages[from..]).take_while(|(place, page)| {
                *place < PAGES_AHEAD || through.is_some_and(|through| page.first <= through)
            });
            wanted.extend(ahead.map(|(_, page)| page.clone()));
        }
        known.log.unload(|page| wanted.contains(page));
        if self.loading.is_some() {
            return;
        }
        let missing = wanted.into_iter().find(|page| !known.log.is_loaded(page));
        let shard = self.shard;
        self.loading = missing.map(|page| {
            async move {
                let read = shard.read_page(&page).await;
                (page, read)
            }
            .boxed()
        });
    }

    fn loaded(
        &mut self,
        reference: &PageReference,
        read: Result<PageRead, ConsumeError>,
    ) -> Result<(), ConsumeError> {
        // It may have left the log meanwhile, and then it is no matter that it is gone.
        let Some(known) = self.log.as_mut().filter(|k| k.log.pages.contains(reference)) else {
            return Ok(());
        };
        match read? {
            PageRead::Page(page) => known.load(reference, page),
            // Only the owner's copy of the manifest refers to the page.
            PageRead::Trimmed(log) => {
                // A read under way may return an older manifest.
                self.reading = None;
                self.read(Ok(Some(*log)))
            }
        }
    }

    /// Retention may drop what this consumer has not read.
    fn warn_of_trimmed(&mut self) {
        let Some(Known { log, .. }) = &self.log else {
            return;
        };
        if std::mem::replace(&mut self.trimmed, log.first_sequence) == log.first_sequence {
            return;
        }
        let (cursor, workshop) = (&self.durable.state, &self.shard.workshop);
        for stream in &log.streams {
            let next = cursor.next(&stream.name);
            if next < log.first_sequence && workshop.takes(&stream.name, stream.encoding) {
                // A planned batch that was cut goes as a whole.
                let first = log.first_sequence.max(begins(cursor, log, &stream.name));
                warn!(
                    shard = self.shard.claim.shard,
                    stream = stream.name,
                    "sequences {next}..{first} were trimmed before this consumer had read them: what was in them is lost to it"
                );
            }
        }
    }

    fn show_backlog(&self) {
        let Shard { claim, workshop, .. } = self.shard;
        let now_ms = now_ms(&*claim.environment);
        self.for_each_stream(|log, index, stream| {
            let reached = self.schedule.reached(&self.durable.state, log, index, stream);
            let lag = log.lag(index, reached);
            workshop.metrics.show_backlog(claim.shard, stream, &lag, now_ms);
        });
    }

    fn forget_backlog(&self) {
        let Shard { claim, workshop, .. } = self.shard;
        self.for_each_stream(|_, _, stream| workshop.metrics.forget_backlog(claim.shard, stream));
    }

    /// Of the streams that it takes.
    fn for_each_stream(&self, mut each: impl FnMut(&Log, u32, &str)) {
        let Some(Known { log, .. }) = &self.log else {
            return;
        };
        let workshop = &self.shard.workshop;
        let streams = (0_u32..).zip(&log.streams);
        for (index, stream) in streams.filter(|(_, s)| workshop.takes(&s.name, s.encoding)) {
            each(log, index, &stream.name);
        }
    }

    /// When to look again though nothing happened.
    fn next_timer(&self, decision: &Decision) -> Instant {
        let Config {
            ack_interval, lease, ..
        } = self.shard.config;
        let mut timer = if self.swapping.is_some() {
            // Its end wakes us; until then only news of the log matters.
            Instant::now() + lease
        } else {
            let mut timer = self.swapped_at + lease / 3;
            if decision.progress {
                timer = timer
                    .min(self.swapped_at + ack_interval)
                    .min(self.finished_at + self.rest());
            }
            // A swap that is called for goes as soon as the pause after a failure is over.
            timer.max(self.swap_again_at)
        };
        if self.reading.is_none() {
            timer = timer.min(self.poll_at);
        }
        self.drain_until.map_or(timer, |until| timer.min(until))
    }

    /// Whether this is a repair, and all of its range is in the sink.
    fn is_repaired(&self) -> bool {
        let Some(Known { log, .. }) = self.log.as_ref().filter(|_| self.settling.is_none()) else {
            return false;
        };
        let accepts = accepts(&self.shard.workshop, log);
        self.schedule.running() == 0 && self.schedule.is_complete(&self.durable.state, log, &accepts)
    }

    /// Gives the cursor back, saying whether anything is in doubt. A repair that has reached its end leaves a tombstone.
    async fn release(&mut self) -> Result<Term, ConsumeError> {
        self.work.abort_all();
        // One that is under way may still land: then ours finds its state, and goes on from there.
        self.swapping = None;
        let patience = Instant::now() + RELEASE_PATIENCE;
        loop {
            // A swap that landed late may have moved a position past the pages that are loaded now.
            let decision = self.decide();
            let mut next = self.durable.state.clone();
            for (stream, position) in &decision.acknowledge {
                next.acknowledge(stream, *position)?;
            }
            let log = self.log.as_ref().map(|known| &known.log);
            let unsent = log.map(|log| self.schedule.unsent(&next, log));
            for (stream, plan) in unsent.unwrap_or_default() {
                next.withdraw(&stream, plan);
            }
            next.wait_for(&[]);
            let repaired = self.is_repaired();
            if repaired {
                next.settle();
            }
            // With the store away it would take for ever.
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
                return Ok(Term::Released);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Gives the cursor back with the reason why this process ends, so that the next one need not wait for the lease and
    /// whoever looks knows. If that takes long, it is left.
    async fn leave(&mut self, error: &ConsumeError) {
        self.work.abort_all();
        // Otherwise it would be lost to the swap under way.
        let giving_back = async {
            if let Some(swapping) = self.swapping.take()
                && let Outcome::Ours(durable) = swapping.await?
            {
                self.durable = *durable;
            }
            loop {
                let mut next = self.durable.state.clone();
                next.wait_for(&[format!("it ended: {error}")]);
                if self.give_back(next, false).await?.is_some() {
                    return Ok::<_, ConsumeError>(());
                }
            }
        };
        if !matches!(timeout(LAST_WORDS, giving_back).await, Ok(Ok(()))) {
            warn!(
                shard = self.shard.claim.shard,
                "the cursor could not be given back: the next owner waits for the lease"
            );
        }
    }

    /// One attempt to release the cursor, and to remove it where it is `done` with. `None`: an earlier swap of ours was in
    /// force, and is known now.
    async fn give_back(&mut self, mut next: Cursor, done: bool) -> Result<Option<Term>, ConsumeError> {
        next.release();
        if done {
            // Every request of it was followed by one that succeeded under the same token, as before a clean release.
            next = next.remove();
            next.settle();
        }
        let ownership = next.ownership.clone();
        match self.shard.claim.swap(self.durable.clone(), next).await? {
            Outcome::Fenced { owner, epoch } => Ok(Some(self.fenced(&owner, epoch))),
            // Ours, or an operator's: all is in the sink.
            Outcome::Removed if done => Ok(Some(self.repaired())),
            Outcome::Removed => Err(self.shard.claim.removed()),
            Outcome::Ours(durable) if done && durable.state.is_removed() => Ok(Some(self.repaired())),
            Outcome::Ours(durable) if durable.state.ownership == ownership => {
                self.trace_acknowledged(&durable.state);
                info!(
                    shard = self.shard.claim.shard,
                    clean = ownership == Ownership::Released,
                    "released the cursor"
                );
                Ok(Some(Term::Released))
            }
            Outcome::Ours(durable) => {
                self.durable = *durable;
                Ok(None)
            }
        }
    }

    fn repaired(&self) -> Term {
        let (shard, consumer) = (self.shard.claim.shard, &self.shard.claim.consumer);
        info!(shard, consumer, "the range is repaired");
        if let Some(tally) = &self.shard.workshop.repair {
            tally.shard();
        }
        Term::Released
    }

    fn fenced(&self, owner: &str, epoch: u64) -> Term {
        let Shard { claim, workshop, .. } = self.shard;
        workshop.metrics.fenced.inc();
        warn!(
            shard = claim.shard,
            consumer = claim.consumer,
            "fenced: {owner} owns the cursor since epoch {epoch}; this process stops sending and stands by"
        );
        Term::Fenced
    }
}

/// At a takeover: what the predecessor may have sent comes first.
fn replay(shard: &Shard, cursor: &Cursor, log: &Log) -> Schedule {
    let schedule = Schedule::in_doubt(cursor, log, &accepts(&shard.workshop, log));
    let batches = schedule.doubtful();
    if batches > 0 {
        info!(
            shard = shard.claim.shard,
            batches, "replaying what the predecessor may have sent"
        );
        shard.workshop.metrics.replayed_batches.inc_by(batches as u64);
    }
    schedule
}

fn accepts<'a>(workshop: &'a Workshop, log: &'a Log) -> impl Fn(&str) -> bool + 'a {
    |name| {
        log.streams
            .iter()
            .any(|s| s.name == name && workshop.takes(name, s.encoding))
    }
}
