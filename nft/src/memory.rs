//! The allocator: gives large blocks back to the system, and reports when the system has no more memory.
//!
//! Large blocks hold the bytes of a transaction, a table that was read from the kernel, or a hash table that grows. They are needed for a
//! short time, and the process should not keep their memory.
//!
//! glibc gives a block of 128 KiB or more back to the system as soon as it is freed. But each time it does so, it raises this limit to the
//! size of the block, up to 32 MiB (`M_MMAP_THRESHOLD` in mallopt(3)), and glibc keeps smaller blocks from then on. In our measurement with
//! 100,000 Services, the process kept 20 to 65 MB of freed memory after its start.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{panic, process, thread};

/// Blocks from this size on, in bytes, are given back when they are freed: the limit that glibc begins with.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 128 << 10;

/// Makes glibc give large blocks back to the system whenever they are freed: it fixes the limit, which otherwise grows. Does nothing when
/// the process has several threads already, when it cannot count them, or with another C library.
pub fn give_back_large_blocks() {
    #[cfg(target_env = "gnu")]
    if std::fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1) {
        // SAFETY: `mallopt` takes two integers by value and keeps no pointer. It must not run while another thread allocates or frees:
        // this is the only thread. A value that it does not accept changes nothing.
        unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE) };
    }
}

/// How long a thread that finds no memory waits while another thread reports the lack of memory. A report may wait for a slow reader of the
/// log, but for less time than this.
const REPORTING: Duration = Duration::from_secs(2);

/// The system's allocator. When the system gives no memory, it calls a function that reports this, and aborts the process.
///
/// Rust's own report is a bare line on standard error, and stable Rust has no way to replace it. So this allocator reports and aborts
/// before Rust does, even if the caller could go on without the memory (`try_reserve`).
///
/// The function gets the size of the failed request. It must not need memory: if it does, or panics, the process ends without a report.
pub struct Reporting(pub fn(usize));

impl Reporting {
    /// Returns the system's block to the caller; reports and aborts if the system had no memory for it.
    #[inline]
    fn given(&self, block: *mut u8, bytes: usize) -> *mut u8 {
        if block.is_null() {
            self.exhausted(bytes);
        }
        block
    }

    #[cold]
    fn exhausted(&self, bytes: usize) -> ! {
        static REPORTS: AtomicBool = AtomicBool::new(false);
        if REPORTS.swap(true, Ordering::Relaxed) {
            // Another thread is reporting, or the report itself needed memory.
            thread::sleep(REPORTING);
        } else {
            // A panic must not unwind out of an allocator.
            let _ = panic::catch_unwind(|| (self.0)(bytes));
        }
        process::abort()
    }
}

// SAFETY: each call goes to the system's allocator unchanged, and its blocks go to the caller unchanged, so the system's allocator keeps
// the contract of `GlobalAlloc`. Nothing unwinds: `exhausted` catches panics and does not return.
unsafe impl GlobalAlloc for Reporting {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the rules of `GlobalAlloc::alloc`, which `System.alloc` has too.
        self.given(unsafe { System.alloc(layout) }, layout.size())
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the rules of `GlobalAlloc::alloc_zeroed`, which `System.alloc_zeroed` has too.
        self.given(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: the block came from this allocator, so from the system's, with this layout; the caller keeps the other rules of
        // `GlobalAlloc::realloc`.
        self.given(unsafe { System.realloc(block, layout, bytes) }, bytes)
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block came from this allocator, so from the system's, with this layout.
        unsafe { System.dealloc(block, layout) }
    }
}
