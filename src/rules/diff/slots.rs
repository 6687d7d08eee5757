//! Assigns numbers (slots) to the values of a group, such as the endpoints of a frontend, so that as few elements as possible change. The
//! keys of a group's elements differ only in the number at the end.

use std::hash::Hash;

use foldhash::{HashMap, HashMapExt as _};

/// Returns the n wanted values sorted by their new slot, 0 to n-1. A value stays in those of these slots that it has now, at most in as
/// many as it is wanted times; the other values fill the free slots in the order of `wanted`. `present` gives the present value of each
/// slot; `None` is an empty slot.
pub(super) fn arranged<T: Copy + Eq + Hash>(present: impl Iterator<Item = Option<T>>, wanted: &[T]) -> Vec<T> {
    let mut missing: HashMap<T, usize> = HashMap::with_capacity(wanted.len());
    wanted.iter().for_each(|value| *missing.entry(*value).or_default() += 1);
    let mut take =
        |value: &T| missing.get_mut(value).is_some_and(|left| left.checked_sub(1).map(|rest| *left = rest).is_some());
    let keep = |value: Option<T>| value.filter(&mut take);
    let mut slots: Vec<Option<T>> = present.take(wanted.len()).map(keep).collect();
    slots.resize(wanted.len(), None);
    // In the order of `wanted` and not of the hash map, so that equal inputs give equal transactions.
    let mut rest = wanted.iter().copied().filter(take);
    slots.into_iter().filter_map(|slot| slot.or_else(|| rest.next())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrange(present: &[u32], wanted: &[u32]) -> Vec<u32> {
        arranged(present.iter().map(|value| Some(*value).filter(|value| *value != 0)), wanted)
    }

    #[test]
    fn one_value_replaced_is_one_slot() {
        assert_eq!(arrange(&[1, 2, 3], &[1, 3, 9]), [1, 9, 3]);
    }

    #[test]
    fn one_of_many_removed_moves_at_most_one() {
        let present: Vec<u32> = (1..=5000).collect();
        let wanted: Vec<u32> = (1..=5000).filter(|n| *n != 17).collect();
        let after = arrange(&present, &wanted);
        let changed = (0..4999).filter(|slot| after[*slot] != present[*slot]).collect::<Vec<_>>();
        assert_eq!((changed, after[16]), (vec![16], 5000));
    }

    #[test]
    fn one_added_is_one_slot_and_nothing_changed_is_nothing() {
        assert_eq!(arrange(&[1, 2], &[3, 2, 1]), [1, 2, 3]);
        assert_eq!(arrange(&[2, 1], &[1, 2]), [2, 1]);
        assert_eq!(arrange(&[], &[1, 2]), [1, 2]);
    }

    // An endpoint with a larger weight than others has several slots.
    #[test]
    fn a_value_that_is_wanted_several_times_keeps_as_many_slots() {
        assert_eq!(arrange(&[1, 2, 1, 3], &[1, 1, 1, 3]), [1, 1, 1, 3]);
        assert_eq!(arrange(&[1, 1, 1, 3], &[1, 3, 3, 3]), [1, 3, 3, 3]);
        assert_eq!(arrange(&[3, 1, 1, 2], &[1, 1, 2]), [2, 1, 1]);
    }

    proptest::proptest! {
        #[test]
        fn every_wanted_value_has_its_slots_and_stays_where_it_is_if_it_can(
            present in proptest::collection::vec(0_u32..12, 0..14),
            mut wanted in proptest::collection::vec(1_u32..12, 0..14),
        ) {
            wanted.sort();
            let mut after = arrange(&present, &wanted);
            let count = |list: &[u32], value: u32| list.iter().filter(|other| **other == value).count();
            for (slot, value) in present.iter().enumerate().take(wanted.len()) {
                let is_kept = count(&present[..slot], *value) < count(&wanted, *value);
                proptest::prop_assert!(!is_kept || after[slot] == *value);
            }
            after.sort();
            proptest::prop_assert_eq!(after, wanted);
        }
    }
}
