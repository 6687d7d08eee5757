//! The state of the cluster as one node sees it, and what changed since it was last looked at.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use ipnet::IpNet;

use super::claims::{ClaimIndex, Conflict};
use super::endpoint::EndpointSlice;
use super::event::Event;
use super::names::{Front, ObjectName};
use super::node::Node;
use super::service::Service;

/// What became dirty: what has to be computed again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dirty {
    /// Services whose endpoints or fronts may differ, also ones that are gone.
    pub services: BTreeSet<ObjectName>,
    /// Facts of this node changed.
    pub node: bool,
    /// The ranges of the ServiceCIDRs changed.
    pub service_cidrs: bool,
}

impl Dirty {
    /// Whether nothing is dirty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.services.is_empty() && !self.node && !self.service_cidrs
    }
}

/// The state of the cluster: the last content of every object.
#[derive(Debug, Default)]
pub struct State {
    node_name: Arc<str>,
    services: HashMap<ObjectName, Service>,
    /// Slices by Service and slice name; kept also while the Service is unknown (B13).
    slices: HashMap<ObjectName, BTreeMap<ObjectName, EndpointSlice>>,
    /// The Service that each slice belongs to.
    service_of_slice: HashMap<ObjectName, ObjectName>,
    node: Option<Node>,
    service_cidrs: BTreeMap<Arc<str>, Vec<IpNet>>,
    claims: ClaimIndex,
    complete: bool,
    dirty: Dirty,
    conflicts: Vec<Conflict>,
}

impl State {
    /// An empty state of the node with this name.
    #[must_use]
    pub fn new(node_name: &str) -> Self {
        Self { node_name: node_name.into(), ..Self::default() }
    }

    /// Takes over one change.
    pub fn apply(&mut self, event: Event) {
        match event {
            Event::ServiceApplied(service) => self.set_service(service.name.clone(), Some(service)),
            Event::ServiceDeleted(name) => self.set_service(name, None),
            Event::SliceApplied(slice) => self.set_slice(slice.name.clone(), Some(slice)),
            Event::SliceDeleted(name) => self.set_slice(name, None),
            Event::NodeApplied(node) => self.set_node(node),
            // The last known facts stay in use (L6).
            Event::NodeDeleted(_) => {}
            Event::ServiceCidrApplied(name, ranges) => self.set_service_cidr(name, Some(ranges)),
            Event::ServiceCidrDeleted(name) => self.set_service_cidr(name, None),
            Event::InitialListDone => self.complete = true,
        }
    }

    fn set_service(&mut self, name: ObjectName, new: Option<Service>) {
        if self.services.get(&name) == new.as_ref() {
            return;
        }
        let former = match &new {
            Some(service) => self.services.insert(name.clone(), service.clone()),
            None => self.services.remove(&name),
        };
        let outcome = self.claims.replace(former.as_ref(), new.as_ref());
        self.dirty.services.extend(outcome.affected);
        self.dirty.services.insert(name);
        self.conflicts.extend(outcome.conflicts);
    }

    fn set_slice(&mut self, name: ObjectName, new: Option<EndpointSlice>) {
        let former_service = self.service_of_slice.get(&name);
        let former = former_service.and_then(|service| self.slices.get(service)?.get(&name));
        if former == new.as_ref() {
            return;
        }
        if let Some(service) = self.service_of_slice.remove(&name) {
            if let Some(slices) = self.slices.get_mut(&service) {
                slices.remove(&name);
                if slices.is_empty() {
                    self.slices.remove(&service);
                }
            }
            self.dirty.services.insert(service);
        }
        if let Some(slice) = new {
            self.dirty.services.insert(slice.service.clone());
            self.service_of_slice.insert(name.clone(), slice.service.clone());
            self.slices.entry(slice.service.clone()).or_default().insert(name, slice);
        }
    }

    fn set_node(&mut self, node: Node) {
        if node.name != self.node_name || self.node.as_ref() == Some(&node) {
            return;
        }
        let zone = |node: &Option<Node>| node.as_ref().and_then(|node| node.zone.clone());
        let former_zone = zone(&self.node);
        self.node = Some(node);
        self.dirty.node = true;
        if zone(&self.node) != former_zone {
            self.dirty.services.extend(self.slices.keys().cloned());
        }
    }

    fn set_service_cidr(&mut self, name: Arc<str>, ranges: Option<Vec<IpNet>>) {
        if self.service_cidrs.get(&name) == ranges.as_ref() {
            return;
        }
        match ranges {
            Some(ranges) => self.service_cidrs.insert(name, ranges),
            None => self.service_cidrs.remove(&name),
        };
        self.dirty.service_cidrs = true;
    }

    /// Gives what became dirty since the last call.
    pub fn take_dirty(&mut self) -> Dirty {
        std::mem::take(&mut self.dirty)
    }

    /// Whether anything became dirty since the last [`State::take_dirty`].
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Gives the conflicts that arose since the last call.
    pub fn take_conflicts(&mut self) -> Vec<Conflict> {
        std::mem::take(&mut self.conflicts)
    }

    /// Whether every object that existed at the start has arrived.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// A Service.
    #[must_use]
    pub fn service(&self, name: &ObjectName) -> Option<&Service> {
        self.services.get(name)
    }

    /// All Services, in no order.
    pub fn services(&self) -> impl Iterator<Item = &Service> {
        self.services.values()
    }

    /// The slices of a Service, in the order of their names.
    pub fn slices_of(&self, service: &ObjectName) -> impl Iterator<Item = &EndpointSlice> {
        self.slices.get(service).into_iter().flat_map(BTreeMap::values)
    }

    /// Whether a port of a Service owns a front.
    #[must_use]
    pub fn owns(&self, service: &ObjectName, port_index: usize, front: &Front) -> bool {
        self.claims.owns(service, port_index, front)
    }

    /// What is known of this node.
    #[must_use]
    pub fn node(&self) -> Option<&Node> {
        self.node.as_ref()
    }

    /// The name of this node.
    #[must_use]
    pub fn node_name(&self) -> &str {
        &self.node_name
    }

    /// The ranges of all ServiceCIDRs, sorted, each once.
    #[must_use]
    pub fn service_cidrs(&self) -> Vec<IpNet> {
        let ranges: BTreeSet<IpNet> = self.service_cidrs.values().flatten().copied().collect();
        ranges.into_iter().collect()
    }
}
