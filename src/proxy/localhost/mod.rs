//! The userspace proxy of node ports on loopback addresses (section R of `tests/BEHAVIOUR.md`; upstream: kubernetes/kubernetes #142183).
//!
//! ```text
//! sync ── Feed ──► Proxy ──► one listener for each TCP node port and family, at 127.0.0.1 or ::1
//!                               │ accept
//!                               ▼
//!                    target: which endpoint ──► relay: bytes from socket to socket, through a pipe in the kernel
//! ```
//!
//! Takes the selected endpoints of Services, and serves connections. Runs on a separate thread, only when the feature gate is on and
//! `nodePortAddresses` names a loopback range.
//!
//! Invariants: the proxy listens on 127.0.0.1 and ::1 and nowhere else; a busy port affects no other port, and is tried again until it is
//! free; the number of connections is limited, and no port or user gets all of them; bytes are not copied into this process.

mod limit;
mod listener;
mod proxy;
mod relay;
mod target;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use rules::endpoints::{Action, PortSelection, ServiceSelection};
use rules::model::{Destination, Family, ObjectName, Protocol};

pub(crate) use proxy::{OpenConnections, Proxy};

/// How long open connections may continue after the process was asked to end.
pub(crate) const GRACE: Duration = Duration::from_secs(10);
/// The most connections at once.
const MAX_CONNECTIONS: usize = 10_000;
/// File descriptors reserved for the listeners and everything else that the process does; where the process may open fewer than twice as
/// many, half of its limit is reserved.
const OTHER_FILES: u64 = 4_096;
/// The most file descriptors that a connection takes: two sockets, and the two ends of a pipe for each direction while bytes are in it.
const DESCRIPTORS: u64 = 6;

/// A TCP node port that is to be served on the loopback address of its family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodePort {
    family: Family,
    port: u16,
    /// The service port: `namespace/name:port`, or `namespace/name` if the port has no name.
    label: Arc<str>,
    /// The endpoints to choose from; there is at least one.
    endpoints: Vec<SocketAddr>,
    /// Time-out of the session affinity; `None` without affinity.
    affinity: Option<Duration>,
}

/// Returns the node ports of a Service to serve in a family: TCP node ports that have an endpoint. With external traffic policy Local, only
/// endpoints on this node count (R3).
pub(crate) fn node_ports(selection: &ServiceSelection, family: Family) -> Vec<NodePort> {
    let ports = selection.ports.iter().filter(|port| port.family == family && port.protocol == Protocol::Tcp);
    ports.flat_map(of_port).collect()
}

fn of_port(port: &PortSelection) -> impl Iterator<Item = NodePort> {
    let frontends =
        port.frontends.iter().filter(|frontend| matches!(frontend.frontend.destination, Destination::NodePort(_)));
    frontends.filter_map(|frontend| {
        let endpoints = match frontend.action {
            Action::Cluster { .. } => &port.cluster,
            Action::Local | Action::ByOrigin => &port.local,
            Action::Reject | Action::Drop => return None,
        };
        (!endpoints.is_empty()).then(|| NodePort {
            family: port.family,
            port: frontend.frontend.port,
            label: Arc::clone(&port.label),
            endpoints: endpoints.clone(),
            affinity: port.affinity_seconds.map(|seconds| Duration::from_secs(seconds.into())),
        })
    })
}

/// Passes node ports from the sync loop to the proxy. Clones pass them to the same proxy. Never waits: newer node ports of a Service
/// replace older ones that the proxy has not taken yet, so the feed holds at most one list for each Service.
#[derive(Clone, Debug, Default)]
pub(crate) struct Feed(Arc<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    changes: Mutex<HashMap<ObjectName, Vec<NodePort>>>,
    news: Notify,
}

impl Feed {
    /// Sets the node ports of these Services; an empty list removes them. The proxy takes changes of one call together, so that a port may
    /// move from one Service to another.
    pub(crate) fn put(&self, changes: Vec<(ObjectName, Vec<NodePort>)>) {
        if changes.is_empty() {
            return;
        }
        self.0.changes.lock().unwrap_or_else(PoisonError::into_inner).extend(changes);
        self.0.news.notify_one();
    }

    async fn changed(&self) {
        self.0.news.notified().await;
    }

    /// Returns the changes since the last call.
    pub(crate) fn take(&self) -> HashMap<ObjectName, Vec<NodePort>> {
        std::mem::take(&mut *self.0.changes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
