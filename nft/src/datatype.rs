//! The data types of set keys and map values, with nft's names and numbers.

use std::fmt;

/// The data type of one field. The numbers are nft's (`enum datatypes` in its `datatype.h`); the kernel only keeps them for listings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataType {
    /// `integer`: four bytes in host order, such as a number from `numgen`.
    Integer,
    /// `ipv4_addr`.
    Ipv4Addr,
    /// `ipv6_addr`.
    Ipv6Addr,
    /// `inet_proto`.
    InetProto,
    /// `inet_service`.
    InetService,
    /// `mark`, in host order.
    Mark,
    /// `ifname`: the name of an interface, padded with zeros to 16 bytes.
    IfName,
}

impl DataType {
    /// Every data type.
    const ALL: [Self; 7] =
        [Self::Integer, Self::Ipv4Addr, Self::Ipv6Addr, Self::InetProto, Self::InetService, Self::Mark, Self::IfName];

    /// nft's number of the type.
    pub(crate) const fn id(self) -> u32 {
        match self {
            Self::Integer => 4,
            Self::Ipv4Addr => 7,
            Self::Ipv6Addr => 8,
            Self::InetProto => 12,
            Self::InetService => 13,
            Self::Mark => 19,
            Self::IfName => 41,
        }
    }

    /// The type that has this number in nft.
    pub(crate) fn from_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.id() == id)
    }

    /// Length in bytes, without padding.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Integer | Self::Ipv4Addr | Self::Mark => 4,
            Self::Ipv6Addr | Self::IfName => 16,
            Self::InetProto => 1,
            Self::InetService => 2,
        }
    }

    /// Length in bytes within a concatenation.
    pub(crate) const fn padded_size(self) -> usize {
        self.size().next_multiple_of(4)
    }
}

/// nft's name of the type.
impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Integer => "integer",
            Self::Ipv4Addr => "ipv4_addr",
            Self::Ipv6Addr => "ipv6_addr",
            Self::InetProto => "inet_proto",
            Self::InetService => "inet_service",
            Self::Mark => "mark",
            Self::IfName => "ifname",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_distinct_and_found_again() {
        for data_type in DataType::ALL {
            assert_eq!(DataType::from_id(data_type.id()), Some(data_type));
        }
        assert_eq!(DataType::from_id(0), None);
    }
}
