//! `/metrics/slis`: the results of the checks behind the metrics server's own `/healthz`. There is one, `ping`, which cannot fail.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family as Series;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Check {
    name: &'static str,
    r#type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CheckResult {
    name: &'static str,
    status: &'static str,
    r#type: &'static str,
}

/// The health-check metrics (SLIs).
#[derive(Debug)]
pub(super) struct Slis {
    registry: Registry,
    last: Series<Check, Gauge>,
    all: Series<CheckResult, Counter>,
}

impl Slis {
    pub(super) fn new() -> Self {
        let mut registry = Registry::default();
        let (last, all) = (Series::default(), Series::default());
        let help = "[STABLE] This metric records the result of a single healthcheck.";
        registry.register("kubernetes_healthcheck", help, Series::clone(&last));
        let help = "[STABLE] This metric records the results of all healthcheck.";
        registry.register("kubernetes_healthchecks", help, Series::clone(&all));
        Self { registry, last, all }
    }

    /// Counts a response of `/healthz`, which is a successful check.
    pub(super) fn checked(&self) {
        let (name, r#type) = ("ping", "healthz");
        self.last.get_or_create(&Check { name, r#type }).set(1);
        self.all.get_or_create(&CheckResult { name, status: "success", r#type }).inc();
    }

    /// Removes all series.
    pub(super) fn reset(&self) {
        self.last.clear();
        self.all.clear();
    }

    /// The health-check metrics in the OpenMetrics format.
    pub(super) fn open_metrics(&self) -> String {
        crate::metrics::text::open_metrics(&self.registry)
    }
}
