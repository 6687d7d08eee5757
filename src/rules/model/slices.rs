//! The EndpointSlices of one Service.
//!
//! A map from slice name to slice. Invariants: slices are sorted by name, each name once; finding, adding or removing one takes
//! logarithmic time at most. Most Services have few slices, so these lie in a list whose capacity grows by one at a time.

use std::collections::BTreeMap;

use super::endpoint::EndpointSlice;
use super::names::ObjectName;

/// The most slices that are kept in a list. More are kept in a tree, because a search in a list takes time in proportion to its length.
const FEW: usize = 16;

/// Slices sorted by name.
#[derive(Debug)]
pub(super) enum Slices {
    /// At most [`FEW`] slices.
    Few(Vec<EndpointSlice>),
    /// Any number of slices.
    #[expect(clippy::box_collection, reason = "a box keeps the enum as small as a list")]
    Many(Box<BTreeMap<ObjectName, EndpointSlice>>),
}

impl Default for Slices {
    fn default() -> Self {
        Self::Few(Vec::new())
    }
}

impl Slices {
    pub(super) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// All slices, sorted by name.
    pub(super) fn iter(&self) -> impl Iterator<Item = &EndpointSlice> {
        let (few, many) = match self {
            Self::Few(few) => (few.as_slice(), None),
            Self::Many(many) => (&[][..], Some(many)),
        };
        few.iter().chain(many.into_iter().flat_map(|many| many.values()))
    }

    pub(super) fn get(&self, name: &ObjectName) -> Option<&EndpointSlice> {
        match self {
            Self::Few(few) => few.iter().find(|slice| slice.name == *name),
            Self::Many(many) => many.get(name),
        }
    }

    /// Adds a slice; its name must not be there yet.
    pub(super) fn insert(&mut self, slice: EndpointSlice) {
        match self {
            Self::Few(few) if few.len() < FEW => {
                let place = few.partition_point(|other| other.name < slice.name);
                few.reserve_exact(1);
                few.insert(place, slice);
            }
            Self::Few(few) => {
                let all = few.drain(..).chain([slice]).map(|slice| (slice.name.clone(), slice));
                *self = Self::Many(Box::new(all.collect()));
            }
            Self::Many(many) => {
                many.insert(slice.name.clone(), slice);
            }
        }
    }

    /// Removes and returns the slice with this name, if it is there.
    pub(super) fn remove(&mut self, name: &ObjectName) -> Option<EndpointSlice> {
        match self {
            Self::Few(few) => few.iter().position(|slice| slice.name == *name).map(|place| few.remove(place)),
            Self::Many(many) => many.remove(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing::{name, slice};

    #[test]
    fn they_are_in_order_of_name_whether_few_or_many() {
        let names: Vec<String> = (0..3 * FEW).map(|n| format!("ns/slice-{n:02}")).collect();
        let mut slices = Slices::default();
        for (place, slice_name) in names.iter().rev().enumerate() {
            slices.insert(slice(slice_name, "ns/web", &[], &[]));
            let listed: Vec<String> = slices.iter().map(|slice| slice.name.to_string()).collect();
            assert_eq!(listed, names[names.len() - 1 - place..]);
            assert!(slices.get(&name(slice_name)).is_some_and(|slice| slice.name == name(slice_name)));
        }
        assert!(matches!(slices, Slices::Many(_)));
        for (place, slice_name) in names.iter().enumerate() {
            assert!(!slices.is_empty());
            slices.remove(&name(slice_name));
            slices.remove(&name("ns/unknown"));
            assert!(slices.get(&name(slice_name)).is_none());
            assert_eq!(slices.iter().count(), names.len() - 1 - place);
        }
        assert!(slices.is_empty());
    }
}
