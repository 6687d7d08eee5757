//! Services that the kernel refuses, and that are left out so that the others are programmed.
//!
//! Takes names and reasons, says who is left out and when each is tried again: when it changes, or after an hour. Pure: the clock
//! is handed in. What is wanted stays a function of the cluster's state; this is kept beside it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nft::{CommitError, Refusal};

use crate::model::ObjectName;

/// How long a Service that does not change is left out.
const HOUR: Duration = Duration::from_secs(3600);

/// A Service that is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Culprit {
    /// The Service.
    pub service: ObjectName,
    /// What the kernel says, with the command or element in nft syntax.
    pub reason: String,
}

/// What a failed transaction tells about its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Something in it is refused for what it is.
    Content,
    /// Such a refusal often passes by itself.
    Passing,
    /// It is not about the content.
    Elsewhere,
}

impl Fault {
    /// What a failure tells.
    pub(super) fn of(error: &CommitError) -> Self {
        let refusals = match error {
            CommitError::Refused(refusals) => refusals,
            CommitError::Encode(_) => return Self::Content,
            CommitError::TooLarge { .. } if error.is_want_of_memory() => return Self::Passing,
            CommitError::TooLarge { .. } => return Self::Content,
            CommitError::Socket(_) | CommitError::Unconfirmed => return Self::Elsewhere,
        };
        // Rights are ours, whichever command it was that the kernel looked at.
        if refusals.iter().any(|refusal| refusal.command.is_none() || refusal.is_about_rights()) {
            return Self::Elsewhere;
        }
        if refusals.iter().all(Refusal::is_passing) { Self::Passing } else { Self::Content }
    }

    /// Whether a failure may only be for outdated knowledge of what the kernel holds: another program may have changed that.
    pub(super) fn may_be_outdated(error: &CommitError) -> bool {
        matches!(error, CommitError::Refused(refusals) if refusals.iter().all(Refusal::is_about_presence))
    }

    /// Failed syncs in a row before it is asked whose fault it is: the first may be for outdated knowledge of the kernel's state.
    fn patience(self) -> Option<u32> {
        match self {
            Self::Content => Some(1),
            Self::Passing => Some(4),
            Self::Elsewhere => None,
        }
    }
}

/// The Services that are left out.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    inmates: BTreeMap<ObjectName, (Instant, String)>,
    /// Those that are tried again since the last sync that succeeded.
    on_trial: BTreeMap<ObjectName, String>,
    news: Vec<Culprit>,
    /// Failed syncs in a row.
    failures: u32,
}

impl Quarantine {
    /// Whether the Services at fault for such a failure are to be looked for.
    pub(super) fn is_time(&self, fault: Fault) -> bool {
        let known = fault == Fault::Content && !self.on_trial.is_empty();
        fault.patience().is_some_and(|patience| known || self.failures >= patience)
    }

    /// Notes the end of a sync.
    pub(super) fn synced(&mut self, ok: bool) {
        self.failures = if ok { 0 } else { self.failures.saturating_add(1) };
        if ok {
            self.on_trial.clear();
        }
    }

    /// A Service is left out from now on.
    pub(super) fn add(&mut self, service: ObjectName, reason: String, now: Instant) {
        if self.on_trial.remove(&service).as_ref() != Some(&reason) {
            self.news.push(Culprit { service: service.clone(), reason: reason.clone() });
        }
        self.inmates.insert(service, (now, reason));
    }

    /// A Service is tried again.
    pub(super) fn release(&mut self, service: &ObjectName) {
        if let Some((service, (_, reason))) = self.inmates.remove_entry(service) {
            self.on_trial.insert(service, reason);
        }
    }

    /// Those that were left out for an hour.
    pub(super) fn due(&self, now: Instant) -> Vec<ObjectName> {
        let is_due = |since: &Instant| now.saturating_duration_since(*since) >= HOUR;
        self.inmates.iter().filter(|(_, (since, _))| is_due(since)).map(|(name, _)| name.clone()).collect()
    }

    /// Those that are left out.
    pub(super) fn names(&self) -> impl ExactSizeIterator<Item = &ObjectName> {
        self.inmates.keys()
    }

    /// Those added since the last call, unless for the reason of before.
    pub(super) fn take_news(&mut self) -> Vec<Culprit> {
        std::mem::take(&mut self.news)
    }
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    fn refused(errnos: &[Errno]) -> CommitError {
        let refusal = |errno: &Errno| Refusal {
            command: Some(0),
            element: None,
            object: "x".to_owned(),
            errno: errno.raw_os_error(),
            message: None,
        };
        CommitError::Refused(errnos.iter().map(refusal).collect())
    }

    fn web() -> ObjectName {
        ObjectName::new("shop", "web")
    }

    #[test]
    fn what_a_refusal_tells() {
        assert_eq!(Fault::of(&refused(&[Errno::INVAL])), Fault::Content);
        assert_eq!(Fault::of(&refused(&[Errno::NOMEM, Errno::BUSY])), Fault::Passing);
        assert_eq!(Fault::of(&refused(&[Errno::NOMEM, Errno::EXIST])), Fault::Content);
        assert_eq!(Fault::of(&refused(&[Errno::INVAL, Errno::PERM])), Fault::Elsewhere);
        assert_eq!(Fault::of(&CommitError::Unconfirmed), Fault::Elsewhere);
        let too_large = |errno: Errno| Fault::of(&CommitError::TooLarge { bytes: 1 << 30, error: errno.into() });
        assert_eq!((too_large(Errno::MSGSIZE), too_large(Errno::NOBUFS)), (Fault::Content, Fault::Passing));
        assert_eq!(Fault::of(&CommitError::Socket(Errno::NOBUFS.into())), Fault::Elsewhere);
    }

    #[test]
    fn what_is_there_or_not_there_may_have_changed() {
        assert!(Fault::may_be_outdated(&refused(&[Errno::NOENT, Errno::EXIST])));
        assert!(!Fault::may_be_outdated(&refused(&[Errno::NOENT, Errno::INVAL])));
        assert!(!Fault::may_be_outdated(&CommitError::Unconfirmed));
    }

    #[test]
    fn nobody_is_looked_for_at_the_first_failure() {
        let mut quarantine = Quarantine::default();
        assert!(!quarantine.is_time(Fault::Content));
        quarantine.synced(false);
        assert!(quarantine.is_time(Fault::Content) && !quarantine.is_time(Fault::Passing));
        (0..3).for_each(|_| quarantine.synced(false));
        assert!(quarantine.is_time(Fault::Passing) && !quarantine.is_time(Fault::Elsewhere));
        quarantine.synced(true);
        assert!(!quarantine.is_time(Fault::Content));
    }

    #[test]
    fn who_was_left_out_before_is_looked_for_at_once_and_said_once() {
        let (mut quarantine, now) = (Quarantine::default(), Instant::now());
        quarantine.add(web(), "too long".to_owned(), now);
        assert_eq!(quarantine.take_news().len(), 1);
        quarantine.release(&web());
        assert!(quarantine.names().len() == 0 && quarantine.is_time(Fault::Content));
        quarantine.add(web(), "too long".to_owned(), now);
        assert_eq!((quarantine.take_news(), quarantine.names().len()), (Vec::new(), 1));
        quarantine.release(&web());
        quarantine.add(web(), "too short".to_owned(), now);
        assert_eq!(quarantine.take_news(), [Culprit { service: web(), reason: "too short".to_owned() }]);
    }

    #[test]
    fn after_an_hour_it_is_tried_again() {
        let (mut quarantine, now) = (Quarantine::default(), Instant::now());
        quarantine.add(web(), "too long".to_owned(), now);
        assert_eq!(quarantine.due(now + HOUR / 2), []);
        assert_eq!(quarantine.due(now + HOUR), [web()]);
    }
}
