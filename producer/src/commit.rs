//! Decides the producer's next request for a commit. The inputs are the manifest that it knows, its group of uploaded
//! segments, its page and its unresolved attempt. Pure: no clock, no store, no waiting. `committer.rs` makes the
//! requests and reports the answers. Public for the model check of the protocols and for the scripts that Rust and Go
//! both run.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use millpond_manifest::{
    Claim, ClaimRefusal, Commit, CommitRefusal, Manifest, NewSegment, Page, ProducerId, Snapshot,
};
use millpond_storage::Version;
use ulid::Ulid;
use uuid::Uuid;

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

/// A commit whose swap was sent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attempt<V> {
    /// The version that the swap replaces.
    pub expected: V,
    /// The producer's number of this commit.
    pub number: u64,
    /// The sequence of its first segment if it lands.
    pub first_sequence: u64,
    /// The names of its segments, in their order.
    pub segments: Vec<Ulid>,
}

/// A commit with an unknown outcome, from the moment its swap is sent.
///
/// While the manifest still has the expected version, the write may yet land. Once the manifest has another version,
/// either the table shows the commit, or the write never happened and never will. A refusal proves no more than a lost
/// answer: if a proxy repeats a request, the store refuses the second copy because the first landed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Unresolved<V> {
    Nothing,
    /// The store has not answered.
    Unknown(Attempt<V>),
    /// The store refused the swap.
    Refused(Attempt<V>),
}

/// A page that the next swap adds to the manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewPage {
    /// The page's name. Nobody else has this name, so it determines the content.
    pub name: Ulid,
    /// The page's content.
    pub page: Arc<Page>,
}

impl Hash for NewPage {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.name.hash(hasher);
        self.page.first.hash(hasher);
        for entry in &self.page.entries {
            entry.segment.hash(hasher);
        }
    }
}

impl NewPage {
    /// Returns the page and the sealed state, if the state's log is still the one that the page was made from.
    fn sealed(&self, state: &Manifest) -> Option<Manifest> {
        let (page, sealed) = state.seal(self.name, self.page.last())?;
        (page == *self.page).then_some(sealed)
    }
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

/// The next step of a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next<V> {
    /// Read the manifest, and report it to [`Commits::read`].
    Read,
    /// Put this page into the store, and report to [`Commits::stored`].
    StorePage(NewPage),
    /// Swap the manifest, and report to [`Commits::swapped`].
    Swap(Swap<V>),
    /// No request is needed: the manifest has this producer in its table.
    Registered,
    /// Tell callers that their segments are in the log: an earlier attempt landed unreported.
    Acknowledge(Landed),
    /// Upload these segments again under names with a time of at least `floor_ms`: the objects under the present names
    /// may be deleted at any time.
    UploadAgain {
        /// Their places in the group.
        places: Vec<usize>,
        /// Unix ms.
        floor_ms: u64,
    },
    /// Take a segment that the manifest refuses for good out of the group. It has certainly not landed.
    Drop {
        /// Its place in the group.
        place: usize,
        /// For its callers.
        reason: String,
    },
    /// The producer continues under a new id.
    Renew(Renewal),
}

/// One compare-and-set of the manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swap<V> {
    /// The version to replace. `None`: the manifest must not exist.
    pub expected: Option<V>,
    /// The state to write.
    pub next: Box<Manifest>,
    /// The commit that the swap carries. `None`: it registers the producer.
    pub attempt: Option<Attempt<V>>,
}

/// The first segments of the group are in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Landed {
    /// The sequence of the first of these segments.
    pub first_sequence: u64,
    /// The number of these segments.
    pub count: usize,
}

/// A new id, because the manifest does not show the outcome of the commits under the old one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Renewal {
    /// The new id.
    pub producer: ProducerId,
    /// The reason, for the log and for callers.
    pub reason: String,
    /// True if the whole group may or may not be in the log, so callers learn that the outcome is unknown. Otherwise no
    /// segment of it is in the log, and the producer commits it under the new id.
    pub in_doubt: bool,
    /// True if the manifest contradicts this producer: another one has its id, or somebody restored an older state.
    pub contradicted: bool,
}

/// The answer to a swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer<S> {
    /// The swap landed; this state is in force.
    Committed(S),
    /// The store refused the swap.
    Mismatch,
    /// The swap may have landed, or may still land.
    Unknown,
}

/// The news from an answer or from a manifest that was read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct News {
    /// Tell callers that their segments are in the log.
    pub landed: Option<Landed>,
    /// The manifest refers to this producer's page.
    pub page_joined: bool,
    /// Another producer has committed since this one last saw the manifest.
    pub met_another: bool,
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
    unresolved: Unresolved<S::Version>,
    sealing: Sealing,
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
            unresolved: Unresolved::Nothing,
            sealing: Sealing::Nothing,
        }
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
    pub fn unresolved(&self) -> Option<(&Attempt<S::Version>, bool)> {
        match &self.unresolved {
            Unresolved::Nothing => None,
            Unresolved::Unknown(attempt) => Some((attempt, false)),
            Unresolved::Refused(attempt) => Some((attempt, true)),
        }
    }

    /// Returns true if more segments may join the group. The segments of an unresolved attempt must not change, or the
    /// producer would misread its landing.
    pub fn may_grow(&self) -> bool {
        matches!(self.unresolved, Unresolved::Nothing)
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

    /// Returns the next step for a group of segments, which must not change until the step is reported. An empty group
    /// only registers the producer.
    pub fn next(&mut self, group: &[NewSegment], draw: &mut impl Draw) -> Next<S::Version> {
        let next = self.decide(group, draw);
        match &next {
            Next::Read | Next::UploadAgain { .. } | Next::Drop { .. } => {}
            Next::StorePage(page) => self.sealing = Sealing::Begun(page.clone()),
            Next::Swap(swap) => {
                self.known = Known::Unread;
                if let Some(attempt) = &swap.attempt {
                    self.unresolved = Unresolved::Unknown(attempt.clone());
                }
            }
            Next::Registered => self.registered = true,
            Next::Acknowledge(_) => self.succeed(),
            Next::Renew(renewal) => {
                self.producer = renewal.producer;
                self.registered = false;
                self.last = 0;
                self.unresolved = Unresolved::Nothing;
            }
        }
        next
    }

    /// Reports a manifest that was read. `None`: there is none.
    pub fn read(&mut self, found: Option<S>) -> News {
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
            landed: None,
        }
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
                    self.succeed();
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
        self.unresolved = Unresolved::Nothing;
    }

    /// Takes over the state in force. Returns true if it refers to the page: the swap that added the page may have
    /// landed unreported.
    fn learn(&mut self, found: S) -> bool {
        let state = found.manifest();
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
        let Some((attempt, _)) = self.unresolved() else {
            return;
        };
        let changed = found.is_none_or(|found| found.version() != attempt.expected);
        let row = found.and_then(|found| found.manifest().producer(self.producer));
        if changed && row.is_some_and(|row| row.commit <= self.last) {
            self.unresolved = Unresolved::Nothing;
        }
    }

    fn decide(&self, group: &[NewSegment], draw: &mut impl Draw) -> Next<S::Version> {
        let found = match &self.known {
            Known::Unread | Known::Outdated(_) => return Next::Read,
            Known::Absent => None,
            Known::Current(found) => Some(found),
        };
        if !self.registered {
            return self.register(found, draw);
        }
        let Some(found) = found else {
            // The producer was registered, and the manifest no longer exists: treat it as if the manifest had forgotten
            // the producer.
            return self.forgotten(None, "the manifest is gone", draw);
        };
        self.page_to_store(found.manifest(), draw)
            .map_or_else(|| self.commit(found, group, draw), Next::StorePage)
    }

    /// Enters this producer into the manifest's table as its commit number 0.
    fn register(&self, found: Option<&S>, draw: &mut impl Draw) -> Next<S::Version> {
        let now_ms = draw.unix_ms();
        let (expected, registered) = match found {
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

    fn commit(&self, found: &S, group: &[NewSegment], draw: &mut impl Draw) -> Next<S::Version> {
        let (state, number, now_ms) = (found.manifest(), self.last + 1, draw.unix_ms());
        let sealed = self.sealed(state);
        let claims = [Claim::one(self.producer, number, 0..group.len())];
        match sealed.as_ref().unwrap_or(state).commit(&claims, group, now_ms) {
            Ok(Commit {
                state: next,
                first_sequence,
            }) => Next::Swap(Swap {
                expected: Some(found.version()),
                next: Box::new(next.stamped(draw.nonce())),
                attempt: Some(Attempt {
                    expected: found.version(),
                    number,
                    first_sequence,
                    segments: group.iter().map(|segment| segment.segment).collect(),
                }),
            }),
            Err(CommitRefusal::Claims(mut unusable)) => match unusable.pop().map(|claim| claim.reason) {
                Some(ClaimRefusal::Taken { row, .. }) if row.commit == number => {
                    self.already(state, row.first_sequence, row.count, group, draw)
                }
                Some(refusal @ ClaimRefusal::NotRegistered(_)) => {
                    self.forgotten(Some(state), &refusal.to_string(), draw)
                }
                refusal => {
                    let reason = refusal.map_or_else(String::new, |refusal| refusal.to_string());
                    Self::contradicted(reason, draw)
                }
            },
            Err(CommitRefusal::BelowFloor {
                segments: places,
                floor_ms,
            }) => Next::UploadAgain { places, floor_ms },
            Err(CommitRefusal::Invalid(reason)) => self.drop_invalid(state, group, now_ms, reason),
        }
    }

    /// Handles a table that shows a commit of the next number. That commit acknowledges the attempt with this number,
    /// and nothing else of the group.
    fn already(
        &self,
        state: &Manifest,
        first_sequence: u64,
        count: u64,
        group: &[NewSegment],
        draw: &mut impl Draw,
    ) -> Next<S::Version> {
        let confirmed = self.unresolved().filter(|(attempt, _)| {
            attempt.number == self.last + 1
                && attempt.first_sequence == first_sequence
                && attempt.segments.len() as u64 == count
                && attempt.segments.len() <= group.len()
                && attempt
                    .segments
                    .iter()
                    .zip(group)
                    .all(|(name, of)| *name == of.segment)
                && state.may_have(first_sequence, &attempt.segments)
        });
        let count = match confirmed {
            Some((attempt, _)) => attempt.segments.len(),
            None => {
                let reason = format!(
                    "the manifest has a commit {} of producer {} that this producer did not make: \
                     {count} segments from sequence {first_sequence} on",
                    self.last + 1,
                    self.producer
                );
                return Self::contradicted(reason, draw);
            }
        };
        Next::Acknowledge(Landed {
            first_sequence,
            count,
        })
    }

    /// Drops the first segment that the manifest refuses. An earlier attempt was made on another state than this one,
    /// so that attempt certainly did not land.
    fn drop_invalid(
        &self,
        state: &Manifest,
        group: &[NewSegment],
        now_ms: u64,
        reason: String,
    ) -> Next<S::Version> {
        let refused = (1..=group.len()).find_map(|count| {
            let claims = [Claim::one(self.producer, self.last + 1, 0..count)];
            match state.commit(&claims, &group[..count], now_ms) {
                Err(CommitRefusal::Invalid(reason)) => Some((count - 1, reason)),
                _ => None,
            }
        });
        // The unsealed state refuses every segment that the sealed one refuses.
        let (place, reason) = refused.unwrap_or((group.len().saturating_sub(1), reason));
        Next::Drop { place, reason }
    }

    /// The manifest does not know this producer (any more), so its table cannot resolve an attempt. The end of the log
    /// may: after a refusal it is worth a look, because another producer nearly always was first.
    fn forgotten(&self, state: Option<&Manifest>, reason: &str, draw: &mut impl Draw) -> Next<S::Version> {
        let in_doubt = self.unresolved().is_some_and(|(attempt, refused)| {
            let lacks = state.is_some_and(|state| state.lacks(attempt.first_sequence, &attempt.segments));
            let disproved = refused && lacks;
            !disproved
        });
        Next::Renew(Renewal {
            producer: draw.producer_id(),
            reason: reason.to_owned(),
            in_doubt,
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
