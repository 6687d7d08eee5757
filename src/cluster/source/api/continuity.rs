//! Finds out whether the server still has the version that a watch is resumed from, or was restored from an older backup.
//!
//! A version is a `resourceVersion`; "our version" is the version from which this proxy resumes its watch. The module takes the times at
//! which a watch began and at which data came on it, decides when to ask the server, and asks it. [`Doubt`] reads no clock: the caller
//! passes in monotonic time.
//!
//! An API server whose etcd was restored from a backup has lower versions than before. It accepts a watch from a version that it has not
//! reached yet, and sends nothing, not even a bookmark, until it has reached that version. So this module asks the server when a watch is
//! silent for longer than the minute between two bookmarks, and soon after a watch was resumed after a failure. The question is a list of
//! one object that is not older than our version. A server that has the version answers from its cache or, before 1.34 (feature gate
//! ListFromCacheSnapshot), with a read of one object from etcd. A server that does not have the version refuses within three seconds, which
//! is [`Error::VersionLost`](super::error::Error::VersionLost); then the reflector lists everything again.
//!
//! After a server was unreachable for longer than [`AWAY`], the reflector lists everything again without a question, because in that time
//! etcd may have been restored, and if the restored server has already passed our version, only a list shows the difference. After a
//! shorter failure the watch is resumed: with 5,000 nodes and 20,000 slices of 1 kB, lists after each reset of a load balancer would
//! transfer a hundred gigabytes.

use std::time::Duration;

use kube::api::{ListParams, VersionMatch};
use tokio::time::Instant;

use super::connection::{Connection, Request};
use super::error::{End, Error};
use super::resource::Resource;
use super::retry::Attempt;

/// The silence on a watch that was resumed after a failure, after which the server is asked.
const AFTER_FAILURE: Duration = Duration::from_millis(200);
/// The silence after which the server is asked, on a watch that follows a watch that the server ended early, as it does when it shuts down.
const AFTER_EARLY_END: Duration = Duration::from_secs(2);
/// The shortest time from an answer to the next question, if watches repeatedly break off or end early.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(5);
const PAUSE_AFTER_EARLY_END: Duration = Duration::from_secs(30);
/// The time without a reachable server after which the reflector lists everything again.
pub(super) const AWAY: Duration = Duration::from_secs(5);
/// The time from a question that was not answered to the next question.
const AGAIN: Duration = Duration::from_secs(10);
/// How long an answer may take: a server waits up to 3 s for the version.
const PATIENCE: Duration = Duration::from_secs(15);
/// The largest answer that is read, in bytes: the list has one object.
const MAX_ANSWER: usize = 16 << 20;

/// Decides when to ask whether the server still has the version of a watch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Doubt {
    /// How long a watch may be silent before the server is asked.
    silence: Duration,
    /// How long the next watch may be silent after it begins.
    at_begin: Duration,
    /// Whether a watch has begun since a watch failed or ended early, or a question was not answered. If so, a further watch does not
    /// postpone `due`, because watches that repeatedly end must not postpone the question for ever.
    has_begun: bool,
    /// When the server last answered that it has our version; `None` if it has not, or not since an outage.
    answered: Option<Instant>,
    due: Instant,
}

impl Doubt {
    /// Returns the state before the first watch. `silence` has to be longer than the time between two bookmarks.
    pub(super) fn new(silence: Duration, now: Instant) -> Self {
        Self { silence, at_begin: silence, has_begun: false, answered: None, due: now + silence }
    }

    /// Notes that a watch begins.
    pub(super) fn began(&mut self, now: Instant) {
        let due = now + self.at_begin;
        self.due = if self.has_begun { self.due.min(due) } else { due };
        self.has_begun = self.at_begin < self.silence;
        let pause = if self.at_begin <= AFTER_FAILURE { PAUSE_AFTER_FAILURE } else { PAUSE_AFTER_EARLY_END };
        if let Some(answered) = self.answered.filter(|_| self.has_begun) {
            self.due = self.due.max(answered + pause);
        }
    }

    /// Notes that the server has answered that it has the version.
    pub(super) fn answered(&mut self, now: Instant) {
        self.answered = Some(now);
        self.news(now);
    }

    /// Notes that data came on the watch, that a list is complete, or that the server has our version.
    pub(super) fn news(&mut self, now: Instant) {
        self.at_begin = self.silence;
        self.has_begun = false;
        self.due = now + self.silence;
    }

    /// Notes that a question was not answered.
    pub(super) fn unanswered(&mut self, now: Instant) {
        self.has_begun = true;
        self.due = now + AGAIN.min(self.silence);
    }

    /// Notes the end of an attempt whose watch had the timeout `life`. If the attempt failed or ended early, the question is due soon after
    /// the next watch begins, unless data come before.
    pub(super) fn ended(&mut self, attempt: Attempt, life: Duration) {
        let at_begin = match attempt.end {
            // The server got the timeout in whole seconds, without the fraction that `life` has.
            End::InOrder if attempt.lived + Duration::from_secs(2) >= life => self.silence,
            End::InOrder => AFTER_EARLY_END,
            _ => AFTER_FAILURE,
        };
        self.at_begin = self.at_begin.min(at_begin);
        if matches!(attempt.end, End::NoAnswer | End::Failed) {
            // The next request may reach another server, so forget the last answer.
            self.answered = None;
        }
    }

    /// Returns when to ask the server.
    pub(super) fn due(&self) -> Instant {
        self.due
    }
}

/// Asks whether the server has this version. Returns the size of the answer's body in bytes.
///
/// # Errors
/// Returns [`Error::VersionLost`] if the server does not have the version, and any other error if the question was not answered.
pub(super) async fn ask(
    mut connection: Connection,
    kind: Resource,
    node_name: &str,
    version: String,
) -> Result<usize, Error> {
    let params = ListParams {
        label_selector: kind.label_selector().map(Into::into),
        field_selector: kind.field_selector(node_name),
        limit: Some(1),
        version_match: Some(VersionMatch::NotOlderThan),
        resource_version: Some(version),
        ..ListParams::default()
    };
    let mut response = connection.send(kind.path(), &Request::List(params), PATIENCE).await?;
    response.read_all(MAX_ANSWER, PATIENCE, PATIENCE).await.map(|body| body.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_is_in_doubt_after_a_silence_and_soon_after_a_failure() {
        let (start, silence) = (Instant::now(), Duration::from_secs(80));
        let life = Duration::from_secs(270);
        let attempt = |end, lived| Attempt { delivered: false, lived: Duration::from_secs(lived), end };
        for (end, lived, expected) in [
            (End::InOrder, 270, silence),
            (End::InOrder, 269, silence),
            (End::InOrder, 100, AFTER_EARLY_END),
            (End::WithinEvent, 100, AFTER_FAILURE),
            (End::Interrupted, 270, AFTER_FAILURE),
            (End::Failed, 0, AFTER_FAILURE),
        ] {
            let mut doubt = Doubt::new(silence, start);
            doubt.ended(attempt(end, lived), life);
            doubt.began(start);
            assert_eq!(doubt.due() - start, expected, "{end:?} after {lived} s");
            doubt.ended(attempt(End::InOrder, 270), life);
            doubt.began(start);
            assert_eq!(doubt.due() - start, expected, "the doubt stays");
            doubt.unanswered(start);
            assert_eq!(doubt.due() - start, AGAIN);
            doubt.news(start);
            assert_eq!(doubt.due() - start, silence);
            doubt.began(start);
            assert_eq!(doubt.due() - start, silence, "the version is the server's own");
        }
    }

    #[test]
    fn watches_that_end_early_again_and_again_do_not_put_the_question_off() {
        let (start, silence) = (Instant::now(), Duration::from_secs(80));
        let mut doubt = Doubt::new(silence, start);
        let early = Attempt { delivered: false, lived: Duration::from_millis(1500), end: End::InOrder };
        doubt.ended(early, Duration::from_secs(270));
        for n in 0..4 {
            doubt.began(start + early.lived * n);
            assert_eq!(doubt.due() - start, AFTER_EARLY_END, "watch {n}");
            doubt.ended(early, Duration::from_secs(270));
        }
        let broken = Attempt { end: End::Interrupted, ..early };
        doubt.news(start);
        doubt.ended(early, Duration::from_secs(270));
        doubt.began(start);
        doubt.ended(broken, Duration::from_secs(270));
        doubt.began(start + early.lived);
        assert_eq!(doubt.due() - start, early.lived + AFTER_FAILURE, "what makes it come sooner counts");
        doubt.news(start);
        doubt.began(start + early.lived);
        assert_eq!(doubt.due() - start, early.lived + silence);
    }

    #[test]
    fn an_answer_is_good_for_a_while() {
        let (start, silence, life) = (Instant::now(), Duration::from_secs(80), Duration::from_secs(270));
        for (end, expected) in [(End::InOrder, PAUSE_AFTER_EARLY_END), (End::Interrupted, PAUSE_AFTER_FAILURE)] {
            let mut doubt = Doubt::new(silence, start);
            doubt.answered(start);
            let later = start + Duration::from_secs(60);
            for (now, expected) in [(start, start + expected), (later, later)] {
                doubt.ended(Attempt { delivered: false, lived: Duration::ZERO, end }, life);
                doubt.began(now);
                assert_eq!(doubt.due().max(now), expected, "{end:?}");
            }
            doubt.answered(start);
            doubt.ended(Attempt { delivered: false, lived: Duration::ZERO, end: End::NoAnswer }, life);
            doubt.began(start);
            assert_eq!(doubt.due(), start + AFTER_FAILURE, "not after an outage");
        }
    }
}
