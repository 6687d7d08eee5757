//! Parses elements and rules of this program's tables back into frontends and endpoints: the inverse of the ruleset layouts.
//!
//! Takes the keys and values of elements, rules that were read from the kernel, and chains of a Service that are not in the kernel yet.
//! Works for every ruleset layout, because a name has one meaning in all of them ([`kinds`](super::kinds)). Pure.
//!
//! Invariant: parsing the objects that a layout makes for a selection gives the frontends and endpoints of that selection.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use nft::expr::{CmpOp, PayloadBase};
use nft::packed::ValueRef;
use nft::{Data, Element, Expr, RuleDump, Statement, Verdict};

use super::kinds::{Role, SetKind};
use super::names::FrontendType;
use crate::model::{Destination, Family, Frontend, Protocol};
use crate::table::{ChainContent, FIRST_PLACE};

/// The parsed key of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// An address: a cluster IP, an address of the node, the end of a range, a client.
    Address(IpAddr),
    /// An endpoint on this node.
    Endpoint(SocketAddr, Protocol),
    /// A frontend, and nothing else.
    Frontend(Frontend),
    /// A frontend, and the number of an entry of its list of endpoints or of a position in its Maglev table ([`is_place`]).
    Numbered(Frontend, u32),
    /// A frontend, and the first or last address of one of its source ranges.
    Source(Frontend, IpAddr),
    /// A health-check node port, and a frontend of its Service.
    HealthCheck(u16, Frontend),
    /// The number of an endpoint's chain in the verdict map of a service port.
    Number(u32),
}

impl Key {
    /// The frontend in the key, if it has one.
    #[must_use]
    pub fn frontend(self) -> Option<Frontend> {
        match self {
            Self::Frontend(frontend)
            | Self::Numbered(frontend, _)
            | Self::Source(frontend, _)
            | Self::HealthCheck(_, frontend) => Some(frontend),
            Self::Address(_) | Self::Endpoint(..) | Self::Number(_) => None,
        }
    }
}

/// Parses a key of a set of this kind, or the end of an interval; `None` if it has another length, as in a set that another program has
/// made, or an unknown protocol.
#[must_use]
pub fn key(kind: SetKind, family: Family, key: &[u8]) -> Option<Key> {
    let mut fields = Fields { family, rest: key };
    let parsed = match kind {
        SetKind::ClusterIps
        | SetKind::ExternalIps
        | SetKind::NodePortAddresses
        | SetKind::ServiceCidrs
        | SetKind::Clients(_) => Key::Address(fields.address()?),
        SetKind::Hairpin => {
            let (_source, address) = (fields.address()?, fields.address()?);
            let (protocol, port) = (fields.protocol()?, fields.port()?);
            Key::Endpoint(SocketAddr::new(address, port), protocol)
        }
        SetKind::Dispatch(of)
        | SetKind::ClusterPolicy(of)
        | SetKind::LocalPolicy(of)
        | SetKind::NoEndpoints(of)
        | SetKind::Fallback(of) => Key::Frontend(fields.frontend(of)?),
        SetKind::Restricted => Key::Frontend(fields.frontend(FrontendType::Address)?),
        SetKind::LocalhostNodePorts => Key::Frontend(fields.frontend(FrontendType::NodePort)?),
        SetKind::Sources => Key::Source(fields.frontend(FrontendType::Address)?, fields.address()?),
        SetKind::Endpoints(of, _) => Key::Numbered(fields.frontend(of)?, fields.number()?),
        SetKind::HealthChecks => Key::HealthCheck(fields.port()?, fields.frontend(FrontendType::Address)?),
        SetKind::Affinity(of, protocol) => Key::Frontend(fields.original_destination(of, protocol)?),
        SetKind::VerdictMap(_) => Key::Number(fields.number()?),
    };
    fields.rest.is_empty().then_some(parsed)
}

/// The frontend in a key of a set of this kind; `None` if the key cannot be parsed or has no frontend.
#[must_use]
pub fn frontend(kind: SetKind, family: Family, key: &[u8]) -> Option<Frontend> {
    self::key(kind, family, key).and_then(Key::frontend)
}

/// The first and the last address of an element that is a range: a ServiceCIDR, or a source range of a frontend. `None` if its key cannot be
/// parsed.
#[must_use]
pub fn range(kind: SetKind, family: Family, element: &Element) -> Option<(IpAddr, IpAddr)> {
    let end_of = |bytes: &[u8]| match key(kind, family, bytes)? {
        Key::Address(address) | Key::Source(_, address) => Some(address),
        _ => None,
    };
    let first = end_of(element.key.as_slice())?;
    let last = element.key_end.as_ref().and_then(|end| end_of(end.as_slice()));
    Some((first, last.unwrap_or(first)))
}

/// Whether the number in a key of a map of endpoints is a position of a Maglev table, and not the number of an entry of the list.
#[must_use]
pub const fn is_place(number: u32) -> bool {
    number >= FIRST_PLACE
}

/// Parses the endpoint in the value of an element of a map of endpoints; `None` if the value has another length.
#[must_use]
pub fn slot_endpoint(family: Family, value: &[u8]) -> Option<SocketAddr> {
    let mut fields = Fields { family, rest: value };
    let endpoint = SocketAddr::new(fields.address()?, fields.port()?);
    fields.rest.is_empty().then_some(endpoint)
}

/// Parses 4 bytes as an IPv4 address and 16 as an IPv6 address; `None` for any other length.
#[must_use]
pub fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

/// The protocol with this IANA number; `None` for one that Services cannot use.
#[must_use]
pub fn protocol(number: u8) -> Option<Protocol> {
    Protocol::ALL.into_iter().find(|protocol| protocol.number() == number)
}

/// Parses the fields of a key or value one after the other; each is padded to a multiple of four bytes.
struct Fields<'a> {
    family: Family,
    rest: &'a [u8],
}

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let field = *self.rest.first_chunk::<N>()?;
        self.rest = self.rest.get(N.next_multiple_of(4)..).unwrap_or_default();
        Some(field)
    }

    fn address(&mut self) -> Option<IpAddr> {
        match self.family {
            Family::V4 => self.take::<4>().map(IpAddr::from),
            Family::V6 => self.take::<16>().map(IpAddr::from),
        }
    }

    fn protocol(&mut self) -> Option<Protocol> {
        let [number] = self.take()?;
        protocol(number)
    }

    fn port(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn number(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn destination(&mut self, frontend_type: FrontendType) -> Option<Destination> {
        match frontend_type {
            FrontendType::Address => self.address().map(Destination::Address),
            FrontendType::NodePort => Some(Destination::NodePort(self.family)),
        }
    }

    /// Parses address, protocol and port; for a node port only protocol and port.
    fn frontend(&mut self, frontend_type: FrontendType) -> Option<Frontend> {
        let destination = self.destination(frontend_type)?;
        Some(Frontend { destination, protocol: self.protocol()?, port: self.port()? })
    }

    /// Parses address and port; for a node port only the port.
    fn original_destination(&mut self, frontend_type: FrontendType, protocol: Protocol) -> Option<Frontend> {
        let destination = self.destination(frontend_type)?;
        Some(Frontend { destination, protocol, port: self.port()? })
    }
}

/// A set whose keys are frontends, or begin with one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrontendSet {
    /// How its elements decide what happens to packets.
    pub role: Role,
    kind: SetKind,
}

/// The set with this name, for every ruleset layout; `None` if its elements have no [`Role`].
#[must_use]
pub fn frontend_set(name: &str) -> Option<FrontendSet> {
    let kind = SetKind::of(name)?;
    Some(FrontendSet { role: kind.role()?, kind })
}

/// The map of endpoints with this name, as a set of frontends with role [`Role::Dispatch`]; `None` for any other set.
#[must_use]
pub fn frontends_of_endpoints(set: &str) -> Option<FrontendSet> {
    match SetKind::of(set)? {
        kind @ SetKind::Endpoints(..) => Some(FrontendSet { role: Role::Dispatch, kind }),
        _ => None,
    }
}

impl FrontendSet {
    /// The frontend in a key of this set; `None` if the key has another length, or an unknown protocol.
    #[must_use]
    pub fn frontend(self, family: Family, key: &[u8]) -> Option<Frontend> {
        frontend(self.kind, family, key)
    }
}

/// Whether a set is a map from frontend and number to endpoint.
#[must_use]
pub fn is_endpoint_map(set: &str) -> bool {
    matches!(SetKind::of(set), Some(SetKind::Endpoints(..)))
}

/// Whether a map with this many elements takes long to read and should be split into more maps than `nftables.endpointMaps` says. Measured on
/// kernel 6.18: 300,000 elements take three seconds; the time grows with the square of the number.
#[must_use]
pub fn takes_long(set: &str, elements: usize) -> bool {
    elements > 300_000 && is_endpoint_map(set)
}

/// Whether an element with this value drops packets, or leads to a chain in which a rule does; `chains` are the chains of its Service, sorted
/// by name.
#[must_use]
pub fn drops(value: ValueRef<'_>, chains: &[ChainContent]) -> bool {
    match value {
        ValueRef::Verdict(_, Some(chain)) => chain_drops(chain, chains, 2),
        ValueRef::Verdict(number, None) => number == 0,
        ValueRef::None | ValueRef::Data(_) => false,
    }
}

/// Whether one of `chains`, or another of them that it leads to in at most `steps` steps, has a rule that drops packets.
fn chain_drops(name: &str, chains: &[ChainContent], steps: usize) -> bool {
    let Ok(index) = chains.binary_search_by(|content| (*content.chain.name).cmp(name)) else { return false };
    has_drop(&chains[index])
        || steps > 0 && chains[index].targets().any(|target| chain_drops(target, chains, steps - 1))
}

/// Whether a chain has a rule that drops packets.
#[must_use]
pub fn has_drop(content: &ChainContent) -> bool {
    let mut statements = content.rules.iter().flat_map(|rule| &rule.statements);
    statements.any(|statement| matches!(statement, Statement::Verdict(Verdict::Drop)))
}

/// The endpoint that a rule of a chain translates to (DNAT), if the rule has it as a constant: the chain of an endpoint has such a rule.
#[must_use]
pub fn chain_endpoint(content: &ChainContent) -> Option<SocketAddr> {
    let statements = content.rules.iter().flat_map(|rule| &rule.statements);
    statements.rev().find_map(|statement| match statement {
        Statement::Dnat(endpoint) => Some(*endpoint),
        _ => None,
    })
}

/// The endpoint that a rule translates to (DNAT), if the rule has it as a constant.
#[must_use]
pub fn rule_endpoint(rule: &RuleDump) -> Option<SocketAddr> {
    let (address_register, port_register) = rule.exprs.iter().find_map(|expr| match expr {
        Expr::Nat { address, port: Some(port), .. } => Some((*address, *port)),
        _ => None,
    })?;
    let constant = |register| {
        rule.exprs.iter().find_map(|expr| match expr {
            Expr::Immediate { dreg, data } if *dreg == register => Some(*data),
            _ => None,
        })
    };
    let port = <[u8; 2]>::try_from(constant(port_register)?.as_slice()).ok()?;
    Some(SocketAddr::new(address(constant(address_register)?.as_slice())?, u16::from_be_bytes(port)))
}

/// The network that a rule compares the source address with; `None` if it does not. The rule loads the whole address from the IP header, or
/// only its first bytes.
#[must_use]
pub fn rule_source(rule: &RuleDump) -> Option<IpNet> {
    const V4: (u32, usize) = (12, 4);
    const V6: (u32, usize) = (8, 16);
    let size = rule.exprs.iter().find_map(|expr| match expr {
        Expr::Payload { base: PayloadBase::Network, offset, .. } => {
            [V4, V6].into_iter().find(|(start, _)| start == offset).map(|(_, size)| size)
        }
        _ => None,
    })?;
    let compared = rule.exprs.iter().find_map(|expr| match expr {
        Expr::Cmp { op: CmpOp::Eq, data, .. } => Some(*data),
        _ => None,
    })?;
    let mask = rule.exprs.iter().find_map(|expr| match expr {
        Expr::Bitwise { mask, .. } => Some(ones(mask)),
        _ => None,
    });
    let mut bytes = [0; 16];
    bytes.get_mut(..compared.len())?.copy_from_slice(compared.as_slice());
    let length = mask.unwrap_or(u32::try_from(compared.len() * 8).ok()?);
    IpNet::new(address(&bytes[..size])?, u8::try_from(length).ok()?).ok()
}

fn ones(mask: &Data) -> u32 {
    mask.as_slice().iter().map(|byte| byte.count_ones()).sum()
}

/// The protocol in a rule's first comparison, for rules that compare the packet's protocol first.
#[must_use]
pub fn rule_protocol(rule: &RuleDump) -> Option<Protocol> {
    let number = rule.exprs.iter().find_map(|expr| match expr {
        Expr::Cmp { data, .. } => data.as_slice().first().copied(),
        _ => None,
    });
    number.and_then(protocol)
}

#[cfg(test)]
mod tests;
