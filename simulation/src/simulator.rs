//! A seeded simulation of the real producers, consumers and garbage collectors: one thread, tokio's mocked time, an
//! in-memory store, a table, and an unreliable network between them. The seed determines everything random, so each
//! seed is a reproducible run.
//!
//! Every write that takes effect in the store or the table is checked at once ([`Oracle`]), and everything again after
//! all faults have ended.

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
mod repetitions;
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

/// The result of a seed.
#[derive(Debug, Clone)]
pub struct Run {
    /// The seed.
    pub seed: u64,
    /// The events in order.
    pub trace: Trace,
    /// The number of events by kind.
    pub counts: Counts,
    /// The violated promise.
    pub violation: Option<Violation>,
}

/// Time limit of a run on its simulated clock: hours more than any run takes.
const RUN_MAX: Duration = Duration::from_secs(24 * 3_600);

/// Runs a seed. `keep`: whether to keep the lines of the trace.
///
/// # Panics
/// The system provides no thread-local runtime.
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
