//! A model of the guard that refuses a second consumer of the same tables: processes of several consumers that ask for tables, in
//! every interleaving of their requests, over the pure functions of `millpond_manifest::admission`.
//!
//! Each request is a step: the list of the cursors, the read of each, every swap. A swap lands or not, is reported or not, or lands
//! late. A process crashes at any step and starts again, perhaps with other settings. Each step may see a clock before or after the
//! end of every claim. A process that has its tables stands by for any time before it opens its cursor. An operator removes consumers.

use millpond_consumer::Config;
use millpond_manifest::admission::{Request, Sight, Stage, Step, look};
use millpond_manifest::{BatchingPolicy, Cursor, SinkTable, SinkTables};
use stateright::{Model, Property};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::{LazyLock, Mutex};
use std::{fmt, ptr};
use uuid::Uuid;

/// Settings with which a process may start.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The consumer's place: names follow the order of places.
    pub consumer: usize,
    /// Its tables.
    pub tables: Vec<&'static str>,
    /// It is told to share them.
    pub share: bool,
}

/// The limits of a search.
#[derive(Debug, Clone)]
pub struct Admissions {
    /// The settings of each process: it starts with any of them, each time.
    pub processes: Vec<Vec<Settings>>,
    /// Crashes and stops of all processes.
    pub ends: u8,
    /// Swaps that get lost, are not reported, or land late.
    pub faults: u8,
    /// Clocks show anything.
    pub skew: bool,
    /// Claims of all processes.
    pub claims: u8,
    /// Removals of consumers.
    pub removals: u8,
}

/// The part of a consumer's cursor that decides.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Content {
    Absent,
    Tombstone(SinkTables),
    Alive(SinkTables),
}

/// A content that occurs in a search, with the cursor of each consumer that has it. Every state has several of them, so each is kept once
/// and for good.
struct Kept {
    content: Content,
    cursors: Vec<Cursor>,
}

/// The cursor of a consumer, of whatever consumer it is.
#[derive(Clone, Copy)]
struct Register(&'static Kept);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum State {
    Idle,
    /// Reads its own cursor next.
    Reads,
    /// Decides next, from its cursor as it knows it.
    Knows(Register),
    Looks {
        own: Register,
        stage: Stage,
        tables: Vec<SinkTable>,
        /// The cursors that the list has shown and that are not read yet.
        unread: BTreeSet<usize>,
        read: BTreeMap<usize, Register>,
    },
    /// Another consumer has its tables. It withdraws its claim.
    Refused,
    /// It has ended with an error, and left nothing.
    Gone,
    /// It has its tables, and another process may own the cursor.
    StandsBy,
    /// It owns the cursor and writes to its tables.
    Writes,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Process {
    state: State,
    settings: usize,
    free: Option<Stage>,
    claimed: Option<u64>,
}

/// A state of all processes and cursors.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    cursors: Vec<Register>,
    processes: Vec<Process>,
    /// Swaps on their way: the consumer, the expected state and the next.
    late: Vec<(usize, Register, Register)>,
    /// The tables that each consumer has written to since it was last removed.
    wrote: Vec<BTreeSet<&'static str>>,
    ended: u8,
    faults: u8,
    claims: u8,
    removed: u8,
    waited: bool,
}

/// The fate of a swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fate {
    /// The store answers.
    Answers,
    /// It lands, and nobody reports that.
    Unreported,
    /// It does not land.
    Lost,
    /// It is still on its way.
    Late,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// A process starts with these settings.
    Start(usize, usize),
    /// A process makes its next request. `ahead`: its clock shows a time after the end of every claim.
    Goes(usize, bool, Fate),
    /// A process crashes or stops.
    Ends(usize),
    /// A late swap lands.
    Lands(usize),
    /// An operator removes a consumer.
    Removes(usize),
}

/// The consumers of all models.
const CONSUMERS_MAX: usize = 3;

const LEASE_MS: u64 = 100;
const AHEAD_MS: u64 = 10_000;

fn name(consumer: usize) -> String {
    char::from(b'a' + u8::try_from(consumer).expect("few consumers")).to_string()
}

/// Any policy will do: the guard does not look at it.
static POLICY: LazyLock<BatchingPolicy> = LazyLock::new(|| Config::default().policy("", 1));

impl Settings {
    fn sink_tables(&self) -> Vec<SinkTable> {
        let tables = self.tables.iter();
        tables
            .map(|table| SinkTable::new(table, [(*table).to_owned()]))
            .collect()
    }
}

impl Content {
    fn cursor(&self, consumer: usize) -> Cursor {
        let unborn = Cursor::unborn(Uuid::nil(), 0, &name(consumer), POLICY.clone());
        let (cursor, tables) = match self {
            Content::Absent => return unborn,
            Content::Tombstone(tables) => (unborn, tables),
            Content::Alive(tables) => (unborn.begin_again(0, POLICY.clone()), tables),
        };
        Cursor {
            tables: tables.clone(),
            ..cursor
        }
    }
}

impl Register {
    fn with(content: Content) -> Register {
        static ALL: LazyLock<Mutex<HashMap<Content, Register>>> =
            LazyLock::new(|| Mutex::new(HashMap::new()));
        let mut all = ALL.lock().expect("no search panics here");
        *all.entry(content).or_insert_with_key(|content| {
            let cursors = (0..CONSUMERS_MAX).map(|consumer| content.cursor(consumer));
            Register(Box::leak(Box::new(Kept {
                content: content.clone(),
                cursors: cursors.collect(),
            })))
        })
    }

    fn absent() -> Register {
        static ABSENT: LazyLock<Register> = LazyLock::new(|| Register::with(Content::Absent));
        *ABSENT
    }

    /// An order that is the same throughout a search.
    fn place(self) -> usize {
        ptr::from_ref(self.0).addr()
    }

    fn is_absent(self) -> bool {
        self == Register::absent()
    }

    fn cursor(self, consumer: usize) -> &'static Cursor {
        &self.0.cursors[consumer]
    }

    fn of(cursor: &Cursor) -> Register {
        let tables = cursor.tables.clone();
        Register::with(if cursor.is_removed() {
            Content::Tombstone(tables)
        } else {
            Content::Alive(tables)
        })
    }

    fn tables(self) -> Option<&'static SinkTables> {
        match &self.0.content {
            Content::Absent => None,
            Content::Tombstone(tables) | Content::Alive(tables) => Some(tables),
        }
    }

    fn claim_id(self) -> Option<u64> {
        Some(self.tables()?.claim.as_ref()?.id)
    }
}

/// Each content is kept once.
impl PartialEq for Register {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.0, other.0)
    }
}

impl Eq for Register {}

impl Hash for Register {
    fn hash<H: Hasher>(&self, state: &mut H) {
        ptr::hash(self.0, state);
    }
}

impl fmt::Debug for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.content.fmt(f)
    }
}

impl World {
    /// Somebody told the consumer to share, and its cursor says so.
    fn shares(&self, consumer: usize) -> bool {
        let tables = self.cursors[consumer].tables();
        tables.is_some_and(|tables| tables.shared)
    }
}

impl Admissions {
    fn settings(&self, world: &World, process: usize) -> &Settings {
        &self.processes[process][world.processes[process].settings]
    }

    /// Returns the next step of a process, given its cursor as it last read it.
    fn decides(&self, world: &World, place: usize, own: Register, ahead: bool) -> Step {
        let settings = self.settings(world, place);
        let tables = settings.sink_tables();
        let request = Request {
            tables: &tables,
            share: settings.share,
            now_ms: if ahead { AHEAD_MS } else { 0 },
            lease_ms: LEASE_MS,
            id: u64::from(world.claims) + 1,
            // With clocks that show anything, it looks from an expired claim anyway.
            renewed: None,
            policy: &POLICY,
        };
        own.cursor(settings.consumer)
            .admission(&request, world.processes[place].free)
    }

    fn consumers(&self) -> usize {
        let settings = self.processes.iter().flatten();
        settings.map(|settings| settings.consumer + 1).max().unwrap_or(0)
    }

    fn swap(world: &mut World, place: usize, consumer: usize, own: Register, next: Register, fate: Fate) {
        if fate != Fate::Answers {
            world.faults += 1;
        }
        if fate == Fate::Late {
            world.late.push((consumer, own, next));
            world
                .late
                .sort_unstable_by_key(|(consumer, own, next)| (*consumer, own.place(), next.place()));
        }
        let lands = matches!(fate, Fate::Answers | Fate::Unreported) && world.cursors[consumer] == own;
        if lands {
            world.cursors[consumer] = next;
        }
        world.processes[place].state = if lands && fate == Fate::Answers {
            State::Knows(next)
        } else {
            State::Reads
        };
    }

    fn knows(&self, world: &mut World, place: usize, own: Register, ahead: bool, fate: Fate) -> Option<()> {
        let settings = self.settings(world, place).clone();
        match self.decides(world, place, own, ahead) {
            Step::Admitted => {
                (fate == Fate::Answers).then_some(())?;
                world.processes[place].state = State::StandsBy;
            }
            Step::Swap(next) => {
                let next = Register::of(&next);
                let id = next.claim_id();
                if id.is_some_and(|id| id > u64::from(world.claims)) {
                    world.claims += 1;
                }
                let process = &mut world.processes[place];
                process.claimed = id.or(process.claimed);
                Self::swap(world, place, settings.consumer, own, next, fate);
            }
            Step::Look(stage, tables) => {
                (fate == Fate::Answers).then_some(())?;
                if let Stage::Claimed(id) | Stage::Firm(id) = stage {
                    world.processes[place].claimed = Some(id);
                }
                let there = |consumer: &usize| {
                    *consumer != settings.consumer && !world.cursors[*consumer].is_absent()
                };
                let unread = (0..world.cursors.len()).filter(there).collect();
                world.processes[place].state = State::Looks {
                    own,
                    stage,
                    tables,
                    unread,
                    read: BTreeMap::new(),
                };
            }
            Step::Wait(_) => {
                (fate == Fate::Answers).then_some(())?;
                world.processes[place].state = State::Reads;
            }
        }
        Some(())
    }

    /// Reads the next cursor, or judges what it has read.
    fn looks(&self, world: &mut World, place: usize, ahead: bool) {
        let consumer = self.settings(world, place).consumer;
        let State::Looks {
            own,
            stage,
            tables,
            mut unread,
            mut read,
        } = world.processes[place].state.clone()
        else {
            return;
        };
        if let Some(next) = unread.pop_first() {
            read.insert(next, world.cursors[next]);
            world.processes[place].state = State::Looks {
                own,
                stage,
                tables,
                unread,
                read,
            };
            return;
        }
        let cursors = read.iter().map(|(other, found)| found.cursor(*other));
        let now_ms = if ahead { AHEAD_MS } else { 0 };
        let process = &mut world.processes[place];
        match look(own.cursor(consumer), stage, &tables, cursors, now_ms) {
            Sight::Free => {
                process.free = Some(stage);
                process.state = State::Knows(own);
            }
            Sight::Wait(..) => {
                process.state = State::Reads;
                world.waited = true;
            }
            Sight::Taken(..) => process.state = State::Refused,
        }
    }

    /// Opens its cursor, or finds that its consumer was removed.
    fn opens(&self, world: &mut World, place: usize) {
        let Settings {
            consumer,
            tables,
            share,
        } = self.settings(world, place).clone();
        let own = world.cursors[consumer].cursor(consumer);
        let sink_tables = self.settings(world, place).sink_tables();
        let admits = || own.still_admits(&sink_tables, share);
        world.processes[place].state = match (!own.is_removed()).then(admits).flatten() {
            Some(opened) => {
                world.cursors[consumer] = Register::of(&opened);
                world.wrote[consumer].extend(tables);
                State::Writes
            }
            None => State::Gone,
        };
    }

    /// Its processes that write find that out. The others do not notice.
    fn removes(&self, world: &mut World, consumer: usize) {
        world.removed += 1;
        world.cursors[consumer] = Register::with(Content::Tombstone(SinkTables::default()));
        world.wrote[consumer].clear();
        for place in 0..world.processes.len() {
            let writes = world.processes[place].state == State::Writes;
            if writes && self.settings(world, place).consumer == consumer {
                world.processes[place].state = State::Gone;
            }
        }
    }

    fn goes(&self, world: &mut World, place: usize, ahead: bool, fate: Fate) -> Option<()> {
        let consumer = self.settings(world, place).consumer;
        match world.processes[place].state.clone() {
            State::Idle | State::Gone | State::Writes => return None,
            State::Reads => {
                (!ahead && fate == Fate::Answers).then_some(())?;
                world.processes[place].state = State::Knows(world.cursors[consumer]);
            }
            State::Knows(own) => self.knows(world, place, own, ahead, fate)?,
            State::StandsBy => {
                (!ahead && fate == Fate::Answers).then_some(())?;
                self.opens(world, place);
            }
            State::Looks { .. } => {
                (fate == Fate::Answers).then_some(())?;
                self.looks(world, place, ahead);
            }
            State::Refused => {
                (!ahead).then_some(())?;
                let own = world.cursors[consumer];
                let id = own.claim_id();
                if id.is_none() || id != world.processes[place].claimed {
                    (fate == Fate::Answers).then_some(())?;
                    world.processes[place].state = State::Gone;
                } else {
                    let next = Register::of(&own.cursor(consumer).without_claim());
                    Self::swap(world, place, consumer, own, next, fate);
                    world.processes[place].state = State::Refused;
                }
            }
        }
        Some(())
    }

    fn may_start(&self, world: &World, process: usize) -> bool {
        match world.processes[process].state {
            State::Idle => true,
            // Its supervisor starts it again.
            State::Gone => world.ended < self.ends,
            _ => false,
        }
    }
}

impl Model for Admissions {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let idle = Process {
            state: State::Idle,
            settings: 0,
            free: None,
            claimed: None,
        };
        vec![World {
            cursors: vec![Register::absent(); self.consumers()],
            processes: vec![idle; self.processes.len()],
            late: Vec::new(),
            wrote: vec![BTreeSet::new(); self.consumers()],
            ended: 0,
            faults: 0,
            claims: 0,
            removed: 0,
            waited: false,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.claims > self.claims {
            return;
        }
        actions.extend((0..world.late.len()).map(Action::Lands));
        if world.removed < self.removals {
            let there = |consumer: &usize| !world.cursors[*consumer].is_absent();
            let consumers = (0..world.cursors.len()).filter(there);
            actions.extend(consumers.map(Action::Removes));
        }
        for place in 0..self.processes.len() {
            if self.may_start(world, place) {
                actions.extend((0..self.processes[place].len()).map(|with| Action::Start(place, with)));
                continue;
            }
            if world.ended < self.ends {
                actions.push(Action::Ends(place));
            }
            for ahead in [false, true] {
                if !ahead || self.skew {
                    actions.push(Action::Goes(place, ahead, Fate::Answers));
                    if world.faults < self.faults {
                        let fates = [Fate::Unreported, Fate::Lost, Fate::Late];
                        actions.extend(fates.map(|fate| Action::Goes(place, ahead, fate)));
                    }
                }
            }
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        match action {
            Action::Start(place, settings) => {
                let process = &mut next.processes[place];
                if process.state == State::Gone {
                    next.ended += 1;
                }
                *process = Process {
                    state: State::Reads,
                    settings,
                    free: None,
                    claimed: None,
                };
            }
            Action::Ends(place) => {
                next.ended += 1;
                next.processes[place].state = State::Idle;
                next.processes[place].free = None;
                next.processes[place].claimed = None;
            }
            Action::Lands(place) => {
                let (consumer, expected, landed) = next.late.remove(place);
                if next.cursors[consumer] == expected {
                    next.cursors[consumer] = landed;
                }
            }
            Action::Removes(consumer) => self.removes(&mut next, consumer),
            Action::Goes(place, ahead, fate) => self.goes(&mut next, place, ahead, fate)?,
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "no two consumers write to a table, unless one shares",
                |_, world: &World| {
                    !pairs(world).any(|(one, other)| {
                        let mut both = [one, other].into_iter();
                        !both.any(|consumer| world.shares(consumer))
                            && !world.wrote[one].is_disjoint(&world.wrote[other])
                    })
                },
            ),
            Property::always(
                "nothing is kept for a consumer that has no tables",
                |_, world: &World| {
                    world.cursors.iter().all(|cursor| match &cursor.0.content {
                        Content::Alive(tables) => !tables.tables.is_empty(),
                        Content::Absent | Content::Tombstone(_) => true,
                    })
                },
            ),
            Property::always(
                "a cursor names every table that was written to",
                |_, world: &World| {
                    (0..world.wrote.len()).all(|consumer| {
                        let named = world.cursors[consumer].tables();
                        let named: Vec<&str> = named
                            .iter()
                            .flat_map(|tables| tables.tables.iter().map(|table| &*table.name))
                            .collect();
                        world.wrote[consumer].iter().all(|table| named.contains(table))
                    })
                },
            ),
            Property::always(
                "nobody is refused for nothing",
                |model: &Admissions, world: &World| {
                    // A crash leaves claims, and clocks that differ let both give way.
                    let smooth = world.ended == 0 && world.faults == 0 && world.removed == 0 && !model.skew;
                    let all_refused = world.processes.iter().all(|process| process.state == State::Gone);
                    !(smooth && all_refused)
                },
            ),
            Property::always(
                "whoever was told to share is let in",
                |model: &Admissions, world: &World| {
                    (0..world.processes.len()).all(|place| {
                        let process = &world.processes[place];
                        process.state != State::Refused || !model.settings(world, place).share
                    })
                },
            ),
            Property::always(
                "a claim ends with the process that is refused",
                |_, world: &World| {
                    let smooth = world.ended == 0 && world.faults == 0;
                    let idle = |process: &Process| {
                        matches!(process.state, State::Gone | State::Writes | State::Idle)
                    };
                    !smooth
                        || !world.processes.iter().all(idle)
                        || world.cursors.iter().all(|cursor| cursor.claim_id().is_none())
                },
            ),
            Property::sometimes("a consumer is refused", |_, world: &World| {
                world.processes.iter().any(|process| process.state == State::Gone)
            }),
            Property::sometimes("a consumer waits for another", |_, world: &World| world.waited),
        ]
    }
}

fn pairs(world: &World) -> impl Iterator<Item = (usize, usize)> {
    let consumers = world.wrote.len();
    (0..consumers).flat_map(move |one| (one + 1..consumers).map(move |other| (one, other)))
}
