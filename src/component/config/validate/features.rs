//! Validates feature gates and `showHiddenMetricsForVersion`.
//!
//! Many clusters pass one `featureGates` map to every component, and each release adds and removes gates. Therefore a gate that this
//! program does not know causes only a warning.

use super::Diagnostics;
use crate::config::file::KubeProxyConfiguration;
use crate::config::{Feature, KUBERNETES_MINOR, Stage};
use crate::excerpt::quoted;

/// A feature gate that this program knows; one that it does not know causes only a warning. Gates of stage alpha are off by default, and
/// all other gates are on.
struct Gate {
    name: &'static str,
    stage: Stage,
    /// Whether the gate is locked: the feature has graduated and cannot be switched off.
    locked: bool,
    /// Whether metric `kubernetes_feature_enabled` shows the gate.
    reported: bool,
}

const fn gate(name: &'static str, stage: Stage) -> Gate {
    Gate { name, stage, locked: false, reported: true }
}

const EXTERNAL_IPS: Gate = gate("AllowServiceExternalIPs", Stage::Stable);
const LOCALHOST: Gate = gate("KubeProxyNFTablesLocalhostNodePorts", Stage::Alpha);
const FLAGZ: Gate = gate("ComponentFlagz", Stage::Beta);
const STATUSZ: Gate = gate("ComponentStatusz", Stage::Beta);
const LOGGING_ALPHA: Gate = Gate { reported: false, ..gate("LoggingAlphaOptions", Stage::Alpha) };

const GATES: [Gate; 13] = [
    EXTERNAL_IPS,
    FLAGZ,
    STATUSZ,
    // This gate has no effect, because this program has no mode ipvs.
    gate("KubeProxyIPVS", Stage::Deprecated),
    LOCALHOST,
    Gate { locked: true, ..gate("MultiCIDRServiceAllocator", Stage::Stable) },
    // This gate has no effect, because this program always uses netlink.
    gate("NFTablesNetlink", Stage::Beta),
    gate("NativeHistograms", Stage::Alpha),
    Gate { locked: true, ..gate("PreferSameTrafficDistribution", Stage::Stable) },
    Gate { reported: false, ..gate("ContextualLogging", Stage::Beta) },
    LOGGING_ALPHA,
    // With this gate, names of Services may start with a digit.
    Gate { locked: true, reported: false, ..gate("RelaxedServiceNameValidation", Stage::Stable) },
    Gate { reported: false, ..gate("LoggingBetaOptions", Stage::Beta) },
];

/// The gates that set the default for all gates of a stage.
const OF_STAGE: [(&str, Stage); 2] = [("AllAlpha", Stage::Alpha), ("AllBeta", Stage::Beta)];

/// The values of the gates.
pub(super) struct Features {
    pub(super) allow_service_external_ips: bool,
    pub(super) localhost_node_ports: bool,
    pub(super) logging_alpha_options: bool,
    pub(super) flagz: bool,
    pub(super) statusz: bool,
    /// The gates that metric `kubernetes_feature_enabled` shows.
    pub(super) reported: Vec<Feature>,
}

/// Checks the names of the gates and evaluates them.
pub(super) fn features(file: &KubeProxyConfiguration, diagnostics: &mut Diagnostics) -> Features {
    for (name, on) in &file.feature_gates {
        let field = format!("featureGates.{name}");
        match GATES.iter().find(|gate| gate.name == name) {
            Some(gate) if gate.locked && !on => diagnostics.error(field, "cannot be false: the feature is always on"),
            Some(_) => {}
            None if OF_STAGE.iter().any(|(all, _)| all == name) => {}
            None => {
                diagnostics.warn(format!("{field} has no effect: this kube-proxy does not look at that feature gate"));
            }
        }
    }
    let reported = GATES.iter().filter(|gate| gate.reported);
    Features {
        allow_service_external_ips: is_enabled(file, &EXTERNAL_IPS),
        localhost_node_ports: localhost_node_ports(file),
        logging_alpha_options: is_enabled(file, &LOGGING_ALPHA),
        flagz: is_enabled(file, &FLAGZ),
        statusz: is_enabled(file, &STATUSZ),
        reported: reported
            .map(|gate| Feature { name: gate.name, stage: gate.stage, enabled: is_enabled(file, gate) })
            .collect(),
    }
}

/// Returns whether feature gate KubeProxyNFTablesLocalhostNodePorts is on.
pub(super) fn localhost_node_ports(file: &KubeProxyConfiguration) -> bool {
    is_enabled(file, &LOCALHOST)
}

/// Returns the configured value of the gate. If there is none, returns the configured value of `AllAlpha` or `AllBeta` for a gate of that
/// stage, or else the gate's default.
fn is_enabled(file: &KubeProxyConfiguration, gate: &Gate) -> bool {
    let of_stage = OF_STAGE.iter().find(|(_, stage)| *stage == gate.stage);
    let names = [Some(gate.name), of_stage.map(|(all, _)| *all)];
    let given = names.into_iter().flatten().find_map(|name| file.feature_gates.get(name).copied());
    given.unwrap_or(gate.stage != Stage::Alpha)
}

/// Checks `showHiddenMetricsForVersion`. Accepts the previous release, as upstream does, and also the release before it, so that a
/// configuration for the previous release stays valid.
pub(super) fn hidden_metrics(version: &str, diagnostics: &mut Diagnostics) {
    let [previous, before] = [1, 2].map(|age| format!("1.{}", KUBERNETES_MINOR - age));
    if !["", &previous, &before].contains(&version) {
        let message =
            format!("must be the previous minor release, \"{previous}\", or \"{before}\", not {}", quoted(version));
        diagnostics.error("showHiddenMetricsForVersion", message);
    }
}
