//! What this node tells those who ask how it is: `/healthz`, `/livez` and `/readyz` about the proxy, and the health-check node ports about
//! Services.
//!
//! Takes from the sync loop, through a [`Reporter`], when a sync was asked for and when one succeeded, when the loop works and when it
//! waits, whether the node is eligible for traffic, and a [`Snapshot`] of all health checks. Gives HTTP servers, and tells an
//! [`Observer`] what they answer and where they cannot listen. The reporter never waits for the servers and is for any thread; the servers run on tokio.
//!
//! Invariants: a failing listener touches nobody else's; answers come from memory, so that no request costs more than its text;
//! every server bounds the number and the age of its connections.

pub mod proxy;
mod service;

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;
use tracing::info;

use crate::http::{self, Limits, Places};
use crate::model::{Family, ObjectName};
use proxy::ProxyHealth;

/// All health-check node ports of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Where the servers listen (K5). The unspecified address of a family stands for all addresses of that family; a family
    /// without an address has no servers.
    pub listen: Vec<IpAddr>,
    /// One server each.
    pub checks: BTreeMap<CheckName, Check>,
}

/// What identifies a server: a Service, in one family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CheckName {
    /// The Service.
    pub service: ObjectName,
    /// The family.
    pub family: Family,
}

/// What a server needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// The health-check node port.
    pub port: u16,
    /// Ready endpoints on this node (K2).
    pub local_endpoints: usize,
}

/// A health-check node port that cannot be listened on (K4).
#[derive(Debug)]
pub struct ListenFailure {
    /// The Service.
    pub service: ObjectName,
    /// The family of the server.
    pub family: Family,
    /// The health-check node port.
    pub port: u16,
    /// What the kernel answered.
    pub error: io::Error,
}

/// A page of the proxy's own health server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// `/healthz`
    Healthz,
    /// `/livez`
    Livez,
    /// `/readyz`
    Readyz,
}

/// Who wants to know what the servers do. Called on the servers' thread: must not block.
pub trait Observer: Send + Sync {
    /// A page was answered with this status.
    fn answered(&self, page: Page, code: u16);

    /// A health-check node port cannot be listened on. Comes again with each sync until it can (K4).
    fn listen_failed(&self, failure: &ListenFailure);
}

/// Where the proxy's own health is served, and how many may ask.
#[derive(Clone, Debug, Default)]
pub struct Listen {
    /// The address; `None` for nowhere. The unspecified address of either family stands for all addresses of both, as in Go.
    pub healthz: Option<SocketAddr>,
    /// A failure to listen ends the servers instead of being tried again (O8).
    pub hard_fail: bool,
    /// The places of the connections of all health servers together.
    pub places: Places,
}

/// The health of the proxy, shared between the reporter and the servers.
#[derive(Clone, Debug)]
struct Shared(Arc<Mutex<ProxyHealth>>);

impl Shared {
    /// A panic elsewhere leaves a value that is whole: every change to it is one assignment.
    fn lock(&self) -> MutexGuard<'_, ProxyHealth> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where the sync loop, and what it waits for, tell how it goes. Cheap, and never waits for a server. Clones report to the same servers.
#[derive(Clone, Debug)]
pub struct Reporter {
    proxy: Shared,
    services: watch::Sender<Arc<Snapshot>>,
}

impl Reporter {
    /// A sync of the family was asked for (L2).
    pub fn queued(&self, family: Family, now: Instant) {
        self.proxy.lock().queued(family, now);
    }

    /// The sync loop of the family begins (L1), or a sync succeeded (L2).
    pub fn synced(&self, family: Family, now: SystemTime) {
        self.proxy.lock().synced(family, now);
    }

    /// The sync thread begins to work: until it is [`Reporter::waiting`] again, it is to take less than the time-out.
    pub fn working(&self, now: Instant) {
        self.proxy.lock().working(now);
    }

    /// The sync thread waits for events.
    pub fn waiting(&self) {
        self.proxy.lock().waiting();
    }

    /// Whether the node is eligible for traffic; `None` while the node is unknown (L5).
    pub fn node(&self, eligible: Option<bool>) {
        self.proxy.lock().node(eligible);
    }

    /// Syncs succeed: the rules are those that the cluster asks for.
    pub fn ready(&self) {
        self.proxy.lock().ready(None);
    }

    /// Why the rules are not, or not known to be, those that the cluster asks for; `/readyz` says so until [`Reporter::ready`] or the
    /// next reason. Part of a sentence without a full stop, for people.
    pub fn not_ready(&self, reason: impl Into<String>) {
        self.proxy.lock().ready(Some(reason.into()));
    }

    /// Something outside of this process keeps it from syncing, such as another kube-proxy; nothing if it may go on. Requests that
    /// nobody serves for that reason make nobody unhealthy.
    pub fn held_back(&self, reason: Option<String>, now: Instant) {
        self.proxy.lock().held_back(reason, now);
    }

    /// These Services are left out of the rules, because the kernel refuses them; the details say so.
    pub fn quarantined<'a>(&self, services: impl Iterator<Item = &'a ObjectName>) {
        self.proxy.lock().quarantined(services);
    }

    /// These Services are left out of the rules, because they are too large; the details say so.
    pub fn oversized<'a>(&self, services: impl Iterator<Item = &'a ObjectName>) {
        self.proxy.lock().oversized(services);
    }

    /// A sync succeeded, and these are the health checks now (K1). Failed listeners are tried again, also if nothing changed (K4).
    pub fn services(&self, snapshot: Arc<Snapshot>) {
        self.services.send_replace(snapshot);
    }
}

/// The servers, to be run.
#[derive(Debug)]
pub struct Servers {
    proxy: Shared,
    services: watch::Receiver<Arc<Snapshot>>,
}

/// The two ends. A request for a sync that is unserved for `timeout` makes the proxy unhealthy (L3), as does a sync thread that works
/// for so long without waiting for events.
#[must_use]
pub fn new(timeout: Duration) -> (Reporter, Servers) {
    let proxy = Shared(Arc::new(Mutex::new(ProxyHealth::new(timeout))));
    let (sender, services) = watch::channel(Arc::default());
    (Reporter { proxy: proxy.clone(), services: sender }, Servers { proxy, services })
}

impl Servers {
    /// Serves, the proxy's health only if there is an address for it. The servers of Services go on without it.
    ///
    /// # Errors
    /// When the server for the proxy's health cannot listen and `hard_fail` is set (O8); otherwise it is tried again.
    pub async fn run(self, listen: Listen, observer: Arc<dyn Observer>) -> io::Result<()> {
        let (shared, watching) = (self.proxy.clone(), Arc::clone(&observer));
        let limits = Limits { places: listen.places, ..Limits::default() };
        let of_services = limits.clone();
        let proxy = async move {
            if let Some(address) = listen.healthz {
                let listener = http::bind_with_retry("healthz", address, listen.hard_fail).await?;
                info!(%address, "serving healthz");
                proxy::start(listener, limits, shared, watching).forever().await;
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
mod testing;
