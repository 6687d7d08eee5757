//! A string interner: keeps one copy of each name.
//!
//! The module takes a name and returns the shared copy of that name, so that 200,000 endpoints on 1,000 nodes need memory for only 1,000
//! node names.
//!
//! Invariant: unused names are removed from time to time, so that the size of the set depends on the cluster and not on the uptime.

use std::sync::Arc;

use foldhash::HashSet;

/// The number of names below which unused names are not removed.
const KEEP: usize = 1024;

/// A set of shared names.
#[derive(Debug)]
pub(super) struct Interner {
    names: HashSet<Arc<str>>,
    clean_at: usize,
}

impl Default for Interner {
    fn default() -> Self {
        Self { names: HashSet::default(), clean_at: KEEP }
    }
}

impl Interner {
    /// Returns the shared copy of a name.
    pub(super) fn share(&mut self, name: &str) -> Arc<str> {
        if let Some(shared) = self.names.get(name) {
            return Arc::clone(shared);
        }
        if self.names.len() >= self.clean_at {
            self.names.retain(|name| Arc::strong_count(name) > 1);
            self.clean_at = (self.names.len() * 2).max(KEEP);
        }
        let shared: Arc<str> = name.into();
        self.names.insert(Arc::clone(&shared));
        shared
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_share_one_copy() {
        let mut names = Interner::default();
        let first = names.share("node-1");
        assert!(Arc::ptr_eq(&first, &names.share("node-1")));
        assert!(!Arc::ptr_eq(&first, &names.share("node-2")));
    }

    #[test]
    fn unused_names_are_removed() {
        let mut names = Interner::default();
        let held = names.share("held");
        for index in 0..10 * KEEP {
            names.share(&format!("node-{index}"));
        }
        assert!(names.names.len() <= KEEP);
        assert!(Arc::ptr_eq(&held, &names.share("held")));
    }
}
