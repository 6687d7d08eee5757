//! `KubeProxyConfiguration`, version `kubeproxy.config.k8s.io/v1alpha1`: all fields that upstream defines, and this program's own fields in
//! the section `nftables`.
//!
//! The module decodes the text of a file (YAML or JSON) into the struct and fills in the defaults; module `validate` checks the values.
//! Upstream's fields have upstream's defaults, except `nftables.minSyncPeriod`. Invariants: `Default` equals the result of decoding a file
//! that has only `apiVersion` and `kind`; a struct with its defaults filled in that is serialised and decoded again stays equal.

mod decode;
mod logging;
mod modes;
mod sections;
mod yaml;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::duration::GoDuration;
use crate::addresses::parse_ip;

pub use decode::{DecodeError, Decoded, decode};
pub(crate) use logging::{LoggingSection, Quantity, VmoduleItem};
pub(crate) use sections::{ClientConnection, Iptables, Nftables, TableOwnership, Winkernel};
pub use sections::{Conntrack, Counters, Flowtable, Ipvs, RulesetLayout, Scheduler, SchedulerHash};

/// The only API version of the file that upstream has defined.
pub(crate) const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// The only kind of object in that API version.
pub(crate) const KIND: &str = "KubeProxyConfiguration";

/// The port of the healthz server if the configured address has none.
pub(crate) const HEALTHZ_PORT: u16 = 10256;
/// The port of the metrics server if the configured address has none.
pub(crate) const METRICS_PORT: u16 = 10249;

/// The configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default = "KubeProxyConfiguration::unset")]
pub struct KubeProxyConfiguration {
    /// The API version of the file; must be [`API_VERSION`].
    pub(crate) api_version: String,
    /// The kind of the file; must be [`KIND`].
    pub(crate) kind: String,
    /// Feature gates by name.
    pub(crate) feature_gates: BTreeMap<String, bool>,
    /// How to reach the API server.
    pub(crate) client_connection: ClientConnection,
    /// Log format and verbosity.
    pub(crate) logging: LoggingSection,
    /// The node's name; an empty text stands for the operating system's host name (M1).
    pub(crate) hostname_override: String,
    /// The node's primary IP, which also determines the primary family; `0.0.0.0` and `::` stand for the addresses of the Node (M6). The
    /// proxy binds no socket to it, but its family decides the default addresses of the healthz and metrics servers.
    pub(crate) bind_address: String,
    /// `IP:port` of the healthz server.
    pub(crate) healthz_bind_address: String,
    /// `IP:port` of the metrics server.
    pub(crate) metrics_bind_address: String,
    /// Whether the process ends when the healthz or metrics server cannot listen (O8).
    pub(crate) bind_address_hard_fail: bool,
    /// Whether the metrics server has `/debug/flags/v`, and answers clients on other hosts below `/debug` (P5).
    pub(crate) enable_profiling: bool,
    /// The release, as `<major>.<minor>`, whose hidden metrics upstream shows. The value is validated, but has no effect, because this
    /// program hides no metric.
    pub(crate) show_hidden_metrics_for_version: String,
    /// The proxy mode. `nftables`, `iptables`, `ipvs` and an empty text are valid; with each of them the proxy runs nftables.
    pub(crate) mode: String,
    /// Settings of the iptables mode. Decoding copies those that the program has to `nftables`.
    pub(crate) iptables: Iptables,
    /// Settings of the ipvs mode. Decoding copies the sync periods to `nftables`.
    pub(crate) ipvs: Ipvs,
    /// The settings in use, whatever the mode, but for the masquerade bit ([`KubeProxyConfiguration::masquerade_bit`]).
    pub(crate) nftables: Nftables,
    /// Settings of the Windows kernel mode; not used.
    pub(crate) winkernel: Winkernel,
    /// How the proxy recognises traffic of local pods; an empty text stands for `ClusterCIDR`.
    pub(crate) detect_local_mode: String,
    /// Parameters of the interface modes of `detectLocalMode`.
    pub(crate) detect_local: DetectLocalSection,
    /// The pods' CIDRs, comma-separated.
    #[serde(rename = "clusterCIDR")]
    pub(crate) cluster_cidr: String,
    /// The node's addresses at which node ports are served: CIDRs, `primary`, `localhost` and `all`, in any combination.
    pub(crate) node_port_addresses: Vec<String>,
    /// The value that the proxy writes to `/proc/self/oom_score_adj`.
    #[serde(rename = "oomScoreAdj")]
    pub(crate) oom_score_adj: i32,
    /// Connection tracking sysctls.
    pub(crate) conntrack: Conntrack,
    /// The resync period of upstream's informers; not used.
    pub(crate) config_sync_period: GoDuration,
    /// The range of ports for the former userspace mode; not used by any mode.
    pub(crate) port_range: String,
    /// Whether upstream runs as a Windows service; not used on Linux.
    pub(crate) windows_run_as_service: bool,
}

/// The `detectLocal` section.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DetectLocalSection {
    /// The bridge that pods are attached to, for mode BridgeInterface.
    pub(crate) bridge_interface: String,
    /// The prefix of the names of pod interfaces, for mode InterfaceNamePrefix.
    pub(crate) interface_name_prefix: String,
}

impl Default for KubeProxyConfiguration {
    fn default() -> Self {
        let mut config = Self::unset();
        config.fill_defaults();
        config
    }
}

impl KubeProxyConfiguration {
    /// Returns the values for fields that are missing in the file. `fill_defaults` then replaces those that mean "not set".
    fn unset() -> Self {
        Self {
            api_version: API_VERSION.to_owned(),
            kind: KIND.to_owned(),
            feature_gates: BTreeMap::new(),
            client_connection: ClientConnection::default(),
            logging: LoggingSection::default(),
            hostname_override: String::new(),
            bind_address: String::new(),
            healthz_bind_address: String::new(),
            metrics_bind_address: String::new(),
            bind_address_hard_fail: false,
            enable_profiling: false,
            show_hidden_metrics_for_version: String::new(),
            mode: String::new(),
            iptables: Iptables::default(),
            ipvs: Ipvs::default(),
            nftables: Nftables::default(),
            winkernel: Winkernel::default(),
            detect_local_mode: String::new(),
            detect_local: DetectLocalSection::default(),
            cluster_cidr: String::new(),
            node_port_addresses: Vec::new(),
            oom_score_adj: -999,
            conntrack: Conntrack::default(),
            config_sync_period: GoDuration::ZERO,
            port_range: String::new(),
            windows_run_as_service: false,
        }
    }

    /// Replaces the values that mean "not set" to upstream (empty strings and zeros of some fields) with defaults. Idempotent.
    pub(crate) fn fill_defaults(&mut self) {
        self.client_connection.fill_defaults();
        self.logging.fill_defaults();
        self.iptables.fill_defaults();
        self.ipvs.fill_defaults();
        self.nftables.fill_defaults();
        fill_duration(&mut self.config_sync_period, GoDuration::from_secs(15 * 60));
        fill_text(&mut self.bind_address, "0.0.0.0");
        let (any, loopback) =
            if self.bind_address.contains(':') { ("[::]", "[::1]") } else { ("0.0.0.0", "127.0.0.1") };
        fill_address(&mut self.healthz_bind_address, any, HEALTHZ_PORT);
        fill_address(&mut self.metrics_bind_address, loopback, METRICS_PORT);
    }
}

fn fill_text(field: &mut String, default: &str) {
    if field.is_empty() {
        default.clone_into(field);
    }
}

fn fill_duration(field: &mut GoDuration, default: GoDuration) {
    if field.is_zero() {
        *field = default;
    }
}

/// Completes an address: an empty text becomes `host:port`, and an IP without a port gets `port`.
fn fill_address(field: &mut String, host: &str, port: u16) {
    if field.is_empty() {
        *field = format!("{host}:{port}");
    } else if let Some(ip) = parse_ip(field) {
        *field = SocketAddr::new(ip, port).to_string();
    }
}

#[cfg(test)]
mod tests;
