//! Short connections, one after the other for as long as the load lasts, on every way to the Service `rolling`.
//!
//! A TCP connection is lost when it is refused, when its first packet gets no answer before TCP would send another, or when the
//! server's line does not come; a datagram when no answer comes. Every connection has a source port that has not been used for
//! a while, so that none meets what the kernel remembers of an earlier one.

use std::io::{self, Read};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{self, Scope};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use super::cluster::{Way, ways};
use crate::support::figures::Figures;
use crate::support::plan::Family;
use crate::support::probe::Proto;
use crate::support::server::Answer;
use crate::support::world::World;

/// TCP repeats a first packet after a second: a connection that took longer lost one.
const CONNECT: Duration = Duration::from_millis(950);
/// A server's thread may have to wait for a processor.
const ANSWER: Duration = Duration::from_secs(4);
/// Far longer than a connection takes with both of these: a thread that finishes none has panicked.
const FINISHED: Duration = Duration::from_secs(30);
/// The pause between two connections of one kind on one way.
const PAUSE: Duration = Duration::from_millis(8);
/// The number of threads: one for each way and protocol.
const THREADS: usize = 8;
/// The number of source ports of each thread, and the first of all; all are below those that the kernel gives out.
const PORTS: u16 = 3_800;
const FIRST_PORT: u16 = 2_000;
/// The number of losses that are printed in full.
const PRINTED: usize = 20;

/// A connection that failed.
struct Loss {
    begun: Instant,
    ended: Instant,
    why: String,
}

/// The losses, by kind.
#[derive(Debug)]
pub(crate) struct Losses {
    /// Losses while no other program had changed the rules; the first of them in words.
    pub(crate) unexplained: Vec<String>,
    /// Losses while another program's changes were not repaired yet.
    pub(crate) disturbed: usize,
}

/// What all threads of the load share.
#[derive(Default)]
pub(crate) struct Load {
    stop: AtomicBool,
    /// The connections that each thread has finished; those with even numbers make TCP connections, the others send datagrams.
    finished: [AtomicU64; THREADS],
    losses: Mutex<Vec<Loss>>,
    disturbances: Mutex<Vec<(Instant, Instant)>>,
}

/// Stops the load when dropped, also when a test fails.
pub(crate) struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A thread that panicked has failed the test by itself.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Load {
    /// Ends the load when the value is dropped.
    pub(crate) fn stop_at_the_end(&self) -> Stop<'_> {
        Stop(&self.stop)
    }

    /// Whether to go on.
    pub(crate) fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// Starts a thread for each way and protocol; each takes turns with the families.
    pub(crate) fn spawn<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, world: &'scope World) {
        let kinds = ways(world).into_iter().flat_map(|way| [(way, Proto::Tcp), (way, Proto::Udp)]);
        for (((way, proto), first), count) in kinds.zip((FIRST_PORT..).step_by(PORTS.into())).zip(&self.finished) {
            scope.spawn(move || {
                way.from.join();
                self.run(way, proto, first, count);
            });
        }
    }

    /// Waits until each connection that has begun by now has ended.
    pub(crate) fn finish_what_has_begun(&self) {
        let end = Instant::now() + FINISHED;
        for count in &self.finished {
            let before = count.load(Ordering::Relaxed);
            while count.load(Ordering::Relaxed) == before && self.goes_on() {
                assert!(Instant::now() < end, "a thread of the load has finished no connection for {FINISHED:?}");
                thread::sleep(PAUSE);
            }
        }
    }

    /// Runs `work`, during which another program's changes of the rules are not repaired yet.
    pub(crate) fn disturbed<T>(&self, work: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let result = work();
        lock(&self.disturbances).push((begin, Instant::now()));
        result
    }

    /// Connections and datagrams so far.
    pub(crate) fn made(&self) -> u64 {
        self.tcp() + self.udp()
    }

    fn tcp(&self) -> u64 {
        self.finished.iter().step_by(2).map(|count| count.load(Ordering::Relaxed)).sum()
    }

    fn udp(&self) -> u64 {
        self.finished.iter().skip(1).step_by(2).map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// The losses, after the load has ended.
    pub(crate) fn losses(&self) -> Losses {
        let (losses, disturbances) = (lock(&self.losses), lock(&self.disturbances));
        let is_disturbed =
            |loss: &&Loss| disturbances.iter().any(|(begin, end)| loss.begun <= *end && *begin <= loss.ended);
        let (disturbed, unexplained): (Vec<&Loss>, Vec<&Loss>) = losses.iter().partition(is_disturbed);
        let more = unexplained.len().saturating_sub(PRINTED);
        let printed = unexplained.iter().take(PRINTED).map(|loss| loss.why.clone());
        let more = (more > 0).then(|| format!("and {more} more"));
        Losses { unexplained: printed.chain(more).collect(), disturbed: disturbed.len() }
    }

    /// Adds the rows about short connections.
    pub(crate) fn describe(&self, figures: &mut Figures, losses: &Losses) {
        let lost = lock(&self.losses).len();
        figures.row("TCP connections made", self.tcp());
        figures.row("UDP exchanges made", self.udp());
        figures.row("connections lost", lost - losses.disturbed);
        figures.row("connections lost between tampering and repair", losses.disturbed);
    }

    fn run(&self, way: Way<'_>, proto: Proto, first_port: u16, count: &AtomicU64) {
        let (mut number, start) = (0_u16, Instant::now());
        while self.goes_on() {
            let family = Family::ALL[usize::from(number % 2)];
            let source = SocketAddr::new((way.source)(family), first_port + number % PORTS);
            let target = way.target(family, proto);
            let begun = Instant::now();
            let outcome = if proto == Proto::Tcp { tcp(source, target) } else { udp(source, target) };
            let ended = Instant::now();
            if let Err(error) = outcome {
                let at = begun - start;
                let why = format!("{} {way}: {source} to {target} at {at:.3?}: {error}", proto.name());
                lock(&self.losses).push(Loss { begun, ended, why });
            }
            count.fetch_add(1, Ordering::Relaxed);
            number = (number + 1) % PORTS;
            thread::sleep(PAUSE);
        }
    }
}

/// A socket that is bound to this source and not connected.
pub(crate) fn socket(kind: Type, source: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(source), kind, None)?;
    socket.bind(&source.into())?;
    socket.set_read_timeout(Some(ANSWER))?;
    Ok(socket)
}

/// The line of a server.
pub(crate) fn answer(mut socket: &Socket) -> io::Result<Answer> {
    let mut text = [0; 256];
    let length = socket.read(&mut text)?;
    String::from_utf8_lossy(&text[..length]).parse().map_err(io::Error::other)
}

fn tcp(source: SocketAddr, target: SocketAddr) -> io::Result<()> {
    let socket = socket(Type::STREAM, source)?;
    // Closing sends a reset: no TIME_WAIT is left behind.
    socket.set_linger(Some(Duration::ZERO))?;
    socket.connect_timeout(&target.into(), CONNECT)?;
    answer(&socket).map(drop)
}

fn udp(source: SocketAddr, target: SocketAddr) -> io::Result<()> {
    let socket = socket(Type::DGRAM, source)?;
    socket.connect(&target.into())?;
    socket.send(b"?")?;
    answer(&socket).map(drop)
}
