//! The part of the state that the health-check node ports show, kept as Services become dirty.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use nft::{Data, TableDump};

use crate::config::Config;
use crate::health::{Check, CheckName, Snapshot};
use crate::model::{Family, Node, ObjectName};
use crate::ruleset::{NODEPORT_IPS, NodePorts, notes};
use crate::select::health::HealthCheck;

use super::settings;

/// The health checks of all Services. Copied on write: a snapshot that was handed out does not change.
#[derive(Debug, Default)]
pub(super) struct HealthChecks(Arc<Snapshot>);

impl HealthChecks {
    /// The checks as they are now.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&self.0)
    }

    /// Takes over a Service that became dirty, in the families that this node serves.
    pub(super) fn set_service(&mut self, service: &ObjectName, wanted: &[HealthCheck], families: &[Family]) {
        for family in families {
            let name = CheckName { service: service.clone(), family: *family };
            let check = wanted.iter().find(|check| check.family == *family);
            let check = check.map(|check| Check { port: check.port, local_endpoints: check.local_endpoints });
            if self.0.checks.get(&name) == check.as_ref() {
                continue;
            }
            let checks = &mut Arc::make_mut(&mut self.0).checks;
            match check {
                Some(check) => checks.insert(name, check),
                None => checks.remove(&name),
            };
        }
    }

    /// Takes over what the rules of a process before this one say, until [`HealthChecks::clear`]. With `primary`, these are also
    /// all that tells the node's addresses.
    pub(super) fn adopt(&mut self, config: &Config, family: Family, dump: &TableDump) {
        let snapshot = Arc::make_mut(&mut self.0);
        if config.node_port_addresses.primary {
            let listed = dump.sets.get(NODEPORT_IPS).into_iter().flat_map(|(_, elements)| elements);
            let listed: Vec<IpAddr> = listed.filter_map(|element| address(&element.key)).collect();
            add_new(&mut snapshot.listen, listed);
        }
        let elements = dump.sets.get(notes::HEALTH_CHECKS).into_iter().flat_map(|(_, elements)| elements);
        let notes = elements.filter_map(notes::health_check);
        let checks = notes
            .map(|(service, port, local_endpoints)| (CheckName { service, family }, Check { port, local_endpoints }));
        snapshot.checks.extend(checks);
    }

    /// Drops what was taken over from a process before this one: the objects are known now.
    pub(super) fn clear(&mut self) {
        Arc::make_mut(&mut self.0).checks.clear();
    }

    /// Takes over the node's addresses.
    pub(super) fn set_node(&mut self, config: &Config, node: Option<&Node>, interfaces: &[IpAddr]) {
        let listen = Family::BOTH.into_iter().flat_map(|family| listen(config, node, interfaces, family)).collect();
        if self.0.listen != listen {
            Arc::make_mut(&mut self.0).listen = listen;
        }
    }
}

fn address(key: &Data) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(key.as_slice()).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(key.as_slice()).map(IpAddr::from)).ok()
}

/// Where the servers of a family listen (K5): like node ports, but loopback counts. Every node has some address, so none at
/// all means that they could not be listed.
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
            let ranges: Vec<_> = ranges.collect();
            let in_ranges = |ip: &IpAddr| ranges.iter().any(|range| range.contains(ip));
            let mut listed = interfaces.iter().copied().filter(in_ranges).collect();
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
