//! Lists and deletes the flows that the kernel tracks, over ctnetlink.
//!
//! Linux 5.8 and later filter the list by protocol, and Linux 5.16 and later by status; on older kernels this module filters it. Memory is
//! bounded by the flows that the caller wants. A flow is deleted by its original tuple, zone and id, so that a new flow with the same
//! addresses stays.

mod load;
mod reset;
mod walk;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nft::decode::{self, Messages};
use nft::socket::{Bus, Socket};
use nft::wire::{Attr, Attrs, Writer};

use super::connections::{Ends, Phase};
use super::rtnetlink::ip;
use crate::kernel::errno::{EBUSY, EEXIST, ENOENT};
use rules::conntrack::{Flow, Listing};
use rules::model::{Family, Protocol};

pub use load::ConntrackLoad;
pub(super) use load::tracked;
pub use walk::find_connection;
use walk::{SEEN_REPLY, TRANSLATED};
pub use walk::{connection, each_connection};

/// Constants of `linux/netfilter/nfnetlink_conntrack.h`, `linux/netfilter/nfnetlink.h` and `linux/netlink.h`.
mod number {
    const SUBSYSTEM: u16 = 1 << 8;
    pub(super) const NEW: u16 = SUBSYSTEM;
    pub(super) const GET: u16 = SUBSYSTEM | 1;
    pub(super) const DELETE: u16 = SUBSYSTEM | 2;
    /// `IPCTNL_MSG_CT_GET_STATS_CPU`.
    pub(super) const GET_STATISTICS: u16 = SUBSYSTEM | 4;
    /// `IPCTNL_MSG_CT_GET_STATS`, and `CTA_STATS_GLOBAL_ENTRIES` of its answer.
    pub(super) const GET_COUNT: u16 = SUBSYSTEM | 5;
    pub(super) const COUNT: u16 = 1;

    pub(super) const TUPLE_ORIGINAL: u16 = 1;
    pub(super) const TUPLE_REPLY: u16 = 2;
    pub(super) const STATUS: u16 = 3;
    pub(super) const PROTOINFO: u16 = 4;
    pub(super) const TIMEOUT: u16 = 7;
    pub(super) const MARK: u16 = 8;
    pub(super) const COUNTERS_ORIGINAL: u16 = 9;
    pub(super) const COUNTERS_REPLY: u16 = 10;
    pub(super) const ID: u16 = 12;
    pub(super) const NAT_DESTINATION: u16 = 13;
    pub(super) const ZONE: u16 = 18;
    pub(super) const FILTER: u16 = 25;
    pub(super) const STATUS_MASK: u16 = 26;
    pub(super) const FILTER_ORIGINAL_FLAGS: u16 = 1;
    /// `CTA_FILTER_FLAG(CTA_PROTO_NUM)`, in host order.
    pub(super) const BY_PROTOCOL: u32 = 1 << 3;

    /// `CTA_STATS_...`, which are numbers of 32 bits.
    pub(super) const STATISTICS_INSERT_FAILED: u16 = 9;
    pub(super) const STATISTICS_DROP: u16 = 10;
    pub(super) const STATISTICS_EARLY_DROP: u16 = 11;

    pub(super) const TUPLE_IP: u16 = 1;
    pub(super) const TUPLE_PROTO: u16 = 2;
    pub(super) const IPV4_SOURCE: u16 = 1;
    pub(super) const IPV4_DESTINATION: u16 = 2;
    pub(super) const IPV6_SOURCE: u16 = 3;
    pub(super) const IPV6_DESTINATION: u16 = 4;
    pub(super) const PROTO_NUMBER: u16 = 1;
    pub(super) const SOURCE_PORT: u16 = 2;
    pub(super) const DESTINATION_PORT: u16 = 3;

    /// Attributes nested in `PROTOINFO`: one for each protocol, which in turn contains the connection's state as attribute 1.
    pub(super) const PROTOINFO_TCP: u16 = 1;
    pub(super) const PROTOINFO_SCTP: u16 = 3;
    pub(super) const PROTOCOL_STATE: u16 = 1;
    pub(super) const TCP_FLAGS: [u16; 2] = [4, 5];
    /// Attributes nested in `NAT_DESTINATION`.
    pub(super) const NAT_IPV4: u16 = 1;
    pub(super) const NAT_PORTS: u16 = 3;
    pub(super) const NAT_IPV6: u16 = 4;
    pub(super) const NAT_PORT: u16 = 1;
    pub(super) const PACKETS: u16 = 1;
    pub(super) const BYTES: u16 = 2;

    pub(super) const NLM_F_REQUEST: u16 = 1;
    pub(super) const NLM_F_ACK: u16 = 4;
    pub(super) const NLM_F_DUMP: u16 = 0x300;
    /// `NLM_F_CREATE | NLM_F_EXCL`.
    pub(super) const NLM_F_NEW: u16 = 0x600;
    /// The length of `nlmsghdr` and `nfgenmsg` together, in bytes.
    pub(super) const HEADERS: usize = 20;
}

/// How often the list is requested at most, if the kernel marks each answer as interrupted (`NLM_F_DUMP_INTR`), and thus incomplete (J8).
const TRIES: usize = 5;
/// The number of flows whose requests are sent before the answers are read: so few that the answers fit into the socket's receive buffer.
const CHUNK: usize = 32;
/// How often the deletion is tried again while a flow is still in a flowtable, and the time before each try.
const RELEASE_TRIES: usize = 50;
const RELEASE_INTERVAL: Duration = Duration::from_millis(20);

/// Where a list of flows is filtered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filter {
    /// In the kernel: UDP flows by protocol, the others by status. Its filter by IPv6 address is not used, because
    /// `ctnetlink_filter_match_tuple` in `net/netfilter/nf_conntrack_netlink.c` compares such addresses the wrong way round: it lists the
    /// flows that do not match.
    Kernel,
    /// In this module. Kernels before 5.8 have no filter: some ignore the attribute, others refuse the request.
    Here,
}

/// Makes the kernel load module nf_conntrack with a request for the number of connections, because without the module the sysctls of
/// connection tracking do not exist (N1).
pub fn load_conntrack() {
    // Ignore the error: if the module is missing, writing the sysctls fails later with a better message.
    let _ = load::tracked();
}

/// Returns the flows of a family and a listing for which `is_wanted` is true. After five interrupted lists it returns the last one,
/// although it is incomplete (J8).
///
/// # Errors
/// Returns the error that the kernel reports.
pub(super) fn list(
    family: Family,
    listing: Listing,
    mut is_wanted: impl FnMut(&Flow) -> bool,
) -> io::Result<Vec<Flow>> {
    let mut socket = Socket::open(Bus::Netfilter)?;
    let mut is_wanted = |flow: &Flow| is_of(listing, flow) && is_wanted(flow);
    with_fallback(|filter| {
        let request = list_request(family, listing, filter);
        until_complete(|flows| list_once(&mut socket, &request, &mut is_wanted, flows))
    })
}

/// Whether a flow belongs to a listing; kernels that cannot filter list other flows as well.
fn is_of(listing: Listing, flow: &Flow) -> bool {
    match listing {
        Listing::Udp => flow.protocol == Protocol::Udp,
        Listing::Unanswered => flow.protocol != Protocol::Udp && flow.is_unanswered,
        Listing::Translated => flow.protocol != Protocol::Udp,
    }
}

/// Calls `list` with the kernel's filter, and again without it if the kernel refuses the filter.
fn with_fallback<T>(mut list: impl FnMut(Filter) -> io::Result<T>) -> io::Result<T> {
    const REFUSED: [i32; 2] = [22, 95];
    match list(Filter::Kernel) {
        Err(error) if error.raw_os_error().is_some_and(|errno| REFUSED.contains(&errno)) => list(Filter::Here),
        outcome => outcome,
    }
}

/// Lists until a list is complete, at most [`TRIES`] times (J8). `list` fills a list and returns whether it is complete.
fn until_complete(mut list: impl FnMut(&mut Vec<Flow>) -> io::Result<bool>) -> io::Result<Vec<Flow>> {
    let mut flows = Vec::new();
    for _ in 0..TRIES {
        flows.clear();
        match list(&mut flows) {
            Ok(true) => break,
            Ok(false) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(flows)
}

/// Returns the request for the list of a family's flows. With [`Filter::Kernel`] it asks the kernel to send only those of the listing.
fn list_request(family: Family, listing: Listing, filter: Filter) -> Vec<u8> {
    let mut request = message(number::GET, number::NLM_F_DUMP, family);
    match (listing, filter) {
        (_, Filter::Here) => {}
        (Listing::Udp, Filter::Kernel) => {
            let tuple = request.open(number::TUPLE_ORIGINAL);
            let proto = request.open(number::TUPLE_PROTO);
            request.attr(number::PROTO_NUMBER, &[Protocol::Udp.number()]);
            request.close(proto);
            request.close(tuple);
            let filter = request.open(number::FILTER);
            request.attr(number::FILTER_ORIGINAL_FLAGS, &number::BY_PROTOCOL.to_ne_bytes());
            request.close(filter);
        }
        (Listing::Unanswered, Filter::Kernel) => {
            request.u32(number::STATUS, TRANSLATED);
            request.u32(number::STATUS_MASK, TRANSLATED | SEEN_REPLY);
        }
        (Listing::Translated, Filter::Kernel) => request.u32(number::STATUS, TRANSLATED),
    }
    finished(request)
}

/// Requests the list once. Returns whether the list is complete.
fn list_once(
    socket: &mut Socket,
    request: &[u8],
    is_wanted: &mut impl FnMut(&Flow) -> bool,
    flows: &mut Vec<Flow>,
) -> io::Result<bool> {
    socket.send(request)?;
    let mut complete = true;
    loop {
        for message in Messages::new(socket.receive()?) {
            complete &= !decode::dump_interrupted(message);
            if let Some(errno) = decode::ack(message).map(|ack| ack.errno).or_else(|| decode::done(message)) {
                return if errno == 0 { Ok(complete) } else { Err(io::Error::from_raw_os_error(errno)) };
            }
            flows.extend(flow(message).filter(&mut *is_wanted));
        }
    }
}

/// The result of deletions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Deletions {
    /// The number of deleted flows.
    deleted: usize,
    /// Whether a flow was not deleted because it is in a flowtable: kernels before 6.4 without commit 9b7c68b3911a refuse to delete it.
    held: bool,
    /// The first error number that the kernel reported, other than those that are expected: a flow does not exist, exists again, or is in a
    /// flowtable.
    failure: Option<i32>,
}

/// Deletes flows and returns how many of them still existed. Continues after a flow that cannot be deleted. Calls `release`, which removes
/// all flows from the flowtable, if the kernel refuses to delete a flow because it is in a flowtable.
///
/// `reset_at` is an address of this node. If it is given, each open TCP connection that is in no conntrack zone is replaced by a flow that
/// makes this node reset the connection. Both requests are in the same send, so that hardly any packet arrives between them: the rules
/// would send such a packet to another endpoint, whose reset would end the connection, and the new flow would then reset the client's next
/// connection from the same port.
///
/// # Errors
/// Returns the first error that the kernel reports, other than that a flow does not exist; or the error of `release`.
pub(super) fn delete(
    flows: &[Flow],
    reset_at: Option<IpAddr>,
    release: impl FnOnce() -> io::Result<()>,
) -> io::Result<usize> {
    let mut socket = Socket::open(Bus::Netfilter)?;
    let outcome = until_released(|| delete_once(&mut socket, flows, reset_at), release)?;
    let failure = outcome.failure.or(outcome.held.then_some(EBUSY));
    failure.map_or(Ok(outcome.deleted), |errno| Err(io::Error::from_raw_os_error(errno)))
}

/// Calls `delete`, and `release` if a flow is in a flowtable. The kernel takes the flows out of the flowtable some milliseconds after
/// `release`, so the deletion is repeated until no flow is in a flowtable, at most [`RELEASE_TRIES`] times.
fn until_released(
    mut delete: impl FnMut() -> io::Result<Deletions>,
    release: impl FnOnce() -> io::Result<()>,
) -> io::Result<Deletions> {
    let mut outcome = delete()?;
    if outcome.held {
        release()?;
    }
    for _ in 0..RELEASE_TRIES {
        if !outcome.held {
            break;
        }
        std::thread::sleep(RELEASE_INTERVAL);
        let again = delete()?;
        outcome = Deletions { deleted: outcome.deleted + again.deleted, ..again };
    }
    Ok(outcome)
}

fn delete_once(socket: &mut Socket, flows: &[Flow], reset_at: Option<IpAddr>) -> io::Result<Deletions> {
    let mut outcome = Deletions::default();
    let requests = |flow| [deletion(flow), reset_at.map_or_else(Vec::new, |at| reset::request(flow, at))].concat();
    for chunk in flows.chunks(CHUNK) {
        socket.send(&chunk.iter().flat_map(requests).collect::<Vec<u8>>())?;
        while let Some(bytes) = socket.receive_now()? {
            for ack in Messages::new(bytes).filter_map(decode::ack) {
                match (ack.errno, ack.seq == reset::SEQUENCE) {
                    (0, false) => outcome.deleted += 1,
                    (0 | EEXIST, true) | (ENOENT, false) => {}
                    (EBUSY, false) => outcome.held = true,
                    (errno, _) => outcome.failure = outcome.failure.or(Some(errno)),
                }
            }
        }
    }
    Ok(outcome)
}

/// Returns the request that deletes a flow.
#[must_use]
pub fn deletion(flow: &Flow) -> Vec<u8> {
    let family = Family::of(flow.original_destination.ip());
    let mut request = message(number::DELETE, number::NLM_F_ACK, family);
    request.raw(&flow.handle);
    finished(request)
}

/// Begins a message with `nlmsghdr` and `nfgenmsg`. [`finished`] fills in the length.
fn message(kind: u16, flags: u16, family: Family) -> Writer {
    message_about(kind, flags, nft::Family::from(family).number())
}

/// Begins a message like [`message`], but takes the number of the address family; 0 stands for all families.
fn message_about(kind: u16, flags: u16, family: u8) -> Writer {
    let mut writer = Writer::default();
    writer.raw(&[0; 4]);
    writer.raw(&kind.to_ne_bytes());
    writer.raw(&(number::NLM_F_REQUEST | flags).to_ne_bytes());
    writer.raw(&[0; 8]);
    writer.raw(&[family, 0, 0, 0]);
    writer
}

fn finished(writer: Writer) -> Vec<u8> {
    let mut bytes = writer.into_bytes();
    let len = u32::try_from(bytes.len()).unwrap_or_default();
    bytes[..4].copy_from_slice(&len.to_ne_bytes());
    bytes
}

/// Appends the tuple of packets with this source and destination.
fn tuple(request: &mut Writer, kind: u16, protocol: u8, ends: Ends) {
    let tuple = request.open(kind);
    let ip = request.open(number::TUPLE_IP);
    address(request, [number::IPV4_SOURCE, number::IPV6_SOURCE], ends.source.ip());
    address(request, [number::IPV4_DESTINATION, number::IPV6_DESTINATION], ends.destination.ip());
    request.close(ip);
    let proto = request.open(number::TUPLE_PROTO);
    request.attr(number::PROTO_NUMBER, &[protocol]);
    request.attr(number::SOURCE_PORT, &ends.source.port().to_be_bytes());
    request.attr(number::DESTINATION_PORT, &ends.destination.port().to_be_bytes());
    request.close(proto);
    request.close(tuple);
}

/// Appends an address as an attribute of the kind for IPv4 or for IPv6.
fn address(request: &mut Writer, [v4, v6]: [u16; 2], address: IpAddr) {
    match address {
        IpAddr::V4(address) => request.attr(v4, &address.octets()),
        IpAddr::V6(address) => request.attr(v6, &address.octets()),
    }
}

/// Returns the flow in a message; `None` for a message of another type, for another protocol than those of Services, and for a TCP
/// connection or SCTP association that has ended or has no translated destination.
#[must_use]
pub fn flow(message: &[u8]) -> Option<Flow> {
    let kind = u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?);
    if kind != number::NEW {
        return None;
    }
    let attrs = Attrs::new(message.get(number::HEADERS..)?);
    let original = attrs.find(number::TUPLE_ORIGINAL)?;
    let (number, client, original_destination) = ends(original)?;
    let protocol = Protocol::ALL.into_iter().find(|protocol| protocol.number() == number)?;
    let (_, reply_source, _) = ends(attrs.find(number::TUPLE_REPLY)?)?;
    let number = |kind| attrs.find(kind).and_then(|attr| attr.u32()).unwrap_or_default();
    let mut is_unanswered = false;
    if protocol != Protocol::Udp {
        let status = number(number::STATUS);
        let state = attrs.find(number::PROTOINFO).and_then(walk::protocol_state);
        is_unanswered = status & SEEN_REPLY == 0 && state.is_some_and(|state| is_first(protocol, state));
        let is_over = !is_unanswered && walk::phase(protocol.number(), status, state) == Phase::Ended;
        if status & TRANSLATED == 0 || is_over {
            return None;
        }
    }
    let mut handle = Writer::default();
    handle.attr(number::TUPLE_ORIGINAL | NESTED, original.payload);
    for kind in [number::ZONE, number::ID] {
        if let Some(attr) = attrs.find(kind) {
            handle.attr(kind, attr.payload);
        }
    }
    let (timeout, handle) = (number(number::TIMEOUT), handle.into_bytes());
    Some(Flow { protocol, client, original_destination, reply_source, is_unanswered, timeout, handle })
}

/// Whether the kernel saw nothing but the first packet: `TCP_CONNTRACK_SYN_SENT`, `SCTP_CONNTRACK_COOKIE_WAIT`, or for newer kernels
/// `SCTP_CONNTRACK_CLOSED`. A connection that the kernel took up in its middle, which may run, has another state.
const fn is_first(protocol: Protocol, state: u8) -> bool {
    state == 1 || state == 2 && matches!(protocol, Protocol::Sctp)
}

/// `NLA_F_NESTED`.
const NESTED: u16 = 1 << 15;

/// Returns protocol number, source and destination of a tuple; `None` for a protocol without ports, such as ICMP.
fn ends(tuple: Attr<'_>) -> Option<(u8, SocketAddr, SocketAddr)> {
    let proto = tuple.nested().find(number::TUPLE_PROTO)?.nested();
    let addresses = tuple.nested().find(number::TUPLE_IP)?.nested();
    let address = |v4, v6| addresses.find(v4).or_else(|| addresses.find(v6)).and_then(ip);
    let port = |kind| Some(u16::from_be_bytes(proto.find(kind)?.payload.try_into().ok()?));
    let source = SocketAddr::new(address(number::IPV4_SOURCE, number::IPV6_SOURCE)?, port(number::SOURCE_PORT)?);
    let destination = address(number::IPV4_DESTINATION, number::IPV6_DESTINATION)?;
    let destination = SocketAddr::new(destination, port(number::DESTINATION_PORT)?);
    Some((proto.find(number::PROTO_NUMBER)?.u8()?, source, destination))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn any_flow() -> Flow {
        let end: SocketAddr = (Ipv4Addr::LOCALHOST, 53).into();
        Flow {
            protocol: Protocol::Udp,
            client: end,
            original_destination: end,
            reply_source: end,
            is_unanswered: false,
            timeout: 0,
            handle: Vec::new(),
        }
    }

    /// Returns the number of attempts and the number of listed flows, when `end(n)` is the result of attempt `n`.
    fn attempts(end: impl Fn(u32) -> io::Result<bool>) -> (u32, io::Result<usize>) {
        let mut count = 0;
        let outcome = until_complete(|flows| {
            count += 1;
            flows.push(any_flow());
            end(count)
        });
        (count, outcome.map(|flows| flows.len()))
    }

    // An interrupted list is requested five times at most (J8).
    #[test]
    fn an_interrupted_list_is_requested_five_times_at_most() {
        assert!(matches!(attempts(|_| Ok(true)), (1, Ok(1))));
        assert!(matches!(attempts(|count| Ok(count == 3)), (3, Ok(1))), "without the flows of the attempts before");
        assert!(matches!(attempts(|_| Ok(false)), (5, Ok(1))), "then the last list is given, although it is partial");
        assert!(matches!(attempts(|_| Err(io::ErrorKind::Interrupted.into())), (5, Ok(1))));
        assert!(matches!(attempts(|_| Err(io::Error::from_raw_os_error(1))), (1, Err(_))), "other errors end it");
    }

    /// Returns the numbers of releases and of tries, and the result, when the flows stay in a flowtable for this many tries.
    fn held_for(tries_until_free: usize) -> (usize, usize, Deletions) {
        let (mut releases, mut tries) = (0, 0);
        let outcome = until_released(
            || {
                tries += 1;
                let held = tries <= tries_until_free;
                Ok(Deletions { deleted: usize::from(!held) + usize::from(tries == 1), held, failure: None })
            },
            || {
                releases += 1;
                Ok(())
            },
        );
        (releases, tries, outcome.unwrap())
    }

    // Flows in a flowtable are released once and then deleted (J1).
    #[test]
    fn flows_in_a_flowtable_are_released_once_and_then_deleted() {
        assert_eq!(held_for(0), (0, 1, Deletions { deleted: 2, ..Deletions::default() }));
        assert_eq!(
            held_for(3),
            (1, 4, Deletions { deleted: 2, ..Deletions::default() }),
            "one at once, one after the release"
        );
        let (releases, tries, end) = held_for(usize::MAX);
        assert_eq!((releases, tries, end.held), (1, 1 + RELEASE_TRIES, true), "no further try");
        let held = || Ok(Deletions { held: true, ..Deletions::default() });
        assert!(until_released(held, || Err(io::ErrorKind::PermissionDenied.into())).is_err());
    }

    // If the kernel refuses the filter, the list is requested without it (J2).
    #[test]
    fn a_kernel_that_refuses_the_filter_lists_without_it() {
        let asked = |errno: Option<i32>| {
            let mut filters = Vec::new();
            let outcome = with_fallback(|filter| {
                filters.push(filter);
                let refused = errno.filter(|_| filter == Filter::Kernel);
                refused.map_or(Ok(()), |errno| Err(io::Error::from_raw_os_error(errno)))
            });
            (filters, outcome.is_ok())
        };
        assert_eq!(asked(None), (vec![Filter::Kernel], true));
        assert_eq!(asked(Some(22)), (vec![Filter::Kernel, Filter::Here], true));
        assert_eq!(asked(Some(95)), (vec![Filter::Kernel, Filter::Here], true));
        assert_eq!(asked(Some(1)), (vec![Filter::Kernel], false), "other errors have nothing to do with the filter");
    }

    // Flows of other protocols, and TCP and SCTP flows without a translated destination, are filtered out here (J2, J9).
    #[test]
    fn what_the_kernel_does_not_filter_is_filtered_here() {
        let tuple = |writer: &mut Writer, kind: u16, protocol: u8| {
            let tuple = writer.open(kind);
            let ip = writer.open(number::TUPLE_IP);
            writer.attr(number::IPV4_SOURCE, &[10, 0, 0, 1]);
            writer.attr(number::IPV4_DESTINATION, &[10, 0, 0, 2]);
            writer.close(ip);
            let proto = writer.open(number::TUPLE_PROTO);
            writer.attr(number::PROTO_NUMBER, &[protocol]);
            writer.attr(number::SOURCE_PORT, &[0, 1]);
            writer.attr(number::DESTINATION_PORT, &[0, 53]);
            writer.close(proto);
            writer.close(tuple);
        };
        let entry = |protocol| {
            let mut entry = message(number::NEW, 0, Family::V4);
            tuple(&mut entry, number::TUPLE_ORIGINAL, protocol);
            tuple(&mut entry, number::TUPLE_REPLY, protocol);
            finished(entry)
        };
        let udp = flow(&entry(17)).unwrap();
        assert_eq!(
            (udp.original_destination, udp.reply_source),
            (([10, 0, 0, 2], 53).into(), ([10, 0, 0, 1], 1).into())
        );
        for other in [6, 132, 1] {
            assert_eq!(flow(&entry(other)), None, "protocol {other}");
        }
    }
}
