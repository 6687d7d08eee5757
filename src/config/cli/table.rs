//! The flags that set a field of the configuration, one a line, with upstream's names.
//!
//! Defaults are those of [`KubeProxyConfiguration`](crate::config::file::KubeProxyConfiguration). To add a flag, add a line.

use super::field::Field::{
    self, Address, Bool, Counts, Duration, Float, Gates, Int, Interfaces, Layout, Level, List, Quantity, Text, Vmodule,
};

/// A flag that sets a field.
pub(super) struct Flag {
    /// Its name, with dashes.
    pub(super) name: &'static str,
    /// What it sets.
    pub(super) field: Field,
    /// Its line of the help text.
    pub(super) help: &'static str,
    /// The heading of the help text that it stands under.
    pub(super) group: &'static str,
    /// Whether it has effect beside `--config`, as upstream documents it.
    pub(super) with_file: bool,
}

const fn flag(group: &'static str, name: &'static str, field: Field, help: &'static str) -> Flag {
    Flag { name, field, help, group, with_file: false }
}

const fn always(group: &'static str, name: &'static str, field: Field, help: &'static str) -> Flag {
    Flag { name, field, help, group, with_file: true }
}

const NODE: &str = "Node and addresses";
const PROXY: &str = "Proxying";
const CLIENT: &str = "API server";
const CONNTRACK: &str = "Connection tracking";
const LOGS: &str = "Logging";
const OTHER: &str = "Other";
pub(super) const UNUSED: &str = "Accepted because upstream has them, without effect";

/// All of them, in the order of the help text.
#[rustfmt::skip] // a table: one flag a line
pub(super) const FLAGS: &[Flag] = &[
    always(NODE, "hostname-override", Text(|c| &mut c.hostname_override), "Name of this node; default: the host name"),
    flag(NODE, "bind-address", Text(|c| &mut c.bind_address), "The node's primary IP unless unspecified; nothing is bound to it"),
    flag(NODE, "bind-address-hard-fail", Bool(|c| &mut c.bind_address_hard_fail), "End when the healthz or metrics server cannot listen"),
    flag(NODE, "healthz-bind-address", Address(|c| &mut c.healthz_bind_address), "IP or IP:port of the healthz server"),
    flag(NODE, "metrics-bind-address", Address(|c| &mut c.metrics_bind_address), "IP or IP:port of the metrics server"),
    flag(NODE, "nodeport-addresses", List(|c| &mut c.node_port_addresses), "CIDRs of the addresses that accept node ports, or primary"),
    flag(PROXY, "proxy-mode", Text(|c| &mut c.mode), "The proxy mode; only nftables"),
    always(PROXY, "ruleset-layout", Layout(|c| &mut c.nftables.ruleset_layout), "How the rules are laid out: maps, or chains as in iptables mode"),
    always(PROXY, "relist-removal-limit", Int(|c| &mut c.nftables.relist_removal_limit), "Percent of a kind's objects that one list may remove; one that lacks more (and at least 10) is confirmed by a second; 100: never"),
    always(PROXY, "service-elements-limit", Int(|c| &mut c.nftables.service_elements_limit), "Elements of sets and maps that one Service may take, about one for each endpoint of each port and address; a larger Service is left out; 0: no limit"),
    always(PROXY, "flowtable", Interfaces(|c| &mut c.nftables.flowtable), "Interfaces that forward established connections past the rules: off, auto, or names, comma-separated"),
    always(PROXY, "counters", Counts(|c| &mut c.nftables.counters), "What the rules count: off, services (new connections, and packets refused or dropped), or endpoints as well"),
    always(PROXY, "metrics-services-limit", Int(|c| &mut c.nftables.metrics_services_limit), "Services with metrics of their own when --counters is on, the busiest first; the others are added up"),
    flag(PROXY, "masquerade-all", Bool(|c| &mut c.nftables.masquerade_all), "Masquerade all traffic sent to cluster IPs"),
    flag(PROXY, "detect-local-mode", Text(|c| &mut c.detect_local_mode), "ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix"),
    flag(PROXY, "cluster-cidr", Text(|c| &mut c.cluster_cidr), "CIDR of the pods, or one of each family, comma-separated"),
    flag(PROXY, "pod-bridge-interface", Text(|c| &mut c.detect_local.bridge_interface), "The pods' bridge, for BridgeInterface"),
    flag(PROXY, "pod-interface-name-prefix", Text(|c| &mut c.detect_local.interface_name_prefix), "Prefix of pod interfaces, for InterfaceNamePrefix"),
    flag(PROXY, "iptables-sync-period", Duration(|c| &mut c.nftables.sync_period), "Longest time until a failed sync is tried again"),
    flag(PROXY, "iptables-min-sync-period", Duration(|c| &mut c.nftables.min_sync_period), "Least time between two syncs"),
    flag(CLIENT, "kubeconfig", Text(|c| &mut c.client_connection.kubeconfig), "Path of a kubeconfig; default: in-cluster"),
    flag(CLIENT, "kube-api-content-type", Text(|c| &mut c.client_connection.content_type), "Content type of requests"),
    flag(CLIENT, "kube-api-qps", Float(|c| &mut c.client_connection.qps), "Requests a second"),
    flag(CLIENT, "kube-api-burst", Int(|c| &mut c.client_connection.burst), "Requests at once beyond that"),
    flag(CLIENT, "config-sync-period", Duration(|c| &mut c.config_sync_period), "Resync period of the informers"),
    flag(CONNTRACK, "conntrack-max-per-core", Int(|c| &mut c.conntrack.max_per_core), "Connections a CPU; 0 leaves the limit alone"),
    flag(CONNTRACK, "conntrack-min", Int(|c| &mut c.conntrack.min), "Least number of connections"),
    flag(CONNTRACK, "conntrack-tcp-timeout-established", Duration(|c| &mut c.conntrack.tcp_established_timeout), "Time-out of idle TCP connections; 0 leaves it alone"),
    flag(CONNTRACK, "conntrack-tcp-timeout-close-wait", Duration(|c| &mut c.conntrack.tcp_close_wait_timeout), "Time-out in CLOSE_WAIT; 0 leaves it alone"),
    flag(CONNTRACK, "conntrack-tcp-be-liberal", Bool(|c| &mut c.conntrack.tcp_be_liberal), "Accept packets outside of the window"),
    flag(CONNTRACK, "conntrack-udp-timeout", Duration(|c| &mut c.conntrack.udp_timeout), "Time-out of unanswered UDP flows; 0 leaves it alone"),
    flag(CONNTRACK, "conntrack-udp-timeout-stream", Duration(|c| &mut c.conntrack.udp_stream_timeout), "Time-out of answered UDP flows; 0 leaves it alone"),
    always(LOGS, "v", Level(|c| &mut c.logging.verbosity), "Log verbosity"),
    always(LOGS, "vmodule", Vmodule, "pattern=level pairs; text format only, without effect"),
    always(LOGS, "logging-format", Text(|c| &mut c.logging.format), "text or json"),
    always(LOGS, "log-flush-frequency", Duration(|c| &mut c.logging.flush_frequency), "Without effect: logs are written at once"),
    always(LOGS, "log-text-split-stream", Bool(|c| &mut c.logging.options.text.split_stream), "Without effect; needs LoggingAlphaOptions"),
    always(LOGS, "log-text-info-buffer-size", Quantity(|c| &mut c.logging.options.text.info_buffer_size), "Without effect; needs LoggingAlphaOptions"),
    always(LOGS, "log-json-split-stream", Bool(|c| &mut c.logging.options.json.split_stream), "Without effect; needs LoggingAlphaOptions"),
    always(LOGS, "log-json-info-buffer-size", Quantity(|c| &mut c.logging.options.json.info_buffer_size), "Without effect; needs LoggingAlphaOptions"),
    flag(OTHER, "feature-gates", Gates, "name=bool pairs"),
    flag(OTHER, "oom-score-adj", Int(|c| &mut c.oom_score_adj), "The process's oom_score_adj, -1000 to 1000"),
    flag(OTHER, "profiling", Bool(|c| &mut c.enable_profiling), "Add profiling handlers to the metrics server"),
    flag(OTHER, "show-hidden-metrics-for-version", Text(|c| &mut c.show_hidden_metrics_for_version), "The previous minor release, such as 1.35"),
    flag(UNUSED, "iptables-masquerade-bit", Int(|c| &mut c.iptables.masquerade_bit), "For iptables mode"),
    flag(UNUSED, "iptables-localhost-nodeports", Bool(|c| &mut c.iptables.localhost_node_ports), "For iptables mode"),
    flag(UNUSED, "ipvs-sync-period", Duration(|c| &mut c.ipvs.sync_period), "For ipvs mode"),
    flag(UNUSED, "ipvs-min-sync-period", Duration(|c| &mut c.ipvs.min_sync_period), "For ipvs mode"),
    flag(UNUSED, "ipvs-scheduler", Text(|c| &mut c.ipvs.scheduler), "For ipvs mode"),
    flag(UNUSED, "ipvs-exclude-cidrs", List(|c| &mut c.ipvs.exclude_cidrs), "For ipvs mode"),
    flag(UNUSED, "ipvs-strict-arp", Bool(|c| &mut c.ipvs.strict_arp), "For ipvs mode"),
    flag(UNUSED, "ipvs-tcp-timeout", Duration(|c| &mut c.ipvs.tcp_timeout), "For ipvs mode"),
    flag(UNUSED, "ipvs-tcpfin-timeout", Duration(|c| &mut c.ipvs.tcp_fin_timeout), "For ipvs mode"),
    flag(UNUSED, "ipvs-udp-timeout", Duration(|c| &mut c.ipvs.udp_timeout), "For ipvs mode"),
];
