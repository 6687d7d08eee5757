//! The servers on the health-check node ports: load balancers ask them which nodes have endpoints of a Service.
//!
//! Takes [`Snapshot`]s, opens and closes one set of listeners for each Service and family so that they match.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hyper::Response;
use hyper::header::{HeaderName, HeaderValue};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing::{debug, warn};

use super::{Check, CheckName, ListenFailure, Observer, Shared, Snapshot};
use crate::http::{self, Answer, Limits};
use crate::model::{Family, ObjectName};

/// Tells load balancers how much traffic the node should get.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// Time until the next try to listen on ports that were not free, if no sync comes before (K4).
const RETRY: Duration = Duration::from_secs(1);

/// Follows the snapshots until their sender is gone.
pub(super) async fn run(
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
    limits: Limits,
    health: Shared,
    observer: Arc<dyn Observer>,
) {
    let mut servers = ServiceServers::new(limits, health, observer);
    let mut all_open = true;
    loop {
        let is_retry = tokio::select! {
            changed = snapshots.changed() => if changed.is_err() { return } else { false },
            // The port may be that of a process which this one replaced, and which is about to end.
            () = tokio::time::sleep(RETRY), if !all_open => true,
        };
        let snapshot = snapshots.borrow_and_update().clone();
        servers.follow(&snapshot, is_retry).await;
        all_open = servers.is_complete(&snapshot);
    }
}

/// The servers that are open.
struct ServiceServers {
    limits: Limits,
    health: Shared,
    observer: Arc<dyn Observer>,
    open: BTreeMap<CheckName, Server>,
}

/// All listeners of a Service in one family.
struct Server {
    /// Never empty: a server without addresses is none.
    addresses: BTreeSet<SocketAddr>,
    local_endpoints: Arc<Count>,
    listeners: Vec<http::Server>,
}

/// The number of local endpoints, or that the Service is gone, shared with the answers.
struct Count(AtomicUsize);

impl Count {
    /// No Service has so many endpoints.
    const GONE: usize = usize::MAX;

    fn set(&self, count: Option<usize>) {
        self.0.store(count.unwrap_or(Self::GONE), Ordering::Relaxed);
    }

    fn get(&self) -> Option<usize> {
        Some(self.0.load(Ordering::Relaxed)).filter(|count| *count != Self::GONE)
    }
}

impl ServiceServers {
    const fn new(limits: Limits, health: Shared, observer: Arc<dyn Observer>) -> Self {
        Self { limits, health, observer, open: BTreeMap::new() }
    }

    /// Opens and closes what it takes to match the snapshot; servers that stay where they are go on (K1). What fails is told, but not
    /// of a retry.
    async fn follow(&mut self, snapshot: &Snapshot, is_retry: bool) {
        self.close_unwanted(snapshot).await;
        for (name, check) in &snapshot.checks {
            if let Some(server) = self.open.get(name) {
                server.local_endpoints.set(Some(check.local_endpoints));
            } else {
                self.open(name, check, addresses(snapshot, name.family, check.port), is_retry);
            }
        }
    }

    /// Whether every server listens that has an address.
    fn is_complete(&self, snapshot: &Snapshot) -> bool {
        let mut checks = snapshot.checks.iter();
        checks.all(|(name, check)| {
            self.open.contains_key(name) || addresses(snapshot, name.family, check.port).is_empty()
        })
    }

    /// Comes first, and waits until the ports are free: another Service may want them. Requests that are on their way learn
    /// nothing about a Service that is gone.
    async fn close_unwanted(&mut self, snapshot: &Snapshot) {
        let is_wanted = |name: &CheckName, server: &Server| {
            if !server.listeners.iter().all(http::Server::is_running) {
                warn!(service = %name.service, family = %name.family, "a health-check server panicked; opening it again");
                return false;
            }
            let check = snapshot.checks.get(name);
            check.is_some_and(|check| server.addresses == addresses(snapshot, name.family, check.port))
        };
        let open = std::mem::take(&mut self.open).into_iter();
        let (wanted, unwanted): (BTreeMap<_, _>, BTreeMap<_, _>) =
            open.partition(|(name, server)| is_wanted(name, server));
        self.open = wanted;
        for (name, server) in unwanted {
            debug!(service = %name.service, family = %name.family, "closing the health-check node port");
            if !snapshot.checks.contains_key(&name) {
                server.local_endpoints.set(None);
            }
            for listener in server.listeners {
                listener.close().await;
            }
        }
    }

    /// All listeners of a server or none (K4).
    fn open(&mut self, name: &CheckName, check: &Check, addresses: BTreeSet<SocketAddr>, is_retry: bool) {
        let CheckName { service, family } = name;
        let bind = |address: &SocketAddr| self.limits.places.bind(*address);
        let listeners: Vec<_> = match addresses.iter().map(bind).collect::<io::Result<_>>() {
            Ok(listeners) => listeners,
            Err(_) if is_retry => return,
            Err(error) => {
                warn!(%service, %family, port = check.port, %error,
                    "cannot listen on the health-check node port; trying again every {RETRY:?}");
                let failure = ListenFailure { service: service.clone(), family: *family, port: check.port, error };
                self.observer.listen_failed(&failure);
                return;
            }
        };
        if listeners.is_empty() {
            return;
        }
        debug!(%service, %family, ?addresses, "opened the health-check node port");
        let local_endpoints = Arc::new(Count(AtomicUsize::new(check.local_endpoints)));
        let listeners = listeners.into_iter().map(|listener| self.start(listener, service, &local_endpoints)).collect();
        self.open.insert(name.clone(), Server { addresses, local_endpoints, listeners });
    }

    fn start(&self, listener: TcpListener, service: &ObjectName, count: &Arc<Count>) -> http::Server {
        let (service, count, health) = (service.clone(), Arc::clone(count), self.health.clone());
        http::Server::start(listener, self.limits.clone(), move |_| {
            let healthy = health.lock().is_healthy(Instant::now());
            let answer = answer(&service, count.get(), healthy);
            async { answer }
        })
    }
}

/// Where a server listens (K5).
fn addresses(snapshot: &Snapshot, family: Family, port: u16) -> BTreeSet<SocketAddr> {
    let of_family = snapshot.listen.iter().filter(|ip| Family::of(**ip) == family);
    of_family.map(|ip: &IpAddr| SocketAddr::new(*ip, port)).collect()
}

/// The same for every path and method (K3); empty when the Service is gone (surface.md section 5).
fn answer(service: &ObjectName, local_endpoints: Option<usize>, healthy: bool) -> Answer {
    let Some(local_endpoints) = local_endpoints else { return Response::default() };
    let ObjectName { namespace, name } = service;
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{namespace}\",\n\t\t\"name\": \"{name}\"\n\t}},\n\
         \t\"localEndpoints\": {local_endpoints},\n\t\"serviceProxyHealthy\": {healthy}\n}}"
    );
    let mut answer = http::answer(http::status(local_endpoints > 0 && healthy), http::JSON, body);
    answer.headers_mut().insert(WEIGHT, HeaderValue::from(local_endpoints));
    answer
}

#[cfg(test)]
mod tests;
