//! The HTTP servers of health checks: `/healthz`, `/livez` and `/readyz` about the proxy, and the health-check node ports about Services.
//!
//! The sync loop reports through a [`Reporter`]: when a sync was requested and when one succeeded, when the loop works and when it waits,
//! whether the node is eligible for traffic, and a [`Snapshot`] of all health checks. The source of objects reports what it waits for, and
//! whether the API server answers. An [`Observer`] receives the status of each response about the proxy, and failures to listen on
//! health-check node ports. A reporter never waits for a client and can be used on any thread; the servers run on tokio.
//!
//! Invariants: a failure to listen on a health-check node port affects no other server, and no other address; responses are made from values
//! in memory; the number and the age of connections are limited.

mod failing;
mod proxy;
mod service;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;
use tracing::info;

use component::http::{self, ConnectionLimit, Limits};
use inspect::running::Problem;
use proxy::ProxyHealth;
use rules::model::{Family, ObjectName};

/// All health-check node ports of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Where the servers listen. The unspecified address of a family stands for all addresses of that family; a family
    /// without an address has no servers (K5).
    pub(crate) listen: Vec<IpAddr>,
    /// The health checks; each has its own server.
    pub(crate) checks: BTreeMap<CheckName, Check>,
}

/// The key of a server: a Service, in one family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CheckName {
    pub(crate) service: ObjectName,
    pub(crate) family: Family,
}

/// The port of a server, and the content of its responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) port: u16,
    /// The number of different addresses of Ready endpoints on this node (K2).
    pub(crate) local_endpoints: usize,
}

/// A health-check node port that cannot be listened on at one of the node's addresses (K4).
#[derive(Debug)]
pub struct ListenFailure {
    pub(crate) service: ObjectName,
    /// The address, with the health-check node port.
    pub(crate) address: SocketAddr,
    /// The kernel's error.
    pub(crate) error: io::Error,
}

/// A page of the proxy's own health server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// `/healthz`: whether the proxy is healthy and the node eligible for traffic (L4).
    Healthz,
    /// `/livez`: whether the proxy is healthy (L4).
    Livez,
    /// `/readyz`: whether syncs succeed (L8).
    Readyz,
}

/// Learns of the servers' responses and failures. Called on the servers' thread, so it must not block.
pub trait Observer: Send + Sync {
    /// Called for each response of a page, with its HTTP status.
    fn answered(&self, page: Page, code: u16);

    /// Called when a health-check node port cannot be listened on: when that begins, when the reason changes, and every five minutes (K4).
    /// If several Services have the same failure at an address, called only for the first.
    fn listen_failed(&self, failure: &ListenFailure);
}

/// Where the proxy's own health is served.
#[derive(Clone, Debug, Default)]
pub struct Listen {
    /// The address of `/healthz`; `None` if it is not served. The unspecified address of either family stands for all addresses of both, as
    /// in Go.
    pub healthz: Option<SocketAddr>,
    /// Whether a failure to listen at `healthz` ends the servers; otherwise it is tried again (O8).
    pub hard_fail: bool,
    /// The limit of the connections of all health servers together.
    pub connections: ConnectionLimit,
}

/// The health of the proxy, shared between the reporter and the servers.
#[derive(Clone, Debug)]
struct Shared(Arc<Mutex<ProxyHealth>>);

impl Shared {
    /// Locks the value, also after another thread panicked while it held the lock.
    fn lock(&self) -> MutexGuard<'_, ProxyHealth> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reports the state of the sync loop and of the source of objects to the servers. Clones report to the same servers.
#[derive(Clone, Debug)]
pub struct Reporter {
    proxy: Shared,
    services: watch::Sender<Arc<Snapshot>>,
}

impl Reporter {
    /// Notes for a family that a sync was requested (L2).
    pub(crate) fn queued(&self, family: Family, now: Instant) {
        self.proxy.lock().queued(family, now);
    }

    /// Notes for a family that the sync loop starts (L1), or that a sync succeeded (L2).
    pub(crate) fn synced(&self, family: Family, now: SystemTime) {
        self.proxy.lock().synced(family, now);
    }

    /// Notes that the sync thread starts to work: the proxy is unhealthy if it works longer than the time-out before [`Reporter::waiting`]
    /// is called (L3).
    pub(crate) fn working(&self, now: Instant) {
        self.proxy.lock().working(now);
    }

    /// Notes that the sync thread waits for events.
    pub(crate) fn waiting(&self) {
        self.proxy.lock().waiting();
    }

    /// Sets whether the node is eligible for traffic; `None` while the Node is unknown (L5).
    pub(crate) fn node(&self, eligible: Option<bool>) {
        self.proxy.lock().node(eligible);
    }

    /// Sets whether an operator drains the node: `/healthz` and the health-check node ports then answer 503 (L10).
    pub(crate) fn drained(&self, drained: bool) {
        self.proxy.lock().drained(drained);
    }

    /// Notes that syncs succeed: the rules are those that the cluster asks for.
    pub(crate) fn ready(&self) {
        self.proxy.lock().ready(None);
    }

    /// Sets why the rules are not, or may not be, those that the cluster asks for; `/readyz` shows the reason until [`Reporter::ready`] or
    /// the next reason. The reason is text without a full stop.
    pub(crate) fn not_ready(&self, reason: impl Into<String>) {
        self.proxy.lock().ready(Some(reason.into()));
    }

    /// Sets why this process does not have the writer lock and must not sync; `None` when it has the lock. While there is a reason, pending
    /// requests do not make the proxy unhealthy (L9).
    pub(crate) fn held_back(&self, reason: Option<String>, now: Instant) {
        self.proxy.lock().held_back(reason, now);
    }

    /// Sets the Services whose rules the kernel refuses; the responses name them.
    pub(crate) fn quarantined<'a>(&self, services: impl Iterator<Item = &'a ObjectName>) {
        self.proxy.lock().quarantined(services);
    }

    /// Sets the Services that are left out of the rules because they are too large; the responses name them.
    pub(crate) fn oversized<'a>(&self, services: impl Iterator<Item = &'a ObjectName>) {
        self.proxy.lock().oversized(services);
    }

    /// Sets the problems that the sync loop found: Services that are too large or that the kernel refuses, and frontends that Services do
    /// not get. Replaces the problems that were set before.
    pub(crate) fn problems(&self, problems: Vec<Problem>) {
        self.proxy.lock().problems(problems);
    }

    /// Sets the problem to show while the proxy waits for its first objects; `None` when it has them.
    pub(crate) fn waits(&self, problem: Option<Problem>) {
        self.proxy.lock().waits(problem);
    }

    /// Sets the problem to show while the API server does not answer; `None` when it answers again.
    pub(crate) fn api_server(&self, problem: Option<Problem>) {
        self.proxy.lock().api_server(problem);
    }

    /// Sets the families that are not programmed, because another program owns their tables: a restart would not help, so `/livez` does not
    /// wait for their syncs (L12).
    pub(crate) fn blocked(&self, families: Vec<Family>) {
        self.proxy.lock().blocked(families);
    }

    /// Sets the number of claims on frontends that Services do not get.
    pub(crate) fn lost_claims(&self, claims: usize) {
        self.proxy.lock().lost_claims(claims);
    }

    /// Notes that the API server sent something about a kind of objects (L11).
    pub(crate) fn received(&self, kind: &'static str, now: Instant, clock: SystemTime) {
        self.proxy.lock().received(kind, now, clock);
    }

    /// Notes that the API server does not let this process follow a kind of objects any more (L11).
    pub(crate) fn disconnected(&self, kind: &'static str) {
        self.proxy.lock().disconnected(kind);
    }

    /// Sets the health checks (K1). Servers that could not listen try again, even if no health check changed (K4).
    pub(crate) fn services(&self, snapshot: Arc<Snapshot>) {
        self.services.send_replace(snapshot);
    }
}

/// The health servers, which [`Servers::run`] starts.
#[derive(Debug)]
pub struct Servers {
    proxy: Shared,
    services: watch::Receiver<Arc<Snapshot>>,
}

/// Makes a reporter and its servers. The proxy is unhealthy when a requested sync has not been done after `timeout`, or when the sync
/// thread works that long without waiting for events (L3).
#[must_use]
pub fn new(timeout: Duration) -> (Reporter, Servers) {
    let proxy = Shared(Arc::new(Mutex::new(ProxyHealth::new(timeout))));
    let (sender, services) = watch::channel(Arc::default());
    (Reporter { proxy: proxy.clone(), services: sender }, Servers { proxy, services })
}

impl Servers {
    /// Serves the health of Services, and that of the proxy if there is an address for it.
    ///
    /// # Errors
    /// When the server for the proxy's health cannot listen and `hard_fail` is set (O8); otherwise it tries again.
    pub async fn run(self, listen: Listen, observer: Arc<dyn Observer>) -> io::Result<()> {
        let (health, of_proxy) = (self.proxy.clone(), Arc::clone(&observer));
        let limits = Limits { connections: listen.connections, ..Limits::default() };
        let of_services = limits.clone();
        let proxy = async move {
            if let Some(address) = listen.healthz {
                let listener = http::bind_with_retry("healthz", address, listen.hard_fail).await?;
                info!(%address, "Serving healthz");
                proxy::start(listener, limits, health, of_proxy).forever().await;
            }
            Ok(())
        };
        let services = async {
            service::run(self.services, of_services, self.proxy, observer).await;
            Ok(())
        };
        tokio::try_join!(proxy, services).map(|_| ())
    }
}

#[cfg(test)]
mod testing {
    use std::sync::{Arc, Mutex};

    use super::{ListenFailure, Observer, Page};

    /// An observer that keeps one line of text for each call.
    #[derive(Default)]
    pub(super) struct Notes(Mutex<Vec<String>>);

    impl Notes {
        pub(super) fn new() -> Arc<Self> {
            Arc::default()
        }

        /// Returns the lines since the last call.
        pub(super) fn take(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    impl Observer for Notes {
        fn answered(&self, page: Page, code: u16) {
            self.0.lock().unwrap().push(format!("{page:?} {code}"));
        }

        fn listen_failed(&self, failure: &ListenFailure) {
            let ListenFailure { service, address, error } = failure;
            self.0.lock().unwrap().push(format!("{service} {address} {:?}", error.kind()));
        }
    }
}
