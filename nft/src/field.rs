//! What a rule can look at, or compute, in the words of the nft language.
//!
//! A field gives its nft text, its data type, and the expressions that load it into a register. Fields joined with `.` form the
//! concatenations that sets and maps are looked up with.

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
    /// `th sport`.
    ThSport,
    /// `th dport`.
    ThDport,
    /// `meta mark`.
    Mark,
    /// `iifname`.
    IifName,
    /// `oifname`.
    OifName,
    /// `ct original ip daddr`.
    CtOriginalIpDaddr,
    /// `ct original ip6 daddr`.
    CtOriginalIp6Daddr,
    /// `ct original proto-dst`.
    CtOriginalProtoDst,
    /// `numgen random mod N`: a number from 0 to N - 1, evenly at random for each evaluation.
    NumgenRandom(u32),
    /// `jhash ip saddr mod N`: a number from 0 to N - 1 that depends on the source address only.
    JhashSaddr(u32),
}

impl Field {
    /// The data type.
    #[must_use]
    pub const fn data_type(self) -> DataType {
        match self {
            Self::IpSaddr | Self::IpDaddr | Self::CtOriginalIpDaddr => DataType::Ipv4Addr,
            Self::Ip6Saddr | Self::Ip6Daddr | Self::CtOriginalIp6Daddr => DataType::Ipv6Addr,
            Self::L4Proto => DataType::InetProto,
            Self::ThSport | Self::ThDport | Self::CtOriginalProtoDst => DataType::InetService,
            Self::Mark => DataType::Mark,
            Self::IifName | Self::OifName => DataType::IfName,
            Self::NumgenRandom(_) | Self::JhashSaddr(_) => DataType::Integer,
        }
    }

    /// Expressions that load the field into a register.
    #[must_use]
    pub fn load(self, dreg: Register) -> Vec<Expr> {
        use PayloadBase::{Network, Transport};
        let payload = |base, offset, len| vec![Expr::Payload { base, offset, len, dreg }];
        let meta = |key| vec![Expr::MetaLoad { key, dreg }];
        let ct = |key| vec![Expr::Ct { key, dreg }];
        match self {
            Self::IpSaddr => payload(Network, 12, 4),
            Self::IpDaddr => payload(Network, 16, 4),
            Self::Ip6Saddr => payload(Network, 8, 16),
            Self::Ip6Daddr => payload(Network, 24, 16),
            Self::ThSport => payload(Transport, 0, 2),
            Self::ThDport => payload(Transport, 2, 2),
            Self::L4Proto => meta(MetaKey::L4Proto),
            Self::Mark => meta(MetaKey::Mark),
            Self::IifName => meta(MetaKey::IifName),
            Self::OifName => meta(MetaKey::OifName),
            Self::CtOriginalIpDaddr => ct(CtKey::OriginalDstIpv4),
            Self::CtOriginalIp6Daddr => ct(CtKey::OriginalDstIpv6),
            Self::CtOriginalProtoDst => ct(CtKey::OriginalDstPort),
            Self::NumgenRandom(modulus) => vec![Expr::Numgen { dreg, modulus, random: true }],
            Self::JhashSaddr(modulus) => {
                // The address goes to the upper half of the register file, out of the way of the key that is being built.
                let sreg = Register::word(8);
                let mut exprs = Self::IpSaddr.load(sreg);
                exprs.push(Expr::Jhash { sreg, dreg, len: 4, modulus, seed: 0 });
                exprs
            }
        }
    }

    /// Expressions that load a concatenation from the first register on.
    #[must_use]
    pub fn load_all(fields: &[Self]) -> Vec<Expr> {
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
            Self::ThSport => "th sport",
            Self::ThDport => "th dport",
            Self::Mark => "meta mark",
            Self::IifName => "iifname",
            Self::OifName => "oifname",
            Self::CtOriginalIpDaddr => "ct original ip daddr",
            Self::CtOriginalIp6Daddr => "ct original ip6 daddr",
            Self::CtOriginalProtoDst => "ct original proto-dst",
            Self::NumgenRandom(modulus) => return write!(f, "numgen random mod {modulus}"),
            Self::JhashSaddr(modulus) => return write!(f, "jhash ip saddr mod {modulus}"),
        };
        f.write_str(text)
    }
}

/// A concatenation in nft syntax: `ip daddr . meta l4proto`.
#[must_use]
pub fn concatenation(fields: &[Field]) -> String {
    fields.iter().map(ToString::to_string).collect::<Vec<_>>().join(" . ")
}
