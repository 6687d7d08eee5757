//! Who owns each front.
//!
//! Every port of every Service claims its fronts. Two may claim the same one; the owner is the older Service, then the smaller name,
//! then the earlier port, so that every node decides alike and the order of events does not matter.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

use super::names::{Destination, Family, Front, ObjectName};
use super::service::Service;

/// What a front of a Service is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontKind {
    /// The cluster IP.
    ClusterIp,
    /// An external IP.
    ExternalIp,
    /// A load balancer IP.
    LoadBalancerIp,
    /// The node port.
    NodePort,
}

impl Service {
    /// The fronts of one of its ports, each once; families without a cluster IP have none (A4).
    ///
    /// # Panics
    /// When there is no such port.
    #[must_use]
    pub fn fronts(&self, port_index: usize) -> Vec<(Front, FrontKind)> {
        let port = &self.ports[port_index];
        let at = |destination, port_number, kind| {
            (Front { destination, protocol: port.protocol, port: port_number }, kind)
        };
        let mut fronts: Vec<(Front, FrontKind)> = Vec::new();
        for family in Family::BOTH {
            let Some(cluster_ip) = self.cluster_ips.get(family) else { continue };
            let of_family = |ip: &&IpAddr| Family::of(**ip) == family;
            let external = self.external_ips.iter().filter(of_family).map(|ip| (*ip, FrontKind::ExternalIp));
            let balancers = self.load_balancer_ips.iter().filter(of_family);
            let balancers = balancers.map(|ip| (*ip, FrontKind::LoadBalancerIp));
            let addresses = [(cluster_ip, FrontKind::ClusterIp)].into_iter().chain(external).chain(balancers);
            let addresses = addresses.map(|(ip, kind)| at(Destination::Address(ip), port.port, kind));
            let node_port =
                port.node_port.map(|number| at(Destination::NodePort(family), number, FrontKind::NodePort));
            for (front, kind) in addresses.chain(node_port) {
                if fronts.iter().all(|(known, _)| *known != front) {
                    fronts.push((front, kind));
                }
            }
        }
        fronts
    }

    /// Whether traffic from outside the cluster can arrive in a family (A14).
    #[must_use]
    pub fn is_externally_accessible(&self, port_index: usize, family: Family) -> bool {
        let fronts = self.fronts(port_index);
        fronts.iter().any(|(front, kind)| front.family() == family && *kind != FrontKind::ClusterIp)
    }
}

/// A claim on a front. The order decides who wins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    created: i64,
    service: ObjectName,
    port_index: usize,
}

/// The claims on one front; nearly always a single one.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Claims {
    One(Claim),
    /// At least two, the owner first.
    Contested(Vec<Claim>),
}

impl Claims {
    fn owner(&self) -> &Claim {
        match self {
            Self::One(claim) => claim,
            Self::Contested(claims) => &claims[0],
        }
    }

    fn all(&self) -> &[Claim] {
        match self {
            Self::One(claim) => std::slice::from_ref(claim),
            Self::Contested(claims) => claims,
        }
    }

    fn from_sorted(mut claims: Vec<Claim>) -> Option<Self> {
        match claims.len() {
            0 => None,
            1 => claims.pop().map(Self::One),
            _ => Some(Self::Contested(claims)),
        }
    }
}

/// Two Services, or two ports of one, claim the same front.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conflict {
    /// What both claim.
    pub front: Front,
    /// Who has it.
    pub owner: ObjectName,
    /// Who does without.
    pub loser: ObjectName,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { front, owner, loser } = self;
        if owner == loser {
            return write!(f, "Service {owner}: two ports claim {front}; the first one has it");
        }
        write!(f, "Services {owner} and {loser} both claim {front}; {owner} is older or has the smaller name and keeps it")
    }
}

/// What a change of claims brought about.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Services that won or lost a front, besides the one that changed.
    pub(super) affected: Vec<ObjectName>,
    /// Conflicts that were not there before.
    pub(super) conflicts: Vec<Conflict>,
}

/// All claims.
#[derive(Debug, Default)]
pub(super) struct ClaimIndex {
    fronts: HashMap<Front, Claims>,
}

impl ClaimIndex {
    pub(super) fn owns(&self, service: &ObjectName, port_index: usize, front: &Front) -> bool {
        self.fronts.get(front).map(Claims::owner).is_some_and(|o| o.port_index == port_index && o.service == *service)
    }

    /// Replaces the claims of a Service's former content by those of its new one.
    pub(super) fn replace(&mut self, former: Option<&Service>, new: Option<&Service>) -> Outcome {
        let mut outcome = Outcome::default();
        let former = former.map(claims).unwrap_or_default();
        let new = new.map(claims).unwrap_or_default();
        for (front, claim) in former.iter().filter(|entry| !new.contains(entry)) {
            self.change(*front, &mut outcome, |list| list.retain(|other| other != claim));
        }
        for (front, claim) in new.into_iter().filter(|entry| !former.contains(entry)) {
            self.change(front, &mut outcome, |list| {
                list.push(claim);
                list.sort();
            });
        }
        outcome
    }

    fn change(&mut self, front: Front, outcome: &mut Outcome, edit: impl FnOnce(&mut Vec<Claim>)) {
        let before = self.fronts.remove(&front).map(|claims| claims.all().to_vec()).unwrap_or_default();
        let mut after = before.clone();
        edit(&mut after);
        if before.first() != after.first() {
            let owners = [before.first(), after.first()].into_iter().flatten();
            outcome.affected.extend(owners.map(|claim| claim.service.clone()));
        }
        let known = conflicts(front, &before);
        outcome.conflicts.extend(conflicts(front, &after).into_iter().filter(|conflict| !known.contains(conflict)));
        if let Some(claims) = Claims::from_sorted(after) {
            self.fronts.insert(front, claims);
        }
    }
}

fn claims(service: &Service) -> Vec<(Front, Claim)> {
    let of_port = |port_index| {
        let claim = Claim { created: service.created, service: service.name.clone(), port_index };
        service.fronts(port_index).into_iter().map(move |(front, _)| (front, claim.clone()))
    };
    (0..service.ports.len()).flat_map(of_port).collect()
}

fn conflicts(front: Front, claims: &[Claim]) -> Vec<Conflict> {
    let Some((owner, losers)) = claims.split_first() else { return Vec::new() };
    let conflict = |loser: &Claim| Conflict { front, owner: owner.service.clone(), loser: loser.service.clone() };
    losers.iter().map(conflict).collect()
}
