//! The conventions that let producers and consumers join one trace: a segment's name is 128 bits and serves as the
//! trace id. Spans are recorded only on request; other code decides what to record.
//!
//! - They are `tracing` spans and events with target [`TARGET`] and level INFO.
//! - A span without a parent that has the field `segment` belongs to that segment's trace. The one named [`ORIGIN`] is
//!   its root, with an id derived from the segment's name: all others, in any process, are below it.
//! - A span without either belongs to the trace of the first recorded span that it follows from, and is below that.
//! - The field `error` marks a failed span.

/// The target of these spans and of the events in them.
pub const TARGET: &str = "millpond::trace";

/// The name of the span of a segment's whole path through its producer.
pub const ORIGIN: &str = "segment";
