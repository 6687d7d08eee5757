//! Lists and watches the objects of one kind for ever, as the Reflector of client-go does.
//!
//! The module takes the API server's answers about the kind and sends events. It decides what to do after each list or watch, and handles
//! each object; `list_watch` sends the requests.
//!
//! The requests go through a [`kube::Client`]. `src/decisions/0003-own-watch.md` says why the reflector does not use the watch of
//! `kube::runtime`.
//!
//! Invariants: an event is sent before its resource version counts as seen; a list that breaks off deletes nothing; a list is never older
//! than the last seen version, unless the server's versions went back; after each attempt the reflector waits and tries again, as `retry`
//! says, which also decides when a failure is logged.

use std::time::{Duration, SystemTime};

use tokio::sync::watch::{Receiver, Sender};
use tokio::time::{Instant, sleep};
use tracing::{debug, info, warn};

use super::connection::Connection;
use super::continuity::{AWAY, Doubt};
use super::decode::{Decoder, ReadObject, Undecodable};
use super::error::{Cause, End, Error};
use super::known::{Confirmation, KnownObjects};
use super::position::{Freshness, ListMethods, Position, Question};
use super::resource::Resource;
use super::retry::{
    Attempt, Backoff, FIRST, LONGEST_BETWEEN_LISTS, Outage, Paced, go_duration, is_away, list_spread, probe_interval,
};
use super::startup::ProgressSender;
use super::{EventSender, Observer};
use crate::source::convert::{ConvertOptions, Converted};
use crate::source::{Key, Problem};
use component::logging::once::{Once, OncePerKey};
use rules::model::Event;

/// The kind whose reflector tries more often than the others during a failure that affects all kinds. When it succeeds, the others try at
/// once. It is the kind with the fewest objects, so the attempts cost the server little.
const PROBE: Resource = Resource::Node;

/// The time limits of lists and watches.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// The timeout of a watch, after which the server ends the watch. Jitter of up to a tenth is added to it.
    pub(super) watch: Duration,
    /// How much longer than its timeout a watch may last before the client ends it.
    pub(super) grace: Duration,
    /// How long nothing may arrive on a watch before it counts as dead. Servers send bookmarks about every minute.
    pub(super) idle: Duration,
    /// How long nothing may arrive on a watch, plus up to a tenth of jitter, before the server is asked whether it still has the watch's
    /// version ([`Doubt`]).
    pub(super) silence: Duration,
    /// How long nothing may arrive on a streaming list before it fails.
    pub(super) initial: Duration,
    /// How long the answer to a list may take to begin. By default servers abandon a list after 60 s (`--request-timeout`).
    pub(super) list_response: Duration,
    /// How long the answer to a watch may take to begin. Servers may queue the request for a quarter of that time-out (API Priority and
    /// Fairness).
    pub(super) watch_response: Duration,
    /// How long a complete page may take to arrive.
    pub(super) page: Duration,
    /// How long the next bytes of a page may take.
    pub(super) stall: Duration,
    /// The time within which a second list has to confirm a list that removes too many objects.
    pub(super) confirmation: Duration,
    /// The time after which an optional kind that the server does not have is listed again.
    pub(super) absent: Duration,
    /// The first of the waits that double ([`Backoff::new`]).
    pub(super) first_wait: Duration,
    /// How much longer each known object makes the random wait before the next list ([`list_spread`]).
    pub(super) per_object: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            watch: Duration::from_secs(260),
            grace: Duration::from_secs(10),
            idle: Duration::from_secs(150),
            silence: Duration::from_secs(80),
            initial: Duration::from_secs(15),
            list_response: Duration::from_secs(65),
            watch_response: Duration::from_secs(30),
            page: Duration::from_secs(300),
            stall: Duration::from_secs(30),
            confirmation: Duration::from_secs(120),
            absent: Duration::from_secs(180),
            first_wait: FIRST,
            per_object: Duration::from_micros(500),
        }
    }
}

/// The data that the reflectors of all kinds use.
pub(super) struct Shared<'a, O> {
    pub(super) node_name: &'a str,
    pub(super) convert: ConvertOptions,
    /// The limit for [`KnownObjects::excessive_removal`], in percent.
    pub(super) removal_limit: u8,
    pub(super) events: &'a EventSender,
    pub(super) observer: &'a O,
    pub(super) progress: &'a ProgressSender,
    /// Notified when the server serves a kind again after an outage or answers again, so that the other kinds try at once. The value counts
    /// how often a reflector found that the server's versions went back.
    pub(super) news: &'a Sender<u64>,
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
    pub(super) position: Position,
    /// When the current watch began: when the server accepted it, or at the end of the streaming list that it began with.
    pub(super) watch_began: Option<Instant>,
    /// The timeout that was requested for the current watch.
    pub(super) life: Duration,
    /// Whether the current watch has delivered a new resource version.
    delivered: bool,
    /// Whether the current watch resumes from a known version; `false` if it begins with a streaming list.
    pub(super) resumes: bool,
    pub(super) doubt: Doubt,
    /// The pending request that asks whether the server still has the version to resume from; the request may last longer than the watch.
    pub(super) question: Option<Question>,
    pub(super) outage: Outage,
    confirmation: Confirmation,
    backoff: Backoff,
    /// Limits the lists that follow watches which fail although the server answers ([`Self::lists_after_watch`]).
    lists_after_watches: Paced,
    /// Whether the last failure was that the server was unreachable, and it has accepted no watch since.
    is_unreachable: bool,
    /// When the server became unreachable ([`is_away`]) or began to refuse watches; `None` if it has accepted a watch or answered a list
    /// since, or a list is due for this reason.
    away_since: Option<Instant>,
    /// Receives the notifications of the other kinds' reflectors ([`Shared::news`]).
    news: Receiver<u64>,
    /// The value of [`Shared::news`] at the start of the last attempt, or when the server accepted a watch since: how often versions had
    /// gone back until then.
    losses: u64,
    logged_problems: OncePerKey<Option<Key>, Problem>,
    logged_absence: Once<()>,
}

impl<'a, O: Observer> Reflector<'a, O> {
    pub(super) fn new(kind: Resource, shared: &'a Shared<'a, O>, connection: Connection) -> Self {
        Self {
            kind,
            shared,
            connection,
            decoder: Decoder::new(kind, shared.convert.clone()),
            list_methods: ListMethods::default(),
            known: KnownObjects::default(),
            position: Position::List(Freshness::Any),
            watch_began: None,
            life: Duration::ZERO,
            delivered: false,
            resumes: false,
            doubt: Doubt::new(shared.timing.silence.mul_f64(1.0 + rand::random::<f64>() / 10.0), Instant::now()),
            question: None,
            outage: Outage::default(),
            confirmation: Confirmation::default(),
            backoff: Backoff::new(shared.timing.first_wait),
            lists_after_watches: Paced::new(FIRST, LONGEST_BETWEEN_LISTS),
            is_unreachable: false,
            away_since: None,
            news: shared.news.subscribe(),
            losses: 0,
            logged_problems: OncePerKey::default(),
            logged_absence: Once::default(),
        }
    }

    /// Lists and watches until the receiver of the events is dropped.
    pub(super) async fn run(mut self) {
        self.shared.observer.connected(self.kind.name(), false);
        loop {
            self.begin_attempt();
            let outcome = self.list_or_watch().await;
            let error = match outcome {
                Ok(()) => {
                    sleep(self.ended_in_order()).await;
                    continue;
                }
                Err(Error::NoStreamingList) => continue,
                Err(Error::ReceiverGone) => return,
                Err(error) => error,
            };
            let is_of_all = probe_interval(error.cause(), error.retry_after()).is_some();
            let wait = sleep(self.failed(&error).await);
            tokio::select! {
                () = wait => {}
                // Another kind's success counts only after a failure that affects all kinds, and not if the server refuses only this kind
                // or sent Retry-After.
                _ = self.news.changed(), if is_of_all => self.spread_list().await,
                // A new token, certificate or CA in the files may end the failure.
                () = self.connection.outdated(), if error.depends_on_files() => {}
            }
        }
    }

    /// Waits for a random time if the next request is a list: the server is back for all nodes of the cluster at once, and their lists must
    /// not all come at the same moment.
    async fn spread_list(&mut self) {
        self.begin_attempt();
        if matches!(self.position, Position::List(_)) {
            sleep(self.list_wait()).await;
        }
    }

    /// Returns a random wait before a list.
    fn list_wait(&self) -> Duration {
        list_spread(self.known.len(), self.shared.timing.per_object).mul_f64(rand::random())
    }

    fn begin_attempt(&mut self) {
        self.watch_began = None;
        self.delivered = false;
        let losses = *self.news.borrow_and_update();
        if self.away_since.is_some_and(|since| since.elapsed() >= AWAY)
            && let Position::Watch(version) = &self.position
        {
            self.position = Position::List(Freshness::NotOlderThan(version.clone()));
            self.away_since = None;
        }
        // The server's versions go back for all kinds at once, so list the latest state. A list that is not older than the lost version
        // would fail after the 3 s that a server takes to answer that it does not have the version.
        let are_lost = std::mem::replace(&mut self.losses, losses) < losses;
        if are_lost && matches!(self.position, Position::List(Freshness::NotOlderThan(_))) {
            self.position = Position::List(Freshness::Latest);
        }
    }

    /// Returns the result of the current attempt, which ended with `end`.
    fn attempt(&self, end: End) -> Attempt {
        let lived = self.watch_began.map_or(Duration::ZERO, |since| since.elapsed());
        Attempt { delivered: self.delivered, lived, end }
    }

    /// Returns whether the current watch delivered a new version or lasted long enough ([`Attempt::worked`]).
    pub(super) fn has_worked(&self) -> bool {
        self.attempt(End::InOrder).worked()
    }

    /// Handles the end of a list, or of a watch that the server ended without an error. Returns the wait before the next request.
    fn ended_in_order(&mut self) -> Duration {
        if self.watch_began.is_none() {
            return Duration::ZERO;
        }
        let attempt = self.attempt(End::InOrder);
        self.doubt.ended(attempt, self.life);
        self.backoff.next(attempt, None, rand::random())
    }

    /// Handles a failure. Returns the wait before the next attempt.
    async fn failed(&mut self, error: &Error) -> Duration {
        if self.is_absent(error) {
            self.shared.progress.send_modify(|progress| progress.listed(self.kind));
            self.absent(error);
            return self.shared.timing.absent.mul_f64(1.0 + rand::random::<f64>() / 4.0);
        }
        self.shared.observer.connected(self.kind.name(), false);
        let watched = matches!(self.position, Position::Watch(_));
        self.position = self.position_after(error);
        if error.is_about_access()
            && let Err(renewal) = self.connection.renew().await
        {
            self.warn_if_due(Cause::Configuration, &format!("{error}; {renewal:#}"));
        } else {
            self.warn_if_due(error.cause(), &error.to_string());
        }
        let is_watch = self.watch_began.is_some();
        let attempt = self.attempt(match error.end() {
            End::Interrupted | End::WithinEvent if !is_watch => End::Unfinished,
            end => end,
        });
        self.doubt.ended(attempt, self.life);
        self.note_reachability(error.cause());
        let lists_again = watched && matches!(self.position, Position::List(_));
        if matches!(error, Error::VersionLost) {
            self.lost_version(error);
        }
        let needs_spread = attempt.end == End::ListNeeded || lists_again;
        let spread = if needs_spread { self.list_wait() } else { Duration::ZERO };
        let wait = self.backoff.next(attempt, error.retry_after(), rand::random()).max(spread);
        match probe_interval(error.cause(), error.retry_after()).filter(|_| self.kind == PROBE) {
            Some(interval) => wait.min(interval.mul_f64(1.0 + rand::random::<f64>() / 2.0)),
            None => wait,
        }
    }

    /// Returns the position for the next request after a failure.
    fn position_after(&mut self, error: &Error) -> Position {
        let lists = error.needs_list() || self.lists_after_watch(error);
        match (error, &self.position) {
            (Error::ExcessiveRemoval(..) | Error::VersionLost, _) => Position::List(Freshness::Latest),
            // All nodes may list at this moment, so allow the server to answer from its cache; the version ensures that the list is new
            // enough.
            (_, Position::Watch(version)) if lists => Position::List(Freshness::NotOlderThan(version.clone())),
            _ if lists => Position::List(Freshness::Latest),
            (_, position) => position.clone(),
        }
    }

    /// Returns whether a list has to follow an accepted watch that ended with this error, because the next watch may end like it and show
    /// nothing either: after a status other than 429 in an event, and if a resumed watch ended within a second and brought nothing. In
    /// client-go a list follows each such watch. Here these lists are paced, and until the next one is due, watches are resumed.
    fn lists_after_watch(&mut self, error: &Error) -> bool {
        let is_failed = self.watch_began.is_some()
            && match error {
                Error::Refused { code, .. } => *code != 429,
                // A part of an event shows that the server sends something.
                Error::VeryShortWatch | Error::Broken(_) => self.resumes && !self.has_worked(),
                _ => false,
            };
        is_failed && self.lists_after_watches.may_happen(Instant::now().into_std())
    }

    /// Notes whether the server was unreachable or answered with a failure. The first answer after the server was unreachable ends the long
    /// waits of all kinds, if [`Backoff::answered_again`] says so.
    fn note_reachability(&mut self, cause: Cause) {
        // A server that refuses watches may answer lists: a role may allow only these.
        if is_away(cause) || matches!(cause, Cause::Refused(403 | 500..)) {
            self.away_since.get_or_insert_with(Instant::now);
        }
        let was_unreachable = std::mem::replace(&mut self.is_unreachable, cause == Cause::Unreachable);
        if was_unreachable && matches!(cause, Cause::Refused(_)) && self.backoff.answered_again() {
            self.tell_others();
        }
    }

    /// Notes that the server accepted a watch.
    pub(super) fn accepted(&mut self) {
        self.away_since = None;
        self.losses = *self.shared.news.borrow();
        if std::mem::take(&mut self.is_unreachable) {
            self.backoff.answered_again();
        }
    }

    /// Handles that the server's versions went back. Notifies the reflectors of the other kinds, so that none lists from a version that the
    /// server does not have.
    fn lost_version(&mut self, error: &Error) {
        let (kind, url) = (self.kind.name(), self.connection.url());
        warn!("type" = kind, url, err = %error, "Listing everything again");
        self.shared.news.send_modify(|losses| *losses += 1);
        self.losses = *self.news.borrow_and_update();
    }

    /// Makes the reflectors of the other kinds try at once if they wait after a failure of all kinds.
    fn tell_others(&mut self) {
        self.shared.news.send_modify(|_| ());
        self.news.mark_unchanged();
    }

    /// Returns whether the kind is optional and the server does not have it or does not allow this proxy to list it.
    fn is_absent(&self, error: &Error) -> bool {
        let lists = matches!(self.position, Position::List(_));
        self.kind.is_optional() && lists && matches!(error.code(), Some(403 | 404))
    }

    /// Handles that the server does not have an optional kind, or does not allow this proxy to list it. This is not an outage, and is
    /// logged once.
    fn absent(&mut self, error: &Error) {
        self.is_unreachable = false;
        self.list_methods.listed();
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

    /// Logs a failure if [`Outage`] says that a warning is due.
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

    /// Notes that the server serves the kind: a piece of an answer arrived, or the server accepted a watch. The acceptance alone counts,
    /// because a watch may be silent for a minute.
    pub(super) fn received(&self) {
        self.shared.observer.connected(self.kind.name(), true);
        self.shared.observer.received(self.kind.name(), SystemTime::now());
    }

    /// Notes that a watch works, which ends an outage. A list does not end an outage, because watches may still fail.
    pub(super) fn recovered(&mut self) {
        if let Some(lasted) = self.outage.over(Instant::now().into_std()) {
            let (kind, url) = (self.kind.name(), self.connection.url());
            info!("type" = kind, url, lasted = go_duration(lasted), "Watching again");
            self.shared.observer.reconnected(kind, lasted);
            self.tell_others();
        }
    }

    /// Notes that the watch has reached this resource version.
    pub(super) fn came_to(&mut self, version: String) {
        if !matches!(&self.position, Position::Watch(known) if *known == version) {
            self.delivered = true;
            self.position = Position::Watch(version);
        }
    }

    /// Handles an object that was added or modified. Returns the object's resource version, if it has one.
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
            // The object exists, but this proxy does not handle it. Send a deletion only if `rules::model` has the object.
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
            // Remember the logged problems of a deleted slice, so that a controller that repeatedly deletes and creates a slice does not
            // fill the log.
            Some(Key::Slice(_)) => self.logged_problems.retire(&key),
            _ => self.logged_problems.forget(&key),
        }
        match key {
            // Send no deletion, so that `rules::model` keeps the last state of this node's Node (L6).
            Some(Key::Node(name)) if was_known => {
                warn!(node = &*name, "The Node was deleted; the proxy goes on with its last state");
                self.shared.progress.send_modify(|progress| progress.node(None));
                Ok(())
            }
            Some(key) if was_known => self.shared.events.send(key.deletion()).await,
            _ => Ok(()),
        }
    }

    /// Handles the end of a complete list of this version.
    ///
    /// # Errors
    /// Returns [`Error::ExcessiveRemoval`] for the first list that removes too many objects. A second list that does so within
    /// [`Timing::confirmation`] is applied.
    pub(super) async fn list_complete(&mut self, version: String) -> Result<(), Error> {
        let limit = self.shared.removal_limit;
        let (missing, now) = (self.known.excessive_removal(limit), Instant::now());
        let may_apply = self.confirmation.may_apply(missing.is_some(), now.into_std(), self.shared.timing.confirmation);
        if let Some(missing) = missing.filter(|_| !may_apply) {
            return Err(Error::ExcessiveRemoval(missing, limit));
        }
        for key in self.known.end_list() {
            self.removed(key, true).await?;
        }
        self.position = Position::Watch(version);
        self.doubt.news(now);
        self.question = None;
        self.list_methods.listed();
        self.away_since = None;
        self.shared.progress.send_modify(|progress| progress.listed(self.kind));
        Ok(())
    }
}
