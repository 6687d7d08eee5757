//! A case: what a file holds, and what the proxy is given of it. A sequence: cases that follow each other on one live proxy.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::{env, fs};

use serde_json::{Value, json};

use crate::support::layout::Layout;
use crate::support::probe::Proto;
use crate::support::proxy;

/// What a case may require that this runner does not give: a feature gate that is gone.
const LEFT_OUT: &str = "gate-locked-since-1.35";
/// What a case requires that is only a step of a sequence.
const FLOWS: &str = "flows";

/// Cases in the order in which they follow each other on one proxy.
pub(crate) struct Sequence {
    /// Its name.
    pub(crate) id: String,
    /// Its steps.
    pub(crate) steps: Vec<Case>,
    /// The numbers of the steps before which the proxy is stopped, and started on the new state; the first step has number 1.
    pub(crate) restarts: BTreeSet<u64>,
    /// The numbers of the steps in which clients are sent to the endpoint of the step before.
    pub(crate) remembers: BTreeSet<u64>,
}

/// One file.
pub(crate) struct Case {
    /// Its name.
    pub(crate) id: String,
    value: Value,
    /// Its probes.
    pub(crate) probes: Vec<Probe>,
}

/// Where a probe comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// A pod on this node.
    Pod,
    /// A pod on another node.
    RemotePod,
    /// A process on this node.
    Node,
    /// Outside of the cluster.
    External,
}

/// One packet or connection, and what has to become of it.
pub(crate) struct Probe {
    /// Its name.
    pub(crate) name: String,
    /// Where it comes from.
    pub(crate) origin: Origin,
    /// Its source address.
    pub(crate) source: IpAddr,
    /// Where it goes.
    pub(crate) target: SocketAddr,
    /// Its protocol.
    pub(crate) proto: Proto,
    /// What has to become of it.
    pub(crate) expect: Expect,
    /// The source port of a UDP flow that goes on from step to step.
    pub(crate) flow: Option<u16>,
    /// The source is a service's address that the node has to own while this is sent.
    pub(crate) source_on_node: bool,
}

/// What has to become of a probe.
pub(crate) enum Expect {
    /// It reaches these endpoints, all of them over many tries, or always the same one; each sees the source, or another one.
    Reaches { endpoints: Vec<(SocketAddr, bool)>, sticky: Option<String> },
    /// Port unreachable.
    Refused,
    /// No answer comes.
    Dropped,
    /// It reaches its target.
    Passes,
}

/// The folder of the cases.
pub(crate) fn folder() -> PathBuf {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/conformance/cases");
    env::var_os("CONFORMANCE_CASES").map_or_else(beside, PathBuf::from)
}

/// All cases of the folder that can be run, sorted by name.
pub(crate) fn all() -> Vec<Case> {
    let folder = folder();
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| {
        panic!(
            "{}: {error}; the cases are no part of this repository, $CONFORMANCE_CASES says where they are",
            folder.display()
        )
    });
    let files = entries.map(|entry| entry.expect("a folder can be read").path());
    let cases = files.filter(|path| is_case(path)).map(|path| Case::read(&path));
    let mut cases: Vec<Case> = cases.filter(|case| !case.requires(LEFT_OUT) && !case.requires(FLOWS)).collect();
    cases.sort_by(|a, b| a.id.cmp(&b.id));
    cases
}

/// All sequences of the folder.
pub(crate) fn sequences() -> Vec<Sequence> {
    let folder = folder();
    let numbers = |value: &Value| list(value).filter_map(Value::as_u64).collect();
    let sequence = |value: &Value| Sequence {
        id: text(value, "id").to_owned(),
        steps: list(&value["sequence"])
            .map(|step| Case::read(&folder.join(format!("{}.json", step.as_str().expect("the name of a case")))))
            .collect(),
        restarts: numbers(&value["restart_before_step"]),
        remembers: list(&value["sticky_across_steps"]).filter_map(|pair| pair[1].as_u64()).collect(),
    };
    let file = read(&folder.join("sequences.json"));
    list(&file["sequences"]).map(sequence).collect()
}

fn read(path: &Path) -> Value {
    let content = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&content).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn is_case(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "json") && !path.ends_with("sequences.json")
}

/// An address, also one with leading zeros.
pub(crate) fn address(text: &str) -> IpAddr {
    let padded = || {
        let parts: Vec<u8> = text.split('.').map_while(|part| part.parse().ok()).collect();
        <[u8; 4]>::try_from(parts).ok().map(|parts| IpAddr::V4(Ipv4Addr::from(parts)))
    };
    text.parse().ok().or_else(padded).unwrap_or_else(|| panic!("{text} is no address"))
}

fn socket(text: &str) -> SocketAddr {
    let (host, port) = text.rsplit_once(':').unwrap_or_else(|| panic!("{text} has no port"));
    SocketAddr::new(
        address(host.trim_matches(['[', ']'])),
        port.parse().unwrap_or_else(|error| panic!("{text}: {error}")),
    )
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("no {field} in {value}"))
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn port(value: &Value) -> u16 {
    number(&value["port"])
}

fn number(value: &Value) -> u16 {
    value.as_u64().and_then(|number| number.try_into().ok()).unwrap_or(0)
}

/// The scheduler that `$CONFORMANCE_SCHEDULER` names, for runs that show that a scheduler changes nothing but the choice.
pub(crate) fn scheduler() -> Option<String> {
    std::env::var("CONFORMANCE_SCHEDULER").ok()
}

impl Case {
    fn read(path: &Path) -> Self {
        let value = read(path);
        let probes = list(&value["probes"]).map(probe).collect();
        Self { id: text(&value, "id").to_owned(), probes, value }
    }

    fn requires(&self, what: &str) -> bool {
        list(&self.value["requires"]).any(|required| required == what)
    }

    /// The node's addresses, the first of each family being its primary one.
    pub(crate) fn node_addresses(&self) -> Vec<IpAddr> {
        list(&self.value["node"]["ips"]).filter_map(Value::as_str).map(address).collect()
    }

    /// Pods on this node.
    pub(crate) fn local_pods(&self) -> BTreeSet<IpAddr> {
        list(&self.value["local_pod_ips"]).filter_map(Value::as_str).map(address).collect()
    }

    /// The first address of each endpoint, if it is valid, and the numbers of their ports.
    pub(crate) fn endpoints(&self) -> (BTreeSet<IpAddr>, BTreeSet<u16>) {
        let slices = || list(&self.value["endpointSlices"]);
        let first = slices()
            .flat_map(|slice| list(&slice["endpoints"]))
            .filter_map(|endpoint| endpoint["addresses"][0].as_str());
        let ports = slices().flat_map(|slice| list(&slice["ports"])).map(port).filter(|port| *port != 0);
        (first.filter_map(|text| text.parse().ok()).collect(), ports.collect())
    }

    /// What health checks on the node have to answer: address, port and status, none where nothing may listen.
    pub(crate) fn health(&self) -> Vec<(SocketAddr, Option<u16>)> {
        let check = |value: &Value| {
            let status = value["status"].as_u64().and_then(|status| status.try_into().ok());
            (SocketAddr::new(address(text(value, "address")), port(value)), status)
        };
        list(&self.value["health"]).map(check).collect()
    }

    /// The configuration of the proxy.
    pub(crate) fn config(&self, layout: Layout) -> Value {
        let given = &self.value["config"];
        let mut config = proxy::config_in(layout);
        config["hostnameOverride"] = self.value["node"]["name"].clone();
        // Without a range local pods cannot be recognised; so the range of the tests' own configuration is replaced.
        config["clusterCIDR"] = json!(given["clusterCIDR"].as_str().unwrap_or_default());
        for field in ["detectLocalMode", "nodePortAddresses", "featureGates"] {
            if !given[field].is_null() {
                config[field] = given[field].clone();
            }
        }
        config["nftables"]["masqueradeAll"] = json!(given["masqueradeAll"] == true);
        if let Some(scheduler) = scheduler() {
            config["nftables"]["scheduler"] = json!(scheduler);
            // The probes of a case come from one address, and each from a port of its own.
            config["nftables"]["schedulerHash"] = json!("source-and-port");
        }
        config
    }

    /// Every object of the cluster.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let mut objects = vec![self.node()];
        let ranges = &self.value["config"]["serviceCIDRs"];
        if list(ranges).next().is_some() {
            objects.push(json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR",
                "metadata": { "name": "kubernetes", "uid": "cidr" }, "spec": { "cidrs": ranges },
            }));
        }
        objects.extend(list(&self.value["services"]).chain(list(&self.value["endpointSlices"])).cloned());
        objects
    }

    fn node(&self) -> Value {
        let name = &self.value["node"]["name"];
        let mut labels = self.value["node"]["labels"].clone();
        labels["kubernetes.io/hostname"] = name.clone();
        let all = self.node_addresses();
        let of = |v4: bool| all.iter().find(move |ip| ip.is_ipv4() == v4);
        let primary = all.first().is_some_and(IpAddr::is_ipv4);
        let addresses = [of(primary), of(!primary)].into_iter().flatten();
        let addresses: Vec<Value> = addresses.map(|ip| json!({ "type": "InternalIP", "address": ip })).collect();
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "uid": "node", "labels": labels },
            "spec": {}, "status": { "addresses": addresses },
        })
    }
}

fn probe(value: &Value) -> Probe {
    let origin = match text(value, "src_kind") {
        "pod" => Origin::Pod,
        "remote-pod" => Origin::RemotePod,
        "node" => Origin::Node,
        "external" => Origin::External,
        other => panic!("src_kind {other}"),
    };
    let proto = match text(value, "proto") {
        "tcp" => Proto::Tcp,
        "udp" => Proto::Udp,
        "sctp" => Proto::Sctp,
        "icmp" => Proto::Ping,
        other => panic!("proto {other}"),
    };
    let flow = value["flow"].is_string().then(|| number(&value["sport"])).filter(|_| proto == Proto::Udp);
    Probe {
        name: text(value, "name").to_owned(),
        origin,
        source: address(text(value, "src")),
        target: SocketAddr::new(address(text(value, "dst")), port(value)),
        proto,
        expect: expect(&value["expect"]),
        flow,
        source_on_node: list(&value["requires"]).any(|what| what == "vip-on-node"),
    }
}

fn expect(value: &Value) -> Expect {
    match text(value, "result") {
        "dnat" => {
            let masquerade = |endpoint: &str| {
                let own = &value["masquerade_by_endpoint"][endpoint];
                own.as_bool().unwrap_or(value["masquerade"] == true)
            };
            let endpoints = list(&value["to"]).filter_map(Value::as_str);
            Expect::Reaches {
                endpoints: endpoints.map(|endpoint| (socket(endpoint), masquerade(endpoint))).collect(),
                sticky: value["sticky"].as_str().map(str::to_owned),
            }
        }
        "reject" => Expect::Refused,
        "drop" => Expect::Dropped,
        "pass" => Expect::Passes,
        other => panic!("result {other}"),
    }
}
