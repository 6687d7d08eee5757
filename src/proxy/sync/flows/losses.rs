//! Remembers what open connections may lead to although it is gone (J13): endpoints that left the slices of their Service, and frontends.
//!
//! Only connections to an address that was an endpoint of the Service are closed, because other programs translate connections to the same
//! addresses and ports. So the endpoints that leave are remembered for each Service, also for those that do not ask to close connections
//! now: they may ask later. Takes what is lost and when that is committed; returns when to list connections, and what they may lead to.
//! Pure: the caller passes in the time.
//!
//! Invariant: memory is bounded ([`MOST`]).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use super::MOST;
use rules::conntrack::Lost;
use rules::model::{Frontend, ObjectName};

/// How long an endpoint or a frontend has to be gone before connections to it are closed. Who replaces a slice or a Service may delete it
/// and create it again a moment later.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// The first address in order.
const LEAST: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// What Services have lost, as far as connections to it were not looked for.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// The Services that ask to close connections.
    asking: HashSet<ObjectName>,
    /// The addresses that left the slices of each Service, with the time from which connections to them may be closed; `None` before the
    /// next commit.
    endpoints: BTreeMap<(ObjectName, IpAddr), Option<Instant>>,
    /// The addresses in `endpoints` that left since the last commit.
    uncommitted: Vec<(ObjectName, IpAddr)>,
    /// The addresses that only the rules of an earlier process had, with the time from which connections to them may be closed.
    of_any: HashMap<IpAddr, Instant>,
    /// The frontends that are gone, each with the Service that had it and the time from which connections to it may be closed.
    frontends: HashMap<Frontend, (ObjectName, Instant)>,
    /// When connections are next looked for; `None` if there is no need.
    next: Option<Instant>,
    /// Whether something was noted since `next` was set.
    has_news: bool,
}

impl Losses {
    /// Notes whether a Service asks to close connections.
    pub(super) fn service(&mut self, name: &ObjectName, asks: bool) {
        if asks {
            self.has_news |= self.asking.insert(name.clone());
        } else {
            self.asking.remove(name);
        }
    }

    /// Notes that addresses left a slice of a Service.
    pub(super) fn endpoints(&mut self, service: &ObjectName, addresses: impl IntoIterator<Item = IpAddr>) {
        if self.endpoints.len() >= MOST {
            self.forget_others();
        }
        for address in addresses {
            if self.endpoints.len() < MOST {
                self.has_news = true;
                self.endpoints.insert((service.clone(), address), None);
                self.uncommitted.push((service.clone(), address));
            }
        }
    }

    /// Notes that the rules of an earlier process sent packets to addresses that are in no slice.
    pub(super) fn read(&mut self, addresses: impl IntoIterator<Item = IpAddr>, now: Instant) {
        self.has_news = true;
        self.of_any.extend(addresses.into_iter().take(MOST).map(|address| (address, now + PATIENCE)));
    }

    /// Whether a Service asks to close connections.
    pub(super) fn is_asked(&self) -> bool {
        !self.asking.is_empty()
    }

    /// Notes that a transaction removed a frontend of a Service that asked to close connections to it.
    pub(super) fn frontend(&mut self, frontend: Frontend, service: &ObjectName, now: Instant) {
        self.has_news = true;
        if self.frontends.len() < MOST {
            self.frontends.insert(frontend, (service.clone(), now + PATIENCE));
        }
    }

    /// Notes that a Service has this frontend again.
    pub(super) fn has_frontend(&mut self, frontend: &Frontend) {
        self.frontends.remove(frontend);
    }

    /// Notes that the kernel has committed all changes so far.
    pub(super) fn committed(&mut self, now: Instant) {
        for noted in self.uncommitted.drain(..) {
            self.endpoints.entry(noted).and_modify(|time| *time = Some(now + PATIENCE));
        }
        if std::mem::take(&mut self.has_news) {
            self.plan(|_| true);
        }
    }

    /// Returns when to look for connections; `None` if there is no need.
    pub(super) const fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Returns what has been gone for long enough.
    pub(super) fn due(&self, now: Instant) -> Lost {
        let of_service = |name: &ObjectName| {
            let lost = self.of_service(name).filter(|(_, time)| time.is_some_and(|time| time <= now));
            (name.clone(), lost.map(|(address, _)| address).collect::<HashSet<_>>())
        };
        let of_any = self.of_any.iter().filter(|(_, time)| **time <= now).map(|(address, _)| *address);
        let frontends = self.frontends.iter().filter(|(_, (_, time))| *time <= now);
        Lost {
            endpoints: self.wanted().map(of_service).collect(),
            of_any: of_any.collect(),
            frontends: frontends.map(|(frontend, (service, _))| (*frontend, service.clone())).collect(),
        }
    }

    /// Forgets what [`Self::due`] returned for this time. Endpoints of a Service that was deleted may leave later than the Service, so its
    /// frontends and endpoints are forgotten together.
    pub(super) fn done(&mut self, now: Instant) {
        let lasts = |time: Option<Instant>| time.is_none_or(|time| time > now);
        let has_more = |name: &ObjectName| self.of_service(name).any(|(_, time)| lasts(time));
        let is_gone = self.frontends.values().map(|(name, _)| name).filter(|name| has_more(name));
        let (gone, wanted): (HashSet<_>, HashSet<_>) = (is_gone.cloned().collect(), self.wanted().cloned().collect());
        self.endpoints.retain(|(name, _), time| !wanted.contains(name) || gone.contains(name) || lasts(*time));
        self.frontends.retain(|_, (name, time)| *time > now || gone.contains(name));
        self.of_any.retain(|_, time| *time > now);
        self.plan(|time| time > now);
    }

    /// The Services to whose endpoints connections may have to be closed.
    fn wanted(&self) -> impl Iterator<Item = &ObjectName> {
        let others = self.frontends.values().map(|(service, _)| service).filter(|name| !self.asking.contains(*name));
        self.asking.iter().chain(others)
    }

    /// Makes room: forgets the endpoints of Services that do not ask to close connections.
    fn forget_others(&mut self) {
        let wanted: HashSet<ObjectName> = self.wanted().cloned().collect();
        self.endpoints.retain(|(name, _), _| wanted.contains(name));
    }

    /// The addresses that left the slices of a Service, and their times.
    fn of_service(&self, name: &ObjectName) -> impl Iterator<Item = (IpAddr, Option<Instant>)> {
        let all = self.endpoints.range((name.clone(), LEAST)..);
        let name = name.clone();
        all.take_while(move |((of, _), _)| *of == name).map(|((_, address), time)| (*address, *time))
    }

    /// Sets when to look for connections: at the first of the times that count.
    fn plan(&mut self, counts: impl Fn(Instant) -> bool) {
        let endpoints = self.wanted().flat_map(|name| self.of_service(name)).filter_map(|(_, time)| time);
        let frontends = self.frontends.values().map(|(_, time)| *time);
        self.next = endpoints.chain(frontends).chain(self.of_any.values().copied()).filter(|time| counts(*time)).min();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::model::testing::name;
    use rules::model::{Destination, Family, Protocol};

    fn address(n: u16) -> IpAddr {
        let [high, low] = n.to_be_bytes();
        IpAddr::from([10, 244, high, low])
    }

    fn lost(losses: &Losses, service: &str, now: Instant) -> Vec<IpAddr> {
        let mut lost: Vec<IpAddr> = losses.due(now).endpoints.remove(&name(service)).into_iter().flatten().collect();
        lost.sort();
        lost
    }

    // Connections are looked for two seconds after the commit that removed an endpoint, and not again (J13).
    #[test]
    fn connections_are_looked_for_two_seconds_after_the_commit_and_once() {
        let (mut losses, web, now) = (Losses::default(), name("shop/web"), Instant::now());
        losses.service(&web, true);
        losses.endpoints(&web, [address(1)]);
        assert_eq!((losses.next(), lost(&losses, "shop/web", now + PATIENCE)), (None, vec![]), "not committed");
        losses.committed(now);
        losses.endpoints(&web, [address(2)]);
        losses.committed(now + PATIENCE / 2);
        assert_eq!((losses.next(), lost(&losses, "shop/web", now)), (Some(now + PATIENCE), vec![]));
        assert_eq!(lost(&losses, "shop/web", now + PATIENCE), [address(1)]);
        losses.done(now + PATIENCE);
        assert_eq!(losses.next(), Some(now + PATIENCE + PATIENCE / 2));
        // An endpoint that comes back and leaves again has its time anew.
        losses.endpoints(&web, [address(2)]);
        losses.committed(now + PATIENCE);
        assert_eq!(losses.next(), Some(now + 2 * PATIENCE));
        losses.done(now + 2 * PATIENCE);
        assert_eq!((losses.next(), losses.endpoints.len()), (None, 0));
    }

    // A Service that asks later has its connections closed to endpoints that left before (J13).
    #[test]
    fn what_left_a_service_that_asks_later_is_remembered_in_bounded_memory() {
        let (mut losses, now) = (Losses::default(), Instant::now());
        losses.endpoints(&name("shop/web"), [address(1)]);
        losses.committed(now);
        assert_eq!(losses.next(), None, "nobody asks");
        losses.service(&name("shop/web"), true);
        losses.committed(now);
        assert_eq!(losses.next(), Some(now + PATIENCE));
        for n in 0..20 {
            losses.endpoints(&name(&format!("other/web-{n}")), (0..5_000).map(address));
            assert!(losses.endpoints.len() <= MOST);
        }
        losses.committed(now);
        assert_eq!(lost(&losses, "shop/web", now + PATIENCE), [address(1)], "those of the Service that asks stay");
    }

    // The endpoints of a Service that was deleted may leave their slices later than the Service (J13).
    #[test]
    fn a_frontend_is_remembered_until_the_endpoints_of_its_service_have_been_looked_for() {
        let (mut losses, web, now) = (Losses::default(), name("shop/web"), Instant::now());
        let destination = Destination::NodePort(Family::V4);
        let frontend = |port| Frontend { destination, protocol: Protocol::Tcp, port };
        [1, 2].into_iter().for_each(|port| losses.frontend(frontend(port), &web, now));
        losses.has_frontend(&frontend(2));
        losses.committed(now);
        losses.endpoints(&web, [address(1)]);
        losses.committed(now + PATIENCE / 2);
        let due = |losses: &Losses, now| losses.due(now).frontends.into_keys().collect::<Vec<_>>();
        assert_eq!(due(&losses, now + PATIENCE), [frontend(1)]);
        losses.done(now + PATIENCE);
        let next = losses.next().expect("the endpoint");
        assert_eq!(next, now + PATIENCE + PATIENCE / 2);
        assert_eq!((due(&losses, next), lost(&losses, "shop/web", next)), (vec![frontend(1)], vec![address(1)]));
        losses.done(next);
        assert_eq!((losses.next(), losses.due(next + PATIENCE)), (None, Lost::default()));
    }
}
