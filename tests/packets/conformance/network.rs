//! The namespaces of a case: the node, its pods, pods elsewhere, clients outside, and the rest of the internet, wired to the node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::case::{Case, Expect, Origin, Probe};
use crate::support::netns::Namespace;
use crate::support::server::Server;
use crate::support::wiring::{Place, attach, new_node, route_the_rest};

/// The name of a namespace, and the addresses in it.
type Places = BTreeMap<String, BTreeSet<IpAddr>>;

/// All of them; gone when dropped.
pub(crate) struct Network {
    // Dropped first: the servers leave their namespaces before these are deleted.
    _servers: Vec<Server>,
    /// The node under test.
    pub(crate) node: Namespace,
    spaces: BTreeMap<String, Namespace>,
    places: Places,
    /// The node's addresses.
    pub(crate) own: BTreeSet<IpAddr>,
}

impl Network {
    /// Builds the network of a case and starts its servers.
    pub(crate) fn new(case: &Case) -> Self {
        let own: BTreeSet<IpAddr> = case.node_addresses().into_iter().collect();
        let (_, mut ports) = case.endpoints();
        ports.extend(targets(case).map(|(_, port)| port));
        let places = places(case, &own);
        let node = new_node(own.iter().copied());
        let wanted: Vec<Place> =
            places.iter().map(|(name, addresses)| (name.clone(), addresses.iter().copied().collect())).collect();
        let spaces = places.keys().cloned().zip(attach(&node, 1, &wanted)).collect();
        // Packets to an address of no namespace are routed to `inet`.
        let (number, _) = (1..).zip(places.keys()).find(|(_, name)| *name == "inet").expect("there always is one");
        let primary = |v4: bool| case.node_addresses().into_iter().find(|ip| ip.is_ipv4() == v4);
        route_the_rest(&node, number, "inet", [primary(true), primary(false)]);
        let mut network = Self { _servers: Vec::new(), node, spaces, places, own };
        network._servers = network.serve(case, &ports.into_iter().collect::<Vec<_>>());
        network
    }

    /// Where a probe is sent from.
    pub(crate) fn source(&self, probe: &Probe) -> &Namespace {
        if probe.origin == Origin::Node {
            return &self.node;
        }
        let place = self.places.iter().find(|(name, addresses)| *name != "inet" && addresses.contains(&probe.source));
        let (name, _) = place.unwrap_or_else(|| panic!("no namespace has {}", probe.source));
        &self.spaces[name]
    }

    fn serve(&self, case: &Case, ports: &[u16]) -> Vec<Server> {
        let mut servers = Vec::new();
        for (name, addresses) in self.places.iter().filter(|(name, _)| !["ext", "inet"].contains(&name.as_str())) {
            let addresses: Vec<IpAddr> = addresses.iter().copied().collect();
            servers.push(Server::start(&self.spaces[name], &addresses, ports));
        }
        // Endpoints on the node, and what probes reach untouched.
        let on_node = targets(case).filter(|(ip, _)| self.own.contains(ip));
        let mut wanted: BTreeSet<(IpAddr, u16)> = on_node.collect();
        wanted.extend(passing(case));
        for (ip, port) in wanted {
            let at_home = self.own.contains(&ip) || ip.is_loopback();
            let is_served = |addresses: &BTreeSet<IpAddr>| addresses.contains(&ip) && ports.contains(&port);
            let elsewhere = self.places.iter().find(|(_, addresses)| addresses.contains(&ip));
            match elsewhere {
                _ if at_home => servers.push(Server::start(&self.node, &[ip], &[port])),
                Some((name, addresses)) if ["ext", "inet"].contains(&name.as_str()) || !is_served(addresses) => {
                    servers.push(Server::start(&self.spaces[name], &[ip], &[port]));
                }
                _ => {}
            }
        }
        servers
    }
}

/// The endpoints that probes have to reach.
fn targets(case: &Case) -> impl Iterator<Item = (IpAddr, u16)> {
    let reached = case.probes.iter().filter_map(|probe| match &probe.expect {
        Expect::Reaches { endpoints, .. } => Some(endpoints),
        _ => None,
    });
    reached.flatten().map(|(endpoint, _)| (endpoint.ip(), endpoint.port()))
}

/// What probes have to reach as if there were no proxy.
fn passing(case: &Case) -> impl Iterator<Item = (IpAddr, u16)> {
    let passing = case.probes.iter().filter(|probe| matches!(probe.expect, Expect::Passes));
    passing.map(|probe| (probe.target.ip(), probe.target.port()))
}

/// Which namespace has which addresses: a namespace for each client that is a pod, one for the other local pods, one for endpoints
/// elsewhere, one for clients outside, and `inet` for the other addresses.
fn places(case: &Case, own: &BTreeSet<IpAddr>) -> Places {
    let clients = |origin: Origin| {
        let probes = case.probes.iter().filter(move |probe| probe.origin == origin);
        probes.map(|probe| probe.source).collect::<BTreeSet<IpAddr>>()
    };
    let mut taken = own.clone();
    let mut places = Places::new();
    for (origin, name) in [(Origin::Pod, "pod"), (Origin::RemotePod, "rpod")] {
        for (number, ip) in clients(origin).into_iter().filter(|ip| !taken.contains(ip)).enumerate() {
            places.insert(format!("{name}{number}"), BTreeSet::from([ip]));
        }
        taken.extend(clients(origin));
    }
    let (mut endpoints, _) = case.endpoints();
    endpoints.extend(targets(case).map(|(ip, _)| ip));
    let beyond = passing(case).map(|(ip, _)| ip).filter(|ip| !ip.is_loopback()).collect();
    for (name, addresses) in
        [("pods", case.local_pods()), ("remote", endpoints), ("ext", clients(Origin::External)), ("inet", beyond)]
    {
        let new: BTreeSet<IpAddr> = addresses.difference(&taken).copied().collect();
        taken.extend(&new);
        if !new.is_empty() || name == "inet" {
            places.insert(name.to_owned(), new);
        }
    }
    places
}
