//! The content of registers, set keys and map values: bytes, or a verdict.
//!
//! The bytes are one field, or a concatenation of fields that are each padded with zeros to a multiple of four bytes, as in the kernel's
//! registers. Addresses and ports are in network order, marks and generated numbers in host order.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use crate::wire::narrow;

/// Up to [`Data::MAX_LEN`] bytes without an allocation, because a large cluster has hundreds of thousands of these values.
#[derive(Clone, Copy)]
pub struct Data {
    len: u8,
    bytes: [u8; Self::MAX_LEN],
}

impl Data {
    /// The length of the longest value that this crate handles, in bytes: two IPv6 addresses, a protocol and a port. The kernel's own
    /// limit is 64.
    pub const MAX_LEN: usize = 40;

    /// The value without bytes, to which fields are appended.
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

    /// Appends one field of a concatenation: pads the bytes so far to a multiple of four, then adds the field with its own padding.
    ///
    /// # Panics
    /// When the result is longer than [`Data::MAX_LEN`].
    #[must_use]
    #[inline]
    pub fn then(self, field: impl Into<Self>) -> Self {
        let mut joined = self;
        let field = field.into();
        let start = self.len().next_multiple_of(4);
        let end = start + field.len().next_multiple_of(4);
        // All bytes behind the field's length are zero, so copying them writes the padding.
        let place = joined.bytes.get_mut(start..end).expect("a concatenation fits into Data::MAX_LEN");
        place.copy_from_slice(&field.bytes[..end - start]);
        joined.len = narrow::<u8>(end, "Data::MAX_LEN is small");
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

/// A number of one byte, such as an IP protocol.
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

/// A number of four bytes, such as a mark, in host order.
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

/// The value of an element, besides its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing: an element of a set.
    None,
    /// A verdict.
    Verdict(Verdict),
    /// Data.
    Data(Data),
}

/// The verdict of a rule: what happens to the packet, or which chain it goes through next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Ends the current base chain; the packet goes on to the hook's next base chain.
    Accept,
    /// Discards the packet.
    Drop,
    /// Goes back to the chain that called the current chain; in a base chain, the chain's policy follows.
    Return,
    /// Goes to a chain, and comes back to the next rule.
    Jump(Arc<str>),
    /// Goes to a chain, and comes back to the chain that called the current chain.
    Goto(Arc<str>),
}

impl Verdict {
    /// The chain that the verdict jumps or goes to.
    #[must_use]
    pub fn chain(&self) -> Option<&Arc<str>> {
        match self {
            Self::Jump(chain) | Self::Goto(chain) => Some(chain),
            Self::Accept | Self::Drop | Self::Return => None,
        }
    }

    /// The number on the wire (`NF_DROP`, `NF_ACCEPT`, `enum nft_verdicts`); negative numbers are two's complement.
    pub(crate) const fn number(&self) -> u32 {
        match self {
            Self::Drop => 0,
            Self::Accept => 1,
            Self::Jump(_) => (-3_i32).cast_unsigned(),
            Self::Goto(_) => (-4_i32).cast_unsigned(),
            Self::Return => (-5_i32).cast_unsigned(),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accept => f.write_str("accept"),
            Self::Drop => f.write_str("drop"),
            Self::Return => f.write_str("return"),
            Self::Jump(chain) => write!(f, "jump {chain}"),
            Self::Goto(chain) => write!(f, "goto {chain}"),
        }
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
    fn the_number_of_padding_bytes_counts_in_comparisons() {
        assert_ne!(Data::from(6_u8), Data::from_bytes(&[6, 0]).unwrap());
        assert!(Data::from_bytes(&[0; Data::MAX_LEN + 1]).is_none());
    }
}
