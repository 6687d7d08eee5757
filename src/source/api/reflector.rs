//! Lists and watches one kind for ever, as the Reflector of client-go does.
//!
//! Takes what the API server sends about the kind, gives events. This file decides what happens after each list or watch and what
//! becomes of each object; `list_watch` has the requests.
//!
//! The watch is our own, not that of `kube::runtime`, for these reasons:
//! - Bounded: a line and a page have a largest size.
//! - A dead connection is noticed after [`Timing::idle`]; the other one notices it when the life of the watch ends.
//! - A broken object loses only itself; there, an object that does not decode fails its whole page.
//! - The server may answer in protobuf, which is half the bytes; the other one decodes JSON only.
//! - A server that refuses or ignores streaming lists is listed page by page, and Retry-After is honoured.
//!
//! The client, its TLS, its credentials and its requests are kube's.
//!
//! Invariants: an event is sent before its version counts as seen; a list that breaks off deletes nothing; a failure leads to another
//! attempt after the back-off, and [`Outage`] decides when it is logged.

use std::time::{Duration, SystemTime};

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use super::connection::Connection;
use super::decode::{Decoder, ReadObject, Undecodable};
use super::error::{Cause, Error};
use super::known::KnownObjects;
use super::list_watch::ListMethods;
use super::resource::Resource;
use super::retry::{Backoff, FIRST, Outage, go_duration};
use super::startup::ProgressSender;
use super::{EventSender, Observer};
use crate::logging::once::{Once, OncePerKey};
use crate::model::Event;
use crate::source::convert::{ConvertOptions, Converted};
use crate::source::{Key, Problem};

/// The kind that tries more often than the others to reach a server that cannot be reached; when it succeeds, the others try at once.
/// So the server gets one connection at a time, for the kind with the fewest objects.
const PROBE: Resource = Resource::Node;
/// The longest wait of that kind between two attempts, before jitter of a half.
const PROBE_INTERVAL: Duration = Duration::from_secs(4);
/// How often the back-off may start again at its shortest wait before a watch has lasted.
const FAST_RETRIES: u8 = 2;

/// The time limits of lists and watches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// The life that a watch is requested for, before jitter of a tenth. The server ends it then.
    pub(super) watch: Duration,
    /// How much longer than requested a watch may live.
    pub(super) grace: Duration,
    /// A watch on which nothing arrives for this long is dead: servers send bookmarks about every minute.
    pub(super) idle: Duration,
    /// A streaming list fails when nothing arrives for this long before its end.
    pub(super) initial: Duration,
    /// How long the start of a page may take; servers give up on a list after 60 s.
    pub(super) list_response: Duration,
    /// How long the start of a watch may take; servers let it wait in a queue for a quarter of their 60 s.
    pub(super) watch_response: Duration,
    /// How long a page may take to arrive.
    pub(super) page: Duration,
    /// How long the next bytes of a page may take.
    pub(super) stall: Duration,
    /// A watch that lived this long was a success, whatever ended it.
    pub(super) stable: Duration,
    /// How often an optional kind that the server does not have is listed again.
    pub(super) absent: Duration,
    /// The shortest wait after a first failure.
    pub(super) first_wait: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            watch: Duration::from_secs(260),
            grace: Duration::from_secs(10),
            idle: Duration::from_secs(150),
            initial: Duration::from_secs(15),
            list_response: Duration::from_secs(65),
            watch_response: Duration::from_secs(30),
            page: Duration::from_secs(300),
            stall: Duration::from_secs(30),
            stable: Duration::from_secs(5),
            absent: Duration::from_secs(180),
            first_wait: FIRST,
        }
    }
}

/// What all reflectors share.
pub(super) struct Shared<'a, O> {
    pub(super) node_name: &'a str,
    pub(super) convert: ConvertOptions,
    /// In percent; see [`KnownObjects::excessive_removal`].
    pub(super) removal_limit: u8,
    pub(super) events: &'a EventSender,
    pub(super) observer: &'a O,
    pub(super) progress: &'a ProgressSender,
    /// Notified when the server serves a kind again after an outage, so that the other kinds try at once.
    pub(super) recovered: &'a Notify,
    pub(super) timing: Timing,
}

/// Lists and watches one kind.
pub(super) struct Reflector<'a, O> {
    pub(super) kind: Resource,
    pub(super) shared: &'a Shared<'a, O>,
    pub(super) connection: Connection,
    pub(super) decoder: Decoder,
    pub(super) list_methods: ListMethods,
    pub(super) known: KnownObjects,
    /// The resource version to resume the watch from; `None` when a complete list is needed.
    pub(super) version: Option<String>,
    /// When the server accepted the present watch.
    pub(super) watch_began: Option<Instant>,
    pub(super) outage: Outage,
    /// The last complete list removed too many objects, and was not applied.
    removal_unconfirmed: bool,
    backoff: Backoff,
    /// The last attempt did not reach the server.
    is_unreachable: bool,
    /// What is left of [`FAST_RETRIES`].
    fast_retries: u8,
    logged_problems: OncePerKey<Option<Key>, Problem>,
    logged_absence: Once<()>,
}

impl<'a, O: Observer> Reflector<'a, O> {
    pub(super) fn new(kind: Resource, shared: &'a Shared<'a, O>, connection: Connection) -> Self {
        Self {
            kind,
            shared,
            connection,
            decoder: Decoder::new(kind, shared.convert),
            list_methods: ListMethods::default(),
            known: KnownObjects::default(),
            version: None,
            watch_began: None,
            outage: Outage::default(),
            removal_unconfirmed: false,
            backoff: Backoff::new(shared.timing.first_wait),
            is_unreachable: false,
            fast_retries: FAST_RETRIES,
            logged_problems: OncePerKey::default(),
            logged_absence: Once::default(),
        }
    }

    /// Lists and watches until the receiver of the events is gone.
    pub(super) async fn run(mut self) {
        self.shared.observer.connected(self.kind.name(), false);
        loop {
            self.watch_began = None;
            let outcome = self.list_or_watch().await;
            if self.watch_began.is_some_and(|since| since.elapsed() >= self.shared.timing.stable) {
                self.backoff.reset();
                self.fast_retries = FAST_RETRIES;
            }
            let error = match outcome {
                Ok(()) | Err(Error::NoStreamingList) => continue,
                Err(Error::ReceiverGone) => return,
                Err(error) => error,
            };
            let wait = sleep(self.failed(&error).await);
            tokio::select! {
                () = wait => {}
                // Only for a server that could not be reached: a refusal or Retry-After still holds when another kind is served.
                () = self.shared.recovered.notified(), if self.is_unreachable => {}
                // Another token, certificate or CA may be what was missing.
                () = self.connection.outdated(), if error.is_about_access() => {}
            }
        }
    }

    /// Handles a failure; gives the wait before the next attempt.
    async fn failed(&mut self, error: &Error) -> Duration {
        if self.is_absent(error) {
            self.shared.progress.send_modify(|progress| progress.listed(self.kind));
            self.absent(error);
            return self.shared.timing.absent.mul_f64(1.0 + rand::random::<f64>() / 4.0);
        }
        self.shared.observer.connected(self.kind.name(), false);
        if error.needs_list() {
            self.version = None;
        }
        if error.is_about_access()
            && let Err(renewal) = self.connection.renew().await
        {
            self.warn_if_due(Cause::Configuration, &format!("{error}; {renewal:#}"));
        } else {
            self.warn_if_due(error.cause(), &error.to_string());
        }
        if self.server_is_back(error) {
            self.backoff.reset();
            self.shared.recovered.notify_waiters();
        }
        let wait = self.backoff.next(error.retry_after(), rand::random());
        let is_probe = self.kind == PROBE && error.cause() == Cause::Unreachable;
        if is_probe { wait.min(PROBE_INTERVAL.mul_f64(1.0 + rand::random::<f64>() / 2.0)) } else { wait }
    }

    /// Whether a failure shows that the server works again, so that the long waits for an unreachable server are over: it answers
    /// after it could not be reached, or it has forgotten our version. [`FAST_RETRIES`] limits how often that counts until a watch
    /// lasts, so that a server that stays in this state gets fewer and fewer requests.
    fn server_is_back(&mut self, error: &Error) -> bool {
        let cause = error.cause();
        let was_unreachable = std::mem::replace(&mut self.is_unreachable, cause == Cause::Unreachable);
        let answers = matches!(error, Error::Expired) || was_unreachable && matches!(cause, Cause::Refused(_));
        if answers && self.fast_retries > 0 {
            self.fast_retries -= 1;
            return true;
        }
        false
    }

    /// Whether the server has no such kind for us, and the kind is an optional one.
    fn is_absent(&self, error: &Error) -> bool {
        self.kind.is_optional() && self.version.is_none() && matches!(error.code(), Some(403 | 404))
    }

    /// Handles an optional kind that the server does not have: that is no outage, and is logged once.
    fn absent(&mut self, error: &Error) {
        self.is_unreachable = false;
        self.received();
        self.recovered();
        if self.logged_absence.is_new(()) {
            let (kind, url) = (self.kind.name(), self.connection.url());
            warn!(
                "type" = kind, url, err = %error,
                "This kind cannot be read; the proxy works as if there were none of it"
            );
        }
    }

    /// Logs a failure if it is due.
    fn warn_if_due(&mut self, cause: Cause, text: &str) {
        let (kind, url) = (self.kind.name(), self.connection.url());
        let due = self.outage.failed(cause, Instant::now().into_std());
        if due.is_some() {
            self.shared.observer.lost(kind, &format!("{url}: {text}"));
        }
        match due {
            None => debug!("type" = kind, url, err = text, "A list or watch ended with an error; trying again"),
            Some(lasted) => {
                let lasted = Some(lasted).filter(|lasted| lasted.as_secs() > 0).map(go_duration);
                warn!("type" = kind, url, err = text, lasted, "Failed to watch; trying again");
            }
        }
    }

    /// Notes that a piece of an answer arrived, or that the server accepted a watch, which may have no news for a minute.
    pub(super) fn received(&self) {
        self.shared.observer.connected(self.kind.name(), true);
        self.shared.observer.received(self.kind.name(), SystemTime::now());
    }

    /// Notes that the server serves the kind; ends an outage.
    pub(super) fn recovered(&mut self) {
        if let Some(lasted) = self.outage.over(Instant::now().into_std()) {
            let (kind, url) = (self.kind.name(), self.connection.url());
            info!("type" = kind, url, lasted = go_duration(lasted), "Watching again");
            self.shared.observer.reconnected(kind, lasted);
            self.shared.recovered.notify_waiters();
        }
    }

    /// Handles an object that was added or modified. Gives its version.
    pub(super) async fn applied(&mut self, object: ReadObject) -> Result<Option<String>, Error> {
        match object {
            Ok(object) => {
                self.converted(object.converted).await?;
                Ok(Some(object.version.into()).filter(|version: &String| !version.is_empty()))
            }
            Err(undecodable) => {
                let Undecodable { key, version, problem } = *undecodable;
                self.known.unreadable(key.as_ref());
                self.log_problems(key, vec![problem]);
                Ok(version.map(Into::into))
            }
        }
    }

    fn log_problems(&mut self, key: Option<Key>, problems: Vec<Problem>) {
        for problem in self.logged_problems.new_messages(key, problems) {
            problem.log();
            self.shared.observer.rejected(self.kind.name());
        }
    }

    async fn converted(&mut self, converted: Converted) -> Result<(), Error> {
        let Some(event) = converted.event else {
            self.known.unreadable(None);
            self.log_problems(None, converted.problems);
            return Ok(());
        };
        let key = Key::of(&event);
        self.log_problems(key.clone(), converted.problems);
        let Some(key) = key else { return Ok(()) };
        match &event {
            // The object exists, but this proxy does not handle it; the model gets a deletion if it had the object.
            Event::ServiceDeleted(_) | Event::SliceDeleted(_) if !self.known.deleted(&key) => return Ok(()),
            Event::ServiceDeleted(_) | Event::SliceDeleted(_) => {}
            Event::NodeApplied(node) if *node.name != *self.shared.node_name => return Ok(()),
            Event::NodeApplied(node) => {
                self.shared.progress.send_modify(|progress| progress.node(Some(node)));
                self.known.applied(key);
            }
            _ => self.known.applied(key),
        }
        self.shared.events.send(event).await
    }

    /// Handles an object that was deleted.
    pub(super) async fn deleted(&mut self, key: Key) -> Result<(), Error> {
        let was_known = self.known.deleted(&key);
        self.removed(key, was_known).await
    }

    async fn removed(&mut self, key: Key, was_known: bool) -> Result<(), Error> {
        let key = Some(key);
        match key {
            // The endpoints controller deletes and creates the same slices all the time.
            Some(Key::Slice(_)) => self.logged_problems.retire(&key),
            _ => self.logged_problems.forget(&key),
        }
        match key {
            // The model keeps the last state of the own Node (L6, M8).
            Some(Key::Node(name)) if was_known => {
                warn!(node = &*name, "The Node was deleted; the proxy goes on with its last state");
                self.shared.progress.send_modify(|progress| progress.node(None));
                Ok(())
            }
            Some(key) if was_known => self.shared.events.send(key.deletion()).await,
            _ => Ok(()),
        }
    }

    /// Handles the end of a complete list, whose version this is.
    ///
    /// # Errors
    /// [`Error::ExcessiveRemoval`] for the first list that removes too many objects; the second is applied.
    pub(super) async fn list_complete(&mut self, version: String) -> Result<(), Error> {
        let limit = self.shared.removal_limit;
        match self.known.excessive_removal(limit) {
            Some(missing) if !self.removal_unconfirmed => {
                self.removal_unconfirmed = true;
                return Err(Error::ExcessiveRemoval(missing, limit));
            }
            _ => self.removal_unconfirmed = false,
        }
        for key in self.known.end_list() {
            self.removed(key, true).await?;
        }
        self.version = Some(version);
        self.list_methods.listed();
        self.shared.progress.send_modify(|progress| progress.listed(self.kind));
        self.recovered();
        Ok(())
    }
}
