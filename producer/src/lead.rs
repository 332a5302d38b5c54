//! What the stages of a producer share about the lead: whether it leads or follows, whose records it holds, and the rhythm
//! of its segments.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millpond_manifest::{Claim, ClientClaim, Fingerprint, Manifest, NewSegment, ProducerId};
use millpond_runtime::{Budget, Reservation};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::commit::{OfferRefusal, check_offer};
use crate::peers::{Closes, PeerCommit, PeerRefusal, StreamBlock};
use crate::rhythm::Rhythm;
use crate::watchers::Watchers;

/// A leader without records of others for so many intervals keeps no rhythm.
const SILENT_INTERVALS: u32 = 16;

/// A follower's blocks go to a leader whose linger is at most this many times its own.
const SLOWER_MAX: u32 = 2;

/// The outcome of another producer's number.
pub(crate) type Outcome = Result<PeerCommit, PeerRefusal>;

/// Shared by the stages of one producer.
#[derive(Clone)]
pub(crate) struct Lead {
    /// This producer's.
    linger: Duration,
    state: Arc<Mutex<State>>,
    look: Arc<Notify>,
    /// The number of the manifest that this producer last took.
    version: Arc<AtomicU64>,
    watchers: Watchers,
}

#[derive(Default)]
struct State {
    own: Option<ProducerId>,
    leads: bool,
    /// Smaller segments are not uploaded, because the leader takes their blocks. 0: no leader does.
    keep_below: u64,
    /// The leader takes numbered requests, as far as is known.
    takes_numbered: bool,
    /// The leader closes its segments so rarely that blocks would wait there for too long.
    is_leader_slow: bool,
    certificates: HashMap<ProducerId, Fingerprint>,
    held: HashMap<ProducerId, Held>,
    tickets: u64,
    /// The store's last answer to a swap.
    answered_at: Option<Instant>,
    leading: Option<Leading>,
    following: Option<Rhythm>,
}

struct Leading {
    rhythm: Rhythm,
    last_guest: Instant,
}

/// A number that this producer holds for another one.
struct Held {
    number: u64,
    /// Tells the ticket from an earlier one for the same number.
    ticket: u64,
    waiters: Vec<oneshot::Sender<Outcome>>,
}

/// Blocks of another producer.
pub(crate) struct Guest {
    pub(crate) ticket: Ticket,
    pub(crate) blocks: Vec<StreamBlock>,
    pub(crate) clients: Vec<ClientClaim>,
}

/// Segments of another producer, which are in the store.
pub(crate) struct Foreign {
    pub(crate) ticket: Ticket,
    pub(crate) segments: Vec<NewSegment>,
    pub(crate) clients: Vec<ClientClaim>,
    /// Kept until the commit.
    #[expect(
        dead_code,
        reason = "it is held for what it pays for, and goes back when this is dropped"
    )]
    pub(crate) reservation: Reservation,
}

/// The duty to answer for a number of another producer. Dropped without an answer, it says that the records were given up.
pub(crate) struct Ticket {
    lead: Lead,
    pub(crate) producer: ProducerId,
    pub(crate) number: u64,
    id: u64,
}

impl Ticket {
    /// Tells everybody who asked.
    pub(crate) fn answer(self, outcome: &Outcome) {
        self.settle(outcome);
    }

    fn settle(&self, outcome: &Outcome) {
        let mut state = self.lead.state();
        let is_held = |held: &Held| held.ticket == self.id;
        if !state.held.get(&self.producer).is_some_and(is_held) {
            return;
        }
        let held = state.held.remove(&self.producer);
        drop(state);
        for waiter in held.into_iter().flat_map(|held| held.waiters) {
            // The one who asked may have gone away.
            let _ = waiter.send(outcome.clone());
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let reason = "the records were given up".to_owned();
        self.settle(&Err(PeerRefusal::NotCommitted(reason)));
    }
}

impl Lead {
    pub(crate) fn new(linger: Duration, budget: &Budget) -> Lead {
        Lead {
            linger,
            state: Arc::default(),
            look: Arc::default(),
            version: Arc::default(),
            watchers: Watchers::new(budget),
        }
    }

    /// The states that consumers see.
    pub(crate) fn watchers(&self) -> &Watchers {
        &self.watchers
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of the manifest in force: a state that the store returned, or whose swap it confirmed. Consumers see it.
    pub(crate) fn learn(&self, manifest: &Manifest, own: ProducerId) {
        let mut state = self.state();
        state.own = Some(own);
        state.leads = manifest.is_led_by(own);
        let rows = manifest.producers.iter();
        state.certificates = rows.filter_map(|row| Some((row.id, row.certificate?))).collect();
        let leads = state.leads;
        drop(state);
        self.watchers.show(manifest, leads);
    }

    /// Takes note of the manifest's number.
    pub(crate) fn took(&self, version: u64) {
        self.version.store(version, Relaxed);
    }

    /// The number of the manifest that this producer last took.
    pub(crate) fn version(&self) -> u64 {
        self.version.load(Relaxed)
    }

    /// Records that the store answered a swap, or showed what became of one. A lost race is an answer.
    pub(crate) fn answered(&self, now: Instant) {
        self.state().answered_at = Some(now);
    }

    /// The time of the last such answer.
    pub(crate) fn answered_at(&self) -> Option<Instant> {
        self.state().answered_at
    }

    /// Asks for another look at the manifest, because it may have a producer that this one does not know.
    pub(crate) fn look_for(&self, producer: ProducerId) {
        if self.certificate(producer).is_none() {
            self.look();
        }
    }

    /// Asks for a look at the manifest.
    pub(crate) fn look(&self) {
        self.look.notify_one();
    }

    /// Waits until somebody asks for a look at the manifest.
    pub(crate) async fn asked_to_look(&self) {
        self.look.notified().await;
    }

    /// Takes note of the leader that the next segments are meant for: it takes the blocks of those below this size, and those with
    /// numbered requests if `takes_numbered`.
    pub(crate) fn follow(&self, keep_below: Option<u64>, takes_numbered: bool) {
        let mut state = self.state();
        state.keep_below = keep_below.unwrap_or(0);
        state.takes_numbered = takes_numbered;
        if keep_below.is_none() {
            state.following = None;
        }
    }

    /// Returns true if a segment of this size need not be uploaded.
    pub(crate) fn keeps(&self, size: u64, is_numbered: bool) -> bool {
        let state = self.state();
        size < state.keep_below && !state.is_leader_slow && (state.takes_numbered || !is_numbered)
    }

    /// The certificate of a producer, as far as this one knows.
    pub(crate) fn certificate(&self, producer: ProducerId) -> Option<Fingerprint> {
        self.state().certificates.get(&producer).copied()
    }

    /// Takes a number of another producer. Returns a ticket unless the number is held already.
    pub(crate) fn offer(
        &self,
        producer: ProducerId,
        number: u64,
    ) -> Result<(Option<Ticket>, oneshot::Receiver<Outcome>), PeerRefusal> {
        let mut state = self.state();
        let (true, Some(own)) = (state.leads, state.own) else {
            return Err(PeerRefusal::NotLeading);
        };
        let claim = |number| Claim::one(producer, number, 0..0);
        let held: Vec<Claim> = state
            .held
            .get(&producer)
            .map(|held| claim(held.number))
            .into_iter()
            .collect();
        let (waiter, outcome) = oneshot::channel();
        match check_offer(own, &held, &claim(number)) {
            Ok(()) => {
                state.tickets += 1;
                let id = state.tickets;
                let held = Held {
                    number,
                    ticket: id,
                    waiters: vec![waiter],
                };
                state.held.insert(producer, held);
                let ticket = Ticket {
                    lead: self.clone(),
                    producer,
                    number,
                    id,
                };
                Ok((Some(ticket), outcome))
            }
            Err(OfferRefusal::Repeated) => {
                if let Some(held) = state.held.get_mut(&producer) {
                    held.waiters.retain(|waiter| !waiter.is_closed());
                    held.waiters.push(waiter);
                }
                Ok((None, outcome))
            }
            Err(OfferRefusal::Busy) => Err(PeerRefusal::Busy),
            Err(refusal @ (OfferRefusal::Own | OfferRefusal::NoNumber)) => {
                Err(PeerRefusal::Invalid(refusal.to_string()))
            }
        }
    }

    /// Records that blocks of another producer came. The rhythm starts with the segment that takes the first of them.
    pub(crate) fn guest(&self, now: Instant, closes: Instant, every: Duration) {
        let mut state = self.state();
        match &mut state.leading {
            Some(leading) if !leading.is_silent(now) => leading.last_guest = now,
            leading => {
                *leading = Rhythm::new(closes, every).map(|rhythm| Leading {
                    rhythm,
                    last_guest: now,
                });
            }
        }
    }

    /// Follows the rhythm of a leader that has just answered, unless its interval is much longer than this producer's linger:
    /// callers would wait for the leader's linger.
    pub(crate) fn keep_rhythm(&self, closes: Option<Closes>, now: Instant) {
        let is_slow = |closes: &Closes| closes.every / SLOWER_MAX > self.linger;
        let mut state = self.state();
        state.is_leader_slow = closes.as_ref().is_some_and(is_slow);
        let kept = closes.filter(|closes| !is_slow(closes));
        state.following = kept.and_then(|closes| Rhythm::new(now + closes.after, closes.every));
    }

    /// The time to close a segment whose first message came at `first_at`, if others set it.
    pub(crate) fn close_at(&self, first_at: Instant) -> Option<Instant> {
        let state = self.state();
        if let Some(leading) = state.leading.as_ref().filter(|it| !it.is_silent(first_at)) {
            return Some(leading.rhythm.next_after(first_at));
        }
        let following = state.following?;
        Some(following.close_at(first_at))
    }

    /// The time to send the leader blocks that are ready now. `None`: at once.
    pub(crate) fn send_at(&self, now: Instant) -> Option<Instant> {
        self.state().following?.send_at(now)
    }

    /// The rhythm for an answer.
    pub(crate) fn closes(&self, now: Instant) -> Option<Closes> {
        let state = self.state();
        let rhythm = state.leading.as_ref()?.rhythm;
        Some(Closes {
            after: rhythm.next_after(now) - now,
            every: rhythm.every(),
        })
    }
}

impl Leading {
    fn is_silent(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.last_guest) > self.rhythm.every() * SILENT_INTERVALS
    }
}
