//! Asks the kernel over sock_diag whose socket is at the other end of a connection within this node.
//!
//! A look-up is one message and its answer, however many sockets there are. Changes nothing.

use std::io;
use std::net::{IpAddr, SocketAddr};

use nft::decode::{self, Messages};
use nft::socket::{Bus, Socket};

use super::errno::ENOENT;
use super::routes::message;
use super::rtnetlink::kind;

/// Constants of `linux/sock_diag.h`, `linux/inet_diag.h`, `linux/netlink.h`, `linux/socket.h` and `linux/in.h`.
mod number {
    pub(super) const SOCK_DIAG_BY_FAMILY: u16 = 20;
    /// `NLM_F_REQUEST`.
    pub(super) const REQUEST: u16 = 1;
    pub(super) const AF_INET: u8 = 2;
    pub(super) const AF_INET6: u8 = 10;
    pub(super) const IPPROTO_TCP: u8 = 6;
    pub(super) const ALL_STATES: u32 = u32::MAX;
    /// `INET_DIAG_NOCOOKIE`: any socket with these ends.
    pub(super) const NO_COOKIE: [u8; 8] = [0xff; 8];
    /// The offset of `idiag_uid`, behind `nlmsghdr`.
    pub(super) const USER: usize = 16 + 64;
}

/// A socket for questions about TCP sockets in the network namespace of the thread that opened it.
pub struct SocketUsers(Socket);

impl SocketUsers {
    /// Opens a socket.
    ///
    /// # Errors
    /// Returns the error that the kernel reports.
    pub fn open() -> io::Result<Self> {
        Socket::open(Bus::SockDiag).map(Self)
    }

    /// Returns the id of the user who made the TCP socket with these ends; `None` if there is no such socket. Does not wait: the kernel
    /// answers while it takes the question.
    ///
    /// # Errors
    /// Returns the error that the kernel reports.
    pub fn user(&mut self, local: SocketAddr, remote: SocketAddr) -> io::Result<Option<u32>> {
        self.0.send(&request(local, remote))?;
        while let Some(datagram) = self.0.receive_now()? {
            for message in Messages::new(datagram) {
                match decode::ack(message).map(|ack| ack.errno) {
                    Some(0 | ENOENT) => return Ok(None),
                    Some(errno) => return Err(io::Error::from_raw_os_error(errno)),
                    None if kind(message) == Some(number::SOCK_DIAG_BY_FAMILY) => return Ok(user(message)),
                    None => {}
                }
            }
        }
        Ok(None)
    }
}

/// Returns the request: `inet_diag_req_v2`, whose ports and addresses are in network order.
fn request(local: SocketAddr, remote: SocketAddr) -> Vec<u8> {
    let family = if local.is_ipv4() { number::AF_INET } else { number::AF_INET6 };
    let address = |end: SocketAddr| {
        let mut bytes = [0; 16];
        match end.ip() {
            IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => bytes = ip.octets(),
        }
        bytes
    };
    let ports = [local.port().to_be_bytes(), remote.port().to_be_bytes()].concat();
    let any_interface = [0; 4];
    let payload = [
        &[family, number::IPPROTO_TCP, 0, 0][..],
        &number::ALL_STATES.to_ne_bytes(),
        &ports,
        &address(local),
        &address(remote),
        &any_interface,
        &number::NO_COOKIE,
    ];
    message(number::SOCK_DIAG_BY_FAMILY, number::REQUEST, &payload.concat())
}

fn user(message: &[u8]) -> Option<u32> {
    message.get(number::USER..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn the_user_of_the_other_end_is_found_in_both_families() {
        let mut users = SocketUsers::open().unwrap();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (_server, from) = listener.accept().unwrap();
            assert_eq!(from, client.local_addr().unwrap());
            let me = rustix::process::geteuid().as_raw();
            assert_eq!(users.user(from, listener.local_addr().unwrap()).unwrap(), Some(me), "{address}");
            let nobody = SocketAddr::new(from.ip(), 1);
            assert_eq!(users.user(nobody, listener.local_addr().unwrap()).unwrap(), None, "{address}");
        }
    }
}
