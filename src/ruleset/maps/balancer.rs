//! The small chains that pick one of N endpoints. One per kind and number, shared by all fronts that have that many.

use std::fmt;
use std::sync::Arc;

use nft::{Field, Rule, Statement, Verdict};

use super::{Side, chain};
use crate::model::Family;
use crate::ruleset::shared::{Fields, regular};
use crate::table::ChainContent;

/// Which list of endpoints is picked from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    Cluster,
    Local,
}

impl List {
    const BOTH: [Self; 2] = [Self::Cluster, Self::Local];

    /// The map from front and slot to endpoint.
    pub(super) const fn map(self, side: Side) -> &'static str {
        match (side, self) {
            (Side::Address, Self::Cluster) => "endpoints",
            (Side::Address, Self::Local) => "local-endpoints",
            (Side::NodePort, Self::Cluster) => "nodeport-endpoints",
            (Side::NodePort, Self::Local) => "nodeport-local-endpoints",
        }
    }
}

/// A chain that picks one of `count` endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Balancer {
    pub(super) side: Side,
    pub(super) list: List,
    /// Mark for masquerading first.
    pub(super) masquerade: bool,
    /// Number of slots; at least 1.
    pub(super) count: usize,
}

impl Balancer {
    const fn prefix(side: Side, list: List, masquerade: bool) -> &'static str {
        match (side, list, masquerade) {
            (Side::Address, List::Cluster, false) => "lb-",
            (Side::Address, List::Cluster, true) => "masq-lb-",
            (Side::Address, List::Local, false) => "lb-local-",
            (Side::Address, List::Local, true) => "masq-lb-local-",
            (Side::NodePort, List::Cluster, false) => "nodeport-lb-",
            (Side::NodePort, List::Cluster, true) => "nodeport-masq-lb-",
            (Side::NodePort, List::Local, false) => "nodeport-lb-local-",
            (Side::NodePort, List::Local, true) => "nodeport-masq-lb-local-",
        }
    }

    pub(super) fn goto(self) -> Verdict {
        Verdict::Goto(self.to_string().into())
    }

    /// The balancer with a name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let kinds = Side::BOTH.into_iter().flat_map(|side| {
            List::BOTH.into_iter().flat_map(move |list| [false, true].map(|masquerade| (side, list, masquerade)))
        });
        kinds.into_iter().find_map(|(side, list, masquerade)| {
            let count = name.strip_prefix(Self::prefix(side, list, masquerade))?.parse().ok()?;
            (count > 0).then_some(Self { side, list, masquerade, count })
        })
    }

    /// The chain with its rules.
    pub(super) fn content(self, family: Family) -> ChainContent {
        let rules = if self.masquerade {
            let plain = Self { masquerade: false, ..self };
            let mark = Verdict::Jump(chain::MARK_MASQ.into());
            vec![Rule::new([Statement::Verdict(mark)]), Rule::new([Statement::Verdict(plain.goto())])]
        } else {
            // Between the two look-ups of one packet the front may lose its highest slot. Slot 0 exists as long as the front has
            // any endpoint, so no packet falls through to the reject rules because of a change.
            let moduli = if self.count > 1 { vec![self.count, 1] } else { vec![1] };
            moduli.into_iter().map(|modulus| self.pick(family, modulus)).collect()
        };
        let comment = match (self.masquerade, self.count) {
            (true, _) => "Marks for masquerading, then picks".to_owned(),
            (false, 1) => "Takes the only endpoint of a front".to_owned(),
            (false, count) => format!("Picks one of a front's {count} endpoints"),
        };
        regular(&self.to_string(), &comment, rules)
    }

    fn pick(self, family: Family, modulus: usize) -> Rule {
        let fields = Fields::of(family);
        let mut key = match self.side {
            Side::Address => fields.front(),
            Side::NodePort => fields.node_port(),
        };
        key.push(Field::NumgenRandom(u32::try_from(modulus).unwrap_or(u32::MAX)));
        Rule::new([Statement::DnatToMap(key, Arc::from(self.list.map(self.side)))])
    }
}

impl fmt::Display for Balancer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Self::prefix(self.side, self.list, self.masquerade), self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for side in Side::BOTH {
            for list in List::BOTH {
                for masquerade in [false, true] {
                    let balancer = Balancer { side, list, masquerade, count: 12 };
                    assert_eq!(Balancer::parse(&balancer.to_string()), Some(balancer));
                }
            }
        }
        for foreign in ["lb-", "lb-0", "lb-x", "KUBE-SERVICES", "masq-"] {
            assert_eq!(Balancer::parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_packet_that_meets_a_shrinking_front_takes_slot_0() {
        let balancer = Balancer { side: Side::Address, list: List::Cluster, masquerade: false, count: 3 };
        let rules = balancer.content(Family::V4).rules;
        let moduli: Vec<_> = rules
            .iter()
            .map(|rule| match &rule.statements[..] {
                [Statement::DnatToMap(key, map)] if &**map == "endpoints" => *key.last().unwrap(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(moduli, [Field::NumgenRandom(3), Field::NumgenRandom(1)]);
    }
}
