//! Rules for feature gates and hidden metrics.

use super::Findings;
use crate::config::file::KubeProxyConfiguration;

/// The Kubernetes minor release that this program follows.
const KUBERNETES_MINOR: u32 = 36;

/// Whether a gate may be switched.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    /// It may, and is off or on as it pleases.
    Free,
    /// It has graduated and can only be said to be on.
    LockedOn,
}

/// The gates that kube-proxy's nftables mode and its logging look at.
const GATES: [(&str, Gate); 10] = [
    ("AllAlpha", Gate::Free),
    ("AllBeta", Gate::Free),
    (ALLOW_SERVICE_EXTERNAL_IPS, Gate::Free),
    ("ComponentFlagz", Gate::Free),
    ("ComponentStatusz", Gate::Free),
    (LOGGING_ALPHA_OPTIONS, Gate::Free),
    ("LoggingBetaOptions", Gate::Free),
    ("MultiCIDRServiceAllocator", Gate::LockedOn),
    ("NativeHistograms", Gate::Free),
    ("PreferSameTrafficDistribution", Gate::LockedOn),
];

const ALLOW_SERVICE_EXTERNAL_IPS: &str = "AllowServiceExternalIPs";
const LOGGING_ALPHA_OPTIONS: &str = "LoggingAlphaOptions";

/// The gates that change what this program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gates {
    pub(super) allow_service_external_ips: bool,
    pub(super) logging_alpha_options: bool,
}

/// Checks the gates' names, and the release whose hidden metrics are asked for.
pub(super) fn gates(file: &KubeProxyConfiguration, findings: &mut Findings) -> Gates {
    hidden_metrics(&file.show_hidden_metrics_for_version, findings);
    for (name, on) in &file.feature_gates {
        let field = format!("featureGates.{name}");
        match GATES.iter().find(|(known, _)| known == name) {
            None => findings.error(field, "this kube-proxy has no such feature gate: remove it"),
            Some((_, Gate::LockedOn)) if !on => findings.error(field, "cannot be false: the feature is always on"),
            Some(_) => {}
        }
    }
    let value = |name: &str| file.feature_gates.get(name).copied();
    let all_alpha = value("AllAlpha").unwrap_or(false);
    Gates {
        allow_service_external_ips: value(ALLOW_SERVICE_EXTERNAL_IPS).unwrap_or(true),
        logging_alpha_options: value(LOGGING_ALPHA_OPTIONS).unwrap_or(all_alpha),
    }
}

fn hidden_metrics(version: &str, findings: &mut Findings) {
    let previous = format!("1.{}", KUBERNETES_MINOR - 1);
    if !version.is_empty() && version != previous {
        let message = format!("must be the previous minor release, \"{previous}\", not {version:?}");
        findings.error("showHiddenMetricsForVersion", message);
    }
}
