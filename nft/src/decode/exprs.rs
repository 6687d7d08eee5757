//! Expressions. The attribute numbers are those of `linux/netfilter/nf_tables.h`.

use std::sync::Arc;

use super::DecodeError;
use super::elements::{data, verdict};
use crate::data::Data;
use crate::expr::{
    CmpOp, CtKey, DynsetOp, Expr, FibAddress, LookupResult, MetaKey, NatType, PayloadBase, Register, RejectWith,
};
use crate::object::Family;
use crate::wire::{Attr, Attrs};

/// One expression of a rule. One that this crate cannot express is [`Expr::Unknown`].
pub(super) fn expr(item: Attr<'_>) -> Result<Expr, DecodeError> {
    let name = item.nested().find(1).and_then(|attr| attr.str()).ok_or(DecodeError::new("rule", "expression name"))?;
    let attrs = Attributes(item.nested().find(2).map_or(Attrs::new(&[]), |attr| attr.nested()));
    Ok(known(name, attrs).unwrap_or_else(|| Expr::Unknown(name.into())))
}

fn known(name: &str, a: Attributes<'_>) -> Option<Expr> {
    match name {
        "payload" => a.payload(),
        "meta" => a.meta(),
        "ct" => a.ct(),
        "fib" => a.fib(),
        "cmp" => Some(Expr::Cmp { op: cmp_op(a.u32(2)?)?, sreg: a.register(1)?, data: a.data(3)? }),
        "bitwise" => a.bitwise(),
        "immediate" => a.immediate(),
        "lookup" => a.lookup(),
        "numgen" => a.numgen(),
        "hash" => a.hash(),
        "dynset" => a.dynset(),
        "nat" => a.nat(),
        "masq" => a.plain_masquerade(),
        "reject" => a.reject(),
        "counter" => Some(Expr::Counter),
        _ => None,
    }
}

fn cmp_op(number: u32) -> Option<CmpOp> {
    match number {
        0 => Some(CmpOp::Eq),
        1 => Some(CmpOp::Ne),
        _ => None,
    }
}

fn meta_key(number: u32) -> Option<MetaKey> {
    match number {
        3 => Some(MetaKey::Mark),
        6 => Some(MetaKey::IifName),
        7 => Some(MetaKey::OifName),
        15 => Some(MetaKey::NfProto),
        16 => Some(MetaKey::L4Proto),
        _ => None,
    }
}

/// The attributes of one expression. A method gives `None` when the expression says something that [`Expr`] cannot.
#[derive(Clone, Copy)]
struct Attributes<'a>(Attrs<'a>);

impl Attributes<'_> {
    fn u32(&self, kind: u16) -> Option<u32> {
        self.0.find(kind)?.u32()
    }

    fn register(&self, kind: u16) -> Option<Register> {
        Register::from_wire(self.u32(kind)?)
    }

    fn data(&self, kind: u16) -> Option<Data> {
        data(self.0.find(kind)?)
    }

    fn str(&self, kind: u16) -> Option<Arc<str>> {
        self.0.find(kind)?.str().map(Arc::from)
    }

    fn payload(&self) -> Option<Expr> {
        let base = match self.u32(2)? {
            1 => PayloadBase::Network,
            2 => PayloadBase::Transport,
            _ => return None,
        };
        Some(Expr::Payload { base, offset: self.u32(3)?, len: self.u32(4)?, dreg: self.register(1)? })
    }

    fn meta(&self) -> Option<Expr> {
        let key = meta_key(self.u32(2)?)?;
        match self.register(1) {
            Some(dreg) => Some(Expr::MetaLoad { key, dreg }),
            None => Some(Expr::MetaSet { key, sreg: self.register(3)? }),
        }
    }

    fn ct(&self) -> Option<Expr> {
        const ORIGINAL: u8 = 0;
        let direction = self.0.find(3).and_then(|attr| attr.u8());
        let key = match (self.u32(2)?, direction) {
            (0, None) => CtKey::State,
            (2, None) => CtKey::Status,
            (3, None) => CtKey::Mark,
            (12, Some(ORIGINAL)) => CtKey::OriginalDstPort,
            (20, Some(ORIGINAL)) => CtKey::OriginalDstIpv4,
            (22, Some(ORIGINAL)) => CtKey::OriginalDstIpv6,
            _ => return None,
        };
        Some(Expr::Ct { key, dreg: self.register(1)? })
    }

    fn fib(&self) -> Option<Expr> {
        const ADDRESS_TYPE: u32 = 3;
        let address = match (self.u32(2)?, self.u32(3)?) {
            (ADDRESS_TYPE, 1) => FibAddress::Source,
            (ADDRESS_TYPE, 2) => FibAddress::Destination,
            _ => return None,
        };
        Some(Expr::Fib { address, dreg: self.register(1)? })
    }

    fn bitwise(&self) -> Option<Expr> {
        const BOOLEAN: u32 = 0;
        if self.u32(6).unwrap_or(BOOLEAN) != BOOLEAN {
            return None;
        }
        let (sreg, dreg) = (self.register(1)?, self.register(2)?);
        Some(Expr::Bitwise { sreg, dreg, mask: self.data(4)?, xor: self.data(5)? })
    }

    fn immediate(&self) -> Option<Expr> {
        let value = self.0.find(2)?;
        match self.register(1) {
            Some(dreg) => Some(Expr::Immediate { dreg, data: data(value)? }),
            None => verdict(value).map(Expr::ImmediateVerdict),
        }
    }

    fn lookup(&self) -> Option<Expr> {
        const REG_VERDICT: u32 = 0;
        let result = match (self.u32(3), self.u32(5).unwrap_or_default()) {
            (None, 0) => LookupResult::Member,
            (None, 1) => LookupResult::NotMember,
            (Some(REG_VERDICT), 0) => LookupResult::Verdict,
            (Some(register), 0) => LookupResult::Load(Register::from_wire(register)?),
            _ => return None,
        };
        Some(Expr::Lookup { set: self.str(1)?, sreg: self.register(2)?, result })
    }

    fn numgen(&self) -> Option<Expr> {
        if self.u32(4).unwrap_or_default() != 0 {
            return None;
        }
        Some(Expr::Numgen { dreg: self.register(1)?, modulus: self.u32(2)?, random: self.u32(3)? == 1 })
    }

    fn hash(&self) -> Option<Expr> {
        const JENKINS: u32 = 0;
        if self.u32(7).unwrap_or(JENKINS) != JENKINS || self.u32(6).unwrap_or_default() != 0 {
            return None;
        }
        let seed = self.u32(5).unwrap_or_default();
        let (sreg, dreg) = (self.register(1)?, self.register(2)?);
        Some(Expr::Jhash { sreg, dreg, len: self.u32(3)?, modulus: self.u32(4)?, seed })
    }

    fn dynset(&self) -> Option<Expr> {
        let op = match self.u32(3)? {
            0 => DynsetOp::Add,
            1 => DynsetOp::Update,
            _ => return None,
        };
        let timeout_ms = self.0.find(6).and_then(|attr| attr.u64()).filter(|ms| *ms > 0);
        Some(Expr::Dynset { set: self.str(1)?, op, key: self.register(4)?, data: self.register(5), timeout_ms })
    }

    fn nat(&self) -> Option<Expr> {
        // The kernel sets these two itself, for the registers that are given.
        const MAPS_ADDRESS: u32 = 1;
        const MAPS_PORT: u32 = 1 << 1;
        let kind = match self.u32(1)? {
            0 => NatType::Source,
            1 => NatType::Destination,
            _ => return None,
        };
        let family = match self.u32(2)? {
            2 => Family::Ip,
            10 => Family::Ip6,
            _ => return None,
        };
        // Ranges of addresses or ports are not ours; without a range the kernel repeats the lower end.
        let is_range = |min, max| self.u32(max).is_some_and(|upper| self.u32(min) != Some(upper));
        if is_range(3, 4) || is_range(5, 6) {
            return None;
        }
        let flags = self.u32(7).unwrap_or_default() & !(MAPS_ADDRESS | MAPS_PORT);
        Some(Expr::Nat { kind, family, address: self.register(3)?, port: self.register(5), flags })
    }

    fn plain_masquerade(&self) -> Option<Expr> {
        let to_ports = self.0.find(2).is_some() || self.0.find(3).is_some();
        (!to_ports).then(|| Expr::Masquerade { flags: self.u32(1).unwrap_or_default() })
    }

    fn reject(&self) -> Option<Expr> {
        let code = self.0.find(2).and_then(|attr| attr.u8()).unwrap_or_default();
        match self.u32(1)? {
            0 => Some(Expr::Reject(RejectWith::Icmp(code))),
            1 => Some(Expr::Reject(RejectWith::TcpReset)),
            2 => Some(Expr::Reject(RejectWith::Icmpx(code))),
            _ => None,
        }
    }
}
