//! Which value goes into which slot, so that least changes.

use std::hash::Hash;

use foldhash::HashSet;
use nft::Verdict;

use super::values;

/// A value of a slot.
pub(super) trait SlotValue: Clone + Eq + Hash {
    /// Whether the slot is a hole.
    fn is_hole(&self) -> bool;
}

impl SlotValue for &[u8] {
    fn is_hole(&self) -> bool {
        values::is_hole(self)
    }
}

/// `None` is a hole.
impl SlotValue for Option<Verdict> {
    fn is_hole(&self) -> bool {
        self.is_none()
    }
}

/// What to do with a group of slots: slot numbers to empty, and slots to fill. A slot in both lists changes its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotChanges<T> {
    pub(super) delete: Vec<usize>,
    pub(super) add: Vec<(usize, T)>,
}

/// The changes from `present` (by slot, with holes) to the values `wanted`, which must fill slots 0 to n-1.
///
/// Values that are present and in range stay where they are.
pub(super) fn changes<T: SlotValue>(present: &[T], wanted: &[T]) -> SlotChanges<T> {
    let mut result = SlotChanges { delete: Vec::new(), add: Vec::new() };
    let mut missing: HashSet<&T> = wanted.iter().collect();
    let mut open = Vec::new();
    for slot in 0..present.len().max(wanted.len()) {
        let value = present.get(slot).filter(|value| !value.is_hole());
        let in_range = slot < wanted.len();
        match value {
            Some(value) if in_range && missing.remove(value) => {}
            _ => {
                result.delete.extend(value.map(|_| slot));
                open.extend(in_range.then_some(slot));
            }
        }
    }
    // The order of `wanted`, not that of the hash set, so that equal inputs give equal transactions.
    let fill = wanted.iter().filter(|value| missing.contains(value)).cloned();
    result.add = open.into_iter().zip(fill).collect();
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 0 is a hole.
    impl SlotValue for u32 {
        fn is_hole(&self) -> bool {
            *self == 0
        }
    }

    fn apply(present: &[u32], changes: &SlotChanges<u32>) -> Vec<u32> {
        let mut slots = present.to_vec();
        slots.resize(slots.len().max(changes.add.iter().map(|(slot, _)| slot + 1).max().unwrap_or(0)), 0);
        for slot in &changes.delete {
            slots[*slot] = 0;
        }
        for (slot, value) in &changes.add {
            assert!(slots[*slot].is_hole(), "slot {slot} was not emptied");
            slots[*slot] = *value;
        }
        while slots.last().is_some_and(u32::is_hole) {
            slots.pop();
        }
        slots
    }

    #[test]
    fn one_value_replaced_is_one_slot() {
        let result = changes(&[1, 2, 3], &[1, 3, 9]);
        assert_eq!(result, SlotChanges { delete: vec![1], add: vec![(1, 9)] });
    }

    #[test]
    fn one_of_many_removed_moves_at_most_one() {
        let present: Vec<u32> = (1..=5000).collect();
        let wanted: Vec<u32> = (1..=5000).filter(|n| *n != 17).collect();
        let result = changes(&present, &wanted);
        assert_eq!(result.delete, [16, 4999]);
        assert_eq!(result.add, [(16, 5000)]);
    }

    #[test]
    fn one_added_is_one_slot_and_nothing_changed_is_nothing() {
        assert_eq!(changes(&[1, 2], &[3, 2, 1]).add, [(2, 3)]);
        assert_eq!(changes(&[2, 1], &[1, 2]), SlotChanges { delete: vec![], add: vec![] });
    }

    proptest::proptest! {
        #[test]
        fn the_wanted_values_end_up_in_the_first_slots(
            present in proptest::collection::vec(0_u32..12, 0..10),
            wanted in proptest::collection::btree_set(1_u32..12, 0..10),
        ) {
            // A value may be present twice when somebody else wrote.
            let wanted: Vec<u32> = wanted.into_iter().collect();
            let result = changes(&present, &wanted);
            let mut after = apply(&present, &result);
            proptest::prop_assert_eq!(after.len(), wanted.len());
            after.sort();
            let mut sorted = wanted;
            sorted.sort();
            proptest::prop_assert_eq!(after, sorted);
        }
    }
}
