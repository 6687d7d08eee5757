//! What is kept of each object of a table: the records of fronts, and a short summary of each chain.
//!
//! Takes the objects one by one, rules first, then elements; gives [`Collected`]. Objects that have nothing to do with Services
//! leave nothing. Names of sets are those of `nft/README.md`; both layouts are read by the same code, because their names do not clash.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use ipnet::{IpNet, IpSubnets, Ipv4Subnets, Ipv6Subnets};
use nft::decode::RawElement;
use nft::{Data, Element, Expr, Item, RuleDump, Set, Value, Verdict};

use crate::model::{Destination, Family, Front, Protocol};
use crate::ruleset::reading::endpoint_map;

/// What both tables' objects say, before fronts are followed.
#[derive(Default)]
pub(super) struct Collected {
    pub(super) fronts: HashMap<Front, Record>,
    pub(super) cluster_ips: HashSet<IpAddr>,
    /// Addresses that accept node ports.
    pub(super) node_addresses: Vec<IpAddr>,
    /// Endpoints on this node.
    pub(super) local: HashSet<(SocketAddr, Protocol)>,
    chains: HashMap<Arc<str>, Chain>,
    /// The number of clients in each set that rules fill.
    pub(super) clients: HashMap<Arc<str>, u64>,
    pub(super) unreadable: usize,
}

/// What the sets and maps hold for a front.
#[derive(Default)]
pub(super) struct Record {
    /// The comment of its element.
    pub(super) comment: Option<Arc<str>>,
    /// Where it leads.
    pub(super) target: Option<Target>,
    /// The same for clients outside, with external policy Local (layout `maps`).
    pub(super) local_target: Option<Target>,
    /// Whether the filter chains refuse it.
    pub(super) is_refused: bool,
    /// New connections, where counters are on.
    pub(super) counted: Option<u64>,
    /// Endpoints of the cluster, and of this node.
    pub(super) cluster: Vec<Slot>,
    pub(super) local: Vec<Slot>,
    /// Whether only some sources may connect, and which (layout `maps`).
    pub(super) is_restricted: bool,
    pub(super) sources: Vec<IpNet>,
    /// The chain that remembers its clients.
    pub(super) learns: Option<Arc<str>>,
}

/// An endpoint in a slot of a front, and the connections that were sent to it, where counters are on.
pub(super) type Slot = (SocketAddr, Option<u64>);

/// What a verdict of a front does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Drop,
    Chain(Arc<str>),
    /// Something that the proxy does not write.
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

/// What the rules of a chain do.
#[derive(Default)]
pub(super) struct Chain {
    /// The chains that it goes to, in order, except to mark packets.
    pub(super) gotos: Vec<Arc<str>>,
    /// Whether a rule drops.
    pub(super) drops: bool,
    /// The sources that a rule lets go on, to a chain or back.
    pub(super) sources: Vec<IpNet>,
    /// The maps of clients that it adds to, with their time-out in seconds.
    pub(super) learns: Vec<(Arc<str>, Option<u64>)>,
}

/// The chain that looks fronts up, in both layouts.
const SERVICES: &str = "KUBE-SERVICES";
/// The chain that marks packets for masquerading.
const MARK_MASQ: &str = "KUBE-MARK-MASQ";

impl Collected {
    /// Takes one object of the table of a family.
    pub(super) fn take(&mut self, family: Family, item: Item<'_>) {
        match item {
            Item::Rule { chain, rule, .. } => self.rule(chain, &rule),
            Item::Element { set, element } => self.element(family, set, element),
            Item::Unreadable(_) => self.unreadable += 1,
        }
    }

    /// Whether the rules are those of one of the layouts.
    pub(super) fn is_ours(&self) -> bool {
        self.chain(SERVICES).is_some()
    }

    pub(super) fn chain(&self, name: &str) -> Option<&Chain> {
        self.chains.get(name)
    }

    fn rule(&mut self, chain: &str, rule: &RuleDump) {
        let chain = self.chains.entry(chain.into()).or_default();
        let source = source(&rule.exprs);
        for expr in &rule.exprs {
            match expr {
                Expr::ImmediateVerdict(Verdict::Jump(to) | Verdict::Goto(to)) if **to == *MARK_MASQ => {}
                Expr::ImmediateVerdict(verdict) => {
                    chain.sources.extend(source.filter(|_| *verdict != Verdict::Drop));
                    match verdict {
                        Verdict::Jump(to) | Verdict::Goto(to) => chain.gotos.push(Arc::clone(to)),
                        Verdict::Drop => chain.drops = true,
                        Verdict::Accept | Verdict::Return => {}
                    }
                }
                Expr::Dynset { set, timeout_ms, .. } => {
                    let seconds = timeout_ms.map(|milliseconds| milliseconds / 1000);
                    chain.learns.push((Arc::clone(set), seconds));
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
        let Element { key, key_end, value, comment, .. } = raw.element;
        let counted = raw.count.map(|count| count.packets);
        let mut key = Reader { family, bytes: key.as_slice() };
        match endpoint_map(&set.name).unwrap_or(&set.name) {
            "cluster-ips" => self.cluster_ips.extend(key.address()),
            "nodeport-addresses" => self.node_addresses.extend(key.address()),
            "services" | "KUBE-SERVICES" => self.leads(key.front(), &value, comment, counted),
            "nodeports" | "KUBE-NODEPORTS" => self.leads(key.node_port(), &value, comment, counted),
            "local-policy" => self.leads_locally(key.front(), &value),
            "nodeport-local-policy" => self.leads_locally(key.node_port(), &value),
            "no-endpoints" | "no-endpoints-external" => self.refuses(key.front(), comment),
            "no-endpoints-nodeports" => self.refuses(key.node_port(), comment),
            "endpoints" => self.endpoint(key.front(), family, &value, counted, |record| &mut record.cluster),
            "local-endpoints" => self.endpoint(key.front(), family, &value, counted, |record| &mut record.local),
            "nodeport-endpoints" => {
                self.endpoint(key.node_port(), family, &value, counted, |record| &mut record.cluster)
            }
            "nodeport-local-endpoints" => {
                self.endpoint(key.node_port(), family, &value, counted, |record| &mut record.local);
            }
            "lb-restricted" => self.change(key.front(), |record| record.is_restricted = true),
            "lb-sources" => {
                let (front, first) = (key.front(), key.address());
                let last = key_end.and_then(|end| {
                    let mut end = Reader { family, bytes: end.as_slice() };
                    end.front()?;
                    end.address()
                });
                self.change(front, |record| {
                    record.sources.extend(networks(first, last.or(first)).into_iter().flatten())
                });
            }
            "hairpin" => {
                let _source = key.address();
                if let (Some(ip), Some(protocol), Some(port)) = (key.address(), key.protocol(), key.port()) {
                    self.local.insert((SocketAddr::new(ip, port), protocol));
                }
            }
            name => {
                if let Some((side, protocol)) = learning(name) {
                    let front = if side { key.port_of_address(protocol) } else { key.port_of_node(protocol) };
                    let chain = chain_in(&value);
                    self.change(front, |record| record.learns = chain);
                }
            }
        }
    }

    fn change(&mut self, front: Option<Front>, change: impl FnOnce(&mut Record)) {
        if let Some(front) = front {
            change(self.fronts.entry(front).or_default());
        }
    }

    fn leads(&mut self, front: Option<Front>, value: &Value, comment: Option<Arc<str>>, counted: Option<u64>) {
        self.change(front, |record| {
            record.counted = counted;
            record.comment = record.comment.take().or(comment);
            record.target = Some(target(value));
        });
    }

    fn leads_locally(&mut self, front: Option<Front>, value: &Value) {
        self.change(front, |record| record.local_target = Some(target(value)));
    }

    fn refuses(&mut self, front: Option<Front>, comment: Option<Arc<str>>) {
        self.change(front, |record| {
            record.comment = record.comment.take().or(comment);
            record.is_refused = true;
        });
    }

    fn endpoint(
        &mut self,
        front: Option<Front>,
        family: Family,
        value: &Value,
        counted: Option<u64>,
        list: impl FnOnce(&mut Record) -> &mut Vec<Slot>,
    ) {
        let Value::Data(data) = value else { return };
        let mut reader = Reader { family, bytes: data.as_slice() };
        if let (Some(ip), Some(port)) = (reader.address(), reader.port()) {
            self.change(front, |record| list(record).push((SocketAddr::new(ip, port), counted)));
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

/// Whether the keys of a map that says what remembers a client have an address, and their protocol.
fn learning(set: &str) -> Option<(bool, Protocol)> {
    let (has_address, protocol) = match set.strip_prefix("affinity-services-") {
        Some(protocol) => (true, protocol),
        None => (false, set.strip_prefix("affinity-nodeports-")?),
    };
    let protocols = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
    protocols.into_iter().find(|known| known.to_string() == protocol).map(|protocol| (has_address, protocol))
}

/// Reads the fields of a key or value one after the other; each takes a multiple of four bytes.
struct Reader<'a> {
    family: Family,
    bytes: &'a [u8],
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let field = *self.bytes.first_chunk::<N>()?;
        self.bytes = self.bytes.get(N.next_multiple_of(4)..).unwrap_or_default();
        Some(field)
    }

    fn address(&mut self) -> Option<IpAddr> {
        Some(match self.family {
            Family::V4 => Ipv4Addr::from(self.take::<4>()?).into(),
            Family::V6 => Ipv6Addr::from(self.take::<16>()?).into(),
        })
    }

    fn protocol(&mut self) -> Option<Protocol> {
        let [number] = self.take()?;
        [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().find(|protocol| protocol.number() == number)
    }

    fn port(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    /// Address, protocol, port.
    fn front(&mut self) -> Option<Front> {
        let (address, protocol, port) = (self.address()?, self.protocol()?, self.port()?);
        Some(Front { destination: Destination::Address(address), protocol, port })
    }

    /// Protocol, port.
    fn node_port(&mut self) -> Option<Front> {
        let (protocol, port) = (self.protocol()?, self.port()?);
        Some(Front { destination: Destination::NodePort(self.family), protocol, port })
    }

    /// Address, port.
    fn port_of_address(&mut self, protocol: Protocol) -> Option<Front> {
        let (address, port) = (self.address()?, self.port()?);
        Some(Front { destination: Destination::Address(address), protocol, port })
    }

    /// Port.
    fn port_of_node(&mut self, protocol: Protocol) -> Option<Front> {
        Some(Front { destination: Destination::NodePort(self.family), protocol, port: self.port()? })
    }
}

/// The networks that make up a range.
fn networks(first: Option<IpAddr>, last: Option<IpAddr>) -> Option<IpSubnets> {
    match (first?, last?) {
        (IpAddr::V4(first), IpAddr::V4(last)) => Some(Ipv4Subnets::new(first, last, 0).into()),
        (IpAddr::V6(first), IpAddr::V6(last)) => Some(Ipv6Subnets::new(first, last, 0).into()),
        _ => None,
    }
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

/// The network that a rule compares the source address with: what it loads from the IP header is the address or its first bytes.
fn source(exprs: &[Expr]) -> Option<IpNet> {
    const V4: (u32, usize) = (12, 4);
    const V6: (u32, usize) = (8, 16);
    let size = exprs.iter().find_map(|expr| match expr {
        Expr::Payload { base: nft::expr::PayloadBase::Network, offset, .. } => {
            [V4, V6].into_iter().find(|(start, _)| start == offset).map(|(_, size)| size)
        }
        _ => None,
    })?;
    let compared = exprs.iter().find_map(|expr| match expr {
        Expr::Cmp { op: nft::expr::CmpOp::Eq, data, .. } => Some(*data),
        _ => None,
    })?;
    let mask = exprs.iter().find_map(|expr| match expr {
        Expr::Bitwise { mask, .. } => Some(ones(mask)),
        _ => None,
    });
    let mut bytes = [0; 16];
    bytes.get_mut(..compared.len())?.copy_from_slice(compared.as_slice());
    let length = mask.unwrap_or(u32::try_from(compared.len() * 8).ok()?);
    IpNet::new(ip(&bytes[..size])?, u8::try_from(length).ok()?).ok()
}

fn ones(mask: &Data) -> u32 {
    mask.as_slice().iter().map(|byte| byte.count_ones()).sum()
}
