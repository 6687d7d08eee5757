//! The state of the cluster: takes [`Event`]s, keeps the last content of each object, and gives what became dirty.
//!
//! Invariants: everything but the dirty set and the pending conflicts is a function of the last content of each object;
//! an event that leaves its object equal dirties nothing; what `select` gives for a Service changes only if that
//! Service became dirty.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use foldhash::HashMap;
use ipnet::IpNet;

use super::claims::{Claims, Conflict};
use super::endpoint::EndpointSlice;
use super::event::Event;
use super::names::{Destination, Front, ObjectName, Protocol};
use super::node::Node;
use super::service::Service;

/// What changed since the last [`State::take_dirty`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dirty {
    /// Services to select again, each once, in the order in which they became dirty: a list of all objects is gone through in its own
    /// order then, which is the one in which they lie in memory. A Service that is gone, or not known yet, may be among them.
    pub services: Vec<ObjectName>,
    /// Some fact of this node changed.
    pub node: bool,
    /// Some ServiceCIDR changed.
    pub service_cidrs: bool,
}

impl Dirty {
    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// All that is known of the cluster.
#[derive(Debug)]
pub struct State {
    node_name: Arc<str>,
    /// By name, Services and those that only slices name (B13).
    known: HashMap<ObjectName, Known>,
    service_count: usize,
    /// The Service under which each slice is kept.
    slice_services: HashMap<ObjectName, ObjectName>,
    node: Option<Node>,
    service_cidrs: BTreeMap<Arc<str>, Vec<IpNet>>,
    /// The Service of the API server itself.
    kubernetes: ObjectName,
    /// Where this process reaches the API server.
    api_server: Vec<SocketAddr>,
    claims: Claims,
    /// Fronts of a Service beyond which it claims none at all.
    front_limit: u64,
    complete: bool,
    dirty: Dirty,
    /// The number of calls of [`State::take_dirty`], from 1.
    round: u32,
    /// Whether something has become unknown since the last one.
    has_gone: bool,
}

/// What is known under the name of a Service. One that became empty is kept until its name is taken as dirty.
#[derive(Debug, Default)]
struct Known {
    /// Apart, so that the map is small and grows soon.
    service: Option<Box<Service>>,
    /// In order of name. Not a map: most Services have one slice.
    slices: Vec<EndpointSlice>,
    /// The round in which it became dirty last.
    dirty_in: u32,
}

impl Known {
    fn is_empty(&self) -> bool {
        self.service.is_none() && self.slices.is_empty()
    }
}

impl State {
    /// The state of an unknown cluster, as seen from the node of this name.
    #[must_use]
    pub fn new(node_name: &str) -> Self {
        Self {
            node_name: node_name.into(),
            known: HashMap::default(),
            service_count: 0,
            slice_services: HashMap::default(),
            node: None,
            service_cidrs: BTreeMap::new(),
            kubernetes: ObjectName::new("default", "kubernetes"),
            api_server: Vec::new(),
            claims: Claims::default(),
            front_limit: u64::MAX,
            complete: false,
            dirty: Dirty::default(),
            round: 1,
            has_gone: false,
        }
    }

    /// Has Services with more fronts than this claim none: an object of some 100 KB can stand for millions of fronts, as each of its
    /// ports is on each of its addresses.
    #[must_use]
    pub fn with_front_limit(self, front_limit: u64) -> Self {
        Self { front_limit, ..self }
    }

    /// Takes in one change.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::ServiceApplied(service) => self.set_service(service.name.clone(), Some(service)),
            Event::ServiceDeleted(name) => self.set_service(name, None),
            Event::SliceApplied(slice) => self.set_slice(&slice.name.clone(), Some(slice)),
            Event::SliceDeleted(name) => self.set_slice(&name, None),
            Event::NodeApplied(node) => self.set_node(node),
            // The node stays as it was last seen (L6).
            Event::NodeDeleted(_) => {}
            Event::ServiceCidrApplied(name, ranges) => self.set_service_cidr(name, Some(ranges)),
            Event::ServiceCidrDeleted(name) => self.set_service_cidr(name, None),
            Event::ApiServerAt(addresses) => self.set_api_server(addresses),
            Event::InitialListDone => self.complete = true,
            Event::Wake => {}
        }
    }

    /// What became dirty since the last call.
    pub fn take_dirty(&mut self) -> Dirty {
        let dirty = std::mem::take(&mut self.dirty);
        // A name of an earlier round is dirty again in this one. After 2^32 rounds one might not be; that is 130 years of syncs.
        self.round = self.round.wrapping_add(1);
        if std::mem::take(&mut self.has_gone) {
            for name in &dirty.services {
                if self.known.get(name).is_some_and(Known::is_empty) {
                    self.known.remove(name);
                }
            }
        }
        dirty
    }

    /// Whether anything became dirty since the last [`State::take_dirty`].
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// The contested fronts that arose since the last call and still are contested, each once.
    pub fn take_conflicts(&mut self) -> Vec<Conflict> {
        self.claims.take_conflicts()
    }

    /// The number of claims on fronts that their Services do not get.
    #[must_use]
    pub const fn lost_claims(&self) -> usize {
        self.claims.lost()
    }

    /// Whether everything that existed at the start has been seen (G1, C10).
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.complete
    }

    /// A Service by name.
    #[must_use]
    pub fn service(&self, name: &ObjectName) -> Option<&Service> {
        self.known.get(name)?.service.as_deref()
    }

    /// All Services, in order of name.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        let mut services: Vec<&Service> = self.services_unordered().collect();
        services.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        services.into_iter()
    }

    /// The Services in no order, which spares the sorting of very many.
    pub fn services_unordered(&self) -> impl Iterator<Item = &Service> {
        self.known.values().filter_map(|known| known.service.as_deref())
    }

    /// The number of Services.
    #[must_use]
    pub fn service_count(&self) -> usize {
        self.service_count
    }

    /// The slices of a Service, known or not (B13), in order of slice name.
    pub fn slices_of(&self, service: &ObjectName) -> impl Iterator<Item = &EndpointSlice> {
        self.known.get(service).into_iter().flat_map(|known| &known.slices)
    }

    /// A slice by name.
    #[must_use]
    pub fn slice(&self, name: &ObjectName) -> Option<&EndpointSlice> {
        let service = self.slice_services.get(name)?;
        self.slices_of(service).find(|slice| slice.name == *name)
    }

    /// This node as last seen; `None` until it was.
    #[must_use]
    pub const fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// The name of this node (M1).
    #[must_use]
    pub fn node_name(&self) -> &str {
        &self.node_name
    }

    /// The ranges of all ServiceCIDRs without host bits, sorted, each once. They may overlap.
    #[must_use]
    pub fn service_cidrs(&self) -> Vec<IpNet> {
        let ranges: BTreeSet<IpNet> = self.service_cidrs.values().flatten().map(IpNet::trunc).collect();
        ranges.into_iter().collect()
    }

    /// Whether a Service's port, given by its index in [`Service::ports`], owns a front.
    ///
    /// Of all that claim the front, the one to which it is the first of [`FrontKind`](super::FrontKind) owns it, then the oldest
    /// Service, then the one with the smallest name, then the first port. An external IP owns no endpoint of the API server, and no
    /// address of a ServiceCIDR.
    #[must_use]
    pub fn owns(&self, service: &ObjectName, port_index: usize, front: &Front) -> bool {
        self.claims.owns(service, port_index, front)
    }

    fn set_service(&mut self, name: ObjectName, new: Option<Service>) {
        let old = self.known.get(&name).and_then(|known| known.service.as_deref());
        if old == new.as_ref() {
            return;
        }
        self.service_count = self.service_count + usize::from(new.is_some()) - usize::from(old.is_some());
        let limit = self.front_limit;
        let claims = |service: &&Service| u64::try_from(service.front_count()).is_ok_and(|count| count <= limit);
        let others = self.claims.replace(old.filter(claims), new.as_ref().filter(claims));
        self.change(name, |known| known.service = new.map(Box::new));
        self.set_dirty(others);
    }

    /// Changes what is known under the name of a Service, and notes it as dirty.
    fn change(&mut self, name: ObjectName, change: impl FnOnce(&mut Known)) {
        let (known, name) = match self.known.entry(name) {
            Entry::Occupied(known) => {
                let name = (known.get().dirty_in != self.round).then(|| known.key().clone());
                (known.into_mut(), name)
            }
            Entry::Vacant(place) => {
                let name = place.key().clone();
                (place.insert(Known::default()), Some(name))
            }
        };
        change(known);
        known.dirty_in = self.round;
        self.has_gone |= known.is_empty();
        self.dirty.services.extend(name);
    }

    /// Notes Services as dirty.
    fn set_dirty(&mut self, services: impl IntoIterator<Item = ObjectName>) {
        services.into_iter().for_each(|name| self.change(name, |_| ()));
    }

    fn set_slice(&mut self, name: &ObjectName, new: Option<EndpointSlice>) {
        let old = self.slice(name);
        if old == new.as_ref() {
            return;
        }
        let is_of_api_server = |slice: &EndpointSlice| slice.service == self.kubernetes;
        let concerns_api_server = old.into_iter().chain(&new).any(is_of_api_server);
        if old.is_some() {
            self.remove_slice(name);
        }
        if let Some(slice) = new {
            self.insert_slice(slice);
        }
        if concerns_api_server {
            self.refresh_api_server();
        }
    }

    fn set_api_server(&mut self, addresses: Vec<SocketAddr>) {
        self.api_server = addresses;
        self.refresh_api_server();
    }

    /// The fronts that lead to the API server are those of its Service's endpoints, and those by which this process reaches it.
    fn refresh_api_server(&mut self) {
        let front = |address: &SocketAddr| Front {
            destination: Destination::Address(address.ip().to_canonical()),
            protocol: Protocol::Tcp,
            port: address.port(),
        };
        let of_service = self.slices_of(&self.kubernetes).flat_map(EndpointSlice::addressed);
        let fronts = of_service.chain(self.api_server.iter().map(front)).collect();
        let others = self.claims.set_api_server(&self.kubernetes, fronts);
        self.set_dirty(others);
    }

    fn remove_slice(&mut self, name: &ObjectName) {
        let Some(service) = self.slice_services.remove(name) else { return };
        self.change(service, |known| known.slices.retain(|slice| slice.name != *name));
    }

    fn insert_slice(&mut self, slice: EndpointSlice) {
        self.slice_services.insert(slice.name.clone(), slice.service.clone());
        self.change(slice.service.clone(), |known| {
            let place = known.slices.partition_point(|other| other.name < slice.name);
            known.slices.reserve_exact(1);
            known.slices.insert(place, slice);
        });
    }

    fn set_node(&mut self, node: Node) {
        if node.name != self.node_name || self.node.as_ref() == Some(&node) {
            return;
        }
        let old = self.node.as_ref();
        let zone_changed = old.and_then(|old| old.zone.as_ref()) != node.zone.as_ref();
        let ips_changed = old.is_none_or(|old| old.ips != node.ips);
        self.node = Some(node);
        self.dirty.node = true;
        if zone_changed {
            // Zone hints mean something else now (C9).
            self.set_dirty_where(|known| !known.slices.is_empty());
        }
        if ips_changed {
            // A source range may hold the node's address now, or no longer (D18).
            self.set_dirty_where(|known| {
                known.service.as_ref().is_some_and(|service| !service.source_ranges.is_empty())
            });
        }
    }

    /// Notes all Services as dirty of which this is known.
    fn set_dirty_where(&mut self, is_meant: impl Fn(&Known) -> bool) {
        let names = self.known.iter().filter(|(_, known)| is_meant(known)).map(|(name, _)| name.clone());
        let names: Vec<ObjectName> = names.collect();
        self.set_dirty(names);
    }

    fn set_service_cidr(&mut self, name: Arc<str>, new: Option<Vec<IpNet>>) {
        if self.service_cidrs.get(&name) != new.as_ref() {
            match new {
                Some(new) => self.service_cidrs.insert(name, new),
                None => self.service_cidrs.remove(&name),
            };
            self.dirty.service_cidrs = true;
            let others = self.claims.set_service_cidrs(self.service_cidrs());
            self.set_dirty(others);
        }
    }
}
