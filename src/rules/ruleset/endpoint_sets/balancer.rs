//! The small chains that choose one of N endpoints, such as `lb-N`: frontends of one type (address or node port) with N endpoints share one
//! chain if their policy, scheduler and map of endpoints are the same. With scheduler `maglev` the chain depends on the size of the Maglev
//! table and not on N: see module `maglev`.

use std::fmt;
use std::sync::Arc;

use nft::{Field, Rule, Statement, Verdict};

use crate::model::Family;
use crate::ruleset::balancing::hash;
use crate::ruleset::kinds::ChainKind;
use crate::ruleset::names::{FrontendType, List, chain, endpoints, split_part, with_part};
use crate::ruleset::shared::{Fields, jump, regular};
use crate::table::{ChainContent, FIRST_PLACE, SetName};

/// How a chain chooses one of a frontend's endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ruleset) enum Pick {
    /// A random number from 0 to N - 1, each with the same probability.
    Random(usize),
    /// A number from 0 to N - 1 that is computed from a hash of the source.
    Hash { count: usize, with_port: bool },
    /// The first taken position of a Maglev table with `places` positions, in an order that is computed from hashes of the source.
    Table { places: u32, with_port: bool },
}

/// The number of positions of a Maglev table that a client tries. In a table of the default size with two endpoints one position in 34 is
/// taken, so about one client in 300 finds only empty positions.
pub(super) const TRIES: u32 = 192;

/// A chain that chooses one of a frontend's endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::ruleset) struct Balancer {
    pub(in crate::ruleset) frontend_type: FrontendType,
    pub(in crate::ruleset) list: List,
    /// Whether the chain first marks packets for masquerading.
    pub(in crate::ruleset) masquerade: bool,
    pub(in crate::ruleset) pick: Pick,
    /// If the endpoints are split over several maps, the number of the map that has the frontend's endpoints.
    pub(in crate::ruleset) part: Option<u8>,
    /// Whether the map counts the connections of each endpoint.
    pub(in crate::ruleset) is_counted: bool,
}

impl Balancer {
    pub(in crate::ruleset) fn goto(self) -> Verdict {
        Verdict::Goto(self.to_string().into())
    }

    /// The name of the map that has the endpoints.
    pub(super) fn map(self) -> SetName {
        with_part(endpoints(self.frontend_type, self.list, self.is_counted), self.part)
    }

    /// Parses the name of a chain; `None` if it is not a chain that chooses an endpoint. The name does not say whether the map of endpoints
    /// counts.
    pub(in crate::ruleset) fn parse(name: &str, is_counted: bool) -> Option<Self> {
        let (name, part) = split_part(name);
        let (ChainKind::Balancer { frontend_type, list, masquerade }, pick) = ChainKind::split(name)? else {
            return None;
        };
        Some(Self { frontend_type, list, masquerade, pick: Pick::parse(pick)?, part, is_counted })
    }

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

    /// The rules that a packet tries one after the other. Each looks up a number and sends the packet to its endpoint, if there is one.
    fn choices(self, family: Family) -> Vec<Rule> {
        // Between the look-up of a packet's verdict and the look-up of its endpoint, the frontend may lose its highest number, or get
        // another scheduler. Number 0 exists as long as the frontend has any endpoint. So the last rule tries it, to keep such packets from
        // the reject rules.
        let first = Field::NumgenRandom(1);
        let numbers = self.pick.numbers(family).into_iter().filter(|number| *number != first).chain([first]);
        let fields = Fields::of(family).of_type(self.frontend_type);
        let map = Arc::from(&*self.map());
        let choice = |number| Rule::new([Statement::DnatToMap([&fields[..], &[number]].concat(), Arc::clone(&map))]);
        numbers.map(choice).collect()
    }
}

impl fmt::Display for Balancer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { frontend_type, list, masquerade, pick, part, .. } = *self;
        write!(f, "{}{pick}", ChainKind::Balancer { frontend_type, list, masquerade })?;
        match part {
            Some(part) => write!(f, ".{part}"),
            None => Ok(()),
        }
    }
}

/// The parts of a chain's name that may come before the number, such as `lb-hash-port-3`.
const HASH: &str = "hash-";
const MAGLEV: &str = "maglev-";
const PORT: &str = "port-";

impl Pick {
    /// The expressions for the numbers that a packet looks up together with its frontend, in this order.
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
            Self::Random(1) => "Takes the only endpoint of a frontend".to_owned(),
            Self::Random(count) => format!("Picks one of a frontend's {count} endpoints"),
            Self::Hash { count, with_port } => format!("Picks one of a frontend's {count} endpoints {}", by(with_port)),
            Self::Table { places, with_port } => {
                format!("Picks an endpoint {}, from {places} places of which few are taken", by(with_port))
            }
        }
    }

    /// Parses the end of a chain's name, such as `3` or `maglev-port-1021`.
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
        for frontend_type in FrontendType::BOTH {
            for list in List::BOTH {
                let hashes = [false, true].into_iter().flat_map(|with_port| {
                    [Pick::Hash { count: 12, with_port }, Pick::Table { places: 1021, with_port }]
                });
                for pick in hashes.chain([Pick::Random(12)]) {
                    for masquerade in [false, true] {
                        for (part, is_counted) in [(None, false), (Some(15), true)] {
                            let balancer = Balancer { frontend_type, list, masquerade, pick, part, is_counted };
                            assert_eq!(Balancer::parse(&balancer.to_string(), is_counted), Some(balancer));
                        }
                    }
                }
            }
        }
        for foreign in
            ["lb-", "lb-0", "lb-x", "lb-hash-", "lb-hash-port-0", "lb-maglev-x", "lb-2.x", "KUBE-SERVICES", "masq-"]
        {
            assert_eq!(Balancer::parse(foreign, false), None, "{foreign}");
        }
    }

    #[test]
    fn a_packet_that_meets_a_shrinking_frontend_takes_slot_0() {
        let numbers = |pick| -> Vec<Field> {
            let balancer = Balancer {
                frontend_type: FrontendType::Address,
                list: List::Cluster,
                masquerade: false,
                pick,
                part: None,
                is_counted: false,
            };
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
