//! The selectors of the nft language: what a rule can read from a packet or compute.
//!
//! Each field has an nft text, a data type, and expressions that load it into a register. Several fields form a concatenation, which nft
//! writes with dots. Concatenations are also the keys of sets and maps.

use std::fmt;

use crate::datatype::DataType;
use crate::expr::{CtKey, Expr, MetaKey, PayloadBase, Register};
use crate::wire::narrow;

/// The input of a [`Field::Jhash`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hashed {
    /// `ip saddr`.
    IpSource,
    /// `ip saddr . th sport`.
    IpSourceAndPort,
    /// `ip6 saddr`.
    Ip6Source,
    /// `ip6 saddr . th sport`.
    Ip6SourceAndPort,
}

impl Hashed {
    pub(crate) const ALL: [Self; 4] = [Self::IpSource, Self::IpSourceAndPort, Self::Ip6Source, Self::Ip6SourceAndPort];

    const fn has_port(self) -> bool {
        matches!(self, Self::IpSourceAndPort | Self::Ip6SourceAndPort)
    }

    const fn address(self) -> Field {
        match self {
            Self::IpSource | Self::IpSourceAndPort => Field::IpSaddr,
            Self::Ip6Source | Self::Ip6SourceAndPort => Field::Ip6Saddr,
        }
    }

    /// The number of bytes that are hashed: a port takes four, a whole register word.
    const fn size(self) -> usize {
        self.address().data_type().size() + if self.has_port() { 4 } else { 0 }
    }

    /// The expressions that load the input of the hash into `sreg` and the registers behind it.
    pub(crate) fn load(self, sreg: Register) -> Vec<Expr> {
        let mut exprs = self.address().load(sreg);
        if self.has_port() {
            let dreg = sreg.after(self.address().data_type().size());
            exprs.push(Expr::Payload { base: PayloadBase::Transport, offset: 0, len: 2, dreg });
        }
        exprs
    }
}

impl fmt::Display for Hashed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.address(), if self.has_port() { " . th sport" } else { "" })
    }
}

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
    /// `ct original ip daddr`.
    CtOriginalIpDaddr,
    /// `ct original ip6 daddr`.
    CtOriginalIp6Daddr,
    /// `ct original proto-dst`.
    CtOriginalProtoDst,
    /// `numgen random mod N`: a number from 0 to N - 1, chosen at random at each evaluation.
    NumgenRandom(u32),
    /// `jhash ip saddr mod N seed S offset O`: a number from O to O + N - 1 that is the same for the same input. The input is one of
    /// [`Hashed`].
    Jhash {
        /// The input of the hash.
        hashed: Hashed,
        /// N, at least 1: the result is one of N numbers.
        modulus: u32,
        /// S: the seed of the hash.
        seed: u32,
        /// O: the number that is added to the result.
        offset: u32,
    },
}

/// The register word into which nft loads the input of a hash: counted from the end of the key when the key is a concatenation, from the
/// first word when the hash is the only field.
const SCRATCH: u8 = 4;

impl Field {
    /// The data type of the value that the field loads.
    #[must_use]
    pub const fn data_type(self) -> DataType {
        match self {
            Self::IpSaddr | Self::IpDaddr | Self::CtOriginalIpDaddr => DataType::Ipv4Addr,
            Self::Ip6Saddr | Self::Ip6Daddr | Self::CtOriginalIp6Daddr => DataType::Ipv6Addr,
            Self::L4Proto => DataType::InetProto,
            Self::ThSport | Self::ThDport | Self::CtOriginalProtoDst => DataType::InetService,
            Self::Mark => DataType::Mark,
            Self::IifName => DataType::IfName,
            Self::NumgenRandom(_) | Self::Jhash { .. } => DataType::Integer,
        }
    }

    /// The expressions that load the field into a register. The input of a hash goes into the register that nft uses for a hash that is the
    /// only field.
    pub(crate) fn load(self, dreg: Register) -> Vec<Expr> {
        self.load_beside(dreg, Register::word(SCRATCH))
    }

    /// The expressions that load the field into a register. The input of a hash goes into `scratch` and the registers behind it.
    fn load_beside(self, dreg: Register, scratch: Register) -> Vec<Expr> {
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
            Self::CtOriginalIpDaddr => ct(CtKey::OriginalDstIpv4),
            Self::CtOriginalIp6Daddr => ct(CtKey::OriginalDstIpv6),
            Self::CtOriginalProtoDst => ct(CtKey::OriginalDstPort),
            Self::NumgenRandom(modulus) => vec![Expr::Numgen { dreg, modulus }],
            Self::Jhash { hashed, modulus, seed, offset } => {
                let len = narrow::<u32>(hashed.size(), "twenty bytes at most");
                let mut exprs = hashed.load(scratch);
                exprs.push(Expr::Jhash { sreg: scratch, dreg, len, modulus, seed, offset });
                exprs
            }
        }
    }

    /// The expressions that load a concatenation into the registers, from the first register on.
    pub(crate) fn load_all(fields: &[Self]) -> Vec<Expr> {
        let mut register = Register::FIRST;
        let mut exprs = Vec::new();
        let key = if fields.len() > 1 { fields.iter().map(|field| field.data_type().padded_size()).sum() } else { 0 };
        let scratch = Register::word(SCRATCH).after(key);
        for (i, field) in fields.iter().enumerate() {
            exprs.extend(field.load_beside(register, scratch));
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
            Self::CtOriginalIpDaddr => "ct original ip daddr",
            Self::CtOriginalIp6Daddr => "ct original ip6 daddr",
            Self::CtOriginalProtoDst => "ct original proto-dst",
            Self::NumgenRandom(modulus) => return write!(f, "numgen random mod {modulus}"),
            Self::Jhash { hashed, modulus, seed, offset } => {
                write!(f, "jhash {hashed} mod {modulus} seed 0x{seed:x}")?;
                return if *offset == 0 { Ok(()) } else { write!(f, " offset {offset}") };
            }
        };
        f.write_str(text)
    }
}
