//! Lists the addresses and the interfaces of the calling thread's network namespace over rtnetlink.
//!
//! Each list is made with one dump request. It is sorted and has no duplicates, unless its function says otherwise.
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
    /// The offset of `ifa_prefixlen`.
    pub(super) const ADDRESS_PREFIX: usize = 16 + 1;
    /// The offset of `ifa_flags`, which holds only the lower eight flags. The flags below are among them.
    pub(super) const ADDRESS_FLAGS: usize = 16 + 2;
    /// The offset of `ifa_scope`, in which 0 is the global scope.
    pub(super) const ADDRESS_SCOPE: usize = 16 + 3;
    pub(super) const IFA_F_SECONDARY: u8 = 0x01;
    pub(super) const IFA_F_DEPRECATED: u8 = 0x20;
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

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InterfaceAddress {
    /// The index of the interface.
    pub(super) interface: u32,
    pub(super) address: IpAddr,
    /// An address of the network on the link, and the length of its prefix. On point-to-point links it is the address of the peer.
    network: (IpAddr, u8),
    is_global: bool,
    flags: u8,
}

impl InterfaceAddress {
    fn read(message: &[u8]) -> Option<Self> {
        let address = address(message)?;
        let attrs = Attrs::new(message.get(number::ADDRESS_HEADERS..)?);
        let network = attrs.find(number::IFA_ADDRESS).and_then(ip).unwrap_or(address);
        Some(Self {
            interface: u32::from_ne_bytes(*message.get(number::ADDRESS_INDEX..)?.first_chunk()?),
            address,
            network: (network, *message.get(number::ADDRESS_PREFIX)?),
            is_global: *message.get(number::ADDRESS_SCOPE)? == 0,
            flags: *message.get(number::ADDRESS_FLAGS)?,
        })
    }

    /// Whether it is an IPv4 address of global scope, and the first one of its network on the interface.
    pub(super) const fn is_primary_v4(&self) -> bool {
        self.address.is_ipv4() && self.is_global && self.flags & number::IFA_F_SECONDARY == 0
    }

    /// Whether it is an IPv6 address of global scope whose preferred lifetime has not ended.
    pub(super) const fn is_preferred_v6(&self) -> bool {
        self.address.is_ipv6() && self.is_global && self.flags & number::IFA_F_DEPRECATED == 0
    }

    /// Whether another IPv4 address is in the network of this one.
    pub(super) fn is_network_of(&self, other: IpAddr) -> bool {
        let (IpAddr::V4(network), IpAddr::V4(other)) = (self.network.0, other) else { return false };
        let bits = 32_u32.saturating_sub(self.network.1.into());
        (network.to_bits() ^ other.to_bits()).checked_shr(bits).unwrap_or(0) == 0
    }
}

/// Returns the addresses of all interfaces, as [`addresses`], in the order of the kernel.
///
/// # Errors
/// Returns the error that the kernel reports.
pub(super) fn interface_addresses() -> io::Result<Vec<InterfaceAddress>> {
    dump_as_listed(number::RTM_GETADDR, number::ADDRESS_HEADERS, InterfaceAddress::read)
}

/// Returns the addresses of the interface with this index in the calling thread's network namespace.
///
/// # Errors
/// Returns the error that the kernel reports.
pub(super) fn addresses_of(index: u32) -> io::Result<Vec<IpAddr>> {
    let mut of: Vec<IpAddr> =
        interface_addresses()?.into_iter().filter(|own| own.interface == index).map(|own| own.address).collect();
    of.sort_unstable();
    of.dedup();
    Ok(of)
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
    let mut items = dump_as_listed(kind, headers, parse)?;
    items.sort_unstable();
    items.dedup();
    Ok(items)
}

/// As [`dump`], but in the order of the kernel.
fn dump_as_listed<T>(kind: u16, headers: usize, parse: fn(&[u8]) -> Option<T>) -> io::Result<Vec<T>> {
    let mut socket = Socket::open(Bus::Route)?;
    socket.send(&request(kind, headers))?;
    let mut items = Vec::new();
    loop {
        for message in Messages::new(socket.receive()?) {
            if let Some(errno) = decode::ack(message).map(|ack| ack.errno).or_else(|| decode::done(message)) {
                if errno != 0 {
                    return Err(io::Error::from_raw_os_error(errno));
                }
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
    fn a_network_has_the_addresses_that_share_its_prefix() {
        let of = |network: &str, len| InterfaceAddress {
            interface: 1,
            address: network.parse().unwrap(),
            network: (network.parse().unwrap(), len),
            is_global: true,
            flags: 0,
        };
        let other = |text: &str| text.parse().unwrap();
        assert!(of("192.0.2.2", 24).is_network_of(other("192.0.2.200")));
        assert!(!of("192.0.2.2", 25).is_network_of(other("192.0.2.200")));
        assert!(of("192.0.2.2", 32).is_network_of(other("192.0.2.2")));
        assert!(of("192.0.2.2", 0).is_network_of(other("10.0.0.1")));
        assert!(!of("192.0.2.2", 0).is_network_of(other("fd00::1")));
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
