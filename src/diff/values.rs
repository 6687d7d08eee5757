//! The values of a group of slots, packed: a cluster has hundreds of thousands of them, some ten to a group.
//!
//! Takes and gives [`Data`] or plain bytes. Invariants: all values of a list have the same length; a value whose bytes are all zero
//! is a hole, and the last value is none.

use nft::Data;

/// Values of one length, by slot.
#[derive(Clone, Debug, Default)]
pub struct Values {
    width: u8,
    bytes: Vec<u8>,
}

impl Values {
    /// Number of slots up to the last that holds a value.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len().checked_div(self.width()).unwrap_or(0)
    }

    /// Whether there is no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Every slot in order, holes included.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + DoubleEndedIterator {
        self.bytes.chunks_exact(self.width().max(1))
    }

    /// Every slot in order, as [`Data`].
    pub fn data(&self) -> impl ExactSizeIterator<Item = Data> {
        self.iter().map(|bytes| Data::from_bytes(bytes).expect("values are made from Data"))
    }

    /// Whether a value can be in a slot of this list: it is no hole, and has the length of the others.
    pub(super) fn can_hold(&self, value: &Data) -> bool {
        !is_hole(value.as_slice()) && (self.is_empty() || value.len() == self.width())
    }

    /// Puts a value that [`Values::can_hold`] into a slot. Says whether the slot was a hole.
    pub(super) fn set(&mut self, slot: usize, value: &Data) -> bool {
        if self.is_empty() {
            self.width = u8::try_from(value.len()).expect("Data is short");
        }
        let place = self.place(slot);
        if self.bytes.len() < place.end {
            self.bytes.reserve_exact(place.end - self.bytes.len());
            self.bytes.resize(place.end, 0);
        }
        let bytes = &mut self.bytes[place];
        let was_hole = is_hole(bytes);
        bytes.copy_from_slice(value.as_slice());
        was_hole
    }

    /// Makes a slot a hole. Says whether it held a value.
    pub(super) fn clear(&mut self, slot: usize) -> bool {
        let place = self.place(slot);
        let Some(bytes) = self.bytes.get_mut(place) else { return false };
        let held = !is_hole(bytes);
        bytes.fill(0);
        while self.iter().next_back().is_some_and(is_hole) {
            self.bytes.truncate(self.bytes.len() - self.width());
        }
        held
    }

    /// Makes room for this many slots in all.
    pub(super) fn reserve(&mut self, slots: usize, value: &Data) {
        self.bytes.reserve_exact((slots * value.len()).saturating_sub(self.bytes.len()));
    }

    fn width(&self) -> usize {
        usize::from(self.width)
    }

    fn place(&self, slot: usize) -> std::ops::Range<usize> {
        slot * self.width()..(slot + 1) * self.width()
    }
}

/// Whether the bytes of a slot mean that it holds nothing. No endpoint has an address of zeros and port 0.
pub(super) fn is_hole(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// The values fill the slots from 0 up.
///
/// # Panics
/// When they differ in length, or one is a hole.
impl FromIterator<Data> for Values {
    fn from_iter<I: IntoIterator<Item = Data>>(values: I) -> Self {
        let mut list = Self::default();
        let values = values.into_iter();
        let (expected, _) = values.size_hint();
        for value in values {
            assert!(list.can_hold(&value), "{value:?} cannot be beside {list:?}");
            if list.is_empty() {
                list.width = u8::try_from(value.len()).expect("Data is short");
                list.reserve(expected, &value);
            }
            list.bytes.extend_from_slice(value.as_slice());
        }
        list.bytes.shrink_to_fit();
        list
    }
}

impl PartialEq for Values {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes && (self.width == other.width || self.is_empty())
    }
}

impl Eq for Values {}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(numbers: &[u32]) -> Values {
        numbers.iter().map(|number| Data::from(*number)).collect()
    }

    #[test]
    fn what_goes_in_comes_out() {
        let values = list(&[7, 8, 9]);
        assert_eq!(values.len(), 3);
        assert_eq!(values.data().collect::<Vec<_>>(), [7_u32, 8, 9].map(Data::from));
        assert_eq!(list(&[]).iter().len(), 0);
    }

    #[test]
    fn holes_at_the_end_are_cut_off_and_holes_within_stay() {
        let mut values = list(&[1, 2, 3]);
        assert!(values.clear(1) && !values.clear(1) && !values.clear(9));
        assert_eq!(values.len(), 3);
        assert!(values.clear(2));
        assert_eq!(values, list(&[1]));
        assert!(values.set(2, &Data::from(5_u32)), "it was a hole");
        assert!(!values.set(2, &Data::from(6_u32)), "it held a value");
        assert_eq!(values.iter().filter(|bytes| is_hole(bytes)).count(), 1);
    }

    #[test]
    fn what_was_emptied_may_hold_values_of_another_length() {
        let mut values = list(&[1]);
        assert!(!values.can_hold(&Data::from(7_u16)) && !values.can_hold(&Data::from(0_u32)));
        assert!(values.clear(0) && values.can_hold(&Data::from(7_u16)));
        values.set(0, &Data::from(7_u16));
        assert_eq!(values, [Data::from(7_u16)].into_iter().collect());
        assert_ne!(values, list(&[7]));
    }
}
