//! The body of an answer, written piece by piece, with the fault that the test asked for.
//!
//! Takes bytes, and passes them to hyper, each piece as a separate HTTP chunk. hyper cannot reset a connection: [`Killer`] ends the
//! connection's task, and with it the socket.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{Stream, unfold};
use hyper::body::{Bytes, Frame};
use tokio::sync::{Notify, mpsc};
use tokio::time::sleep;

use super::fault::{Ending, Fault};

/// The size of a chunk in bytes, unless a fault asks for another size.
const CHUNK: usize = 16 << 10;
/// The most pieces that wait for hyper.
const PIECES: usize = 4;
/// The pause before a connection is reset, so that the client receives what was sent before.
const BEFORE_RESET: Duration = Duration::from_millis(30);

/// The answer is over: the client went away, or a fault ended it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Over;

/// Ends a connection with a reset.
#[derive(Clone, Default)]
pub(crate) struct Killer(Arc<Notify>);

impl Killer {
    /// Ends the connection.
    pub(crate) fn kill(&self) {
        self.0.notify_one();
    }

    /// Waits until [`Killer::kill`] is called.
    pub(crate) async fn killed(&self) {
        self.0.notified().await;
    }
}

type Piece = Result<Frame<Bytes>, io::Error>;

/// Writes one body.
pub(crate) struct Writer {
    pieces: mpsc::Sender<Piece>,
    killer: Killer,
    chunk: usize,
    pause: Duration,
    end: Option<(usize, Ending)>,
    sent: usize,
}

impl Writer {
    /// Makes a writer and the body that it writes.
    pub(crate) fn new(killer: Killer, fault: Option<&Fault>) -> (Self, impl Stream<Item = Piece> + use<>) {
        let (pieces, receiver) = mpsc::channel(PIECES);
        let mut writer = Self { pieces, killer, chunk: CHUNK, pause: Duration::ZERO, end: None, sent: 0 };
        match fault {
            Some(Fault::After(bytes, ending)) => writer.end = Some((*bytes, *ending)),
            Some(Fault::Drip(bytes, pause)) => (writer.chunk, writer.pause) = (*bytes, *pause),
            _ => {}
        }
        let body = unfold(receiver, |mut receiver| async { receiver.recv().await.map(|piece| (piece, receiver)) });
        (writer, body)
    }

    /// Sends bytes, up to the position at which a fault ends the answer.
    pub(crate) async fn send(&mut self, bytes: &[u8]) -> Result<(), Over> {
        let (allowed, ending) = match self.end {
            Some((at, ending)) if self.sent + bytes.len() > at => (at - self.sent, Some(ending)),
            _ => (bytes.len(), None),
        };
        for piece in bytes[..allowed].chunks(self.chunk) {
            let frame = Frame::data(Bytes::copy_from_slice(piece));
            self.pieces.send(Ok(frame)).await.map_err(|_| Over)?;
            if !self.pause.is_zero() {
                sleep(self.pause).await;
            }
        }
        self.sent += allowed;
        match ending {
            Some(ending) => Err(self.end(ending).await),
            None => Ok(()),
        }
    }

    /// Ends the answer before its time.
    pub(crate) async fn end(&mut self, ending: Ending) -> Over {
        sleep(BEFORE_RESET).await;
        match ending {
            Ending::Reset => self.killer.kill(),
            Ending::Close => {
                // hyper closes a connection whose body fails. If the client is gone already, nothing is left to close.
                let _ = self.pieces.send(Err(io::ErrorKind::ConnectionAborted.into())).await;
            }
            Ending::Silence => self.gone().await,
        }
        Over
    }

    /// Waits until the client goes away.
    pub(crate) async fn gone(&self) {
        self.pieces.closed().await;
    }
}
