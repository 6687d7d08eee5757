//! Which objects the model was told of, and which of them a new listing no longer has.
//!
//! Takes keys, gives keys. Pure. Keeps names only, which it shares with the events.
//!
//! Invariant: a listing that was not completed takes nothing away.

use std::collections::HashMap;

use crate::source::key::Key;

/// The objects of one kind.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The listing in which each object was last seen.
    objects: HashMap<Key, u32>,
    listing: u32,
    /// The listing has an object that cannot be told from others.
    nameless: bool,
    /// How many were known when the listing began.
    before: usize,
}

/// A listing that takes away fewer objects is believed: a small cluster may be emptied at once.
const MANY: usize = 10;

impl Known {
    /// A listing begins; if one was under way it was aborted.
    pub(super) fn begin(&mut self) {
        self.listing = self.listing.wrapping_add(1);
        self.nameless = false;
        self.before = self.objects.len();
    }

    /// The number of objects that the listing, now complete, takes away, if that is hard to believe: a larger share of those known
    /// before than `limit` percent. It is then taken for a mistake of the server until a second listing confirms it; whoever
    /// empties a cluster on purpose waits for a second or two.
    pub(super) fn doubtful(&self, limit: u8) -> Option<usize> {
        let missing = self.objects.values().filter(|seen| **seen != self.listing).count();
        (!self.nameless && missing >= MANY && missing.saturating_mul(100) > self.before.saturating_mul(limit.into()))
            .then_some(missing)
    }

    /// An object exists, and the model is told.
    pub(super) fn applied(&mut self, key: Key) {
        self.objects.insert(key, self.listing);
    }

    /// An object exists but cannot be read; if the model knows it, it stays as it was.
    pub(super) fn unreadable(&mut self, key: Option<&Key>) {
        match key {
            Some(key) => {
                if let Some(seen) = self.objects.get_mut(key) {
                    *seen = self.listing;
                }
            }
            None => self.nameless = true,
        }
    }

    /// An object is gone. Whether the model knows it.
    pub(super) fn deleted(&mut self, key: &Key) -> bool {
        self.objects.remove(key).is_some()
    }

    /// The listing is complete: forgets and gives what it does not have.
    ///
    /// With a nameless object in it nothing is missing for certain, so nothing is taken away.
    pub(super) fn complete(&mut self) -> Vec<Key> {
        if self.nameless {
            return Vec::new();
        }
        let listing = self.listing;
        let mut missing: Vec<Key> = self.objects.extract_if(|_, seen| *seen != listing).map(|(key, _)| key).collect();
        missing.sort();
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::Node(name.into())
    }

    /// The books after a listing of a and b.
    fn books() -> Known {
        let mut known = Known::default();
        known.begin();
        known.applied(key("a"));
        known.applied(key("b"));
        assert_eq!(known.complete(), []);
        known
    }

    #[test]
    fn only_what_a_complete_listing_lacks_is_missing() {
        let mut known = books();
        known.applied(key("watched"));
        known.begin();
        known.applied(key("b"));
        known.applied(key("c"));
        assert_eq!(known.complete(), [key("a"), key("watched")]);
        assert_eq!(known.complete(), []);
        assert!(known.deleted(&key("c")) && !known.deleted(&key("c")) && !known.deleted(&key("a")));
    }

    #[test]
    fn an_aborted_listing_takes_nothing_away_and_counts_for_nothing() {
        let mut known = books();
        known.begin();
        known.applied(key("a"));
        known.applied(key("c"));
        known.begin();
        known.applied(key("b"));
        assert_eq!(known.complete(), [key("a"), key("c")]);
    }

    #[test]
    fn a_listing_that_takes_nearly_everything_away_is_doubtful() {
        let doubtful_at = |limit: u8, before: usize, kept: usize, new: usize| {
            let mut known = Known::default();
            known.begin();
            (0..before).for_each(|n| known.applied(key(&n.to_string())));
            known.complete();
            known.begin();
            (0..kept).for_each(|n| known.applied(key(&n.to_string())));
            (0..new).for_each(|n| known.applied(key(&format!("new-{n}"))));
            known.doubtful(limit)
        };
        let doubtful = |before, kept, new| doubtful_at(90, before, kept, new);
        assert_eq!(doubtful(10, 0, 0), Some(10));
        assert_eq!(doubtful(9, 0, 0), None, "a small cluster may be emptied");
        assert_eq!((doubtful(100, 9, 0), doubtful(100, 10, 0)), (Some(91), None));
        assert_eq!(doubtful(100, 0, 500), Some(100), "another cluster's objects are no excuse");
        assert_eq!(doubtful(0, 0, 50), None);
        assert_eq!((doubtful_at(50, 40, 20, 0), doubtful_at(50, 40, 19, 0)), (None, Some(21)));
        assert_eq!((doubtful_at(0, 40, 31, 0), doubtful_at(0, 40, 30, 0)), (None, Some(10)));
        assert_eq!(doubtful_at(100, 1000, 0, 0), None, "never");
    }

    #[test]
    fn an_unreadable_object_stays() {
        let mut known = books();
        known.begin();
        known.unreadable(Some(&key("a")));
        known.unreadable(Some(&key("never-readable")));
        assert_eq!(known.complete(), [key("b")]);
        assert!(!known.deleted(&key("never-readable")));
    }

    #[test]
    fn beside_a_nameless_object_nothing_is_missing() {
        let mut known = books();
        known.begin();
        known.unreadable(None);
        assert_eq!(known.complete(), []);
        known.begin();
        assert_eq!(known.complete(), [key("a"), key("b")]);
    }
}
