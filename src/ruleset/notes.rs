//! Comments on the elements of fronts: which service port it is, and beside a cluster IP what the Service's health-check node port
//! says.
//!
//! The kernel keeps them with the rules. So a process that starts while no API server answers can serve the health-check node ports
//! from what it reads back, and load balancers leave the node in. [`health_check`] reads what `front` writes.

use std::sync::Arc;

use nft::Element;

use super::shared::comment;
use crate::model::{FrontKind, ObjectName};
use crate::select::PortSelection;

const HEALTH_CHECK: &str = "; health check on ";
const COUNT: &str = ", local endpoints: ";

/// The comment on an element for a front of this kind. One that nft could not read back whole goes without the health check.
pub(super) fn front(port: &PortSelection, kind: FrontKind) -> Arc<str> {
    let check = port.health_check.filter(|_| kind == FrontKind::ClusterIp);
    let text = check.map(|check| format!("{}{HEALTH_CHECK}{}{COUNT}{}", port.label, check.port, check.local_endpoints));
    text.filter(|text| text.len() <= Element::MAX_COMMENT).map_or_else(|| comment(&port.label), Arc::from)
}

/// A health check as a comment tells it: the Service, the port and the number of local endpoints.
#[must_use]
pub fn health_check(comment: &str) -> Option<(ObjectName, u16, usize)> {
    let (label, check) = comment.split_once(HEALTH_CHECK)?;
    let (port, count) = check.split_once(COUNT)?;
    let (namespace, name) = label.split_once('/')?;
    let name = name.split_once(':').map_or(name, |(name, _)| name);
    Some((ObjectName::new(namespace, name), port.parse().ok()?, count.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Event;
    use crate::model::testing::{self, port, service, slice, slice_port};
    use crate::select::select;

    /// The notes on the fronts of a Service's ports, each with its kind.
    fn notes(name: &str, ports: &[&str]) -> Vec<(FrontKind, String)> {
        let mut web = service(name, &["172.30.0.1"]);
        web.health_check_node_port = Some(30000);
        web.external_ips = vec!["192.0.2.9".parse().unwrap()];
        web.ports = (80..).zip(ports).map(|(number, name)| port(name, number)).collect();
        let endpoints = slice("ns/a", name, &[slice_port(ports[0], 8080)], &["10.0.0.1 @here", "10.0.0.2 @there"]);
        let state = testing::state([Event::ServiceApplied(web), Event::SliceApplied(endpoints)]);
        let selection = select(&state, &testing::name(name)).unwrap();
        let fronts = selection.ports.iter().flat_map(|port| {
            port.fronts.iter().map(|selected| (selected.kind, front(port, selected.kind).to_string()))
        });
        fronts.collect()
    }

    // K2
    #[test]
    fn one_front_of_a_service_says_what_its_health_check_says() {
        let expected = [
            (FrontKind::ClusterIp, "ns/web:http; health check on 30000, local endpoints: 1"),
            (FrontKind::ExternalIp, "ns/web:http"),
            (FrontKind::ClusterIp, "ns/web:https"),
            (FrontKind::ExternalIp, "ns/web:https"),
        ];
        assert_eq!(notes("ns/web", &["http", "https"]), expected.map(|(kind, text)| (kind, text.to_owned())));
    }

    #[test]
    fn what_is_written_is_read_back() {
        for ports in [["http"], [""]] {
            let (_, note) = &notes("ns/web", &ports)[0];
            assert_eq!(health_check(note), Some((ObjectName::new("ns", "web"), 30000, 1)), "{note}");
        }
        for other in ["ns/web:http", "", "ns/web; health check on x, local endpoints: 1", "web; health check on 1"] {
            assert_eq!(health_check(other), None, "{other}");
        }
    }

    #[test]
    fn a_name_that_leaves_no_room_goes_without() {
        let name = format!("{}/{}", "n".repeat(60), "s".repeat(60));
        let (_, note) = &notes(&name, &["http"])[0];
        assert!(note.len() <= Element::MAX_COMMENT && note.starts_with("nnn"), "{note}");
        assert_eq!(health_check(note), None);
    }
}
