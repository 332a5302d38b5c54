//! What the fuzz targets share: the bound on what a decoder may allocate, envelopes and checksums that are right
//! whatever is in them (random bytes would never get past a checksum), and the properties of the buffer's objects.
//!
//! A target panics when something that came from outside breaks a property. That is the whole of its verdict.

pub mod memory;
pub mod objects;
pub mod segments;
