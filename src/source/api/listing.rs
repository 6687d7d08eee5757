//! How the next complete listing is asked for.
//!
//! Takes what the server did, gives a choice. Pure; monotonic time comes from the caller.
//!
//! A streaming list is a watch that starts with all objects and tells where they end. A server may refuse it or, being
//! old, ignore the wish: then it never tells. The server's own answers decide, not its version: they stay right through
//! upgrades and downgrades, and behind load balancers with servers of two versions.

use std::time::{Duration, Instant};

/// How long a server that ignores streaming lists is not asked for one: each time costs a wait for what does not come.
const UNASKED: Duration = Duration::from_secs(600);

/// A way to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listing {
    /// One watch that begins with all objects.
    Streaming,
    /// Page by page.
    Paged,
}

/// What is known of the server.
#[derive(Debug, Default)]
pub(super) struct Choice {
    refused: bool,
    ignored: Option<Instant>,
}

impl Choice {
    /// The way to try now.
    pub(super) fn next(&self, now: Instant) -> Listing {
        let ignores = self.ignored.is_some_and(|at| now.saturating_duration_since(at) < UNASKED);
        if self.refused || ignores { Listing::Paged } else { Listing::Streaming }
    }

    /// A streaming list was refused: this listing is a paged one.
    pub(super) fn refused(&mut self) {
        self.refused = true;
    }

    /// A streaming list did not come to its end.
    pub(super) fn ignored(&mut self, now: Instant) {
        self.ignored = Some(now);
    }

    /// A listing is complete: the next one may find another server.
    pub(super) fn listed(&mut self) {
        self.refused = false;
    }
}

/// Whether an answer with this HTTP status means that the server does not know streaming lists.
///
/// Servers without them call the parameters forbidden (422) or bad (400); proxies in between may find other words.
pub(super) fn is_refusal(status: u16) -> bool {
    matches!(status, 400 | 405 | 406 | 415 | 422 | 501)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_holds_for_one_listing() {
        let (mut choice, now) = (Choice::default(), Instant::now());
        assert_eq!(choice.next(now), Listing::Streaming);
        choice.refused();
        assert_eq!(choice.next(now), Listing::Paged);
        choice.listed();
        assert_eq!(choice.next(now), Listing::Streaming);
    }

    #[test]
    fn a_server_that_ignores_the_wish_is_asked_again_after_a_while() {
        let (mut choice, now) = (Choice::default(), Instant::now());
        choice.ignored(now);
        choice.listed();
        assert_eq!(choice.next(now + UNASKED - Duration::from_secs(1)), Listing::Paged);
        assert_eq!(choice.next(now + UNASKED), Listing::Streaming);
    }

    #[test]
    fn only_words_about_the_request_are_refusals() {
        assert!([400, 405, 406, 415, 422, 501].into_iter().all(is_refusal));
        assert!(![200, 401, 403, 404, 410, 429, 500, 503, 504].into_iter().any(is_refusal));
    }
}
