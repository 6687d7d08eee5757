//! When the node's addresses are listed.
//!
//! Takes what the kernel reported about them, gives whether it is time. Pure: the caller passes in the time. This has a clock of its own,
//! because a cluster that changes all the time must not keep an address that came from being served (G11).

use std::time::{Duration, Instant};

use node::kernel::AddressNews;

/// Time between two lists while the kernel reports changes: a report could be lost.
const WATCHED: Duration = Duration::from_secs(60);
/// Time between two lists while it does not, and after one that failed.
const UNWATCHED: Duration = Duration::from_secs(1);

/// What is known of the lists so far.
#[derive(Debug, Default)]
pub(super) struct AddressChecks {
    last: Option<Instant>,
    /// The last list failed.
    has_failed: bool,
}

impl AddressChecks {
    /// Whether the addresses are to be listed now; then that counts as done, unless [`AddressChecks::failed`] says otherwise.
    pub(super) fn is_due(&mut self, news: AddressNews, now: Instant) -> bool {
        let every = if news == AddressNews::Unwatched || self.has_failed { UNWATCHED } else { WATCHED };
        let is_due = news == AddressNews::Changed || self.last.is_none_or(|last| now.duration_since(last) >= every);
        if is_due {
            (self.last, self.has_failed) = (Some(now), false);
        }
        is_due
    }

    /// The list that was due failed.
    pub(super) fn failed(&mut self) {
        self.has_failed = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The seconds of two minutes, each of which has five passes of the loop, in which the addresses are listed.
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

    // The clock does not depend on how often the loop has something to do (G11).
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
