//! The set of all listeners: starts and stops them as node ports change, and tries again where a port cannot be had.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::limit::Limit;
use super::listener::{Common, serve};
use super::relay::Pipes;
use super::target::Target;
use super::{DESCRIPTORS, Feed, GRACE, MAX_CONNECTIONS, NodePort, OTHER_FILES};
use crate::metrics::Metrics;
use component::http::bind;
use component::logging::duration;
use node::kernel::socket_users::SocketUsers;
use rules::model::{Family, ObjectName};

/// The time between two attempts to listen on a port that is busy, or cannot be had for another reason (R6).
const RETRY: Duration = Duration::from_secs(1);

/// The userspace proxy. [`Self::run`] needs a tokio runtime.
pub(crate) struct Proxy {
    feed: Feed,
    metrics: Metrics,
    /// The node ports to serve, for each Service that has any.
    wanted: HashMap<ObjectName, Vec<NodePort>>,
    listeners: HashMap<(Family, u16), Listener>,
    connections: OpenConnections,
    ending: watch::Sender<bool>,
    common: Common,
}

/// The listener of a node port. It exists also while nothing listens, because the port cannot be had.
struct Listener {
    /// The service port of the node port: `namespace/name:port`, or `namespace/name` if the port has no name.
    label: Arc<str>,
    target: Arc<Target>,
    /// The task that accepts connections; `None` as long as the proxy could not listen on the port.
    serving: Option<JoinHandle<()>>,
    /// Whether the last attempt to listen failed. Only the first of several failed attempts is logged.
    has_failed: bool,
}

/// Counts the open connections.
#[derive(Clone)]
pub(crate) struct OpenConnections(Limit);

impl OpenConnections {
    /// Whether any connection is open.
    #[must_use]
    pub(crate) fn is_any(&self) -> bool {
        self.0.is_any_open()
    }

    /// Waits until no connection is open.
    async fn end(&self) {
        self.0.all_ended().await;
    }
}

/// Returns how many connections a process may have if it may have `open_files` files open (R9). Where `open_files` is low, connections get
/// half of it: with the full reserve of [`OTHER_FILES`], almost nothing would be left for them.
pub(super) fn most_connections(open_files: u64) -> usize {
    let limit = open_files.saturating_sub(OTHER_FILES.min(open_files / 2)) / DESCRIPTORS;
    usize::try_from(limit).unwrap_or(usize::MAX).clamp(1, MAX_CONNECTIONS)
}

impl Proxy {
    /// Makes a proxy without node ports, and the count of its open connections. `open_files` is the number of files that the process may
    /// have open. `users` finds the users of clients.
    pub(crate) fn new(
        feed: Feed,
        metrics: Metrics,
        open_files: u64,
        users: Option<SocketUsers>,
    ) -> (Self, OpenConnections) {
        let limit = Limit::new(most_connections(open_files), users);
        let connections = OpenConnections(limit.clone());
        let (ending, receiver) = watch::channel(false);
        let common = Common { limit, pipes: Arc::new(Pipes::default()), ending: receiver };
        let proxy = Self {
            feed,
            metrics,
            wanted: HashMap::new(),
            listeners: HashMap::new(),
            connections: connections.clone(),
            ending,
            common,
        };
        (proxy, connections)
    }

    /// Serves until `stop` completes, then gives the open connections [`GRACE`] to end.
    pub(crate) async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        let feed = self.feed.clone();
        loop {
            let has_failed = self.listeners.values().any(|listener| listener.has_failed);
            tokio::select! {
                () = feed.changed() => self.take().await,
                () = sleep(RETRY), if has_failed => self.listen(),
                _ = &mut stop => break,
            }
        }
        self.end().await;
    }

    async fn end(self) {
        self.ending.send_replace(true);
        if self.connections.is_any() {
            info!(grace = %duration(GRACE), "Waiting for the open connections to localhost node ports");
            if timeout(GRACE, self.connections.end()).await.is_err() {
                info!("Open connections to localhost node ports are closed");
            }
        }
    }

    /// Takes over the changes from the feed. A removed listener closes its connections (R3); a listener whose port moves to another Service
    /// stays.
    async fn take(&mut self) {
        for (service, ports) in self.feed.take() {
            if ports.is_empty() {
                self.wanted.remove(&service);
            } else {
                self.wanted.insert(service, ports);
            }
        }
        let wanted: HashMap<(Family, u16), &NodePort> =
            self.wanted.values().flatten().map(|port| ((port.family, port.port), port)).collect();
        let gone = self.listeners.extract_if(|place, _| !wanted.contains_key(place));
        let gone: Vec<JoinHandle<()>> = gone.filter_map(|(_, listener)| listener.serving).collect();
        gone.iter().for_each(JoinHandle::abort);
        for task in gone {
            // The port is free once the task has ended, which the abort causes.
            let _ = task.await;
        }
        for (place, port) in wanted {
            let listener = self.listeners.entry(place).or_insert_with(|| Listener {
                label: Arc::clone(&port.label),
                target: Arc::new(Target::new(port)),
                serving: None,
                has_failed: false,
            });
            listener.target.update(port);
            listener.label.clone_from(&port.label);
        }
        self.listen();
    }

    /// Listens on each node port that is not served yet. A port that cannot be had is logged and counted only once, until it can
    /// be had again.
    fn listen(&mut self) {
        for ((family, port), listener) in self.listeners.iter_mut().filter(|(_, listener)| listener.serving.is_none()) {
            let address = SocketAddr::new(loopback(*family), *port);
            match bind(address) {
                Ok(socket) => {
                    debug!(%address, portName = %listener.label, "Listening on a localhost node port");
                    let serving =
                        tokio::spawn(serve(address, socket, Arc::clone(&listener.target), self.common.clone()));
                    listener.serving = Some(serving);
                    listener.has_failed = false;
                }
                Err(_) if listener.has_failed => {}
                Err(error) => {
                    let name = &listener.label;
                    warn!(%address, portName = %name, err = %error, retry = %duration(RETRY), "Cannot listen on a localhost node port");
                    self.metrics.localhost_listen_failed(*family);
                    listener.has_failed = true;
                }
            }
        }
        for family in Family::BOTH {
            let of_family = self.listeners.iter().filter(|((of, _), _)| *of == family);
            let serving = of_family.filter(|(_, listener)| listener.serving.is_some()).count();
            self.metrics.localhost_listeners(family, serving);
        }
    }
}

const fn loopback(family: Family) -> IpAddr {
    match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
        Family::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}
