//! Decides when to list the node's addresses.
//!
//! Takes the kernel's reports of address changes, and returns whether a listing is due. Pure: the caller passes in the time. Listings have
//! their own timer: a cluster that changes all the time must not keep a new address of the node from being served (G11).

use std::time::{Duration, Instant};

use node::kernel::AddressNews;

/// The longest time between two listings while the kernel's reports of changes are received: a report could be lost.
const WATCHED: Duration = Duration::from_secs(60);
/// The time between two listings while no reports are received, and after a listing that failed.
const UNWATCHED: Duration = Duration::from_secs(1);

/// When the addresses were last listed, and whether that failed.
#[derive(Debug, Default)]
pub(super) struct AddressChecks {
    last: Option<Instant>,
    /// Whether the last listing failed.
    has_failed: bool,
    /// Whether reports of changes were received at the last check.
    is_watched: bool,
}

impl AddressChecks {
    /// Returns whether to list the addresses now. If so, counts the listing as done, unless [`AddressChecks::failed`] is called.
    pub(super) fn is_due(&mut self, news: AddressNews, now: Instant) -> bool {
        self.is_watched = news != AddressNews::Unwatched;
        let every = if self.are_watched() { WATCHED } else { UNWATCHED };
        let is_due = news == AddressNews::Changed || self.last.is_none_or(|last| now.duration_since(last) >= every);
        if is_due {
            (self.last, self.has_failed) = (Some(now), false);
        }
        is_due
    }

    /// Whether no listing is needed until the kernel reports a change, but for the rare ones.
    pub(super) fn are_watched(&self) -> bool {
        self.is_watched && !self.has_failed
    }

    /// Notes that the listing that was due has failed.
    pub(super) fn failed(&mut self) {
        self.has_failed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Returns in which seconds of two minutes the addresses are listed; the loop makes five passes a second.
    fn listed(news: impl Fn(u32) -> AddressNews, fails: bool) -> Vec<u32> {
        let (mut checks, start) = (AddressChecks::default(), Instant::now());
        let is_due = |pass: &u32| {
            let is_due = checks.is_due(news(*pass), start + SECOND / 5 * *pass);
            if is_due && fails {
                checks.failed();
            }
            is_due
        };
        (0..600).filter(is_due).map(|pass| pass / 5).collect()
    }

    // The time between two listings does not depend on how often the loop has something to do (G11).
    #[test]
    fn addresses_are_listed_when_the_kernel_reports_a_change_and_once_a_minute() {
        let changes = |pass| if pass == 151 { AddressNews::Changed } else { AddressNews::None };
        assert_eq!(listed(changes, false), [0, 30, 90]);
        assert_eq!(listed(|_| AddressNews::None, false), [0, 60]);
    }

    #[test]
    fn without_reports_and_after_a_failure_they_are_listed_every_second() {
        let every_second: Vec<u32> = (0..120).collect();
        assert_eq!(listed(|_| AddressNews::Unwatched, false), every_second);
        assert_eq!(listed(|_| AddressNews::None, true), every_second);
    }
}
