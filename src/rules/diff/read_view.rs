//! Indexes the elements that were read from the kernel by key. Elements whose keys differ only in the number at the end (the slot) form a
//! group, as in the records of Services. The elements stay packed, as they were read.

use std::hash::Hash;
use std::ops::Range;

use foldhash::HashMap;
use nft::packed::{Place, ValueRef};
use nft::{ElementRef, Elements, TableDump};

use super::record::Group;
use super::records::Records;
use super::wanted::elements_of;
use crate::table::{FIRST_PLACE, fit};

/// The elements of each set of the static rules, by the set's number; empty sets if there is no table, or if it must be deleted and created
/// again.
pub(super) struct ReadView<'a>(pub(super) Vec<SetView<'a>>);

pub(super) struct SetView<'a> {
    /// Elements that are not in a group, by key.
    pub(super) elements: HashMap<&'a [u8], ElementRef<'a>>,
    pub(super) groups: Groups<'a>,
}

/// The groups of numbered elements. In a large cluster a million elements are in groups, so it has their places in the list, which are
/// smaller than references.
pub(super) struct Groups<'a> {
    list: &'a Elements,
    /// Where each group is in `places`, by the prefix of its keys.
    groups: HashMap<&'a [u8], Range<u32>>,
    /// The places of the elements in `list`, group by group.
    places: Vec<Place>,
}

/// The elements of a group, sorted by number. A list and not an array by number, because another program may have added an element with
/// a large number.
#[derive(Clone, Copy)]
pub(super) struct Slotted<'v, 'a> {
    list: &'a Elements,
    places: &'v [Place],
}

impl<'v, 'a> Slotted<'v, 'a> {
    /// The elements, sorted by number.
    pub(super) fn elements(self) -> impl ExactSizeIterator<Item = ElementRef<'a>> + use<'v, 'a> {
        self.places.iter().map(move |place| self.list.at(*place))
    }

    /// The values with the numbers 0 to `wanted - 1`; `None` for a number without an element.
    pub(super) fn values(self, wanted: usize) -> Vec<Option<&'a [u8]>> {
        let mut values = vec![None; wanted];
        for element in self.elements() {
            if let (Some(place), ValueRef::Data(value)) = (values.get_mut(slot_of(element)), element.parts().value) {
                *place = Some(value);
            }
        }
        values
    }

    /// Whether the group has exactly these values with these numbers.
    pub(super) fn has_values_of(self, wanted: Group<'_>) -> bool {
        if self.places.len() != wanted.len() {
            return false;
        }
        for (slot, (element, value)) in self.elements().zip(wanted.values()).enumerate() {
            if slot_of(element) != slot || element.parts().value != ValueRef::Data(value) {
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
            views.push(SetView::of(elements_of(dump, &set.name).unwrap_or(Elements::EMPTY), is_slotted));
        }
        Self(views)
    }
}

impl<'a> SetView<'a> {
    fn of(list: &'a Elements, is_slotted: bool) -> Self {
        let mut elements = HashMap::default();
        elements.reserve(if is_slotted { 0 } else { list.len() });
        let mut numbers: HashMap<&[u8], u32> = HashMap::default();
        let mut numbered = Vec::with_capacity(if is_slotted { list.len() } else { 0 });
        for place in list.places() {
            let element = list.at(place);
            match prefix(element).filter(|_| is_slotted) {
                Some(prefix) => {
                    let next = fit(numbers.len());
                    numbered.push((*numbers.entry(prefix).or_insert(next), place));
                }
                None => drop(elements.insert(element.key(), element)),
            }
        }
        Self { elements, groups: Groups::of(list, numbered) }
    }
}

impl<'a> Groups<'a> {
    /// Collects the elements of each group. Keeps one of several elements with the same key: the kernel may list an
    /// element twice while the map grows or shrinks.
    fn of(list: &'a Elements, mut numbered: Vec<(u32, Place)>) -> Self {
        let order = |(group, place): &(u32, Place)| (*group, slot_of(list.at(*place)));
        numbered.sort_unstable_by_key(order);
        numbered.dedup_by_key(|entry| order(entry));
        let mut groups = HashMap::default();
        let mut places = Vec::with_capacity(numbered.len());
        for of_group in numbered.chunk_by(|(one, _), (other, _)| one == other) {
            let start = fit(places.len());
            places.extend(of_group.iter().map(|(_, place)| *place));
            if let Some(prefix) = prefix(list.at(of_group[0].1)) {
                groups.insert(prefix, start..fit(places.len()));
            }
        }
        Self { list, groups, places }
    }

    /// The group with this prefix.
    pub(super) fn get(&self, prefix: &[u8]) -> Option<Slotted<'_, 'a>> {
        Some(self.at(self.groups.get(prefix)?.clone()))
    }

    /// Takes out the group with this prefix; no elements if there is none.
    pub(super) fn take(&mut self, prefix: &[u8]) -> Slotted<'_, 'a> {
        let range = self.groups.remove(prefix).unwrap_or_default();
        self.at(range)
    }

    fn at(&self, range: Range<u32>) -> Slotted<'_, 'a> {
        Slotted { list: self.list, places: &self.places[fit::<u32, usize>(range.start)..fit(range.end)] }
    }

    /// The elements of the groups that were not taken out.
    pub(super) fn rest(&self) -> impl Iterator<Item = ElementRef<'a>> {
        self.groups.values().flat_map(|range| self.at(range.clone()).elements())
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
