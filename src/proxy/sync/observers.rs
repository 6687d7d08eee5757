//! Who learns of a Service once its rules are committed: health-check node ports, node ports on loopback addresses, the count of ports without a local
//! endpoint, and the examination of UDP flows.
//!
//! Takes with each [plan](super::planned) what follows from the Service's endpoints beside its rules ([`Effects`]), and keeps it until the kernel has
//! committed the rules. So what an observer says is always about the rules in force (G9): nothing is told while syncs fail, and of a Service that
//! the kernel refuses only what its rules of before say.

use std::collections::BTreeMap;

use super::effects::{Committed, Effects};
use super::flows::UdpFlows;
use super::health::HealthChecks;
use super::no_local_endpoints::NoLocalEndpoints;
use super::tables::Tables;
use crate::localhost::Feed;
use rules::model::{Change, Family, ObjectName};

/// All observers of commits, and what they are not told yet.
#[derive(Default)]
pub(super) struct Observers {
    open: BTreeMap<ObjectName, Effects>,
    pub(super) health_checks: HealthChecks,
    pub(super) no_local_endpoints: NoLocalEndpoints,
    pub(super) udp: UdpFlows,
    /// Where the TCP node ports for loopback addresses go, if these are served.
    pub(super) localhost: Option<Feed>,
}

impl Observers {
    /// An event changed the state.
    pub(super) fn changed(&mut self, change: &Change) {
        if let Change::Slice { before: Some(before), .. } = change {
            self.udp.slice_gone(before);
        }
    }

    /// The rules of a Service are planned anew. A Service that means nothing to any observer, before and now, is not kept: most have neither health
    /// checks nor UDP ports.
    pub(super) fn planned(&mut self, name: &ObjectName, effects: Effects, families: &[Family]) {
        let is_nothing = Effects { has_udp_endpoints: Some(false), ..Effects::default() } == effects;
        if is_nothing && !self.knows(name, families) {
            self.open.remove(name);
        } else {
            self.open.insert(name.clone(), effects);
        }
    }

    fn knows(&self, name: &ObjectName, families: &[Family]) -> bool {
        self.localhost.is_some()
            || self.udp.knows(name)
            || families
                .iter()
                .any(|family| self.health_checks.has(name, *family) || self.no_local_endpoints.has(name, *family))
    }

    /// The kernel carried out a transaction of this sync, and the tables do not know it yet.
    pub(super) fn transaction(&mut self, tables: &Tables, deletes_clients: bool) {
        for (name, effects) in &self.open {
            self.udp.service_changed(name, effects.has_udp_endpoints);
        }
        self.udp.committed(tables);
        if deletes_clients {
            // Until now, a client that was remembered there could make a flow to an endpoint that is gone.
            self.udp.all_changed();
        }
    }

    /// The sync succeeded, but for these Services, which the kernel refuses; for each of these, whether it has rules from before, which then stay in
    /// force with all that follows from them.
    pub(super) fn committed(&mut self, held_back: &BTreeMap<&ObjectName, bool>, families: &[Family]) {
        self.health_checks.forget_adopted();
        let mut localhost = Vec::new();
        for (name, effects) in std::mem::take(&mut self.open) {
            let committed = match held_back.get(&name) {
                None => Committed::AsPlanned(effects),
                Some(false) => Committed::Without(effects),
                Some(true) => continue,
            };
            self.health_checks.committed(&name, &committed, families);
            let effects = match committed {
                Committed::AsPlanned(effects) => effects,
                Committed::Without(_) => Effects::default(),
            };
            self.no_local_endpoints.set_service(&name, effects.no_local_endpoints);
            if self.localhost.is_some() {
                localhost.push((name, effects.localhost));
            }
        }
        self.localhost.iter().for_each(|feed| feed.put(std::mem::take(&mut localhost)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::localhost;
    use rules::endpoints::Gathered;
    use rules::model::testing::{name, port, service, slice, slice_port, state};
    use rules::model::{Event, TrafficPolicy};

    const FAMILIES: [Family; 1] = [Family::V4];

    fn observers() -> Observers {
        Observers { localhost: Some(Feed::default()), ..Observers::default() }
    }

    /// What follows from a Service with policy Local and these endpoints, `local` of them on this node.
    fn effects(health_port: u16, local: usize, elsewhere: usize) -> Effects {
        let mut web = service("ns/web", &["172.30.0.1"]);
        web.external_policy = TrafficPolicy::Local;
        web.health_check_node_port = Some(health_port);
        web.ports = vec![port("http", 80)];
        web.ports[0].node_port = Some(30080);
        let endpoints: Vec<String> = (0..local)
            .map(|n| format!("10.0.0.{n} @here"))
            .chain((0..elsewhere).map(|n| format!("10.0.1.{n} @there")))
            .collect();
        let endpoints: Vec<&str> = endpoints.iter().map(String::as_str).collect();
        let slice = slice("ns/web-1", "ns/web", &[slice_port("http", 8080)], &endpoints);
        let state = state([Event::ServiceApplied(web), Event::SliceApplied(slice)]);
        let selection = Gathered::of(&state, &name("ns/web")).select().expect("the Service is there");
        Effects {
            has_udp_endpoints: Some(false),
            no_local_endpoints: super::super::no_local_endpoints::counts(Some(&selection)),
            localhost: localhost::node_ports(&selection, Family::V4),
            health_checks: selection.health_checks,
        }
    }

    /// What health-check node ports answer, how many ports lack a local endpoint, and the numbers of node ports on loopback that were brought since
    /// the last call.
    fn told(observers: &Observers) -> (Vec<(u16, usize)>, usize, Vec<usize>) {
        let checks = observers.health_checks.snapshot();
        let checks = checks.checks.values().map(|check| (check.port, check.local_endpoints)).collect();
        let fed = observers.localhost.as_ref().expect("it is served").take();
        let lacking = observers.no_local_endpoints.total(Family::V4).external;
        (checks, lacking, fed.values().map(Vec::len).collect())
    }

    // What is not committed does not count; a Service that is held back keeps what follows from its rules, or has nothing without rules (G9).
    #[test]
    fn observers_know_the_rules_in_force() {
        let [web, late] = ["ns/web", "ns/late"].map(name);
        let mut observers = observers();
        observers.planned(&web, effects(30000, 1, 0), &FAMILIES);
        assert_eq!(told(&observers), (vec![], 0, vec![]), "not committed yet");
        observers.committed(&BTreeMap::new(), &FAMILIES);
        assert_eq!(told(&observers), (vec![(30000, 1)], 0, vec![1]));

        observers.planned(&web, effects(30001, 0, 1), &FAMILIES);
        observers.planned(&late, effects(30002, 3, 0), &FAMILIES);
        observers.committed(&BTreeMap::from([(&web, true), (&late, false)]), &FAMILIES);
        assert_eq!(
            told(&observers),
            (vec![(30002, 0), (30000, 1)], 0, vec![0]),
            "web has its rules of before, late has none"
        );

        observers.planned(&web, effects(30001, 0, 1), &FAMILIES);
        observers.committed(&BTreeMap::from([(&web, false)]), &FAMILIES);
        assert_eq!(told(&observers), (vec![(30002, 0), (30000, 0)], 0, vec![0]), "its rules are gone");

        observers.planned(&web, effects(30001, 0, 1), &FAMILIES);
        observers.planned(&late, Effects::default(), &FAMILIES);
        observers.committed(&BTreeMap::new(), &FAMILIES);
        assert_eq!(told(&observers), (vec![(30001, 0)], 1, vec![0, 0]));
    }

    #[test]
    fn services_that_mean_nothing_to_observers_are_not_kept() {
        let web = name("ns/web");
        let mut observers = Observers::default();
        let nothing = Effects { has_udp_endpoints: Some(false), ..Effects::default() };
        observers.planned(&web, nothing.clone(), &FAMILIES);
        assert!(observers.open.is_empty());
        observers.planned(&web, effects(30000, 1, 0), &FAMILIES);
        observers.committed(&BTreeMap::new(), &FAMILIES);
        observers.planned(&web, nothing, &FAMILIES);
        observers.committed(&BTreeMap::new(), &FAMILIES);
        assert_eq!(observers.health_checks.snapshot().checks.len(), 0, "what it meant before is taken back");
    }
}
