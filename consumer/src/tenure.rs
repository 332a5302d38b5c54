//! One term as the owner of a cursor: a loop that decides, starts batches and waits for the first event. It carries out
//! the decisions of [`crate::schedule`].

mod job;
mod keeping;
mod log;
mod recognition;
mod release;
mod swaps;
mod watching;

pub(crate) use log::Known;

use crate::bisect::{Refusal, Refusals};
use crate::discovery::Discovery;
use crate::error::ConsumeError;
use crate::lease::Lease;
use crate::metrics::{InStage, range};
use crate::owner::{Outcome, Owned};
use crate::rounds::{LaterRound, LaterRounds};
use crate::schedule::{Decision, Key, Mode, Room, Schedule};
use crate::shard::Shard;
use crate::trace::BatchTrace;
use crate::unique::{Line, Source, Turn};
use crate::worker::BatchWorker;
use crate::write::Term;
use futures::future::{BoxFuture, OptionFuture};
use keeping::Keeping;
use log::{Loading, Reading, Unreadable};
use millpond_manifest::cas::Snapshot;
use millpond_manifest::cursor::{Plan, Seen};
use millpond_manifest::{Cursor, Log};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;
use swaps::Swapping;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tracing::{debug, info, warn};
use watching::Watch;

/// The end of a term as the cursor's owner.
pub(crate) enum TermEnd {
    Released,
    Fenced,
}

/// The number of sequences after the end of the log to plan ahead while segments come one at a time. At one segment a
/// second, fewer segments than this come between two acknowledgements.
const PLANNED_AHEAD: u64 = 8;

/// Reports of batches that the owner has not taken yet. A batch waits until the cursor has its report, so a longer queue
/// would gain nothing.
const REPORTS: usize = 16;

/// One term as the owner of the cursor.
pub(crate) struct Tenure<'a> {
    shard: &'a Shard,
    durable: Snapshot<Cursor>,
    log: Option<Known>,
    /// The log is the one that the consumer has read.
    recognized: bool,
    /// The newest segment of that log that the store or the leader has shown.
    seen: Option<Seen>,
    /// The predecessor may have sent batches.
    in_doubt: bool,
    schedule: Schedule,
    work: JoinSet<(Key, Result<(), ConsumeError>)>,
    /// Traces of the batches that are not acknowledged yet.
    traces: BTreeMap<Key, BatchTrace>,
    reading: Option<Reading>,
    /// The version that was known when the read began.
    read_knowing: u64,
    /// Since when the store has returned older states than the known one.
    behind_since: Option<Instant>,
    /// Where the news of the log come from.
    discovery: Discovery,
    /// The leader, while it tells of commits.
    watch: Watch,
    loading: Option<Loading<'a>>,
    /// Pages that could not be read, by their first sequence.
    unreadable: BTreeMap<u64, Unreadable>,
    swapping: Option<Swapping>,
    /// The channel on which batches report what the sink refuses.
    refusals: Refusals,
    refused: mpsc::Receiver<Refusal>,
    /// Refusals that the cursor does not have yet.
    undurable: Vec<Refusal>,
    announced: mpsc::Receiver<LaterRound>,
    /// Later rounds that the cursor does not record yet.
    unannounced: Vec<LaterRound>,
    /// Batches of this term that are running and have announced later rounds.
    later_rounds: BTreeSet<Key>,
    poll_at: Instant,
    swapped_at: Instant,
    /// The start of the swap in flight, by the clock of the lease.
    swap_began: Duration,
    term: Term,
    /// The wait for requests of earlier generations. The consumer sends nothing meanwhile.
    settling: Option<BoxFuture<'static, ()>>,
    /// No swap starts before this time after a failed one.
    swap_again_at: Instant,
    drain_until: Option<Instant>,
    /// The time at which the last batch finished.
    finished_at: Instant,
    /// True if segments came one at a time at the last change of the log.
    one_by_one: bool,
    ignored: HashSet<String>,
    /// The start of the log at the last check for trimmed sequences.
    trimmed: u64,
    /// The streams whose repeated events are dropped, from their first batch in this term on.
    unique: BTreeMap<String, Line>,
    /// The keys of silent streams on their way to the store.
    keeping: Keeping,
}

impl<'a> Tenure<'a> {
    pub(crate) fn begin(shard: &'a Shard, owned: Owned, log: Option<Known>) -> Tenure<'a> {
        let now = Instant::now();
        let environment = &shard.claim.environment;
        let schedule = until_the_end(shard, Schedule::after(&owned.durable.state));
        let since_leased = environment.uptime().saturating_sub(owned.leased_at);
        let state = &owned.durable.state;
        let (announcements, announced) = mpsc::channel(REPORTS);
        let term = Term {
            lease: Lease::new(environment.clone(), owned.leased_at, shard.config.lease),
            opening: state.opening,
            other_tokens: false,
            later_rounds: LaterRounds {
                announcements,
                batch: (String::new(), Plan { low: 0, high: 0 }),
            },
        };
        let settling = state
            .unsettled
            .then(|| shard.settle(state.opening, owned.outlived));
        let (refusals, refused) = mpsc::channel(REPORTS);
        let seen = state.seen;
        let mut tenure = Tenure {
            shard,
            durable: owned.durable,
            log,
            recognized: false,
            seen,
            in_doubt: owned.in_doubt,
            schedule,
            work: JoinSet::new(),
            traces: BTreeMap::new(),
            reading: None,
            read_knowing: 0,
            behind_since: None,
            discovery: Discovery::new(shard.watching.is_some(), shard.config.poll_interval),
            watch: Watch::default(),
            loading: None,
            unreadable: BTreeMap::new(),
            swapping: None,
            refusals,
            refused,
            undurable: Vec::new(),
            announced,
            unannounced: Vec::new(),
            later_rounds: BTreeSet::new(),
            poll_at: now,
            // The lease is due for renewal earlier, because reading the log took time.
            swapped_at: now.checked_sub(since_leased).unwrap_or(now),
            swap_began: owned.leased_at,
            term,
            settling,
            swap_again_at: now,
            // Otherwise the first turn would plan batches, and a stop would have to send them.
            drain_until: shard
                .shutdown
                .is_cancelled()
                .then(|| now + shard.config.drain_timeout),
            finished_at: now,
            one_by_one: false,
            ignored: HashSet::new(),
            trimmed: 0,
            unique: BTreeMap::new(),
            keeping: Keeping::default(),
        };
        tenure.see_leader();
        tenure
    }

    pub(crate) async fn serve(mut self) -> Result<TermEnd, ConsumeError> {
        let term = self.serve_until_it_ends().await;
        let term = match term {
            Err(error) if !matches!(error, ConsumeError::Removed { .. }) => {
                match self.leave(&error).await {
                    // The next owner has got so far that nobody needs what this one misses.
                    Ok(Some(TermEnd::Fenced)) if error.is_of_trimmed() => {
                        let shard = self.shard.claim.shard;
                        info!(shard, "what it still wanted is the next owner's matter: {error}");
                        Ok(TermEnd::Fenced)
                    }
                    Ok(_) => Err(error),
                    Err(removed) => {
                        warn!(shard = self.shard.claim.shard, "{error}");
                        Err(removed)
                    }
                }
            }
            term => term,
        };
        for trace in self.traces.values() {
            trace.give_up(&"this process ended its work before it was acknowledged");
        }
        self.forget_backlog();
        term
    }

    async fn serve_until_it_ends(&mut self) -> Result<TermEnd, ConsumeError> {
        let shutdown = self.shard.shutdown.clone();
        loop {
            self.recognize()?;
            let decision = self.decide();
            // Another process may own the cursor and have finished the batch so long ago that the sink would accept its
            // rows again.
            if self.term.lease.runs() {
                for key in &decision.start {
                    self.start(key.clone());
                }
            }
            self.keep_keys();
            let wants_swap = self.begin_swap(&decision)?;
            let is_still = self.schedule.running() == 0 && !wants_swap && self.swapping.is_none();
            let idle = is_still && !self.is_recognizing();
            if self.is_repaired() {
                return self.release().await;
            }
            if let Some(until) = self.drain_until
                && (idle || Instant::now() >= until)
            {
                return self.release().await;
            }
            self.look_overdue();
            self.begin_read();
            self.begin_watch();
            self.begin_load();
            // Nothing is left to do before the page, nor in any other page.
            if is_still
                && !decision.progress
                && self.settling.is_none()
                && self.loading.is_none()
                && let Some((_, unreadable)) = self.unreadable.pop_first()
            {
                return Err(unreadable.why);
            }
            let timer = self.next_timer(&decision);
            // None of these branches stays ready forever, so none starves another. The fixed order makes a seed
            // reproducible.
            tokio::select! {
                biased;
                Some(done) = self.work.join_next(), if !self.work.is_empty() => {
                    let (key, outcome) = done.unwrap_or_else(|e| std::panic::resume_unwind(e.into_panic()));
                    match outcome {
                        Ok(()) => {
                            // The batch has waited for the requests of its later rounds.
                            self.later_rounds.remove(&key);
                            self.finished(&key);
                        }
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
                Some((stream, ended)) = self.keeping.next_ended() => self.kept(&stream, ended),
                Some(refusal) = self.refused.recv() => self.undurable.push(refusal),
                Some(announced) = self.announced.recv() => self.unannounced.push(announced),
                Some(outcome) = OptionFuture::from(self.reading.as_mut()), if self.reading.is_some() => {
                    self.reading = None;
                    self.read(outcome)?;
                }
                heard = self.watch.next(), if self.watch.is_asking() => self.heard(heard),
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

    /// Returns true if batches of the log may be sent now.
    fn may_send(&self) -> bool {
        self.recognized && self.settling.is_none()
    }

    fn decide(&mut self) -> Decision {
        let may_send = self.may_send();
        let Some(log) = self.log.as_ref().filter(|_| may_send) else {
            return Decision::default();
        };
        for stream in &log.log.streams {
            let worker = &self.shard.worker;
            if worker.selects(&stream.name)
                && !worker.takes(&stream.name, stream.encoding)
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
        let accepts = accepts(&self.shard.worker, &log.log);
        let room = Room {
            writers: self.shard.config.writers,
            ahead: if self.one_by_one { PLANNED_AHEAD } else { 0 },
        };
        self.schedule
            .decide(&self.durable.state, &log.log, &accepts, mode, room)
    }

    fn start(&mut self, key: Key) {
        let Some(log) = &self.log else { return };
        let Some(mut job) = self.job(&log.log, &key) else {
            return;
        };
        job.unique = self.turn(&key);
        debug!(?job, "starts");
        let worker = self.shard.worker.clone();
        self.schedule.started(key.clone());
        self.traces.insert(key.clone(), job.trace.clone());
        let under_way = InStage::of(&worker.metrics.running);
        self.work.spawn(async move {
            let _under_way = under_way;
            (key, worker.work(job).await)
        });
    }

    /// The batch's turn, if its stream's repeated events are dropped.
    fn turn(&mut self, (stream, plan): &Key) -> Option<Turn> {
        let (line, source) = self.line(stream, plan.high)?;
        Some(line.turn(source, *plan))
    }

    /// The line of a stream whose repeated events are dropped up to this sequence, and the source of its keys. A batch before the
    /// beginning of the setting has none: the beginning may still move.
    fn line(&mut self, stream: &str, to: u64) -> Option<(&mut Line, Source)> {
        let cursor = &self.durable.state;
        let (setting, of) = cursor.deduplicates(stream)?;
        if to < of.since {
            return None;
        }
        let source = Source::new(stream, setting, of, cursor);
        if !self.unique.contains_key(stream) {
            let line = Line::new(self.shard, &source);
            self.unique.insert(stream.to_owned(), line);
        }
        Some((self.unique.get_mut(stream)?, source))
    }

    fn finished(&mut self, key: &Key) {
        debug!(stream = key.0, batch = range(key.1), "is in the sink");
        self.schedule.finished(key);
        if let Some(trace) = self.traces.get_mut(key) {
            trace.finished();
        }
        self.finished_at = Instant::now();
        self.shard
            .worker
            .metrics
            .held_bytes
            .set(self.shard.worker.memory.held().try_into().unwrap_or(i64::MAX));
    }
}

/// The schedule after a takeover: batches that the predecessor may have sent come first.
fn replay(shard: &Shard, cursor: &Cursor, log: &Log) -> Schedule {
    let schedule = Schedule::in_doubt(cursor, log, &accepts(&shard.worker, log));
    let batches = schedule.doubtful(log);
    if batches > 0 {
        info!(
            shard = shard.claim.shard,
            batches, "replaying what the predecessor may have sent"
        );
        shard.worker.metrics.replayed_batches.inc_by(batches as u64);
    }
    until_the_end(shard, schedule)
}

/// A repair ends with its range.
fn until_the_end(shard: &Shard, schedule: Schedule) -> Schedule {
    schedule.until(shard.repair.as_ref().map(|range| range.end() + 1))
}

fn accepts<'a>(worker: &'a BatchWorker, log: &'a Log) -> impl Fn(&str) -> bool + 'a {
    |name| {
        log.streams
            .iter()
            .any(|s| s.name == name && worker.takes(name, s.encoding))
    }
}
