//! What a rule can read from a packet or compute, in the words of the nft language.
//!
//! Each field has an nft text, a data type, and expressions that load it into a register. Several fields form a concatenation, which
//! nft writes with dots; sets and maps have such keys.

use std::fmt;

use crate::datatype::DataType;
use crate::expr::{CtKey, Expr, MetaKey, PayloadBase, Register};

/// One selector of the nft language.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// `ip saddr`.
    IpSaddr,
    /// `ip daddr`.
    IpDaddr,
    /// `ip6 saddr`.
    Ip6Saddr,
    /// `ip6 daddr`.
    Ip6Daddr,
    /// `meta l4proto`.
    L4Proto,
    /// `th dport`.
    ThDport,
    /// `meta mark`.
    Mark,
    /// `iifname`.
    IifName,
    /// `ct original ip daddr`.
    CtOriginalIpDaddr,
    /// `ct original ip6 daddr`.
    CtOriginalIp6Daddr,
    /// `ct original proto-dst`.
    CtOriginalProtoDst,
    /// `numgen random mod N`: a number from 0 to N - 1, chosen at random (uniformly) at each evaluation.
    NumgenRandom(u32),
}

impl Field {
    /// The data type.
    #[must_use]
    pub const fn data_type(self) -> DataType {
        match self {
            Self::IpSaddr | Self::IpDaddr | Self::CtOriginalIpDaddr => DataType::Ipv4Addr,
            Self::Ip6Saddr | Self::Ip6Daddr | Self::CtOriginalIp6Daddr => DataType::Ipv6Addr,
            Self::L4Proto => DataType::InetProto,
            Self::ThDport | Self::CtOriginalProtoDst => DataType::InetService,
            Self::Mark => DataType::Mark,
            Self::IifName => DataType::IfName,
            Self::NumgenRandom(_) => DataType::Integer,
        }
    }

    /// The expressions that load the field into a register.
    pub(crate) fn load(self, dreg: Register) -> Vec<Expr> {
        use PayloadBase::{Network, Transport};
        let payload = |base, offset, len| vec![Expr::Payload { base, offset, len, dreg }];
        let meta = |key| vec![Expr::MetaLoad { key, dreg }];
        let ct = |key| vec![Expr::Ct { key, dreg }];
        match self {
            Self::IpSaddr => payload(Network, 12, 4),
            Self::IpDaddr => payload(Network, 16, 4),
            Self::Ip6Saddr => payload(Network, 8, 16),
            Self::Ip6Daddr => payload(Network, 24, 16),
            Self::ThDport => payload(Transport, 2, 2),
            Self::L4Proto => meta(MetaKey::L4Proto),
            Self::Mark => meta(MetaKey::Mark),
            Self::IifName => meta(MetaKey::IifName),
            Self::CtOriginalIpDaddr => ct(CtKey::OriginalDstIpv4),
            Self::CtOriginalIp6Daddr => ct(CtKey::OriginalDstIpv6),
            Self::CtOriginalProtoDst => ct(CtKey::OriginalDstPort),
            Self::NumgenRandom(modulus) => vec![Expr::Numgen { dreg, modulus }],
        }
    }

    /// The expressions that load a concatenation into the registers from the first one on.
    pub(crate) fn load_all(fields: &[Self]) -> Vec<Expr> {
        let mut register = Register::FIRST;
        let mut exprs = Vec::new();
        for (i, field) in fields.iter().enumerate() {
            exprs.extend(field.load(register));
            if i + 1 < fields.len() {
                register = register.after(field.data_type().size());
            }
        }
        exprs
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::IpSaddr => "ip saddr",
            Self::IpDaddr => "ip daddr",
            Self::Ip6Saddr => "ip6 saddr",
            Self::Ip6Daddr => "ip6 daddr",
            Self::L4Proto => "meta l4proto",
            Self::ThDport => "th dport",
            Self::Mark => "meta mark",
            Self::IifName => "iifname",
            Self::CtOriginalIpDaddr => "ct original ip daddr",
            Self::CtOriginalIp6Daddr => "ct original ip6 daddr",
            Self::CtOriginalProtoDst => "ct original proto-dst",
            Self::NumgenRandom(modulus) => return write!(f, "numgen random mod {modulus}"),
        };
        f.write_str(text)
    }
}
