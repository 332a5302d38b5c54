//! A producer: uploads segments and commits them in order, as `producer/src/committer.rs` does.

use crate::model::{System, World};
use crate::store::{Answer, Broken, Outcome, Store, StoredPage, Versioned, Write, outcomes};
use millpond_manifest::planted::{self, Bug};
use millpond_manifest::{Commit, CommitRefusal, Manifest, NewPart, NewSegment, ProducerId};
use millpond_segment::Encoding;
use std::sync::Arc;
use ulid::Ulid;

/// The one stream of the model.
pub const STREAM: &str = "otlp.logs";

/// A segment that is in the store and waits for its commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Work {
    /// Which of all segments' records it holds.
    pub number: u8,
    /// Its present name.
    pub segment: Ulid,
}

/// A commit that was sent and not confirmed. Its segments are those of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Attempt {
    /// The number of the state that it named.
    expected: u64,
    /// The sequence that its first segment gets if it lands.
    first_sequence: u64,
    /// The store answered that it refused the swap.
    refused: bool,
}

/// A producer, or the ones that follow it in its place after crashes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Producer {
    life: u8,
    begun: u8,
    pages: u8,
    group: Vec<Work>,
    registered: bool,
    last: u64,
    known: Option<Versioned<Manifest>>,
    unresolved: Option<Attempt>,
    page: Option<StoredPage>,
}

/// What a producer can do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Puts a new segment.
    Upload,
    /// Reads the manifest.
    Read,
    /// Puts the page of a full tail.
    StorePage,
    /// Registers; `expiry`: the table has become too large, and all others go.
    Register {
        /// What becomes of the swap.
        outcome: Outcome,
        /// Whether the others are forgotten.
        expiry: bool,
    },
    /// Commits its group, or finds out why not.
    Commit(Outcome),
    /// Ends, and another one starts in its place.
    Crash,
}

/// A segment's name: when, whose records, and the how-manieth upload of them.
fn name(at: u64, number: u8, upload: u8) -> Ulid {
    Ulid::from_parts(at, u128::from(number) << 8 | u128::from(upload))
}

/// Whose records a segment holds.
pub fn number(segment: Ulid) -> u8 {
    segment.random().to_be_bytes()[14]
}

/// How often these records had been uploaded before under another name.
pub fn upload(segment: Ulid) -> u8 {
    segment.random().to_be_bytes()[15]
}

impl Producer {
    fn id(&self, place: usize) -> ProducerId {
        let mut id = [0; 16];
        id[0] = u8::try_from(place).unwrap_or(u8::MAX);
        id[1] = self.life;
        ProducerId(id)
    }

    /// Adds the steps that are possible.
    pub fn steps(&self, place: usize, system: &System, world: &World, steps: &mut Vec<Step>) {
        let own = system.bounds.segments[place].len();
        let free = match self.unresolved {
            None => true,
            Some(attempt) if attempt.refused => planted::is(Bug::GroupGrowsAfterMismatch),
            Some(_) => planted::is(Bug::UnresolvedGroupChanged),
        };
        if usize::from(self.begun) < own && free {
            steps.push(Step::Upload);
        }
        if !self.group.is_empty() {
            match &self.known {
                None => steps.push(Step::Read),
                Some(_) if !self.registered => {
                    for &outcome in outcomes(world.left.producer_faults) {
                        steps.push(Step::Register {
                            outcome,
                            expiry: false,
                        });
                        if world.left.expiries > 0 {
                            steps.push(Step::Register {
                                outcome,
                                expiry: true,
                            });
                        }
                    }
                }
                Some(known) if self.needs_page(known, system) => steps.push(Step::StorePage),
                Some(_) => {
                    let outcomes = outcomes(world.left.producer_faults);
                    steps.extend(outcomes.iter().map(|&outcome| Step::Commit(outcome)));
                }
            }
        }
        let has_something_to_lose = self.registered || !self.group.is_empty();
        if world.left.producer_crashes > 0 && has_something_to_lose {
            steps.push(Step::Crash);
        }
    }

    /// Whether this state of the producer has an attempt of unknown outcome that is in the log.
    pub fn landed_unreported(&self, place: usize, store: &Store) -> bool {
        let row = store.manifest.producer(self.id(place));
        self.unresolved.is_some() && row.is_some_and(|row| row.commit == self.last + 1)
    }

    /// Whether its attempt is in the log although the store says that it refused it.
    pub fn landed_refused(&self, place: usize, store: &Store) -> bool {
        self.unresolved.is_some_and(|attempt| attempt.refused) && self.landed_unreported(place, store)
    }

    /// Takes a step; `None` if it is none.
    pub fn step(place: usize, step: Step, system: &System, world: &mut World) -> Option<()> {
        let World {
            store,
            producers,
            clock,
            left,
            told,
            unknown,
            ..
        } = world;
        let me = &mut producers[place];
        match step {
            Step::Upload => {
                let number = system.bounds.number(place, me.begun);
                let segment = name((*clock).into(), number, 0);
                me.begun += 1;
                store.segments.insert(segment);
                me.group.push(Work { number, segment });
            }
            Step::Read => {
                me.resolve(place, &store.manifest);
                me.known = Some(store.manifest.clone());
            }
            Step::StorePage => {
                let state = me.known.as_ref()?;
                me.pages += 1;
                let salt = u128::from(me.id(place).0[0]) << 8 | u128::from(me.pages) | 1 << 64;
                let name = Ulid::from_parts(u64::from(*clock).max(state.orphan_floor_ms), salt);
                let (page, _) = state.seal(name, state.next_sequence - 1)?;
                let page = StoredPage {
                    name,
                    page: Arc::new(page),
                };
                if !planted::is(Bug::PageNotStored) {
                    store.pages.insert(name, page.clone());
                }
                me.page = Some(page);
            }
            Step::Register { outcome, expiry } => {
                let state = me.known.clone()?;
                let id = me.id(place);
                if state.producer(id).is_some() {
                    me.registered = true;
                    return (outcome == Outcome::Reported && !expiry).then_some(());
                }
                let mut table = (*state).clone();
                if expiry {
                    table.producers.clear();
                }
                left.expiries -= u8::from(expiry);
                left.producer_faults -= u8::from(outcome != Outcome::Reported);
                let next = Versioned::new(table.register(id, 0).stamped(0));
                me.known = None;
                if store.swap(Write::Manifest(next.clone()), outcome)? == Answer::Committed {
                    me.known = Some(next);
                    me.registered = true;
                }
            }
            Step::Commit(outcome) => {
                let state = me.known.clone()?;
                match me.attempt(place, &state, system) {
                    Ok(Commit::Next {
                        state: next,
                        first_sequence,
                    }) => {
                        let next = Versioned::new(next.stamped(0));
                        left.producer_faults -= u8::from(outcome != Outcome::Reported);
                        me.known = None;
                        match store.swap(Write::Manifest(next.clone()), outcome)? {
                            Answer::Committed => {
                                if let Some(new) = &me.page
                                    && next.pages.iter().any(|page| page.page == new.name)
                                {
                                    me.page = None;
                                }
                                me.known = Some(next);
                                me.succeed(first_sequence, told);
                            }
                            answer => {
                                me.unresolved = Some(Attempt {
                                    expected: state.version(),
                                    first_sequence,
                                    refused: answer == Answer::Mismatch,
                                });
                            }
                        }
                    }
                    // What follows costs no request: there is but one way for it to come out.
                    _ if outcome != Outcome::Reported => return None,
                    Ok(Commit::Already {
                        first_sequence,
                        count,
                    }) => {
                        let grew = planted::is(Bug::GroupGrowsAfterMismatch)
                            || planted::is(Bug::UnresolvedGroupChanged);
                        if count != me.group.len() as u64 && !grew {
                            store.broken.get_or_insert(Broken::Forbidden);
                        }
                        me.succeed(first_sequence, told);
                    }
                    Err(CommitRefusal::BelowFloor { segments, floor_ms }) => {
                        for at in segments {
                            let work = &mut me.group[at];
                            let again = upload(work.segment) + 1;
                            work.segment = name(u64::from(*clock).max(floor_ms), work.number, again);
                            store.segments.insert(work.segment);
                        }
                    }
                    Err(CommitRefusal::NotRegistered(_)) => {
                        let segments: Vec<_> = me.group.iter().map(|work| work.segment).collect();
                        let in_doubt = me.unresolved.take().is_some_and(|attempt| {
                            !(attempt.refused && state.lacks(attempt.first_sequence, &segments))
                        });
                        if in_doubt && !planted::is(Bug::ForgottenSentAgain) {
                            unknown.extend(me.group.drain(..).map(|work| work.number));
                        }
                        me.life += 1;
                        me.registered = false;
                        me.last = 0;
                    }
                    Err(
                        CommitRefusal::Superseded { .. }
                        | CommitRefusal::Gap { .. }
                        | CommitRefusal::Invalid(_),
                    ) => {
                        store.broken.get_or_insert(Broken::Forbidden);
                    }
                }
            }
            Step::Crash => {
                left.producer_crashes -= 1;
                *me = Producer {
                    life: me.life + 1,
                    begun: me.begun,
                    pages: me.pages,
                    ..Producer::default()
                };
            }
        }
        Some(())
    }

    /// The commit of the group on a state, its full tail sealed before.
    fn attempt(&self, place: usize, state: &Manifest, system: &System) -> Result<Commit, CommitRefusal> {
        let id = self.id(place);
        let base = self.sealed(state).unwrap_or_else(|| state.clone());
        let segments: Vec<_> = self.group.iter().map(|work| describe(*work, system)).collect();
        base.commit(id, self.last + 1, &segments, 0)
    }

    /// Whether the tail is full and the page for it is not in the store.
    fn needs_page(&self, state: &Manifest, system: &System) -> bool {
        state.tail.len() >= system.bounds.tail_max && !state.tail.is_empty() && self.sealed(state).is_none()
    }

    fn sealed(&self, state: &Manifest) -> Option<Manifest> {
        let new = self.page.as_ref()?;
        let (page, sealed) = state.seal(new.name, new.page.last())?;
        (page == *new.page).then_some(sealed)
    }

    /// Forgets an unresolved attempt once it is certain that it did not land and never will.
    fn resolve(&mut self, place: usize, found: &Versioned<Manifest>) {
        let Some(attempt) = self.unresolved else { return };
        let row = found.producer(self.id(place));
        let changed = found.version() != attempt.expected || planted::is(Bug::ResolvedTooEarly);
        if changed && row.is_some_and(|row| row.commit <= self.last) {
            self.unresolved = None;
        }
    }

    /// Tells the callers of the group where their records are.
    fn succeed(&mut self, first_sequence: u64, told: &mut Vec<(u8, u64)>) {
        self.last += 1;
        self.unresolved = None;
        told.extend(self.group.drain(..).map(|work| work.number).zip(first_sequence..));
        told.sort_unstable();
    }
}

fn describe(work: Work, system: &System) -> NewSegment {
    let records = system.bounds.records(work.number);
    NewSegment {
        segment: work.segment,
        size: records,
        parts: vec![NewPart {
            stream: STREAM.into(),
            encoding: Encoding::Otlp,
            offset: 0,
            length: records,
            raw_len: records,
            messages: 1,
            records,
            first_received_at_us: 0,
            last_received_at_us: 0,
        }],
    }
}
