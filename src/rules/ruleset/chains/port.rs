//! Builds the chains, maps and elements of a service port with `--ruleset-layout=chains`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use foldhash::HashSet;
use ipnet::IpNet;
use nft::{Data, Element, Field, Operand, Rule, Set, SetFlags, Statement, Types, Value, ValueType, Verdict};

use super::hash;
use super::static_rules::{FROM_HOST, from_local_pod, masqueraded_in_cluster, rule};
use crate::endpoints::size::PortSize;
use crate::endpoints::{Action, FrontendSelection, PortSelection};
use crate::model::{Destination, FrontendKind};
use crate::ruleset::balancing::{self, Balancing};
use crate::ruleset::endpoint_sets::{self, Affinity, Balancer, Pick, key};
use crate::ruleset::kinds::ChainKind;
use crate::ruleset::names::{FrontendType, List, chain, set};
use crate::ruleset::shared::{Fields, comment, commented, goto, is_protocol, jump, regular};
use crate::ruleset::{Settings, notes};
use crate::table::{DynamicSet, ServiceObjects, VerdictMap};

/// Estimates the cost of a service port's objects, in elements. In our measurement adding 10,000 chains took at least as long as adding some
/// 100,000 elements.
///
/// The time for sets grows with the square of their number; their cost here is about right for the largest Service that the default limit
/// of elements allows.
pub(in crate::ruleset) fn weight(balancing: Balancing, size: &PortSize, endpoint_chains: bool) -> u64 {
    const CHAIN: u64 = 10;
    const SET: u64 = 50;
    // The chains KUBE-SVC-H, KUBE-SVL-H, KUBE-EXT-H and KUBE-FW-H (H: hash), and the maps of verdicts of the first two.
    let of_port = 4 * CHAIN + if endpoint_chains { 2 * SET } else { 0 };
    let of_endpoint = match endpoint_chains {
        true => CHAIN + if size.affinity { SET } else { 0 },
        false => 0,
    };
    endpoint_sets::weight(balancing, size)
        .saturating_add(of_port)
        .saturating_add(size.endpoints.saturating_mul(of_endpoint))
}

/// A chain of a service port that frontends and other chains go to. `H` is the hash of the service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    /// `KUBE-SVC-H`: chooses among the endpoints for traffic policy Cluster.
    Cluster,
    /// `KUBE-SVL-H`: chooses among the endpoints on this node.
    Local,
    /// `KUBE-EXT-H`: external traffic; marks it for masquerading and goes to `KUBE-SVC-H` (D5), or chooses `KUBE-SVC-H` or `KUBE-SVL-H` by
    /// the packet's origin (D6).
    External { by_origin: bool },
}

/// Adds the chains, maps and elements of a service port to `objects`.
pub(super) fn write(settings: &Settings, port: &PortSelection, endpoint_chains: bool, objects: &mut ServiceObjects) {
    let hash = hash::of_port(&port.label, port.protocol);
    let fields = Fields::of(settings.family);
    endpoint_sets::of_port(port, objects);
    let has_table = List::BOTH.iter().any(|list| {
        matches!(endpoint_sets::balancer(settings, port, FrontendType::Address, *list, true).pick, Pick::Table { .. })
    });
    let endpoint_chains = endpoint_chains && !has_table;
    let affinity = if endpoint_chains { None } else { Affinity::of(port) };
    if let Some(affinity) = &affinity {
        affinity.write_shared(objects);
    }
    let (comment, written) = (comment(&port.label), HashSet::default());
    let mut writer = Writer { settings, fields, port, hash, endpoint_chains, affinity, comment, written, objects };
    port.frontends.iter().for_each(|frontend| writer.frontend(frontend));
}

struct Writer<'a> {
    settings: &'a Settings,
    fields: Fields,
    port: &'a PortSelection,
    hash: String,
    /// Whether each endpoint has a chain.
    endpoint_chains: bool,
    /// Session affinity, if endpoints have no chains; otherwise `None`.
    affinity: Option<Affinity<'a>>,
    comment: Arc<str>,
    /// The names of the chains that were already added to `objects` for this service port.
    written: HashSet<Arc<str>>,
    objects: &'a mut ServiceObjects,
}

impl Writer<'_> {
    fn frontend(&mut self, selection: &FrontendSelection) {
        let target = match selection.action {
            Action::Cluster { masquerade: false } => Target::Cluster,
            Action::Cluster { masquerade: true } => Target::External { by_origin: false },
            Action::Local => Target::Local,
            Action::ByOrigin => Target::External { by_origin: true },
            Action::Drop => return self.dispatch(selection, Verdict::Drop),
            Action::Reject => return self.reject(selection),
        };
        self.target(target);
        self.endpoints(selection);
        let verdict = match &selection.sources {
            Some(sources) => self.firewall(Some(target), sources),
            None => Verdict::Goto(self.name(target)),
        };
        self.dispatch(selection, verdict);
    }

    /// Adds the endpoints of a frontend as map elements, and the element by which session affinity records its clients. If endpoints have
    /// chains, adds only the frontend's element of the fallback map.
    fn endpoints(&mut self, selection: &FrontendSelection) {
        if self.endpoint_chains {
            return self.first_endpoint(selection);
        }
        for list in List::BOTH.into_iter().filter(|list| list.is_used_by(&selection.action)) {
            if !list.of(self.port).is_empty() {
                let balancer = self.balancer(FrontendType::of(&selection.frontend), list);
                endpoint_sets::fill(self.objects, self.port, &selection.frontend, balancer);
            }
        }
        if let Some(affinity) = &self.affinity {
            affinity.learn_from(&selection.frontend, &notes::on_frontend(&self.port.label, selection), self.objects);
        }
    }

    /// Adds the frontend's element of the fallback map: its first endpoint or, with policy Local, its first endpoint on this node if there
    /// is one.
    fn first_endpoint(&mut self, selection: &FrontendSelection) {
        let lists = [List::Local, List::Cluster].into_iter().filter(|list| list.is_used_by(&selection.action));
        let map = match FrontendType::of(&selection.frontend) {
            FrontendType::Address => set::FALLBACK,
            FrontendType::NodePort => set::NODEPORT_FALLBACK,
        };
        let first = lists.flat_map(|list| list.of(self.port)).next();
        self.objects.extend(map, first.map(|first| endpoint_sets::only(&selection.frontend, first)));
    }

    fn balancer(&self, frontend_type: FrontendType, list: List) -> Balancer {
        endpoint_sets::balancer(self.settings, self.port, frontend_type, list, true)
    }

    /// Adds the verdict for packets of a frontend to the map of addresses or of node ports.
    fn dispatch(&mut self, selection: &FrontendSelection, verdict: Verdict) {
        let map = match selection.frontend.destination {
            Destination::Address(_) => set::CHAINS_SERVICES,
            Destination::NodePort(_) => set::CHAINS_NODEPORTS,
        };
        self.element(map, selection, verdict);
    }

    /// For a frontend without endpoints: filter chains reject its untranslated packets (D2, D3). Packets from clients outside the source
    /// ranges are dropped before that.
    fn reject(&mut self, selection: &FrontendSelection) {
        if let Some(sources) = &selection.sources {
            let verdict = self.firewall(None, sources);
            self.dispatch(selection, verdict);
        }
        let map = match selection.kind {
            FrontendKind::ClusterIp => set::NO_ENDPOINTS,
            FrontendKind::ExternalIp | FrontendKind::LoadBalancerIp => set::NO_ENDPOINTS_EXTERNAL,
            FrontendKind::NodePort => set::NO_ENDPOINTS_NODEPORTS,
        };
        self.element(map, selection, Verdict::Goto(chain::REJECT.into()));
    }

    fn element(&mut self, map: &'static str, selection: &FrontendSelection, verdict: Verdict) {
        let mut element = Element::mapping(key(&selection.frontend), Value::Verdict(verdict));
        element.comment = Some(notes::on_frontend(&self.port.label, selection));
        self.objects.extend(map, [element]);
    }

    fn name(&self, target: Target) -> Arc<str> {
        let kind = match target {
            Target::Cluster => ChainKind::ServicePort(List::Cluster),
            Target::Local => ChainKind::ServicePort(List::Local),
            Target::External { .. } => ChainKind::External,
        };
        format!("{kind}{}", self.hash).into()
    }

    fn rule(&self, statements: impl Into<Vec<Statement>>) -> Rule {
        rule(statements, &self.comment)
    }

    /// Adds a chain unless another frontend of the port has added it already. Returns whether it is new.
    fn chain(&mut self, name: &Arc<str>, text: &str, rules: impl FnOnce(&Self) -> Vec<Rule>) -> bool {
        let is_new = self.written.insert(Arc::clone(name));
        if is_new {
            let rules = rules(self);
            self.objects.chains.push(regular(name, text, rules));
        }
        is_new
    }

    /// Adds the chain that a frontend needs, and the chains that it goes to.
    fn target(&mut self, target: Target) {
        let name = self.name(target);
        match target {
            Target::Cluster => self.choose(&name, List::Cluster),
            Target::Local => self.choose(&name, List::Local),
            Target::External { by_origin: false } => {
                self.target(Target::Cluster);
                self.chain(&name, &self.port.label, |writer| {
                    let to_cluster = writer.goto(Target::Cluster);
                    vec![writer.rule([jump(chain::MARK_MASQ)]), writer.rule([to_cluster])]
                });
            }
            Target::External { by_origin: true } => {
                self.target(Target::Cluster);
                if !self.port.local.is_empty() {
                    self.target(Target::Local);
                }
                self.chain(&name, &self.port.label, Self::by_origin);
            }
        }
    }

    fn goto(&self, target: Target) -> Statement {
        goto(&self.name(target))
    }

    /// External policy Local: local pods and this host use the endpoints for policy Cluster; other clients use the endpoints on this node, or
    /// are dropped (D3, D6, D7).
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

    /// Adds the chain that sends clients in the source ranges to `target` (D17). Without a target the chain returns the packets of these
    /// clients, and filter chains reject them.
    fn firewall(&mut self, target: Option<Target>, sources: &[IpNet]) -> Verdict {
        // An address that is both a cluster IP and a load balancer IP counts as a cluster IP, and needs a chain with another target.
        let is_internal = matches!(target, Some(Target::Cluster | Target::Local));
        let name: Arc<str> = format!("{}{}", ChainKind::SourceRanges { is_internal }, self.hash).into();
        self.chain(&name, &self.port.label, |writer| {
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

    /// Adds the chain that chooses an endpoint of a list: the one that session affinity has recorded for the client, or else one that the
    /// scheduler chooses.
    fn choose(&mut self, name: &Arc<str>, list: List) {
        if self.written.contains(name) {
            return;
        }
        let mut rules = Vec::new();
        let mark = masqueraded_in_cluster(self.settings);
        rules.extend(mark.map(|matched| self.rule([matched, vec![jump(chain::MARK_MASQ)]].concat())));
        rules.extend(if self.endpoint_chains { self.among_chains(name, list) } else { self.among_elements(list) });
        self.chain(name, &self.port.label, |_| rules);
    }

    /// The rules that choose an endpoint of a list if endpoints are map elements and have no chains.
    fn among_elements(&self, list: List) -> Vec<Rule> {
        let mut rules = Vec::new();
        let remembered = self.affinity.iter().flat_map(|affinity| affinity.remembered(list));
        rules.extend(remembered.map(|statements| self.rule(statements)));
        let frontend_of = |frontend_type| {
            let of_list = self.port.frontends.iter().filter(|selection| list.is_used_by(&selection.action));
            of_list.map(|selection| &selection.frontend).find(|frontend| FrontendType::of(frontend) == frontend_type)
        };
        // This rule matches the node port before it looks for an endpoint in the map of node ports. Otherwise the map would be searched for
        // the port of a packet to an address too, and that port may be the node port of another Service.
        rules.extend(frontend_of(FrontendType::NodePort).map(|frontend| {
            let is_node_port = Statement::Match(vec![Field::ThDport], Operand::Is(Data::from(frontend.port)));
            self.rule([is_node_port, self.pick(FrontendType::NodePort, list)])
        }));
        rules.extend(frontend_of(FrontendType::Address).map(|_| self.rule([self.pick(FrontendType::Address, list)])));
        rules
    }

    /// Goes to a chain such as `lb-N`, which many service ports with N endpoints share. If each service port had a rule that looks up the
    /// endpoint, the kernel would validate each new element of the map against each of these rules (`nft_add_set_elem`).
    fn pick(&self, frontend_type: FrontendType, list: List) -> Statement {
        Statement::Verdict(self.balancer(frontend_type, list).goto())
    }

    /// The rules that choose one of the endpoints' chains. Also adds these chains, and the map from number to chain unless there is only
    /// one endpoint.
    fn among_chains(&mut self, map: &Arc<str>, list: List) -> Vec<Rule> {
        let slots = list.of(self.port);
        // The list is sorted, so the entries of an endpoint with a larger weight follow each other.
        let endpoints: Vec<(SocketAddr, usize, Arc<str>)> =
            slots.chunk_by(|a, b| a == b).map(|same| (same[0], same.len(), self.endpoint_name(same[0]))).collect();
        let mut rules = Vec::new();
        if self.port.affinity_seconds.is_some() {
            let remembered = |name: &Arc<str>| {
                let is_known = Operand::InSet(Arc::clone(name));
                self.rule([Statement::Match(vec![self.fields.source], is_known), goto(name)])
            };
            rules.extend(endpoints.iter().map(|(_, _, name)| remembered(name)));
        }
        match (u32::try_from(slots.len()), &endpoints[..]) {
            (Ok(count @ 2..), _) => {
                let (number, is_fixed) = match self.balancer(FrontendType::Address, list).pick {
                    Pick::Hash { with_port, .. } => {
                        (balancing::hash(self.settings.family, with_port, 0, count, 0), true)
                    }
                    Pick::Random(_) | Pick::Table { .. } => (Field::NumgenRandom(count), false),
                };
                rules.push(self.rule([Statement::Vmap(vec![number], Arc::clone(map))]));
                let types = Types::Of(vec![endpoint_sets::SLOT_TYPE]);
                let set = commented(Set::map(map, types, ValueType::Verdict), &self.comment);
                let repeated = endpoints.iter().flat_map(|(_, count, name)| (0..*count).map(move |_| name));
                let verdicts = repeated.map(|name| Verdict::Goto(Arc::clone(name))).collect();
                self.objects.verdict_maps.push(VerdictMap { set: Arc::new(set), verdicts, is_fixed });
            }
            (_, [(_, _, only)]) => rules.push(self.rule([goto(only)])),
            _ => {}
        }
        let local: HashSet<SocketAddr> = self.port.hairpin.iter().copied().collect();
        for (endpoint, _, name) in &endpoints {
            self.endpoint(*endpoint, name, local.contains(endpoint));
        }
        rules
    }

    fn endpoint_name(&self, endpoint: SocketAddr) -> Arc<str> {
        let hash = hash::of_endpoint(&self.port.label, self.port.protocol, endpoint);
        format!("{}{hash}", ChainKind::Endpoint).into()
    }

    /// Adds the chain of an endpoint, and with session affinity the set of its clients.
    fn endpoint(&mut self, endpoint: SocketAddr, name: &Arc<str>, is_local: bool) {
        let text = format!("{} -> {endpoint}", self.port.label);
        let is_new = self.chain(name, &text, |writer| writer.endpoint_rules(endpoint, name, is_local));
        if is_new && self.port.affinity_seconds.is_some() {
            let mut clients = Set::new(name, Types::Named(vec![self.fields.address]));
            clients.flags = SetFlags { dynamic: true, timeout: true, ..SetFlags::default() };
            clients.size = Some(endpoint_sets::MAX_CLIENTS);
            let set = Arc::new(commented(clients, &self.comment));
            self.objects.dynamic_sets.push(DynamicSet { set, allowed: None });
        }
    }

    fn endpoint_rules(&self, endpoint: SocketAddr, name: &Arc<str>, is_local: bool) -> Vec<Rule> {
        let mut rules = Vec::new();
        if is_local {
            // A connection of a pod to itself must be masqueraded, or the pod would answer its own address directly (D10).
            let itself = Statement::Match(vec![self.fields.source], Operand::Is(Data::from(endpoint.ip())));
            rules.push(self.rule([itself, jump(chain::MARK_MASQ)]));
        }
        // A separate rule: if the set is full, the kernel stops evaluating this rule, but the packet must go on to the next.
        rules.extend(self.port.affinity_seconds.map(|seconds| {
            let timeout = Some(Duration::from_secs(u64::from(seconds)));
            let (set, key) = (Arc::clone(name), vec![self.fields.source]);
            self.rule([Statement::Update { set, key, value: Vec::new(), timeout }])
        }));
        // nft accepts a DNAT with a port only after a match of the protocol in the same rule.
        rules.push(self.rule([is_protocol(self.port.protocol), Statement::Counter, Statement::Dnat(endpoint)]));
        rules
    }
}
