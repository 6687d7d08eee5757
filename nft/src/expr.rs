//! Expressions: the instructions of the kernel's register machine, as they travel over netlink.
//!
//! Rules are lists of expressions. The kernel lists rules in this form, so wanted and existing rules are compared in it. Names and numbers
//! are those of the kernel's `linux/netfilter/nf_tables.h`, unless a comment names another file. [`Expr`] has variants for all that
//! [`crate::Statement`]s need, [`Expr::Foreign`] for some expressions of other programs, and [`Expr::Unknown`] for the rest.

use std::sync::Arc;

use crate::data::{Data, Verdict};
use crate::table::Family;

/// A register, given as the index of its first 32-bit word (0 to 15).
///
/// On the wire, a register whose index is a multiple of four has the number of a 16-byte register (`NFT_REG_1` to `NFT_REG_4`), as in the
/// kernel's dumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Register(u8);

impl Register {
    /// The first data register.
    pub(crate) const FIRST: Self = Self(0);

    /// The number of words.
    const COUNT: u8 = 16;

    /// The register that starts at word number `index`.
    ///
    /// Panics when `index` is 16 or more.
    pub(crate) const fn word(index: u8) -> Self {
        assert!(index < Self::COUNT, "the register file has 16 words");
        Self(index)
    }

    /// The first register behind `len` bytes that start at this register.
    pub(crate) fn after(self, len: usize) -> Self {
        let words = u8::try_from(len.div_ceil(4)).unwrap_or(u8::MAX);
        Self::word(self.0.saturating_add(words))
    }

    /// The index of its first 32-bit word, below 16.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The number on the wire (`NFT_REG_1` is 1, `NFT_REG32_00` is 8).
    pub(crate) fn to_wire(self) -> u32 {
        let word = u32::from(self.0);
        if word % 4 == 0 { 1 + word / 4 } else { 8 + word }
    }

    /// The register with a number on the wire; `None` for the verdict register and for unknown numbers.
    pub(crate) fn from_wire(number: u32) -> Option<Self> {
        let word = match number {
            1..=4 => (number - 1) * 4,
            8..=23 => number - 8,
            _ => return None,
        };
        u8::try_from(word).ok().map(Self)
    }
}

/// The header from which a `payload` expression counts its offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PayloadBase {
    /// The IP header.
    Network,
    /// The header behind the IP header, such as that of TCP, UDP, SCTP or ICMP.
    Transport,
}

impl PayloadBase {
    pub(crate) const ALL: [Self; 2] = [Self::Network, Self::Transport];

    /// The number in `enum nft_payload_bases`.
    pub(crate) const fn number(self) -> u32 {
        match self {
            Self::Network => 1,
            Self::Transport => 2,
        }
    }
}

/// The property of a packet that a `meta` expression loads or sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MetaKey {
    /// The packet's mark.
    Mark,
    /// The name of the input interface.
    IifName,
    /// The transport protocol.
    L4Proto,
    /// Whether the kernel traces the packet (`nftrace`).
    Trace,
}

impl MetaKey {
    pub(crate) const ALL: [Self; 4] = [Self::Mark, Self::IifName, Self::L4Proto, Self::Trace];

    /// The number in `enum nft_meta_keys`.
    pub(crate) const fn number(self) -> u32 {
        match self {
            Self::Mark => 3,
            Self::IifName => 6,
            Self::L4Proto => 16,
            Self::Trace => 12,
        }
    }
}

/// The property of a connection that a `ct` expression loads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CtKey {
    /// Connection state bits.
    State,
    /// Connection status bits.
    Status,
    /// The number of packets in both directions, 64 bits in host order.
    Packets,
    /// Destination of the original direction, IPv4.
    OriginalDstIpv4,
    /// Destination of the original direction, IPv6.
    OriginalDstIpv6,
    /// Destination port of the original direction.
    OriginalDstPort,
}

impl CtKey {
    pub(crate) const ALL: [Self; 6] =
        [Self::State, Self::Status, Self::Packets, Self::OriginalDstIpv4, Self::OriginalDstIpv6, Self::OriginalDstPort];

    /// The number in `enum nft_ct_keys`, and whether the expression must name the direction.
    pub(crate) const fn number(self) -> (u32, bool) {
        match self {
            Self::State => (0, false),
            Self::Status => (2, false),
            Self::Packets => (14, false),
            Self::OriginalDstPort => (12, true),
            Self::OriginalDstIpv4 => (20, true),
            Self::OriginalDstIpv6 => (22, true),
        }
    }
}

/// The address that a `fib` expression looks up. The result is always the type of the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FibAddress {
    /// The source address.
    Source,
    /// The destination address.
    Destination,
}

/// The operator of a `cmp` expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CmpOp {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Greater. The bytes are compared from the first to the last, so numbers have to be in network order.
    Gt,
}

impl CmpOp {
    pub(crate) const ALL: [Self; 3] = [Self::Eq, Self::Ne, Self::Gt];

    /// The number in `enum nft_cmp_ops`.
    pub(crate) const fn number(self) -> u32 {
        match self {
            Self::Eq => 0,
            Self::Ne => 1,
            Self::Gt => 4,
        }
    }
}

/// The effect of a `lookup` expression. "Goes on" means that the next expression of the rule is evaluated, "stops the rule" that the next
/// rule follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LookupResult {
    /// Goes on when the key is in the set; else stops the rule.
    Member,
    /// Goes on when the key is not in the set; else stops the rule.
    NotMember,
    /// Follows the verdict of the map's element; stops the rule when there is no element.
    Verdict,
    /// Loads the value of the map's element and goes on; stops the rule when there is no element.
    Load(Register),
}

/// The answer that a `reject` expression sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectWith {
    /// "Unreachable" of ICMP or ICMPv6, by the table's family, with a code of that protocol.
    Icmp(u8),
    /// "Unreachable" of ICMP or ICMPv6, by the packet's family, with a code of `enum nft_reject_inet_code`.
    Icmpx(u8),
    /// A TCP reset.
    TcpReset,
}

/// Flag of `masq`: the kernel chooses the source port at random (`NF_NAT_RANGE_PROTO_RANDOM_FULLY` in `linux/netfilter/nf_nat.h`).
pub(crate) const NAT_FULLY_RANDOM: u32 = 1 << 4;

/// One expression.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the attributes of the kernel's expressions, with the kernel's names")]
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
    /// A random number below `modulus`.
    Numgen {
        dreg: Register,
        modulus: u32,
    },
    /// `offset` plus a number below `modulus` that the kernel computes from `len` bytes: see [`crate::jhash_below`].
    Jhash {
        sreg: Register,
        dreg: Register,
        len: u32,
        modulus: u32,
        seed: u32,
        offset: u32,
    },
    /// Adds the key to a set or map, or restarts the element's time-out.
    Dynset {
        set: Arc<str>,
        key: Register,
        data: Option<Register>,
        timeout_ms: Option<u64>,
    },
    /// Translates the destination; without a port the packet keeps its own.
    Nat {
        family: Family,
        address: Register,
        port: Option<Register>,
    },
    Masquerade {
        flags: u32,
    },
    Reject(RejectWith),
    Counter,
    /// Matches on average at most `per_second` packets a second. After a pause it matches up to `burst` packets at once.
    Limit {
        per_second: u64,
        burst: u32,
    },
    /// Adds the packet's flow to a flowtable.
    FlowOffload(Arc<str>),
    /// An expression of another program's rule. It comes from dumps only and is never sent.
    Foreign(Arc<Foreign>),
    /// An expression with this name that no other variant can express. It comes from dumps only and is never sent.
    Unknown(Arc<str>),
}

/// Expressions that only rules of other programs have. They are needed to print the rules of other programs and to follow a packet through
/// them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are the attributes of the kernel's expressions, with the kernel's names")]
pub enum Foreign {
    /// Matches when the comparison of the register with `data` holds, byte by byte.
    Compare { order: Order, sreg: Register, data: Data },
    /// Matches when the register is in the range, or, if `outside`, when it is not.
    Range { outside: bool, sreg: Register, first: Data, last: Data },
    /// Loads the property with this number in `enum nft_meta_keys`.
    Meta { key: u32, dreg: Register },
    /// Loads the property with this number in `enum nft_ct_keys`, without a direction.
    Ct { key: u32, dreg: Register },
    /// Sets the mark of the connection.
    SetCtMark { sreg: Register },
    /// Translates source or destination, to one address or one port or both.
    Nat { of_destination: bool, family: Family, address: Option<Register>, port: Option<Register> },
    /// Translates the destination to this host.
    Redirect { port: Option<Register> },
    /// Keeps the packet out of connection tracking.
    Notrack,
    /// An expression, such as `log` or a named counter, that changes neither which rules the packet matches nor where it goes.
    Harmless(Arc<str>),
    /// A match of iptables-nft, by its name.
    XtMatch(Arc<str>),
    /// A target of iptables-nft, by its name.
    XtTarget(Arc<str>),
}

/// The operator of [`Foreign::Compare`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// `<`.
    Less,
    /// `<=`.
    AtMost,
    /// `>=`.
    AtLeast,
}

impl Expr {
    /// The set or map that the expression looks up or adds to.
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
