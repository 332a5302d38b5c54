//! An owner of the cursor, or one that wants to be: opens it, plans, sends, acknowledges, as `consumer/src/owner.rs`,
//! `shard.rs` and `schedule.rs` do. The lease is no part of the safety: here it has always run out.

use crate::bounds::Bug;
use crate::model::{System, World};
use crate::producer::STREAM;
use crate::store::{Answer, Broken, Outcome, Store, Versioned, Write, outcomes};
use millpond_manifest::cursor::{Opening, Ownership, Plan};
use millpond_manifest::plan::{Candidate, Ground, Size, candidates};
use millpond_manifest::{Cursor, Log, Manifest, Rule};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use ulid::Ulid;
use uuid::Uuid;

/// The log as an owner has read it, all pages loaded.
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

/// A batch that was started: what is sent under its token, and whether the sink has it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Batch {
    rows: Vec<Ulid>,
    done: bool,
}

/// A term as the cursor's owner.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Tenure {
    durable: Versioned<Cursor>,
    log: Option<Known>,
    /// The predecessor's batches are yet to be found out.
    in_doubt: bool,
    doubt: BTreeSet<Plan>,
    work: BTreeMap<Plan, Batch>,
    /// The last swap did not succeed for certain: the cursor must be read.
    reread: bool,
    releasing: bool,
}

/// Where an owner is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    StandingBy,
    /// It has read the cursor, and will swap it.
    Opening(Option<Versioned<Cursor>>),
    /// Its opening was not reported.
    Unsure(Versioned<Cursor>, bool),
    Serving(Box<Tenure>),
}

/// An owner, or the ones that follow it in its place.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Owner {
    life: u8,
    phase: Phase,
}

/// What an owner can do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Reads the cursor, wanting it.
    Look,
    /// Takes it.
    Open(Outcome),
    /// Looks whether its opening landed.
    LookAgain,
    /// Reads the log.
    Poll,
    /// Starts a batch: reads its segments.
    Start(Plan),
    /// The sink takes it.
    Insert(Plan),
    /// Makes plans, if so wanted, and acknowledgements durable.
    Save(bool, Outcome),
    /// Reads the cursor after a swap that did not succeed for certain.
    Reread,
    /// Gives the cursor back.
    Release(Outcome),
    /// Ends, and another one starts in its place.
    Crash,
}

impl Tenure {
    fn candidates(&self, limit: usize) -> Vec<Candidate> {
        let Some(Known { log, .. }) = &self.log else {
            return Vec::new();
        };
        let Some(index) = log.stream_index(STREAM) else {
            return Vec::new();
        };
        let cursor = &self.durable;
        let parts = log.parts(index, cursor.next(STREAM)).map(|(sequence, _, part)| {
            let size = Size {
                records: part.records,
                raw_bytes: part.raw_length,
            };
            (sequence, size)
        });
        candidates(&cursor.rule, cursor.planned(STREAM), parts, limit + 1)
    }

    fn limit(&self) -> usize {
        self.durable.rule.max_in_flight as usize
    }

    /// What the predecessor may have sent.
    fn find_doubt(&mut self) {
        let mut before = 0;
        for candidate in self.candidates(usize::MAX - 1) {
            let sent = match candidate.ground {
                Ground::Planned => true,
                Ground::Large => before < self.limit(),
                Ground::Full | Ground::Open => false,
            };
            before += usize::from(matches!(candidate.ground, Ground::Planned | Ground::Large));
            if sent {
                self.doubt.insert(candidate.plan);
            }
        }
        self.in_doubt = false;
    }

    /// Batches that may start, and those that must be planned before.
    fn decide(&self, bug: Bug) -> (Vec<Plan>, Vec<Plan>) {
        let (mut start, mut plans) = (Vec::new(), Vec::new());
        if self.log.is_none() || self.in_doubt {
            return (start, plans);
        }
        for candidate in self.candidates(self.limit()).iter().take(self.limit()) {
            let (calm, plan) = (self.doubt.is_empty(), candidate.plan);
            if self.work.contains_key(&plan) {
                continue;
            }
            match candidate.ground {
                Ground::Planned | Ground::Large if calm || self.doubt.contains(&plan) => start.push(plan),
                Ground::Full | Ground::Open if calm => plans.push(plan),
                _ => {}
            }
        }
        if bug == Bug::PlanAfterSink {
            start.extend(plans.iter().copied());
        }
        (start, plans)
    }

    /// How far everything is in the sink.
    fn finished(&self, bug: Bug) -> u64 {
        let Some(log) = &self.log else { return 0 };
        let done = |plan: &Plan| self.work.get(plan).is_some_and(|batch| batch.done);
        let found = self.candidates(self.limit());
        if bug == Bug::AcknowledgeOverHole {
            let last = found.iter().rfind(|candidate| done(&candidate.plan));
            return last.map_or(self.durable.next(STREAM), |last| last.plan.high + 1);
        }
        match found.iter().find(|candidate| !done(&candidate.plan)) {
            Some(unfinished) => unfinished.plan.low,
            None if found.len() > self.limit() => found[self.limit()].plan.high + 1,
            None => log.log.next_sequence,
        }
    }

    fn acknowledged(&mut self, durable: Versioned<Cursor>) {
        self.work.retain(|plan, _| plan.high >= durable.next(STREAM));
        self.durable = durable;
        self.reread = false;
    }

    /// The next state of the cursor: `None` when nothing is worth a request.
    fn save(&self, plan: bool, system: &System) -> Option<Result<Cursor, Broken>> {
        let mut next = (*self.durable).clone();
        let position = self.finished(system.bug);
        let plans = if plan {
            self.decide(system.bug).1
        } else {
            Vec::new()
        };
        let progress = position > next.next(STREAM);
        if plans.is_empty() && (plan || !progress) {
            return None;
        }
        let change = || {
            if progress {
                next.acknowledge(STREAM, position)?;
            }
            plans.into_iter().try_for_each(|plan| next.plan(STREAM, plan))
        };
        Some(match change() {
            Ok(()) => Ok(next),
            Err(_) => Err(Broken::Forbidden),
        })
    }
}

impl Owner {
    fn nonce(&self, place: usize) -> u64 {
        place as u64 * 256 + u64::from(self.life)
    }

    /// Whether it replays what its predecessor may have sent.
    pub fn replays(&self) -> bool {
        matches!(&self.phase, Phase::Serving(tenure) if !tenure.doubt.is_empty())
    }

    /// Whether it still thinks that it owns a cursor that another one has opened.
    pub fn is_fenced(&self, store: &Store) -> bool {
        let epoch = store.cursor.as_ref().map_or(0, |cursor| cursor.epoch);
        matches!(&self.phase, Phase::Serving(tenure) if tenure.durable.epoch < epoch)
    }

    /// Adds the steps that are possible.
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
                let (start, plans) = tenure.decide(system.bug);
                steps.extend(start.into_iter().map(Step::Start));
                let running = tenure.work.iter().filter(|(_, batch)| !batch.done);
                steps.extend(running.map(|(plan, _)| Step::Insert(*plan)));
                if tenure.reread {
                    steps.push(Step::Reread);
                } else if known.is_some() {
                    if !plans.is_empty() {
                        steps.extend(swaps.clone().map(|outcome| Step::Save(true, outcome)));
                    }
                    if tenure.finished(system.bug) > tenure.durable.next(STREAM) {
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

    /// Takes a step; `None` if it is none.
    pub fn step(place: usize, step: Step, system: &System, world: &mut World) -> Option<()> {
        let World {
            store, owners, left, ..
        } = world;
        let me = &mut owners[place];
        let nonce = me.nonce(place);
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
                let rule = system.rule(place);
                let (opened, in_doubt) = open(seen.as_ref(), place, &rule, system.bug)?;
                let next = Versioned::new(opened.stamped(nonce));
                me.phase = match store.swap(Write::Cursor(next.clone()), outcome)? {
                    Answer::Committed => serving(next, in_doubt),
                    Answer::Mismatch => Phase::StandingBy,
                    Answer::Unknown => Phase::Unsure(next, in_doubt),
                };
            }
            (Step::LookAgain, Phase::Unsure(ours, in_doubt)) => match &store.cursor {
                Some(found) if found == ours => me.phase = serving(found.clone(), *in_doubt),
                // The next attempt has a nonce of its own.
                _ => me.end(),
            },
            (step, Phase::Serving(tenure)) => {
                if matches!(step, Step::Release(_)) && !std::mem::replace(&mut tenure.releasing, true) {
                    left.releases -= 1;
                }
                if !tenure.step(step, nonce, system, store)? {
                    me.end();
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// This one is gone; what comes in its place knows nothing of it.
    fn end(&mut self) {
        self.life += 1;
        self.phase = Phase::StandingBy;
    }
}

impl Tenure {
    /// Takes a step. Whether the term goes on.
    fn step(&mut self, step: Step, nonce: u64, system: &System, store: &mut Store) -> Option<bool> {
        match step {
            Step::Poll => {
                self.log = Some(Known::read(store));
                if self.in_doubt {
                    self.find_doubt();
                }
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
                    // Trimmed, which only a fenced owner can come to see.
                    return Some(false);
                }
                let rows = found.into_iter().map(|(_, name)| name).collect();
                self.work.insert(plan, Batch { rows, done: false });
            }
            Step::Insert(plan) => {
                let batch = self.work.get_mut(&plan)?;
                batch.done = true;
                store.insert(plan, &batch.rows);
                self.doubt.remove(&plan);
            }
            Step::Save(plan, outcome) => match self.save(plan, system)? {
                Ok(next) => {
                    self.swap(next, nonce, outcome, system, store)?;
                }
                Err(broken) => {
                    store.broken.get_or_insert(broken);
                }
            },
            Step::Reread => match &store.cursor {
                Some(found) if found.epoch == self.durable.epoch => {
                    self.acknowledged(found.clone());
                    let held = matches!(found.ownership, Ownership::Held { .. });
                    return Some(held || !self.releasing);
                }
                _ => return Some(false),
            },
            Step::Release(outcome) => {
                let mut next = (*self.durable).clone();
                let position = self.finished(system.bug);
                if position > next.next(STREAM) && next.acknowledge(STREAM, position).is_err() {
                    store.broken.get_or_insert(Broken::Forbidden);
                }
                let mut open = self.work.keys().chain(&self.doubt);
                let in_doubt = open.any(|plan| plan.high >= next.next(STREAM));
                next.release(in_doubt && system.bug != Bug::ReleasedInDoubt);
                return Some(!self.swap(next, nonce, outcome, system, store)?);
            }
            Step::Look | Step::Open(_) | Step::LookAgain | Step::Crash => return None,
        }
        Some(true)
    }

    /// One swap of the cursor. Whether it is certain that it took effect.
    fn swap(
        &mut self,
        next: Cursor,
        nonce: u64,
        outcome: Outcome,
        system: &System,
        store: &mut Store,
    ) -> Option<bool> {
        let mut next = next.stamped(nonce);
        if system.bug == Bug::FenceIgnored {
            next.stamp.version = store.cursor_version() + 1;
        }
        let next = Versioned::new(next);
        let committed = store.swap(Write::Cursor(next.clone()), outcome)? == Answer::Committed;
        if committed {
            self.acknowledged(next);
        }
        self.reread = !committed;
        Some(committed)
    }
}

fn serving(durable: Versioned<Cursor>, in_doubt: bool) -> Phase {
    Phase::Serving(Box::new(Tenure {
        durable,
        log: None,
        in_doubt,
        doubt: BTreeSet::new(),
        work: BTreeMap::new(),
        reread: false,
        releasing: false,
    }))
}

/// The state that opens the cursor, and whether batches are in doubt.
fn open(seen: Option<&Versioned<Cursor>>, place: usize, rule: &Rule, bug: Bug) -> Option<(Cursor, bool)> {
    let fresh = || Cursor::new(Uuid::nil(), 0, "default", 0, rule.clone());
    let cursor = seen.map_or_else(fresh, |seen| (**seen).clone());
    let opening = Opening {
        owner: if place == 0 { "a" } else { "b" },
        now_ms: 0,
        lease_ms: 1,
        rule,
        take_over: true,
    };
    let mut opened = cursor.open(&opening).ok()?;
    if bug == Bug::RuleNotPinned {
        opened.state.rule = rule.clone();
    }
    Some((opened.state, opened.in_doubt))
}
