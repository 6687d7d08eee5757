//! Turns the expressions of a rule back into nft statements: the inverse of `Statement::lower`.
//!
//! Gives statements and, where no statement of this crate begins, the expression itself. The kinds of the first expressions suggest a
//! statement. The suggested statement is accepted only if lowering it gives exactly these expressions, so a statement is never a guess.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crate::data::Data;
use crate::expr::{CmpOp, CtKey, Expr, LookupResult, MetaKey, Register, RejectWith};
use crate::field::{Field, Hashed};
use crate::object::{Rule, RuleDump};
use crate::statement::{CtBit, Operand, Statement};
use crate::table::Family;

/// A part of a rule that the kernel listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// A statement.
    Statement(Statement),
    /// An expression that no statement of this crate begins with, by its index in the rule.
    Expr(usize),
}

impl RuleDump {
    /// The statements of the rule, and the expressions that belong to no statement; each part with the number of its expressions.
    #[must_use]
    pub fn parts(&self, family: Family) -> Vec<(Part, usize)> {
        let mut parts = Vec::new();
        let mut at = 0;
        while at < self.exprs.len() {
            let (part, len) = self.part(at, family);
            parts.push((part, len));
            at += len;
        }
        parts
    }

    /// The part that begins with expression number `at`, and the number of its expressions.
    pub(crate) fn part(&self, at: usize, family: Family) -> (Part, usize) {
        let found = statement(&self.exprs[at..], family);
        found.map_or((Part::Expr(at), 1), |(statement, len)| (Part::Statement(statement), len))
    }

    /// The rule as nft statements; `None` when it has an expression that belongs to no statement of this crate.
    #[must_use]
    pub fn to_rule(&self, family: Family) -> Option<Rule> {
        let statements = self.parts(family).into_iter().map(|(part, _)| match part {
            Part::Statement(statement) => Some(statement),
            Part::Expr(_) => None,
        });
        Some(Rule { statements: statements.collect::<Option<_>>()?, comment: self.comment.clone() })
    }
}

/// The statement at the start of the expressions, and the number of its expressions.
fn statement(exprs: &[Expr], family: Family) -> Option<(Statement, usize)> {
    let is_it =
        |(statement, len): &(Statement, usize)| exprs.get(..*len).is_some_and(|exprs| statement.lower(family) == exprs);
    of_shape(exprs).into_iter().chain(with_fields(exprs)).find(is_it)
}

/// The statement that the kinds of the first expressions suggest, and the number of its expressions. The caller checks it.
fn of_shape(exprs: &[Expr]) -> Option<(Statement, usize)> {
    let bits = |mask: &Data| mask.as_slice().try_into().ok().map(u32::from_ne_bytes);
    Some(match exprs {
        [Expr::Counter, ..] => (Statement::Counter, 1),
        [Expr::Limit { per_second, burst }, ..] => (Statement::LimitRate { per_second: *per_second, burst: *burst }, 1),
        [Expr::Immediate { .. }, Expr::MetaSet { key: MetaKey::Trace, .. }, ..] => (Statement::Trace, 2),
        [Expr::ImmediateVerdict(verdict), ..] => (Statement::Verdict(verdict.clone()), 1),
        [Expr::Masquerade { .. }, ..] => (Statement::MasqueradeFullyRandom, 1),
        [Expr::Reject(RejectWith::TcpReset), ..] => (Statement::RejectTcp, 1),
        [Expr::Reject(_), ..] => (Statement::Reject, 1),
        [Expr::FlowOffload(flowtable), ..] => (Statement::FlowAdd(flowtable.clone()), 1),
        [Expr::Fib { address, .. }, ..] => (Statement::FibLocal(*address), 2),
        [Expr::Ct { key: CtKey::Packets, .. }, _, Expr::Cmp { data, .. }, ..] => {
            (Statement::CtPacketsOver(u64::from_be_bytes(data.as_slice().try_into().ok()?)), 3)
        }
        [Expr::Ct { key, .. }, Expr::Bitwise { mask, .. }, _, ..] => {
            let mask = bits(mask)?;
            (Statement::CtBit(CtBit::ALL.into_iter().find(|bit| bit.parts() == (*key, mask))?), 3)
        }
        [Expr::MetaLoad { key: MetaKey::L4Proto, .. }, Expr::Cmp { .. }, Expr::Payload { len: 1, .. }, ..] => {
            (Statement::EchoRequest, 4)
        }
        [Expr::MetaLoad { key: MetaKey::Mark, .. }, Expr::Bitwise { mask, .. }, Expr::Cmp { op, .. }, ..] => {
            (Statement::MarkBits { mask: bits(mask)?, set: *op == CmpOp::Ne }, 3)
        }
        [Expr::MetaLoad { key: MetaKey::Mark, .. }, Expr::Bitwise { mask, xor, .. }, Expr::MetaSet { .. }, ..] => {
            match bits(xor)? {
                0 => (Statement::ClearMarkBits(!bits(mask)?), 3),
                set => (Statement::SetMarkBits(set), 3),
            }
        }
        [Expr::Immediate { data: address, .. }, Expr::Immediate { data: port, .. }, Expr::Nat { .. }, ..] => {
            (Statement::Dnat(SocketAddr::new(ip(address)?, self::port(port)?)), 3)
        }
        [Expr::Immediate { data, .. }, Expr::Nat { .. }, ..] => (Statement::DnatAddress(ip(data)?), 2),
        _ => return None,
    })
}

/// Possible statements that begin with loading fields, each with the number of its expressions. The caller checks them.
fn with_fields(exprs: &[Expr]) -> Vec<(Statement, usize)> {
    let (fields, count) = fields(exprs);
    let Some(next) = exprs.get(count).filter(|_| count > 0) else { return Vec::new() };
    let matched = |operand, len| vec![(Statement::Match(fields.clone(), operand), count + len)];
    match (next, exprs.get(count + 1)) {
        (Expr::Cmp { op, data, .. }, _) => {
            operands(&fields, *op, data, None).into_iter().flat_map(|operand| matched(operand, 1)).collect()
        }
        (Expr::Bitwise { mask, .. }, Some(Expr::Cmp { op, data, .. })) => {
            operands(&fields, *op, data, Some(mask)).into_iter().flat_map(|operand| matched(operand, 2)).collect()
        }
        (Expr::Lookup { set, result, .. }, behind) => match result {
            LookupResult::Member => matched(Operand::InSet(set.clone()), 1),
            LookupResult::NotMember => matched(Operand::NotInSet(set.clone()), 1),
            LookupResult::Verdict => vec![(Statement::Vmap(fields, set.clone()), count + 1)],
            LookupResult::Load(_) => match behind {
                Some(Expr::Immediate { data, .. }) => port(data)
                    .map(|port| (Statement::DnatToMapAndPort(fields, set.clone(), port), count + 3))
                    .into_iter()
                    .collect(),
                _ => vec![(Statement::DnatToMap(fields, set.clone()), count + 2)],
            },
        },
        (Expr::Dynset { set, timeout_ms, .. }, _) => {
            let update = |split| Statement::Update {
                set: set.clone(),
                key: fields[..split].to_vec(),
                value: fields[split..].to_vec(),
                timeout: timeout_ms.map(Duration::from_millis),
            };
            (1..=fields.len()).map(|split| (update(split), count + 1)).collect()
        }
        _ => Vec::new(),
    }
}

/// The possible right sides of a comparison with `data`, before which the fields were masked with `mask`, if there is one.
fn operands(fields: &[Field], op: CmpOp, data: &Data, mask: Option<&Data>) -> Vec<Operand> {
    let is_equal = match op {
        CmpOp::Eq => true,
        CmpOp::Ne => false,
        CmpOp::Gt => return Vec::new(),
    };
    if let Some(mask) = mask {
        let len = u8::try_from(mask.as_slice().iter().map(|byte| byte.count_ones()).sum::<u32>()).unwrap_or(u8::MAX);
        let prefix = if is_equal { Operand::InPrefix } else { Operand::NotInPrefix };
        return ip(data).map(|address| prefix(address, len)).into_iter().collect();
    }
    if fields == [Field::IifName] && data.len() < Field::IifName.data_type().size() {
        let Ok(start) = std::str::from_utf8(data.as_slice()) else { return Vec::new() };
        return vec![if is_equal { Operand::StartsWith(start.into()) } else { Operand::StartsNotWith(start.into()) }];
    }
    vec![if is_equal { Operand::Is(*data) } else { Operand::IsNot(*data) }]
}

/// The fields that the first expressions load, and the number of these expressions.
fn fields(exprs: &[Expr]) -> (Vec<Field>, usize) {
    let (mut fields, mut count) = (Vec::new(), 0);
    while let Some((field, len)) = hash(&exprs[count..]).or_else(|| Some((field(exprs.get(count)?)?, 1))) {
        fields.push(field);
        count += len;
    }
    (fields, count)
}

/// The hash that the first expressions compute, and the number of these expressions.
fn hash(exprs: &[Expr]) -> Option<(Field, usize)> {
    let at = exprs.iter().take(3).position(|expr| matches!(expr, Expr::Jhash { .. }))?;
    let Expr::Jhash { sreg, modulus, seed, offset, .. } = &exprs[at] else { return None };
    let hashed = Hashed::ALL.into_iter().find(|hashed| hashed.load(*sreg) == exprs[..at])?;
    Some((Field::Jhash { hashed, modulus: *modulus, seed: *seed, offset: *offset }, at + 1))
}

/// The field that an expression loads.
fn field(expr: &Expr) -> Option<Field> {
    const FIXED: [Field; 12] = [
        Field::IpSaddr,
        Field::IpDaddr,
        Field::Ip6Saddr,
        Field::Ip6Daddr,
        Field::L4Proto,
        Field::ThSport,
        Field::ThDport,
        Field::Mark,
        Field::IifName,
        Field::CtOriginalIpDaddr,
        Field::CtOriginalIp6Daddr,
        Field::CtOriginalProtoDst,
    ];
    let dreg: Register = match expr {
        Expr::Numgen { modulus, .. } => return Some(Field::NumgenRandom(*modulus)),
        Expr::Payload { dreg, .. } | Expr::MetaLoad { dreg, .. } | Expr::Ct { dreg, .. } => *dreg,
        _ => return None,
    };
    FIXED.into_iter().find(|field| field.load(dreg) == std::slice::from_ref(expr))
}

fn ip(data: &Data) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(data.as_slice()).map(IpAddr::from);
    v4.ok().or_else(|| <[u8; 16]>::try_from(data.as_slice()).ok().map(|bytes| Ipv6Addr::from(bytes).into()))
}

fn port(data: &Data) -> Option<u16> {
    data.as_slice().try_into().ok().map(u16::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Verdict;
    use crate::expr::FibAddress;

    fn statements() -> Vec<Statement> {
        let frontend = vec![Field::IpDaddr, Field::L4Proto, Field::ThDport];
        let slot = frontend.iter().copied().chain([Field::NumgenRandom(3)]).collect();
        let of_client = Field::Jhash { hashed: Hashed::IpSource, modulus: 3, seed: 7, offset: 0 };
        let hashed =
            [&frontend[..], &[Field::Jhash { hashed: Hashed::IpSourceAndPort, modulus: 5, seed: 9, offset: 8 }]]
                .concat();
        let network = IpAddr::from([10, 0, 0, 0]);
        vec![
            Statement::Match(vec![Field::IpSaddr], Operand::NotInPrefix(network, 8)),
            Statement::Match(vec![Field::L4Proto], Operand::Is(Data::from(6_u8))),
            Statement::Match(vec![Field::ThDport], Operand::IsNot(Data::from(80_u16))),
            Statement::Match(vec![Field::IpSaddr, Field::ThSport], Operand::InSet("local".into())),
            Statement::EchoRequest,
            Statement::Match(vec![Field::IifName], Operand::StartsNotWith("cali".into())),
            Statement::Match(frontend.clone(), Operand::InSet("restricted".into())),
            Statement::Match(vec![Field::IpDaddr], Operand::NotInSet("others".into())),
            Statement::FibLocal(FibAddress::Source),
            Statement::FibLocal(FibAddress::Destination),
            Statement::CtBit(CtBit::StateNew),
            Statement::CtBit(CtBit::StatusDnat),
            Statement::CtPacketsOver(16),
            Statement::MarkBits { mask: 0x4000, set: true },
            Statement::MarkBits { mask: 0x4000, set: false },
            Statement::SetMarkBits(0x4000),
            Statement::ClearMarkBits(0x4000),
            Statement::Vmap(frontend, "services".into()),
            Statement::DnatToMap(slot, "endpoints".into()),
            Statement::DnatToMap(hashed, "endpoints".into()),
            Statement::Vmap(vec![of_client], "choice".into()),
            Statement::DnatToMapAndPort(vec![Field::IpSaddr], "affinity".into(), 8080),
            Statement::Dnat("10.0.0.1:80".parse().unwrap()),
            Statement::DnatAddress([10, 0, 0, 1].into()),
            Statement::MasqueradeFullyRandom,
            Statement::Reject,
            Statement::RejectTcp,
            Statement::Update {
                set: "affinity".into(),
                key: vec![Field::IpSaddr],
                value: vec![Field::IpDaddr],
                timeout: Some(Duration::from_secs(5)),
            },
            Statement::Counter,
            Statement::FlowAdd("fastpath".into()),
            Statement::Verdict(Verdict::Goto("lb-2".into())),
        ]
    }

    #[test]
    fn each_statement_is_found_again_alone_and_behind_others() {
        for statement in statements() {
            let rule = Rule::new([statement]);
            assert_eq!(rule.to_dump(Family::Ip).to_rule(Family::Ip), Some(rule));
        }
        // A comparison with a whole address is `Operand::Is` or, as here, `Operand::InPrefix` with the full length. Both operands give the
        // same text and the same expressions.
        let whole = Statement::Match(vec![Field::IpSaddr], Operand::InPrefix([10, 0, 0, 1].into(), 32));
        let all = Rule { comment: Some("c".into()), ..Rule::new([statements(), vec![whole]].concat()) };
        let raised = all.to_dump(Family::Ip).to_rule(Family::Ip).unwrap();
        assert_eq!(raised.to_string(), all.to_string());
    }

    #[test]
    fn what_is_no_statement_stays_an_expression() {
        let mut dump = Rule::new([Statement::Counter, Statement::Reject]).to_dump(Family::Ip);
        dump.exprs.insert(1, Expr::Unknown("limit".into()));
        let parts: Vec<Part> = dump.parts(Family::Ip).into_iter().map(|(part, _)| part).collect();
        let [counter, reject] = [Statement::Counter, Statement::Reject].map(Part::Statement);
        assert_eq!(parts, [counter, Part::Expr(1), reject]);
        assert_eq!(dump.to_rule(Family::Ip), None);
    }
}
