//! A seeded simulation of the real producers, consumers and garbage collectors: on one thread, with tokio's mocked time, over a store
//! in memory, a table, and a network that fails between them. Everything that is left to chance follows from the seed, so that
//! a seed is a run, and a run can be looked at again.
//!
//! What must hold is checked as it happens, on every write that takes effect in the store and in the table ([`Oracle`]), and
//! once more when nothing goes wrong any more.

mod consumers;
mod ending;
mod gc;
mod ledger;
mod network;
mod operators;
mod panics;
mod process;
mod producers;
mod reader;
mod record;
mod scenario;
mod seeds;
mod sink;
mod table;
mod weather;
mod witness;
mod world;

pub use record::{Counts, Event, Oracle, Trace, Violation};
pub use seeds::{Summary, first_difference, run_all};

use record::Record;
use std::sync::Arc;
use std::time::Duration;

/// What a seed came to.
#[derive(Debug, Clone)]
pub struct Run {
    /// The seed.
    pub seed: u64,
    /// What happened, in order.
    pub trace: Trace,
    /// How often what happened.
    pub counts: Counts,
    /// The promise that was broken.
    pub violation: Option<Violation>,
}

/// The longest that a run may take, on its own clock: hours more than any does.
const RUN_MAX: Duration = Duration::from_secs(24 * 3_600);

/// Runs a seed. `keep`: whether the lines of the trace are kept.
///
/// # Panics
/// When the system gives no thread-local runtime.
pub fn run(seed: u64, keep: bool) -> Run {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime without I/O needs nothing of the system");
    let record = runtime.block_on(async {
        let record = Arc::new(Record::new(keep));
        let _panics = panics::listen(&record);
        let living = tokio::spawn(world::live(seed, Arc::clone(&record)));
        tokio::select! {
            biased;
            () = record.violation() => {}
            lived = tokio::time::timeout(RUN_MAX, living) => {
                if lived.is_err() {
                    record.violated(Oracle::Liveness, "the run has no end".to_owned());
                }
            }
        }
        record
    });
    let (trace, counts, violation) = record.take();
    Run {
        seed,
        trace,
        counts,
        violation,
    }
}
