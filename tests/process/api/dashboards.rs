//! What a real Prometheus, scraping a running proxy, answers to the queries of dashboards: ours in `deploy/monitoring`, and that of kubernetes-mixin
//! for kube-proxy.
//!
//! Needs prometheus, which `make deps` unpacks into `target/tools`.

use std::cell::Cell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use jiff::Timestamp;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::cluster::{Cluster, PORTS};
use crate::support::apiserver::fault::Command;
use crate::support::apiserver::{Format, test_in_each_format, wait_for};
use crate::support::netns::{Namespace, run};
use crate::support::objects::{service, slices};
use crate::support::plan::Family;
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, config};

/// The queries of kubernetes-mixin's dashboard, one or more a panel, and what its alerts ask for.
const MIXIN: [&str; 13] = [
    "sum(up{job=\"kube-proxy\"})",
    "sum(rate(kubeproxy_sync_proxy_rules_duration_seconds_count{job=\"kube-proxy\"}[1m]))",
    "histogram_quantile(0.99,rate(kubeproxy_sync_proxy_rules_duration_seconds_bucket{job=\"kube-proxy\"}[1m]))",
    "sum(rate(kubeproxy_network_programming_duration_seconds_count{job=\"kube-proxy\"}[1m]))",
    "histogram_quantile(0.99, sum(rate(kubeproxy_network_programming_duration_seconds_bucket{job=\"kube-proxy\"}[1m])) by (instance, le))",
    "sum(rate(rest_client_requests_total{job=\"kube-proxy\",code=~\"2..\"}[1m]))",
    "histogram_quantile(0.99, sum(rate(rest_client_request_duration_seconds_bucket{job=\"kube-proxy\",verb=\"POST\"}[1m])) by (verb, le))",
    "histogram_quantile(0.99, sum(rate(rest_client_request_duration_seconds_bucket{job=\"kube-proxy\",verb=\"GET\"}[1m])) by (verb, le))",
    "process_resident_memory_bytes{job=\"kube-proxy\"}",
    "rate(process_cpu_seconds_total{job=\"kube-proxy\"}[1m])",
    "go_goroutines{job=\"kube-proxy\"}",
    "count by (git_version) (label_replace(kubernetes_build_info,\"git_version\",\"$1\",\"git_version\",\"(v[0-9]*.[0-9]*).*\"))",
    "sum(rate(rest_client_requests_total{job=\"kube-proxy\"}[1m])) by (instance, job)",
];

/// The queries of our dashboard, with what Grafana puts in the place of its variables.
fn ours() -> Vec<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/monitoring/dashboard.json");
    let dashboard: Value =
        serde_json::from_str(&fs::read_to_string(path).expect("the dashboard is there")).expect("a dashboard is JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().expect("queries"));
    let text = |target: &Value| target["expr"].as_str().expect("a query").to_owned();
    targets.map(text).map(|query| query.replace("$__rate_interval", "1m").replace("$instance", ".+")).collect()
}

/// A Prometheus in the node's namespace that scrapes the proxy four times a second.
struct Prometheus<'a> {
    node: &'a Namespace,
    child: Child,
    _directory: TempDir,
}

impl<'a> Prometheus<'a> {
    fn start(node: &'a Namespace) -> Self {
        let binary: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/prometheus/usr/bin/prometheus");
        assert!(binary.exists(), "no {}: run `make deps`", binary.display());
        let directory = TempDir::new().expect("a temporary directory can be made");
        let scrape = json!({ "global": { "scrape_interval": "250ms", "scrape_timeout": "250ms" }, "scrape_configs": [
            { "job_name": "kube-proxy", "static_configs": [{ "targets": ["127.0.0.1:10249"] }] }] });
        fs::write(directory.path().join("prometheus.yml"), scrape.to_string()).expect("a file can be written");
        let child = node
            .command(binary)
            .current_dir(&directory)
            .args(["--config.file=prometheus.yml", "--storage.tsdb.path=data", "--web.listen-address=127.0.0.1:9090"])
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus can be run");
        Self { node, child, _directory: directory }
    }

    /// Whether a query has a result that is a number.
    fn has_data(&self, query: &str) -> bool {
        let query = format!("query={query}");
        let url = "http://127.0.0.1:9090/api/v1/query";
        let mut command = self.node.command("curl");
        command.args([
            "--silent",
            "--retry",
            "50",
            "--retry-connrefused",
            "--retry-delay",
            "0",
            url,
            "--data-urlencode",
            &query,
        ]);
        let answer: Value = serde_json::from_str(&run(&mut command)).unwrap_or_default();
        assert_ne!(answer["status"], "error", "{query}: {answer}");
        let results = answer["data"]["result"].as_array();
        results.into_iter().flatten().any(|result| {
            result["value"][1].as_str().and_then(|value| value.parse().ok()).is_some_and(|value: f64| !value.is_nan())
        })
    }
}

impl Drop for Prometheus<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

test_in_each_format!(every_query_of_the_dashboards_has_data);
fn every_query_of_the_dashboards_has_data(format: Format) {
    let cluster = Cluster::new(format);
    let mut config = config();
    config["nftables"]["counters"] = json!("services");
    let mut proxy = Proxy::with_api(&cluster.node, &config, &cluster.server.kubeconfig(&json!({})));
    proxy.launch();
    cluster.server.wait_for_watches();
    let prometheus = Prometheus::start(&cluster.node);
    let queries: Vec<String> = MIXIN.map(str::to_owned).into_iter().chain(ours()).collect();
    assert!(queries.len() > 25, "{queries:?}");
    let number = Cell::new(0);
    wait_for("all queries to have data", || {
        // A rate needs what happens between two scrapes: changed endpoints, and events about Services that claim the same address.
        number.set(number.get() + 1);
        // An address has a few lines and events of a namespace at once, and one a minute from then on: so each time another one.
        let claimant = |name: &str, ip| {
            let claimant = service("shop", &format!("{name}-{}", number.get())).cluster_ips(ip);
            claimant.port("http", Proto::Tcp, 80).external_ip(Family::V4.external_ip(number.get())).json()
        };
        cluster.server.apply(&[claimant("early", 10 + number.get()), claimant("late", 110 + number.get())]);
        // A watch ends after some minutes, and the next one is a request.
        cluster.server.order(None, Command::Finish);
        let mut changed = slices("shop", "web", &[number.get() % 3], &PORTS);
        for slice in &mut changed {
            slice["metadata"]["annotations"] =
                json!({ "endpoints.kubernetes.io/last-change-trigger-time": Timestamp::now().to_string() });
        }
        cluster.server.apply(&changed);
        let missing: Vec<&String> = queries.iter().filter(|query| !prometheus.has_data(query)).collect();
        println!("no data for {missing:#?}");
        missing.is_empty().then_some(())
    });
}
