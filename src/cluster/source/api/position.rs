//! Where a [`Reflector`](super::reflector::Reflector) stands: which request comes next, and how it lists. Pure, but for the question under way.

use std::pin::Pin;
use std::time::{Duration, Instant as StdInstant};

use tokio::time::Instant;

use super::error::Error;

/// How long a server that ignores the parameter for a streaming list gets no such request: each one costs a wait for an end that does
/// not come.
const IGNORED: Duration = Duration::from_secs(600);

/// Which request comes next.
#[derive(Clone, Debug)]
pub(super) enum Position {
    /// A complete list.
    List(Freshness),
    /// A watch from this resource version.
    Watch(String),
}

/// A way to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListMethod {
    /// One watch that begins with all objects.
    Streaming,
    /// Page by page.
    Paged,
}

/// How new a list page by page has to be. A server answers the first two from its cache, and reads etcd for the third.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Freshness {
    /// Nothing is known yet: whatever the server has in its cache. The watch that follows brings the rest.
    Any,
    /// Not older than this version, which is known.
    NotOlderThan(String),
    /// The present state: after versions that went back, and for what a cache may have got wrong.
    Latest,
}

/// How the next list is requested.
///
/// A streaming list is a watch that starts with all objects, and a bookmark marks their end. A server may refuse it or, being old,
/// ignore the parameter: then the bookmark never comes. The server's own answers decide, not its version: they stay right through
/// upgrades and downgrades, and behind load balancers with servers of two versions.
#[derive(Debug, Default)]
pub(super) struct ListMethods {
    refused: bool,
    ignored: Option<StdInstant>,
}

impl ListMethods {
    /// How to list now.
    pub(super) fn next(&self, now: StdInstant) -> ListMethod {
        let ignores = self.ignored.is_some_and(|at| now.saturating_duration_since(at) < IGNORED);
        if self.refused || ignores { ListMethod::Paged } else { ListMethod::Streaming }
    }

    /// A server refused a streaming list.
    pub(super) fn streaming_refused(&mut self) {
        self.refused = true;
    }

    /// A server ignored the parameter for a streaming list.
    pub(super) fn streaming_ignored(&mut self, now: StdInstant) {
        self.ignored = Some(now);
    }

    /// A list is complete. A refusal holds until then only, because the next request may reach another server.
    pub(super) fn listed(&mut self) {
        self.refused = false;
    }
}

/// A question to the server that is under way: when it was asked, and the bytes of the answer.
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
