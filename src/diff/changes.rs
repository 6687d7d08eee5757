//! What to delete from and add to one set.
//!
//! Takes wanted and present content, gives two lists of elements. Invariant: equal inputs give equal lists, whatever the order of the
//! hash maps.

use std::sync::Arc;

use foldhash::HashSet;
use nft::{Data, Element, Set, Value, Verdict};

use super::desired::DesiredSet;
use super::realised::RealisedSet;
use super::stored::Stored;
use super::values::Values;
use super::{Choice, slot_key, slots};

/// What to delete from and add to one set. An element in both lists changes its value.
#[derive(Default)]
pub(super) struct ElementChanges {
    pub(super) delete: Vec<Element>,
    pub(super) add: Vec<Element>,
}

impl ElementChanges {
    /// Everything that differs.
    pub(super) fn of_set(set: &Set, wanted: &DesiredSet, present: Option<&RealisedSet>) -> Self {
        let mut changes = Self::default();
        // What rules put into a dynamic set is theirs.
        if set.flags.dynamic {
            return changes;
        }
        changes.add.reserve_exact(if present.is_none() { wanted.len() } else { 0 });
        let all = present.into_iter().flat_map(RealisedSet::elements);
        let of_present = |key: &Data| present.and_then(|set| set.element(key));
        for (key, wanted, present) in differences(wanted.elements(), all, |key| wanted.element(key), of_present) {
            changes.element(&key, wanted, present);
        }
        let all = present.into_iter().flat_map(RealisedSet::groups);
        let of_present = |prefix: &Data| present.and_then(|set| set.slots(prefix));
        for (prefix, wanted, present) in differences(wanted.groups(), all, |prefix| wanted.slots(prefix), of_present) {
            changes.slots(&prefix, wanted, present);
        }
        changes
    }

    /// What differs at a key.
    pub(super) fn element(&mut self, key: &Data, wanted: Option<&Stored>, present: Option<&Stored>) {
        if wanted != present {
            self.delete.extend(present.map(|stored| stored.element(key)));
            self.add.extend(wanted.map(|stored| stored.element(key)));
        }
    }

    /// What differs in a group of slots.
    pub(super) fn slots(&mut self, prefix: &Data, wanted: Option<&Values>, present: Option<&Values>) {
        let Some(present) = present else {
            let values = wanted.into_iter().flat_map(Values::data).enumerate();
            self.add.extend(values.map(|(slot, value)| Element::mapping(slot_key(prefix, slot), Value::Data(value))));
            return;
        };
        let wanted: Vec<&[u8]> = wanted.into_iter().flat_map(Values::iter).collect();
        let changes = slots::changes(&present.iter().collect::<Vec<_>>(), &wanted);
        self.delete.extend(changes.delete.into_iter().map(|slot| Element::new(slot_key(prefix, slot))));
        let add = |(slot, value): (usize, &[u8])| {
            let value = Data::from_bytes(value).expect("values are made from Data");
            Element::mapping(slot_key(prefix, slot), Value::Data(value))
        };
        self.add.extend(changes.add.into_iter().map(add));
    }

    /// What differs in the map of a choice.
    pub(super) fn of_choice(choice: &Choice, present: Option<&RealisedSet>) -> Self {
        // Numbers from 0 up without a gap, whatever else is there is somebody else's and goes.
        let count = present.map_or(0, |set| set.elements().len()).max(choice.verdicts.len());
        let numbers: Vec<Data> = (0..count).map(|number| slot_key(&Data::EMPTY, number)).collect();
        let verdict = |key: &Data| present?.element(key)?.bare_verdict().cloned();
        let by_number: Vec<Option<Verdict>> = numbers.iter().map(verdict).collect();
        let wanted: Vec<Option<Verdict>> = choice.verdicts.iter().cloned().map(Some).collect();
        let changes = slots::changes(&by_number, &wanted);
        let mut delete: Vec<Element> = changes.delete.into_iter().map(|number| Element::new(numbers[number])).collect();
        let known: HashSet<&Data> = numbers.iter().collect();
        let foreign = present.into_iter().flat_map(RealisedSet::elements);
        let foreign = foreign.filter(|(key, stored)| !known.contains(key) || stored.bare_verdict().is_none());
        delete.extend(foreign.map(|(key, _)| Element::new(*key)));
        let add = |(number, verdict): (usize, Option<Verdict>)| Some(Choice::element(number, verdict?));
        let mut changes = Self { delete, add: changes.add.into_iter().filter_map(add).collect() };
        changes.sort();
        changes
    }

    /// Puts what was noted one by one into an order.
    pub(super) fn sort(&mut self) {
        self.delete.sort_by_key(|element| element.key);
        self.add.sort_by_key(|element| element.key);
    }

    /// The chains that the new elements lead to.
    pub(super) fn targets(&self) -> impl Iterator<Item = &Arc<str>> {
        self.add.iter().filter_map(|element| match &element.value {
            Value::Verdict(verdict) => verdict.chain(),
            Value::None | Value::Data(_) => None,
        })
    }
}

/// What is wanted and what is present at each key where the two are not the same, in the order of the keys.
fn differences<'a, T: PartialEq + 'a>(
    wanted: impl Iterator<Item = (&'a Data, &'a T)>,
    present: impl Iterator<Item = (&'a Data, &'a T)>,
    wanted_at: impl Fn(&Data) -> Option<&'a T>,
    present_at: impl Fn(&Data) -> Option<&'a T>,
) -> Vec<(Data, Option<&'a T>, Option<&'a T>)> {
    // Keys are copied: those in the hash maps lie far apart, and sorting looks at each many times.
    let wanted = wanted.map(|(key, value)| (*key, Some(value), present_at(key)));
    let surplus = present.filter(|(key, _)| wanted_at(key).is_none()).map(|(key, value)| (*key, None, Some(value)));
    let mut differing: Vec<_> = wanted.chain(surplus).filter(|(_, wanted, present)| wanted != present).collect();
    differing.sort_unstable_by_key(|(key, ..)| *key);
    differing
}
