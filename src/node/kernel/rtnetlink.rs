//! Lists the addresses and the interfaces of the calling thread's network namespace over rtnetlink.
//!
//! Each list is made with one dump request. It is sorted and has no duplicates.
//!
//! The module uses no library for rtnetlink. `if-addrs` and `nix::ifaddrs` call `getifaddrs`, which lists all links together with the
//! addresses. On a node with hundreds of pods the list of links is many times longer than the list of addresses, and the kernel holds its
//! RTNL lock to make it; the sync loop lists the addresses each time one changes. `netlink-packet-route` parses all of rtnetlink, and this
//! module needs only three attributes. The socket and the parser of attributes come from crate `nft`.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use nft::decode::{self, Messages};
use nft::socket::{Bus, Socket};
use nft::wire::{Attr, Attrs};

/// Constants of `linux/netlink.h`, `linux/rtnetlink.h`, `linux/if_addr.h`, `linux/if_link.h` and `linux/if.h`.
mod number {
    /// `NLM_F_REQUEST | NLM_F_DUMP`.
    pub(super) const REQUEST_DUMP: u16 = 0x301;

    pub(super) const RTM_NEWADDR: u16 = 20;
    pub(super) const RTM_GETADDR: u16 = 22;
    pub(super) const IFA_ADDRESS: u16 = 1;
    /// The interface's own address. On point-to-point links `IFA_ADDRESS` is the address of the peer.
    pub(super) const IFA_LOCAL: u16 = 2;
    /// The offset of `ifa_flags`, which holds only the lower eight flags. The three flags below are among them.
    pub(super) const ADDRESS_FLAGS: usize = 16 + 2;
    pub(super) const IFA_F_OPTIMISTIC: u8 = 0x04;
    pub(super) const IFA_F_DADFAILED: u8 = 0x08;
    pub(super) const IFA_F_TENTATIVE: u8 = 0x40;
    /// The length of `nlmsghdr` and `ifaddrmsg` together, in bytes.
    pub(super) const ADDRESS_HEADERS: usize = 16 + 8;
    /// The offset of `ifa_index`.
    pub(super) const ADDRESS_INDEX: usize = 16 + 4;

    pub(super) const RTM_NEWLINK: u16 = 16;
    pub(super) const RTM_GETLINK: u16 = 18;
    pub(super) const IFLA_IFNAME: u16 = 3;
    /// The length of `nlmsghdr` and `ifinfomsg` together, in bytes.
    pub(super) const LINK_HEADERS: usize = 16 + 16;
    /// The offset of `ifi_flags`.
    pub(super) const LINK_FLAGS: usize = 16 + 8;
    pub(super) const IFF_LOOPBACK: u32 = 8;
}

/// Returns the addresses of all interfaces in the calling thread's network namespace that the kernel uses. Leaves out an address whose
/// duplicate address detection is under way or has failed: the kernel accepts no packets to such an address, and no program can listen on
/// it.
///
/// # Errors
/// Returns the error that the kernel reports.
pub fn addresses() -> io::Result<Vec<IpAddr>> {
    dump(number::RTM_GETADDR, number::ADDRESS_HEADERS, address)
}

/// Returns the addresses of the interface with this index in the calling thread's network namespace.
///
/// # Errors
/// Returns the error that the kernel reports.
pub(super) fn addresses_of(index: u32) -> io::Result<Vec<IpAddr>> {
    let with_index = |message: &[u8]| {
        let index = u32::from_ne_bytes(*message.get(number::ADDRESS_INDEX..)?.first_chunk()?);
        Some((index, address(message)?))
    };
    let all = dump(number::RTM_GETADDR, number::ADDRESS_HEADERS, with_index)?;
    Ok(all.into_iter().filter(|(of, _)| *of == index).map(|(_, address)| address).collect())
}

/// Returns the names of all interfaces in the calling thread's network namespace except loopback.
///
/// # Errors
/// Returns the error that the kernel reports.
pub(super) fn interfaces() -> io::Result<Vec<Arc<str>>> {
    dump(number::RTM_GETLINK, number::LINK_HEADERS, interface)
}

/// Returns the address in a message; `None` for an address that the kernel does not use, and for a message of another type.
#[must_use]
pub fn address(message: &[u8]) -> Option<IpAddr> {
    if kind(message)? != number::RTM_NEWADDR || !is_used(*message.get(number::ADDRESS_FLAGS)?) {
        return None;
    }
    let attrs = Attrs::new(message.get(number::ADDRESS_HEADERS..)?);
    attrs.find(number::IFA_LOCAL).or_else(|| attrs.find(number::IFA_ADDRESS)).and_then(ip)
}

/// Returns whether the kernel uses an address with these flags. The kernel uses an optimistic address already while duplicate address
/// detection is under way (RFC 4429).
const fn is_used(flags: u8) -> bool {
    let is_awaited = flags & number::IFA_F_TENTATIVE != 0 && flags & number::IFA_F_OPTIMISTIC == 0;
    !is_awaited && flags & number::IFA_F_DADFAILED == 0
}

/// Returns the IP in an attribute of 4 or 16 bytes.
pub(super) fn ip(attr: Attr<'_>) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(attr.payload).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(attr.payload).map(IpAddr::from)).ok()
}

/// Returns the name of the interface in a message; `None` for loopback, and for a message of another type.
fn interface(message: &[u8]) -> Option<Arc<str>> {
    let flags = message.get(number::LINK_FLAGS..number::LINK_FLAGS + 4)?;
    let is_loopback = u32::from_ne_bytes(flags.try_into().ok()?) & number::IFF_LOOPBACK != 0;
    if kind(message)? != number::RTM_NEWLINK || is_loopback {
        return None;
    }
    let name = Attrs::new(message.get(number::LINK_HEADERS..)?).find(number::IFLA_IFNAME)?;
    name.str().map(Arc::from)
}

/// Returns the type of a netlink message.
pub(super) fn kind(message: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(message.get(4..6)?.try_into().ok()?))
}

/// Requests a dump, and returns the items that `parse` finds in its messages, sorted and without duplicates. `kind` is the type of the
/// request, and `headers` is the length in bytes of `nlmsghdr` and the header that follows it.
fn dump<T: Ord>(kind: u16, headers: usize, parse: fn(&[u8]) -> Option<T>) -> io::Result<Vec<T>> {
    let mut socket = Socket::open(Bus::Route)?;
    socket.send(&request(kind, headers))?;
    let mut items = Vec::new();
    loop {
        for message in Messages::new(socket.receive()?) {
            if let Some(errno) = decode::ack(message).map(|ack| ack.errno).or_else(|| decode::done(message)) {
                if errno != 0 {
                    return Err(io::Error::from_raw_os_error(errno));
                }
                items.sort_unstable();
                items.dedup();
                return Ok(items);
            }
            items.extend(parse(message));
        }
    }
}

/// Returns the request for a dump of all objects: length, type and flags, and zeros for the rest of the headers.
fn request(kind: u16, headers: usize) -> Vec<u8> {
    let len = u32::try_from(headers).unwrap_or_default();
    let mut bytes = len.to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(number::REQUEST_DUMP.to_ne_bytes());
    bytes.resize(headers, 0);
    bytes
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn loopback_is_among_the_addresses() {
        assert!(addresses().unwrap().contains(&Ipv4Addr::LOCALHOST.into()));
        assert!(addresses_of(1).unwrap().contains(&Ipv4Addr::LOCALHOST.into()), "loopback has index 1");
        assert_eq!(addresses_of(u32::MAX).unwrap(), [] as [IpAddr; 0]);
    }

    // The proxy serves no node port and no health-check node port at an address that the kernel does not use (H5, K5).
    #[test]
    fn an_address_that_is_tentative_or_failed_duplicate_detection_is_not_used() {
        let message = |flags: u8| {
            let mut bytes = [&44_u32.to_ne_bytes()[..], &number::RTM_NEWADDR.to_ne_bytes(), &[0; 10]].concat();
            bytes.extend([10, 128, flags, 0, 1, 0, 0, 0]);
            bytes.extend([&20_u16.to_ne_bytes()[..], &number::IFA_ADDRESS.to_ne_bytes(), &[7; 16]].concat());
            bytes
        };
        let (permanent, optimistic, failed, tentative) = (0x80, 0x04, 0x08, 0x40);
        let used = [permanent, 0, tentative | optimistic].map(message);
        assert!(used.iter().all(|message| address(message) == Some([7; 16].into())));
        let unused = [permanent | tentative, permanent | tentative | failed, tentative | optimistic | failed];
        assert!(unused.map(message).iter().all(|message| address(message).is_none()));
    }

    #[test]
    fn every_interface_but_loopback_is_listed() {
        let proc = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let names = proc.lines().skip(2).filter_map(|line| line.split_once(':')).map(|(name, _)| name.trim());
        let mut expected: Vec<&str> = names.filter(|name| *name != "lo").collect();
        expected.sort_unstable();
        let found = interfaces().unwrap();
        assert_eq!(found.iter().map(|name| &**name).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn messages_of_other_types_are_ignored() {
        for message in [vec![0; 8], request(number::RTM_GETADDR, number::ADDRESS_HEADERS)] {
            assert_eq!(address(&message), None);
        }
        for message in [vec![0; 8], request(number::RTM_GETLINK, number::LINK_HEADERS)] {
            assert_eq!(interface(&message), None);
        }
    }
}
