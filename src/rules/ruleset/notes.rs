//! Notes in the table that no rule needs: a map with the health checks' answers, for the process that runs after a restart, and notes in the
//! comments of frontends, for the commands that show the tables.
//!
//! The kernel keeps the map with the rules. So a process that starts while no API server answers can read the map and answer on the
//! health-check node ports, and load balancers keep the node in service. The map is separate, because the number of local endpoints changes
//! often and a map of verdicts is costly to change. [`health_check`] parses the elements that `element` makes.
//!
//! The key is the health-check port followed by a frontend that the Service owns, so no two Services have the same key.

use std::sync::Arc;

use nft::{Data, DataType, Element, Set, Types, Value, ValueType};

use super::names::set::HEALTH_CHECKS;
use super::shared::{Fields, comment, commented};
use crate::endpoints::{Action, FrontendSelection, PortSelection};
use crate::model::{Destination, Family, FrontendKind, ObjectName, TrafficPolicy};

/// A note that follows the name in the comment of a frontend of kind external IP. Its elements and rules are otherwise like those of a load
/// balancer IP without source ranges.
pub const EXTERNAL_IP: &str = "(external IP)";
/// A note that follows the name in the comment of a frontend without endpoints whose traffic policy is Local. The rules refuse its packets
/// as with policy Cluster, so only this note shows the policy.
pub const POLICY_LOCAL: &str = "(policy Local)";

/// The name of the service port in the comment of a frontend, without the notes that may follow it.
#[must_use]
pub fn service_port(comment: &str) -> &str {
    comment.split(' ').next().unwrap_or(comment)
}

/// The comment of a frontend: the name of the service port, and notes on facts that the rules do not show. Only frontends that these facts
/// concern get a note, because notes take kernel memory.
pub(super) fn on_frontend(label: &Arc<str>, frontend: &FrontendSelection) -> Arc<str> {
    let is_external_ip = frontend.kind == FrontendKind::ExternalIp;
    let hides_local = frontend.action == Action::Reject && frontend.policy == TrafficPolicy::Local;
    let notes = [is_external_ip.then_some(EXTERNAL_IP), hides_local.then_some(POLICY_LOCAL)];
    let words: Vec<&str> = std::iter::once(&**label).chain(notes.into_iter().flatten()).collect();
    if words.len() == 1 { comment(label) } else { comment(&words.join(" ").into()) }
}

/// The map of the health checks' answers in a family.
pub(super) fn set(family: Family) -> Set {
    let frontend = [Fields::of(family).address, DataType::InetProto, DataType::InetService];
    let key = [DataType::InetService].into_iter().chain(frontend).collect();
    let count = ValueType::Data(Types::Named(vec![DataType::Mark]));
    let set = Set::map(HEALTH_CHECKS, Types::Named(key), count);
    commented(set, "Health-check node port . cluster IP . service port : local endpoints; for the next process")
}

/// The element with the answer of the Service's health-check node port. `None` if the Service has no such port, for any port but the first,
/// if the Service does not own the frontend of its cluster IP, and for a Service name that is too long for a comment (the API accepts none).
pub(super) fn element(port: &PortSelection) -> Option<Element> {
    let check = port.health_check?;
    let frontend = port.frontends.iter().find(|frontend| frontend.kind == FrontendKind::ClusterIp)?.frontend;
    let Destination::Address(ip) = frontend.destination else { return None };
    // The port's name follows after a colon, which the name of a Service never contains.
    let service = port.label.split(':').next().filter(|service| service.len() <= Element::MAX_COMMENT)?;
    let key = Data::from(check.port).then(ip).then(frontend.protocol.number()).then(frontend.port);
    let count = u32::try_from(check.local_endpoints).unwrap_or(u32::MAX);
    let element = Element::mapping(key, Value::Data(count.into()));
    Some(Element { comment: Some(Arc::from(service)), ..element })
}

/// Parses an element of the map with the health checks' answers: the Service, the health-check port and the number of local endpoints. `None`
/// if one of these cannot be parsed.
#[must_use]
pub fn health_check(element: &Element) -> Option<(ObjectName, u16, usize)> {
    let (namespace, name) = element.comment.as_deref()?.split_once('/')?;
    let port = u16::from_be_bytes(*element.key.as_slice().first_chunk()?);
    let Value::Data(count) = &element.value else { return None };
    let count = u32::from_ne_bytes(count.as_slice().try_into().ok()?);
    Some((ObjectName::new(namespace, name), port, usize::try_from(count).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoints::select;
    use crate::model::testing::{self, port, service, slice, slice_port};
    use crate::model::{Event, Service};

    /// The elements for a Service with these ports and one local endpoint, in a cluster with these other Services.
    fn elements(name: &str, ports: &[&str], others: Vec<Service>) -> Vec<Element> {
        let mut web = service(name, &["172.30.0.1", "fd30::1"]);
        web.health_check_node_port = Some(30000);
        web.external_ips = vec!["192.0.2.9".parse().unwrap()];
        web.ports = (80..).zip(ports).map(|(number, name)| port(name, number)).collect();
        let endpoints = slice("ns/a", name, &[slice_port(ports[0], 8080)], &["10.0.0.1 @here", "10.0.0.2 @there"]);
        let others = others.into_iter().map(Event::ServiceApplied);
        let events = others.chain([Event::ServiceApplied(web), Event::SliceApplied(endpoints)]);
        let selection = select(&testing::state(events), &testing::name(name)).unwrap();
        selection.ports.iter().filter_map(element).collect()
    }

    // The number of local endpoints that a health-check node port reports is kept in the table (K2).
    #[test]
    fn a_service_has_one_element_a_family_and_it_is_read_back() {
        for ports in [&["http", "https"][..], &[""]] {
            let elements = elements("ns/web", ports, Vec::new());
            let read: Vec<_> = elements.iter().map(health_check).collect();
            let web = |count| Some((ObjectName::new("ns", "web"), 30000, count));
            assert_eq!(read, [web(1), web(0)], "{ports:?}");
        }
    }

    #[test]
    fn the_longest_service_name_that_the_api_allows_fits_into_a_comment() {
        let name = |service: usize| format!("{}/{}", "n".repeat(63), "s".repeat(service));
        let read = elements(&name(63), &["http"], Vec::new()).iter().filter_map(health_check).next();
        assert_eq!(read, Some((testing::name(&name(63)), 30000, 1)));
        assert_eq!(elements(&name(64), &["http"], Vec::new()), []);
    }

    #[test]
    fn two_services_have_no_key_in_common() {
        let same = Service { created: -1, ports: vec![port("http", 80)], ..service("ns/older", &["172.30.0.1"]) };
        let [v6] = &elements("ns/web", &["http"], vec![same])[..] else { panic!("the IPv4 frontend is another's") };
        assert_eq!(v6.key.len(), 4 + 16 + 4 + 4);
    }

    #[test]
    fn other_elements_tell_nothing() {
        let good = elements("ns/web", &["http"], Vec::new()).remove(0);
        assert!(health_check(&good).is_some());
        for other in [
            Element { comment: None, ..good.clone() },
            Element { comment: Some("web".into()), ..good.clone() },
            Element { value: Value::None, ..good.clone() },
            Element { value: Value::Data(Data::from(7_u16)), ..good.clone() },
            Element { key: Data::EMPTY, ..good },
        ] {
            assert_eq!(health_check(&other), None, "{other:?}");
        }
    }
}
