//! The segments of the next commit: this producer's, those with blocks of others, and those that others have uploaded.

use std::ops::Range;

use millpond_manifest::{Claim, ClientClaim, NewSegment};

use crate::claims::{self, Judged, Whose};
use crate::clients::CLIENTS_FORWARD_MAX;
use crate::commit::{Group, Verdict};
use crate::lead::{Foreign, Lead, Outcome, Ticket};
use crate::peers::{PeerCommit, PeerRefusal};
use crate::segment::UploadedWork;

/// The next commit.
#[derive(Default)]
pub(crate) struct Members {
    /// Segments that this producer uploaded. Those with its own records come first.
    pub(crate) works: Vec<UploadedWork>,
    /// Segments that others uploaded. They follow the works.
    pub(crate) foreign: Vec<Foreign>,
    /// Those whose claim left the group because of a client. They hear of it after the next swap: they commit for themselves then,
    /// and would race with it.
    refused: Vec<Ticket>,
}

/// What a commit consists of. It does not change while an attempt is unresolved.
pub(crate) struct Described {
    segments: Vec<NewSegment>,
    own: usize,
    held: Vec<Claim>,
    /// Whose claim each of `held` is.
    places: Vec<Place>,
    clients: Vec<ClientClaim>,
    /// Whose records each of `clients` belongs to, and the held claim if it is of one.
    whose: Vec<Whose>,
    holders: Vec<Option<usize>>,
}

/// The place of another producer's claim.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// In this work, this guest.
    Guest(usize, usize),
    /// This one of the foreign.
    Foreign(usize),
}

impl Described {
    pub(crate) fn group(&self) -> Group<'_> {
        Group {
            segments: &self.segments,
            own: self.own,
            held: &self.held,
            clients: &self.clients,
            holders: &self.holders,
        }
    }

    /// The work of one of this producer's clients, and its place there.
    pub(crate) fn client(&self, place: usize) -> Option<(usize, usize)> {
        match self.whose.get(place)? {
            &Whose::Own { work, place } => Some((work, place)),
            Whose::Held(_) => None,
        }
    }
}

impl Members {
    pub(crate) fn is_empty(&self) -> bool {
        self.works.is_empty() && self.foreign.is_empty()
    }

    /// The number of segments.
    pub(crate) fn len(&self) -> usize {
        let foreign = self.foreign.iter().map(|foreign| foreign.segments.len());
        self.works.len() + foreign.sum::<usize>()
    }

    /// Returns true if another producer may commit all of it: nothing is another producer's or a bridge's.
    pub(crate) fn may_be_forwarded(&self) -> bool {
        let numbered = self.works.iter().map(|it| it.work.clients.len()).sum::<usize>();
        let is_own = self.foreign.is_empty() && self.works.iter().all(|it| it.work.may_be_forwarded());
        is_own && numbered <= CLIENTS_FORWARD_MAX
    }

    /// Returns true if it has requests of this producer's clients that number them.
    pub(crate) fn are_numbered(&self) -> bool {
        self.works.iter().any(|it| it.work.is_numbered())
    }

    /// The number of numbered requests of other producers.
    pub(crate) fn clients_of_others(&self) -> usize {
        let guests = self.works.iter().flat_map(|it| &it.work.guests);
        let foreign = self.foreign.iter().map(|foreign| foreign.clients.len());
        guests.map(|guest| guest.clients.len()).chain(foreign).sum()
    }

    /// Tells other producers whose claims left the group because of a client.
    pub(crate) fn answer_refused(&mut self) {
        for ticket in self.refused.drain(..) {
            ticket.answer(&Err(PeerRefusal::Client));
        }
    }

    /// Describes the commit. Moves works with own records to the front: one claim covers them.
    pub(crate) fn describe(&mut self) -> Described {
        self.works.sort_by_key(|uploaded| !has_own(uploaded));
        let own = self.works.iter().filter(|uploaded| has_own(uploaded)).count();
        let mut segments: Vec<NewSegment> = self.works.iter().map(UploadedWork::describe).collect();
        let (mut held, mut places) = (Vec::new(), Vec::new());
        let mut clients = claims::own(self.works.iter().map(|uploaded| &uploaded.work));
        let mut hold = |ticket: &Ticket, of: &[ClientClaim], at: Range<usize>, place| {
            clients.extend(of.iter().map(|claim| Judged {
                claim: ClientClaim {
                    segment: at.start + claim.segment,
                    ..claim.clone()
                },
                whose: Whose::Held(held.len()),
            }));
            held.push(Claim::one(ticket.producer, ticket.number, at));
            places.push(place);
        };
        for (at, uploaded) in self.works.iter().enumerate() {
            for (place, guest) in uploaded.work.guests.iter().enumerate() {
                hold(&guest.ticket, &guest.clients, at..at + 1, Place::Guest(at, place));
            }
        }
        for (place, foreign) in self.foreign.iter().enumerate() {
            let at = segments.len()..segments.len() + foreign.segments.len();
            hold(&foreign.ticket, &foreign.clients, at, Place::Foreign(place));
            segments.extend(foreign.segments.iter().cloned());
        }
        claims::sort(&mut clients);
        let holder = |it: &Judged| match it.whose {
            Whose::Own { .. } => None,
            Whose::Held(held) => Some(held),
        };
        Described {
            segments,
            own,
            held,
            places,
            holders: clients.iter().map(holder).collect(),
            whose: clients.iter().map(|it| it.whose).collect(),
            clients: clients.into_iter().map(|it| it.claim).collect(),
        }
    }

    /// Answers everybody who waits for the foreign segments, which are all in the log.
    pub(crate) fn foreign_landed(&mut self, first_sequence: u64, lead: &Lead) {
        let mut sequence = first_sequence;
        for foreign in self.foreign.drain(..) {
            let count = foreign.segments.len() as u64;
            foreign.ticket.answer(&committed(sequence, lead));
            sequence += count;
        }
    }

    /// Answers claims of others that the table has settled, and takes them out. Returns, for each work, whether it still has
    /// blocks of such a claim.
    pub(crate) fn settle_held(
        &mut self,
        described: &Described,
        held: &[(usize, Verdict)],
        lead: &Lead,
    ) -> Vec<bool> {
        let mut changed = vec![false; self.works.len()];
        // From the last on, so that the places of the others stay.
        for (place, verdict) in held.iter().rev() {
            let ticket = match described.places.get(*place) {
                Some(&Place::Guest(work, guest)) => {
                    changed[work] = true;
                    self.works[work].work.guests.remove(guest).ticket
                }
                Some(&Place::Foreign(place)) => self.foreign.remove(place).ticket,
                None => continue,
            };
            match verdict {
                Verdict::Client => self.refused.push(ticket),
                verdict => ticket.answer(&outcome(*verdict, lead)),
            }
        }
        changed
    }

    /// Takes the requests of others that have a segment at one of these places out of the group.
    pub(crate) fn remove_foreign(&mut self, places: &[usize]) -> Vec<Foreign> {
        let mut end = self.works.len();
        let has_one = |foreign: &mut Foreign| {
            let start = end;
            end += foreign.segments.len();
            places.iter().any(|place| (start..end).contains(place))
        };
        self.foreign.extract_if(.., has_one).collect()
    }

    /// Takes the segment at this place out of the group.
    pub(crate) fn remove(&mut self, place: usize) -> Removed {
        if place < self.works.len() {
            return Removed::Work(Box::new(self.works.remove(place)));
        }
        let mut at = self.works.len();
        let foreign = self.foreign.iter().position(|foreign| {
            at += foreign.segments.len();
            place < at
        });
        foreign.map_or(Removed::Nothing, |foreign| {
            Removed::Foreign(self.foreign.remove(foreign))
        })
    }
}

/// What was at a place of the group.
pub(crate) enum Removed {
    Work(Box<UploadedWork>),
    Foreign(Foreign),
    Nothing,
}

/// Returns true if a segment has records of this producer.
fn has_own(uploaded: &UploadedWork) -> bool {
    !uploaded.work.own.is_empty() || uploaded.work.guests.is_empty()
}

/// The answer for records that are in the log from this sequence on.
pub(crate) fn committed(first_sequence: u64, lead: &Lead) -> Outcome {
    Ok(PeerCommit {
        first_sequence,
        closes: lead.closes(tokio::time::Instant::now()),
    })
}

fn outcome(verdict: Verdict, lead: &Lead) -> Outcome {
    match verdict {
        Verdict::Committed {
            first_sequence: Some(first_sequence),
        } => committed(first_sequence, lead),
        Verdict::Committed { first_sequence: None } | Verdict::Partly { .. } => {
            let reason = "a later number of the producer is in the log".to_owned();
            Err(PeerRefusal::Invalid(reason))
        }
        Verdict::Gap { last } => Err(PeerRefusal::Invalid(format!(
            "the producer's last number in the log is {last}"
        ))),
        Verdict::Spent => {
            let reason = "the producer has spent the number without its records".to_owned();
            Err(PeerRefusal::Invalid(reason))
        }
        Verdict::Client => Err(PeerRefusal::Client),
        Verdict::Forgotten => Err(PeerRefusal::Invalid("the producer is not registered".to_owned())),
        Verdict::Invalid => Err(PeerRefusal::Invalid("the claim is not valid".to_owned())),
    }
}
