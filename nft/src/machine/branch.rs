//! One possible path of a packet: the packet as it is now, its connection, its fate, and the rules that had an effect.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::data::Verdict;
use crate::decode::RuleHead;
use crate::expr::CtKey;
use crate::object::RuleDump;
use crate::table::TableName;

use super::packet::{Loaded, Packet, protocol};

/// The state of a packet in connection tracking.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tracking {
    /// Connection tracking has not seen the packet yet.
    #[default]
    NotYet,
    /// The packet begins a connection.
    New,
    /// The packet belongs to a tracked connection.
    Known {
        /// Whether the other side has sent packets too.
        answered: bool,
    },
    /// A `notrack` rule keeps the packet out of connection tracking.
    Off,
}

/// The connection of the packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conntrack {
    /// What connection tracking knows of the packet.
    pub tracking: Tracking,
    /// The destination before any translation, once the connection is tracked.
    pub original: Option<SocketAddr>,
    /// The mark, if it is known: that of a new connection is 0 until a rule sets it.
    pub mark: Option<u32>,
    /// The status bits (`IPS_*` in `nf_conntrack_common.h`).
    pub status: u32,
    /// Whether the destination was translated, or found to need no translation.
    pub destination_done: bool,
    /// Whether the source was translated, or found to need no translation.
    pub source_done: bool,
}

/// Status bits of a connection (`IPS_*` in `nf_conntrack_common.h`).
pub(super) mod status {
    pub(in super::super) const CONFIRMED: u32 = 1 << 3;
    pub(in super::super) const SOURCE: u32 = 1 << 4;
    pub(in super::super) const DESTINATION: u32 = 1 << 5;
    pub(in super::super) const SOURCE_DONE: u32 = 1 << 7;
    pub(in super::super) const DESTINATION_DONE: u32 = 1 << 8;
}

/// The way in which a packet ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Discarded without an answer.
    Dropped,
    /// Discarded, and the sender gets an error.
    Refused,
    /// Discarded, because this host cannot send it on; with the reason.
    Unrouted(String),
    /// Not known; with the reason.
    Unknown(String),
}

/// One possible path of a packet.
#[derive(Clone, Debug)]
pub struct Branch {
    /// The packet as it is now.
    pub packet: Packet,
    /// What connection tracking knows of the packet's connection.
    pub connection: Conntrack,
    /// The share of packets that take this path, given the assumptions in `worlds`.
    pub probability: f64,
    /// The assumptions about rules that cannot be evaluated, in the order in which they were made: the serial number of the assumption,
    /// which both branches that it made share, and whether its rule is assumed to match.
    pub worlds: Vec<(usize, bool)>,
    /// How the packet ended; `None` while it goes on.
    pub fate: Option<Fate>,
    /// The destination to which a rule, or its connection, translated it; `None` without one.
    pub endpoint: Option<SocketAddr>,
    /// Whether a rule, or its connection, translated its source address.
    pub masqueraded: bool,
    /// The rules that had an effect on it, in order.
    pub steps: Vec<Step>,
}

/// A rule that had an effect.
#[derive(Clone, Debug)]
pub struct Step {
    /// The table of the rule.
    pub table: TableName,
    /// The chain of the rule.
    pub chain: Arc<str>,
    /// The rules of the chain.
    pub(super) rules: Arc<[RuleHead]>,
    /// The index of the rule in `rules`; `rules.len()` stands for the policy of the chain.
    pub(super) index: usize,
    /// Its effects, in order.
    pub effects: Vec<Effect>,
    /// The elements that its look-ups found.
    pub found: Vec<Found>,
    /// The packet before the rule.
    pub packet: Packet,
}

impl Step {
    /// The rule; `None` for the policy of a base chain.
    pub fn rule(&self) -> Option<&RuleDump> {
        self.rules.get(self.index).map(|head| &head.rule)
    }

    /// Whether the rule sends the packet to this chain.
    pub fn leads_to(&self, chain: &str) -> bool {
        let verdicts = self.effects.iter().filter_map(|effect| match effect {
            Effect::Verdict(verdict) => verdict.chain(),
            _ => None,
        });
        verdicts.into_iter().any(|target| **target == *chain)
    }

    /// Whether both steps are the same rule with the same effects on an equal packet.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.table, &self.chain, self.index, &self.effects, &self.packet)
            == (&other.table, &other.chain, other.index, &other.effects, &other.packet)
    }
}

/// An element that a look-up found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The set or map.
    pub set: Arc<str>,
    /// The comment of the element.
    pub comment: Option<Arc<str>>,
}

/// An effect of a rule on the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The rule has this verdict.
    Verdict(Verdict),
    /// The packet is discarded, and the sender gets an error.
    Refuse,
    /// The destination becomes this one.
    Translate(SocketAddr),
    /// The source becomes an address of this host.
    Masquerade,
    /// The source becomes this address.
    SourceTo(IpAddr),
    /// The packet mark becomes this one.
    Mark(u32),
    /// An element is added to this set, or renewed.
    Remember(Arc<str>),
    /// The packet is kept out of connection tracking.
    Untrack,
    /// The connection is added to a flowtable.
    Offload,
    /// The policy of a base chain drops the packet.
    Policy,
    /// From here on the path is assumed or unknown, most often because the rule cannot be evaluated and is assumed to match; with the
    /// reason.
    Assumed(String),
}
impl Branch {
    /// A packet at the start of its path.
    pub fn new(packet: Packet) -> Self {
        Self {
            packet,
            connection: Conntrack::default(),
            probability: 1.0,
            worlds: Vec::new(),
            fate: None,
            endpoint: None,
            masqueraded: false,
            steps: Vec::new(),
        }
    }

    /// Whether the two branches differ only in their last assumption and in their steps.
    pub(super) fn is_twin(&self, other: &Self) -> bool {
        let ([mine @ .., (a, x)], [theirs @ .., (b, y)]) = (&self.worlds[..], &other.worlds[..]) else { return false };
        mine == theirs
            && a == b
            && x != y
            && self.packet == other.packet
            && self.connection == other.connection
            && (&self.fate, self.endpoint, self.masqueraded) == (&other.fate, other.endpoint, other.masqueraded)
            && (self.probability - other.probability).abs() < f64::EPSILON
    }

    /// What a `ct` expression loads.
    pub(super) fn ct(&self, key: CtKey) -> Loaded {
        const INVALID: u32 = 1;
        const ESTABLISHED: u32 = 1 << 1;
        const NEW: u32 = 1 << 3;
        const UNTRACKED: u32 = 1 << 6;
        let number = |number: u32| Loaded::Bytes(number.to_ne_bytes().to_vec());
        let original = match self.connection.tracking {
            Tracking::NotYet if key == CtKey::State => return number(INVALID),
            Tracking::Off if key == CtKey::State => return number(UNTRACKED),
            Tracking::NotYet | Tracking::Off => return Loaded::Nothing,
            Tracking::New | Tracking::Known { .. } => self.connection.original.unwrap_or_else(|| self.packet.target()),
        };
        let is_answered = matches!(self.connection.tracking, Tracking::Known { answered: true });
        match (key, original.ip()) {
            (CtKey::State, _) if is_answered => number(ESTABLISHED),
            (CtKey::State, _) => number(NEW),
            (CtKey::Status, _) => number(self.connection.status),
            (CtKey::Packets, _) if self.connection.tracking != Tracking::New => {
                Loaded::Unknown("how many packets the connection has had", 8)
            }
            // The kernel loads 0 if it does not count packets. 1 gives the same result: the proxy's rules ask whether there are more than N
            // packets, and N is at least 1.
            (CtKey::Packets, _) => Loaded::Bytes(1_u64.to_ne_bytes().to_vec()),
            (CtKey::OriginalDstIpv4, IpAddr::V4(ip)) => Loaded::Bytes(ip.octets().to_vec()),
            (CtKey::OriginalDstIpv6, IpAddr::V6(ip)) => Loaded::Bytes(ip.octets().to_vec()),
            (CtKey::OriginalDstIpv4 | CtKey::OriginalDstIpv6, _) => Loaded::Nothing,
            // For an echo request, conntrack keeps type and code in place of the port.
            (CtKey::OriginalDstPort, _) => Loaded::Bytes(match self.packet.protocol {
                protocol::ICMP => vec![8, 0],
                protocol::ICMPV6 => vec![128, 0],
                _ => original.port().to_be_bytes().to_vec(),
            }),
        }
    }

    pub(super) fn translate(&mut self, to: SocketAddr) {
        let connection = &mut self.connection;
        connection.status |= status::DESTINATION_DONE;
        // The kernel sets `IPS_DST_NAT` only when the translation changes the destination.
        if to != self.packet.target() {
            connection.status |= status::DESTINATION;
        }
        connection.destination_done = true;
        (self.packet.destination, self.packet.port) = (to.ip(), to.port());
        self.endpoint = Some(to);
    }

    pub(super) fn translate_source(&mut self, to: Option<IpAddr>) {
        self.connection.status |= status::SOURCE | status::SOURCE_DONE;
        self.connection.source_done = true;
        self.masqueraded = true;
        if let Some(to) = to {
            self.packet.source = to;
        }
    }
}
