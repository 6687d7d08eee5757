//! The namespaces of a case, or of all steps of a sequence: the node, its pods, pods elsewhere, clients outside, and the rest of the internet, wired to the node.

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
    /// Builds the network of cases that follow each other on one node, and starts its servers.
    pub(crate) fn new(cases: &[&Case]) -> Self {
        let own: BTreeSet<IpAddr> = cases.iter().flat_map(|case| case.node_addresses()).collect();
        let mut ports: BTreeSet<u16> = cases.iter().flat_map(|case| case.endpoints().1).collect();
        ports.extend(targets(cases).map(|(_, port)| port));
        let places = places(cases, &own);
        let node = new_node(own.iter().copied());
        let wanted: Vec<Place> =
            places.iter().map(|(name, addresses)| (name.clone(), addresses.iter().copied().collect())).collect();
        let spaces = places.keys().cloned().zip(attach(&node, 1, &wanted)).collect();
        // Packets to an address of no namespace are routed to `inet`.
        let (number, _) = (1..).zip(places.keys()).find(|(_, name)| *name == "inet").expect("there always is one");
        let primary = |v4: bool| cases[0].node_addresses().into_iter().find(|ip| ip.is_ipv4() == v4);
        route_the_rest(&node, number, "inet", [primary(true), primary(false)]);
        let mut network = Self { _servers: Vec::new(), node, spaces, places, own };
        network._servers = network.serve(cases, &ports.into_iter().collect::<Vec<_>>());
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

    fn serve(&self, cases: &[&Case], ports: &[u16]) -> Vec<Server> {
        let mut servers = Vec::new();
        for (name, addresses) in self.places.iter().filter(|(name, _)| !["ext", "inet"].contains(&name.as_str())) {
            let addresses: Vec<IpAddr> = addresses.iter().copied().collect();
            servers.push(Server::start(&self.spaces[name], &addresses, ports));
        }
        // Endpoints on the node, and what probes reach untouched.
        let on_node = targets(cases).filter(|(ip, _)| self.own.contains(ip));
        let mut wanted: BTreeSet<(IpAddr, u16)> = on_node.collect();
        wanted.extend(passing(cases));
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

/// The probes of all cases.
fn probes<'a>(cases: &[&'a Case]) -> impl Iterator<Item = &'a Probe> {
    cases.iter().flat_map(|case| &case.probes)
}

/// The endpoints that probes have to reach.
fn targets(cases: &[&Case]) -> impl Iterator<Item = (IpAddr, u16)> {
    let reached = probes(cases).filter_map(|probe| match &probe.expect {
        Expect::Reaches { endpoints, .. } => Some(endpoints),
        _ => None,
    });
    reached.flatten().map(|(endpoint, _)| (endpoint.ip(), endpoint.port()))
}

/// What probes have to reach as if there were no proxy.
fn passing(cases: &[&Case]) -> impl Iterator<Item = (IpAddr, u16)> {
    let passing = probes(cases).filter(|probe| matches!(probe.expect, Expect::Passes));
    passing.map(|probe| (probe.target.ip(), probe.target.port()))
}

/// Which namespace has which addresses: a namespace for each client that is a pod, one for the other local pods, one for endpoints
/// elsewhere, one for clients outside, and `inet` for the other addresses.
fn places(cases: &[&Case], own: &BTreeSet<IpAddr>) -> Places {
    let clients = |origin: Origin| {
        probes(cases).filter(|probe| probe.origin == origin).map(|probe| probe.source).collect::<BTreeSet<IpAddr>>()
    };
    let mut taken = own.clone();
    let mut places = Places::new();
    for (origin, name) in [(Origin::Pod, "pod"), (Origin::RemotePod, "rpod")] {
        for (number, ip) in clients(origin).into_iter().filter(|ip| !taken.contains(ip)).enumerate() {
            places.insert(format!("{name}{number}"), BTreeSet::from([ip]));
        }
        taken.extend(clients(origin));
    }
    let mut endpoints: BTreeSet<IpAddr> = cases.iter().flat_map(|case| case.endpoints().0).collect();
    endpoints.extend(targets(cases).map(|(ip, _)| ip));
    let local = cases.iter().flat_map(|case| case.local_pods()).collect();
    let beyond = passing(cases).map(|(ip, _)| ip).filter(|ip| !ip.is_loopback()).collect();
    for (name, addresses) in
        [("pods", local), ("remote", endpoints), ("ext", clients(Origin::External)), ("inet", beyond)]
    {
        let new: BTreeSet<IpAddr> = addresses.difference(&taken).copied().collect();
        taken.extend(&new);
        if !new.is_empty() || name == "inet" {
            places.insert(name.to_owned(), new);
        }
    }
    places
}
