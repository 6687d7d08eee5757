//! Gives Services the cluster IPs and node ports that an API server would give them, for commands that show what manifests would do.
//!
//! The module takes the events of all manifests, in which [`ASSIGN`] and [`ASSIGN_PORT`] mark what is missing, and replaces each mark. It
//! returns a sentence for each Service that got something, and a problem for each address or port that it lacks because none is free. A
//! Service that gets no cluster IP at all is removed. The module does no I/O.
//!
//! The choice depends on the Service's name, and not on the order of the manifests: a hash of the name gives the first address to try, and
//! the Service gets the first free address from there on. So most Services keep their addresses when another one is added. This module does
//! not choose from the first part of a range, which an API server leaves to people who choose by hand as long as the rest is not used up
//! (KEP-3070 for addresses, KEP-3668 for node ports).

use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::sync::Arc;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::ManifestProblem;
use crate::source::convert::{ASSIGN, ASSIGN_PORT};
use rules::model::{ClusterIps, Event, Family, ObjectName, Service};
use rules::ruleset::stable_hash::{fnv1a, mix};

/// The range of an IP family for which the manifests have no ServiceCIDR: the default of kubeadm for IPv4, and of kind for IPv6.
const DEFAULT_V4: Ipv4Net = Ipv4Net::new_assert(Ipv4Addr::new(10, 96, 0, 0), 12);
const DEFAULT_V6: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, 0), 112);
/// The part of the default range from which an API server chooses node ports first: 30000 to 32767 without the first 86 (KEP-3668).
const FIRST_NODE_PORT: u16 = 30_086;
const NODE_PORTS: u64 = 32_768 - FIRST_NODE_PORT as u64;
/// At most this many addresses of a range are used: far more than a cluster has Services.
const MOST_ADDRESSES: u64 = 1 << 20;

/// Replaces the marks in these events. Returns a sentence for each Service that got something, and the problems.
pub(super) fn assign(events: &mut Vec<Event>) -> (Vec<String>, Vec<ManifestProblem>) {
    let mut free = Free::new(events);
    let with_slices: BTreeSet<ObjectName> = events
        .iter()
        .filter_map(|event| match event {
            Event::SliceApplied(slice) => Some(slice.service.clone()),
            _ => None,
        })
        .collect();
    let mut services: Vec<&mut Service> = services_mut(events).collect();
    services.sort_by(|a, b| a.name.cmp(&b.name));
    let (mut notes, mut problems) = (Vec::new(), Vec::new());
    for service in services {
        let (mut said, lacks) = free.give(service);
        if said.iter().any(|text| text.starts_with("no clusterIP")) && !with_slices.contains(&service.name) {
            said.push("no EndpointSlice: rendered without endpoints".to_owned());
        }
        if !said.is_empty() {
            notes.push(format!("{} has {}", service.name, said.join("; ")));
        }
        problems.extend(lacks.into_iter().map(|what| {
            let text = format!("Service {}: cannot get {what}", service.name);
            ManifestProblem::of_file(&Arc::from(Path::new("the manifests")), text)
        }));
    }
    events.retain(
        |event| !matches!(event, Event::ServiceApplied(service) if service.cluster_ips == ClusterIps::default()),
    );
    (notes, problems)
}

fn services_mut(events: &mut [Event]) -> impl Iterator<Item = &mut Service> {
    events.iter_mut().filter_map(|event| match event {
        Event::ServiceApplied(service) => Some(service),
        _ => None,
    })
}

/// The addresses and node ports that no Service has yet.
struct Free {
    ranges: Vec<Range>,
    node_ports: Places,
    /// Whether there are ServiceCIDRs and all are IPv6: a Service that would get only an IPv4 address then gets an IPv6 address.
    is_v6_only: bool,
}

impl Free {
    fn new(events: &mut [Event]) -> Self {
        let mut cidrs: Vec<IpNet> = events
            .iter()
            .filter_map(|event| match event {
                Event::ServiceCidrApplied(_, cidrs) => Some(cidrs.clone()),
                _ => None,
            })
            .flatten()
            .collect();
        let has = |cidrs: &[IpNet], family| cidrs.iter().any(|cidr| Family::of(cidr.addr()) == family);
        let is_v6_only = !cidrs.is_empty() && !has(&cidrs, Family::V4);
        let defaults = [IpNet::from(DEFAULT_V4), IpNet::from(DEFAULT_V6)];
        let missing = defaults.into_iter().filter(|default| !has(&cidrs, Family::of(default.addr())));
        cidrs.extend(missing.collect::<Vec<_>>());
        cidrs.sort();
        let mut free = Self {
            ranges: cidrs.into_iter().map(Range::new).collect(),
            node_ports: Places::new(NODE_PORTS),
            is_v6_only,
        };
        services_mut(events).for_each(|service| free.occupy(service));
        free
    }

    /// Removes the addresses and node ports that a Service has already, external IPs and load balancer IPs included.
    fn occupy(&mut self, service: &Service) {
        let own = Family::BOTH.into_iter().filter_map(|family| service.cluster_ips.get(family));
        for ip in own.chain(service.external_ips.iter().chain(&service.load_balancer_ips).copied()) {
            for range in &mut self.ranges {
                if let Some(place) = range.place(ip) {
                    range.places.occupy(place);
                }
            }
        }
        let ports = service.ports.iter().filter_map(|port| port.node_port).chain(service.health_check_node_port);
        for place in ports.filter_map(|port| port.checked_sub(FIRST_NODE_PORT)) {
            self.node_ports.occupy(place.into());
        }
    }

    /// Replaces the marks of a Service. Returns texts about the values that the Service got, and about those that it lacks because none is
    /// free.
    fn give(&mut self, service: &mut Service) -> (Vec<String>, Vec<String>) {
        let (mut said, mut lacks) = (Vec::new(), Vec::new());
        let name = service.name.to_string();
        self.give_cluster_ips(&name, &mut service.cluster_ips, &mut said, &mut lacks);
        for port in service.ports.iter_mut().filter(|port| port.node_port == Some(ASSIGN_PORT)) {
            let what = if port.name.is_empty() { port.port.to_string() } else { port.name.to_string() };
            port.node_port = self.node_port(&format!("{name}:{what}/{}", port.protocol));
            match port.node_port {
                Some(number) => said.push(format!("no nodePort for {what}: rendered with {number}")),
                None => lacks.push(format!("a nodePort for {what}: none is left")),
            }
        }
        if service.health_check_node_port == Some(ASSIGN_PORT) {
            service.health_check_node_port = self.node_port(&format!("{name} healthCheckNodePort"));
            match service.health_check_node_port {
                Some(number) => said.push(format!("no healthCheckNodePort: rendered with {number}")),
                None => lacks.push("a healthCheckNodePort: no node port is left".to_owned()),
            }
        }
        (said, lacks)
    }

    fn give_cluster_ips(&mut self, name: &str, ips: &mut ClusterIps, said: &mut Vec<String>, lacks: &mut Vec<String>) {
        if self.is_v6_only && *ips == (ClusterIps { v6: None, ..ASSIGN }) {
            *ips = ClusterIps { v4: None, ..ASSIGN };
        }
        let (wanted, mut given) = (*ips, Vec::new());
        let is_wanted = |family: &Family| wanted.get(*family).is_some_and(|ip| ip.is_unspecified());
        for family in Family::BOTH.into_iter().filter(is_wanted) {
            let mut ranges = self.ranges.iter_mut().filter(|range| Family::of(range.first) == family);
            let ip = ranges.find_map(|range| range.take(name));
            match (family, ip) {
                (Family::V4, Some(IpAddr::V4(ip))) => ips.v4 = Some(ip),
                (Family::V6, Some(IpAddr::V6(ip))) => ips.v6 = Some(ip),
                (Family::V4, _) => ips.v4 = None,
                (Family::V6, _) => ips.v6 = None,
            }
            match ip {
                Some(ip) => given.push(ip.to_string()),
                None => lacks.push(format!("an {family} clusterIP: the ServiceCIDR has no free address")),
            }
        }
        if !given.is_empty() {
            said.push(format!("no clusterIP: rendered with {}", given.join(" and ")));
        }
    }

    fn node_port(&mut self, of: &str) -> Option<u16> {
        let place = self.node_ports.take(of)?;
        u16::try_from(u64::from(FIRST_NODE_PORT) + place).ok()
    }
}

/// The addresses of a ServiceCIDR that may be assigned.
struct Range {
    first: IpAddr,
    places: Places,
}

impl Range {
    /// Returns the range without the network's address, the IPv4 broadcast address and the part from which people choose by hand, and with
    /// at most [`MOST_ADDRESSES`].
    fn new(cidr: IpNet) -> Self {
        let size = 1_u64.checked_shl((cidr.max_prefix_len() - cidr.prefix_len()).into()).unwrap_or(u64::MAX);
        let by_hand = if size > 32 { (size / 16).clamp(16, 256) } else { 0 };
        let count = size.saturating_sub(by_hand + 1 + u64::from(matches!(cidr, IpNet::V4(_))));
        Self { first: moved(cidr.network(), by_hand + 1), places: Places::new(count.min(MOST_ADDRESSES)) }
    }

    fn place(&self, ip: IpAddr) -> Option<u64> {
        let distance = match (ip, self.first) {
            (IpAddr::V4(ip), IpAddr::V4(first)) => u64::from(u32::from(ip).checked_sub(first.into())?),
            (IpAddr::V6(ip), IpAddr::V6(first)) => u64::try_from(u128::from(ip).checked_sub(first.into())?).ok()?,
            _ => return None,
        };
        (distance < self.places.count).then_some(distance)
    }

    fn take(&mut self, name: &str) -> Option<IpAddr> {
        self.places.take(name).map(|place| moved(self.first, place))
    }
}

/// Returns the address that comes `places` after `ip`.
fn moved(ip: IpAddr, places: u64) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => Ipv4Addr::from(u32::from(ip).wrapping_add(u32::try_from(places).unwrap_or(u32::MAX))).into(),
        IpAddr::V6(ip) => Ipv6Addr::from(u128::from(ip).wrapping_add(places.into())).into(),
    }
}

/// Places with the numbers 0 to `count - 1` (the addresses of a range, or node ports), some of which are taken. Finds a free place fast,
/// even if many names have the same hash.
struct Places {
    count: u64,
    /// For each taken place, where the search goes on: at the next free place, or at a taken place before it.
    next: HashMap<u64, u64>,
}

impl Places {
    fn new(count: u64) -> Self {
        Self { count, next: HashMap::new() }
    }

    fn occupy(&mut self, place: u64) {
        if place < self.count {
            self.next.entry(place).or_insert((place + 1) % self.count);
        }
    }

    /// Takes the place that the hash of a name gives, or the next free one; `None` when all are taken.
    fn take(&mut self, name: &str) -> Option<u64> {
        if u64::try_from(self.next.len()).is_ok_and(|taken| taken >= self.count) {
            return None;
        }
        let (mut place, mut passed) = (mix(fnv1a(name.as_bytes())) % self.count, Vec::new());
        while let Some(next) = self.next.get(&place) {
            passed.push(place);
            place = *next;
        }
        let next = (place + 1) % self.count;
        passed.into_iter().chain([place]).for_each(|taken| {
            self.next.insert(taken, next);
        });
        Some(place)
    }
}
