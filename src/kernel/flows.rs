//! The UDP flows that the kernel tracks, over ctnetlink: list and delete.
//!
//! The list is filtered by protocol in the kernel (5.8 and later; before, and in any case, here). A flow is deleted by its
//! original tuple, zone and id, so that a new flow with the same addresses is left alone.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

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
/// How often flows are deleted again that a flowtable held, and how long before each time.
const RELEASE_TRIES: usize = 50;
const RELEASE_MOMENT: Duration = Duration::from_millis(20);

const ENOENT: i32 = 2;
const EBUSY: i32 = 16;

/// Who picks the UDP flows out of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filter {
    /// The kernel, by protocol only: its filter on IPv6 addresses is inverted.
    Kernel,
    /// We. Kernels before 5.8 do not know the filter; some ignore it, some refuse it.
    Here,
}

/// Has the kernel load connection tracking, if that is a module that nobody needed yet: asking it anything does. Without it there
/// are no settings to write (N).
pub fn load_conntrack() {
    // Whatever is wrong shows when the settings are written.
    let _ = list(Family::V4);
}

/// The UDP flows of a family. After five interrupted attempts the last list is given as it is (J8).
///
/// # Errors
/// What the kernel answers.
pub(super) fn list(family: Family) -> io::Result<Vec<Flow>> {
    let mut socket = Socket::open(Bus::Netfilter)?;
    with_fallback(|filter| until_complete(|flows| list_once(&mut socket, family, filter, flows)))
}

/// Has the kernel filter, and filters here if it refuses.
fn with_fallback<T>(mut list: impl FnMut(Filter) -> io::Result<T>) -> io::Result<T> {
    const REFUSED: [i32; 2] = [22, 95];
    match list(Filter::Kernel) {
        Err(error) if error.raw_os_error().is_some_and(|errno| REFUSED.contains(&errno)) => list(Filter::Here),
        outcome => outcome,
    }
}

/// Lists until a list is complete, at most [`TRIES`] times (J8). `list` fills a list and says whether it is complete.
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

/// Lists once; says whether the list is complete.
fn list_once(socket: &mut Socket, family: Family, filter: Filter, flows: &mut Vec<Flow>) -> io::Result<bool> {
    let mut request = message(number::GET, number::NLM_F_DUMP, family);
    if filter == Filter::Kernel {
        let tuple = request.open(number::TUPLE_ORIGINAL);
        let proto = request.open(number::TUPLE_PROTO);
        request.attr(number::PROTO_NUMBER, &[UDP]);
        request.close(proto);
        request.close(tuple);
        let filter = request.open(number::FILTER);
        request.attr(number::FILTER_ORIGINAL_FLAGS, &number::BY_PROTOCOL.to_ne_bytes());
        request.close(filter);
    }
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

/// What became of deletions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// Flows that are deleted.
    deleted: usize,
    /// A flow is in a flowtable, and this kernel deletes none that is: before 6.4, unless it got commit 9b7c68b3911a.
    held: bool,
    /// What the kernel answered first, other than that.
    failure: Option<i32>,
}

/// Deletes flows and gives the number of those that were still there. Goes on after one that cannot be deleted. `release` empties the
/// flowtable, if flows are in it that the kernel does not delete there.
///
/// # Errors
/// What the kernel answered first, other than that a flow is gone already; what `release` failed with.
pub(super) fn delete(flows: &[Flow], release: impl FnOnce() -> io::Result<()>) -> io::Result<usize> {
    let mut socket = Socket::open(Bus::Netfilter)?;
    let outcome = until_released(|| delete_once(&mut socket, flows), release)?;
    let failure = outcome.failure.or(outcome.held.then_some(EBUSY));
    failure.map_or(Ok(outcome.deleted), |errno| Err(io::Error::from_raw_os_error(errno)))
}

/// Deletes; after a release, which takes effect some moments later, until nothing is held any more or it has been tried
/// [`RELEASE_TRIES`] times.
fn until_released(
    mut delete: impl FnMut() -> io::Result<Outcome>,
    release: impl FnOnce() -> io::Result<()>,
) -> io::Result<Outcome> {
    let mut outcome = delete()?;
    if outcome.held {
        release()?;
    }
    for _ in 0..RELEASE_TRIES {
        if !outcome.held {
            break;
        }
        std::thread::sleep(RELEASE_MOMENT);
        let again = delete()?;
        outcome = Outcome { deleted: outcome.deleted + again.deleted, ..again };
    }
    Ok(outcome)
}

fn delete_once(socket: &mut Socket, flows: &[Flow]) -> io::Result<Outcome> {
    let mut outcome = Outcome::default();
    for chunk in flows.chunks(DELETIONS) {
        let requests: Vec<u8> = chunk.iter().flat_map(deletion).collect();
        socket.send(&requests)?;
        while let Some(bytes) = socket.receive_now()? {
            for ack in Messages::new(bytes).filter_map(decode::ack) {
                match ack.errno {
                    0 => outcome.deleted += 1,
                    ENOENT => {}
                    EBUSY => outcome.held = true,
                    errno => outcome.failure = outcome.failure.or(Some(errno)),
                }
            }
        }
    }
    Ok(outcome)
}

/// The request that deletes a flow.
#[must_use]
pub fn deletion(flow: &Flow) -> Vec<u8> {
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
#[must_use]
pub fn flow(message: &[u8]) -> Option<Flow> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn any_flow() -> Flow {
        let end: SocketAddr = (Ipv4Addr::LOCALHOST, 53).into();
        Flow { original_destination: end, reply_source: end, handle: Vec::new() }
    }

    /// How often a list was asked for that ends like this each time, and what was made of it.
    fn attempts(end: impl Fn(u32) -> io::Result<bool>) -> (u32, io::Result<usize>) {
        let mut count = 0;
        let outcome = until_complete(|flows| {
            count += 1;
            flows.push(any_flow());
            end(count)
        });
        (count, outcome.map(|flows| flows.len()))
    }

    // J8
    #[test]
    fn an_interrupted_list_is_begun_anew_five_times_at_most() {
        assert!(matches!(attempts(|_| Ok(true)), (1, Ok(1))));
        assert!(matches!(attempts(|count| Ok(count == 3)), (3, Ok(1))), "what came before is forgotten");
        assert!(matches!(attempts(|_| Ok(false)), (5, Ok(1))), "then the last list counts, though partial");
        assert!(matches!(attempts(|_| Err(io::ErrorKind::Interrupted.into())), (5, Ok(1))));
        assert!(matches!(attempts(|_| Err(io::Error::from_raw_os_error(1))), (1, Err(_))), "other errors end it");
    }

    /// Flows that are held for so many tries after the release: releases, tries, and the end.
    fn held_for(tries_until_free: usize) -> (usize, usize, Outcome) {
        let (mut releases, mut tries) = (0, 0);
        let outcome = until_released(
            || {
                tries += 1;
                let held = tries <= tries_until_free;
                Ok(Outcome { deleted: usize::from(!held) + usize::from(tries == 1), held, failure: None })
            },
            || {
                releases += 1;
                Ok(())
            },
        );
        (releases, tries, outcome.unwrap())
    }

    // J1
    #[test]
    fn flows_in_a_flowtable_are_released_once_and_then_deleted() {
        assert_eq!(held_for(0), (0, 1, Outcome { deleted: 2, ..Outcome::default() }));
        assert_eq!(held_for(3), (1, 4, Outcome { deleted: 2, ..Outcome::default() }), "one at once, one after it");
        let (releases, tries, end) = held_for(usize::MAX);
        assert_eq!((releases, tries, end.held), (1, 1 + RELEASE_TRIES, true), "given up");
        let held = || Ok(Outcome { held: true, ..Outcome::default() });
        assert!(until_released(held, || Err(io::ErrorKind::PermissionDenied.into())).is_err());
    }

    // J2
    #[test]
    fn a_kernel_that_refuses_the_filter_is_asked_without_it() {
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
        assert_eq!(asked(Some(1)), (vec![Filter::Kernel], false), "a missing capability is no matter of filters");
    }

    // J2 J9
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
        let udp = flow(&entry(UDP)).unwrap();
        assert_eq!(
            (udp.original_destination, udp.reply_source),
            (([10, 0, 0, 2], 53).into(), ([10, 0, 0, 1], 1).into())
        );
        for other in [6, 132, 1] {
            assert_eq!(flow(&entry(other)), None, "protocol {other}");
        }
    }
}
