//! The servers on the health-check node ports: load balancers ask them which nodes have endpoints of a Service.
//!
//! Takes [`Snapshot`]s, opens and closes one set of listeners for each Service and family so that they match.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use hyper::header::{HeaderName, HeaderValue};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{debug, warn};

use super::{Check, CheckName, Shared, Snapshot, http};
use crate::model::{Family, ObjectName};

/// Tells load balancers how much traffic the node should get.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// Follows the snapshots until their sender is gone.
pub(super) async fn run(mut snapshots: watch::Receiver<Arc<Snapshot>>, health: Shared) {
    let mut servers = ServiceServers::new(health);
    while snapshots.changed().await.is_ok() {
        let snapshot = snapshots.borrow_and_update().clone();
        servers.follow(&snapshot).await;
    }
}

/// The servers that are open.
struct ServiceServers {
    health: Shared,
    open: BTreeMap<CheckName, Server>,
}

/// All listeners of a Service in one family.
struct Server {
    /// Never empty: a server without addresses is none.
    addresses: BTreeSet<SocketAddr>,
    local_endpoints: Arc<AtomicUsize>,
    listeners: JoinSet<()>,
}

impl ServiceServers {
    const fn new(health: Shared) -> Self {
        Self { health, open: BTreeMap::new() }
    }

    /// Opens and closes what it takes to match the snapshot; servers that stay where they are go on (K1).
    async fn follow(&mut self, snapshot: &Snapshot) {
        self.close_unwanted(snapshot).await;
        for (name, check) in &snapshot.checks {
            if let Some(server) = self.open.get(name) {
                server.local_endpoints.store(check.local_endpoints, Ordering::Relaxed);
            } else {
                self.open(name, check, addresses(snapshot, name.family, check.port));
            }
        }
    }

    /// Comes first, and waits for its end: another Service may want the port.
    async fn close_unwanted(&mut self, snapshot: &Snapshot) {
        let is_wanted = |name: &CheckName, server: &Server| {
            let check = snapshot.checks.get(name);
            check.is_some_and(|check| server.addresses == addresses(snapshot, name.family, check.port))
        };
        let open = std::mem::take(&mut self.open).into_iter();
        let (wanted, unwanted): (BTreeMap<_, _>, BTreeMap<_, _>) =
            open.partition(|(name, server)| is_wanted(name, server));
        self.open = wanted;
        for (name, mut server) in unwanted {
            debug!(service = %name.service, family = %name.family, "closing the health-check node port");
            server.listeners.shutdown().await;
        }
    }

    /// All listeners of a server or none (K4).
    fn open(&mut self, name: &CheckName, check: &Check, addresses: BTreeSet<SocketAddr>) {
        let CheckName { service, family } = name;
        let listeners: Vec<_> = match addresses.iter().map(|address| http::bind(*address)).collect::<io::Result<_>>() {
            Ok(listeners) => listeners,
            Err(error) => {
                warn!(%service, %family, port = check.port, %error,
                    "cannot listen on the health-check node port; trying again with the next sync");
                return;
            }
        };
        if listeners.is_empty() {
            return;
        }
        let local_endpoints = Arc::new(AtomicUsize::new(check.local_endpoints));
        let mut tasks = JoinSet::new();
        for listener in listeners {
            let (service, count, health) = (service.clone(), local_endpoints.clone(), self.health.clone());
            let healthy = move || health.lock().is_healthy(Instant::now());
            tasks.spawn(http::serve(listener, move |_| answer(&service, count.load(Ordering::Relaxed), healthy())));
        }
        debug!(%service, %family, ?addresses, "opened the health-check node port");
        self.open.insert(name.clone(), Server { addresses, local_endpoints, listeners: tasks });
    }
}

/// Where a server listens (K5).
fn addresses(snapshot: &Snapshot, family: Family, port: u16) -> BTreeSet<SocketAddr> {
    let of_family = snapshot.listen.iter().filter(|ip| Family::of(**ip) == family);
    of_family.map(|ip: &IpAddr| SocketAddr::new(*ip, port)).collect()
}

/// The same for every path and method (K3).
fn answer(service: &ObjectName, local_endpoints: usize, healthy: bool) -> http::Answer {
    let ObjectName { namespace, name } = service;
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{namespace}\",\n\t\t\"name\": \"{name}\"\n\t}},\n\
         \t\"localEndpoints\": {local_endpoints},\n\t\"serviceProxyHealthy\": {healthy}\n}}"
    );
    let mut answer = http::answer(http::status(local_endpoints > 0 && healthy), "application/json", body);
    answer.headers_mut().insert(WEIGHT, HeaderValue::from(local_endpoints));
    answer
}

#[cfg(test)]
mod tests;
