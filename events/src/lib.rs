//! Rows of JSON events: their members, and the keys by which they repeat each other. Gateways and consumers must read the same key
//! from the same row, so both use this code. Pure: it builds no value, and never changes the bytes of a row.

pub mod json;
mod key;

pub use key::{KeyHasher, KeyPaths, KeyValue};
