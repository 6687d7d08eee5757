//! Chooses the `size` of a set: the number of elements that the kernel reserves room for.
//!
//! The kernel keeps a set with a `size` in a hash table of fixed size, which is smaller than a table that grows, and faster to fill
//! (measured: 1.6 times, `src/decisions/0001-maps-and-chains.md`). The number of buckets stays as long as the set exists
//! (`nft_hash_init`), so a set that becomes too small is deleted and created again, within the transaction that needs more room. Pure.
//!
//! The kernel rounds four thirds of `size` up to a power of two, and allocates that many pointers (`nft_hash_buckets` in
//! `net/netfilter/nft_set_hash.c`). With a `size` of three times a power of two nothing has to be rounded up.

use std::sync::Arc;

use nft::Set;

/// The smallest size; costs the kernel 8 KiB.
const LEAST: usize = 3 << 8;

/// Whether this module chooses the size of this set: it has no size yet, only this proxy fills it (not rules), its elements have no
/// time-outs, and its keys are not ranges.
pub(super) fn applies(set: &Set) -> bool {
    let by_ranges_or_rules = set.flags.interval || set.flags.dynamic || set.flags.timeout;
    set.size.is_none() && !by_ranges_or_rules && !set.flags.anonymous
}

/// The set with a size for at least this many elements and an eighth more; unchanged if [`applies`] is false for it.
pub(super) fn with_capacity(set: &Arc<Set>, count: usize) -> Arc<Set> {
    if !applies(set) {
        return Arc::clone(set);
    }
    let needed = (count + count / 8).max(LEAST);
    let size = needed.div_ceil(3).checked_next_power_of_two().and_then(|third| third.checked_mul(3));
    let size = size.and_then(|size| u32::try_from(size).ok()).unwrap_or(u32::MAX);
    Arc::new(Set { size: Some(size), ..Set::clone(set) })
}

/// Whether a present set equals the wanted one, except for a size that this module chose.
pub(super) fn is_same_kind(wanted: &Set, present: &Set) -> bool {
    if !applies(wanted) || present.size.is_none() {
        return wanted == present;
    }
    *wanted == Set { size: wanted.size, ..present.clone() }
}

/// Whether an existing set with this size must be created again to have room for this many elements. A set without a size always must, if
/// this module chooses its size.
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
