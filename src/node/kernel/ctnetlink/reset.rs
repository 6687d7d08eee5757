//! The request by which the kernel resets a TCP connection whose flow is deleted.
//!
//! Takes a flow and an address of this node; pure. The request makes a flow in the place of the deleted one that leads to port 0 of that
//! address, where no program can listen. So this node answers the client's next packet with a reset. The flow translates the source of the
//! reset back to the address that the client knows.
//!
//! Deleting a flow alone resets a connection only where another endpoint is ready: without one the client gets ICMP errors, which end no
//! connection, or nothing. The new flow belongs to an established connection, so a firewall that accepts established connections lets
//! packet and reset pass. It ends with the timeout of the old flow, and the client may use its port again at once.
//!
//! No such request is made for a flow that is in a conntrack zone in both directions: rules put arriving packets into such a zone, but
//! often not the packets of this node's own sockets, so the kernel would not translate the reset back. The connection of such a flow is
//! reset only if another endpoint does so.

use std::net::IpAddr;

use nft::wire::Attrs;

use super::super::connections::Ends;
use super::{address, finished, message, number, tuple};
use rules::conntrack::Flow;
use rules::model::Family;

/// `IPS_SEEN_REPLY`, `IPS_ASSURED` and `IPS_CONFIRMED`.
const STATUS: u32 = 1 << 1 | 1 << 2 | 1 << 3;
/// `TCP_CONNTRACK_ESTABLISHED`.
const ESTABLISHED: u8 = 3;
/// `IP_CT_TCP_FLAG_CLOSE_INIT`, with which the client may begin a new connection from the same port, and `IP_CT_TCP_FLAG_BE_LIBERAL`,
/// because the kernel does not know the sequence numbers of the new flow.
const TCP_FLAGS: u8 = 0x04 | 0x08;

/// The sequence number of these requests, by which their answers are told from those of deletions.
pub(super) const SEQUENCE: u32 = 1;
/// Where `nlmsghdr` has the sequence number.
const AT: std::ops::Range<usize> = 8..12;

/// Returns the request that makes a flow like `flow` that leads to port 0 of `at`, an address of this node; nothing for a flow whose client
/// needs no reset, or that is in a conntrack zone. The kernel answers `EEXIST` when a packet has made the flow again meanwhile, which then
/// stays.
pub(super) fn request(flow: &Flow, at: IpAddr) -> Vec<u8> {
    if !flow.needs_reset() || Attrs::new(&flow.handle).find(number::ZONE).is_some() {
        return Vec::new();
    }
    let family = Family::of(flow.original_destination.ip());
    let mut request = message(number::NEW, number::NLM_F_ACK | number::NLM_F_NEW, family);
    request.raw(&flow.handle);
    // The tuple of replies before translation. The kernel changes it according to the translated destination below.
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
    let mut bytes = finished(request);
    bytes[AT].copy_from_slice(&SEQUENCE.to_ne_bytes());
    bytes
}
