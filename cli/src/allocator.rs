//! Configures the C library's allocator, so that the memory limits hold for resident memory.

/// Size from which glibc maps each buffer separately, and returns it to the system when it is freed. By default this threshold
/// grows with the largest freed buffer, up to 32 MiB. Buffers of messages and blocks then lie between others in heaps that
/// never shrink: a gateway limited to 128 MiB had 340 MiB resident.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const MAPPED_FROM_BYTES: libc::c_int = 128 << 10;

/// Heaps of smaller buffers per core. The default is eight, and each keeps its freed memory.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const ARENAS_PER_CORE: usize = 2;

/// Configures the allocator. Does nothing without glibc.
pub(crate) fn set_up() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let arenas = libc::c_int::try_from(cores * ARENAS_PER_CORE).unwrap_or(libc::c_int::MAX);
        #[expect(
            unsafe_code,
            reason = "a C function of two integers, called before any other thread starts"
        )]
        // SAFETY: mallopt sets numeric parameters, and these values are in its range.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_FROM_BYTES);
            libc::mallopt(libc::M_ARENA_MAX, arenas);
        }
    }
}
