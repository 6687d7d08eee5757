//! The wanted chains and sets of a table, from the static rules and all records, by name; and the comparison with the chains and sets that
//! were read.

use std::hash::Hash;
use std::sync::Arc;

use foldhash::HashMap;
use nft::{Chain, Elements, RuleDump, Set, TableDump, Verdict};

use super::plan::{Plan, SetChanges};
use super::record::Record;
use super::records::Records;
use super::set_size;
use super::verdicts::{can_be_verdict_map, not_of_a_verdict_map, numbered_verdicts};
use crate::table::{ChainContent, StaticRules};

/// The wanted chains and sets of the static rules and of all records.
pub(super) struct Wanted<'a> {
    pub(super) static_rules: &'a StaticRules,
    /// The records that have sets or chains, sorted by owner.
    records: Vec<&'a Record>,
    chains: HashMap<&'a str, &'a ChainContent>,
    sets: HashMap<&'a str, &'a Set>,
}

impl<'a> Wanted<'a> {
    pub(super) fn of<Owner: Clone + Eq + Hash + Ord>(records: &'a Records<Owner>) -> Self {
        let static_rules = &records.static_rules;
        let mut owners: Vec<(&Owner, &Record)> = records.wanted().filter(|(_, record)| record.has_own()).collect();
        owners.sort_unstable_by(|a, b| a.0.cmp(b.0));
        let records: Vec<&Record> = owners.into_iter().map(|(_, record)| record).collect();
        let (mut chains, mut sets) = (HashMap::default(), HashMap::default());
        for content in &static_rules.chains {
            chains.insert(&*content.chain.name, content);
        }
        for set in &static_rules.sets {
            sets.insert(&*set.name, &**set);
        }
        for record in &records {
            for content in record.chains() {
                chains.insert(&*content.chain.name, content);
            }
            for set in record.own_sets() {
                sets.insert(&*set.name, &**set);
            }
        }
        Self { static_rules, records, chains, sets }
    }

    /// All wanted chains except chains on demand (shared chains such as `lb-3`), in a fixed order.
    pub(super) fn chains(&self) -> impl Iterator<Item = &'a ChainContent> {
        self.static_rules.chains.iter().chain(self.records.iter().flat_map(|record| record.chains()))
    }

    fn is_unwanted(&self, chain: &Chain) -> bool {
        let name = &*chain.name;
        chain.base.is_none() && !self.chains.contains_key(name) && self.static_rules.on_demand.content(name).is_none()
    }

    /// The chains of a table that neither a record nor the static rules have, and that are neither base chains nor chains on demand
    /// (shared chains such as `lb-3`).
    pub(super) fn unwanted_chains<'b>(
        &'b self,
        dump: &'b TableDump,
    ) -> impl Iterator<Item = &'b (Chain, Vec<RuleDump>)> {
        dump.chains.values().filter(|(chain, _)| self.is_unwanted(chain))
    }

    /// Whether the table can be corrected with this set in it. A set of a removed owner can be deleted, and so can a set that the table had
    /// with other settings ([`StaticRules::former`]). But a set with a wanted name that differs in more than its size cannot be changed.
    pub(super) fn fits_set(&self, present: &Set) -> bool {
        match self.sets.get(&*present.name) {
            Some(wanted) => set_size::is_same_kind(wanted, present),
            None => present.flags.dynamic || can_be_verdict_map(present) || (self.static_rules.former)(&present.name),
        }
    }

    /// Whether the table can be corrected with this chain in it.
    pub(super) fn fits_chain(&self, present: &Chain) -> bool {
        match self.chains.get(&*present.name) {
            Some(wanted) => wanted.chain == *present,
            None => present.base.is_none(),
        }
    }

    /// Deletes the rules of surplus chains, and surplus sets. Makes the plan check the chains on demand (such as `lb-3`) that exist.
    pub(super) fn remove_surplus(&self, plan: &mut Plan<'_>, dump: &TableDump) {
        for (chain, rules) in dump.chains.values() {
            if self.chains.contains_key(&*chain.name) {
                continue;
            }
            if self.is_unwanted(chain) && !rules.is_empty() {
                plan.empty_chain(&chain.name);
            }
            // An existing chain on demand is kept, and its rules are checked, even if no element goes to it now.
            plan.target(&chain.name);
        }
        for (set, _) in dump.sets.values() {
            if !self.sets.contains_key(&*set.name) {
                plan.remove_set(Arc::new(set.clone()));
            }
        }
    }

    /// Adds missing sets that belong to one owner, and corrects the elements of the maps from numbers to verdicts.
    pub(super) fn own_sets(&self, plan: &mut Plan<'_>, dump: Option<&TableDump>) {
        for record in &self.records {
            for set in record.own_sets() {
                if elements_of(dump, &set.name).is_none() {
                    plan.add_set(Arc::clone(set));
                }
            }
        }
        let nothing = Elements::default();
        for record in &self.records {
            for verdict_map in record.verdict_maps() {
                let elements = elements_of(dump, &verdict_map.set.name).unwrap_or(&nothing);
                for chain in verdict_map.verdicts.iter().filter_map(Verdict::chain) {
                    plan.target(chain);
                }
                let foreign = SetChanges { delete: not_of_a_verdict_map(elements), ..SetChanges::default() };
                plan.elements(&verdict_map.set, foreign);
                let present = numbered_verdicts(elements);
                plan.verdict_map(verdict_map, &present.iter().map(Option::as_ref).collect::<Vec<_>>());
            }
        }
    }
}

/// The elements of a set that was read; `None` if the table does not have the set.
pub(super) fn elements_of<'a>(dump: Option<&'a TableDump>, set: &str) -> Option<&'a Elements> {
    let (_, elements) = dump?.sets.get(set)?;
    Some(elements)
}
