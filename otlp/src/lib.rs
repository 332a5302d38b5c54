//! Reading OTLP in protobuf wire format without building messages: [`validate`] checks a request's structure
//! and counts its records; [`logs`], [`traces`] and [`metrics`] give borrowed views of one that passed.
//! [`protobuf_of_json`] turns a request in OTLP/JSON into one in protobuf.
//!
//! Nothing here changes a payload, and nothing but that copies one or allocates while the input is well formed.
//! UTF-8 is not checked: the Collector passes the bytes of a string on as they are, and so do we.

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
