//! What the library asks of the allocator: for one changed endpoint, for an endpoint that is decoded and kept, for the ring of changes,
//! for a table that another program wrote into, and for very many objects that share a key.
//!
//! A binary of its own, because it counts every allocation of the process; its tests take turns, so that none counts another's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[path = "../support/mod.rs"]
mod support;

mod changes;
mod decoding;
mod reading;
mod ring;
mod shared;

/// What the allocator has been asked for.
#[derive(Clone, Copy)]
struct Count {
    /// Allocations so far.
    calls: usize,
    /// Bytes of these.
    bytes: usize,
    /// Bytes that are not given back yet.
    live: usize,
}

/// Counts what is asked for and what is given back.
struct Counting;

static CALLS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);
static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is handed on to the system's allocator unchanged; counting touches no memory of the caller.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        CALLS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the rules of `GlobalAlloc::alloc`, which are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the block came from `alloc` above, so from the system's allocator, with this layout.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The allocations of this process so far.
fn count() -> Count {
    let [calls, bytes, live] = [&CALLS, &BYTES, &LIVE].map(|counter| counter.load(Ordering::Relaxed));
    Count { calls, bytes, live }
}

/// Keeps the other test from running while this one counts.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}
