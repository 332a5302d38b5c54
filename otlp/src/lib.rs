//! Reading OTLP in protobuf wire format without building messages: [`validate`] checks a request's structure
//! and counts its records; [`logs`], [`traces`] and [`metrics`] give borrowed views of one that passed.
//!
//! Nothing here copies or changes a payload, and nothing allocates while the input is well formed.
//! UTF-8 is not checked: the Collector passes the bytes of a string on as they are, and so do we.

mod alone;
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
pub use packed::{Fixed64s, Varints};
pub use request::{Item, Request, Resource, Scope};
pub use signal::Signal;
pub use validate::{Counts, DEPTH_MAX, Malformed, validate};
pub use value::{AnyValue, KeyValue, KeyValues, Values};
pub use wire::Reason;
