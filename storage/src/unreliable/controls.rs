//! What an [`Unreliable`](super::Unreliable) store is to do wrong: set, switched and scripted at run time.

use super::latency::S3Latency;
use object_store::path::Path;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// Faults drawn at random for every request. Probabilities; of one request's faults at most one happens.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Faults {
    /// Of the random numbers. The same seed and the same order of requests give the same faults.
    pub seed: u64,
    /// What happens to writes and deletions.
    pub write: WriteFaults,
    /// That a read or a listing fails: at once, or in the midst of the body.
    pub read_error: f64,
    /// Delays, as a store far away has them.
    pub latency: Option<S3Latency>,
}

/// The ways a write can go wrong. A write that is neither of these lands and is reported (or is refused and
/// the refusal reported); that a write is reported and did not land is no network's fault but a broken store.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct WriteFaults {
    /// It reaches the store, takes effect or is refused, and the answer gets lost.
    pub landed_unreported: f64,
    /// It never reaches the store, and an error says so no more clearly than that.
    pub lost: f64,
    /// It is reported as timed out, and reaches the store later.
    pub late: f64,
    /// How much later, at most.
    pub late_by_max: Duration,
    /// It takes effect, and a proxy sends it again: the answer is the refusal of the second copy.
    pub repeated: f64,
}

impl WriteFaults {
    /// Each of the first three with the same probability, late ones by up to 50 ms.
    pub fn each(probability: f64) -> Self {
        Self {
            landed_unreported: probability,
            lost: probability,
            late: probability,
            late_by_max: Duration::from_millis(50),
            repeated: 0.0,
        }
    }
}

/// How often each fault happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Injected {
    /// Writes that reached the store, and were reported as errors.
    pub landed_unreported: u64,
    /// Writes that never reached the store.
    pub lost: u64,
    /// Writes that reached the store after they were reported as errors.
    pub late: u64,
    /// Writes that took effect, and whose second copy was refused.
    pub repeated: u64,
    /// Requests that were never answered.
    pub hung: u64,
    /// Reads and listings that failed.
    pub reads: u64,
}

/// How a store is when it is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outage {
    /// Every request fails at once, without effect.
    Fails,
    /// No request is answered, or has an effect.
    Hangs,
}

/// The requests that a scripted fault waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// Any write of an object.
    Put,
    /// A write of an object that must not be there.
    Create,
    /// A write of an object that must be at a version.
    Update,
    /// A read, of whatever kind.
    Get,
    /// A listing.
    List,
    /// A deletion.
    Delete,
}

/// A fault for one request. Reads have no effect to tell apart: for them all but [`Fault::Hangs`] are an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Has its effect (or is refused) and is reported as an error.
    LandsUnreported,
    /// Has no effect and is reported as an error.
    Lost,
    /// Is reported as an error and reaches the store this much later.
    LandsLate(Duration),
    /// Takes effect, and a proxy sends it again this much later: the answer is the one to the second copy, a refusal.
    Repeated(Duration),
    /// Has no effect and is never answered.
    Hangs,
}

/// The switches of an [`Unreliable`](super::Unreliable) store. Clones control the same store.
#[derive(Debug, Clone)]
pub struct Controls(Arc<Shared>);

/// A request that is held until it is released, or this is dropped.
#[derive(Debug)]
pub struct HeldRequest {
    arrived: watch::Receiver<bool>,
    gate: Arc<Semaphore>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Late writes under way.
    late: watch::Sender<usize>,
}

#[derive(Debug)]
struct State {
    faults: Faults,
    outage: Option<Outage>,
    script: Vec<Line>,
    injected: Injected,
    fault_rng: StdRng,
    /// Of its own, so that faults do not depend on whether there are delays.
    latency_rng: StdRng,
}

#[derive(Debug)]
struct Line {
    on: On,
    key_suffix: String,
    fate: Fate,
}

/// What becomes of one request.
#[derive(Debug, Clone)]
pub(super) enum Fate {
    Honest,
    Fault(Fault),
    /// Waits at the gate, then goes on honestly.
    Held(Gate),
    /// Is reported as an error at once, and reaches the store when released.
    Detained(Gate),
}

#[derive(Debug, Clone)]
pub(super) struct Gate {
    arrived: watch::Sender<bool>,
    gate: Arc<Semaphore>,
}

impl Gate {
    pub(super) async fn pass(&self) {
        self.arrived.send_replace(true);
        // A closed gate is an open one: the test that held it is gone.
        let _ = self.gate.acquire().await;
    }
}

impl HeldRequest {
    /// Waits until the request has come. Never returns if none comes.
    pub async fn arrived(&mut self) {
        // The sender goes only after the request passed, which is to have arrived.
        let _ = self.arrived.wait_for(|arrived| *arrived).await;
    }

    /// Lets the request go on.
    pub fn release(self) {
        drop(self);
    }
}

impl Drop for HeldRequest {
    fn drop(&mut self) {
        self.gate.close();
    }
}

impl Controls {
    pub(super) fn new(faults: Faults) -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State::new(faults)),
            late: watch::Sender::new(0),
        }))
    }

    /// Replaces the random faults and delays, and starts their random numbers anew.
    pub fn set_faults(&self, faults: Faults) {
        let mut state = self.state();
        let fresh = State::new(faults);
        state.faults = fresh.faults;
        state.fault_rng = fresh.fault_rng;
        state.latency_rng = fresh.latency_rng;
    }

    /// Begins or (with `None`) ends an outage. It goes before scripted and random faults, and uses none up.
    /// A request that hangs already goes on hanging.
    pub fn set_outage(&self, outage: Option<Outage>) {
        self.state().outage = outage;
    }

    /// Ends all random faults and any outage. Delays stay, and so do scripted faults.
    pub fn heal(&self) {
        let mut state = self.state();
        state.outage = None;
        state.faults = Faults {
            seed: state.faults.seed,
            latency: state.faults.latency,
            ..Faults::default()
        };
    }

    /// The next such request, on a key that ends so, has this fault. Several lines for one request are used
    /// up one after another, in the order they were given.
    pub fn once(&self, on: On, key_suffix: &str, fault: Fault) {
        self.line(on, key_suffix, Fate::Fault(fault));
    }

    /// The next such request waits, before it has any effect, until it is released.
    #[must_use = "dropping it releases the request"]
    pub fn hold(&self, on: On, key_suffix: &str) -> HeldRequest {
        self.gated(on, key_suffix, Fate::Held)
    }

    /// The next such write is reported as an error at once, and reaches the store when it is released.
    #[must_use = "dropping it releases the write"]
    pub fn detain(&self, on: On, key_suffix: &str) -> HeldRequest {
        self.gated(on, key_suffix, Fate::Detained)
    }

    /// How many scripted faults have not happened yet.
    pub fn unused(&self) -> usize {
        self.state().script.len()
    }

    /// How often each fault has happened so far.
    pub fn injected(&self) -> Injected {
        self.state().injected
    }

    /// Waits until no late write is under way.
    pub async fn settled(&self) {
        // The sender lives in `self`.
        let _ = self.0.late.subscribe().wait_for(|late| *late == 0).await;
    }

    fn gated(&self, on: On, key_suffix: &str, fate: impl FnOnce(Gate) -> Fate) -> HeldRequest {
        let gate = Arc::new(Semaphore::new(0));
        let (sender, arrived) = watch::channel(false);
        self.line(
            on,
            key_suffix,
            fate(Gate {
                arrived: sender,
                gate: Arc::clone(&gate),
            }),
        );
        HeldRequest { arrived, gate }
    }

    fn line(&self, on: On, key_suffix: &str, fate: Fate) {
        self.state().script.push(Line {
            on,
            key_suffix: key_suffix.to_owned(),
            fate,
        });
    }

    pub(super) fn fate(&self, on: On, location: Option<&Path>) -> Fate {
        let mut state = self.state();
        let fate = state.fate(on, location.map_or("", AsRef::as_ref));
        state.injected.count(on, &fate);
        fate
    }

    /// The time to the first byte (or a write's answer), and the time for a body of so many bytes.
    pub(super) fn delays(&self, on: On, bytes: u64) -> (Duration, Duration) {
        let state = &mut *self.state();
        let Some(latency) = state.faults.latency else {
            return Default::default();
        };
        let first = match on {
            On::Get | On::List => latency.get,
            On::Put | On::Create | On::Update | On::Delete => latency.put,
        };
        (first.draw(&mut state.latency_rng), latency.transfer(bytes))
    }

    pub(super) fn transfer(&self, bytes: u64) -> Duration {
        let latency = self.state().faults.latency;
        latency.map_or(Duration::ZERO, |latency| latency.transfer(bytes))
    }

    /// A number below `end`, for what else is left to chance.
    pub(super) fn chance(&self, end: usize) -> usize {
        self.state().fault_rng.random_range(0..end)
    }

    pub(super) fn late(&self, change: impl FnOnce(&mut usize)) {
        self.0.late.send_modify(change);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing is left half-done by a panic in there.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Injected {
    fn count(&mut self, on: On, fate: &Fate) {
        let counter = match fate {
            Fate::Honest | Fate::Held(_) => return,
            Fate::Fault(Fault::Hangs) => &mut self.hung,
            _ if matches!(on, On::Get | On::List) => &mut self.reads,
            Fate::Fault(Fault::LandsUnreported) => &mut self.landed_unreported,
            Fate::Fault(Fault::Lost) => &mut self.lost,
            Fate::Fault(Fault::LandsLate(_)) | Fate::Detained(_) => &mut self.late,
            Fate::Fault(Fault::Repeated(_)) => &mut self.repeated,
        };
        *counter += 1;
    }
}

impl State {
    fn new(faults: Faults) -> Self {
        Self {
            faults,
            outage: None,
            script: Vec::new(),
            injected: Injected::default(),
            fault_rng: StdRng::seed_from_u64(faults.seed),
            latency_rng: StdRng::seed_from_u64(!faults.seed),
        }
    }

    fn fate(&mut self, on: On, key: &str) -> Fate {
        match self.outage {
            Some(Outage::Fails) => return Fate::Fault(Fault::Lost),
            Some(Outage::Hangs) => return Fate::Fault(Fault::Hangs),
            None => {}
        }
        let scripted = self
            .script
            .iter()
            .position(|line| line.on.covers(on) && key.ends_with(&line.key_suffix));
        if let Some(index) = scripted {
            return self.script.remove(index).fate;
        }
        self.drawn(on).map_or(Fate::Honest, Fate::Fault)
    }

    fn drawn(&mut self, on: On) -> Option<Fault> {
        let draw = self.fault_rng.random::<f64>();
        if matches!(on, On::Get | On::List) {
            return (draw < self.faults.read_error).then_some(Fault::Lost);
        }
        let write = self.faults.write;
        let unreported = write.landed_unreported;
        let lost = unreported + write.lost;
        let late = lost + write.late;
        let repeated = late + write.repeated;
        if draw < unreported {
            Some(Fault::LandsUnreported)
        } else if draw < lost {
            Some(Fault::Lost)
        } else if draw < late {
            let part = self.fault_rng.random::<f64>();
            Some(Fault::LandsLate(write.late_by_max.mul_f64(part)))
        } else if draw < repeated {
            let part = self.fault_rng.random::<f64>();
            Some(Fault::Repeated(write.late_by_max.mul_f64(part)))
        } else {
            None
        }
    }
}

impl On {
    fn covers(self, request: Self) -> bool {
        self == request || (self == Self::Put && matches!(request, Self::Create | Self::Update))
    }
}
