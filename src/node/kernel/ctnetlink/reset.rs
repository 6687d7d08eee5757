//! Makes the kernel reset TCP connections whose flows were deleted.
//!
//! Takes flows and an address of this node. In place of each flow it makes one that leads to port 0 of that address, where no program can
//! listen. So this node answers the client's next packet with a reset. The flow translates the source of the reset back to the address that
//! the client knows.
//!
//! Deleting a flow alone resets a connection only where another endpoint is ready: without one the client gets ICMP errors, which end no
//! connection, or nothing. The new flow belongs to an established connection, so the node's firewall lets packet and reset pass. It ends
//! with the timeout of the old flow, and the client may use its port again at once.
//!
//! A flow in a conntrack zone for both directions is left alone: rules put arriving packets into such a zone, and those of this node's own
//! sockets often not, so the reset would not be translated back. There another endpoint resets the connection.

use std::io;
use std::net::IpAddr;

use nft::socket::{Bus, Socket};
use nft::wire::Attrs;

use super::super::connections::Ends;
use super::{address, finished, message, number, request_each, tuple};
use crate::kernel::errno::EEXIST;
use rules::conntrack::Flow;
use rules::model::Family;

/// `IPS_SEEN_REPLY`, `IPS_ASSURED` and `IPS_CONFIRMED`.
const STATUS: u32 = 1 << 1 | 1 << 2 | 1 << 3;
/// `TCP_CONNTRACK_ESTABLISHED`.
const ESTABLISHED: u8 = 3;
/// `IP_CT_TCP_FLAG_CLOSE_INIT`, with which the client may begin a new connection from the same port, and `IP_CT_TCP_FLAG_BE_LIBERAL`,
/// because the kernel does not know the sequence numbers of the new flow.
const TCP_FLAGS: u8 = 0x04 | 0x08;

/// Leads the deleted TCP flows in `flows` to port 0 of `at`, an address of this node. A flow that a packet has made again meanwhile stays.
///
/// # Errors
/// Returns the first error that the kernel reports.
pub(in crate::kernel) fn reset(flows: &[Flow], at: IpAddr) -> io::Result<()> {
    let mut socket = Socket::open(Bus::Netfilter)?;
    let mut failure = None;
    let request = |flow: &Flow| {
        let has_zone = Attrs::new(&flow.handle).find(number::ZONE).is_some();
        if has_zone { Vec::new() } else { creation(flow, at) }
    };
    request_each(&mut socket, flows, request, |errno| {
        failure = failure.or((errno != 0 && errno != EEXIST).then_some(errno));
    })?;
    failure.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
}

/// Returns the request that makes a flow like `flow` that leads to port 0 of `at`.
fn creation(flow: &Flow, at: IpAddr) -> Vec<u8> {
    let family = Family::of(flow.original_destination.ip());
    let mut request = message(number::NEW, number::NLM_F_ACK | number::NLM_F_NEW, family);
    request.raw(&flow.handle);
    // The kernel changes the direction of replies as the translated destination asks.
    let replies = Ends { source: flow.original_destination, destination: flow.client };
    tuple(&mut request, number::TUPLE_REPLY, flow.protocol.number(), replies);
    let nat = request.open(number::NAT_DESTINATION);
    address(&mut request, [number::NAT_IPV4, number::NAT_IPV6], at);
    let ports = request.open(number::NAT_PORTS);
    request.attr(number::NAT_PORT, &[0, 0]);
    request.close(ports);
    request.close(nat);
    request.u32(number::TIMEOUT, flow.timeout.max(1));
    request.u32(number::STATUS, STATUS);
    let info = request.open(number::PROTOINFO);
    let tcp = request.open(number::PROTOINFO_TCP);
    request.attr(number::PROTOCOL_STATE, &[ESTABLISHED]);
    number::TCP_FLAGS.into_iter().for_each(|kind| request.attr(kind, &[TCP_FLAGS, TCP_FLAGS]));
    request.close(tcp);
    request.close(info);
    finished(request)
}
