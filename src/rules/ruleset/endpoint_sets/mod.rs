//! The endpoints of frontends as elements of maps, and how one of them is chosen: the same in every layout.
//!
//! ```text
//!  @endpoints (frontend . slot : endpoint): slots 0 to N - 1 of a frontend hold its endpoints
//!      │ looked up with the packet's frontend and a number: numgen random mod N, or a hash of its source
//!      ▼
//!    dnat
//! ```
//!
//! Takes a service port as it was selected, and adds to its objects: the endpoints of a frontend ([`fill`]), the endpoints on this node
//! ([`of_port`]), and what session affinity needs ([`Affinity`]). [`Balancer`] gives the rules that pick an endpoint. Pure.
//!
//! No chain, rule or set exists for an endpoint, so that one that is replaced is one element, whatever else there is in the table.
//!
//! With `nftables.endpointMaps` above 1 there are so many of each map, `endpoints.0` and so on, and each service port has its endpoints in one of
//! them (`part_of`). The kernel lists a map in pieces of 32 KiB and walks from its first element to each of them (`nft_hash_walk` in
//! `net/netfilter/nft_set_hash.c`), so that reading a map takes a time that grows with the square of its size.

mod affinity;
mod balancer;
mod maglev;

use std::net::SocketAddr;

use nft::{Data, DataType, Element, Field, Set, Types, Value, ValueType};

use super::balancing::Balancing;
use super::names::{ENDPOINT_MAPS, FrontendType, List, endpoint_maps, set};
use super::shared::{Fields, commented};
use super::stable_hash::{fnv1a, mix};
use super::{Settings, notes};
use crate::endpoints::size::PortSize;
use crate::endpoints::{Action, PortSelection};
use crate::model::{Destination, Frontend, Protocol, Scheduler};
use crate::table::{FIRST_PLACE, ServiceObjects, SetName, Slots};

pub(super) use affinity::{Affinity, MAX_CLIENTS, chains as affinity_chains, sets as affinity_sets};
pub(super) use balancer::{Balancer, Pick};

/// Slot numbers are typed as what `numgen` gives below this number; it bounds nothing but the text of the type.
pub(super) const SLOT_TYPE: Field = Field::NumgenRandom(1 << 16);

/// The key of a frontend in the maps of its kind.
pub(super) fn key(frontend: &Frontend) -> Data {
    let protocol = frontend.protocol.number();
    match frontend.destination {
        Destination::Address(ip) => Data::from(ip).then(protocol).then(frontend.port),
        Destination::NodePort(_) => Data::from(protocol).then(frontend.port),
    }
}

impl List {
    /// The endpoints of a service port.
    pub(super) fn of(self, port: &PortSelection) -> &[SocketAddr] {
        match self {
            Self::Cluster => &port.cluster,
            Self::Local => &port.local,
        }
    }

    /// Whether an action leads packets to this list.
    pub(super) const fn is_used_by(self, action: &Action) -> bool {
        match action {
            Action::ByOrigin => true,
            Action::Cluster { .. } => matches!(self, Self::Cluster),
            Action::Local => matches!(self, Self::Local),
            Action::Drop | Action::Reject => false,
        }
    }
}

/// Which of several maps has the endpoints of a service port; `None` where there is only one.
fn part_of(maps: u8, port: &PortSelection) -> Option<u8> {
    if maps <= 1 {
        return None;
    }
    let hash = mix(fnv1a(port.label.as_bytes()) ^ u64::from(port.protocol.number()));
    Some(u8::try_from(hash % u64::from(maps)).unwrap_or_default())
}

/// The names of all maps from frontend and number to endpoint.
pub(super) fn all_maps(parts: u8) -> Vec<SetName> {
    ENDPOINT_MAPS.into_iter().flat_map(|(frontend_type, list)| endpoint_maps(frontend_type, list, parts)).collect()
}

/// The set of endpoints on this node.
pub(super) fn hairpin_set(fields: &Fields) -> Set {
    let pair = vec![fields.address, fields.address, DataType::InetProto, DataType::InetService];
    commented(Set::new(set::HAIRPIN, Types::Named(pair)), "Local endpoints that may reach themselves")
}

/// The maps from frontend and number to endpoint, for one kind of frontend.
pub(super) fn slot_maps(fields: &Fields, frontend_type: FrontendType, parts: u8) -> Vec<Set> {
    let slots = |list: List, comment| {
        let key: Vec<Field> = fields.of_type(frontend_type).into_iter().chain([SLOT_TYPE]).collect();
        let endpoint = Types::Of(vec![fields.destination, Field::ThDport]);
        endpoint_maps(frontend_type, list, parts).map(move |name| {
            commented(Set::map(&name, Types::Of(key.clone()), ValueType::Data(endpoint.clone())), comment)
        })
    };
    let cluster = slots(List::Cluster, "Front . slot : endpoint of the cluster");
    cluster.chain(slots(List::Local, "Front . slot : endpoint on this node")).collect()
}

/// The sets whose keys several Services may have: two may claim one cluster IP, and be served by the same endpoints.
pub(super) fn shared_sets() -> Vec<SetName> {
    vec![set::CLUSTER_IPS.into(), set::HAIRPIN.into()]
}

/// Writes what a service port has whatever its frontends are: its endpoints on this node, and the answer of its health check.
pub(super) fn of_port(port: &PortSelection, objects: &mut ServiceObjects) {
    objects.extend(set::HEALTH_CHECKS, notes::element(port));
    objects.extend(set::HAIRPIN, port.hairpin.iter().map(|endpoint| hairpin(*endpoint, port.protocol)));
}

/// A local endpoint as source and destination: how a packet looks after the translation that the endpoint sends to itself (D10).
fn hairpin(endpoint: SocketAddr, protocol: Protocol) -> Element {
    let address = Data::from(endpoint.ip());
    Element::new(address.then(address).then(protocol.number()).then(endpoint.port()))
}

fn endpoint_data(endpoint: &SocketAddr) -> Data {
    Data::from(endpoint.ip()).then(endpoint.port())
}

/// A frontend with one endpoint, in a map without slots.
pub(super) fn only(frontend: &Frontend, endpoint: &SocketAddr) -> Element {
    Element::mapping(key(frontend), Value::Data(endpoint_data(endpoint)))
}

/// How an endpoint of a list is picked for frontends of a kind.
pub(super) fn balancer(settings: &Settings, port: &PortSelection, frontend_type: FrontendType, list: List) -> Balancer {
    let (count, balancing) = (list.of(port).len(), settings.balancing);
    let Balancing { with_port, .. } = balancing;
    let pick = match balancing.scheduler(port.scheduler, count) {
        Scheduler::Random => Pick::Random(count),
        Scheduler::SourceHash => Pick::Hash { count, with_port },
        Scheduler::Maglev => Pick::Table { places: balancing.places(count), with_port },
    };
    Balancer { frontend_type, list, masquerade: false, pick, part: part_of(settings.endpoint_maps, port) }
}

/// Writes the endpoints for a frontend where its balancer finds them.
pub(super) fn fill(objects: &mut ServiceObjects, port: &PortSelection, frontend: &Frontend, balancer: Balancer) {
    let Balancer { list, pick, .. } = balancer;
    let (endpoints, key, set) = (list.of(port), key(frontend), balancer.map());
    let mut slots = endpoints;
    if let Pick::Table { places, .. } = pick {
        let taken = maglev::places(places, endpoints).into_iter().map(|(place, number)| {
            Element::mapping(key.then(FIRST_PLACE + place), Value::Data(endpoint_data(&endpoints[number])))
        });
        objects.elements.extend(taken.map(|element| (set.clone(), element)));
        slots = maglev::last_resort(endpoints);
    }
    let values = slots.iter().map(endpoint_data).collect();
    let is_fixed = !matches!(pick, Pick::Random(_));
    objects.slots.push(Slots { set, prefix: key, values, is_fixed });
}

/// The weight of the elements of a service port of this size, with the objects of its session affinity.
pub(super) fn weight(balancing: Balancing, size: &PortSize) -> u64 {
    let PortSize { frontends, sources, endpoints, scheduler, .. } = *size;
    let slots = frontends.saturating_mul(balancing.elements(scheduler, endpoints).saturating_add(1));
    slots.saturating_add(sources).saturating_add(affinity::weight(size))
}
