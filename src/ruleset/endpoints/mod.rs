//! The endpoints of fronts as elements of maps, and how one of them is chosen: the same in every layout.
//!
//! ```text
//!  @endpoints (front . slot : endpoint): slots 0 to N - 1 of a front hold its endpoints
//!      │ looked up with the packet's front and a number: numgen random mod N, or a hash of its source
//!      ▼
//!    dnat
//! ```
//!
//! Takes a service port as it was selected, and adds to its fragment: the endpoints of a front ([`fill`]), the endpoints on this node
//! ([`of_port`]), and what session affinity needs ([`Affinity`]). [`Balancer`] gives the rules that pick an endpoint. Pure.
//!
//! No chain, rule or set exists for an endpoint, so that one that is replaced is one element, whatever else there is in the table.
//!
//! With `nftables.endpointMaps` above 1 there are so many of each map, `endpoints.0` and so on, and each service port has its endpoints in one of
//! them ([`Part`]). The kernel lists a map in pieces of 32 KiB and walks from its first element to each of them (`nft_hash_walk` in
//! `net/netfilter/nft_set_hash.c`), so that reading a map takes a time that grows with the square of its size.

mod affinity;
mod balancer;
mod maglev;

use std::net::SocketAddr;

use nft::{Data, DataType, Element, Field, Set, Types, Value, ValueType};

use super::balancing::Balancing;
use super::shared::{Fields, commented, set};
use super::stable_hash::{fnv1a, mix};
use super::{Settings, notes};
use crate::model::{Destination, Front, Protocol, Scheduler};
use crate::select::size::PortSize;
use crate::select::{Action, PortSelection};
use crate::table::{FIRST_PLACE, Fragment, SetName, Slots};

pub(super) use affinity::{Affinity, chains as affinity_chains, sets as affinity_sets};
pub(super) use balancer::{Balancer, Pick};

/// Slot numbers are typed as what `numgen` gives below this number; it bounds nothing but the text of the type.
const SLOT_TYPE: Field = Field::NumgenRandom(1 << 16);

/// Fronts come in two kinds with maps of their own: addresses, and node ports, whose key has no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Address,
    NodePort,
}

impl Side {
    pub(super) const BOTH: [Self; 2] = [Self::Address, Self::NodePort];

    /// The kind of a front.
    pub(super) const fn of(front: &Front) -> Self {
        match front.destination {
            Destination::Address(_) => Self::Address,
            Destination::NodePort(_) => Self::NodePort,
        }
    }

    /// What of a packet is its front.
    pub(super) fn fields(self, fields: &Fields) -> Vec<Field> {
        match self {
            Self::Address => fields.front(),
            Self::NodePort => fields.node_port(),
        }
    }
}

/// The key of a front in the maps of its kind.
pub(super) fn key(front: &Front) -> Data {
    let protocol = front.protocol.number();
    match front.destination {
        Destination::Address(ip) => Data::from(ip).then(protocol).then(front.port),
        Destination::NodePort(_) => Data::from(protocol).then(front.port),
    }
}

/// Which list of endpoints is picked from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    Cluster,
    Local,
}

impl List {
    pub(super) const BOTH: [Self; 2] = [Self::Cluster, Self::Local];

    /// The map from front and slot to endpoint, if there is only one.
    const fn map(self, side: Side) -> &'static str {
        match (side, self) {
            (Side::Address, Self::Cluster) => "endpoints",
            (Side::Address, Self::Local) => "local-endpoints",
            (Side::NodePort, Self::Cluster) => "nodeport-endpoints",
            (Side::NodePort, Self::Local) => "nodeport-local-endpoints",
        }
    }

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part(Option<u8>);

impl Part {
    /// The part of a service port.
    pub(super) fn of(maps: u8, port: &PortSelection) -> Self {
        let hash = || mix(fnv1a(port.label.as_bytes()) ^ u64::from(port.protocol.number()));
        Self((maps > 1).then(|| u8::try_from(hash() % u64::from(maps)).unwrap_or_default()))
    }

    /// All parts.
    fn all(maps: u8) -> impl Iterator<Item = Self> {
        (0..maps.max(1)).map(move |part| Self((maps > 1).then_some(part)))
    }

    /// The part, and what stands before it in a name.
    fn split(name: &str) -> (&str, Self) {
        let part = name.rsplit_once('.').and_then(|(name, part)| Some((name, Self(Some(part.parse().ok()?)))));
        part.unwrap_or((name, Self(None)))
    }

    /// A name for this part.
    fn name(self, name: &'static str) -> SetName {
        self.0.map_or(name.into(), |part| format!("{name}.{part}").into())
    }
}

/// The names of the maps from front and number to endpoint, without parts.
const fn maps() -> [&'static str; 4] {
    use List::{Cluster, Local};
    use Side::{Address, NodePort};
    [Cluster.map(Address), Local.map(Address), Cluster.map(NodePort), Local.map(NodePort)]
}

/// The name without its part of a map from front and number to endpoint; `None` for any other set.
pub(super) fn map(set: &str) -> Option<&'static str> {
    let (name, _) = Part::split(set);
    maps().into_iter().find(|known| *known == name)
}

/// The names of all these maps.
pub(super) fn all_maps(parts: u8) -> Vec<SetName> {
    maps().into_iter().flat_map(|map| names(map, parts)).collect()
}

/// The names of the parts of one of these maps.
pub(super) fn names(map: &'static str, parts: u8) -> impl Iterator<Item = SetName> {
    Part::all(parts).map(move |part| part.name(map))
}

/// The set of endpoints on this node.
pub(super) fn hairpin_set(fields: &Fields) -> Set {
    let pair = vec![fields.address, fields.address, DataType::InetProto, DataType::InetService];
    commented(Set::new(set::HAIRPIN, Types::Named(pair)), "Local endpoints that may reach themselves")
}

/// The maps from front and number to endpoint, for one kind of front.
pub(super) fn slot_maps(fields: &Fields, side: Side, parts: u8) -> Vec<Set> {
    let slots = |list: List, comment| {
        let key: Vec<Field> = side.fields(fields).into_iter().chain([SLOT_TYPE]).collect();
        let endpoint = Types::Of(vec![fields.destination, Field::ThDport]);
        names(list.map(side), parts).map(move |name| {
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

/// Writes what a service port has whatever its fronts are: its endpoints on this node, and the answer of its health check.
pub(super) fn of_port(port: &PortSelection, fragment: &mut Fragment) {
    fragment.extend(notes::HEALTH_CHECKS, notes::element(port));
    fragment.extend(set::HAIRPIN, port.hairpin.iter().map(|endpoint| hairpin(*endpoint, port.protocol)));
}

/// A local endpoint as source and destination: how a packet looks after the translation that the endpoint sends to itself (D10).
fn hairpin(endpoint: SocketAddr, protocol: Protocol) -> Element {
    let address = Data::from(endpoint.ip());
    Element::new(address.then(address).then(protocol.number()).then(endpoint.port()))
}

fn endpoint_data(endpoint: &SocketAddr) -> Data {
    Data::from(endpoint.ip()).then(endpoint.port())
}

/// How an endpoint of a list is picked for fronts of a kind.
pub(super) fn balancer(settings: &Settings, port: &PortSelection, side: Side, list: List) -> Balancer {
    let (count, balancing) = (list.of(port).len(), settings.balancing);
    let Balancing { with_port, .. } = balancing;
    let pick = match balancing.scheduler(port.scheduler, count) {
        Scheduler::Random => Pick::Random(count),
        Scheduler::SourceHash => Pick::Hash { count, with_port },
        Scheduler::Maglev => Pick::Table { places: balancing.places(count), with_port },
    };
    Balancer { side, list, masquerade: false, pick, part: Part::of(settings.endpoint_maps, port) }
}

/// Writes the endpoints for a front where its balancer finds them.
pub(super) fn fill(fragment: &mut Fragment, port: &PortSelection, front: &Front, balancer: Balancer) {
    let Balancer { list, pick, .. } = balancer;
    let (endpoints, key, set) = (list.of(port), key(front), balancer.map());
    let mut slots = endpoints;
    if let Pick::Table { places, .. } = pick {
        let taken = maglev::places(places, endpoints).into_iter().map(|(place, number)| {
            Element::mapping(key.then(FIRST_PLACE + place), Value::Data(endpoint_data(&endpoints[number])))
        });
        fragment.elements.extend(taken.map(|element| (set.clone(), element)));
        slots = maglev::last_resort(endpoints);
    }
    let values = slots.iter().map(endpoint_data).collect();
    let is_fixed = !matches!(pick, Pick::Random(_));
    fragment.slots.push(Slots { set, prefix: key, values, is_fixed });
}

/// What the elements of a service port of this size count, and the objects of its session affinity.
pub(super) fn weight(balancing: Balancing, size: &PortSize) -> u64 {
    let PortSize { fronts, sources, endpoints, scheduler, .. } = *size;
    let slots = fronts.saturating_mul(balancing.elements(scheduler, endpoints).saturating_add(1));
    slots.saturating_add(sources).saturating_add(affinity::weight(size))
}
