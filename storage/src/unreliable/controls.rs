//! The faults of an [`Unreliable`](super::Unreliable) store: set, switched and scripted at run time.

use super::latency::S3Latency;
use object_store::path::Path;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, watch};

/// Random faults with their probabilities. A request has at most one fault.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Faults {
    /// Seed of the random numbers. The same seed and order of requests give the same faults.
    pub seed: u64,
    /// Faults of writes and deletions.
    pub write: WriteFaults,
    /// The probability that a read or listing fails, at once or within the body.
    pub read_error: f64,
    /// Delays of a distant store.
    pub latency: Option<S3Latency>,
}

/// The ways a write can fail. Any other write lands and is reported, or is refused and the refusal reported. A reported
/// write that did not land would be a broken store, not a network fault.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct WriteFaults {
    /// The write reaches the store, which accepts or refuses it, and the answer is lost.
    pub landed_unreported: f64,
    /// The write never reaches the store, and the error does not reveal that.
    pub lost: f64,
    /// The write is reported as timed out, and reaches the store later.
    pub late: f64,
    /// Maximum delay.
    pub late_by_max: Duration,
    /// The write takes effect, and a proxy sends it again: the answer is the refusal of the second copy.
    pub repeated: f64,
}

impl WriteFaults {
    /// The first three faults with equal probability; late writes by up to 50 ms.
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
    /// Writes that reached the store and were reported as errors.
    pub landed_unreported: u64,
    /// Writes that never reached the store.
    pub lost: u64,
    /// Writes that reached the store after they were reported as errors.
    pub late: u64,
    /// Writes that took effect, with a refused second copy.
    pub repeated: u64,
    /// Requests that were never answered.
    pub hung: u64,
    /// Reads and listings that failed.
    pub reads: u64,
}

/// The behaviour of an unreachable store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outage {
    /// Every request fails at once, without effect.
    Fails,
    /// Requests have no effect and get no answer.
    Hangs,
}

/// The requests that a scripted fault matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum On {
    /// Any write of an object.
    Put,
    /// A write of an object that must not exist.
    Create,
    /// A write of an object that must have a version.
    Update,
    /// Any read.
    Get,
    /// A listing.
    List,
    /// A deletion.
    Delete,
}

/// A fault for one request. For reads, every fault but [`Fault::Hangs`] is an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The write lands (or is refused) and is reported as an error.
    LandsUnreported,
    /// The write has no effect and is reported as an error.
    Lost,
    /// The write is reported as an error and reaches the store this much later.
    LandsLate(Duration),
    /// The write takes effect, and a proxy sends it again this much later. The answer is the refusal of the second
    /// copy.
    Repeated(Duration),
    /// The request has no effect and gets no answer.
    Hangs,
    /// The request has no effect: the store denies the right to it.
    Denied,
}

/// The controls of an [`Unreliable`](super::Unreliable) store. Clones control the same store.
#[derive(Debug, Clone)]
pub struct Controls(Arc<Shared>);

/// Holds a request until it is released or dropped.
#[derive(Debug)]
pub struct HeldRequest {
    arrived: watch::Receiver<bool>,
    gate: Arc<Semaphore>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Late writes in flight.
    late: watch::Sender<usize>,
}

#[derive(Debug)]
struct State {
    faults: Faults,
    outage: Option<Outage>,
    script: Vec<Line>,
    injected: Injected,
    fault_rng: StdRng,
    /// Separate, so that faults do not depend on whether there are delays.
    latency_rng: StdRng,
}

#[derive(Debug)]
struct Line {
    on: On,
    key_suffix: String,
    fate: Fate,
}

/// The fate of one request.
#[derive(Debug, Clone)]
pub(super) enum Fate {
    Honest,
    Fault(Fault),
    /// Waits at the gate and then proceeds without faults.
    Held(Gate),
    /// Fails at once, and reaches the store when released.
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
        // A closed gate counts as open: the test that held it has ended.
        let _ = self.gate.acquire().await;
    }
}

impl HeldRequest {
    /// Waits until the request has arrived. Never returns if none arrives.
    pub async fn arrived(&mut self) {
        // The sender is dropped only after the request has passed, so it has arrived.
        let _ = self.arrived.wait_for(|arrived| *arrived).await;
    }

    /// Lets the request proceed.
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

    /// Replaces the random faults and delays, and restarts their random numbers.
    pub fn set_faults(&self, faults: Faults) {
        let mut state = self.state();
        let fresh = State::new(faults);
        state.faults = fresh.faults;
        state.fault_rng = fresh.fault_rng;
        state.latency_rng = fresh.latency_rng;
    }

    /// Starts an outage, or ends it with `None`. An outage takes precedence over scripted and random faults and uses
    /// none up. A request that already hangs keeps hanging.
    pub fn set_outage(&self, outage: Option<Outage>) {
        self.state().outage = outage;
    }

    /// Ends random faults and any outage. Delays and scripted faults stay.
    pub fn heal(&self) {
        let mut state = self.state();
        state.outage = None;
        state.faults = Faults {
            seed: state.faults.seed,
            latency: state.faults.latency,
            ..Faults::default()
        };
    }

    /// The next such request on a key with this suffix gets this fault. Several scripted faults for one request apply
    /// in order, one per request.
    pub fn once(&self, on: On, key_suffix: &str, fault: Fault) {
        self.line(on, key_suffix, Fate::Fault(fault));
    }

    /// The next such request waits before it has any effect, until it is released.
    #[must_use = "dropping it releases the request"]
    pub fn hold(&self, on: On, key_suffix: &str) -> HeldRequest {
        self.gated(on, key_suffix, Fate::Held)
    }

    /// The next such write fails at once, and reaches the store when it is released.
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

    /// Waits until no late write is in flight.
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

    /// The time to the first byte (or to a write's answer), and the transfer time of a body of this size.
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

    /// A random number below `end`.
    pub(super) fn chance(&self, end: usize) -> usize {
        self.state().fault_rng.random_range(0..end)
    }

    pub(super) fn late(&self, change: impl FnOnce(&mut usize)) {
        self.0.late.send_modify(change);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic under this lock leaves no half-finished state.
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
            Fate::Fault(Fault::Lost | Fault::Denied) => &mut self.lost,
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
