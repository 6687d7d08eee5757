//! The transactions that this process commits through sockets of other threads, so that they are not taken for those of another program.
//!
//! Takes the generation that such a transaction made, gives whether all since an earlier one are of this process. Invariant: memory is
//! bounded; a generation is noted only when it is certain that no other program made it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Transactions that are remembered. They are asked for many times a second, and made once in a while.
const REMEMBERED: usize = 64;

/// A record of these transactions, which threads share.
#[derive(Clone, Debug, Default)]
pub struct OwnWrites(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    generations: VecDeque<u32>,
    /// The port of the socket that committed last.
    port: Option<u32>,
}

impl OwnWrites {
    /// A transaction is about to be committed through the socket of this port.
    pub(super) fn begins(&self, port: u32) {
        self.noted().port = Some(port);
    }

    /// It was committed, between these two generations.
    pub(super) fn committed(&self, before: u32, after: u32) {
        if after.wrapping_sub(before) != 1 {
            return;
        }
        let mut noted = self.noted();
        if noted.generations.len() == REMEMBERED {
            noted.generations.pop_front();
        }
        noted.generations.push_back(after);
    }

    /// The last generation that this process made without a break since `from`.
    pub(super) fn since(&self, from: u32) -> u32 {
        let noted = self.noted();
        let mut last = from;
        while noted.generations.contains(&last.wrapping_add(1)) {
            last = last.wrapping_add(1);
        }
        last
    }

    /// Whether transactions from this port are of this process.
    pub(super) fn has_port(&self, port: u32) -> bool {
        self.noted().port == Some(port)
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_of_this_process_are_passed_over_and_no_others() {
        let own = OwnWrites::default();
        assert_eq!(own.since(7), 7);
        own.committed(7, 8);
        own.committed(8, 9);
        own.committed(11, 12);
        assert_eq!((own.since(7), own.since(8), own.since(9), own.since(11)), (9, 9, 9, 12));
        // Another program committed at the same time.
        own.committed(12, 14);
        own.committed(14, 14);
        assert_eq!(own.since(12), 12);
        own.committed(u32::MAX, 0);
        assert_eq!(own.since(u32::MAX), 0);
        (20..200).for_each(|generation| own.committed(generation, generation + 1));
        assert_eq!((own.since(20), own.since(150)), (20, 200), "what is long ago is forgotten");
        assert_eq!(own.noted().generations.len(), REMEMBERED);
    }
}
