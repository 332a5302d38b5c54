//! The spans of a segment: fill, encode, upload, wait, commit. They decide nothing, and cost nothing unless a
//! subscriber listens to their target ([`millpond_manifest::trace`]).

use std::fmt::Display;

use millpond_manifest::trace::{ORIGIN, TARGET};
use millpond_segment::EncodedSegment;
use tracing::field::Empty;
use tracing::{Level, Span, event, span};
use ulid::Ulid;

/// Creates a span below another.
macro_rules! below {
    ($parent:expr, $name:literal $(, $field:ident = $value:expr)*) => {
        span!(target: TARGET, parent: $parent, Level::INFO, $name, $($field = $value,)* error = Empty)
    };
}

/// The spans of one segment, from its first message to its commit.
pub(crate) struct SegmentTrace {
    whole: Span,
    /// The span of the current stage.
    stage: Span,
    is_committing: bool,
}

impl SegmentTrace {
    /// The segment has its first message.
    pub(crate) fn begin() -> Box<Self> {
        let whole = span!(
            target: TARGET, parent: None, Level::INFO, ORIGIN,
            segment = Empty, shard = Empty, sequence = Empty, streams = Empty, messages = Empty, records = Empty,
            raw_bytes = Empty, stored_bytes = Empty, error = Empty,
        );
        let stage = below!(&whole, "fill");
        Box::new(Self {
            whole,
            stage,
            is_committing: false,
        })
    }

    /// The segment is closed, and the encoders have its last blocks.
    pub(crate) fn encode(&mut self) {
        self.stage = below!(&self.whole, "encode");
    }

    /// The segment is encoded, and waits for an uploader.
    pub(crate) fn encoded(&mut self, encoded: &EncodedSegment) {
        self.stage = Span::none();
        if self.whole.is_disabled() {
            return;
        }
        let streams: Vec<&str> = encoded.streams.iter().map(|part| &*part.stream).collect();
        self.whole.record("streams", streams.join(","));
        let sum = |of: fn(&millpond_segment::StreamPart) -> u64| encoded.streams.iter().map(of).sum::<u64>();
        self.whole.record("messages", sum(|part| part.messages));
        self.whole.record("records", sum(|part| part.records));
        self.whole.record("raw_bytes", sum(|part| part.raw_len));
        self.whole.record("stored_bytes", encoded.size);
    }

    /// The segment is being uploaded under this name.
    pub(crate) fn upload(&mut self, name: Ulid, key: &str) {
        self.is_committing = false;
        self.whole.record("segment", name.to_string());
        self.stage = below!(&self.whole, "upload", key = key);
    }

    /// The segment is uploaded, and waits for its turn to be committed, or for others to share the commit.
    pub(crate) fn wait(&mut self) {
        self.stage = below!(&self.whole, "wait");
    }

    /// A commit with this segment starts, perhaps not for the first time.
    pub(crate) fn commit(&mut self, key: &str, segments: usize) {
        if self.is_committing {
            return;
        }
        self.is_committing = true;
        self.stage = below!(&self.whole, "commit", key = key, segments = segments);
    }

    /// An attempt of the current stage failed; a retry follows.
    pub(crate) fn again(&self, reason: &dyn Display) {
        event!(target: TARGET, parent: &self.stage, Level::INFO, error = %reason, "retry");
    }

    /// The segment is in the log.
    pub(crate) fn committed(&self, shard: u32, sequence: u64) {
        self.whole.record("shard", shard);
        self.whole.record("sequence", sequence);
    }

    /// The callers learn that the segment is not in the log, or that the outcome is unknown.
    pub(crate) fn fail(&self, reason: &dyn Display) {
        for span in [&self.stage, &self.whole] {
            span.record("error", tracing::field::display(reason));
        }
    }
}
