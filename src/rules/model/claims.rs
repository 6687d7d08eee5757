//! Which Service owns each frontend.
//!
//! Takes the old and the new content of a Service, the endpoints of the API server and the ServiceCIDRs. Gives the Services whose
//! ownership changed by that, and the conflicts that arose.
//!
//! A namespace user may write any address into `spec.externalIPs`. So what a frontend is to a Service counts more than its age: cluster
//! IPs, which the API server hands out, come first, then load balancer IPs, which only controllers write, then external IPs, then node
//! ports. No external IP gets a frontend that is an endpoint of the API server, or an address that is set aside for cluster IPs.
//!
//! He may also make any number of Services that claim one frontend. So a claim that comes or goes costs no more than the logarithm of the
//! number of claims on its frontend, whichever of them wins, and what arose is noted for the frontend as a whole where its winner changed.
//!
//! Invariants: a frontend is owned by the smallest of its claims in the order (rank, creation time, Service name, port index),
//! whatever the order in which they came; a frontend with more than one claim is one with an entry in `losers`; `external` has the frontends
//! whose owner claims them as an external IP; `lost` is the number of claims of Services that do not get their frontend; a claim that
//! is noted in `arisen` loses its frontend.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;
use ipnet::IpNet;

use super::conflicts::{Conflict, Contest, Winner};
use super::frontends::FrontendKind;
use super::names::{Destination, Family, Frontend, ObjectName, Protocol};
use super::ranges::{Ranges, take_one};
use super::service::Service;

/// The order in which claims on one frontend count.
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
    const fn of(kind: FrontendKind) -> Self {
        match kind {
            FrontendKind::ClusterIp => Self::ClusterIp,
            FrontendKind::LoadBalancerIp => Self::LoadBalancerIp,
            FrontendKind::ExternalIp => Self::ExternalIp,
            FrontendKind::NodePort => Self::NodePort,
        }
    }

    /// What the frontend is to the Service; `None` when the claim is not a Service's.
    const fn kind(self) -> Option<FrontendKind> {
        match self {
            Self::ClusterIp => Some(FrontendKind::ClusterIp),
            Self::LoadBalancerIp => Some(FrontendKind::LoadBalancerIp),
            Self::ApiServer => None,
            Self::ExternalIp => Some(FrontendKind::ExternalIp),
            Self::NodePort => Some(FrontendKind::NodePort),
        }
    }
}

/// A claim on a frontend. The order is that of precedence: the smallest claim owns the frontend.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    rank: Rank,
    created: i64,
    service: ObjectName,
    port: u32,
}

impl Claim {
    /// What a client is told who gets the frontend: the Service of this claim, unless the claim is barred.
    fn winner(&self, is_barred: bool) -> Winner {
        match self.rank.kind() {
            _ if is_barred => Winner::None,
            Some(kind) => Winner::Service(self.service.clone(), kind),
            None => Winner::ApiServer,
        }
    }
}

/// The conflicts at a frontend that arose and were not taken yet.
#[derive(Debug)]
enum NewConflicts {
    /// All, because the winner changed.
    All,
    /// The conflicts of these claims.
    Some(BTreeSet<Claim>),
}

/// All claims of all Services.
///
/// Nearly every frontend has one claim, so the owner is kept apart and only contested frontends have a set.
#[derive(Debug, Default)]
pub(super) struct Claims {
    owners: HashMap<Frontend, Claim>,
    losers: HashMap<Frontend, BTreeSet<Claim>>,
    /// The frontends that belong to an external IP, in order, so that those of a range are found. Those whose address is set aside
    /// for cluster IPs are barred: the owner does not get them. A Service with such an address as its cluster IP comes before the claim;
    /// while no Service has the address, the claim would take the traffic of the next Service that gets it.
    external: BTreeMap<Frontend, bool>,
    /// The frontends that are endpoints of the API server, and how often each is listed.
    api_server: HashMap<Frontend, usize>,
    /// The ranges of cluster IPs.
    service_cidrs: Ranges,
    arisen: BTreeMap<Frontend, NewConflicts>,
    lost: usize,
}

impl Claims {
    /// Replaces the claims of one Service by those of its new content; `None` is a Service that does not exist.
    ///
    /// Gives the other Services that gained or lost a frontend; one may be named more than once, and this one may be among them.
    pub(super) fn replace(&mut self, old: Option<&Service>, new: Option<&Service>) -> Vec<ObjectName> {
        let (old, new) = (claims_of(old), claims_of(new));
        let gone: Vec<_> = old.iter().filter(|claim| new.binary_search(claim).is_err()).cloned().collect();
        let entered = new.into_iter().filter(|claim| old.binary_search(claim).is_err());
        let entered = entered.filter_map(|(frontend, claim)| self.enter_alone(frontend, claim)).collect();
        self.exchange(&gone, entered)
    }

    /// Adds a claim on a frontend that nothing else claims: no other Service gains or loses a frontend by it. Any other is given back.
    fn enter_alone(&mut self, frontend: Frontend, claim: Claim) -> Option<(Frontend, Claim)> {
        let is_external = claim.rank == Rank::ExternalIp;
        match self.owners.entry(frontend) {
            Entry::Vacant(place) if !is_external || !is_reserved(&self.service_cidrs, &frontend) => {
                place.insert(claim);
                if is_external {
                    self.external.insert(frontend, false);
                }
                None
            }
            _ => Some((frontend, claim)),
        }
    }

    /// Takes away and adds endpoints of the API server, whose Service has this name. Gives the Services that gained or lost a frontend.
    pub(super) fn change_api_server(
        &mut self,
        name: &ObjectName,
        gone: impl Iterator<Item = Frontend>,
        came: impl Iterator<Item = Frontend>,
    ) -> Vec<ObjectName> {
        let claim =
            |frontend| (frontend, Claim { rank: Rank::ApiServer, created: 0, service: name.clone(), port: u32::MAX });
        // First those that came, so that what stays does not go in between.
        let mut entered = Vec::new();
        for frontend in came {
            let listed = self.api_server.entry(frontend).or_default();
            *listed += 1;
            if *listed == 1 {
                entered.push(claim(frontend));
            }
        }
        let gone: Vec<_> = gone.filter(|frontend| take_one(&mut self.api_server, *frontend)).map(claim).collect();
        self.exchange(&gone, entered)
    }

    /// Takes away and adds ranges of cluster IPs. Gives the Services that gained or lost a frontend.
    pub(super) fn change_service_cidrs(&mut self, gone: &[IpNet], came: &[IpNet]) -> Vec<ObjectName> {
        let mut changed: Vec<IpNet> = came.iter().copied().filter(|range| self.service_cidrs.insert(*range)).collect();
        changed.extend(gone.iter().copied().filter(|range| self.service_cidrs.remove(*range)));
        let frontends: BTreeSet<Frontend> = changed.iter().flat_map(|range| self.external_in(range)).collect();
        let mut affected = Vec::new();
        for frontend in frontends {
            let before = self.is_barred(&frontend);
            self.settle(frontend);
            if self.is_barred(&frontend) != before {
                affected.extend(self.owners.get(&frontend).map(|owner| owner.service.clone()));
                self.note_all(frontend);
            }
        }
        affected
    }

    /// The frontends of external IPs that are in a range.
    fn external_in(&self, range: &IpNet) -> impl Iterator<Item = Frontend> {
        let frontend = |ip, protocol, port| Frontend { destination: Destination::Address(ip), protocol, port };
        let (first, last) = (range.network(), range.broadcast());
        let frontends =
            self.external.range(frontend(first, Protocol::Tcp, 0)..=frontend(last, Protocol::Sctp, u16::MAX));
        frontends.map(|(frontend, _)| *frontend)
    }

    /// Takes claims away, which are in order, and adds others. Gives the Services that gained or lost a frontend.
    fn exchange(&mut self, gone: &[(Frontend, Claim)], entered: Vec<(Frontend, Claim)>) -> Vec<ObjectName> {
        let mut touched: Vec<Frontend> = gone.iter().chain(&entered).map(|(frontend, _)| *frontend).collect();
        touched.sort_unstable();
        touched.dedup();
        let before: Vec<_> = touched
            .into_iter()
            .map(|frontend| (frontend, self.owners.get(&frontend).cloned(), self.is_barred(&frontend)))
            .collect();

        let was_told =
            |(frontend, claim): &&(Frontend, Claim)| self.loses(frontend, claim) && !self.is_noted(frontend, claim);
        let told: Vec<(Frontend, Rank)> =
            gone.iter().filter(was_told).map(|(frontend, claim)| (*frontend, claim.rank)).collect();
        gone.iter().for_each(|(frontend, claim)| self.withdraw(*frontend, claim));
        let mut new = Vec::new();
        for (frontend, claim) in entered {
            // That of a Service which only got another age, or another order of ports, did not arise.
            if claim.rank != Rank::ApiServer && told.binary_search(&(frontend, claim.rank)).is_err() {
                new.push((frontend, claim.clone()));
            }
            self.enter(frontend, claim);
        }

        let mut changed = Vec::new();
        for (frontend, owner, was_barred) in before {
            self.settle(frontend);
            let now = self.owners.get(&frontend);
            if owner.as_ref() != now {
                changed.extend(owner.iter().chain(now).map(|claim| claim.service.clone()));
            }
            self.note_owner(frontend, owner, was_barred);
        }
        new.retain(|(frontend, claim)| self.loses(frontend, claim));
        new.into_iter().for_each(|(frontend, claim)| self.note(frontend, claim));
        changed
    }

    /// Notes what arose because a frontend had another owner before, or one that was barred.
    fn note_owner(&mut self, frontend: Frontend, before: Option<Claim>, was_barred: bool) {
        let (now, is_barred) = (self.owners.get(&frontend), self.is_barred(&frontend));
        let winner = |owner: Option<&Claim>, is_barred| owner.map(|owner| owner.winner(is_barred));
        if winner(before.as_ref(), was_barred) != winner(now, is_barred) {
            return self.note_all(frontend);
        }
        if is_barred {
            return;
        }
        // The same Service may have the frontend by another port than before, one that lost it to the other.
        let now = now.cloned();
        now.iter().for_each(|now| self.forget(frontend, now));
        let losers = self.losers.get(&frontend);
        if let Some(before) = before.filter(|before| losers.is_some_and(|losers| losers.contains(before))) {
            self.note(frontend, before);
        }
    }

    /// Notes what follows from who owns a frontend, now that this may have changed.
    fn settle(&mut self, frontend: Frontend) {
        let was_barred = self.is_barred(&frontend);
        if self.owners.get(&frontend).is_some_and(|owner| owner.rank == Rank::ExternalIp) {
            self.external.insert(frontend, is_reserved(&self.service_cidrs, &frontend));
        } else {
            self.external.remove(&frontend);
        }
        self.lost = self.lost + usize::from(self.is_barred(&frontend)) - usize::from(was_barred);
    }

    /// Notes that all conflicts at a frontend arose.
    fn note_all(&mut self, frontend: Frontend) {
        if self.losing(&frontend) > 0 {
            self.arisen.insert(frontend, NewConflicts::All);
        } else {
            self.arisen.remove(&frontend);
        }
    }

    /// Notes the conflict of a claim that loses.
    fn note(&mut self, frontend: Frontend, claim: Claim) {
        if let NewConflicts::Some(claims) =
            self.arisen.entry(frontend).or_insert_with(|| NewConflicts::Some(BTreeSet::new()))
        {
            claims.insert(claim);
        }
    }

    /// Forgets the conflict of a claim that does not lose any more.
    fn forget(&mut self, frontend: Frontend, claim: &Claim) {
        if let Some(NewConflicts::Some(claims)) = self.arisen.get_mut(&frontend) {
            claims.remove(claim);
            if claims.is_empty() {
                self.arisen.remove(&frontend);
            }
        }
    }

    /// Whether it is noted that the conflict of this claim arose.
    fn is_noted(&self, frontend: &Frontend, claim: &Claim) -> bool {
        match self.arisen.get(frontend) {
            Some(NewConflicts::All) => true,
            Some(NewConflicts::Some(claims)) => claims.contains(claim),
            None => false,
        }
    }

    /// Whether a claim that is there does not get its frontend.
    fn loses(&self, frontend: &Frontend, claim: &Claim) -> bool {
        self.is_barred(frontend) || self.owners.get(frontend) != Some(claim)
    }

    /// Whether a port of a Service owns a frontend.
    pub(super) fn owns(&self, service: &ObjectName, port: usize, frontend: &Frontend) -> bool {
        let is_it = |owner: &Claim| number(port) == owner.port && owner.service == *service;
        let owner = self.owners.get(frontend).filter(|owner| is_it(owner));
        owner.is_some_and(|owner| owner.rank != Rank::ExternalIp || !self.is_barred(frontend))
    }

    /// The conflicts that arose since the last call and still stand, in order of frontends; of each frontend the first `most`.
    pub(super) fn take_conflicts(&mut self, most: usize) -> Vec<Contest> {
        let arisen = std::mem::take(&mut self.arisen);
        arisen.into_iter().filter_map(|(frontend, news)| self.contest(frontend, &news, most)).collect()
    }

    /// All conflicts that stand, whenever they arose, in order of frontends; of each frontend the first `most`. Takes time in proportion to
    /// the number of contested frontends and of external IPs.
    pub(super) fn standing(&self, most: usize) -> Vec<Contest> {
        let barred = self.external.iter().filter(|(_, is_barred)| **is_barred).map(|(frontend, _)| *frontend);
        let mut frontends: Vec<Frontend> = self.losers.keys().copied().chain(barred).collect();
        frontends.sort_unstable();
        frontends.dedup();
        frontends.into_iter().filter_map(|frontend| self.contest(frontend, &NewConflicts::All, most)).collect()
    }

    fn contest(&self, frontend: Frontend, news: &NewConflicts, most: usize) -> Option<Contest> {
        let owner = self.owners.get(&frontend)?;
        let is_barred = self.is_barred(&frontend);
        let (claims, count): (Vec<&Claim>, usize) = match news {
            NewConflicts::Some(claims) => (claims.iter().take(most).collect(), claims.len()),
            NewConflicts::All => {
                let losers = self.losers.get(&frontend).into_iter().flatten();
                let losers = Some(owner).filter(|_| is_barred).into_iter().chain(losers);
                let losers = losers.filter(|claim| claim.rank != Rank::ApiServer);
                (losers.take(most).collect(), self.losing(&frontend))
            }
        };
        let more = count - claims.len();
        let winner = owner.winner(is_barred);
        let conflict = |loser: &Claim| {
            Some(Conflict { frontend, winner: winner.clone(), loser: loser.service.clone(), kind: loser.rank.kind()? })
        };
        let mut conflicts: Vec<Conflict> = claims.into_iter().filter_map(conflict).collect();
        // Of two ports of a Service that lose the frontend.
        conflicts.dedup();
        let wins = usize::from(matches!(winner, Winner::Service(..)));
        (!conflicts.is_empty()).then(|| Contest { conflicts, more, claims: self.losing(&frontend) + wins })
    }

    /// The number of claims that stand and lose.
    pub(super) const fn lost(&self) -> usize {
        self.lost
    }

    /// The number of claims of Services that lose a frontend.
    fn losing(&self, frontend: &Frontend) -> usize {
        let Some(losers) = self.losers.get(frontend) else { return usize::from(self.is_barred(frontend)) };
        let owns = self.owners.get(frontend).is_some_and(|owner| owner.rank == Rank::ApiServer);
        let of_api_server = self.api_server.contains_key(frontend) && !owns;
        losers.len() - usize::from(of_api_server) + usize::from(self.is_barred(frontend))
    }

    fn is_barred(&self, frontend: &Frontend) -> bool {
        self.external.get(frontend).is_some_and(|is_barred| *is_barred)
    }

    fn enter(&mut self, frontend: Frontend, claim: Claim) {
        let loser = match self.owners.entry(frontend) {
            Entry::Vacant(owner) => {
                owner.insert(claim);
                return;
            }
            Entry::Occupied(mut owner) if claim < *owner.get() => owner.insert(claim),
            Entry::Occupied(_) => claim,
        };
        self.lost += usize::from(loser.rank != Rank::ApiServer);
        self.losers.entry(frontend).or_default().insert(loser);
    }

    fn withdraw(&mut self, frontend: Frontend, claim: &Claim) {
        self.forget(frontend, claim);
        let mut losers = self.losers.remove(&frontend).unwrap_or_default();
        let leaves = if self.owners.get(&frontend) == Some(claim) {
            let heir = losers.pop_first();
            match heir.clone() {
                Some(heir) => self.owners.insert(frontend, heir),
                None => self.owners.remove(&frontend),
            };
            heir
        } else {
            losers.take(claim)
        };
        self.lost -= usize::from(leaves.is_some_and(|claim| claim.rank != Rank::ApiServer));
        if !losers.is_empty() {
            self.losers.insert(frontend, losers);
        }
    }
}

/// Whether the address of a frontend is set aside for cluster IPs.
fn is_reserved(service_cidrs: &Ranges, frontend: &Frontend) -> bool {
    match frontend.destination {
        Destination::Address(ip) => service_cidrs.contains(ip),
        Destination::NodePort(_) => false,
    }
}

/// The number of a port as claims keep it. No object is large enough for so many.
fn number(port: usize) -> u32 {
    u32::try_from(port).unwrap_or(u32::MAX - 1)
}

/// The claims of a Service, sorted, each once.
fn claims_of(service: Option<&Service>) -> Vec<(Frontend, Claim)> {
    let Some(service) = service else { return Vec::new() };
    let mut claims = Vec::new();
    for (index, port) in service.ports.iter().enumerate() {
        let frontends = Family::BOTH.into_iter().flat_map(|family| service.frontends(port, family));
        claims.extend(frontends.map(|(kind, frontend)| {
            let (rank, service_name) = (Rank::of(kind), service.name.clone());
            (frontend, Claim { rank, created: service.created, service: service_name, port: number(index) })
        }));
    }
    claims.sort_unstable();
    claims.dedup();
    claims
}
