//! Validates a decoded configuration and converts it to a [`Config`].
//!
//! Returns the [`Config`], or an error for each invalid field, with the field's path. Does no I/O: the caller passes in the function that
//! reads the host name. Invariant: no [`Config`] is returned after an error.

mod addresses;
mod features;
mod local;
mod scheduler;

use std::ops::RangeInclusive;
use std::time::Duration;

use super::duration::GoDuration;
use super::file::{self, KubeProxyConfiguration, LoggingSection, TableOwnership, VmoduleItem};
use super::{Client, Config, Conntrack, Context, FieldError, LogFormat, LoggingConfig, NodeMark};
use crate::excerpt::quoted;

/// The errors and warnings that the validation has found so far.
#[derive(Debug, Default)]
pub(super) struct Diagnostics {
    errors: Vec<FieldError>,
    warnings: Vec<String>,
}

impl Diagnostics {
    fn error(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.errors.push(FieldError { field: field.into(), message: message.into() });
    }

    fn warn(&mut self, warning: impl Into<String>) {
        self.warnings.push(warning.into());
    }

    /// Returns the value of a result. If the result is an error, records it for `field` and returns `None`.
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

    /// Returns the duration if it is zero or more; otherwise records an error for `field`.
    fn duration(&mut self, field: &str, value: GoDuration) -> Option<Duration> {
        let duration = value.to_std();
        if duration.is_none() {
            self.error(field, format!("must not be negative, but is {value}"));
        }
        duration
    }

    /// Returns the duration if it is more than zero; otherwise records an error for `field`.
    fn positive(&mut self, field: &str, value: GoDuration) -> Option<Duration> {
        let duration = value.to_std().filter(|duration| !duration.is_zero());
        if duration.is_none() {
            self.error(field, format!("must be greater than 0, but is {value}"));
        }
        duration
    }
}

/// Validates a configuration.
///
/// `hostname` reads the host name, and is called only if no name is configured. `warnings` are those of decoding and of the command line.
///
/// # Errors
/// Returns the errors that were found, one for each invalid field.
pub(super) fn validate(
    file: &KubeProxyConfiguration,
    context: Context,
    warnings: Vec<String>,
    hostname: impl FnOnce() -> std::io::Result<String>,
) -> Result<Config, Vec<FieldError>> {
    let mut diagnostics = Diagnostics { errors: Vec::new(), warnings };
    let config = check(file, context, hostname, &mut diagnostics);
    match config {
        Some(config) if diagnostics.errors.is_empty() => Ok(Config { warnings: diagnostics.warnings, ..config }),
        _ => Err(diagnostics.errors),
    }
}

/// Checks one field after the other, also after an error, and adds the errors to `diagnostics`.
fn check(
    file: &KubeProxyConfiguration,
    context: Context,
    hostname: impl FnOnce() -> std::io::Result<String>,
    diagnostics: &mut Diagnostics,
) -> Option<Config> {
    let (mode_note, mode_warning) = mode(file, diagnostics);
    numbers(file, diagnostics);
    let conntrack = conntrack(&file.conntrack, diagnostics);
    let node_name = node_name(&file.hostname_override, hostname, diagnostics);
    let periods = periods(file, diagnostics);
    let masquerade_bit = masquerade_bit(file, diagnostics);
    let exclude_cidrs = addresses::exclude_cidrs(file, diagnostics);
    let relist_removal_limit = relist_removal_limit(file, diagnostics);
    let service_elements_limit = service_elements_limit(file, diagnostics);
    let reserve_node_ports = diagnostics.take("nftables.reserveNodePorts", file.nftables.reserve_node_ports.parse());
    let drain_on = drain_on(&file.nftables.drain_on, diagnostics);
    let scheduler = scheduler::scheduler(file, diagnostics);
    let maglev_table_size = scheduler::maglev_table_size(file, diagnostics);
    let endpoint_maps = endpoint_maps(file, diagnostics);
    let metrics_limit = file.nftables.metrics_services_limit;
    let metrics_services_limit = diagnostics.not_negative("nftables.metricsServicesLimit", metrics_limit);
    let bind_address = addresses::ip("bindAddress", &file.bind_address, diagnostics);
    let healthz = addresses::optional_socket("healthzBindAddress", &file.healthz_bind_address, diagnostics);
    let metrics = addresses::socket("metricsBindAddress", &file.metrics_bind_address, diagnostics);
    let node_port_addresses = addresses::node_ports(&file.node_port_addresses, diagnostics);
    let detect_local = local::detect_local(file, diagnostics);
    local::flowtable(&file.nftables.flowtable, diagnostics);
    features::hidden_metrics(&file.show_hidden_metrics_for_version, diagnostics);
    let features = features::features(file, diagnostics);
    let logging = logging(&file.logging, features.logging_alpha_options, diagnostics);
    let client = client(file, context.master, diagnostics);
    // From here on nothing may be checked: after an error, the first `?` ends this function.
    let (sync_period, min_sync_period) = periods?;
    Some(Config {
        node_name: node_name?,
        sync_period,
        min_sync_period: Some(min_sync_period).filter(|period| !period.is_zero()),
        masquerade_bit: masquerade_bit?,
        masquerade_all: file.nftables.masquerade_all,
        ruleset_layout: file.nftables.ruleset_layout,
        endpoint_chains: file.nftables.endpoint_chains,
        flowtable: file.nftables.flowtable.clone(),
        counters: file.nftables.counters,
        scheduler,
        scheduler_hash: file.nftables.scheduler_hash,
        maglev_table_size: maglev_table_size?,
        endpoint_maps,
        metrics_services_limit: usize::try_from(metrics_services_limit?).unwrap_or(usize::MAX),
        detect_local: detect_local?,
        node_port_addresses: node_port_addresses?,
        bind_address: bind_address?,
        metrics_bind_address: metrics?,
        healthz_bind_address: healthz?,
        bind_address_hard_fail: file.bind_address_hard_fail,
        relist_removal_limit: relist_removal_limit?,
        service_elements_limit: service_elements_limit?,
        reserve_node_ports: reserve_node_ports?,
        answer_pings: file.nftables.answer_pings,
        refuse_unused_ports: file.nftables.refuse_unused_ports,
        drop_invalid_from_endpoints: file.nftables.drop_invalid_from_endpoints,
        drain_on,
        allow_service_external_ips: features.allow_service_external_ips,
        client,
        localhost_node_ports: features.localhost_node_ports,
        mode_note,
        mode_warning,
        conntrack: conntrack?,
        oom_score_adj: file.oom_score_adj,
        profiling: file.enable_profiling,
        flagz: features.flagz,
        statusz: features.statusz,
        features: features.reported,
        logging: logging?,
        manifests: context.manifests,
        own_tables: file.nftables.table_ownership == TableOwnership::Auto,
        version: context.version,
        config_file: context.config_file,
        exclude_cidrs,
        configz: context.configz,
        flags: context.flags,
        warnings: Vec::new(),
    })
}

/// Checks the proxy mode. Returns a note or a warning for another mode than nftables, because this program then runs nftables instead. Mode
/// iptables and an empty mode only give a note, because kubeadm, kind and k3s write one of them by default. Mode ipvs gives a warning,
/// because its user may rely on features that only ipvs has. The note names node ports on 127.0.0.1, which mode iptables has, unless they
/// are switched off, or feature gate KubeProxyNFTablesLocalhostNodePorts is on.
fn mode(file: &KubeProxyConfiguration, diagnostics: &mut Diagnostics) -> (Option<String>, Option<String>) {
    match file.mode.as_str() {
        "nftables" => {}
        mode @ ("" | "iptables") => {
            let found = if mode.is_empty() { "mode is not set".to_owned() } else { format!("mode is {mode}") };
            let without = if file.iptables.localhost_node_ports && !features::localhost_node_ports(file) {
                ", and serves no node ports on 127.0.0.1 (iptables.localhostNodePorts)"
            } else {
                ""
            };
            let note = format!(
                "{found} in the configuration: this program always uses nftables{without}; set mode: nftables to silence this"
            );
            return (Some(note), None);
        }
        "ipvs" => {
            let warning = "mode is \"ipvs\", which this kube-proxy does not have: it runs nftables; set mode (or --proxy-mode) to \
                           \"nftables\"";
            diagnostics.warn(warning);
            return (None, Some(warning.to_owned()));
        }
        mode => {
            diagnostics.error(
                "mode",
                format!("must be \"nftables\" (\"iptables\" and \"ipvs\" run it too), not {}", quoted(mode)),
            );
        }
    }
    (None, None)
}

/// Returns the node's name: `name` if it is not empty, otherwise the host name (M1).
fn node_name(
    name: &str,
    hostname: impl FnOnce() -> std::io::Result<String>,
    diagnostics: &mut Diagnostics,
) -> Option<String> {
    let name = if name.is_empty() {
        let asked = hostname().map_err(|error| format!("not set, and the host name cannot be read: {error}"));
        diagnostics.take("hostnameOverride", asked)?
    } else {
        name.to_owned()
    };
    let name = name.trim().to_lowercase();
    if name.is_empty() {
        diagnostics.error("hostnameOverride", "the node's name must not be empty");
        return None;
    }
    Some(name)
}

/// Checks and returns `(syncPeriod, minSyncPeriod)` of the section of the mode.
fn periods(file: &KubeProxyConfiguration, diagnostics: &mut Diagnostics) -> Option<(Duration, Duration)> {
    let [sync_field, min_field] = ["syncPeriod", "minSyncPeriod"].map(|name| format!("{}.{name}", file.section()));
    let sync = diagnostics.positive(&sync_field, file.nftables.sync_period);
    let min = diagnostics.duration(&min_field, file.nftables.min_sync_period);
    let (sync, min) = (sync?, min?);
    if min > sync {
        let (min, sync) = (file.nftables.min_sync_period, file.nftables.sync_period);
        diagnostics.error(min_field, format!("must not exceed {sync_field} ({sync}), but is {min}"));
    }
    Some((sync, min))
}

/// Checks and returns the masquerade bit of the mode. As in upstream, that of section `iptables` has to be valid in every mode.
fn masquerade_bit(file: &KubeProxyConfiguration, diagnostics: &mut Diagnostics) -> Option<u8> {
    diagnostics.range("iptables.masqueradeBit", file.iptables.masquerade_bit, 0..=31);
    if file.section() == "nftables" {
        diagnostics.range("nftables.masqueradeBit", file.nftables.masquerade_bit, 0..=31);
    }
    u8::try_from(file.masquerade_bit()).ok()
}

/// Checks and returns `relistRemovalLimit`, in percent.
fn relist_removal_limit(file: &KubeProxyConfiguration, diagnostics: &mut Diagnostics) -> Option<u8> {
    let limit = file.nftables.relist_removal_limit;
    diagnostics.range("nftables.relistRemovalLimit", limit, 0..=100);
    u8::try_from(limit).ok()
}

/// Parses the mark that drains the node; an empty text stands for none.
fn drain_on(text: &str, diagnostics: &mut Diagnostics) -> Option<NodeMark> {
    Some(text).filter(|text| !text.is_empty()).and_then(|text| diagnostics.take("nftables.drainOn", text.parse()))
}

/// Checks and returns the number of maps for endpoints; 0 in the configuration lets the size of the table decide. The limit of 64 is
/// arbitrary: more maps would only make a table harder to read.
fn endpoint_maps(file: &KubeProxyConfiguration, diagnostics: &mut Diagnostics) -> Option<u8> {
    let maps = file.nftables.endpoint_maps;
    diagnostics.range("nftables.endpointMaps", maps, 0..=64);
    u8::try_from(maps).ok().filter(|maps| *maps > 0)
}

/// Checks and returns the limit of elements for each Service; 0 in the configuration means no limit.
fn service_elements_limit(file: &KubeProxyConfiguration, diagnostics: &mut Diagnostics) -> Option<u64> {
    let limit = diagnostics.not_negative("nftables.serviceElementsLimit", file.nftables.service_elements_limit)?;
    Some(if limit == 0 { u64::MAX } else { u64::from(limit) })
}

fn numbers(file: &KubeProxyConfiguration, diagnostics: &mut Diagnostics) {
    diagnostics.range("oomScoreAdj", file.oom_score_adj, -1000..=1000);
    diagnostics.positive("configSyncPeriod", file.config_sync_period);
    diagnostics.not_negative("clientConnection.burst", file.client_connection.burst);
}

fn conntrack(section: &file::Conntrack, diagnostics: &mut Diagnostics) -> Option<Conntrack> {
    let max_per_core = diagnostics.not_negative("conntrack.maxPerCore", section.max_per_core);
    let min = diagnostics.not_negative("conntrack.min", section.min);
    let mut timeout = |field, value| diagnostics.duration(field, value).map(|d| (!d.is_zero()).then_some(d));
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

fn client(file: &KubeProxyConfiguration, master: Option<String>, diagnostics: &mut Diagnostics) -> Client {
    let section = &file.client_connection;
    let kubeconfig = Some(&section.kubeconfig).filter(|path| !path.is_empty()).map(Into::into);
    Client { kubeconfig, master, accept: accept(section, diagnostics) }
}

/// Returns the `Accept` header: the types in `acceptContentTypes` or, if that is empty, in `contentType`, as in client-go, without those
/// that this program cannot read, and without their parameters but the weight `q`. Adds JSON to a `contentType` without it, because
/// client-go adds every other type. If no type is left, returns both.
fn accept(section: &file::ClientConnection, diagnostics: &mut Diagnostics) -> String {
    const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
    const JSON: &str = "application/json";
    let (field, list) = if section.accept_content_types.is_empty() {
        ("clientConnection.contentType", &section.content_type)
    } else {
        ("clientConnection.acceptContentTypes", &section.accept_content_types)
    };
    let is_weight = |weight: &str| weight.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let readable = |given: &str| {
        let mut parts = given.split(';').map(str::trim);
        let name = parts.next()?;
        let name = [PROTOBUF, JSON].into_iter().find(|known| name.eq_ignore_ascii_case(known))?;
        let weight = parts.find_map(|part| part.strip_prefix("q=").filter(|weight| is_weight(weight)));
        Some(weight.map_or_else(|| name.to_owned(), |weight| format!("{name};q={weight}")))
    };
    let mut types: Vec<String> = list.split(',').filter_map(readable).collect();
    if types.is_empty() {
        diagnostics.warn(format!(
            "{field} {} has neither {PROTOBUF} nor {JSON}: the API server is asked for both",
            quoted(list)
        ));
        return format!("{PROTOBUF},{JSON}");
    }
    if section.accept_content_types.is_empty() && !types.iter().any(|name| name.starts_with(JSON)) {
        types.push(JSON.to_owned());
    }
    types.join(",")
}

/// Checks section `logging` and returns the settings of the log. `alpha_options` is the value of feature gate LoggingAlphaOptions.
fn logging(section: &LoggingSection, alpha_options: bool, diagnostics: &mut Diagnostics) -> Option<LoggingConfig> {
    let flush_every = diagnostics.positive("logging.flushFrequency", section.flush_frequency);
    let format = match section.format.as_str() {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        other => Err(format!("must be \"text\" or \"json\", not {}", quoted(other))),
    };
    let format = diagnostics.take("logging.format", format);
    verbosity("logging.verbosity", section.verbosity, diagnostics);
    vmodule(&section.vmodule, format, diagnostics);
    for (name, options) in [("text", &section.options.text), ("json", &section.options.json)] {
        for (option, used) in
            [("splitStream", options.split_stream), ("infoBufferSize", !options.info_buffer_size.is_zero())]
        {
            if used && !alpha_options {
                let field = format!("logging.options.{name}.{option}");
                diagnostics.error(field, "needs feature gate LoggingAlphaOptions");
            }
        }
    }
    let options = match format? {
        LogFormat::Text => &section.options.text,
        LogFormat::Json => &section.options.json,
    };
    Some(LoggingConfig {
        format: format?,
        verbosity: section.verbosity,
        vmodule: section.vmodule.iter().map(|item| (item.file_pattern.clone(), item.verbosity)).collect(),
        info_buffer: options.split_stream.then(|| options.info_buffer_size.bytes()),
        flush_every: flush_every?,
    })
}

fn vmodule(items: &[VmoduleItem], format: Option<LogFormat>, diagnostics: &mut Diagnostics) {
    if !items.is_empty() && format == Some(LogFormat::Json) {
        diagnostics.error("logging.vmodule", "works only with format \"text\"");
    }
    for (number, item) in items.iter().enumerate() {
        let field = |name| format!("logging.vmodule[{number}].{name}");
        if item.file_pattern.is_empty() {
            diagnostics.error(field("filePattern"), "must not be empty");
        }
        if item.file_pattern.contains(['=', ',']) {
            let message = format!("must have no equal sign and no comma, but is {}", quoted(&item.file_pattern));
            diagnostics.error(field("filePattern"), message);
        }
        verbosity(field("verbosity"), item.verbosity, diagnostics);
    }
}

fn verbosity(field: impl Into<String>, verbosity: u32, diagnostics: &mut Diagnostics) {
    if i32::try_from(verbosity).is_err() {
        diagnostics.error(field, format!("must be at most {}, but is {verbosity}", i32::MAX));
    }
}

#[cfg(test)]
mod tests;
