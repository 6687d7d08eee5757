//! The Services under load, and endpoints that come and go as Kubernetes has them: a new one is ready before an old one ends, and
//! one that ends is terminating and serves on until no client is sent to it any more.
//!
//! `rolling` has servers of its own on the four endpoints' addresses, which stop and start; `steady` uses those of the world, which
//! never stop.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::support::netns::Namespace;
use crate::support::nft::list_ruleset;
use crate::support::objects::{ServiceBuilder, node, service, service_cidr, slices};
use crate::support::plan::{ENDPOINTS, Family};
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, config};
use crate::support::server::Server;
use crate::support::world::World;

/// Where the servers of `rolling` listen, over TCP and UDP.
const PORT: u16 = 7000;
const ROLLING: [(&str, Proto, u16); 2] = [("http", Proto::Tcp, PORT), ("dns", Proto::Udp, PORT)];
const STEADY: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];
/// How long a pod has to end: no client may be sent to it for longer.
const GRACE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// A way to the Services: from where, and through which frontend.
#[derive(Clone, Copy)]
pub(crate) struct Way<'world> {
    name: &'static str,
    /// The namespace of the client.
    pub(crate) from: &'world Namespace,
    /// Its address.
    pub(crate) source: fn(Family) -> IpAddr,
    /// The frontend's address, for the number of a Service.
    frontend: fn(Family, u8) -> IpAddr,
    is_node_port: bool,
}

impl fmt::Display for Way<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Way<'_> {
    /// The frontend of `rolling`.
    pub(crate) fn target(self, family: Family, proto: Proto) -> SocketAddr {
        let (port, node_port) = if proto == Proto::Tcp { (80, 30080) } else { (53, 30053) };
        SocketAddr::new((self.frontend)(family, 1), if self.is_node_port { node_port } else { port })
    }

    /// The frontend of `steady`.
    pub(crate) fn steady(self, family: Family) -> SocketAddr {
        SocketAddr::new((self.frontend)(family, 2), if self.is_node_port { 30082 } else { 80 })
    }
}

/// Every way to the Services.
pub(crate) fn ways(world: &World) -> [Way<'_>; 4] {
    let way = |name, from, source: fn(Family) -> IpAddr, frontend: fn(Family, u8) -> IpAddr, is_node_port| Way {
        name,
        from,
        source,
        frontend,
        is_node_port,
    };
    let node: fn(Family, u8) -> IpAddr = |family, _| family.node();
    [
        way("pod to cluster IP", &world.shell, Family::shell, Family::cluster_ip, false),
        way("client to cluster IP", &world.client, Family::client, Family::cluster_ip, false),
        way("client to node port", &world.client, Family::client, node, true),
        way("client to load balancer IP", &world.client, Family::client, Family::load_balancer_ip, false),
    ]
}

/// The phase of an endpoint in a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Ready,
    Terminating,
    Gone,
}

/// A proxy, its objects and the servers of `rolling`.
pub(crate) struct Cluster<'world> {
    world: &'world World,
    /// The proxy under test.
    pub(crate) proxy: Proxy<'world>,
    servers: [Option<Server>; ENDPOINTS as usize],
    phases: [Phase; ENDPOINTS as usize],
}

impl<'world> Cluster<'world> {
    /// Starts the proxy and the servers.
    pub(crate) fn start(world: &'world World) -> Self {
        let objects = [
            vec![node(), service_cidr(), rolling().json(), steady().json()],
            slices("load", "rolling", &[0, 1, 2, 3], &ROLLING),
            slices("load", "steady", &[0, 1, 2, 3], &STEADY),
        ];
        // A first packet that met no rules is tracked without translation, and so are later packets of the same port. Its time is over
        // before the load uses a port again.
        world.node.set_sysctl("netfilter/nf_conntrack_tcp_timeout_syn_sent", "5");
        let proxy = Proxy::start(&world.node, &config(), &objects.concat());
        let mut cluster = Self { world, proxy, servers: [const { None }; _], phases: [Phase::Ready; _] };
        (0..ENDPOINTS).for_each(|n| cluster.start_server(n));
        cluster
    }

    /// The node.
    pub(crate) fn node(&self) -> &'world Namespace {
        &self.world.node
    }

    /// The servers of an endpoint begin.
    pub(crate) fn start_server(&mut self, n: u8) {
        let namespace = self.world.pods.get(usize::from(n)).unwrap_or(&self.world.remote);
        let addresses = Family::ALL.map(|family| family.endpoint(n));
        self.servers[usize::from(n)] = Some(Server::start(namespace, &addresses, &[PORT]));
    }

    /// The servers of an endpoint end.
    pub(crate) fn stop_server(&mut self, n: u8) {
        self.servers[usize::from(n)] = None;
    }

    /// Replaces a pod: it terminates, gets no connections any more, is gone, ends, and another one with its address is ready.
    /// `meanwhile` happens when the manifests have it terminating, and the proxy may not have read them yet.
    /// After `drain` it has no connections any more.
    pub(crate) fn roll(&mut self, n: u8, meanwhile: impl FnOnce(&mut Self), drain: impl FnOnce()) {
        self.write_slices(n, Phase::Terminating);
        meanwhile(self);
        self.wait("an endpoint that terminates is not used", |rules| !uses(rules, n).contains(&true));
        drain();
        self.write_slices(n, Phase::Gone);
        self.proxy.wait_until_quiet();
        self.wait_for_flows(n);
        self.stop_server(n);
        self.start_server(n);
        self.write_slices(n, Phase::Ready);
        self.wait("an endpoint that is ready is used", |rules| !uses(rules, n).contains(&false));
    }

    /// Writes the slices with an endpoint in this phase. Until it is back it is not in the slices of `steady`, either.
    fn write_slices(&mut self, n: u8, phase: Phase) {
        self.phases[usize::from(n)] = phase;
        let with = |wanted: fn(Phase) -> bool| -> Vec<u8> {
            (0..ENDPOINTS).filter(|n| wanted(self.phases[usize::from(*n)])).collect()
        };
        let present = with(|phase| phase != Phase::Gone);
        for mut slice in slices("load", "rolling", &present, &ROLLING) {
            let endpoints = slice["endpoints"].as_array_mut().into_iter().flatten();
            for (endpoint, n) in endpoints.zip(&present) {
                if self.phases[usize::from(*n)] == Phase::Terminating {
                    endpoint["conditions"] = json!({ "ready": false, "serving": true, "terminating": true });
                }
            }
            self.proxy.manifests().apply(&slice);
        }
        let ready = with(|phase| phase == Phase::Ready);
        slices("load", "steady", &ready, &STEADY).iter().for_each(|slice| self.proxy.manifests().apply(slice));
    }

    /// Waits until the rules are as wanted.
    fn wait(&self, what: &str, reached: impl Fn(&str) -> bool) {
        self.wait_until(what, || reached(&list_ruleset(self.node())));
    }

    /// Waits until no UDP flow leads to an endpoint any more.
    fn wait_for_flows(&self, n: u8) {
        let leads = |family: Family| {
            let kind = if family == Family::V4 { "ipv4" } else { "ipv6" };
            let address = family.endpoint(n).to_string();
            let mut list = self.node().command("conntrack");
            let output = list.args(["-L", "-f", kind, "-p", "udp", "-r", &address]).output().expect("conntrack runs");
            output.stdout.contains(&b'\n')
        };
        self.wait_until("an endpoint that is gone has no UDP flows", || !Family::ALL.into_iter().any(leads));
    }

    fn wait_until(&self, what: &str, reached: impl Fn() -> bool) {
        let end = Instant::now() + GRACE;
        while !reached() {
            assert!(Instant::now() < end, "{what}: not within {GRACE:?}\n{}", list_ruleset(self.node()));
            thread::sleep(POLL);
        }
    }

    /// Changes a Service, and waits until the rules match it.
    pub(crate) fn apply(&mut self, objects: &[Value]) {
        self.proxy.apply(objects);
    }
}

/// Whether the rules of either layout send connections to an endpoint, in each family and for each Service. A client that is
/// remembered for an endpoint is sent there, too.
fn uses(rules: &str, n: u8) -> [bool; 4] {
    [(Family::V4, PORT), (Family::V6, PORT), (Family::V4, STEADY[0].2), (Family::V6, STEADY[0].2)].map(
        |(family, port)| {
            let address = family.endpoint(n);
            let rules_say = [format!("{address} . {port}"), format!("dnat to {}", SocketAddr::new(address, port))];
            let remembered = [format!(": {address},"), format!(": {address} }}")];
            let texts = [rules_say, remembered].concat();
            texts.iter().any(|text| rules.contains(text.as_str()))
        },
    )
}

/// The Service `rolling` with every frontend.
pub(crate) fn rolling() -> ServiceBuilder {
    let rolling = service("load", "rolling").cluster_ips(1);
    let rolling = rolling.port("http", Proto::Tcp, 80).node_port(30080).port("dns", Proto::Udp, 53).node_port(30053);
    Family::ALL.iter().fold(rolling, |rolling, family| rolling.load_balancer_ip(family.load_balancer_ip(1)))
}

fn steady() -> ServiceBuilder {
    let steady = service("load", "steady").cluster_ips(2).port("http", Proto::Tcp, 80).node_port(30082);
    Family::ALL.iter().fold(steady, |steady, family| steady.load_balancer_ip(family.load_balancer_ip(2)))
}
