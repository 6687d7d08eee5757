//! Follows one kind for ever.
//!
//! Takes what the API server sends, gives events. `follow` has the conversation with the server; this file decides what
//! happens after each part of it.
//!
//! Invariants: an event is sent before its version counts as seen; a listing that breaks off deletes nothing; failures lead
//! to another try after the back-off, and are said when they change.

use std::time::Duration;

use kube::api::{ListParams, WatchParams};
use serde_json::value::RawValue;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use super::Observer;
use super::backoff::Backoff;
use super::connection::Connection;
use super::failure::Failure;
use super::known::Known;
use super::listing::Choice;
use super::outlet::Outlet;
use super::readiness::Progress;
use super::resource::{Broken, Resource};
use crate::model::Event;
use crate::source::convert::{ConvertOptions, Converted, Converter};
use crate::source::key::Key;
use crate::source::notice::{Memory, Notice};

/// Objects on a page of a list.
const PAGE: u32 = 500;

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
    /// How long the start of an answer may take; servers give up on a list after 60 s.
    pub(super) answer: Duration,
    /// How long a page may take to arrive.
    pub(super) page: Duration,
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
            page: Duration::from_secs(300),
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
    /// What was last said about a failure that lasts.
    trouble: Option<String>,
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
            trouble: None,
        }
    }

    /// Follows the kind until nobody listens any more.
    pub(super) async fn run(mut self) {
        loop {
            self.up_since = None;
            let outcome = self.step().await;
            if self.up_since.is_some_and(|since| since.elapsed() >= self.around.timing.steady) {
                self.backoff.succeeded();
            }
            let wait = match outcome {
                Ok(()) | Err(Failure::NotStreaming) => continue,
                Err(Failure::Stopped) => return,
                Err(failure) => self.failed(&failure).await,
            };
            sleep(wait).await;
        }
    }

    /// What to do about a failure; gives the wait before the next try.
    async fn failed(&mut self, failure: &Failure) -> Duration {
        if self.is_absent(failure) {
            self.around.progress.send_modify(|progress| progress.listed(self.resource));
            self.say(format!("{failure}; going on as if there were none"));
            return self.around.timing.absent.mul_f64(1.0 + rand::random::<f64>() / 4.0);
        }
        if failure.needs_listing() {
            self.version = None;
        }
        if failure.is_about_access()
            && let Err(error) = self.connection.renew().await
        {
            self.say(format!("{failure}; {error:#}"));
        } else {
            self.say(failure.to_string());
        }
        self.backoff.failed(failure.retry_after(), rand::random())
    }

    /// Whether the kind does not exist for us, and may.
    fn is_absent(&self, failure: &Failure) -> bool {
        self.resource.is_optional() && self.version.is_none() && matches!(failure.code(), Some(403 | 404))
    }

    /// Says a failure if it is another than the last.
    fn say(&mut self, text: String) {
        if self.trouble.as_ref() != Some(&text) {
            warn!(kind = self.resource.kind(), "cannot be followed: {text}; trying again");
        }
        self.trouble = Some(text);
    }

    /// The server gives what it was asked for.
    pub(super) fn is_well(&mut self) {
        if self.trouble.take().is_some() {
            info!(kind = self.resource.kind(), "followed again");
            self.around.observer.reconnected(self.resource.kind());
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
