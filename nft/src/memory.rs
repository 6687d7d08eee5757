//! What the C library's allocator does with large blocks: the bytes of a transaction, what was read of a table, tables that grow. They are
//! needed for moments, and the process should not keep their memory.
//!
//! glibc gives a block of 128 KiB or more back to the system as soon as it is freed. But it takes each that is freed as a sign that more
//! like it follow, and keeps all blocks up to that size from then on, up to 32 MiB (`M_MMAP_THRESHOLD` in mallopt(3)). With 100,000 Services
//! the process had 20 to 65 MB of such memory after its start, depending on the sizes of maps.

/// Blocks from this size on, in bytes, are given back when they are freed: the limit that glibc begins with.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 128 << 10;

/// Has the allocator give large blocks back to the system when they are freed, whatever was freed before. Changes nothing when the
/// process has several threads already, or with another C library than glibc.
pub fn give_back_large_blocks() {
    #[cfg(target_env = "gnu")]
    if std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1) {
        // SAFETY: `mallopt` takes two integers by value and keeps no pointer. It must not run while another thread allocates or frees:
        // this is the only thread. A value that it does not accept changes nothing.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
    }
}
