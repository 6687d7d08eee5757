//! Whether `kube-proxy explain` tells of a probe what happened to it.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use inspect::explain::{Explanation, Verdict, explain};

use super::case::{Case, Expect, Origin, Probe, scheduler};
use super::network::Network;
use crate::support::layout::Layout;
use crate::support::probe::{Outcome, Proto, Tally};
use crate::support::proxy::{Proxy, binary};

/// How far a sum of probabilities may be from 1.
const ROUNDING: f64 = 1e-9;

/// What is wrong with the explanation of a probe of which this came.
pub(crate) fn judge(probe: &Probe, tally: &Tally, explanation: &Explanation) -> Result<(), String> {
    // A probe's port was not asked about, and the place that it leads to cannot be told without.
    if scheduler().as_deref() == Some("maglev") && explanation.verdict == Verdict::Unknown {
        return Ok(());
    }
    let wrong = |what: &str| Err(format!("explain: {what}; the packet: {tally:?}; {explanation:#?}"));
    for outcome in tally.keys() {
        let fits = match outcome {
            Outcome::Refused => explanation.verdict == Verdict::Refused,
            Outcome::Dropped => explanation.verdict == Verdict::Dropped,
            // The kernel tells a process of the node at once, and not whether the packet was refused or dropped.
            Outcome::NotPermitted => match probe.expect {
                Expect::Refused => explanation.verdict == Verdict::Refused,
                _ => explanation.verdict == Verdict::Dropped,
            },
            Outcome::Reached(_) if matches!(probe.expect, Expect::Passes) => explanation.verdict == Verdict::Passed,
            Outcome::Reached(_) => explanation.verdict == Verdict::Translated,
            Outcome::Reset | Outcome::Other(_) => true,
        };
        if !fits {
            return wrong("another verdict");
        }
    }
    if explanation.verdict != Verdict::Translated {
        return if explanation.endpoints.is_empty() { Ok(()) } else { wrong("endpoints without a translation") };
    }
    judge_endpoints(probe, tally, explanation).or_else(|what| wrong(&what))
}

fn judge_endpoints(probe: &Probe, tally: &Tally, explanation: &Explanation) -> Result<(), String> {
    let told: BTreeSet<SocketAddr> =
        explanation.endpoints.iter().map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port)).collect();
    let answers = || {
        tally.keys().filter_map(|outcome| match outcome {
            Outcome::Reached(answer) => Some(answer),
            _ => None,
        })
    };
    let seen: BTreeSet<SocketAddr> = answers().map(|answer| SocketAddr::new(answer.endpoint, answer.port)).collect();
    if told != seen {
        return Err("other endpoints".to_owned());
    }
    let sum: f64 = explanation.endpoints.iter().map(|endpoint| endpoint.probability).sum();
    if (sum - 1.0).abs() > ROUNDING || explanation.service.is_none() {
        return Err(format!("the probabilities add up to {sum}"));
    }
    for answer in answers().filter(|_| probe.proto != Proto::Ping) {
        let at = |endpoint: &&inspect::explain::Endpoint| {
            (endpoint.address, endpoint.port) == (answer.endpoint, answer.port)
        };
        let masquerade = explanation.endpoints.iter().find(at).is_some_and(|endpoint| endpoint.masquerade);
        // Who is masqueraded on the node may keep its address, as that is one of the node's.
        let may_be_same = masquerade && probe.origin == Origin::Node || probe.source_on_node;
        if !may_be_same && masquerade == (answer.seen_source == probe.source) {
            return Err(format!("masquerading at {answer}"));
        }
    }
    Ok(())
}

/// The arguments of the command.
fn arguments(probe: &Probe) -> (String, String) {
    let to = match probe.proto {
        Proto::Ping => format!("{}/icmp", probe.target.ip()),
        proto => format!("{}/{}", probe.target, proto.name().to_lowercase()),
    };
    let from = match probe.flow {
        Some(port) => SocketAddr::new(probe.source, port).to_string(),
        None => probe.source.to_string(),
    };
    (from, to)
}

/// What `explain` tells of a probe now.
pub(crate) fn of(network: &Network, probe: &Probe) -> Result<Explanation, String> {
    let (from, to) = arguments(probe);
    network.node.enter(|| explain(&from, &to, None)).map_err(|error| format!("explain: {error:#}"))
}

/// What is wrong with the JSON of the command, compared with what the library gives.
pub(crate) fn judge_binary(network: &Network, probe: &Probe) -> Result<(), String> {
    let (from, to) = arguments(probe);
    let mut command = network.node.command(binary());
    command.args(["explain", "--from", &from, "--to", &to, "-o", "json"]);
    let output = command.output().map_err(|error| error.to_string())?;
    let mut printed: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&output.stderr)))?;
    let expected = serde_json::to_value(of(network, probe)?).expect("an explanation serializes");
    // The command adds the two ends of the packet.
    let mut end = |name: &str| printed.as_object_mut().and_then(|all| all.remove(name)).unwrap_or_default();
    let ends = [end("from"), end("to")];
    if !ends.iter().zip([&from, &to]).all(|(end, given)| end.as_str().is_some_and(|end| end.starts_with(&given[..3]))) {
        return Err(format!("the command printed the ends {ends:?} of a packet from {from} to {to}"));
    }
    let is_failure = ["refused", "dropped", "unknown"].contains(&printed["verdict"].as_str().unwrap_or_default());
    let code = i32::from(is_failure);
    match printed == expected && output.status.code() == Some(code) {
        true => Ok(()),
        false => Err(format!("the command printed {printed:#}, not {expected:#}; {:?}", output.status)),
    }
}

/// What is wrong with what the command says of a case by the manifests alone, compared with what it says by the kernel's tables. Left out are
/// addresses of the node that its Node does not have, so that no manifest has them.
pub(crate) fn judge_by_manifests(network: &Network, proxy: &Proxy, case: &Case, layout: Layout) -> Vec<String> {
    let node = case.objects().first().map(|node| node["status"]["addresses"].to_string()).unwrap_or_default();
    let is_unknown = |ip: IpAddr| case.node_addresses().contains(&ip) && !node.contains(&format!("\"{ip}\""));
    let known = case.probes.iter().filter(|probe| !is_unknown(probe.source) && !is_unknown(probe.target.ip()));
    // The interface by which local pods are recognised is not in the manifests, so the verdict may be left open.
    let mode = &case.config(layout)["detectLocalMode"];
    let is_open = mode.as_str().is_some_and(|mode| mode.contains("Interface"));
    known.filter_map(|probe| judge_probe_by_manifests(network, proxy, probe, is_open).err()).collect()
}

fn judge_probe_by_manifests(network: &Network, proxy: &Proxy, probe: &Probe, is_open: bool) -> Result<(), String> {
    let (from, to) = arguments(probe);
    let mut command = Command::new(binary());
    command.args(["explain", "--from", &from, "--to", &to, "-o", "json"]);
    command.arg("--config").arg(proxy.config_path()).arg("--manifests").arg(proxy.manifests().path());
    let output = command.output().map_err(|error| error.to_string())?;
    let printed: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&output.stderr)))?;
    let expected = serde_json::to_value(of(network, probe)?).expect("an explanation serializes");
    if is_open && printed["verdict"] == "unknown" {
        return Ok(());
    }
    match ["verdict", "service", "endpoints"].into_iter().find(|field| printed[field] != expected[field]) {
        None => Ok(()),
        Some(field) => {
            Err(format!("{from} -> {to}: {field} by the manifests: {printed:#}, by the kernel: {expected:#}"))
        }
    }
}
