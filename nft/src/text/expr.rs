//! Writes expressions in the style of `nft --debug=netlink`.

use std::fmt;

use crate::data::Data;
use crate::expr::{
    CmpOp, CtKey, Expr, FibAddress, Foreign, LookupResult, MetaKey, Order, PayloadBase, Register, RejectWith,
};
use crate::object::RuleDump;
use crate::text::words::comment;

/// Writes an expression: `[ payload load 4b @ network header + 16 => reg 1 ]`.
impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[ ")?;
        self.write_words(f)?;
        f.write_str(" ]")
    }
}

/// The expressions, one after the other, and the comment.
impl fmt::Display for RuleDump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exprs: Vec<String> = self.exprs.iter().map(Expr::to_string).collect();
        f.write_str(&exprs.join(" "))?;
        f.write_str(&comment(self.comment.as_deref()))
    }
}

impl Expr {
    fn write_words(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Payload { base, offset, len, dreg } => {
                write!(f, "payload load {len}b @ {base} header + {offset} => {dreg}")
            }
            Self::MetaLoad { key, dreg } => write!(f, "meta load {key} => {dreg}"),
            Self::MetaSet { key, sreg } => write!(f, "meta set {key} with {sreg}"),
            Self::Ct { key, dreg } => write!(f, "ct load {} => {dreg}{}", ct_name(*key), ct_direction(*key)),
            Self::Fib { address, dreg } => write!(f, "fib {address} type => {dreg}"),
            Self::Cmp { op, sreg, data } => write!(f, "cmp {op} {sreg} {}", Words(data)),
            Self::Bitwise { sreg, dreg, mask, xor } => {
                write!(f, "bitwise {dreg} = ( {sreg} & {} ) ^ {}", Words(mask), Words(xor))
            }
            Self::HostToNetwork { sreg, dreg, len } => write!(f, "byteorder {dreg} = hton({sreg}, {len}, {len})"),
            Self::Immediate { dreg, data } => write!(f, "immediate {dreg} {}", Words(data)),
            Self::ImmediateVerdict(verdict) => write!(f, "immediate reg 0 {verdict}"),
            Self::Lookup { set, sreg, result } => write_lookup(f, set, *sreg, *result),
            Self::Numgen { dreg, modulus } => write!(f, "numgen {dreg} = random mod {modulus}"),
            Self::Jhash { sreg, dreg, len, modulus, seed, offset } => {
                write!(f, "hash {dreg} = jhash({sreg}, {len}, 0x{seed:x}) % mod {modulus}")?;
                if *offset == 0 { Ok(()) } else { write!(f, " offset {offset}") }
            }
            Self::Dynset { set, key, data, timeout_ms } => write_dynset(f, set, (*key, *data), *timeout_ms),
            Self::Nat { family, address, port } => {
                write!(f, "nat dnat {family} addr_min {address}")?;
                port.map_or(Ok(()), |port| write!(f, " proto_min {port}"))
            }
            Self::Masquerade { flags } => {
                f.write_str("masq")?;
                if *flags == 0 { Ok(()) } else { write!(f, " flags 0x{flags:x}") }
            }
            Self::Reject(RejectWith::Icmp(code)) => write!(f, "reject type 0 code {code}"),
            Self::Reject(RejectWith::Icmpx(code)) => write!(f, "reject type 2 code {code}"),
            Self::Reject(RejectWith::TcpReset) => f.write_str("reject type 1"),
            Self::Counter => f.write_str("counter"),
            Self::Limit { per_second, burst } => write!(f, "limit rate {per_second}/second burst {burst} type packets"),
            Self::FlowOffload(flowtable) => write!(f, "flow add table {flowtable}"),
            Self::Foreign(foreign) => write_foreign(f, foreign),
            Self::Unknown(name) => write!(f, "{name} ?"),
        }
    }
}

fn write_foreign(f: &mut fmt::Formatter<'_>, foreign: &Foreign) -> fmt::Result {
    let optional = |name, register: Option<Register>| register.map_or_else(String::new, |r| format!(" {name} {r}"));
    match foreign {
        Foreign::Compare { order, sreg, data } => {
            let order = match order {
                Order::Less => "lt",
                Order::AtMost => "lte",
                Order::AtLeast => "gte",
            };
            write!(f, "cmp {order} {sreg} {}", Words(data))
        }
        Foreign::Range { outside, sreg, first, last } => {
            let operator = if *outside { "neq" } else { "eq" };
            write!(f, "range {operator} {sreg} {} {}", Words(first), Words(last))
        }
        Foreign::Meta { key, dreg } => write!(f, "meta load {} => {dreg}", meta_name(*key)),
        Foreign::Ct { key, dreg } => write!(f, "ct load {key} => {dreg}"),
        Foreign::SetCtMark { sreg } => write!(f, "ct set mark with {sreg}"),
        Foreign::Nat { of_destination, family, address, port } => {
            let kind = if *of_destination { "dnat" } else { "snat" };
            write!(f, "nat {kind} {family}{}{}", optional("addr_min", *address), optional("proto_min", *port))
        }
        Foreign::Redirect { port } => write!(f, "redir{}", optional("proto_min", *port)),
        Foreign::Notrack => f.write_str("notrack"),
        Foreign::Harmless(name) => f.write_str(name),
        Foreign::XtMatch(name) => write!(f, "match name {name}"),
        Foreign::XtTarget(name) => write!(f, "target name {name}"),
    }
}

/// The names that nft has for the keys which other programs use most (`enum nft_meta_keys`).
fn meta_name(key: u32) -> String {
    let name = match key {
        1 => "protocol",
        4 => "iif",
        5 => "oif",
        7 => "oifname",
        10 => "skuid",
        11 => "skgid",
        15 => "nfproto",
        19 => "pkttype",
        other => return other.to_string(),
    };
    name.to_owned()
}

fn write_lookup(f: &mut fmt::Formatter<'_>, set: &str, sreg: Register, result: LookupResult) -> fmt::Result {
    write!(f, "lookup {sreg} set {set}")?;
    match result {
        LookupResult::Member => Ok(()),
        LookupResult::NotMember => f.write_str(" 0x1"),
        LookupResult::Verdict => f.write_str(" dreg 0"),
        LookupResult::Load(dreg) => write!(f, " d{dreg}"),
    }
}

fn write_dynset(
    f: &mut fmt::Formatter<'_>,
    set: &str,
    (key, data): (Register, Option<Register>),
    timeout_ms: Option<u64>,
) -> fmt::Result {
    write!(f, "dynset update reg_key {} set {set}", key.to_wire())?;
    timeout_ms.map_or(Ok(()), |timeout| write!(f, " timeout {timeout}ms"))?;
    data.map_or(Ok(()), |data| write!(f, " sreg_data {}", data.to_wire()))
}

/// Bytes as 32-bit words in host order, as in a register.
struct Words<'a>(&'a Data);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.0.as_slice().chunks(4).map(|chunk| {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            format!("0x{:08x}", u32::from_ne_bytes(word))
        });
        f.write_str(&words.collect::<Vec<_>>().join(" "))
    }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reg {}", self.to_wire())
    }
}

impl fmt::Display for PayloadBase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Network => "network",
            Self::Transport => "transport",
        })
    }
}

impl fmt::Display for MetaKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mark => "mark",
            Self::IifName => "iifname",
            Self::L4Proto => "l4proto",
            Self::Trace => "nftrace",
        })
    }
}

const fn ct_name(key: CtKey) -> &'static str {
    match key {
        CtKey::State => "state",
        CtKey::Status => "status",
        CtKey::Packets => "packets",
        CtKey::OriginalDstIpv4 => "dst_ip",
        CtKey::OriginalDstIpv6 => "dst_ip6",
        CtKey::OriginalDstPort => "proto_dst",
    }
}

const fn ct_direction(key: CtKey) -> &'static str {
    match key {
        CtKey::OriginalDstIpv4 | CtKey::OriginalDstIpv6 | CtKey::OriginalDstPort => " , dir original",
        CtKey::State | CtKey::Status | CtKey::Packets => "",
    }
}

impl fmt::Display for FibAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Source => "saddr",
            Self::Destination => "daddr",
        })
    }
}

impl fmt::Display for CmpOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Eq => "eq",
            Self::Ne => "neq",
            Self::Gt => "gt",
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::field::Field;
    use crate::object::Rule;
    use crate::statement::Statement;
    use crate::table::Family;

    #[test]
    fn expressions_are_written_as_nft_writes_them_for_debugging() {
        let fields = vec![Field::IpDaddr, Field::L4Proto, Field::ThDport, Field::NumgenRandom(2)];
        let rule = Rule {
            statements: vec![
                Statement::MarkBits { mask: 0x4000, set: true },
                Statement::DnatToMap(fields, "endpoints".into()),
            ],
            comment: Some("c".into()),
        };
        let expected = "[ meta load mark => reg 1 ] [ bitwise reg 1 = ( reg 1 & 0x00004000 ) ^ 0x00000000 ] \
            [ cmp neq reg 1 0x00000000 ] [ payload load 4b @ network header + 16 => reg 1 ] [ meta load l4proto => reg 9 ] \
            [ payload load 2b @ transport header + 2 => reg 10 ] [ numgen reg 11 = random mod 2 ] \
            [ lookup reg 1 set endpoints dreg 1 ] [ nat dnat ip addr_min reg 1 proto_min reg 9 ] comment \"c\"";
        assert_eq!(rule.to_dump(Family::Ip).to_string(), expected);
    }
}
