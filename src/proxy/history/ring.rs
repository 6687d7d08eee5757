//! The ring buffer of the latest history entries, in bounded memory.
//!
//! Several threads write, and the metrics server reads. A reader copies references to the entries under the lock, and formats them after
//! releasing it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use jiff::Timestamp;

use inspect::history::{Entry, EntryKind, Query};

/// When the entries of a page have this many bytes, no further entry is added to it.
const PAGE: usize = 128 << 10;

/// The most entries that are kept.
pub const MAX_ENTRIES: usize = 4096;
/// The most bytes that the kept entries take; see [`Entry::size`].
pub const MAX_BYTES: usize = 2 << 20;

/// A handle to the ring, for writers and readers. Clones share the ring.
#[derive(Clone, Debug)]
pub struct History(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    started: Timestamp,
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    entries: VecDeque<(Arc<Entry>, usize)>,
    bytes: usize,
    /// The number of the last entry.
    last: u64,
}

/// The content of the ring at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// When the process started. A reader sees from it that another process has taken over, which numbers its entries from 1 again.
    pub started: Timestamp,
    /// The entries after the requested number, the oldest first.
    pub entries: Vec<Arc<Entry>>,
    /// The number of the oldest entry that is kept; one more than `last` when none is kept.
    pub first: u64,
    /// The number of the last entry that was ever added; 0 before the first.
    pub last: u64,
}

impl History {
    /// Makes an empty ring for a process that started at `started`.
    #[must_use]
    pub fn new(started: SystemTime) -> Self {
        let started = Timestamp::try_from(started).unwrap_or_default();
        Self(Arc::new(Shared { started, ring: Mutex::default() }))
    }

    /// Adds an entry, and drops the oldest ones if there is no room. `sync` is the number of the sync that made it, if one did. Returns the
    /// entry with its number.
    pub fn push(&self, time: SystemTime, sync: Option<u64>, what: EntryKind) -> Arc<Entry> {
        let time = Timestamp::try_from(time).unwrap_or_default();
        let entry = Entry { number: 0, time, sync, what };
        let size = entry.size();
        self.ring().push(entry, size)
    }

    /// Returns the entries with greater numbers than `after`.
    #[must_use]
    pub fn snapshot(&self, after: u64) -> Snapshot {
        let ring = self.ring();
        let first = ring.entries.front().map_or(ring.last + 1, |(entry, _)| entry.number);
        let known = usize::try_from(after.saturating_add(1).saturating_sub(first)).unwrap_or(usize::MAX);
        let entries = ring.entries.iter().skip(known).map(|(entry, _)| Arc::clone(entry)).collect();
        Snapshot { started: self.0.started, entries, first, last: ring.last }
    }

    /// Locks the ring, also after another thread panicked while it held the lock.
    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.0.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Snapshot {
    /// Formats the entries that fit `since` and `service` of the query as a [`Page`](inspect::history::Page) in JSON. The page ends with the
    /// entry that brings it to `PAGE` bytes; the reader asks for the next page with the page's `last` as `after`.
    #[must_use]
    pub fn page(&self, query: &Query, now: SystemTime) -> String {
        let oldest = query.since.and_then(|since| now.checked_sub(since));
        let oldest = oldest.and_then(|oldest| Timestamp::try_from(oldest).ok());
        let (mut changes, mut last, mut more) = (String::new(), self.last, false);
        for entry in &self.entries {
            if changes.len() >= PAGE {
                more = true;
                last = entry.number - 1;
                break;
            }
            let is_wanted = oldest.is_none_or(|oldest| entry.time >= oldest)
                && query.service.as_ref().is_none_or(|service| entry.is_about(service));
            if is_wanted && let Ok(json) = serde_json::to_string(&**entry) {
                changes += if changes.is_empty() { "" } else { "," };
                changes += &json;
            }
        }
        let Self { started, first, .. } = self;
        format!(r#"{{"started":"{started}","first":{first},"last":{last},"more":{more},"changes":[{changes}]}}"#)
    }
}

impl Ring {
    fn push(&mut self, entry: Entry, size: usize) -> Arc<Entry> {
        self.last += 1;
        let entry = Arc::new(Entry { number: self.last, ..entry });
        while self.entries.len() >= MAX_ENTRIES || self.bytes + size > MAX_BYTES {
            let Some((_, gone)) = self.entries.pop_front() else { break };
            self.bytes -= gone;
        }
        // Valid names are far too short to make an entry larger than [`MAX_BYTES`]. Such an entry would not be kept.
        if size <= MAX_BYTES {
            self.bytes += size;
            self.entries.push_back((Arc::clone(&entry), size));
        }
        entry
    }
}
