//! The committer: one task that commits uploaded segments in order, as many as are ready with one compare-and-set,
//! never two at a time. `commit.rs` decides the next step, and `millpond-manifest` defines a commit. This file makes
//! the requests and waits; `committer/outcome.rs` answers the callers. It never gives up while the process lives.

mod outcome;

use std::collections::BTreeMap;
use std::time::Duration;

use millpond_manifest::{Buffer, ClientClaim, Manifest, Object, ProducerId, Snapshot, Swap, cas, layout};
use millpond_runtime::{Backoff, Environment, Level};
use millpond_storage::Version;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use ulid::Ulid;
use uuid::Uuid;

use crate::Config;
use crate::claims::claims_of;
use crate::clients::CLIENTS_FORWARD_MAX;
use crate::commit::{Answer, COMMIT_SEGMENTS_MAX, Commits, Draw, NewPage, News, Next};
use crate::commit_delay::CommitDelay;
use crate::election::Election;
use crate::forward::Batch;
use crate::group::Members;
use crate::lead::{Foreign, Lead};
use crate::past::Past;
use crate::peers::Peering;
use crate::reads_first::ReadsFirst;
use crate::segment::{EncodedWork, UploadedWork};
use crate::streams::Streams;
use crate::turns::Turns;
use crate::uploader::{Arrival, Upload};

/// The wait of a commit, as `/readyz` shows it.
pub(crate) const COMMIT: &str = "waiting for the store (commit)";

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

/// The maximum number of segments of one request of another producer.
pub(crate) const FOREIGN_SEGMENTS_MAX: usize = 64;

/// With more numbered requests of others, no further segments of them join a group.
const OTHERS_CLIENTS_MAX: usize = 4 * CLIENTS_FORWARD_MAX;

/// Others make a producer read the manifest at most this often.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The number of attempts of a producer that stops to leave the lead to others.
const LEAVE_ATTEMPTS: usize = 3;

pub(crate) struct Committer {
    pub(crate) upload: Upload,
    buffer_id: Uuid,
    streams: Streams,
    pub(crate) commits: Commits<Snapshot<Manifest>>,
    pub(crate) peering: Option<Peering>,
    pub(crate) election: Election,
    pub(crate) lead: Lead,
    reads_first: ReadsFirst,
    next_number: u64,
    waiting: BTreeMap<u64, Arrival>,
    commit_delay: CommitDelay,
    pub(crate) turns: Turns,
    /// Another producer was first, and this one has not read the manifest since.
    lost_race: bool,
    /// The version that the store refused to replace, and may still show. The inner `None` stands for no manifest.
    refused: Option<Option<Version>>,
    /// The store showed that again.
    is_behind: bool,
    past: Past,
    /// How long the last read of the manifest took.
    read_took: Duration,
    began: Instant,
    /// When others last made this producer read the manifest.
    looked_at: Option<Duration>,
    /// The zstd level of blocks that lose records of clients.
    compression_level: i32,
    /// The leader refused a client of the group, or its number is about to be spent: no leader is asked for it again.
    pub(crate) keeps_group: bool,
    /// The leader of this term does not know numbered requests.
    pub(crate) unnumbered_term: Option<u64>,
    /// The metrics count it.
    is_counted_as_leader: bool,
}

/// The result of a step.
pub(crate) enum Progress {
    /// Segments are in the log.
    Committed,
    /// The next step can follow at once.
    Made,
    /// Requests of clients or of other producers have left the group, or are about to, and the next step can follow at once.
    Settled,
    /// The store did not perform the step: repeat it after a wait.
    HeldUp,
    /// Another producer was first.
    LostRace,
}

impl Committer {
    pub(crate) fn new(
        upload: Upload,
        buffer_id: Uuid,
        config: &Config,
        streams: Streams,
        commit_delay: CommitDelay,
        peering: Option<Peering>,
        lead: Lead,
    ) -> Self {
        let producer = (&*upload.environment).producer_id();
        let certificate = peering.as_ref().map(|peering| peering.certificate);
        let address = peering.as_ref().and_then(|peering| peering.address.clone());
        Self {
            commits: Commits::new(buffer_id, upload.shard, config.tail_max, producer)
                .with_certificate(certificate),
            peering,
            election: Election::new(address, config.linger),
            lead,
            upload,
            buffer_id,
            streams,
            reads_first: ReadsFirst::default(),
            next_number: 0,
            waiting: BTreeMap::new(),
            commit_delay,
            turns: Turns::default(),
            lost_race: false,
            refused: None,
            is_behind: false,
            past: Past::default(),
            read_took: Duration::ZERO,
            began: Instant::now(),
            looked_at: None,
            compression_level: config.compression_level,
            keeps_group: false,
            unnumbered_term: None,
            is_counted_as_leader: false,
        }
    }

    /// Runs until the uploaders have ended and all their segments are committed. Then it leaves the lead to others.
    pub(crate) async fn run(
        mut self,
        mut arrivals: mpsc::Receiver<Arrival>,
        mut foreign: mpsc::Receiver<Foreign>,
    ) {
        self.upload.metrics.open.inc();
        let mut members = Members::default();
        loop {
            tokio::select! {
                biased;
                arrival = arrivals.recv() => match arrival {
                    Some(arrival) => self.arrive(arrival),
                    None => break,
                },
                Some(foreign) = foreign.recv() => members.foreign.push(foreign),
                () = self.lead.asked_to_look() => self.look().await,
            }
            loop {
                if self.forward_next(&mut members, &mut arrivals).await {
                    continue;
                }
                if self.commits.may_grow() {
                    self.extend(&mut members, &mut arrivals, &mut foreign).await;
                }
                if members.is_empty() {
                    break;
                }
                self.gather(&mut members, &mut arrivals, &mut foreign).await;
                self.commit(&mut members, &mut arrivals, &mut foreign).await;
            }
        }
        self.leave().await;
        self.count_lead(false);
        self.upload.metrics.open.dec();
        // The lead may be left to a timeout, and the process may go on without this producer.
        self.upload.readiness.goes_on(COMMIT);
    }

    /// Reads the manifest because of producers that are new in it, at most once a second.
    async fn look(&mut self) {
        let now = self.elapsed();
        let is_due = self
            .looked_at
            .is_none_or(|at| now.saturating_sub(at) >= LOOK_INTERVAL);
        if is_due && self.commits.may_grow() {
            self.looked_at = Some(now);
            self.read_manifest().await;
            // Nothing of this producer waits for it.
            self.upload.readiness.goes_on(COMMIT);
        }
    }

    /// Stops leading, so that another producer takes over at once. If it does not succeed, others notice later.
    async fn leave(&mut self) {
        self.election.close();
        for _ in 0..LEAVE_ATTEMPTS {
            let leads = self.election.leads(self.commits.producer());
            let next = match leads {
                true => self.commits.leave(&mut &*self.upload.environment),
                false => None,
            };
            match next {
                Some(Next::Read) => {
                    self.read_manifest().await;
                }
                Some(Next::Swap(swap)) => {
                    let (answer, _) = self.swap(swap.expected, *swap.next).await;
                    let news = self.commits.swapped(answer);
                    self.hear(news);
                }
                _ => return,
            }
        }
    }

    /// Sends the next segments to the leader, if there is one, and commits them without it if it does not. Returns true if
    /// there was something to do.
    async fn forward_next(&mut self, members: &mut Members, arrivals: &mut mpsc::Receiver<Arrival>) -> bool {
        while let Ok(arrival) = arrivals.try_recv() {
            self.arrive(arrival);
        }
        let leader = self.leader_to_ask();
        let keep_below = self.peering.as_ref().map(|peering| peering.forward_below);
        let keep_below = keep_below.filter(|_| leader.is_some());
        self.lead.follow(keep_below, self.takes_numbered());
        let (Some(leader), true) = (leader, members.is_empty()) else {
            return false;
        };
        self.wait_for_the_leader(arrivals).await;
        let batch = self.next_batch();
        if batch.is_empty() {
            return false;
        }
        let Some(batch) = self.forward(leader, batch).await else {
            return true;
        };
        // The number belongs to exactly these segments: nothing joins them.
        members.works = self.upload_all(batch).await;
        true
    }

    /// Lets what is ready wait for the time to send it.
    async fn wait_for_the_leader(&mut self, arrivals: &mut mpsc::Receiver<Arrival>) {
        self.commit_delay.begin();
        while let Some((until, is_time)) = self.send_later() {
            tokio::select! {
                biased;
                arrival = arrivals.recv() => match arrival {
                    Some(arrival) => self.arrive(arrival),
                    // The producer stops.
                    None => return,
                },
                () = sleep_until(until) => if is_time { return },
            }
        }
    }

    /// Returns until when what is ready waits, and whether it is sent then, even if that time has passed. `None`: it is sent
    /// now, or there is nothing.
    fn send_later(&mut self) -> Option<(Instant, bool)> {
        match self.waiting.get(&self.next_number)? {
            // Between two segments of the leader. Sent at once, they would be in flight when the next ones are ready, which would
            // then miss their segment, and so on.
            Arrival::Kept(work) if self.is_for_leader(work) => {
                Some((self.lead.send_at(Instant::now())?, true))
            }
            // Segments that filled before the end of their linger share a request, as they would share a commit.
            Arrival::Uploaded(first) => Some((self.commit_delay.wait_until(first.commit_by)?, false)),
            Arrival::Kept(_) | Arrival::Skipped(_) => None,
        }
    }

    /// Takes the segments that are next in order and that the leader may commit.
    fn next_batch(&mut self) -> Batch {
        let mut batch = Batch::default();
        while batch.len() < FOREIGN_SEGMENTS_MAX {
            let is_next = match self.waiting.get(&self.next_number) {
                Some(Arrival::Kept(work) | Arrival::Uploaded(UploadedWork { work, .. })) => {
                    self.is_for_leader(work)
                        && batch.has_room_for(work)
                        && !self.refuses(&claims_of([work].into_iter()), true)
                }
                Some(Arrival::Skipped(_)) => true,
                None => false,
            };
            if !is_next {
                break;
            }
            match self.waiting.remove(&self.next_number) {
                Some(Arrival::Kept(work)) => batch.push_kept(work),
                Some(Arrival::Uploaded(uploaded)) => batch.push_uploaded(uploaded),
                Some(Arrival::Skipped(_)) | None => {}
            }
            self.next_number += 1;
        }
        batch
    }

    /// Returns true if the leader knows numbered requests, as far as this producer can tell.
    pub(crate) fn takes_numbered(&self) -> bool {
        let leader = self.election.leader();
        leader.is_none_or(|leader| self.unnumbered_term != Some(leader.term))
    }

    fn is_for_leader(&self, work: &EncodedWork) -> bool {
        work.may_be_forwarded() && (self.takes_numbered() || !work.is_numbered())
    }

    /// Returns true if the log, as far as this producer knows it, does not take one of these requests. The leader could then commit
    /// nothing that is sent with it. `for_good`: nor will it ever.
    pub(crate) fn refuses(&self, clients: &[ClientClaim], for_good: bool) -> bool {
        let now_ms = self.upload.environment.now_ms();
        !clients.is_empty() && self.commits.refuses_clients(clients, now_ms, for_good)
    }

    /// Uploads what was kept.
    pub(crate) async fn upload_all(&self, batch: Batch) -> Vec<UploadedWork> {
        let upload = |work: EncodedWork| self.upload.put(work, 0);
        batch.uploaded(upload).await
    }

    fn arrive(&mut self, arrival: Arrival) {
        self.commit_delay.arrived();
        let number = match &arrival {
            Arrival::Uploaded(UploadedWork { work, .. }) | Arrival::Kept(work) => {
                self.upload.metrics.segments_uncommitted.inc();
                work.number
            }
            Arrival::Skipped(number) => *number,
        };
        self.waiting.insert(number, arrival);
    }

    /// Moves the segments that have arrived and are next in order into the group, and those of others.
    async fn extend(
        &mut self,
        members: &mut Members,
        arrivals: &mut mpsc::Receiver<Arrival>,
        foreign: &mut mpsc::Receiver<Foreign>,
    ) {
        while let Ok(arrival) = arrivals.try_recv() {
            self.arrive(arrival);
        }
        let mut batch = Batch::default();
        while members.len() + batch.len() < COMMIT_SEGMENTS_MAX
            && let Some(arrival) = self.waiting.remove(&self.next_number)
        {
            self.next_number += 1;
            match arrival {
                Arrival::Uploaded(uploaded) => batch.push_uploaded(uploaded),
                Arrival::Kept(work) => batch.push_kept(work),
                Arrival::Skipped(_) => {}
            }
        }
        members.works.extend(self.upload_all(batch).await);
        while members.len() + FOREIGN_SEGMENTS_MAX <= COMMIT_SEGMENTS_MAX
            && (members.foreign.is_empty() || members.clients_of_others() < OTHERS_CLIENTS_MAX)
            && let Ok(foreign) = foreign.try_recv()
        {
            members.foreign.push(foreign);
        }
    }

    /// Lets segments that filled before the end of their linger wait for others to share their commit, as long as that
    /// is worthwhile.
    async fn gather(
        &mut self,
        members: &mut Members,
        arrivals: &mut mpsc::Receiver<Arrival>,
        foreign: &mut mpsc::Receiver<Foreign>,
    ) {
        self.commit_delay.begin();
        // Numbers that were sent to another producer, and others' segments, do not wait.
        while self.commits.may_grow()
            && members.foreign.is_empty()
            && members.len() < COMMIT_SEGMENTS_MAX
            && let Some(due) = members.works.iter().map(|uploaded| uploaded.commit_by).min()
            && let Some(next_look) = self.commit_delay.wait_until(due)
        {
            tokio::select! {
                biased;
                arrival = arrivals.recv() => match arrival {
                    Some(arrival) => self.arrive(arrival),
                    None => return,
                },
                Some(foreign) = foreign.recv() => members.foreign.push(foreign),
                () = sleep_until(next_look) => {}
            }
            self.extend(members, arrivals, foreign).await;
        }
    }

    /// Commits a group of segments. Retries without limit.
    async fn commit(
        &mut self,
        members: &mut Members,
        arrivals: &mut mpsc::Receiver<Arrival>,
        foreign: &mut mpsc::Receiver<Foreign>,
    ) {
        let started = Instant::now();
        let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(3));
        let mut races = Backoff::new(Duration::from_millis(20), RACE_WAIT_MAX);
        self.reads_first.begin(&mut self.commits);
        self.turns.begin();
        self.lost_race = false;
        // Each segment that joins may bring requests that have to leave it, which takes an upload. The others do not wait for
        // all that arrive meanwhile, also after a lost race.
        let mut is_settling = false;
        let mut has_lost = false;
        while !members.is_empty() {
            if has_lost && self.hand_over(members).await {
                continue;
            }
            if self.wait_for_turn(members).await {
                has_lost = true;
                continue;
            }
            if self.commits.may_grow() && !is_settling {
                self.extend(members, arrivals, foreign).await;
            }
            match self.step(members).await {
                Progress::Committed => {
                    is_settling = false;
                    self.answered();
                    members.answer_refused();
                    self.upload
                        .metrics
                        .commit_seconds
                        .observe(started.elapsed().as_secs_f64());
                }
                Progress::Made => {}
                Progress::Settled => is_settling = true,
                Progress::HeldUp => {
                    self.turns.held_up();
                    self.trace_attempt(members);
                    self.trace_failure(members);
                    members.answer_refused();
                    backoff.pause(&*self.upload.environment).await;
                }
                Progress::LostRace => {
                    if !self.is_behind {
                        self.upload.readiness.goes_on(COMMIT);
                    }
                    self.trace_attempt(members);
                    self.trace_failure(members);
                    self.lost_race = true;
                    has_lost = true;
                    if !self.election.leads(self.commits.producer()) {
                        members.answer_refused();
                        races.pause(&*self.upload.environment).await;
                    }
                }
            }
        }
        members.answer_refused();
        self.keeps_group = false;
        // Nothing waits for the store any more, whoever committed the group.
        self.upload.readiness.goes_on(COMMIT);
    }

    /// Records that the store answered.
    fn answered(&mut self) {
        self.refused = None;
        self.is_behind = false;
        self.lead.answered(Instant::now());
        self.upload.readiness.goes_on(COMMIT);
    }

    fn trace_attempt(&self, members: &mut Members) {
        let (key, segments) = (layout::manifest(self.upload.shard), members.len());
        for uploaded in &mut members.works {
            uploaded.work.trace.commit(&key, segments);
        }
    }

    fn trace_failure(&self, members: &Members) {
        let reason = self.upload.readiness.reason(COMMIT);
        let reason = reason.unwrap_or_else(|| "another producer was first".to_owned());
        for uploaded in &members.works {
            uploaded.work.trace.again(&reason);
        }
    }

    /// Takes one step of the group's commit.
    async fn step(&mut self, members: &mut Members) -> Progress {
        let described = members.describe();
        let office = self
            .election
            .office(self.commits.producer(), self.began.elapsed());
        self.commits.stand_for(office);
        let next = self
            .commits
            .next(described.group(), &mut &*self.upload.environment);
        if next != Next::Read {
            self.trace_attempt(members);
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
                let spends = swap.attempt.is_none() && self.commits.is_registered();
                self.keeps_group |= spends;
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
                self.succeed(members, landed);
                Progress::Committed
            }
            Next::Registered => {
                let (producer, shard) = (self.commits.producer(), self.upload.shard);
                tracing::info!("registered as producer {producer} in shard {shard}");
                Progress::Made
            }
            Next::Spent => {
                self.upload.metrics.numbers_spent.inc();
                Progress::Settled
            }
            Next::Settle(settlement) => {
                let is_own = settlement.own.is_some();
                if settlement.refuses_clients() {
                    // Those that the leader refused leave the group.
                    self.keeps_group = false;
                } else {
                    self.upload.metrics.commits_found.inc();
                }
                self.settle(members, &described, settlement).await;
                if is_own {
                    Progress::Committed
                } else {
                    Progress::Settled
                }
            }
            Next::UploadAgain { places, floor_ms } => {
                self.upload_again(members, &places, floor_ms).await;
                Progress::Made
            }
            Next::Drop { place, reason } => {
                self.drop_invalid(members, place, reason).await;
                Progress::Made
            }
            Next::Renew(renewal) => {
                self.go_on_anew(members, renewal);
                Progress::Made
            }
        }
    }

    /// The time since the committer began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Takes note of who leads.
    fn see(&mut self) {
        let Some(manifest) = self.commits.manifest() else {
            return;
        };
        if self.peering.is_none() {
            return;
        }
        let (producer, before) = (self.commits.producer(), self.election.leader().cloned());
        self.election.see(manifest, self.began.elapsed());
        self.lead.learn(manifest, producer);
        let after = self.election.leader();
        let term = |leader: &millpond_manifest::Leader| (leader.producer, leader.term);
        if before.as_ref().map(term) == after.map(term) {
            return;
        }
        let shard = self.upload.shard;
        let leads = self.election.leads(producer);
        match after {
            None => tracing::info!("nobody leads shard {shard}"),
            Some(leader) if leader.producer == producer => {
                tracing::info!("this producer leads shard {shard} (term {})", leader.term);
            }
            Some(leader) => tracing::info!(
                "producer {} at {} leads shard {shard} (term {})",
                leader.producer,
                leader.address,
                leader.term
            ),
        }
        self.count_lead(leads);
    }

    /// Counts this producer among those of the process that lead, or no more.
    fn count_lead(&mut self, leads: bool) {
        let before = std::mem::replace(&mut self.is_counted_as_leader, leads);
        let change = i64::from(leads) - i64::from(before);
        self.upload.metrics.leads.inc_by(change);
    }

    /// Reads the manifest.
    pub(crate) async fn read_manifest(&mut self) -> Progress {
        let key = layout::manifest(self.upload.shard);
        let problem = match cas::read::<Manifest>(&self.upload.store, &key).await {
            Ok(Some(found)) if found.state.buffer_id != self.buffer_id => {
                format!(
                    "{key} belongs to buffer {}, not to {}",
                    found.state.buffer_id, self.buffer_id
                )
            }
            Ok(found) => match self.take(found, &key) {
                None => return Progress::Made,
                Some(problem) => problem,
            },
            Err(error) => error.to_string(),
        };
        self.upload.readiness.waits(COMMIT, problem, Level::Warn);
        Progress::HeldUp
    }

    /// Takes what the store shows. Returns the reason to wait for another state, if there is one.
    fn take(&mut self, found: Option<Snapshot<Manifest>>, key: &str) -> Option<String> {
        let shown = found.as_ref().map(|found| found.version.clone());
        let is_refused = self.refused.as_ref() == Some(&shown);
        let news = self.commits.read(found);
        if news.is_past {
            return Some(self.past_problem(key));
        }
        if self.past.ends() {
            self.upload.readiness.goes_on(COMMIT);
        }
        let known = self.commits.manifest();
        self.streams.learn(known.map_or(&[], |known| &known.streams));
        self.hear(news);
        if !is_refused {
            self.caught_up();
            return None;
        }
        self.is_behind = true;
        Some(match shown {
            Some(_) => format!("the store shows the version of {key} that it refused to replace"),
            None => format!("the store shows no {key}, which it refused to create"),
        })
    }

    /// Names the wait for a later state, or gives it up.
    fn past_problem(&mut self, key: &str) -> String {
        if self.past.shown(Instant::now()) {
            self.commits.restored();
        }
        format!("the store shows an earlier version of {key} than before")
    }

    /// Records that the store shows what another producer committed. A lost race is an answer then: others replace a leader that
    /// the store holds up, and not one that is only slower than them.
    fn caught_up(&mut self) {
        if self.refused.take().is_some() {
            self.lead.answered(Instant::now());
        }
        if std::mem::take(&mut self.is_behind) {
            self.upload.readiness.goes_on(COMMIT);
        }
        if std::mem::take(&mut self.lost_race)
            && let Some(manifest) = self.commits.manifest()
        {
            self.turns
                .lost(manifest, self.commits.producer(), self.began.elapsed());
        }
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
        self.see();
        if let Some(manifest) = self.commits.manifest() {
            self.lead.took(manifest.stamp.version);
        }
        self.reads_first.hear(news);
        self.upload.metrics.pages.inc_by(u64::from(news.page_joined));
    }

    /// Makes one compare-and-set.
    async fn swap(
        &mut self,
        expected: Option<Version>,
        next: Manifest,
    ) -> (Answer<Snapshot<Manifest>>, Progress) {
        if expected.is_none()
            && let Some(problem) = self.other_buffer().await
        {
            self.upload.readiness.waits(COMMIT, problem, Level::Warn);
            return (Answer::Unknown, Progress::HeldUp);
        }
        let metrics = &self.upload.metrics;
        let key = layout::manifest(self.upload.shard);
        match cas::swap(&self.upload.store, &key, expected.as_ref(), next).await {
            Swap::Committed(snapshot) => {
                metrics.attempt("committed");
                self.past.ends();
                (Answer::Committed(snapshot), Progress::Made)
            }
            Swap::Mismatch => {
                metrics.attempt("mismatch");
                self.refused = Some(expected);
                (Answer::Mismatch, Progress::LostRace)
            }
            Swap::Unknown(error) => {
                metrics.attempt("unknown");
                self.upload.readiness.waits(COMMIT, &error, Level::Warn);
                (Answer::Unknown, Progress::HeldUp)
            }
        }
    }

    /// Returns why this producer may not create the manifest: somebody deleted the buffer, and perhaps created another one,
    /// whose producers would wait for ever at the manifest of the old one.
    async fn other_buffer(&self) -> Option<String> {
        let key = layout::manifest(self.upload.shard);
        match cas::read::<Buffer>(&self.upload.store, layout::BUFFER).await {
            Ok(Some(found)) if found.state.id == self.buffer_id => None,
            Ok(Some(found)) => Some(format!(
                "{key} is gone, and buffer {} has taken the place of {}: restart this process",
                found.state.id, self.buffer_id
            )),
            Ok(None) => Some(format!("{key} and the object {:?} are gone", layout::BUFFER)),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Registers before the first segment is there. Returns true if the producer is registered now.
    pub(crate) async fn try_register(&mut self) -> bool {
        let mut nothing = Members::default();
        while !self.commits.is_registered() {
            if let Progress::HeldUp | Progress::LostRace = self.step(&mut nothing).await {
                return false;
            }
        }
        self.upload.readiness.goes_on(COMMIT);
        true
    }
}
