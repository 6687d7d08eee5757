//! Computes the answer of a Service's health-check node port to load balancers (K2).

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::model::{Family, Service};

use super::topology::NodeTopology;
use super::weights::Entry;

/// The answer of a Service's health-check node port in one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The IP family whose endpoints are counted.
    pub family: Family,
    /// The port number, on the node's addresses.
    pub port: u16,
    /// The number of different addresses of endpoints on this node that are Ready and not terminating, over all ports of the Service (K2).
    pub local_endpoints: usize,
}

/// Counts, port by port, the local endpoints that a Service's health-check node port reports; counts nothing if the Service has no port of
/// this kind (A13).
pub(super) struct Counting<'a> {
    port: Option<u16>,
    node: NodeTopology<'a>,
    addresses: BTreeSet<(Family, IpAddr)>,
}

impl<'a> Counting<'a> {
    pub(super) fn new(service: &Service, node: NodeTopology<'a>) -> Self {
        Self { port: service.health_check_node_port, node, addresses: BTreeSet::new() }
    }

    /// Adds the endpoints of a service port in a family.
    pub(super) fn add(&mut self, family: Family, endpoints: &[Entry<'_>]) {
        if self.port.is_none() {
            return;
        }
        for Entry { endpoint, .. } in endpoints {
            let conditions = endpoint.conditions;
            if conditions.ready && !conditions.terminating && self.node.is_local(endpoint) {
                self.addresses.insert((family, endpoint.address));
            }
        }
    }

    /// One health check for each family in which the Service has a cluster IP (A4).
    pub(super) fn checks(&self, families: impl Iterator<Item = Family>) -> Vec<HealthCheck> {
        let Some(port) = self.port else { return Vec::new() };
        let count = |family| self.addresses.iter().filter(|(of, _)| *of == family).count();
        families.map(|family| HealthCheck { family, port, local_endpoints: count(family) }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::select;
    use crate::model::testing::{name, port, service, slice, slice_port, state};
    use crate::model::{EndpointSlice, Event};

    const SERVICE: &str = "ns/web";

    fn checks(cluster_ips: &[&str], slices: Vec<EndpointSlice>) -> Vec<(Family, u16, usize)> {
        let mut web = service(SERVICE, cluster_ips);
        web.health_check_node_port = Some(30000);
        web.ports = vec![port("http", 80), port("dns/udp", 53)];
        let events = slices.into_iter().map(Event::SliceApplied).chain([Event::ServiceApplied(web)]);
        let selection = select(&state(events), &name(SERVICE)).unwrap();
        selection.health_checks.iter().map(|check| (check.family, check.port, check.local_endpoints)).collect()
    }

    fn http(slice_name: &str, endpoints: &[&str]) -> EndpointSlice {
        slice(slice_name, SERVICE, &[slice_port("http", 8080)], endpoints)
    }

    // Terminating endpoints, unready endpoints, and endpoints on other nodes are not counted (K2).
    #[test]
    fn only_ready_endpoints_on_this_node_count() {
        let endpoints = ["10.0.0.1 @here", "10.0.0.2 @there", "10.0.0.3", "10.0.0.4 @here unready", "10.0.0.5 @here"];
        assert_eq!(checks(&["172.30.0.1"], vec![http("ns/a", &endpoints)]), [(Family::V4, 30000, 2)]);
    }

    // A terminating endpoint is not counted, whatever `ready` says (K2).
    #[test]
    fn terminating_endpoints_never_count_even_while_they_serve() {
        // With publishNotReadyAddresses an endpoint has `ready: true` until it is removed.
        let endpoints = ["10.0.0.1 @here terminating", "10.0.0.2 @here dead", "10.0.0.3 @here published"];
        assert_eq!(checks(&["172.30.0.1"], vec![http("ns/a", &endpoints)]), [(Family::V4, 30000, 0)]);
    }

    // The health check counts different addresses, not endpoints (K2).
    #[test]
    fn an_address_counts_once_over_all_ports_and_slices() {
        let dns = slice("ns/b", SERVICE, &[slice_port("dns/udp", 5353)], &["10.0.0.1 @here", "10.0.0.2 @here"]);
        let slices = vec![http("ns/a", &["10.0.0.1 @here"]), dns];
        assert_eq!(checks(&["172.30.0.1"], slices), [(Family::V4, 30000, 2)]);
    }

    // Each family has a number of its own, which counts only endpoints of this family (K2).
    #[test]
    fn each_family_of_the_service_counts_its_own() {
        let slices = vec![http("ns/a", &["10.0.0.1 @here", "10.0.0.2 @here"]), http("ns/b", &["fd00::1 @here"])];
        let both = checks(&["172.30.0.1", "fd30::1"], slices.clone());
        assert_eq!(both, [(Family::V4, 30000, 2), (Family::V6, 30000, 1)]);
        assert_eq!(checks(&["fd30::1"], slices), [(Family::V6, 30000, 1)]);
    }

    // The health-check node port belongs to the Service, so it has an answer even if the Service has no other ports (K2).
    #[test]
    fn a_service_without_ports_has_its_health_check() {
        let mut web = service(SERVICE, &["172.30.0.1"]);
        web.health_check_node_port = Some(30000);
        let selection = select(&state([Event::ServiceApplied(web)]), &name(SERVICE)).unwrap();
        let none_local = HealthCheck { family: Family::V4, port: 30000, local_endpoints: 0 };
        assert_eq!((selection.ports, selection.health_checks), (vec![], vec![none_local]));
    }

    // Only a Service with `healthCheckNodePort` has a health check (A13).
    #[test]
    fn a_service_without_the_port_has_no_health_check() {
        let state = state([Event::ServiceApplied(service(SERVICE, &["172.30.0.1"]))]);
        assert_eq!(select(&state, &name(SERVICE)).unwrap().health_checks, []);
        assert_eq!(select(&state, &name("ns/unknown")), None);
    }
}
