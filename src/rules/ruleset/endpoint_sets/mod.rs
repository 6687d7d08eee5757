//! Endpoints as elements of maps, and the rules that choose one of them: the same in every ruleset layout in which endpoints have no chains.
//!
//! ```text
//!  @endpoints (frontend . slot : endpoint): slots (numbers) 0 to N - 1 of a frontend hold its endpoints
//!      │ looked up with the packet's frontend and a number: numgen random mod N, or a hash of its source
//!      ▼
//!    dnat
//! ```
//!
//! Takes the selection of a service port, and adds to its objects: the endpoints of a frontend ([`fill`]), the endpoints on this node
//! ([`of_port`]), and the maps and chains of session affinity ([`Affinity`]). [`Balancer`] makes the rules that choose an endpoint. Pure.
//!
//! No chain, rule or set exists for an endpoint, so replacing an endpoint changes only elements (with scheduler `random` one for each
//! frontend), whatever the size of the table.
//!
//! In a large table ([`map_steps`](super::map_steps)) each map is split into several (`endpoints.0` and so on), and a service port has its
//! endpoints in one of these (`part_of`). The kernel lists a map in pieces of 32 KiB and walks from its first element to each piece
//! (`nft_hash_walk` in `net/netfilter/nft_set_hash.c`), so the time to read a map grows with the square of its size.

mod affinity;
mod balancer;
mod maglev;

use std::net::SocketAddr;

use nft::{Data, DataType, Element, Field, Set, Types, Value, ValueType};

use super::balancing::Balancing;
use super::kinds::SetKind;
use super::names::{ENDPOINT_MAPS, FrontendType, List, endpoint_maps, set};
use super::shared::{Fields, commented};
use super::stable_hash::{fnv1a, mix};
use super::{Settings, notes};
use crate::endpoints::size::PortSize;
use crate::endpoints::{Action, PortSelection};
use crate::model::{Destination, Family, Frontend, Protocol, Scheduler};
use crate::table::{FIRST_PLACE, OnDemand, ServiceObjects, SetName, Slots};

pub(super) use affinity::{Affinity, MAX_CLIENTS, chains as affinity_chains, sets as affinity_sets};
pub(super) use balancer::{Balancer, Pick};

/// The type of the number at the end of a map key, `numgen random mod 65536`. It only decides how nft prints the type; larger numbers work.
pub(super) const SLOT_TYPE: Field = Field::NumgenRandom(1 << 16);

/// The map key of a frontend: address, protocol and port, or for a node port protocol and port.
pub(super) fn key(frontend: &Frontend) -> Data {
    let protocol = frontend.protocol.number();
    match frontend.destination {
        Destination::Address(ip) => Data::from(ip).then(protocol).then(frontend.port),
        Destination::NodePort(_) => Data::from(protocol).then(frontend.port),
    }
}

impl List {
    /// This list of a service port's endpoints; with weights, an endpoint has several entries (E15). With schedulers `random` and
    /// `source-hash` each entry gets a slot; with `maglev` the entries decide how many places of the table an endpoint gets.
    pub(super) fn of(self, port: &PortSelection) -> &[SocketAddr] {
        match self {
            Self::Cluster => &port.cluster,
            Self::Local => &port.local,
        }
    }

    /// Whether an action sends packets to endpoints of this list.
    pub(super) const fn is_used_by(self, action: &Action) -> bool {
        match action {
            Action::ByOrigin => true,
            Action::Cluster { .. } => matches!(self, Self::Cluster),
            Action::Local => matches!(self, Self::Local),
            Action::Drop | Action::Reject => false,
        }
    }
}

/// If endpoints are split over several maps, the number of the map that has the endpoints of a service port; `None` if there is only one
/// map.
fn part_of(maps: u8, port: &PortSelection) -> Option<u8> {
    if maps <= 1 {
        return None;
    }
    let hash = mix(fnv1a(port.label.as_bytes()) ^ u64::from(port.protocol.number()));
    Some(u8::try_from(hash % u64::from(maps)).unwrap_or_default())
}

/// The names of all maps from frontend and number to endpoint, each split into `parts` maps.
pub(super) fn all_maps(parts: u8, is_counted: bool) -> Vec<SetName> {
    let maps = ENDPOINT_MAPS.into_iter();
    maps.flat_map(|(frontend_type, list)| endpoint_maps(frontend_type, list, is_counted, parts)).collect()
}

/// Makes the chain of a balancer from its name, for a table with this many maps of each kind. The name must end with the number of one of
/// the maps exactly if there are several of a kind; otherwise the chain would look up a map that the table does not have.
pub(super) fn on_demand(family: Family, maps: u8, is_counted: bool) -> OnDemand {
    OnDemand::new(move |name| {
        let balancer = Balancer::parse(name, is_counted)?;
        let has_map = balancer.part.map_or(maps <= 1, |part| maps > 1 && part < maps);
        has_map.then(|| balancer.content(family))
    })
}

/// Whether a set or map may belong to a table of this program with another layout or other settings, such as another number of maps.
pub(super) fn former(set: &str) -> bool {
    SetKind::of(set).is_some()
}

/// The set of reachable endpoints on this node (C7).
pub(super) fn hairpin_set(fields: &Fields) -> Set {
    let pair = vec![fields.address, fields.address, DataType::InetProto, DataType::InetService];
    commented(Set::new(set::HAIRPIN, Types::Named(pair)), "Local endpoints that may reach themselves")
}

/// The maps from frontend and number to endpoint, for one type of frontend.
pub(super) fn slot_maps(fields: &Fields, frontend_type: FrontendType, parts: u8, is_counted: bool) -> Vec<Set> {
    let slots = |list: List, comment| {
        let key: Vec<Field> = fields.of_type(frontend_type).into_iter().chain([SLOT_TYPE]).collect();
        let endpoint = Types::Of(vec![fields.destination, Field::ThDport]);
        endpoint_maps(frontend_type, list, is_counted, parts).map(move |name| {
            let map = Set::map(&name, Types::Of(key.clone()), ValueType::Data(endpoint.clone()));
            commented(Set { counter: is_counted, ..map }, comment)
        })
    };
    let cluster = slots(List::Cluster, "Frontend . slot : endpoint of the cluster");
    cluster.chain(slots(List::Local, "Frontend . slot : endpoint on this node")).collect()
}

/// The sets in which several Services may have the same key: two Services may claim one cluster IP, share an external IP, or have the same
/// endpoints.
pub(super) fn shared_sets() -> Vec<SetName> {
    vec![set::CLUSTER_IPS.into(), set::EXTERNAL_IPS.into(), set::HAIRPIN.into()]
}

/// Adds the elements of a service port that do not depend on its frontends: its endpoints on this node, and the health check's answer.
pub(super) fn of_port(port: &PortSelection, objects: &mut ServiceObjects) {
    objects.extend(set::HEALTH_CHECKS, notes::element(port));
    objects.extend(set::HAIRPIN, port.hairpin.iter().map(|endpoint| hairpin(*endpoint, port.protocol)));
}

/// A local endpoint as source and destination: the key of a packet that it sends to itself, after DNAT (D10).
fn hairpin(endpoint: SocketAddr, protocol: Protocol) -> Element {
    let address = Data::from(endpoint.ip());
    Element::new(address.then(address).then(protocol.number()).then(endpoint.port()))
}

fn endpoint_data(endpoint: &SocketAddr) -> Data {
    Data::from(endpoint.ip()).then(endpoint.port())
}

/// The element of a frontend with one endpoint, for a map whose keys have no number.
pub(super) fn only(frontend: &Frontend, endpoint: &SocketAddr) -> Element {
    Element::mapping(key(frontend), Value::Data(endpoint_data(endpoint)))
}

/// The balancer that chooses an endpoint of a list, for one type of frontend. It does not mark packets for masquerading.
pub(super) fn balancer(
    settings: &Settings,
    port: &PortSelection,
    frontend_type: FrontendType,
    list: List,
    is_counted: bool,
) -> Balancer {
    let (count, balancing) = (list.of(port).len(), settings.balancing);
    let Balancing { with_port, .. } = balancing;
    let pick = match balancing.scheduler(port.scheduler, count) {
        Scheduler::Random => Pick::Random(count),
        Scheduler::SourceHash => Pick::Hash { count, with_port },
        Scheduler::Maglev => Pick::Table { places: balancing.places(count), with_port },
    };
    Balancer { frontend_type, list, masquerade: false, pick, part: part_of(settings.endpoint_maps, port), is_counted }
}

/// Adds the endpoints of a frontend to the map in which its balancer looks them up.
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

/// Estimates the cost of a service port of this size, in elements, with the objects of its session affinity.
pub(super) fn weight(balancing: Balancing, size: &PortSize) -> u64 {
    let PortSize { frontends, sources, slots, scheduler, .. } = *size;
    let slots = frontends.saturating_mul(balancing.elements(scheduler, slots).saturating_add(1));
    slots.saturating_add(sources).saturating_add(affinity::weight(size))
}
