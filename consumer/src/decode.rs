//! CPU work: the sink cuts a batch into chunks on the blocking pool, one chunk ahead of the writer. This module neither
//! fetches nor writes.

use crate::metrics::InStage;
use crate::sink::{Batch, Cut, Opened, Sink, SinkError};
use crate::trace::Step;
use millpond_manifest::BatchingPolicy;
use millpond_runtime::{Environment, blocking};
use prometheus_client::metrics::histogram::Histogram;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A batch to cut into chunks.
pub(crate) struct Decode {
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) batch: Arc<Batch>,
    pub(crate) opened: Opened,
    pub(crate) policy: BatchingPolicy,
    /// The decoder's permit, released at the end.
    pub(crate) decoder: OwnedSemaphorePermit,
    pub(crate) queued: InStage,
    /// The histogram of the time per chunk.
    pub(crate) seconds: Histogram,
    pub(crate) step: Step,
}

impl Decode {
    /// Returns the chunks and the unreadable messages as they come, and after them the outcome.
    pub(crate) fn begin(
        self,
        environment: &dyn Environment,
    ) -> (mpsc::Receiver<Cut>, JoinHandle<Result<(), SinkError>>) {
        blocking::generate(environment, move |emit| self.run(emit))
    }

    fn run(self, emit: &mut dyn FnMut(Cut) -> bool) -> Result<(), SinkError> {
        let Decode {
            sink,
            batch,
            opened,
            policy,
            decoder: _turn,
            queued: _queued,
            seconds,
            step,
        } = self;
        let mut began = Instant::now();
        let outcome = sink.chunks_of(&batch, opened, &policy, &mut |cut| {
            seconds.observe(began.elapsed().as_secs_f64());
            let more = emit(cut);
            // The wait for the channel counts as the writers' time.
            began = Instant::now();
            more
        });
        outcome.inspect_err(|error| step.fail(error))
    }
}
