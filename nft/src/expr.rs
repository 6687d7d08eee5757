//! Expressions: the instructions of the kernel's register machine, as they travel over netlink.
//!
//! Rules are made of these. They are what a dump gives back, so they are also the form in which a wanted rule and an existing
//! rule are compared. Names and numbers are those of the kernel's `linux/netfilter/nf_tables.h`.

use std::sync::Arc;

use crate::data::Data;
use crate::object::Verdict;

/// A register, given as the index of its first 32-bit word (0 to 15).
///
/// On the wire a word at a multiple of four is one of the four old 16-byte registers, the form in which the kernel dumps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Register(u8);

impl Register {
    /// The first data register.
    pub const FIRST: Self = Self(0);

    /// Number of words.
    pub const COUNT: u8 = 16;

    /// The register that starts at a word.
    ///
    /// # Panics
    /// When there is no such word.
    #[must_use]
    pub const fn word(index: u8) -> Self {
        assert!(index < Self::COUNT, "the register file has 16 words");
        Self(index)
    }

    /// The register behind this one's `len` bytes.
    #[must_use]
    pub fn after(self, len: usize) -> Self {
        let words = u8::try_from(len.div_ceil(4)).unwrap_or(u8::MAX);
        Self::word(self.0.saturating_add(words))
    }

    /// The number on the wire (`NFT_REG_1` is 1, `NFT_REG32_00` is 8).
    #[must_use]
    pub fn to_wire(self) -> u32 {
        let word = u32::from(self.0);
        if word % 4 == 0 { 1 + word / 4 } else { 8 + word }
    }

    /// The register of a wire number; `None` for the verdict register and for unknown ones.
    #[must_use]
    pub fn from_wire(number: u32) -> Option<Self> {
        let word = match number {
            1..=4 => (number - 1) * 4,
            8..=23 => number - 8,
            _ => return None,
        };
        u8::try_from(word).ok().map(Self)
    }
}

/// Which header a payload load counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PayloadBase {
    /// The IP header.
    Network,
    /// The TCP, UDP or SCTP header.
    Transport,
}

/// What a `meta` expression loads or sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MetaKey {
    /// The packet's mark.
    Mark,
    /// The name of the input interface.
    IifName,
    /// The name of the output interface.
    OifName,
    /// The transport protocol.
    L4Proto,
    /// The network protocol.
    NfProto,
}

/// What a `ct` expression loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CtKey {
    /// Connection state bits.
    State,
    /// Connection status bits.
    Status,
    /// The connection mark.
    Mark,
    /// The number of packets in both directions, 64 bits in host order.
    Packets,
    /// Destination of the original direction, IPv4.
    OriginalDstIpv4,
    /// Destination of the original direction, IPv6.
    OriginalDstIpv6,
    /// Destination port of the original direction.
    OriginalDstPort,
}

/// Which address a `fib` expression asks about. The result is always the address type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FibAddress {
    /// The source address.
    Source,
    /// The destination address.
    Destination,
}

/// How `cmp` compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CmpOp {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Greater, byte by byte: numbers have to be in network order.
    Gt,
}

/// What a lookup does with what it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LookupResult {
    /// Goes on when the key is in the set.
    Member,
    /// Goes on when the key is not in the set.
    NotMember,
    /// Obeys the verdict of the map's element; goes on when there is none.
    Verdict,
    /// Loads the map's value; stops the rule when there is none.
    Load(Register),
}

/// Which address translation a `nat` expression sets up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NatType {
    /// Source.
    Source,
    /// Destination.
    Destination,
}

/// What a `reject` answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectWith {
    /// ICMP or ICMPv6 unreachable of the table's family, with the family's own code.
    Icmp(u8),
    /// ICMP or ICMPv6 unreachable by the packet's family, with a code of `enum nft_reject_inet_code`.
    Icmpx(u8),
    /// A TCP reset.
    TcpReset,
}

/// What a `dynset` expression does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DynsetOp {
    /// Adds the key when it is missing.
    Add,
    /// Adds the key, or refreshes its time-out.
    Update,
}

/// Flag of `nat` and `masq`: choose the source port at random (`NF_NAT_RANGE_PROTO_RANDOM_FULLY`).
pub const NAT_FULLY_RANDOM: u32 = 1 << 4;

/// One expression.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the attributes of the kernel's expressions, named alike")]
pub enum Expr {
    Payload {
        base: PayloadBase,
        offset: u32,
        len: u32,
        dreg: Register,
    },
    MetaLoad {
        key: MetaKey,
        dreg: Register,
    },
    MetaSet {
        key: MetaKey,
        sreg: Register,
    },
    Ct {
        key: CtKey,
        dreg: Register,
    },
    Fib {
        address: FibAddress,
        dreg: Register,
    },
    Cmp {
        op: CmpOp,
        sreg: Register,
        data: Data,
    },
    /// `dreg = (sreg & mask) ^ xor`.
    Bitwise {
        sreg: Register,
        dreg: Register,
        mask: Data,
        xor: Data,
    },
    /// Turns a number of `len` bytes from host to network order.
    HostToNetwork {
        sreg: Register,
        dreg: Register,
        len: u32,
    },
    Immediate {
        dreg: Register,
        data: Data,
    },
    ImmediateVerdict(Verdict),
    Lookup {
        set: Arc<str>,
        sreg: Register,
        result: LookupResult,
    },
    Numgen {
        dreg: Register,
        modulus: u32,
        random: bool,
    },
    Jhash {
        sreg: Register,
        dreg: Register,
        len: u32,
        modulus: u32,
        seed: u32,
    },
    Dynset {
        set: Arc<str>,
        op: DynsetOp,
        key: Register,
        data: Option<Register>,
        timeout_ms: Option<u64>,
    },
    Nat {
        kind: NatType,
        family: crate::object::Family,
        address: Register,
        port: Option<Register>,
        flags: u32,
    },
    Masquerade {
        flags: u32,
    },
    Reject(RejectWith),
    Counter,
    /// Hands the flow over to a flowtable.
    FlowOffload(Arc<str>),
    /// An expression of this name that the other variants cannot express; only from a dump, never sent.
    Unknown(Arc<str>),
}

impl Expr {
    /// The set that it looks into or adds to.
    #[must_use]
    pub fn set(&self) -> Option<&Arc<str>> {
        match self {
            Self::Lookup { set, .. } | Self::Dynset { set, .. } => Some(set),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_have_the_form_in_which_the_kernel_dumps_them() {
        let wire: Vec<u32> = (0..6).map(|i| Register::word(i).to_wire()).collect();
        assert_eq!(wire, [1, 9, 10, 11, 2, 13]);
        for i in 0..Register::COUNT {
            assert_eq!(Register::from_wire(Register::word(i).to_wire()), Some(Register::word(i)));
        }
        assert_eq!(Register::from_wire(8), Some(Register::FIRST));
        assert_eq!(Register::from_wire(0), None);
        assert_eq!(Register::from_wire(24), None);
    }
}
