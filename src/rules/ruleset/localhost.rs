//! Node ports on loopback addresses: what the rules refuse, and count.
//!
//! No rule can serve them, because the kernel does not route a packet between a loopback address and another one. Where the userspace proxy
//! serves TCP, the rules refuse the other protocols; where it could and does not, they refuse all (R5). Both layouts have the same chain and
//! set. The set has an element for each refused node port of a Service, which comes and goes with it, so that none outlives what it was for.

use nft::statement::CtBit;
use nft::{Data, DataType, Element, Field, Operand, Rule, Set, Statement, Types};

use super::Settings;
use super::names;
use super::shared::{commented, is_protocol, jump, regular, to_loopback};
use crate::endpoints::PortSelection;
use crate::model::{Destination, Protocol};
use crate::table::{ChainContent, ServiceObjects};

/// How node ports on loopback addresses are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Localhost {
    /// Nothing (R1).
    #[default]
    Ignored,
    /// TCP is served by the userspace proxy, the rest refused.
    Served,
    /// All is refused.
    Refused,
}

impl Localhost {
    fn refuses(self, protocol: Protocol) -> bool {
        match self {
            Self::Ignored => false,
            Self::Served => protocol != Protocol::Tcp,
            Self::Refused => true,
        }
    }
}

/// Leads new connections of this host to its loopback addresses to the chain; the first rule of the hook `output`.
pub(super) fn entry(settings: &Settings) -> Option<Rule> {
    let statements = [Statement::CtBit(CtBit::StateNew), to_loopback(settings.family), jump(names::chain::LOCALHOST)];
    (settings.localhost != Localhost::Ignored).then(|| Rule::new(statements))
}

/// A rule for each protocol, so that each has a counter.
pub(super) fn chain(settings: &Settings) -> Option<ChainContent> {
    let rule = |protocol: Protocol| {
        let is_refused = Statement::Match(
            vec![Field::L4Proto, Field::ThDport],
            Operand::InSet(names::set::LOCALHOST_NODEPORTS.into()),
        );
        Rule::new([is_protocol(protocol), is_refused, Statement::Counter, Statement::Reject])
    };
    let rules = Protocol::ALL.map(rule).into();
    (settings.localhost != Localhost::Ignored)
        .then(|| regular(names::chain::LOCALHOST, "Node ports on loopback addresses that nothing serves", rules))
}

pub(super) fn set(settings: &Settings) -> Option<Set> {
    let types = Types::Named(vec![DataType::InetProto, DataType::InetService]);
    (settings.localhost != Localhost::Ignored).then(|| {
        commented(Set::new(names::set::LOCALHOST_NODEPORTS, types), "Node ports that are refused on loopback addresses")
    })
}

/// The refused node ports of a service port.
pub(super) fn write(settings: &Settings, port: &PortSelection, objects: &mut ServiceObjects) {
    if !settings.localhost.refuses(port.protocol) {
        return;
    }
    let node_ports =
        port.frontends.iter().filter(|frontend| matches!(frontend.frontend.destination, Destination::NodePort(_)));
    let elements =
        node_ports.map(|frontend| Element::new(Data::from(port.protocol.number()).then(frontend.frontend.port)));
    objects.extend(names::set::LOCALHOST_NODEPORTS, elements);
}
