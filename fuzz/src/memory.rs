//! How much a decoder allocates, counted: a length in the input must not decide it, only the bytes that are there.

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Runs `decode` and holds it to `limit` bytes; what it frees is not taken off.
///
/// # Panics
/// When it has allocated more.
pub fn bounded<T>(limit: usize, decode: impl FnOnce() -> T) -> T {
    let region = Region::new(ALLOCATOR);
    let decoded = decode();
    let allocated = region.change().bytes_allocated;
    assert!(
        allocated <= limit,
        "{allocated} bytes were allocated, the limit is {limit}"
    );
    decoded
}

/// What decoding a protobuf message of `bytes` may allocate: an empty message in it takes two bytes on the wire and
/// about a hundred in memory, twice while it is brought into its final form.
pub fn of_protobuf(bytes: usize) -> usize {
    4096 + 256 * bytes
}

/// What reading `bytes` of TOML may allocate: three bytes can be a key with a value, which the parser holds in several forms.
pub fn of_toml(bytes: usize) -> usize {
    (64 << 10) + 4096 * bytes
}
