//! The processor time that a sync costs, which decides when the next one may begin if the configuration has no minimum interval.
//!
//! Takes two readings of the kernel's clocks; gives their difference as a cost. A sync costs more than the time of its own thread: other threads
//! read the changes, and help with many Services. Other threads also serve pages and carry connections of node ports on loopback, which is no
//! cost of a sync, so they count at most twice as much as the sync's own thread.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// A reading of the clocks of processor time.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProcessorTime {
    thread: Duration,
    process: Duration,
}

impl ProcessorTime {
    /// Reads the clocks of the calling thread and of the process.
    pub(super) fn now() -> Self {
        let read = |clock| Duration::try_from(clock_gettime(clock)).unwrap_or_default();
        Self { thread: read(ClockId::ThreadCPUTime), process: read(ClockId::ProcessCPUTime) }
    }

    /// Returns the cost from `before`, a reading of the same thread, until this reading.
    pub(super) fn since(self, before: Self) -> Duration {
        let own = self.thread.saturating_sub(before.thread);
        let all = self.process.saturating_sub(before.process);
        all.clamp(own, own.saturating_mul(3))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_threads_count_at_most_twice_as_much_as_the_own_one() {
        let at = |thread: u64, process: u64| ProcessorTime {
            thread: Duration::from_millis(thread),
            process: Duration::from_millis(process),
        };
        let cost = |thread: u64, process: u64| at(100 + thread, 1_000 + process).since(at(100, 1_000)).as_millis();
        assert_eq!(cost(10, 10), 10, "the own thread alone");
        assert_eq!(cost(10, 25), 25, "and one that reads changes");
        assert_eq!(cost(10, 500), 30, "and one that carries connections");
        assert_eq!(cost(0, 500), 0);
    }

    #[test]
    fn the_clocks_go_forward() {
        let before = ProcessorTime::now();
        let mut sum = 0_u64;
        while ProcessorTime::now().since(before).is_zero() {
            sum = std::hint::black_box(sum + 1);
        }
    }
}
