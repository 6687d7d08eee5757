//! Whose turn it is to write, as the sync loop sees it: how often the lock is asked for, and what is logged.
//!
//! Takes what the lock answers, gives what to do about it. Pure: the clock is handed in.
//!
//! While we hold the lock it is looked at once a second; while another process does, every 50 ms, so that the take-over comes at
//! once. A wait is logged when it begins, when the holder changes, and every five minutes.

use std::time::{Duration, Instant};

/// Between two looks while we wait.
pub(super) const POLL: Duration = Duration::from_millis(50);
/// Between two looks while we hold the lock.
const LOOK: Duration = Duration::from_secs(1);
/// Between two log records about the same wait.
const REPEAT: Duration = Duration::from_secs(300);

/// What has become of the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// Nothing new.
    None,
    /// The wait is over; it lasted so long.
    Ours(Duration),
    /// We must not write, for this reason, which is to be logged now.
    Waits(String),
}

/// The state of the wait.
#[derive(Debug, Default)]
pub(super) struct Turns {
    next_look: Option<Instant>,
    wait: Option<Wait>,
}

#[derive(Debug)]
struct Wait {
    since: Instant,
    reason: String,
    logged: Instant,
}

impl Turns {
    /// Whether the lock is to be asked for now.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next_look.is_none_or(|next| next <= now)
    }

    /// Whether another process may write now and we may not.
    pub(super) fn waits(&self) -> bool {
        self.wait.is_some()
    }

    /// Takes what the lock answered: nothing if it is ours, else why it is not.
    pub(super) fn heard(&mut self, refused: Option<String>, now: Instant) -> News {
        self.next_look = Some(now + if refused.is_some() { POLL } else { LOOK });
        match (refused, &mut self.wait) {
            (None, None) => News::None,
            (None, wait) => {
                wait.take().map_or(News::None, |wait| News::Ours(now.saturating_duration_since(wait.since)))
            }
            (Some(reason), Some(wait))
                if wait.reason == reason && now.saturating_duration_since(wait.logged) < REPEAT =>
            {
                News::None
            }
            (Some(reason), wait) => {
                let since = wait.as_ref().map_or(now, |wait| wait.since);
                *wait = Some(Wait { since, reason: reason.clone(), logged: now });
                News::Waits(reason)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn a_wait_is_logged_when_it_begins_when_the_holder_changes_and_every_five_minutes() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        assert_eq!(turns.heard(reason("pid 1"), start), News::Waits("pid 1".to_owned()));
        let mut logged = Vec::new();
        for tick in 1..=12_000 {
            let now = start + POLL * tick;
            let holder = if tick < 11_000 { "pid 1" } else { "pid 2" };
            if turns.heard(reason(holder), now) != News::None {
                logged.push((now - start).as_secs());
            }
        }
        assert_eq!(logged, [300, 550], "and the next after 850 s");
    }

    #[test]
    fn the_lock_is_asked_for_often_while_we_wait_and_once_a_second_while_we_hold_it() {
        let (mut turns, start) = (Turns::default(), Instant::now());
        assert!(turns.is_due(start) && !turns.waits());
        assert_eq!(turns.heard(reason("pid 1"), start), News::Waits("pid 1".to_owned()));
        assert!(turns.waits() && !turns.is_due(start) && turns.is_due(start + POLL));
        assert_eq!(turns.heard(None, start + POLL), News::Ours(POLL));
        assert!(!turns.waits() && !turns.is_due(start + LOOK) && turns.is_due(start + POLL + LOOK));
        assert_eq!(turns.heard(None, start + 2 * LOOK), News::None);
    }
}
