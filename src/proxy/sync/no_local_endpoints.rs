//! Counts the service ports that have endpoints in the cluster, but none on this node although their traffic policy is `Local`.

use foldhash::HashMap;

use rules::endpoints::{Action, PortSelection, ServiceSelection};
use rules::model::{Family, FrontendKind, ObjectName};

/// The numbers of service ports without a usable endpoint on this node, by policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// With internalTrafficPolicy Local.
    pub(super) internal: usize,
    /// With externalTrafficPolicy Local.
    pub(super) external: usize,
}

/// Counts the ports of a Service that lack a local endpoint, by family; all 0 when the Service is gone (`None`).
pub(super) fn counts(selection: Option<&ServiceSelection>) -> [Counts; 2] {
    let ports = selection.map_or(&[][..], |selection| &selection.ports);
    Family::BOTH.map(|family| {
        let of_family = || ports.iter().filter(|port| port.family == family);
        Counts {
            internal: of_family().filter(|port| lacks_internal(port)).count(),
            external: of_family().filter(|port| lacks_external(port)).count(),
        }
    })
}

/// The counts that are not 0, by Service and family.
#[derive(Debug, Default)]
pub(super) struct NoLocalEndpoints(HashMap<(ObjectName, Family), Counts>);

impl NoLocalEndpoints {
    /// Sets the counts of a Service, by family.
    pub(super) fn set_service(&mut self, name: &ObjectName, counts: [Counts; 2]) {
        for (family, counts) in Family::BOTH.into_iter().zip(counts) {
            if counts != Counts::default() {
                self.0.insert((name.clone(), family), counts);
            } else if !self.0.is_empty() {
                self.0.remove(&(name.clone(), family));
            }
        }
    }

    /// Whether a Service has a port without a local endpoint in a family.
    pub(super) fn has(&self, name: &ObjectName, family: Family) -> bool {
        !self.0.is_empty() && self.0.contains_key(&(name.clone(), family))
    }

    /// Returns the sum of the counts of all Services in a family.
    pub(super) fn total(&self, family: Family) -> Counts {
        let of_family = self.0.iter().filter(|((_, other), _)| *other == family);
        of_family.fold(Counts::default(), |sum, (_, counts)| Counts {
            internal: sum.internal + counts.internal,
            external: sum.external + counts.external,
        })
    }
}

/// Whether the cluster has endpoints for the port, but none on this node, so that traffic to the cluster IP is dropped (D2).
fn lacks_internal(port: &PortSelection) -> bool {
    port.frontends.iter().any(|frontend| frontend.kind == FrontendKind::ClusterIp && frontend.action == Action::Drop)
}

/// Whether external traffic is dropped because no endpoint is on this node (D3, D6).
fn lacks_external(port: &PortSelection) -> bool {
    port.local.is_empty() && port.frontends.iter().any(|frontend| frontend.action == Action::ByOrigin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::endpoints::select;
    use rules::model::testing::{name, port, service, slice, slice_port, state};
    use rules::model::{Event, Service, TrafficPolicy};

    const WEB: &str = "ns/web";

    fn local(internal: TrafficPolicy, external: TrafficPolicy) -> Service {
        let mut web = service(WEB, &["172.30.0.1", "fd30::1"]);
        web.external_ips = vec!["192.0.2.1".parse().unwrap()];
        (web.internal_policy, web.external_policy) = (internal, external);
        web.ports = vec![port("http", 80), port("https", 443)];
        web
    }

    fn total(service: Service, endpoints: &[&str]) -> [(usize, usize); 2] {
        let ports = [slice_port("http", 8080), slice_port("https", 8443)];
        let slice = slice("ns/web-1", WEB, &ports, endpoints);
        let state = state([Event::ServiceApplied(service), Event::SliceApplied(slice)]);
        let mut counts = NoLocalEndpoints::default();
        counts.set_service(&name(WEB), super::counts(select(&state, &name(WEB)).as_ref()));
        Family::BOTH.map(|family| counts.total(family)).map(|counts| (counts.internal, counts.external))
    }

    #[test]
    fn only_ports_with_endpoints_elsewhere_count() {
        // Ports without any endpoint do not count (D2, D3, P8).
        use TrafficPolicy::{Cluster, Local};
        let elsewhere = &["10.0.0.1 @there"];
        assert_eq!(total(local(Local, Cluster), elsewhere), [(2, 0), (0, 0)]);
        assert_eq!(total(local(Cluster, Local), elsewhere), [(0, 2), (0, 0)]);
        assert_eq!(total(local(Local, Local), elsewhere), [(2, 2), (0, 0)]);
        assert_eq!(total(local(Cluster, Cluster), elsewhere), [(0, 0); 2]);
        assert_eq!(total(local(Local, Local), &["10.0.0.1 @there", "10.0.0.2 @here"]), [(0, 0); 2]);
        assert_eq!(total(local(Local, Local), &[]), [(0, 0); 2], "no endpoint at all is another matter");
        assert_eq!(total(local(Local, Local), &["10.0.0.1 @there dead"]), [(0, 0); 2]);
    }

    #[test]
    fn a_service_that_is_deleted_or_has_local_endpoints_again_does_not_count() {
        let web = local(TrafficPolicy::Local, TrafficPolicy::Local);
        let slice = slice("ns/web-1", WEB, &[slice_port("http", 8080)], &["10.0.0.1 @there"]);
        let state = state([Event::ServiceApplied(web), Event::SliceApplied(slice)]);
        let mut counts = NoLocalEndpoints::default();
        counts.set_service(&name(WEB), super::counts(select(&state, &name(WEB)).as_ref()));
        assert_eq!(counts.total(Family::V4), Counts { internal: 1, external: 1 });
        counts.set_service(&name(WEB), super::counts(None));
        assert_eq!(counts.total(Family::V4), Counts::default());
        assert!(counts.0.is_empty());
    }
}
