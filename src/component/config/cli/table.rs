//! The tables of all flags but `--help` and `--version`, one flag a line. Both tables have the flags below one heading in the order in
//! which the help text lists them.
//!
//! A flag in [`FLAGS`] sets a field of the configuration, and has the default of this field
//! ([`KubeProxyConfiguration`](crate::config::file::KubeProxyConfiguration)); a flag in [`OPTIONS`] sets no field. To add a flag, add a
//! line. The help text, the man page, the tables of upstream's flags in `deploy/REFERENCE.md` and the warnings about flags without effect
//! are generated from these tables.

use super::field::Field::{
    self, Address, Bool, Counts, Duration, Float, Gates, Hashes, Int, Interfaces, Layout, Level, List, Ownership,
    Picks, Quantity, Text, Vmodule,
};
use super::field::{go_bool, go_int};

/// A flag that sets a field.
pub(super) struct Flag {
    /// Its name, with dashes.
    pub(super) name: &'static str,
    /// Path of the field in the configuration file.
    pub(super) path: &'static str,
    pub(super) field: Field,
    /// Its line of the help text.
    pub(super) help: &'static str,
    /// Its heading in the help text.
    pub(super) group: &'static str,
    /// Whether it takes effect together with `--config`; for a flag of upstream as in upstream.
    pub(super) with_file: bool,
}

const fn flag(group: &'static str, name: &'static str, path: &'static str, field: Field, help: &'static str) -> Flag {
    Flag { name, path, field, help, group, with_file: false }
}

const fn always(group: &'static str, name: &'static str, path: &'static str, field: Field, help: &'static str) -> Flag {
    Flag { name, path, field, help, group, with_file: true }
}

/// A flag without a field of its own; `Flags::apply_ports` puts the values of two of them, which are ports, into the bind addresses.
pub(super) struct Opt {
    /// Its name, with dashes.
    pub(super) name: &'static str,
    /// The Go type of its value.
    pub(super) kind: &'static str,
    /// Its value when it is not given, as Go prints it.
    pub(super) default: &'static str,
    /// Checks that a value has the right type; the error tells which values are valid.
    pub(super) check: fn(&str) -> Result<(), String>,
    /// Its heading in the help text.
    pub(super) group: &'static str,
    /// Its line of the help text.
    pub(super) help: &'static str,
    /// Whether it takes effect together with `--config`; for a flag of upstream as in upstream.
    pub(super) with_file: bool,
}

const fn text(group: &'static str, name: &'static str, default: &'static str, help: &'static str) -> Opt {
    Opt { name, kind: "string", default, check: |_| Ok(()), group, help, with_file: true }
}

const fn switch(group: &'static str, name: &'static str, help: &'static str) -> Opt {
    Opt { name, kind: "bool", default: "false", check: |text| go_bool(text).map(drop), group, help, with_file: true }
}

const fn port(group: &'static str, name: &'static str, default: &'static str, help: &'static str) -> Opt {
    let check = |text: &str| go_int(text).map(drop);
    Opt { name, kind: "int32", default, check, group, help, with_file: false }
}

const GENERIC: &str = "Generic flags";
const CLIENT: &str = "API server flags";
const NODE: &str = "Node flags";
const PROXY: &str = "Proxy flags";
const CONNTRACK: &str = "Conntrack flags";
const SERVERS: &str = "Health and metrics flags";
/// The heading of the flags that upstream does not have.
pub(super) const OWN: &str = "kube-proxy-nft flags (upstream has none of these)";
const LOGS: &str = "Logs flags";
const UNUSED: &str = "Flags without effect, accepted because upstream has them";
/// The heading of `--help` and `--version`.
pub(super) const GLOBAL: &str = "Global flags";

/// The headings of the help text, in its order.
pub(super) const GROUPS: [&str; 10] = [GENERIC, CLIENT, NODE, PROXY, CONNTRACK, SERVERS, OWN, LOGS, UNUSED, GLOBAL];

/// How the help of a flag without effect begins.
pub(super) const WITHOUT_EFFECT: &str = "Without effect";
/// How the help of a flag that upstream calls deprecated begins.
pub(super) const DEPRECATED: &str = "Deprecated";

/// The flags that set no field of the file: those that choose an action, and some others.
#[rustfmt::skip] // a table: one flag a line
pub(super) const OPTIONS: &[Opt] = &[
    text(GENERIC, "config", "", "Path of a KubeProxyConfiguration file, YAML or JSON; beside it most other flags have no effect, and a warning names each"),
    text(GENERIC, "write-config-to", "", "Write the configuration with its defaults to this file and exit"),
    switch(GENERIC, "cleanup", "Remove the rules of any kube-proxy and exit"),
    switch(GENERIC, "init-only", "Do the privileged part of the start and exit"),
    text(CLIENT, "master", "", "URL of the API server; overrides the kubeconfig"),
    port(SERVERS, "healthz-port", "10256", "Deprecated: port of the health server where --healthz-bind-address has none; 0 switches it off"),
    port(SERVERS, "metrics-port", "10249", "Deprecated: port of the metrics server where --metrics-bind-address has none"),
    switch(OWN, "cleanup-force", "With --cleanup: remove the rules also while a kube-proxy runs"),
    text(OWN, "manifests", "", "Read Services, EndpointSlices and Nodes from the files of this directory, not from the API server; render and explain take files and - too"),
    text(UNUSED, "machine-id-file", "/etc/machine-id,/var/lib/dbus/machine-id", "Without effect: for cAdvisor, which is not in this program"),
    text(UNUSED, "boot-id-file", "/proc/sys/kernel/random/boot_id", "Without effect: for cAdvisor, which is not in this program"),
];

/// All flags that set a field.
#[rustfmt::skip] // a table: one flag a line
pub(super) const FLAGS: &[Flag] = &[
    flag(GENERIC, "feature-gates", "featureGates", Gates, "Feature gates, as name=true or name=false, comma-separated"),
    flag(GENERIC, "oom-score-adj", "oomScoreAdj", Int(|c| &mut c.oom_score_adj), "The oom_score_adj of this process, -1000 to 1000"),
    flag(CLIENT, "kubeconfig", "clientConnection.kubeconfig", Text(|c| &mut c.client_connection.kubeconfig), "Path of a kubeconfig; without it and --master: the in-cluster configuration"),
    flag(CLIENT, "kube-api-content-type", "clientConnection.contentType", Text(|c| &mut c.client_connection.content_type), "What the API server is asked for: application/vnd.kubernetes.protobuf, with JSON from servers that have no protobuf, or application/json"),
    always(NODE, "hostname-override", "hostnameOverride", Text(|c| &mut c.hostname_override), "Name of the Node that this proxy runs on; empty: the host name"),
    flag(NODE, "bind-address", "bindAddress", Text(|c| &mut c.bind_address), "This node's primary IP, and so its primary family; unspecified: those of the Node; nothing is bound to it"),
    flag(NODE, "nodeport-addresses", "nodePortAddresses", List(|c| &mut c.node_port_addresses), "The node's addresses that accept node ports: CIDRs, primary, localhost and all, in any combination, comma-separated; empty: primary"),
    flag(PROXY, "proxy-mode", "mode", Text(|c| &mut c.mode), "The proxy mode: nftables; iptables, ipvs and nothing run nftables too, ipvs with a warning"),
    flag(PROXY, "masquerade-all", "nftables.masqueradeAll", Bool(|c| &mut c.nftables.masquerade_all), "Masquerade all traffic sent to cluster IPs"),
    flag(PROXY, "detect-local-mode", "detectLocalMode", Text(|c| &mut c.detect_local_mode), "How traffic of local pods is recognised: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix; empty: ClusterCIDR"),
    flag(PROXY, "cluster-cidr", "clusterCIDR", Text(|c| &mut c.cluster_cidr), "CIDR of the pods, or one of each family, comma-separated; for ClusterCIDR"),
    flag(PROXY, "pod-bridge-interface", "detectLocal.bridgeInterface", Text(|c| &mut c.detect_local.bridge_interface), "Name of the pods' bridge; for BridgeInterface"),
    flag(PROXY, "pod-interface-name-prefix", "detectLocal.interfaceNamePrefix", Text(|c| &mut c.detect_local.interface_name_prefix), "What the names of pod interfaces start with; for InterfaceNamePrefix"),
    flag(PROXY, "iptables-masquerade-bit", "iptables.masqueradeBit", Int(|c| &mut c.iptables.masquerade_bit), "The bit of the packet mark that asks for masquerading, 0 to 31; in mode nftables the file's nftables.masqueradeBit counts"),
    flag(PROXY, "iptables-sync-period", "nftables.syncPeriod", Duration(|c| &mut c.nftables.sync_period), "Longest time until a failed sync is tried again; half of the time after which the health server reports a sync that is late; not in mode ipvs"),
    flag(PROXY, "iptables-min-sync-period", "nftables.minSyncPeriod", Duration(|c| &mut c.nftables.min_sync_period), "Least time between two syncs; 0 for 10 times the processor time of the last one, at most 1s; not in mode ipvs"),
    flag(PROXY, "ipvs-sync-period", "ipvs.syncPeriod", Duration(|c| &mut c.ipvs.sync_period), "As --iptables-sync-period, in mode ipvs"),
    flag(PROXY, "ipvs-min-sync-period", "ipvs.minSyncPeriod", Duration(|c| &mut c.ipvs.min_sync_period), "As --iptables-min-sync-period, in mode ipvs"),
    flag(PROXY, "ipvs-exclude-cidrs", "ipvs.excludeCIDRs", List(|c| &mut c.ipvs.exclude_cidrs), "CIDRs whose virtual servers stay when what mode ipvs left is removed, comma-separated; in mode ipvs"),
    flag(PROXY, "ipvs-scheduler", "ipvs.scheduler", Text(|c| &mut c.ipvs.scheduler), "In modes ipvs and nftables, where --scheduler is not set: sh stands for source-hash, mh for maglev, any other one for random, with a warning"),
    flag(CONNTRACK, "conntrack-max-per-core", "conntrack.maxPerCore", Int(|c| &mut c.conntrack.max_per_core), "Connections to track for each CPU; 0 leaves the limit of the kernel alone, and --conntrack-min without effect"),
    flag(CONNTRACK, "conntrack-min", "conntrack.min", Int(|c| &mut c.conntrack.min), "Least number of connections to track"),
    flag(CONNTRACK, "conntrack-tcp-timeout-established", "conntrack.tcpEstablishedTimeout", Duration(|c| &mut c.conntrack.tcp_established_timeout), "Time-out of idle established TCP connections; 0 leaves the kernel's"),
    flag(CONNTRACK, "conntrack-tcp-timeout-close-wait", "conntrack.tcpCloseWaitTimeout", Duration(|c| &mut c.conntrack.tcp_close_wait_timeout), "Time-out of TCP connections in CLOSE_WAIT; 0 leaves the kernel's"),
    flag(CONNTRACK, "conntrack-tcp-be-liberal", "conntrack.tcpBeLiberal", Bool(|c| &mut c.conntrack.tcp_be_liberal), "Take TCP packets outside of the window as valid"),
    flag(CONNTRACK, "conntrack-udp-timeout", "conntrack.udpTimeout", Duration(|c| &mut c.conntrack.udp_timeout), "Time-out of UDP flows without an answer; 0 leaves the kernel's"),
    flag(CONNTRACK, "conntrack-udp-timeout-stream", "conntrack.udpStreamTimeout", Duration(|c| &mut c.conntrack.udp_stream_timeout), "Time-out of UDP flows with packets in both directions; 0 leaves the kernel's"),
    flag(SERVERS, "bind-address-hard-fail", "bindAddressHardFail", Bool(|c| &mut c.bind_address_hard_fail), "End when the health or the metrics server cannot listen; else it is tried again every 5 s"),
    flag(SERVERS, "healthz-bind-address", "healthzBindAddress", Address(|c| &mut c.healthz_bind_address), "IP or IP:port of the health server (/healthz, /livez, /readyz)"),
    flag(SERVERS, "metrics-bind-address", "metricsBindAddress", Address(|c| &mut c.metrics_bind_address), "IP or IP:port of the metrics server (/metrics, /configz and others)"),
    flag(SERVERS, "profiling", "enableProfiling", Bool(|c| &mut c.enable_profiling), "Add /debug/flags/v to the metrics server, and let it answer other hosts below /debug"),
    always(OWN, "ruleset-layout", "nftables.rulesetLayout", Layout(|c| &mut c.nftables.ruleset_layout), "How the rules are laid out: maps, or chains as in iptables mode"),
    always(OWN, "endpoint-chains", "nftables.endpointChains", Bool(|c| &mut c.nftables.endpoint_chains), "Layout chains: a chain KUBE-SEP-... for each endpoint, as in iptables mode; false: endpoints are elements of maps, which a large cluster changes faster"),
    always(OWN, "relist-removal-limit", "nftables.relistRemovalLimit", Int(|c| &mut c.nftables.relist_removal_limit), "Percent of a kind's objects that one list of the API server may remove; a list that lacks more, and at least 10, is confirmed by a second one; 100 switches this off"),
    always(OWN, "service-elements-limit", "nftables.serviceElementsLimit", Int(|c| &mut c.nftables.service_elements_limit), "Elements of sets and maps that one Service may take, about one for each endpoint of each port and address; a larger Service is left out; 0 is no limit"),
    always(OWN, "flowtable", "nftables.flowtable", Interfaces(|c| &mut c.nftables.flowtable), "Interfaces that forward established connections past the rules: off, auto, or names, comma-separated"),
    always(OWN, "counters", "nftables.counters", Counts(|c| &mut c.nftables.counters), "What the rules count: off; services: new connections, and packets that are refused or dropped; endpoints: new connections of each endpoint as well"),
    always(OWN, "metrics-services-limit", "nftables.metricsServicesLimit", Int(|c| &mut c.nftables.metrics_services_limit), "Service ports with metrics of their own when --counters is on, the busiest first; the others are added up"),
    always(OWN, "scheduler", "nftables.scheduler", Picks(|c| &mut c.nftables.scheduler), "How endpoints are chosen, unless a Service's annotation kube-proxy-nft/scheduler says otherwise: random, source-hash or maglev; empty: random, or what --ipvs-scheduler asks for"),
    always(OWN, "scheduler-hash", "nftables.schedulerHash", Hashes(|c| &mut c.nftables.scheduler_hash), "What source-hash and maglev hash: source (the client's address) or source-and-port"),
    always(OWN, "maglev-table-size", "nftables.maglevTableSize", Int(|c| &mut c.nftables.maglev_table_size), "Places in a table of maglev, a prime number; an endpoint takes one of 64"),
    always(OWN, "endpoint-maps", "nftables.endpointMaps", Int(|c| &mut c.nftables.endpoint_maps), "Maps that share the endpoints of each kind, 1 to 64, so that a large table is read in seconds; 0: 1, 16 or 64, as the table grows"),
    always(OWN, "table-ownership", "nftables.tableOwnership", Ownership(|c| &mut c.nftables.table_ownership), "Whether the kernel refuses changes of our tables by other programs while this one runs: off, or auto (kernel 6.9 and newer)"),
    always(OWN, "reserve-node-ports", "nftables.reserveNodePorts", Text(|c| &mut c.nftables.reserve_node_ports), "Ports, such as 30000-32767, that a start keeps from programs that ask for any free port (ip_local_reserved_ports); what is reserved stays; empty: none"),
    always(OWN, "answer-pings", "nftables.answerPings", Bool(|c| &mut c.nftables.answer_pings), "Answer pings to cluster IPs, external IPs and load balancer IPs; the node answers, not an endpoint"),
    always(OWN, "refuse-unused-ports", "nftables.refuseUnusedPorts", Bool(|c| &mut c.nftables.refuse_unused_ports), "Refuse ports of external IPs and load balancer IPs that no Service has, by TCP reset or ICMP port unreachable; not for addresses of other machines"),
    always(OWN, "drop-invalid-from-endpoints", "nftables.dropInvalidFromEndpoints", Bool(|c| &mut c.nftables.drop_invalid_from_endpoints), "Drop packets from the address and port of an endpoint on this node that connection tracking finds invalid, and count them"),
    always(OWN, "drain-on", "nftables.drainOn", Text(|c| &mut c.nftables.drain_on), "taint:KEY, label:KEY or annotation:KEY, perhaps with =VALUE: while the Node has it, /healthz and health-check node ports answer 503, and traffic goes on; empty: none"),
    always(LOGS, "v", "logging.verbosity", Level(|c| &mut c.logging.verbosity), "Log verbosity: 0 and more; more is more verbose"),
    always(LOGS, "vmodule", "logging.vmodule", Vmodule, "pattern=level pairs: higher verbosity of source files; text format only"),
    always(LOGS, "logging-format", "logging.format", Text(|c| &mut c.logging.format), "text or json"),
    always(LOGS, "log-flush-frequency", "logging.flushFrequency", Duration(|c| &mut c.logging.flush_frequency), "How long informational lines stay in their buffer, if there is one"),
    always(LOGS, "log-text-split-stream", "logging.options.text.splitStream", Bool(|c| &mut c.logging.options.text.split_stream), "Informational lines of text go to standard output; needs LoggingAlphaOptions"),
    always(LOGS, "log-text-info-buffer-size", "logging.options.text.infoBufferSize", Quantity(|c| &mut c.logging.options.text.info_buffer_size), "Buffer of these, in bytes; needs LoggingAlphaOptions"),
    always(LOGS, "log-json-split-stream", "logging.options.json.splitStream", Bool(|c| &mut c.logging.options.json.split_stream), "Informational lines of JSON go to standard output; needs LoggingAlphaOptions"),
    always(LOGS, "log-json-info-buffer-size", "logging.options.json.infoBufferSize", Quantity(|c| &mut c.logging.options.json.info_buffer_size), "Buffer of these, in bytes; needs LoggingAlphaOptions"),
    flag(UNUSED, "kube-api-qps", "clientConnection.qps", Float(|c| &mut c.client_connection.qps), "Without effect: there are few requests"),
    flag(UNUSED, "kube-api-burst", "clientConnection.burst", Int(|c| &mut c.client_connection.burst), "Without effect: there are few requests"),
    flag(UNUSED, "config-sync-period", "configSyncPeriod", Duration(|c| &mut c.config_sync_period), "Without effect: nothing is read again at intervals"),
    flag(UNUSED, "show-hidden-metrics-for-version", "showHiddenMetricsForVersion", Text(|c| &mut c.show_hidden_metrics_for_version), "Without effect: no metric is hidden; takes the previous minor release, 1.36, or 1.35"),
    flag(UNUSED, "iptables-localhost-nodeports", "iptables.localhostNodePorts", Bool(|c| &mut c.iptables.localhost_node_ports), "Without effect: node ports on 127.0.0.1 need feature gate KubeProxyNFTablesLocalhostNodePorts"),
    flag(UNUSED, "ipvs-strict-arp", "ipvs.strictARP", Bool(|c| &mut c.ipvs.strict_arp), "Without effect: for ipvs mode"),
    flag(UNUSED, "ipvs-tcp-timeout", "ipvs.tcpTimeout", Duration(|c| &mut c.ipvs.tcp_timeout), "Without effect: for ipvs mode"),
    flag(UNUSED, "ipvs-tcpfin-timeout", "ipvs.tcpFinTimeout", Duration(|c| &mut c.ipvs.tcp_fin_timeout), "Without effect: for ipvs mode"),
    flag(UNUSED, "ipvs-udp-timeout", "ipvs.udpTimeout", Duration(|c| &mut c.ipvs.udp_timeout), "Without effect: for ipvs mode"),
];
