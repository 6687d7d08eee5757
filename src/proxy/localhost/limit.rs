//! Limits the connections to localhost node ports, and shares them among the ports and the users of the clients.
//!
//! Any program of the node may connect, and may keep a connection for as long as it likes. So a port gets no further connection while it
//! has [`OF_PORT`] times as many as are free, and a user while it has [`OF_USER`] times as many: however many they have, some are left for
//! others. The share of a user is the smaller one, so that one user alone cannot fill the share of a port; and a user who is over it still
//! gets a few at each other port, because most programs of a node have the same user. For a port or a user over its
//! share, the oldest of its connections that never moved data ends for a new one. A new connection for which none can end waits; of too many
//! that wait, the oldest is refused.
//!
//! Users are looked up only while at least a quarter of the connections are in use, so a user may have some more than the share.
//!
//! Invariants: there are never more permits than the limit; a connection that has moved data does not end for another one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, oneshot};
use tokio::time::sleep_until;
use tracing::{debug, warn};

use component::rates::{Budget, Rate};
use node::kernel::socket_users::SocketUsers;

/// How many times as many connections as are free a port may have, and a user.
const OF_PORT: usize = 3;
const OF_USER: usize = 1;
/// Which part of the free connections a user may have at a port, however many the user has at others; at least one connection.
const AT_PORT: usize = 64;
/// The most new connections that wait, at one port and in all. Each costs a file descriptor.
const WAITING_AT_PORT: usize = 16;
const WAITING: usize = 256;
/// How long a new connection may take to move data before it can be closed for another one.
const PROTECTED: Duration = Duration::from_secs(1);
/// How often at most it is logged that connections are closed or refused.
const REPORTS: Rate = Rate { at_once: 1, then_every: Duration::from_secs(60) };

/// The limit of connections. Clones are the same limit.
#[derive(Clone)]
pub(super) struct Limit(Arc<Shared>);

struct Shared {
    table: Mutex<Table>,
    /// Finds the users of clients; `None` where the kernel cannot.
    users: Mutex<Option<SocketUsers>>,
    /// Notified when a connection has ended.
    ended: Notify,
}

impl Limit {
    /// Makes a limit of `most` connections.
    pub(super) fn new(most: usize, users: Option<SocketUsers>) -> Self {
        let (table, users) = (Mutex::new(Table::new(most)), Mutex::new(users));
        Self(Arc::new(Shared { table, users, ended: Notify::new() }))
    }

    /// Whether any connection is open.
    pub(super) fn is_any_open(&self) -> bool {
        !self.table().open.is_empty()
    }

    /// Waits until no connection is open.
    pub(super) async fn all_ended(&self) {
        loop {
            let ended = self.0.ended.notified();
            if !self.is_any_open() {
                return;
            }
            ended.await;
        }
    }

    /// Returns a permit for a connection of `client` to the node port at `port`, and a channel that completes when the connection has to
    /// end; `None` if the connection is refused. Waits while the port or the user of the client has its share, or all connections are in
    /// use.
    pub(super) async fn admit(&self, port: SocketAddr, client: SocketAddr) -> Option<(Permit, oneshot::Receiver<()>)> {
        let user = if self.table().looks_up_users() { self.user_of(client, port) } else { None };
        let mut waiting: Option<Waiting<'_>> = None;
        loop {
            // The future is told of each end from here on.
            let ended = self.0.ended.notified();
            let answer = self.table().ask(port, user, Instant::now());
            let until = match answer {
                Answer::Admitted(id, closed) => {
                    let permit = Permit { id, limit: self.clone(), has_moved: AtomicBool::new(false) };
                    return Some((permit, closed));
                }
                Answer::Wait(until) => until,
            };
            let refused = &mut waiting.get_or_insert_with(|| self.wait_at(port)).refused;
            tokio::select! {
                _ = refused => return None,
                () = ended => {}
                () = sleep_until(until.unwrap_or_else(Instant::now).into()), if until.is_some() => {}
            }
        }
    }

    /// Counts a connection as waiting until the returned value is dropped.
    fn wait_at(&self, port: SocketAddr) -> Waiting<'_> {
        let (id, refused) = self.table().wait_at(port);
        Waiting { id, limit: self, refused }
    }

    fn user_of(&self, client: SocketAddr, port: SocketAddr) -> Option<u32> {
        let mut users = self.0.users.lock().unwrap_or_else(PoisonError::into_inner);
        let user = users.as_mut()?.user(client, port);
        user.inspect_err(|error| debug!(err = %error, "Cannot find the user of a connection")).ok()?
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The permit of a connection. Drop the permit after the connection's sockets, so that their descriptors are free when the next connection
/// gets a permit.
pub(super) struct Permit {
    id: u64,
    limit: Limit,
    has_moved: AtomicBool,
}

impl Permit {
    /// Notes that data has moved in either direction.
    pub(super) fn moved(&self) {
        if !self.has_moved.swap(true, Ordering::Relaxed) {
            self.limit.table().moved(self.id);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limit.table().ended(self.id);
        self.limit.0.ended.notify_waiters();
    }
}

/// A connection that waits.
struct Waiting<'a> {
    id: u64,
    limit: &'a Limit,
    /// Completes when the connection is refused.
    refused: oneshot::Receiver<()>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.limit.table().waiting.remove(&self.id);
    }
}

/// What becomes of a new connection.
#[derive(Debug)]
enum Answer {
    /// It has this id, and ends when the channel completes.
    Admitted(u64, oneshot::Receiver<()>),
    /// Ask again when a connection has ended, or at this time.
    Wait(Option<Instant>),
}

/// Connections that have a share in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Scope {
    User(u32),
    /// A user at a port.
    UserAt(u32, SocketAddr),
    Port(SocketAddr),
    All,
}

/// The connections of a scope.
#[derive(Debug, Default)]
struct Group {
    open: usize,
    /// Those that never moved data, the oldest first, without those that were asked to end.
    idle: BTreeSet<u64>,
    /// How many were asked to end and are still open.
    closing: usize,
}

#[derive(Debug)]
struct Connection {
    port: SocketAddr,
    /// The user of the client, if it was looked up.
    user: Option<u32>,
    since: Instant,
    /// `None` once the connection was asked to end.
    close: Option<oneshot::Sender<()>>,
}

impl Connection {
    fn scopes(&self) -> impl Iterator<Item = Scope> + use<> {
        scopes(self.port, self.user)
    }
}

fn scopes(port: SocketAddr, user: Option<u32>) -> impl Iterator<Item = Scope> {
    let of_user = user.map(|user| [Scope::User(user), Scope::UserAt(user, port)]);
    of_user.into_iter().flatten().chain([Scope::Port(port), Scope::All])
}

/// The open connections.
#[derive(Debug)]
struct Table {
    most: usize,
    /// The id of the next connection: an older one has a smaller id.
    next: u64,
    open: HashMap<u64, Connection>,
    groups: HashMap<Scope, Group>,
    /// The ports of the connections that wait, the oldest first, each with a channel that refuses it.
    waiting: BTreeMap<u64, (SocketAddr, oneshot::Sender<()>)>,
    reports: Budget,
}

impl Table {
    fn new(most: usize) -> Self {
        let (open, groups, waiting) = Default::default();
        Self { most, next: 0, open, groups, waiting, reports: Budget::new(REPORTS) }
    }

    fn looks_up_users(&self) -> bool {
        self.open.len() * 4 >= self.most
    }

    /// Admits a new connection, or asks another one to end for it.
    fn ask(&mut self, port: SocketAddr, user: Option<u32>, now: Instant) -> Answer {
        let free = self.most.saturating_sub(self.open.len());
        let open = |scope: Scope| self.groups.get(&scope).map_or(0, |group| group.open);
        let has_share = |scope: &Scope| match *scope {
            Scope::User(user) => {
                open(*scope) < OF_USER * free || open(Scope::UserAt(user, port)) < (free / AT_PORT).max(1)
            }
            Scope::UserAt(..) => true,
            Scope::Port(_) => open(*scope) < OF_PORT * free,
            Scope::All => free > 0,
        };
        let Some(scope) = scopes(port, user).find(|scope| !has_share(scope)) else {
            return self.admit(port, user, now);
        };
        if self.reports.try_take(now) {
            let limit = self.most;
            warn!(%port, user, limit, "Too many connections to localhost node ports; those that never moved data are closed for new ones");
        }
        self.close_one(scope, now)
    }

    fn admit(&mut self, port: SocketAddr, user: Option<u32>, now: Instant) -> Answer {
        let (close, closed) = oneshot::channel();
        let id = self.next;
        self.next += 1;
        for scope in scopes(port, user) {
            let group = self.groups.entry(scope).or_default();
            group.open += 1;
            group.idle.insert(id);
        }
        self.open.insert(id, Connection { port, user, since: now, close: Some(close) });
        Answer::Admitted(id, closed)
    }

    /// Asks the oldest connection of a scope that never moved data to end, unless one is ending.
    fn close_one(&mut self, scope: Scope, now: Instant) -> Answer {
        let group = self.groups.get(&scope).filter(|group| group.closing == 0);
        let oldest = group.and_then(|group| group.idle.first()).and_then(|id| Some((*id, self.open.get_mut(id)?)));
        let Some((id, connection)) = oldest else { return Answer::Wait(None) };
        let closable = connection.since + PROTECTED;
        if closable > now {
            return Answer::Wait(Some(closable));
        }
        // The connection may have ended meanwhile.
        connection.close.take().into_iter().for_each(|close| _ = close.send(()));
        for scope in connection.scopes() {
            let group = self.groups.entry(scope).or_default();
            group.idle.remove(&id);
            group.closing += 1;
        }
        Answer::Wait(None)
    }

    /// Adds a connection that waits. Refuses the oldest that waits, if there are too many.
    fn wait_at(&mut self, port: SocketAddr) -> (u64, oneshot::Receiver<()>) {
        let mut at_port = self.waiting.iter().filter(|(_, (other, _))| *other == port).map(|(id, _)| *id);
        let (oldest_at_port, others) = (at_port.next(), at_port.count());
        let oldest = self.waiting.keys().next().copied().filter(|_| self.waiting.len() >= WAITING);
        let refused = oldest_at_port.filter(|_| others + 1 >= WAITING_AT_PORT).or(oldest);
        if let Some((_, refuse)) = refused.and_then(|id| self.waiting.remove(&id)) {
            // The connection may have been admitted meanwhile.
            let _ = refuse.send(());
        }
        let (refuse, refused) = oneshot::channel();
        let id = self.next;
        self.next += 1;
        self.waiting.insert(id, (port, refuse));
        (id, refused)
    }

    /// Notes that a connection moved data.
    fn moved(&mut self, id: u64) {
        let scopes = self.open.get(&id).map(Connection::scopes);
        for scope in scopes.into_iter().flatten() {
            self.groups.entry(scope).and_modify(|group| _ = group.idle.remove(&id));
        }
    }

    /// Notes that a connection has ended.
    fn ended(&mut self, id: u64) {
        let Some(connection) = self.open.remove(&id) else { return };
        for scope in connection.scopes() {
            let Some(group) = self.groups.get_mut(&scope) else { continue };
            group.open -= 1;
            group.idle.remove(&id);
            group.closing -= usize::from(connection.close.is_none());
            if group.open == 0 {
                self.groups.remove(&scope);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(n: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], n))
    }

    /// Asks for a connection; returns its id if it is admitted, after others were closed at once for it.
    fn connect(table: &mut Table, port: SocketAddr, user: Option<u32>, now: Instant) -> Result<u64, Answer> {
        loop {
            let answer = table.ask(port, user, now);
            let closing: Vec<u64> =
                table.open.iter().filter(|(_, open)| open.close.is_none()).map(|(id, _)| *id).collect();
            match answer {
                Answer::Admitted(id, _) => return Ok(id),
                _ if closing.is_empty() => return Err(answer),
                _ => closing.into_iter().for_each(|id| table.ended(id)),
            }
        }
    }

    fn open(table: &Table, scope: Scope) -> usize {
        table.groups.get(&scope).map_or(0, |group| group.open)
    }

    // A port gets three quarters of the connections at most, and then closes its own oldest for new ones (R9).
    #[test]
    fn idle_connections_to_a_port_leave_a_quarter_for_others() {
        let (mut table, now) = (Table::new(10_000), Instant::now());
        let later = now + PROTECTED;
        let mut ids = (0..12_000).map(|n| connect(&mut table, port(1), None, if n < 7_500 { now } else { later }));
        let ids: Vec<u64> = ids.by_ref().map(|id| id.expect("an older one ends")).collect();
        assert_eq!((open(&table, Scope::Port(port(1))), table.open.len()), (7_500, 7_500));
        assert!(!table.open.contains_key(&ids[4_499]) && table.open.contains_key(&ids[4_500]), "the oldest ended");
        for n in 2..100 {
            connect(&mut table, port(n), None, later).expect("another port");
        }
    }

    // A connection that has moved data, or has just begun, is closed for no other one; more wait (R9).
    #[test]
    fn connections_that_moved_data_or_are_new_are_not_closed() {
        let (mut table, now) = (Table::new(100), Instant::now());
        for _ in 0..75 {
            let id = connect(&mut table, port(1), None, now).expect("within the share");
            table.moved(id);
        }
        let late = now + 10 * PROTECTED;
        let more = connect(&mut table, port(1), None, late);
        assert!(matches!(more, Err(Answer::Wait(None))), "{more:?}");
        let other = connect(&mut table, port(2), None, late).expect("another port");
        table.ended(0);
        let idle = connect(&mut table, port(1), None, late).expect("one has ended");
        let more = connect(&mut table, port(1), None, late);
        assert!(matches!(more, Err(Answer::Wait(Some(at))) if at == late + PROTECTED), "{more:?}");
        assert!(table.open.contains_key(&idle) && table.open.contains_key(&other));
    }

    // A user gets half of the connections at most, whatever the ports, and others are admitted at the same ports (R9).
    #[test]
    fn a_user_with_many_connections_waits_and_others_are_admitted() {
        for ports in [1, 2, 50] {
            let (mut table, now) = (Table::new(100), Instant::now());
            for n in 0..200 {
                connect(&mut table, port(n % ports), Some(1000), now).into_iter().for_each(|id| table.moved(id));
            }
            assert_eq!(open(&table, Scope::User(1000)), 50, "{ports}");
            for n in 0..20 {
                connect(&mut table, port(n % ports), Some(0), now).expect("another user");
            }
            connect(&mut table, port(100), Some(1000), now).expect("another port");
        }
    }

    // Of too many connections that wait at a port, or in all, the oldest is refused (R9).
    #[test]
    fn of_too_many_connections_that_wait_the_oldest_is_refused() {
        let mut table = Table::new(100);
        let mut at_port: Vec<_> = (0..=WAITING_AT_PORT).map(|_| table.wait_at(port(1)).1).collect();
        let mut is_refused = |n: usize| at_port[n].try_recv().is_ok();
        assert_eq!([0, 1, WAITING_AT_PORT].map(&mut is_refused), [true, false, false]);
        let _others: Vec<_> = (2..).take(WAITING).map(|n| table.wait_at(port(n)).1).collect();
        assert_eq!((table.waiting.len(), is_refused(1)), (WAITING, true));
    }

    // What has ended is forgotten.
    #[test]
    fn nothing_is_left_of_connections_that_ended() {
        let (mut table, now) = (Table::new(100), Instant::now());
        for n in 0..50 {
            let id = connect(&mut table, port(n % 3), Some(u32::from(n % 2)), now + PROTECTED * u32::from(n)).unwrap();
            if n % 4 == 0 {
                table.moved(id);
            }
            if n % 5 == 0 {
                table.ended(id);
            }
        }
        let ids: Vec<u64> = table.open.keys().copied().collect();
        ids.into_iter().for_each(|id| table.ended(id));
        assert!(table.open.is_empty() && table.groups.is_empty(), "{:?}", table.groups);
    }
}
