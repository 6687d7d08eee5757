//! Converts numbers to other integer types.

use std::fmt::Display;

/// Converts a length or number, such as a key's length, to a type that is large enough because of the limits of nftables and of Services.
///
/// # Panics
/// When the number does not fit, which is a bug in this program.
pub(crate) fn fit<T: Copy + Display, N: TryFrom<T>>(number: T) -> N {
    match N::try_from(number) {
        Ok(number) => number,
        Err(_) => panic!("{number} is more than nftables allows"),
    }
}
