//! A packed list of map values, such as the endpoints of a frontend. It saves memory, because a large cluster has very many short lists.
//!
//! Built from [`Data`], read as bytes. Invariant: all values of a list have the same length, which is not 0.

use nft::Data;

use super::fit;

/// A list of values that all have the same length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values {
    width: u8,
    bytes: Vec<u8>,
}

impl Values {
    /// Number of values.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len().checked_div(self.width()).unwrap_or(0)
    }

    /// Whether there is no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The length of each value in bytes; 0 when there is none.
    #[must_use]
    pub fn width(&self) -> usize {
        usize::from(self.width)
    }

    /// All values in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u8]> + DoubleEndedIterator {
        self.bytes.chunks_exact(self.width().max(1))
    }
}

/// Collects the values in this order.
///
/// # Panics
/// When they differ in length, or one is empty.
impl FromIterator<Data> for Values {
    fn from_iter<I: IntoIterator<Item = Data>>(values: I) -> Self {
        let mut list = Self::default();
        let values = values.into_iter();
        let (expected, _) = values.size_hint();
        for value in values {
            if list.is_empty() {
                list.width = fit(value.len());
                list.bytes.reserve_exact(expected * value.len());
            }
            assert!(value.len() == list.width() && !value.is_empty(), "{value:?} cannot be beside {list:?}");
            list.bytes.extend_from_slice(value.as_slice());
        }
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(numbers: &[u32]) -> Values {
        numbers.iter().map(|number| Data::from(*number)).collect()
    }

    #[test]
    fn what_goes_in_comes_out() {
        let values = list(&[7, 8, 9]);
        assert_eq!((values.len(), values.width()), (3, 4));
        assert_eq!(values.iter().collect::<Vec<_>>(), [7_u32, 8, 9].map(u32::to_ne_bytes));
        assert_eq!((list(&[]).iter().len(), list(&[]).len()), (0, 0));
    }

    #[test]
    #[should_panic(expected = "cannot be beside")]
    fn values_of_different_lengths_are_refused() {
        let _mixed: Values = [Data::from(7_u32), Data::from(7_u16)].into_iter().collect();
    }
}
