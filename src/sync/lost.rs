//! The report about Services that do not get a front that they claim.
//!
//! Takes conflicts, gives one text for each Service, however many ports it has.

use std::collections::BTreeMap;

use crate::model::{Conflict, ObjectName};

/// A Service that does not get all the fronts that it claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostClaims {
    /// The Service.
    pub service: ObjectName,
    /// One of the fronts with the reason, and the number of the others.
    pub reason: String,
}

/// The conflicts by the Service that loses.
pub(super) fn by_loser(conflicts: &[Conflict]) -> Vec<LostClaims> {
    let mut by_loser: BTreeMap<&ObjectName, Vec<&Conflict>> = BTreeMap::new();
    for conflict in conflicts {
        by_loser.entry(&conflict.loser).or_default().push(conflict);
    }
    let reports = by_loser.into_iter().filter_map(|(service, conflicts)| {
        let (first, others) = conflicts.split_first()?;
        let more =
            if others.is_empty() { String::new() } else { format!("; {} more of its fronts alike", others.len()) };
        Some(LostClaims { service: service.clone(), reason: format!("{first}{more}") })
    });
    reports.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing::{name, port, service, state};
    use crate::model::{Event, Service};

    #[test]
    fn a_service_is_named_once_whatever_it_loses() {
        let taker = |service_name: &str, own: &str, ports: &[u16]| Service {
            external_ips: vec!["10.96.0.1".parse().unwrap()],
            ports: ports.iter().map(|number| port(&number.to_string(), *number)).collect(),
            ..service(service_name, &[own])
        };
        let dns = Service {
            ports: [53, 80, 9153].map(|n| port(&n.to_string(), n)).into(),
            ..service("a/dns", &["10.96.0.1"])
        };
        let mut state = state([
            Event::ServiceApplied(dns),
            Event::ServiceApplied(taker("b/one", "10.96.0.2", &[53, 80, 9153])),
            Event::ServiceApplied(taker("b/two", "10.96.0.3", &[9153])),
        ]);
        let reports = by_loser(&state.take_conflicts());
        let reason = "Services a/dns and b/one both claim 10.96.0.1 port 53/tcp; a/dns gets it, because a cluster IP comes \
                      before an external IP; 2 more of its fronts alike";
        assert_eq!(reports[0], LostClaims { service: name("b/one"), reason: reason.to_owned() });
        assert_eq!((reports.len(), &reports[1].service), (2, &name("b/two")));
        assert!(reports[1].reason.ends_with("external IP"), "{}", reports[1].reason);
    }
}
