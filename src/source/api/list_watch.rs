//! The requests of a [`Reflector`]: a list page by page, a watch event by event, or a streaming list, which is a watch that begins with
//! all objects.
//!
//! Takes the server's answers, calls the reflector's methods. Every wait has an end: a server that falls silent, sends a byte at a time
//! or floods the connection ends the request, not the reflector.

use std::time::{Duration, Instant as StdInstant};

use kube::api::{ListParams, WatchParams};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::connection::{Chunk, Request, Response};
use super::decode::{Format, WatchEvent};
use super::error::Error;
use super::frames::{FrameBuffer, TooLong};
use super::reflector::Reflector;
use super::{Answered, Observer};

/// Objects on a page of a list.
const PAGE: u32 = 500;
/// The longest event of a watch, in bytes: an object has 3 MiB at most, which JSON may double.
const MAX_EVENT: usize = 16 << 20;
/// The largest page, in bytes, for servers that ignore the page size.
const MAX_PAGE: usize = 256 << 20;
/// A resumed watch counts as working after so long without a failure, because it may have no news for a minute.
const RESUMED: Duration = Duration::from_millis(200);
/// How often it is noted at most that something of a watch arrived.
const NOTED: Duration = Duration::from_millis(50);
/// How long a server that ignores the parameter for a streaming list gets no such request: each one costs a wait for an end that does
/// not come.
const IGNORED: Duration = Duration::from_secs(600);

impl<O: Observer> Reflector<'_, O> {
    /// Lists or watches, whichever is due, until the server ends the answer.
    pub(super) async fn list_or_watch(&mut self) -> Result<(), Error> {
        if let Err(error) = self.connection.refresh().await {
            let (kind, url) = (self.kind.name(), self.connection.url());
            let text = format!("{error:#}");
            warn!(
                "type" = kind,
                url,
                err = text,
                "The credentials changed and cannot be used; the former ones stay in use"
            );
        }
        let method = self.list_methods.next(StdInstant::now());
        match (self.version.clone(), method) {
            (Some(version), _) => self.watch(version, false).await,
            (None, ListMethod::Streaming) => self.watch(String::new(), true).await,
            (None, ListMethod::Paged) => self.list().await,
        }
    }

    /// Lists page by page. All pages show one version: the server answers with an error when it no longer has that.
    async fn list(&mut self) -> Result<(), Error> {
        self.known.begin_list();
        let mut next = None;
        loop {
            let request = Request::List(self.list_params(next));
            let (format, body) = self.page(&request).await?;
            self.received();
            let page = self.decoder.page(format, &body).map_err(Error::Malformed)?;
            for object in page.objects {
                self.applied(object).await?;
            }
            next = page.next;
            if next.is_none() {
                return self.list_complete(page.version).await;
            }
        }
    }

    /// The body of a page.
    async fn page(&mut self, request: &Request) -> Result<(Format, Vec<u8>), Error> {
        let (timing, start) = (self.shared.timing, Instant::now());
        let page = match self.connection.send(self.kind.path(), request, timing.list_response).await {
            Ok(mut response) => {
                let body = response.read_all(MAX_PAGE, timing.stall, timing.page).await;
                body.map(|body| (response.format, body))
            }
            Err(error) => Err(error),
        };
        self.answered(page.as_ref().err(), start, page.as_ref().ok().map(|(_, body)| body.len()));
        page
    }

    /// Has a request counted that was answered with status 200, or failed.
    fn answered(&self, error: Option<&Error>, start: Instant, bytes: Option<usize>) {
        let code = error.map_or(Some(200), Error::code);
        self.shared.observer.answered(Answered { url: self.connection.url(), code, took: start.elapsed(), bytes });
    }

    /// Watches from a version, or streams a list and watches from there.
    async fn watch(&mut self, version: String, mut is_list: bool) -> Result<(), Error> {
        if is_list {
            self.known.begin_list();
        }
        let timing = self.shared.timing;
        let life = timing.watch.mul_f64(1.0 + rand::random::<f64>() / 10.0);
        // The life has minutes, so the conversion does not fail.
        let seconds = u32::try_from(life.as_secs()).unwrap_or(u32::MAX).max(1);
        let end = Instant::now() + life + timing.grace;
        let request = Request::Watch(self.watch_params(seconds, is_list), version);
        let start = Instant::now();
        let sent = self.connection.send(self.kind.path(), &request, timing.watch_response).await;
        self.answered(sent.as_ref().err(), start, None);
        let mut response = match sent {
            Err(error) if is_list && error.code().is_some_and(refuses_streaming) => {
                return Err(self.streaming_refused(&error));
            }
            response => response?,
        };
        if !is_list {
            self.received();
        }
        let (mut last, mut noted) = (Instant::now(), None);
        self.watch_began = Some(last);
        let resumed = last + RESUMED;
        let format = response.format;
        let mut frames = FrameBuffer::new(format, MAX_EVENT);
        loop {
            let mut came = false;
            while let Some(event) = frames.next().map_err(too_long)? {
                is_list = self.event(format, event, is_list).await?;
                came = true;
            }
            if came {
                last = Instant::now();
            }
            let patience = if is_list { timing.initial } else { timing.idle };
            let deadline = (last + patience).min(end);
            let is_resuming = !is_list && self.outage.is_on() && resumed < deadline;
            match read(&mut response, &mut frames, if is_resuming { resumed } else { deadline }).await? {
                Read::More => {
                    // A list comes in hundreds of thousands of pieces.
                    let now = Instant::now();
                    if noted.is_none_or(|noted| now.duration_since(noted) >= NOTED) {
                        noted = Some(now);
                        self.received();
                    }
                }
                Read::TimedOut if is_resuming => self.recovered(),
                Read::TimedOut if is_list => return Err(self.streaming_ignored()),
                Read::TimedOut => {
                    return Err(Error::Broken(format!("nothing came on the watch for {} s", patience.as_secs())));
                }
                Read::End => return self.watch_ended(is_list, &frames),
            }
        }
    }

    /// The server ended a watch.
    fn watch_ended(&self, is_list: bool, frames: &FrameBuffer) -> Result<(), Error> {
        let lived = self.watch_began.map_or(Duration::ZERO, |since| since.elapsed());
        if is_list || frames.pending() > 0 {
            return Err(Error::Broken("the server closed the connection".into()));
        }
        if lived < self.shared.timing.stable { Err(Error::VeryShortWatch) } else { Ok(()) }
    }

    /// Handles an event. Gives whether a streaming list is still under way.
    async fn event(&mut self, format: Format, event: &[u8], is_list: bool) -> Result<bool, Error> {
        let version = match self.decoder.watch_event(format, event).map_err(Error::Malformed)? {
            WatchEvent::Applied(object) => self.applied(object).await?,
            WatchEvent::Deleted(key, version) => {
                self.deleted(key).await?;
                version.map(Into::into)
            }
            WatchEvent::Bookmark { version, ends_list: true } if is_list => {
                self.list_complete(version).await?;
                return Ok(false);
            }
            // A server that does streaming lists sends no other bookmark before their end.
            WatchEvent::Bookmark { .. } if is_list => return Err(self.streaming_ignored()),
            WatchEvent::Bookmark { version, .. } => Some(version),
            WatchEvent::Error(status) if is_list && refuses_streaming(status.code) => {
                return Err(self.streaming_refused(&Error::of_status(status, None)));
            }
            WatchEvent::Error(status) => return Err(Error::of_status(status, None)),
        };
        if !is_list {
            self.version = version.or_else(|| self.version.take());
            self.recovered();
        }
        Ok(is_list)
    }

    /// The server refused a streaming list: the next attempt lists page by page.
    fn streaming_refused(&mut self, error: &Error) -> Error {
        debug!("type" = self.kind.name(), err = %error, "The server refuses a streaming list");
        self.list_methods.streaming_refused();
        Error::NoStreamingList
    }

    /// The end of a streaming list did not come: the next attempt lists page by page.
    fn streaming_ignored(&mut self) -> Error {
        debug!("type" = self.kind.name(), "The server ignores that a streaming list was requested");
        self.list_methods.streaming_ignored(StdInstant::now());
        Error::NoStreamingList
    }

    /// The parameters of a page.
    fn list_params(&self, next: Option<String>) -> ListParams {
        ListParams {
            label_selector: self.kind.label_selector().map(Into::into),
            field_selector: self.kind.field_selector(self.shared.node_name),
            limit: Some(PAGE),
            continue_token: next,
            ..ListParams::default()
        }
    }

    /// The parameters of a watch that lives for this many seconds.
    fn watch_params(&self, seconds: u32, is_list: bool) -> WatchParams {
        WatchParams {
            label_selector: self.kind.label_selector().map(Into::into),
            field_selector: self.kind.field_selector(self.shared.node_name),
            timeout: Some(seconds),
            bookmarks: true,
            send_initial_events: is_list,
        }
    }
}

/// The outcome of a wait for bytes.
enum Read {
    More,
    End,
    TimedOut,
}

async fn read(response: &mut Response, frames: &mut FrameBuffer, until: Instant) -> Result<Read, Error> {
    Ok(match response.chunk(until).await? {
        Chunk::Bytes(bytes) => {
            frames.push(bytes.as_ref());
            Read::More
        }
        Chunk::End => Read::End,
        Chunk::TimedOut => Read::TimedOut,
    })
}

fn too_long(TooLong: TooLong) -> Error {
    Error::Malformed(format!("an event of more than {MAX_EVENT} bytes"))
}

/// A way to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListMethod {
    /// One watch that begins with all objects.
    Streaming,
    /// Page by page.
    Paged,
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
    fn next(&self, now: StdInstant) -> ListMethod {
        let ignores = self.ignored.is_some_and(|at| now.saturating_duration_since(at) < IGNORED);
        if self.refused || ignores { ListMethod::Paged } else { ListMethod::Streaming }
    }

    fn streaming_refused(&mut self) {
        self.refused = true;
    }

    fn streaming_ignored(&mut self, now: StdInstant) {
        self.ignored = Some(now);
    }

    /// A list is complete. A refusal holds until then only, because the next request may reach another server.
    pub(super) fn listed(&mut self) {
        self.refused = false;
    }
}

/// Whether this HTTP status means that the server does not know streaming lists: such servers call the parameters forbidden (422) or
/// bad (400), and a proxy between may use the others.
fn refuses_streaming(status: u16) -> bool {
    matches!(status, 400 | 405 | 406 | 415 | 422 | 501)
}

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

    #[test]
    fn only_a_status_about_the_request_refuses_streaming_lists() {
        assert!([400, 405, 406, 415, 422, 501].into_iter().all(refuses_streaming));
        assert!(![200, 401, 403, 404, 410, 429, 500, 503, 504].into_iter().any(refuses_streaming));
    }
}
