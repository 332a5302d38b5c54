//! Reading OTLP in protobuf wire format without building messages: [`validate_logs`] checks a
//! request's structure and counts its records, [`logs`] gives borrowed views of one that passed.
//!
//! Nothing here copies or changes a payload, and nothing allocates while the input is well formed.
//! UTF-8 is not checked: the Collector passes the bytes of a string on as they are, and so do we.

mod alone;
pub mod logs;
mod schema;
mod validate;
mod value;
mod wire;

pub use alone::logs_alone;
pub use validate::{Counts, DEPTH_MAX, Malformed, validate_logs};
pub use value::{AnyValue, KeyValue, KeyValues, Values};
pub use wire::Reason;
