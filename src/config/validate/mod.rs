//! From the file's words to ours: every rule that a configuration must keep.
//!
//! Takes the decoded configuration, gives a [`Config`] or every field that is wrong, by path. Pure, but for the host name,
//! which the caller passes in. Invariant: a `Config` exists only if no rule is broken.

mod addresses;
mod features;
mod local;
mod logging;

use std::ops::RangeInclusive;
use std::time::Duration;

use super::duration::GoDuration;
use super::file::KubeProxyConfiguration;
use super::{Client, Config, Conntrack, Context, FieldError};

/// What is wrong so far.
#[derive(Debug, Default)]
pub(super) struct Findings {
    errors: Vec<FieldError>,
    warnings: Vec<String>,
}

impl Findings {
    fn error(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.errors.push(FieldError { field: field.into(), message: message.into() });
    }

    fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
    }

    /// Unwraps a checked value, taking note of what is wrong with it.
    fn take<T, E: ToString>(&mut self, field: &str, checked: Result<T, E>) -> Option<T> {
        checked.map_err(|error| self.error(field, error.to_string())).ok()
    }

    fn range(&mut self, field: &str, value: i32, range: RangeInclusive<i32>) {
        if !range.contains(&value) {
            self.error(field, format!("must be between {} and {}, not {value}", range.start(), range.end()));
        }
    }

    fn not_negative(&mut self, field: &str, value: i32) -> Option<u32> {
        self.take(field, u32::try_from(value).map_err(|_| format!("must not be negative, but is {value}")))
    }

    /// The duration, if it is zero or more.
    fn duration(&mut self, field: &str, value: GoDuration) -> Option<Duration> {
        let duration = value.to_std();
        if duration.is_none() {
            self.error(field, format!("must not be negative, but is {value}"));
        }
        duration
    }

    /// The duration, if it is more than zero.
    fn positive(&mut self, field: &str, value: GoDuration) -> Option<Duration> {
        let duration = value.to_std().filter(|duration| !duration.is_zero());
        if duration.is_none() {
            self.error(field, format!("must be greater than 0, but is {value}"));
        }
        duration
    }
}

/// Judges a configuration.
///
/// `hostname` asks the operating system, and is called only if no name is configured. `warnings` are those of decoding.
///
/// # Errors
/// Everything that is wrong, not only the first thing.
pub(super) fn validate(
    file: KubeProxyConfiguration,
    context: Context,
    warnings: Vec<String>,
    hostname: impl FnOnce() -> std::io::Result<String>,
) -> Result<Config, Vec<FieldError>> {
    let mut findings = Findings { errors: Vec::new(), warnings };
    let config = check(file, context, hostname, &mut findings);
    match config {
        Some(config) if findings.errors.is_empty() => Ok(Config { warnings: findings.warnings, ..config }),
        _ => Err(findings.errors),
    }
}

/// Checks all fields before it gives up on any, so that `findings` is complete.
fn check(
    file: KubeProxyConfiguration,
    context: Context,
    hostname: impl FnOnce() -> std::io::Result<String>,
    findings: &mut Findings,
) -> Option<Config> {
    mode(&file.mode, findings);
    numbers(&file, findings);
    let conntrack = conntrack(&file.conntrack, findings);
    let client = client(&file, context.master, findings);
    let node_name = node_name(&file.hostname_override, hostname, findings);
    let periods = periods(&file, findings);
    let masquerade_bit = masquerade_bit(&file, findings);
    let relist_removal_limit = relist_removal_limit(&file, findings);
    let service_elements_limit = service_elements_limit(&file, findings);
    let bind_address = addresses::ip("bindAddress", &file.bind_address, findings);
    let healthz_bind_address = addresses::optional_socket("healthzBindAddress", &file.healthz_bind_address, findings);
    let metrics_bind_address = addresses::socket("metricsBindAddress", &file.metrics_bind_address, findings);
    let node_port_addresses = addresses::node_ports(&file.node_port_addresses, findings);
    let detect_local = local::detect_local(&file, findings);
    local::flowtable(&file.nftables.flowtable, findings);
    let gates = features::gates(&file, findings);
    let logging = logging::logging(&file.logging, gates.logging_alpha_options, findings);
    let (sync_period, min_sync_period) = periods?;
    Some(Config {
        node_name: node_name?,
        manifests: context.manifests,
        sync_period,
        min_sync_period,
        masquerade_bit: masquerade_bit?,
        masquerade_all: file.nftables.masquerade_all,
        detect_local: detect_local?,
        node_port_addresses: node_port_addresses?,
        bind_address: bind_address?,
        metrics_bind_address: metrics_bind_address?,
        healthz_bind_address: healthz_bind_address?,
        own_tables: context.own_tables,
        relist_removal_limit: relist_removal_limit?,
        service_elements_limit: service_elements_limit?,
        allow_service_external_ips: gates.allow_service_external_ips,
        client: client?,
        conntrack: conntrack?,
        oom_score_adj: file.oom_score_adj,
        profiling: file.enable_profiling,
        version: context.version,
        config_file: context.config_file,
        config_content: context.config_content,
        flagz: gates.flagz,
        statusz: gates.statusz,
        native_histograms: gates.native_histograms,
        flags: context.flags,
        logging: logging?,
        file,
        warnings: Vec::new(),
    })
}

fn mode(mode: &str, findings: &mut Findings) {
    match mode {
        "nftables" => {}
        "" => findings.warn(
            "mode is not set: upstream kube-proxy takes that for iptables, this one runs nftables; set mode to \"nftables\"",
        ),
        "iptables" | "ipvs" => findings.error(
            "mode",
            format!(
                "this kube-proxy has no {mode} mode: set mode (or --proxy-mode) to \"nftables\", \
                 or keep the upstream kube-proxy on this node"
            ),
        ),
        _ => findings.error("mode", format!("must be \"nftables\", not {mode:?}")),
    }
}

/// The node's name: the override, else the host name (M1).
fn node_name(
    name: &str,
    hostname: impl FnOnce() -> std::io::Result<String>,
    findings: &mut Findings,
) -> Option<String> {
    let name = if name.is_empty() {
        let asked = hostname().map_err(|error| format!("not set, and the host name cannot be read: {error}"));
        findings.take("hostnameOverride", asked)?
    } else {
        name.to_owned()
    };
    let name = name.trim().to_lowercase();
    if name.is_empty() {
        findings.error("hostnameOverride", "the node's name must not be empty");
        return None;
    }
    Some(name)
}

/// `(syncPeriod, minSyncPeriod)`.
fn periods(file: &KubeProxyConfiguration, findings: &mut Findings) -> Option<(Duration, Duration)> {
    let sync = findings.positive("nftables.syncPeriod", file.nftables.sync_period);
    let min = findings.duration("nftables.minSyncPeriod", file.nftables.min_sync_period);
    let (sync, min) = (sync?, min?);
    if min > sync {
        let (min, sync) = (file.nftables.min_sync_period, file.nftables.sync_period);
        findings.error("nftables.minSyncPeriod", format!("must not exceed nftables.syncPeriod ({sync}), but is {min}"));
    }
    Some((sync, min))
}

fn masquerade_bit(file: &KubeProxyConfiguration, findings: &mut Findings) -> Option<u8> {
    findings.range("iptables.masqueradeBit", file.iptables.masquerade_bit, 0..=31);
    findings.range("nftables.masqueradeBit", file.nftables.masquerade_bit, 0..=31);
    u8::try_from(file.nftables.masquerade_bit).ok()
}

/// In percent.
fn relist_removal_limit(file: &KubeProxyConfiguration, findings: &mut Findings) -> Option<u8> {
    let limit = file.nftables.relist_removal_limit;
    findings.range("nftables.relistRemovalLimit", limit, 0..=100);
    u8::try_from(limit).ok()
}

/// 0 stands for no limit.
fn service_elements_limit(file: &KubeProxyConfiguration, findings: &mut Findings) -> Option<u64> {
    let limit = findings.not_negative("nftables.serviceElementsLimit", file.nftables.service_elements_limit)?;
    Some(if limit == 0 { u64::MAX } else { u64::from(limit) })
}

fn numbers(file: &KubeProxyConfiguration, findings: &mut Findings) {
    findings.range("oomScoreAdj", file.oom_score_adj, -1000..=1000);
    findings.positive("configSyncPeriod", file.config_sync_period);
}

fn conntrack(section: &super::file::Conntrack, findings: &mut Findings) -> Option<Conntrack> {
    let max_per_core = findings.not_negative("conntrack.maxPerCore", section.max_per_core);
    let min = findings.not_negative("conntrack.min", section.min);
    let mut timeout = |field, value| findings.duration(field, value).map(|d| (!d.is_zero()).then_some(d));
    let tcp_established = timeout("conntrack.tcpEstablishedTimeout", section.tcp_established_timeout);
    let tcp_close_wait = timeout("conntrack.tcpCloseWaitTimeout", section.tcp_close_wait_timeout);
    let udp = timeout("conntrack.udpTimeout", section.udp_timeout);
    let udp_stream = timeout("conntrack.udpStreamTimeout", section.udp_stream_timeout);
    Some(Conntrack {
        max_per_core: max_per_core?,
        min: min?,
        tcp_established: tcp_established?,
        tcp_close_wait: tcp_close_wait?,
        tcp_be_liberal: section.tcp_be_liberal,
        udp: udp?,
        udp_stream: udp_stream?,
    })
}

fn client(file: &KubeProxyConfiguration, master: Option<String>, findings: &mut Findings) -> Option<Client> {
    let section = &file.client_connection;
    let burst = findings.not_negative("clientConnection.burst", section.burst)?;
    Some(Client {
        kubeconfig: (!section.kubeconfig.is_empty()).then(|| section.kubeconfig.clone().into()),
        master,
        qps: section.qps,
        burst,
        content_type: section.content_type.clone(),
        accept_content_types: section.accept_content_types.clone(),
    })
}

#[cfg(test)]
mod tests;
