//! Lists and deletes the virtual servers of IPVS, over generic netlink (`linux/ip_vs.h`, `linux/genetlink.h`).

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use crate::kernel::errno::{ENOENT, ESRCH};
use nft::decode::{self, Messages};
use nft::socket::{Bus, Socket};
use nft::wire::{Attr, Attrs, Writer};

mod number {
    /// `NLM_F_REQUEST | NLM_F_ACK` and `NLM_F_REQUEST | NLM_F_DUMP`.
    pub(super) const REQUEST_ACK: u16 = 5;
    pub(super) const REQUEST_DUMP: u16 = 0x301;
    /// The length of `nlmsghdr` and `genlmsghdr` together, in bytes.
    pub(super) const HEADERS: usize = 16 + 4;

    pub(super) const CONTROLLER: u16 = 16;
    pub(super) const GET_FAMILY: u8 = 3;
    pub(super) const FAMILY_ID: u16 = 1;
    pub(super) const FAMILY_NAME: u16 = 2;

    pub(super) const DELETE_SERVICE: u8 = 3;
    pub(super) const GET_SERVICE: u8 = 4;
    pub(super) const SERVICE: u16 = 1;
    pub(super) const FAMILY: u16 = 1;
    pub(super) const PROTOCOL: u16 = 2;
    pub(super) const ADDRESS: u16 = 3;
    pub(super) const PORT: u16 = 4;

    pub(super) const AF_INET: u16 = 2;
    pub(super) const AF_INET6: u16 = 10;
}

/// A virtual server with an address and a port. Virtual servers for a firewall mark are left out, because kube-proxy makes none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Server {
    /// The IANA number of the protocol.
    pub(super) protocol: u16,
    /// The address and port that clients connect to.
    pub(super) address: SocketAddr,
}

/// Writes the virtual server as arguments for ipvsadm: `-t 10.96.0.1:443`.
impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let option = match self.protocol {
            6 => "-t",
            17 => "-u",
            _ => "--sctp-service",
        };
        write!(f, "{option} {}", self.address)
    }
}

/// A connection to IPVS in one network namespace.
pub(super) struct Servers {
    socket: Socket,
    /// The number of the generic netlink family `IPVS` in this kernel.
    family: u16,
}

impl Servers {
    /// Connects to IPVS in the calling thread's network namespace. The kernel loads its module, if it has one.
    ///
    /// # Errors
    /// Returns the error that the kernel reports: `ENOENT` if the kernel has no IPVS.
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::open(Bus::Generic)?;
        let mut name = Writer::default();
        name.str(number::FAMILY_NAME, "IPVS");
        socket.send(&message(number::CONTROLLER, number::REQUEST_ACK, number::GET_FAMILY, name.bytes()))?;
        let mut family = None;
        answers(&mut socket, |attrs| {
            let id = attrs.find(number::FAMILY_ID).and_then(|attr| attr.payload.first_chunk());
            family = id.map(|id| u16::from_ne_bytes(*id));
        })?;
        let family = family.ok_or_else(|| io::Error::from_raw_os_error(ENOENT))?;
        Ok(Self { socket, family })
    }

    /// Returns the virtual servers with an address and a port, sorted.
    ///
    /// # Errors
    /// Returns the error that the kernel reports.
    pub(super) fn list(&mut self) -> io::Result<Vec<Server>> {
        self.socket.send(&message(self.family, number::REQUEST_DUMP, number::GET_SERVICE, &[]))?;
        let mut found = Vec::new();
        answers(&mut self.socket, |mut attrs| {
            found.extend(attrs.find_map(|attr| (attr.kind == number::SERVICE).then(|| server(attr)).flatten()));
        })?;
        found.sort_unstable();
        Ok(found)
    }

    /// Deletes a virtual server with its connections. Succeeds if the virtual server does not exist.
    ///
    /// # Errors
    /// Returns the error that the kernel reports.
    pub(super) fn delete(&mut self, server: &Server) -> io::Result<()> {
        let (family, ip) = match server.address.ip() {
            IpAddr::V4(ip) => (number::AF_INET, ip.octets().to_vec()),
            IpAddr::V6(ip) => (number::AF_INET6, ip.octets().to_vec()),
        };
        let mut attrs = Writer::default();
        let service = attrs.open(number::SERVICE);
        attrs.attr(number::FAMILY, &family.to_ne_bytes());
        attrs.attr(number::PROTOCOL, &server.protocol.to_ne_bytes());
        let mut address = ip;
        address.resize(16, 0);
        attrs.attr(number::ADDRESS, &address);
        attrs.attr(number::PORT, &server.address.port().to_be_bytes());
        attrs.close(service);
        self.socket.send(&message(self.family, number::REQUEST_ACK, number::DELETE_SERVICE, attrs.bytes()))?;
        match answers(&mut self.socket, |_| {}) {
            Err(error) if [ENOENT, ESRCH].map(Some).contains(&error.raw_os_error()) => Ok(()),
            outcome => outcome,
        }
    }
}

/// Calls `take` with the attributes of each message of an answer, until the answer ends.
fn answers(socket: &mut Socket, mut take: impl FnMut(Attrs<'_>)) -> io::Result<()> {
    loop {
        for message in Messages::new(socket.receive()?) {
            match decode::ack(message).map(|ack| ack.errno).or_else(|| decode::done(message)) {
                Some(0) => return Ok(()),
                Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
                None => take(Attrs::new(message.get(number::HEADERS..).unwrap_or_default())),
            }
        }
    }
}

/// Parses the attribute of a virtual server. Returns `None` for a virtual server of a firewall mark.
fn server(attr: Attr<'_>) -> Option<Server> {
    let attrs = attr.nested();
    let host = |kind| Some(u16::from_ne_bytes(*attrs.find(kind)?.payload.first_chunk()?));
    let address = attrs.find(number::ADDRESS)?.payload;
    let ip: IpAddr = match host(number::FAMILY)? {
        number::AF_INET => (*address.first_chunk::<4>()?).into(),
        number::AF_INET6 => (*address.first_chunk::<16>()?).into(),
        _ => return None,
    };
    let port = u16::from_be_bytes(*attrs.find(number::PORT)?.payload.first_chunk()?);
    Some(Server { protocol: host(number::PROTOCOL)?, address: SocketAddr::new(ip, port) })
}

fn message(kind: u16, flags: u16, command: u8, attrs: &[u8]) -> Vec<u8> {
    let len = u32::try_from(number::HEADERS + attrs.len()).unwrap_or_default();
    [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8], &[command, 1, 0, 0], attrs].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_read_from_its_attributes_and_one_of_a_mark_is_left_out() {
        let mut attrs = Writer::default();
        let service = attrs.open(number::SERVICE);
        attrs.attr(number::FAMILY, &number::AF_INET.to_ne_bytes());
        attrs.attr(number::PROTOCOL, &6_u16.to_ne_bytes());
        attrs.attr(number::ADDRESS, &[10, 96, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        attrs.attr(number::PORT, &443_u16.to_be_bytes());
        attrs.close(service);
        let read = |bytes: &[u8]| Attrs::new(bytes).find(number::SERVICE).and_then(server);
        assert_eq!(read(attrs.bytes()).unwrap().to_string(), "-t 10.96.0.1:443");
        let mut mark = Writer::default();
        let service = mark.open(number::SERVICE);
        mark.attr(number::FAMILY, &number::AF_INET.to_ne_bytes());
        mark.attr(5, &[1, 0, 0, 0]);
        mark.close(service);
        assert_eq!(read(mark.bytes()), None);
        for end in 0..attrs.bytes().len() {
            assert_eq!(read(&attrs.bytes()[..end]), None, "cut at {end}");
        }
    }
}
