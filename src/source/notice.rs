//! What is said about an object that cannot be used in full, and the memory that keeps it from being said twice.
//!
//! Takes problems as they are found; gives texts for the log. Knows neither a log nor a clock.

use std::borrow::Borrow;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::Hash;

/// A problem that loses a part of an object, or the whole object, but nothing else.
///
/// Prints as `Service demo/web: spec.externalIPs[1]: "300.1.1.1" is not an IP address; ignored`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The object's kind.
    pub kind: &'static str,
    /// `namespace/name`, or the name alone where there is no namespace.
    pub object: String,
    /// Path of the field, such as `spec.ports[0].port`.
    pub field: String,
    /// What is wrong with the field, and what became of it.
    pub problem: String,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}: {}", self.kind, self.object, self.field, self.problem)
    }
}

/// Remembers what was last said about each key.
///
/// Invariant: [`Memory::fresh`] returns an item only if the previous call for the same key did not hold an equal one.
#[derive(Debug)]
pub(crate) struct Memory<K, T> {
    last: HashMap<K, Vec<T>>,
    /// Keys of what is gone, the latest last, at most [`GONE`].
    gone: VecDeque<K>,
}

/// How many keys are remembered of what is gone.
const GONE: usize = 1024;

impl<K, T> Default for Memory<K, T> {
    fn default() -> Self {
        Self { last: HashMap::new(), gone: VecDeque::new() }
    }
}

impl<K: Clone + Eq + Hash, T: Clone + PartialEq> Memory<K, T> {
    /// The items that were not yet said about `key`; all of them are remembered in place of the former ones.
    pub(crate) fn fresh(&mut self, key: K, items: Vec<T>) -> Vec<T> {
        let last = self.last.remove(&key).unwrap_or_default();
        let fresh = items.iter().filter(|item| !last.contains(item)).cloned().collect();
        if !items.is_empty() {
            self.last.insert(key, items);
        }
        fresh
    }

    /// Notes that what a key stands for is gone. It is remembered for some time all the same: a program that deletes and makes the
    /// same again and again should not fill the log.
    pub(crate) fn retire(&mut self, key: &K) {
        if !self.last.contains_key(key) {
            return;
        }
        self.gone.push_back(key.clone());
        if self.gone.len() > GONE
            && let Some(oldest) = self.gone.pop_front()
        {
            self.last.remove(&oldest);
        }
    }

    /// Forgets a key: whatever comes next about it is new.
    pub(crate) fn forget<Q: Eq + Hash + ?Sized>(&mut self, key: &Q)
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
    fn a_notice_names_kind_object_and_field() {
        let notice = Notice {
            kind: "Service",
            object: "demo/web".into(),
            field: "spec.externalIPs[1]".into(),
            problem: "\"300.1.1.1\" is not an IP address; ignored".into(),
        };
        assert_eq!(
            notice.to_string(),
            "Service demo/web: spec.externalIPs[1]: \"300.1.1.1\" is not an IP address; ignored"
        );
    }

    #[test]
    fn the_same_is_said_once_until_it_goes_away() {
        let mut memory = Memory::default();
        assert_eq!(memory.fresh("a", vec![1, 2]), [1, 2]);
        assert_eq!(memory.fresh("a", vec![1, 2, 3]), [3]);
        assert_eq!(memory.fresh("b", vec![1]), [1]);
        assert_eq!(memory.fresh("a", vec![]), [0; 0]);
        assert_eq!(memory.fresh("a", vec![1]), [1]);
        memory.forget("a");
        assert_eq!(memory.fresh("a", vec![1]), [1]);
    }

    #[test]
    fn what_is_gone_is_remembered_for_some_time_in_bounded_memory() {
        let mut memory = Memory::default();
        for _ in 0..3 {
            memory.fresh(0, vec!["bad"]);
            memory.retire(&0);
        }
        assert_eq!(memory.fresh(0, vec!["bad"]), [""; 0]);
        assert_eq!(memory.fresh(0, vec!["worse"]), ["worse"]);
        for key in 0..3 * GONE {
            memory.fresh(key, vec!["bad"]);
            memory.retire(&key);
        }
        assert_eq!((memory.last.len(), memory.gone.len()), (GONE, GONE));
        assert_eq!(memory.fresh(1, vec!["bad"]), ["bad"]);
    }
}
