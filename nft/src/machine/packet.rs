//! A packet, and the values that nftables expressions read from it.
//!
//! Known are the values that the user gave, and those that belong to the first packet of a connection: TCP's flag SYN, or the type of an
//! echo request. An expression that reads anything else gives [`Loaded::Unknown`].

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::expr::PayloadBase;

/// Numbers of protocols (IANA registry "Protocol Numbers").
pub mod protocol {
    /// ICMP for IPv4 (RFC 792).
    pub const ICMP: u8 = 1;
    /// TCP (RFC 9293).
    pub const TCP: u8 = 6;
    /// UDP (RFC 768).
    pub const UDP: u8 = 17;
    /// ICMP for IPv6 (RFC 4443).
    pub const ICMPV6: u8 = 58;
    /// SCTP (RFC 9260).
    pub const SCTP: u8 = 132;
}

/// The input or output interface of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// The packet has no such interface at this hook.
    #[default]
    None,
    /// The packet has one, but it is not known which.
    Unknown,
    /// Index and name.
    Known(u32, Arc<str>),
}

/// A packet at one point of its path through the hooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The source address.
    pub source: IpAddr,
    /// The source port, if it is known.
    pub source_port: Option<u16>,
    /// The destination address.
    pub destination: IpAddr,
    /// The destination port; 0 for an ICMP echo request.
    pub port: u16,
    /// The number of the protocol.
    pub protocol: u8,
    /// The packet mark.
    pub mark: u32,
    /// The interface at which it arrived.
    pub input: Link,
    /// The interface through which it leaves.
    pub output: Link,
}

/// The value that an expression loads into a register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Loaded {
    /// These bytes.
    Bytes(Vec<u8>),
    /// There is no value to load: the kernel stops evaluating the rule (`NFT_BREAK`).
    Nothing,
    /// An unknown value: its description, and its length in bytes.
    Unknown(&'static str, usize),
}

impl Packet {
    /// A packet without a mark, from an address and, if it is known, a port; it arrives at `input`.
    #[must_use]
    pub fn new((source, source_port): (IpAddr, Option<u16>), to: SocketAddr, protocol: u8, input: Link) -> Self {
        let (destination, port) = (to.ip(), to.port());
        Self { source, source_port, destination, port, protocol, mark: 0, input, output: Link::None }
    }

    /// Whether its protocol has ports.
    pub fn has_ports(&self) -> bool {
        [protocol::TCP, protocol::UDP, protocol::SCTP].contains(&self.protocol)
    }

    /// The destination address and port.
    #[must_use]
    pub fn target(&self) -> SocketAddr {
        SocketAddr::new(self.destination, self.port)
    }

    /// Loads `len` bytes at `offset` of a header.
    pub fn payload(&self, base: PayloadBase, offset: u32, len: u32) -> Loaded {
        let header = match base {
            PayloadBase::Network => self.network_header(),
            PayloadBase::Transport => self.transport_header(),
        };
        let (Ok(offset), Ok(len)) = (usize::try_from(offset), usize::try_from(len)) else { return Loaded::Nothing };
        match header.get(offset..offset.saturating_add(len)) {
            None => Loaded::Unknown("a part of the packet beyond its headers", len),
            Some(bytes) => bytes
                .iter()
                .copied()
                .collect::<Option<Vec<u8>>>()
                .map_or(Loaded::Unknown(self.missing(base, offset), len), Loaded::Bytes),
        }
    }

    fn missing(&self, base: PayloadBase, offset: usize) -> &'static str {
        if base == PayloadBase::Transport && offset < 2 && self.has_ports() {
            "the source port"
        } else {
            "a field of the packet's headers other than addresses, protocol and ports"
        }
    }

    /// The IP header without options; `None` for each byte that is not known.
    fn network_header(&self) -> Vec<Option<u8>> {
        const V4: usize = 20;
        const V6: usize = 40;
        let known = |bytes: &[u8]| bytes.iter().copied().map(Some).collect::<Vec<_>>();
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut header = vec![None; V4];
                (header[0], header[9]) = (Some(0x45), Some(self.protocol));
                header[12..].copy_from_slice(&known(&[source.octets(), destination.octets()].concat()));
                header
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let mut header = vec![None; V6];
                header[6] = Some(self.protocol);
                header[8..].copy_from_slice(&known(&[source.octets(), destination.octets()].concat()));
                header
            }
            _ => Vec::new(),
        }
    }

    /// The bytes of the transport header; `None` for each byte that is not known.
    fn transport_header(&self) -> Vec<Option<u8>> {
        const LEN: usize = 20;
        const TCP_FLAGS: usize = 13;
        const SYN: u8 = 2;
        let mut header = vec![None; LEN];
        match self.protocol {
            protocol::ICMP => header[..2].copy_from_slice(&[Some(8), Some(0)]),
            protocol::ICMPV6 => header[..2].copy_from_slice(&[Some(128), Some(0)]),
            _ => {
                let [high, low] = self.port.to_be_bytes();
                header[2..4].copy_from_slice(&[Some(high), Some(low)]);
                if let Some([high, low]) = self.source_port.map(u16::to_be_bytes) {
                    header[..2].copy_from_slice(&[Some(high), Some(low)]);
                }
                if self.protocol == protocol::TCP {
                    header[TCP_FLAGS] = Some(SYN);
                }
            }
        }
        header
    }
}

impl Link {
    /// The name as a register holds it: sixteen bytes, zeros without an interface.
    pub fn name_bytes(&self) -> Loaded {
        let mut bytes = vec![0; 16];
        match self {
            Self::None => {}
            Self::Unknown => return Loaded::Unknown(UNKNOWN_LINK, bytes.len()),
            Self::Known(_, name) => {
                let len = name.len().min(15);
                bytes[..len].copy_from_slice(&name.as_bytes()[..len]);
            }
        }
        Loaded::Bytes(bytes)
    }

    /// The index as a register holds it, 0 without an interface.
    pub fn index_bytes(&self) -> Loaded {
        match self {
            Self::None => Loaded::Bytes(vec![0; 4]),
            Self::Unknown => Loaded::Unknown(UNKNOWN_LINK, 4),
            Self::Known(index, _) => Loaded::Bytes(index.to_ne_bytes().to_vec()),
        }
    }
}

const UNKNOWN_LINK: &str = "the interface of the packet";

/// The name of a protocol, such as `tcp`; the number as text if it is none of [`protocol`].
pub fn protocol_name(number: u8) -> String {
    match number {
        protocol::ICMP => "icmp".to_owned(),
        protocol::TCP => "tcp".to_owned(),
        protocol::UDP => "udp".to_owned(),
        protocol::ICMPV6 => "icmpv6".to_owned(),
        protocol::SCTP => "sctp".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use PayloadBase::{Network, Transport};

    fn sample(source: &str, target: &str) -> Packet {
        let link = Link::Known(2, "eth0".into());
        Packet::new((source.parse().unwrap(), None), target.parse().unwrap(), protocol::TCP, link)
    }

    #[test]
    fn addresses_and_ports_are_where_the_kernel_reads_them() {
        let packet = sample("192.0.2.1", "10.96.0.10:53");
        assert_eq!(packet.payload(Network, 12, 4), Loaded::Bytes(vec![192, 0, 2, 1]));
        assert_eq!(packet.payload(Network, 16, 4), Loaded::Bytes(vec![10, 96, 0, 10]));
        assert_eq!(packet.payload(Transport, 2, 2), Loaded::Bytes(vec![0, 53]));
        let packet = sample("fd00::1", "[fd00::2]:80");
        let Loaded::Bytes(address) = packet.payload(Network, 24, 16) else { panic!("an address") };
        assert_eq!((address[0], address[15]), (0xfd, 2));
    }

    #[test]
    fn what_nobody_said_is_unknown() {
        let packet = sample("192.0.2.1", "10.96.0.10:53");
        assert_eq!(packet.payload(Transport, 0, 2), Loaded::Unknown("the source port", 2));
        assert!(matches!(packet.payload(Network, 1, 1), Loaded::Unknown(..)), "the type of service");
        assert!(matches!(packet.payload(Transport, 40, 4), Loaded::Unknown(..)), "options");
        let ping = Packet { protocol: protocol::ICMP, ..packet };
        assert_eq!(ping.payload(Transport, 0, 1), Loaded::Bytes(vec![8]));
        assert!(matches!(ping.payload(Transport, 2, 2), Loaded::Unknown(..)), "the checksum");
    }

    #[test]
    fn a_packet_without_an_interface_has_an_empty_name() {
        assert_eq!(Link::None.name_bytes(), Loaded::Bytes(vec![0; 16]));
        let Loaded::Bytes(name) = Link::Known(3, "cni0".into()).name_bytes() else { panic!("a name") };
        assert_eq!(&name[..5], b"cni0\0");
        assert!(matches!(Link::Unknown.index_bytes(), Loaded::Unknown(..)));
    }
}
