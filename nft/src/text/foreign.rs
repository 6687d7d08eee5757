//! Writes nft text for expressions that are common in rules of other programs, and for which this crate has no statement.

use crate::data::Data;
use crate::datatype::DataType;
use crate::expr::{CmpOp, CtKey, Expr, Foreign, Order, PayloadBase};
use crate::text::words::{interface, interface_start};

/// The nft text of the first expressions, and the number of expressions that it stands for; `None` when this module has no text for them.
pub(super) fn words(exprs: &[Expr]) -> Option<(String, usize)> {
    match exprs {
        [Expr::Foreign(foreign), rest @ ..] => match (&**foreign, rest) {
            (Foreign::Notrack, _) => Some(("notrack".to_owned(), 1)),
            (Foreign::Harmless(name), _) => Some((name.to_string(), 1)),
            (Foreign::Meta { key, .. }, [Expr::Cmp { op, data, .. }, ..]) => {
                meta(*key, *op, data).map(|text| (text, 2))
            }
            _ => None,
        },
        [Expr::Ct { key: CtKey::State, .. }, Expr::Bitwise { mask, .. }, Expr::Cmp { op, data, .. }, ..] => {
            let is_any = *op == CmpOp::Ne && data.as_slice().iter().all(|byte| *byte == 0);
            states(mask).filter(|_| is_any).map(|names| (format!("ct state {names}"), 3))
        }
        [Expr::Payload { base: PayloadBase::Transport, offset, len: 2, .. }, compare, ..] => {
            let field = match offset {
                0 => "th sport",
                2 => "th dport",
                _ => return None,
            };
            let range = exprs.get(2).and_then(|last| between(compare, last)).map(|range| (range, 3));
            let (ports, len) = range.or_else(|| ports(compare).map(|ports| (ports, 2)))?;
            Some((format!("{field} {ports}"), len))
        }
        _ => None,
    }
}

/// A comparison with `oifname` or `meta nfproto`.
fn meta(key: u32, op: CmpOp, data: &Data) -> Option<String> {
    const OIFNAME: u32 = 7;
    const NFPROTO: u32 = 15;
    let operator = match op {
        CmpOp::Eq => "",
        CmpOp::Ne => "!= ",
        CmpOp::Gt => return None,
    };
    match (key, data.as_slice()) {
        (NFPROTO, [2]) => Some(format!("meta nfproto {operator}ipv4")),
        (NFPROTO, [10]) => Some(format!("meta nfproto {operator}ipv6")),
        (OIFNAME, name) => {
            let text = String::from_utf8_lossy(name);
            let text = text.trim_end_matches('\0');
            let name = if name.len() < 16 { interface_start(text) } else { interface(text) };
            Some(format!("oifname {operator}{name}"))
        }
        _ => None,
    }
}

/// The names of the bits of connection state (`NF_CT_STATE_BIT`).
fn states(mask: &Data) -> Option<String> {
    const NAMES: [(u32, &str); 5] =
        [(1, "invalid"), (1 << 1, "established"), (1 << 2, "related"), (1 << 3, "new"), (1 << 6, "untracked")];
    let mut bits = u32::from_ne_bytes(mask.as_slice().try_into().ok()?);
    let mut names = Vec::new();
    for (bit, name) in NAMES {
        if bits & bit != 0 {
            names.push(name);
            bits &= !bit;
        }
    }
    (bits == 0 && !names.is_empty()).then(|| names.join(","))
}

/// A range of ports, which nft 1.0.6 sends as two comparisons.
fn between(first: &Expr, last: &Expr) -> Option<String> {
    let (Expr::Foreign(first), Expr::Foreign(last)) = (first, last) else { return None };
    match (&**first, &**last) {
        (
            Foreign::Compare { order: Order::AtLeast, sreg, data: first },
            Foreign::Compare { order: Order::AtMost, sreg: same, data: last },
        ) if sreg == same => {
            let port = |data: &Data| DataType::InetService.format(data.as_slice());
            Some(format!("{}-{}", port(first), port(last)))
        }
        _ => None,
    }
}

/// The right side of a comparison of ports.
fn ports(compare: &Expr) -> Option<String> {
    let port = |data: &Data| DataType::InetService.format(data.as_slice());
    Some(match compare {
        Expr::Cmp { op: CmpOp::Eq, data, .. } => port(data),
        Expr::Cmp { op: CmpOp::Ne, data, .. } => format!("!= {}", port(data)),
        Expr::Cmp { op: CmpOp::Gt, data, .. } => format!("> {}", port(data)),
        Expr::Foreign(foreign) => match &**foreign {
            Foreign::Compare { order: Order::Less, data, .. } => format!("< {}", port(data)),
            Foreign::Compare { order: Order::AtMost, data, .. } => format!("<= {}", port(data)),
            Foreign::Compare { order: Order::AtLeast, data, .. } => format!(">= {}", port(data)),
            Foreign::Range { outside: false, first, last, .. } => format!("{}-{}", port(first), port(last)),
            Foreign::Range { outside: true, first, last, .. } => format!("!= {}-{}", port(first), port(last)),
            _ => return None,
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::expr::Register;
    use crate::object::RuleDump;
    use crate::table::Family;

    fn text(exprs: Vec<Expr>) -> String {
        RuleDump { exprs, comment: None }.to_nft(Family::Inet)
    }

    fn foreign(foreign: Foreign) -> Expr {
        Expr::Foreign(Arc::new(foreign))
    }

    #[test]
    fn rules_of_other_programs_are_written_as_nft_lists_them() {
        let r = Register::FIRST;
        let port = || Expr::Payload { base: PayloadBase::Transport, offset: 0, len: 2, dreg: r };
        let data = |bytes: &[u8]| Data::from_bytes(bytes).unwrap();
        let is = |bytes: &[u8]| Expr::Cmp { op: CmpOp::Eq, sreg: r, data: data(bytes) };
        assert_eq!(
            text(vec![
                foreign(Foreign::Meta { key: 15, dreg: r }),
                is(&[2]),
                foreign(Foreign::Meta { key: 7, dreg: r }),
                is(b"eth0\0\0\0\0\0\0\0\0\0\0\0\0"),
                port(),
                foreign(Foreign::Range { outside: true, sreg: r, first: data(&[0, 1]), last: data(&[4, 0]) }),
                foreign(Foreign::Harmless("log".into())),
                Expr::Unknown("limit".into()),
                foreign(Foreign::Notrack),
            ]),
            "meta nfproto ipv4 oifname \"eth0\" th sport != 1-1024 log [ limit ? ] notrack"
        );
        let mask = Data::from(0b110_u32);
        let zero = Data::from(0_u32);
        let state = vec![
            Expr::Ct { key: CtKey::State, dreg: r },
            Expr::Bitwise { sreg: r, dreg: r, mask, xor: zero },
            Expr::Cmp { op: CmpOp::Ne, sreg: r, data: zero },
            port(),
            foreign(Foreign::Compare { order: Order::AtLeast, sreg: r, data: data(&[0, 80]) }),
        ];
        assert_eq!(text(state), "ct state established,related th sport >= 80");
    }
}
