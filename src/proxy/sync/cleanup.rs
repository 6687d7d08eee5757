//! Runs work after the first successful sync, and again for as long as the work asks for another call.
//!
//! Takes the work and the time; returns when the next call is due. Pure except for the work itself: the caller passes in the time. The work
//! is not called before the first successful sync, nor after it is done.

use std::time::{Duration, Instant};

/// Does one step of work, which may block the sync loop for as long as a commit does.
pub(crate) type CleanupStep = Box<dyn FnMut() -> Step + Send>;

/// What a step of work did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The delay until the next call; `None` when the work is done.
    pub(crate) again: Option<Duration>,
    /// Whether rules of another program were removed.
    pub(crate) removed: bool,
}

/// The work, if it is not done yet, and the time of its next call.
#[derive(Default)]
pub(super) struct Cleanup {
    work: Option<CleanupStep>,
    due: Option<Instant>,
}

impl Cleanup {
    /// Holds the work until the first successful sync.
    pub(super) fn new(work: CleanupStep) -> Self {
        Self { work: Some(work), due: None }
    }

    /// Notes a successful sync. The first one makes the work due.
    pub(super) fn synced(&mut self, now: Instant) {
        if self.work.is_some() {
            self.due.get_or_insert(now);
        }
    }

    /// Returns the time until the next call; `None` before the first successful sync and after the work is done.
    pub(super) fn wait(&self, now: Instant) -> Option<Duration> {
        self.due.map(|due| due.saturating_duration_since(now))
    }

    /// Does the work if it is due. Returns whether it removed rules of another program.
    pub(super) fn run_if_due(&mut self, now: Instant) -> bool {
        if self.due.is_none_or(|due| now < due) {
            return false;
        }
        let step = self.work.as_mut().map(|work| work());
        self.due = step.and_then(|step| step.again).map(|after| now + after);
        if self.due.is_none() {
            self.work = None;
        }
        step.is_some_and(|step| step.removed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn work_waits_for_the_first_sync_and_has_its_turns_when_it_asks_for_them() {
        let writer_lock = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&writer_lock);
        let mut cleanup = Cleanup::new(Box::new(move || {
            let count = count.fetch_add(1, Ordering::Relaxed);
            Step { again: [Duration::ZERO, MINUTE].get(count).copied(), removed: false }
        }));
        let start = Instant::now();
        let look = |cleanup: &mut Cleanup, now| {
            cleanup.run_if_due(now);
            (writer_lock.load(Ordering::Relaxed), cleanup.wait(now))
        };
        assert_eq!(look(&mut cleanup, start), (0, None), "nothing has been synced");
        cleanup.synced(start);
        assert_eq!(look(&mut cleanup, start), (1, Some(Duration::ZERO)));
        assert_eq!(look(&mut cleanup, start), (2, Some(MINUTE)));
        cleanup.synced(start);
        assert_eq!(look(&mut cleanup, start + MINUTE / 2), (2, Some(MINUTE / 2)), "a later sync changes nothing");
        assert_eq!(look(&mut cleanup, start + MINUTE), (3, None));
        cleanup.synced(start + MINUTE);
        assert_eq!(look(&mut cleanup, start + 10 * MINUTE), (3, None), "it is done");
    }
}
