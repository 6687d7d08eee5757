//! Where a packet comes from and goes to, as the user names it: by addresses, or by the names of a pod and of a Service.
//!
//! Takes the arguments `--from` and `--to`; gives the pair of addresses that they stand for. The cluster IP and the port of a Service come
//! from the kernel's tables. The address of a pod comes from the EndpointSlices in the API server, because the role of a proxy may not read
//! pods; the API server is reached with the configuration of the running proxy. If the user gives manifests, the addresses of names come
//! from the manifests.
//!
//! Invariant: both addresses of a pair are of one family.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use anyhow::{Context as _, Result, anyhow, bail};
use nft::machine::protocol;

use crate::names::{self, ServiceName, split_port};
use crate::running::{Problem, ProblemKind, Running, RunningArgs};
use crate::tables::{FrontendView, Kind, View};
use cluster::settings;
use cluster::source::api::{ClientOptions, pod_addresses};
use rules::model::{Destination, Frontend, Protocol};

/// Where a packet comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) address: IpAddr,
    /// The port; `None` if the user gave none.
    pub(crate) port: Option<u16>,
}

/// Where a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) address: IpAddr,
    /// The port; 0 for ICMP.
    pub(crate) port: u16,
    /// The number of the protocol.
    pub(crate) protocol: u8,
}

impl FromStr for Source {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Ok(address) = text.parse() {
            return Ok(Self { address, port: None });
        }
        let socket: SocketAddr =
            text.parse().map_err(|_| "expected IP, IP:PORT ([IP]:PORT for IPv6) or NAMESPACE/POD")?;
        Ok(Self { address: socket.ip(), port: Some(socket.port()) })
    }
}

impl FromStr for Target {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const EXPECTED: &str =
            "expected IP:PORT ([IP]:PORT for IPv6), IP:PORT/udp, IP:PORT/sctp, IP/icmp or NAMESPACE/NAME[:PORT]";
        let (address, name) = text.split_once('/').unwrap_or((text, "tcp"));
        if ["icmp", "icmpv6"].iter().any(|icmp| icmp.eq_ignore_ascii_case(name)) {
            let bare = address.trim_start_matches('[').trim_end_matches(']');
            let address: IpAddr = bare.parse().map_err(|_| EXPECTED)?;
            let protocol = if address.is_ipv4() { protocol::ICMP } else { protocol::ICMPV6 };
            return Ok(Self { address, port: 0, protocol });
        }
        let protocol = Protocol::named(name).ok_or("expected tcp, udp, sctp or icmp behind the slash")?;
        let socket: SocketAddr = address.parse().map_err(|_| EXPECTED)?;
        if socket.port() == 0 {
            return Err("expected a port from 1 to 65535");
        }
        Ok(Self { address: socket.ip(), port: socket.port(), protocol: protocol.number() })
    }
}

/// The argument `--from`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FromArg {
    Address(Source),
    /// A pod, as `namespace/name`.
    Pod(String),
}

/// The argument `--to`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToArg {
    Address(Target),
    /// The cluster IP of a Service. The port behind the name of the Service is a name or a number, and may be left out if there is only one.
    Service(ServiceName, Option<Protocol>),
}

/// Whether a text has a namespace before its first slash, and no address.
pub(crate) fn has_namespace(text: &str) -> bool {
    let head = text.split_once('/').map(|(head, _)| head);
    head.is_some_and(|head| !head.contains([':', '[']) && head.parse::<IpAddr>().is_err())
}

impl FromStr for FromArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !has_namespace(text) {
            return text.parse().map(Self::Address).map_err(str::to_owned);
        }
        let name: Result<ServiceName, _> = text.parse();
        let name = name.ok().filter(|name| name.port.is_none());
        name.map(|name| Self::Pod(name.service)).ok_or_else(|| "expected NAMESPACE/POD, or an IP".to_owned())
    }
}

impl FromStr for ToArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if !has_namespace(text) {
            return text.parse().map(Self::Address).map_err(str::to_owned);
        }
        let (text, protocol) = match text.rsplit_once('/') {
            Some((name, protocol)) if name.contains('/') => (name, Some(protocol)),
            _ => (text, None),
        };
        let protocol = protocol.map(names::protocol_of).transpose().map_err(|error| error.to_string())?;
        let (service, port) = split_port(text);
        let name: ServiceName = service.parse().map_err(|error: names::NameError| error.to_string())?;
        Ok(Self::Service(ServiceName { port: port.map(str::to_owned), ..name }, protocol))
    }
}

/// The addresses that the arguments stand for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub(crate) source: Source,
    pub(crate) target: Target,
    /// The pod that was named as the source.
    pub(crate) pod: Option<String>,
    /// The Service that was named, `namespace/name`.
    pub(crate) service: Option<String>,
}

/// Finds the addresses of both arguments: the first cluster IP of the Service for which the source has an address of the same family.
/// IPv4 comes first.
///
/// # Errors
/// Fails when a name is unknown or stands for several ports, when the kernel or the API server cannot be asked, or when the families
/// differ.
pub(crate) fn resolve(from: &FromArg, to: &ToArg, running: RunningArgs) -> Result<Pair> {
    let find = |name: &ServiceName, protocol| {
        let found = targets(&cluster_ips(&View::read()?.frontends), name, protocol);
        found.map_err(|error| left_out(name, &running.problems().unwrap_or_default()).unwrap_or(error))
    };
    named(from, to, find, pods_of_cluster)
}

/// As [`resolve`], with cluster IPs and problems that were read before.
///
/// # Errors
/// As [`resolve`].
pub(crate) fn resolve_among(
    from: &FromArg,
    to: &ToArg,
    cluster_ips: &[(&str, Frontend)],
    problems: &[Problem],
) -> Result<Pair> {
    let find = |name: &ServiceName, protocol| {
        targets(cluster_ips, name, protocol).map_err(|error| left_out(name, problems).unwrap_or(error))
    };
    named(from, to, find, pods_of_cluster)
}

/// Finds the addresses of both arguments with functions for the targets of a Service and for the addresses of a pod. A name that no Service
/// has, with the number of a port, may be that of a pod.
///
/// # Errors
/// As [`resolve`].
pub(super) fn named(
    from: &FromArg,
    to: &ToArg,
    find: impl Fn(&ServiceName, Option<Protocol>) -> Result<Vec<Target>>,
    pods: impl Fn(&str) -> Result<Vec<IpAddr>>,
) -> Result<Pair> {
    let mut service = None;
    let targets = match to {
        ToArg::Address(target) => vec![*target],
        ToArg::Service(name, protocol) => match (find(name, *protocol), name.port.as_ref().map(|port| port.parse())) {
            (Err(error), Some(Ok(port))) => {
                let protocol = protocol.unwrap_or(Protocol::Tcp).number();
                let of_pod = pods(&name.service).unwrap_or_default().into_iter();
                let found: Vec<Target> = of_pod.map(|address| Target { address, port, protocol }).collect();
                if found.is_empty() {
                    return Err(error);
                }
                found
            }
            (found, _) => {
                service = Some(name.service.clone());
                found?
            }
        },
    };
    match from {
        FromArg::Address(source) => Ok(Pair { service, ..pair(&[*source], &targets)? }),
        FromArg::Pod(name) => {
            let found = pods(name)
                .with_context(|| format!("cannot find the address of pod {name}; give its IP in place of the name"))?;
            if found.is_empty() {
                let namespace = name.split('/').next().unwrap_or_default();
                bail!(
                    "cannot find the address of pod {name}: no EndpointSlice of namespace {namespace} names it (they name the pods \
                     that a Service selects); give its IP in place of the name"
                );
            }
            let sources: Vec<Source> = found.into_iter().map(|address| Source { address, port: None }).collect();
            Ok(Pair { pod: Some(name.clone()), service, ..pair(&sources, &targets)? })
        }
    }
}

/// Chooses the first target and source of the same family.
///
/// # Errors
/// Fails when there is none.
pub(super) fn pair(sources: &[Source], targets: &[Target]) -> Result<Pair> {
    let pairs = targets.iter().flat_map(|target| sources.iter().map(move |source| (*source, *target)));
    let pairs: Vec<(Source, Target)> = pairs.collect();
    let is_possible = |(source, target): &&(Source, Target)| source.address.is_ipv4() == target.address.is_ipv4();
    match (pairs.iter().find(is_possible), pairs.first()) {
        (Some(&(source, target)), _) => Ok(Pair { source, target, pod: None, service: None }),
        (None, Some(&(source, target))) => bail!(different_families(source, target)),
        (None, None) => bail!("no address was found"),
    }
}

/// The error for addresses of different families.
fn different_families(from: Source, to: Target) -> String {
    format!("{} and {} are of different families: give --from and --to of the same one", from.address, to.address)
}

/// The cluster IPs among frontends, each with its service port as `namespace/name[:port]`.
pub(crate) fn cluster_ips(frontends: &[FrontendView]) -> Vec<(&str, Frontend)> {
    let all = frontends.iter().filter(|view| view.kind == Some(Kind::ClusterIP));
    all.filter_map(|view| Some((view.service.as_deref()?, view.frontend))).collect()
}

/// The error for a Service that the running proxy leaves out, in the proxy's words, or the error that the proxy does not answer; `None` without
/// such a problem.
fn left_out(name: &ServiceName, problems: &[Problem]) -> Option<anyhow::Error> {
    let is_it = |problem: &&Problem| problem.is_about(name) || problem.kind == ProblemKind::ProxySilent;
    let problem = problems.iter().find(is_it)?;
    Some(anyhow!("cannot find {} in the tables: {}", name.service, problem.text))
}

/// The cluster IPs of a port of a Service, in the order of the frontends, which has IPv4 first.
///
/// # Errors
/// When there is no such Service or port, or several of its ports fit the name and the protocol.
pub(crate) fn targets(
    cluster_ips: &[(&str, Frontend)],
    name: &ServiceName,
    wanted: Option<Protocol>,
) -> Result<Vec<Target>> {
    let mut ports: BTreeMap<_, Vec<Target>> = BTreeMap::new();
    for (service_port, frontend) in cluster_ips {
        let (service, its_name) = split_port(service_port);
        if let (Destination::Address(address), true) = (frontend.destination, service == name.service) {
            let target = Target { address, port: frontend.port, protocol: frontend.protocol.number() };
            ports.entry((frontend.port, frontend.protocol, its_name)).or_default().push(target);
        }
    }
    if ports.is_empty() {
        let services = cluster_ips.iter().map(|(service, _)| *service);
        return Err(names::unknown(&names::no_service(&name.service), &name.service, services));
    }
    let mut found = ports.iter().filter(|((number, protocol, its_name), _)| {
        let has_name = |port: &String| *its_name == Some(port) || number.to_string() == *port;
        name.port.as_ref().is_none_or(has_name) && wanted.is_none_or(|wanted| wanted == *protocol)
    });
    let what = match (found.next(), found.next()) {
        (Some((_, targets)), None) => return Ok(targets.clone()),
        (None, _) => "has no such port",
        (Some(_), Some(_)) => "has several ports",
    };
    let names = ports.keys().map(|(number, protocol, name)| {
        let port = format!("{number}/{}", protocol.api_name().to_lowercase());
        name.map_or_else(|| port.clone(), |name| format!("{name} ({port})"))
    });
    let (service, names) = (&name.service, names.collect::<Vec<_>>().join(", "));
    bail!("cannot choose a port of {name}: {service} {what}; name one of {names}, as {service}:PORT[/PROTO]")
}

/// The addresses of a pod, which is named `namespace/name`, from the API server.
fn pods_of_cluster(pod: &str) -> Result<Vec<IpAddr>> {
    let (namespace, name) = pod.split_once('/').unwrap_or_default();
    client_of_proxy().and_then(|client| pod_addresses(&client, namespace, name))
}

/// How the running proxy reaches the API server.
fn client_of_proxy() -> Result<ClientOptions> {
    Ok(settings::client(&Running::find().config.context("no kube-proxy runs here whose configuration can be read")?))
}
