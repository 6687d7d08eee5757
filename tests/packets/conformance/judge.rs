//! Sends the probes of a case, and gives what is wrong with their outcomes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::case::{Case, Expect, Origin, Probe};
use super::explained;
use super::network::Network;
use crate::support::netns::Namespace;
use crate::support::plan::host_prefix;
use crate::support::probe::{Flow, Outcome, Proto, Tally, probe_from_port, probe_many};
use crate::support::server::Answer;

/// How long a case may take to be right: programming is not part of what is judged.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same where `$TEST_PATIENCE_SECONDS` says that the machine is slow: an answer may come too late there.
const SLOW_PATIENCE: Duration = Duration::from_secs(60);
/// The number of probes where all have to reach the same endpoint.
const STICKY: u32 = 12;

/// Which endpoint a client was sent to, by what has to stay together and the client's address.
pub(crate) type Memory = BTreeMap<(String, IpAddr), SocketAddr>;

/// Whether the environment declares the machine slow.
pub(crate) fn is_slow() -> bool {
    std::env::var_os("TEST_PATIENCE_SECONDS").is_some()
}

/// Everything that is wrong, with probes tried again for a while.
pub(crate) fn judge(network: &Network, case: &Case, memory: &mut Memory) -> Vec<String> {
    let end = Instant::now() + if is_slow() { SLOW_PATIENCE } else { PATIENCE };
    let mut todo: Vec<&Probe> = case.probes.iter().collect();
    loop {
        let mut wrong = Vec::new();
        todo.retain(|probe| match judge_probe(network, probe, memory) {
            Ok(()) => false,
            Err(why) => {
                wrong.push(format!(
                    "{} [{:?} {} -> {} {:?}]: {why}",
                    probe.name, probe.origin, probe.source, probe.target, probe.proto
                ));
                true
            }
        });
        wrong.extend(case.health().into_iter().filter_map(|(address, status)| {
            let found = http_status(&network.node, address);
            (found != status).then(|| format!("health check {address}: {found:?}, not {status:?}"))
        }));
        if wrong.is_empty() {
            wrong.extend(case.probes.first().and_then(|probe| explained::judge_binary(network, probe).err()));
        }
        if wrong.is_empty() || Instant::now() > end {
            return wrong;
        }
        sleep(Duration::from_millis(200));
    }
}

/// So many tries that each of `n` endpoints is hit, but for one case in ten million.
fn tries(n: usize) -> u32 {
    if n <= 1 {
        return 3;
    }
    let n = f64::from(u32::try_from(n).expect("few endpoints"));
    let tries = (n / 1e-7).ln() / -(1.0 - 1.0 / n).ln();
    (1..).find(|count| f64::from(*count) >= tries).expect("some number is larger")
}

fn judge_probe(network: &Network, probe: &Probe, memory: &mut Memory) -> Result<(), String> {
    let flow = Flow { proto: probe.proto, source: probe.source, target: probe.target };
    let count = match &probe.expect {
        Expect::Reaches { sticky: Some(_), .. } => STICKY,
        Expect::Reaches { endpoints, .. } => tries(endpoints.len()),
        Expect::Refused | Expect::Dropped => 1,
        Expect::Passes => 2,
    };
    let own = |operation: &str| {
        let flags = if probe.source.is_ipv6() && operation == "add" { "nodad" } else { "" };
        if probe.source_on_node {
            network.node.ip(&[format!("addr {operation} {} dev lo {flags}", host_prefix(probe.source))]);
        }
    };
    own("add");
    // Of a flow that goes on, the kernel knows before the packet where it goes.
    let before = probe.flow.map(|_| explained::of(network, probe));
    let tally = match probe.flow {
        Some(port) => Tally::from([(probe_from_port(network.source(probe), flow, port), 1)]),
        None => probe_many(network.source(probe), flow, count),
    };
    let after = explained::of(network, probe);
    own("del");
    judge_outcome(network, probe, &tally, memory)?;
    before.into_iter().chain([after]).try_for_each(|explanation| explained::judge(probe, &tally, &explanation?))
}

/// Compares the outcome of a probe with what the case expects.
fn judge_outcome(network: &Network, probe: &Probe, tally: &Tally, memory: &mut Memory) -> Result<(), String> {
    let is = |allowed: &[Outcome]| {
        let local = |outcome: &Outcome| probe.origin == Origin::Node && *outcome == Outcome::NotPermitted;
        let fits = tally.keys().all(|outcome| allowed.contains(outcome) || local(outcome));
        if fits { Ok(()) } else { Err(format!("{tally:?}, not {allowed:?}")) }
    };
    match &probe.expect {
        Expect::Refused => is(&[Outcome::Refused]),
        Expect::Dropped => is(&[Outcome::Dropped]),
        Expect::Passes => {
            let wrong = reached(tally)?.into_iter().find(|answer| answer.endpoint != probe.target.ip());
            wrong.map_or(Ok(()), |answer| Err(format!("{answer} answered")))
        }
        Expect::Reaches { endpoints, sticky } => {
            let answers = reached(tally)?;
            let found: BTreeSet<SocketAddr> = answers.iter().map(|a| SocketAddr::new(a.endpoint, a.port)).collect();
            let wanted: BTreeSet<SocketAddr> = endpoints.iter().map(|(endpoint, _)| *endpoint).collect();
            if !found.is_subset(&wanted) {
                return Err(format!("reached {found:?}, not {wanted:?}"));
            }
            match sticky {
                Some(group) => judge_sticky(group, probe, &found, memory)?,
                None if found != wanted => return Err(format!("reached {found:?} only, of {wanted:?}")),
                None => {}
            }
            answers.iter().try_for_each(|answer| judge_source(network, probe, answer, endpoints))
        }
    }
}

/// All answers, if nothing else came of any try.
fn reached(tally: &Tally) -> Result<Vec<Answer>, String> {
    let answer = |outcome: &Outcome| match outcome {
        Outcome::Reached(answer) => Ok(*answer),
        _ => Err(format!("{tally:?}")),
    };
    tally.keys().map(answer).collect()
}

fn judge_sticky(group: &str, probe: &Probe, found: &BTreeSet<SocketAddr>, memory: &mut Memory) -> Result<(), String> {
    let [one] = found.iter().copied().collect::<Vec<_>>()[..] else {
        return Err(format!("a client was sent to {found:?}"));
    };
    let before = *memory.entry((group.to_owned(), probe.source)).or_insert(one);
    if before == one { Ok(()) } else { Err(format!("a client was sent to {one} after {before}")) }
}

/// Whether the endpoint saw the source that it should; a masqueraded client has one of the node's addresses.
fn judge_source(
    network: &Network,
    probe: &Probe,
    answer: &Answer,
    endpoints: &[(SocketAddr, bool)],
) -> Result<(), String> {
    let at = SocketAddr::new(answer.endpoint, answer.port);
    let masqueraded = endpoints.iter().any(|(endpoint, masqueraded)| *endpoint == at && *masqueraded);
    let changed = answer.seen_source != probe.source;
    let may_be_same = probe.origin == Origin::Node || network.own.contains(&answer.seen_source);
    match (masqueraded, changed) {
        (false, true) => Err(format!("{at} saw {} and not the source", answer.seen_source)),
        (true, false) if !may_be_same => Err(format!("{at} saw the source {}", answer.seen_source)),
        // SCTP's own answer names the source that the server saw, too; it must be the node.
        (true, true) if probe.proto != Proto::Ping && !is_nodes(network, answer.seen_source) => {
            Err(format!("{at} saw {}, which is not the node", answer.seen_source))
        }
        _ => Ok(()),
    }
}

fn is_nodes(network: &Network, address: IpAddr) -> bool {
    // A link's own address is the node's, too.
    let link_local = match address {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    network.own.contains(&address) || link_local || address.is_loopback()
}

/// The status of a GET; `None` when nothing listens.
fn http_status(node: &Namespace, address: SocketAddr) -> Option<u16> {
    node.enter(|| {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
        write!(stream, "GET / HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        text.split(' ').nth(1)?.parse().ok()
    })
}

#[test]
fn tries_for_a_number_of_endpoints() {
    assert_eq!([1, 2, 3, 10].map(tries), [3, 25, 43, 175]);
}
