//! The size of a set: for how many elements the kernel makes room.
//!
//! A set with a size is kept in a hash table that never changes its own size: faster to fill and smaller than the one that grows
//! (measured: 1.6 times). Its size cannot be changed either: a set that becomes too small is made anew, within the transaction that
//! needs more. Pure.
//!
//! The kernel rounds four thirds of the size up to a power of two, and takes a table of so many pointers (`nft_hash_buckets` in
//! `net/netfilter/nft_set_hash.c`). So only three times a power of two has no pointers to spare.

use std::sync::Arc;

use nft::Set;

/// The least room; costs the kernel 8 KiB.
const LEAST: usize = 3 << 8;

/// Whether a set of this kind has a size: those that only this proxy fills, by whole keys. The size that a set of the static rules has itself
/// stays as it is.
pub(super) fn applies(set: &Set) -> bool {
    let by_ranges_or_rules = set.flags.interval || set.flags.dynamic || set.flags.timeout;
    set.size.is_none() && !by_ranges_or_rules && !set.flags.anonymous
}

/// The set with room for this many elements and an eighth more.
pub(super) fn with_capacity(set: &Arc<Set>, count: usize) -> Arc<Set> {
    if !applies(set) {
        return Arc::clone(set);
    }
    let needed = (count + count / 8).max(LEAST);
    let size = needed.div_ceil(3).checked_next_power_of_two().and_then(|third| third.checked_mul(3));
    let size = size.and_then(|size| u32::try_from(size).ok()).unwrap_or(u32::MAX);
    Arc::new(Set { size: Some(size), ..Set::clone(set) })
}

/// Whether a present set is the wanted one, whatever room it has.
pub(super) fn is_same_kind(wanted: &Set, present: &Set) -> bool {
    if !applies(wanted) || present.size.is_none() {
        return wanted == present;
    }
    *wanted == Set { size: wanted.size, ..present.clone() }
}

/// Whether a set that is there with this size has to be made anew to hold this many elements as it should.
pub(super) fn needs_resize(wanted: &Set, size: Option<u32>, count: usize) -> bool {
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
    fn there_is_room_for_an_eighth_more_and_a_third_of_it_is_a_power_of_two() {
        let size = |count| with_capacity(&set(), count).size;
        assert_eq!([0, 682, 683, 684, 20_000].map(size), [768, 768, 768, 1536, 24_576].map(Some));
        assert_eq!(size(1_000_000), Some(1_572_864));
        assert_eq!(size(usize::MAX / 2), Some(u32::MAX));
    }

    #[test]
    fn ranges_and_what_rules_fill_have_none() {
        let ranges = Set { flags: SetFlags { interval: true, ..SetFlags::default() }, ..Set::clone(&set()) };
        let dynamic = Set { flags: SetFlags { dynamic: true, ..SetFlags::default() }, ..Set::clone(&set()) };
        for set in [ranges, dynamic] {
            assert_eq!(with_capacity(&Arc::new(set.clone()), 5000).size, None);
            assert!(!needs_resize(&set, set.size, 5000));
        }
    }

    #[test]
    fn a_set_is_outgrown_when_it_is_full_or_has_no_size() {
        let wanted = set();
        let present = with_capacity(&wanted, 10);
        assert!(is_same_kind(&wanted, &present) && is_same_kind(&wanted, &wanted));
        assert!(!needs_resize(&wanted, present.size, 768));
        assert!(needs_resize(&wanted, present.size, 769));
        assert!(needs_resize(&wanted, wanted.size, 0));
        assert!(!is_same_kind(&wanted, &Set { comment: Some("x".into()), ..Set::clone(&present) }));
    }
}
