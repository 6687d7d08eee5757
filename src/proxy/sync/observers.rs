//! Passes on the effects of a Service once its rules are committed: to health-check node ports, node ports on loopback addresses, the count
//! of ports without a local endpoint, and the examination of flows.
//!
//! Takes with each [plan](super::planned) the Service's [`Effects`], and keeps the effects until the sync has succeeded (G9); only the
//! examination of flows learns of each transaction. While syncs fail, the effects of before stay. A Service that the kernel refuses keeps
//! the effects of its old rules, if it has old rules.

use std::collections::BTreeMap;
use std::time::Instant;

use super::effects::{Committed, Effects};
use super::flows::Flows;
use super::health::HealthChecks;
use super::no_local_endpoints::NoLocalEndpoints;
use super::tables::Tables;
use crate::localhost::Feed;
use rules::model::{Family, ObjectName, State};

/// All observers of commits; `open` holds the effects that are planned and not committed yet.
#[derive(Default)]
pub(super) struct Observers {
    open: BTreeMap<ObjectName, Effects>,
    pub(super) health_checks: HealthChecks,
    pub(super) no_local_endpoints: NoLocalEndpoints,
    pub(super) flows: Flows,
    /// The channel for the TCP node ports on loopback addresses, if these are served.
    pub(super) localhost: Option<Feed>,
}

impl Observers {
    /// Notes the new plan of a Service. A Service that has no effects now and had none before is not kept: most Services have neither
    /// health checks nor UDP ports.
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
            || self.flows.knows(name)
            || families
                .iter()
                .any(|family| self.health_checks.has(name, *family) || self.no_local_endpoints.has(name, *family))
    }

    /// Notes that the kernel committed a transaction of this sync. To be called before [`Tables::committed`], while `tables` still has the
    /// old records beside the new ones. `deletes_clients`: whether the transaction deleted clients that session affinity remembered.
    pub(super) fn transaction(&mut self, state: &State, tables: &Tables, deletes_clients: bool, now: Instant) {
        for (name, effects) in &self.open {
            self.flows.service_changed(name, effects.has_udp_endpoints);
        }
        self.flows.transaction(state, tables, now);
        if deletes_clients {
            // Until now, session affinity could send a client to an endpoint that is gone, which makes a flow to that endpoint.
            self.flows.all_changed();
        }
    }

    /// Notes that the sync succeeded, except for the Services in `held_back`, which the kernel refuses. The value says whether the Service
    /// has older rules, which then stay in force with all their effects.
    pub(super) fn committed(&mut self, held_back: &BTreeMap<&ObjectName, bool>, families: &[Family], now: Instant) {
        self.flows.committed(now);
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

    /// The effects of a Service with policy Local that has `local` endpoints on this node and `elsewhere` on others.
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

    /// Returns port and number of local endpoints of each health check, how many ports lack a local endpoint, and how many loopback node
    /// ports each Service got since the last call.
    fn told(observers: &Observers) -> (Vec<(u16, usize)>, usize, Vec<usize>) {
        let checks = observers.health_checks.snapshot();
        let checks = checks.checks.values().map(|check| (check.port, check.local_endpoints)).collect();
        let fed = observers.localhost.as_ref().expect("it is served").take();
        let lacking = observers.no_local_endpoints.total(Family::V4).external;
        (checks, lacking, fed.values().map(Vec::len).collect())
    }

    // Effects count once they are committed; a Service that the kernel refuses keeps the effects of its old rules, or has none without
    // rules (G9).
    #[test]
    fn observers_know_the_rules_in_force() {
        let [web, late] = ["ns/web", "ns/late"].map(name);
        let mut observers = observers();
        observers.planned(&web, effects(30000, 1, 0), &FAMILIES);
        assert_eq!(told(&observers), (vec![], 0, vec![]), "not committed yet");
        observers.committed(&BTreeMap::new(), &FAMILIES, Instant::now());
        assert_eq!(told(&observers), (vec![(30000, 1)], 0, vec![1]));

        observers.planned(&web, effects(30001, 0, 1), &FAMILIES);
        observers.planned(&late, effects(30002, 3, 0), &FAMILIES);
        observers.committed(&BTreeMap::from([(&web, true), (&late, false)]), &FAMILIES, Instant::now());
        assert_eq!(
            told(&observers),
            (vec![(30002, 0), (30000, 1)], 0, vec![0]),
            "web has its rules of before, late has none"
        );

        observers.planned(&web, effects(30001, 0, 1), &FAMILIES);
        observers.committed(&BTreeMap::from([(&web, false)]), &FAMILIES, Instant::now());
        assert_eq!(told(&observers), (vec![(30002, 0), (30000, 0)], 0, vec![0]), "its rules are gone");

        observers.planned(&web, effects(30001, 0, 1), &FAMILIES);
        observers.planned(&late, Effects::default(), &FAMILIES);
        observers.committed(&BTreeMap::new(), &FAMILIES, Instant::now());
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
        observers.committed(&BTreeMap::new(), &FAMILIES, Instant::now());
        observers.planned(&web, nothing, &FAMILIES);
        observers.committed(&BTreeMap::new(), &FAMILIES, Instant::now());
        assert_eq!(observers.health_checks.snapshot().checks.len(), 0, "what it meant before is taken back");
    }
}
