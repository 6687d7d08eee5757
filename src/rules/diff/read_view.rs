//! Indexes the elements that were read from the kernel by key. Elements whose keys differ only in the number at the end (the slot) form a
//! group, as in the records of Services. The elements stay packed, as they were read.

use std::hash::Hash;
use std::ops::Range;

use foldhash::HashMap;
use nft::packed::ValueRef;
use nft::{ElementRef, Elements, TableDump};

use super::record::Group;
use super::records::Records;
use super::wanted::elements_of;
use crate::table::{FIRST_PLACE, fit};

/// The elements of each set of the static rules, by the set's number; empty sets if there is no table, or if it must be deleted and created
/// again.
pub(super) struct ReadView<'a>(pub(super) Vec<SetView<'a>>);

#[derive(Default)]
pub(super) struct SetView<'a> {
    /// Elements that are not in a group, by key.
    pub(super) elements: HashMap<&'a [u8], ElementRef<'a>>,
    pub(super) groups: Groups<'a>,
}

/// The groups of numbered elements.
#[derive(Default)]
pub(super) struct Groups<'a> {
    /// Where each group is in `elements`, by the prefix of its keys.
    places: HashMap<&'a [u8], Range<u32>>,
    /// The elements, group by group.
    elements: Vec<ElementRef<'a>>,
}

/// The elements of a group, sorted by number. A list and not an array by number, because another program may have added an element with
/// a large number.
#[derive(Clone, Copy, Default)]
pub(super) struct Slotted<'v, 'a>(pub(super) &'v [ElementRef<'a>]);

impl<'a> Slotted<'_, 'a> {
    /// The values with the numbers 0 to `wanted - 1`; `None` for a number without an element.
    pub(super) fn values(self, wanted: usize) -> Vec<Option<&'a [u8]>> {
        let mut values = vec![None; wanted];
        for element in self.0 {
            if let (Some(place), ValueRef::Data(value)) = (values.get_mut(slot_of(*element)), element.parts().value) {
                *place = Some(value);
            }
        }
        values
    }

    /// Whether the group has exactly these values with these numbers.
    pub(super) fn has_values_of(self, wanted: Group<'_>) -> bool {
        if self.0.len() != wanted.len() {
            return false;
        }
        for (slot, (element, value)) in self.0.iter().zip(wanted.values()).enumerate() {
            if slot_of(*element) != slot || element.parts().value != ValueRef::Data(value) {
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
            let is_slotted = records.static_rules.slotted.iter().any(|name| *name == *set.name);
            views
                .push(elements_of(dump, &set.name).map_or_else(SetView::default, |list| SetView::of(list, is_slotted)));
        }
        Self(views)
    }
}

impl<'a> SetView<'a> {
    fn of(elements: &'a Elements, is_slotted: bool) -> Self {
        let mut view = Self::default();
        view.elements.reserve(if is_slotted { 0 } else { elements.len() });
        let mut numbers: HashMap<&[u8], u32> = HashMap::default();
        let mut numbered = Vec::with_capacity(if is_slotted { elements.len() } else { 0 });
        for element in elements {
            match prefix(element).filter(|_| is_slotted) {
                Some(prefix) => {
                    let next = fit(numbers.len());
                    numbered.push((*numbers.entry(prefix).or_insert(next), element));
                }
                None => drop(view.elements.insert(element.key(), element)),
            }
        }
        view.groups = Groups::of(numbered);
        view
    }
}

impl<'a> Groups<'a> {
    /// Collects the elements of each group. Keeps one of several elements with the same key: the kernel may list an
    /// element twice while the map grows or shrinks.
    fn of(mut numbered: Vec<(u32, ElementRef<'a>)>) -> Self {
        let place = |(group, element): &(u32, ElementRef<'a>)| (*group, slot_of(*element));
        numbered.sort_unstable_by_key(place);
        numbered.dedup_by_key(|entry| place(entry));
        let mut groups = Self { places: HashMap::default(), elements: Vec::with_capacity(numbered.len()) };
        for of_group in numbered.chunk_by(|(one, _), (other, _)| one == other) {
            let start = fit(groups.elements.len());
            groups.elements.extend(of_group.iter().map(|(_, element)| *element));
            if let Some(prefix) = prefix(of_group[0].1) {
                groups.places.insert(prefix, start..fit(groups.elements.len()));
            }
        }
        groups
    }

    /// The group with this prefix.
    pub(super) fn get(&self, prefix: &[u8]) -> Option<Slotted<'_, 'a>> {
        Some(self.at(self.places.get(prefix)?.clone()))
    }

    /// Takes out the group with this prefix; no elements if there is none.
    pub(super) fn take(&mut self, prefix: &[u8]) -> Slotted<'_, 'a> {
        match self.places.remove(prefix) {
            Some(place) => self.at(place),
            None => Slotted::default(),
        }
    }

    fn at(&self, place: Range<u32>) -> Slotted<'_, 'a> {
        Slotted(&self.elements[fit::<u32, usize>(place.start)..fit(place.end)])
    }

    /// The elements of the groups that were not taken out.
    pub(super) fn rest(&self) -> impl Iterator<Item = ElementRef<'a>> {
        self.places.values().flat_map(|place| self.at(place.clone()).0).copied()
    }
}

/// The key of a numbered element without its number; `None` if the element is not one of a group, for example because its number is a
/// position of a Maglev table.
fn prefix(element: ElementRef<'_>) -> Option<&[u8]> {
    let (prefix, slot) = element.key().split_last_chunk::<4>()?;
    let is_slot = u32::from_ne_bytes(*slot) < FIRST_PLACE && prefix.len().is_multiple_of(4);
    (is_slot && element.has_data()).then_some(prefix)
}

/// The number at the end of an element's key; the largest number if the key is too short for one.
pub(super) fn slot_of(element: ElementRef<'_>) -> usize {
    let slot = match element.key().last_chunk::<4>() {
        Some(slot) => u32::from_ne_bytes(*slot),
        None => u32::MAX,
    };
    usize::try_from(slot).unwrap_or(usize::MAX)
}
