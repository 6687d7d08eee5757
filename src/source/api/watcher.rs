//! Follows one kind for ever.
//!
//! Takes what the API server sends, gives events. `follow` has the conversation with the server; this file decides what
//! happens after each part of it.
//!
//! Invariants: an event is sent before its version counts as seen; a listing that breaks off deletes nothing; failures lead
//! to another try after the back-off, and are logged as [`Outage`] says.

use std::time::{Duration, SystemTime};

use kube::api::{ListParams, WatchParams};
use serde_json::value::RawValue;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use super::Observer;
use super::backoff::Backoff;
use super::connection::Connection;
use super::failure::Failure;
use super::known::Known;
use super::listing::Choice;
use super::outage::{Cause, Outage, words};
use super::outlet::Outlet;
use super::readiness::Progress;
use super::resource::{Broken, Resource};
use crate::model::Event;
use crate::source::convert::{ConvertOptions, Converted, Converter};
use crate::source::key::Key;
use crate::source::notice::{Memory, Notice};

/// Objects on a page of a list.
const PAGE: u32 = 500;
/// The kind that looks for a server that cannot be reached, one connection at a time; all others follow when it is back. It is
/// the kind with the fewest objects.
const SCOUT: Resource = Resource::Node;
/// How long it waits between two looks at most, before jitter of a half.
const SCOUTING: Duration = Duration::from_secs(4);
/// How often a watch that did not last may begin anew with short waits.
const EXCUSES: u8 = 2;

/// How long to wait for what.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// The life that a watch is asked for, before jitter of a tenth. Servers end it themselves.
    pub(super) watch: Duration,
    /// How much longer than asked a watch may live.
    pub(super) grace: Duration,
    /// A watch that says nothing for this long is dead: servers send bookmarks about every minute.
    pub(super) idle: Duration,
    /// A streaming list that says nothing for this long before its end will not end.
    pub(super) initial: Duration,
    /// How long the start of a page may take; servers give up on a list after 60 s.
    pub(super) answer: Duration,
    /// How long the start of a watch may take; servers let it wait in a queue for a quarter of their 60 s.
    pub(super) accept: Duration,
    /// How long a page may take to arrive.
    pub(super) page: Duration,
    /// A page of which nothing comes for so long does not come.
    pub(super) stall: Duration,
    /// A connection that lived this long was a success, whatever ended it.
    pub(super) steady: Duration,
    /// How often an optional kind that is not there is looked for.
    pub(super) absent: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            watch: Duration::from_secs(260),
            grace: Duration::from_secs(10),
            idle: Duration::from_secs(150),
            initial: Duration::from_secs(15),
            answer: Duration::from_secs(65),
            accept: Duration::from_secs(30),
            page: Duration::from_secs(300),
            stall: Duration::from_secs(30),
            steady: Duration::from_secs(5),
            absent: Duration::from_secs(180),
        }
    }
}

/// What all watchers share.
pub(super) struct Surroundings<'a, O> {
    pub(super) node_name: &'a str,
    pub(super) convert: ConvertOptions,
    /// In percent; see [`Known::doubtful`].
    pub(super) removal_limit: u8,
    pub(super) outlet: &'a Outlet,
    pub(super) observer: &'a O,
    pub(super) progress: &'a watch::Sender<Progress>,
    /// Told when the server serves a kind again after an outage, so that the others do not wait for their time.
    pub(super) back: &'a Notify,
    pub(super) timing: Timing,
}

/// The watch of one kind.
pub(super) struct Watcher<'a, O> {
    pub(super) resource: Resource,
    pub(super) around: &'a Surroundings<'a, O>,
    pub(super) connection: Connection,
    pub(super) choice: Choice,
    pub(super) known: Known,
    /// Where to resume; `None` if a complete listing is needed.
    pub(super) version: Option<String>,
    /// The last complete listing was not believed.
    doubted: bool,
    /// When the present watch was accepted.
    pub(super) up_since: Option<Instant>,
    converter: Converter,
    said: Memory<Option<Key>, Notice>,
    backoff: Backoff,
    pub(super) outage: Outage,
    /// The last try did not reach the server.
    is_away: bool,
    /// See [`Watcher::answers_again`].
    excuses: u8,
    /// It was logged that the server does not have the kind.
    is_known_absent: bool,
}

impl<'a, O: Observer> Watcher<'a, O> {
    pub(super) fn new(resource: Resource, around: &'a Surroundings<'a, O>, connection: Connection) -> Self {
        Self {
            resource,
            around,
            connection,
            choice: Choice::default(),
            known: Known::default(),
            version: None,
            doubted: false,
            up_since: None,
            converter: Converter::new(around.convert),
            said: Memory::default(),
            backoff: Backoff::default(),
            outage: Outage::default(),
            is_away: false,
            excuses: EXCUSES,
            is_known_absent: false,
        }
    }

    /// Follows the kind until nobody listens any more.
    pub(super) async fn run(mut self) {
        self.around.observer.connected(self.resource.kind(), false);
        loop {
            self.up_since = None;
            let outcome = self.step().await;
            if self.up_since.is_some_and(|since| since.elapsed() >= self.around.timing.steady) {
                self.backoff.succeeded();
                self.excuses = EXCUSES;
            }
            let failure = match outcome {
                Ok(()) | Err(Failure::NotStreaming) => continue,
                Err(Failure::Stopped) => return,
                Err(failure) => failure,
            };
            let wait = sleep(self.failed(&failure).await);
            tokio::select! {
                () = wait => {}
                // What the server asked to be left alone for, or cannot do, is no better for that.
                () = self.around.back.notified(), if self.is_away => {}
                // Another token, certificate or CA may be what was missing.
                () = self.connection.outdated(), if failure.is_about_access() => {}
            }
        }
    }

    /// What to do about a failure; gives the wait before the next try.
    async fn failed(&mut self, failure: &Failure) -> Duration {
        if self.is_absent(failure) {
            self.around.progress.send_modify(|progress| progress.listed(self.resource));
            self.is_absent_as_known(failure);
            return self.around.timing.absent.mul_f64(1.0 + rand::random::<f64>() / 4.0);
        }
        self.around.observer.connected(self.resource.kind(), false);
        if failure.needs_listing() {
            self.version = None;
        }
        if failure.is_about_access()
            && let Err(error) = self.connection.renew().await
        {
            self.warn_if_due(Cause::Configuration, &format!("{failure}; {error:#}"));
        } else {
            self.warn_if_due(failure.cause(), &failure.to_string());
        }
        if self.answers_again(failure) {
            self.backoff.succeeded();
            self.around.back.notify_waiters();
        }
        let wait = self.backoff.failed(failure.retry_after(), rand::random());
        let is_scout = self.resource == SCOUT && failure.cause() == Cause::Unreachable;
        if is_scout { wait.min(SCOUTING.mul_f64(1.0 + rand::random::<f64>() / 2.0)) } else { wait }
    }

    /// Whether a failure tells that the server works again, so that the long waits for one that is away are over: it answers
    /// after it could not be reached, or knows that our version is too old. Twice at most until a watch lasts, so that a
    /// server that goes on like that is asked less and less.
    fn answers_again(&mut self, failure: &Failure) -> bool {
        let cause = failure.cause();
        let was_away = std::mem::replace(&mut self.is_away, cause == Cause::Unreachable);
        let answers = matches!(failure, Failure::Gone) || was_away && matches!(cause, Cause::Refused(_));
        if answers && self.excuses > 0 {
            self.excuses -= 1;
            return true;
        }
        false
    }

    /// Whether the kind does not exist for us, and may.
    fn is_absent(&self, failure: &Failure) -> bool {
        self.resource.is_optional() && self.version.is_none() && matches!(failure.code(), Some(403 | 404))
    }

    /// The server answers, and has no such kind for us: that is no outage, and is logged once.
    fn is_absent_as_known(&mut self, failure: &Failure) {
        let kind = self.resource.kind();
        self.is_away = false;
        self.heard();
        self.is_well();
        if !std::mem::replace(&mut self.is_known_absent, true) {
            warn!(kind, "{}: {failure}; going on as if there were none", self.connection.url());
        }
    }

    /// Logs a failure if it is time to.
    fn warn_if_due(&mut self, cause: Cause, text: &str) {
        let (kind, url) = (self.resource.kind(), self.connection.url());
        match self.outage.failed(cause, Instant::now().into_std()) {
            None => debug!(kind, "cannot be followed: {url}: {text}; trying again"),
            Some(lasted) if lasted.as_secs() == 0 => warn!(kind, "cannot be followed: {url}: {text}; trying again"),
            Some(lasted) => warn!(kind, "cannot be followed for {}: {url}: {text}; trying again", words(lasted)),
        }
    }

    /// A piece of an answer came, or the server takes up a watch, which may have nothing to say for a minute.
    pub(super) fn heard(&self) {
        self.around.observer.connected(self.resource.kind(), true);
        self.around.observer.heard(self.resource.kind(), SystemTime::now());
    }

    /// The server gives what it was asked for.
    pub(super) fn is_well(&mut self) {
        if let Some(lasted) = self.outage.over(Instant::now().into_std()) {
            let (kind, url) = (self.resource.kind(), self.connection.url());
            info!(kind, "followed again: {url}; the outage lasted {}", words(lasted));
            self.around.observer.reconnected(kind);
            self.around.back.notify_waiters();
        }
    }

    /// An object exists like this. Gives its version.
    pub(super) async fn applied(&mut self, object: &RawValue) -> Result<Option<String>, Failure> {
        match self.resource.decode(&mut self.converter, object) {
            Ok(decoded) => {
                self.converted(decoded.converted).await?;
                Ok(Some(decoded.version.into()).filter(|version: &String| !version.is_empty()))
            }
            Err(broken) => {
                let Broken { key, version, notice } = *broken;
                self.known.unreadable(key.as_ref());
                self.reject(key, vec![notice]);
                Ok(version.map(Into::into))
            }
        }
    }

    fn reject(&mut self, key: Option<Key>, notices: Vec<Notice>) {
        for notice in self.said.fresh(key, notices) {
            warn!("{notice}");
            self.around.observer.rejected(self.resource.kind());
        }
    }

    async fn converted(&mut self, converted: Converted) -> Result<(), Failure> {
        let Some(event) = converted.event else {
            self.known.unreadable(None);
            self.reject(None, converted.notices);
            return Ok(());
        };
        let key = Key::of(&event);
        self.reject(key.clone(), converted.notices);
        let Some(key) = key else { return Ok(()) };
        match &event {
            // It exists, but not for this proxy.
            Event::ServiceDeleted(_) | Event::SliceDeleted(_) if !self.known.deleted(&key) => return Ok(()),
            Event::ServiceDeleted(_) | Event::SliceDeleted(_) => {}
            Event::NodeApplied(node) if *node.name != *self.around.node_name => return Ok(()),
            Event::NodeApplied(node) => {
                self.around.progress.send_modify(|progress| progress.node(Some(node)));
                self.known.applied(key);
            }
            _ => self.known.applied(key),
        }
        self.around.outlet.send(event).await
    }

    /// An object is gone.
    pub(super) async fn deleted(&mut self, key: Key) -> Result<(), Failure> {
        let was_known = self.known.deleted(&key);
        self.retired(key, was_known).await
    }

    async fn retired(&mut self, key: Key, was_known: bool) -> Result<(), Failure> {
        let key = Some(key);
        match key {
            // Controllers make slices anew all the time, as they were.
            Some(Key::Slice(_)) => self.said.retire(&key),
            _ => self.said.forget(&key),
        }
        match key {
            // L6, M8: the model keeps the Node as it was last seen.
            Some(Key::Node(name)) if was_known => {
                warn!(node = &*name, "the Node was deleted; it counts as it was last seen");
                self.around.progress.send_modify(|progress| progress.node(None));
                Ok(())
            }
            Some(key) if was_known => self.around.outlet.send(key.deletion()).await,
            _ => Ok(()),
        }
    }

    /// A complete listing was sent, and this is its version. One that is hard to believe is a failure the first time.
    pub(super) async fn complete(&mut self, version: String) -> Result<(), Failure> {
        let limit = self.around.removal_limit;
        match self.known.doubtful(limit) {
            Some(missing) if !self.doubted => {
                self.doubted = true;
                return Err(Failure::Doubtful(missing, limit));
            }
            _ => self.doubted = false,
        }
        for key in self.known.complete() {
            self.retired(key, true).await?;
        }
        self.version = Some(version);
        self.choice.listed();
        self.around.progress.send_modify(|progress| progress.listed(self.resource));
        self.is_well();
        Ok(())
    }

    /// The parameters of a page.
    pub(super) fn list_params(&self, next: Option<String>) -> ListParams {
        ListParams {
            label_selector: self.resource.label_selector().map(Into::into),
            field_selector: self.resource.field_selector(self.around.node_name),
            limit: Some(PAGE),
            continue_token: next,
            ..ListParams::default()
        }
    }

    /// The parameters of a watch that lives for this many seconds.
    pub(super) fn watch_params(&self, seconds: u32, streaming: bool) -> WatchParams {
        WatchParams {
            label_selector: self.resource.label_selector().map(Into::into),
            field_selector: self.resource.field_selector(self.around.node_name),
            timeout: Some(seconds),
            bookmarks: true,
            send_initial_events: streaming,
        }
    }
}
