//! Walks over the tracked connections with a translated destination (DNAT), of both families and of all protocols with ports: a connection
//! of another protocol, such as ICMP, is left out. Also looks up a single connection, translated or not.
//!
//! Linux 5.16 and later filter by the status bit of DNAT; on older kernels this module filters the list. A connection that leads through a
//! Service to an endpoint has a translated destination. Memory does not grow with the number of connections: each is passed to the caller
//! when its message is read.
//!
//! The kernel does not stop traffic for the walk. A connection that begins or ends during the walk may be left out, and a connection may
//! be given twice if the kernel changes the size of its hash table.

use std::io;

use nft::decode::{self, Messages};
use nft::socket::{Bus, Socket};
use nft::wire::{Attr, Attrs};

use super::super::connections::{Connection, Counters, Ends, Phase};
use crate::kernel::errno::ENOENT;

use super::{ends, finished, message, message_about, number, tuple};
use rules::model::Family;

/// `IPS_SEEN_REPLY` and `IPS_DST_NAT` (`linux/netfilter/nf_conntrack_common.h`).
pub(super) const SEEN_REPLY: u32 = 1 << 1;
pub(super) const TRANSLATED: u32 = 1 << 5;

const TCP: u8 = 6;
const SCTP: u8 = 132;
/// `TCP_CONNTRACK_TIME_WAIT` and `TCP_CONNTRACK_CLOSE`: both sides have closed the connection, or one side has reset it.
const TCP_ENDED: [u8; 2] = [7, 8];
/// `SCTP_CONNTRACK_CLOSED`, `_SHUTDOWN_SENT`, `_SHUTDOWN_RECD` and `_SHUTDOWN_ACK_SENT`.
const SCTP_ENDED: [u8; 4] = [1, 5, 6, 7];

/// Calls `each` for every connection with a translated destination in the calling thread's network namespace.
///
/// # Errors
/// Returns the error that the kernel reports: `EPERM` without `CAP_NET_ADMIN`.
pub fn each_connection(mut each: impl FnMut(&Connection)) -> io::Result<()> {
    let mut socket = Socket::open(Bus::Netfilter)?;
    let mut request = message_about(number::GET, number::NLM_F_DUMP, 0);
    request.u32(number::STATUS, TRANSLATED);
    socket.send(&finished(request))?;
    loop {
        for message in Messages::new(socket.receive()?) {
            match decode::ack(message).map(|ack| ack.errno).or_else(|| decode::done(message)) {
                Some(0) => return Ok(()),
                Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
                None => connection(message).iter().filter(|found| found.status & TRANSLATED != 0).for_each(&mut each),
            }
        }
    }
}

/// Returns the connection whose client sends packets with this source and destination; `None` if the kernel tracks none.
///
/// # Errors
/// Returns the error that the kernel reports: `EPERM` without `CAP_NET_ADMIN`.
pub fn find_connection(protocol: u8, ends: Ends) -> io::Result<Option<Connection>> {
    let mut socket = Socket::open(Bus::Netfilter)?;
    let mut request = message(number::GET, 0, Family::of(ends.destination.ip()));
    if Family::of(ends.source.ip()) != Family::of(ends.destination.ip()) {
        return Ok(None);
    }
    tuple(&mut request, number::TUPLE_ORIGINAL, protocol, ends);
    socket.send(&finished(request))?;
    loop {
        for message in Messages::new(socket.receive()?) {
            match decode::ack(message).map(|ack| ack.errno) {
                Some(ENOENT) => return Ok(None),
                Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
                None if connection(message).is_some() => return Ok(connection(message)),
                None => {}
            }
        }
    }
}

/// Returns the connection in a message; `None` for a message of another type, and for a protocol without ports.
#[must_use]
pub fn connection(message: &[u8]) -> Option<Connection> {
    let kind = u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?);
    if kind != number::NEW {
        return None;
    }
    let attrs = Attrs::new(message.get(number::HEADERS..)?);
    let (mut original, mut reply, mut status, mut id, mut mark) = (None, None, 0, 0, None);
    let (mut state, mut counters) = (None, [None; 2]);
    for attr in attrs {
        match attr.kind {
            number::TUPLE_ORIGINAL => original = ends(attr),
            number::TUPLE_REPLY => reply = ends(attr),
            number::STATUS => status = attr.u32()?,
            number::PROTOINFO => state = protocol_state(attr),
            number::MARK => mark = attr.u32(),
            number::COUNTERS_ORIGINAL => counters[0] = counted(attr),
            number::COUNTERS_REPLY => counters[1] = counted(attr),
            number::ID => id = attr.u32()?,
            _ => {}
        }
    }
    let (protocol, source, destination) = original?;
    let (_, answered_by, answered_to) = reply?;
    Some(Connection {
        protocol,
        original: Ends { source, destination },
        reply: Ends { source: answered_by, destination: answered_to },
        status,
        phase: phase(protocol, status, state),
        mark,
        id,
        counters: counters[0].zip(counters[1]),
    })
}

pub(super) fn phase(protocol: u8, status: u32, state: Option<u8>) -> Phase {
    match (protocol, state) {
        (TCP, Some(state)) if TCP_ENDED.contains(&state) => Phase::Ended,
        (SCTP, Some(state)) if SCTP_ENDED.contains(&state) => Phase::Ended,
        _ if status & SEEN_REPLY == 0 => Phase::Unanswered,
        _ => Phase::Open,
    }
}

/// Returns the state of a TCP or SCTP connection, as the kernel numbers the states of the protocol.
pub(super) fn protocol_state(attr: Attr<'_>) -> Option<u8> {
    let of_protocol =
        attr.nested().find(number::PROTOINFO_TCP).or_else(|| attr.nested().find(number::PROTOINFO_SCTP))?;
    of_protocol.nested().find(number::PROTOCOL_STATE)?.u8()
}

fn counted(attr: Attr<'_>) -> Option<Counters> {
    let number = |kind| attr.nested().find(kind)?.u64();
    Some(Counters { packets: number(number::PACKETS)?, bytes: number(number::BYTES)? })
}
