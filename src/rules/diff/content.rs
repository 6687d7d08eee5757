//! Builds the whole content of a table from the records (the objects of each owner), for example to print it in nft's syntax.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::Arc;

use nft::{Data, Element, Set, TableContent, Value};

use super::plan::numbered;
use super::record::{Content, Entry, data};
use super::records::Records;
use super::{add_chains, set_size, slot_key};
use crate::table::{ChainContent, VerdictMap};

/// The objects of all records, sorted by name or key.
#[derive(Default)]
struct Objects<'a> {
    /// The elements of each set, by the number of the set.
    elements: Vec<BTreeMap<Data, Element>>,
    chains: BTreeMap<&'a str, &'a ChainContent>,
    dynamic_sets: BTreeMap<&'a str, &'a Arc<Set>>,
    verdict_maps: BTreeMap<&'a str, &'a VerdictMap>,
}

impl<'a> Objects<'a> {
    fn of<Owner: Clone + Eq + Hash + Ord>(records: &'a Records<Owner>) -> Self {
        let mut objects = Self::default();
        objects.elements.resize_with(records.static_rules.sets.len(), BTreeMap::new);
        for (_, record) in records.wanted() {
            for entry in record.entries() {
                add_elements(&mut objects.elements[usize::from(entry.set)], entry);
            }
            for content in record.chains() {
                objects.chains.insert(&content.chain.name, content);
            }
            for map in record.dynamic_sets() {
                objects.dynamic_sets.insert(&map.set.name, &map.set);
            }
            for verdict_map in record.verdict_maps() {
                objects.verdict_maps.insert(&verdict_map.set.name, verdict_map);
            }
        }
        objects
    }
}

impl<Owner: Clone + Eq + Hash + Ord> Records<Owner> {
    /// The whole wanted content of the table: sets with their elements, and chains, each in a fixed order. Dynamic sets are empty, because
    /// rules fill them.
    #[must_use]
    pub fn content(&self) -> TableContent {
        let objects = Objects::of(self);
        let mut chains: Vec<ChainContent> = self.static_rules.chains.clone();
        chains.extend(objects.chains.into_values().cloned());
        let mut sets: Vec<(Arc<Set>, Vec<Element>)> = Vec::new();
        for (set, elements) in self.static_rules.sets.iter().zip(objects.elements) {
            let elements: Vec<Element> = elements.into_values().collect();
            add_chains(targets(&elements), &self.static_rules, &mut chains);
            sets.push((set_size::with_capacity(set, elements.len()), elements));
        }
        for set in objects.dynamic_sets.into_values() {
            sets.push((Arc::clone(set), Vec::new()));
        }
        for verdict_map in objects.verdict_maps.into_values() {
            let mut elements = Vec::with_capacity(verdict_map.verdicts.len());
            for (number, verdict) in verdict_map.verdicts.iter().enumerate() {
                elements.push(numbered(number, verdict));
            }
            sets.push((Arc::clone(&verdict_map.set), elements));
        }
        let further: Vec<Arc<str>> = chains.iter().flat_map(ChainContent::targets).cloned().collect();
        add_chains(further, &self.static_rules, &mut chains);
        let chains = chains.into_iter().map(|content| (content.chain, content.rules)).collect();
        TableContent { flowtables: Vec::new(), table: self.static_rules.table.clone(), sets, chains }
    }
}

/// Adds the elements of an entry, which is one element or a group of numbered elements.
fn add_elements(elements: &mut BTreeMap<Data, Element>, entry: Entry<'_>) {
    match entry.content {
        Content::Element(element) => {
            let element = element.element();
            elements.insert(element.key, element);
        }
        Content::Group(group) => {
            let prefix = data(group.prefix);
            for (slot, value) in group.values().enumerate() {
                let key = slot_key(&prefix, slot);
                elements.insert(key, Element::mapping(key, Value::Data(data(value))));
            }
        }
    }
}

/// The names of the chains that elements go to, each once, sorted in reverse order.
fn targets(elements: &[Element]) -> Vec<Arc<str>> {
    let mut targets: Vec<Arc<str>> = Vec::new();
    for element in elements {
        if let Value::Verdict(verdict) = &element.value
            && let Some(chain) = verdict.chain()
        {
            targets.push(Arc::clone(chain));
        }
    }
    targets.sort_by(|a, b| b.cmp(a));
    targets.dedup();
    targets
}
