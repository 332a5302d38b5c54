//! The spans of a batch: fetch, decode, insert, acknowledge. They decide nothing, and cost nothing unless a subscriber
//! listens to their target ([`millpond_manifest::trace`]).
//!
//! Each part has a span `process` in the trace of its segment, with the part's steps below it. The batch has a separate
//! span, which follows from those of its parts, with the steps for the whole batch below it.

use crate::sink::{BatchId, Chunk, Part};
use millpond_manifest::trace::TARGET;
use std::fmt::Display;
use tracing::field::{Empty, display};
use tracing::{Level, Span, event, span};

/// The maximum number of a batch's parts with spans: a batch of tiny segments can have thousands of parts.
const PARTS_MAX: usize = 1_024;

/// The spans of one batch, from its start to its acknowledgement. Clones share them.
#[derive(Clone)]
pub(crate) struct BatchTrace {
    batch: Span,
    /// The parts' spans in order, up to [`PARTS_MAX`].
    parts: Vec<Span>,
    acknowledge: Span,
}

impl BatchTrace {
    /// Starts the spans of a batch with these parts, each with its stored bytes.
    pub(crate) fn begin<'a>(
        id: &BatchId,
        wanted: impl Iterator<Item = (&'a Part, u64)>,
        in_doubt: bool,
    ) -> BatchTrace {
        let (stream, shard, consumer) = (&*id.stream, id.shard, &*id.consumer);
        let batch = span!(
            target: TARGET, parent: None, Level::INFO, "batch",
            stream, shard, consumer, low = id.low, high = id.high, in_doubt, error = Empty,
        );
        let mut parts = Vec::new();
        if !batch.is_disabled() {
            for (part, stored_bytes) in wanted.take(PARTS_MAX) {
                let process = span!(
                    target: TARGET, parent: None, Level::INFO, "process",
                    segment = %part.segment, stream, shard, consumer, sequence = part.sequence,
                    records = part.records, stored_bytes, error = Empty,
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

    /// Starts the span of fetching a part.
    pub(crate) fn fetch(&self, place: usize, key: &str, bytes: u64) -> Step {
        let Some(part) = self.parts.get(place) else {
            return Step(Span::none());
        };
        Step(span!(target: TARGET, parent: part, Level::INFO, "fetch", key, bytes, error = Empty))
    }

    /// Starts the span of cutting the batch into chunks.
    pub(crate) fn decode(&self) -> Step {
        Step(span!(target: TARGET, parent: &self.batch, Level::INFO, "decode", error = Empty))
    }

    /// Starts the span of writing a chunk.
    pub(crate) fn insert(&self, id: &BatchId, chunk: &Chunk) -> Step {
        if self.batch.is_disabled() {
            return Step(Span::none());
        }
        Step(span!(
            target: TARGET, parent: &self.batch, Level::INFO, "insert",
            sink = %id.sink, token = %id.token(chunk.index, 0), rows = chunk.rows, bytes = chunk.raw_bytes, error = Empty,
        ))
    }

    /// Starts the span between the batch's arrival in the sink and its acknowledgement.
    pub(crate) fn finished(&mut self) {
        self.acknowledge =
            span!(target: TARGET, parent: &self.batch, Level::INFO, "acknowledge", error = Empty);
    }

    /// Records that this process stops working on the batch before the acknowledgement: another will repeat it.
    pub(crate) fn give_up(&self, reason: &dyn Display) {
        for span in self.parts.iter().chain([&self.batch, &self.acknowledge]) {
            span.record("error", display(reason));
        }
    }
}

/// The span of a step, which ends when dropped.
pub(crate) struct Step(Span);

impl Step {
    /// Records a failed attempt that a retry follows.
    pub(crate) fn again(&self, reason: &dyn Display) {
        event!(target: TARGET, parent: &self.0, Level::INFO, error = %reason, "retry");
    }

    /// Records a failure without a retry.
    pub(crate) fn fail(&self, reason: &dyn Display) {
        self.0.record("error", display(reason));
    }
}
