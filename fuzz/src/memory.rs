//! Counts a decoder's allocations: the number of input bytes may determine them, but not a length inside the input.

use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Runs `decode` and limits its allocations to `limit` bytes. Freed memory still counts.
///
/// # Panics
/// If `decode` has allocated more.
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

/// The limit for decoding a protobuf message of `bytes`: an empty nested message takes two bytes on the wire and about
/// a hundred in memory, and twice that while it is converted to its final form.
pub fn of_protobuf(bytes: usize) -> usize {
    4096 + 256 * bytes
}

/// The limit for parsing `bytes` of TOML: three bytes can be a key with a value, which the parser stores in several
/// forms.
pub fn of_toml(bytes: usize) -> usize {
    (64 << 10) + 4096 * bytes
}
