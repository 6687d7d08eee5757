//! The metrics that dashboards and alerts of Kubernetes (`kubernetes-mixin`, its kube-proxy dashboard) ask for have data.

use jiff::Timestamp;
use serde_json::json;

use super::cluster::{Cluster, PORTS};
use crate::support::apiserver::wait_for;
use crate::support::objects::slices;

/// The series of each panel: the name, and what its labels have.
const PANELS: [(&str, &str); 13] = [
    ("kubeproxy_sync_proxy_rules_duration_seconds_count", ""),
    ("kubeproxy_sync_proxy_rules_duration_seconds_bucket", "le=\"+Inf\""),
    ("kubeproxy_network_programming_duration_seconds_count", ""),
    ("kubeproxy_network_programming_duration_seconds_bucket", "le=\"+Inf\""),
    // Requests by code: 2xx, 3xx, 4xx, 5xx. The server of this test has no failures.
    ("rest_client_requests_total", "code=\"200\""),
    ("rest_client_requests_total", "code=\"201\""),
    ("rest_client_request_duration_seconds_bucket", "verb=\"POST\""),
    ("rest_client_request_duration_seconds_bucket", "verb=\"GET\""),
    ("process_resident_memory_bytes", ""),
    ("process_cpu_seconds_total", ""),
    ("go_goroutines", ""),
    // The alerts about versions that differ, and about a proxy that is away.
    ("kubernetes_build_info", "git_version=\"v1."),
    ("process_start_time_seconds", ""),
];

#[test]
fn every_panel_of_the_usual_dashboard_has_data() {
    let cluster = Cluster::new();
    let proxy = cluster.proxy();
    cluster.server.wait_for_watches();
    let mut changed = slices("shop", "web", &[0], &PORTS);
    for slice in &mut changed {
        slice["metadata"]["annotations"] =
            json!({ "endpoints.kubernetes.io/last-change-trigger-time": Timestamp::now().to_string() });
    }
    cluster.server.apply(&changed);
    let missing = || {
        let page = proxy.get("127.0.0.1:10249", "/metrics");
        let has = |name: &str, label: &str| {
            page.lines().any(|line| {
                line.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '{']))
                    && line.contains(label)
                    && line
                        .rsplit(' ')
                        .next()
                        .and_then(|value| value.parse().ok())
                        .is_some_and(|value: f64| value > 0.0)
            })
        };
        PANELS.into_iter().filter(|(name, label)| !has(name, label)).collect::<Vec<_>>()
    };
    // The event of the start, which is the POST, is sent beside the first sync.
    wait_for("all panels to have data", || {
        let missing = missing();
        if !missing.is_empty() {
            println!("no data for {missing:?}");
        }
        missing.is_empty().then_some(())
    });
}
