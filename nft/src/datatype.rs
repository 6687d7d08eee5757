//! The data types of set keys and values, as nft names and numbers them.

use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A data type of one field. The ids are nft's (`enum datatypes` in its `datatype.h`); the kernel stores them for listings only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataType {
    /// `integer`, four bytes in host order (numbers from `numgen` and `jhash`).
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
    /// `ifname`, padded with zeros to 16 bytes.
    IfName,
}

impl DataType {
    /// Every data type.
    pub const ALL: [Self; 7] =
        [Self::Integer, Self::Ipv4Addr, Self::Ipv6Addr, Self::InetProto, Self::InetService, Self::Mark, Self::IfName];

    /// nft's number of the type.
    #[must_use]
    pub const fn id(self) -> u32 {
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

    /// The type with nft's number.
    #[must_use]
    pub fn from_id(id: u32) -> Option<Self> {
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
    #[must_use]
    pub const fn padded_size(self) -> usize {
        self.size().next_multiple_of(4)
    }

    /// nft's name of the type.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Integer => "integer",
            Self::Ipv4Addr => "ipv4_addr",
            Self::Ipv6Addr => "ipv6_addr",
            Self::InetProto => "inet_proto",
            Self::InetService => "inet_service",
            Self::Mark => "mark",
            Self::IfName => "ifname",
        }
    }

    /// One value of the type in nft syntax. Bytes of another length are written as a hexadecimal number.
    #[must_use]
    pub fn format(self, bytes: &[u8]) -> String {
        match (self, bytes) {
            (Self::Ipv4Addr, &[a, b, c, d]) => Ipv4Addr::new(a, b, c, d).to_string(),
            (Self::Ipv6Addr, _) => {
                <[u8; 16]>::try_from(bytes).map_or_else(|_| hex(bytes), |b| Ipv6Addr::from(b).to_string())
            }
            (Self::InetProto, &[number]) => protocol_name(number).map_or_else(|| number.to_string(), str::to_owned),
            (Self::InetService, &[high, low]) => u16::from_be_bytes([high, low]).to_string(),
            (Self::Integer, &[a, b, c, d]) => u32::from_ne_bytes([a, b, c, d]).to_string(),
            (Self::Mark, &[a, b, c, d]) => format!("0x{:08x}", u32::from_ne_bytes([a, b, c, d])),
            (Self::IfName, _) => {
                let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
                crate::text::interface(&String::from_utf8_lossy(&bytes[..end]))
            }
            _ => hex(bytes),
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The protocol names that every nft knows without `/etc/protocols`.
fn protocol_name(number: u8) -> Option<&'static str> {
    match number {
        6 => Some("tcp"),
        17 => Some("udp"),
        132 => Some("sctp"),
        _ => None,
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold("0x".to_owned(), |mut text, byte| {
        // Writing to a String does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The data type of an address.
impl From<IpAddr> for DataType {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(_) => Self::Ipv4Addr,
            IpAddr::V6(_) => Self::Ipv6Addr,
        }
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

    #[test]
    fn values_in_nft_syntax() {
        assert_eq!(DataType::Ipv4Addr.format(&[10, 96, 0, 10]), "10.96.0.10");
        assert_eq!(DataType::Ipv6Addr.format(&Ipv6Addr::LOCALHOST.octets()), "::1");
        assert_eq!(DataType::InetProto.format(&[132]), "sctp");
        assert_eq!(DataType::InetProto.format(&[1]), "1");
        assert_eq!(DataType::InetService.format(&[0, 53]), "53");
        assert_eq!(DataType::Mark.format(&0x4000_u32.to_ne_bytes()), "0x00004000");
        assert_eq!(DataType::IfName.format(b"cbr0\0\0"), "\"cbr0\"");
        assert_eq!(DataType::Ipv4Addr.format(&[1]), "0x01");
    }
}
