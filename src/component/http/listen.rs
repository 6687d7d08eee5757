//! Opens listening sockets: for one IP family only, or for both families as Go does; with one attempt, or with retries until the socket
//! listens.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use rustix::net::sockopt::set_ipv6_v6only;
use tokio::net::{TcpListener, TcpSocket};
use tracing::warn;

/// The time between two attempts to listen (O8). It is short, because a previous process may have the port only for a moment longer, and
/// load balancers that probe the port should not find it closed for long.
const RETRY: Duration = Duration::from_millis(100);
/// The number of attempts per log record while listening fails: one record every 5 s.
const TRIES: u32 = 50;
/// The number of connections that may wait in the kernel until the server accepts them. The kernel limits it to `net.core.somaxconn`, which
/// is 4096 by default. When this queue is full, the kernel drops the SYN of a client, which tries again after a second.
const BACKLOG: u32 = 4096;

/// Listens on an address of one family only: an unspecified IPv6 address does not include IPv4.
///
/// # Errors
/// Returns the error that the kernel reports.
pub fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => {
            let socket = TcpSocket::new_v6()?;
            set_ipv6_v6only(&socket, true)?;
            socket
        }
    };
    listen(socket, address)
}

/// Listens as Go does: an unspecified address of either family means all addresses of both families, if the kernel has IPv6.
///
/// # Errors
/// Returns the error that the kernel reports.
pub(crate) fn bind_like_go(address: SocketAddr) -> io::Result<TcpListener> {
    if !address.ip().is_unspecified() {
        return bind(address);
    }
    match bind_both(address.port()) {
        // The kernel has no IPv6, or IPv6 is disabled: listen on IPv4 only.
        Err(error) if address.is_ipv4() && error.kind() != io::ErrorKind::AddrInUse => bind(address),
        outcome => outcome,
    }
}

fn bind_both(port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v6()?;
    set_ipv6_v6only(&socket, false)?;
    listen(socket, SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port))
}

fn listen(socket: TcpSocket, address: SocketAddr) -> io::Result<TcpListener> {
    // Without this option, connections of a previous process in TIME_WAIT would keep the port busy.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Checks that a server can listen on the address as Go does, and frees the port again.
///
/// # Errors
/// Fails when a server cannot listen. The error's text names server and address, and says what the operator can do.
pub fn check(what: &str, address: SocketAddr) -> io::Result<()> {
    bind_like_go(address).map(drop).map_err(|error| failure(what, address, &error))
}

/// The error of a server that cannot listen: names server and address, and says what the operator can do.
#[must_use]
pub fn failure(what: &str, address: SocketAddr, error: &io::Error) -> io::Error {
    let port = address.port();
    let remedy = match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!("; `ss -ltnp sport = :{port}` shows the program that has the port: stop it, or set another address")
        }
        io::ErrorKind::AddrNotAvailable => "; the node has no such address: set another one".to_owned(),
        io::ErrorKind::PermissionDenied => "; ports below 1024 take capability CAP_NET_BIND_SERVICE".to_owned(),
        _ => String::new(),
    };
    io::Error::new(error.kind(), format!("cannot listen for {what} on {address}: {error}{remedy}"))
}

/// Listens as Go does. If `hard_fail` is false, tries again ten times a second until listening succeeds, and logs the failure every 5 s
/// (O8). `what` is the server's name for the log.
///
/// # Errors
/// If `hard_fail` is true, returns the first failure. Its text names server and address.
pub async fn bind_with_retry(what: &str, address: SocketAddr, hard_fail: bool) -> io::Result<TcpListener> {
    for tries in 0_u32.. {
        match bind_like_go(address) {
            Ok(listener) => return Ok(listener),
            Err(error) if hard_fail => return Err(failure(what, address, &error)),
            Err(error) if tries % TRIES == 0 => {
                warn!(
                    server = what, err = %failure(what, address, &error),
                    "Cannot listen; trying again ten times a second"
                );
            }
            Err(_) => {}
        }
        tokio::time::sleep(RETRY).await;
    }
    unreachable!("13 years of tries")
}
