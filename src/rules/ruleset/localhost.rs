//! Rules that refuse and count connections to node ports on loopback addresses.
//!
//! No rule serves them (D20), because by default the kernel does not route a packet between a loopback address and another one. In a family
//! in which the userspace proxy serves TCP, the rules refuse the other protocols; in a family that it does not serve, they refuse all
//! protocols (R5). All ruleset layouts have the same chain and set. The set has an element for each refused node port of a Service.

use nft::statement::CtBit;
use nft::{Data, DataType, Element, Field, Operand, Rule, Set, Statement, Types};

use super::Settings;
use super::names;
use super::shared::{commented, is_protocol, jump, regular, to_loopback};
use crate::endpoints::PortSelection;
use crate::model::{Destination, Protocol};
use crate::table::{ChainContent, ServiceObjects};

/// How node ports on the loopback addresses of a family are treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Localhost {
    /// No rules for node ports on loopback addresses (R1).
    #[default]
    Ignored,
    /// The userspace proxy serves TCP; the rules refuse the other protocols.
    Served,
    /// The rules refuse all protocols.
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

/// The rule that sends new connections of this host to loopback addresses to [`chain`]; the first rule of base chain `filter-output`.
pub(super) fn entry(settings: &Settings) -> Option<Rule> {
    let statements = [Statement::CtBit(CtBit::StateNew), to_loopback(settings.family), jump(names::chain::LOCALHOST)];
    (settings.localhost != Localhost::Ignored).then(|| Rule::new(statements))
}

/// The chain that refuses new connections to the node ports in its set, with one rule for each protocol, so that each protocol has its own
/// counter.
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

/// Adds the elements for the refused node ports of a service port.
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
