//! A Service as elements of maps.

use std::sync::Arc;

use ipnet::IpNet;
use nft::{Element, Rule, Statement, Value, Verdict};

use super::set;
use crate::model::{Family, Front};
use crate::ruleset::endpoints::{self, Affinity, Balancer, List, Side, key};
use crate::ruleset::shared::{chain, jump, regular};
use crate::ruleset::{Settings, localhost, notes};
use crate::select::{Action, PortSelection, ServiceSelection};
use crate::table::{ChainContent, Fragment};

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
        let mut writer = Writer { fragment: &mut fragment, settings, port, affinity, comment: Arc::clone(&port.label) };
        for front in &port.fronts {
            writer.comment = notes::on_front(&port.label, front);
            writer.front(&front.front, &front.action);
            if let Some(sources) = &front.sources {
                writer.restrict(&front.front, sources);
            }
        }
        localhost::write(settings, port, &mut fragment);
        endpoints::of_port(port, &mut fragment);
    }
    fragment
}

/// Writes the fronts of one service port into a fragment.
struct Writer<'a> {
    settings: &'a Settings,
    fragment: &'a mut Fragment,
    port: &'a PortSelection,
    affinity: Option<Affinity<'a>>,
    /// The comment of the front that is being written.
    comment: Arc<str>,
}

impl Writer<'_> {
    fn front(&mut self, front: &Front, action: &Action) {
        let (side, key) = (Side::of(front), key(front));
        match action {
            Action::Cluster { masquerade } => {
                let verdict = self.balance(front, List::Cluster, *masquerade);
                self.verdict(side.dispatch(), key, verdict);
            }
            Action::Local => {
                let verdict = self.balance(front, List::Local, false);
                self.verdict(side.dispatch(), key, verdict);
            }
            Action::ByOrigin => self.by_origin(front),
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
        let key = key(front);
        self.fragment.extend(set::RESTRICTED, [Element::new(key)]);
        let ranges = sources.iter().map(|range| Element {
            key_end: Some(Box::new(key.then(range.broadcast()))),
            ..Element::new(key.then(range.network()))
        });
        self.fragment.extend(set::SOURCES, ranges);
    }

    /// External policy Local: pods and this host use all endpoints, other clients the local ones or none (D6).
    fn by_origin(&mut self, front: &Front) {
        let (side, key) = (Side::of(front), key(front));
        self.verdict(side.dispatch(), key, Verdict::Goto(side.external_local().into()));
        let cluster = self.balance(front, List::Cluster, false);
        self.verdict(side.cluster_policy(), key, cluster);
        let local = self.balance(front, List::Local, false);
        self.verdict(side.local_policy(), key, local);
    }

    /// Fills the slots of a front and gives the verdict that picks one; an empty list drops.
    fn balance(&mut self, front: &Front, list: List, masquerade: bool) -> Verdict {
        if list.of(self.port).is_empty() {
            return Verdict::Drop;
        }
        let balancer = endpoints::balancer(self.settings, self.port, Side::of(front), list);
        endpoints::fill(self.fragment, self.port, front, balancer);
        let balancer = Balancer { masquerade, ..balancer };
        match &self.affinity {
            Some(affinity) => sticky(affinity, &self.port.label, balancer, self.fragment),
            None => balancer.goto(),
        }
    }

    fn verdict(&mut self, map: &'static str, key: nft::Data, verdict: Verdict) {
        let mut element = Element::mapping(key, Value::Verdict(verdict));
        element.comment = Some(Arc::clone(&self.comment));
        self.fragment.extend(map, [element]);
    }
}

/// Puts the endpoint that is remembered for a client before the choice by the scheduler; gives the verdict that does both.
fn sticky(affinity: &Affinity<'_>, label: &str, balancer: Balancer, fragment: &mut Fragment) -> Verdict {
    let side = if balancer.side == Side::NodePort { "nodeport-" } else { "" };
    let name = |masquerade| -> Arc<str> { format!("{side}{masquerade}{}", affinity.name(balancer.list)).into() };
    let plain = Verdict::Goto(name(""));
    let choice = vec![Statement::Verdict(Balancer { masquerade: false, ..balancer }.goto())];
    let rules = affinity.remembered(balancer.list).into_iter().chain([choice]).map(Rule::new).collect();
    push_once(fragment, regular(&name(""), label, rules));
    if !balancer.masquerade {
        return plain;
    }
    let marked = name("masq-");
    let rules = vec![Rule::new([jump(chain::MARK_MASQ)]), Rule::new([Statement::Verdict(plain)])];
    push_once(fragment, regular(&marked, label, rules));
    Verdict::Goto(marked)
}

/// A port's fronts share chains; each is written once.
fn push_once(fragment: &mut Fragment, content: ChainContent) {
    if fragment.chains.iter().all(|known| known.chain.name != content.chain.name) {
        fragment.chains.push(content);
    }
}
