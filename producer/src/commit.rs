//! Decides the producer's next request for a commit. The inputs are the manifest that it knows, its group of uploaded
//! segments, its page and its unresolved attempt. Pure: no clock, no store, no waiting. `committer.rs` makes the
//! requests and reports the answers. Public for the model check of the protocols and for the scripts that Rust and Go
//! both run.

mod offer;
mod step;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use millpond_manifest::manifest::{ProducerRow, Unusable, UnusableClient};
use millpond_manifest::{
    Claim, ClaimRefusal, ClientClaim, ClientId, ClientRefusal, Commit, CommitRefusal, Fingerprint, Manifest,
    Numbers, ProducerId, Snapshot,
};
use millpond_storage::Version;
use ulid::Ulid;
use uuid::Uuid;

pub use offer::{OfferRefusal, check_offer};
pub use step::{
    Answer, Attempt, Group, Landed, NewPage, News, Next, Office, Own, Renewal, Settlement, Swap, Verdict,
};

/// The maximum number of segments in one commit: the tail of the manifest has room for this many at a time.
pub const COMMIT_SEGMENTS_MAX: usize = 512;

/// A manifest in the store, and the version that a swap must expect to replace it.
pub trait Found {
    /// Identifies a state of the manifest.
    type Version: Clone + PartialEq;
    /// The state.
    fn manifest(&self) -> &Manifest;
    /// Its version.
    fn version(&self) -> Self::Version;
}

impl Found for Snapshot<Manifest> {
    type Version = Version;

    fn manifest(&self) -> &Manifest {
        &self.state
    }

    fn version(&self) -> Version {
        self.version.clone()
    }
}

/// The source of time and random numbers for a decision.
pub trait Draw {
    /// Unix time in milliseconds.
    fn unix_ms(&mut self) -> u64;
    /// A nonce that tells one write from every other.
    fn nonce(&mut self) -> u64;
    /// A new name with a time of at least `not_before_ms`.
    fn ulid(&mut self, not_before_ms: u64) -> Ulid;
    /// A new producer id.
    fn producer_id(&mut self) -> ProducerId;
}

/// The producer's knowledge of the manifest in force.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Known<S, V> {
    /// Nothing: the producer must read it.
    Unread,
    /// Another producer has probably replaced this version: the producer must read it.
    Outdated(V),
    /// There is no manifest.
    Absent,
    /// The state that was in force when the producer last looked.
    Current(S),
}

/// A commit with an unknown outcome, from the moment its swap is sent.
///
/// While the manifest still has the expected version, the write may yet land. Once the manifest has another version,
/// either the table shows the commit, or the write never happened and never will. A refusal proves no more than a lost
/// answer: if a proxy repeats a request, the store refuses the second copy because the first landed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Unresolved {
    Nothing,
    /// The store has not answered.
    Unknown(Attempt),
    /// The store refused the swap.
    Refused(Attempt),
}

/// The page of a full tail, before the manifest refers to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Sealing {
    Nothing,
    /// The upload was sent.
    Begun(NewPage),
    /// The page is in the store: a manifest may refer to it.
    Stored(NewPage),
}

/// The commits of one producer in one shard, one at a time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Commits<S: Found> {
    buffer_id: Uuid,
    shard: u32,
    tail_max: usize,
    producer: ProducerId,
    registered: bool,
    /// The number of this producer's last commit.
    last: u64,
    known: Known<S, S::Version>,
    /// The number of the latest state that this producer has seen.
    newest: u64,
    /// The number of the latest state before the store showed earlier ones for good, as far as is known.
    restored_from: Option<u64>,
    unresolved: Unresolved,
    /// The records of the next number were sent to another producer, which may commit them.
    forwarded: bool,
    /// The held claims that were there before the manifest was last read. What it lacks says nothing about later ones.
    asked: Vec<(ProducerId, u64)>,
    /// The same for requests of clients. Two producers may have a copy of one, and the manifest was read for only one of them.
    asked_clients: BTreeSet<Request>,
    sealing: Sealing,
    /// What this producer presents to others.
    certificate: Option<Fingerprint>,
    office: Office,
}

impl<S: Found> Commits<S> {
    /// Starts as an unregistered producer. It seals a tail of `tail_max` entries.
    pub fn new(buffer_id: Uuid, shard: u32, tail_max: usize, producer: ProducerId) -> Self {
        Self {
            buffer_id,
            shard,
            tail_max,
            producer,
            registered: false,
            last: 0,
            known: Known::Unread,
            newest: 0,
            restored_from: None,
            unresolved: Unresolved::Nothing,
            forwarded: false,
            asked: Vec::new(),
            asked_clients: BTreeSet::new(),
            sealing: Sealing::Nothing,
            certificate: None,
            office: Office::Keep,
        }
    }

    /// Enters this certificate into the producer's row with its registration and its commits.
    #[must_use]
    pub fn with_certificate(mut self, certificate: Option<Fingerprint>) -> Self {
        self.certificate = certificate;
        self
    }

    /// What the next commits do about the lead.
    pub fn stand_for(&mut self, office: Office) {
        self.office = office;
    }

    /// Returns the step towards a manifest without this producer as the leader, without any segment. `None`: it does not lead.
    pub fn leave(&mut self, draw: &mut impl Draw) -> Option<Next<S::Version>> {
        let found = match &self.known {
            Known::Unread | Known::Outdated(_) => return Some(Next::Read),
            Known::Absent => return None,
            Known::Current(found) => found,
        };
        if !found.manifest().is_led_by(self.producer) {
            return None;
        }
        let mut next = found.manifest().clone();
        next.leave_lead(self.producer);
        let swap = Swap {
            expected: Some(found.version()),
            next: Box::new(next.stamped(draw.nonce())),
            attempt: None,
        };
        self.known = Known::Unread;
        Some(Next::Swap(swap))
    }

    /// The current id.
    pub fn producer(&self) -> ProducerId {
        self.producer
    }

    /// Returns true if the manifest had this id in its table when the producer last looked.
    pub fn is_registered(&self) -> bool {
        self.registered
    }

    /// The number of the last commit that certainly landed.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// The commit with an unknown outcome, and true if the store answered that it refused the swap.
    pub fn unresolved(&self) -> Option<(&Attempt, bool)> {
        match &self.unresolved {
            Unresolved::Nothing => None,
            Unresolved::Unknown(attempt) => Some((attempt, false)),
            Unresolved::Refused(attempt) => Some((attempt, true)),
        }
    }

    /// Returns true if the group may change. The segments and claims of an unresolved attempt must not, or the producer
    /// would misread its landing, nor the records of a number that was sent to another producer.
    pub fn may_grow(&self) -> bool {
        matches!(self.unresolved, Unresolved::Nothing) && !self.forwarded
    }

    /// Returns the number under which another producer may commit the group of this one. From now on the number belongs
    /// to exactly these records, whatever the other one answers, until the table shows it. `None` while an attempt is
    /// unresolved, and before the producer is registered.
    pub fn forward(&mut self) -> Option<u64> {
        let may = self.may_forward();
        self.forwarded |= may;
        may.then_some(self.last + 1)
    }

    /// Returns true if [`forward`](Self::forward) has a number. A restored manifest may lack what this producer has sent.
    pub fn may_forward(&self) -> bool {
        self.registered && self.restored_from.is_none() && matches!(self.unresolved, Unresolved::Nothing)
    }

    /// Returns true if the manifest, as far as it is known, refuses one of these clients. `for_good`: so does every later one.
    pub fn refuses_clients(&self, clients: &[ClientClaim], now_ms: u64, for_good: bool) -> bool {
        let checked = self.manifest().map(|state| state.check_clients(clients, now_ms));
        let Some(Err(unusable)) = checked else {
            return false;
        };
        unusable
            .iter()
            .any(|it| !for_good || is_for_good(&clients[it.place], &it.reason))
    }

    /// Reports, between two steps, another producer's answer that this number is in the log. Returns false if the number
    /// is not the one that was sent: an old answer came late or twice.
    pub fn landed_elsewhere(&mut self, number: u64) -> bool {
        let is_next = self.forwarded && number == self.last + 1;
        if is_next {
            self.succeed();
            // The known state may be older than that commit.
            self.doubt_known();
        }
        is_next
    }

    /// The manifest that the producer takes to be in force.
    pub fn manifest(&self) -> Option<&Manifest> {
        match &self.known {
            Known::Current(found) => Some(found.manifest()),
            Known::Unread | Known::Outdated(_) | Known::Absent => None,
        }
    }

    /// Forgets a manifest that others have probably replaced: the store would refuse the swap. Returns true if one was
    /// known.
    pub fn doubt_known(&mut self) -> bool {
        let (known, doubted) = match std::mem::replace(&mut self.known, Known::Unread) {
            Known::Current(found) => (Known::Outdated(found.version()), true),
            Known::Absent => (Known::Unread, true),
            unread => (unread, false),
        };
        self.known = known;
        doubted
    }

    /// Returns the next step for a group, which must not change until the step is reported. An empty group only registers
    /// the producer.
    pub fn next(&mut self, group: Group<'_>, draw: &mut impl Draw) -> Next<S::Version> {
        let is_held = |asked: &(ProducerId, u64)| group.held.iter().any(|claim| named(claim) == *asked);
        self.asked.retain(is_held);
        if !self.asked_clients.is_empty() {
            let there = requests(group);
            self.asked_clients.retain(|asked| there.contains(asked));
        }
        let next = self.decide(group, draw);
        match &next {
            Next::UploadAgain { .. } => {}
            // The table lacks every claim of the group, so an earlier attempt did not land. Nothing may wait for its outcome:
            // the group may be empty now.
            Next::Drop { .. } => {
                self.unresolved = Unresolved::Nothing;
                // Its clients may send their requests again.
                self.asked_clients.clear();
            }
            Next::Read => {
                self.asked = group.held.iter().map(named).collect();
                self.asked_clients = requests(group);
                // A state that was read earlier must not pass for the answer if the read fails.
                self.doubt_known();
            }
            Next::StorePage(page) => self.sealing = Sealing::Begun(page.clone()),
            Next::Swap(swap) => {
                self.known = Known::Unread;
                // A number is spent only after it was sent to another producer with the records of the attempt. If the table
                // shows it with records, they are these, whoever committed them.
                self.unresolved = match &swap.attempt {
                    Some(attempt) => Unresolved::Unknown(attempt.clone()),
                    None => Unresolved::Nothing,
                };
            }
            Next::Registered => self.registered = true,
            Next::Spent => self.succeed(),
            Next::Settle(settlement) => {
                self.asked.clear();
                self.asked_clients.clear();
                // The table shows a claim of the attempt, so another state than the expected one is in force. Each claim
                // that it does not show was settled with the others, or has disproved the attempt. The same holds if it
                // refuses a client that the attempt had: the expected state did not.
                self.unresolved = Unresolved::Nothing;
                if settlement.own.is_some() {
                    self.succeed();
                }
            }
            Next::Renew(renewal) => {
                self.producer = renewal.producer;
                self.registered = false;
                self.last = 0;
                self.restored_from = None;
                self.unresolved = Unresolved::Nothing;
                self.forwarded = false;
                self.asked_clients.clear();
            }
        }
        next
    }

    /// Reports a manifest that was read. `None`: there is none.
    ///
    /// A store, or a cache before it, may show earlier states again. Nothing follows from them, so one is not taken, and the
    /// next step is another read.
    pub fn read(&mut self, found: Option<S>) -> News {
        let number = found.as_ref().map_or(0, |found| found.manifest().stamp.version);
        if number < self.newest {
            return News {
                is_past: true,
                ..News::default()
            };
        }
        // The store has caught up after all.
        self.restored_from = self.restored_from.filter(|latest| number < *latest);
        self.resolve(found.as_ref());
        let version = found.as_ref().map(Found::version);
        let met_another =
            matches!(&self.known, Known::Outdated(outdated) if version.as_ref() != Some(outdated));
        let page_joined = match found {
            Some(found) => self.learn(found),
            None => {
                self.known = Known::Absent;
                false
            }
        };
        News {
            page_joined,
            met_another,
            ..News::default()
        }
    }

    /// Takes the earlier states that the store shows for those of a restored manifest. The producer goes on with them under a
    /// new id, unless the store shows a later one before that. The outcome of a commit on its way is unknown.
    pub fn restored(&mut self) {
        let latest = std::mem::take(&mut self.newest);
        let latest = latest.max(self.restored_from.unwrap_or(0));
        self.restored_from = self.registered.then_some(latest);
    }

    /// Reports the end of the page's upload. `is_stored`: the page is certainly in the store.
    pub fn stored(&mut self, is_stored: bool) {
        if is_stored {
            self.sealing = match std::mem::replace(&mut self.sealing, Sealing::Nothing) {
                Sealing::Begun(page) => Sealing::Stored(page),
                other => other,
            };
        }
    }

    /// Reports the answer to a swap, or its absence.
    pub fn swapped(&mut self, answer: Answer<S>) -> News {
        let mut news = News::default();
        match answer {
            Answer::Committed(found) => {
                news.page_joined = self.learn(found);
                if let Unresolved::Unknown(attempt) = &self.unresolved {
                    news.landed = Some(Landed {
                        first_sequence: attempt.first_sequence,
                        count: attempt.segments.len(),
                    });
                    match attempt.own(self.producer) {
                        [] => self.unresolved = Unresolved::Nothing,
                        _ => self.succeed(),
                    }
                }
            }
            Answer::Mismatch => {
                news.met_another = true;
                self.unresolved = match std::mem::replace(&mut self.unresolved, Unresolved::Nothing) {
                    Unresolved::Unknown(attempt) => Unresolved::Refused(attempt),
                    other => other,
                };
            }
            // The attempt has been unresolved since it was sent. The table shows whether a registration landed.
            Answer::Unknown => {}
        }
        news
    }

    /// Records that the commit after the last one has landed.
    fn succeed(&mut self) {
        self.last += 1;
        self.forwarded = false;
        self.unresolved = Unresolved::Nothing;
    }

    /// Takes over the state in force. Returns true if it refers to the page: the swap that added the page may have
    /// landed unreported.
    fn learn(&mut self, found: S) -> bool {
        let state = found.manifest();
        self.newest = state.stamp.version;
        let joined = match &self.sealing {
            Sealing::Begun(new) | Sealing::Stored(new) => {
                state.pages.iter().any(|page| page.page == new.name)
            }
            Sealing::Nothing => false,
        };
        if joined || state.tail.len() < self.tail_max {
            self.sealing = Sealing::Nothing;
        }
        self.known = Known::Current(found);
        joined
    }

    /// Forgets an unresolved attempt once it certainly did not land and never will. The table shows one that did land.
    fn resolve(&mut self, found: Option<&S>) {
        let (Some((attempt, _)), Some(found)) = (self.unresolved(), found) else {
            return;
        };
        if attempt.is_disproved(found.manifest()) {
            self.unresolved = Unresolved::Nothing;
        }
    }

    fn decide(&self, group: Group<'_>, draw: &mut impl Draw) -> Next<S::Version> {
        let found = match &self.known {
            Known::Unread | Known::Outdated(_) => return Next::Read,
            Known::Absent => None,
            Known::Current(found) => Some(found),
        };
        if !self.registered {
            return self.register(found, draw);
        }
        // A producer that has registered takes a missing manifest only as a restored one.
        let Some(found) = found.filter(|_| self.restored_from.is_none()) else {
            return Next::Renew(Renewal {
                producer: draw.producer_id(),
                reason: "the store shows earlier states of the manifest for good".to_owned(),
                in_doubt: !self.may_grow(),
                contradicted: true,
            });
        };
        self.page_to_store(found.manifest(), draw)
            .map_or_else(|| self.commit(found, group, draw), Next::StorePage)
    }

    /// Enters this producer into the manifest's table as its commit number 0.
    fn register(&self, found: Option<&S>, draw: &mut impl Draw) -> Next<S::Version> {
        let now_ms = draw.unix_ms();
        let (expected, mut registered) = match found {
            Some(found) if found.manifest().producer(self.producer).is_some() => return Next::Registered,
            Some(found) => (
                Some(found.version()),
                found.manifest().register(self.producer, now_ms),
            ),
            None => {
                let new = Manifest::new(self.buffer_id, self.shard);
                (None, new.register(self.producer, now_ms))
            }
        };
        registered.certify(self.producer, self.certificate);
        Next::Swap(Swap {
            expected,
            next: Box::new(registered.stamped(draw.nonce())),
            attempt: None,
        })
    }

    /// Returns the page of a full tail. The store must have the page before any manifest refers to it.
    fn page_to_store(&self, state: &Manifest, draw: &mut impl Draw) -> Option<NewPage> {
        if state.tail.len() < self.tail_max || self.sealed(state).is_some() {
            return None;
        }
        // As long as the log is the same, repeat an upload that was started: only this producer has the name.
        if let Sealing::Begun(new) = &self.sealing
            && new.sealed(state).is_some()
        {
            return Some(new.clone());
        }
        let name = draw.ulid(state.orphan_floor_ms);
        let (page, _) = state.seal(name, state.next_sequence.checked_sub(1)?)?;
        Some(NewPage {
            name,
            page: Arc::new(page),
        })
    }

    /// Returns the state with its full tail sealed, once that page is in the store.
    fn sealed(&self, state: &Manifest) -> Option<Manifest> {
        match &self.sealing {
            Sealing::Stored(new) => new.sealed(state),
            Sealing::Nothing | Sealing::Begun(_) => None,
        }
    }

    fn commit(&self, found: &S, group: Group<'_>, draw: &mut impl Draw) -> Next<S::Version> {
        let state = found.manifest();
        // A clock that was set back must not make a state refuse a client that it accepted.
        let attempted_ms = self.unresolved().map_or(0, |(attempt, _)| attempt.at_ms);
        let now_ms = draw.unix_ms().max(attempted_ms);
        let sealed = self.sealed(state);
        let claims = self.claims(group);
        let segments = group.segments;
        let clients = match state.check_clients(group.clients, now_ms) {
            Ok(checked) => Ok(checked),
            Err(unusable) => Err(self.settle_clients(found, group, unusable, now_ms, draw)),
        };
        match sealed.as_ref().unwrap_or(state).commit(&claims, segments, now_ms) {
            Ok(Commit {
                state: mut next,
                first_sequence,
            }) => {
                match clients {
                    Ok(checked) => next.enter_clients(checked, first_sequence, now_ms),
                    Err(settled) => return settled,
                }
                Next::Swap(Swap {
                    expected: Some(found.version()),
                    next: Box::new(self.in_office(*next, group).stamped(draw.nonce())),
                    attempt: Some(Attempt {
                        version: found.manifest().stamp.version,
                        number: self.last + 1,
                        claims,
                        first_sequence,
                        segments: segments.iter().map(|segment| segment.segment).collect(),
                        at_ms: now_ms,
                    }),
                })
            }
            Err(CommitRefusal::Claims(unusable)) => self.settle(state, group, unusable, draw),
            Err(CommitRefusal::BelowFloor {
                segments: places,
                floor_ms,
            }) => Next::UploadAgain { places, floor_ms },
            Err(CommitRefusal::Invalid(reason)) => {
                let base = sealed.as_ref().unwrap_or(state);
                let (place, reason) = first_invalid(base, &claims, group, now_ms, reason);
                self.drop_invalid(place, reason, group, draw)
            }
        }
    }

    /// Adds to a commit what is not part of the log: this producer's certificate, and who leads.
    fn in_office(&self, mut next: Manifest, group: Group<'_>) -> Manifest {
        next.certify(self.producer, self.certificate);
        match &self.office {
            Office::Keep => {}
            Office::Take(address) => next.take_lead(self.producer, address),
            Office::Leave => next.leave_lead(self.producer),
        }
        if !group.held.is_empty() {
            next.count_shared(self.producer);
        }
        next
    }

    /// The claims of a group, this producer's first.
    fn claims(&self, group: Group<'_>) -> Vec<Claim> {
        let own = (group.own > 0).then(|| Claim::one(self.producer, self.last + 1, 0..group.own));
        own.into_iter().chain(group.held.iter().cloned()).collect()
    }

    /// Handles claims that the table refuses. Each is judged by its own producer's row, because any of them may have
    /// entered the log without the others.
    fn settle(
        &self,
        state: &Manifest,
        group: Group<'_>,
        unusable: Vec<Unusable>,
        draw: &mut impl Draw,
    ) -> Next<S::Version> {
        let mut settlement = Settlement {
            own: None,
            held: Vec::new(),
            clients: Vec::new(),
        };
        for Unusable { claim, reason } in unusable {
            let Some(place) = claim.checked_sub(usize::from(group.own > 0)) else {
                match self.own(state, group, reason, draw) {
                    Ok(own) => settlement.own = Some(own),
                    Err(renew) => return renew,
                }
                continue;
            };
            let held = &group.held[place];
            let verdict = verdict(held, reason);
            let lacks = matches!(verdict, Verdict::Gap { .. } | Verdict::Forgotten);
            if !lacks || self.asked.contains(&named(held)) {
                settlement.held.push((place, verdict));
            }
        }
        if settlement.own.is_none() && settlement.held.is_empty() {
            return Next::Read;
        }
        Next::Settle(settlement)
    }

    /// Handles requests of clients that the table refuses, while it accepts this producer's own number: what it has of
    /// them is another producer's commit. A gap counts only if the table was read after the request arrived.
    ///
    /// Another producer that has this one's number may commit its records until the number is used. So nothing of them leaves
    /// the group, and no client hears of a refusal, before the number is spent.
    fn settle_clients(
        &self,
        found: &S,
        group: Group<'_>,
        unusable: Vec<UnusableClient>,
        now_ms: u64,
        draw: &mut impl Draw,
    ) -> Next<S::Version> {
        let (own, held): (Vec<_>, Vec<_>) = unusable
            .into_iter()
            .partition(|it| group.holder(it.place).is_none());
        let (own, crowding) = alone(found.manifest(), group, own, now_ms);
        let is_settled = |it: &UnusableClient| {
            let claim = &group.clients[it.place];
            is_for_good(claim, &it.reason) || self.asked_clients.contains(&request(group, it.place))
        };
        let own: Vec<_> = own.into_iter().filter(is_settled).collect();
        if self.forwarded && !own.is_empty() {
            return self.spend(found, now_ms, draw);
        }
        // A number of another producer belongs to exactly its records, so all of them leave the group.
        let held = held.iter().filter(|it| is_settled(it)).map(|it| it.place);
        let holders: BTreeSet<usize> = held.chain(crowding).filter_map(|it| group.holder(it)).collect();
        if own.is_empty() && holders.is_empty() {
            return Next::Read;
        }
        Next::Settle(Settlement {
            own: None,
            held: holders
                .into_iter()
                .map(|place| (place, Verdict::Client))
                .collect(),
            clients: own.into_iter().map(|it| (it.place, it.reason)).collect(),
        })
    }

    /// Uses the number that was sent to another producer, without its records.
    fn spend(&self, found: &S, now_ms: u64, draw: &mut impl Draw) -> Next<S::Version> {
        let spent = found.manifest().spend(self.producer, self.last + 1, now_ms);
        spent.map_or(Next::Read, |next| {
            Next::Swap(Swap {
                expected: Some(found.version()),
                next: Box::new(next.stamped(draw.nonce())),
                attempt: None,
            })
        })
    }

    /// Handles a table that refuses the next number of this producer.
    fn own(
        &self,
        state: &Manifest,
        group: Group<'_>,
        refusal: ClaimRefusal,
        draw: &mut impl Draw,
    ) -> Result<Own, Next<S::Version>> {
        match refusal {
            ClaimRefusal::Taken { row, .. }
                if row.commit == self.last + 1 && row.is_spent() && self.forwarded =>
            {
                Err(Next::Spent)
            }
            ClaimRefusal::Taken { row, .. } if row.commit == self.last + 1 => {
                self.already(state, &row, group, draw)
            }
            ClaimRefusal::NotRegistered(_) => Err(self.forgotten(state, refusal.to_string(), draw)),
            _ => Err(Self::contradicted(refusal.to_string(), draw)),
        }
    }

    /// Handles a table that shows a commit of the next number. That commit acknowledges the attempt with this number, or
    /// the records that were sent to another producer under it, and nothing else of the group.
    fn already(
        &self,
        state: &Manifest,
        row: &ProducerRow,
        group: Group<'_>,
        draw: &mut impl Draw,
    ) -> Result<Own, Next<S::Version>> {
        let (first_sequence, count) = (row.first_sequence, row.count);
        let confirmed = self.unresolved().and_then(|(attempt, _)| {
            let own = attempt.own(self.producer);
            let ours = group.segments[..group.own].iter().map(|segment| segment.segment);
            let is_confirmed = attempt.number == row.commit
                && !row.is_spent()
                && attempt.first_sequence == first_sequence
                && own.len() as u64 == count
                && own.len() <= group.own
                && ours.zip(own).all(|(of, name)| of == *name)
                && state.may_have(first_sequence, own);
            is_confirmed.then_some(own.len())
        });
        match confirmed {
            Some(count) => Ok(Own::Landed(Landed {
                first_sequence,
                count,
            })),
            None if self.forwarded => Ok(Own::Elsewhere {
                first_sequence,
                count,
            }),
            None => {
                let reason = format!(
                    "the manifest has a commit {} of producer {} that this producer did not make: \
                     {count} segments from sequence {first_sequence} on",
                    row.commit, self.producer
                );
                Err(Self::contradicted(reason, draw))
            }
        }
    }

    /// Drops a segment that the manifest refuses. An earlier attempt was made on another state than this one, so that
    /// attempt certainly did not land. But if another producer has the same number, it may commit these records yet.
    fn drop_invalid(
        &self,
        place: usize,
        reason: String,
        group: Group<'_>,
        draw: &mut impl Draw,
    ) -> Next<S::Version> {
        if self.forwarded && place < group.own {
            return Next::Renew(Renewal {
                producer: draw.producer_id(),
                reason,
                in_doubt: true,
                contradicted: false,
            });
        }
        Next::Drop { place, reason }
    }

    /// The manifest does not know this producer (any more), so its table cannot resolve an attempt. The end of the log
    /// may: after a refusal it is worth a look, because another producer nearly always was first.
    fn forgotten(&self, state: &Manifest, reason: String, draw: &mut impl Draw) -> Next<S::Version> {
        let in_doubt = self.unresolved().is_some_and(|(attempt, refused)| {
            let lacks = state.lacks(attempt.first_sequence, &attempt.segments);
            let disproved = refused && lacks;
            !disproved
        });
        Next::Renew(Renewal {
            producer: draw.producer_id(),
            reason,
            in_doubt: in_doubt || self.forwarded,
            contradicted: false,
        })
    }

    /// Another process uses the id, or somebody restored an older manifest: its statements about the group are not
    /// trustworthy.
    fn contradicted(reason: String, draw: &mut impl Draw) -> Next<S::Version> {
        Next::Renew(Renewal {
            producer: draw.producer_id(),
            reason,
            in_doubt: true,
            contradicted: true,
        })
    }
}

/// Judges this producer's clients, which are refused in the group, without those of other producers: these may leave the group. Returns
/// what is refused then, too, and the places of other producers' clients that keep the rest out.
fn alone(
    state: &Manifest,
    group: Group<'_>,
    own: Vec<UnusableClient>,
    now_ms: u64,
) -> (Vec<UnusableClient>, Vec<usize>) {
    let places = 0..group.clients.len();
    let (held, mine): (Vec<usize>, Vec<usize>) = places.partition(|it| group.holder(*it).is_some());
    if held.is_empty() || own.is_empty() {
        return (own, Vec::new());
    }
    let claims: Vec<ClientClaim> = mine.iter().map(|it| group.clients[*it].clone()).collect();
    let refused = state.check_clients(&claims, now_ms).err().unwrap_or_default();
    let mut reasons: BTreeMap<usize, ClientRefusal> = refused
        .into_iter()
        .map(|it| (mine[it.place], it.reason))
        .collect();
    let (mut alone, mut crowding) = (Vec::new(), Vec::new());
    for UnusableClient { place, reason } in own {
        if let Some(reason) = reasons.remove(&place) {
            alone.push(UnusableClient { place, reason });
            continue;
        }
        let is_in_the_way = |other: &ClientClaim| match reason {
            ClientRefusal::Full => other.numbers == Numbers::Once,
            _ => other.client == group.clients[place].client,
        };
        crowding.extend(held.iter().filter(|it| is_in_the_way(&group.clients[**it])));
    }
    (alone, crowding)
}

/// Returns true if a state that was read before the request arrived may refuse it, because no later one takes it.
fn is_for_good(claim: &ClientClaim, refusal: &ClientRefusal) -> bool {
    match refusal {
        ClientRefusal::Reused | ClientRefusal::Fenced { .. } | ClientRefusal::Invalid(_) => true,
        // Sequence numbers start again at 0: to a row that is far behind, new ones look like old ones.
        ClientRefusal::Repeated { .. } | ClientRefusal::Overlaps => {
            !matches!(claim.numbers, Numbers::Sequence { .. })
        }
        ClientRefusal::Gap { .. }
        | ClientRefusal::Unknown
        | ClientRefusal::Full
        | ClientRefusal::Position { .. }
        | ClientRefusal::SetAnew => false,
    }
}

/// The producer of a claim, and the first of its numbers.
fn named(claim: &Claim) -> (ProducerId, u64) {
    (claim.producer, claim.first)
}

/// A client's request in a group: the claim of another producer that it belongs to, if it does, and its client and numbers.
type Request = (Option<(ProducerId, u64)>, ClientId, Numbers);

/// The request at this place among the clients of a group.
fn request(group: Group<'_>, place: usize) -> Request {
    let holder = group.holder(place).and_then(|held| group.held.get(held));
    let claim = &group.clients[place];
    (holder.map(named), claim.client, claim.numbers)
}

fn requests(group: Group<'_>) -> BTreeSet<Request> {
    let places = 0..group.clients.len();
    places.map(|place| request(group, place)).collect()
}

/// What the table says about a claim that it refuses.
fn verdict(claim: &Claim, refusal: ClaimRefusal) -> Verdict {
    match refusal {
        ClaimRefusal::Taken { row, .. } if row.commit == claim.last && row.is_spent() => Verdict::Spent,
        ClaimRefusal::Taken { row, .. } if row.commit >= claim.last => Verdict::Committed {
            first_sequence: (row.commit == claim.last).then_some(row.first_sequence),
        },
        ClaimRefusal::Taken { row, .. } => Verdict::Partly { through: row.commit },
        ClaimRefusal::Gap { last, .. } => Verdict::Gap { last },
        ClaimRefusal::NotRegistered(_) => Verdict::Forgotten,
        ClaimRefusal::Twice(_) | ClaimRefusal::Invalid { .. } => Verdict::Invalid,
    }
}

/// Returns the place of the first segment that the manifest refuses, and the reason.
fn first_invalid(
    state: &Manifest,
    claims: &[Claim],
    group: Group<'_>,
    now_ms: u64,
    reason: String,
) -> (usize, String) {
    let refused = (1..=group.segments.len()).find_map(|count| {
        let claims: Vec<Claim> = claims.iter().filter_map(|claim| within(claim, count)).collect();
        match state.commit(&claims, &group.segments[..count], now_ms) {
            Err(CommitRefusal::Invalid(reason)) => Some((count - 1, reason)),
            _ => None,
        }
    });
    // The state refuses all of them, and so the first of them that it cannot have with those before it.
    refused.unwrap_or((group.segments.len().saturating_sub(1), reason))
}

/// A claim in a commit of the first `count` segments.
fn within(claim: &Claim, count: usize) -> Option<Claim> {
    let segments = claim.segments.start..claim.segments.end.min(count);
    (!segments.is_empty()).then(|| Claim {
        segments,
        ..claim.clone()
    })
}
