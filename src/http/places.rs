//! The places that connections take, and who loses one when there are too many.
//!
//! Takes what happens to connections: they come, ask, are answered, go. Gives each a [`Place`], and says which connection has to
//! go so that another one finds a place. Servers that share [`Places`] are bounded together.
//!
//! Invariants: there are never more connections than places, and connections and listeners together never need more descriptors
//! than they were granted. A connection that comes always finds a place: if need be that of the one that has waited longest for a
//! request, else of the one whose client has not read its answer for longest. Nobody loses a place within [`PROTECTED`] of coming or
//! of taking a part of an answer, so a client that sends its request at once is answered, whatever others do.

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

use super::bind;

/// How long a connection keeps its place in any case: for its request to come, or for its client to read.
pub(super) const PROTECTED: Duration = Duration::from_millis(50);
/// Descriptors that listeners leave to connections.
const FOR_CONNECTIONS: usize = 64;

/// Places for the connections of one server or of several.
#[derive(Clone, Debug)]
pub struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    table: Mutex<Table>,
    /// A connection went.
    freed: Notify,
}

impl Default for Places {
    /// Enough for a server that few ask.
    fn default() -> Self {
        Self::new(64, usize::MAX)
    }
}

impl Places {
    /// Places for so many connections, of servers whose connections and listeners together may hold so many descriptors.
    #[must_use]
    pub fn new(connections: usize, descriptors: usize) -> Self {
        let table = Table::new(connections.max(1), descriptors);
        Self(Arc::new(Shared { table: Mutex::new(table), freed: Notify::new() }))
    }

    /// Listens as [`bind`] does, if the descriptors are enough for one more listener.
    ///
    /// # Errors
    /// EMFILE when they are not; else what the kernel answers.
    pub fn bind(&self, address: SocketAddr) -> io::Result<TcpListener> {
        if self.table().may_listen() { bind(address) } else { Err(Errno::MFILE.into()) }
    }

    /// Counts a listener until the value is dropped.
    pub(super) fn listening(&self) -> Listening {
        self.table().listeners += 1;
        Listening(self.clone())
    }

    /// A place for a connection, and what completes when it has to go. Waits while everybody is protected.
    pub(super) async fn enter(&self) -> (Place, oneshot::Receiver<()>) {
        loop {
            if let Some((id, lost)) = self.table().enter(Instant::now()) {
                return (Place { id, places: self.clone(), is_answered: AtomicBool::new(false) }, lost);
            }
            self.table().evict(Instant::now());
            // Late at worst: somebody's protection may end first.
            let _ = timeout(PROTECTED / 5, self.0.freed.notified()).await;
        }
    }

    /// A panic elsewhere leaves a table that is whole enough: at worst a place is lost or counted twice.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A listener that is counted.
#[derive(Debug)]
pub(super) struct Listening(Places);

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.table().listeners -= 1;
    }
}

/// The place of a connection; free when dropped, which has to come after the connection's socket.
#[derive(Debug)]
pub(super) struct Place {
    id: u64,
    places: Places,
    /// There is a whole answer; its bytes may be on their way.
    is_answered: AtomicBool,
}

impl Place {
    /// A request has come.
    pub(super) fn asked(&self) {
        self.is_answered.store(false, Ordering::Relaxed);
        self.places.table().moved(self.id, Phase::Answering, Instant::now());
    }

    /// The answer to it is there.
    pub(super) fn answered(&self) {
        self.is_answered.store(true, Ordering::Relaxed);
    }

    /// The client took some of the answer.
    pub(super) fn wrote(&self) {
        self.places.table().moved(self.id, Phase::Answering, Instant::now());
    }

    /// All that there was to send is sent. A client that has its answer is not protected: who comes is served before it asks again.
    pub(super) fn flushed(&self) {
        if self.is_answered.swap(false, Ordering::Relaxed) {
            let now = Instant::now();
            self.places.table().moved(self.id, Phase::Waiting, now.checked_sub(PROTECTED).unwrap_or(now));
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.table().leave(self.id);
        self.places.0.freed.notify_one();
    }
}

/// What a connection is at. Who is at the first loses its place before who is at the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits for a request, the first or the next one.
    Waiting,
    /// Has a request that is not answered to its end.
    Answering,
}

/// Who is there, what they are at and since when. Pure: the time is handed in.
#[derive(Debug)]
struct Table {
    connections: usize,
    descriptors: usize,
    listeners: usize,
    /// The connections that are there, also those that were told to go.
    held: BTreeMap<u64, Held>,
    /// Those that were not told to go, of each phase, and when they came or last made progress.
    order: [BTreeSet<(Instant, u64)>; 2],
    next: u64,
}

#[derive(Debug)]
struct Held {
    phase: Phase,
    since: Instant,
    /// Gone when it was told to go.
    lose: Option<oneshot::Sender<()>>,
}

impl Table {
    const fn new(connections: usize, descriptors: usize) -> Self {
        let order = [BTreeSet::new(), BTreeSet::new()];
        Self { connections, descriptors, listeners: 0, held: BTreeMap::new(), order, next: 0 }
    }

    const fn may_listen(&self) -> bool {
        self.listeners + FOR_CONNECTIONS < self.descriptors
    }

    /// A place, if there is one that is free.
    fn enter(&mut self, now: Instant) -> Option<(u64, oneshot::Receiver<()>)> {
        // The last place stays, whatever the listeners took.
        let places = self.connections.min(self.descriptors.saturating_sub(self.listeners)).max(1);
        if self.held.len() >= places {
            return None;
        }
        let (id, (lose, lost)) = (self.next, oneshot::channel());
        self.next += 1;
        self.held.insert(id, Held { phase: Phase::Waiting, since: now, lose: Some(lose) });
        self.order[Phase::Waiting as usize].insert((now, id));
        Some((id, lost))
    }

    /// Tells one connection to go. Gives which one; none if all made progress just now.
    fn evict(&mut self, now: Instant) -> Option<u64> {
        let is_protected = |since: Instant| now.saturating_duration_since(since) < PROTECTED;
        let order =
            self.order.iter_mut().find(|order| order.first().is_some_and(|(since, _)| !is_protected(*since)))?;
        let (_, id) = order.pop_first()?;
        // Nobody listens if the connection ended by itself in this moment.
        let _ = self.held.get_mut(&id)?.lose.take()?.send(());
        Some(id)
    }

    /// A connection made progress, and is at this now.
    fn moved(&mut self, id: u64, phase: Phase, now: Instant) {
        let Some(held) = self.held.get_mut(&id) else { return };
        // Who was told to go is in no order, and does not come back.
        if self.order[held.phase as usize].remove(&(held.since, id)) {
            self.order[phase as usize].insert((now, id));
        }
        (held.phase, held.since) = (phase, now);
    }

    fn leave(&mut self, id: u64) {
        if let Some(held) = self.held.remove(&id) {
            self.order[held.phase as usize].remove(&(held.since, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A table whose connections came at these milliseconds, one place each.
    fn filled(start: Instant, came: &[u64]) -> (Table, Vec<oneshot::Receiver<()>>) {
        let mut table = Table::new(came.len(), usize::MAX);
        let enter = |millis: &u64| table.enter(start + Duration::from_millis(*millis)).unwrap().1;
        let lost = came.iter().map(enter).collect();
        (table, lost)
    }

    fn after(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn who_waits_longest_for_a_request_goes_first_and_who_is_answered_last() {
        let start = Instant::now();
        let (mut table, mut lost) = filled(start, &[0, 10, 20]);
        table.moved(0, Phase::Answering, after(start, 5));
        assert!(table.enter(after(start, 1_000)).is_none(), "no place is free");
        assert_eq!(table.evict(after(start, 1_000)), Some(1));
        assert_eq!(table.evict(after(start, 1_000)), Some(2));
        assert_eq!(table.evict(after(start, 1_000)), Some(0), "its client has not read for a second");
        assert_eq!(table.evict(after(start, 1_000)), None);
        assert!(lost.iter_mut().all(|lost| lost.try_recv().is_ok()), "all were told");
        assert!(table.enter(after(start, 1_000)).is_none(), "they are not gone yet");
        table.leave(1);
        assert!(table.enter(after(start, 1_000)).is_some());
    }

    #[test]
    fn who_came_or_made_progress_just_now_stays() {
        let start = Instant::now();
        let (mut table, _lost) = filled(start, &[0, 40]);
        assert_eq!(table.evict(after(start, 49)), None);
        table.moved(0, Phase::Answering, after(start, 45));
        assert_eq!(table.evict(after(start, 89)), None);
        assert_eq!(table.evict(after(start, 90)), Some(1));
        table.moved(0, Phase::Answering, after(start, 94));
        assert_eq!(table.evict(after(start, 100)), None, "its client reads");
        assert_eq!(table.evict(after(start, 144)), Some(0));
    }

    #[test]
    fn who_was_told_to_go_is_not_told_again() {
        let start = Instant::now();
        let (mut table, _lost) = filled(start, &[0]);
        assert_eq!(table.evict(after(start, 60)), Some(0));
        table.moved(0, Phase::Answering, after(start, 61));
        assert_eq!(table.evict(after(start, 1_000)), None);
    }

    #[test]
    fn listeners_take_from_what_connections_may_have_but_not_the_last_of_it() {
        let mut table = Table::new(1_000, 100);
        assert!(table.may_listen());
        table.listeners = 36;
        assert!(!table.may_listen());
        let now = Instant::now();
        let held = (0..1_000).map_while(|_| table.enter(now)).count();
        assert_eq!(held, 64);
        table.listeners = 1_000;
        (0..64).for_each(|id| table.leave(id));
        assert!(table.enter(now).is_some() && table.enter(now).is_none());
    }
}
