//! A service port as chains, maps and elements.

use std::sync::Arc;

use foldhash::HashSet;
use ipnet::IpNet;
use nft::{Data, Element, Field, Operand, Rule, Statement, Value, Verdict};

use super::program::{FROM_HOST, from_local_pod, masqueraded_in_cluster, rule};
use super::{chain, hash, set};
use crate::model::{Destination, FrontKind};
use crate::ruleset::balancing::Balancing;
use crate::ruleset::endpoints::{self, Affinity, Balancer, List, Side, key};
use crate::ruleset::shared::{Fields, comment, goto, jump, regular};
use crate::ruleset::{Settings, notes};
use crate::select::size::PortSize;
use crate::select::{Action, FrontSelection, PortSelection};
use crate::table::Fragment;

/// What stands for a service port counts in elements. Measured: 10,000 chains take as long as some 100,000 elements at the least.
pub(in crate::ruleset) fn weight(balancing: Balancing, size: &PortSize) -> u64 {
    const CHAIN: u64 = 10;
    // KUBE-SVC-H, KUBE-SVL-H, KUBE-EXT-H, KUBE-FW-H
    endpoints::weight(balancing, size).saturating_add(4 * CHAIN)
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
    endpoints::of_port(port, fragment);
    let affinity = Affinity::of(port);
    if let Some(affinity) = &affinity {
        affinity.write_shared(fragment);
    }
    let comment = comment(&port.label);
    let mut writer = Writer { settings, fields, port, hash, affinity, comment, written: HashSet::default(), fragment };
    port.fronts.iter().for_each(|front| writer.front(front));
}

struct Writer<'a> {
    settings: &'a Settings,
    fields: Fields,
    port: &'a PortSelection,
    hash: String,
    affinity: Option<Affinity<'a>>,
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
        self.endpoints(selection);
        let verdict = match &selection.sources {
            Some(sources) => self.firewall(Some(target), sources),
            None => Verdict::Goto(self.name(target)),
        };
        self.dispatch(selection, verdict);
    }

    /// Adds the endpoints that packets of a front may go to, and has session affinity learn from it.
    fn endpoints(&mut self, selection: &FrontSelection) {
        for list in List::BOTH.into_iter().filter(|list| list.is_used_by(&selection.action)) {
            if !list.of(self.port).is_empty() {
                let balancer = self.balancer(Side::of(&selection.front), list);
                endpoints::fill(self.fragment, self.port, &selection.front, balancer);
            }
        }
        if let Some(affinity) = &self.affinity {
            affinity.learn_from(&selection.front, &notes::on_front(&self.port.label, selection), self.fragment);
        }
    }

    fn balancer(&self, side: Side, list: List) -> Balancer {
        endpoints::balancer(self.settings, self.port, side, list)
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

    fn rule(&self, statements: impl Into<Vec<Statement>>) -> Rule {
        rule(statements, &self.comment)
    }

    /// Adds a chain unless another front brought it already.
    fn chain(&mut self, name: &Arc<str>, rules: impl FnOnce(&Self) -> Vec<Rule>) {
        if self.written.insert(Arc::clone(name)) {
            let rules = rules(self);
            self.fragment.chains.push(regular(name, &self.comment, rules));
        }
    }

    /// Adds the chain that a front needs, and those that it leads to.
    fn target(&mut self, target: Target) {
        let name = self.name(target);
        match target {
            Target::Cluster => self.chain(&name, |writer| writer.choose(List::Cluster)),
            Target::Local => self.chain(&name, |writer| writer.choose(List::Local)),
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

    /// The rules that choose an endpoint of a list: the one that is remembered for the client, else the one that the scheduler gives.
    fn choose(&self, list: List) -> Vec<Rule> {
        let mut rules = Vec::new();
        let mark = masqueraded_in_cluster(self.settings);
        rules.extend(mark.map(|matched| self.rule([matched, vec![jump(chain::MARK_MASQ)]].concat())));
        let remembered = self.affinity.iter().flat_map(|affinity| affinity.remembered(list));
        rules.extend(remembered.map(|statements| self.rule(statements)));
        let front_of = |side| {
            let of_list = self.port.fronts.iter().filter(|selection| list.is_used_by(&selection.action));
            of_list.map(|selection| &selection.front).find(|front| Side::of(front) == side)
        };
        // Only packets to this node port may be looked up as such: another Service may have the number of a packet to an address.
        rules.extend(front_of(Side::NodePort).map(|front| {
            let is_node_port = Statement::Match(vec![Field::ThDport], Operand::Is(Data::from(front.port)));
            self.rule([is_node_port, self.pick(Side::NodePort, list)])
        }));
        rules.extend(front_of(Side::Address).map(|_| self.rule([self.pick(Side::Address, list)])));
        rules
    }

    /// The chain that picks an endpoint, which all service ports with as many endpoints share. A rule of its own for each service port
    /// that looks the endpoint up would make the kernel compare each element with each of these rules (`nft_add_set_elem`).
    fn pick(&self, side: Side, list: List) -> Statement {
        Statement::Verdict(self.balancer(side, list).goto())
    }
}
