//! A service port as chains, maps and elements.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashSet;
use ipnet::IpNet;
use nft::{Data, Element, Field, Operand, Rule, Set, SetFlags, Statement, Types, Value, ValueType, Verdict};

use super::program::{FROM_HOST, from_local_pod, masqueraded_in_cluster, rule};
use super::{chain, hash, set};
use crate::model::{Destination, Front, FrontKind, Scheduler};
use crate::ruleset::balancing;
use crate::ruleset::shared::{Fields, comment, goto, jump, regular};
use crate::ruleset::{Settings, notes};
use crate::select::size::PortSize;
use crate::select::{Action, FrontSelection, PortSelection};
use crate::table::{Choice, Fragment, LearnedMap};

/// The largest number of clients that an endpoint's set remembers.
const MAX_CLIENTS: u32 = 65_536;
/// A choice's keys are typed as what `numgen` gives below this number; it bounds nothing but the text of the type.
const NUMBER_TYPE: Field = Field::NumgenRandom(1 << 16);

/// What the chains, maps and sets of a service port count in elements. Measured: 10,000 chains of endpoints take as long as some
/// 100,000 elements at the least, and half a second. The time for sets grows with the square of their number, so that their weight is
/// about right for the largest Service that the usual limit admits.
pub(in crate::ruleset) fn weight(size: &PortSize) -> u64 {
    const CHAIN: u64 = 10;
    const SET: u64 = 50;
    let PortSize { fronts, sources, endpoints, affinity, .. } = *size;
    let of_port = 2 * CHAIN + if endpoints > 1 { SET } else { 0 };
    let of_endpoint = CHAIN + if affinity { SET } else { 0 };
    fronts.saturating_add(sources).saturating_add(of_port).saturating_add(endpoints.saturating_mul(of_endpoint))
}

/// A chain of a service port that fronts and other chains lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    /// `KUBE-SVC-H`: the cluster list.
    Cluster,
    /// `KUBE-SVL-H`: the local list.
    Local,
    /// `KUBE-EXT-H`: external traffic; marks and goes to the cluster list (D5), or chooses the list by origin (D6).
    External { by_origin: bool },
}

/// Writes what stands for a service port into a fragment.
pub(super) fn write(settings: &Settings, port: &PortSelection, fragment: &mut Fragment) {
    let hash = hash::of_port(&port.label, port.protocol);
    let fields = Fields::of(settings.family);
    fragment.extend(notes::HEALTH_CHECKS, notes::element(port));
    let mut writer =
        Writer { settings, fields, port, hash, comment: comment(&port.label), written: HashSet::default(), fragment };
    port.fronts.iter().for_each(|front| writer.front(front));
}

struct Writer<'a> {
    settings: &'a Settings,
    fields: Fields,
    port: &'a PortSelection,
    hash: String,
    comment: Arc<str>,
    /// The names of the chains that are in the fragment already; no other port has them.
    written: HashSet<Arc<str>>,
    fragment: &'a mut Fragment,
}

impl Writer<'_> {
    fn front(&mut self, selection: &FrontSelection) {
        let target = match selection.action {
            Action::Cluster { masquerade: false } => Target::Cluster,
            Action::Cluster { masquerade: true } => Target::External { by_origin: false },
            Action::Local => Target::Local,
            Action::ByOrigin => Target::External { by_origin: true },
            Action::Drop => return self.dispatch(selection, Verdict::Drop),
            Action::Reject => return self.reject(selection),
        };
        self.target(target);
        let verdict = match &selection.sources {
            Some(sources) => self.firewall(Some(target), sources),
            None => Verdict::Goto(self.name(target)),
        };
        self.dispatch(selection, verdict);
    }

    /// Adds the verdict for packets of a front to the map of its kind of front.
    fn dispatch(&mut self, selection: &FrontSelection, verdict: Verdict) {
        let map = match selection.front.destination {
            Destination::Address(_) => set::SERVICES,
            Destination::NodePort(_) => set::NODEPORTS,
        };
        self.element(map, selection, verdict);
    }

    /// Without endpoints: filter chains reject what was not translated (D2, D3). Sources that may not connect are dropped before that.
    fn reject(&mut self, selection: &FrontSelection) {
        if let Some(sources) = &selection.sources {
            let verdict = self.firewall(None, sources);
            self.dispatch(selection, verdict);
        }
        let map = match selection.kind {
            FrontKind::ClusterIp => set::NO_ENDPOINTS,
            FrontKind::ExternalIp | FrontKind::LoadBalancerIp => set::NO_ENDPOINTS_EXTERNAL,
            FrontKind::NodePort => set::NO_ENDPOINTS_NODEPORTS,
        };
        self.element(map, selection, Verdict::Goto(chain::REJECT.into()));
    }

    fn element(&mut self, map: &'static str, selection: &FrontSelection, verdict: Verdict) {
        let mut element = Element::mapping(key(&selection.front), Value::Verdict(verdict));
        element.comment = Some(notes::on_front(&self.port.label, selection));
        self.fragment.extend(map, [element]);
    }

    fn name(&self, target: Target) -> Arc<str> {
        let kind = match target {
            Target::Cluster => "SVC",
            Target::Local => "SVL",
            Target::External { .. } => "EXT",
        };
        format!("KUBE-{kind}-{}", self.hash).into()
    }

    fn endpoint_name(&self, endpoint: SocketAddr) -> Arc<str> {
        format!("KUBE-SEP-{}", hash::of_endpoint(&self.port.label, self.port.protocol, endpoint)).into()
    }

    fn rule(&self, statements: impl Into<Vec<Statement>>) -> Rule {
        rule(statements, &self.comment)
    }

    /// Adds a chain unless another front brought it already; gives whether it is new.
    fn chain(&mut self, name: &Arc<str>, rules: impl FnOnce(&Self) -> Vec<Rule>) -> bool {
        let is_new = self.written.insert(Arc::clone(name));
        if is_new {
            let rules = rules(self);
            self.fragment.chains.push(regular(name, &self.comment, rules));
        }
        is_new
    }

    /// Adds the chain that a front needs, and those that it leads to.
    fn target(&mut self, target: Target) {
        let name = self.name(target);
        match target {
            Target::Cluster => self.balance(&name, &self.port.cluster),
            Target::Local => self.balance(&name, &self.port.local),
            Target::External { by_origin: false } => {
                self.target(Target::Cluster);
                self.chain(&name, |writer| {
                    let to_cluster = writer.goto(Target::Cluster);
                    vec![writer.rule([jump(chain::MARK_MASQ)]), writer.rule([to_cluster])]
                });
            }
            Target::External { by_origin: true } => {
                self.target(Target::Cluster);
                if !self.port.local.is_empty() {
                    self.target(Target::Local);
                }
                self.chain(&name, Self::by_origin);
            }
        }
    }

    fn goto(&self, target: Target) -> Statement {
        goto(&self.name(target))
    }

    /// External policy Local: pods and this host use all endpoints, other clients the local ones or none (D3, D6, D7).
    fn by_origin(&self) -> Vec<Rule> {
        let to_cluster = || self.goto(Target::Cluster);
        let mut rules = Vec::new();
        rules.extend(from_local_pod(self.settings).map(|from_pod| self.rule([from_pod, to_cluster()])));
        rules.push(self.rule([FROM_HOST, jump(chain::MARK_MASQ)]));
        rules.push(self.rule([FROM_HOST, to_cluster()]));
        rules.push(if self.port.local.is_empty() {
            self.rule([Statement::Counter, Statement::Verdict(Verdict::Drop)])
        } else {
            self.rule([self.goto(Target::Local)])
        });
        rules
    }

    /// The chain that lets allowed sources go on (D17), to the rejecting filter chains if there is no target.
    fn firewall(&mut self, target: Option<Target>, sources: &[IpNet]) -> Verdict {
        // An address may be both a cluster IP and a load balancer IP; what it is first decides where it leads.
        let kind = if matches!(target, Some(Target::Cluster | Target::Local)) { "FWI" } else { "FW" };
        let name: Arc<str> = format!("KUBE-{kind}-{}", self.hash).into();
        self.chain(&name, |writer| {
            let go_on = || match target {
                Some(target) => writer.goto(target),
                None => Statement::Verdict(Verdict::Return),
            };
            let from = |range: &IpNet| {
                let operand = Operand::InPrefix(range.network(), range.prefix_len());
                writer.rule([Statement::Match(vec![writer.fields.source], operand), go_on()])
            };
            let others = writer.rule([Statement::Counter, goto(chain::FIREWALL)]);
            sources.iter().map(from).chain([others]).collect()
        });
        Verdict::Goto(name)
    }

    /// Whether an endpoint is chosen by a hash of the source. A table as that of `maglev` would take some two hundred rules for each
    /// service port, and every one of its places would be a verdict that the kernel checks at each change: here `source-hash` is in its
    /// place.
    fn hashes(&self, endpoints: usize) -> bool {
        self.settings.balancing.scheduler(self.port.scheduler, endpoints) != Scheduler::Random
    }

    /// The chain that chooses an endpoint: the one that remembers the client, else the one that the scheduler gives.
    fn balance(&mut self, name: &Arc<str>, endpoints: &[SocketAddr]) {
        let names: Vec<Arc<str>> = endpoints.iter().map(|endpoint| self.endpoint_name(*endpoint)).collect();
        if !self.chain(name, |writer| writer.balancing_rules(name, &names)) {
            return;
        }
        if names.len() > 1 {
            let mut map = Set::map(name, Types::Of(vec![NUMBER_TYPE]), ValueType::Verdict);
            map.comment = Some(Arc::clone(&self.comment));
            let verdicts = names.iter().map(|name| Verdict::Jump(Arc::clone(name))).collect();
            let is_fixed = self.hashes(names.len());
            self.fragment.choices.push(Choice { set: Arc::new(map), verdicts, is_fixed });
        }
        let local: BTreeSet<SocketAddr> = self.port.hairpin.iter().copied().collect();
        for (endpoint, name) in endpoints.iter().zip(&names) {
            self.endpoint(*endpoint, name, local.contains(endpoint));
        }
    }

    fn balancing_rules(&self, map: &Arc<str>, endpoints: &[Arc<str>]) -> Vec<Rule> {
        let mut rules = Vec::new();
        let mark = masqueraded_in_cluster(self.settings);
        rules.extend(mark.map(|matched| self.rule([matched, vec![jump(chain::MARK_MASQ)]].concat())));
        if self.port.affinity_seconds.is_some() {
            let remembered = |name: &Arc<str>| {
                let is_known = Operand::InSet(Arc::clone(name));
                self.rule([Statement::Match(vec![self.fields.source], is_known), goto(name)])
            };
            rules.extend(endpoints.iter().map(remembered));
        }
        // A packet that meets a change between the rule and its look-up may find that the map has lost its highest number, or find
        // the chain of a new endpoint, which has no rules for it yet and returns here. The last rule is for this packet, so that
        // none falls through to the reject rules because of a change. It holds no map, which the kernel would have to check again.
        if let (Ok(count @ 2..), [first, ..]) = (u32::try_from(endpoints.len()), endpoints) {
            let number = if self.hashes(endpoints.len()) {
                balancing::hash(self.settings.family, self.settings.balancing.with_port, 0, count, 0)
            } else {
                Field::NumgenRandom(count)
            };
            rules.push(self.rule([Statement::Vmap(vec![number], Arc::clone(map))]));
            let text = format!("{}, while endpoints change", self.port.label);
            rules.push(rule([goto(first)], &comment(&text.into())));
        } else {
            rules.extend(endpoints.iter().map(|only| self.rule([goto(only)])));
        }
        rules
    }

    /// The chain of an endpoint, and its clients.
    fn endpoint(&mut self, endpoint: SocketAddr, name: &Arc<str>, is_local: bool) {
        if !self.written.insert(Arc::clone(name)) {
            return;
        }
        let text = format!("{} -> {endpoint}", self.port.label);
        self.fragment.chains.push(regular(name, &text, self.endpoint_rules(endpoint, name, is_local)));
        if self.port.affinity_seconds.is_some() {
            let mut clients = Set::new(name, Types::Named(vec![self.fields.address]));
            clients.flags = SetFlags { dynamic: true, timeout: true, ..SetFlags::default() };
            clients.size = Some(MAX_CLIENTS);
            clients.comment = Some(Arc::clone(&self.comment));
            self.fragment.learned.push(LearnedMap { set: Arc::new(clients), allowed: None });
        }
    }

    fn endpoint_rules(&self, endpoint: SocketAddr, name: &Arc<str>, is_local: bool) -> Vec<Rule> {
        let mut rules = Vec::new();
        if is_local {
            // A pod that reaches itself has to be masqueraded, or it would answer itself directly (D10).
            let itself = Operand::Is(Data::from(endpoint.ip()));
            let from_itself = Statement::Match(vec![self.fields.source], itself);
            rules.push(self.rule([from_itself, jump(chain::MARK_MASQ)]));
        }
        // A rule of its own: it ends early when the set is full, and the packet has to go on.
        rules.extend(self.port.affinity_seconds.map(|seconds| {
            let timeout = Some(Duration::from_secs(u64::from(seconds)));
            let (set, key) = (Arc::clone(name), vec![self.fields.source]);
            self.rule([Statement::Update { set, key, value: Vec::new(), timeout }])
        }));
        // nft loads a translation of ports only behind a match of the protocol.
        let protocol = Operand::Is(Data::from(self.port.protocol.number()));
        let is_protocol = Statement::Match(vec![Field::L4Proto], protocol);
        rules.push(self.rule([is_protocol, Statement::Counter, Statement::Dnat(endpoint)]));
        rules
    }
}

/// The key of a front in its map.
fn key(front: &Front) -> Data {
    let protocol = front.protocol.number();
    match front.destination {
        Destination::Address(ip) => Data::from(ip).then(protocol).then(front.port),
        Destination::NodePort(_) => Data::from(protocol).then(front.port),
    }
}
