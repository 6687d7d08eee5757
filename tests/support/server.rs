//! Servers of a pod: they answer every connection with the addresses and the port that they saw.
//!
//! Takes a namespace, the addresses in it and ports; one thread then serves TCP and UDP on every address and port, and SCTP on every
//! address and any port (with a raw socket, so no kernel module is needed). The answer is an [`Answer`] as one line of text, over SCTP as
//! the cookie of an INIT ACK. A TCP connection stays open and answers again to whatever the client sends.

use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, recvfrom};
use socket2::{Domain, Protocol, Socket, Type};

use super::netns::Namespace;
use super::plan::Family;
use super::wire::{SctpInit, raw_payload};

/// What a server saw of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Answer {
    /// The address that was reached.
    pub(crate) endpoint: IpAddr,
    /// The port that was reached.
    pub(crate) port: u16,
    /// The source address of the connection, as the server saw it.
    pub(crate) seen_source: IpAddr,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} {} {}", self.endpoint, self.port, self.seen_source)
    }
}

impl FromStr for Answer {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split_whitespace().collect();
        let read = || match parts[..] {
            [endpoint, port, source] => Some(Self {
                endpoint: endpoint.parse().ok()?,
                port: port.parse().ok()?,
                seen_source: source.parse().ok()?,
            }),
            _ => None,
        };
        read().ok_or_else(|| format!("not an answer: {text:?}"))
    }
}

/// A running server thread; stopped and waited for when dropped.
pub(crate) struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `ports` on `addresses` of `namespace`; everything is bound when this returns.
    pub(crate) fn start(namespace: &Namespace, addresses: &[IpAddr], ports: &[u16]) -> Self {
        let bound = namespace.enter(|| bind_all(addresses, ports));
        let mut sources = bound.unwrap_or_else(|error| panic!("cannot serve on {addresses:?}: {error}"));
        let stop = Arc::new(AtomicBool::new(false));
        let asked_to_stop = Arc::clone(&stop);
        // Sockets keep the namespace they were made in, so the thread need not enter it.
        let thread = thread::spawn(move || {
            while !asked_to_stop.load(Ordering::Relaxed) {
                serve_ready(&mut sources);
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            eprintln!("a test server panicked");
        }
    }
}

enum Source {
    Listener(TcpListener),
    Stream(TcpStream, Answer),
    Udp(UdpSocket),
    Sctp(Socket, IpAddr),
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Listener(socket) => socket.as_fd(),
            Self::Stream(socket, _) => socket.as_fd(),
            Self::Udp(socket) => socket.as_fd(),
            Self::Sctp(socket, _) => socket.as_fd(),
        }
    }
}

/// What to do with a source after it was served.
enum Served {
    Keep,
    Close,
    Accepted(Source),
}

fn bind_all(addresses: &[IpAddr], ports: &[u16]) -> std::io::Result<Vec<Source>> {
    let mut sources = Vec::new();
    for address in addresses {
        for port in ports {
            let listener = TcpListener::bind((*address, *port))?;
            listener.set_nonblocking(true)?;
            sources.push(Source::Listener(listener));
            sources.push(Source::Udp(UdpSocket::bind((*address, *port))?));
        }
        sources.push(Source::Sctp(bind_sctp(*address)?, *address));
    }
    Ok(sources)
}

/// A raw SCTP socket that gets what is sent to `address`.
pub(crate) fn bind_sctp(address: IpAddr) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(SocketAddr::new(address, 0)), Type::RAW, Some(Protocol::SCTP))?;
    socket.bind(&SocketAddr::new(address, 0).into())?;
    Ok(socket)
}

fn serve_ready(sources: &mut Vec<Source>) {
    let mut fds: Vec<PollFd<'_>> = sources.iter().map(|source| PollFd::new(source, PollFlags::IN)).collect();
    let patience = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    if !matches!(poll(&mut fds, Some(&patience)), Ok(1..)) {
        return;
    }
    let ready: Vec<usize> = fds.iter().enumerate().filter(|(_, fd)| !fd.revents().is_empty()).map(|(n, _)| n).collect();
    // From the last to the first, so that the removal of a source does not move the sources that are still to be served.
    for n in ready.into_iter().rev() {
        match serve(&mut sources[n]) {
            Served::Keep => {}
            Served::Close => drop(sources.swap_remove(n)),
            Served::Accepted(stream) => sources.push(stream),
        }
    }
}

fn serve(source: &mut Source) -> Served {
    match source {
        Source::Listener(listener) => accept(listener).map_or(Served::Keep, Served::Accepted),
        Source::Stream(stream, answer) => match stream.read(&mut [0; 256]) {
            Ok(1..) if send_line(stream, answer).is_ok() => Served::Keep,
            Err(error) if error.kind() == ErrorKind::WouldBlock => Served::Keep,
            _ => Served::Close,
        },
        // A client may have gone away meanwhile, so an error is not a fault of the server.
        Source::Udp(socket) => {
            let _answered = answer_datagram(socket);
            Served::Keep
        }
        Source::Sctp(socket, address) => {
            let _answered = answer_init(socket, *address);
            Served::Keep
        }
    }
}

fn accept(listener: &TcpListener) -> std::io::Result<Source> {
    let (mut stream, peer) = listener.accept()?;
    stream.set_nonblocking(true)?;
    let local = stream.local_addr()?;
    let answer = Answer { endpoint: local.ip(), port: local.port(), seen_source: peer.ip() };
    send_line(&mut stream, &answer)?;
    Ok(Source::Stream(stream, answer))
}

/// Sends the answer in one write, so that the client never reads half an answer.
fn send_line(stream: &mut TcpStream, answer: &Answer) -> std::io::Result<()> {
    stream.write_all(answer.to_string().as_bytes())
}

fn answer_datagram(socket: &UdpSocket) -> std::io::Result<()> {
    let (_, peer) = socket.recv_from(&mut [0; 256])?;
    let local = socket.local_addr()?;
    let answer = Answer { endpoint: local.ip(), port: local.port(), seen_source: peer.ip() };
    socket.send_to(answer.to_string().as_bytes(), peer).map(drop)
}

fn answer_init(socket: &Socket, address: IpAddr) -> std::io::Result<()> {
    let mut packet = [0; 512];
    let (_, length, peer) = recvfrom(socket, &mut packet[..], RecvFlags::empty())?;
    let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
    let init = raw_payload(Family::of(address), &packet[..length]).and_then(SctpInit::from_bytes);
    let (Some(peer), Some(init)) = (peer, init.filter(|init| init.cookie.is_empty())) else { return Ok(()) };
    let answer = Answer { endpoint: address, port: init.port, seen_source: peer.ip() };
    let ack = SctpInit {
        source_port: init.port,
        port: init.source_port,
        tag: init.tag,
        cookie: answer.to_string().into_bytes(),
    };
    socket.send_to(&ack.to_bytes(), &SocketAddr::new(peer.ip(), 0).into()).map(drop)
}
