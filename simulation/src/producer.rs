//! A producer: uploads segments and commits them in order. `millpond_producer::commit` decides every step of a commit,
//! as it does for the real committer; this file only makes the requests.

use crate::bounds::Bounds;
use crate::model::{System, World};
use crate::store::{self, Broken, Outcome, Store, Versioned, Write, outcomes};
use millpond_manifest::{Manifest, NewPart, NewSegment, ProducerId};
use millpond_producer::commit::{Answer, Commits, Draw, Found, Group, Landed, NewPage, Next, Own, Swap};
use millpond_segment::Encoding;
use ulid::Ulid;
use uuid::Uuid;

/// The one stream of the model.
pub const STREAM: &str = "otlp.logs";

/// A segment in the store that waits for its commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Work {
    /// The number of its records, among all segments.
    pub number: u8,
    /// Its current name.
    pub segment: Ulid,
}

/// A producer, or its successors in the same place after crashes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Producer {
    names: Names,
    begun: u8,
    group: Vec<Work>,
    commits: Commits<Versioned<Manifest>>,
}

impl Found for Versioned<Manifest> {
    type Version = u64;

    fn manifest(&self) -> &Manifest {
        self
    }

    fn version(&self) -> u64 {
        Versioned::version(self)
    }
}

/// The names that a place's producers have drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Names {
    pub(crate) place: u8,
    pub(crate) ids: u8,
    pub(crate) pages: u8,
}

impl Names {
    pub(crate) fn id(self) -> ProducerId {
        let mut id = [0; 16];
        (id[0], id[1]) = (self.place, self.ids);
        ProducerId(id)
    }
}

/// The clock of the model, and names that follow from the number of earlier draws.
pub(crate) struct Drawn<'a> {
    pub(crate) clock: u8,
    pub(crate) names: &'a mut Names,
}

impl Draw for Drawn<'_> {
    fn unix_ms(&mut self) -> u64 {
        0
    }

    fn nonce(&mut self) -> u64 {
        0
    }

    /// The name of a page. It has a higher bit than any segment's name.
    fn ulid(&mut self, not_before_ms: u64) -> Ulid {
        self.names.pages += 1;
        let salt = u128::from(self.names.place) << 8 | u128::from(self.names.pages) | 1 << 64;
        Ulid::from_parts(u64::from(self.clock).max(not_before_ms), salt)
    }

    fn producer_id(&mut self) -> ProducerId {
        self.names.ids += 1;
        self.names.id()
    }
}

/// The next steps of a producer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// Puts a new segment.
    Upload,
    /// Makes the next request of its commit, with this outcome.
    Next(Outcome),
    /// Registers in a table that has become too large, so that it forgets all others.
    RegisterAlone(Outcome),
    /// Ends, and another one starts in its place.
    Crash,
}

/// A segment's name: its time, the number of its records, and the number of the upload.
fn name(at: u64, number: u8, upload: u8) -> Ulid {
    Ulid::from_parts(at, u128::from(number) << 8 | u128::from(upload))
}

/// The number of a segment's records.
pub fn number(segment: Ulid) -> u8 {
    segment.random().to_be_bytes()[14]
}

/// The number of earlier uploads of these records under other names.
pub fn upload(segment: Ulid) -> u8 {
    segment.random().to_be_bytes()[15]
}

impl Producer {
    /// The first producer in a place.
    pub fn new(place: usize, bounds: &Bounds) -> Producer {
        let names = Names {
            place: u8::try_from(place).unwrap_or(u8::MAX),
            ids: 0,
            pages: 0,
        };
        Producer {
            names,
            begun: 0,
            group: Vec::new(),
            commits: commits(names, bounds),
        }
    }

    /// Adds the possible steps.
    pub fn steps(&self, place: usize, system: &System, world: &World, steps: &mut Vec<Step>) {
        let own = system.bounds.segments[place].len();
        if usize::from(self.begun) < own && self.commits.may_grow() {
            steps.push(Step::Upload);
        }
        if !self.group.is_empty() {
            for &outcome in outcomes(world.left.producer_faults) {
                steps.push(Step::Next(outcome));
                if world.left.expiries > 0 && !self.commits.is_registered() {
                    steps.push(Step::RegisterAlone(outcome));
                }
            }
        }
        let has_something_to_lose = self.commits.is_registered() || !self.group.is_empty();
        if world.left.producer_crashes > 0 && has_something_to_lose {
            steps.push(Step::Crash);
        }
    }

    /// Returns true if this state of the producer has an attempt of unknown outcome that is in the log.
    pub fn landed_unreported(&self, store: &Store) -> bool {
        let row = store.manifest.producer(self.commits.producer());
        let landed = row.is_some_and(|row| row.commit == self.commits.last() + 1);
        self.commits.unresolved().is_some() && landed
    }

    /// Returns true if its attempt is in the log although the store says that it refused it.
    pub fn landed_refused(&self, store: &Store) -> bool {
        let refused = self.commits.unresolved().is_some_and(|(_, refused)| refused);
        refused && self.landed_unreported(store)
    }

    /// Takes a step; `None` if it is impossible.
    pub fn step(place: usize, step: Step, system: &System, world: &mut World) -> Option<()> {
        let me = &mut world.producers[place];
        match step {
            Step::Upload => {
                let number = system.bounds.number(place, me.begun);
                let segment = name(world.clock.into(), number, 0);
                me.begun += 1;
                world.store.segments.insert(segment);
                me.group.push(Work { number, segment });
            }
            Step::Next(outcome) => Producer::request(place, outcome, false, system, world)?,
            Step::RegisterAlone(outcome) => Producer::request(place, outcome, true, system, world)?,
            Step::Crash => {
                world.left.producer_crashes -= 1;
                me.names.ids += 1;
                me.group.clear();
                me.commits = commits(me.names, &system.bounds);
            }
        }
        Some(())
    }

    /// Makes the next request of the commit. `alone`: it registers, and the table forgets all others.
    fn request(
        place: usize,
        outcome: Outcome,
        alone: bool,
        system: &System,
        world: &mut World,
    ) -> Option<()> {
        let me = &mut world.producers[place];
        let mut drawn = Drawn {
            clock: world.clock,
            names: &mut me.names,
        };
        let group: Vec<_> = me.group.iter().map(|work| describe(*work, system)).collect();
        let is_known = world.store.manifest.producer(me.commits.producer()).is_some();
        let mut next = me.commits.next(Group::of(&group), &mut drawn);
        if next == Next::Registered {
            // This step makes no request.
            next = me.commits.next(Group::of(&group), &mut drawn);
        }
        match next {
            Next::Swap(swap) if !alone || swap.attempt.is_none() => {
                Producer::swap(place, swap, outcome, alone, world)
            }
            Next::StorePage(page) if !alone => Producer::store_page(place, page, outcome, world),
            // The other requests have only one possible outcome.
            _ if alone || outcome != Outcome::Reported => None,
            Next::Renew(renewal) if renewal.in_doubt && is_known => {
                world.store.broken.get_or_insert(Broken::Doubt);
                Some(())
            }
            other => {
                Producer::obey(place, other, world);
                Some(())
            }
        }
    }

    /// Makes one compare-and-set.
    fn swap(place: usize, swap: Swap<u64>, outcome: Outcome, alone: bool, world: &mut World) -> Option<()> {
        let World {
            store,
            producers,
            left,
            told,
            ..
        } = world;
        let me = &mut producers[place];
        let mut state = *swap.next;
        if alone {
            state.producers.retain(|row| row.id == me.commits.producer());
        }
        left.expiries -= u8::from(alone);
        left.producer_faults -= u8::from(outcome != Outcome::Reported);
        let next = Versioned::new(state);
        let answer = match store.swap(Write::Manifest(next.clone()), outcome)? {
            store::Answer::Committed => Answer::Committed(next),
            store::Answer::Mismatch => Answer::Mismatch,
            store::Answer::Unknown => Answer::Unknown,
        };
        if let Some(landed) = me.commits.swapped(answer).landed {
            me.tell(landed, told);
        }
        Some(())
    }

    /// Puts a page. Either its answer is lost, or the page is.
    fn store_page(place: usize, page: NewPage, outcome: Outcome, world: &mut World) -> Option<()> {
        if outcome == Outcome::Repeated {
            return None;
        }
        world.left.producer_faults -= u8::from(outcome != Outcome::Reported);
        if outcome != Outcome::Late {
            world.store.pages.insert(page.name, page);
        }
        world.producers[place]
            .commits
            .stored(outcome == Outcome::Reported);
        Some(())
    }

    /// Carries out a step with a single outcome.
    fn obey(place: usize, next: Next<u64>, world: &mut World) {
        let World {
            store,
            producers,
            clock,
            told,
            unknown,
            ..
        } = world;
        let me = &mut producers[place];
        match next {
            Next::Read => {
                let exists = store.manifest.version() > 0;
                me.commits.read(exists.then(|| store.manifest.clone()));
            }
            Next::Settle(settlement) => {
                if let Some(Own::Landed(landed)) = settlement.own {
                    me.tell(landed, told);
                }
            }
            Next::UploadAgain { places, floor_ms } => {
                for at in places {
                    let work = &mut me.group[at];
                    let again = upload(work.segment) + 1;
                    work.segment = name(u64::from(*clock).max(floor_ms), work.number, again);
                    store.segments.insert(work.segment);
                }
            }
            Next::Renew(renewal) => {
                if renewal.in_doubt {
                    unknown.extend(me.group.drain(..).map(|work| work.number));
                }
            }
            Next::Drop { .. } => {
                store.broken.get_or_insert(Broken::Forbidden);
            }
            Next::Registered | Next::Spent | Next::StorePage(_) | Next::Swap(_) => {}
        }
    }

    /// Tells callers the sequences of their records.
    fn tell(&mut self, landed: Landed, told: &mut Vec<(u8, u64)>) {
        let numbers = self.group.drain(..landed.count).map(|work| work.number);
        told.extend(numbers.zip(landed.first_sequence..));
        told.sort_unstable();
    }
}

fn commits(names: Names, bounds: &Bounds) -> Commits<Versioned<Manifest>> {
    Commits::new(Uuid::nil(), 0, bounds.tail_max, names.id())
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
