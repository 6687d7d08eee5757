//! The way out: the bounded channel to the sync loop.

use std::sync::mpsc::{SyncSender, TrySendError};
use std::time::Duration;

use tokio::time::sleep;

use super::failure::Failure;
use crate::model::Event;

/// How long to wait while the receiver is behind.
const FULL: Duration = Duration::from_millis(1);

/// Sends events, waiting while the channel is full.
///
/// The wait keeps the server's next bytes where they are, and leaves the thread to the other watches and to being stopped.
#[derive(Debug)]
pub(super) struct Outlet(pub(super) SyncSender<Event>);

impl Outlet {
    /// Sends an event.
    ///
    /// # Errors
    /// [`Failure::Stopped`] if there is no receiver any more.
    pub(super) async fn send(&self, mut event: Event) -> Result<(), Failure> {
        loop {
            match self.0.try_send(event) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(_)) => return Err(Failure::Stopped),
                Err(TrySendError::Full(unsent)) => event = unsent,
            }
            sleep(FULL).await;
        }
    }
}
