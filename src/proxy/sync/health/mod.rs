//! The health checks that the health-check node ports report, taken from the rules in force.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use nft::TableDump;

use crate::health::{Check, CheckName, Snapshot};
use component::config::Config;
use rules::model::{Family, Node, ObjectName, Ranges};
use rules::ruleset::names::set::{HEALTH_CHECKS, NODEPORT_ADDRESSES};
use rules::ruleset::{NodePorts, notes, reading};

use super::effects::Committed;
use super::settings;

/// The health checks of all Services. Copied on write: a snapshot that was handed out does not change.
#[derive(Debug, Default)]
pub(super) struct HealthChecks {
    /// The health checks that the rules in force ask for, and the addresses to listen on.
    now: Arc<Snapshot>,
    /// Whether the health checks were read from the rules of an earlier process.
    adopted: bool,
    /// The families that are not programmed, because another program owns their tables.
    unserved: Vec<Family>,
}

impl HealthChecks {
    /// Returns the checks of the rules in force.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        let mut snapshot = Arc::clone(&self.now);
        let is_unserved = |name: &CheckName| self.unserved.contains(&name.family);
        if snapshot.checks.keys().any(is_unserved) {
            let checks = &mut Arc::make_mut(&mut snapshot).checks;
            checks.iter_mut().filter(|(name, _)| is_unserved(name)).for_each(|(_, check)| check.local_endpoints = 0);
        }
        snapshot
    }

    /// Sets the families that are not programmed: their checks report no endpoints.
    pub(super) fn set_unserved(&mut self, families: impl Iterator<Item = Family>) {
        self.unserved = families.collect();
    }

    /// Whether a Service has a check in a family.
    pub(super) fn has(&self, service: &ObjectName, family: Family) -> bool {
        !self.now.checks.is_empty() && self.now.checks.contains_key(&CheckName { service: service.clone(), family })
    }

    /// Drops the checks that were read from an earlier process's rules, because the first rules of this process are committed.
    pub(super) fn forget_adopted(&mut self) {
        if std::mem::take(&mut self.adopted) {
            Arc::make_mut(&mut self.now).checks.clear();
        }
    }

    /// Takes over the checks of a Service whose rules are committed, in the families that this node serves. For a Service without rules,
    /// the check reports no endpoints, and keeps its previous port if it had one (G9).
    pub(super) fn committed(&mut self, service: &ObjectName, committed: &Committed, families: &[Family]) {
        let (Committed::AsPlanned(effects) | Committed::Without(effects)) = committed;
        for family in families {
            let name = CheckName { service: service.clone(), family: *family };
            let planned = effects.health_checks.iter().find(|check| check.family == *family);
            let planned = planned.map(|check| Check { port: check.port, local_endpoints: check.local_endpoints });
            let check = match committed {
                Committed::AsPlanned(_) => planned,
                Committed::Without(_) => {
                    let before = self.now.checks.get(&name).copied();
                    before.or(planned).map(|check| Check { local_endpoints: 0, ..check })
                }
            };
            self.set(name, check);
        }
    }

    fn set(&mut self, name: CheckName, check: Option<Check>) {
        if self.now.checks.get(&name) == check.as_ref() {
            return;
        }
        let checks = &mut Arc::make_mut(&mut self.now).checks;
        match check {
            Some(check) => checks.insert(name, check),
            None => checks.remove(&name),
        };
    }

    /// Takes over the checks in the rules of an earlier process, until [`HealthChecks::forget_adopted`]. With `primary` in
    /// `nodePortAddresses`, these rules are also the only source of the node's addresses before the Node is known.
    pub(super) fn adopt(&mut self, config: &Config, family: Family, dump: &TableDump) {
        self.adopted = true;
        let snapshot = Arc::make_mut(&mut self.now);
        if config.node_port_addresses.primary {
            let listed = dump.sets.get(NODEPORT_ADDRESSES).into_iter().flat_map(|(_, elements)| elements);
            let listed: Vec<IpAddr> = listed.filter_map(|element| reading::address(element.key())).collect();
            add_new(&mut snapshot.listen, listed);
        }
        let elements = dump.sets.get(HEALTH_CHECKS).into_iter().flat_map(|(_, elements)| elements);
        let notes = elements.filter_map(|element| notes::health_check(&element.element()));
        let checks = notes
            .map(|(service, port, local_endpoints)| (CheckName { service, family }, Check { port, local_endpoints }));
        snapshot.checks.extend(checks);
    }

    /// Sets the addresses to listen on from the node's addresses.
    pub(super) fn set_node(&mut self, config: &Config, node: Option<&Node>, interfaces: &[IpAddr]) {
        let listen = Family::BOTH.into_iter().flat_map(|family| listen(config, node, interfaces, family)).collect();
        if self.now.listen != listen {
            Arc::make_mut(&mut self.now).listen = listen;
        }
    }
}

/// Returns the addresses at which the servers of a family listen (K5): those that accept node ports, and loopback addresses that a
/// configured range contains. Every node has some address, so if `interfaces` is empty, the addresses could not be listed: then the servers
/// of a family with configured ranges listen at all addresses.
fn listen(config: &Config, node: Option<&Node>, interfaces: &[IpAddr], family: Family) -> Vec<IpAddr> {
    let addresses = &config.node_port_addresses;
    let unspecified = match family {
        Family::V4 => Ipv4Addr::UNSPECIFIED.into(),
        Family::V6 => Ipv6Addr::UNSPECIFIED.into(),
    };
    let mut ranges = addresses.ranges.iter().filter(|range| Family::of(range.addr()) == family).peekable();
    match settings::node_ports(addresses, family) {
        NodePorts::Everywhere => vec![unspecified],
        NodePorts::Listed if ranges.peek().is_some() && interfaces.is_empty() => vec![unspecified],
        NodePorts::Listed => {
            let ranges: Ranges = ranges.copied().collect();
            let mut listed = interfaces.iter().copied().filter(|ip| ranges.contains(*ip)).collect();
            add_new(&mut listed, settings::primary_addresses(config, node).filter(|ip| Family::of(*ip) == family));
            listed
        }
    }
}

fn add_new(list: &mut Vec<IpAddr>, more: impl IntoIterator<Item = IpAddr>) {
    for ip in more {
        if !list.contains(&ip) {
            list.push(ip);
        }
    }
}

#[cfg(test)]
mod tests;
