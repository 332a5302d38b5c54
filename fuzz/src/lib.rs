//! Shared by the fuzz targets: the limit on a decoder's allocations, envelopes and checksums that are valid for any
//! content (random bytes would never pass a checksum), and the properties of the buffer's objects.
//!
//! A target panics if foreign input breaks a property, and fails in no other way.

pub mod memory;
pub mod objects;
pub mod segments;
