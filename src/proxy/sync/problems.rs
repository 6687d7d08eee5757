//! Makes the list of problems on the health pages: Services that are left out, and frontends that Services do not get.
//!
//! Takes the state, the Services over the limit and those in quarantine; returns bounded lists of sentences. Pure. If not all problems fit,
//! the last sentence of a list counts the others.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::IpAddr;

use super::budget::Oversized;
use super::conflicts;
use inspect::running::{Problem, ProblemKind};
use rules::model::{Conflict, Destination, ObjectName, Protocol, State};

/// The most Services that are named for each reason to leave Services out, and the most ports, addresses and node ports of such a Service.
const LEFT_OUT: usize = 32;
/// The most ports of a Service from which its addresses are collected.
const PORTS: usize = 64;
/// The most lost claims that are named.
const LOST: usize = 64;

/// Returns the problems of the Services that are over the limit.
pub(super) fn oversized(state: &State, services: impl Iterator<Item = Oversized>) -> Vec<Problem> {
    let problem = |Oversized { service, size, limit }| {
        let (size, limit) = (grouped(size), grouped(limit));
        let text = format!("{service} is left out: {size} elements, the limit is {limit} (--service-elements-limit)");
        of_service(state, ProblemKind::Oversized, &service, text)
    };
    limited(
        ProblemKind::Oversized,
        LEFT_OUT,
        "Services are left out, because they are too large",
        services.map(problem),
    )
}

/// Returns the problems of the Services that the kernel refuses. `services` has the name, the kernel's reason, and whether the Service's
/// previous rules stay in force.
pub(super) fn quarantined<'a>(
    state: &State,
    services: impl Iterator<Item = (&'a ObjectName, &'a str, bool)>,
) -> Vec<Problem> {
    let problem = |(service, reason, has_rules): (&ObjectName, &str, bool)| {
        let left = if has_rules { "keeps the rules from before its last change" } else { "is left out" };
        let text = format!("{service} {left}, because the kernel refuses its rules: {reason}");
        of_service(state, ProblemKind::Quarantined, service, text)
    };
    let what = "Services are left out or keep former rules, because the kernel refuses their rules";
    limited(ProblemKind::Quarantined, LEFT_OUT, what, services.map(problem))
}

/// The problems of lost claims on frontends. They are gathered at most once a sync, because gathering takes time in proportion to all
/// frontends that several Services claim, and any tenant can make many of these.
#[derive(Debug, Default)]
pub(super) struct LostFrontends {
    problems: Vec<Problem>,
    /// The number of lost claims at the last call of [`LostFrontends::note`].
    claims: usize,
    is_outdated: bool,
}

impl LostFrontends {
    /// Notes the present number of lost claims, and whether conflicts arose since the last call.
    pub(super) fn note(&mut self, claims: usize, has_news: bool) {
        self.is_outdated |= has_news || claims != self.claims;
        self.claims = claims;
    }

    /// Returns the present problems. Gathers them again only if claims changed since the last call.
    pub(super) fn current(&mut self, state: &State) -> &[Problem] {
        if std::mem::take(&mut self.is_outdated) {
            self.problems = lost_frontends(state);
        }
        &self.problems
    }
}

/// Returns the problems of lost claims on the frontends that the log would name, see [`conflicts::report`], at most [`LOST`] of them; if
/// there are more lost claims, also a sentence that counts these.
pub(super) fn lost_frontends(state: &State) -> Vec<Problem> {
    let contests = state.standing_conflicts(conflicts::NAMED);
    let report = conflicts::report(&contests);
    let named: Vec<_> = report.frontends.iter().map(|lost| lost.frontend).collect();
    let conflicts = contests.iter().flat_map(|contest| &contest.conflicts);
    let is_named = |conflict: &&Conflict| named.binary_search(&conflict.frontend).is_ok();
    let mut problems: Vec<Problem> = conflicts.filter(is_named).take(LOST).map(lost_frontend).collect();
    let more = state.lost_claims().saturating_sub(problems.len());
    if more > 0 && !problems.is_empty() {
        let text = format!("{more} more claims on frontends are lost (kubeproxy_nft_lost_claims)");
        problems.push(Problem::of_node(ProblemKind::LostFrontend, text));
    }
    problems
}

fn lost_frontend(conflict: &Conflict) -> Problem {
    let name = port_name(conflict.frontend.port, conflict.frontend.protocol);
    let (addresses, ports, node_ports) = match conflict.frontend.destination {
        Destination::Address(ip) => (vec![ip], vec![name], Vec::new()),
        Destination::NodePort(_) => (Vec::new(), Vec::new(), vec![name]),
    };
    let service = Some(conflict.loser.to_string());
    Problem { kind: ProblemKind::LostFrontend, service, addresses, ports, node_ports, text: conflict.in_short() }
}

/// Returns the problem of a Service, with its addresses and node ports. Leaves out an address or node port if another Service owns all of
/// its frontends.
fn of_service(state: &State, kind: ProblemKind, name: &ObjectName, text: String) -> Problem {
    let (mut addresses, mut node_ports) = (BTreeSet::new(), BTreeSet::new());
    let service = state.service(name);
    for frontend in service.into_iter().flat_map(|service| state.unshared_frontends(service, PORTS)) {
        match frontend.destination {
            Destination::Address(ip) => addresses.insert(ip),
            Destination::NodePort(_) => node_ports.insert(port_name(frontend.port, frontend.protocol)),
        };
    }
    let all = service.map_or(&[][..], |service| &service.ports);
    let ports: BTreeSet<String> = match all.len() {
        0..=LEFT_OUT => all.iter().map(|port| port_name(port.port, port.protocol)).collect(),
        _ => all.iter().map(|port| port_name("*", port.protocol)).collect(),
    };
    let addresses: Vec<IpAddr> = addresses.into_iter().take(LEFT_OUT).collect();
    let node_ports = node_ports.into_iter().take(LEFT_OUT).collect();
    Problem { kind, service: Some(name.to_string()), addresses, ports: ports.into_iter().collect(), node_ports, text }
}

fn port_name(port: impl Display, protocol: Protocol) -> String {
    format!("{port}/{}", protocol.api_name())
}

/// Returns the first `most` problems, and a sentence that counts the others, if there are others.
fn limited(kind: ProblemKind, most: usize, what: &str, mut problems: impl Iterator<Item = Problem>) -> Vec<Problem> {
    let mut listed: Vec<Problem> = problems.by_ref().take(most).collect();
    let more = problems.count();
    if more > 0 {
        listed.push(Problem::of_node(kind, format!("{more} more {what}")));
    }
    listed
}

/// Formats a number with a comma between thousands.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let first = digits.len() % 3;
    let (head, tail) = digits.split_at(first);
    let groups = tail.as_bytes().chunks(3).map(String::from_utf8_lossy);
    let head = (!head.is_empty()).then(|| head.into());
    head.into_iter().chain(groups).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_a_comma_between_thousands() {
        let grouped = [0, 999, 1_000, 100_101, 3_000_000].map(grouped);
        assert_eq!(grouped, ["0", "999", "1,000", "100,101", "3,000,000"]);
    }

    #[test]
    fn a_list_that_is_too_long_is_cut_and_the_others_are_counted() {
        let service = |n: u16| Oversized {
            service: ObjectName::new("shop", format!("big-{n:03}")),
            size: 3_000_000,
            limit: 100_000,
        };
        let state = State::new("node");
        let problems = oversized(&state, (0..40).map(service));
        assert_eq!(problems.len(), LEFT_OUT + 1);
        assert_eq!(problems[0].service.as_deref(), Some("shop/big-000"));
        assert_eq!(
            problems[0].text,
            "shop/big-000 is left out: 3,000,000 elements, the limit is 100,000 (--service-elements-limit)"
        );
        assert_eq!(problems[LEFT_OUT].text, "8 more Services are left out, because they are too large");
    }
}
