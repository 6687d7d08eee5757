//! Finds the UDP flows whose endpoint no longer serves, and counts what goes through each front ([`traffic`]).
//!
//! Takes the [`State`], the Services that changed and the flows that the kernel tracks, gives the flows to delete. Pure; the kernel
//! module lists and deletes. UDP has no end of a connection: without this, the packets of a client that keeps sending would go to a
//! removed endpoint for as long as it sends. TCP and SCTP flows are never deleted (J9).
//!
//! Only the Services that changed are examined: a flow of another Service was right when that Service changed last, and its endpoints
//! are still the same.
//!
//! Two differences from upstream. Flows of a service port without serving endpoints are deleted as well, so that the client gets a
//! refusal and not silence (upstream has a bug there, J4). A flow to the number of a node port is deleted only if it goes to an address
//! of this node; upstream deletes flows of other programs to that port (J6).

pub mod traffic;

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::model::{Backend, Backends, Destination, Family, ObjectName, Protocol, Service, State};

/// A UDP flow that the kernel tracks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The destination of the client's packets.
    pub original_destination: SocketAddr,
    /// The source of the answers: the endpoint, or the destination itself when it was never translated (J7).
    pub reply_source: SocketAddr,
    /// What the kernel module needs to delete the flow.
    pub handle: Vec<u8>,
}

/// The flows to delete: those to an address and port of one of the Services whose endpoint does not serve that port.
///
/// `node_addresses` are the addresses of this node.
pub(crate) fn stale<'a>(
    state: &State,
    services: impl IntoIterator<Item = &'a ObjectName>,
    node_addresses: &[IpAddr],
    flows: Vec<Flow>,
) -> Vec<Flow> {
    let mut targets = Targets::default();
    for service in services.into_iter().filter_map(|name| state.service(name)) {
        targets.add(state, service);
    }
    flows.into_iter().filter(|flow| targets.is_stale(flow, node_addresses)).collect()
}

type Endpoints = Arc<HashSet<SocketAddr>>;

/// The endpoints that serve each address and port.
#[derive(Default)]
struct Targets {
    addresses: HashMap<SocketAddr, Endpoints>,
    node_ports: HashMap<(Family, u16), Endpoints>,
}

impl Targets {
    fn add(&mut self, state: &State, service: &Service) {
        let backends = Backends::of(state.slices_of(&service.name));
        let udp = service.ports.iter().enumerate().filter(|(_, port)| port.protocol == Protocol::Udp);
        for (index, port) in udp {
            for family in Family::BOTH {
                let serving: Endpoints = Arc::new(serving(backends.get(port, family)));
                let owned = service.fronts(port, family).into_iter().map(|(_, front)| front);
                for front in owned.filter(|front| state.owns(&service.name, index, front)) {
                    let serving = Arc::clone(&serving);
                    match front.destination {
                        Destination::Address(ip) => {
                            self.addresses.insert(SocketAddr::new(ip, front.port), serving);
                        }
                        Destination::NodePort(family) => {
                            self.node_ports.insert((family, front.port), serving);
                        }
                    }
                }
            }
        }
    }

    /// Looks for the destination among the addresses (J5), then among the node ports (J6).
    fn is_stale(&self, flow: &Flow, node_addresses: &[IpAddr]) -> bool {
        let to = flow.original_destination;
        let node_port = || {
            let serving = self.node_ports.get(&(Family::of(to.ip()), to.port()));
            serving.filter(|_| node_addresses.contains(&to.ip()))
        };
        self.addresses.get(&to).or_else(node_port).is_some_and(|serving| !serving.contains(&flow.reply_source))
    }
}

/// The endpoints of a service port that serve, ready or not, terminating or not (J3).
fn serving(backends: &[Backend<'_>]) -> HashSet<SocketAddr> {
    let mut endpoints = HashSet::new();
    for Backend { slice, port, .. } in backends {
        let serving = slice.endpoints.iter().filter(|endpoint| endpoint.conditions.serving);
        endpoints.extend(serving.map(|endpoint| SocketAddr::new(endpoint.address, *port)));
    }
    endpoints
}

/// Whether a Service has UDP endpoints (B15).
#[must_use]
pub(crate) fn has_udp_endpoints(state: &State, service: &ObjectName) -> bool {
    state.slices_of(service).flat_map(|slice| &slice.ports).any(|port| port.protocol == Protocol::Udp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Event;
    use crate::model::testing::{self, name, port, slice, slice_port};

    fn flow(to: &str, answered_by: &str) -> Flow {
        Flow {
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
        !stale(state, [&name("shop/dns")], &node, vec![flow]).is_empty()
    }

    // Every address of the Service counts (J5).
    #[test]
    fn a_flow_to_a_removed_endpoint_is_deleted_on_every_address() {
        let state = dns(&["10.244.0.1"]);
        for front in ["10.96.0.10:53", "192.0.2.1:53", "198.51.100.1:53"] {
            assert!(deleted(&state, flow(front, "10.244.0.9:5353")), "{front}");
            assert!(!deleted(&state, flow(front, "10.244.0.1:5353")), "{front}");
        }
        assert!(!deleted(&state, flow("10.96.0.10:54", "10.244.0.9:5353")), "not a port of the Service");
        assert!(!deleted(&state, flow("10.96.0.11:53", "10.244.0.9:5353")), "not an address of the Service");
    }

    // An endpoint may answer a flow if it serves; readiness and termination do not matter (J3).
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

    // A flow that was never translated is older than the rules, and is deleted as one to a wrong endpoint (J7).
    #[test]
    fn a_flow_that_was_never_translated_is_deleted() {
        assert!(deleted(&dns(&["10.244.0.1"]), flow("10.96.0.10:53", "10.96.0.10:53")));
    }

    // A Service with UDP endpoints is examined (B15).
    #[test]
    fn a_service_has_udp_endpoints_by_its_slices() {
        let state = dns(&["10.244.0.1"]);
        assert!(has_udp_endpoints(&state, &name("shop/dns")));
        assert!(!has_udp_endpoints(&state, &name("shop/other")));
    }
}
