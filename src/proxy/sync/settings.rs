//! Makes the settings of the static rules, which do not depend on Services, from the configuration and the facts about the node.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use component::config::{self, Config, DetectLocal, NodePortAddresses, RulesetLayout};
use rules::model::{Family, Node, Ranges, Scheduler};
use rules::ruleset::{Balancing, Counters, Layout, LocalTraffic, Localhost, NodePorts, Pings, Settings};

/// Returns the ruleset layout that the configuration asks for: maps, chains, or chains without a chain for each endpoint.
#[must_use]
pub const fn layout(config: &Config) -> Layout {
    match (config.ruleset_layout, config.endpoint_chains) {
        (RulesetLayout::Maps, _) => Layout::Maps,
        (RulesetLayout::Chains, true) => Layout::Chains,
        (RulesetLayout::Chains, false) => Layout::ServiceChains,
    }
}

/// Returns the settings of one family's table. `interfaces` has the addresses of the node's interfaces; `owned` says whether this process is
/// to own the table, and `endpoint_maps` into how many maps each map of endpoints is split.
pub(super) fn settings(
    config: &Config,
    (node, interfaces): (Option<&Node>, &[IpAddr]),
    family: Family,
    owned: bool,
    endpoint_maps: u8,
) -> Settings {
    let guard_endpoints = config.drop_invalid_from_endpoints;
    Settings {
        family,
        masquerade_mark: 1 << config.masquerade_bit,
        masquerade_all: config.masquerade_all,
        local_traffic: local_traffic(&config.detect_local, node, family),
        node_ports: node_ports(&config.node_port_addresses, family),
        drop_invalid: !config.conntrack.tcp_be_liberal && !guard_endpoints,
        guard_endpoints,
        pings: match config.answer_pings {
            true => Pings::AnsweredBy(ping_answer(config, node, interfaces, family)),
            false => Pings::Ignored,
        },
        refuse_unused: config.refuse_unused_ports,
        balancing: balancing(config),
        endpoint_maps,
        localhost: localhost(config, family),
        counters: match config.counters {
            config::Counters::Off => Counters::Off,
            config::Counters::Services => Counters::Services,
            config::Counters::Endpoints => Counters::Endpoints,
        },
        owned,
    }
}

/// Returns the address that answers pings, if the configuration asks for one: the node's IP, or, if no interface has that, the lowest
/// address of an interface that is neither loopback nor link-local (D25). `None` also if there is no such address.
pub(super) fn ping_answer(
    config: &Config,
    node: Option<&Node>,
    interfaces: &[IpAddr],
    family: Family,
) -> Option<IpAddr> {
    if !config.answer_pings {
        return None;
    }
    let reachable =
        || interfaces.iter().filter(|ip| Family::of(**ip) == family && !ip.is_loopback() && !is_link_local(**ip));
    let named = reachable().find(|ip| node.is_some_and(|node| node.ips.contains(ip)));
    named.or(reachable().min()).copied()
}

/// Returns how endpoints are chosen: the scheduler, what it hashes, and the size of the Maglev table.
pub(super) const fn balancing(config: &Config) -> Balancing {
    Balancing {
        scheduler: match config.scheduler {
            config::Scheduler::Unset | config::Scheduler::Random => Scheduler::Random,
            config::Scheduler::SourceHash => Scheduler::SourceHash,
            config::Scheduler::Maglev => Scheduler::Maglev,
        },
        with_port: matches!(config.scheduler_hash, config::SchedulerHash::SourceAndPort),
        table_size: config.maglev_table_size,
    }
}

/// Returns how traffic of local pods is recognised: by the cluster's CIDR, the node's pod CIDR, or the interface (I1 to I3); `None` if the
/// family has no such CIDR.
fn local_traffic(detect: &DetectLocal, node: Option<&Node>, family: Family) -> Option<LocalTraffic> {
    match detect {
        DetectLocal::ClusterCidr { v4, v6 } => {
            let range = match family {
                Family::V4 => v4.map(IpNet::V4),
                Family::V6 => v6.map(IpNet::V6),
            };
            range.map(LocalTraffic::Source)
        }
        DetectLocal::NodeCidr => {
            let ranges = node.map_or(&[][..], |node| &node.pod_cidrs);
            ranges.iter().find(|range| Family::of(range.addr()) == family).copied().map(LocalTraffic::Source)
        }
        DetectLocal::BridgeInterface(name) => Some(LocalTraffic::Interface(Arc::from(name.as_str()))),
        DetectLocal::InterfaceNamePrefix(prefix) => Some(LocalTraffic::InterfacePrefix(Arc::from(prefix.as_str()))),
    }
}

/// Returns whether node ports are accepted at every address or at listed ones. A family accepts them at every address if the list does not
/// mention it, or has a range with prefix length 0; `primary` counts as a mention of both families (H2 to H4).
pub(super) fn node_ports(addresses: &NodePortAddresses, family: Family) -> NodePorts {
    let mut of_family = addresses.ranges.iter().filter(|range| Family::of(range.addr()) == family).peekable();
    let is_mentioned = addresses.primary || of_family.peek().is_some();
    if !is_mentioned || of_family.any(|range| range.prefix_len() == 0) {
        NodePorts::Everywhere
    } else {
        NodePorts::Listed
    }
}

/// Returns how node ports on loopback addresses are handled: ignored if the feature gate
/// KubeProxyNFTablesLocalhostNodePorts is off (R1). If it is on, they are served if `nodePortAddresses` names a loopback range itself, and
/// refused otherwise; a wider range that contains loopback is not enough (R2).
pub(super) fn localhost(config: &Config, family: Family) -> Localhost {
    let is_named = config.node_port_addresses.loopback().any(|range| Family::of(range.addr()) == family);
    match (config.localhost_node_ports, is_named) {
        (false, _) => Localhost::Ignored,
        (true, true) => Localhost::Served,
        (true, false) => Localhost::Refused,
    }
}

/// Returns the addresses that accept node ports, from the node's IPs and the addresses of its interfaces (H2, H4, H5). Loopback addresses
/// never accept node ports (D20), even if they are listed for health checks.
pub(super) fn node_port_addresses(config: &Config, node: Option<&Node>, interfaces: &[IpAddr]) -> Vec<IpAddr> {
    let mut addresses: Vec<IpAddr> = serving(config, interfaces).collect();
    addresses.extend(primary_addresses(config, node));
    addresses.retain(|ip| !ip.is_loopback());
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// Returns the addresses of interfaces that may accept node ports or health-check node ports. Where every address accepts node ports,
/// loopback and link-local addresses are left out unless a range asks for them: every pod interface brings a link-local address, and no
/// load balancer sends traffic to such an address.
pub(super) fn serving(config: &Config, interfaces: &[IpAddr]) -> impl Iterator<Item = IpAddr> {
    let addresses = &config.node_port_addresses;
    let asked_for: Ranges = addresses.ranges.iter().copied().filter(|range| range.prefix_len() > 0).collect();
    let everywhere = Family::BOTH.map(|family| node_ports(addresses, family) == NodePorts::Everywhere);
    let serves = move |ip: &IpAddr| {
        let [v4, v6] = everywhere;
        let everywhere = if Family::of(*ip) == Family::V4 { v4 } else { v6 };
        asked_for.contains(*ip) || (everywhere && !ip.is_loopback() && !is_link_local(*ip))
    };
    interfaces.iter().copied().filter(serves)
}

const fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    }
}

/// Returns the node's primary IP of each family, if the configuration names `primary` (H2).
pub(super) fn primary_addresses(config: &Config, node: Option<&Node>) -> impl Iterator<Item = IpAddr> {
    let node = node.filter(|_| config.node_port_addresses.primary);
    let ips = node.map(|node| [node.ipv4().map(IpAddr::V4), node.ipv6().map(IpAddr::V6)]);
    ips.into_iter().flatten().flatten()
}

#[cfg(test)]
mod tests {
    use component::config::Invocation;

    use super::*;

    fn answer(flag: &str, of_node: &[&str], interfaces: &[&str], family: Family) -> Option<IpAddr> {
        let load =
            component::config::load(["kube-proxy", "--manifests=/", "--hostname-override=here", flag].map(Into::into));
        let Ok(Invocation::Run(config)) = load else { panic!("a configuration") };
        let all = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<IpAddr>>();
        let node = Node { ips: all(of_node), ..Node::default() };
        ping_answer(&config, Some(&node), &all(interfaces), family)
    }

    // The node's IP answers pings if an interface has it, else another address that others may reach (D25).
    #[test]
    fn an_address_of_the_node_answers_pings() {
        const ON: &str = "--answer-pings";
        let (interfaces, ips) =
            (["127.0.0.1", "10.0.0.9", "192.0.2.2", "169.254.1.1", "::1", "fe80::1"], ["192.0.2.2"]);
        let ip = |text: &str| Some(text.parse().unwrap());
        assert_eq!(answer(ON, &ips, &interfaces, Family::V4), ip("192.0.2.2"));
        assert_eq!(answer(ON, &["192.0.2.7"], &interfaces, Family::V4), ip("10.0.0.9"));
        assert_eq!(answer(ON, &ips, &interfaces, Family::V6), None);
        assert_eq!(answer(ON, &["2001:db8::2"], &["fe80::1", "2001:db8::3"], Family::V6), ip("2001:db8::3"));
        assert_eq!(answer("--answer-pings=false", &ips, &interfaces, Family::V4), None);
    }
}
