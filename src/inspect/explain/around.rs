//! What the rules that a packet meets do not show: the Service that has the packet's destination, a dormant table, an address that takes no
//! node ports, a Service that is left out, the userspace proxy for loopback addresses, and tables that are not evaluated.
//!
//! Takes an [`Explanation`] made from the rules (`explain`) or from the kernel's reports (`trace`); corrects its verdict, Service and reason,
//! says whether something is wrong, and adds warnings.

use std::net::{IpAddr, SocketAddr};

use anyhow::Result;
use nft::decode::TableHead;
use nft::machine::{Host, Lookup, Packet, Ruleset, protocol};
use nft::{Data, TableName, Value};

use super::localhost::Listener;
use super::verdict::{Explanation, Verdict, without_notes};
use super::words;
use crate::names::split_port;
use crate::running::{Problem, ProblemKind};
use node::kernel::routes;
use rules::model;
use rules::ruleset::names::set;
use rules::ruleset::reading;

/// What is known of the node apart from its rules.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known<'a> {
    /// The proxy's table for packets of the family, and whether it is dormant.
    pub(crate) table: &'a TableName,
    pub(crate) is_dormant: bool,
    /// The problems that the proxy reports.
    pub(crate) problems: &'a [Problem],
    /// The Service that the user named, `namespace/name`.
    pub(crate) asked: Option<&'a str>,
}

/// Corrects an explanation that was made from the rules alone, or from the kernel's reports. `listener` finds who listens on a loopback
/// address.
pub(crate) fn correct(
    explanation: &mut Explanation,
    packet: &Packet,
    known: Known<'_>,
    (rules, host): (&mut impl Ruleset, &mut impl Host),
    listener: impl FnOnce(SocketAddr) -> Option<Listener>,
) -> Result<()> {
    let is_passed = explanation.verdict == Verdict::Passed;
    let is_here = packet.has_ports() && host.address_type(packet.destination) == routes::LOCAL;
    if known.is_dormant {
        if is_passed {
            "no Service is served".clone_into(&mut explanation.reason);
        }
        blame(explanation, &Problem::dormant(model::Family::of(packet.source)));
    } else if is_passed && explanation.service.is_some() {
        explanation.is_wrong = true;
    } else if is_passed
        && is_here
        && let Some(service) = owner_of_node_port(packet, known.table, rules)?
    {
        let has = format!("node port {} is {service}", packet.port);
        if packet.destination.is_loopback() && packet.protocol == protocol::TCP {
            on_loopback(explanation, &has, packet.target(), listener(packet.target()));
        } else {
            let elements = rules.elements(known.table, set::NODEPORT_ADDRESSES)?;
            let addresses: Vec<IpAddr> =
                elements.iter().filter_map(|element| reading::address(element.key.as_slice())).collect();
            let accepting = accepting(packet.destination, &addresses);
            explanation.reason =
                format!("{has}, but {} accepts no node ports: {accepting} (nodePortAddresses)", packet.destination);
            explanation.is_wrong = true;
        }
        explanation.service = Some(service);
    }
    translated_once(explanation, packet, known.table, (rules, host))?;
    known.problems.iter().for_each(|problem| report(explanation, packet, is_here, known.asked, problem));
    Ok(())
}

/// Says that a Service has the destination to which another program has translated the packet, and cannot translate it again.
fn translated_once(
    explanation: &mut Explanation,
    packet: &Packet,
    table: &TableName,
    (rules, host): (&mut impl Ruleset, &mut impl Host),
) -> Result<()> {
    let Some((by, to)) = &explanation.translated_before else { return Ok(()) };
    let translated = Packet { destination: to.ip(), port: to.port(), ..packet.clone() };
    let mut service = owner(&translated, table, rules)?;
    if service.is_none() && host.address_type(to.ip()) == routes::LOCAL {
        service = owner_of_node_port(&translated, table, rules)?;
    }
    if let Some(service) = service {
        let text = format!(
            "{service} has {}, but does not get the packet: the kernel translates a connection only once, and {by} does it first",
            words::target(&translated)
        );
        explanation.warnings.push(text);
        explanation.is_wrong = true;
    }
    Ok(())
}

/// Puts a problem in front of the reason.
fn blame(explanation: &mut Explanation, problem: &Problem) {
    explanation.is_wrong = true;
    explanation.reason = format!("{}; for now: {}", problem.text, explanation.reason);
}

/// Says which of these addresses of the node accept node ports.
fn accepting(destination: IpAddr, addresses: &[IpAddr]) -> String {
    let of_family = addresses.iter().filter(|address| address.is_ipv4() == destination.is_ipv4());
    match &of_family.map(ToString::to_string).collect::<Vec<_>>()[..] {
        [] => "no address of this node does".to_owned(),
        [only] => format!("only {only} does"),
        several => format!("only {} do", several.join(", ")),
    }
}

/// Explains a connection to a node port on a loopback address of the host: the program that listens there gets it, perhaps kube-proxy.
fn on_loopback(explanation: &mut Explanation, has: &str, target: SocketAddr, listener: Option<Listener>) {
    let Some(Listener { address, program }) = listener else {
        explanation.is_wrong = true;
        explanation.reason = format!(
            "{has}, but no program listens on {target}, and no rule serves node ports on loopback addresses: the connection is refused"
        );
        return;
    };
    let unless = if address.is_ipv4() == target.is_ipv4() { "" } else { " unless it takes IPv6 only" };
    explanation.reason = match program {
        Some(program) if program.is_kube_proxy() => {
            explanation.verdict = Verdict::Proxied;
            format!("{has}; {program} listens on {address} and connects to one of its endpoints from this host")
        }
        Some(program) => format!("{has}, but {program} listens on {address}, and gets the connection{unless}"),
        None => {
            let why = "this process may not see the files of others";
            format!("{has}; a program listens on {address}, which may be kube-proxy: {why}")
        }
    };
}

/// Adds a problem that the proxy reports, as the reason or as a warning, if it concerns the packet. `is_here` says that the packet goes to a
/// port of this host.
fn report(explanation: &mut Explanation, packet: &Packet, is_here: bool, asked: Option<&str>, problem: &Problem) {
    use ProblemKind::{
        ApiServerLost, LostFrontend, NodeUnknown, Oversized, ProxySilent, Quarantined, TableOwned, Waiting,
    };
    let is_unowned = explanation.service.is_none();
    let protocol = reading::protocol(packet.protocol);
    let port = packet.has_ports().then_some(packet.port);
    let is_at = problem.is_at(Some(packet.destination), port, protocol)
        || is_unowned && is_here && problem.is_at(None, port, protocol);
    let is_asked = asked.is_some() && problem.service.as_deref() == asked;
    let has_it = explanation.service.as_deref().map(|service| split_port(service).0) == asked;
    match problem.kind {
        Oversized | Quarantined if is_at && is_unowned => {
            blame(explanation, problem);
            explanation.service.clone_from(&problem.service);
        }
        LostFrontend if is_at && is_asked && !has_it => blame(explanation, problem),
        Oversized | Quarantined if is_at => {
            explanation.is_wrong = true;
            explanation.warnings.push(problem.text.clone());
        }
        // The packet goes to another port of an address whose Service is left out.
        Oversized | Quarantined if is_unowned && problem.is_at(Some(packet.destination), None, None) => {
            explanation.warnings.push(problem.text.clone());
        }
        LostFrontend if is_at || is_asked => explanation.warnings.push(problem.text.clone()),
        ApiServerLost | NodeUnknown | ProxySilent | TableOwned | Waiting => {
            explanation.warnings.push(problem.text.clone())
        }
        _ => {}
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
pub(super) fn beyond(tables: &[TableHead]) -> Vec<String> {
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
    earlier.collect()
}
