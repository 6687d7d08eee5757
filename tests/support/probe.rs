//! Probes: each sends one packet or makes one connection, and tells its outcome.
//!
//! Takes a namespace and a [`Flow`], and returns an [`Outcome`], or for many probes a [`Tally`]. No two probes of a test process have the
//! same source port, so that no probe meets the connection-tracking entry of an earlier one. A refusal is an ICMP "port unreachable" that
//! quotes the probe's ports, read from a raw socket: TCP sockets can miss the error that answers a SYN at once.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

use super::netns::Namespace;
use super::plan::Family;
use super::proxy::is_slow;
use super::server::{Answer, bind_sctp};
use super::wire::{SctpInit, echo_request, is_echo_reply, port_unreachable, raw_payload, tcp_segment};

/// How long a probe waits for any answer before the packet counts as dropped.
const TIMEOUT: Duration = Duration::from_millis(600);
/// How long a probe waits where nearly every probe is answered: less than the second after which the kernel sends a SYN again.
const LONG_TIMEOUT: Duration = Duration::from_millis(950);
/// How long a TCP connection that is open may wait for the server's thread to get a processor.
const ANSWER: Duration = Duration::from_secs(4);
/// How long a probe waits where `$TEST_PATIENCE_SECONDS` says that the machine is slow.
const SLOW_TIMEOUT: Duration = Duration::from_millis(1500);
/// How long a probe that is to be answered waits on a slow machine: an emulated processor may stand still for more than a second.
const SLOW_LONG_TIMEOUT: Duration = Duration::from_secs(5);
/// After this many probes without an answer in a row, the rest of a tally is not tried.
const HOPELESS: u32 = 3;

/// A transport protocol, or ICMP echo.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proto {
    /// A TCP connection.
    Tcp,
    /// A UDP datagram.
    Udp,
    /// An SCTP INIT.
    Sctp,
    /// An ICMP or ICMPv6 echo request; ports mean nothing.
    Ping,
}

impl Proto {
    /// The protocols a Service port may have.
    pub(crate) const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Sctp];

    /// The name in a Service object.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
            Self::Ping => panic!("a Service has no ping port"),
        }
    }
}

/// From where to where a probe goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    /// The protocol.
    pub(crate) proto: Proto,
    /// The source address, one of the namespace's.
    pub(crate) source: IpAddr,
    /// Address and port to reach.
    pub(crate) target: SocketAddr,
}

impl Flow {
    /// A flow from `source` to `port` of `address`.
    pub(crate) fn new(proto: Proto, source: IpAddr, address: IpAddr, port: u16) -> Self {
        Self { proto, source, target: SocketAddr::new(address, port) }
    }
}

/// What became of a probe.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Outcome {
    /// A server answered.
    Reached(Answer),
    /// ICMP port unreachable came back, whatever the protocol.
    Refused,
    /// Nothing came back.
    Dropped,
    /// The kernel forbade the sending (`EPERM`): a rule on the output hook refused or dropped it.
    NotPermitted,
    /// A TCP reset: the packet arrived at a host where no program listens.
    Reset,
    /// Anything else.
    Other(String),
}

/// How often each outcome was seen.
pub(crate) type Tally = BTreeMap<Outcome, u32>;

/// Sends one probe from `namespace`.
pub(crate) fn probe(namespace: &Namespace, flow: Flow) -> Outcome {
    namespace.enter(|| send(flow, timeout(TIMEOUT, SLOW_TIMEOUT)))
}

/// Sends one probe that is to be answered, and waits longer for the answer.
pub(crate) fn probe_served(namespace: &Namespace, flow: Flow) -> Outcome {
    namespace.enter(|| send(flow, timeout(LONG_TIMEOUT, SLOW_LONG_TIMEOUT)))
}

/// Sends `count` probes from `namespace`, one after the other.
pub(crate) fn probe_many(namespace: &Namespace, flow: Flow, count: u32) -> Tally {
    namespace.enter(|| {
        let mut tally = Tally::new();
        let mut unanswered = 0;
        for _ in 0..count {
            let outcome = send(flow, timeout(LONG_TIMEOUT, SLOW_LONG_TIMEOUT));
            unanswered = if outcome == Outcome::Dropped { unanswered + 1 } else { 0 };
            *tally.entry(outcome).or_default() += 1;
            if unanswered == HOPELESS {
                break;
            }
        }
        tally
    })
}

/// Sends one UDP probe from this source port, which may be that of an earlier probe.
pub(crate) fn probe_from_port(namespace: &Namespace, flow: Flow, port: u16) -> Outcome {
    assert_eq!(flow.proto, Proto::Udp, "only UDP goes on without a connection");
    namespace.enter(|| told(udp(flow, port, timeout(TIMEOUT, SLOW_TIMEOUT))))
}

fn timeout(usual: Duration, slow: Duration) -> Duration {
    if is_slow() { slow } else { usual }
}

/// Returns a source port that no other probe of this process uses.
fn next_port() -> u16 {
    // Wider than a port: a 16-bit counter would overflow at a number that is no multiple of `COUNT`, and repeat ports that were just used.
    static NEXT: AtomicU32 = AtomicU32::new(0);
    const FIRST: u32 = 2_000;
    const COUNT: u32 = 63_000;
    // Leaves out the ports on which the servers of the test cluster and the proxy listen.
    let taken = |port: &u16| super::plan::SERVED_PORTS.contains(port) || (10_000..10_300).contains(port);
    let next = || FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
    std::iter::repeat_with(next)
        .filter_map(|port| u16::try_from(port).ok())
        .find(|port| !taken(port) && !(30_000..=32_767).contains(port))
        .expect("the iterator is endless")
}

fn send(flow: Flow, patience: Duration) -> Outcome {
    let outcome = match flow.proto {
        Proto::Tcp => tcp(flow, patience),
        Proto::Udp => udp(flow, next_port(), patience),
        Proto::Sctp => sctp(flow, patience),
        Proto::Ping => ping(flow, patience),
    };
    told(outcome)
}

fn told(outcome: io::Result<Outcome>) -> Outcome {
    outcome.unwrap_or_else(|error| match error.kind() {
        ErrorKind::PermissionDenied => Outcome::NotPermitted,
        ErrorKind::ConnectionRefused | ErrorKind::ConnectionReset => Outcome::Reset,
        _ => Outcome::Other(error.to_string()),
    })
}

fn tcp(flow: Flow, patience: Duration) -> io::Result<Outcome> {
    let errors = IcmpErrors::watch(flow, patience)?;
    let socket = Socket::new(Domain::for_address(flow.target), Type::STREAM, None)?;
    let port = next_port();
    socket.bind(&SocketAddr::new(flow.source, port).into())?;
    // Closing sends a reset: no TIME_WAIT is left behind.
    socket.set_linger(Some(Duration::ZERO))?;
    socket.set_nonblocking(true)?;
    match socket.connect(&flow.target.into()) {
        Err(error) if error.raw_os_error() != Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => return Err(error),
        _ => {}
    }
    let outcome = errors.wait(&socket, port, read_answer)?;
    // If the socket has a peer, the packets came through, and only the server's thread is late.
    let is_late = outcome == Outcome::Dropped && socket.peer_addr().is_ok();
    if is_late { errors.until(Instant::now() + ANSWER).wait(&socket, port, read_answer) } else { Ok(outcome) }
}

/// A TCP connection, or a UDP flow, that is kept open.
pub(crate) struct Connection {
    stream: Socket,
}

impl Connection {
    /// Connects from `namespace`; the server's first answer comes with it.
    pub(crate) fn open(namespace: &Namespace, flow: Flow) -> (Self, Answer) {
        let stream = namespace.enter(|| -> io::Result<Socket> {
            let is_udp = flow.proto == Proto::Udp;
            let kind = if is_udp { Type::DGRAM } else { Type::STREAM };
            let stream = Socket::new(Domain::for_address(flow.target), kind, None)?;
            stream.bind(&SocketAddr::new(flow.source, next_port()).into())?;
            stream.set_read_timeout(Some(Duration::from_secs(3)))?;
            stream.connect_timeout(&flow.target.into(), Duration::from_secs(3))?;
            if is_udp {
                stream.send(b"?")?;
            }
            Ok(stream)
        });
        let connection = Self { stream: stream.unwrap_or_else(|error| panic!("{flow:?}: {error}")) };
        let answer = connection.read();
        (connection, answer)
    }

    /// Sends something and returns the answer; fails the test when the connection is dead.
    pub(crate) fn ask(&self) -> Answer {
        self.stream.send(b"?").unwrap_or_else(|error| panic!("the connection is dead: {error}"));
        self.read()
    }

    /// Returns whether the other side has closed or reset the connection, at the latest after the read time-out.
    pub(crate) fn is_closed(&self) -> bool {
        match (&self.stream).read(&mut [0]) {
            Ok(bytes) => bytes == 0,
            Err(error) => !is_unfinished(&error),
        }
    }

    fn read(&self) -> Answer {
        match read_answer(&self.stream) {
            Ok(Some(Outcome::Reached(answer))) => answer,
            other => panic!("the connection does not answer: {other:?}"),
        }
    }
}

fn udp(flow: Flow, port: u16, patience: Duration) -> io::Result<Outcome> {
    let errors = IcmpErrors::watch(flow, patience)?;
    let socket = Socket::new(Domain::for_address(flow.target), Type::DGRAM, None)?;
    socket.bind(&SocketAddr::new(flow.source, port).into())?;
    socket.set_nonblocking(true)?;
    socket.connect(&flow.target.into())?;
    socket.send(b"?")?;
    errors.wait(&socket, port, read_answer)
}

fn read_answer(mut socket: &Socket) -> io::Result<Option<Outcome>> {
    let mut text = [0; 256];
    let length = socket.read(&mut text)?;
    Ok(Some(parse_answer(&text[..length])))
}

fn parse_answer(text: &[u8]) -> Outcome {
    String::from_utf8_lossy(text).parse().map_or_else(Outcome::Other, Outcome::Reached)
}

fn sctp(flow: Flow, patience: Duration) -> io::Result<Outcome> {
    let errors = IcmpErrors::watch(flow, patience)?;
    let socket = bind_sctp(flow.source)?;
    socket.set_nonblocking(true)?;
    let port = next_port();
    let init =
        SctpInit { source_port: port, port: flow.target.port(), tag: u32::from(port) << 8 | 1, cookie: Vec::new() };
    socket.send_to(&init.to_bytes(), &SocketAddr::new(flow.target.ip(), 0).into())?;
    errors.wait(&socket, port, |mut socket| {
        let mut packet = [0; 512];
        let length = socket.read(&mut packet)?;
        let ack = raw_payload(Family::of(flow.source), &packet[..length]).and_then(SctpInit::from_bytes);
        let ours = |ack: &SctpInit| ack.port == port && ack.source_port == flow.target.port() && ack.tag == init.tag;
        Ok(ack.filter(ours).map(|ack| parse_answer(&ack.cookie)))
    })
}

fn ping(flow: Flow, patience: Duration) -> io::Result<Outcome> {
    let family = Family::of(flow.source);
    let errors = IcmpErrors::watch(flow, patience)?;
    let socket = icmp_socket(flow.source)?;
    let identifier = next_port();
    // A connected socket gets only what comes from the address that was asked.
    socket.connect(&SocketAddr::new(flow.target.ip(), 0).into())?;
    socket.send(&echo_request(family, identifier))?;
    errors.wait(&socket, identifier, |mut socket| {
        let mut packet = [0; 512];
        let length = socket.read(&mut packet)?;
        let message = raw_payload(family, &packet[..length]).unwrap_or_default();
        let answer = Answer { endpoint: flow.target.ip(), port: 0, seen_source: flow.source };
        Ok(is_echo_reply(family, message, identifier).then_some(Outcome::Reached(answer)))
    })
}

/// Sends a TCP segment that connection tracking finds invalid from `source` in one namespace, and returns whether it arrives at `to` in the
/// other one with that source.
pub(crate) fn invalid_arrives((from, source): (&Namespace, SocketAddr), (at, to): (&Namespace, SocketAddr)) -> bool {
    let raw = |own: SocketAddr, other: SocketAddr| -> io::Result<Socket> {
        let socket = Socket::new(Domain::for_address(own), Type::RAW, Some(Protocol::TCP))?;
        socket.bind(&SocketAddr::new(own.ip(), 0).into())?;
        socket.connect(&SocketAddr::new(other.ip(), 0).into())?;
        Ok(socket)
    };
    let segment = tcp_segment(source, to, 0);
    let arrives = || -> io::Result<bool> {
        let receiver = at.enter(|| raw(to, source))?;
        receiver.set_read_timeout(Some(timeout(TIMEOUT, SLOW_TIMEOUT)))?;
        from.enter(|| raw(source, to))?.send(&segment)?;
        loop {
            let mut packet = [0; 512];
            match (&receiver).read(&mut packet) {
                Ok(length) => {
                    let found = raw_payload(Family::of(to.ip()), &packet[..length]);
                    if found.is_some_and(|found| found.starts_with(&segment[..4])) {
                        return Ok(true);
                    }
                }
                Err(error) if is_unfinished(&error) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
    };
    arrives().unwrap_or_else(|error| panic!("{source} -> {to}: {error}"))
}

fn icmp_socket(source: IpAddr) -> io::Result<Socket> {
    let protocol = if source.is_ipv4() { Protocol::ICMPV4 } else { Protocol::ICMPV6 };
    let socket = Socket::new(Domain::for_address(SocketAddr::new(source, 0)), Type::RAW, Some(protocol))?;
    socket.bind(&SocketAddr::new(source, 0).into())?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// The ICMP errors that arrive at the source of a flow.
struct IcmpErrors {
    socket: Socket,
    flow: Flow,
    deadline: Instant,
}

impl IcmpErrors {
    /// Starts to listen; before the probe is sent, so that nothing is missed.
    fn watch(flow: Flow, patience: Duration) -> io::Result<Self> {
        Ok(Self { socket: icmp_socket(flow.source)?, flow, deadline: Instant::now() + patience })
    }

    /// Returns this value with another deadline.
    fn until(self, deadline: Instant) -> Self {
        Self { deadline, ..self }
    }

    /// Waits until `read` makes an outcome of what `socket` gets, or an error is about `port`, or time is up.
    fn wait(
        &self,
        socket: &Socket,
        port: u16,
        mut read: impl FnMut(&Socket) -> io::Result<Option<Outcome>>,
    ) -> io::Result<Outcome> {
        while self.sleep_until_ready(socket)? {
            if self.refused(port) {
                return Ok(Outcome::Refused);
            }
            match read(socket) {
                Ok(Some(outcome)) => return Ok(outcome),
                // The kernel also reports an ICMP error as an error of the socket, and the ICMP error may have come after the check above.
                Err(error) if !is_unfinished(&error) => {
                    return if self.refused(port) { Ok(Outcome::Refused) } else { Err(error) };
                }
                _ => {}
            }
        }
        Ok(Outcome::Dropped)
    }

    /// Whether there is something to read. Looks once more when time is up, because this thread may have waited for a processor.
    fn sleep_until_ready(&self, socket: &Socket) -> io::Result<bool> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        let seconds = i64::try_from(left.as_secs()).unwrap_or(i64::MAX);
        let timeout = Timespec { tv_sec: seconds, tv_nsec: left.subsec_nanos().into() };
        let mut fds =
            [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN), PollFd::new(&self.socket, PollFlags::IN)];
        Ok(poll(&mut fds, Some(&timeout))? > 0)
    }

    fn refused(&self, port: u16) -> bool {
        let family = Family::of(self.flow.source);
        let mut packet = [0; 1024];
        while let Ok(length) = (&self.socket).read(&mut packet) {
            let message = raw_payload(family, &packet[..length]).unwrap_or_default();
            if port_unreachable(family, message).is_some_and(|quoted| self.is_ours(quoted, port)) {
                return true;
            }
        }
        false
    }

    /// Whether a quoted transport header is that of the probe.
    fn is_ours(&self, quoted: &[u8], port: u16) -> bool {
        match self.flow.proto {
            Proto::Ping => quoted.get(4..6) == Some(&port.to_be_bytes()),
            _ => quoted.get(..4) == Some(&[port.to_be_bytes(), self.flow.target.port().to_be_bytes()].concat()),
        }
    }
}

fn is_unfinished(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected | ErrorKind::Interrupted)
}
