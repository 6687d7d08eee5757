//! Matches and targets of iptables as expressions of nf_tables. iptables-nft has them in rules of nf_tables, iptables-legacy in tables of its
//! own; their data have the same form in both (`linux/netfilter/xt_*.h`, `linux/netfilter_ipv4/ipt_*.h`, `linux/netfilter/nf_nat.h`).
//!
//! A match or target that no expressions stand for keeps its name.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::reader::{Reader, only_if};
use crate::data::Data;
use crate::expr::{CmpOp, CtKey, Expr, FibAddress, Foreign, MetaKey, PayloadBase, Register};
use crate::field::Field;
use crate::statement::{Operand, Statement, TCP_FLAGS, change_mark, test_bits};
use crate::table::Family;
use crate::wire::Attrs;

/// A match or a target.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extension<'a> {
    pub(crate) name: &'a str,
    /// The revision, by which `info` has another form.
    pub(crate) revision: u8,
    pub(crate) info: &'a [u8],
}

/// The effects that rules may have on a packet, besides letting it pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// The rules may drop or reject the packet.
    pub drops: bool,
    /// The rules may change the packet's destination.
    pub translates: bool,
    /// The rules may keep the packet out of connection tracking, so that nothing translates it.
    pub untracks: bool,
}

impl Effects {
    /// The effects that at least one of the two values has.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            drops: self.drops | other.drops,
            translates: self.translates | other.translates,
            untracks: self.untracks | other.untracks,
        }
    }
}

const FIRST: Register = Register::FIRST;

impl<'a> Extension<'a> {
    /// The data of an expression `match` or `target`.
    pub(super) fn read(attrs: Attrs<'a>) -> Option<Self> {
        let revision = Reader(attrs).number_or_zero(2)?;
        let info = attrs.find(3).map_or(&[][..], |info| info.payload);
        Some(Self { name: attrs.find(1)?.str()?, revision: u8::try_from(revision).ok()?, info })
    }

    /// The expressions that match what this match matches.
    pub(crate) fn matching(self) -> Vec<Expr> {
        let known = match (self.name, self.revision) {
            ("comment", _) => Some(vec![foreign(Foreign::Harmless("comment".into()))]),
            ("tcp", 0) => self.tcp(),
            ("udp", 0) => self.ports(8),
            ("conntrack", 2 | 3) => self.state(),
            ("mark", 1) => self.mark(),
            ("addrtype", 1) => self.address_types(),
            _ => None,
        };
        known.unwrap_or_else(|| vec![foreign(Foreign::XtMatch(self.name.into()))])
    }

    /// The expressions that do what this target does in a table of the family.
    pub(crate) fn target(self, family: Family) -> Vec<Expr> {
        const RESET: [u32; 2] = [7, 6];
        let known = match (self.name, self.revision) {
            _ if self.untracks() => Some(vec![foreign(Foreign::Notrack)]),
            ("DNAT", 0..=2) => self.translation(family, true),
            ("SNAT", 0..=2) => self.translation(family, false),
            ("MASQUERADE", 0) => {
                self.u32(if family == Family::Ip6 { 0 } else { 4 }).map(|flags| vec![Expr::Masquerade { flags }])
            }
            ("REJECT", 0) => {
                let is_reset = self.u32(0) == Some(RESET[usize::from(family == Family::Ip6)]);
                Some(if is_reset { Statement::RejectTcp } else { Statement::Reject }.lower(family))
            }
            ("MARK", 2) => self.u32(0).zip(self.u32(4)).map(|(mark, bits)| change_mark(!bits, mark)),
            _ => None,
        };
        known.unwrap_or_else(|| vec![foreign(Foreign::XtTarget(self.name.into()))])
    }

    /// What this target may do to a packet.
    pub(crate) fn effects(self) -> Effects {
        Effects {
            drops: matches!(self.name, "REJECT" | "DROP"),
            translates: matches!(self.name, "DNAT" | "REDIRECT" | "TPROXY" | "NETMAP"),
            untracks: self.untracks(),
        }
    }

    /// Whether this target keeps packets from connection tracking and does nothing else. iptables writes its target `NOTRACK` as target `CT`
    /// with a flag.
    fn untracks(self) -> bool {
        /// `XT_CT_NOTRACK`, the lowest bit of `xt_ct_target_info.flags`.
        const FLAG: u16 = 1;
        self.name == "NOTRACK" || self.name == "CT" && self.u16(0).is_some_and(|flags| flags & FLAG != 0)
    }

    fn u8(self, at: usize) -> Option<u8> {
        self.info.get(at).copied()
    }

    fn u16(self, at: usize) -> Option<u16> {
        self.info.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
    }

    fn u32(self, at: usize) -> Option<u32> {
        self.info.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
    }

    /// `struct xt_tcp`.
    fn tcp(self) -> Option<Vec<Expr>> {
        const INVERTED_FLAGS: u8 = 1 << 2;
        const INVERTED: usize = 11;
        let (option, mask, flags, inverted) = (self.u8(8)?, self.u8(9)?, self.u8(10)?, self.u8(INVERTED)?);
        only_if(option == 0)?;
        let mut exprs = self.ports(INVERTED)?;
        if mask != 0 {
            let op = if inverted & INVERTED_FLAGS == 0 { CmpOp::Eq } else { CmpOp::Ne };
            exprs.extend([
                Expr::Payload { base: PayloadBase::Transport, offset: TCP_FLAGS, len: 1, dreg: FIRST },
                Expr::Bitwise { sreg: FIRST, dreg: FIRST, mask: mask.into(), xor: 0_u8.into() },
                Expr::Cmp { op, sreg: FIRST, data: flags.into() },
            ]);
        }
        Some(exprs)
    }

    /// The ports at the start of `struct xt_tcp` and `struct xt_udp`: the first and last one of the source, and of the destination. `flags`
    /// is the offset of `invflags`.
    fn ports(self, flags: usize) -> Option<Vec<Expr>> {
        let flags = self.u8(flags)?;
        let mut exprs = Vec::new();
        for (index, field, inverted) in [(0, Field::ThSport, 1), (4, Field::ThDport, 1 << 1)] {
            let (first, last, is_in) = (self.u16(index)?, self.u16(index + 2)?, flags & inverted == 0);
            if (first, last, is_in) == (0, u16::MAX, true) {
                continue;
            }
            if first == last {
                let operand = if is_in { Operand::Is(first.into()) } else { Operand::IsNot(first.into()) };
                exprs.extend(Statement::Match(vec![field], operand).lower(Family::Inet));
            } else {
                let (first, last) = (Data::from(first), Data::from(last));
                exprs.extend(field.load(FIRST));
                exprs.push(foreign(Foreign::Range { outside: !is_in, sreg: FIRST, first, last }));
            }
        }
        Some(exprs)
    }

    /// `struct xt_conntrack_mtinfo2` and later ones, which begin alike; only the state is supported.
    fn state(self) -> Option<Vec<Expr>> {
        const MATCHED: usize = 146;
        /// `XT_CONNTRACK_STATE`, and the flag that the user wrote `-m state`.
        const STATE: u16 = 1;
        const ALIAS: u16 = 1 << 13;
        /// `XT_CONNTRACK_STATE_SNAT`, `_DNAT` and `_UNTRACKED`; the lower bits are those of nf_tables.
        const TRANSLATED: u16 = 0b11 << 6;
        const UNTRACKED: u16 = 1 << 8;
        let (matched, inverted, bits) = (self.u16(MATCHED)?, self.u16(MATCHED + 2)?, self.u16(MATCHED + 4)?);
        only_if(matched & !ALIAS == STATE)?;
        let is_in = inverted & STATE == 0;
        // nf_tables has the bits of translations in the status, and `untracked` at another place in the state.
        let (status, state) = (u32::from(bits & TRANSLATED) >> 2, u32::from(bits & 0b1111 | (bits & UNTRACKED) >> 2));
        match (state, status) {
            (_, 0) => Some(test_bits(Expr::Ct { key: CtKey::State, dreg: FIRST }, state, is_in)),
            // Without a connection a rule ends at `ct status`, and does not match when the comparison is inverted.
            (0, _) if is_in => Some(test_bits(Expr::Ct { key: CtKey::Status, dreg: FIRST }, status, true)),
            _ => None,
        }
    }

    /// `struct xt_mark_mtinfo1`.
    fn mark(self) -> Option<Vec<Expr>> {
        let (mark, mask, inverted) = (self.u32(0)?, self.u32(4)?, self.u8(8)?);
        let op = if inverted == 0 { CmpOp::Eq } else { CmpOp::Ne };
        Some(vec![
            Expr::MetaLoad { key: MetaKey::Mark, dreg: FIRST },
            Expr::Bitwise { sreg: FIRST, dreg: FIRST, mask: mask.into(), xor: 0_u32.into() },
            Expr::Cmp { op, sreg: FIRST, data: mark.into() },
        ])
    }

    /// `struct xt_addrtype_info_v1`; only one type for each address is supported, and no interface.
    fn address_types(self) -> Option<Vec<Expr>> {
        let (types, flags) = ([self.u16(0)?, self.u16(2)?], self.u32(4)?);
        only_if(flags >> 2 == 0)?;
        let mut exprs = Vec::new();
        for (index, address) in [(0, FibAddress::Source), (1, FibAddress::Destination)] {
            let types = types[index];
            only_if(types.count_ones() < 2)?;
            if types != 0 {
                let op = if flags >> index & 1 == 0 { CmpOp::Eq } else { CmpOp::Ne };
                exprs.extend([
                    Expr::Fib { address, dreg: FIRST },
                    Expr::Cmp { op, sreg: FIRST, data: types.trailing_zeros().into() },
                ]);
            }
        }
        Some(exprs)
    }

    /// `struct nf_nat_ipv4_multi_range_compat` in revision 0, `struct nf_nat_range` in 1, `struct nf_nat_range2` in 2; only one address or
    /// one port or both are supported.
    fn translation(self, family: Family, of_destination: bool) -> Option<Vec<Expr>> {
        /// `NF_NAT_RANGE_MAP_IPS`, `NF_NAT_RANGE_PROTO_SPECIFIED`; the next three only choose the source port.
        const ADDRESS: u32 = 1;
        const PORT: u32 = 1 << 1;
        const KNOWN: u32 = 0b11111;
        let (flags, address, size) = if self.revision == 0 { (4, 8, 4) } else { (0, 4, 16) };
        let (flags, ports) = (self.u32(flags)?, address + 2 * size);
        only_if(flags & !KNOWN == 0)?;
        let len = if family == Family::Ip6 { 16 } else { 4 };
        let of = |index: usize| self.info.get(address + index * size..)?.get(..len);
        let port =
            |index: usize| self.info.get(ports + index * 2..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes));
        let ip = if flags & ADDRESS == 0 { None } else { Some(only_if(of(0)? == of(1)?).and_then(|()| ip(of(0)?))?) };
        let port = if flags & PORT == 0 { None } else { Some(only_if(port(0)? == port(1)?).and_then(|()| port(0))?) };
        match (of_destination, ip, port) {
            (true, Some(ip), Some(port)) => Some(Statement::Dnat(SocketAddr::new(ip, port)).lower(family)),
            (true, Some(ip), None) => Some(Statement::DnatAddress(ip).lower(family)),
            (false, Some(ip), _) => Some(vec![
                Expr::Immediate { dreg: FIRST, data: ip.into() },
                foreign(Foreign::Nat { of_destination, family, address: Some(FIRST), port: None }),
            ]),
            _ => None,
        }
    }
}

fn foreign(foreign: Foreign) -> Expr {
    Expr::Foreign(Arc::new(foreign))
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::RuleDump;

    /// The bytes of hexadecimal digits, as a little-endian kernel has them.
    fn bytes(digits: &str) -> Vec<u8> {
        let pair = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        (0..digits.len()).step_by(2).map(pair).collect()
    }

    fn text(exprs: Vec<Expr>) -> String {
        RuleDump { exprs, comment: None }.to_nft(Family::Ip)
    }

    fn conntrack(rest: &str) -> String {
        format!("{}{rest}", "00".repeat(146))
    }

    // What iptables 1.8.9 writes for the options in the first column.
    #[test]
    #[cfg(target_endian = "little")]
    fn matches_of_iptables_are_conditions_of_nf_tables() {
        for (name, revision, info, expected) in [
            ("tcp", 0, "01006400500050000000000200000000".to_owned(), "th sport 1-100 th dport != 80"),
            (
                "tcp",
                0,
                "0000ffff500050000017020000000000".to_owned(),
                "th dport 80 [ payload load 1b @ transport header + 13 => reg 1 ] [ bitwise reg 1 = ( reg 1 & 0x00000017 ) ^ 0x00000000 ] \
                 [ cmp eq reg 1 0x00000002 ]",
            ),
            ("udp", 0, "0000ffff350035000000000000000000".to_owned(), "th dport 53"),
            ("conntrack", 3, conntrack("010000000600"), "ct state established,related"),
            ("conntrack", 3, conntrack("012000000800"), "ct state new"),
            ("conntrack", 3, conntrack("010000008000"), "ct status dnat"),
            ("conntrack", 3, conntrack("010001008600"), "[ match name conntrack ]"),
            (
                "mark",
                1,
                "00800000008000000000000000000000".to_owned(),
                "[ meta load mark => reg 1 ] [ bitwise reg 1 = ( reg 1 & 0x00008000 ) ^ 0x00000000 ] [ cmp eq reg 1 0x00008000 ]",
            ),
            ("addrtype", 1, "0000040000000000".to_owned(), "fib daddr type local"),
            ("addrtype", 1, "00000c0000000000".to_owned(), "[ match name addrtype ]"),
            ("comment", 0, "6869".to_owned(), "comment"),
            ("limit", 0, String::new(), "[ match name limit ]"),
        ] {
            let info = bytes(&info);
            let found = text(Extension { name, revision, info: &info }.matching());
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn data_that_ends_early_has_no_form() {
        for (name, revision) in [("tcp", 0), ("udp", 0), ("conntrack", 3), ("mark", 1), ("addrtype", 1)] {
            let cut = Extension { name, revision, info: &[0; 3] };
            assert_eq!(text(cut.matching()), format!("[ match name {name} ]"));
        }
        for (name, revision) in [("DNAT", 2), ("SNAT", 0), ("MARK", 2), ("CT", 2)] {
            let cut = Extension { name, revision, info: &[] };
            assert_eq!(text(cut.target(Family::Ip)), format!("[ target name {name} ]"));
        }
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn targets_of_iptables_are_statements_of_nf_tables() {
        let range = "03000000c0000203000000000000000000000000c0000203000000000000000000000000270f270f0000000000000000";
        let ports = "03000000c0000203000000000000000000000000c0000203000000000000000000000000270f27100000000000000000";
        let address =
            "01000000c0000203000000000000000000000000c0000203000000000000000000000000000000000000000000000000";
        for (name, revision, info, expected, effects) in [
            ("DNAT", 2, range, "dnat to 192.0.2.3:9999", [false, true, false]),
            ("DNAT", 2, address, "dnat to 192.0.2.3", [false, true, false]),
            ("DNAT", 2, ports, "[ target name DNAT ]", [false, true, false]),
            (
                "MASQUERADE",
                0,
                "010000001000000000000000000000000000000000000000",
                "masquerade fully-random",
                [false; 3],
            ),
            ("REJECT", 0, "0300000000000000", "reject", [true, false, false]),
            ("REJECT", 0, "0700000000000000", "reject with tcp reset", [true, false, false]),
            ("MARK", 2, "0040000000400000", "meta mark set meta mark | 0x00004000", [false; 3]),
            ("CT", 2, "0300", "notrack", [false, false, true]),
            ("CT", 2, "0000", "[ target name CT ]", [false; 3]),
            ("LOG", 0, "0400", "[ target name LOG ]", [false; 3]),
        ] {
            let info = bytes(info);
            let target = Extension { name, revision, info: &info };
            assert_eq!(text(target.target(Family::Ip)), expected, "{name}");
            let Effects { drops, translates, untracks } = target.effects();
            assert_eq!([drops, translates, untracks], effects, "{name}");
        }
    }
}
