//! `conntrack` and `winkernel`: settings of the operating system.

use serde::{Deserialize, Serialize};

use crate::config::duration::GoDuration;

/// The `conntrack` section: sysctls that are set once at start (N1 to N4).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Conntrack {
    /// Connections to track for each CPU; 0 leaves the kernel's limit alone.
    pub max_per_core: i32,
    /// Least number of connections to track.
    pub min: i32,
    /// Time-out of idle established TCP connections; 0 leaves the kernel's alone.
    pub tcp_established_timeout: GoDuration,
    /// Time-out of TCP connections in CLOSE_WAIT; 0 leaves the kernel's alone.
    pub tcp_close_wait_timeout: GoDuration,
    /// Whether packets outside of the window are accepted.
    pub tcp_be_liberal: bool,
    /// Time-out of unanswered UDP flows; 0 leaves the kernel's alone.
    pub udp_timeout: GoDuration,
    /// Time-out of answered UDP flows; 0 leaves the kernel's alone.
    pub udp_stream_timeout: GoDuration,
}

impl Default for Conntrack {
    fn default() -> Self {
        Self {
            max_per_core: 32 * 1024,
            min: 128 * 1024,
            tcp_established_timeout: GoDuration::from_secs(24 * 3600),
            tcp_close_wait_timeout: GoDuration::from_secs(3600),
            tcp_be_liberal: false,
            udp_timeout: GoDuration::ZERO,
            udp_stream_timeout: GoDuration::ZERO,
        }
    }
}

/// The `winkernel` section; not used on Linux.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Winkernel {
    /// Name of the HNS network.
    pub network_name: String,
    /// The source virtual IP.
    pub source_vip: String,
    /// Whether direct server return is used.
    #[serde(rename = "enableDSR")]
    pub enable_dsr: bool,
    /// Name of the root HNS endpoint.
    pub root_hns_endpoint_name: String,
    /// Whether health checks are forwarded to the endpoints.
    #[serde(rename = "forwardHealthCheckVip")]
    pub forward_health_check_vip: bool,
}
