//! Finds node ports that the kernel may give to programs of this node as ephemeral ports, and reports each of them once (N6).
//!
//! Takes the Services as they come, and the kernel's port sysctls ([`LocalPorts`]), which are read after each full comparison, also after
//! the first sync. Returns sentences for the log and an event. Invariants: a port is reported once; [`TOLD`] limits how often sentences
//! are returned, and a sentence names at most [`NAMED`] ports with their Services and at most [`NAMED`] ranges to reserve, so that a user
//! who makes many node ports does not fill the log; nothing is kept for a Service without node ports.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use component::config::{DEFAULT_NODE_PORTS, PortRanges};
use component::rates::{Budget, Rate};
use node::kernel::local_ports::LocalPorts;
use rules::model::{ObjectName, Service};

/// How often at most ports are reported; ports that are found in between wait for the next report.
const TOLD: Rate = Rate { at_once: 3, then_every: Duration::from_secs(60) };
/// The most ports that a sentence names with their Services, and the most ranges that it says to reserve.
const NAMED: usize = 5;

/// The node ports that were found and not reported yet, and those that were reported.
#[derive(Debug)]
pub(super) struct EphemeralPorts {
    local: LocalPorts,
    found: BTreeMap<u16, ObjectName>,
    told: BTreeSet<u16>,
    reports: Budget,
}

/// What to say about the node ports that were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    /// Which node ports are concerned.
    pub(super) ports: String,
    /// What may happen.
    pub(super) reason: String,
    /// What to do about it.
    pub(super) remedy: String,
}

impl EphemeralPorts {
    pub(super) fn new(local: LocalPorts) -> Self {
        Self { local, found: BTreeMap::new(), told: BTreeSet::new(), reports: Budget::new(TOLD) }
    }

    /// Takes a Service that was added or changed.
    pub(super) fn service(&mut self, service: &Service) {
        let of_ports = service.ports.iter().filter_map(|port| port.node_port);
        for port in of_ports.chain(service.health_check_node_port) {
            if self.local.gives(port) && !self.told.contains(&port) {
                self.found.insert(port, service.name.clone());
            }
        }
    }

    /// Takes the current sysctls. If they have changed, looks at all Services again.
    pub(super) fn sysctls<'a>(&mut self, local: LocalPorts, services: impl Iterator<Item = &'a Service>) {
        if local != self.local {
            self.local = local;
            self.found.clear();
            services.for_each(|service| self.service(service));
        }
    }

    /// Returns what to say now; `None` if nothing was found, or if enough was said lately.
    pub(super) fn report(&mut self, now: Instant) -> Option<Finding> {
        if self.found.is_empty() || !self.reports.try_take(now) {
            return None;
        }
        let found = std::mem::take(&mut self.found);
        let named: Vec<String> =
            found.iter().take(NAMED).map(|(port, service)| format!("{port} ({service})")).collect();
        let more = found.len().saturating_sub(NAMED);
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        let ports = PortRanges::of(found.keys().map(|port| range_of(*port)));
        self.told.extend(found.into_keys());
        Some(Finding {
            ports: format!("{}{more}", named.join(", ")),
            reason: format!(
                "the kernel may give them to programs of this node (net.ipv4.ip_local_port_range is {}): such a program does not get the \
                 packets to its port, which go to the Service, and a health check cannot listen there",
                self.local.ephemeral
            ),
            remedy: self.remedy(&ports),
        })
    }

    /// Returns how to reserve these ports. Ports in many ranges are those of another range than the default, and more of them may come; so
    /// the operator is to reserve the whole range, which this process does not know.
    fn remedy(&self, ports: &PortRanges) -> String {
        if ports.ranges() > NAMED {
            return "reserve the range of node ports (--service-node-port-range of the API server) with --reserve-node-ports, or in \
                    net.ipv4.ip_local_reserved_ports on the node"
                .to_owned();
        }
        format!("set {} on the node, or let a start do it with --reserve-node-ports={ports}", self.local.line(ports))
    }
}

/// Returns the range to reserve for a node port: the range of default node ports if the port is in it, else the port alone.
fn range_of(port: u16) -> (u16, u16) {
    let (first, last) = DEFAULT_NODE_PORTS;
    if (first..=last).contains(&port) { (first, last) } else { (port, port) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::model::testing::{port, service};

    fn local(ephemeral: &str, reserved: &str) -> LocalPorts {
        LocalPorts { ephemeral: ephemeral.parse().unwrap(), reserved: reserved.parse().unwrap() }
    }

    fn with_node_port(name: &str, node_port: u16) -> Service {
        let mut web = service(name, &["10.96.0.1"]);
        web.ports = vec![port("http", 80)];
        web.ports[0].node_port = Some(node_port);
        web
    }

    // A node port in the ephemeral range that is not reserved is named once, with the line that reserves it (N6).
    #[test]
    fn a_node_port_that_programs_may_get_is_named_once() {
        let (mut ports, now) = (EphemeralPorts::new(local("1024-65535", "8080,31000")), Instant::now());
        let checked = Service { health_check_node_port: Some(40_000), ..with_node_port("shop/checked", 31_000) };
        for service in [with_node_port("shop/web", 30_080), checked, with_node_port("shop/low", 80)] {
            ports.service(&service);
        }
        let found = ports.report(now).unwrap();
        assert_eq!(found.ports, "30080 (shop/web), 40000 (shop/checked)");
        assert_eq!(
            found.remedy,
            "set net.ipv4.ip_local_reserved_ports = 8080,30000-32767,40000 on the node, or let a start do it with \
             --reserve-node-ports=30000-32767,40000"
        );
        ports.service(&with_node_port("shop/web", 30_080));
        assert_eq!(ports.report(now), None, "the same content again");
    }

    #[test]
    fn many_new_node_ports_are_few_sentences() {
        let (mut ports, start) = (EphemeralPorts::new(local("1024-65535", "")), Instant::now());
        let mut said = Vec::new();
        for n in 0..600_u16 {
            ports.service(&with_node_port("tenant/web", 2_000 + n));
            said.extend(ports.report(start + Duration::from_millis(100) * n.into()));
        }
        assert!((3..=5).contains(&said.len()), "{said:?}");
        said.extend(ports.report(start + Duration::from_secs(600)));
        let last = said.last().unwrap();
        assert!(last.ports.contains(" more") && last.ports.matches("tenant/web").count() == NAMED, "{last:?}");
    }

    // Ports outside the default range are named as long as they are few; the operator knows the range of many.
    #[test]
    fn a_remedy_is_short_however_scattered_the_ports_are() {
        let remedy = |count: u16| {
            let mut ports = EphemeralPorts::new(local("1024-65535", ""));
            (0..count).for_each(|n| ports.service(&with_node_port("tenant/web", 40_000 + 2 * n)));
            ports.report(Instant::now()).unwrap().remedy
        };
        assert!(remedy(5).ends_with("--reserve-node-ports=40000,40002,40004,40006,40008"), "{}", remedy(5));
        assert!(remedy(6).contains("--service-node-port-range"), "{}", remedy(6));
        assert_eq!(remedy(6), remedy(10_000));
    }

    #[test]
    fn sysctls_that_change_are_judged_for_all_services() {
        let (mut ports, now) = (EphemeralPorts::new(local("32768-60999", "")), Instant::now());
        let web = with_node_port("shop/web", 30_080);
        ports.service(&web);
        assert_eq!(ports.report(now), None, "the default ranges do not overlap");
        ports.sysctls(local("1024-65535", ""), std::iter::once(&web));
        assert_eq!(ports.report(now).map(|found| found.ports).as_deref(), Some("30080 (shop/web)"));
        ports.sysctls(local("1024-65535", "30000-32767"), std::iter::once(&web));
        assert_eq!(ports.report(now), None);
    }
}
