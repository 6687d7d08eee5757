//! Asks the kernel over rtnetlink where it would send a packet, and for the names of interfaces.
//!
//! Takes the addresses of a packet, and the input interface if the packet arrives from outside. Returns the result of a look-up in the
//! routing rules and tables. Changes nothing.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use nft::decode::{self, Messages};
use nft::socket::{Bus, Socket};
use nft::wire::{Attrs, Writer};

use super::rtnetlink::{ip, kind};

/// Constants of `linux/netlink.h`, `linux/rtnetlink.h`, `linux/if_link.h` and `linux/socket.h`.
mod number {
    /// `NLM_F_REQUEST`.
    pub(super) const REQUEST: u16 = 1;
    /// `NLM_F_REQUEST | NLM_F_DUMP`.
    pub(super) const REQUEST_DUMP: u16 = 0x301;

    pub(super) const RTM_NEWROUTE: u16 = 24;
    pub(super) const RTM_GETROUTE: u16 = 26;
    pub(super) const RTA_DST: u16 = 1;
    pub(super) const RTA_SRC: u16 = 2;
    pub(super) const RTA_IIF: u16 = 3;
    pub(super) const RTA_OIF: u16 = 4;
    pub(super) const RTA_PREFSRC: u16 = 7;
    pub(super) const RTA_MARK: u16 = 16;
    /// The length of `nlmsghdr` and `rtmsg` together, in bytes.
    pub(super) const ROUTE_HEADERS: usize = 16 + 12;
    /// The offset of `rtm_type`.
    pub(super) const ROUTE_TYPE: usize = 16 + 7;

    pub(super) const RTM_NEWLINK: u16 = 16;
    pub(super) const RTM_GETLINK: u16 = 18;
    pub(super) const IFLA_IFNAME: u16 = 3;
    /// The length of `nlmsghdr` and `ifinfomsg` together, in bytes.
    pub(super) const LINK_HEADERS: usize = 16 + 16;
    /// The offset of `ifi_index`.
    pub(super) const LINK_INDEX: usize = 16 + 4;

    pub(super) const AF_INET: u8 = 2;
    pub(super) const AF_INET6: u8 = 10;
}

/// The type of a route to an address of this host (`RTN_LOCAL`).
pub const LOCAL: u8 = 2;
/// The type of a route to another host (`RTN_UNICAST`).
pub const UNICAST: u8 = 1;

/// The packet for which to look up the route.
#[derive(Clone, Copy, Debug)]
pub struct RouteQuery {
    /// The destination address of the packet.
    pub destination: IpAddr,
    /// The source address of the packet; `None` if the kernel chooses it.
    pub source: Option<IpAddr>,
    /// The index of the interface at which the packet arrives; `None` for a packet that this host sends.
    pub input: Option<u32>,
    /// The packet's mark (`fwmark`), by which routing rules may choose a table.
    pub mark: u32,
}

/// The kernel's answer to the question for a packet's route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The type of the route (`RTN_*`).
    pub kind: u8,
    /// The index of the interface through which the packet leaves; `None` if the kernel names none.
    pub output: Option<u32>,
    /// The source address that the kernel gives to a packet of this host that has no source address yet.
    pub(crate) source: Option<IpAddr>,
}

/// A socket for questions about routes and interfaces, in the network namespace of the thread that opened it.
pub struct Routes(Socket);

impl Routes {
    /// Opens a socket.
    ///
    /// # Errors
    /// Returns the error that the kernel reports.
    pub fn open() -> io::Result<Self> {
        Socket::open(Bus::Route).map(Self)
    }

    /// Returns the route of a packet.
    ///
    /// # Errors
    /// Returns the error that the kernel reports. For a packet without a route the kernel also reports an error, such as `ENETUNREACH`.
    pub fn route(&mut self, query: &RouteQuery) -> io::Result<Route> {
        self.0.send(&request(query))?;
        loop {
            for message in Messages::new(self.0.receive()?) {
                if let Some(errno) = decode::ack(message).map(|ack| ack.errno).filter(|errno| *errno != 0) {
                    return Err(io::Error::from_raw_os_error(errno));
                }
                if let Some(route) = route(message) {
                    return Ok(route);
                }
            }
        }
    }

    /// Returns the index and the name of each interface.
    ///
    /// # Errors
    /// Returns the error that the kernel reports.
    pub fn interfaces(&mut self) -> io::Result<Vec<(u32, Arc<str>)>> {
        let headers = vec![0; number::LINK_HEADERS - 16];
        self.0.send(&message(number::RTM_GETLINK, number::REQUEST_DUMP, &headers))?;
        let mut found = Vec::new();
        loop {
            for message in Messages::new(self.0.receive()?) {
                match decode::ack(message).map(|ack| ack.errno).or_else(|| decode::done(message)) {
                    Some(0) => return Ok(found),
                    Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
                    None => found.extend(interface(message)),
                }
            }
        }
    }
}

/// Returns a netlink message with this payload.
pub(super) fn message(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(16 + payload.len()).unwrap_or_default();
    [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8], payload].concat()
}

fn request(query: &RouteQuery) -> Vec<u8> {
    let (family, bits) = if query.destination.is_ipv4() { (number::AF_INET, 32) } else { (number::AF_INET6, 128) };
    let source_bits = if query.source.is_some() { bits } else { 0 };
    let mut payload = Writer::default();
    payload.raw(&[family, bits, source_bits, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let mut address = |attribute, ip: IpAddr| match ip {
        IpAddr::V4(ip) => payload.attr(attribute, &ip.octets()),
        IpAddr::V6(ip) => payload.attr(attribute, &ip.octets()),
    };
    address(number::RTA_DST, query.destination);
    query.source.into_iter().for_each(|source| address(number::RTA_SRC, source));
    if let Some(input) = query.input {
        payload.attr(number::RTA_IIF, &input.to_ne_bytes());
    }
    if query.mark != 0 {
        payload.attr(number::RTA_MARK, &query.mark.to_ne_bytes());
    }
    message(number::RTM_GETROUTE, number::REQUEST, payload.bytes())
}

/// Returns the route in a message; `None` for a message of another type.
fn route(message: &[u8]) -> Option<Route> {
    if kind(message)? != number::RTM_NEWROUTE {
        return None;
    }
    let attrs = Attrs::new(message.get(number::ROUTE_HEADERS..)?);
    Some(Route {
        kind: *message.get(number::ROUTE_TYPE)?,
        output: attrs.find(number::RTA_OIF).and_then(|attr| host_order(attr.payload)),
        source: attrs.find(number::RTA_PREFSRC).and_then(ip),
    })
}

/// Returns the index and the name of the interface in a message; `None` for a message of another type.
fn interface(message: &[u8]) -> Option<(u32, Arc<str>)> {
    if kind(message)? != number::RTM_NEWLINK {
        return None;
    }
    let index = host_order(message.get(number::LINK_INDEX..)?)?;
    let name = Attrs::new(message.get(number::LINK_HEADERS..)?).find(number::IFLA_IFNAME)?;
    Some((index, name.str()?.into()))
}

fn host_order(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(destination: &str) -> RouteQuery {
        RouteQuery { destination: destination.parse().unwrap(), source: None, input: None, mark: 0 }
    }

    #[test]
    fn loopback_is_this_host() {
        let mut routes = Routes::open().unwrap();
        let interfaces = routes.interfaces().unwrap();
        let (lo, _) = interfaces.iter().find(|(_, name)| &**name == "lo").unwrap();
        let route = routes.route(&query("127.0.0.1")).unwrap();
        assert_eq!((route.kind, route.output), (LOCAL, Some(*lo)));
    }

    #[test]
    fn a_packet_without_a_route_is_an_error() {
        let unknown = RouteQuery { input: Some(u32::MAX >> 1), ..query("127.0.0.1") };
        assert!(Routes::open().unwrap().route(&unknown).is_err());
    }
}
