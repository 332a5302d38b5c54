//! OTLP/JSON to protobuf in one pass: writes the protobuf while reading the JSON.
//!
//! The mapping is proto3's with OTLP's deviations (OTLP specification, "JSON Protobuf Encoding"): ids in hexadecimal,
//! enumerations as integers, keys in lowerCamelCase, unknown fields ignored. Beyond that it accepts what the Collector
//! accepts: the fields' original names, the names of enumerations, and unpaired surrogates, which JavaScript produces
//! when it cuts a string.
//!
//! It allocates only the given room as long as the input is well formed. As for protobuf requests, it does not check
//! UTF-8.

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

/// Converts a request from OTLP/JSON to protobuf, in a vector with a capacity of `room` bytes.
///
/// Fields of the request are written even if they have the default value; fields that OTLP does not define are left
/// out. The output passes [`crate::validate`].
///
/// # Errors
/// [`JsonError::Malformed`] for invalid JSON, or if it is not a request of the signal. [`JsonError::MoreRoom`] if the
/// protobuf needs more than `room`, even briefly: an id or bytes are decoded in place of their text. It needs less than
/// the JSON's length except for unusual requests (lists of short numbers), and always less than five times as much.
pub fn protobuf_of_json(signal: Signal, json: &[u8], room: usize) -> Result<Vec<u8>, JsonError> {
    request::protobuf(signal.request(), json, room)
}
