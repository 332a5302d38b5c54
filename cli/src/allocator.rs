//! How the C library's allocator is set up, so that the memory limits hold for what is resident.

/// From this size on, glibc maps a buffer by itself and gives it back when it is freed. By default that bound follows
/// the largest buffer freed, up to 32 MiB: buffers of messages and blocks then lie between others in heaps that never
/// shrink, and a gateway limited to 128 MiB had 340 MiB resident.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_FROM_BYTES: libc::c_int = 128 << 10;

/// Heaps of smaller buffers, for each core; by default eight, each of which keeps what it has freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const ARENAS_PER_CORE: usize = 2;

/// Sets the allocator up. Elsewhere than with glibc there is nothing to do.
pub(crate) fn set_up() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let arenas = libc::c_int::try_from(cores * ARENAS_PER_CORE).unwrap_or(libc::c_int::MAX);
        #[expect(
            unsafe_code,
            reason = "a C function of two integers; no other thread has been started yet"
        )]
        // SAFETY: it changes numbers of the allocator's; these are within what it allows.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES);
            libc::mallopt(libc::M_ARENA_MAX, arenas);
        }
    }
}
