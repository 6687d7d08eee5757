//! Accepting and serving connections within limits.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::panic::resume_unwind;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::places::{Place, Places};
use super::{Answer, Asked};

/// Pause after a failure to accept, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What one listener grants its clients.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The places of its connections, which it may share with other listeners.
    pub places: Places,
    /// Bytes of a request's header; more are answered with 431. At least 8,192.
    pub header_bytes: usize,
    /// A client that sends no whole header for so long loses its connection, also between two requests.
    pub header_time: Duration,
    /// A connection that is older takes no further request: a client that does not read its answers must not stay for ever.
    pub lifetime: Duration,
    /// How long after that, or after the server was closed, an answer that was begun may still be read.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            places: Places::default(),
            header_bytes: 16 * 1024,
            header_time: Duration::from_secs(5),
            lifetime: Duration::from_secs(60),
            grace: Duration::from_secs(2),
        }
    }
}

/// A running server. Dropping it ends it as [`Server::close`] does, without waiting.
#[derive(Debug)]
pub struct Server {
    stop: watch::Sender<bool>,
    accepting: JoinHandle<()>,
}

impl Server {
    /// Serves a listener's connections on tasks of the current runtime.
    pub fn start<A, F>(listener: TcpListener, limits: Limits, answer: A) -> Self
    where
        A: Fn(Asked) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Answer> + Send + 'static,
    {
        let (stop, stopped) = watch::channel(false);
        Self { stop, accepting: tokio::spawn(accept(listener, limits, answer, stopped)) }
    }

    /// Never comes back: for a server that lives as long as the process.
    ///
    /// # Panics
    /// When the task that accepts connections panicked.
    pub async fn forever(mut self) {
        // The task ends only when told to, or by a panic.
        if let Err(ended) = (&mut self.accepting).await
            && let Ok(panic) = ended.try_into_panic()
        {
            resume_unwind(panic);
        }
    }

    /// Whether connections are accepted: until it is closed, unless the task that does it panicked.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.accepting.is_finished()
    }

    /// Stops listening and waits until the port is free. Requests that are on their way are answered by a task that stays
    /// behind for a moment.
    pub async fn close(self) {
        self.stop.send_replace(true);
        // The task gives nothing; it ends by a panic at worst, and then the port is free as well.
        let _ended = self.accepting.await;
    }
}

/// Accepts until told to stop.
async fn accept<A, F>(listener: TcpListener, limits: Limits, answer: A, mut stopped: watch::Receiver<bool>)
where
    A: Fn(Asked) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Answer> + Send + 'static,
{
    let listening = limits.places.listening();
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let (place, lost) = limits.places.enter().await;
                    let (limits, answer, stopped) = (limits.clone(), answer.clone(), stopped.clone());
                    connections.spawn(async move {
                        tokio::select! {
                            () = connection(stream, &place, limits, answer, stopped) => {}
                            _ = lost => debug!("a connection lost its place to another one"),
                        }
                        drop(place);
                    });
                }
                Err(error) => {
                    debug!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
            // An error says that the server was dropped.
            _ = stopped.changed() => break,
        }
    }
    drop((listener, listening));
    tokio::spawn(async move { while connections.join_next().await.is_some() {} });
}

/// Serves one connection; ends within `lifetime + grace`.
async fn connection<A, F>(
    stream: TcpStream,
    place: &Place,
    limits: Limits,
    answer: A,
    mut stopped: watch::Receiver<bool>,
) where
    A: Fn(Asked) -> F,
    F: Future<Output = Answer>,
{
    // A client that says nothing costs no more than its socket.
    let mut byte = [0];
    tokio::select! {
        first = timeout(limits.header_time, stream.peek(&mut byte)) => if !matches!(first, Ok(Ok(1))) { return },
        _ = stopped.changed() => return,
    }
    Box::pin(exchange(stream, place, limits, answer, stopped)).await;
}

/// Answers what a client asks.
async fn exchange<A, F>(stream: TcpStream, place: &Place, limits: Limits, answer: A, mut stopped: watch::Receiver<bool>)
where
    A: Fn(Asked) -> F,
    F: Future<Output = Answer>,
{
    let service = service_fn(|request| {
        place.asked();
        let answer = answer(request);
        async {
            let answer = answer.await;
            place.answered();
            Ok::<_, Infallible>(answer)
        }
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_time)
            .max_buf_size(limits.header_bytes)
            .title_case_headers(true)
            .serve_connection(Observed { io: TokioIo::new(stream), place }, service)
    );
    tokio::select! {
        ended = connection.as_mut() => {
            if let Err(error) = ended {
                debug!(%error, "a connection ended early");
            }
            return;
        }
        () = sleep(limits.lifetime) => {}
        _ = stopped.changed() => {}
    }
    connection.as_mut().graceful_shutdown();
    if timeout(limits.grace, connection).await.is_err() {
        debug!("a connection was cut off: its client does not read");
    }
}

/// The stream of a connection, which tells its place how the client takes the answers.
struct Observed<'a> {
    io: TokioIo<TcpStream>,
    place: &'a Place,
}

impl Read for Observed<'_> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl Write for Observed<'_> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes).map_ok(|count| {
            self.place.wrote();
            count
        })
    }

    /// Called when everything is written.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx).map_ok(|()| self.place.flushed())
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
