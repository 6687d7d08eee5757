//! A Service as elements of maps.

use std::net::SocketAddr;
use std::sync::Arc;

use ipnet::IpNet;
use nft::{Data, Element, Value, Verdict};

use super::affinity::Affinity;
use super::balancer::{Balancer, List, Pick};
use super::{Side, chain, maglev, set};
use crate::model::{Destination, Family, Front, Protocol, Scheduler};
use crate::ruleset::balancing::Balancing;
use crate::ruleset::{Settings, localhost, notes};
use crate::select::{Action, PortSelection, ServiceSelection};
use crate::table::{FIRST_PLACE, Fragment, Slots};

/// What stands in a table for a Service.
pub(in crate::ruleset) fn service(settings: &Settings, selection: &ServiceSelection) -> Fragment {
    let family = settings.family;
    let mut fragment = Fragment::default();
    let cluster_ips = selection.cluster_ips.iter().filter(|ip| Family::of(**ip) == family);
    fragment.extend(set::CLUSTER_IPS, cluster_ips.map(|ip| Element::new((*ip).into())));
    for port in selection.ports.iter().filter(|port| port.family == family) {
        let affinity = Affinity::of(port);
        if let Some(affinity) = &affinity {
            affinity.write_shared(&mut fragment);
        }
        let mut writer = Writer {
            fragment: &mut fragment,
            port,
            balancing: settings.balancing,
            affinity,
            comment: Arc::clone(&port.label),
        };
        for front in &port.fronts {
            writer.comment = notes::on_front(&port.label, front);
            writer.front(&front.front, &front.action);
            if let Some(sources) = &front.sources {
                writer.restrict(&front.front, sources);
            }
        }
        localhost::write(settings, port, &mut fragment);
        fragment.extend(notes::HEALTH_CHECKS, notes::element(port));
        fragment.extend(set::HAIRPIN, port.hairpin.iter().map(|endpoint| hairpin(*endpoint, port.protocol)));
    }
    fragment
}

/// A local endpoint as source and destination: how a packet looks after the translation that the endpoint sends to itself (D10).
fn hairpin(endpoint: SocketAddr, protocol: Protocol) -> Element {
    let address = Data::from(endpoint.ip());
    Element::new(address.then(address).then(protocol.number()).then(endpoint.port()))
}

fn endpoint_data(endpoint: &SocketAddr) -> Data {
    Data::from(endpoint.ip()).then(endpoint.port())
}

/// Side and key of a front.
fn key(front: &Front) -> (Side, Data) {
    let protocol = front.protocol.number();
    match front.destination {
        Destination::Address(ip) => (Side::Address, Data::from(ip).then(protocol).then(front.port)),
        Destination::NodePort(_) => (Side::NodePort, Data::from(protocol).then(front.port)),
    }
}

/// Writes the fronts of one service port into a fragment.
struct Writer<'a> {
    fragment: &'a mut Fragment,
    port: &'a PortSelection,
    balancing: Balancing,
    affinity: Option<Affinity<'a>>,
    /// The comment of the front that is being written.
    comment: Arc<str>,
}

impl Writer<'_> {
    fn front(&mut self, front: &Front, action: &Action) {
        let (side, key) = key(front);
        match action {
            Action::Cluster { masquerade } => {
                let verdict = self.balance(side, key, List::Cluster, *masquerade);
                self.verdict(side.dispatch(), key, verdict);
            }
            Action::Local => {
                let verdict = self.balance(side, key, List::Local, false);
                self.verdict(side.dispatch(), key, verdict);
            }
            Action::ByOrigin => self.by_origin(side, key),
            // The packet is dropped before it is known to conntrack; established connections never come here (D12).
            Action::Drop => self.verdict(side.dispatch(), key, Verdict::Drop),
            Action::Reject => self.verdict(side.no_endpoints(), key, Verdict::Goto(chain::REJECT.into())),
        }
        let is_balanced = matches!(action, Action::Cluster { .. } | Action::Local | Action::ByOrigin);
        if let Some(affinity) = self.affinity.as_ref().filter(|_| is_balanced) {
            affinity.learn_from(front, &self.comment, self.fragment);
        }
    }

    /// Writes the allowed sources: each is a range of keys from the front with its first address to the front with its last (D17).
    fn restrict(&mut self, front: &Front, sources: &[IpNet]) {
        let (_, key) = key(front);
        self.fragment.extend(set::RESTRICTED, [Element::new(key)]);
        let ranges = sources.iter().map(|range| Element {
            key_end: Some(Box::new(key.then(range.broadcast()))),
            ..Element::new(key.then(range.network()))
        });
        self.fragment.extend(set::SOURCES, ranges);
    }

    /// External policy Local: pods and this host use all endpoints, other clients the local ones or none (D6).
    fn by_origin(&mut self, side: Side, key: Data) {
        self.verdict(side.dispatch(), key, Verdict::Goto(side.external_local().into()));
        let cluster = self.balance(side, key, List::Cluster, false);
        self.verdict(side.cluster_policy(), key, cluster);
        let local = self.balance(side, key, List::Local, false);
        self.verdict(side.local_policy(), key, local);
    }

    /// Fills the slots of a front and gives the verdict that picks one; an empty list drops.
    fn balance(&mut self, side: Side, key: Data, list: List, masquerade: bool) -> Verdict {
        let endpoints = match list {
            List::Cluster => &self.port.cluster,
            List::Local => &self.port.local,
        };
        if endpoints.is_empty() {
            return Verdict::Drop;
        }
        let pick = self.fill(list.map(side), key, endpoints);
        let balancer = Balancer { side, list, masquerade, pick };
        match &self.affinity {
            Some(affinity) => affinity.before(balancer, self.fragment),
            None => balancer.goto(),
        }
    }

    /// Writes the endpoints of a front as its scheduler finds them.
    fn fill(&mut self, set: &'static str, key: Data, endpoints: &[SocketAddr]) -> Pick {
        let Balancing { with_port, .. } = self.balancing;
        let scheduler = self.balancing.scheduler(self.port.scheduler, endpoints.len());
        let (slots, pick) = match scheduler {
            Scheduler::Random => (endpoints, Pick::Random(endpoints.len())),
            Scheduler::SourceHash => (endpoints, Pick::Hash { count: endpoints.len(), with_port }),
            Scheduler::Maglev => {
                let size = self.balancing.places(endpoints.len());
                let places = maglev::places(size, endpoints).into_iter().map(|(place, number)| {
                    Element::mapping(key.then(FIRST_PLACE + place), Value::Data(endpoint_data(&endpoints[number])))
                });
                self.fragment.extend(set, places);
                (maglev::last_resort(endpoints), Pick::Table { places: size, with_port })
            }
        };
        let values = slots.iter().map(endpoint_data).collect();
        let is_fixed = scheduler != Scheduler::Random;
        self.fragment.slots.push(Slots { set: set.into(), prefix: key, values, is_fixed });
        pick
    }

    fn verdict(&mut self, map: &'static str, key: Data, verdict: Verdict) {
        let mut element = Element::mapping(key, Value::Verdict(verdict));
        element.comment = Some(Arc::clone(&self.comment));
        self.fragment.extend(map, [element]);
    }
}
