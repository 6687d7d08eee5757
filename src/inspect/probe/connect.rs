//! Asks addresses whether something answers there: a TCP or SCTP connection that is closed at once, or a UDP datagram.
//!
//! Takes [`Target`]s, gives an [`Outcome`] for each, in the same order. Invariants: at most [`AT_ONCE`] are asked at the same time, each
//! has the same time limit, and a connection carries no data.

use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, ipproto};

use rules::model::Protocol;

/// The most targets that are asked at the same time.
const AT_ONCE: usize = 32;
/// A DNS header that asks for the status of the server (opcode 2). Most name servers answer at once that they do not implement this, and
/// look up nothing. For other servers it is a datagram without a meaning.
const DATAGRAM: [u8; 12] = [0x6b, 0x70, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// A protocol, address and port to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Target {
    pub(super) protocol: Protocol,
    pub(super) address: SocketAddr,
}

/// The answer of a [`Target`], if it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    /// The time until the answer, or why there is none: [`Errno::TIMEDOUT`] when nothing came.
    pub(super) answer: Result<Duration, Errno>,
    /// The address of this node from which it was asked; `None` if the kernel chose none, for example without a route.
    pub(super) source: Option<IpAddr>,
}

/// Asks all targets, each with this time limit.
pub(super) fn ask_all(targets: &[Target], patience: Duration) -> Vec<Outcome> {
    let ask_some = |some: &[Target]| {
        thread::scope(|scope| {
            let threads: Vec<_> = some.iter().map(|target| scope.spawn(|| ask(*target, patience))).collect();
            let failed = |_| Outcome { answer: Err(Errno::IO), source: None };
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(failed)).collect::<Vec<_>>()
        })
    };
    targets.chunks(AT_ONCE).flat_map(ask_some).collect()
}

fn ask(target: Target, patience: Duration) -> Outcome {
    let start = Instant::now();
    let socket = match open(target) {
        Ok(socket) => socket,
        Err(error) => return Outcome { answer: Err(error), source: None },
    };
    let answer = exchange(&socket, target, start + patience).map(|()| start.elapsed());
    let source = net::getsockname(&socket).ok().and_then(|name| SocketAddr::try_from(name).ok());
    Outcome { answer, source: source.map(|source| source.ip()).filter(|ip| !ip.is_unspecified()) }
}

fn open(target: Target) -> Result<OwnedFd, Errno> {
    let family = if target.address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let (kind, protocol) = match target.protocol {
        Protocol::Tcp => (SocketType::STREAM, ipproto::TCP),
        Protocol::Udp => (SocketType::DGRAM, ipproto::UDP),
        Protocol::Sctp => (SocketType::STREAM, ipproto::SCTP),
    };
    net::socket_with(family, kind, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, Some(protocol))
}

fn exchange(socket: &OwnedFd, target: Target, deadline: Instant) -> Result<(), Errno> {
    match net::connect(socket, &target.address) {
        Ok(()) | Err(Errno::INPROGRESS) => {}
        Err(error) => return Err(error),
    }
    // If a rule of this node rejects the first packet, the error comes while `connect` holds the socket. The kernel then stores the error
    // and wakes no waiter, so read it here.
    net::sockopt::socket_error(socket)??;
    if target.protocol == Protocol::Udp {
        net::send(socket, &DATAGRAM, SendFlags::empty())?;
        wait(socket, PollFlags::IN, deadline)?;
        return net::recv(socket, &mut [0; 1], RecvFlags::empty()).map(drop);
    }
    let outcome = wait(socket, PollFlags::OUT, deadline);
    net::sockopt::socket_error(socket)??;
    outcome
}

/// Waits until the socket is ready or has an error. Returns [`Errno::TIMEDOUT`] at the deadline.
fn wait(socket: &OwnedFd, ready: PollFlags, deadline: Instant) -> Result<(), Errno> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(|_| Errno::INVAL)?;
        match poll(&mut [PollFd::new(socket, ready)], Some(&left)) {
            Ok(0) => return Err(Errno::TIMEDOUT),
            Err(Errno::INTR) => {}
            other => return other.map(drop),
        }
    }
}
