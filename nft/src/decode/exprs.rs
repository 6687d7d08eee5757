//! Decodes the expressions of rules.

use std::sync::Arc;

use super::decoded::{Count, name, value};
use super::extension::Extension;
use super::foreign::foreign;
use super::reader::{Reader, only_if};
use crate::data::Value;
use crate::expr::{CmpOp, CtKey, Expr, FibAddress, LookupResult, MetaKey, PayloadBase, Register, RejectWith};
use crate::table::Family;
use crate::wire::Attrs;

/// One expression; `None` when it has no name. An expression that this crate cannot express is [`Expr::Unknown`].
pub(super) fn expr(attrs: Attrs<'_>) -> Option<Expr> {
    const NAME: u16 = 1;
    const DATA: u16 = 2;
    let name: Arc<str> = attrs.find(NAME)?.str()?.into();
    let data = attrs.find(DATA).map_or(Attrs::new(&[]), |data| data.nested());
    let foreign = || foreign(&name, Reader(data)).map(|foreign| Expr::Foreign(Arc::new(foreign)));
    Some(known(&name, data).or_else(foreign).unwrap_or(Expr::Unknown(name)))
}

/// The expressions of a rule; `None` when one has no name. Matches and targets of iptables-nft become other expressions, if there are any
/// that stand for them.
pub(super) fn exprs<'a>(family: Family, list: impl Iterator<Item = Attrs<'a>>) -> Option<Vec<Expr>> {
    const NAME: u16 = 1;
    const DATA: u16 = 2;
    let mut exprs = Vec::new();
    for attrs in list {
        let extension = || Extension::read(attrs.find(DATA)?.nested());
        match (attrs.find(NAME)?.str()?, extension) {
            ("match", extension) if let Some(found) = extension() => exprs.extend(found.matching()),
            ("target", extension) if let Some(found) = extension() => exprs.extend(found.target(family)),
            _ => exprs.push(expr(attrs)?),
        }
    }
    Some(exprs)
}

/// The count of a `counter` expression; `None` for any other expression.
pub(super) fn counted(attrs: Attrs<'_>) -> Option<Count> {
    const NAME: u16 = 1;
    const DATA: u16 = 2;
    const BYTES: u16 = 1;
    const PACKETS: u16 = 2;
    let data =
        attrs.find(DATA).filter(|_| attrs.find(NAME).is_some_and(|name| name.str() == Some("counter")))?.nested();
    Some(Count { packets: data.find(PACKETS)?.u64()?, bytes: data.find(BYTES)?.u64()? })
}

fn known(name: &str, attrs: Attrs<'_>) -> Option<Expr> {
    let a = Reader(attrs);
    match name {
        "payload" => payload(a),
        "meta" => meta(a),
        "ct" => ct(a),
        "fib" => fib(a),
        "cmp" => cmp(a),
        "bitwise" => bitwise(a),
        "byteorder" => byteorder(a),
        "immediate" => immediate(a),
        "lookup" => lookup(a),
        "numgen" => numgen(a),
        "hash" => jhash(a),
        "dynset" => dynset(a),
        "nat" => nat(a),
        "masq" => masquerade(a),
        "reject" => reject(a),
        "counter" => Some(Expr::Counter),
        "limit" => limit(a),
        "flow_offload" => name_of_flowtable(a).map(Expr::FlowOffload),
        _ => None,
    }
}

fn payload(a: Reader<'_>) -> Option<Expr> {
    let number = a.number(2)?;
    let base = PayloadBase::ALL.into_iter().find(|base| base.number() == number)?;
    Some(Expr::Payload { base, offset: a.number(3)?, len: a.number(4)?, dreg: a.register(1)? })
}

fn meta(a: Reader<'_>) -> Option<Expr> {
    const SREG: u16 = 3;
    let number = a.number(2)?;
    let key = MetaKey::ALL.into_iter().find(|key| key.number() == number)?;
    Some(if a.has(SREG) {
        Expr::MetaSet { key, sreg: a.register(SREG)? }
    } else {
        Expr::MetaLoad { key, dreg: a.register(1)? }
    })
}

fn ct(a: Reader<'_>) -> Option<Expr> {
    const DIRECTION: u16 = 3;
    const ORIGINAL: u8 = 0;
    let (number, directed) = (a.number(2)?, a.has(DIRECTION));
    only_if(!directed || a.0.find(DIRECTION)?.u8()? == ORIGINAL)?;
    let key = CtKey::ALL.into_iter().find(|key| key.number() == (number, directed))?;
    Some(Expr::Ct { key, dreg: a.register(1)? })
}

fn fib(a: Reader<'_>) -> Option<Expr> {
    const ADDRESS_TYPE: u32 = 3;
    only_if(a.number(2)? == ADDRESS_TYPE)?;
    let address = match a.number(3)? {
        1 => FibAddress::Source,
        2 => FibAddress::Destination,
        _ => return None,
    };
    Some(Expr::Fib { address, dreg: a.register(1)? })
}

fn cmp(a: Reader<'_>) -> Option<Expr> {
    let number = a.number(2)?;
    let op = CmpOp::ALL.into_iter().find(|op| op.number() == number)?;
    Some(Expr::Cmp { op, sreg: a.register(1)?, data: a.data(3)? })
}

fn bitwise(a: Reader<'_>) -> Option<Expr> {
    const MASK_XOR: u32 = 0;
    only_if(a.number_or_zero(6)? == MASK_XOR)?;
    Some(Expr::Bitwise { sreg: a.register(1)?, dreg: a.register(2)?, mask: a.data(4)?, xor: a.data(5)? })
}

/// Expression `byteorder`; only `hton` of one number is supported, because this crate sends no other.
fn byteorder(a: Reader<'_>) -> Option<Expr> {
    const HTON: u32 = 1;
    let len = a.number(4)?;
    only_if(a.number(3)? == HTON && a.number(5)? == len)?;
    Some(Expr::HostToNetwork { sreg: a.register(1)?, dreg: a.register(2)?, len })
}

/// Expression `limit`; only a limit in packets a second, not inverted, is supported, because this crate sends no other.
fn limit(a: Reader<'_>) -> Option<Expr> {
    const PACKETS: u32 = 0;
    const SECOND: u64 = 1;
    only_if(a.0.find(2)?.u64()? == SECOND && a.number_or_zero(4)? == PACKETS && a.number_or_zero(5)? == 0)?;
    Some(Expr::Limit { per_second: a.0.find(1)?.u64()?, burst: a.number_or_zero(3)? })
}

fn name_of_flowtable(a: Reader<'_>) -> Option<Arc<str>> {
    const TABLE_NAME: u16 = 1;
    name(a.0.find(TABLE_NAME))
}

fn immediate(a: Reader<'_>) -> Option<Expr> {
    match value(a.0.find(2)?)? {
        Value::Data(data) => Some(Expr::Immediate { dreg: a.register(1)?, data }),
        Value::Verdict(verdict) => Some(Expr::ImmediateVerdict(verdict)),
        Value::None => None,
    }
}

fn lookup(a: Reader<'_>) -> Option<Expr> {
    const DREG: u16 = 3;
    const VERDICT_REGISTER: u32 = 0;
    const INVERTED: u32 = 1;
    let dreg = if a.has(DREG) { Some(a.number(DREG)?) } else { None };
    let result = match (dreg, a.number_or_zero(5)?) {
        (None, 0) => LookupResult::Member,
        (None, INVERTED) => LookupResult::NotMember,
        (Some(VERDICT_REGISTER), 0) => LookupResult::Verdict,
        (Some(dreg), 0) => LookupResult::Load(Register::from_wire(dreg)?),
        _ => return None,
    };
    Some(Expr::Lookup { set: name(a.0.find(1))?, sreg: a.register(2)?, result })
}

fn numgen(a: Reader<'_>) -> Option<Expr> {
    const OFFSET: u16 = 4;
    const RANDOM: u32 = 1;
    only_if(a.number_or_zero(OFFSET)? == 0 && a.number(3)? == RANDOM)?;
    Some(Expr::Numgen { dreg: a.register(1)?, modulus: a.number(2)? })
}

/// Expression `hash`; only `jhash` with a given seed is supported, because the kernel does not list a seed that it chose itself.
fn jhash(a: Reader<'_>) -> Option<Expr> {
    const JENKINS: u32 = 0;
    only_if(a.number_or_zero(7)? == JENKINS)?;
    Some(Expr::Jhash {
        sreg: a.register(1)?,
        dreg: a.register(2)?,
        len: a.number(3)?,
        modulus: a.number(4)?,
        seed: a.number(5)?,
        offset: a.number_or_zero(6)?,
    })
}

fn dynset(a: Reader<'_>) -> Option<Expr> {
    const FLAGS: u16 = 9;
    const EXPRESSION: u16 = 7;
    const EXPRESSIONS: u16 = 10;
    const UPDATE: u32 = 1;
    only_if(a.number(3)? == UPDATE && a.number_or_zero(FLAGS)? == 0)?;
    only_if(!a.has(EXPRESSION) && !a.has(EXPRESSIONS))?;
    Some(Expr::Dynset {
        set: name(a.0.find(1))?,
        key: a.register(4)?,
        data: a.optional_register(5)?,
        timeout_ms: a.0.find(6).and_then(|attr| attr.u64()).filter(|timeout| *timeout != 0),
    })
}

/// Expression `nat`; only DNAT to one address, and to one port or none, is supported. A maximum in another register than the minimum means
/// a range.
fn nat(a: Reader<'_>) -> Option<Expr> {
    const DESTINATION: u32 = 1;
    const ADDRESS: u16 = 3;
    const PORT: u16 = 5;
    const FLAGS: u16 = 7;
    /// `NF_NAT_RANGE_MAP_IPS | NF_NAT_RANGE_PROTO_SPECIFIED`: the kernel sets the first for an address, the second for a port.
    const IMPLIED: u32 = 0b11;
    let is_range = |min: u16| a.has(min + 1) && a.number(min + 1) != a.number(min);
    only_if(!is_range(ADDRESS) && !is_range(PORT))?;
    only_if(a.number(1)? == DESTINATION && a.number_or_zero(FLAGS)? & !IMPLIED == 0)?;
    let family = Family::from_number(u8::try_from(a.number(2)?).ok()?)?;
    Some(Expr::Nat { family, address: a.register(ADDRESS)?, port: a.optional_register(PORT)? })
}

fn masquerade(a: Reader<'_>) -> Option<Expr> {
    const PORT: u16 = 2;
    only_if(!a.has(PORT))?;
    Some(Expr::Masquerade { flags: a.number_or_zero(1)? })
}

fn reject(a: Reader<'_>) -> Option<Expr> {
    let code = || a.0.find(2)?.u8();
    Some(Expr::Reject(match a.number(1)? {
        0 => RejectWith::Icmp(code()?),
        1 => RejectWith::TcpReset,
        2 => RejectWith::Icmpx(code()?),
        _ => return None,
    }))
}
