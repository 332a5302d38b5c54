//! Reads OTLP in protobuf wire format without building messages. [`validate`] checks a request's structure and counts
//! its records; [`logs`], [`traces`] and [`metrics`] provide borrowed views of a valid request. [`protobuf_of_json`]
//! converts a request from OTLP/JSON to protobuf.
//!
//! Nothing here changes a payload. Only the conversion copies or allocates as long as the input is well formed. UTF-8
//! is not checked: like the Collector, Millpond passes string bytes on unchanged.

mod alone;
mod json;
pub mod logs;
pub mod metrics;
mod packed;
mod request;
mod schema;
mod signal;
pub mod traces;
mod validate;
mod value;
mod wire;

pub use alone::record_alone;
pub use json::{JsonError, JsonReason, MalformedJson, protobuf_of_json};
pub use packed::{Fixed64s, Varints};
pub use request::{Item, Request, Resource, Scope};
pub use signal::Signal;
pub use validate::{Counts, DEPTH_MAX, Malformed, validate};
pub use value::{AnyValue, KeyValue, KeyValues, Values};
pub use wire::Reason;
