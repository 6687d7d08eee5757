//! Builds the report about Services that do not get a frontend (an address with port, or a node port) that they claim.
//!
//! Takes the contests (a contest is a frontend that several Services claim, with the losers); returns lines for the log and texts for
//! events: one line for each frontend that is reported, and one text for each Service that is named, however many ports it has.
//!
//! The losers' namespaces share the space of a report. A user who may create Services in one namespace can claim any number of other
//! Services' frontends, again and again: such a user must neither fill the log nor hide what other namespaces lose.
//!
//! Invariants: namespaces take lines in turn, one each; a report has at most [`LINES`] lines, or more only to give each of up to
//! [`NAMESPACES`] namespaces its first line; a line names at most [`NAMED`] Services; [`TOLD`] limits how often a frontend is reported to a
//! namespace; memory is bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use component::rates::{Budget, Budgets, Rate};
use rules::model::{Conflict, Contest, Frontend, ObjectName};

/// The most Services that are named for one lost frontend.
pub(super) const NAMED: usize = 5;
/// The most lines of a report, unless [`NAMESPACES`] asks for more.
const LINES: usize = 16;
/// The most namespaces that each get a line in a report, even if that makes more than [`LINES`] lines.
const NAMESPACES: usize = 64;
/// How often at most a namespace gets a report about the same frontend.
const TOLD: Rate = Rate { at_once: 3, then_every: Duration::from_secs(60) };
/// How often at most a line gives the number of frontends that were not reported.
const SUMMARIES: Rate = Rate { at_once: 1, then_every: Duration::from_secs(60) };

/// A Service that does not get all the frontends that it claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostClaims {
    /// The Service that lost the claims.
    pub service: ObjectName,
    /// Why it lost one of the frontends, and how many further frontends it lost.
    pub reason: String,
}

/// A frontend that Services claim and do not get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostFrontend {
    /// The contested frontend.
    pub frontend: Frontend,
    /// The Services that the report names; at least one.
    pub services: Vec<LostClaims>,
    /// Which Service gets the frontend, why, and which do not.
    pub reason: String,
}

/// The lost claims to report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostReport {
    /// Sorted by frontend.
    pub frontends: Vec<LostFrontend>,
    /// The number of lost frontends that are not in the report, because there are too many, or because they were reported often enough
    /// lately.
    pub left_out: usize,
}

/// Builds the report about `contests`. A Service is listed only at the first frontend that it loses.
pub(super) fn report(contests: &[Contest]) -> LostReport {
    let mut by_loser: BTreeMap<&ObjectName, (&Conflict, usize)> = BTreeMap::new();
    for conflict in contests.iter().flat_map(|contest| &contest.conflicts) {
        by_loser.entry(&conflict.loser).or_insert((conflict, 0)).1 += 1;
    }
    let mut by_frontend: BTreeMap<Frontend, Vec<(&Conflict, usize)>> = BTreeMap::new();
    for (conflict, frontends) in by_loser.into_values() {
        by_frontend.entry(conflict.frontend).or_default().push((conflict, frontends - 1));
    }
    let chosen = chosen(&by_frontend);
    let with_losers = contests.iter().filter_map(|contest| {
        let frontend = contest.conflicts.first()?.frontend;
        Some((frontend, contest, by_frontend.get(&frontend).filter(|_| chosen.contains(&frontend))?))
    });
    let frontends = with_losers.map(|(frontend, contest, losers)| lost_frontend(frontend, contest, losers)).collect();
    LostReport { frontends, left_out: by_frontend.len() - chosen.len() }
}

/// Chooses the frontends to report: takes one lost frontend from each namespace in turn.
fn chosen(by_frontend: &BTreeMap<Frontend, Vec<(&Conflict, usize)>>) -> BTreeSet<Frontend> {
    let mut lost_by: BTreeMap<&str, BTreeSet<Frontend>> = BTreeMap::new();
    for (frontend, losers) in by_frontend {
        for (conflict, _) in losers {
            lost_by.entry(&conflict.loser.namespace).or_default().insert(*frontend);
        }
    }
    let mut waiting: Vec<_> = lost_by.into_values().map(BTreeSet::into_iter).collect();
    let (mut chosen, mut most) = (BTreeSet::new(), NAMESPACES.max(LINES));
    while !waiting.is_empty() {
        waiting.retain_mut(|frontends| {
            let next = frontends.find(|frontend| !chosen.contains(frontend)).filter(|_| chosen.len() < most);
            chosen.extend(next);
            next.is_some()
        });
        most = LINES;
    }
    chosen
}

/// Remembers what was reported lately, so that changes in quick succession at the same frontends are not reported one by one.
#[derive(Debug)]
pub(super) struct RecentReports {
    by_frontend: Budgets<(Frontend, Arc<str>)>,
    summaries: Budget,
    /// The number of lost frontends that were left out of reports since the last summary.
    left_out: usize,
}

impl Default for RecentReports {
    fn default() -> Self {
        Self { by_frontend: Budgets::new(TOLD), summaries: Budget::new(SUMMARIES), left_out: 0 }
    }
}

impl RecentReports {
    /// Removes from a report the lost claims that were reported often enough lately.
    pub(super) fn limited(&mut self, report: LostReport, now: Instant) -> LostReport {
        let mut frontends = Vec::new();
        self.left_out += report.left_out;
        for mut lost in report.frontends {
            let mut asked: BTreeMap<Arc<str>, bool> = BTreeMap::new();
            lost.services.retain(|LostClaims { service, .. }| {
                let ask = || self.by_frontend.try_take((lost.frontend, Arc::clone(&service.namespace)), now);
                *asked.entry(Arc::clone(&service.namespace)).or_insert_with(ask)
            });
            if lost.services.is_empty() {
                self.left_out += 1;
            } else {
                frontends.push(lost);
            }
        }
        let is_summed_up = self.left_out > 0 && self.summaries.try_take(now);
        LostReport { frontends, left_out: if is_summed_up { std::mem::take(&mut self.left_out) } else { 0 } }
    }
}

fn lost_frontend(frontend: Frontend, contest: &Contest, losers: &[(&Conflict, usize)]) -> LostFrontend {
    let services = losers.iter().map(|(conflict, others)| LostClaims {
        service: conflict.loser.clone(),
        reason: format!("{conflict}{}", more(*others, "its")),
    });
    let services: Vec<LostClaims> = services.collect();
    let others = losers.iter().map(|(_, others)| *others).max().unwrap_or_default();
    let reason = match &services[..] {
        [only] if contest.conflicts.len() + contest.more == 1 => only.reason.clone(),
        _ => format!("{contest}{}", more(others, "their")),
    };
    LostFrontend { frontend, services, reason }
}

fn more(frontends: usize, whose: &str) -> String {
    if frontends == 0 { String::new() } else { format!("; {frontends} more of {whose} frontends alike") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rules::model::testing::{name, port, service, state};
    use rules::model::{Event, Service};

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
        let report = report(&state.take_conflicts(NAMED));
        let reports: Vec<&LostClaims> = report.frontends.iter().flat_map(|frontend| &frontend.services).collect();
        let reason = "Services a/dns and b/one both claim 10.96.0.1 port 53/tcp; a/dns gets it, because a cluster IP comes \
                      before an external IP; 2 more of its frontends alike";
        assert_eq!(*reports[0], LostClaims { service: name("b/one"), reason: reason.to_owned() });
        assert_eq!((reports.len(), &reports[1].service), (2, &name("b/two")));
        assert!(reports[1].reason.ends_with("external IP"), "{}", reports[1].reason);
    }

    /// Returns the event of a Service that claims the external IPs `ips`; the Service with the smallest `created` is the oldest and wins.
    fn claimant(service_name: &str, own: u8, ips: impl Iterator<Item = u8>, created: i64) -> Event {
        let external_ips = ips.map(|ip| std::net::IpAddr::from([192, 0, 2, ip])).collect();
        let own = format!("10.96.0.{own}");
        let ports = vec![port("http", 80)];
        Event::ServiceApplied(Service { external_ips, created, ports, ..service(service_name, &[&own]) })
    }

    fn namespaces(report: &LostReport) -> Vec<String> {
        let services = report.frontends.iter().flat_map(|lost| &lost.services);
        services.map(|lost| lost.service.namespace.to_string()).collect()
    }

    #[test]
    fn a_namespace_with_many_contested_addresses_hides_nobody_else() {
        let contested = 100_u8;
        let mut events = vec![claimant("owner/all", 1, 1..200, 0)];
        events.extend((1..contested).map(|ip| claimant(&format!("tenant/t-{ip}"), ip + 1, ip..ip + 1, 1)));
        events.push(claimant("victim/one", 201, 150..151, 1));
        events.push(claimant("victim/two", 202, 151..152, 1));
        let report = report(&state(events).take_conflicts(NAMED));
        let namespaces = namespaces(&report);
        assert_eq!(namespaces.iter().filter(|namespace| *namespace == "victim").count(), 2, "{namespaces:?}");
        assert_eq!((report.frontends.len(), report.left_out), (LINES, usize::from(contested) - 1 + 2 - LINES));
    }

    #[test]
    fn each_of_many_namespaces_has_a_line() {
        let mut events = vec![claimant("owner/all", 1, 1..250, 0)];
        events.extend((1..50_u8).flat_map(|n| {
            [0, 1].map(|k| claimant(&format!("tenant-{n}/{k}"), 100 + n + 50 * k, 100 * k + n..100 * k + n + 1, 1))
        }));
        let report = report(&state(events).take_conflicts(NAMED));
        let named: BTreeSet<String> = namespaces(&report).into_iter().collect();
        assert_eq!(named.len(), 49);
    }

    #[test]
    fn winners_and_losers_that_follow_each_other_at_a_frontend_are_not_told_one_by_one() {
        let (mut told, mut now) = (RecentReports::default(), Instant::now());
        let mut state = state([claimant("a/owner", 1, 7..8, 1000), claimant("victim/web", 2, 7..8, 2000)]);
        let (mut lines, mut events, mut summaries) = (0, 0, 0);
        for n in 0..200_u8 {
            // Even rounds add a Service that is older than all before it and wins; odd rounds add one that is younger than all before it
            // and loses.
            let created = if n % 2 == 0 { 999 - i64::from(n) } else { 3000 + i64::from(n) };
            state.apply(claimant(&format!("tenant/t-{n}"), 3 + n, 7..8, created));
            let said = told.limited(report(&state.take_conflicts(NAMED)), now);
            lines += said.frontends.len();
            events += said.frontends.iter().map(|lost| lost.services.len()).sum::<usize>();
            summaries += usize::from(said.left_out > 0);
            now += Duration::from_millis(100);
        }
        assert!((3..=9).contains(&lines) && events <= 9 * NAMED && summaries == 1, "{lines} {events} {summaries}");
        // A loss of another frontend is reported at once; a further loss of this frontend is reported again after a while.
        state.apply(claimant("victim/other", 220, 8..9, 1));
        state.apply(claimant("tenant/other", 221, 8..9, 0));
        assert_eq!(namespaces(&told.limited(report(&state.take_conflicts(NAMED)), now)), ["victim"]);
        now += 2 * TOLD.then_every * TOLD.at_once;
        state.apply(claimant("tenant/new", 222, 7..8, 4000));
        let said = told.limited(report(&state.take_conflicts(NAMED)), now);
        assert_eq!(namespaces(&said), ["tenant"]);
        assert!(said.left_out > 100, "{}", said.left_out);
    }
}
