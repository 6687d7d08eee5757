//! The UDP flows that the kernel tracks, over ctnetlink: list and delete.
//!
//! The list is filtered by protocol in the kernel (5.8 and later; before, and in any case, here). A flow is deleted by its
//! original tuple, zone and id, so that a new flow with the same addresses is left alone.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use nft::decode::{self, Messages};
use nft::socket::{Bus, Socket};
use nft::wire::{Attr, Attrs, Writer};

use crate::conntrack::Flow;
use crate::model::Family;

/// `linux/netfilter/nfnetlink_conntrack.h`.
mod number {
    const SUBSYSTEM: u16 = 1 << 8;
    pub(super) const NEW: u16 = SUBSYSTEM;
    pub(super) const GET: u16 = SUBSYSTEM | 1;
    pub(super) const DELETE: u16 = SUBSYSTEM | 2;

    pub(super) const TUPLE_ORIGINAL: u16 = 1;
    pub(super) const TUPLE_REPLY: u16 = 2;
    pub(super) const ID: u16 = 12;
    pub(super) const ZONE: u16 = 18;
    pub(super) const FILTER: u16 = 25;
    pub(super) const FILTER_ORIGINAL_FLAGS: u16 = 1;
    /// `CTA_FILTER_FLAG(CTA_PROTO_NUM)`, in host order.
    pub(super) const BY_PROTOCOL: u32 = 1 << 3;

    pub(super) const TUPLE_IP: u16 = 1;
    pub(super) const TUPLE_PROTO: u16 = 2;
    pub(super) const IPV4_SOURCE: u16 = 1;
    pub(super) const IPV4_DESTINATION: u16 = 2;
    pub(super) const IPV6_SOURCE: u16 = 3;
    pub(super) const IPV6_DESTINATION: u16 = 4;
    pub(super) const PROTO_NUMBER: u16 = 1;
    pub(super) const SOURCE_PORT: u16 = 2;
    pub(super) const DESTINATION_PORT: u16 = 3;

    pub(super) const NLM_F_REQUEST: u16 = 1;
    pub(super) const NLM_F_ACK: u16 = 4;
    pub(super) const NLM_F_DUMP: u16 = 0x300;
    /// Bytes of `nlmsghdr` and `nfgenmsg`.
    pub(super) const HEADERS: usize = 20;
}

const UDP: u8 = 17;
/// How often an interrupted list is begun anew (J8).
const TRIES: usize = 5;
/// Deletions sent at a time: their answers fit into the socket's receive buffer.
const DELETIONS: usize = 64;

/// The UDP flows of a family. After five interrupted attempts the last list is given as it is (J8).
///
/// # Errors
/// What the kernel answers.
pub(super) fn list(family: Family) -> io::Result<Vec<Flow>> {
    let mut socket = Socket::open(Bus::Netfilter)?;
    let mut flows = Vec::new();
    for _ in 0..TRIES {
        flows.clear();
        if list_once(&mut socket, family, &mut flows)? {
            break;
        }
    }
    Ok(flows)
}

/// Lists once; says whether the list is complete.
fn list_once(socket: &mut Socket, family: Family, flows: &mut Vec<Flow>) -> io::Result<bool> {
    let mut request = message(number::GET, number::NLM_F_DUMP, family);
    let tuple = request.open(number::TUPLE_ORIGINAL);
    let proto = request.open(number::TUPLE_PROTO);
    request.attr(number::PROTO_NUMBER, &[UDP]);
    request.close(proto);
    request.close(tuple);
    let filter = request.open(number::FILTER);
    request.attr(number::FILTER_ORIGINAL_FLAGS, &number::BY_PROTOCOL.to_ne_bytes());
    request.close(filter);
    socket.send(&finished(request))?;
    let mut complete = true;
    loop {
        for message in Messages::new(socket.receive()?) {
            complete &= !decode::dump_interrupted(message);
            if let Some(errno) = decode::ack(message).map(|ack| ack.errno).or_else(|| decode::done(message)) {
                return if errno == 0 { Ok(complete) } else { Err(io::Error::from_raw_os_error(errno)) };
            }
            flows.extend(flow(message));
        }
    }
}

/// Deletes flows and gives the number of those that were still there.
///
/// # Errors
/// What the kernel answers, other than that a flow is gone already.
pub(super) fn delete(flows: &[Flow]) -> io::Result<usize> {
    const ENOENT: i32 = 2;
    let mut socket = Socket::open(Bus::Netfilter)?;
    let mut deleted = 0;
    for chunk in flows.chunks(DELETIONS) {
        let requests: Vec<u8> = chunk.iter().flat_map(deletion).collect();
        socket.send(&requests)?;
        while let Some(bytes) = socket.receive_now()? {
            for ack in Messages::new(bytes).filter_map(decode::ack) {
                match ack.errno {
                    0 => deleted += 1,
                    ENOENT => {}
                    errno => return Err(io::Error::from_raw_os_error(errno)),
                }
            }
        }
    }
    Ok(deleted)
}

fn deletion(flow: &Flow) -> Vec<u8> {
    let family = Family::of(flow.original_destination.ip());
    let mut request = message(number::DELETE, number::NLM_F_ACK, family);
    request.raw(&flow.handle);
    finished(request)
}

/// `nlmsghdr` and `nfgenmsg`; the length is filled in by [`finished`].
fn message(kind: u16, flags: u16, family: Family) -> Writer {
    let mut writer = Writer::default();
    writer.raw(&[0; 4]);
    writer.raw(&kind.to_ne_bytes());
    writer.raw(&(number::NLM_F_REQUEST | flags).to_ne_bytes());
    writer.raw(&[0; 8]);
    writer.raw(&[nft::Family::from(family).number(), 0, 0, 0]);
    writer
}

fn finished(writer: Writer) -> Vec<u8> {
    let mut bytes = writer.into_bytes();
    let len = u32::try_from(bytes.len()).unwrap_or_default();
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    bytes
}

/// The flow in a message; `None` when it is about something else.
fn flow(message: &[u8]) -> Option<Flow> {
    let kind = u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?);
    if kind != number::NEW {
        return None;
    }
    let attrs = Attrs::new(message.get(number::HEADERS..)?);
    let original = attrs.find(number::TUPLE_ORIGINAL)?;
    let (_, original_destination) = udp_ends(original)?;
    let (reply_source, _) = udp_ends(attrs.find(number::TUPLE_REPLY)?)?;
    let mut handle = Writer::default();
    handle.attr(number::TUPLE_ORIGINAL | NESTED, original.payload);
    for kind in [number::ZONE, number::ID] {
        if let Some(attr) = attrs.find(kind) {
            handle.attr(kind, attr.payload);
        }
    }
    Some(Flow { original_destination, reply_source, handle: handle.into_bytes() })
}

/// `NLA_F_NESTED`.
const NESTED: u16 = 1 << 15;

/// Source and destination of a tuple; `None` unless it is a UDP one.
fn udp_ends(tuple: Attr<'_>) -> Option<(SocketAddr, SocketAddr)> {
    let proto = tuple.nested().find(number::TUPLE_PROTO)?.nested();
    if proto.find(number::PROTO_NUMBER)?.u8()? != UDP {
        return None;
    }
    let ip = tuple.nested().find(number::TUPLE_IP)?.nested();
    let address = |v4, v6| ip.find(v4).or_else(|| ip.find(v6)).and_then(address);
    let port = |kind| Some(u16::from_be_bytes(proto.find(kind)?.payload.try_into().ok()?));
    let source = SocketAddr::new(address(number::IPV4_SOURCE, number::IPV6_SOURCE)?, port(number::SOURCE_PORT)?);
    let destination = address(number::IPV4_DESTINATION, number::IPV6_DESTINATION)?;
    Some((source, SocketAddr::new(destination, port(number::DESTINATION_PORT)?)))
}

fn address(attr: Attr<'_>) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(attr.payload).map(|bytes| IpAddr::from(Ipv4Addr::from(bytes)));
    v4.or_else(|_| <[u8; 16]>::try_from(attr.payload).map(|bytes| IpAddr::from(Ipv6Addr::from(bytes)))).ok()
}
