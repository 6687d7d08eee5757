//! Which Service owns each front.
//!
//! Takes the old and the new content of a Service, the endpoints of the API server and the ServiceCIDRs. Gives the Services whose
//! ownership changed by that, and the conflicts that arose.
//!
//! A namespace user may write any address into `spec.externalIPs`. So what a front is to a Service counts more than its age: cluster
//! IPs, which the API server hands out, come first, then load balancer IPs, which only controllers write, then external IPs, then node
//! ports. No external IP gets a front that is an endpoint of the API server, or an address that is set aside for cluster IPs.
//!
//! Invariants: a front is owned by the smallest of its claims in the order (rank, creation time, Service name, port index),
//! whatever the order in which they came; a front with more than one claim is one with an entry in `losers`; `lost` is the number of
//! conflicts at all fronts.

use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::fmt;

use foldhash::HashMap;
use ipnet::IpNet;

use super::fronts::FrontKind;
use super::names::{Destination, Family, Front, ObjectName};
use super::service::Service;

/// A claim of a Service on a front that it does not get.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The front that is claimed.
    pub front: Front,
    /// Why the loser does not get it.
    pub winner: Winner,
    /// The Service that does not get the traffic.
    pub loser: ObjectName,
    /// What the front is to the loser.
    pub kind: FrontKind,
}

/// What takes precedence over a claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Winner {
    /// The claim of this Service, to which the front is this; the loser itself when two of its ports claim the front.
    Service(ObjectName, FrontKind),
    /// It is an endpoint of the API server.
    ApiServer,
    /// No claim: the address is in a ServiceCIDR, and no Service has it as its cluster IP.
    None,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { front, winner, loser, kind } = self;
        match winner {
            Winner::Service(owner, _) if owner == loser => {
                write!(f, "two ports of Service {owner} claim {front}; the first of them gets it")
            }
            Winner::Service(owner, theirs) if theirs == kind => {
                write!(f, "Services {owner} and {loser} both claim {front}; {owner} gets it, by age and then by name")
            }
            Winner::Service(owner, theirs) => {
                write!(
                    f,
                    "Services {owner} and {loser} both claim {front}; {owner} gets it, because {} comes ",
                    theirs.one()
                )?;
                write!(f, "before {}", kind.one())
            }
            Winner::ApiServer => {
                write!(
                    f,
                    "Service {loser} does not get {front} as {}, because it is an endpoint of the API server",
                    kind.one()
                )
            }
            Winner::None => {
                write!(
                    f,
                    "Service {loser} does not get {front} as {}, because the address is in a ServiceCIDR ",
                    kind.one()
                )?;
                f.write_str("and is not its cluster IP")
            }
        }
    }
}

/// The order in which claims on one front count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    ClusterIp,
    LoadBalancerIp,
    /// Traffic to the API server. A load balancer may have its address and lead to it, an external IP may not.
    ApiServer,
    ExternalIp,
    NodePort,
}

impl Rank {
    const fn of(kind: FrontKind) -> Self {
        match kind {
            FrontKind::ClusterIp => Self::ClusterIp,
            FrontKind::LoadBalancerIp => Self::LoadBalancerIp,
            FrontKind::ExternalIp => Self::ExternalIp,
            FrontKind::NodePort => Self::NodePort,
        }
    }

    /// What the front is to the Service; `None` when the claim is not a Service's.
    const fn kind(self) -> Option<FrontKind> {
        match self {
            Self::ClusterIp => Some(FrontKind::ClusterIp),
            Self::LoadBalancerIp => Some(FrontKind::LoadBalancerIp),
            Self::ApiServer => None,
            Self::ExternalIp => Some(FrontKind::ExternalIp),
            Self::NodePort => Some(FrontKind::NodePort),
        }
    }
}

/// A claim on a front. The order is that of precedence: the smallest claim owns the front.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    rank: Rank,
    created: i64,
    service: ObjectName,
    port: u32,
}

/// All claims of all Services.
///
/// Nearly every front has one claim, so the owner is kept apart and only contested fronts have a set.
#[derive(Debug, Default)]
pub(super) struct Claims {
    owners: HashMap<Front, Claim>,
    losers: HashMap<Front, BTreeSet<Claim>>,
    /// The fronts that are endpoints of the API server.
    api_server: BTreeSet<Front>,
    /// The ranges of cluster IPs.
    service_cidrs: Vec<IpNet>,
    arisen: BTreeSet<Conflict>,
    lost: usize,
}

impl Claims {
    /// Replaces the claims of one Service by those of its new content; `None` is a Service that does not exist.
    ///
    /// Gives the Services that gained or lost a front; one may be named more than once.
    pub(super) fn replace(&mut self, old: Option<&Service>, new: Option<&Service>) -> Vec<ObjectName> {
        let (old, new) = (claims_of(old), claims_of(new));
        let gone = old.iter().filter(|claim| new.binary_search(claim).is_err()).cloned().collect();
        let entered = new.into_iter().filter(|claim| old.binary_search(claim).is_err()).collect();
        self.exchange(gone, entered)
    }

    /// Replaces the endpoints of the API server, whose Service has this name. Gives the Services that gained or lost a front.
    pub(super) fn set_api_server(&mut self, name: &ObjectName, fronts: BTreeSet<Front>) -> Vec<ObjectName> {
        let claim = |front: &Front| {
            (*front, Claim { rank: Rank::ApiServer, created: 0, service: name.clone(), port: u32::MAX })
        };
        let gone = self.api_server.difference(&fronts).map(claim).collect();
        let entered = fronts.difference(&self.api_server).map(claim).collect();
        self.api_server = fronts;
        self.exchange(gone, entered)
    }

    /// Replaces the ranges of cluster IPs. Gives the Services that gained or lost a front.
    pub(super) fn set_service_cidrs(&mut self, ranges: Vec<IpNet>) -> Vec<ObjectName> {
        let affected = |(front, claim): (&Front, &Claim)| {
            let differs = is_barred(front, claim, &self.service_cidrs) != is_barred(front, claim, &ranges);
            differs.then(|| (*front, claim.service.clone()))
        };
        let affected: Vec<(Front, ObjectName)> = self.owners.iter().filter_map(affected).collect();
        let before: Vec<_> = affected.iter().map(|(front, _)| (*front, self.conflicts_at(*front))).collect();
        self.service_cidrs = ranges;
        before.into_iter().for_each(|(front, conflicts)| self.note(front, &conflicts));
        affected.into_iter().map(|(_, service)| service).collect()
    }

    /// Takes claims away and adds others.
    fn exchange(&mut self, gone: Vec<(Front, Claim)>, entered: Vec<(Front, Claim)>) -> Vec<ObjectName> {
        let mut touched: Vec<Front> = gone.iter().chain(&entered).map(|(front, _)| *front).collect();
        touched.sort_unstable();
        touched.dedup();
        let before: Vec<_> = touched
            .into_iter()
            .map(|front| (front, self.owners.get(&front).cloned(), self.conflicts_at(front)))
            .collect();

        for (front, claim) in gone {
            self.withdraw(front, &claim);
        }
        for (front, claim) in entered {
            self.enter(front, claim);
        }

        let mut changed = Vec::new();
        for (front, owner, conflicts) in before {
            let now = self.owners.get(&front);
            if owner.as_ref() != now {
                changed.extend(owner.into_iter().chain(now.cloned()).map(|claim| claim.service));
            }
            self.note(front, &conflicts);
        }
        changed
    }

    /// Updates the conflicts at a front, which were `before` until now.
    fn note(&mut self, front: Front, before: &BTreeSet<Conflict>) {
        let now = self.conflicts_at(front);
        self.lost = self.lost + now.len() - before.len();
        self.arisen.extend(now.difference(before).cloned());
    }

    /// Whether a port of a Service owns a front.
    pub(super) fn owns(&self, service: &ObjectName, port: usize, front: &Front) -> bool {
        let is_it = |owner: &Claim| number(port) == owner.port && owner.service == *service;
        self.owners.get(front).is_some_and(|owner| is_it(owner) && !is_barred(front, owner, &self.service_cidrs))
    }

    /// The conflicts that arose since the last call and still stand, in order of fronts.
    pub(super) fn take_conflicts(&mut self) -> Vec<Conflict> {
        let arisen = std::mem::take(&mut self.arisen);
        arisen.into_iter().filter(|conflict| self.conflicts_at(conflict.front).contains(conflict)).collect()
    }

    /// The number of conflicts that stand.
    pub(super) const fn lost(&self) -> usize {
        self.lost
    }

    fn conflicts_at(&self, front: Front) -> BTreeSet<Conflict> {
        let Some(owner) = self.owners.get(&front) else { return BTreeSet::new() };
        let barred = is_barred(&front, owner, &self.service_cidrs);
        let winner = match (barred, owner.rank.kind()) {
            (true, _) => Winner::None,
            (false, Some(kind)) => Winner::Service(owner.service.clone(), kind),
            (false, None) => Winner::ApiServer,
        };
        let conflict = |loser: &Claim| {
            Some(Conflict { front, winner: winner.clone(), loser: loser.service.clone(), kind: loser.rank.kind()? })
        };
        let losers = self.losers.get(&front).into_iter().flatten();
        Some(owner).filter(|_| barred).into_iter().chain(losers).filter_map(conflict).collect()
    }

    fn enter(&mut self, front: Front, claim: Claim) {
        let loser = match self.owners.entry(front) {
            Entry::Vacant(owner) => {
                owner.insert(claim);
                return;
            }
            Entry::Occupied(mut owner) if claim < *owner.get() => owner.insert(claim),
            Entry::Occupied(_) => claim,
        };
        self.losers.entry(front).or_default().insert(loser);
    }

    fn withdraw(&mut self, front: Front, claim: &Claim) {
        let mut losers = self.losers.remove(&front).unwrap_or_default();
        if self.owners.get(&front) == Some(claim) {
            match losers.pop_first() {
                Some(heir) => self.owners.insert(front, heir),
                None => self.owners.remove(&front),
            };
        } else {
            losers.remove(claim);
        }
        if !losers.is_empty() {
            self.losers.insert(front, losers);
        }
    }
}

/// Whether a claim is one of an external IP on an address that is set aside for cluster IPs. A Service with such an address as its
/// cluster IP comes before the claim; while no Service has the address, the claim would take the traffic of the next Service that gets it.
fn is_barred(front: &Front, claim: &Claim, service_cidrs: &[IpNet]) -> bool {
    match front.destination {
        Destination::Address(ip) if claim.rank == Rank::ExternalIp => {
            service_cidrs.iter().any(|range| range.contains(&ip))
        }
        _ => false,
    }
}

/// The number of a port as claims keep it. No object is large enough for so many.
fn number(port: usize) -> u32 {
    u32::try_from(port).unwrap_or(u32::MAX - 1)
}

/// The claims of a Service, sorted, each once.
fn claims_of(service: Option<&Service>) -> Vec<(Front, Claim)> {
    let Some(service) = service else { return Vec::new() };
    let mut claims = Vec::new();
    for (index, port) in service.ports.iter().enumerate() {
        let fronts = Family::BOTH.into_iter().flat_map(|family| service.fronts(port, family));
        claims.extend(fronts.map(|(kind, front)| {
            let (rank, service_name) = (Rank::of(kind), service.name.clone());
            (front, Claim { rank, created: service.created, service: service_name, port: number(index) })
        }));
    }
    claims.sort_unstable();
    claims.dedup();
    claims
}
