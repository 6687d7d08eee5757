//! Converts Services: which of them this proxy handles, and their addresses, ports, policies (A1 to A13) and annotations.

use std::fmt::{Arguments, Display};
use std::net::IpAddr;
use std::sync::Arc;

use super::parse_weight;
use super::{ASSIGN, ASSIGN_PORT, Converted, Converter, Fields, WithoutClusterIp};
use crate::source::objects;
use component::excerpt::quoted;
use foldhash::HashSet;
use ipnet::IpNet;
use rules::model::{
    CloseConnections, ClusterIps, Event, Family, MOST_WEIGHT, ObjectName, Scheduler, Service, ServicePort,
    TrafficPolicy, Weights,
};

/// The API's default of `sessionAffinityConfig.clientIP.timeoutSeconds` (A11).
const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;
/// The longest time-out that the API allows.
const MAX_AFFINITY_SECONDS: u32 = 86_400;

impl Converter {
    /// Converts a Service. The event is [`Event::ServiceDeleted`] if this proxy does not handle it (A1 to A3), or if it has no usable
    /// cluster IP or port.
    pub fn service(&mut self, object: &objects::Service<'_>) -> Converted {
        let mut fields = Fields::of("Service", &object.metadata);
        let Some(name) = self.object_name(&object.metadata, &mut fields) else {
            return fields.finish(None);
        };
        let spec = Some(&object.spec).filter(|spec| is_for_this_proxy(object, spec));
        let spec = spec.filter(|spec| self.has_or_gets_cluster_ip(spec, &mut fields));
        let event = match spec.and_then(|spec| self.usable_service(&name, object, spec, &mut fields)) {
            Some(service) => Event::ServiceApplied(service),
            None => Event::ServiceDeleted(name),
        };
        fields.finish(Some(event))
    }

    /// Returns whether the Service has a cluster IP, or one will be assigned to it (A3). Reports a missing one if the options ask for that.
    fn has_or_gets_cluster_ip(&self, spec: &objects::ServiceSpec<'_>, fields: &mut Fields<'_>) -> bool {
        if !spec.cluster_ip.is_empty() {
            return true;
        }
        if self.options.without_cluster_ip == WithoutClusterIp::Reported {
            let text =
                "missing; Service ignored: write an address of the ServiceCIDR, as an API server would choose one";
            fields.problem("spec.clusterIP", text);
        }
        self.options.without_cluster_ip == WithoutClusterIp::Assigned
    }

    /// Returns whether node ports are still to be assigned to the Service, and whether a health-check node port is, if it needs one. A
    /// Service of type LoadBalancer that has a cluster IP counts as one from an API server, which has assigned all its ports.
    fn assigns_ports(&self, spec: &objects::ServiceSpec<'_>) -> (bool, bool) {
        let assigns = self.options.without_cluster_ip == WithoutClusterIp::Assigned;
        let is_new_balancer = *spec.type_ == *"LoadBalancer" && spec.cluster_ip.is_empty();
        let has_node_ports = is_new_balancer && spec.allocate_load_balancer_node_ports != Some(false);
        (assigns && (*spec.type_ == *"NodePort" || has_node_ports), assigns && is_new_balancer)
    }

    fn usable_service(
        &mut self,
        name: &ObjectName,
        object: &objects::Service<'_>,
        spec: &objects::ServiceSpec<'_>,
        fields: &mut Fields<'_>,
    ) -> Option<Service> {
        let cluster_ips =
            if spec.cluster_ip.is_empty() { wanted_cluster_ips(spec, fields) } else { cluster_ips(spec, fields)? };
        let ports = self.service_ports(spec, fields)?;
        let (_, assigns_health_check) = self.assigns_ports(spec);
        let external_policy = external_policy(spec, fields);
        let load_balancer_ips = load_balancer_ips(object, fields);
        let source_ranges = source_ranges(spec, &load_balancer_ips, fields);
        Some(Service {
            name: name.clone(),
            created: object.metadata.creation_timestamp.and_then(|time| time.seconds).unwrap_or(i64::MAX),
            cluster_ips,
            external_ips: if self.options.allow_external_ips { external_ips(spec, fields) } else { Vec::new() },
            ignores_external_ips: !self.options.allow_external_ips && !spec.external_ips.is_empty(),
            asks_for_hints: asks_for_hints(object, spec),
            load_balancer_ips,
            source_ranges,
            external_policy,
            internal_policy: policy(&spec.internal_traffic_policy, "spec.internalTrafficPolicy", fields),
            affinity_seconds: affinity_seconds(spec, fields),
            scheduler: choice(object, objects::SCHEDULER, &SCHEDULERS, fields),
            close_connections: choice(object, objects::CLOSE_CONNECTIONS, &CLOSE_CONNECTIONS, fields),
            keeps_unready_udp_flows: choice(object, objects::KEEP_UDP_FLOWS, &KEEP_UDP_FLOWS, fields).is_some(),
            weights: weights(object, fields),
            health_check_node_port: health_check_node_port(spec, external_policy, assigns_health_check, fields),
            ports,
        })
    }

    /// Returns the usable ports. If there are none, reports that as a problem and returns `None`.
    fn service_ports(&mut self, spec: &objects::ServiceSpec<'_>, fields: &mut Fields<'_>) -> Option<Vec<ServicePort>> {
        // Allocate no more than the list can need, because it is kept as long as the Service exists.
        let mut ports: Vec<ServicePort> = Vec::with_capacity(spec.ports.len());
        let mut known = HashSet::default();
        let (assigns, _) = self.assigns_ports(spec);
        for (index, port) in spec.ports.iter().enumerate() {
            let Some(mut port) = self.service_port(port, format_args!("spec.ports[{index}]"), fields) else { continue };
            port.node_port = port.node_port.or(assigns.then_some(ASSIGN_PORT));
            // Name and protocol identify a port (A5). A Service with one port needs no set of the ports seen so far.
            if spec.ports.len() == 1 || known.insert((Arc::clone(&port.name), port.protocol)) {
                ports.push(port);
            } else {
                let text =
                    format!("a port named {} with protocol {} came before; ignored", quoted(&port.name), port.protocol);
                fields.problem(format_args!("spec.ports[{index}]"), text);
            }
        }
        if ports.is_empty() {
            fields.problem("spec.ports", "no usable port; Service ignored");
            return None;
        }
        Some(ports)
    }

    fn service_port(
        &mut self,
        port: &objects::ServicePort<'_>,
        field: Arguments<'_>,
        fields: &mut Fields<'_>,
    ) -> Option<ServicePort> {
        let name = self.port_name(&port.name, field, fields)?;
        let protocol = fields.protocol(field, &port.protocol)?;
        let number = fields.port(format_args!("{field}.port"), port.port, "port ignored")?;
        let node_port = Some(port.node_port).filter(|port| *port != 0);
        let node_port = node_port.and_then(|port| fields.port(format_args!("{field}.nodePort"), port, "no node port"));
        Some(ServicePort { name, protocol, port: number, node_port })
    }
}

/// Returns the source ranges (A9). If the Service specifies ranges, reports each IP family that has load balancer IPs but no valid range,
/// because all clients can reach these IPs.
fn source_ranges(spec: &objects::ServiceSpec<'_>, load_balancer_ips: &[IpAddr], fields: &mut Fields<'_>) -> Vec<IpNet> {
    const FIELD: &str = "spec.loadBalancerSourceRanges";
    let ranges = fields.cidrs(FIELD, &spec.load_balancer_source_ranges);
    let given = !spec.load_balancer_source_ranges.is_empty();
    for family in Family::BOTH {
        let balanced = load_balancer_ips.iter().any(|ip| Family::of(*ip) == family);
        if given && balanced && !ranges.iter().any(|range| Family::of(range.addr()) == family) {
            fields.problem(FIELD, format!("no {family} range; the {family} load balancer IPs are open to all clients"));
        }
    }
    ranges
}

/// Returns whether this proxy handles the Service: it is not labelled for another proxy (A1), is not headless (A2) and is no ExternalName
/// (A3).
fn is_for_this_proxy(object: &objects::Service<'_>, spec: &objects::ServiceSpec<'_>) -> bool {
    object.metadata.label(objects::PROXY_NAME).is_none()
        && *spec.cluster_ip != *"None"
        && *spec.type_ != *"ExternalName"
}

/// The IP families in which a Service without a cluster IP gets one: the families in `spec.ipFamilies`, or IPv4 if it names none; and both
/// if `spec.ipFamilyPolicy` asks for both.
fn wanted_cluster_ips(spec: &objects::ServiceSpec<'_>, fields: &mut Fields<'_>) -> ClusterIps {
    let families = spec.ip_families.iter().enumerate();
    let mut wanted: Vec<Family> = families.filter_map(|(index, word)| parse_family(word, index, fields)).collect();
    if wanted.is_empty() {
        wanted.push(Family::V4);
    }
    let has =
        |family| matches!(&*spec.ip_family_policy, "PreferDualStack" | "RequireDualStack") || wanted.contains(&family);
    ClusterIps { v4: ASSIGN.v4.filter(|_| has(Family::V4)), v6: ASSIGN.v6.filter(|_| has(Family::V6)) }
}

/// The cluster IP of each IP family (A4); `None` if there is no usable one, which is reported.
fn cluster_ips(spec: &objects::ServiceSpec<'_>, fields: &mut Fields<'_>) -> Option<ClusterIps> {
    let mut found = ClusterIps::default();
    let families = &spec.ip_families;
    if families.is_empty() {
        let ip = fields.ip("spec.clusterIP", &spec.cluster_ip)?;
        set_cluster_ip(&mut found, ip);
        return Some(found);
    }
    for (index, (family, text)) in families.iter().zip(&spec.cluster_ips).enumerate() {
        let Some(family) = parse_family(family, index, fields) else { continue };
        if found.get(family).is_some() {
            continue;
        }
        let Some(ip) = fields.ip(format_args!("spec.clusterIPs[{index}]"), text) else { continue };
        if Family::of(ip) == family {
            set_cluster_ip(&mut found, ip);
        } else {
            let text = format!("{} is not an {family} address; ignored", quoted(text));
            fields.problem(format_args!("spec.clusterIPs[{index}]"), text);
        }
    }
    if found == ClusterIps::default() {
        fields.problem("spec.clusterIPs", "no usable address for any of spec.ipFamilies; Service ignored");
        return None;
    }
    Some(found)
}

fn set_cluster_ip(ips: &mut ClusterIps, ip: IpAddr) {
    match ip {
        IpAddr::V4(ip) => ips.v4 = Some(ip),
        IpAddr::V6(ip) => ips.v6 = Some(ip),
    }
}

fn parse_family(word: &str, index: usize, fields: &mut Fields<'_>) -> Option<Family> {
    match word {
        "IPv4" => Some(Family::V4),
        "IPv6" => Some(Family::V6),
        other => {
            fields.problem(
                format_args!("spec.ipFamilies[{index}]"),
                format!("{} is not IPv4 or IPv6; ignored", quoted(other)),
            );
            None
        }
    }
}

/// Returns the external IPs that can be used (A7, A17), without white space, blank entries and duplicates.
fn external_ips(spec: &objects::ServiceSpec<'_>, fields: &mut Fields<'_>) -> Vec<IpAddr> {
    let (mut ips, mut known) = (Vec::new(), HashSet::default());
    for (index, text) in spec.external_ips.iter().enumerate() {
        let text = text.trim();
        if !text.is_empty() {
            let ip = reachable_ip(format_args!("spec.externalIPs[{index}]"), text, fields);
            ips.extend(ip.filter(|ip| known.insert(*ip)));
        }
    }
    ips
}

/// Returns the load balancer IPs whose `ipMode` is VIP or absent, because packets reach the node with one of these as destination (A8).
fn load_balancer_ips(object: &objects::Service<'_>, fields: &mut Fields<'_>) -> Vec<IpAddr> {
    let ingress = &object.status.load_balancer.ingress;
    let (mut ips, mut known) = (Vec::new(), HashSet::default());
    for (index, ingress) in ingress.iter().enumerate() {
        let field = format!("status.loadBalancer.ingress[{index}]");
        let Some(text) = Some(&ingress.ip).filter(|text| !text.is_empty()) else { continue };
        match &*ingress.ip_mode {
            "" | "VIP" => {
                let ip = reachable_ip(format_args!("{field}.ip"), text, fields);
                ips.extend(ip.filter(|ip| known.insert(*ip)));
            }
            "Proxy" => {}
            other => fields.problem(
                format_args!("{field}.ipMode"),
                format!("{} is not VIP or Proxy; ingress ignored", quoted(other)),
            ),
        }
    }
    ips
}

/// Returns an external IP or load balancer IP. Reports a problem and returns `None` for a text that is no IP address, and for an address
/// with a meaning on every host or link, such as a loopback address (A17): a Service with that address would take traffic for other
/// destinations, for example for a cloud's metadata server at 169.254.169.254. The API server refuses most of these addresses in external
/// IPs (`ValidateNonSpecialIP` in Kubernetes), but not in the status.
fn reachable_ip(field: impl Display, text: &str, fields: &mut Fields<'_>) -> Option<IpAddr> {
    let ip = fields.ip(&field, text)?;
    let special = match ip {
        ip if ip.is_unspecified() => "the unspecified address",
        ip if ip.is_loopback() => "a loopback address",
        ip if ip.is_multicast() => "a multicast address",
        IpAddr::V4(ip) if ip.is_link_local() => "a link-local address",
        IpAddr::V6(ip) if ip.is_unicast_link_local() => "a link-local address",
        IpAddr::V4(ip) if ip.is_broadcast() => "the broadcast address",
        _ => return Some(ip),
    };
    fields.problem(field, format!("{} is {special}; ignored", quoted(text)));
    None
}

/// Returns a traffic policy. An empty text means Cluster (A12), and so does an unknown one, which is reported.
fn policy(word: &str, field: &str, fields: &mut Fields<'_>) -> TrafficPolicy {
    match word {
        "" | "Cluster" => TrafficPolicy::Cluster,
        "Local" => TrafficPolicy::Local,
        other => {
            fields.problem(field, format!("{} is not Cluster or Local; Cluster is used", quoted(other)));
            TrafficPolicy::Cluster
        }
    }
}

/// Returns the external traffic policy; Local is used only if traffic can reach the Service from outside the cluster (A12).
fn external_policy(spec: &objects::ServiceSpec<'_>, fields: &mut Fields<'_>) -> TrafficPolicy {
    let policy = policy(&spec.external_traffic_policy, "spec.externalTrafficPolicy", fields);
    // External IPs count here even if the feature gate AllowServiceExternalIPs is off.
    let has_external_ips = !spec.external_ips.is_empty();
    let reachable = match &*spec.type_ {
        "LoadBalancer" | "NodePort" => true,
        "" | "ClusterIP" => has_external_ips,
        other => {
            fields.problem("spec.type", format!("{} is not a Service type; ClusterIP is used", quoted(other)));
            has_external_ips
        }
    };
    if reachable { policy } else { TrafficPolicy::Cluster }
}

/// Returns the time-out of ClientIP affinity in seconds (A11); `None` without affinity.
fn affinity_seconds(spec: &objects::ServiceSpec<'_>, fields: &mut Fields<'_>) -> Option<u32> {
    match &*spec.session_affinity {
        "" | "None" => return None,
        "ClientIP" => {}
        other => {
            fields.problem("spec.sessionAffinity", format!("{} is not None or ClientIP; None is used", quoted(other)));
            return None;
        }
    }
    let Some(given) = spec.session_affinity_config.client_ip.timeout_seconds else {
        return Some(DEFAULT_AFFINITY_SECONDS);
    };
    let valid = u32::try_from(given).ok().filter(|seconds| (1..=MAX_AFFINITY_SECONDS).contains(seconds));
    if valid.is_none() {
        let text = format!("{given} is not in 1 to {MAX_AFFINITY_SECONDS}; {DEFAULT_AFFINITY_SECONDS} is used");
        fields.problem("spec.sessionAffinityConfig.clientIP.timeoutSeconds", text);
    }
    Some(valid.unwrap_or(DEFAULT_AFFINITY_SECONDS))
}

/// Returns whether the Service asks for topology hints; see [`Service::asks_for_hints`]. The annotation counts with the values `Auto` and
/// `auto`, as for the EndpointSlice controller.
fn asks_for_hints(object: &objects::Service<'_>, spec: &objects::ServiceSpec<'_>) -> bool {
    let mode = object.metadata.annotation(objects::TOPOLOGY_MODE);
    !spec.traffic_distribution.is_empty() || mode.is_some_and(|mode| mode == "Auto" || mode == "auto")
}

/// The valid values of the annotations that allow only some values, each with its meaning (E12, J3, J13).
const SCHEDULERS: [(&str, Scheduler); 3] =
    [("random", Scheduler::Random), ("source-hash", Scheduler::SourceHash), ("maglev", Scheduler::Maglev)];
const CLOSE_CONNECTIONS: [(&str, CloseConnections); 2] = [
    ("endpoint-gone", CloseConnections::EndpointGone),
    ("endpoint-or-service-gone", CloseConnections::EndpointOrServiceGone),
];
const KEEP_UDP_FLOWS: [(&str, ()); 1] = [("not-ready", ())];

/// Returns the meaning of an annotation's value; `None` without the annotation, or if its value is invalid, which is reported as a problem.
fn choice<T: Copy>(
    object: &objects::Service<'_>,
    annotation: &str,
    words: &[(&str, T)],
    fields: &mut Fields<'_>,
) -> Option<T> {
    let given = object.metadata.annotation(annotation)?;
    let chosen = words.iter().find(|(word, _)| *word == given).map(|(_, meaning)| *meaning);
    if chosen.is_none() {
        let words: Vec<&str> = words.iter().map(|(word, _)| *word).collect();
        let text = format!("{} is unknown, known are: {}; ignored", quoted(given), words.join(", "));
        fields.problem(format_args!("metadata.annotations[{annotation}]"), text);
    }
    chosen
}

/// Returns the weights that the Service's annotation gives to endpoints by where they run (E15); none if it is absent or invalid.
fn weights(object: &objects::Service<'_>, fields: &mut Fields<'_>) -> Weights {
    let Some(text) = object.metadata.annotation(objects::WEIGHTS) else { return Weights::default() };
    parse_weights(text).unwrap_or_else(|| {
        let field = format_args!("metadata.annotations[{}]", objects::WEIGHTS);
        let valid = format!("local=N or zone=N, or both with a comma between them, with N from 1 to {MOST_WEIGHT}");
        fields.problem(field, format!("{} is not {valid}; ignored", quoted(text)));
        Weights::default()
    })
}

/// Parses weights such as `local=4,zone=2`; `None` if the text is invalid. A text that names a place twice is invalid, because the weight
/// would be ambiguous.
fn parse_weights(text: &str) -> Option<Weights> {
    let mut weights = Weights::default();
    for part in text.split(',') {
        let (place, weight) = part.split_once('=')?;
        let of_place = match place.trim() {
            "local" => &mut weights.local,
            "zone" => &mut weights.zone,
            _ => return None,
        };
        if of_place.replace(parse_weight(weight)?).is_some() {
            return None;
        }
    }
    Some(weights)
}

/// Returns the health-check node port of a Service of type LoadBalancer whose external policy is Local; `None` for other Services (A13),
/// and for an invalid port.
fn health_check_node_port(
    spec: &objects::ServiceSpec<'_>,
    external: TrafficPolicy,
    assigns: bool,
    fields: &mut Fields<'_>,
) -> Option<u16> {
    if *spec.type_ != *"LoadBalancer" || external != TrafficPolicy::Local {
        return None;
    }
    if assigns && spec.health_check_node_port == 0 {
        return Some(ASSIGN_PORT);
    }
    fields.port("spec.healthCheckNodePort", spec.health_check_node_port, "no health check")
}
