//! Who owns each front.
//!
//! Takes the old and the new content of a Service, gives the Services whose ownership changed by that, and the
//! conflicts that arose.
//!
//! Invariants: a front is owned by the smallest of its claims in the order (creation time, Service name, port index),
//! whatever the order in which the Services came; a contested front is one with an entry in `losers`.

use std::collections::BTreeSet;
use std::collections::hash_map::Entry;
use std::fmt;

use foldhash::HashMap;

use super::names::{Family, Front, ObjectName};
use super::service::Service;

/// Two claims on one front, of two Services or of two ports of one Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// What both claim.
    pub front: Front,
    /// The Service that gets the traffic.
    pub owner: ObjectName,
    /// The Service that does not; the owner itself when two of its ports claim the front.
    pub loser: ObjectName,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { front, owner, loser } = self;
        if owner == loser {
            return write!(f, "two ports of Service {owner} claim {front}; the first of them gets it");
        }
        write!(f, "Services {owner} and {loser} both claim {front}; {owner} gets it, by age and then by name")
    }
}

/// A claim on a front. The order is that of precedence: the smallest claim owns the front.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claim {
    created: i64,
    service: ObjectName,
    port: usize,
}

/// All claims of all Services.
///
/// Nearly every front has one claim, so the owner is kept apart and only contested fronts have a set.
#[derive(Debug, Default)]
pub(super) struct Claims {
    owners: HashMap<Front, Claim>,
    losers: HashMap<Front, BTreeSet<Claim>>,
    arisen: BTreeSet<Conflict>,
}

impl Claims {
    /// Replaces the claims of one Service by those of its new content; `None` is a Service that does not exist.
    ///
    /// Gives the Services that gained or lost a front; one may be named more than once.
    pub(super) fn replace(&mut self, old: Option<&Service>, new: Option<&Service>) -> Vec<ObjectName> {
        let (old, new) = (claims_of(old), claims_of(new));
        let gone: Vec<_> = old.iter().filter(|claim| new.binary_search(claim).is_err()).collect();
        let entered: Vec<_> = new.iter().filter(|claim| old.binary_search(claim).is_err()).collect();
        let mut touched: Vec<Front> = gone.iter().chain(&entered).map(|(front, _)| *front).collect();
        touched.sort_unstable();
        touched.dedup();
        let before: Vec<_> = touched
            .into_iter()
            .map(|front| (front, self.owners.get(&front).cloned(), self.conflicts_at(front)))
            .collect();

        for (front, claim) in gone {
            self.withdraw(*front, claim);
        }
        for (front, claim) in entered {
            self.enter(*front, claim.clone());
        }

        let mut changed = Vec::new();
        for (front, owner, conflicts) in before {
            let now = self.owners.get(&front);
            if owner.as_ref() != now {
                changed.extend(owner.into_iter().chain(now.cloned()).map(|claim| claim.service));
            }
            let arisen = self.conflicts_at(front);
            self.arisen.extend(arisen.difference(&conflicts).cloned());
        }
        changed
    }

    /// Whether a port of a Service owns a front.
    pub(super) fn owns(&self, service: &ObjectName, port: usize, front: &Front) -> bool {
        self.owners.get(front).is_some_and(|owner| owner.port == port && owner.service == *service)
    }

    /// The conflicts that arose since the last call and still stand, in order of fronts.
    pub(super) fn take_conflicts(&mut self) -> Vec<Conflict> {
        let arisen = std::mem::take(&mut self.arisen);
        arisen.into_iter().filter(|conflict| self.conflicts_at(conflict.front).contains(conflict)).collect()
    }

    fn conflicts_at(&self, front: Front) -> BTreeSet<Conflict> {
        let (Some(owner), Some(losers)) = (self.owners.get(&front), self.losers.get(&front)) else {
            return BTreeSet::new();
        };
        let conflict = |loser: &Claim| Conflict { front, owner: owner.service.clone(), loser: loser.service.clone() };
        losers.iter().map(conflict).collect()
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

/// The claims of a Service, sorted, each once.
fn claims_of(service: Option<&Service>) -> Vec<(Front, Claim)> {
    let Some(service) = service else { return Vec::new() };
    let mut claims = Vec::new();
    for (index, port) in service.ports.iter().enumerate() {
        let claim = Claim { created: service.created, service: service.name.clone(), port: index };
        let fronts = Family::BOTH.into_iter().flat_map(|family| service.fronts(port, family));
        claims.extend(fronts.map(|(_, front)| (front, claim.clone())));
    }
    claims.sort_unstable();
    claims.dedup();
    claims
}
