//! Indexes the elements that were read from the kernel by key. Elements whose keys differ only in the number at the end (the slot) form a
//! group, as in records.

use std::hash::Hash;

use foldhash::HashMap;
use nft::{Element, TableDump, Value};

use super::record::Group;
use super::records::Records;
use super::wanted::elements_of;
use crate::table::FIRST_PLACE;

/// The elements of each set of the static rules, by the set's number. A table that is deleted and created again has none.
pub(super) struct ReadView<'a>(pub(super) Vec<SetView<'a>>);

#[derive(Default)]
pub(super) struct SetView<'a> {
    /// Elements that are not in a group, by key.
    pub(super) elements: HashMap<&'a [u8], &'a Element>,
    /// Groups of numbered elements, by the prefix of their keys.
    pub(super) groups: HashMap<&'a [u8], Slotted<'a>>,
}

/// The elements of a group, sorted by number. A list and not an array by number, because another program may have added an element with
/// a very large number.
#[derive(Default)]
pub(super) struct Slotted<'a>(pub(super) Vec<&'a Element>);

impl<'a> Slotted<'a> {
    /// Sorts the elements by number and removes duplicates: the kernel may list an element twice while the map grows or shrinks.
    fn sort(&mut self) {
        self.0.sort_unstable_by_key(|element| slot_of(element));
        self.0.dedup_by_key(|element| slot_of(element));
    }

    /// The values with the numbers 0 to `wanted - 1`; `None` for a number without an element.
    pub(super) fn values(&self, wanted: usize) -> Vec<Option<&'a [u8]>> {
        let mut values = vec![None; wanted];
        for element in &self.0 {
            if let (Some(place), Value::Data(value)) = (values.get_mut(slot_of(element)), &element.value) {
                *place = Some(value.as_slice());
            }
        }
        values
    }

    /// Whether the group has exactly these values with these numbers.
    pub(super) fn has_values_of(&self, wanted: Group<'_>) -> bool {
        if self.0.len() != wanted.len() {
            return false;
        }
        for (slot, (element, value)) in self.0.iter().zip(wanted.values()).enumerate() {
            let Value::Data(present) = &element.value else { return false };
            if slot_of(element) != slot || present.as_slice() != value {
                return false;
            }
        }
        true
    }
}

impl<'a> ReadView<'a> {
    pub(super) fn of<Owner: Clone + Eq + Hash + Ord>(records: &Records<Owner>, dump: Option<&'a TableDump>) -> Self {
        let mut views = Vec::with_capacity(records.static_rules.sets.len());
        for set in &records.static_rules.sets {
            let elements = elements_of(dump, &set.name).unwrap_or_default();
            let is_slotted = records.static_rules.slotted.iter().any(|name| *name == *set.name);
            views.push(SetView::of(elements, is_slotted));
        }
        Self(views)
    }
}

impl<'a> SetView<'a> {
    fn of(elements: &'a [Element], is_slotted: bool) -> Self {
        let mut view = Self::default();
        view.elements.reserve(if is_slotted { 0 } else { elements.len() });
        for element in elements {
            if is_slotted && let Some(prefix) = prefix(element) {
                view.groups.entry(prefix).or_default().0.push(element);
            } else {
                view.elements.insert(element.key.as_slice(), element);
            }
        }
        for group in view.groups.values_mut() {
            group.sort();
        }
        view
    }
}

/// The key of a numbered element without its number; `None` if the number is too large for a slot (a position of a Maglev table).
fn prefix(element: &Element) -> Option<&[u8]> {
    let (prefix, slot) = element.key.as_slice().split_last_chunk::<4>()?;
    let is_slot = u32::from_ne_bytes(*slot) < FIRST_PLACE && prefix.len().is_multiple_of(4);
    (is_slot && matches!(element.value, Value::Data(_))).then_some(prefix)
}

/// The number at the end of an element's key.
pub(super) fn slot_of(element: &Element) -> usize {
    let slot = match element.key.as_slice().last_chunk::<4>() {
        Some(slot) => u32::from_ne_bytes(*slot),
        None => u32::MAX,
    };
    usize::try_from(slot).unwrap_or(usize::MAX)
}
