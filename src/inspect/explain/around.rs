//! What the rules that a packet meets do not show: the Service that has its frontend, a dormant table, an address that takes no node ports,
//! a Service that is left out, the userspace proxy for loopback addresses, and tables that are not evaluated.
//!
//! Takes an [`Explanation`] made from the rules; corrects its reason, says whether something is wrong, and adds warnings.

use std::fs;
use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use nft::decode::TableHead;
use nft::{Data, Family, TableName, Value};

use super::localhost;
use super::machine::{Host, Lookup, Ruleset};
use super::packet::{Packet, protocol};
use super::verdict::{Explanation, Verdict, without_notes};
use crate::running::{Problem, ProblemKind};
use node::kernel::routes;
use rules::ruleset::names::set;

/// Corrects an explanation that was made from the rules alone, in two cases: the table is dormant; or the packet is for a node port and the
/// rules let it pass unchanged, because the address accepts no node ports or because the userspace proxy serves loopback addresses.
pub(super) fn correct(
    explanation: &mut Explanation,
    packet: &Packet,
    table: &TableName,
    is_dormant: bool,
    (rules, host): (&mut impl Ruleset, &mut impl Host),
    on_loopback: impl FnOnce(&mut Explanation, &Packet, &str),
) -> Result<()> {
    if is_dormant {
        explanation.is_wrong = true;
        let text = format!(
            "the table {table} is dormant, so that no Service is served: another program has switched its rules off"
        );
        explanation.reason =
            if explanation.verdict == Verdict::Passed { text } else { format!("{}; {text}", explanation.reason) };
        return Ok(());
    }
    if explanation.verdict != Verdict::Passed || explanation.service.is_some() || !packet.has_ports() {
        return Ok(());
    }
    if host.address_type(packet.destination)? != routes::LOCAL {
        return Ok(());
    }
    let Some(service) = owner_of_node_port(packet, table, rules)? else { return Ok(()) };
    if packet.destination.is_loopback() && packet.protocol == protocol::TCP {
        on_loopback(explanation, packet, &service);
    } else {
        let addresses = rules.addresses(table, set::NODEPORT_ADDRESSES)?;
        let family = |address: &&IpAddr| address.is_ipv4() == packet.destination.is_ipv4();
        let accepting: Vec<String> = addresses.iter().filter(family).map(ToString::to_string).collect();
        let accepting = match &accepting[..] {
            [] => "no address of this node does".to_owned(),
            [only] => format!("only {only} does"),
            several => format!("only {} do", several.join(", ")),
        };
        explanation.reason = format!(
            "node port {} is {service}, but {} accepts no node ports: {accepting} (nodePortAddresses)",
            packet.port, packet.destination
        );
        explanation.is_wrong = true;
    }
    explanation.service = Some(service);
    Ok(())
}

/// Explains a connection to a node port on a loopback address of this host: kube-proxy itself may serve it.
pub(super) fn userspace(explanation: &mut Explanation, packet: &Packet, service: &str) {
    let target = SocketAddr::new(packet.destination, packet.port);
    let has = format!("{service} has node port {}", packet.port);
    explanation.reason = match localhost::listener(target) {
        Some(Some(program)) if program.is_kube_proxy() => {
            explanation.verdict = Verdict::Proxied;
            let pid = program.pid;
            format!(
                "{has}; kube-proxy (process {pid}) listens on {target} and connects to one of its endpoints from this host"
            )
        }
        Some(Some(program)) => {
            let (name, pid) = (program.name, program.pid);
            format!("{has}, but {name} (process {pid}) listens on {target}, and no rule stops it")
        }
        Some(None) => {
            format!(
                "{has}; a program listens on {target}, which may be kube-proxy: this process may not see the files of others"
            )
        }
        None => {
            format!("{has}, but no program listens on {target}, and no rule serves node ports on loopback addresses")
        }
    };
}

/// Adds the problems that the running proxy reports, as the reason or as warnings.
pub(super) fn report(explanation: &mut Explanation, packet: &Packet, problems: &[Problem]) {
    for problem in problems {
        let is_at = problem.is_at(Some(packet.destination), None)
            || explanation.service.is_none() && problem.is_at(None, Some(packet.port));
        match problem.kind {
            ProblemKind::Oversized | ProblemKind::Quarantined if is_at => {
                explanation.is_wrong = true;
                if explanation.service.is_none() {
                    explanation.reason = format!("{}; for now: {}", problem.text, explanation.reason);
                    explanation.service.clone_from(&problem.service);
                } else {
                    explanation.warnings.push(problem.text.clone());
                }
            }
            ProblemKind::LostFrontend if is_at => explanation.warnings.push(problem.text.clone()),
            ProblemKind::ApiServerLost | ProblemKind::NodeUnknown | ProblemKind::Waiting | ProblemKind::ProxySilent => {
                explanation.warnings.push(problem.text.clone());
            }
            _ => {}
        }
    }
}

/// The service port that has the packet's frontend, from the maps of either table layout (`maps` or `chains`).
pub(crate) fn owner(packet: &Packet, table: &TableName, rules: &mut impl Ruleset) -> Result<Option<String>> {
    const MAPS: [&str; 4] = [set::SERVICES, set::NO_ENDPOINTS, set::CHAINS_SERVICES, set::NO_ENDPOINTS_EXTERNAL];
    let key = Data::from(packet.destination).then(packet.protocol).then(packet.port);
    named(&key, &MAPS, table, rules)
}

/// The service port that has the packet's node port, from the maps of either table layout (`maps` or `chains`).
pub(crate) fn owner_of_node_port(
    packet: &Packet,
    table: &TableName,
    rules: &mut impl Ruleset,
) -> Result<Option<String>> {
    const MAPS: [&str; 3] = [set::NODEPORTS, set::NO_ENDPOINTS_NODEPORTS, set::CHAINS_NODEPORTS];
    named(&Data::from(packet.protocol).then(packet.port), &MAPS, table, rules)
}

/// The service port in the comment of the first element with this key, in the order of `maps`.
fn named(key: &Data, maps: &[&str], table: &TableName, rules: &mut impl Ruleset) -> Result<Option<String>> {
    let key = [key.as_slice(), &[0; 64]].concat();
    for map in maps {
        if let Lookup::Found(element) = rules.find(table, map, &key, 0)?
            && matches!(element.value, Value::Verdict(_))
            && let Some(comment) = element.comment
        {
            return Ok(Some(without_notes(&comment).to_owned()));
        }
    }
    Ok(None)
}

/// Warns of tables that may stop or change the packet and are not evaluated.
pub(super) fn beyond(tables: &[TableHead], family: Family) -> Vec<String> {
    /// The families whose chains see a packet before those of IP, with their numbers (`NFPROTO_NETDEV`, `NFPROTO_BRIDGE`).
    const EARLIER: [(u8, &str); 2] = [(5, "netdev"), (7, "bridge")];
    let earlier = EARLIER.into_iter().flat_map(|(number, name)| {
        let of_family = tables.iter().filter(move |table| table.family == number && !table.dormant);
        of_family.map(move |table| {
            format!(
                "table {name} {} of another program may see the packet earlier, and its rules are not evaluated",
                table.name
            )
        })
    });
    let file = if family == Family::Ip6 { "ip6_tables_names" } else { "ip_tables_names" };
    // Without the module of iptables there is no such file.
    let legacy = fs::read_to_string(format!("/proc/thread-self/net/{file}")).unwrap_or_default();
    let legacy = legacy.lines().map(|table| {
        format!("table {table} of iptables-legacy may stop or change the packet, and its rules are not evaluated")
    });
    earlier.chain(legacy).collect()
}
