//! Limits the number of open connections, and chooses the connection to close when a new one would exceed the limit.
//!
//! The module tracks the progress of each connection: opened, request received, response written, closed. Each open connection has a
//! [`Permit`]; when a new connection needs one and none is free, the module closes another connection. Servers with clones of one
//! [`ConnectionLimit`] have one limit in common.
//!
//! Invariants: there are never more permits than connections in the limit. While connections and listeners use as many file descriptors as
//! the limit of descriptors allows, no further permit is given, except that one connection always gets one. A new connection waits for its
//! permit with its socket open, at most one connection of each server at a time, and gets the permit in the end. If no permit is free, the
//! module closes the connection that has waited longest for a request; if none waits for a request, it closes the connection whose client
//! has not read its response for the longest time. A connection keeps its permit for [`PROTECTED`] after its start, after a request, and
//! after each part of a response but the last, so that a client that sends its request at once gets its response.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tokio::net::TcpListener;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::listen::bind;

/// The time after the start or the last progress of a connection during which it is not closed, so that its request can arrive or its
/// client can read.
pub(super) const PROTECTED: Duration = Duration::from_millis(50);
/// The number of file descriptors that listeners must leave free for connections.
const FOR_CONNECTIONS: usize = 64;

/// The limit of connections for one or several servers. Clones have the limit in common.
#[derive(Clone, Debug)]
pub struct ConnectionLimit(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    table: Mutex<Table>,
    /// Notified when a connection is closed.
    closed: Notify,
}

impl Default for ConnectionLimit {
    /// Returns a limit of 64 connections, which is enough for a server with few clients.
    fn default() -> Self {
        Self::new(64, usize::MAX)
    }
}

impl ConnectionLimit {
    /// Returns a limit of `connections` connections, and of 1 for 0. Connections and listeners together may use at most `descriptors` file
    /// descriptors.
    #[must_use]
    pub fn new(connections: usize, descriptors: usize) -> Self {
        let table = Table::new(connections.max(1), descriptors);
        Self(Arc::new(Shared { table: Mutex::new(table), closed: Notify::new() }))
    }

    /// Listens as [`bind`] does, if the limit of file descriptors allows one more listener.
    ///
    /// # Errors
    /// Returns EMFILE if the limit allows no further listener, or the error that the kernel reports.
    pub fn bind(&self, address: SocketAddr) -> io::Result<TcpListener> {
        if self.table().may_listen() { bind(address) } else { Err(Errno::MFILE.into()) }
    }

    /// Counts a listener until the returned value is dropped.
    pub(super) fn listening(&self) -> Listening {
        self.table().listeners += 1;
        Listening(self.clone())
    }

    /// Returns a permit for a connection, and a channel that completes when the connection has to close. Waits while no permit is free, and
    /// meanwhile asks one connection after the other to close, except those that made progress within [`PROTECTED`].
    pub(super) async fn acquire(&self) -> (Permit, oneshot::Receiver<()>) {
        loop {
            if let Some((id, evicted)) = self.table().acquire(Instant::now()) {
                return (Permit { id, limit: self.clone(), has_response: AtomicBool::new(false) }, evicted);
            }
            self.table().evict(Instant::now());
            // Wait with a time-out, because the time `PROTECTED` may pass for a connection before any connection is closed.
            let _ = timeout(PROTECTED / 5, self.0.closed.notified()).await;
        }
    }

    /// Locks the table. Uses it even after another thread panicked with the lock held: at worst one permit is lost or counted twice.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a listener until this value is dropped.
#[derive(Debug)]
pub(super) struct Listening(ConnectionLimit);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.table().listeners -= 1;
    }
}

/// The permit of a connection. Drop the permit after the connection's socket, so that the file descriptor is free when the next connection
/// gets the permit.
#[derive(Debug)]
pub(super) struct Permit {
    id: u64,
    limit: ConnectionLimit,
    /// Whether the response to the last request is complete in memory. It may not have been written yet.
    has_response: AtomicBool,
}

impl Permit {
    /// Notes that a request has arrived.
    pub(super) fn requested(&self) {
        self.has_response.store(false, Ordering::Relaxed);
        self.limit.table().progress(self.id, Phase::Responding, Instant::now());
    }

    /// Notes that the response to the request is complete in memory.
    pub(super) fn responded(&self) {
        self.has_response.store(true, Ordering::Relaxed);
    }

    /// Notes that a part of the response was written.
    pub(super) fn wrote(&self) {
        self.limit.table().progress(self.id, Phase::Responding, Instant::now());
    }

    /// Notes that all bytes were written. If they end the response, the connection waits for a request again and may be closed at once, so
    /// that a new client can get its permit.
    pub(super) fn flushed(&self) {
        if self.has_response.swap(false, Ordering::Relaxed) {
            let now = Instant::now();
            self.limit.table().progress(self.id, Phase::Idle, now.checked_sub(PROTECTED).unwrap_or(now));
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limit.table().release(self.id);
        self.limit.0.closed.notify_one();
    }
}

/// The phase of a connection, and its index in `Table::order`: of the connections that may be closed, `Idle` ones go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The connection waits for its first or next request.
    Idle,
    /// The connection has a request whose response is not completely written.
    Responding,
}

/// The open connections, their phases, and when each made its last progress. Reads no clock: the caller passes in the time.
#[derive(Debug)]
struct Table {
    connections: usize,
    descriptors: usize,
    listeners: usize,
    /// The open connections by number, including connections that were asked to close.
    open: BTreeMap<u64, OpenConnection>,
    /// For each phase, the connections that were not asked to close, ordered by the time of their start or last progress.
    order: [BTreeSet<(Instant, u64)>; 2],
    next: u64,
}

#[derive(Debug)]
struct OpenConnection {
    phase: Phase,
    since: Instant,
    /// The channel that asks the connection to close; `None` once it was used.
    close: Option<oneshot::Sender<()>>,
}

impl Table {
    const fn new(connections: usize, descriptors: usize) -> Self {
        let order = [BTreeSet::new(), BTreeSet::new()];
        Self { connections, descriptors, listeners: 0, open: BTreeMap::new(), order, next: 0 }
    }

    const fn may_listen(&self) -> bool {
        self.listeners + FOR_CONNECTIONS < self.descriptors
    }

    /// Returns a permit, if one is free.
    fn acquire(&mut self, now: Instant) -> Option<(u64, oneshot::Receiver<()>)> {
        // There is at least one permit, even if listeners use all file descriptors.
        let limit = self.connections.min(self.descriptors.saturating_sub(self.listeners)).max(1);
        if self.open.len() >= limit {
            return None;
        }
        let (id, (close, evicted)) = (self.next, oneshot::channel());
        self.next += 1;
        self.open.insert(id, OpenConnection { phase: Phase::Idle, since: now, close: Some(close) });
        self.order[Phase::Idle as usize].insert((now, id));
        Some((id, evicted))
    }

    /// Asks one connection to close and returns its number; `None` if all connections were asked already or made progress within
    /// [`PROTECTED`].
    fn evict(&mut self, now: Instant) -> Option<u64> {
        let is_protected = |since: Instant| now.saturating_duration_since(since) < PROTECTED;
        let order =
            self.order.iter_mut().find(|order| order.first().is_some_and(|(since, _)| !is_protected(*since)))?;
        let (_, id) = order.pop_first()?;
        // Ignore the error: the send fails if the connection has just ended by itself.
        let _ = self.open.get_mut(&id)?.close.take()?.send(());
        Some(id)
    }

    /// Records that a connection made progress and is now in this phase.
    fn progress(&mut self, id: u64, phase: Phase, now: Instant) {
        let Some(connection) = self.open.get_mut(&id) else { return };
        // A connection that was asked to close is in no set of `order`, and must not be added again.
        if self.order[connection.phase as usize].remove(&(connection.since, id)) {
            self.order[phase as usize].insert((now, id));
        }
        (connection.phase, connection.since) = (phase, now);
    }

    fn release(&mut self, id: u64) {
        if let Some(connection) = self.open.remove(&id) {
            self.order[connection.phase as usize].remove(&(connection.since, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a table without a free permit. `opened` are the times at which its connections were opened, in milliseconds after `start`.
    fn filled(start: Instant, opened: &[u64]) -> (Table, Vec<oneshot::Receiver<()>>) {
        let mut table = Table::new(opened.len(), usize::MAX);
        let acquire = |millis: &u64| table.acquire(start + Duration::from_millis(*millis)).unwrap().1;
        let evicted = opened.iter().map(acquire).collect();
        (table, evicted)
    }

    fn after(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn the_connection_that_waits_longest_for_a_request_is_closed_first_and_one_with_a_request_last() {
        let start = Instant::now();
        let (mut table, mut evicted) = filled(start, &[0, 10, 20]);
        table.progress(0, Phase::Responding, after(start, 5));
        assert!(table.acquire(after(start, 1_000)).is_none(), "no permit is free");
        assert_eq!(table.evict(after(start, 1_000)), Some(1));
        assert_eq!(table.evict(after(start, 1_000)), Some(2));
        assert_eq!(table.evict(after(start, 1_000)), Some(0), "its client has not read for a second");
        assert_eq!(table.evict(after(start, 1_000)), None);
        assert!(evicted.iter_mut().all(|evicted| evicted.try_recv().is_ok()), "all were asked to close");
        assert!(table.acquire(after(start, 1_000)).is_none(), "they are not closed yet");
        table.release(1);
        assert!(table.acquire(after(start, 1_000)).is_some());
    }

    #[test]
    fn a_connection_that_was_opened_or_made_progress_just_now_stays() {
        let start = Instant::now();
        let (mut table, _evicted) = filled(start, &[0, 40]);
        assert_eq!(table.evict(after(start, 49)), None);
        table.progress(0, Phase::Responding, after(start, 45));
        assert_eq!(table.evict(after(start, 89)), None);
        assert_eq!(table.evict(after(start, 90)), Some(1));
        table.progress(0, Phase::Responding, after(start, 94));
        assert_eq!(table.evict(after(start, 100)), None, "its client reads");
        assert_eq!(table.evict(after(start, 144)), Some(0));
    }

    #[test]
    fn a_connection_that_was_asked_to_close_is_not_asked_again() {
        let start = Instant::now();
        let (mut table, _evicted) = filled(start, &[0]);
        assert_eq!(table.evict(after(start, 60)), Some(0));
        table.progress(0, Phase::Responding, after(start, 61));
        assert_eq!(table.evict(after(start, 1_000)), None);
    }

    #[test]
    fn listeners_take_file_descriptors_from_connections_but_not_the_last_one() {
        let mut table = Table::new(1_000, 100);
        assert!(table.may_listen());
        table.listeners = 36;
        assert!(!table.may_listen());
        let now = Instant::now();
        let open = (0..1_000).map_while(|_| table.acquire(now)).count();
        assert_eq!(open, 64);
        table.listeners = 1_000;
        (0..64).for_each(|id| table.release(id));
        assert!(table.acquire(now).is_some() && table.acquire(now).is_none());
    }
}
