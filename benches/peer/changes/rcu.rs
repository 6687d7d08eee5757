//! Measures how long threads of a proxy wait in the kernel for the end of an RCU grace period, as a transaction and the deletion of
//! objects may have to.
//!
//! Reads `/proc/PID/task/TID/wchan` (`proc(5)`) of each thread of the proxy, and of the programs that it runs, every [`STEP`]. A shorter
//! wait is seen with a probability in proportion to its length, so the share of the looks is the share of the time.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

const STEP: Duration = Duration::from_millis(2);

/// The result of the looks.
#[derive(Default)]
pub(super) struct Waits {
    looks: u32,
    /// The looks in which a thread waited.
    waiting: u32,
}

impl Waits {
    /// Returns the share of the time in which some thread waited, from 0 to 1.
    pub(super) fn share(&self) -> f64 {
        f64::from(self.waiting) / f64::from(self.looks.max(1))
    }
}

/// Looks at a process and its children until `stop` is set.
pub(super) fn look(process: u32, stop: &AtomicBool) -> Waits {
    let mut waits = Waits::default();
    while !stop.load(Ordering::Relaxed) {
        sleep(STEP);
        waits.looks += 1;
        waits.waiting += u32::from(waits_for_readers(&process.to_string()));
    }
    waits
}

/// Whether a thread of this process, or of a process that it started, waits. A process or thread that has just ended does not.
fn waits_for_readers(process: &str) -> bool {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    tasks.map(|task| task.path()).any(|task| {
        let read = |name| fs::read_to_string(task.join(name)).unwrap_or_default();
        read("wchan").contains("rcu") || read("children").split_whitespace().any(waits_for_readers)
    })
}
