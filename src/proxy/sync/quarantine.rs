//! Remembers which Services the kernel refuses. They are left out, so that all other Services are programmed. A Service that is left out
//! keeps its previous rules if it had some that the kernel still accepts.
//!
//! Takes names and reasons, and says which Services are left out and when each is tried again: when it changes, or with the first sync
//! after an hour. Pure: the caller passes in the time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nft::{CommitError, Refusal};

use rules::model::ObjectName;

/// The least time for which a Service that does not change is left out before it is tried again.
const HOUR: Duration = Duration::from_secs(3600);

/// A Service that is not programmed as it is now, because the kernel refuses it or it is too large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotProgrammed {
    /// The Service.
    pub service: ObjectName,
    /// Why it is not programmed, for example the kernel's error with the command or element in nft syntax.
    pub reason: String,
}

/// Whether the content of a transaction made it fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// The kernel refuses something in the transaction, and would refuse it again.
    Content,
    /// The transaction is longer than the kernel takes.
    Length,
    /// The kernel refuses something for a reason that often passes by itself, such as a lack of memory.
    Passing,
    /// The cause is not the content: for example a missing privilege, or an error of the socket.
    Elsewhere,
}

impl Cause {
    /// Finds the cause of a failure.
    pub(super) fn of(error: &CommitError) -> Self {
        let refusals = match error {
            CommitError::Refused(refusals) => refusals,
            CommitError::Encode(_) => return Self::Content,
            CommitError::TooLarge { .. } => return Self::Passing,
            CommitError::OverLimit { .. } => return Self::Length,
            CommitError::Socket(_) | CommitError::Unconfirmed => return Self::Elsewhere,
        };
        // A missing privilege concerns the whole process, whichever command the kernel names. A refusal without a command is about the
        // whole transaction.
        if refusals.iter().any(|refusal| refusal.command.is_none() || refusal.is_about_rights()) {
            return Self::Elsewhere;
        }
        if refusals.iter().all(Refusal::is_passing) { Self::Passing } else { Self::Content }
    }

    /// Returns whether a failure may come only from outdated knowledge of the kernel's tables, which another program may have changed.
    pub(super) fn may_be_outdated(error: &CommitError) -> bool {
        matches!(error, CommitError::Refused(refusals) if refusals.iter().all(Refusal::is_about_presence))
    }

    /// Returns how many syncs in a row must have failed before a failure with this cause starts the search for the refused Services; `None`
    /// for no search. The first failure may come from outdated knowledge of what the kernel holds, but for a transaction that is too long.
    /// [`Quarantine::is_time`] starts the search earlier if Services are tried again.
    fn failures_before_search(self) -> Option<u32> {
        match self {
            Self::Length => Some(0),
            Self::Content => Some(1),
            Self::Passing => Some(4),
            Self::Elsewhere => None,
        }
    }
}

/// The Services that are left out.
#[derive(Debug, Default)]
pub(super) struct Quarantine {
    left_out: BTreeMap<ObjectName, (Instant, String)>,
    /// The Services that were tried again since the last successful sync, with the reason for which they had been left out.
    retried: BTreeMap<ObjectName, String>,
    news: Vec<NotProgrammed>,
    /// Failed syncs in a row.
    failures: u32,
}

impl Quarantine {
    /// Whether to search for the refused Services after a failure with this cause. If Services that were left out are tried again, a refusal
    /// because of the content starts the search at the first failure.
    pub(super) fn is_time(&self, cause: Cause) -> bool {
        let known = cause == Cause::Content && !self.retried.is_empty();
        cause.failures_before_search().is_some_and(|least| known || self.failures >= least)
    }

    /// Notes the end of a sync.
    pub(super) fn synced(&mut self, ok: bool) {
        self.failures = if ok { 0 } else { self.failures.saturating_add(1) };
        if ok {
            self.retried.clear();
        }
    }

    /// Leaves a Service out from now on.
    pub(super) fn add(&mut self, service: ObjectName, reason: String, now: Instant) {
        // A Service that is left out already can be refused once more, if its old rules lost a frontend to another Service.
        let left_out = self.left_out.get(&service).map(|(_, reason)| reason);
        if self.retried.remove(&service).as_ref().or(left_out) != Some(&reason) {
            self.news.push(NotProgrammed { service: service.clone(), reason: reason.clone() });
        }
        self.left_out.insert(service, (now, reason));
    }

    /// Stops leaving a Service out, so that the sync under way tries it again.
    pub(super) fn retry(&mut self, service: &ObjectName) {
        if let Some((service, (_, reason))) = self.left_out.remove_entry(service) {
            self.retried.insert(service, reason);
        }
    }

    /// Returns the Services that have been left out for at least an hour.
    pub(super) fn due(&self, now: Instant) -> Vec<ObjectName> {
        let is_due = |since: &Instant| now.saturating_duration_since(*since) >= HOUR;
        self.left_out.iter().filter(|(_, (since, _))| is_due(since)).map(|(name, _)| name.clone()).collect()
    }

    /// The Services that are left out.
    pub(super) fn names(&self) -> impl ExactSizeIterator<Item = &ObjectName> {
        self.left_out.keys()
    }

    /// Returns the Services that are left out, with the reasons, in order of name.
    pub(super) fn all(&self) -> impl Iterator<Item = (&ObjectName, &str)> {
        self.left_out.iter().map(|(service, (_, reason))| (service, &**reason))
    }

    /// Returns the Services that were added since the last call, except Services that were left out before for the same reason and were
    /// tried again in vain.
    pub(super) fn take_news(&mut self) -> Vec<NotProgrammed> {
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
        assert_eq!(Cause::of(&refused(&[Errno::INVAL])), Cause::Content);
        assert_eq!(Cause::of(&refused(&[Errno::NOMEM, Errno::BUSY])), Cause::Passing);
        assert_eq!(Cause::of(&refused(&[Errno::NOMEM, Errno::EXIST])), Cause::Content);
        assert_eq!(Cause::of(&refused(&[Errno::INVAL, Errno::PERM])), Cause::Elsewhere);
        assert_eq!(Cause::of(&CommitError::Unconfirmed), Cause::Elsewhere);
        assert_eq!(Cause::of(&CommitError::TooLarge { bytes: 1 << 30, error: Errno::NOBUFS.into() }), Cause::Passing);
        assert_eq!(Cause::of(&CommitError::OverLimit { bytes: 2, limit: 1 }), Cause::Length);
        assert_eq!(Cause::of(&CommitError::Socket(Errno::NOBUFS.into())), Cause::Elsewhere);
    }

    #[test]
    fn what_is_there_or_not_there_may_have_changed() {
        assert!(Cause::may_be_outdated(&refused(&[Errno::NOENT, Errno::EXIST])));
        assert!(!Cause::may_be_outdated(&refused(&[Errno::NOENT, Errno::INVAL])));
        assert!(!Cause::may_be_outdated(&CommitError::Unconfirmed));
    }

    #[test]
    fn refused_services_are_not_looked_for_at_the_first_failure() {
        let mut quarantine = Quarantine::default();
        assert!(!quarantine.is_time(Cause::Content) && quarantine.is_time(Cause::Length));
        quarantine.synced(false);
        assert!(quarantine.is_time(Cause::Content) && !quarantine.is_time(Cause::Passing));
        (0..3).for_each(|_| quarantine.synced(false));
        assert!(quarantine.is_time(Cause::Passing) && !quarantine.is_time(Cause::Elsewhere));
        quarantine.synced(true);
        assert!(!quarantine.is_time(Cause::Content));
    }

    #[test]
    fn a_service_that_was_left_out_before_is_looked_for_at_once_and_reported_once() {
        let (mut quarantine, now) = (Quarantine::default(), Instant::now());
        quarantine.add(web(), "too long".to_owned(), now);
        assert_eq!(quarantine.take_news().len(), 1);
        quarantine.retry(&web());
        assert!(quarantine.names().len() == 0 && quarantine.is_time(Cause::Content));
        quarantine.add(web(), "too long".to_owned(), now);
        assert_eq!((quarantine.take_news(), quarantine.names().len()), (Vec::new(), 1));
        quarantine.add(web(), "too long".to_owned(), now);
        assert_eq!((quarantine.take_news(), quarantine.names().len()), (Vec::new(), 1), "it was not tried again");
        quarantine.retry(&web());
        quarantine.add(web(), "too short".to_owned(), now);
        assert_eq!(quarantine.take_news(), [NotProgrammed { service: web(), reason: "too short".to_owned() }]);
    }

    #[test]
    fn after_an_hour_it_is_tried_again() {
        let (mut quarantine, now) = (Quarantine::default(), Instant::now());
        quarantine.add(web(), "too long".to_owned(), now);
        assert_eq!(quarantine.due(now + HOUR / 2), []);
        assert_eq!(quarantine.due(now + HOUR), [web()]);
    }
}
