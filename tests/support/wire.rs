//! The packets that no socket of the standard library makes: SCTP INIT and INIT ACK, ICMP echo, TCP without flags, and ICMP errors read
//! back.
//!
//! Byte slices in, values out; no I/O. Lengths are checked, anything short or foreign is `None`.

use std::net::{IpAddr, SocketAddr};

use super::plan::Family;

const SCTP_HEADER: usize = 12;
const INIT_CHUNK: usize = 20;
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;
const STATE_COOKIE: u16 = 7;

/// An SCTP packet that carries INIT or INIT ACK as its first chunk.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SctpInit {
    /// Source port.
    pub(crate) source_port: u16,
    /// Destination port.
    pub(crate) port: u16,
    /// In an INIT, the tag that the sender chose; in an INIT ACK, the tag of the INIT, sent back as verification tag.
    pub(crate) tag: u32,
    /// Empty in an INIT; the state cookie of an INIT ACK, which here is the server's answer.
    pub(crate) cookie: Vec<u8>,
}

impl SctpInit {
    /// The packet, with its CRC32c; an INIT ACK when there is a cookie.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let is_ack = !self.cookie.is_empty();
        // A verification tag is 0 in an INIT and the peer's tag in everything that follows.
        let verification_tag = if is_ack { self.tag } else { 0 };
        let mut bytes = Vec::new();
        bytes.extend(self.source_port.to_be_bytes());
        bytes.extend(self.port.to_be_bytes());
        bytes.extend(verification_tag.to_be_bytes());
        bytes.extend([0; 4]);
        let cookie = if is_ack { parameter(STATE_COOKIE, &self.cookie) } else { Vec::new() };
        bytes.extend([if is_ack { INIT_ACK } else { INIT }, 0]);
        bytes.extend(length_field(INIT_CHUNK + cookie.len()));
        bytes.extend(self.tag.to_be_bytes());
        // Receive window, streams out, streams in, first TSN.
        bytes.extend([0, 0, 0xff, 0xff, 0, 1, 0, 1, 0, 0, 0, 1]);
        bytes.extend(cookie);
        let checksum = crc32c(&bytes);
        bytes[8..SCTP_HEADER].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads a packet without its IP header.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let kind = *bytes.get(SCTP_HEADER)?;
        let tag = u32::from_be_bytes(bytes.get(16..20)?.try_into().ok()?);
        let cookie = match kind {
            INIT => Vec::new(),
            INIT_ACK => {
                let length = usize::from(u16_at(bytes, SCTP_HEADER + INIT_CHUNK + 2)?);
                bytes.get(SCTP_HEADER + INIT_CHUNK + 4..SCTP_HEADER + INIT_CHUNK + length)?.to_vec()
            }
            _ => return None,
        };
        Some(Self { source_port: u16_at(bytes, 0)?, port: u16_at(bytes, 2)?, tag, cookie })
    }
}

fn parameter(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = kind.to_be_bytes().to_vec();
    bytes.extend(length_field(4 + value.len()));
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn length_field(length: usize) -> [u8; 2] {
    u16::try_from(length).expect("a test packet is short").to_be_bytes()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

/// The payload of a packet as a raw socket gives it: with the IP header in IPv4, without in IPv6.
pub(crate) fn raw_payload(family: Family, packet: &[u8]) -> Option<&[u8]> {
    match family {
        Family::V4 => packet.get(usize::from(packet.first()? & 0x0f) * 4..),
        Family::V6 => Some(packet),
    }
}

/// Returns an echo request. The kernel fills in the checksum for ICMPv6 only.
pub(crate) fn echo_request(family: Family, identifier: u16) -> Vec<u8> {
    let mut bytes = vec![if family == Family::V4 { 8 } else { 128 }, 0, 0, 0];
    bytes.extend(identifier.to_be_bytes());
    bytes.extend([0, 1]);
    if family == Family::V4 {
        let checksum = checksum(&bytes);
        bytes[2..4].copy_from_slice(&checksum.to_be_bytes());
    }
    bytes
}

/// The flag of the first segment of a TCP connection.
pub(crate) const SYN: u8 = 2;

/// Returns a TCP segment with these flags, with its checksum. Connection tracking finds each segment without a flag invalid.
pub(crate) fn tcp_segment(source: SocketAddr, to: SocketAddr, flags: u8) -> Vec<u8> {
    const TCP: u8 = 6;
    const HEADER: u8 = 20;
    let mut segment = [source.port().to_be_bytes(), to.port().to_be_bytes()].concat();
    segment.extend([0; 8]);
    segment.extend([(HEADER / 4) << 4, flags, 0xff, 0xff, 0, 0, 0, 0]);
    let bytes = |address| match address {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let pseudo_header = [bytes(source.ip()), bytes(to.ip()), vec![0, TCP, 0, HEADER]].concat();
    let checksum = checksum(&[pseudo_header, segment.clone()].concat());
    segment[16..18].copy_from_slice(&checksum.to_be_bytes());
    segment
}

/// The checksum of the Internet protocols (RFC 1071) over an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("the sum is folded")
}

/// Whether an ICMP message is the reply to the echo request with this identifier.
pub(crate) fn is_echo_reply(family: Family, message: &[u8], identifier: u16) -> bool {
    let reply = if family == Family::V4 { 0 } else { 129 };
    message.first() == Some(&reply) && u16_at(message, 4) == Some(identifier)
}

/// The transport header quoted by an ICMP "port unreachable", which is what nftables' `reject` sends by default.
pub(crate) fn port_unreachable(family: Family, message: &[u8]) -> Option<&[u8]> {
    let (kind, code, header) = match family {
        Family::V4 => (3, 3, usize::from(message.get(8)? & 0x0f) * 4),
        Family::V6 => (1, 4, 40),
    };
    (message.get(..2)? == [kind, code]).then(|| message.get(8 + header..)).flatten()
}

/// CRC-32C (Castagnoli), bit by bit, because the packets of the tests are short.
pub(crate) fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    !crc
}
