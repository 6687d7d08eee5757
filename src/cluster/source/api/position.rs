//! The state of a [`Reflector`](super::reflector::Reflector) between requests: which request comes next, and how the reflector lists. The
//! module does no I/O, except that a [`Question`] is a pending request.

use std::pin::Pin;
use std::time::{Duration, Instant as StdInstant};

use tokio::time::Instant;

use super::error::Error;

/// How long no streaming list is requested after a server ignored the parameter for it: each request would wait in vain for the end of the
/// list.
const IGNORED: Duration = Duration::from_secs(600);

/// Which request comes next.
#[derive(Clone, Debug)]
pub(super) enum Position {
    /// A complete list.
    List(Freshness),
    /// A watch from this resource version.
    Watch(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListMethod {
    /// One watch that begins with all objects.
    Streaming,
    /// A list request for each page.
    Paged,
}

/// How new a paged list has to be. A server can answer [`Self::Any`] and [`Self::NotOlderThan`] from its cache alone, and has to ask etcd
/// for [`Self::Latest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    /// Any version that the server has in its cache, because no version is known yet. The watch that follows delivers later changes.
    Any,
    /// Not older than this version, which is the last version that the reflector has seen.
    NotOlderThan(String),
    /// The current state in etcd. Used after the server's versions went back, and after a list that could not be used.
    Latest,
}

/// Decides how the next list is requested.
///
/// A streaming list is a watch that starts with all objects, and a bookmark marks their end. A server may refuse a streaming list, or an
/// old server may ignore the parameter, and then the bookmark never comes. The decision depends on the server's answers and not on its
/// version, so that it is right during upgrades and downgrades, and behind load balancers with servers of two versions.
#[derive(Debug, Default)]
pub(super) struct ListMethods {
    refused: bool,
    ignored: Option<StdInstant>,
}

impl ListMethods {
    /// Returns how to list now.
    pub(super) fn next(&self, now: StdInstant) -> ListMethod {
        let ignores = self.ignored.is_some_and(|at| now.saturating_duration_since(at) < IGNORED);
        if self.refused || ignores { ListMethod::Paged } else { ListMethod::Streaming }
    }

    /// Notes that a server refused a streaming list.
    pub(super) fn streaming_refused(&mut self) {
        self.refused = true;
    }

    /// Notes that a server ignored the parameter for a streaming list.
    pub(super) fn streaming_ignored(&mut self, now: StdInstant) {
        self.ignored = Some(now);
    }

    /// Notes that a list is complete, or that the server does not have the kind. This ends the effect of a refusal, because the next request
    /// may reach another server.
    pub(super) fn listed(&mut self) {
        self.refused = false;
    }
}

/// A pending request that asks whether the server still has a version. Its result is the time at which it was sent, and the answer's size
/// in bytes or the error.
pub(super) type Question = Pin<Box<dyn Future<Output = (Instant, Result<usize, Error>)>>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_streaming_lists_holds_for_one_list() {
        let (mut methods, now) = (ListMethods::default(), StdInstant::now());
        assert_eq!(methods.next(now), ListMethod::Streaming);
        methods.streaming_refused();
        assert_eq!(methods.next(now), ListMethod::Paged);
        methods.listed();
        assert_eq!(methods.next(now), ListMethod::Streaming);
    }

    #[test]
    fn a_server_that_ignores_streaming_lists_gets_such_a_request_again_after_ten_minutes() {
        let (mut methods, now) = (ListMethods::default(), StdInstant::now());
        methods.streaming_ignored(now);
        methods.listed();
        assert_eq!(methods.next(now + IGNORED - Duration::from_secs(1)), ListMethod::Paged);
        assert_eq!(methods.next(now + IGNORED), ListMethod::Streaming);
    }
}
