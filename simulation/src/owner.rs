//! An owner of the cursor, or a candidate: opens it, plans, sends and acknowledges, as `consumer/src/schedule.rs`,
//! `owner.rs` and `tenure.rs` decide. Safety does not depend on the lease: here it has always expired.

use crate::model::{System, World};
use crate::producer::STREAM;
use crate::sending::{Next, Sending};
use crate::store::{Answer, Broken, Outcome, Store, Taken, Versioned, Write, outcomes};
use millpond_consumer::schedule::{Decision, Mode, Room, Schedule};
use millpond_manifest::cursor::{Forbidden, NO_UNIQUE, Opening, Ownership, Plan, Refused};
use millpond_manifest::{BatchingPolicy, Cursor, Log, Manifest};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use ulid::Ulid;
use uuid::Uuid;

/// An owner's view of the log, with all pages loaded.
#[derive(Debug, Clone)]
struct Known {
    manifest: Versioned<Manifest>,
    log: Arc<Log>,
}

impl PartialEq for Known {
    fn eq(&self, other: &Self) -> bool {
        self.manifest == other.manifest
    }
}

impl Eq for Known {}

impl Hash for Known {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.manifest.hash(hasher);
    }
}

impl Known {
    fn read(store: &mut Store) -> Known {
        let manifest = store.manifest.clone();
        let mut log = Log::new((*manifest).clone());
        for reference in &manifest.pages {
            let page = store.pages.get(&reference.page);
            let loaded = page.is_some_and(|found| log.load(reference, found.page.clone()).is_ok());
            if !loaded {
                store.broken.get_or_insert(Broken::Lost);
            }
        }
        Known {
            manifest,
            log: Arc::new(log),
        }
    }
}

/// A term as the cursor's owner.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tenure {
    durable: Versioned<Cursor>,
    log: Option<Known>,
    /// The predecessor's batches are still unknown.
    in_doubt: bool,
    /// The predecessor had released the cursor.
    opened_clean: bool,
    schedule: Schedule,
    /// Batches that were started and are not in the sink.
    sending: BTreeMap<Plan, Sending>,
    /// No request of an earlier generation is in flight.
    settled: bool,
    /// The outcome of the last swap is uncertain: the cursor must be read.
    reread: bool,
    releasing: bool,
    /// Number of sequences to plan in advance.
    ahead: u64,
}

/// The state of an owner.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    StandingBy,
    /// It has read the cursor, and is about to swap it.
    Opening(Option<Versioned<Cursor>>),
    /// The result of its opening is unknown.
    Unsure(Versioned<Cursor>, bool),
    Serving(Box<Tenure>),
}

/// An owner and its successors in the same place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Owner {
    life: u8,
    phase: Phase,
}

/// The next steps of an owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Reads the cursor before taking it.
    Look,
    /// Takes the cursor.
    Open(Outcome),
    /// Checks whether its opening landed.
    LookAgain,
    /// Reads the log.
    Poll,
    /// Starts a batch: reads its segments.
    Start(Plan),
    /// Asks the sink which rows of the batch's next chunk it lacks.
    Ask(Plan),
    /// Sends the chunk or piece, or the rows that the sink lacks. The flag: the sink records the token, but loses the
    /// rows and its answer.
    Send(Plan, bool),
    /// Writes the dead letters of the batch's chunk.
    Bury(Plan),
    /// Learns that no request of earlier owners is in flight anymore.
    Settle,
    /// Makes acknowledgements durable, and new plans if the flag is set.
    Save(bool, Outcome),
    /// Reads the cursor after a swap with an uncertain outcome.
    Reread,
    /// Releases the cursor.
    Release(Outcome),
    /// Crashes, and another one starts in its place.
    Crash,
}

impl Tenure {
    fn decide(&self) -> Decision {
        match &self.log {
            // A writer is always idle, so every possible plan may be made now.
            Some(Known { log, .. }) if !self.in_doubt && self.settled => {
                let takes_all = |_: &str| true;
                let room = Room {
                    writers: usize::MAX,
                    ahead: self.ahead,
                };
                self.schedule
                    .decide(&self.durable, log, &takes_all, Mode::Working, room)
            }
            _ => Decision::default(),
        }
    }

    fn replays_ahead(&self) -> bool {
        let end = self.log.as_ref().map_or(0, |known| known.log.next_sequence);
        let mut planned = self.durable.planned(STREAM);
        planned.any(|plan| plan.low >= end && self.schedule.is_inherited(&(STREAM.to_owned(), plan)))
    }

    /// Returns true if it is sending a batch that an earlier owner planned, and no batch was in doubt when it opened the
    /// cursor.
    fn sends_after_clean_release(&self) -> bool {
        let mut sending = self.sending.keys().map(|plan| (STREAM.to_owned(), *plan));
        self.opened_clean && sending.any(|key| self.schedule.is_inherited(&key))
    }

    fn acknowledged(&mut self, durable: Versioned<Cursor>) {
        self.schedule.acknowledged(&self.durable, &durable);
        self.durable = durable;
        self.reread = false;
        let batches: Vec<Plan> = self.sending.keys().copied().collect();
        for batch in batches {
            self.change(batch, Sending::go_on);
        }
    }

    /// Changes a batch in progress, given the refusals in the cursor. Removes it if it is finished.
    fn change<R>(
        &mut self,
        batch: Plan,
        change: impl FnOnce(&mut Sending, Option<&Refused>) -> R,
    ) -> Option<R> {
        let sending = self.sending.get_mut(&batch)?;
        let changed = change(sending, self.durable.refused(STREAM, batch));
        if sending.next() == Next::Nothing {
            self.sending.remove(&batch);
            self.schedule.finished(&(STREAM.to_owned(), batch));
        }
        Some(changed)
    }

    /// Returns true if a swap without new plans is worthwhile.
    fn is_worth_a_swap(&self, decision: &Decision) -> bool {
        let refused = self
            .sending
            .values()
            .any(|sending| !sending.undurable().is_empty());
        decision.progress || refused || (self.settled && self.durable.unsettled)
    }

    /// Returns true if the cursor records refusals in a batch that its predecessor planned.
    fn repeats_cuts(&self) -> bool {
        let mut refused = self.durable.refused.iter();
        refused.any(|refused| self.schedule.is_in_doubt(&(STREAM.to_owned(), refused.batch)))
    }

    /// The next state of the cursor, or `None` if no swap is worthwhile.
    fn save(&self, plan: bool) -> Option<Result<Cursor, Broken>> {
        let decision = self.decide();
        let worth_it = match plan {
            true => !decision.plans.is_empty() || !decision.ahead.is_empty(),
            false => self.is_worth_a_swap(&decision),
        };
        if !worth_it {
            return None;
        }
        let mut next = (*self.durable).clone();
        if let Some(log) = &self.log {
            next.limit_sent(log.log.next_sequence);
        }
        let change = || {
            for (stream, position) in &decision.acknowledge {
                next.acknowledge(stream, *position)?;
            }
            let plans = decision.plans.iter().chain(&decision.ahead);
            for (stream, boundaries) in plans.filter(|_| plan) {
                next.plan(stream, *boundaries)?;
            }
            for (batch, sending) in &self.sending {
                let pieces = sending.undurable();
                if !pieces.is_empty() && next.next(STREAM) <= batch.low {
                    next.refuse(STREAM, *batch, pieces, "a row is forbidden")?;
                }
            }
            if self.settled {
                next.settle();
            }
            Ok::<_, Forbidden>(next)
        };
        Some(change().map_err(|_| Broken::Forbidden))
    }
}

impl Owner {
    fn nonce(&self, place: usize) -> u64 {
        place as u64 * 256 + u64::from(self.life)
    }

    /// Returns true if it replays batches that its predecessor may have sent.
    pub fn replays(&self) -> bool {
        let Phase::Serving(tenure) = &self.phase else {
            return false;
        };
        tenure
            .log
            .as_ref()
            .is_some_and(|known| tenure.schedule.doubtful(&known.log) > 0)
    }

    /// Returns true if it has waited for the requests of an earlier generation.
    pub fn has_settled(&self) -> bool {
        matches!(&self.phase, Phase::Serving(tenure) if tenure.settled && tenure.durable.unsettled)
    }

    /// Returns true if its predecessor planned sequences beyond the log that it knows.
    pub fn replays_ahead(&self) -> bool {
        matches!(&self.phase, Phase::Serving(tenure) if tenure.replays_ahead())
    }

    /// Returns true if it sends what an earlier owner planned, after a clean release.
    pub fn sends_after_clean_release(&self) -> bool {
        matches!(&self.phase, Phase::Serving(tenure) if tenure.sends_after_clean_release())
    }

    /// Returns true if it continues a bisection that its predecessor began.
    pub fn repeats_cuts(&self) -> bool {
        matches!(&self.phase, Phase::Serving(tenure) if tenure.repeats_cuts())
    }

    /// Returns true if it still believes to own a cursor that another owner has opened.
    pub fn is_fenced(&self, store: &Store) -> bool {
        let epoch = store.cursor.as_ref().map_or(0, |cursor| cursor.epoch);
        matches!(&self.phase, Phase::Serving(tenure) if tenure.durable.epoch < epoch)
    }

    /// Adds the possible steps.
    pub fn steps(&self, system: &System, world: &World, steps: &mut Vec<Step>) {
        let swaps = outcomes(world.left.owner_faults).iter().copied();
        match &self.phase {
            Phase::StandingBy => {
                let openings = world.store.cursor.as_ref().map_or(0, |cursor| cursor.epoch);
                if openings < system.bounds.epochs.into() {
                    steps.push(Step::Look);
                }
            }
            Phase::Opening(_) => steps.extend(swaps.map(Step::Open)),
            Phase::Unsure(..) => steps.push(Step::LookAgain),
            Phase::Serving(tenure) if tenure.releasing => {
                if tenure.reread {
                    steps.push(Step::Reread);
                } else {
                    steps.extend(swaps.map(Step::Release));
                }
            }
            Phase::Serving(tenure) => {
                let known = tenure.log.as_ref();
                if known.is_none_or(|known| known.manifest.version() < world.store.manifest.version()) {
                    steps.push(Step::Poll);
                }
                let decision = tenure.decide();
                steps.extend(decision.start.iter().map(|(_, plan)| Step::Start(*plan)));
                for (plan, sending) in &tenure.sending {
                    match sending.next() {
                        Next::Ask => steps.push(Step::Ask(*plan)),
                        Next::Send => {
                            steps.push(Step::Send(*plan, false));
                            steps.extend((world.left.poisons > 0).then_some(Step::Send(*plan, true)));
                        }
                        Next::DeadLetters => steps.push(Step::Bury(*plan)),
                        Next::Refusal | Next::Nothing => {}
                    }
                }
                if !tenure.settled {
                    steps.push(Step::Settle);
                }
                if tenure.reread {
                    steps.push(Step::Reread);
                } else if known.is_some() {
                    if !decision.plans.is_empty() || !decision.ahead.is_empty() {
                        steps.extend(swaps.clone().map(|outcome| Step::Save(true, outcome)));
                    }
                    if tenure.is_worth_a_swap(&decision) {
                        steps.extend(swaps.clone().map(|outcome| Step::Save(false, outcome)));
                    }
                    if world.left.releases > 0 && !tenure.in_doubt {
                        steps.extend(swaps.map(Step::Release));
                    }
                }
            }
        }
        if world.left.owner_crashes > 0 && self.phase != Phase::StandingBy {
            steps.push(Step::Crash);
        }
    }

    /// Takes a step; `None` if it is impossible.
    pub fn step(place: usize, step: Step, system: &System, world: &mut World) -> Option<()> {
        let World {
            store, owners, left, ..
        } = world;
        if step == Step::Settle {
            settle(place, owners);
        }
        let me = &mut owners[place];
        let (nonce, ahead) = (me.nonce(place), system.bounds.ahead);
        if let Step::Open(outcome) | Step::Save(_, outcome) | Step::Release(outcome) = step {
            left.owner_faults -= u8::from(outcome != Outcome::Reported);
        }
        match (step, &mut me.phase) {
            (Step::Crash, _) => {
                left.owner_crashes -= 1;
                me.end();
            }
            (Step::Look, phase) => *phase = Phase::Opening(store.cursor.clone()),
            (Step::Open(outcome), Phase::Opening(seen)) => {
                let policy = system.policy(place);
                let (opened, in_doubt) = open(seen.as_ref(), place, &policy, nonce, store)?;
                // A fenced owner may send what it planned ahead of the log in chunks of the earlier policy.
                let planned_ahead = seen.as_ref().filter(|seen| !in_doubt && seen.plans() > 0);
                if planned_ahead.is_some_and(|seen| seen.policy != opened.policy) {
                    store.broken.get_or_insert(Broken::Policy);
                }
                let next = Versioned::new(opened.stamped(nonce));
                me.phase = match store.swap(Write::Cursor(next.clone()), outcome)? {
                    Answer::Committed => serving(next, in_doubt, ahead),
                    Answer::Mismatch => Phase::StandingBy,
                    Answer::Unknown => Phase::Unsure(next, in_doubt),
                };
            }
            (Step::LookAgain, Phase::Unsure(ours, in_doubt)) => match &store.cursor {
                Some(found) if found == ours => me.phase = serving(found.clone(), *in_doubt, ahead),
                // The next attempt gets a new nonce.
                _ => me.end(),
            },
            (step, Phase::Serving(tenure)) => {
                if matches!(step, Step::Release(_)) && !std::mem::replace(&mut tenure.releasing, true) {
                    left.releases -= 1;
                }
                if let Step::Send(_, true) = step {
                    left.poisons -= 1;
                }
                if !tenure.step(step, nonce, store)? {
                    me.end();
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// This owner ends; its successor knows nothing of it.
    fn end(&mut self) {
        self.life += 1;
        self.phase = Phase::StandingBy;
    }
}

impl Tenure {
    /// Takes a step. Returns whether the term continues.
    fn step(&mut self, step: Step, nonce: u64, store: &mut Store) -> Option<bool> {
        match step {
            Step::Poll => {
                let known = Known::read(store);
                if std::mem::take(&mut self.in_doubt) {
                    self.schedule = Schedule::in_doubt(&self.durable, &known.log, &|_| true);
                }
                self.log = Some(known);
            }
            Step::Start(plan) => {
                let log = &self.log.as_ref()?.log;
                let within = log
                    .entries(plan.low)
                    .take_while(|(sequence, _)| *sequence <= plan.high);
                let found: Vec<_> = within
                    .map(|(sequence, entry)| (sequence, entry.segment))
                    .collect();
                if let Some((sequence, _)) = found.iter().find(|(_, name)| !store.segments.contains(name)) {
                    if *sequence >= store.manifest.first_sequence {
                        store.broken.get_or_insert(Broken::Lost);
                    }
                    // The log was trimmed, which only a fenced owner can observe.
                    return Some(false);
                }
                self.start(plan, &found);
            }
            Step::Ask(plan) => {
                let mut lacks = self.sending.get(&plan)?.piece();
                lacks.retain(|row| !store.sink.contains(row));
                if !self.change(plan, |sending, known| sending.lacks(lacks, known))? {
                    store.broken.get_or_insert(Broken::Missing);
                }
            }
            Step::Send(plan, poisoned) => {
                let sending = self.sending.get(&plan)?;
                let (number, round) = sending.request()?;
                let token = (self.durable.generation, plan, number, round);
                let taken = store.insert(token, &sending.to_send(), poisoned);
                self.change(plan, |sending, known| match (taken, poisoned) {
                    (Taken::Refused, _) => sending.rejected(known),
                    (Taken::Accepted, true) => sending.unanswered(),
                    (Taken::Accepted, false) => sending.accepted(known),
                })?;
            }
            Step::Bury(plan) => store.dead_letters.extend(self.change(plan, Sending::take_dead)?),
            Step::Settle => self.settled = true,
            Step::Save(plan, outcome) => match self.save(plan)? {
                Ok(next) => {
                    self.swap(next, nonce, outcome, store)?;
                }
                Err(broken) => {
                    store.broken.get_or_insert(broken);
                }
            },
            Step::Reread => match &store.cursor {
                Some(found) if found.is_of(&self.durable) => {
                    self.acknowledged(found.clone());
                    let held = matches!(found.ownership, Ownership::Held { .. });
                    return Some(held || !self.releasing);
                }
                _ => return Some(false),
            },
            Step::Release(outcome) => {
                let mut next = (*self.durable).clone();
                for (stream, position) in self.decide().acknowledge {
                    if next.acknowledge(&stream, position).is_err() {
                        store.broken.get_or_insert(Broken::Forbidden);
                    }
                }
                let log = self.log.as_ref().map(|known| &known.log);
                for (stream, plan) in log.map_or_else(Vec::new, |log| self.schedule.unsent(&next, log)) {
                    next.withdraw(&stream, plan);
                }
                next.release(log.map_or(u64::MAX, |log| log.next_sequence));
                return Some(!self.swap(next, nonce, outcome, store)?);
            }
            Step::Look | Step::Open(_) | Step::LookAgain | Step::Crash => return None,
        }
        Some(true)
    }

    /// Begins a batch with these segments, except those that an operator skipped.
    fn start(&mut self, plan: Plan, found: &[(u64, Ulid)]) {
        let key = (STREAM.to_owned(), plan);
        let wanted = found
            .iter()
            .filter(|(sequence, _)| !self.durable.is_skipped(STREAM, *sequence));
        let rows = wanted.map(|(_, name)| *name).collect();
        // An earlier term may have sent rows of it.
        let inherited = self.schedule.is_inherited(&key) || self.durable.may_have_sent(plan);
        let known = self.durable.refused(STREAM, plan);
        let sending = Sending::new(rows, self.durable.policy.chunk_rows, inherited, known);
        self.schedule.started(key.clone());
        if sending.next() == Next::Nothing {
            self.schedule.finished(&key);
        } else {
            self.sending.insert(plan, sending);
        }
    }

    /// One swap of the cursor. Returns whether it certainly took effect.
    fn swap(&mut self, next: Cursor, nonce: u64, outcome: Outcome, store: &mut Store) -> Option<bool> {
        let next = Versioned::new(next.stamped(nonce));
        let committed = store.swap(Write::Cursor(next.clone()), outcome)? == Answer::Committed;
        if committed {
            self.acknowledged(next);
        }
        self.reread = !committed;
        Some(committed)
    }
}

/// The leases of earlier owners have expired, and their requests have ended.
fn settle(place: usize, owners: &mut [Owner]) {
    let Phase::Serving(tenure) = &owners[place].phase else {
        return;
    };
    let epoch = tenure.durable.epoch;
    for owner in owners {
        if matches!(&owner.phase, Phase::Serving(earlier) if earlier.durable.epoch < epoch) {
            owner.end();
        }
    }
}

fn serving(durable: Versioned<Cursor>, in_doubt: bool, ahead: u64) -> Phase {
    Phase::Serving(Box::new(Tenure {
        settled: !durable.unsettled,
        schedule: Schedule::after(&durable),
        durable,
        log: None,
        in_doubt,
        opened_clean: !in_doubt,
        sending: BTreeMap::new(),
        reread: false,
        releasing: false,
        ahead,
    }))
}

/// The state that opens the cursor, and whether batches are in doubt.
fn open(
    seen: Option<&Versioned<Cursor>>,
    place: usize,
    policy: &BatchingPolicy,
    nonce: u64,
    store: &Store,
) -> Option<(Cursor, bool)> {
    let fresh = || Cursor::new(Uuid::nil(), 0, "default", 0, policy.clone());
    let cursor = match seen {
        None => fresh(),
        Some(seen) if seen.is_removed() => {
            // The tombstone bounds what anybody has sent.
            seen.begin_again(store.manifest.first_sequence, policy.clone())
        }
        Some(seen) => (**seen).clone(),
    };
    let opening = Opening {
        owner: if place == 0 { "a" } else { "b" },
        id: nonce + 1,
        now_ms: 0,
        lease_ms: 1,
        policy,
        unique: &NO_UNIQUE,
        take_over: true,
    };
    let opened = cursor.open(&opening).ok()?;
    Some((opened.state, opened.in_doubt))
}
