//! The base chains of all programs, and what their rules may do to packets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Connection, ReadError};
use crate::decode::{self, Effects, HookOutline, RuleEffects};
use crate::table::{Family, TableName};
use crate::wire::kind;

/// A base chain of any program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookedChain {
    /// The chain itself, with its hook, priority and policy.
    pub outline: HookOutline,
    /// What its rules, and the rules of the chains that they lead to, may do to a packet. The chain's policy does not count.
    pub effects: Effects,
}

/// The effects and jumps of the rules of one chain, all taken together.
#[derive(Debug, Default)]
pub(crate) struct OfChain {
    effects: Effects,
    targets: BTreeSet<Arc<str>>,
    obeys_map: bool,
}

impl OfChain {
    /// Adds a rule with these effects that jumps to these chains.
    pub(crate) fn add(&mut self, effects: Effects, targets: impl IntoIterator<Item = Arc<str>>) {
        self.effects = self.effects.and(effects);
        self.targets.extend(targets);
    }
}

impl HookedChain {
    /// A base chain whose table has these chains.
    pub(crate) fn of(outline: HookOutline, chains: &BTreeMap<Arc<str>, OfChain>) -> Self {
        Self { effects: reachable(chains, &outline.chain), outline }
    }
}

impl Connection {
    /// The base chains of every table of these families, ordered by table and name, with what their rules may do. If another program
    /// changes its rules meanwhile, the result may mix old and new rules.
    ///
    /// # Errors
    /// See [`ReadError`].
    pub fn hooked_chains(&mut self, families: &[Family]) -> Result<Vec<HookedChain>, ReadError> {
        let mut outlines: Vec<HookOutline> = Vec::new();
        for family in families {
            self.dump_messages(kind::GET_CHAIN, &TableName::new(*family, ""), &[], |message| {
                let known = decode::hook_outline(message).filter(|chain| chain.table.family == *family);
                outlines.extend(known.filter(|chain| !outlines.contains(chain)));
            })?;
        }
        outlines.sort_by(|a, b| (&a.table, &a.chain).cmp(&(&b.table, &b.chain)));
        let mut found = Vec::new();
        for of_table in outlines.chunk_by(|a, b| a.table == b.table) {
            let chains = self.effects_of_chains(&of_table[0].table)?;
            found.extend(of_table.iter().map(|outline| HookedChain::of(outline.clone(), &chains)));
        }
        Ok(found)
    }

    /// The effects and jumps of the rules of each chain in a table. Empty when the table no longer exists.
    fn effects_of_chains(&mut self, table: &TableName) -> Result<BTreeMap<Arc<str>, OfChain>, ReadError> {
        let mut chains: BTreeMap<Arc<str>, OfChain> = BTreeMap::new();
        let outcome = self.dump_messages(kind::GET_RULE, table, &[&table.name], |message| {
            let Some(RuleEffects { chain, effects, targets, obeys_map }) = decode::rule_effects(message) else {
                return;
            };
            let known = chains.entry(chain).or_default();
            known.add(effects, targets);
            known.obeys_map |= obeys_map;
        });
        match outcome {
            Err(ReadError::Socket(error)) if error.raw_os_error() == Some(libc::ENOENT) => Ok(BTreeMap::new()),
            outcome => outcome.map(|()| chains),
        }
    }
}

/// The effects of the rules of a chain and of all chains that they lead to. A verdict map counts as leading to every chain of the table.
fn reachable(chains: &BTreeMap<Arc<str>, OfChain>, start: &Arc<str>) -> Effects {
    let (mut effects, mut seen, mut open) = (Effects::default(), BTreeSet::new(), vec![start]);
    while let Some(name) = open.pop() {
        let Some(chain) = chains.get(name).filter(|_| seen.insert(name)) else { continue };
        effects = effects.and(chain.effects);
        open.extend(&chain.targets);
        if chain.obeys_map {
            open.extend(chains.keys());
        }
    }
    effects
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_are_those_of_all_chains_that_rules_lead_to() {
        let drops = Effects { drops: true, ..Effects::default() };
        let translates = Effects { translates: true, ..Effects::default() };
        let chain = |effects, targets: &[&str], obeys_map| OfChain {
            effects,
            targets: targets.iter().map(|name| Arc::from(*name)).collect(),
            obeys_map,
        };
        let none = Effects::default();
        let mut chains: BTreeMap<Arc<str>, OfChain> = [
            ("base", chain(none, &["a"], false)),
            ("a", chain(none, &["b", "base"], false)),
            ("b", chain(drops, &[], false)),
            ("elsewhere", chain(translates, &[], false)),
        ]
        .into_iter()
        .map(|(name, chain)| (Arc::from(name), chain))
        .collect();
        assert_eq!(reachable(&chains, &"base".into()), drops);
        chains.insert("b".into(), chain(drops, &[], true));
        assert_eq!(reachable(&chains, &"base".into()), drops.and(translates), "a map may lead anywhere");
        assert_eq!(reachable(&chains, &"gone".into()), none);
    }
}
