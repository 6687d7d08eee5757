//! Rules for feature gates and hidden metrics.
//!
//! Upstream knows the gates of all of Kubernetes and refuses others. Clusters hand one `featureGates` map to every component,
//! and its names come and go with each release, so a list here would age into outages: a name that looks like a gate (an
//! upper-case letter, then letters and digits) is accepted with a warning; anything else is an error, as upstream.

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
const GATES: [(&str, Gate); 11] = [
    ("AllAlpha", Gate::Free),
    ("AllBeta", Gate::Free),
    (ALLOW_SERVICE_EXTERNAL_IPS, Gate::Free),
    (COMPONENT_FLAGZ, Gate::Free),
    (COMPONENT_STATUSZ, Gate::Free),
    ("ContextualLogging", Gate::Free),
    (LOGGING_ALPHA_OPTIONS, Gate::Free),
    ("LoggingBetaOptions", Gate::Free),
    ("MultiCIDRServiceAllocator", Gate::LockedOn),
    (NATIVE_HISTOGRAMS, Gate::Free),
    ("PreferSameTrafficDistribution", Gate::LockedOn),
];

const ALLOW_SERVICE_EXTERNAL_IPS: &str = "AllowServiceExternalIPs";
const COMPONENT_FLAGZ: &str = "ComponentFlagz";
const COMPONENT_STATUSZ: &str = "ComponentStatusz";
const NATIVE_HISTOGRAMS: &str = "NativeHistograms";
const LOGGING_ALPHA_OPTIONS: &str = "LoggingAlphaOptions";

/// The gates that change what this program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gates {
    pub(super) allow_service_external_ips: bool,
    pub(super) logging_alpha_options: bool,
    pub(super) flagz: bool,
    pub(super) statusz: bool,
    pub(super) native_histograms: bool,
}

fn looks_like_a_gate(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Checks the gates' names, and the release whose hidden metrics are asked for.
pub(super) fn gates(file: &KubeProxyConfiguration, findings: &mut Findings) -> Gates {
    hidden_metrics(&file.show_hidden_metrics_for_version, findings);
    for (name, on) in &file.feature_gates {
        let field = format!("featureGates.{name}");
        match GATES.iter().find(|(known, _)| known == name) {
            None if looks_like_a_gate(name) => {
                findings.warn(format!("{field} has no effect: this kube-proxy does not look at that feature gate"));
            }
            None => findings.error(field, "is no name of a feature gate: remove it"),
            Some((_, Gate::LockedOn)) if !on => findings.error(field, "cannot be false: the feature is always on"),
            Some(_) => {}
        }
    }
    let value = |name: &str| file.feature_gates.get(name).copied();
    let all_alpha = value("AllAlpha").unwrap_or(false);
    let all_beta = value("AllBeta").unwrap_or(true);
    Gates {
        allow_service_external_ips: value(ALLOW_SERVICE_EXTERNAL_IPS).unwrap_or(true),
        logging_alpha_options: value(LOGGING_ALPHA_OPTIONS).unwrap_or(all_alpha),
        flagz: value(COMPONENT_FLAGZ).unwrap_or(all_beta),
        statusz: value(COMPONENT_STATUSZ).unwrap_or(all_beta),
        native_histograms: value(NATIVE_HISTOGRAMS).unwrap_or(all_alpha),
    }
}

fn hidden_metrics(version: &str, findings: &mut Findings) {
    let previous = format!("1.{}", KUBERNETES_MINOR - 1);
    if !version.is_empty() && version != previous {
        let message = format!("must be the previous minor release, \"{previous}\", not {version:?}");
        findings.error("showHiddenMetricsForVersion", message);
    }
}
