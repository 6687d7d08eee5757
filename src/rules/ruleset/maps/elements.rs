//! Builds the map elements that represent a Service with `--ruleset-layout=maps`.

use std::sync::Arc;

use ipnet::IpNet;
use nft::{Element, Rule, Statement, Value, Verdict};

use crate::endpoints::{Action, PortSelection, ServiceSelection};
use crate::model::Frontend;
use crate::ruleset::endpoint_sets::{self, Affinity, Balancer, key};
use crate::ruleset::kinds::ChainKind;
use crate::ruleset::names::{self, FrontendType, List, chain, set};
use crate::ruleset::shared::{jump, regular};
use crate::ruleset::{Settings, localhost, notes, service_ips};
use crate::table::{ChainContent, ServiceObjects};

/// The nftables objects for a Service in the table of one family.
pub(in crate::ruleset) fn service(settings: &Settings, selection: &ServiceSelection) -> ServiceObjects {
    let mut objects = ServiceObjects::default();
    service_ips::write(settings, selection, &mut objects);
    for port in selection.ports.iter().filter(|port| port.family == settings.family) {
        let affinity = Affinity::of(port);
        if let Some(affinity) = &affinity {
            affinity.write_shared(&mut objects);
        }
        let mut writer = Writer { objects: &mut objects, settings, port, affinity, comment: Arc::clone(&port.label) };
        for frontend in &port.frontends {
            writer.comment = notes::on_frontend(&port.label, frontend);
            writer.frontend(&frontend.frontend, &frontend.action);
            if let Some(sources) = &frontend.sources {
                writer.restrict(&frontend.frontend, sources);
            }
        }
        localhost::write(settings, port, &mut objects);
        endpoint_sets::of_port(port, &mut objects);
    }
    objects
}

/// Adds the objects of one service port to `objects`: its frontends, their endpoints and the chains of session affinity.
struct Writer<'a> {
    settings: &'a Settings,
    objects: &'a mut ServiceObjects,
    port: &'a PortSelection,
    affinity: Option<Affinity<'a>>,
    /// The comment of the frontend that is being written.
    comment: Arc<str>,
}

impl Writer<'_> {
    fn frontend(&mut self, frontend: &Frontend, action: &Action) {
        let (frontend_type, key) = (FrontendType::of(frontend), key(frontend));
        match action {
            Action::Cluster { masquerade } => {
                let verdict = self.balance(frontend, List::Cluster, *masquerade);
                self.verdict(names::dispatch(frontend_type), key, verdict);
            }
            Action::Local => {
                let verdict = self.balance(frontend, List::Local, false);
                self.verdict(names::dispatch(frontend_type), key, verdict);
            }
            Action::ByOrigin => self.by_origin(frontend),
            // A nat chain drops the packet before conntrack confirms the connection; established connections never come here (D12).
            Action::Drop => self.verdict(names::dispatch(frontend_type), key, Verdict::Drop),
            Action::Reject => {
                self.verdict(names::no_endpoints(frontend_type), key, Verdict::Goto(chain::REJECT.into()))
            }
        }
        let is_balanced = matches!(action, Action::Cluster { .. } | Action::Local | Action::ByOrigin);
        if let Some(affinity) = self.affinity.as_ref().filter(|_| is_balanced) {
            affinity.learn_from(frontend, &self.comment, self.objects);
        }
    }

    /// Adds a frontend with source ranges, and the ranges: each is an interval of keys, from the frontend with the range's first address to
    /// the frontend with its last address (D17).
    fn restrict(&mut self, frontend: &Frontend, sources: &[IpNet]) {
        let key = key(frontend);
        self.objects.extend(set::RESTRICTED, [Element::new(key)]);
        let ranges = sources.iter().map(|range| Element {
            key_end: Some(Box::new(key.then(range.broadcast()))),
            ..Element::new(key.then(range.network()))
        });
        self.objects.extend(set::SOURCES, ranges);
    }

    /// External policy Local: local pods and this host use the endpoints for policy Cluster; other clients use the endpoints on this node, or
    /// are dropped (D6).
    fn by_origin(&mut self, frontend: &Frontend) {
        let (frontend_type, key) = (FrontendType::of(frontend), key(frontend));
        self.verdict(
            names::dispatch(frontend_type),
            key,
            Verdict::Goto(ChainKind::ExternalLocal(frontend_type).to_string().into()),
        );
        let cluster = self.balance(frontend, List::Cluster, false);
        self.verdict(names::cluster_policy(frontend_type), key, cluster);
        let local = self.balance(frontend, List::Local, false);
        self.verdict(names::local_policy(frontend_type), key, local);
    }

    /// Adds the endpoints of a frontend and returns the verdict that chooses one of them, or `drop` if the list is empty.
    fn balance(&mut self, frontend: &Frontend, list: List, masquerade: bool) -> Verdict {
        if list.of(self.port).is_empty() {
            return Verdict::Drop;
        }
        let is_counted = self.settings.counters.count_endpoints();
        let frontend_type = FrontendType::of(frontend);
        let balancer = endpoint_sets::balancer(self.settings, self.port, frontend_type, list, is_counted);
        endpoint_sets::fill(self.objects, self.port, frontend, balancer);
        let balancer = Balancer { masquerade, ..balancer };
        match &self.affinity {
            Some(affinity) => sticky(affinity, &self.port.label, balancer, self.objects),
            None => balancer.goto(),
        }
    }

    fn verdict(&mut self, map: &'static str, key: nft::Data, verdict: Verdict) {
        let mut element = Element::mapping(key, Value::Verdict(verdict));
        element.comment = Some(Arc::clone(&self.comment));
        self.objects.extend(map, [element]);
    }
}

/// Adds the chain that uses the endpoint recorded for a client, or else lets the scheduler choose. Returns the verdict that goes to the
/// chain.
fn sticky(affinity: &Affinity<'_>, label: &str, balancer: Balancer, objects: &mut ServiceObjects) -> Verdict {
    let without_mark = Balancer { masquerade: false, ..balancer };
    let name = affinity.chain_name(without_mark);
    let plain = Verdict::Goto(Arc::from(&*name));
    let choice = vec![Statement::Verdict(without_mark.goto())];
    let rules = affinity.remembered(balancer.list).into_iter().chain([choice]).map(Rule::new).collect();
    push_once(objects, regular(&name, label, rules));
    if !balancer.masquerade {
        return plain;
    }
    let marked = affinity.chain_name(balancer);
    let rules = vec![Rule::new([jump(chain::MARK_MASQ)]), Rule::new([Statement::Verdict(plain)])];
    push_once(objects, regular(&marked, label, rules));
    Verdict::Goto(marked.into())
}

/// Adds a chain unless it is there already, because the frontends of a port share chains.
fn push_once(objects: &mut ServiceObjects, content: ChainContent) {
    if objects.chains.iter().all(|known| known.chain.name != content.chain.name) {
        objects.chains.push(content);
    }
}
