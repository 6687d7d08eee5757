//! Decides how often the sync loop tries to take the writer lock, and what is logged about it.
//!
//! Takes the result of each try, and returns what to do about it. Pure: the caller passes in the time.
//!
//! While this process holds the lock, the lock is checked once a second; while this process waits for it, every 50 ms, so that it takes
//! over soon. A wait is logged when it begins, when its reason changes, and every five minutes.

use std::time::{Duration, Instant};

/// Time between two checks while this process waits.
pub(super) const POLL: Duration = Duration::from_millis(50);
/// Time between two checks while this process holds the lock.
const CHECK: Duration = Duration::from_secs(1);
/// Time between two log records about the same wait.
const REPEAT: Duration = Duration::from_secs(300);

/// The change of the lock's state to act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LockNews {
    /// There is nothing new to act on.
    None,
    /// The wait is over, and this process has the lock; holds how long it waited.
    Ours(Duration),
    /// This process must not write; the reason is to be logged now.
    Waits(String),
}

/// The time of the next check, and the wait for the lock, if this process waits.
#[derive(Debug, Default)]
pub(super) struct WriterLock {
    next_check: Option<Instant>,
    wait: Option<Wait>,
}

#[derive(Debug)]
struct Wait {
    since: Instant,
    reason: String,
    logged: Instant,
}

impl WriterLock {
    /// Returns whether it is time to try to take the lock.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.next_check.is_none_or(|next| next <= now)
    }

    /// Whether this process waits for the lock and must not write.
    pub(super) fn is_standby(&self) -> bool {
        self.wait.is_some()
    }

    /// Notes the result of a try to take the lock: `None` if this process has it, else the reason why not.
    pub(super) fn answered(&mut self, refused: Option<String>, now: Instant) -> LockNews {
        self.next_check = Some(now + if refused.is_some() { POLL } else { CHECK });
        match (refused, &mut self.wait) {
            (None, None) => LockNews::None,
            (None, wait) => {
                wait.take().map_or(LockNews::None, |wait| LockNews::Ours(now.saturating_duration_since(wait.since)))
            }
            (Some(reason), Some(wait))
                if wait.reason == reason && now.saturating_duration_since(wait.logged) < REPEAT =>
            {
                LockNews::None
            }
            (Some(reason), wait) => {
                let since = wait.as_ref().map_or(now, |wait| wait.since);
                *wait = Some(Wait { since, reason: reason.clone(), logged: now });
                LockNews::Waits(reason)
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
        let (mut writer_lock, start) = (WriterLock::default(), Instant::now());
        assert_eq!(writer_lock.answered(reason("pid 1"), start), LockNews::Waits("pid 1".to_owned()));
        let mut logged = Vec::new();
        for check in 1..=12_000 {
            let now = start + POLL * check;
            let holder = if check < 11_000 { "pid 1" } else { "pid 2" };
            if writer_lock.answered(reason(holder), now) != LockNews::None {
                logged.push((now - start).as_secs());
            }
        }
        assert_eq!(logged, [300, 550], "and the next after 850 s");
    }

    #[test]
    fn the_lock_is_asked_for_often_while_we_wait_and_once_a_second_while_we_hold_it() {
        let (mut writer_lock, start) = (WriterLock::default(), Instant::now());
        assert!(writer_lock.is_due(start) && !writer_lock.is_standby());
        assert_eq!(writer_lock.answered(reason("pid 1"), start), LockNews::Waits("pid 1".to_owned()));
        assert!(writer_lock.is_standby() && !writer_lock.is_due(start) && writer_lock.is_due(start + POLL));
        assert_eq!(writer_lock.answered(None, start + POLL), LockNews::Ours(POLL));
        assert!(
            !writer_lock.is_standby() && !writer_lock.is_due(start + CHECK) && writer_lock.is_due(start + POLL + CHECK)
        );
        assert_eq!(writer_lock.answered(None, start + 2 * CHECK), LockNews::None);
    }
}
