//! Parses maps from numbers to verdicts that were read from the kernel; another program may have changed them. A rule chooses a number in
//! such a map, at random or by a hash, and the verdict leads to the chain of an endpoint.

use std::collections::BTreeSet;

use nft::packed::Parts;
use nft::{DataType, ElementRef, Elements, Set, Value, ValueType, Verdict};

/// Whether a set has the type of a map from numbers to verdicts, and is neither anonymous nor dynamic.
pub(super) fn can_be_verdict_map(set: &Set) -> bool {
    let is_number = matches!(set.key.data_types()[..], [DataType::Integer]);
    is_number && set.value == Some(ValueType::Verdict) && !set.flags.anonymous && !set.flags.dynamic
}

/// The verdicts of a map by number. Leaves out elements that this proxy never writes.
pub(super) fn numbered_verdicts(elements: &Elements) -> Vec<Option<Verdict>> {
    let mut verdicts = vec![None; elements.len()];
    for element in elements {
        if let Some((number, verdict)) = numbered_verdict(element)
            && let Some(place) = verdicts.get_mut(number)
        {
            *place = Some(verdict);
        }
    }
    verdicts
}

fn numbered_verdict(element: ElementRef<'_>) -> Option<(usize, Verdict)> {
    let Parts { key, key_end: None, value, timeout: None, comment: None } = element.parts() else { return None };
    let Value::Verdict(verdict) = value.value() else { return None };
    let number = u32::from_ne_bytes(key.try_into().ok()?);
    Some((usize::try_from(number).ok()?, verdict))
}

/// The keys of those elements of a map from numbers to verdicts that this proxy never writes. The n elements that it writes have the
/// numbers 0 to n-1, and only a key and a verdict.
pub(super) fn not_of_a_verdict_map(elements: &Elements) -> Elements {
    let mut keys: BTreeSet<&[u8]> = BTreeSet::new();
    for element in elements {
        match numbered_verdict(element) {
            Some((number, _)) if number < elements.len() => {}
            _ => drop(keys.insert(element.key())),
        }
    }
    let mut list = Elements::default();
    for key in keys {
        list.push_joined([key, &[]], None);
    }
    list
}
