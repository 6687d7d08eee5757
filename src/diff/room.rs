//! How many elements a set is given room for.
//!
//! A set with a size is kept in a hash table that never changes its own size: faster to fill and smaller than the one that grows
//! (measured: 1.6 times). Its size cannot be changed either: a set that becomes too small is made anew, within the transaction that
//! needs more. Pure.

use std::sync::Arc;

use nft::Set;

/// The least room; costs the kernel 16 KiB.
const LEAST: usize = 1024;

/// Whether a set of this kind has a size: those that only this proxy fills, by whole keys. The size that a set of the program has itself
/// stays as it is.
pub(super) fn applies(set: &Set) -> bool {
    let by_ranges_or_rules = set.flags.interval || set.flags.dynamic || set.flags.timeout;
    set.size.is_none() && !by_ranges_or_rules && !set.flags.anonymous
}

/// The set with room for this many elements and a quarter more.
pub(super) fn roomy(set: &Arc<Set>, count: usize) -> Arc<Set> {
    if !applies(set) {
        return Arc::clone(set);
    }
    let size = (count + count / 4).max(LEAST).checked_next_power_of_two().unwrap_or(usize::MAX);
    Arc::new(Set { size: Some(u32::try_from(size).unwrap_or(u32::MAX)), ..Set::clone(set) })
}

/// Whether a present set is the wanted one, whatever room it has.
pub(super) fn is_same_kind(wanted: &Set, present: &Set) -> bool {
    if !applies(wanted) || present.size.is_none() {
        return wanted == present;
    }
    *wanted == Set { size: wanted.size, ..present.clone() }
}

/// Whether a set that is there with this size has to be made anew to hold this many elements as it should.
pub(super) fn is_outgrown(wanted: &Set, size: Option<u32>, count: usize) -> bool {
    let has_room = size.is_some_and(|size| usize::try_from(size).is_ok_and(|size| count <= size));
    applies(wanted) && !has_room
}

#[cfg(test)]
mod tests {
    use nft::{DataType, SetFlags, Types};

    use super::*;

    fn set() -> Arc<Set> {
        Arc::new(Set::new("cluster-ips", Types::Named(vec![DataType::Ipv4Addr])))
    }

    #[test]
    fn there_is_room_for_a_quarter_more() {
        let size = |count| roomy(&set(), count).size;
        assert_eq!([0, 819, 820, 20_000].map(size), [1024, 1024, 2048, 32_768].map(Some));
        assert_eq!(size(1000), Some(2048));
        assert_eq!(size(usize::MAX / 2), Some(u32::MAX));
    }

    #[test]
    fn ranges_and_what_rules_fill_have_none() {
        let ranges = Set { flags: SetFlags { interval: true, ..SetFlags::default() }, ..Set::clone(&set()) };
        let learned = Set { flags: SetFlags { dynamic: true, ..SetFlags::default() }, ..Set::clone(&set()) };
        for set in [ranges, learned] {
            assert_eq!(roomy(&Arc::new(set.clone()), 5000).size, None);
            assert!(!is_outgrown(&set, set.size, 5000));
        }
    }

    #[test]
    fn a_set_is_outgrown_when_it_is_full_or_has_no_size() {
        let wanted = set();
        let present = roomy(&wanted, 10);
        assert!(is_same_kind(&wanted, &present) && is_same_kind(&wanted, &wanted));
        assert!(!is_outgrown(&wanted, present.size, 1024));
        assert!(is_outgrown(&wanted, present.size, 1025));
        assert!(is_outgrown(&wanted, wanted.size, 0));
        assert!(!is_same_kind(&wanted, &Set { comment: Some("x".into()), ..Set::clone(&present) }));
    }
}
