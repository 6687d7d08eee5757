//! Counts the connections, packets and bytes of each frontend and each of its endpoints, in one walk over the tracked connections.
//!
//! Takes the [`Frontends`], each [`Connection`] of a walk, and the [`Memory`] of the previous walk; returns a [`TrafficSample`] and the
//! memory for the next walk. Pure, except for [`Walks`], which lists the connections. For rates, callers divide [`Count::since`] by the
//! time between two walks.
//!
//! The meaning of the numbers: a connection is new if it is in this walk and was not in the previous one. By default the kernel keeps a TCP
//! connection for at least 10 seconds after its end and a UDP flow for at least 30 seconds after its last packet
//! (`nf_conntrack_tcp_timeout_close`, `nf_conntrack_udp_timeout`), so walks at shorter intervals meet nearly all. They can miss a connection
//! that the endpoint refuses with a reset, which the kernel forgets at once, and entries that were deleted, for example because the
//! conntrack table was full. Packets and bytes are those of the connections that are still tracked, in both directions; [`Count::since`]
//! lacks what a connection carried between the previous walk and its removal.
//!
//! Invariant: memory is bounded, whatever the number of connections. At most [`REMEMBERED`] connections of a walk are remembered. When there
//! are more, a sample of them by id is remembered, and differences are multiplied accordingly. There are at most [`ENDPOINTS`] counts of
//! endpoints.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use node::kernel::connections::{Connection, Counters, Phase};
use node::kernel::each_connection;
use rules::model::{Destination, Family, Frontend};

/// The sysctl that makes the kernel count packets and bytes of new connections.
const ACCOUNTING: &str = "/proc/sys/net/netfilter/nf_conntrack_acct";

/// Whether the kernel counts packets and bytes of new connections. Where it does, what has no connections has had 0 of them; where it does
/// not, their sums would lack all new connections.
pub(crate) fn is_accounting() -> bool {
    fs::read_to_string(ACCOUNTING).is_ok_and(|text| text.trim() == "1")
}

/// The most connections that a [`Memory`] holds, of 24 bytes each.
pub(crate) const REMEMBERED: usize = 1 << 20;
/// The most counts of endpoints in a [`TrafficSample`]; connections to further endpoints are counted for their frontend only.
pub(crate) const ENDPOINTS: usize = 1 << 18;

/// The frontends to count. Maps each address and node port to its position in the list that [`Frontends::new`] took.
#[derive(Debug, Default)]
pub(crate) struct Frontends {
    addresses: HashMap<(u8, SocketAddr), usize>,
    node_ports: HashMap<(u8, Family, u16), usize>,
    node_addresses: HashSet<IpAddr>,
    len: usize,
}

impl Frontends {
    /// A connection to a node port is counted only if it goes to one of `node_addresses`.
    #[must_use]
    pub(crate) fn new(
        frontends: impl IntoIterator<Item = Frontend>,
        node_addresses: impl IntoIterator<Item = IpAddr>,
    ) -> Self {
        let mut known = Self { node_addresses: node_addresses.into_iter().collect(), ..Self::default() };
        for frontend in frontends {
            let (protocol, port) = (frontend.protocol.number(), frontend.port);
            match frontend.destination {
                Destination::Address(ip) => known.addresses.insert((protocol, SocketAddr::new(ip, port)), known.len),
                Destination::NodePort(family) => known.node_ports.insert((protocol, family, port), known.len),
            };
            known.len += 1;
        }
        known
    }

    /// The position of the frontend that the client connected to.
    #[must_use]
    pub(crate) fn of(&self, connection: &Connection) -> Option<usize> {
        let (protocol, to) = (connection.protocol, connection.original.destination);
        let node_port = || {
            let position = self.node_ports.get(&(protocol, Family::of(to.ip()), to.port()));
            position.filter(|_| self.node_addresses.contains(&to.ip()))
        };
        self.addresses.get(&(protocol, to)).or_else(node_port).copied()
    }
}

/// The traffic of a frontend or an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    /// Connections on which both sides sent packets, and that are not closed.
    pub open: u64,
    /// Connections without an answer yet. Many of them can mean a dead endpoint, or a firewall in front of it.
    pub unanswered: u64,
    /// Closed connections that the kernel still keeps.
    pub ended: u64,
    /// Packets and bytes of the open, unanswered and ended connections, in both directions; `None` without connections, and when the kernel
    /// does not count them.
    pub counters: Option<Counters>,
    /// The traffic since the previous walk; `None` in the first walk.
    pub since: Option<Since>,
}

/// The traffic since the previous walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Since {
    /// Connections that were not in the previous walk.
    pub connections: u64,
    /// Packets and bytes since the previous walk, of new and of older connections; `None` as for [`Count::counters`].
    pub counters: Option<Counters>,
}

/// The numbers of one walk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrafficSample {
    /// The count of each frontend, in the order of [`Frontends::new`].
    pub frontends: Vec<Count>,
    /// The count of each endpoint that has connections, by the index of its frontend in `frontends` and its address. An endpoint of several
    /// frontends has several counts; there are at most [`ENDPOINTS`].
    pub endpoints: HashMap<(usize, SocketAddr), Count>,
    /// The sampling factor of [`Count::since`]: one in this many connections is compared, and the result is multiplied by it.
    pub(crate) one_in: u32,
}

/// The connections that a walk remembers for the next walk: those to frontends, or a sample of them by id.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// Sorted by id at the end of the walk.
    connections: Vec<Remembered>,
    /// A connection is remembered when its id has none of these bits.
    mask: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Remembered {
    id: u32,
    packets: u64,
    bytes: u64,
}

impl Memory {
    fn add(&mut self, one: Remembered, most: usize) {
        if one.id & self.mask != 0 {
            return;
        }
        if self.connections.len() >= most {
            self.mask = self.mask << 1 | 1;
            let mask = self.mask;
            self.connections.retain(|kept| kept.id & mask == 0);
        }
        if one.id & self.mask == 0 && self.connections.len() < most {
            self.connections.push(one);
        }
    }

    fn find(&self, id: u32) -> Option<&Remembered> {
        let place = self.connections.binary_search_by_key(&id, |kept| kept.id).ok()?;
        self.connections.get(place)
    }
}

/// A walk in progress.
#[derive(Debug)]
pub(crate) struct Walk<'a> {
    frontends: &'a Frontends,
    before: Option<&'a Memory>,
    memory: Memory,
    look: TrafficSample,
}

impl<'a> Walk<'a> {
    /// Begins a walk. `before` is the memory of the previous walk.
    #[must_use]
    pub(crate) fn new(frontends: &'a Frontends, before: Option<&'a Memory>) -> Self {
        let one_in = before.map_or(1, |memory| memory.mask + 1);
        let zero = Count { since: before.map(|_| Since::default()), ..Count::default() };
        let look = TrafficSample { frontends: vec![zero; frontends.len], endpoints: HashMap::new(), one_in };
        Self { frontends, before, memory: Memory::default(), look }
    }

    /// Counts a connection, if it goes to one of the frontends.
    pub(crate) fn add(&mut self, connection: &Connection) {
        let Some(frontend) = self.frontends.of(connection) else { return };
        let total = connection.counters.map(|(sent, answered)| Counters {
            packets: sent.packets.saturating_add(answered.packets),
            bytes: sent.bytes.saturating_add(answered.bytes),
        });
        let one = Count {
            open: u64::from(connection.phase == Phase::Open),
            unanswered: u64::from(connection.phase == Phase::Unanswered),
            ended: u64::from(connection.phase == Phase::Ended),
            counters: total,
            since: self.before.map(|before| since(before, connection.id, total)),
        };
        self.look.frontends[frontend].add(one);
        let endpoint = (frontend, connection.reply.source);
        if self.look.endpoints.len() < ENDPOINTS || self.look.endpoints.contains_key(&endpoint) {
            self.look.endpoints.entry(endpoint).or_default().add(one);
        }
        let Counters { packets, bytes } = total.unwrap_or_default();
        self.memory.add(Remembered { id: connection.id, packets, bytes }, REMEMBERED);
    }

    /// Returns the numbers of this walk, and the memory for the next walk.
    #[must_use]
    pub(crate) fn finish(mut self) -> (TrafficSample, Memory) {
        self.memory.connections.sort_unstable();
        (self.look, self.memory)
    }
}

/// Lists the connections that the kernel tracks, again and again for one command. Each list is compared with the one before.
#[derive(Debug, Default)]
pub(crate) struct Walks(Option<(Memory, Instant)>);

impl Walks {
    /// Walks over all connections; also returns the time since the previous walk, `None` for the first walk.
    ///
    /// # Errors
    /// When the kernel does not list its connections.
    pub(crate) fn look(&mut self, frontends: &Frontends) -> Result<(TrafficSample, Option<Duration>)> {
        let mut walk = Walk::new(frontends, self.0.as_ref().map(|(memory, _)| memory));
        each_connection(|connection| walk.add(connection))
            .context("cannot list the connections that the kernel tracks (this needs CAP_NET_ADMIN)")?;
        let (sample, memory) = walk.finish();
        let now = Instant::now();
        let before = self.0.replace((memory, now));
        Ok((sample, before.map(|(_, before)| now.duration_since(before))))
    }
}

/// The traffic of one connection since the previous walk.
fn since(before: &Memory, id: u32, total: Option<Counters>) -> Since {
    if id & before.mask != 0 {
        return Since::default();
    }
    let times = u64::from(before.mask) + 1;
    let known = before.find(id);
    let counters = total.map(|total| Counters {
        packets: total.packets.saturating_sub(known.map_or(0, |known| known.packets)).saturating_mul(times),
        bytes: total.bytes.saturating_sub(known.map_or(0, |known| known.bytes)).saturating_mul(times),
    });
    Since { connections: if known.is_some() { 0 } else { times }, counters }
}

impl Count {
    pub(crate) fn add(&mut self, other: Self) {
        self.open += other.open;
        self.unanswered += other.unanswered;
        self.ended += other.ended;
        self.counters = sum(self.counters, other.counters);
        if let Some(since) = other.since {
            let mine = self.since.unwrap_or_default();
            let counters = sum(mine.counters, since.counters);
            self.since = Some(Since { connections: mine.connections.saturating_add(since.connections), counters });
        }
    }
}

fn sum(a: Option<Counters>, b: Option<Counters>) -> Option<Counters> {
    added(a, b, |a, b| Counters {
        packets: a.packets.saturating_add(b.packets),
        bytes: a.bytes.saturating_add(b.bytes),
    })
}

/// The sum of two numbers, either of which may be missing; `None` when both are.
pub(crate) fn added<T>(a: Option<T>, b: Option<T>, sum: impl FnOnce(T, T) -> T) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(sum(a, b)),
        (a, b) => a.or(b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use node::kernel::connections::Ends;
    use rules::model::Protocol;

    fn frontends() -> Frontends {
        let frontend = |destination, protocol, port| Frontend { destination, protocol, port };
        let address = |text: &str| Destination::Address(text.parse().unwrap());
        Frontends::new(
            [
                frontend(address("10.96.0.10"), Protocol::Tcp, 80),
                frontend(Destination::NodePort(Family::V4), Protocol::Tcp, 30080),
                frontend(address("fd00::a"), Protocol::Udp, 53),
            ],
            ["192.168.0.2".parse().unwrap()],
        )
    }

    /// A connection to a frontend, over TCP, or over UDP if `to` is an IPv6 address, with the bytes that it carried so far.
    fn connection(id: u32, to: &str, endpoint: &str, bytes: Option<u64>) -> Connection {
        let client: SocketAddr = "203.0.113.7:4711".parse().unwrap();
        let (to, endpoint): (SocketAddr, SocketAddr) = (to.parse().unwrap(), endpoint.parse().unwrap());
        let half = |bytes| Counters { packets: 1, bytes };
        Connection {
            protocol: if to.is_ipv6() { 17 } else { 6 },
            original: Ends { source: client, destination: to },
            reply: Ends { source: endpoint, destination: client },
            status: 0,
            phase: Phase::Open,
            mark: None,
            id,
            counters: bytes.map(|bytes| (half(bytes), half(0))),
        }
    }

    fn walk(connections: &[Connection], before: Option<&Memory>) -> (TrafficSample, Memory) {
        let frontends = frontends();
        let mut walk = Walk::new(&frontends, before);
        connections.iter().for_each(|connection| walk.add(connection));
        walk.finish()
    }

    #[test]
    fn connections_are_counted_at_their_frontend_and_their_endpoint() {
        let mut dead = connection(3, "10.96.0.10:80", "10.244.0.2:8080", None);
        dead.phase = Phase::Unanswered;
        let (look, _) = walk(
            &[
                connection(1, "10.96.0.10:80", "10.244.0.1:8080", None),
                connection(2, "192.168.0.2:30080", "10.244.0.1:8080", None),
                dead,
                connection(4, "[fd00::a]:53", "[fd00:1::1]:53", None),
            ],
            None,
        );
        assert_eq!(look.frontends.iter().map(|count| count.open).collect::<Vec<_>>(), [1, 1, 1]);
        assert_eq!(look.frontends[0].unanswered, 1);
        let dead = look.endpoints[&(0, "10.244.0.2:8080".parse().unwrap())];
        assert_eq!((dead.open, dead.unanswered, dead.counters, dead.since), (0, 1, None, None));
        assert_eq!(look.endpoints.len(), 4);
    }

    #[test]
    fn connections_to_no_frontend_are_not_counted() {
        let (look, memory) = walk(
            &[
                connection(1, "10.96.0.10:81", "10.244.0.1:8080", None),
                connection(2, "203.0.113.9:30080", "10.244.0.1:8080", None),
                Connection { protocol: 17, ..connection(3, "10.96.0.10:80", "10.244.0.1:8080", None) },
            ],
            None,
        );
        assert!(
            look.frontends.iter().all(|count| *count == Count::default()),
            "a port, an address, a protocol of no frontend"
        );
        assert!(look.endpoints.is_empty() && memory.connections.is_empty());
    }

    #[test]
    fn what_is_new_is_what_the_walk_before_did_not_meet() {
        let old = connection(1, "10.96.0.10:80", "10.244.0.1:8080", Some(100));
        let (first, memory) = walk(std::slice::from_ref(&old), None);
        assert_eq!((first.frontends[0].since, first.frontends[0].counters.unwrap().bytes), (None, 100));
        let grown = connection(1, "10.96.0.10:80", "10.244.0.1:8080", Some(150));
        let new = connection(2, "10.96.0.10:80", "10.244.0.1:8080", Some(7));
        let (second, _) = walk(&[new, grown], Some(&memory));
        let since = second.frontends[0].since.unwrap();
        assert_eq!((since.connections, since.counters.unwrap().bytes), (1, 57));
        assert_eq!(second.frontends[1].since, Some(Since::default()), "nothing came, which is known");
        let (third, _) = walk(&[], Some(&memory));
        assert_eq!(third.frontends[0].since, Some(Since::default()), "an end is not a negative number");
    }

    // The counters are `None` and not 0: this tells the user that accounting is off.
    #[test]
    fn without_accounting_packets_and_bytes_are_absent() {
        let old = connection(1, "10.96.0.10:80", "10.244.0.1:8080", None);
        let (_, memory) = walk(&[old], None);
        let (look, _) = walk(&[connection(2, "10.96.0.10:80", "10.244.0.1:8080", None)], Some(&memory));
        let count = look.frontends[0];
        assert_eq!((count.counters, count.since), (None, Some(Since { connections: 1, counters: None })));
    }

    #[test]
    fn beyond_the_limit_an_even_choice_is_remembered_and_multiplied() {
        let mut memory = Memory::default();
        for id in 0..1_000 {
            memory.add(Remembered { id, packets: 0, bytes: 0 }, 300);
            assert!(memory.connections.len() <= 300, "the limit is never passed");
        }
        memory.connections.sort_unstable();
        assert_eq!((memory.mask, memory.connections.len()), (3, 250), "one in four");
        let new: Vec<Connection> =
            (900..1_900).map(|id| connection(id, "10.96.0.10:80", "10.244.0.1:8080", Some(1))).collect();
        let (look, _) = walk(&new, Some(&memory));
        assert_eq!(look.one_in, 4);
        assert_eq!(look.frontends[0].open, 1_000, "what is there is counted one by one");
        let since = look.frontends[0].since.unwrap();
        assert_eq!((since.connections, since.counters.unwrap().bytes), (900, 1_000));
    }
}
