//! Finds the UDP conntrack entries (flows) whose endpoint no longer serves.
//!
//! Takes the [`State`], the Services that changed and the flows that the kernel tracks; returns the flows to delete. Pure: crate `node`
//! lists the flows of the kernel and deletes them. A UDP connection has no end: if its flow stayed, the packets of a client that keeps
//! sending would go to a removed endpoint for as long as the client sends. TCP and SCTP flows are never deleted (J9).
//!
//! Only Services that changed and removed frontends are examined: the flows of any other Service were checked when that Service last
//! changed, and its endpoints are still the same.
//!
//! Two differences from upstream kube-proxy. Flows of a service port without serving endpoints are deleted as well, so that the client
//! gets a refusal and not silence (upstream has a bug there, J4). A flow to the number of a node port is deleted only if it goes to an
//! address of this node; upstream deletes flows of other programs to that port (J6).

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::endpoints::{allowed_sources, is_load_balancer};
use crate::model::{
    Destination, EndpointSlice, Family, Frontend, ObjectName, PortSlice, PortSlices, Protocol, Ranges, Service, State,
};

/// A UDP flow that the kernel tracks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The source of the client's packets.
    pub client: IpAddr,
    /// The destination of the client's packets.
    pub original_destination: SocketAddr,
    /// The source of the replies: the endpoint, or the original destination if the flow was never translated (J7).
    pub reply_source: SocketAddr,
    /// The data that crate `node` needs to delete the flow; this module does not look into it.
    pub handle: Vec<u8>,
}

/// Frontends that were removed since flows were last examined, and the endpoints that they had.
#[derive(Debug, Default)]
pub struct Gone {
    /// UDP frontends that no Service has any more.
    pub frontends: HashSet<Frontend>,
    /// Endpoints of these frontends that the [`State`] no longer has.
    pub endpoints: HashSet<SocketAddr>,
}

impl Gone {
    /// Adds the endpoints of a slice that is about to be replaced or deleted.
    pub fn add_endpoints(&mut self, slice: &EndpointSlice) {
        self.endpoints.extend(serving_udp(slice));
    }

    /// Whether a flow went to one of `frontends` and was translated to one of `endpoints`. All other flows are left alone: another program
    /// translated them, or none did.
    fn has(&self, flow: &Flow, node_addresses: &[IpAddr]) -> bool {
        let to = flow.original_destination;
        let frontend = |destination| Frontend { destination, protocol: Protocol::Udp, port: to.port() };
        let is_gone = |destination| self.frontends.contains(&frontend(destination));
        let at_node_port = || node_addresses.contains(&to.ip()) && is_gone(Destination::NodePort(Family::of(to.ip())));
        self.endpoints.contains(&flow.reply_source) && (is_gone(Destination::Address(to.ip())) || at_node_port())
    }
}

/// Returns the flows to delete: each flow to a frontend of one of `services` if its endpoint does not serve the frontend's port or if its
/// client is not in the allowed source ranges, and each flow to a frontend and endpoint in `gone`.
///
/// `node_addresses` are the addresses of this node. If `gone` has frontends, the endpoints of `services` are added to it.
pub fn stale<'a>(
    state: &State,
    services: impl IntoIterator<Item = &'a ObjectName>,
    gone: &mut Gone,
    node_addresses: &[IpAddr],
    flows: Vec<Flow>,
) -> Vec<Flow> {
    let mut targets = Targets::default();
    for name in services {
        state.service(name).into_iter().for_each(|service| targets.add(state, service));
        if !gone.frontends.is_empty() {
            state.slices_of(name).for_each(|slice| gone.add_endpoints(slice));
        }
    }
    let is_stale = |flow: &Flow| match targets.of(flow, node_addresses) {
        Some(target) => !target.admits(flow),
        None => gone.has(flow, node_addresses),
    };
    flows.into_iter().filter(is_stale).collect()
}

/// The endpoints and the clients that flows to one frontend may have.
#[derive(Clone)]
struct Target {
    serving: Arc<HashSet<SocketAddr>>,
    /// The client addresses that may connect (D17); `None` if all may.
    sources: Option<Arc<Ranges>>,
}

impl Target {
    fn admits(&self, flow: &Flow) -> bool {
        let is_within = |sources: &Arc<Ranges>| sources.contains(flow.client);
        self.serving.contains(&flow.reply_source) && self.sources.as_ref().is_none_or(is_within)
    }
}

/// The frontends of the Services that changed, each with its [`Target`].
#[derive(Default)]
struct Targets {
    addresses: HashMap<SocketAddr, Target>,
    node_ports: HashMap<(Family, u16), Target>,
}

impl Targets {
    fn add(&mut self, state: &State, service: &Service) {
        let slices = PortSlices::of(state.slices_of(&service.name));
        let ranges = |family| Some(Arc::new(Ranges::from_iter(allowed_sources(service, family, state.node())?)));
        let restricted = Family::BOTH.map(ranges);
        let udp = service.ports.iter().enumerate().filter(|(_, port)| port.protocol == Protocol::Udp);
        for (index, port) in udp {
            for (family, sources) in Family::BOTH.into_iter().zip(&restricted) {
                let serving = Arc::new(serving(slices.get(port, family)));
                let owned = service.frontends(port, family).into_iter().map(|(_, frontend)| frontend);
                for frontend in owned.filter(|frontend| state.owns(&service.name, index, frontend)) {
                    let sources = sources.as_ref().filter(|_| is_load_balancer(service, &frontend)).cloned();
                    let target = Target { serving: Arc::clone(&serving), sources };
                    match frontend.destination {
                        Destination::Address(ip) => {
                            self.addresses.insert(SocketAddr::new(ip, frontend.port), target);
                        }
                        Destination::NodePort(family) => {
                            self.node_ports.insert((family, frontend.port), target);
                        }
                    }
                }
            }
        }
    }

    /// Looks up the destination of a flow among the Service addresses (J5), then among the node ports (J6).
    fn of(&self, flow: &Flow, node_addresses: &[IpAddr]) -> Option<&Target> {
        let to = flow.original_destination;
        let node_port = || {
            let target = self.node_ports.get(&(Family::of(to.ip()), to.port()));
            target.filter(|_| node_addresses.contains(&to.ip()))
        };
        self.addresses.get(&to).or_else(node_port)
    }
}

/// The endpoints of a service port with condition `serving`, whatever `ready` and `terminating` are (J3).
fn serving(slices: &[PortSlice<'_>]) -> HashSet<SocketAddr> {
    let mut endpoints = HashSet::new();
    for PortSlice { slice, port, .. } in slices {
        let serving = slice.endpoints.iter().filter(|endpoint| endpoint.conditions.serving);
        endpoints.extend(serving.map(|endpoint| SocketAddr::new(endpoint.address, *port)));
    }
    endpoints
}

/// The UDP endpoints of a slice that have condition `serving`.
fn serving_udp(slice: &EndpointSlice) -> impl Iterator<Item = SocketAddr> {
    let ports = slice.ports.iter().filter(|port| port.protocol == Protocol::Udp);
    let serving = || slice.endpoints.iter().filter(|endpoint| endpoint.conditions.serving);
    ports.flat_map(move |port| serving().map(|endpoint| SocketAddr::new(endpoint.address, port.port)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::Gathered;
    use crate::model::Event;
    use crate::model::testing::{self, name, port, slice, slice_port};

    fn flow(to: &str, answered_by: &str) -> Flow {
        Flow {
            client: "203.0.113.7".parse().unwrap(),
            original_destination: to.parse().unwrap(),
            reply_source: answered_by.parse().unwrap(),
            handle: Vec::new(),
        }
    }

    fn dns(endpoints: &[&str]) -> State {
        let mut service = testing::service("shop/dns", &["10.96.0.10"]);
        service.external_ips = vec!["192.0.2.1".parse().unwrap()];
        service.load_balancer_ips = vec!["198.51.100.1".parse().unwrap()];
        service.ports = vec![port("dns/udp", 53), port("dns-tcp", 53)];
        service.ports[0].node_port = Some(30053);
        let ports = [slice_port("dns/udp", 5353), slice_port("dns-tcp", 5353)];
        let slice = slice("shop/dns-1", "shop/dns", &ports, endpoints);
        testing::state([Event::ServiceApplied(service), Event::SliceApplied(slice)])
    }

    fn deleted(state: &State, flow: Flow) -> bool {
        let node = ["192.168.0.2".parse().unwrap()];
        !stale(state, [&name("shop/dns")], &mut Gone::default(), &node, vec![flow]).is_empty()
    }

    // Clients that source ranges exclude lose their flows to load balancer IPs, but not those to other frontends (J11).
    #[test]
    fn flows_of_clients_out_of_the_source_ranges_are_deleted_on_load_balancer_ips() {
        let mut state = dns(&["10.244.0.1"]);
        let mut service = state.service(&name("shop/dns")).unwrap().clone();
        for (range, excluded) in [("203.0.113.0/24", false), ("203.0.113.8/29", true), ("2001:db8::/32", false)] {
            service.source_ranges = vec![range.parse().unwrap()];
            state.apply(Event::ServiceApplied(service.clone()));
            assert_eq!(deleted(&state, flow("198.51.100.1:53", "10.244.0.1:5353")), excluded, "{range}");
            for frontend in ["10.96.0.10:53", "192.0.2.1:53", "192.168.0.2:30053"] {
                assert!(!deleted(&state, flow(frontend, "10.244.0.1:5353")), "{frontend}");
            }
        }
    }

    // A flow to a removed frontend is deleted if it was translated to an endpoint of that frontend (J10).
    #[test]
    fn of_the_flows_to_a_frontend_that_is_gone_those_to_its_endpoints_are_deleted() {
        let mut state = dns(&["10.244.0.1"]);
        let frontend = |destination, port| Frontend { destination, protocol: Protocol::Udp, port };
        let frontends = [
            frontend(Destination::Address("10.96.0.10".parse().unwrap()), 53),
            frontend(Destination::NodePort(Family::V4), 30053),
        ];
        let mut gone =
            Gone { frontends: frontends.into(), endpoints: HashSet::from(["10.244.0.9:5353".parse().unwrap()]) };
        state.apply(Event::ServiceDeleted(name("shop/dns")));
        let node = ["192.168.0.2".parse().unwrap()];
        let mut deleted = |to: &str, answered_by: &str| {
            !stale(&state, [&name("shop/dns")], &mut gone, &node, vec![flow(to, answered_by)]).is_empty()
        };
        for to in ["10.96.0.10:53", "192.168.0.2:30053"] {
            assert!(deleted(to, "10.244.0.1:5353"), "{to}: an endpoint that its slices still have");
            assert!(deleted(to, "10.244.0.9:5353"), "{to}: an endpoint that went as well");
            assert!(!deleted(to, "10.244.0.5:5353"), "{to}: another program's");
            assert!(!deleted(to, to), "{to}: not translated");
        }
        for to in ["10.96.0.10:54", "10.96.0.11:53", "203.0.113.5:30053", "192.168.0.2:30054"] {
            assert!(!deleted(to, "10.244.0.1:5353"), "{to}: no such frontend is gone");
        }
    }

    // Flows to every address of the Service are examined: cluster IP, external IP and load balancer IP (J5).
    #[test]
    fn a_flow_to_a_removed_endpoint_is_deleted_on_every_address() {
        let state = dns(&["10.244.0.1"]);
        for frontend in ["10.96.0.10:53", "192.0.2.1:53", "198.51.100.1:53"] {
            assert!(deleted(&state, flow(frontend, "10.244.0.9:5353")), "{frontend}");
            assert!(!deleted(&state, flow(frontend, "10.244.0.1:5353")), "{frontend}");
        }
        assert!(!deleted(&state, flow("10.96.0.10:54", "10.244.0.9:5353")), "not a port of the Service");
        assert!(!deleted(&state, flow("10.96.0.11:53", "10.244.0.9:5353")), "not an address of the Service");
    }

    // A flow stays as long as its endpoint has condition `serving`; `ready` and `terminating` do not matter (J3).
    #[test]
    fn an_endpoint_that_serves_keeps_its_flows_even_when_it_terminates() {
        let state = dns(&["10.244.0.1 terminating", "10.244.0.2 unready"]);
        assert!(!deleted(&state, flow("10.96.0.10:53", "10.244.0.1:5353")));
    }

    // A flow of a service port without a serving endpoint is deleted, unlike upstream, so that the client is refused (J4).
    #[test]
    fn without_serving_endpoints_all_flows_are_deleted() {
        assert!(deleted(&dns(&[]), flow("10.96.0.10:53", "10.244.0.1:5353")));
    }

    // A flow to the number of a node port at an address of another machine is not a flow of the Service, unlike upstream (J6).
    #[test]
    fn node_port_flows_count_on_the_nodes_addresses_only() {
        let state = dns(&["10.244.0.1"]);
        assert!(deleted(&state, flow("192.168.0.2:30053", "10.244.0.9:5353")));
        assert!(!deleted(&state, flow("192.168.0.2:30053", "10.244.0.1:5353")));
        assert!(!deleted(&state, flow("203.0.113.5:30053", "203.0.113.5:30053")), "a flow of another host");
    }

    // A flow to a Service that was never translated is older than the rules. It is deleted like a flow to a wrong endpoint (J7).
    #[test]
    fn a_flow_that_was_never_translated_is_deleted() {
        assert!(deleted(&dns(&["10.244.0.1"]), flow("10.96.0.10:53", "10.96.0.10:53")));
    }

    // `has_udp_endpoints` is true if a slice of the Service has a UDP port; only then are the Service's flows examined (B15).
    #[test]
    fn a_service_has_udp_endpoints_by_its_slices() {
        let state = dns(&["10.244.0.1"]);
        assert!(Gathered::of(&state, &name("shop/dns")).has_udp_endpoints());
        assert!(!Gathered::of(&state, &name("shop/other")).has_udp_endpoints());
    }
}
