//! A model of producers that commit each other's records, in every interleaving of their requests, over
//! `millpond_producer::commit`.
//!
//! Each record has one bit. A segment's name says which records its bytes hold. A producer commits its records itself,
//! sends them to another one to commit, or does one after the other. Messages arrive late, more than once or never. A
//! leader crashes or forgets what it holds, and the manifest forgets producers. A client numbers its requests, sends each to any
//! producer, and sends it again as long as nobody has told it the outcome.

use crate::producer::{Drawn, Names};
use crate::store::{self, Broken, Outcome, Store, Versioned, Write, outcomes};
use millpond_manifest::manifest::ProducerRow;
use millpond_manifest::{
    Claim, ClientClaim, ClientId, ClientRefusal, Manifest, NewPart, NewSegment, Numbers, ProducerId,
};
use millpond_producer::commit::{Answer, Commits, Group, Next, Own, Settlement, Swap, Verdict, check_offer};
use millpond_segment::Encoding;
use stateright::{Model, Property};
use std::collections::BTreeSet;
use ulid::Ulid;
use uuid::Uuid;

/// The limits of a search. Every count applies to the whole run.
#[derive(Debug, Clone)]
pub struct SharedCommits {
    /// The number of records of each producer.
    pub records: Vec<u8>,
    /// The producers, by place, that take records of others.
    pub leaders: Vec<usize>,
    /// Records that are sent to another producer.
    pub forwards: u8,
    /// Arrivals of messages. A message may arrive any number of times.
    pub arrivals: u8,
    /// Swaps with an unreported outcome.
    pub faults: u8,
    /// Crashes of producers.
    pub crashes: u8,
    /// Registrations that make the table forget all other producers.
    pub expiries: u8,
    /// Times that a producer drops what it holds for others.
    pub drops: u8,
    /// The client's requests, with one record each.
    pub requests: u8,
    /// The copies that the client sends of them.
    pub sends: u8,
}

/// Records, one bit each. The client's come last.
type Records = u8;

/// A message between two producers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Message {
    /// A request to commit these records under a number.
    Request {
        /// The place of the leader.
        to: usize,
        /// The place of the sender.
        from: usize,
        /// The id of the sender.
        producer: ProducerId,
        /// The number.
        number: u64,
        /// The records.
        records: Records,
        /// The sender's segment with the records. `None`: they go into a segment of the leader.
        segment: Option<Ulid>,
    },
    /// The answer that a number is in the log.
    Committed {
        /// The place of the producer.
        to: usize,
        /// The id of the producer.
        producer: ProducerId,
        /// The number.
        number: u64,
    },
}

/// Records that a producer holds for another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Held {
    from: usize,
    claim: Claim,
    records: Records,
    segment: Option<Ulid>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Member {
    names: Names,
    begun: u8,
    /// Its own records in the group, each in a segment by itself unless the group is built into one.
    own: Vec<Records>,
    held: Vec<Held>,
    /// Requests that wait until the group may change.
    waiting: Vec<Held>,
    commits: Commits<Versioned<Manifest>>,
    /// The bit of the client's first request.
    first_request: u8,
}

/// A state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct World {
    store: Store,
    members: Vec<Member>,
    /// All messages ever sent.
    messages: BTreeSet<Message>,
    /// Records whose callers have a success.
    told: Records,
    /// Records whose callers have an unknown outcome.
    unknown: Records,
    /// The client's requests that were refused, and of which no other copy is on its way.
    refused: Records,
    /// The copies of each request without a certain answer.
    open: Vec<u8>,
    left: Left,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Left {
    forwards: u8,
    arrivals: u8,
    faults: u8,
    crashes: u8,
    expiries: u8,
    drops: u8,
    sends: u8,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Action {
    /// A late swap lands.
    Land(usize),
    /// A producer gets a new record.
    Begin(usize),
    /// The client sends a request to a producer.
    Send {
        /// The number of the request, from 0 on.
        request: u8,
        /// The place of the producer.
        to: usize,
    },
    /// A producer sends its records to another one. `upload`: it has uploaded them.
    Forward {
        /// Its place.
        from: usize,
        /// The place of the other one.
        to: usize,
        /// Whether the records are in the sender's segment.
        upload: bool,
    },
    /// A message arrives.
    Arrive(Message),
    /// A producer makes the next request of its commit, with this outcome.
    Next(usize, Outcome),
    /// A producer registers in a table that forgets all others.
    RegisterAlone(usize, Outcome),
    /// A producer drops what it holds for others.
    Drop(usize),
    /// A producer crashes, and another one starts in its place.
    Crash(usize),
}

/// The name of a segment with these records.
fn name(names: Names, records: Records) -> Ulid {
    let random = u128::from(records) << 16 | u128::from(names.place) << 8 | u128::from(names.ids);
    Ulid::from_parts(0, random)
}

fn records(segment: Ulid) -> Records {
    segment.random().to_be_bytes()[13]
}

fn describe(segment: Ulid) -> NewSegment {
    let part = NewPart {
        stream: crate::producer::STREAM.into(),
        encoding: Encoding::Otlp,
        offset: 0,
        length: 1,
        raw_len: 1,
        messages: 1,
        records: u64::from(records(segment).count_ones()),
        first_received_at_us: 0,
        last_received_at_us: 0,
    };
    NewSegment {
        segment,
        size: 1,
        parts: vec![part],
    }
}

/// The segments of a commit, and the claims of others and of the client.
struct Built {
    segments: Vec<NewSegment>,
    own: usize,
    held: Vec<Claim>,
    clients: Vec<ClientClaim>,
    holders: Vec<Option<usize>>,
}

impl Member {
    fn new(place: usize, first_request: u8) -> Member {
        let names = Names {
            place: u8::try_from(place).unwrap_or(u8::MAX),
            ids: 0,
            pages: 0,
        };
        Member {
            names,
            begun: 0,
            own: Vec::new(),
            held: Vec::new(),
            waiting: Vec::new(),
            commits: Commits::new(Uuid::nil(), 0, usize::MAX, names.id()),
            first_request,
        }
    }

    /// The claims of the client's requests among these records, in their order.
    fn claims(&self, of: Records, segment: impl Fn(Records) -> usize) -> Vec<ClientClaim> {
        let bits = (self.first_request..8).map(|place| (place, 1 << place));
        bits.filter(|(_, bit)| of & bit != 0)
            .map(|(place, bit)| ClientClaim {
                client: ClientId([1; 16]),
                numbers: Numbers::Counted {
                    number: u64::from(place - self.first_request) + 1,
                },
                checksum: 0,
                segment: segment(bit),
                source: None,
            })
            .collect()
    }

    fn all_own(&self) -> Records {
        self.own.iter().fold(0, |all, record| all | record)
    }

    /// Builds one segment of the own records and those that others have sent without a segment. Follow-up segments are
    /// those that others have uploaded.
    fn build(&self) -> Built {
        let sent = self.held.iter().filter(|held| held.segment.is_none());
        let sent = sent.fold(0, |all, held| all | held.records);
        let mut segments: Vec<Ulid> = match sent {
            0 => self.own.iter().map(|record| name(self.names, *record)).collect(),
            // Another name than that of any other segment with the same records.
            sent => {
                let guests = self.held.iter().filter(|held| held.segment.is_none());
                let whose = guests.fold(1, |all: u32, held| {
                    let [place, ids, ..] = held.claim.producer.0;
                    let number = u32::try_from(held.claim.first).unwrap_or(u32::MAX);
                    all.wrapping_mul(31)
                        .wrapping_add(u32::from(place) * 7 + u32::from(ids))
                        .wrapping_mul(31)
                        .wrapping_add(number)
                });
                let own = name(self.names, self.all_own() | sent).random();
                vec![Ulid::from_parts(0, own | u128::from(whose) << 24)]
            }
        };
        let own = if self.own.is_empty() { 0 } else { segments.len() };
        let mut held = Vec::new();
        let segment_of = |bit: Records| match sent {
            0 => self.own.iter().position(|record| record & bit != 0).unwrap_or(0),
            _ => 0,
        };
        let mut clients = self.claims(self.all_own(), segment_of);
        let mut holders = vec![None; clients.len()];
        for one in &self.held {
            let place = match one.segment {
                None => 0,
                Some(segment) => {
                    segments.push(segment);
                    segments.len() - 1
                }
            };
            let of_client = self.claims(one.records, |_| place);
            holders.extend(of_client.iter().map(|_| Some(held.len())));
            clients.extend(of_client);
            held.push(Claim {
                segments: place..place + 1,
                ..one.claim.clone()
            });
        }
        // As producers do: by their numbers, and a member's own copy before another's.
        let mut judged: Vec<_> = clients.into_iter().zip(holders).collect();
        judged.sort_by_key(|(claim, holder)| (claim.numbers, holder.is_some()));
        let (clients, holders) = judged.into_iter().unzip();
        Built {
            segments: segments.into_iter().map(describe).collect(),
            own,
            held,
            clients,
            holders,
        }
    }

    /// Takes a request, as far as the rules for offers allow.
    fn take(&mut self, offered: Held) {
        let known = self.held.iter().chain(&self.waiting);
        let known: Vec<Claim> = known.map(|held| held.claim.clone()).collect();
        if check_offer(self.commits.producer(), &known, &offered.claim).is_ok() {
            self.waiting.push(offered);
        }
    }
}

impl World {
    fn answer(&mut self, held: &Held) {
        self.messages.insert(Message::Committed {
            to: held.from,
            producer: held.claim.producer,
            number: held.claim.last,
        });
    }

    fn tell_own(&mut self, place: usize) {
        let me = &mut self.members[place];
        let (told, first) = (me.all_own(), me.first_request);
        me.own.clear();
        self.told |= told;
        self.answered(told, first);
    }

    /// The client has a certain answer to these requests.
    fn answered(&mut self, records: Records, first_request: u8) {
        for (open, place) in self.open.iter_mut().zip(first_request..) {
            *open -= u8::from(records & (1 << place) != 0);
        }
    }

    /// Tells the client of its requests that the log has, or refuses. Their records leave the group.
    fn settle_clients(&mut self, place: usize, built: &Built, settled: &[(usize, ClientRefusal)]) {
        let me = &mut self.members[place];
        let first = me.first_request;
        for (at, refusal) in settled {
            let Numbers::Counted { number } = built.clients[*at].numbers else {
                continue;
            };
            let request = u8::try_from(number - 1).unwrap_or(u8::MAX);
            let bit = 1 << (first + request);
            self.members[place].own.retain(|record| *record != bit);
            self.answered(bit, first);
            match refusal {
                ClientRefusal::Repeated { .. } => self.told |= bit,
                ClientRefusal::Gap { .. } | ClientRefusal::Unknown => {
                    if self.open[usize::from(request)] == 0 && self.told & bit == 0 {
                        self.refused |= bit;
                    }
                }
                _ => {
                    self.store.broken.get_or_insert(Broken::Forbidden);
                }
            }
        }
    }

    fn arrive(&mut self, message: Message) {
        match message {
            Message::Request {
                to,
                from,
                producer,
                number,
                records,
                segment,
            } => self.members[to].take(Held {
                from,
                claim: Claim::one(producer, number, 0..1),
                records,
                segment,
            }),
            Message::Committed { to, producer, number } => {
                let me = &mut self.members[to];
                if me.commits.producer() == producer && me.commits.landed_elsewhere(number) {
                    self.tell_own(to);
                }
            }
        }
    }

    /// Makes the next request of a producer's commit. `alone`: it registers, and the table forgets all others.
    fn next(&mut self, place: usize, outcome: Outcome, alone: bool) -> Option<()> {
        let me = &mut self.members[place];
        if me.commits.may_grow() {
            let mut waiting = std::mem::take(&mut me.waiting);
            me.held.append(&mut waiting);
        }
        let built = me.build();
        let group = Group {
            segments: &built.segments,
            own: built.own,
            held: &built.held,
            clients: &built.clients,
            holders: &built.holders,
        };
        let mut drawn = Drawn {
            clock: 0,
            names: &mut me.names,
        };
        let is_known = self.store.manifest.producer(me.commits.producer()).is_some();
        let mut next = me.commits.next(group, &mut drawn);
        while matches!(next, Next::Registered | Next::Spent) {
            // These steps make no request.
            next = me.commits.next(group, &mut drawn);
        }
        for segment in &built.segments {
            self.store.segments.insert(segment.segment);
        }
        match next {
            Next::Swap(swap) if !alone || swap.attempt.is_none() => self.swap(place, swap, outcome, alone)?,
            _ if alone || outcome != Outcome::Reported => return None,
            Next::Read => {
                let exists = self.store.manifest.version() > 0;
                let found = exists.then(|| self.store.manifest.clone());
                self.members[place].commits.read(found);
            }
            Next::Settle(settlement) => {
                self.settle_clients(place, &built, &settlement.clients);
                self.settle(place, &settlement);
            }
            Next::Renew(renewal) => {
                if renewal.in_doubt && is_known {
                    self.store.broken.get_or_insert(Broken::Doubt);
                }
                let me = &mut self.members[place];
                if renewal.in_doubt {
                    self.unknown |= me.all_own();
                    me.own.clear();
                }
            }
            _ => {
                self.store.broken.get_or_insert(Broken::Forbidden);
            }
        }
        Some(())
    }

    fn swap(&mut self, place: usize, swap: Swap<u64>, outcome: Outcome, alone: bool) -> Option<()> {
        let me = &mut self.members[place];
        let mut state = *swap.next;
        if alone {
            state.producers.retain(|row| row.id == me.commits.producer());
        }
        self.left.expiries -= u8::from(alone);
        self.left.faults -= u8::from(outcome != Outcome::Reported);
        let next = Versioned::new(state);
        let answer = match self.store.swap(Write::Manifest(next.clone()), outcome)? {
            store::Answer::Committed => Answer::Committed(next),
            store::Answer::Mismatch => Answer::Mismatch,
            store::Answer::Unknown => Answer::Unknown,
        };
        if me.commits.swapped(answer).landed.is_some() {
            for held in std::mem::take(&mut me.held) {
                self.answer(&held);
            }
            self.tell_own(place);
        }
        Some(())
    }

    fn settle(&mut self, place: usize, settlement: &Settlement) {
        if let Some(Own::Landed(_) | Own::Elsewhere { .. }) = settlement.own {
            self.tell_own(place);
        }
        let held = std::mem::take(&mut self.members[place].held);
        for (at, held) in held.into_iter().enumerate() {
            let mut verdicts = settlement.held.iter();
            match verdicts.find(|(of, _)| *of == at) {
                Some((_, Verdict::Committed { .. })) => self.answer(&held),
                // Its producer gets no answer, and commits by itself.
                Some(_) => {}
                None => self.members[place].held.push(held),
            }
        }
    }
}

impl SharedCommits {
    fn bit(&self, place: usize, begun: u8) -> Records {
        let before: u8 = self.records[..place].iter().sum();
        1 << (before + begun)
    }

    fn first_request(&self) -> u8 {
        self.records.iter().sum()
    }

    fn all(&self) -> Records {
        let count = self.first_request() + self.requests;
        u8::try_from((1_u16 << count) - 1).unwrap_or(u8::MAX)
    }

    fn steps_of(&self, place: usize, world: &World, actions: &mut Vec<Action>) {
        let me = &world.members[place];
        let left = &world.left;
        if me.begun < self.records[place] && me.commits.may_grow() {
            actions.push(Action::Begin(place));
        }
        if left.sends > 0 && me.commits.may_grow() {
            let requests = (0..self.requests).filter(|request| {
                let bit: Records = 1 << (me.first_request + request);
                // A producer holds each request once, and a client that knows the outcome does not ask again.
                (me.all_own() | world.told) & bit == 0
            });
            actions.extend(requests.map(|request| Action::Send { request, to: place }));
        }
        if left.forwards > 0 && !me.own.is_empty() && me.held.is_empty() && me.commits.is_registered() {
            let others = self.leaders.iter().filter(|to| **to != place);
            let each = others.flat_map(|to| [(*to, false), (*to, true)]);
            actions.extend(each.map(|(to, upload)| Action::Forward {
                from: place,
                to,
                upload,
            }));
        }
        if !me.own.is_empty() || !me.held.is_empty() || !me.waiting.is_empty() {
            for &outcome in outcomes(left.faults) {
                actions.push(Action::Next(place, outcome));
                if left.expiries > 0 && !me.commits.is_registered() {
                    actions.push(Action::RegisterAlone(place, outcome));
                }
            }
        }
        let holds = !me.held.is_empty() || !me.waiting.is_empty();
        if left.drops > 0 && holds && me.commits.may_grow() {
            actions.push(Action::Drop(place));
        }
        if left.crashes > 0 && (me.commits.is_registered() || !me.own.is_empty() || holds) {
            actions.push(Action::Crash(place));
        }
    }
}

impl Model for SharedCommits {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            store: Store::new(),
            members: (0..self.records.len())
                .map(|place| Member::new(place, self.first_request()))
                .collect(),
            messages: BTreeSet::new(),
            told: 0,
            unknown: 0,
            refused: 0,
            open: vec![0; usize::from(self.requests)],
            left: Left {
                forwards: self.forwards,
                arrivals: self.arrivals,
                faults: self.faults,
                crashes: self.crashes,
                expiries: self.expiries,
                drops: self.drops,
                sends: self.sends,
            },
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        // A search beyond a violation shows nothing more.
        if world.store.broken.is_some() {
            return;
        }
        actions.extend((0..world.store.late.len()).map(Action::Land));
        if world.left.arrivals > 0 {
            actions.extend(world.messages.iter().copied().map(Action::Arrive));
        }
        for place in 0..world.members.len() {
            self.steps_of(place, world, actions);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        match action {
            Action::Land(place) => next.store.land_late(place),
            Action::Begin(place) => {
                let me = &mut next.members[place];
                me.own.push(self.bit(place, me.begun));
                me.begun += 1;
            }
            Action::Send { request, to } => {
                next.left.sends -= 1;
                let bit = 1 << (self.first_request() + request);
                next.members[to].own.push(bit);
                next.open[usize::from(request)] += 1;
                next.refused &= !bit;
            }
            Action::Forward { from, to, upload } => {
                next.left.forwards -= 1;
                let me = &mut next.members[from];
                let number = me.commits.forward()?;
                let records = me.all_own();
                let segment = upload.then(|| name(me.names, records));
                let request = Message::Request {
                    to,
                    from,
                    producer: me.commits.producer(),
                    number,
                    records,
                    segment,
                };
                next.store.segments.extend(segment);
                next.messages.insert(request);
            }
            Action::Arrive(message) => {
                next.left.arrivals -= 1;
                next.arrive(message);
            }
            Action::Next(place, outcome) => next.next(place, outcome, false)?,
            Action::RegisterAlone(place, outcome) => next.next(place, outcome, true)?,
            Action::Drop(place) => {
                next.left.drops -= 1;
                let me = &mut next.members[place];
                me.held.clear();
                me.waiting.clear();
            }
            Action::Crash(place) => {
                next.left.crashes -= 1;
                let Member { names, begun, .. } = next.members[place];
                let names = Names {
                    ids: names.ids + 1,
                    ..names
                };
                next.members[place] = Member {
                    names,
                    begun,
                    commits: Commits::new(Uuid::nil(), 0, usize::MAX, names.id()),
                    ..Member::new(place, self.first_request())
                };
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            Property::always("no record is in the log twice", |_, world: &World| {
                let mut seen: Records = 0;
                world.store.history.iter().all(|segment| {
                    let is_new = seen & records(*segment) == 0;
                    seen |= records(*segment);
                    is_new
                })
            }),
            Property::always(
                "a success implies the record is in the log",
                |_, world: &World| world.told & !logged(world) == 0,
            ),
            Property::always(
                "a request that was refused never enters the log",
                |_, world: &World| world.refused & logged(world) == 0,
            ),
            Property::always("what the log refers to is in the store", |_, world: &World| {
                let mut history = world.store.history.iter();
                history.all(|segment| world.store.segments.contains(segment))
            }),
            Property::always(
                "an outcome is unknown only to a producer that was forgotten",
                |_, world: &World| world.store.broken != Some(Broken::Doubt),
            ),
            Property::always("no bookkeeping is wrong", |_, world: &World| {
                matches!(world.store.broken, None | Some(Broken::Doubt))
            }),
        ];
        all.extend(self.reached());
        all
    }
}

/// The records in the log.
fn logged(world: &World) -> Records {
    let history = world.store.history.iter();
    history.fold(0, |all, segment| all | records(*segment))
}

impl SharedCommits {
    /// Situations that some state must reach for the search to be meaningful.
    fn reached(&self) -> Vec<Property<Self>> {
        let shared = self.forwards > 0 && self.arrivals > 1;
        let sometimes = [
            (
                true,
                Property::sometimes("every caller is told", |system: &Self, world: &World| {
                    world.told == system.all()
                }),
            ),
            (
                shared && self.records[0] > 0,
                Property::sometimes(
                    "one segment has the records of two producers",
                    |system: &Self, world: &World| {
                        let own = (1 << system.records[0]) - 1;
                        let mut history = world.store.history.iter();
                        history.any(|segment| records(*segment) & own != 0 && records(*segment) & !own != 0)
                    },
                ),
            ),
            (
                shared,
                Property::sometimes(
                    "a number is in the log before its leader knows",
                    |_, world: &World| {
                        let mut held = world.members.iter().flat_map(|member| &member.held);
                        held.any(|held| logged(world) & held.records != 0)
                    },
                ),
            ),
            (
                shared && self.faults > 0,
                Property::sometimes("a shared commit lands unreported", |_, world: &World| {
                    let mut members = world.members.iter();
                    members.any(|member| {
                        let attempt = member.commits.unresolved().map(|(attempt, _)| attempt);
                        attempt.is_some_and(|attempt| {
                            let history = &world.store.history;
                            attempt.claims.len() > 1
                                && attempt.segments.iter().all(|name| history.contains(name))
                        })
                    })
                }),
            ),
            (
                shared && self.requests > 1,
                Property::sometimes("a number is spent", |_, world: &World| {
                    let mut rows = world.store.manifest.producers.iter();
                    rows.any(ProducerRow::is_spent)
                }),
            ),
            (
                shared && self.expiries > 0,
                Property::sometimes(
                    "a producer is forgotten while a leader has its number",
                    |_, world: &World| world.unknown != 0,
                ),
            ),
        ];
        let wanted = sometimes.into_iter().filter(|(wanted, _)| *wanted);
        wanted.map(|(_, property)| property).collect()
    }
}
