//! A multiset of address ranges (CIDRs) that can tell whether an address is in one of them.
//!
//! Counts how often each range was added; ignores host bits. Invariant: a lookup takes at most one hash lookup for each prefix length in
//! use, so at most 33 for IPv4 and 129 for IPv6, however many ranges there are.

use std::collections::BTreeMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::net::IpAddr;

use foldhash::HashMap;
use ipnet::IpNet;

use super::names::Family;

/// A multiset of ranges: a range that was added several times must be removed as many times.
#[derive(Debug, Default)]
pub struct Ranges {
    listed: HashMap<IpNet, usize>,
    /// The number of different ranges with each prefix length.
    lengths: BTreeMap<(Family, u8), usize>,
}

impl FromIterator<IpNet> for Ranges {
    fn from_iter<I: IntoIterator<Item = IpNet>>(list: I) -> Self {
        let mut ranges = Self::default();
        list.into_iter().for_each(|range| {
            ranges.insert(range);
        });
        ranges
    }
}

impl Ranges {
    /// Adds a range. Returns true if the multiset did not have it yet.
    pub(super) fn insert(&mut self, range: IpNet) -> bool {
        let listed = self.listed.entry(range.trunc()).or_default();
        *listed += 1;
        let is_new = *listed == 1;
        if is_new {
            *self.lengths.entry(length(range)).or_default() += 1;
        }
        is_new
    }

    /// Removes a range once. Returns true if that was its last occurrence.
    pub(super) fn remove(&mut self, range: IpNet) -> bool {
        let is_gone = take_one(&mut self.listed, range.trunc());
        if is_gone && let Some(ranges) = self.lengths.get_mut(&length(range)) {
            *ranges -= 1;
            if *ranges == 0 {
                self.lengths.remove(&length(range));
            }
        }
        is_gone
    }

    /// Whether an address is in one of the ranges.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let family = Family::of(ip);
        let mut lengths = self.lengths.range((family, 0)..=(family, u8::MAX)).map(|((_, length), _)| *length);
        lengths.any(|length| IpNet::new(ip, length).is_ok_and(|range| self.listed.contains_key(&range.trunc())))
    }
}

fn length(range: IpNet) -> (Family, u8) {
    (Family::of(range.addr()), range.prefix_len())
}

/// Decrements the count of a key, and removes the key at 0. Returns true if it was removed.
pub(super) fn take_one<K: Eq + Hash>(listed: &mut HashMap<K, usize>, key: K) -> bool {
    let Entry::Occupied(mut times) = listed.entry(key) else { return false };
    *times.get_mut() -= 1;
    let is_last = *times.get() == 0;
    if is_last {
        times.remove();
    }
    is_last
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_is_in_the_ranges_until_the_last_one_with_it_is_gone() {
        let mut ranges = Ranges::default();
        let holds =
            |ranges: &Ranges| ["10.96.0.1", "10.97.0.1", "fd00::1"].map(|ip| ranges.contains(ip.parse().unwrap()));
        assert_eq!(holds(&ranges), [false; 3]);
        assert!(ranges.insert(range("10.96.0.0/16")));
        assert!(!ranges.insert(range("10.96.7.7/16")), "the same range, with host bits");
        assert!(ranges.insert(range("10.96.0.0/15")) && ranges.insert(range("::/0")));
        assert_eq!(holds(&ranges), [true, true, true]);
        assert!(!ranges.remove(range("10.96.0.0/16")) && ranges.remove(range("10.96.0.0/15")));
        assert_eq!(holds(&ranges), [true, false, true]);
        assert!(ranges.remove(range("10.96.0.0/16")) && ranges.remove(range("::/0")));
        assert_eq!(holds(&ranges), [false; 3]);
        assert!(!ranges.remove(range("::/0")), "it was not there");
        assert_eq!((ranges.listed.len(), ranges.lengths.len()), (0, 0));
    }
}
