//! The rules that pick one of N endpoints, and the small chains of these rules: one for each kind and number, shared by all fronts that
//! have that many. With scheduler `maglev` one for each kind, whatever the number: see `maglev`.

use std::fmt;
use std::sync::Arc;

use nft::{Field, Rule, Statement, Verdict};

use super::{List, Part, Side};
use crate::model::Family;
use crate::ruleset::balancing::hash;
use crate::ruleset::shared::{Fields, chain, jump, regular};
use crate::table::{ChainContent, FIRST_PLACE, SetName};

/// How one is picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ruleset) enum Pick {
    /// Slots 0 to N - 1, each as likely; N is at least 1.
    Random(usize),
    /// The slot of 0 to N - 1 that the hash of the source gives.
    Hash { count: usize, with_port: bool },
    /// The first place of a table with this number of places that is taken, in the order that hashes of the source give.
    Table { places: u32, with_port: bool },
}

/// How many places of a table a client tries. Where two endpoints share it, one place in 34 is taken, and one client in 300 finds none.
pub(super) const TRIES: u32 = 192;

/// A chain that picks one of a front's endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ruleset) struct Balancer {
    pub(in crate::ruleset) side: Side,
    pub(in crate::ruleset) list: List,
    /// Mark for masquerading first.
    pub(in crate::ruleset) masquerade: bool,
    pub(in crate::ruleset) pick: Pick,
    /// Which of several maps has the endpoints.
    pub(in crate::ruleset) part: Part,
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

    pub(in crate::ruleset) fn goto(self) -> Verdict {
        Verdict::Goto(self.to_string().into())
    }

    /// The map that has the endpoints.
    pub(super) fn map(self) -> SetName {
        self.part.name(self.list.map(self.side))
    }

    /// The balancer with a name.
    pub(in crate::ruleset) fn parse(name: &str) -> Option<Self> {
        let (name, part) = Part::split(name);
        let kinds = Side::BOTH.into_iter().flat_map(|side| {
            List::BOTH.into_iter().flat_map(move |list| [false, true].map(|masquerade| (side, list, masquerade)))
        });
        kinds.into_iter().find_map(|(side, list, masquerade)| {
            let pick = Pick::parse(name.strip_prefix(Self::prefix(side, list, masquerade))?)?;
            Some(Self { side, list, masquerade, pick, part })
        })
    }

    /// The chain with its rules.
    pub(in crate::ruleset) fn content(self, family: Family) -> ChainContent {
        let rules = if self.masquerade {
            let plain = Self { masquerade: false, ..self };
            vec![Rule::new([jump(chain::MARK_MASQ)]), Rule::new([Statement::Verdict(plain.goto())])]
        } else {
            self.choices(family)
        };
        let comment =
            if self.masquerade { "Marks for masquerading, then picks".to_owned() } else { self.pick.comment() };
        regular(&self.to_string(), &comment, rules)
    }

    /// What a packet tries, one after the other; each takes the endpoint with a number, if there is one.
    fn choices(self, family: Family) -> Vec<Rule> {
        // Between the two look-ups of one packet the front may lose its highest slot, or get another scheduler. Slot 0 exists as
        // long as the front has any endpoint, so no packet falls through to the reject rules because of a change.
        let first = Field::NumgenRandom(1);
        let numbers = self.pick.numbers(family).into_iter().filter(|number| *number != first).chain([first]);
        let fields = self.side.fields(&Fields::of(family));
        let map = Arc::from(&*self.map());
        let choice = |number| Rule::new([Statement::DnatToMap([&fields[..], &[number]].concat(), Arc::clone(&map))]);
        numbers.map(choice).collect()
    }
}

impl fmt::Display for Balancer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", Self::prefix(self.side, self.list, self.masquerade), self.pick)?;
        self.part.0.map_or(Ok(()), |part| write!(f, ".{part}"))
    }
}

/// What the names of chains have in front of the number.
const HASH: &str = "hash-";
const MAGLEV: &str = "maglev-";
const PORT: &str = "port-";

impl Pick {
    /// What a packet looks up behind its front, one number after the other.
    fn numbers(self, family: Family) -> Vec<Field> {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        match self {
            Self::Random(number) => vec![Field::NumgenRandom(count(number))],
            Self::Hash { count: number, with_port } => vec![hash(family, with_port, 0, count(number), 0)],
            Self::Table { places, with_port } => {
                (0..TRIES).map(|nth| hash(family, with_port, nth, places, FIRST_PLACE)).collect()
            }
        }
    }

    fn comment(self) -> String {
        let by = |with_port| if with_port { "by the client's address and port" } else { "by the client's address" };
        match self {
            Self::Random(1) => "Takes the only endpoint of a front".to_owned(),
            Self::Random(count) => format!("Picks one of a front's {count} endpoints"),
            Self::Hash { count, with_port } => format!("Picks one of a front's {count} endpoints {}", by(with_port)),
            Self::Table { places, with_port } => {
                format!("Picks an endpoint {}, from {places} places of which few are taken", by(with_port))
            }
        }
    }

    /// The end of a chain's name.
    fn parse(text: &str) -> Option<Self> {
        let with_port =
            |text: &str| text.strip_prefix(PORT).map_or((false, text.to_owned()), |rest| (true, rest.to_owned()));
        let pick = if let Some(rest) = text.strip_prefix(HASH) {
            let (with_port, number) = with_port(rest);
            Self::Hash { count: number.parse().ok()?, with_port }
        } else if let Some(rest) = text.strip_prefix(MAGLEV) {
            let (with_port, number) = with_port(rest);
            Self::Table { places: number.parse().ok()?, with_port }
        } else {
            Self::Random(text.parse().ok()?)
        };
        let is_empty = matches!(pick, Self::Random(0) | Self::Hash { count: 0, .. } | Self::Table { places: 0, .. });
        (!is_empty).then_some(pick)
    }
}

impl fmt::Display for Pick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = |with_port: bool| if with_port { PORT } else { "" };
        match self {
            Self::Random(count) => write!(f, "{count}"),
            Self::Hash { count, with_port } => write!(f, "{HASH}{}{count}", port(*with_port)),
            Self::Table { places, with_port } => write!(f, "{MAGLEV}{}{places}", port(*with_port)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for side in Side::BOTH {
            for list in List::BOTH {
                let hashes = [false, true].into_iter().flat_map(|with_port| {
                    [Pick::Hash { count: 12, with_port }, Pick::Table { places: 1021, with_port }]
                });
                for pick in hashes.chain([Pick::Random(12)]) {
                    for masquerade in [false, true] {
                        for part in [None, Some(15)].map(Part) {
                            let balancer = Balancer { side, list, masquerade, pick, part };
                            assert_eq!(Balancer::parse(&balancer.to_string()), Some(balancer));
                        }
                    }
                }
            }
        }
        for foreign in
            ["lb-", "lb-0", "lb-x", "lb-hash-", "lb-hash-port-0", "lb-maglev-x", "lb-2.x", "KUBE-SERVICES", "masq-"]
        {
            assert_eq!(Balancer::parse(foreign), None, "{foreign}");
        }
    }

    #[test]
    fn a_packet_that_meets_a_shrinking_front_takes_slot_0() {
        let numbers = |pick| -> Vec<Field> {
            let balancer =
                Balancer { side: Side::Address, list: List::Cluster, masquerade: false, pick, part: Part(None) };
            let number = |rule: &Rule| match &rule.statements[..] {
                [Statement::DnatToMap(key, map)] if &**map == "endpoints" => *key.last().unwrap(),
                other => panic!("{other:?}"),
            };
            balancer.choices(Family::V4).iter().map(number).collect()
        };
        assert_eq!(numbers(Pick::Random(3)), [Field::NumgenRandom(3), Field::NumgenRandom(1)]);
        assert_eq!(numbers(Pick::Random(1)), [Field::NumgenRandom(1)]);
        let of_hash = numbers(Pick::Hash { count: 3, with_port: false });
        assert!(matches!(of_hash[..], [Field::Jhash { modulus: 3, offset: 0, .. }, Field::NumgenRandom(1)]));
        let of_table = numbers(Pick::Table { places: 1021, with_port: true });
        assert_eq!((of_table.len(), of_table.last()), (TRIES as usize + 1, Some(&Field::NumgenRandom(1))));
    }
}
