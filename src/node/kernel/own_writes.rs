//! Records the transactions that threads other than the sync loop commit through their own sockets, so that the sync loop does not take
//! them for transactions of another program.
//!
//! Each transaction that changes something raises the ruleset's generation by one; the module records the generations that this process
//! made. Invariants: memory is bounded; a generation is recorded only if no other program can have made it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The largest number of recorded generations. It can be small, because other threads rarely commit transactions and the sync loop reads
/// the record often.
const REMEMBERED: usize = 64;

/// The record of transactions, which all threads share.
#[derive(Clone, Debug, Default)]
pub struct OwnWrites(Arc<Mutex<Noted>>);

#[derive(Debug, Default)]
struct Noted {
    generations: VecDeque<u32>,
    /// The netlink port that [`OwnWrites::begins`] noted last.
    port: Option<u32>,
}

impl OwnWrites {
    /// Notes that a transaction is about to be committed through the socket with this netlink port.
    pub(super) fn begins(&self, port: u32) {
        self.noted().port = Some(port);
    }

    /// Records that the transaction was committed, if no other program committed one at the same time. `before` and `after` are the
    /// generations right before and after the transaction.
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

    /// Returns the last of the consecutive generations after `from` that this process made; `from` if another program made the next
    /// generation.
    pub(super) fn since(&self, from: u32) -> u32 {
        let noted = self.noted();
        let mut last = from;
        while noted.generations.contains(&last.wrapping_add(1)) {
            last = last.wrapping_add(1);
        }
        last
    }

    /// Returns whether this is the netlink port that [`Self::begins`] noted last, whether its transaction was committed or not.
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
        // Another program committed at the same time, so it is unknown which generation this process made.
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
