//! Moves bytes between two sockets without copying them into this process.
//!
//! Takes two connected sockets, and moves bytes in both directions until each side has ended its direction. Each direction splices the
//! bytes that arrive into a pipe, and from there into the other socket. While the receiver accepts nothing more, the relay reads nothing
//! more, so the sender has to wait. The relay passes on the end of a direction as an end, and a reset as a reset.
//!
//! Invariant: a direction holds a pipe only while bytes are in it, so that a connection without traffic costs only the descriptors of its
//! two sockets.

use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown, sockopt};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::task::coop::consume_budget;

/// The most bytes that are moved at once: the default capacity of a pipe (pipe(7)).
const CHUNK: usize = 64 * 1024;
/// The most empty pipes that are kept for reuse; more are closed.
const SPARE_PIPES: usize = 64;
/// The keepalive interval for silent peers; Go's `net` package, which upstream uses, has this interval as well.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Empty pipes for reuse.
#[derive(Debug, Default)]
pub(super) struct Pipes(Mutex<Vec<Pipe>>);

#[derive(Debug)]
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

impl Pipes {
    fn take(&self) -> io::Result<Pipe> {
        if let Some(pipe) = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop() {
            return Ok(pipe);
        }
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Pipe { read, write })
    }

    /// Keeps a pipe, which must be empty, for reuse.
    fn keep(&self, pipe: Pipe) {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < SPARE_PIPES {
            spare.push(pipe);
        }
    }
}

/// Called when bytes have moved.
type Moved<'a> = &'a (dyn Fn() + Sync);

/// Moves bytes in both directions until both directions have ended. Passes an error of one side to the other side as a reset.
pub(super) async fn relay(client: &TcpStream, server: &TcpStream, pipes: &Pipes, moved: Moved<'_>) -> io::Result<()> {
    prepare(client)?;
    prepare(server)?;
    let outcome = both_ways(client, server, pipes, moved).await;
    if outcome.is_err() {
        reset(client);
        reset(server);
    }
    outcome
}

/// Makes the socket send small messages at once (`TCP_NODELAY`), and detect a peer that vanished (keepalive).
fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    Ok(sockopt::set_tcp_keepintvl(socket, KEEPALIVE)?)
}

/// Makes the close of the socket reset the connection.
pub(super) fn reset(socket: &TcpStream) {
    // An error means that the connection is gone already and needs no reset.
    let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
}

async fn both_ways(client: &TcpStream, server: &TcpStream, pipes: &Pipes, moved: Moved<'_>) -> io::Result<()> {
    let (mut up, mut down) = (pin!(one_way(client, server, pipes, moved)), pin!(one_way(server, client, pipes, moved)));
    let (mut up_ended, mut down_ended) = (false, false);
    while !(up_ended && down_ended) {
        tokio::select! {
            ended = &mut up, if !up_ended => {
                ended?;
                up_ended = true;
            }
            ended = &mut down, if !down_ended => {
                ended?;
                down_ended = true;
            }
            // After a direction has ended, the socket of its sender is not read any more, so a reset would not be seen otherwise.
            error = failure(client), if up_ended => return error,
            error = failure(server), if down_ended => return error,
        }
    }
    Ok(())
}

/// Waits for an error of the socket, such as a reset.
async fn failure(socket: &TcpStream) -> io::Result<()> {
    socket.ready(Interest::ERROR).await?;
    Err(socket.take_error()?.unwrap_or_else(|| io::ErrorKind::ConnectionReset.into()))
}

/// Moves bytes until the sender ends, and passes the end on.
async fn one_way(from: &TcpStream, to: &TcpStream, pipes: &Pipes, moved: Moved<'_>) -> io::Result<()> {
    loop {
        // One connection that always has bytes must not keep the thread from all other connections.
        consume_budget().await;
        from.readable().await?;
        let pipe = pipes.take()?;
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let spliced = from.try_io(Interest::READABLE, || Ok(splice(from, None, &pipe.write, None, CHUNK, flags)?));
        match spliced {
            Ok(0) => {
                pipes.keep(pipe);
                return Ok(shutdown(to, Shutdown::Write)?);
            }
            Ok(bytes) => {
                moved();
                empty(&pipe, bytes, from, to).await?;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        pipes.keep(pipe);
    }
}

/// Moves the bytes in the pipe to the receiver. While it waits for the receiver, an error of the sender's connection ends it.
async fn empty(pipe: &Pipe, mut bytes: usize, from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    while bytes > 0 {
        match to.try_io(Interest::WRITABLE, || Ok(splice(&pipe.read, None, to, None, bytes, flags)?)) {
            Ok(moved) => bytes -= moved,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::select! {
                writable = to.writable() => writable?,
                error = failure(from) => return error,
            },
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
