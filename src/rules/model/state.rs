//! The state of the cluster: takes [`Event`]s, keeps the last content of each object, and returns what each event changed and which
//! Services became dirty (must be computed again).
//!
//! Invariants: everything but the dirty set and the pending conflicts is a function of the last content of each object;
//! an event that does not change its object makes nothing dirty; the result of `endpoints::select` for a Service changes only
//! if that Service became dirty.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use foldhash::HashMap;
use ipnet::IpNet;

use super::change::Change;
use super::claims::Claims;
use super::conflicts::Contest;
use super::endpoint::EndpointSlice;
use super::event::Event;
use super::names::{Destination, Family, Frontend, ObjectName, Protocol};
use super::node::Node;
use super::service::Service;
use super::slices::Slices;

/// What changed since the last [`State::take_dirty`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dirty {
    /// Services whose endpoints must be selected again, each once, in the order in which they became dirty. After a full list that is the
    /// order in which the objects lie in memory, which is fast to read. Deleted and not yet known Services may be among them.
    pub services: Vec<ObjectName>,
    /// The Node object of this node changed.
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

/// Everything that the proxy knows about the cluster.
#[derive(Debug)]
pub struct State {
    node_name: Arc<str>,
    /// Services by name. Also has an entry for each name that only slices mention so far (B13).
    known: HashMap<ObjectName, Known>,
    service_count: usize,
    /// The name of the Service that each slice belongs to, by slice name.
    slice_services: HashMap<ObjectName, ObjectName>,
    node: Option<Node>,
    service_cidrs: BTreeMap<Arc<str>, Vec<IpNet>>,
    /// The Service of the API server itself.
    kubernetes: ObjectName,
    /// The addresses at which this process reaches the API server, or a proxy on the way to it.
    api_server: Vec<SocketAddr>,
    claims: Claims,
    /// A Service with more frontends than this claims none at all.
    frontend_limit: u64,
    complete: bool,
    dirty: Dirty,
    /// The number of calls of [`State::take_dirty`], plus 1.
    round: u32,
    /// Whether an entry of `known` became empty since the last call of [`State::take_dirty`].
    has_gone: bool,
}

/// A Service and its slices. An entry that becomes empty stays in the map until [`State::take_dirty`] has returned its name.
#[derive(Debug, Default)]
struct Known {
    /// Boxed, so that map entries are small and the map is cheap to grow.
    service: Option<Box<Service>>,
    slices: Slices,
    /// The value of [`State::round`] when this Service last became dirty.
    dirty_in: u32,
}

impl Known {
    fn is_empty(&self) -> bool {
        self.service.is_none() && self.slices.is_empty()
    }
}

impl State {
    /// An empty state, for the node with this name.
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
            frontend_limit: u64::MAX,
            complete: false,
            dirty: Dirty::default(),
            round: 1,
            has_gone: false,
        }
    }

    /// Sets a limit: a Service with more frontends than this claims none. A small Service object can stand for very many frontends, because
    /// each of its ports is served at each of its addresses.
    #[must_use]
    pub fn with_frontend_limit(self, frontend_limit: u64) -> Self {
        Self { frontend_limit, ..self }
    }

    /// Applies one event. Returns what it changed, or `None` if it changed nothing.
    pub fn apply(&mut self, event: Event) -> Option<Change> {
        let is_changed = match event {
            Event::ServiceApplied(service) => return self.set_service(service.name.clone(), Some(service)),
            Event::ServiceDeleted(name) => return self.set_service(name, None),
            Event::SliceApplied(slice) => return self.set_slice(slice.name.clone(), Some(slice)),
            Event::SliceDeleted(name) => return self.set_slice(name, None),
            Event::NodeApplied(node) => self.set_node(node),
            // The state keeps the last content of the deleted Node (L6).
            Event::NodeDeleted(_) | Event::Wake => false,
            Event::ServiceCidrApplied(name, ranges) => self.set_service_cidr(name, Some(ranges)),
            Event::ServiceCidrDeleted(name) => self.set_service_cidr(name, None),
            Event::ApiServerAt(addresses) => self.set_api_server(addresses),
            Event::InitialListDone => !std::mem::replace(&mut self.complete, true),
        };
        is_changed.then_some(Change::Other)
    }

    /// Returns everything that became dirty since the last call, and clears it.
    pub fn take_dirty(&mut self) -> Dirty {
        let dirty = std::mem::take(&mut self.dirty);
        // A new round number lets every name become dirty again. The number repeats after 2^32 rounds; a change could be missed only for a
        // Service that last became dirty exactly so many rounds before.
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

    /// The frontends with conflicts that arose since the last call and still exist, sorted, each once, with at most `most` conflicts for
    /// each frontend.
    pub fn take_conflicts(&mut self, most: usize) -> Vec<Contest> {
        self.claims.take_conflicts(most)
    }

    /// The frontends with conflicts that exist now, whenever they arose, sorted, with at most `most` conflicts for each frontend. The time
    /// grows with the number of contested frontends and of external IPs.
    #[must_use]
    pub fn standing_conflicts(&self, most: usize) -> Vec<Contest> {
        self.claims.standing(most)
    }

    /// The number of claims on frontends that their Services do not get.
    #[must_use]
    pub const fn lost_claims(&self) -> usize {
        self.claims.lost()
    }

    /// Whether every object that existed when the source started has been received (G1, C10).
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.complete
    }

    /// The Service with this name; `None` if the state has none.
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

    /// All Services in no particular order; avoids the cost of sorting.
    pub fn services_unordered(&self) -> impl Iterator<Item = &Service> {
        self.known.values().filter_map(|known| known.service.as_deref())
    }

    /// The number of Services.
    #[must_use]
    pub fn service_count(&self) -> usize {
        self.service_count
    }

    /// The slices of a Service in order of slice name, even if there is no Service with this name yet (B13).
    pub fn slices_of(&self, service: &ObjectName) -> impl Iterator<Item = &EndpointSlice> {
        self.known.get(service).into_iter().flat_map(|known| known.slices.iter())
    }

    /// The slice with this name; `None` if the state has none.
    #[must_use]
    pub fn slice(&self, name: &ObjectName) -> Option<&EndpointSlice> {
        let service = self.slice_services.get(name)?;
        self.known.get(service)?.slices.get(name)
    }

    /// The last content of this node's Node object; `None` until one was received.
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

    /// Whether a Service's port, given by its index in [`Service::ports`], owns a frontend.
    ///
    /// Among several claims the first in the order of [`FrontendKind`](super::FrontendKind) wins, then the oldest Service, then the
    /// smallest `namespace/name`, then the first port. An external IP never owns an endpoint of the API server or an address in a
    /// ServiceCIDR.
    #[must_use]
    pub(crate) fn owns(&self, service: &ObjectName, port_index: usize, frontend: &Frontend) -> bool {
        self.claims.owns(service, port_index, frontend)
    }

    /// The frontends of a Service on which neither another Service nor the API server has a stronger claim. Of the ports after the first
    /// `most` it lists only the node ports. Also lists the frontends of a Service with too many of them, although such a Service owns none.
    pub fn unshared_frontends<'a>(&'a self, service: &'a Service, most: usize) -> impl Iterator<Item = Frontend> + 'a {
        let of_port = move |(index, port)| {
            let frontends = Family::BOTH.into_iter().flat_map(move |family| service.frontends(port, family));
            frontends
                .map(|(_, frontend)| frontend)
                .filter(move |frontend| index < most || matches!(frontend.destination, Destination::NodePort(_)))
        };
        let frontends = service.ports.iter().enumerate().flat_map(of_port);
        frontends.filter(|frontend| !self.claims.is_anothers(&service.name, frontend))
    }

    /// The Service that owns a frontend, and the index of its port; `None` if no Service owns it.
    #[must_use]
    pub(crate) fn owner(&self, frontend: &Frontend) -> Option<(&Service, usize)> {
        let (name, port_index) = self.claims.owner(frontend)?;
        Some((self.service(name)?, port_index))
    }

    fn set_service(&mut self, name: ObjectName, mut new: Option<Service>) -> Option<Change> {
        let known = self.known.get_key_value(&name);
        let old = known.and_then(|(_, known)| known.service.as_deref());
        if old == new.as_ref() {
            return None;
        }
        if let (Some(service), Some((name, _))) = (&mut new, known) {
            // As in `insert_slice`, when the slices came first.
            service.name.clone_from(name);
        }
        self.service_count = self.service_count + usize::from(new.is_some()) - usize::from(old.is_some());
        let limit = self.frontend_limit;
        let claims = |service: &&Service| u64::try_from(service.frontend_count()).is_ok_and(|count| count <= limit);
        let others = self.claims.replace(old.filter(claims), new.as_ref().filter(claims));
        let before = self.change(name.clone(), |known| std::mem::replace(&mut known.service, new.map(Box::new)));
        self.set_dirty(others);
        Some(Change::Service { name, before })
    }

    /// Changes the entry of `known` with this name, and marks the Service as dirty.
    fn change<T>(&mut self, name: ObjectName, change: impl FnOnce(&mut Known) -> T) -> T {
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
        let result = change(known);
        known.dirty_in = self.round;
        self.has_gone |= known.is_empty();
        self.dirty.services.extend(name);
        result
    }

    fn set_dirty(&mut self, services: impl IntoIterator<Item = ObjectName>) {
        services.into_iter().for_each(|name| self.change(name, |_| ()));
    }

    fn set_slice(&mut self, name: ObjectName, new: Option<EndpointSlice>) -> Option<Change> {
        let old = self.slice(&name);
        if old == new.as_ref() {
            return None;
        }
        let of_api_server = |slice: Option<&EndpointSlice>| {
            slice
                .filter(|slice| slice.service == self.kubernetes)
                .map_or_else(Vec::new, |slice| slice.addressed().collect())
        };
        let (gone, came): (Vec<Frontend>, Vec<Frontend>) = (of_api_server(old), of_api_server(new.as_ref()));
        let before = if old.is_some() { self.remove_slice(&name) } else { None };
        if let Some(slice) = new {
            self.insert_slice(slice);
        }
        self.change_api_server(gone, came);
        Some(Change::Slice { name, before })
    }

    fn set_api_server(&mut self, addresses: Vec<SocketAddr>) -> bool {
        if self.api_server == addresses {
            return false;
        }
        let frontend = |address: &SocketAddr| Frontend {
            destination: Destination::Address(address.ip().to_canonical()),
            protocol: Protocol::Tcp,
            port: address.port(),
        };
        let came = addresses.iter().map(frontend).collect();
        let gone = std::mem::replace(&mut self.api_server, addresses).iter().map(frontend).collect();
        self.change_api_server(gone, came);
        true
    }

    /// Updates the frontends that are endpoints of the API server: those of its Service, or the addresses at which this process reaches it.
    fn change_api_server(&mut self, gone: Vec<Frontend>, came: Vec<Frontend>) {
        if !gone.is_empty() || !came.is_empty() {
            let others = self.claims.change_api_server(&self.kubernetes, gone.into_iter(), came.into_iter());
            self.set_dirty(others);
        }
    }

    fn remove_slice(&mut self, name: &ObjectName) -> Option<EndpointSlice> {
        let service = self.slice_services.remove(name)?;
        self.change(service, |known| known.slices.remove(name))
    }

    fn insert_slice(&mut self, mut slice: EndpointSlice) {
        // The slices of a Service share one name with it, which saves memory.
        if let Some((name, _)) = self.known.get_key_value(&slice.service) {
            slice.service.clone_from(name);
        }
        self.slice_services.insert(slice.name.clone(), slice.service.clone());
        self.change(slice.service.clone(), |known| known.slices.insert(slice));
    }

    fn set_node(&mut self, node: Node) -> bool {
        if node.name != self.node_name || self.node.as_ref() == Some(&node) {
            return false;
        }
        let old = self.node.as_ref();
        let zone_changed = old.and_then(|old| old.zone.as_ref()) != node.zone.as_ref();
        let ips_changed = old.is_none_or(|old| old.ips != node.ips);
        self.node = Some(node);
        self.dirty.node = true;
        if zone_changed {
            // Zone hints, and weights for zones, may select other endpoints now (C9).
            self.set_dirty_where(|known| !known.slices.is_empty());
        }
        if ips_changed {
            // A source range may now contain the node's address, or no longer contain it (D18).
            self.set_dirty_where(|known| {
                known.service.as_ref().is_some_and(|service| !service.source_ranges.is_empty())
            });
        }
        true
    }

    /// Marks all Services as dirty whose entry of `known` satisfies `is_meant`.
    fn set_dirty_where(&mut self, is_meant: impl Fn(&Known) -> bool) {
        let names = self.known.iter().filter(|(_, known)| is_meant(known)).map(|(name, _)| name.clone());
        let names: Vec<ObjectName> = names.collect();
        self.set_dirty(names);
    }

    fn set_service_cidr(&mut self, name: Arc<str>, new: Option<Vec<IpNet>>) -> bool {
        if self.service_cidrs.get(&name) == new.as_ref() {
            return false;
        }
        let came = new.clone().unwrap_or_default();
        let gone = match new {
            Some(new) => self.service_cidrs.insert(name, new),
            None => self.service_cidrs.remove(&name),
        };
        self.dirty.service_cidrs = true;
        let others = self.claims.change_service_cidrs(&gone.unwrap_or_default(), &came);
        self.set_dirty(others);
        true
    }
}
