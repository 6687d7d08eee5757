//! Tables as values, in place of the kernel's; and how the kernel finds a key in a set.

use std::ops::Range;
use std::sync::Arc;

use super::{Lookup, Ruleset};
use crate::connection::{ReadError, TableDump};
use crate::data::Data;
use crate::decode::{ChainHead, RuleHead, SetHead};
use crate::object::Element;
use crate::table::TableName;

/// The rules of one table, for packets of its family.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a>(pub &'a TableDump);

impl Ruleset for Listed<'_> {
    fn base_chains(&mut self) -> Result<Vec<ChainHead>, ReadError> {
        let chains = self.0.chains.values().filter(|(chain, _)| chain.base.is_some());
        Ok(chains.map(|(chain, _)| ChainHead::of(&self.0.table.name, chain)).collect())
    }

    fn rules(&mut self, _: &TableName, chain: &str) -> Result<Arc<[RuleHead]>, ReadError> {
        let rules = self.0.chains.get(chain).into_iter().flat_map(|(_, rules)| rules);
        Ok(rules.map(|rule| RuleHead { handle: 0, rule: rule.clone() }).collect())
    }

    fn find(&mut self, _: &TableName, set: &str, key: &[u8], unknown: u64) -> Result<Lookup, ReadError> {
        let Some((set, elements)) = self.0.sets.get(set) else { return Ok(Lookup::Missing) };
        Ok(among(&SetHead::of(set), elements, key, unknown))
    }

    fn elements(&mut self, _: &TableName, set: &str) -> Result<Vec<Element>, ReadError> {
        Ok(self.0.sets.get(set).map_or_else(Vec::new, |(_, elements)| elements.clone()))
    }
}

/// Finds the element that holds the key at the start of these bytes. `Unreadable` if some bytes of the key are unknown and an element may
/// hold it.
#[must_use]
pub fn among(head: &SetHead, elements: &[Element], key: &[u8], unknown: u64) -> Lookup {
    let Some((key, unknown)) = key_of(head, key, unknown) else { return Lookup::too_long() };
    match elements.iter().find(|element| holds(head, element, &key, unknown)) {
        None => Lookup::Missing,
        Some(_) if unknown != 0 => Lookup::Unreadable(String::new()),
        Some(element) => Lookup::Found(element.clone()),
    }
}

/// The key of a set at the start of these bytes, and its unknown bytes; `None` when the keys of the set are longer than the registers.
#[must_use]
pub fn key_of(head: &SetHead, bytes: &[u8], unknown: u64) -> Option<(Data, u64)> {
    let key = Data::from_bytes(bytes.get(..head.key_len)?)?;
    let behind = u32::try_from(key.len()).ok().and_then(|len| u64::MAX.checked_shl(len)).unwrap_or(0);
    Some((key, unknown & !behind))
}

/// Whether an element holds a key, compared only by the known bytes. Each field of a concatenation of ranges is compared by itself.
fn holds(head: &SetHead, element: &Element, key: &Data, unknown: u64) -> bool {
    let (first, key) = (element.key.as_slice(), key.as_slice());
    let last = element.key_end.as_ref().map_or(first, |end| end.as_slice());
    let is_known = |range: &Range<usize>| range.clone().all(|index| unknown >> index & 1 == 0);
    let fields: Vec<Range<usize>> = match (head.is_interval, &head.fields[..]) {
        (true, [_, _, ..]) => {
            let starts = head.fields.iter().scan(0, |next, len| {
                let start = *next;
                *next += len.next_multiple_of(4);
                Some(start..start + len)
            });
            starts.collect()
        }
        (true, _) => std::iter::once(0..key.len()).collect(),
        (false, _) => (0..key.len()).map(|index| index..index + 1).collect(),
    };
    fields.into_iter().filter(is_known).all(|field| {
        match (first.get(field.clone()), key.get(field.clone()), last.get(field)) {
            (Some(first), Some(key), Some(last)) => (first..=last).contains(&key),
            _ => false,
        }
    })
}
