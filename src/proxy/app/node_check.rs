//! Checks whether this node's Node object fits the kernel and the configuration, when the object first arrives.
//!
//! Takes the configuration, the families that the kernel supports and the Node; gives warnings, or an error if the proxy cannot serve the
//! node. Pure.

use anyhow::{Result, ensure};
use ipnet::IpNet;

use component::config::{Config, DetectLocal, NodePortAddresses};
use node::kernel::families;
use rules::model::{Family, Node};

/// Returns the warnings about a Node.
///
/// # Errors
/// When the node cannot be served: the kernel does not support the node's primary IP family; or the node serves one family only, and local
/// traffic is recognised by CIDRs that are all of the other family.
pub(super) fn check(config: &Config, supported: &[Family], node: &Node) -> Result<Vec<String>> {
    let primary = node.primary_family();
    let served = families::served(primary, supported)?;
    let mut warnings = local_traffic(config, &served, node)?;
    warnings.extend(node_ports(config, &served, primary));
    if node.ips.is_empty() {
        warnings.push("the Node has no IP: nothing listens on `primary` node ports until it has one".to_owned());
    }
    Ok(warnings)
}

fn local_traffic(config: &Config, served: &[Family], node: &Node) -> Result<Vec<String>> {
    let (field, ranges): (&str, Vec<IpNet>) = match &config.detect_local {
        DetectLocal::ClusterCidr { v4, v6 } => {
            ("clusterCIDR", v4.map(IpNet::V4).into_iter().chain(v6.map(IpNet::V6)).collect())
        }
        DetectLocal::NodeCidr => ("the Node's spec.podCIDRs", node.pod_cidrs.clone()),
        DetectLocal::BridgeInterface(_) | DetectLocal::InterfaceNamePrefix(_) => return Ok(Vec::new()),
    };
    let is_missing = |family: &&Family| !ranges.iter().any(|range| Family::of(range.addr()) == **family);
    if let ([family], false) = (served, ranges.is_empty()) {
        ensure!(!is_missing(&family), "{field} has no {family} range, and this node serves {family} only");
    }
    let warning = |family| format!("{field} has no {family} range: traffic of local pods is treated as other traffic");
    Ok(served.iter().filter(is_missing).map(warning).collect())
}

fn node_ports(config: &Config, served: &[Family], primary: Family) -> Vec<String> {
    let NodePortAddresses { primary: false, ranges } = &config.node_port_addresses else { return Vec::new() };
    let lacks = |family: Family| !ranges.iter().any(|range| Family::of(range.addr()) == family);
    let consequence = |family| format!("node ports are open on all its {family} addresses");
    let lacking = served.iter().copied().filter(|family| lacks(*family));
    lacking
        .map(|family| {
            let which = if family == primary { ", the node's primary family" } else { "" };
            format!("nodePortAddresses has no {family} range{which}: {}", consequence(family))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use component::config::{self, Invocation};

    fn config(flags: &[&str]) -> Config {
        let common = ["kube-proxy", "--hostname-override=here", "--manifests=/m"];
        match config::load(common.iter().chain(flags).map(Into::into)) {
            Ok(Invocation::Run(config)) => config,
            other => panic!("{other:?}"),
        }
    }

    fn node(ips: &[&str], pod_cidrs: &[&str]) -> Node {
        Node {
            name: "here".into(),
            ips: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
            pod_cidrs: pod_cidrs.iter().map(|range| range.parse().unwrap()).collect(),
            ..Node::default()
        }
    }

    // The primary family has to be supported (M9).
    #[test]
    fn the_primary_family_has_to_be_supported() {
        let config = config(&["--cluster-cidr=fd00::/48"]);
        let error = check(&config, &[Family::V4], &node(&["fd00::1"], &[])).unwrap_err();
        assert!(error.to_string().contains("primary IP family is IPv6"), "{error}");
        check(&config, &Family::BOTH, &node(&["fd00::1"], &[])).unwrap();
    }

    // A single family needs its own ranges (P11).
    #[test]
    fn a_single_family_needs_its_own_ranges() {
        let v6_only = config(&["--cluster-cidr=fd00::/48"]);
        assert!(check(&v6_only, &[Family::V4], &node(&["192.0.2.1"], &[])).is_err());
        // A node that serves one family cannot start with ranges of the other family only (P11).
        let by_node = config(&["--detect-local-mode=NodeCIDR"]);
        assert!(check(&by_node, &[Family::V4], &node(&["192.0.2.1"], &["fd00::/64"])).is_err());
        assert_eq!(check(&by_node, &[Family::V4], &node(&["192.0.2.1"], &["10.0.0.0/24"])).unwrap(), [""; 0]);
    }

    // A family without ranges gives a warning (P11).
    #[test]
    fn a_family_without_ranges_gives_a_warning() {
        let config = config(&["--cluster-cidr=10.0.0.0/8", "--nodeport-addresses=192.0.2.0/24"]);
        let warnings = check(&config, &Family::BOTH, &node(&["192.0.2.1"], &[])).unwrap();
        assert_eq!(warnings.len(), 2, "{warnings:?}");
        assert!(warnings[0].starts_with("clusterCIDR has no IPv6 range"));
        assert!(warnings[1].starts_with("nodePortAddresses has no IPv6 range:"));
        let warnings = check(&config, &Family::BOTH, &node(&["fd00::1"], &[])).unwrap();
        assert!(warnings[1].contains("the node's primary family"), "{warnings:?}");
    }

    #[test]
    fn interface_detectors_need_no_ranges() {
        let config = config(&["--detect-local-mode=BridgeInterface", "--pod-bridge-interface=br0"]);
        assert_eq!(check(&config, &[Family::V4], &node(&["192.0.2.1"], &[])).unwrap(), [""; 0]);
    }
}
