//! CPU work: the sink cuts a batch into chunks on the blocking pool, one chunk ahead of the writer. It knows nothing of
//! fetching and writing.

use crate::Environment;
use crate::sink::{Batch, Chunk, Sink, SinkError};
use millpond_manifest::Rule;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::task::{JoinHandle, spawn_blocking};

/// A batch to be cut into chunks.
pub(crate) struct Decode {
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) batch: Batch,
    pub(crate) rule: Rule,
    /// The turn of a decoder, given back at the end.
    pub(crate) decoder: OwnedSemaphorePermit,
}

impl Decode {
    /// The chunks as they come, and after them whether these were all.
    pub(crate) fn begin(
        self,
        environment: &dyn Environment,
    ) -> (mpsc::Receiver<Chunk>, JoinHandle<Result<(), SinkError>>) {
        let (sender, chunks) = mpsc::channel(1);
        let decoding = match environment.cpu_time() {
            None => spawn_blocking(move || self.run(&mut |chunk| sender.blocking_send(chunk).is_ok())),
            Some(time) => tokio::spawn(async move {
                tokio::time::sleep(time).await;
                // Nothing may block the only thread there is: all chunks are held at once.
                let mut all = Vec::new();
                let outcome = self.run(&mut |chunk| {
                    all.push(chunk);
                    true
                });
                for chunk in all {
                    if sender.send(chunk).await.is_err() {
                        break;
                    }
                }
                outcome
            }),
        };
        (chunks, decoding)
    }

    fn run(self, emit: &mut dyn FnMut(Chunk) -> bool) -> Result<(), SinkError> {
        let Decode {
            sink,
            batch,
            rule,
            decoder: _turn,
        } = self;
        sink.chunks(&batch, &rule, emit)
    }
}
