//! Decodes expressions that only rules of other programs have. They are needed to print these rules and to follow a packet through them.
//!
//! An expression that neither this module nor `exprs` decodes becomes [`crate::Expr::Unknown`]. Numbers are those of
//! `linux/netfilter/nf_tables.h`.

use super::reader::{Reader, only_if};
use crate::expr::{Foreign, Order, Register};
use crate::table::Family;

/// Decodes the expression with a name; `None` when [`Foreign`] has no variant for it.
pub(super) fn foreign(name: &str, a: Reader<'_>) -> Option<Foreign> {
    match name {
        "cmp" => compare(a),
        "range" => range(a),
        "meta" => meta(a),
        "ct" => ct(a),
        "nat" => nat(a),
        "redir" => redirect(a),
        "notrack" => Some(Foreign::Notrack),
        "log" | "last" => Some(Foreign::Harmless(name.into())),
        "objref" => counter(a),
        _ => None,
    }
}

fn compare(a: Reader<'_>) -> Option<Foreign> {
    let order = match a.number(2)? {
        2 => Order::Less,
        3 => Order::AtMost,
        5 => Order::AtLeast,
        _ => return None,
    };
    Some(Foreign::Compare { order, sreg: a.register(1)?, data: a.data(3)? })
}

fn range(a: Reader<'_>) -> Option<Foreign> {
    let outside = match a.number(2)? {
        0 => false,
        1 => true,
        _ => return None,
    };
    Some(Foreign::Range { outside, sreg: a.register(1)?, first: a.data(3)?, last: a.data(4)? })
}

fn meta(a: Reader<'_>) -> Option<Foreign> {
    const SREG: u16 = 3;
    const MARK: u32 = 3;
    let key = a.number(2)?;
    if a.has(SREG) {
        // Sets the priority, the packet type or another property that decides no path. Setting the mark is not harmless;
        // `exprs` decodes it.
        return (key != MARK).then(|| Foreign::Harmless("meta set".into()));
    }
    Some(Foreign::Meta { key, dreg: a.register(1)? })
}

fn ct(a: Reader<'_>) -> Option<Foreign> {
    const DIRECTION: u16 = 3;
    const SREG: u16 = 4;
    const MARK: u32 = 3;
    only_if(!a.has(DIRECTION))?;
    if a.has(SREG) {
        // Later rules may read the mark; no expression that this crate evaluates reads the other properties that a rule can set.
        return (a.number(2)? == MARK).then(|| Some(Foreign::SetCtMark { sreg: a.register(SREG)? }))?;
    }
    Some(Foreign::Ct { key: a.number(2)?, dreg: a.register(1)? })
}

/// Expression `nat`; `None` when it translates to a range of addresses or ports.
fn nat(a: Reader<'_>) -> Option<Foreign> {
    const ADDRESS: u16 = 3;
    const PORT: u16 = 5;
    let is_range = |min: u16| a.has(min + 1) && a.number(min + 1) != a.number(min);
    only_if(!is_range(ADDRESS) && !is_range(PORT))?;
    Some(Foreign::Nat {
        of_destination: a.number(1)? == 1,
        family: Family::from_number(u8::try_from(a.number(2)?).ok()?)?,
        address: a.optional_register(ADDRESS)?,
        port: a.optional_register(PORT)?,
    })
}

fn redirect(a: Reader<'_>) -> Option<Foreign> {
    const PORT: u16 = 1;
    const LAST_PORT: u16 = 2;
    let port: Option<Register> = a.optional_register(PORT)?;
    only_if(!a.has(LAST_PORT) || a.number(LAST_PORT) == a.number(PORT))?;
    Some(Foreign::Redirect { port })
}

/// Expression `objref`; only a named counter is harmless: other objects, such as a quota, may end the rule.
fn counter(a: Reader<'_>) -> Option<Foreign> {
    const TYPE: u16 = 1;
    const COUNTER: u32 = 1;
    (a.number(TYPE)? == COUNTER).then(|| Foreign::Harmless("counter".into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Attrs, Writer};

    #[test]
    fn of_what_a_rule_sets_on_the_connection_the_mark_is_known() {
        let decoded = |key: u32| {
            let mut attrs = Writer::default();
            attrs.u32(2, key);
            attrs.u32(4, Register::word(1).to_wire());
            foreign("ct", Reader(Attrs::new(attrs.bytes())))
        };
        assert_eq!(decoded(3), Some(Foreign::SetCtMark { sreg: Register::word(1) }));
        assert_eq!(decoded(22), None, "its labels");
    }
}
