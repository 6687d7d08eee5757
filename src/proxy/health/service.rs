//! The servers on the health-check node ports: load balancers probe them to find the nodes that have endpoints of a Service.
//!
//! Takes [`Snapshot`]s, and opens and closes a listener for each Service and address to match them. Invariant: a listener whose port and
//! address stay is never closed, whatever happens to other listeners.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hyper::header::{HeaderName, HeaderValue};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing::info;

use super::failing::Failing;
use super::{Check, CheckName, Observer, Shared, Snapshot};
use component::http::{self, Limits, Response};
use component::logging::{V2, list};
use rules::model::{Family, ObjectName};

/// The header with the number of local endpoints, which load balancers may use as the node's weight.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// Time until the next try to listen where it failed, unless the next snapshot comes first (K4).
const RETRY: Duration = Duration::from_secs(1);

/// Follows the snapshots until their sender is dropped.
pub(super) async fn run(
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
    limits: Limits,
    health: Shared,
    observer: Arc<dyn Observer>,
) {
    let mut servers = ServiceServers::new(limits, health, observer);
    let mut all_open = true;
    loop {
        tokio::select! {
            changed = snapshots.changed() => if changed.is_err() { return },
            // An earlier process may hold the port until it has ended.
            () = tokio::time::sleep(RETRY), if !all_open => {}
        }
        let snapshot = snapshots.borrow_and_update().clone();
        servers.follow(&snapshot).await;
        all_open = servers.is_complete(&snapshot);
    }
}

/// The open servers, and the listeners that failed.
struct ServiceServers {
    limits: Limits,
    health: Shared,
    observer: Arc<dyn Observer>,
    open: BTreeMap<CheckName, Server>,
    failing: Failing,
}

/// The listeners of a Service in one family.
struct Server {
    /// The listeners by address; there is at least one.
    listeners: BTreeMap<SocketAddr, http::Server>,
    local_endpoints: Arc<Count>,
}

/// The number of local endpoints, shared with the listeners; [`Count::get`] returns `None` once the Service has no health check any more.
struct Count(AtomicUsize);

impl Count {
    /// Means that the Service has no health check any more; no Service has that many endpoints.
    const DELETED: usize = usize::MAX;

    fn set(&self, count: Option<usize>) {
        self.0.store(count.unwrap_or(Self::DELETED), Ordering::Relaxed);
    }

    fn get(&self) -> Option<usize> {
        Some(self.0.load(Ordering::Relaxed)).filter(|count| *count != Self::DELETED)
    }
}

impl ServiceServers {
    fn new(limits: Limits, health: Shared, observer: Arc<dyn Observer>) -> Self {
        Self { limits, health, observer, open: BTreeMap::new(), failing: Failing::default() }
    }

    /// Opens and closes listeners so that they match the snapshot; listeners whose address and port stay keep running (K1). Opens each
    /// listener separately: a failure is reported and affects no other listener (K4).
    async fn follow(&mut self, snapshot: &Snapshot) {
        let listen: BTreeSet<IpAddr> = snapshot.listen.iter().copied().collect();
        let is_wanted = |name: &CheckName, address: SocketAddr| {
            let check = snapshot.checks.get(name).filter(|check| check.port == address.port());
            check.is_some() && Family::of(address.ip()) == name.family && listen.contains(&address.ip())
        };
        self.close_unwanted(snapshot, is_wanted).await;
        self.failing.retain(is_wanted);
        for (name, check) in &snapshot.checks {
            if let Some(server) = self.open.get(name) {
                server.local_endpoints.set(Some(check.local_endpoints));
            }
            self.open(name, check, addresses(snapshot, name.family, check.port));
        }
        self.failing.tell(&*self.observer);
    }

    /// Returns whether every health check has a listener on each of its addresses.
    fn is_complete(&self, snapshot: &Snapshot) -> bool {
        let is_open = |name: &CheckName, address: &SocketAddr| {
            self.open.get(name).is_some_and(|server| server.listeners.contains_key(address))
        };
        snapshot.checks.iter().all(|(name, check)| {
            addresses(snapshot, name.family, check.port).iter().all(|address| is_open(name, address))
        })
    }

    /// Closes the listeners that are no longer needed. Waits until their ports are free, because another Service may need them. If the Service has no health check any more, requests that have arrived get an empty response.
    async fn close_unwanted(&mut self, snapshot: &Snapshot, is_wanted: impl Fn(&CheckName, SocketAddr) -> bool) {
        let mut unwanted = Vec::new();
        for (name, server) in &mut self.open {
            if !snapshot.checks.contains_key(name) {
                server.local_endpoints.set(None);
            }
            let closes = |(address, _): &(&SocketAddr, &http::Server)| {
                let is_unwanted = !is_wanted(name, **address);
                if is_unwanted {
                    info!(target: V2, service = %name.service, ipFamily = %name.family, %address, "Closing healthcheck");
                }
                is_unwanted
            };
            let closing: Vec<SocketAddr> =
                server.listeners.iter().filter(closes).map(|(address, _)| *address).collect();
            unwanted.extend(closing.iter().filter_map(|address| server.listeners.remove(address)));
        }
        self.open.retain(|_, server| !server.listeners.is_empty());
        for listener in unwanted {
            listener.close().await;
        }
    }

    /// Opens the missing listeners of a health check.
    fn open(&mut self, name: &CheckName, check: &Check, mut missing: BTreeSet<SocketAddr>) {
        let open = self.open.get(name);
        missing.retain(|address| open.is_none_or(|server| !server.listeners.contains_key(address)));
        if missing.is_empty() {
            return;
        }
        let local_endpoints = match open {
            Some(server) => Arc::clone(&server.local_endpoints),
            None => Arc::new(Count(AtomicUsize::new(check.local_endpoints))),
        };
        let CheckName { service, family } = name;
        let (mut opened, now) = (BTreeMap::new(), Instant::now());
        for address in missing {
            match self.limits.connections.bind(address) {
                Ok(listener) => {
                    self.failing.succeeded(name, address);
                    opened.insert(address, self.start(listener, service, &local_endpoints));
                }
                Err(error) => self.failing.failed(name, address, error, now),
            }
        }
        if opened.is_empty() {
            return;
        }
        info!(
            target: V2, %service, ipFamily = %family, port = check.port, addresses = list(opened.keys()),
            "Opened healthcheck"
        );
        let new = || Server { listeners: BTreeMap::new(), local_endpoints };
        self.open.entry(name.clone()).or_insert_with(new).listeners.append(&mut opened);
    }

    fn start(&self, listener: TcpListener, service: &ObjectName, count: &Arc<Count>) -> http::Server {
        let (service, count, health) = (service.clone(), Arc::clone(count), self.health.clone());
        http::Server::start(listener, self.limits.clone(), move |_| {
            let state = {
                let health = health.lock();
                NodeState { healthy: health.is_healthy(Instant::now()), drained: health.is_drained() }
            };
            let response = response(&service, count.get(), state);
            async { response }
        })
    }
}

/// Returns the addresses at which a server listens (K5).
fn addresses(snapshot: &Snapshot, family: Family, port: u16) -> BTreeSet<SocketAddr> {
    let of_family = snapshot.listen.iter().filter(|ip| Family::of(**ip) == family);
    of_family.map(|ip: &IpAddr| SocketAddr::new(*ip, port)).collect()
}

/// What a response says of the node.
#[derive(Clone, Copy, Debug)]
struct NodeState {
    /// Whether the proxy is healthy (L3).
    healthy: bool,
    /// Whether an operator drains the node (L10).
    drained: bool,
}

/// Returns the response to every path and method (K3, L10); an empty one when the Service has no health check any more, as upstream does.
fn response(service: &ObjectName, local_endpoints: Option<usize>, state: NodeState) -> Response {
    let NodeState { healthy, drained } = state;
    let Some(local_endpoints) = local_endpoints else { return Response::default() };
    let (namespace, name) = (&service.namespace, &service.name);
    // Upstream does not have this field.
    let mark = if drained { ",\n\t\"nodeDrained\": true" } else { "" };
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{namespace}\",\n\t\t\"name\": \"{name}\"\n\t}},\n\
         \t\"localEndpoints\": {local_endpoints},\n\t\"serviceProxyHealthy\": {healthy}{mark}\n}}"
    );
    let is_good = local_endpoints > 0 && healthy && !drained;
    let mut response = http::response(http::status(is_good), http::JSON, body);
    response.headers_mut().insert(WEIGHT, HeaderValue::from(local_endpoints));
    response
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;
    use std::time::{Duration, SystemTime};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::health::Listen;
    use crate::health::proxy::ProxyHealth;
    use crate::health::testing::Notes;
    use component::http::testing::{exchange, free_port, get, is_open, without_date};

    fn health() -> Shared {
        Shared(Arc::new(Mutex::new(ProxyHealth::new(Duration::from_secs(60)))))
    }

    // While the node is drained, the port answers 503 although the node has endpoints (L10).
    #[test]
    fn a_drained_node_answers_503() {
        let service = ObjectName::new("ns", "web");
        let respond = |drained| response(&service, Some(2), NodeState { healthy: true, drained });
        assert_eq!([false, true].map(|drained| respond(drained).status().as_u16()), [200, 503]);
    }

    fn unhealthy() -> Shared {
        let mut health = ProxyHealth::new(Duration::ZERO);
        health.synced(Family::V4, SystemTime::now());
        health.queued(Family::V4, Instant::now());
        Shared(Arc::new(Mutex::new(health)))
    }

    fn check_name(name: &str, family: Family) -> CheckName {
        CheckName { service: ObjectName::new("ns", name), family }
    }

    /// Returns a snapshot of IPv4 health checks at the addresses `listen`; each check is a Service's name, its port and its number of local
    /// endpoints.
    fn snapshot(listen: &[&str], checks: &[(&str, u16, usize)]) -> Snapshot {
        let check = |(name, port, local_endpoints): &(&str, u16, usize)| {
            (check_name(name, Family::V4), Check { port: *port, local_endpoints: *local_endpoints })
        };
        Snapshot {
            listen: listen.iter().map(|ip| ip.parse().unwrap()).collect(),
            checks: checks.iter().map(check).collect(),
        }
    }

    const LOOPBACK: &[&str] = &["127.0.0.1"];

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    fn free_ports<const N: usize>() -> [u16; N] {
        [(); N].map(|()| free_port())
    }

    fn expected(status: &str, count: usize, healthy: bool) -> String {
        let body = format!(
            "{{\n\t\"service\": {{\n\t\t\"namespace\": \"ns\",\n\t\t\"name\": \"web\"\n\t}},\n\t\"localEndpoints\": {count},\n\t\"serviceProxyHealthy\": {healthy}\n}}"
        );
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nX-Content-Type-Options: nosniff\r\nX-Load-Balancing-Endpoint-Weight: {count}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
    }

    // Responses say whether there are endpoints and whether the proxy is healthy (K3).
    #[tokio::test]
    async fn responses_say_whether_there_are_endpoints_and_whether_the_proxy_is_healthy() {
        let [port] = free_ports();
        let mut servers = ServiceServers::new(Limits::default(), health(), Notes::new());
        for (count, status) in [(2, "200 OK"), (0, "503 Service Unavailable")] {
            servers.follow(&snapshot(LOOPBACK, &[("web", port, count)])).await;
            assert_eq!(without_date(&get(at(port), "/").await), expected(status, count, true));
        }
        let [port] = free_ports();
        let mut servers = ServiceServers::new(Limits::default(), unhealthy(), Notes::new());
        servers.follow(&snapshot(LOOPBACK, &[("web", port, 2)])).await;
        assert_eq!(without_date(&get(at(port), "/").await), expected("503 Service Unavailable", 2, false));
    }

    // Every path and method gets the same answer (K3).
    #[tokio::test]
    async fn every_path_and_method_gets_the_same_answer() {
        let [port] = free_ports();
        let mut servers = ServiceServers::new(Limits::default(), health(), Notes::new());
        servers.follow(&snapshot(LOOPBACK, &[("web", port, 1)])).await;
        for request in ["GET /any?x=y", "POST /", "DELETE /healthz", "OPTIONS *"] {
            let answer =
                exchange(at(port), &format!("{request} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")).await;
            assert_eq!(without_date(&answer), expected("200 OK", 1, true), "{request}");
        }
    }

    // Servers follow the snapshot (K1).
    #[tokio::test]
    async fn servers_follow_the_snapshot() {
        let [a, b] = free_ports();
        let mut servers = ServiceServers::new(Limits::default(), health(), Notes::new());
        servers.follow(&snapshot(LOOPBACK, &[("web", a, 1)])).await;
        assert!(is_open(at(a)).await);
        servers.follow(&snapshot(LOOPBACK, &[("web", b, 1)])).await;
        assert!(!is_open(at(a)).await && is_open(at(b)).await, "the port changed");
        servers.follow(&snapshot(LOOPBACK, &[])).await;
        assert!(!is_open(at(b)).await);
    }

    // Connections to an unchanged server stay open (K1).
    #[tokio::test]
    async fn connections_to_an_unchanged_server_go_on() {
        let [a, b] = free_ports();
        let mut servers = ServiceServers::new(Limits::default(), health(), Notes::new());
        servers.follow(&snapshot(LOOPBACK, &[("web", a, 1)])).await;
        let waiting = tokio::net::TcpStream::connect(at(a)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        servers.follow(&snapshot(LOOPBACK, &[("web", a, 2), ("other", b, 0)])).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut byte = [0];
        let error = waiting.try_read(&mut byte).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "the connection is open");
    }

    // Two services can swap their ports in one update (K1).
    #[tokio::test]
    async fn two_services_can_swap_their_ports_in_one_update() {
        let [a, b] = free_ports();
        let mut servers = ServiceServers::new(Limits::default(), health(), Notes::new());
        servers.follow(&snapshot(LOOPBACK, &[("web", a, 1), ("other", b, 0)])).await;
        servers.follow(&snapshot(LOOPBACK, &[("web", b, 1), ("other", a, 0)])).await;
        assert_eq!(without_date(&get(at(b), "/").await), expected("200 OK", 1, true));
        assert!(is_open(at(a)).await);
    }

    // A port in use at one address leaves the other addresses alone, and is tried again (K4).
    #[tokio::test]
    async fn a_port_in_use_at_one_address_leaves_the_others_alone_and_is_tried_again() {
        let [a, b] = free_ports();
        let taken = std::net::TcpListener::bind(("127.0.0.2", a)).unwrap();
        let both = snapshot(&["127.0.0.1", "127.0.0.2"], &[("other", b, 1), ("web", a, 1)]);
        let notes = Notes::new();
        let mut servers = ServiceServers::new(Limits::default(), health(), notes.clone());
        servers.follow(&both).await;
        assert_eq!(without_date(&get(at(a), "/").await), expected("200 OK", 1, true), "the address that is free");
        assert!(is_open(at(b)).await);
        assert_eq!(notes.take(), [format!("ns/web 127.0.0.2:{a} AddrInUse")]);
        assert!(!servers.is_complete(&both));
        servers.follow(&both).await;
        assert_eq!(notes.take(), [""; 0], "it was tried again, and failed again, which was told before");
        drop(taken);
        let both = snapshot(&["127.0.0.1", "127.0.0.2"], &[("other", b, 1), ("web", a, 0)]);
        servers.follow(&both).await;
        assert!(notes.take().is_empty() && servers.is_complete(&both));
        let unavailable = expected("503 Service Unavailable", 0, true);
        for address in [at(a), SocketAddr::from(([127, 0, 0, 2], a))] {
            assert_eq!(without_date(&get(address, "/").await), unavailable, "{address}: both have the same number");
        }
    }

    // A listener whose address stays keeps running while other addresses come and go (K1, K4).
    #[tokio::test]
    async fn a_listener_whose_address_stays_goes_on_while_others_come_and_go() {
        let [port] = free_ports();
        let mut servers = ServiceServers::new(Limits::default(), health(), Notes::new());
        servers.follow(&snapshot(LOOPBACK, &[("web", port, 1)])).await;
        let waiting = tokio::net::TcpStream::connect(at(port)).await.unwrap();
        for listen in [&["127.0.0.1", "192.0.2.99"][..], &["127.0.0.1", "127.0.0.2"], &["127.0.0.1"]] {
            servers.follow(&snapshot(listen, &[("web", port, 1)])).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
            let error = waiting.try_read(&mut [0]).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{listen:?}: the connection is open");
            assert_eq!(is_open(SocketAddr::from(([127, 0, 0, 2], port))).await, listen.contains(&"127.0.0.2"));
        }
    }

    // Each family has its own listeners (K5).
    #[tokio::test]
    async fn each_family_has_its_own_listeners() {
        let [port] = free_ports();
        let mut all = snapshot(&["0.0.0.0", "::"], &[("web", port, 3)]);
        all.checks.insert(check_name("web", Family::V6), Check { port, local_endpoints: 1 });
        let mut servers = ServiceServers::new(Limits::default(), health(), Notes::new());
        servers.follow(&all).await;
        assert_eq!(without_date(&get(at(port), "/").await), expected("200 OK", 3, true));
        let v6 = SocketAddr::new(std::net::Ipv6Addr::LOCALHOST.into(), port);
        assert_eq!(without_date(&get(v6, "/").await), expected("200 OK", 1, true));
    }

    // Servers listen only on the given addresses (K5).
    #[tokio::test]
    async fn listeners_are_only_on_the_addresses_given() {
        let [port] = free_ports();
        let mut servers = ServiceServers::new(Limits::default(), health(), Notes::new());
        servers.follow(&snapshot(&["127.0.0.2"], &[("web", port, 3)])).await;
        assert!(!is_open(at(port)).await);
        assert!(is_open(SocketAddr::from(([127, 0, 0, 2], port))).await);
        servers.follow(&snapshot(&[], &[("web", port, 3)])).await;
        assert!(servers.open.is_empty(), "no address, no listener, no error");
    }

    #[tokio::test]
    async fn a_request_that_reaches_a_server_whose_service_was_deleted_gets_an_empty_200() {
        let [port] = free_ports();
        let mut servers = ServiceServers::new(Limits::default(), health(), Notes::new());
        servers.follow(&snapshot(LOOPBACK, &[("web", port, 1)])).await;
        let mut stream = tokio::net::TcpStream::connect(at(port)).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: node\r\n").await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        servers.follow(&snapshot(LOOPBACK, &[])).await;
        assert!(!is_open(at(port)).await);
        stream.write_all(b"\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert_eq!(without_date(&answer), "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    }

    // Reporting an equal snapshot again makes the servers try again to listen (K1, K4).
    #[tokio::test]
    async fn an_equal_snapshot_that_is_reported_again_makes_another_try() {
        let (reporter, all) = crate::health::new(Duration::from_secs(60));
        let running = tokio::spawn(all.run(Listen::default(), Notes::new()));
        let [port] = free_ports();
        let taken = std::net::TcpListener::bind(at(port)).unwrap();
        let checks = Arc::new(snapshot(LOOPBACK, &[("web", port, 1)]));
        reporter.services(checks.clone());
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(taken);
        assert!(!is_open(at(port)).await);
        reporter.services(checks);
        assert_eq!(without_date(&get(at(port), "/").await), expected("200 OK", 1, true));
        drop(reporter);
        running.await.unwrap().unwrap();
        assert!(!is_open(at(port)).await);
    }
}
