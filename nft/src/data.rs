//! The bytes that registers, set keys and map values hold.
//!
//! A value is the concatenation of its fields, each padded with zeros to a multiple of four bytes, as the kernel's register file
//! has it. Addresses and ports are in network order; marks and generated numbers in host order.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;

/// Up to [`Data::MAX_LEN`] bytes, held in place: a cluster has hundreds of thousands of these.
#[derive(Clone, Copy)]
pub struct Data {
    len: u8,
    bytes: [u8; Self::MAX_LEN],
}

impl Data {
    /// The longest value this crate handles: two IPv6 addresses, a protocol and a port. (The kernel's own limit is 64.)
    pub const MAX_LEN: usize = 40;

    /// No bytes.
    pub const EMPTY: Self = Self { len: 0, bytes: [0; Self::MAX_LEN] };

    /// The given bytes as they are; `None` when there are more than [`Data::MAX_LEN`].
    #[must_use]
    #[inline]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        Self::EMPTY.with(bytes)
    }

    /// Appends bytes without padding.
    #[inline]
    fn with(mut self, bytes: &[u8]) -> Option<Self> {
        let start = usize::from(self.len);
        let end = start + bytes.len();
        self.bytes.get_mut(start..end)?.copy_from_slice(bytes);
        self.len = u8::try_from(end).ok()?;
        Some(self)
    }

    /// Appends one field of a concatenation: pads what is there to four bytes, then adds the field padded to four bytes.
    ///
    /// # Panics
    /// When the result is longer than [`Data::MAX_LEN`]; every concatenation this crate can type is shorter.
    #[must_use]
    #[inline]
    pub fn then(self, field: impl Into<Self>) -> Self {
        let mut joined = self;
        let field = field.into();
        let start = self.len().next_multiple_of(4);
        let end = start + field.len().next_multiple_of(4);
        // What lies behind the bytes in use is zero, and so is the padding.
        let place = joined.bytes.get_mut(start..end).expect("a concatenation fits into Data::MAX_LEN");
        place.copy_from_slice(&field.bytes[..end - start]);
        joined.len = u8::try_from(end).expect("Data::MAX_LEN is small");
        joined
    }

    /// The bytes.
    #[must_use]
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Number of bytes.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl From<IpAddr> for Data {
    #[inline]
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => Self::fixed(ip.octets()),
            IpAddr::V6(ip) => Self::fixed(ip.octets()),
        }
    }
}

/// An IP protocol number.
impl From<u8> for Data {
    #[inline]
    fn from(number: u8) -> Self {
        Self::fixed([number])
    }
}

/// A transport port, in network order.
impl From<u16> for Data {
    #[inline]
    fn from(port: u16) -> Self {
        Self::fixed(port.to_be_bytes())
    }
}

/// A mark or generated number, in host order.
impl From<u32> for Data {
    #[inline]
    fn from(number: u32) -> Self {
        Self::fixed(number.to_ne_bytes())
    }
}

impl Data {
    fn fixed<const N: usize>(bytes: [u8; N]) -> Self {
        const { assert!(N <= Self::MAX_LEN) };
        Self::from_bytes(&bytes).expect("checked at compile time")
    }
}

impl PartialEq for Data {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for Data {}

impl Hash for Data {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_slice().hash(state);
    }
}

impl PartialOrd for Data {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Data {
    #[inline]
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.as_slice().cmp(other.as_slice())
    }
}

impl fmt::Debug for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("0x")?;
        self.as_slice().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_padded_to_four_bytes() {
        let key = Data::from(IpAddr::from([10, 96, 0, 10])).then(17_u8).then(53_u16);
        assert_eq!(key.as_slice(), [10, 96, 0, 10, 17, 0, 0, 0, 0, 53, 0, 0]);
        assert_eq!(Data::from(6_u8).then(80_u16).as_slice(), [6, 0, 0, 0, 0, 80, 0, 0]);
    }

    #[test]
    fn padding_does_not_hide_in_comparisons() {
        assert_ne!(Data::from(6_u8), Data::from_bytes(&[6, 0]).unwrap());
        assert!(Data::from_bytes(&[0; Data::MAX_LEN + 1]).is_none());
    }
}
