//! The requests of a [`Reflector`]: a list page by page, a watch event by event, or a streaming list, which is a watch that begins with
//! all objects.
//!
//! The module reads the server's answers and calls the reflector's methods. Every wait has a time limit, and events and pages have a
//! largest size: if a server sends nothing, only single bytes or something endless, the request fails and the reflector continues with its
//! next request.

use std::future::pending;
use std::time::{Duration, Instant as StdInstant};

use futures_util::FutureExt as _;
use kube::api::{ListParams, VersionMatch, WatchParams};
use tokio::time::Instant;
use tracing::{debug, warn};

use super::connection::{Chunk, Request, Response};
use super::decode::WatchEvent;
use super::error::Error;
use super::format::Format;
use super::frames::{FrameBuffer, TooLong};
use super::position::{Freshness, ListMethod, Position, Question};
use super::reflector::Reflector;
use super::{Answered, Observer, continuity};

/// The number of objects that a page of a list may have.
const PAGE: u32 = 500;
/// The longest event of a watch, in bytes. It is well above the largest request that an API server accepts (3 MiB, `MaxRequestBodyBytes` in
/// k8s.io/apiserver), because an object may have more bytes in an answer than in the request that wrote it.
const MAX_EVENT: usize = 16 << 20;
/// The largest page, in bytes. A page without a limit, or of a server that ignores the limit, is the complete list.
const MAX_PAGE: usize = 256 << 20;
/// The time without a failure after which a resumed watch counts as working. No data are needed for that, because a working watch may be
/// silent for a minute.
const RESUMED: Duration = Duration::from_millis(200);
/// The shortest time between two reports that data of a watch arrived.
const NOTED: Duration = Duration::from_millis(50);
impl<O: Observer> Reflector<'_, O> {
    /// Requests a list or a watch, depending on `position`, and reads the answer to its end.
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
        match (self.position.clone(), method) {
            (Position::Watch(version), _) => self.watch(version, false).await,
            // A streaming list without a version is as new as etcd: the server asks etcd for the current version, and waits until its cache
            // has that version.
            (Position::List(_), ListMethod::Streaming) => self.watch(String::new(), true).await,
            (Position::List(freshness), ListMethod::Paged) => self.list(&freshness).await,
        }
    }

    /// Lists page by page. All pages show one version: the server answers with an error if it no longer has that version.
    async fn list(&mut self, freshness: &Freshness) -> Result<(), Error> {
        self.known.begin_list();
        let mut next = None;
        loop {
            let request = Request::List(self.list_params(freshness, next));
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

    /// Requests a page. Returns the format and the body of the answer.
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

    /// Reports to the observer that a request was answered with status 200, or failed with `error`. `bytes` is the size of the body.
    fn answered(&self, error: Option<&Error>, start: Instant, bytes: Option<usize>) {
        let code = error.map_or(Some(200), Error::code);
        self.shared.observer.answered(Answered { url: self.connection.url(), code, took: start.elapsed(), bytes });
    }

    /// Watches from a version; or, if `is_list`, streams a list and watches from its version.
    async fn watch(&mut self, version: String, mut is_list: bool) -> Result<(), Error> {
        // Handle an answer that came after the last watch had ended: a server that does not have the version answers only after 3 s.
        if let Some(answer) = answer(&mut self.question).now_or_never() {
            self.question_answered(answer)?;
        }
        self.resumes = !is_list;
        let mut response = self.begin_watch(version, is_list).await?;
        let mut last = Instant::now();
        let (mut noted, end) = (None, last + self.life + self.shared.timing.grace);
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
                self.doubt.news(last);
                self.question = None;
            }
            let deadlines = self.deadlines(last, end, is_list);
            let read = tokio::select! {
                biased;
                read = read(&mut response, &mut frames, deadlines.first()) => read,
                answer = answer(&mut self.question) => {
                    self.question_answered(answer)?;
                    if last.elapsed() >= self.shared.timing.silence {
                        return self.replaced();
                    }
                    continue;
                }
            };
            match read.map_err(|error| cut_off(error, &frames))? {
                Read::More => self.arrived(&mut noted),
                Read::TimedOut => self.timed_out(&deadlines, is_list)?,
                Read::End => return self.watch_ended(is_list, noted.is_some(), &frames),
            }
        }
    }

    /// Reports that data of a watch arrived, at most once per [`NOTED`], because a streaming list may come in hundreds of thousands of
    /// pieces.
    fn arrived(&self, noted: &mut Option<Instant>) {
        let now = Instant::now();
        if noted.is_none_or(|noted| now.duration_since(noted) >= NOTED) {
            *noted = Some(now);
            self.received();
        }
    }

    /// Ends a silent watch although the server still has the version, because changes may get lost on the way. Returns no error, so that
    /// the next watch begins at once.
    fn replaced(&mut self) -> Result<(), Error> {
        self.watch_began = None;
        Ok(())
    }

    /// Requests a watch, and waits until the server accepts it.
    async fn begin_watch(&mut self, version: String, is_list: bool) -> Result<Response, Error> {
        if is_list {
            self.known.begin_list();
            // Drop the pending question, because it is about a version that is no longer needed.
            self.question = None;
        }
        let timing = self.shared.timing;
        self.life = timing.watch.mul_f64(1.0 + rand::random::<f64>() / 10.0);
        // The timeout is a few minutes, so the conversion does not fail.
        let seconds = u32::try_from(self.life.as_secs()).unwrap_or(u32::MAX).max(1);
        let request = Request::Watch(self.watch_params(seconds, is_list), version);
        let start = Instant::now();
        let sent = self.connection.send(self.kind.path(), &request, timing.watch_response).await;
        self.answered(sent.as_ref().err(), start, None);
        match sent {
            Err(error) if is_list && error.code().is_some_and(refuses_streaming) => Err(self.streaming_refused(&error)),
            Ok(response) => {
                self.accepted();
                if !is_list {
                    self.received();
                    let now = *self.watch_began.insert(Instant::now());
                    self.doubt.began(now);
                    if now >= self.doubt.due() && self.question.is_none() {
                        self.ask();
                    }
                }
                Ok(response)
            }
            refused => refused,
        }
    }

    /// Returns until when to wait for bytes of a watch whose last event came at `last` and that has to end by `end`.
    fn deadlines(&self, last: Instant, end: Instant, is_list: bool) -> Deadlines {
        let timing = self.shared.timing;
        let patience = if is_list { timing.initial } else { timing.idle };
        let began = self.watch_began.filter(|_| !is_list && self.outage.is_on());
        Deadlines {
            end: (last + patience).min(end),
            resumed: began.map(|began| began + RESUMED),
            doubt: (!is_list && self.question.is_none()).then(|| self.doubt.due()),
        }
    }

    /// Handles that nothing came on a watch until a deadline. If the question is due, asks whether the server still has the version.
    fn timed_out(&mut self, deadlines: &Deadlines, is_list: bool) -> Result<(), Error> {
        let now = Instant::now();
        if now >= deadlines.end {
            let patience = self.shared.timing.idle.as_secs();
            return Err(if is_list {
                self.streaming_ignored()
            } else {
                Error::Broken(format!("nothing came on the watch for {patience} s"))
            });
        }
        if deadlines.resumed.is_some_and(|at| now >= at) {
            self.recovered();
        }
        if deadlines.doubt.is_some_and(|at| now >= at) {
            self.ask();
        }
        Ok(())
    }

    /// Starts to ask whether the server still has the version of the watch.
    fn ask(&mut self) {
        let Position::Watch(version) = &self.position else { return };
        let (connection, kind, version) = (self.connection.clone(), self.kind, version.clone());
        let node_name = self.shared.node_name.to_owned();
        let ask = async move {
            let start = Instant::now();
            (start, continuity::ask(connection, kind, &node_name, version).await)
        };
        self.question = Some(Box::pin(ask));
    }

    /// Handles the answer to the question whether the server still has the version.
    fn question_answered(&mut self, (start, answer): (Instant, Result<usize, Error>)) -> Result<(), Error> {
        self.answered(answer.as_ref().err(), start, answer.as_ref().ok().copied());
        self.question = None;
        match answer {
            Ok(_) => self.doubt.answered(Instant::now()),
            Err(error @ Error::VersionLost) => return Err(error),
            Err(error) => {
                debug!("type" = self.kind.name(), err = %error, "Cannot find out whether the server still has the version");
                self.doubt.unanswered(Instant::now());
            }
        }
        Ok(())
    }

    /// Handles that the server ended a watch. `came` says whether it sent any bytes before.
    fn watch_ended(&mut self, is_list: bool, came: bool, frames: &FrameBuffer) -> Result<(), Error> {
        if frames.pending() > 0 {
            return Err(Error::CutOff("the server closed the connection".into()));
        }
        if is_list {
            if !came {
                self.list_methods.streaming_refused();
            }
            return Err(Error::Broken("the server closed the connection".into()));
        }
        if self.has_worked() { Ok(()) } else { Err(Error::VeryShortWatch) }
    }

    /// Handles an event. Returns whether a streaming list is still under way.
    async fn event(&mut self, format: Format, event: &[u8], is_list: bool) -> Result<bool, Error> {
        let version = match self.decoder.watch_event(format, event).map_err(Error::Malformed)? {
            WatchEvent::Applied(object) => self.applied(object).await?,
            WatchEvent::Deleted(key, version) => {
                self.deleted(key).await?;
                version.map(Into::into)
            }
            WatchEvent::Bookmark { version, ends_list: true } if is_list => {
                self.list_complete(version).await?;
                self.watch_began = Some(Instant::now());
                return Ok(false);
            }
            // A server that supports streaming lists sends no bookmark before the one that ends the list.
            WatchEvent::Bookmark { .. } if is_list => return Err(self.streaming_ignored()),
            WatchEvent::Bookmark { version, .. } => Some(version),
            // As in client-go, pages follow whatever the status is, but not if the server is too busy.
            WatchEvent::Error(status) if is_list && status.code != 429 => {
                return Err(self.streaming_refused(&Error::of_status(status, None)));
            }
            WatchEvent::Error(status) => return Err(Error::of_status(status, None)),
        };
        if !is_list {
            if let Some(version) = version {
                self.came_to(version);
            }
            self.recovered();
        }
        Ok(is_list)
    }

    /// Notes that the server refused a streaming list, so that the next attempt lists page by page. Returns the error that ends this
    /// attempt.
    fn streaming_refused(&mut self, error: &Error) -> Error {
        debug!("type" = self.kind.name(), err = %error, "The server refuses a streaming list");
        self.list_methods.streaming_refused();
        Error::NoStreamingList
    }

    /// Notes that the server ignored the request for a streaming list, so that the next attempt lists page by page. Returns the error that
    /// ends this attempt.
    fn streaming_ignored(&mut self) -> Error {
        debug!("type" = self.kind.name(), "The server ignores that a streaming list was requested");
        self.list_methods.streaming_ignored(StdInstant::now());
        Error::NoStreamingList
    }

    /// Returns the parameters for a page of a list: for the page of continue token `next`, or for the first page if there is no token.
    fn list_params(&self, freshness: &Freshness, next: Option<String>) -> ListParams {
        let (version, version_match) = match freshness {
            _ if next.is_some() => (None, None),
            Freshness::Any => (Some("0".to_owned()), None),
            Freshness::NotOlderThan(version) => (Some(version.clone()), Some(VersionMatch::NotOlderThan)),
            Freshness::Latest => (None, None),
        };
        ListParams {
            label_selector: self.kind.label_selector().map(Into::into),
            field_selector: self.kind.field_selector(self.shared.node_name),
            // Set no limit together with a version other than 0, because servers before 1.34 (feature gate ListFromCacheSnapshot) would
            // then read from etcd and not from their cache.
            limit: version_match.is_none().then_some(PAGE),
            continue_token: next,
            version_match,
            resource_version: version,
            ..ListParams::default()
        }
    }

    /// Returns the parameters of a watch with a timeout of this many seconds.
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

/// The times until which to wait for bytes of a watch.
struct Deadlines {
    /// When the watch is given up.
    end: Instant,
    /// When a resumed watch counts as working; `None` if it does already.
    resumed: Option<Instant>,
    /// When to ask whether the server still has the version; `None` if a question is pending, or during a streaming list.
    doubt: Option<Instant>,
}

impl Deadlines {
    fn first(&self) -> Instant {
        [self.resumed, self.doubt].into_iter().flatten().fold(self.end, Instant::min)
    }
}

/// Waits for the answer to a pending question; for ever if no question is pending.
async fn answer(question: &mut Option<Question>) -> (Instant, Result<usize, Error>) {
    match question {
        Some(question) => question.await,
        None => pending().await,
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

/// Turns the error of a broken connection into [`Error::CutOff`] if the connection broke within an event.
fn cut_off(error: Error, frames: &FrameBuffer) -> Error {
    match error {
        Error::Broken(text) if frames.pending() > 0 => Error::CutOff(text),
        error => error,
    }
}

fn too_long(TooLong: TooLong) -> Error {
    Error::Malformed(format!("an event of more than {MAX_EVENT} bytes"))
}

/// Returns whether this HTTP status means that the server may answer a list page by page, but no streaming list. Servers without support
/// for streaming lists answer that the parameters are invalid (422) or bad (400). A streaming list is a watch, which a role may not allow
/// (403), and which may fail alone (500). The other statuses may come from a proxy on the way.
fn refuses_streaming(status: u16) -> bool {
    matches!(status, 400 | 403 | 405 | 406 | 415 | 422 | 500 | 501)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_status_about_the_request_refuses_streaming_lists() {
        assert!([400, 403, 405, 406, 415, 422, 500, 501].into_iter().all(refuses_streaming));
        assert!(![200, 401, 404, 410, 429, 502, 503, 504].into_iter().any(refuses_streaming));
    }
}
