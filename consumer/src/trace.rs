//! The spans of a batch's way: fetch, decode, insert, acknowledge. They decide nothing, and are nothing at all unless
//! somebody listens to their target ([`millpond_manifest::trace`]).
//!
//! Each part has a span `process` in the trace of its segment, and below it what is the part's alone; the batch has a span
//! of its own, which follows from those of its parts, and below it what is done for all of them at once.

use crate::sink::{BatchId, Chunk};
use crate::work::Wanted;
use millpond_manifest::trace::TARGET;
use std::fmt::Display;
use tracing::field::{Empty, display};
use tracing::{Level, Span, event, span};

/// Of a batch's parts, so many have spans: a batch of tiny segments can have thousands.
const PARTS_MAX: usize = 1_024;

/// What is recorded of one batch, from its start to its acknowledgement. Clones share it.
#[derive(Clone)]
pub(crate) struct BatchTrace {
    batch: Span,
    /// In the order of the parts, as far as they have any.
    parts: Vec<Span>,
    acknowledge: Span,
}

impl BatchTrace {
    /// The batch is started.
    pub(crate) fn begin(id: &BatchId, wanted: &[Wanted], in_doubt: bool) -> BatchTrace {
        let (stream, shard, consumer) = (&*id.stream, id.shard, &*id.consumer);
        let batch = span!(
            target: TARGET, parent: None, Level::INFO, "batch",
            stream, shard, consumer, low = id.low, high = id.high, in_doubt, error = Empty,
        );
        let mut parts = Vec::new();
        if !batch.is_disabled() {
            for wanted in wanted.iter().take(PARTS_MAX) {
                let part = &wanted.part;
                let process = span!(
                    target: TARGET, parent: None, Level::INFO, "process",
                    segment = %part.segment, stream, shard, consumer, sequence = part.sequence,
                    records = part.records, stored_bytes = wanted.length, error = Empty,
                );
                batch.follows_from(&process);
                parts.push(process);
            }
        }
        BatchTrace {
            batch,
            parts,
            acknowledge: Span::none(),
        }
    }

    /// A part is fetched.
    pub(crate) fn fetch(&self, place: usize, wanted: &Wanted) -> Step {
        let Some(part) = self.parts.get(place) else {
            return Step(Span::none());
        };
        let (key, bytes) = (&*wanted.key, wanted.length);
        Step(span!(target: TARGET, parent: part, Level::INFO, "fetch", key, bytes, error = Empty))
    }

    /// The batch is cut into chunks.
    pub(crate) fn decode(&self) -> Step {
        Step(span!(target: TARGET, parent: &self.batch, Level::INFO, "decode", error = Empty))
    }

    /// A chunk is written.
    pub(crate) fn insert(&self, id: &BatchId, chunk: &Chunk) -> Step {
        if self.batch.is_disabled() {
            return Step(Span::none());
        }
        Step(span!(
            target: TARGET, parent: &self.batch, Level::INFO, "insert",
            sink = %id.sink, token = %id.token(chunk.index, 0), rows = chunk.rows, bytes = chunk.raw_bytes, error = Empty,
        ))
    }

    /// It is in the sink, and waits to be acknowledged.
    pub(crate) fn finished(&mut self) {
        self.acknowledge =
            span!(target: TARGET, parent: &self.batch, Level::INFO, "acknowledge", error = Empty);
    }

    /// This process ends its work on it before it is acknowledged: another will do it again.
    pub(crate) fn give_up(&self, reason: &dyn Display) {
        for span in self.parts.iter().chain([&self.batch, &self.acknowledge]) {
            span.record("error", display(reason));
        }
    }
}

/// A step of the work, until dropped.
pub(crate) struct Step(Span);

impl Step {
    /// An attempt was in vain; another follows.
    pub(crate) fn again(&self, reason: &dyn Display) {
        event!(target: TARGET, parent: &self.0, Level::INFO, error = %reason, "retry");
    }

    /// It was in vain.
    pub(crate) fn fail(&self, reason: &dyn Display) {
        self.0.record("error", display(reason));
    }
}
