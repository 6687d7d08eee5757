//! Expressions of rules, and the data and verdicts that elements hold as well.

use std::sync::Arc;

use super::family;
use super::objects::name;
use crate::data::Data;
use crate::expr::{
    CmpOp, CtKey, DynsetOp, Expr, FibAddress, LookupResult, MetaKey, NatType, PayloadBase, Register, RejectWith,
};
use crate::object::{Value, Verdict};
use crate::wire::{Attr, Attrs};

/// One expression; `None` when it has no name. What the crate cannot express is [`Expr::Unknown`].
pub(super) fn expr(attrs: Attrs<'_>) -> Option<Expr> {
    const NAME: u16 = 1;
    const DATA: u16 = 2;
    let name: Arc<str> = attrs.find(NAME)?.str()?.into();
    let data = attrs.find(DATA).map_or(Attrs::new(&[]), |data| data.nested());
    Some(known(&name, data).unwrap_or(Expr::Unknown(name)))
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
        "flow_offload" => name_of_flowtable(a).map(Expr::FlowOffload),
        _ => None,
    }
}

/// The attributes of one expression; their numbers stand in each expression's function.
#[derive(Clone, Copy)]
struct Reader<'a>(Attrs<'a>);

impl Reader<'_> {
    fn number(self, kind: u16) -> Option<u32> {
        self.0.find(kind)?.u32()
    }

    /// A number that is 0 when it is absent.
    fn number_or_zero(self, kind: u16) -> Option<u32> {
        self.0.find(kind).map_or(Some(0), |attr| attr.u32())
    }

    fn register(self, kind: u16) -> Option<Register> {
        Register::from_wire(self.number(kind)?)
    }

    /// A register that may be absent; the outer `None` is an unknown one.
    fn optional_register(self, kind: u16) -> Option<Option<Register>> {
        if self.has(kind) { self.register(kind).map(Some) } else { Some(None) }
    }

    fn data(self, kind: u16) -> Option<Data> {
        match value(self.0.find(kind)?)? {
            Value::Data(data) => Some(data),
            Value::Verdict(_) | Value::None => None,
        }
    }

    fn has(self, kind: u16) -> bool {
        self.0.find(kind).is_some()
    }
}

/// Goes on only when a condition holds.
fn only_if(condition: bool) -> Option<()> {
    condition.then_some(())
}

/// Nested data: bytes, or a verdict.
pub(super) fn value(attr: Attr<'_>) -> Option<Value> {
    const VALUE: u16 = 1;
    const VERDICT: u16 = 2;
    let attrs = attr.nested();
    match attrs.find(VALUE) {
        Some(bytes) => Data::from_bytes(bytes.payload).map(Value::Data),
        None => verdict(attrs.find(VERDICT)?).map(Value::Verdict),
    }
}

fn verdict(attr: Attr<'_>) -> Option<Verdict> {
    const CODE: u16 = 1;
    const CHAIN: u16 = 2;
    let attrs = attr.nested();
    let chain = || name(attrs.find(CHAIN));
    match attrs.find(CODE)?.u32()?.cast_signed() {
        0 => Some(Verdict::Drop),
        1 => Some(Verdict::Accept),
        -3 => chain().map(Verdict::Jump),
        -4 => chain().map(Verdict::Goto),
        -5 => Some(Verdict::Return),
        _ => None,
    }
}

fn payload(a: Reader<'_>) -> Option<Expr> {
    let base = match a.number(2)? {
        1 => PayloadBase::Network,
        2 => PayloadBase::Transport,
        _ => return None,
    };
    Some(Expr::Payload { base, offset: a.number(3)?, len: a.number(4)?, dreg: a.register(1)? })
}

fn meta(a: Reader<'_>) -> Option<Expr> {
    const SREG: u16 = 3;
    let key = match a.number(2)? {
        3 => MetaKey::Mark,
        6 => MetaKey::IifName,
        7 => MetaKey::OifName,
        15 => MetaKey::NfProto,
        16 => MetaKey::L4Proto,
        _ => return None,
    };
    Some(if a.has(SREG) {
        Expr::MetaSet { key, sreg: a.register(SREG)? }
    } else {
        Expr::MetaLoad { key, dreg: a.register(1)? }
    })
}

fn ct(a: Reader<'_>) -> Option<Expr> {
    const DIRECTION: u16 = 3;
    const ORIGINAL: u8 = 0;
    let direction = a.0.find(DIRECTION).map(|attr| attr.u8());
    let key = match (a.number(2)?, direction) {
        (0, None) => CtKey::State,
        (2, None) => CtKey::Status,
        (3, None) => CtKey::Mark,
        (14, None) => CtKey::Packets,
        (12, Some(Some(ORIGINAL))) => CtKey::OriginalDstPort,
        (20, Some(Some(ORIGINAL))) => CtKey::OriginalDstIpv4,
        (22, Some(Some(ORIGINAL))) => CtKey::OriginalDstIpv6,
        _ => return None,
    };
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
    let op = match a.number(2)? {
        0 => CmpOp::Eq,
        1 => CmpOp::Ne,
        4 => CmpOp::Gt,
        _ => return None,
    };
    Some(Expr::Cmp { op, sreg: a.register(1)?, data: a.data(3)? })
}

fn bitwise(a: Reader<'_>) -> Option<Expr> {
    const MASK_XOR: u32 = 0;
    only_if(a.number_or_zero(6)? == MASK_XOR)?;
    Some(Expr::Bitwise { sreg: a.register(1)?, dreg: a.register(2)?, mask: a.data(4)?, xor: a.data(5)? })
}

/// From host to network order, of a single number: nothing else is ours.
fn byteorder(a: Reader<'_>) -> Option<Expr> {
    const HTON: u32 = 1;
    let len = a.number(4)?;
    only_if(a.number(3)? == HTON && a.number(5)? == len)?;
    Some(Expr::HostToNetwork { sreg: a.register(1)?, dreg: a.register(2)?, len })
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
    only_if(a.number_or_zero(OFFSET)? == 0)?;
    let random = match a.number(3)? {
        0 => false,
        1 => true,
        _ => return None,
    };
    Some(Expr::Numgen { dreg: a.register(1)?, modulus: a.number(2)?, random })
}

/// Without a seed the kernel has chosen one that it does not tell, so that the hash equals no other.
fn jhash(a: Reader<'_>) -> Option<Expr> {
    const OFFSET: u16 = 6;
    const TYPE: u16 = 7;
    const JENKINS: u32 = 0;
    only_if(a.number_or_zero(OFFSET)? == 0 && a.number_or_zero(TYPE)? == JENKINS)?;
    Some(Expr::Jhash {
        sreg: a.register(1)?,
        dreg: a.register(2)?,
        len: a.number(3)?,
        modulus: a.number(4)?,
        seed: a.number(5)?,
    })
}

fn dynset(a: Reader<'_>) -> Option<Expr> {
    const FLAGS: u16 = 9;
    const EXPRESSION: u16 = 7;
    const EXPRESSIONS: u16 = 10;
    only_if(a.number_or_zero(FLAGS)? == 0 && !a.has(EXPRESSION) && !a.has(EXPRESSIONS))?;
    let op = match a.number(3)? {
        0 => DynsetOp::Add,
        1 => DynsetOp::Update,
        _ => return None,
    };
    Some(Expr::Dynset {
        set: name(a.0.find(1))?,
        op,
        key: a.register(4)?,
        data: a.optional_register(5)?,
        timeout_ms: a.0.find(6).and_then(|attr| attr.u64()).filter(|timeout| *timeout != 0),
    })
}

/// A range of addresses or ports (a maximum that is another register than the minimum) is beyond this crate.
fn nat(a: Reader<'_>) -> Option<Expr> {
    const ADDRESS: u16 = 3;
    const PORT: u16 = 5;
    /// `NF_NAT_RANGE_MAP_IPS | NF_NAT_RANGE_PROTO_SPECIFIED`, which the kernel sets by the registers that are there.
    const IMPLIED: u32 = 0b11;
    let is_range = |min: u16| a.has(min + 1) && a.number(min + 1) != a.number(min);
    only_if(!is_range(ADDRESS) && !is_range(PORT))?;
    let kind = match a.number(1)? {
        0 => NatType::Source,
        1 => NatType::Destination,
        _ => return None,
    };
    Some(Expr::Nat {
        kind,
        family: family(u8::try_from(a.number(2)?).ok()?)?,
        address: a.register(ADDRESS)?,
        port: a.optional_register(PORT)?,
        flags: a.number_or_zero(7)? & !IMPLIED,
    })
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
