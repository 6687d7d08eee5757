//! Decides which Service owns each frontend.
//!
//! Takes the old and the new content of a Service, the endpoints of the API server and the ServiceCIDRs. Returns the Services that
//! gained or lost a frontend, and the conflicts that arose.
//!
//! A namespace user may write any address into `spec.externalIPs`. So the kind of a frontend counts more than the age of its Service:
//! cluster IPs, which the API server assigns, come first, then load balancer IPs, which controllers write into the status, then external
//! IPs, then node ports (A16). No external IP gets a frontend that is an endpoint of the API server, or an address that is reserved for
//! cluster IPs (A17).
//!
//! A user may also create any number of Services that claim one frontend. So adding or removing a claim takes at most logarithmic time
//! in the number of claims on its frontend. If the winner changes, all conflicts of the frontend are new; they are recorded as one entry.
//!
//! Invariants: a frontend is owned by the smallest of its claims in the order (rank, creation time, Service name, port index),
//! whatever the order in which the claims came; `losers` has an entry exactly for each frontend with more than one claim; `external` has
//! the frontends whose smallest claim is an external IP; `lost` is the number of Services' claims that do not get their frontend; each
//! claim in `arisen` loses its frontend.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use foldhash::HashMap;
use ipnet::IpNet;

use super::conflicts::{Conflict, Contest, Winner};
use super::frontends::FrontendKind;
use super::names::{Destination, Family, Frontend, ObjectName, Protocol};
use super::ranges::{Ranges, take_one};
use super::service::Service;

/// The precedence of claims on one frontend: the first rank wins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    ClusterIp,
    LoadBalancerIp,
    /// The address is an endpoint of the API server. A load balancer IP may take its traffic, an external IP may not.
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

    /// The kind of frontend that the Service claims; `None` when the API server holds the claim and not a Service.
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

/// A claim on a frontend. Claims are ordered by precedence: the smallest claim owns the frontend.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    rank: Rank,
    created: i64,
    service: ObjectName,
    port: u32,
}

impl Claim {
    /// The winner to report if this claim owns the frontend: its Service or the API server, or none if the claim is barred
    /// (its address is reserved for cluster IPs).
    fn winner(&self, is_barred: bool) -> Winner {
        match self.rank.kind() {
            _ if is_barred => Winner::None,
            Some(kind) => Winner::Service(self.service.clone(), kind),
            None => Winner::ApiServer,
        }
    }
}

/// The conflicts at a frontend that arose and that [`Claims::take_conflicts`] has not returned yet.
#[derive(Debug)]
enum NewConflicts {
    /// All conflicts of the frontend, because its winner changed.
    All,
    /// Only the conflicts of these claims.
    Some(BTreeSet<Claim>),
}

/// All claims of all Services and of the API server.
///
/// Nearly every frontend has one claim, so owners have a map of their own and only contested frontends have a set of losers.
#[derive(Debug, Default)]
pub(super) struct Claims {
    owners: HashMap<Frontend, Claim>,
    losers: HashMap<Frontend, BTreeSet<Claim>>,
    /// The frontends whose smallest claim is an external IP, sorted, so that the frontends in a range can be found. The value is true if the
    /// frontend is barred: its address is reserved for cluster IPs, so no claim gets it.
    external: BTreeMap<Frontend, bool>,
    /// The frontends that are endpoints of the API server, each with the number of times that it is listed.
    api_server: HashMap<Frontend, usize>,
    /// The ranges of all ServiceCIDRs: their addresses are reserved for cluster IPs.
    service_cidrs: Ranges,
    arisen: BTreeMap<Frontend, NewConflicts>,
    lost: usize,
}

impl Claims {
    /// Replaces the claims of the `old` content of a Service by the claims of its `new` content; `None` means that it does not exist.
    ///
    /// Returns the other Services that gained or lost a frontend. A name may come more than once; the name of the Service itself may be among
    /// them.
    pub(super) fn replace(&mut self, old: Option<&Service>, new: Option<&Service>) -> Vec<ObjectName> {
        let (old, new) = (claims_of(old), claims_of(new));
        let gone: Vec<_> = old.iter().filter(|claim| new.binary_search(claim).is_err()).cloned().collect();
        let entered = new.into_iter().filter(|claim| old.binary_search(claim).is_err());
        let entered = entered.filter_map(|(frontend, claim)| self.enter_alone(frontend, claim)).collect();
        self.exchange(&gone, entered)
    }

    /// Adds a claim and returns `None` if nothing else claims the frontend and the claim would not be barred: then no other Service is
    /// affected. Otherwise returns the claim.
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

    /// Removes and adds endpoints of the API server; `name` is its Service. Returns the Services that gained or lost a frontend.
    pub(super) fn change_api_server(
        &mut self,
        name: &ObjectName,
        gone: impl Iterator<Item = Frontend>,
        came: impl Iterator<Item = Frontend>,
    ) -> Vec<ObjectName> {
        let claim =
            |frontend| (frontend, Claim { rank: Rank::ApiServer, created: 0, service: name.clone(), port: u32::MAX });
        // Counts the added endpoints first, so that the count of an endpoint in both lists never drops to zero.
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

    /// Removes and adds ServiceCIDR ranges. Returns the Services that gained or lost a frontend.
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

    /// The frontends of `external` whose address is in a range.
    fn external_in(&self, range: &IpNet) -> impl Iterator<Item = Frontend> {
        let frontend = |ip, protocol, port| Frontend { destination: Destination::Address(ip), protocol, port };
        let (first, last) = (range.network(), range.broadcast());
        let frontends =
            self.external.range(frontend(first, Protocol::Tcp, 0)..=frontend(last, Protocol::Sctp, u16::MAX));
        frontends.map(|(frontend, _)| *frontend)
    }

    /// Removes the claims in `gone` and adds the claims in `entered`. Those of a Service in `gone` are sorted. Returns the Services that gained
    /// or lost a frontend.
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
            // If a claim of the same rank on this frontend goes, and its conflict was reported already, its replacement is not reported
            // again: it differs only in the Service's creation time or the port's index.
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

    /// Records the conflicts that arose because the owner of a frontend changed, or because the frontend became barred or is barred no
    /// longer.
    fn note_owner(&mut self, frontend: Frontend, before: Option<Claim>, was_barred: bool) {
        let (now, is_barred) = (self.owners.get(&frontend), self.is_barred(&frontend));
        let winner = |owner: Option<&Claim>, is_barred| owner.map(|owner| owner.winner(is_barred));
        if winner(before.as_ref(), was_barred) != winner(now, is_barred) {
            return self.note_all(frontend);
        }
        if is_barred {
            return;
        }
        // The winner is the same. If it is a Service, perhaps another of its ports has the frontend now; then the port that had it before
        // loses it.
        let now = now.cloned();
        now.iter().for_each(|now| self.forget(frontend, now));
        let losers = self.losers.get(&frontend);
        if let Some(before) = before.filter(|before| losers.is_some_and(|losers| losers.contains(before))) {
            self.note(frontend, before);
        }
    }

    /// Updates `external` and `lost` after the owner of a frontend may have changed.
    fn settle(&mut self, frontend: Frontend) {
        let was_barred = self.is_barred(&frontend);
        if self.owners.get(&frontend).is_some_and(|owner| owner.rank == Rank::ExternalIp) {
            self.external.insert(frontend, is_reserved(&self.service_cidrs, &frontend));
        } else {
            self.external.remove(&frontend);
        }
        self.lost = self.lost + usize::from(self.is_barred(&frontend)) - usize::from(was_barred);
    }

    /// Records all conflicts at a frontend as new.
    fn note_all(&mut self, frontend: Frontend) {
        if self.losing(&frontend) > 0 {
            self.arisen.insert(frontend, NewConflicts::All);
        } else {
            self.arisen.remove(&frontend);
        }
    }

    /// Records the conflict of a claim that loses as new.
    fn note(&mut self, frontend: Frontend, claim: Claim) {
        if let NewConflicts::Some(claims) =
            self.arisen.entry(frontend).or_insert_with(|| NewConflicts::Some(BTreeSet::new()))
        {
            claims.insert(claim);
        }
    }

    /// Removes the recorded conflict of a claim that goes, or that does not lose any more.
    fn forget(&mut self, frontend: Frontend, claim: &Claim) {
        if let Some(NewConflicts::Some(claims)) = self.arisen.get_mut(&frontend) {
            claims.remove(claim);
            if claims.is_empty() {
                self.arisen.remove(&frontend);
            }
        }
    }

    /// Whether the conflict of this claim is recorded as new.
    fn is_noted(&self, frontend: &Frontend, claim: &Claim) -> bool {
        match self.arisen.get(frontend) {
            Some(NewConflicts::All) => true,
            Some(NewConflicts::Some(claims)) => claims.contains(claim),
            None => false,
        }
    }

    /// Whether an existing claim does not get its frontend.
    fn loses(&self, frontend: &Frontend, claim: &Claim) -> bool {
        self.is_barred(frontend) || self.owners.get(frontend) != Some(claim)
    }

    /// Whether a port of a Service owns a frontend.
    pub(super) fn owns(&self, service: &ObjectName, port: usize, frontend: &Frontend) -> bool {
        self.owner(frontend).is_some_and(|(owner, index)| index == port && owner == service)
    }

    /// The Service that owns a frontend, and the index of its port; `None` when the API server or no Service owns it.
    pub(super) fn owner(&self, frontend: &Frontend) -> Option<(&ObjectName, usize)> {
        let owner = self.owners.get(frontend).filter(|owner| owner.rank.kind().is_some())?;
        let is_barred = owner.rank == Rank::ExternalIp && self.is_barred(frontend);
        (!is_barred).then_some((&owner.service, owner.port as usize))
    }

    /// Whether the smallest claim on a frontend is that of another Service than this one, or of the API server.
    pub(super) fn is_anothers(&self, service: &ObjectName, frontend: &Frontend) -> bool {
        self.owners.get(frontend).is_some_and(|owner| owner.service != *service)
    }

    /// The conflicts that arose since the last call and still exist, sorted by frontend, at most `most` for each frontend.
    pub(super) fn take_conflicts(&mut self, most: usize) -> Vec<Contest> {
        let arisen = std::mem::take(&mut self.arisen);
        arisen.into_iter().filter_map(|(frontend, news)| self.contest(frontend, &news, most)).collect()
    }

    /// All conflicts that exist now, whenever they arose, sorted by frontend, at most `most` for each frontend. The time grows with the number
    /// of contested frontends and of external IPs.
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
        // Two ports of one Service that both lose the frontend give the same conflict twice, one behind the other.
        conflicts.dedup();
        let wins = usize::from(matches!(winner, Winner::Service(..)));
        (!conflicts.is_empty()).then(|| Contest { conflicts, more, claims: self.losing(&frontend) + wins })
    }

    /// The number of Services' claims that do not get their frontend now.
    pub(super) const fn lost(&self) -> usize {
        self.lost
    }

    /// The number of Services' claims on this frontend that do not get it.
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

/// Whether the address of a frontend is reserved for cluster IPs: it is in a ServiceCIDR.
fn is_reserved(service_cidrs: &Ranges, frontend: &Frontend) -> bool {
    match frontend.destination {
        Destination::Address(ip) => service_cidrs.contains(ip),
        Destination::NodePort(_) => false,
    }
}

/// Converts a port's index to `u32` for a [`Claim`]. A larger index cannot occur: no Service object is that large.
fn number(port: usize) -> u32 {
    u32::try_from(port).unwrap_or(u32::MAX - 1)
}

/// The claims of a Service, sorted, without duplicates.
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
