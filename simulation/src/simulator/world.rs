//! One run: the store, the tables, the machines, and all processes until the faults end.

use super::consumers;
use super::ending;
use super::gc;
use super::ledger::Ledger;
use super::network::{Asked, Landing};
use super::operators;
use super::process::{Machine, Process};
use super::producers;
use super::record::{Event, Record};
use super::scenario::{Scenario, up_to};
use super::table::Table;
use super::weather;
use super::witness::Witness;
use millpond_storage::Store;
use millpond_storage::unreliable::{Controls, Outage, Unreliable};
use object_store::ObjectStore;
use object_store::memory::InMemory;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

pub(crate) struct World {
    pub(crate) scenario: Scenario,
    pub(crate) record: Arc<Record>,
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) witness: Arc<Witness>,
    /// One table per consumer.
    pub(crate) tables: Vec<Arc<Table>>,
    pub(crate) machines: Vec<Arc<Machine>>,
    objects: Arc<dyn ObjectStore>,
    networks: Mutex<Networks>,
    ends_at: Instant,
}

#[derive(Default)]
struct Networks {
    all: Vec<Controls>,
    outage: Option<Outage>,
}

pub(crate) fn consumer_name(consumer: usize) -> String {
    format!("consumer-{consumer}")
}

/// Runs a seed.
pub(crate) async fn live(seed: u64, record: Arc<Record>) {
    let mut rng = StdRng::seed_from_u64(seed);
    let world = World::new(seed, &mut rng, record);
    let mut fork = || StdRng::seed_from_u64(rng.random());
    ending::begin(&world, fork()).await;
    let mut living = JoinSet::new();
    for place in 0..world.scenario.producers {
        living.spawn(producers::place(Arc::clone(&world), place, fork()));
    }
    for consumer in 0..world.scenario.consumers {
        for place in 0..world.scenario.owners {
            living.spawn(consumers::place(Arc::clone(&world), consumer, place, fork()));
        }
    }
    for rival in world.rivals() {
        living.spawn(consumers::place(Arc::clone(&world), rival, 0, fork()));
    }
    for place in 0..world.scenario.gcs {
        living.spawn(gc::place(Arc::clone(&world), place, fork()));
    }
    living.spawn(weather::clocks(Arc::clone(&world), fork()));
    living.spawn(weather::forgetting(Arc::clone(&world), fork()));
    living.spawn(weather::outages(Arc::clone(&world), fork()));
    living.spawn(weather::sink_outages(Arc::clone(&world), fork()));
    living.spawn(operators::operators(Arc::clone(&world), fork()));
    let end = fork();
    // A panic is already a violation.
    while living.join_next().await.is_some() {}
    ending::end(&world, end).await;
}

impl World {
    fn new(seed: u64, rng: &mut StdRng, record: Arc<Record>) -> Arc<World> {
        let scenario = Scenario::draw(rng).unique(&mut StdRng::seed_from_u64(!seed));
        record.event("scenario", format_args!("{scenario:?}"));
        let ledger = Ledger::new(Arc::clone(&record));
        let table = |consumer| {
            let (record, ledger) = (Arc::clone(&record), Arc::clone(&ledger));
            Table::new(consumer_name(consumer), &scenario, rng.random(), record, ledger)
        };
        let tables: Vec<_> = (0..scenario.consumers + scenario.rivals).map(table).collect();
        let by_name = (0..)
            .map(consumer_name)
            .zip(tables.iter().map(Arc::clone))
            .collect();
        let witness = Witness::new(Arc::clone(&record), Arc::clone(&ledger), by_name, &scenario);
        let machines = (0..3).map(|_| Machine::new(rng.random())).collect();
        Arc::new(World {
            ends_at: Instant::now() + scenario.trouble,
            scenario,
            record,
            ledger,
            witness,
            tables,
            machines,
            objects: Arc::new(InMemory::new()),
            networks: Mutex::default(),
        })
    }

    /// The consumers that ask for one table.
    pub(crate) fn rivals(&self) -> Range<usize> {
        self.scenario.consumers..self.scenario.consumers + self.scenario.rivals
    }

    /// Returns true if the faults have ended.
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.ends_at
    }

    /// A process on one of the machines.
    pub(crate) fn process(&self, name: String, rng: &mut StdRng) -> Arc<Process> {
        let machine = &self.machines[rng.random_range(0..self.machines.len())];
        Process::new(name, Arc::clone(machine))
    }

    /// The buffer as a process sees it, through a separate unreliable network.
    pub(crate) fn connect(&self, process: &Arc<Process>, rng: &mut StdRng) -> Store {
        let network = Unreliable::new(self.landing(process), self.scenario.faults(rng));
        let mut networks = self.networks();
        network.controls().set_outage(networks.outage);
        networks.all.push(network.controls());
        drop(networks);
        self.asked(process, Arc::new(network))
            .with_request_timeout(self.scenario.request_timeout)
    }

    /// The buffer after all faults have ended.
    pub(crate) fn connect_well(&self, process: &Arc<Process>) -> Store {
        self.asked(process, self.landing(process))
    }

    fn landing(&self, process: &Arc<Process>) -> Arc<dyn ObjectStore> {
        Arc::new(Landing {
            inner: Arc::clone(&self.objects),
            process: Arc::clone(process),
            witness: Arc::clone(&self.witness),
        })
    }

    fn asked(&self, process: &Arc<Process>, inner: Arc<dyn ObjectStore>) -> Store {
        let asked = Asked {
            inner,
            process: Arc::clone(process),
            record: Arc::clone(&self.record),
        };
        Store::over(Arc::new(asked), "")
    }

    /// Starts or ends an outage of the whole store.
    pub(crate) fn set_outage(&self, outage: Option<Outage>) {
        let mut networks = self.networks();
        networks.outage = outage;
        for network in &networks.all {
            network.set_outage(outage);
        }
    }

    /// Ends all network faults, and waits for late writes to land.
    pub(crate) async fn heal(&self) {
        self.set_outage(None);
        let networks = std::mem::take(&mut self.networks().all);
        for network in &networks {
            network.heal();
        }
        for network in networks {
            network.settled().await;
            let injected = network.injected();
            for (event, times) in [
                (Event::WritesUnreported, injected.landed_unreported),
                (Event::WritesLost, injected.lost),
                (Event::WritesLate, injected.late),
                (Event::RequestsHung, injected.hung),
                (Event::ReadsFailed, injected.reads),
            ] {
                self.record.add(event, times);
            }
        }
        for table in &self.tables {
            table.heal();
        }
        sleep(self.scenario.late_by_max + Duration::from_secs(1)).await;
    }

    /// Runs for a while, with occasional stalls.
    pub(crate) async fn stalls(&self, process: &Process, rng: &mut StdRng, stalled: Event) {
        for _ in 0..rng.random_range(0..=2) {
            sleep(up_to(rng, Duration::from_secs(2))).await;
            let stall = up_to(rng, self.scenario.stall_max);
            if !stall.is_zero() {
                self.record.count(stalled);
                self.record.event(&process.name, format_args!("stalls"));
                process.stall(stall);
                sleep(stall).await;
                process.wake();
                self.record.event(&process.name, format_args!("goes on"));
            }
        }
        sleep(up_to(rng, Duration::from_secs(3))).await;
    }

    fn networks(&self) -> MutexGuard<'_, Networks> {
        self.networks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The value of a counter in a registry.
pub(crate) fn counter(registry: &Registry, name: &str) -> u64 {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = encode(&mut text, registry);
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix("_total "));
    value.and_then(|value| value.parse().ok()).unwrap_or(0)
}
