//! The inputs and outputs of the decisions.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use millpond_manifest::{Claim, ClientClaim, ClientRefusal, Manifest, NewSegment, Page, ProducerId};
use ulid::Ulid;

/// The next commit of a producer.
#[derive(Debug, Clone, Copy)]
pub struct Group<'a> {
    /// Uploaded segments, in the order of the log.
    pub segments: &'a [NewSegment],
    /// The number of segments, from the first one on, with records of this producer.
    pub own: usize,
    /// The claims of other producers whose records this one holds, at most one for each. They say which of `segments`
    /// have the records. The bytes of a segment hold the records of its claims, and no others.
    pub held: &'a [Claim],
    /// The clients that number their requests, in the order in which they are judged.
    pub clients: &'a [ClientClaim],
    /// For each of these, by its place, the held claim that its records belong to. `None`, and nothing: this producer's own.
    pub holders: &'a [Option<usize>],
}

impl<'a> Group<'a> {
    /// A commit without records of others.
    pub fn of(segments: &'a [NewSegment]) -> Group<'a> {
        Group {
            segments,
            own: segments.len(),
            held: &[],
            clients: &[],
            holders: &[],
        }
    }

    /// The held claim that the records of a client belong to. `None`: this producer's own.
    pub(super) fn holder(&self, client: usize) -> Option<usize> {
        self.holders.get(client).copied().flatten()
    }
}

/// A commit whose swap was sent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attempt {
    /// The number of the state that the swap replaces. Each state that replaces another one has a larger number.
    pub version: u64,
    /// The number of this producer's own records.
    pub number: u64,
    /// The claims of everybody whose records are in the segments. This producer's claim is the first one, unless the
    /// commit has none of its records.
    pub claims: Vec<Claim>,
    /// The sequence of its first segment if it lands.
    pub first_sequence: u64,
    /// The names of its segments, in their order.
    pub segments: Vec<Ulid>,
    /// Unix time in milliseconds at which its claims were checked.
    pub at_ms: u64,
}

impl Attempt {
    /// The names of the segments with records of this producer.
    pub(super) fn own(&self, producer: ProducerId) -> &[Ulid] {
        let claim = self.claims.first().filter(|claim| claim.producer == producer);
        claim.map_or(&[], |claim| &self.segments[claim.segments.clone()])
    }

    /// Returns true if this state proves that the attempt did not land and never will. A commit enters all of its claims or
    /// none, so any of them is proof, in a later state than the one that the attempt replaces. An earlier one, from a store
    /// that shows old states again, says nothing.
    pub(super) fn is_disproved(&self, state: &Manifest) -> bool {
        if state.stamp.version <= self.version {
            return false;
        }
        self.claims.iter().any(|claim| {
            let row = state.producer(claim.producer);
            row.is_some_and(|row| row.commit < claim.first)
        })
    }
}

/// What a commit does about the lead.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Office {
    /// It leaves the lead to whom it is.
    Keep,
    /// This producer takes the lead, and others reach it at this address.
    Take(Arc<str>),
    /// This producer stops leading, if it leads.
    Leave,
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
    pub(super) fn sealed(&self, state: &Manifest) -> Option<Manifest> {
        let (page, sealed) = state.seal(self.name, self.page.last())?;
        (page == *self.page).then_some(sealed)
    }
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
    /// No request is needed: the number that the records were sent under to another producer is spent without them. They get
    /// the next one, and the group may change.
    Spent,
    /// Tell callers what the table shows.
    Settle(Settlement),
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
    /// The commit that the swap carries. `None`: it registers the producer, leaves the lead or spends a number.
    pub attempt: Option<Attempt>,
}

/// The first segments of the group are in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Landed {
    /// The sequence of the first of these segments.
    pub first_sequence: u64,
    /// The number of these segments.
    pub count: usize,
}

/// What the table shows about claims of the group. They leave it, and segments that also hold records of other claims
/// are built anew without theirs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The outcome of this producer's own records.
    pub own: Option<Own>,
    /// The outcome of each of these held claims, by its place in the group.
    pub held: Vec<(usize, Verdict)>,
    /// Requests of clients that the log has already or never takes, by their place in the group. They are certainly not
    /// in the log through this producer, and their records leave the segments.
    pub clients: Vec<(usize, ClientRefusal)>,
}

impl Settlement {
    /// Returns true if the log refuses requests of clients. Nothing of it is in the log then.
    pub fn refuses_clients(&self) -> bool {
        !self.clients.is_empty() || self.held.iter().any(|(_, verdict)| *verdict == Verdict::Client)
    }
}

/// The outcome of this producer's own records: they are in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Own {
    /// An attempt of this producer landed unreported.
    Landed(Landed),
    /// They are in segments of another producer, to which they were forwarded.
    Elsewhere {
        /// The sequence of the first of these segments.
        first_sequence: u64,
        /// The number of these segments.
        count: u64,
    },
}

/// The outcome of a claim that this producer held for another. It follows from that producer's row alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// All of its numbers are in the log.
    Committed {
        /// Sequence of the first segment with their records, if the table still has it.
        first_sequence: Option<u64>,
    },
    /// Its numbers up to this one are in the log. The others may come again.
    Partly {
        /// The last number in the log.
        through: u64,
    },
    /// Numbers before it are missing.
    Gap {
        /// The last number in the log.
        last: u64,
    },
    /// The manifest does not know its producer. Nobody can tell any more what became of a number that was sent before.
    Forgotten,
    /// Its producer has spent the number without the records.
    Spent,
    /// The log cannot take a client's request in it as it is. Its producer knows what the client has to hear.
    Client,
    /// The claim breaks a rule.
    Invalid,
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
    /// Tell callers that all segments of the group, and with them all held claims, are in the log.
    pub landed: Option<Landed>,
    /// The manifest refers to this producer's page.
    pub page_joined: bool,
    /// Another producer has committed since this one last saw the manifest.
    pub met_another: bool,
    /// The store showed an earlier state than before. It was not taken.
    pub is_past: bool,
}
