//! Rules that cannot be evaluated: predicts the effect of a rule if it matches, and merges branches for which its match makes no
//! difference.

use crate::data::Verdict;
use crate::expr::{Expr, Foreign, LookupResult, MetaKey};
use crate::object::RuleDump;
use crate::table::TableName;

use super::{Branch, Thread};

pub(super) fn described(table: &TableName, thread: &Thread, rule: &RuleDump) -> String {
    let chain = thread.stack.last().map_or("", |frame| &*frame.chain);
    format!("table {table}, chain {chain}: {}", rule.to_nft(table.family))
}
/// The effect of a rule, assuming that the expression that cannot be evaluated matches.
pub(super) enum Assumed {
    Verdict(Verdict),
    Refuse,
    /// An effect that cannot be predicted.
    Opaque,
}

/// The effect of the remaining expressions of a rule; `None` when they do not change where the packet goes.
pub(super) fn effect_of(rest: &[Expr]) -> Option<Assumed> {
    /// Expressions that compare, load, limit, or add to a set, and do not change where the packet goes.
    const CONDITIONS: [&str; 17] = [
        "bitwise",
        "byteorder",
        "cmp",
        "connlimit",
        "ct",
        "dynset",
        "exthdr",
        "fib",
        "hash",
        "limit",
        "lookup",
        "meta",
        "numgen",
        "osf",
        "payload",
        "quota",
        "range",
    ];
    /// Targets of iptables behind which the next rule follows, and which do not change where the packet goes.
    const HARMLESS: [&str; 7] = ["AUDIT", "CHECKSUM", "LOG", "NFLOG", "RATEEST", "TCPMSS", "TRACE"];
    rest.iter().find_map(|expr| match expr {
        Expr::ImmediateVerdict(verdict) => Some(Assumed::Verdict(verdict.clone())),
        Expr::Reject(_) => Some(Assumed::Refuse),
        Expr::Unknown(name) if CONDITIONS.contains(&&**name) => None,
        Expr::Foreign(foreign) => match &**foreign {
            Foreign::XtTarget(name) if HARMLESS.contains(&&**name) => None,
            Foreign::XtTarget(_) | Foreign::Nat { .. } | Foreign::Redirect { .. } | Foreign::Notrack => {
                Some(Assumed::Opaque)
            }
            _ => None,
        },
        Expr::MetaSet { key: MetaKey::Trace, .. } => None,
        Expr::Unknown(_) | Expr::Nat { .. } | Expr::Masquerade { .. } | Expr::MetaSet { .. } => Some(Assumed::Opaque),
        Expr::Lookup { result: LookupResult::Verdict, .. } => Some(Assumed::Opaque),
        _ => None,
    })
}
/// Whether one of the remaining expressions of a rule sets the mark of the connection.
pub(super) fn sets_connection_mark(rest: &[Expr]) -> bool {
    rest.iter().any(|expr| matches!(expr, Expr::Foreign(foreign) if matches!(**foreign, Foreign::SetCtMark { .. })))
}
/// Merges any two branches that differ only in their last assumption and in their steps: they show that the assumption makes no difference.
pub(super) fn join_worlds(branches: &mut Vec<Branch>) {
    if branches.iter().all(|branch| branch.worlds.is_empty()) {
        return;
    }
    let mut at = 0;
    while at < branches.len() {
        let twin = (at + 1..branches.len()).find(|other| branches[at].is_twin(&branches[*other]));
        if let Some(other) = twin {
            let removed = branches.swap_remove(other);
            // Keep the branch in which the rule does not match: it has fewer steps to describe.
            if removed.worlds.last().is_some_and(|(_, matches)| !matches) {
                branches[at] = removed;
            }
            branches[at].worlds.pop();
            at = 0;
        } else {
            at += 1;
        }
    }
}
