//! Remembers logged messages, so that a lasting condition is logged once and not at each attempt.
//!
//! The module takes messages and tells which of them are new. The caller logs them, because it knows the level and the fields.
//!
//! Invariant: a message that was logged is new again only after [`Once::reset`] or [`OncePerKey::forget`], after a different message or
//! none, or after [`OncePerKey::retire`] dropped its key.

use std::borrow::Borrow;
use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::hash::Hash;

/// How many keys of deleted objects [`OncePerKey`] remembers, to bound its memory.
const RETIRED: usize = 1024;

/// The last message about one condition. Use `Once<()>` for a condition with a constant message.
#[derive(Debug)]
pub struct Once<T>(Option<T>);

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: PartialEq> Once<T> {
    /// Returns whether `message` differs from the last message, and remembers `message` as the last message.
    pub fn is_new(&mut self, message: T) -> bool {
        let is_new = self.0.as_ref() != Some(&message);
        self.0 = Some(message);
        is_new
    }

    /// Notes that the condition is over, so that the next message is new.
    pub fn reset(&mut self) {
        self.0 = None;
    }
}

impl Once<String> {
    /// Returns the text of the error if it differs from the last error. A success makes the next error new.
    pub fn new_error<T>(&mut self, outcome: &Result<T, impl Display>) -> Option<String> {
        let Err(error) = outcome else {
            self.reset();
            return None;
        };
        let text = error.to_string();
        self.is_new(text.clone()).then_some(text)
    }
}

/// The last messages about each of many objects, by key. It holds the keys of existing objects that have messages, and at most 1,024 keys
/// of deleted objects.
#[derive(Debug)]
pub struct OncePerKey<K, T> {
    last: HashMap<K, Vec<T>>,
    /// The keys of deleted objects, in the order of deletion.
    retired: VecDeque<K>,
}

impl<K, T> Default for OncePerKey<K, T> {
    fn default() -> Self {
        Self { last: HashMap::new(), retired: VecDeque::new() }
    }
}

impl<K: Clone + Eq + Hash, T: Clone + PartialEq> OncePerKey<K, T> {
    /// Returns those of `messages` that were not in the previous call for this key. An empty list forgets the key.
    pub fn new_messages(&mut self, key: K, messages: Vec<T>) -> Vec<T> {
        if messages.is_empty() && self.last.is_empty() {
            // Return early in this usual case, so that the key is not hashed.
            return messages;
        }
        let last = self.last.remove(&key).unwrap_or_default();
        let new = messages.iter().filter(|message| !last.contains(message)).cloned().collect();
        if !messages.is_empty() {
            self.last.insert(key, messages);
        }
        new
    }

    /// Notes that the object was deleted, but remembers its messages until 1,024 further objects with messages were deleted: a controller
    /// that repeatedly deletes and creates the same object must not fill the log.
    pub fn retire(&mut self, key: &K) {
        if !self.last.contains_key(key) {
            return;
        }
        self.retired.push_back(key.clone());
        if self.retired.len() > RETIRED
            && let Some(oldest) = self.retired.pop_front()
        {
            self.last.remove(&oldest);
        }
    }

    /// Forgets a key, so that the next message about it is new.
    pub fn forget<Q: Eq + Hash + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        self.last.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_new_until_it_is_repeated_and_again_after_a_reset() {
        let mut once = Once::default();
        assert!(once.is_new("in use"));
        assert!(!once.is_new("in use"));
        assert!(once.is_new("no such address"));
        assert!(once.is_new("in use"), "another message came in between");
        once.reset();
        assert!(once.is_new("in use"));
    }

    #[test]
    fn each_message_about_a_key_is_new_once_until_it_goes_away() {
        let mut once = OncePerKey::default();
        assert_eq!(once.new_messages("a", vec![1, 2]), [1, 2]);
        assert_eq!(once.new_messages("a", vec![1, 2, 3]), [3]);
        assert_eq!(once.new_messages("b", vec![1]), [1]);
        assert_eq!(once.new_messages("a", vec![]), [0; 0]);
        assert_eq!(once.new_messages("a", vec![1]), [1]);
        once.forget("a");
        assert_eq!(once.new_messages("a", vec![1]), [1]);
    }

    #[test]
    fn retired_keys_are_remembered_in_bounded_memory() {
        let mut once = OncePerKey::default();
        for _ in 0..3 {
            once.new_messages(0, vec!["bad"]);
            once.retire(&0);
        }
        assert_eq!(once.new_messages(0, vec!["bad"]), [""; 0]);
        assert_eq!(once.new_messages(0, vec!["worse"]), ["worse"]);
        for key in 0..3 * RETIRED {
            once.new_messages(key, vec!["bad"]);
            once.retire(&key);
        }
        assert_eq!((once.last.len(), once.retired.len()), (RETIRED, RETIRED));
        assert_eq!(once.new_messages(1, vec!["bad"]), ["bad"]);
    }
}
