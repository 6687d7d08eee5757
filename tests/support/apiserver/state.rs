//! The state that the server's threads share: objects, settings, and the record of requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use serde_json::Value;
use tokio::sync::{broadcast, watch};

use super::Format;
use super::fault::{Command, Planned};
use super::query::Query;
use super::resource::Resource;
use super::selector::Selector;
use super::store::Store;

/// The most orders that may wait for a slow watch.
const ORDERS: usize = 64;

/// How the server treats streaming lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Streaming {
    /// The server serves them.
    #[default]
    On,
    /// The server answers 422.
    Refused,
    /// The server ignores that a list is asked for, and serves a watch.
    Ignored,
}

/// A request, and the status of its answer.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// When it arrived.
    pub(crate) at: Instant,
    /// `GET` and so on.
    pub(crate) method: String,
    /// The path, without the query.
    pub(crate) path: String,
    /// The decoded query.
    pub(crate) query: Query,
    /// The headers, with names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    /// The client's certificate, as DER.
    pub(crate) certificate: Option<Arc<[u8]>>,
    /// The HTTP status that was answered; 0 if there was no answer.
    pub(crate) answered: u16,
}

/// The objects, settings and records of the server.
pub(crate) struct State {
    /// The format of answers to clients that accept it; all other clients get JSON.
    pub(crate) format: Format,
    pub(crate) store: Store,
    pub(crate) streaming: Streaming,
    /// The streaming lists that were sent; `None` if they are not kept ([`super::ApiServer::keep_lists`]).
    pub(crate) lists: Option<Vec<List>>,
    /// How often open watches get a bookmark.
    pub(crate) bookmark_every: Duration,
    /// The longest life of a watch, whatever it asks for; a load balancer may have such a limit.
    pub(crate) longest_watch: Duration,
    /// The version at which the watch cache has stopped, like the cache of a server that lags behind others; `None` if the cache is up to
    /// date.
    pub(crate) cached: Option<u64>,
    /// Whether there is a watch cache; without one, a list of any version shows the present objects, in pages.
    pub(crate) has_cache: bool,
    /// How long a list waits for a version that the server does not have yet; a real one waits for 3 s.
    pub(crate) freshness_wait: Duration,
    /// Faults for requests to come.
    pub(crate) plans: Vec<Planned>,
    /// Kinds the server does not have.
    pub(crate) missing: BTreeSet<Resource>,
    /// Kinds the role does not cover.
    pub(crate) forbidden: BTreeSet<Resource>,
    /// Whether a SelfSubjectAccessReview says that the role does not cover the creation of Events.
    pub(crate) events_forbidden: bool,
    /// Bearer tokens that are let in; with `None` every client is let in.
    pub(crate) tokens: Option<BTreeSet<String>>,
    pub(crate) requests: Vec<Record>,
    /// Events that were created.
    pub(crate) events: Vec<Value>,
    open: BTreeMap<Resource, usize>,
}

/// The content of a streaming list.
pub(crate) struct List {
    pub(crate) version: u64,
    pub(crate) resource: Resource,
    pub(crate) selector: Selector,
    pub(crate) format: Format,
    pub(crate) events: Bytes,
}

/// Orders to open watches.
pub(crate) type Orders = broadcast::Receiver<(Option<Resource>, Command)>;

/// The state, with the channels on which tasks wait for its changes.
pub(crate) struct Shared {
    state: Mutex<State>,
    changed: watch::Sender<()>,
    orders: broadcast::Sender<(Option<Resource>, Command)>,
}

impl Shared {
    /// Makes the state of a server without objects that lets every client in.
    pub(crate) fn new(format: Format) -> Self {
        let state = State {
            format,
            store: Store::default(),
            streaming: Streaming::default(),
            lists: None,
            bookmark_every: Duration::from_secs(60),
            longest_watch: Duration::MAX,
            cached: None,
            has_cache: true,
            freshness_wait: Duration::ZERO,
            plans: Vec::new(),
            missing: BTreeSet::new(),
            forbidden: BTreeSet::new(),
            events_forbidden: false,
            tokens: None,
            requests: Vec::new(),
            events: Vec::new(),
            open: BTreeMap::new(),
        };
        Self { state: Mutex::new(state), changed: watch::Sender::new(()), orders: broadcast::Sender::new(ORDERS) }
    }

    /// Locks the state; the guard must not be held across an await.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A test that failed while it held the lock is failing anyway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the objects and notifies the watches.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Store)) {
        change(&mut self.lock().store);
        self.changed.send_replace(());
    }

    /// Returns a receiver that is notified of every change from now on.
    pub(crate) fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Orders open watches of a kind, or of all kinds, to do something.
    pub(crate) fn order(&self, resource: Option<Resource>, command: Command) {
        // Without a watch there is no receiver.
        let _ = self.orders.send((resource, command));
    }

    /// Counts a watch as open until the value is dropped, and returns a receiver of the orders from now on.
    pub(crate) fn open(shared: &Arc<Self>, resource: Resource) -> (Open, Orders) {
        *shared.lock().open.entry(resource).or_default() += 1;
        (Open { shared: Arc::clone(shared), resource }, shared.orders.subscribe())
    }

    /// Returns how many watches of a kind are open.
    pub(crate) fn open_watches(&self, resource: Resource) -> usize {
        self.lock().open.get(&resource).copied().unwrap_or_default()
    }
}

/// A watch that is open.
pub(crate) struct Open {
    pub(crate) shared: Arc<Shared>,
    resource: Resource,
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(count) = self.shared.lock().open.get_mut(&self.resource) {
            *count -= 1;
        }
    }
}
