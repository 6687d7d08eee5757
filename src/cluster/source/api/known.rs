//! Tracks which objects of one kind exist and were sent to `rules::model` ("the model"), and finds those that a new list lacks.
//!
//! The module does no I/O. It keeps only the names of the objects, in memory that it shares with the events.
//!
//! Invariant: a list that breaks off removes no object.

use std::time::{Duration, Instant};

use foldhash::HashMap;

use crate::source::Key;

/// The known objects of one kind: they exist, and the model has them.
#[derive(Debug, Default)]
pub(super) struct KnownObjects {
    /// The number of the list in which each object was last seen.
    objects: HashMap<Key, u32>,
    list: u32,
    /// Whether the current list has an object whose name cannot be read or is invalid.
    nameless: bool,
    /// How many objects there were when the list began.
    before: usize,
}

/// The time of a list that removed too many objects and waits for confirmation by a second one.
#[derive(Debug, Default)]
pub(super) struct Confirmation(Option<Instant>);

impl Confirmation {
    /// Returns whether a list may be applied: it does not remove too many objects (`is_excessive` is false), or it confirms the previous
    /// list, which removed too many objects, was not applied and is not older than `within`.
    pub(super) fn may_apply(&mut self, is_excessive: bool, now: Instant, within: Duration) -> bool {
        let is_second = self.0.take().is_some_and(|first| now.saturating_duration_since(first) <= within);
        self.0 = (is_excessive && !is_second).then_some(now);
        !is_excessive || is_second
    }
}

/// The number of removed objects below which a list needs no confirmation, because a small cluster may lose all its objects at once.
const MANY: usize = 10;

impl KnownObjects {
    /// Returns the number of known objects.
    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Notes that a list begins. If the previous list was not complete, it has broken off.
    pub(super) fn begin_list(&mut self) {
        self.list = self.list.wrapping_add(1);
        self.nameless = false;
        self.before = self.objects.len();
    }

    /// Returns how many objects the complete list would remove, if these are at least [`MANY`] and more than `limit` percent of the objects
    /// known before the list; otherwise `None`. Also `None` if the list has an object without a readable name, because such a list removes
    /// nothing. Such a removal may be a mistake of the server, so the next list has to confirm it.
    pub(super) fn excessive_removal(&self, limit: u8) -> Option<usize> {
        let missing = self.objects.values().filter(|seen| **seen != self.list).count();
        (!self.nameless && missing >= MANY && missing.saturating_mul(100) > self.before.saturating_mul(limit.into()))
            .then_some(missing)
    }

    /// Notes an object that exists and that is sent to the model.
    pub(super) fn applied(&mut self, key: Key) {
        self.objects.insert(key, self.list);
    }

    /// Notes an object that exists but cannot be read. If the model has the object, the list does not remove it. `key` is `None` if the
    /// object's name cannot be read either.
    pub(super) fn unreadable(&mut self, key: Option<&Key>) {
        match key {
            Some(key) => {
                if let Some(seen) = self.objects.get_mut(key) {
                    *seen = self.list;
                }
            }
            None => self.nameless = true,
        }
    }

    /// Notes that an object was deleted. Returns whether it was known.
    pub(super) fn deleted(&mut self, key: &Key) -> bool {
        self.objects.remove(key).is_some()
    }

    /// Notes that a list is complete: forgets the known objects that the list lacks, and returns their names.
    ///
    /// Removes no object if the name of an object on the list cannot be read, because that object may be any of the missing objects.
    pub(super) fn end_list(&mut self) -> Vec<Key> {
        if self.nameless {
            return Vec::new();
        }
        let list = self.list;
        let mut missing: Vec<Key> = self.objects.extract_if(|_, seen| *seen != list).map(|(key, _)| key).collect();
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

    /// Returns the known objects after a list of `a` and `b`.
    fn two_known() -> KnownObjects {
        let mut known = KnownObjects::default();
        known.begin_list();
        known.applied(key("a"));
        known.applied(key("b"));
        assert_eq!(known.end_list(), []);
        known
    }

    #[test]
    fn only_a_complete_list_removes_objects() {
        let mut known = two_known();
        known.applied(key("watched"));
        known.begin_list();
        known.applied(key("b"));
        known.applied(key("c"));
        assert_eq!(known.end_list(), [key("a"), key("watched")]);
        assert_eq!(known.end_list(), []);
        assert!(known.deleted(&key("c")) && !known.deleted(&key("c")) && !known.deleted(&key("a")));
    }

    #[test]
    fn a_list_that_breaks_off_removes_nothing_and_does_not_count() {
        let mut known = two_known();
        known.begin_list();
        known.applied(key("a"));
        known.applied(key("c"));
        known.begin_list();
        known.applied(key("b"));
        assert_eq!(known.end_list(), [key("a"), key("c")]);
    }

    #[test]
    fn a_list_that_removes_nearly_all_objects_needs_confirmation() {
        let removal_at = |limit: u8, before: usize, kept: usize, new: usize| {
            let mut known = KnownObjects::default();
            known.begin_list();
            (0..before).for_each(|n| known.applied(key(&n.to_string())));
            known.end_list();
            known.begin_list();
            (0..kept).for_each(|n| known.applied(key(&n.to_string())));
            (0..new).for_each(|n| known.applied(key(&format!("new-{n}"))));
            known.excessive_removal(limit)
        };
        let removal = |before, kept, new| removal_at(90, before, kept, new);
        assert_eq!(removal(10, 0, 0), Some(10));
        assert_eq!(removal(9, 0, 0), None, "a small cluster may be emptied");
        assert_eq!((removal(100, 9, 0), removal(100, 10, 0)), (Some(91), None));
        assert_eq!(removal(100, 0, 500), Some(100), "new objects do not make up for it");
        assert_eq!(removal(0, 0, 50), None);
        assert_eq!((removal_at(50, 40, 20, 0), removal_at(50, 40, 19, 0)), (None, Some(21)));
        assert_eq!((removal_at(0, 40, 31, 0), removal_at(0, 40, 30, 0)), (None, Some(10)));
        assert_eq!(removal_at(100, 1000, 0, 0), None, "never");
    }

    #[test]
    fn a_list_is_confirmed_by_the_next_one_within_a_time() {
        let (start, within) = (Instant::now(), Duration::from_secs(120));
        for (lists, expected) in [
            (&[(0, true), (1, true), (2, true)][..], &[false, true, false][..]),
            (&[(0, true), (120, true)], &[false, true]),
            (&[(0, true), (121, true), (122, true)], &[false, false, true]),
            (&[(0, true), (1, false), (2, true)], &[false, true, false]),
            (&[(0, false), (1, false)], &[true, true]),
        ] {
            let mut confirmation = Confirmation::default();
            let found: Vec<bool> = lists
                .iter()
                .map(|(second, excessive)| {
                    confirmation.may_apply(*excessive, start + Duration::from_secs(*second), within)
                })
                .collect();
            assert_eq!(found, expected, "{lists:?}");
        }
    }

    #[test]
    fn an_unreadable_object_stays() {
        let mut known = two_known();
        known.begin_list();
        known.unreadable(Some(&key("a")));
        known.unreadable(Some(&key("never-readable")));
        assert_eq!(known.end_list(), [key("b")]);
        assert!(!known.deleted(&key("never-readable")));
    }

    #[test]
    fn with_a_nameless_object_on_the_list_nothing_is_removed() {
        let mut known = two_known();
        known.begin_list();
        known.unreadable(None);
        assert_eq!(known.end_list(), []);
        known.begin_list();
        assert_eq!(known.end_list(), [key("a"), key("b")]);
    }
}
