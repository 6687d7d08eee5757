//! The objects that a table has for one owner (a Service, or the node), packed to save memory, because there is a record for each Service.
//!
//! Takes a [`ServiceObjects`]; returns its entries sorted by set and key. An entry is an element, or a group of numbered elements
//! ([`Slots`](crate::table::Slots)) with its values sorted by number. Invariant: a record has one entry for each key of a set, and one
//! object of each name; if the input has several, the last one counts.

use std::cmp::Ordering;
use std::sync::Arc;

use nft::packed::pack;
use nft::{Data, ElementRef, Set, Verdict};

use super::slot_key;
use super::slots::arranged;
use crate::table::{ChainContent, DynamicSet, ServiceObjects, VerdictMap, fit};

/// The packed objects of one owner in a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The entries, one after the other: each has a head ([`HEAD`]), then an element as [`pack`] writes it, or a group.
    entries: Box<[u8]>,
    own: Option<Box<Own>>,
}

/// Sets and chains that belong to one owner only, each list sorted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Own {
    pub(super) dynamic_sets: Vec<DynamicSet>,
    pub(super) verdict_maps: Vec<VerdictMap>,
    pub(super) chains: Vec<ChainContent>,
}

/// An entry of a record, with the number of its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    pub(super) set: u16,
    /// Its element or group.
    pub content: Content<'a>,
}

/// What an entry stands for in its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// One element that is not in a group.
    Element(ElementRef<'a>),
    /// A group of numbered elements.
    Group(Group<'a>),
}

/// A group of numbered elements: its values have the keys `prefix . 0`, `prefix . 1` and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    pub(super) prefix: &'a [u8],
    width: usize,
    values: &'a [u8],
    is_fixed: bool,
}

/// The number of a set and a key in it; for a group the prefix of its keys.
pub(super) type ElementKey = (u16, Data);

/// Converts a packed key or value to `Data`; records are packed from `Data`, so this cannot fail.
pub(super) fn data(bytes: &[u8]) -> Data {
    Data::from_bytes(bytes).expect("packed from Data")
}

/// The length of an entry's head: two bytes for the set's number and four for the length of the body. The highest bit of the set's
/// number marks a group, the next bit a group whose values have fixed numbers.
const HEAD: usize = 6;
const IS_GROUP: u16 = 1 << 15;
const IS_FIXED: u16 = 1 << 14;
/// Estimates of the bytes that an entry takes, and that the values of a group take, so that a buffer seldom has to grow.
const ROOM_PER_ENTRY: usize = 64;
const ROOM_PER_GROUP: usize = 96;
/// The length in bytes of the number at the end of a key.
const SLOT_NUMBER: usize = 4;

impl<'a> Group<'a> {
    /// The values, sorted by their numbers.
    pub fn values(self) -> impl ExactSizeIterator<Item = &'a [u8]> {
        self.values.chunks_exact(self.width)
    }

    /// Whether another group has the same values with the same numbers.
    #[must_use]
    pub fn has_values_of(self, other: Self) -> bool {
        self.values == other.values
    }

    /// The number of values.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "there is no group without values")]
    pub fn len(self) -> usize {
        self.values.len() / self.width
    }

    fn read(body: &'a [u8], is_fixed: bool) -> Self {
        let (len, rest) = (usize::from(body[0]), &body[1..]);
        let (prefix, rest) = rest.split_at(len);
        Self { prefix, width: usize::from(rest[0]), values: &rest[1..], is_fixed }
    }
}

impl<'a> Entry<'a> {
    pub(super) fn element(self) -> Option<ElementRef<'a>> {
        match self.content {
            Content::Element(element) => Some(element),
            Content::Group(_) => None,
        }
    }

    pub(super) fn group(self) -> Option<Group<'a>> {
        match self.content {
            Content::Group(group) => Some(group),
            Content::Element(_) => None,
        }
    }

    /// The key of the element, or the prefix of the group's keys.
    pub(super) fn key(self) -> &'a [u8] {
        match self.content {
            Content::Element(element) => element.key(),
            Content::Group(group) => group.prefix,
        }
    }

    /// The number of elements that this entry has in the table.
    pub(super) fn len(self) -> usize {
        match self.content {
            Content::Element(_) => 1,
            Content::Group(group) => group.len(),
        }
    }

    /// The sort key of entries; it is unique within a record.
    pub(super) fn set_and_key(self) -> (u16, &'a [u8]) {
        (self.set, self.key())
    }

    /// The set and key of this entry, as an owned value.
    pub(super) fn element_key(self) -> ElementKey {
        (self.set, data(self.key()))
    }
}

/// Packs the entries of a record.
struct Writer {
    bytes: Vec<u8>,
    /// The offset of each entry in `bytes`.
    starts: Vec<usize>,
}

impl Writer {
    fn entry(&mut self, set: u16, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        self.starts.push(start);
        self.bytes.extend_from_slice(&set.to_ne_bytes());
        self.bytes.extend_from_slice(&[0; HEAD - 2]);
        write(&mut self.bytes);
        let len: u32 = fit(self.bytes.len() - start - HEAD);
        self.bytes[start + 2..start + HEAD].copy_from_slice(&len.to_ne_bytes());
    }

    fn group<'a>(&mut self, set: u16, prefix: &[u8], width: usize, values: impl Iterator<Item = &'a [u8]>) {
        self.entry(set, |bytes| {
            for (len, part) in [(prefix.len(), prefix), (width, &[][..])] {
                bytes.push(fit(len));
                bytes.extend_from_slice(part);
            }
            for value in values {
                bytes.extend_from_slice(value);
            }
        });
    }

    /// Sorts the entries by set and key. If several have the same key, keeps the last one.
    fn finish(self) -> Box<[u8]> {
        let key = |start: &usize| Entries(&self.bytes[*start..]).next().map(Entry::set_and_key);
        let starts = &self.starts;
        if starts.is_sorted_by(|a, b| key(a) < key(b)) {
            return self.bytes.into();
        }
        let mut order = starts.clone();
        order.sort_by(|a, b| key(a).cmp(&key(b)).then(b.cmp(a)));
        order.dedup_by(|later, first| key(later) == key(first));
        let whole = |start: usize| &self.bytes[start..start + HEAD + body_len(&self.bytes[start..])];
        order.into_iter().flat_map(whole).copied().collect()
    }
}

fn body_len(entry: &[u8]) -> usize {
    fit(u32::from_ne_bytes([entry[2], entry[3], entry[4], entry[5]]))
}

/// An iterator over packed entries.
pub(super) struct Entries<'a>(&'a [u8]);

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        if self.0.is_empty() {
            return None;
        }
        let (head, rest) = self.0.split_at(HEAD);
        let (body, rest) = rest.split_at(body_len(head));
        self.0 = rest;
        let set = u16::from_ne_bytes([head[0], head[1]]);
        let content = if set & IS_GROUP == 0 {
            Content::Element(ElementRef::from_packed(body))
        } else {
            Content::Group(Group::read(body, set & IS_FIXED != 0))
        };
        Some(Entry { set: set & !(IS_GROUP | IS_FIXED), content })
    }
}

impl Record {
    /// Packs the objects of an owner. The values of a group get numbers in the order of the list.
    pub(super) fn new(objects: ServiceObjects, set_number: impl Fn(&str) -> u16) -> Self {
        let count = objects.elements.len() + objects.slots.len();
        let bytes = Vec::with_capacity(count * ROOM_PER_ENTRY + objects.slots.len() * ROOM_PER_GROUP);
        let mut writer = Writer { bytes, starts: Vec::with_capacity(count) };
        for (set, element) in &objects.elements {
            writer.entry(set_number(set), |bytes| pack(bytes, element));
        }
        for group in &objects.slots {
            // A group without values has no elements in the table, so it gets no entry.
            if !group.values.is_empty() {
                let (first, values) = (slot_key(&group.prefix, 0), &group.values);
                let prefix = &first.as_slice()[..first.len() - SLOT_NUMBER];
                let kind = if group.is_fixed { IS_GROUP | IS_FIXED } else { IS_GROUP };
                writer.group(set_number(&group.set) | kind, prefix, values.width(), values.iter());
            }
        }
        let ServiceObjects { mut dynamic_sets, mut verdict_maps, mut chains, .. } = objects;
        by_name(&mut dynamic_sets, |map| &map.set.name);
        by_name(&mut verdict_maps, |verdict_map| &verdict_map.set.name);
        by_name(&mut chains, |content| &content.chain.name);
        let own = Own { dynamic_sets, verdict_maps, chains };
        Self { entries: writer.finish(), own: (own != Own::default()).then(|| Box::new(own)) }
    }

    /// Whether the record has no objects.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.own.is_none()
    }

    /// Whether the record has sets or chains that belong to its owner only.
    pub(super) fn has_own(&self) -> bool {
        self.own.is_some()
    }

    /// The number of bytes at the start of a record's entries that are enough to tell most records apart: the head, the flags and length of
    /// the first key, and an address.
    pub(super) const BEGINNING: usize = HEAD + 2 + 16;

    /// The first bytes of the entries, padded with zeros.
    pub(super) fn beginning(&self) -> [u8; Self::BEGINNING] {
        let mut beginning = [0; Self::BEGINNING];
        let len = self.entries.len().min(Self::BEGINNING);
        beginning[..len].copy_from_slice(&self.entries[..len]);
        beginning
    }

    /// Compares two records by the bytes of their entries.
    pub(super) fn cmp_entries(&self, other: &Self) -> Ordering {
        self.entries.cmp(&other.entries)
    }

    /// The entries, sorted by set and key.
    pub(super) fn entries(&self) -> Entries<'_> {
        Entries(&self.entries)
    }

    pub(super) fn dynamic_sets(&self) -> &[DynamicSet] {
        self.own.as_ref().map_or(&[], |own| &own.dynamic_sets)
    }

    pub(super) fn verdict_maps(&self) -> &[VerdictMap] {
        self.own.as_ref().map_or(&[], |own| &own.verdict_maps)
    }

    pub(super) fn chains(&self) -> &[ChainContent] {
        self.own.as_ref().map_or(&[], |own| &own.chains)
    }

    /// Gives values and verdicts the numbers that they have in another record, where possible, unless their numbers are fixed.
    pub(super) fn arranged_like(self, other: &Self) -> Self {
        let mut entries = other.entries();
        let mut next = entries.next();
        // Both records are sorted by set and key, so one pass over the entries of `other` is enough.
        let slots = |set: u16, wanted: Group<'_>| {
            while let Some(entry) = next
                && entry.set_and_key() < (set, wanted.prefix)
            {
                next = entries.next();
            }
            let now = next.filter(|entry| entry.set_and_key() == (set, wanted.prefix)).and_then(Entry::group)?;
            if now.values == wanted.values { None } else { Some(now.values().map(Some).collect()) }
        };
        let verdict_map = |name: &str| Some(other.verdict_map(name)?.verdicts.iter().cloned().map(Some).collect());
        self.arranged(slots, verdict_map).unwrap_or(self)
    }

    /// Returns this record with values and verdicts under their present numbers, where possible, unless their numbers are fixed; `None` if
    /// nothing changes. `slots` returns the present values of a group by number, and `verdict_map` the present verdicts of a map by number;
    /// both return `None` if there are none, and `slots` may do so if the present values equal the wanted ones.
    pub(super) fn arranged<'a>(
        &self,
        mut slots: impl FnMut(u16, Group<'_>) -> Option<Vec<Option<&'a [u8]>>>,
        verdict_map: impl Fn(&str) -> Option<Vec<Option<Verdict>>>,
    ) -> Option<Self> {
        let mut arranged = self.clone();
        let mut changes = false;
        let mut entries = self.entries();
        while let Some(entry) = entries.next() {
            let Some(group) = entry.group().filter(|group| !group.is_fixed) else { continue };
            if let Some(now) = slots(entry.set, group) {
                let wanted: Vec<&[u8]> = group.values().collect();
                let values = self::arranged(now.into_iter(), &wanted);
                changes |= values != wanted;
                // The values are the last bytes of the entry.
                let end = self.entries.len() - entries.0.len();
                let slots = arranged.entries[end - group.values.len()..end].chunks_exact_mut(group.width);
                for (slot, value) in slots.zip(values) {
                    slot.copy_from_slice(value);
                }
            }
        }
        let verdict_maps = arranged.own.iter_mut().flat_map(|own| &mut own.verdict_maps);
        for own_map in verdict_maps.filter(|verdict_map| !verdict_map.is_fixed) {
            if let Some(now) = verdict_map(&own_map.set.name) {
                let wanted: Vec<&Verdict> = own_map.verdicts.iter().collect();
                let now = now.iter().map(Option::as_ref);
                let verdicts: Vec<Verdict> = self::arranged(now, &wanted).into_iter().cloned().collect();
                changes |= verdicts != own_map.verdicts;
                own_map.verdicts = verdicts;
            }
        }
        changes.then_some(arranged)
    }

    /// The owner's chain with this name.
    pub(super) fn chain(&self, name: &str) -> Option<&ChainContent> {
        find(self.chains(), name, |content| &content.chain.name)
    }

    /// The owner's map from numbers to verdicts with this name.
    pub(super) fn verdict_map(&self, name: &str) -> Option<&VerdictMap> {
        find(self.verdict_maps(), name, |verdict_map| &verdict_map.set.name)
    }

    /// The owner's dynamic set with this name.
    pub(super) fn dynamic_set(&self, name: &str) -> Option<&DynamicSet> {
        find(self.dynamic_sets(), name, |map| &map.set.name)
    }

    /// Whether the owner has a set or map with this name that belongs to it only.
    pub(super) fn has_own_set(&self, name: &str) -> bool {
        self.dynamic_set(name).is_some() || self.verdict_map(name).is_some()
    }

    /// The sets and maps that belong to the owner only.
    pub(super) fn own_sets(&self) -> impl Iterator<Item = &Arc<Set>> {
        let dynamic_sets = self.dynamic_sets().iter().map(|map| &map.set);
        dynamic_sets.chain(self.verdict_maps().iter().map(|verdict_map| &verdict_map.set))
    }

    /// This record without the entries for which `is_left_out` is true.
    pub(super) fn without(&self, is_left_out: impl Fn(Entry<'_>) -> bool) -> Self {
        let mut entries = Vec::new();
        let mut rest = self.entries();
        while let (before, Some(entry)) = (rest.0, rest.next()) {
            if !is_left_out(entry) {
                entries.extend_from_slice(&before[..before.len() - rest.0.len()]);
            }
        }
        Self { entries: entries.into(), own: self.own.clone() }
    }
}

/// Finds an object by name in a list that is sorted by name.
fn find<'a, T>(objects: &'a [T], name: &str, name_of: impl Fn(&T) -> &Arc<str>) -> Option<&'a T> {
    objects.binary_search_by(|object| (**name_of(object)).cmp(name)).ok().map(|index| &objects[index])
}

/// Sorts objects by name. If several have the same name, keeps the last one.
fn by_name<T>(objects: &mut Vec<T>, name: impl Fn(&T) -> &Arc<str>) {
    objects.reverse();
    objects.sort_by(|a, b| name(a).cmp(name(b)));
    objects.dedup_by(|later, first| name(later) == name(first));
    objects.shrink_to_fit();
}

#[cfg(test)]
mod tests {
    use nft::{Data, Element, Value};

    use super::*;
    use crate::table::{SetName, Slots};

    const SETS: [&str; 2] = ["plain", "slotted"];

    fn record(objects: ServiceObjects) -> Record {
        Record::new(objects, |name| SETS.iter().position(|set| *set == name).unwrap().try_into().unwrap())
    }

    fn element(key: u32, value: u16) -> (SetName, Element) {
        (SETS[0].into(), Element::mapping(Data::from(key), Value::Data(Data::from(value))))
    }

    fn group(prefix: u8, values: &[u16]) -> Slots {
        let values = values.iter().map(|value| Data::from(*value)).collect();
        Slots { set: SETS[1].into(), prefix: Data::from(prefix), values, is_fixed: false }
    }

    fn values(record: &Record) -> Vec<Vec<u16>> {
        let value = |bytes: &[u8]| u16::from_be_bytes(bytes.try_into().unwrap());
        record.entries().filter_map(Entry::group).map(|group| group.values().map(value).collect()).collect()
    }

    #[test]
    fn entries_are_in_order_and_of_two_with_one_key_the_last_counts() {
        let elements = vec![element(9, 1), element(7, 2), element(9, 3)];
        let slots = vec![group(5, &[1, 2]), group(4, &[]), group(3, &[4])];
        let record = record(ServiceObjects { elements, slots, ..ServiceObjects::default() });
        let found: Vec<_> = record.entries().filter_map(Entry::element).map(ElementRef::element).collect();
        assert_eq!(found, [element(7, 2).1, element(9, 3).1]);
        let prefixes: Vec<&[u8]> = record.entries().filter_map(Entry::group).map(|group| group.prefix).collect();
        assert_eq!(prefixes, [[3, 0, 0, 0], [5, 0, 0, 0]], "padded, as in a key with a slot behind it");
        assert_eq!((values(&record), record.entries().map(Entry::len).sum::<usize>()), (vec![vec![4], vec![1, 2]], 5));
    }

    #[test]
    fn values_keep_their_slots() {
        let with = |slots| record(ServiceObjects { slots, ..ServiceObjects::default() });
        let before = with(vec![group(3, &[7, 8, 9]), group(5, &[1])]);
        let now = with(vec![group(3, &[6, 7, 9]), group(4, &[2, 1])]).arranged_like(&before);
        assert_eq!(values(&now), [vec![7, 6, 9], vec![2, 1]]);
    }

    #[test]
    fn fixed_numbers_stay_whatever_was_there() {
        let fixed = |values: &[u16]| Slots { is_fixed: true, ..group(3, values) };
        let with = |slots| record(ServiceObjects { slots: vec![slots], ..ServiceObjects::default() });
        let before = with(fixed(&[7, 8, 9]));
        assert_eq!(values(&with(fixed(&[6, 7, 9])).arranged_like(&before)), [vec![6, 7, 9]]);
        assert_eq!(values(&with(group(3, &[6, 7, 9])).arranged_like(&before)), [vec![7, 6, 9]]);
    }

    #[test]
    fn entries_can_be_left_out() {
        let elements = vec![element(7, 2), element(9, 3)];
        let whole = record(ServiceObjects { elements, slots: vec![group(5, &[1])], ..ServiceObjects::default() });
        let rest = record(ServiceObjects { elements: vec![element(9, 3)], ..ServiceObjects::default() });
        let is_left_out = |entry: Entry<'_>| entry.set == 1 || entry.key() == 7_u32.to_ne_bytes();
        assert_eq!(whole.without(is_left_out), rest);
        assert!(rest.without(|_| true).is_empty() && whole.without(|_| false) == whole);
    }
}
