//! Asks the kernel over rtnetlink where it would send a packet, which source masquerading would give it, and for the names of interfaces.
//!
//! Takes the addresses of a packet, and the input interface if the packet arrives from outside. Returns the result of a look-up in the
//! routing rules and tables. Changes nothing.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use nft::decode::{self, Messages};
use nft::socket::{Bus, Socket};
use nft::wire::{Attrs, Writer};

use super::rtnetlink::{InterfaceAddress, interface_addresses, ip, kind};

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
    pub(super) const RTA_GATEWAY: u16 = 5;
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
    /// The index of the interface through which the packet has to leave; `None` if the routes decide.
    pub output: Option<u32>,
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
    /// Whether the kernel names the source twice: as the choice for this packet, and as a property of the route (IPv6).
    has_own_source: bool,
    /// The router to which the packet goes first; `None` if its destination is on the link.
    gateway: Option<IpAddr>,
}

/// The source address that masquerading gives to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Masquerade {
    /// The address.
    pub source: IpAddr,
    /// The reason for the choice.
    pub choice: Choice,
    /// The source that the kernel gives to packets of this host by the route, if it is another one.
    pub of_route: Option<IpAddr>,
}

/// Why masquerading chooses an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The address of the output interface in whose network this next hop is (IPv4).
    NextHop(IpAddr),
    /// The first address of the output interface (IPv4).
    First,
    /// The address of the output interface that is best by RFC 6724 (IPv6).
    Preferred,
    /// An address of the interface with this index, because the output interface has none.
    Elsewhere(u32),
}

/// A socket for questions about routes and interfaces, in the network namespace of the thread that opened it.
pub struct Routes {
    socket: Socket,
    /// The addresses of all interfaces, once they are needed.
    addresses: Option<Vec<InterfaceAddress>>,
}

impl Routes {
    /// Opens a socket.
    ///
    /// # Errors
    /// Returns the error that the kernel reports.
    pub fn open() -> io::Result<Self> {
        Ok(Self { socket: Socket::open(Bus::Route)?, addresses: None })
    }

    /// Returns the route of a packet.
    ///
    /// # Errors
    /// Returns the error that the kernel reports. For a packet without a route the kernel also reports an error, such as `ENETUNREACH`.
    pub fn route(&mut self, query: &RouteQuery) -> io::Result<Route> {
        self.socket.send(&request(query))?;
        loop {
            for message in Messages::new(self.socket.receive()?) {
                if let Some(errno) = decode::ack(message).map(|ack| ack.errno).filter(|errno| *errno != 0) {
                    return Err(io::Error::from_raw_os_error(errno));
                }
                if let Some(route) = route(message) {
                    return Ok(route);
                }
            }
        }
    }

    /// Returns the source address that masquerading gives to a packet that leaves through the interface `output`; `None` when that cannot be
    /// told. Masquerading looks at the addresses of the interface, not at the source of the route (`nf_nat_masquerade.c`).
    ///
    /// # Errors
    /// Returns the error that the kernel reports.
    pub fn masquerade(&mut self, query: &RouteQuery, output: u32) -> io::Result<Option<Masquerade>> {
        let route = self.route(query)?;
        let addresses = self.addresses.take().map_or_else(interface_addresses, Ok)?;
        let own = RouteQuery { source: None, input: None, output: Some(output), ..*query };
        let of_host = self.route(&own).ok().filter(|route| route.kind == UNICAST);
        let of_route = of_host.and_then(|route| route.source);
        let chosen = if route.output != Some(output) {
            None
        } else if query.destination.is_ipv4() {
            self.masquerade_v4(route.gateway.unwrap_or(query.destination), output, &addresses)?
        } else {
            of_host.and_then(|route| masquerade_v6(&route, output, &addresses))
        };
        self.addresses = Some(addresses);
        Ok(chosen.map(|(source, choice)| Masquerade {
            source,
            choice,
            of_route: of_route.filter(|own| *own != source),
        }))
    }

    /// The choice of `inet_select_addr`: the address of the interface in whose network the next hop is, or else the first one, or else that
    /// of another interface. Only primary addresses of global scope count.
    fn masquerade_v4(
        &mut self,
        next_hop: IpAddr,
        output: u32,
        addresses: &[InterfaceAddress],
    ) -> io::Result<Option<(IpAddr, Choice)>> {
        /// A multicast address beyond the link. For packets to it the kernel takes the source by the output interface alone.
        const MULTICAST: Ipv4Addr = Ipv4Addr::new(239, 255, 255, 255);
        let own = || addresses.iter().filter(|own| own.interface == output && own.is_primary_v4());
        if let Some(found) = own().find(|own| own.is_network_of(next_hop)) {
            return Ok(Some((found.address, Choice::NextHop(next_hop))));
        }
        let destination = MULTICAST.into();
        let any = RouteQuery { destination, source: None, input: None, output: Some(output), mark: 0 };
        let Some(source) = self.route(&any)?.source else { return Ok(None) };
        let is_own = own().any(|own| own.address == source);
        let other =
            || addresses.iter().find(|other| other.address == source).map(|other| Choice::Elsewhere(other.interface));
        Ok(if is_own { Some(Choice::First) } else { other() }.map(|choice| (source, choice)))
    }

    /// Returns the index and the name of each interface.
    ///
    /// # Errors
    /// Returns the error that the kernel reports.
    pub fn interfaces(&mut self) -> io::Result<Vec<(u32, Arc<str>)>> {
        let headers = vec![0; number::LINK_HEADERS - 16];
        self.socket.send(&message(number::RTM_GETLINK, number::REQUEST_DUMP, &headers))?;
        let mut found = Vec::new();
        loop {
            for message in Messages::new(self.socket.receive()?) {
                match decode::ack(message).map(|ack| ack.errno).or_else(|| decode::done(message)) {
                    Some(0) => return Ok(found),
                    Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
                    None => found.extend(interface(message)),
                }
            }
        }
    }
}

/// The choice of `ipv6_dev_get_saddr`, which the kernel names as the source of a route that has no source of its own. If it has one, the
/// choice is known when the output interface has one address that is in use: such an address comes before those of other interfaces.
fn masquerade_v6(route: &Route, output: u32, addresses: &[InterfaceAddress]) -> Option<(IpAddr, Choice)> {
    if !route.has_own_source {
        let source = route.source?;
        let holders: Vec<u32> = addresses.iter().filter(|own| own.address == source).map(|own| own.interface).collect();
        let choice = if holders.contains(&output) { Choice::Preferred } else { Choice::Elsewhere(*holders.first()?) };
        return Some((source, choice));
    }
    let mut own = addresses.iter().filter(|own| own.interface == output && own.is_preferred_v6());
    own.next().filter(|_| own.next().is_none()).map(|own| (own.address, Choice::Preferred))
}

fn message(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
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
    if let Some(output) = query.output {
        payload.attr(number::RTA_OIF, &output.to_ne_bytes());
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
        has_own_source: attrs.filter(|attr| attr.kind == number::RTA_PREFSRC).count() > 1,
        gateway: attrs.find(number::RTA_GATEWAY).and_then(ip),
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
        RouteQuery { destination: destination.parse().unwrap(), source: None, input: None, output: None, mark: 0 }
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
