//! OTLP/JSON to protobuf: a request's JSON is read once, and its protobuf written as it is read.
//!
//! The mapping is proto3's with OTLP's deviations (OTLP specification, "JSON Protobuf Encoding"): ids in hexadecimal,
//! enumerations as integers, keys in lowerCamelCase, unknown fields ignored. Beyond that is taken what the Collector
//! takes: the fields' original names, the names of enumerations, and surrogates without their other half, which
//! JavaScript makes when it cuts a string short.
//!
//! It allocates what it is told it may, and nothing else while the input is well formed. As in protobuf requests,
//! UTF-8 is not checked.

mod fault;
mod id;
mod key;
mod number;
mod reader;
mod request;
mod string;
mod writer;

pub use fault::{JsonError, JsonReason, MalformedJson};

use crate::signal::Signal;

/// The protobuf of a request in OTLP/JSON, in a vector whose capacity is `room` bytes.
///
/// Fields that the request gives are written even when their value is the default one; those that OTLP does not
/// define are left out. What comes out passes [`crate::validate`].
///
/// # Errors
/// [`JsonError::Malformed`] for what is not JSON, or no request of the signal; [`JsonError::MoreRoom`] when the
/// protobuf needs more than `room`, if only for a moment: an id or bytes are decoded where their text was written. It
/// needs less than the JSON's own length but for odd requests (lists of short numbers), and always less than five times
/// as much.
pub fn protobuf_of_json(signal: Signal, json: &[u8], room: usize) -> Result<Vec<u8>, JsonError> {
    request::protobuf(signal.request(), json, room)
}
