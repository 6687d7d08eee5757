//! Numbers in smaller types.

use std::fmt::Display;

/// A length or number in the type that has room for it by the limits of nftables and of a Service, such as that of a key.
///
/// # Panics
/// When it is larger than these limits allow, which is a mistake in this program.
pub(crate) fn fit<T: Copy + Display, N: TryFrom<T>>(number: T) -> N {
    match N::try_from(number) {
        Ok(number) => number,
        Err(_) => panic!("{number} is more than nftables allows"),
    }
}
