//! The statements of rules, as the nft language has them, and the kernel's expressions to which each is lowered.
//!
//! Lowering a statement gives expressions that `nft list` shows as this statement. They are mostly those that `nft` itself sends; the
//! function `tables` in `nft/tests/kernel/listing.rs` has exceptions.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use crate::data::{Data, Verdict};
use crate::expr::{
    CmpOp, CtKey, Expr, FibAddress, LookupResult, MetaKey, NAT_FULLY_RANDOM, PayloadBase, Register, RejectWith,
};
use crate::field::Field;
use crate::table::Family;

/// ICMP port unreachable (RFC 792): the answer of `reject` in an `ip` table.
const ICMP_PORT_UNREACHABLE: u8 = 3;
/// ICMPv6 port unreachable (RFC 4443): the answer in an `ip6` table.
const ICMPV6_PORT_UNREACHABLE: u8 = 4;
/// The numbers of ICMP and of ICMPv6 (IANA registry "Protocol Numbers"), each with its type of echo requests (RFC 792, RFC 4443).
const ICMP_ECHO: (u8, u8) = (1, 8);
const ICMPV6_ECHO: (u8, u8) = (58, 128);
/// `NFT_REJECT_ICMPX_PORT_UNREACH`: the answer in an `inet` table.
const ICMPX_PORT_UNREACHABLE: u8 = 1;
/// The address type of this host's own addresses (`linux/rtnetlink.h`).
const RTN_LOCAL: u32 = 2;

/// One statement of a rule. The kernel leaves a rule at the first statement that does not match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Statement {
    /// `FIELD . FIELD OPERAND`: matches when the comparison holds.
    Match(Vec<Field>, Operand),
    /// `fib saddr type local`, `fib daddr type local`.
    FibLocal(FibAddress),
    /// `ct state new`, `ct status dnat`, ...
    CtBit(CtBit),
    /// `tcp flags & (fin | syn | rst | ack) == syn`: the first packet of a TCP connection. The rule must have matched the protocol before.
    TcpSyn,
    /// `icmp type echo-request`, in an `ip6` table `icmpv6 type echo-request`.
    EchoRequest,
    /// `ct packets > NUMBER`: the packets of both directions. Unless the kernel counted packets before (`net.netfilter.nf_conntrack_acct`),
    /// it counts only in connections that begin after a rule with `ct packets` was added.
    CtPacketsOver(u64),
    /// `meta mark & MASK == 0` (false) or `!= 0` (true).
    MarkBits {
        /// The bits to test.
        mask: u32,
        /// Whether at least one of them must be set (true) or none (false).
        set: bool,
    },
    /// `meta mark set meta mark | BITS`.
    SetMarkBits(u32),
    /// `meta mark set meta mark & ~BITS`.
    ClearMarkBits(u32),
    /// `FIELD . FIELD vmap @MAP`: follows the verdict of the map's element; does not match when there is no element.
    Vmap(Vec<Field>, Arc<str>),
    /// `dnat ip to FIELD . FIELD map @MAP`: the map gives address and port; does not match when there is no element.
    DnatToMap(Vec<Field>, Arc<str>),
    /// `dnat to FIELD . FIELD map @MAP:PORT`: the map gives the address; does not match when there is no element.
    DnatToMapAndPort(Vec<Field>, Arc<str>, u16),
    /// `dnat to ADDRESS:PORT`.
    Dnat(SocketAddr),
    /// `dnat to ADDRESS`: the packet keeps its port, or the number (id) of its ping.
    DnatAddress(IpAddr),
    /// `masquerade fully-random`.
    MasqueradeFullyRandom,
    /// `reject`: answers "port unreachable" of the table's family.
    Reject,
    /// `reject with tcp reset`. The rule must have matched TCP before.
    RejectTcp,
    /// `update @SET { FIELD timeout T : FIELD . FIELD }`.
    Update {
        /// The dynamic set or map.
        set: Arc<str>,
        /// The fields of the key.
        key: Vec<Field>,
        /// The fields of the value; empty for a set.
        value: Vec<Field>,
        /// How long the element lives from now; `None` for the set's own time-out.
        timeout: Option<Duration>,
    },
    /// `counter`.
    Counter,
    /// `limit rate NUMBER/second burst NUMBER packets`: matches on average at most this many packets a second.
    LimitRate {
        /// Packets a second.
        per_second: u64,
        /// Packets that it matches at once after a pause.
        burst: u32,
    },
    /// `meta nftrace set 1`: the kernel traces the packet from now on.
    Trace,
    /// `flow add @FLOWTABLE`: adds the packet's flow to the flowtable, if the kernel can.
    FlowAdd(Arc<str>),
    /// A verdict.
    Verdict(Verdict),
}

/// The right side of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operand {
    /// `== value`.
    Is(Data),
    /// `!= value`.
    IsNot(Data),
    /// `ADDRESS/LENGTH`: an address in this network.
    InPrefix(IpAddr, u8),
    /// `!= ADDRESS/LENGTH`: an address outside this network.
    NotInPrefix(IpAddr, u8),
    /// `"cali*"`: an interface name that starts with this text. The text has at most 15 bytes, as an interface name.
    StartsWith(Arc<str>),
    /// `!= "cali*"`: an interface name that does not start with this text.
    StartsNotWith(Arc<str>),
    /// `@set`.
    InSet(Arc<str>),
    /// `!= @set`.
    NotInSet(Arc<str>),
}

/// Bits of conntrack's state or status; a rule matches when one of them is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CtBit {
    /// `ct state new`.
    StateNew,
    /// `ct state new,untracked`.
    StateNewOrUntracked,
    /// `ct state established`.
    StateEstablished,
    /// `ct state invalid`.
    StateInvalid,
    /// `ct status dnat`.
    StatusDnat,
}

impl CtBit {
    pub(crate) const ALL: [Self; 5] =
        [Self::StateNew, Self::StateNewOrUntracked, Self::StateEstablished, Self::StateInvalid, Self::StatusDnat];

    /// The key and the bits, as in the kernel's `nf_conntrack_common.h`.
    pub(crate) const fn parts(self) -> (CtKey, u32) {
        match self {
            Self::StateInvalid => (CtKey::State, 1),
            Self::StateEstablished => (CtKey::State, 1 << 1),
            Self::StateNew => (CtKey::State, 1 << 3),
            Self::StateNewOrUntracked => (CtKey::State, 1 << 3 | 1 << 6),
            Self::StatusDnat => (CtKey::Status, 1 << 5),
        }
    }
}

const FIRST: Register = Register::FIRST;
/// The byte of the TCP header that holds the flags (RFC 9293, section 3.1), and flags in it.
pub(crate) const TCP_FLAGS: u32 = 13;
const FIN: u8 = 1;
const SYN: u8 = 1 << 1;
const RST: u8 = 1 << 2;
const ACK: u8 = 1 << 4;

impl Statement {
    /// The expressions of the statement in a table of the family.
    pub(crate) fn lower(&self, family: Family) -> Vec<Expr> {
        match self {
            Self::Match(fields, operand) => lower_match(fields, operand),
            Self::FibLocal(address) => vec![
                Expr::Fib { address: *address, dreg: FIRST },
                Expr::Cmp { op: CmpOp::Eq, sreg: FIRST, data: RTN_LOCAL.into() },
            ],
            Self::CtBit(bit) => {
                let (key, bits) = bit.parts();
                test_bits(Expr::Ct { key, dreg: FIRST }, bits, true)
            }
            Self::TcpSyn => vec![
                Expr::Payload { base: PayloadBase::Transport, offset: TCP_FLAGS, len: 1, dreg: FIRST },
                Expr::Bitwise { sreg: FIRST, dreg: FIRST, mask: (FIN | SYN | RST | ACK).into(), xor: 0_u8.into() },
                Expr::Cmp { op: CmpOp::Eq, sreg: FIRST, data: SYN.into() },
            ],
            Self::EchoRequest => lower_echo_request(family),
            Self::CtPacketsOver(number) => lower_packets_over(*number),
            Self::MarkBits { mask, set } => test_bits(Expr::MetaLoad { key: MetaKey::Mark, dreg: FIRST }, *mask, *set),
            Self::SetMarkBits(bits) => change_mark(!*bits, *bits),
            Self::ClearMarkBits(bits) => change_mark(!*bits, 0),
            Self::Vmap(fields, map) => lookup(fields, map, LookupResult::Verdict),
            Self::DnatToMap(fields, map) => {
                let mut exprs = lookup(fields, map, LookupResult::Load(FIRST));
                exprs.push(dnat(family, address_len(family)));
                exprs
            }
            Self::DnatToMapAndPort(fields, map, port) => lower_dnat_to_map_and_port(family, fields, map, *port),
            Self::Dnat(to) => {
                let address = Data::from(to.ip());
                vec![
                    Expr::Immediate { dreg: FIRST, data: address },
                    Expr::Immediate { dreg: FIRST.after(address.len()), data: to.port().into() },
                    dnat(family, address.len()),
                ]
            }
            Self::DnatAddress(to) => vec![
                Expr::Immediate { dreg: FIRST, data: (*to).into() },
                Expr::Nat { family: if to.is_ipv4() { Family::Ip } else { Family::Ip6 }, address: FIRST, port: None },
            ],
            Self::MasqueradeFullyRandom => vec![Expr::Masquerade { flags: NAT_FULLY_RANDOM }],
            Self::Reject => vec![Expr::Reject(port_unreachable(family))],
            Self::RejectTcp => vec![Expr::Reject(RejectWith::TcpReset)],
            Self::Update { set, key, value, timeout } => lower_update(set, key, value, *timeout),
            Self::Counter => vec![Expr::Counter],
            Self::LimitRate { per_second, burst } => {
                vec![Expr::Limit { per_second: *per_second, burst: *burst }]
            }
            Self::Trace => vec![
                Expr::Immediate { dreg: FIRST, data: 1_u8.into() },
                Expr::MetaSet { key: MetaKey::Trace, sreg: FIRST },
            ],
            Self::FlowAdd(flowtable) => vec![Expr::FlowOffload(Arc::clone(flowtable))],
            Self::Verdict(verdict) => vec![Expr::ImmediateVerdict(verdict.clone())],
        }
    }
}

fn lower_match(fields: &[Field], operand: &Operand) -> Vec<Expr> {
    let mut exprs = Field::load_all(fields);
    let mut compare = |op, data| exprs.push(Expr::Cmp { op, sreg: FIRST, data });
    match operand {
        Operand::Is(data) => compare(CmpOp::Eq, *data),
        Operand::IsNot(data) => compare(CmpOp::Ne, *data),
        Operand::StartsWith(prefix) => compare(CmpOp::Eq, text(prefix)),
        Operand::StartsNotWith(prefix) => compare(CmpOp::Ne, text(prefix)),
        Operand::InPrefix(ip, len) => exprs.extend(compare_prefix(CmpOp::Eq, *ip, *len)),
        Operand::NotInPrefix(ip, len) => exprs.extend(compare_prefix(CmpOp::Ne, *ip, *len)),
        Operand::InSet(set) => exprs.push(member(set, LookupResult::Member)),
        Operand::NotInSet(set) => exprs.push(member(set, LookupResult::NotMember)),
    }
    exprs
}

fn member(set: &Arc<str>, result: LookupResult) -> Expr {
    Expr::Lookup { set: Arc::clone(set), sreg: FIRST, result }
}

fn text(prefix: &str) -> Data {
    Data::from_bytes(prefix.as_bytes()).expect("interface names have at most 15 bytes")
}

/// The mask of a prefix, in network order.
fn prefix_mask(bytes: usize, len: u8) -> Data {
    let mut mask = [0_u8; 16];
    let len = usize::from(len);
    for (i, byte) in mask.iter_mut().enumerate() {
        let bits = len.saturating_sub(i * 8).min(8);
        *byte = u8::try_from(0xff00_u32 >> bits & 0xff).unwrap_or(0);
    }
    Data::from_bytes(&mask[..bytes]).expect("an address is shorter than Data::MAX_LEN")
}

fn compare_prefix(op: CmpOp, ip: IpAddr, len: u8) -> Vec<Expr> {
    let address = Data::from(ip);
    let mut exprs = Vec::new();
    if usize::from(len) < address.len() * 8 {
        let zero = Data::from_bytes(&[0; 16][..address.len()]).expect("an address is shorter than Data::MAX_LEN");
        let mask = prefix_mask(address.len(), len);
        exprs.push(Expr::Bitwise { sreg: FIRST, dreg: FIRST, mask, xor: zero });
    }
    exprs.push(Expr::Cmp { op, sreg: FIRST, data: address });
    exprs
}

/// Loads bits and matches when `bits & mask != 0` if `set`, else when `bits & mask == 0`.
pub(crate) fn test_bits(load: Expr, mask: u32, set: bool) -> Vec<Expr> {
    let op = if set { CmpOp::Ne } else { CmpOp::Eq };
    vec![
        load,
        Expr::Bitwise { sreg: FIRST, dreg: FIRST, mask: mask.into(), xor: 0_u32.into() },
        Expr::Cmp { op, sreg: FIRST, data: 0_u32.into() },
    ]
}

fn lower_echo_request(family: Family) -> Vec<Expr> {
    let (protocol, kind) = if family == Family::Ip6 { ICMPV6_ECHO } else { ICMP_ECHO };
    let is = |data: u8| Expr::Cmp { op: CmpOp::Eq, sreg: FIRST, data: data.into() };
    vec![
        Expr::MetaLoad { key: MetaKey::L4Proto, dreg: FIRST },
        is(protocol),
        Expr::Payload { base: PayloadBase::Transport, offset: 0, len: 1, dreg: FIRST },
        is(kind),
    ]
}

fn lower_packets_over(number: u64) -> Vec<Expr> {
    let data = Data::from_bytes(&number.to_be_bytes()).expect("eight bytes");
    vec![
        Expr::Ct { key: CtKey::Packets, dreg: FIRST },
        Expr::HostToNetwork { sreg: FIRST, dreg: FIRST, len: 8 },
        Expr::Cmp { op: CmpOp::Gt, sreg: FIRST, data },
    ]
}

/// Sets the mark to `mark & mask ^ xor`.
pub(crate) fn change_mark(mask: u32, xor: u32) -> Vec<Expr> {
    vec![
        Expr::MetaLoad { key: MetaKey::Mark, dreg: FIRST },
        Expr::Bitwise { sreg: FIRST, dreg: FIRST, mask: mask.into(), xor: xor.into() },
        Expr::MetaSet { key: MetaKey::Mark, sreg: FIRST },
    ]
}

fn lookup(fields: &[Field], map: &Arc<str>, result: LookupResult) -> Vec<Expr> {
    let mut exprs = Field::load_all(fields);
    exprs.push(member(map, result));
    exprs
}

const fn address_len(family: Family) -> usize {
    match family {
        Family::Ip6 => 16,
        Family::Ip | Family::Inet => 4,
    }
}

/// DNAT to the address in the first register and the port in the register behind it.
fn dnat(family: Family, address_len: usize) -> Expr {
    let family = match address_len {
        16 => Family::Ip6,
        4 => Family::Ip,
        _ => family,
    };
    Expr::Nat { family, address: FIRST, port: Some(FIRST.after(address_len)) }
}

fn lower_dnat_to_map_and_port(family: Family, fields: &[Field], map: &Arc<str>, port: u16) -> Vec<Expr> {
    let mut exprs = lookup(fields, map, LookupResult::Load(FIRST));
    // nft puts the port into this register, whatever the length of the address.
    let behind = FIRST.after(address_len(Family::Ip6));
    exprs.push(Expr::Immediate { dreg: behind, data: port.into() });
    let family = if address_len(family) == 16 { Family::Ip6 } else { Family::Ip };
    exprs.push(Expr::Nat { family, address: FIRST, port: Some(behind) });
    exprs
}

const fn port_unreachable(family: Family) -> RejectWith {
    match family {
        Family::Ip => RejectWith::Icmp(ICMP_PORT_UNREACHABLE),
        Family::Ip6 => RejectWith::Icmp(ICMPV6_PORT_UNREACHABLE),
        Family::Inet => RejectWith::Icmpx(ICMPX_PORT_UNREACHABLE),
    }
}

fn lower_update(set: &Arc<str>, key: &[Field], value: &[Field], timeout: Option<Duration>) -> Vec<Expr> {
    let mut exprs = Field::load_all(key);
    // The value goes right behind the key. nft itself leaves sixteen bytes for a key, but its listing shows both variants as the same text.
    let mut register = FIRST.after(key.iter().map(|f| f.data_type().padded_size()).sum());
    let data = (!value.is_empty()).then_some(register);
    for field in value {
        exprs.extend(field.load(register));
        register = register.after(field.data_type().size());
    }
    let timeout_ms = timeout.map(|t| u64::try_from(t.as_millis()).unwrap_or(u64::MAX));
    exprs.push(Expr::Dynset { set: Arc::clone(set), key: FIRST, data, timeout_ms });
    exprs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_of_prefixes() {
        assert_eq!(prefix_mask(4, 16).as_slice(), [255, 255, 0, 0]);
        assert_eq!(prefix_mask(4, 20).as_slice(), [255, 255, 0xf0, 0]);
        assert_eq!(prefix_mask(4, 0).as_slice(), [0; 4]);
        assert_eq!(prefix_mask(16, 9).as_slice()[..3], [255, 0x80, 0]);
    }

    #[test]
    fn a_whole_address_needs_no_mask() {
        let exprs = compare_prefix(CmpOp::Eq, [10, 0, 0, 1].into(), 32);
        assert_eq!(exprs.len(), 1);
    }

    #[test]
    fn dnat_to_map_takes_address_and_port_from_neighbouring_registers() {
        let fields = vec![Field::Ip6Daddr, Field::L4Proto, Field::ThDport, Field::NumgenRandom(2)];
        let exprs = Statement::DnatToMap(fields, "endpoints".into()).lower(Family::Ip6);
        assert_eq!(exprs[3], Expr::Numgen { dreg: Register::word(6), modulus: 2 });
        let Some(Expr::Nat { address, port, family, .. }) = exprs.last() else { panic!("no nat") };
        assert_eq!((*address, *port, *family), (FIRST, Some(Register::word(4)), Family::Ip6));
    }
}
