//! What producers and consumers agree on about the spans of their work, so that those of both join one trace: a segment's
//! name is 128 bits, and is the trace's id. Nobody records them unless asked; what is recorded is decided elsewhere.
//!
//! - They are `tracing` spans and events of the target [`TARGET`], of the level INFO.
//! - A span without a parent that has the field `segment` is of that segment's trace. One with the name [`ORIGIN`] is the
//!   first of it, whose id follows from the segment's name: the others, of whatever process, are below it.
//! - A span without either is of the trace of the first recorded span that it follows from, and below that.
//! - The field `error` says that what the span stands for failed.

/// The target of these spans and of the events in them.
pub const TARGET: &str = "millpond::trace";

/// The name of the span of a segment's whole way through its producer.
pub const ORIGIN: &str = "segment";
