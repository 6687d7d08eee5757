//! Collects what the sets and maps of a table have for each frontend, and a short summary of each chain.
//!
//! Takes the objects of the table one by one, rules first, then elements; returns [`Collected`]. Ignores objects that have nothing to do
//! with Services. [`rules::ruleset::reading`] knows what a set or a key means. The proxy writes its tables in one of two layouts, `maps` or
//! `chains` (`nft/README.md`).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use ipnet::{IpNet, IpSubnets, Ipv4Subnets, Ipv6Subnets};
use nft::decode::RawElement;
use nft::{Element, Expr, Item, RuleDump, Set, Value, Verdict};

use rules::model::{Family, Frontend, Protocol};
use rules::ruleset::kinds::SetKind;
use rules::ruleset::names::{List, chain};
use rules::ruleset::reading::{self, Key};

/// The content of a table, before the frontends are followed to their endpoints.
#[derive(Default)]
pub(super) struct Collected {
    pub(super) frontends: HashMap<Frontend, Record>,
    pub(super) cluster_ips: HashSet<IpAddr>,
    /// Addresses that accept node ports.
    pub(super) node_addresses: Vec<IpAddr>,
    /// Endpoints on this node.
    pub(super) local: HashSet<(SocketAddr, Protocol)>,
    chains: HashMap<Arc<str>, Chain>,
    /// The endpoint chains that each map of numbered verdicts leads to, by the map's name (layout `chains`).
    pub(super) verdict_maps: HashMap<Arc<str>, Vec<Arc<str>>>,
    /// The number of clients in each dynamic set (session affinity).
    pub(super) clients: HashMap<Arc<str>, u64>,
    pub(super) unreadable: usize,
}

/// The content of the sets and maps for a frontend.
#[derive(Default)]
pub(super) struct Record {
    /// The comment of its element.
    pub(super) comment: Option<Arc<str>>,
    /// The effect of its verdict.
    pub(super) target: Option<Target>,
    /// The effect of its verdict for clients outside the cluster, with external policy Local (layout `maps`).
    pub(super) local_target: Option<Target>,
    /// Whether the filter chains refuse it.
    pub(super) is_refused: bool,
    /// The number of new connections, if counters are on.
    pub(super) counted: Option<u64>,
    /// The endpoints for policy Cluster.
    pub(super) cluster: Vec<Slot>,
    /// The endpoints on this node, for policy Local.
    pub(super) local: Vec<Slot>,
    /// Whether only the addresses in `sources` may connect (layout `maps`).
    pub(super) is_restricted: bool,
    pub(super) sources: Vec<IpNet>,
    /// The chain that remembers its clients, for session affinity.
    pub(super) learns: Option<Arc<str>>,
}

/// An endpoint in one element of an endpoint map, or in a rule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Slot {
    pub(super) address: SocketAddr,
    /// The number of connections sent to it, if counters are on.
    pub(super) counted: Option<u64>,
    /// Whether the element is a position of a Maglev table.
    pub(super) is_place: bool,
}

/// The effect of a frontend's verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Drop,
    Chain(Arc<str>),
    /// A verdict that the proxy does not write.
    Other,
}

impl From<&Verdict> for Target {
    fn from(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::Drop => Self::Drop,
            Verdict::Goto(chain) | Verdict::Jump(chain) => Self::Chain(Arc::clone(chain)),
            Verdict::Accept | Verdict::Return => Self::Other,
        }
    }
}

/// The effect of a chain's rules.
#[derive(Default)]
pub(super) struct Chain {
    /// The endpoint that a rule translates to, and the number of connections, if the rule has a counter.
    pub(super) endpoint: Option<Slot>,
    /// The chains that its rules lead to, in order, without the one that marks packets for masquerading.
    pub(super) gotos: Vec<Arc<str>>,
    /// Whether a rule drops.
    pub(super) drops: bool,
    /// The source ranges whose packets a rule does not drop.
    pub(super) sources: Vec<IpNet>,
    /// The session-affinity sets and maps that its rules add clients to, each with its timeout in seconds.
    pub(super) learns: Vec<(Arc<str>, Option<u64>)>,
}

impl Collected {
    /// Adds one object of the table of a family.
    pub(super) fn take(&mut self, family: Family, item: Item<'_>) {
        match item {
            Item::Rule { chain, rule, count } => self.rule(chain, &rule, count.map(|count| count.packets)),
            Item::Element { set, element } => self.element(family, set, element),
            Item::Unreadable(_) => self.unreadable += 1,
        }
    }

    /// Whether this program wrote the table: there are rules in a chain `KUBE-SERVICES`.
    pub(super) fn is_ours(&self) -> bool {
        self.chain(chain::SERVICES).is_some()
    }

    pub(super) fn chain(&self, name: &str) -> Option<&Chain> {
        self.chains.get(name)
    }

    fn rule(&mut self, name: &str, rule: &RuleDump, counted: Option<u64>) {
        let of_rule = self.chains.entry(name.into()).or_default();
        if let Some(endpoint) = reading::rule_endpoint(rule) {
            of_rule.endpoint = Some(Slot { address: endpoint, counted, is_place: false });
        }
        let source = reading::rule_source(rule);
        for expr in &rule.exprs {
            match expr {
                Expr::ImmediateVerdict(Verdict::Jump(to) | Verdict::Goto(to)) if **to == *chain::MARK_MASQ => {}
                Expr::ImmediateVerdict(verdict) => {
                    of_rule.sources.extend(source.filter(|_| *verdict != Verdict::Drop));
                    match verdict {
                        Verdict::Jump(to) | Verdict::Goto(to) => of_rule.gotos.push(Arc::clone(to)),
                        Verdict::Drop => of_rule.drops = true,
                        Verdict::Accept | Verdict::Return => {}
                    }
                }
                Expr::Dynset { set, timeout_ms, .. } => {
                    let seconds = timeout_ms.map(|milliseconds| milliseconds / 1000);
                    of_rule.learns.push((Arc::clone(set), seconds));
                }
                _ => {}
            }
        }
    }

    fn element(&mut self, family: Family, set: &Set, raw: RawElement) {
        if set.flags.dynamic {
            *self.clients.entry(Arc::clone(&set.name)).or_default() += 1;
            return;
        }
        let Some(kind) = SetKind::of(&set.name) else { return };
        let counted = raw.count.map(|count| count.packets);
        match reading::key(kind, family, raw.element.key.as_slice()) {
            Some(Key::Address(address)) => self.address(kind, address),
            Some(Key::Endpoint(endpoint, protocol)) => {
                self.local.insert((endpoint, protocol));
            }
            Some(Key::Frontend(frontend)) => self.frontend(kind, frontend, raw.element, counted),
            Some(Key::Numbered(frontend, number)) => {
                let Value::Data(data) = &raw.element.value else { return };
                let Some(address) = reading::slot_endpoint(family, data.as_slice()) else { return };
                let record = self.record(frontend);
                let is_local = matches!(kind, SetKind::Endpoints(_, List::Local));
                let list = if is_local { &mut record.local } else { &mut record.cluster };
                list.push(Slot { address, counted, is_place: reading::is_place(number) });
            }
            Some(Key::Source(frontend, _)) => {
                let sources = &mut self.record(frontend).sources;
                if let Some((first, last)) = reading::range(kind, family, &raw.element) {
                    sources.extend(networks(first, last).into_iter().flatten());
                }
            }
            Some(Key::Number(_)) => {
                let chains = self.verdict_maps.entry(Arc::clone(&set.name)).or_default();
                chains.extend(chain_in(&raw.element.value));
            }
            Some(Key::HealthCheck(..)) | None => {}
        }
    }

    fn address(&mut self, kind: SetKind, address: IpAddr) {
        match kind {
            SetKind::ClusterIps => {
                self.cluster_ips.insert(address);
            }
            SetKind::NodePortAddresses => self.node_addresses.push(address),
            _ => {}
        }
    }

    fn record(&mut self, frontend: Frontend) -> &mut Record {
        self.frontends.entry(frontend).or_default()
    }

    /// Adds an element whose key is a frontend.
    fn frontend(&mut self, kind: SetKind, frontend: Frontend, element: Element, counted: Option<u64>) {
        let Element { value, comment, .. } = element;
        match kind {
            SetKind::Dispatch(_) => {
                let record = self.record(frontend);
                record.counted = counted;
                record.comment = record.comment.take().or(comment);
                record.target = Some(target(&value));
            }
            SetKind::LocalPolicy(_) => self.record(frontend).local_target = Some(target(&value)),
            SetKind::NoEndpoints(_) => {
                let record = self.record(frontend);
                record.comment = record.comment.take().or(comment);
                record.is_refused = true;
            }
            SetKind::Restricted => self.record(frontend).is_restricted = true,
            SetKind::Affinity(..) => self.record(frontend).learns = chain_in(&value),
            _ => {}
        }
    }
}

fn target(value: &Value) -> Target {
    match value {
        Value::Verdict(verdict) => verdict.into(),
        Value::Data(_) | Value::None => Target::Other,
    }
}

fn chain_in(value: &Value) -> Option<Arc<str>> {
    match value {
        Value::Verdict(verdict) => verdict.chain().cloned(),
        Value::Data(_) | Value::None => None,
    }
}

/// The networks that make up a range.
fn networks(first: IpAddr, last: IpAddr) -> Option<IpSubnets> {
    match (first, last) {
        (IpAddr::V4(first), IpAddr::V4(last)) => Some(Ipv4Subnets::new(first, last, 0).into()),
        (IpAddr::V6(first), IpAddr::V6(last)) => Some(Ipv6Subnets::new(first, last, 0).into()),
        _ => None,
    }
}
