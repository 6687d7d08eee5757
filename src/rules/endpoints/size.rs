//! Computes the size of a Service before its nftables objects are built.
//!
//! Takes a Service with its slices ([`Gathered`]), returns a [`PortSize`] for each port and each family with a cluster IP. A small
//! EndpointSlice can stand for very many endpoints, because each of its addresses has each of its ports. Counting reads each address at
//! most once for the Service and each slice once for each of its ports, but not each address for each port.
//!
//! Invariant: the selection of a port never has more frontends, sources or entries in a list of endpoints than its [`PortSize`].

use std::collections::BTreeSet;

use foldhash::HashMap;

use crate::model::{EndpointSlice, Family, ObjectName, PortSlices, Scheduler, Service, ServicePort, State};

use super::Gathered;
use super::topology::NodeTopology;
use super::weights::{Weighing, most_slots};

/// The size of a service port in one family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortSize {
    /// Frontends that the port claims, including frontends that another Service owns.
    pub frontends: u64,
    /// The most pairs of a load balancer IP and a source range that may connect to it.
    pub sources: u64,
    /// Endpoints in all slices with this port, ready or not; duplicates count each time.
    pub endpoints: u64,
    /// The most entries that these endpoints have in a list: one for each, or with weights several (E15).
    pub slots: u64,
    /// Different port numbers on the endpoints. Counted only with session affinity, otherwise 0.
    pub targets: u64,
    /// Whether the Service has session affinity (A11).
    pub affinity: bool,
    /// The scheduler that an annotation of the Service asks for, if any.
    pub scheduler: Option<Scheduler>,
}

/// The size of each port of a Service in each family with a cluster IP (A4); empty if the Service is unknown.
pub fn sizes(gathered: &Gathered<'_>) -> Vec<PortSize> {
    let Some(service) = gathered.service else { return Vec::new() };
    let (mut sizes, sums) = (Vec::new(), sums(gathered.state, service));
    for family in Family::BOTH.into_iter().filter(|family| service.cluster_ips.get(*family).is_some()) {
        let addresses = Addresses::of(service, family);
        let size = |port| addresses.size(service, (port, family), &gathered.slices, &sums);
        sizes.extend(service.ports.iter().map(size));
    }
    sizes
}

/// For each slice in which not all weights are 1, the sum of its endpoints' weights. Made once, because many ports may use one slice.
type Sums<'a> = HashMap<&'a ObjectName, u64>;

fn sums<'a>(state: &'a State, service: &Service) -> Sums<'a> {
    let weighing = Weighing::of(service, NodeTopology::of(state));
    let sums = state.slices_of(&service.name).map(|slice| (slice, weighing.sum(slice)));
    let sums = sums.filter(|(slice, sum)| *sum != number(slice.endpoints.len()));
    sums.map(|(slice, sum)| (&slice.name, sum)).collect()
}

/// The counts that are the same for each port of a Service, in one family.
#[derive(Clone, Copy)]
struct Addresses {
    frontends: u64,
    sources: u64,
}

impl Addresses {
    fn of(service: &Service, family: Family) -> Self {
        let ranges = service.source_ranges.iter().filter(|range| Family::of(range.addr()) == family).count();
        let balancers = service.load_balancer_ips.iter().filter(|ip| Family::of(**ip) == family).count();
        // An upper limit: the load balancer IPs are added to the ranges only if a range contains the node's own address (D18).
        let allowed = if ranges == 0 { 0 } else { number(ranges + balancers) };
        Self { frontends: number(service.address_count(family)), sources: number(balancers) * allowed }
    }

    fn size(
        self,
        service: &Service,
        (port, family): (&ServicePort, Family),
        slices: &PortSlices<'_>,
        sums: &Sums<'_>,
    ) -> PortSize {
        let (slices, affinity) = (slices.get(port, family), service.affinity_seconds.is_some());
        let targets = slices.iter().filter(|_| affinity).map(|one| one.port).collect::<BTreeSet<u16>>();
        let of_slice = |slice: &EndpointSlice| number(slice.endpoints.len());
        let endpoints = slices.iter().map(|one| of_slice(one.slice)).sum();
        let sum = |slice: &EndpointSlice| sums.get(&slice.name).copied().unwrap_or_else(|| of_slice(slice));
        PortSize {
            frontends: self.frontends + u64::from(port.node_port.is_some()),
            sources: self.sources,
            endpoints,
            slots: most_slots(endpoints, slices.iter().map(|one| sum(one.slice)).sum()),
            targets: number(targets.len()),
            affinity,
            scheduler: service.scheduler,
        }
    }
}

/// The most entries that the endpoints of a Service in a family have in a list of one of its ports (E15).
pub(crate) fn slots(state: &State, service: &Service, family: Family) -> u64 {
    let weighing = Weighing::of(service, NodeTopology::of(state));
    let slices = state.slices_of(&service.name).filter(|slice| slice.family == family);
    let (endpoints, sum) = slices
        .fold((0, 0), |(endpoints, sum), slice| (endpoints + number(slice.endpoints.len()), sum + weighing.sum(slice)));
    most_slots(endpoints, sum)
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing::{name, port, service, slice, slice_port, state};
    use crate::model::{Event, Weights};

    const WEB: &str = "ns/web";

    fn sizes_in(state: &State) -> Vec<PortSize> {
        sizes(&Gathered::of(state, &name(WEB)))
    }

    #[test]
    fn each_family_counts_its_own_frontends_sources_and_endpoints() {
        let mut web = service(WEB, &["172.30.0.1", "fd30::1"]);
        web.ports = vec![port("http", 80), port("https", 443)];
        web.ports[1].node_port = Some(30443);
        web.external_ips = vec!["192.0.2.1".parse().unwrap()];
        web.load_balancer_ips = vec!["198.51.100.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
        web.source_ranges = vec!["203.0.113.0/24".parse().unwrap(), "203.0.114.0/24".parse().unwrap()];
        let ports = [slice_port("http", 8080), slice_port("https", 8443)];
        let endpoints = ["10.0.0.1", "10.0.0.2 unready"];
        let events = [
            Event::SliceApplied(slice("ns/a", WEB, &ports, &endpoints)),
            Event::SliceApplied(slice("ns/b", WEB, &ports[..1], &["10.0.0.1"])),
            Event::SliceApplied(slice("ns/c", WEB, &ports, &["fd00::1"])),
            Event::ServiceApplied(web),
        ];
        let size = |frontends, sources, endpoints| PortSize {
            frontends,
            sources,
            endpoints,
            slots: endpoints,
            ..PortSize::default()
        };
        assert_eq!(sizes_in(&state(events)), [size(3, 3, 3), size(4, 3, 2), size(2, 0, 1), size(3, 0, 1)]);
    }

    #[test]
    fn port_numbers_are_counted_where_clients_are_remembered() {
        let mut web = service(WEB, &["172.30.0.1"]);
        web.ports = vec![port("http", 80)];
        web.affinity_seconds = Some(10);
        let slices = [("ns/a", 8080), ("ns/b", 8080), ("ns/c", 9090)];
        let slices = slices.map(|(name, port)| slice(name, WEB, &[slice_port("http", port)], &["10.0.0.1"]));
        let events = slices.map(Event::SliceApplied).into_iter().chain([Event::ServiceApplied(web)]);
        let size = PortSize { frontends: 1, endpoints: 3, slots: 3, targets: 2, affinity: true, ..PortSize::default() };
        assert_eq!(sizes_in(&state(events)), [size]);
    }

    // With weights the size is counted in entries of the lists, and not in endpoints (E15, E16).
    #[test]
    fn weights_are_counted_as_the_list_has_them() {
        let mut web = service(WEB, &["172.30.0.1"]);
        web.ports = vec![port("http", 80), port("https", 443)];
        web.weights = Weights { local: Some(50), zone: None };
        let here = ["10.0.0.1 @here", "10.0.0.2", "10.0.0.3"];
        let both = slice("ns/a", WEB, &[slice_port("http", 8080), slice_port("https", 8443)], &here);
        let one = EndpointSlice { weight: 3, ..slice("ns/b", WEB, &[slice_port("https", 8443)], &["10.0.0.4"]) };
        let events = [Event::SliceApplied(both), Event::SliceApplied(one), Event::ServiceApplied(web.clone())];
        let slots = |state: &State| sizes_in(state).iter().map(|size| (size.endpoints, size.slots)).collect::<Vec<_>>();
        assert_eq!(slots(&state(events.clone())), [(3, 52), (4, 55)]);
        assert_eq!(super::slots(&state(events), &web, Family::V4), 55);
        // However large the sum of the weights is, the list is shortened to about 10,000 entries, so that it takes little memory and time.
        let many: Vec<String> = (0..255).map(|n| format!("10.0.1.{n} @here")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let heavy = EndpointSlice { weight: 100, ..slice("ns/a", WEB, &[slice_port("http", 8080)], &many) };
        let events = [Event::SliceApplied(heavy), Event::ServiceApplied(web)];
        assert_eq!(slots(&state(events))[0], (255, 10_000 + 255));
    }

    #[test]
    fn an_unknown_service_has_no_size_however_many_slices_it_has() {
        let orphan = Event::SliceApplied(slice("ns/a", WEB, &[slice_port("http", 80)], &["10.0.0.1"]));
        assert_eq!(sizes_in(&state([orphan])), []);
    }
}
