//! `deploy/monitoring`: each alert fires when it should, and its manifests are what they say.
//!
//! Needs promtool, which `make deps` unpacks into `target/tools`.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use component::config::{self, Invocation};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::netns::run;
use crate::support::proxy::binary;

fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn yaml(path: &str) -> Value {
    let text = fs::read_to_string(project().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The alerts of a document of rules.
fn alerts(rules: &mut Value) -> Vec<&mut Value> {
    let groups = rules["spec"]["groups"].as_array_mut().expect("a list of groups");
    groups.iter_mut().flat_map(|group| group["rules"].as_array_mut().expect("a list of rules")).collect()
}

/// Has promtool run cases, which name the rules `rules.json`.
fn test_rules(rules: &Value, cases: &str) {
    let promtool = project().join("target/tools/prometheus/usr/bin/promtool");
    assert!(promtool.exists(), "no {}: run `make deps`", promtool.display());
    let directory = TempDir::new().expect("a temporary directory can be made");
    fs::write(directory.path().join("rules.json"), rules.to_string()).expect("a file can be written");
    fs::write(directory.path().join("cases.yaml"), cases).expect("a file can be written");
    let output = run(Command::new(promtool).current_dir(&directory).args(["test", "rules", "cases.yaml"]));
    assert!(output.contains("SUCCESS"), "{output}");
}

#[test]
fn each_alert_fires_when_it_should_and_not_otherwise() {
    let mut rules = yaml("deploy/monitoring/rules.yaml");
    let tests = fs::read_to_string(project().join("tests/data/monitoring.yaml")).expect("the cases are there");
    for alert in alerts(&mut rules) {
        let name = alert["alert"].as_str().expect("an alert has a name").to_owned();
        assert!(tests.contains(&format!("alertname: {name}, exp_alerts: [{{")), "{name} has no case in which it fires");
        // The cases compare labels; the words may change.
        let annotations = alert.as_object_mut().and_then(|alert| alert.remove("annotations")).expect("words");
        assert!(annotations["summary"].is_string() && annotations["description"].is_string(), "{name}");
    }
    test_rules(&rules["spec"], &tests);
}

#[test]
fn each_alert_is_on_the_page_of_metrics_and_no_other() {
    let page = fs::read_to_string(project().join("deploy/METRICS.md")).expect("the page is there");
    let listed: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("### ")).collect();
    let mut rules = yaml("deploy/monitoring/rules.yaml");
    let names: Vec<&str> =
        alerts(&mut rules).into_iter().map(|alert| alert["alert"].as_str().expect("a name")).collect();
    assert_eq!(listed, names);
    for alert in alerts(&mut rules) {
        let anchor = alert["alert"].as_str().expect("a name").to_lowercase();
        assert_eq!(alert["annotations"]["runbook_url"], format!("deploy/METRICS.md#{anchor}"));
    }
}

/// The alert of kubernetes-mixin about components of different releases.
const VERSION_MISMATCH: &str = "count by (cluster) (count by (git_version, cluster) (label_replace(kubernetes_build_info\
    {job!~\"kube-dns|coredns\"},\"git_version\",\"$1\",\"git_version\",\"(v[0-9]*.[0-9]*).*\"))) > 1";

#[test]
fn the_usual_alert_about_versions_is_silent_in_every_cluster_of_the_range() {
    let printed = run(Command::new(binary()).arg("--version"));
    let ours = printed.trim().strip_prefix("Kubernetes ").expect("the words of a component");
    let minor = ours.split('.').nth(1).expect("a minor release");
    let arguments = ["kube-proxy", "--master=http://192.0.2.1", "--hostname-override=node-1"].map(OsString::from);
    let Ok(Invocation::Run(config)) = config::load_with(arguments, |line| line) else { panic!("it is a proxy's line") };
    let reported = |server: &str| config.version_for(server).unwrap_or_else(|| ours.to_owned());
    let series = |job: &str, cluster: &str, version: &str| {
        let labels = format!("job=\"{job}\", cluster=\"{cluster}\", git_version=\"{version}\"");
        json!({ "series": format!("kubernetes_build_info{{{labels}}}"), "values": "1x30" })
    };
    let input = [
        series("kube-proxy", "same", ours),
        series("kubelet", "same", &format!("v1.{minor}.9")),
        // In a cluster of the range the proxy reports what `Config::version_for` gives.
        series("kube-proxy", "older", &reported("v1.30.0")),
        series("kubelet", "older", "v1.30.0"),
        series("kube-proxy", "out of range", &reported("v1.24.0")),
        series("kubelet", "out of range", "v1.24.0"),
        // With --version=v1.24.4.
        series("kube-proxy", "told", "v1.24.4"),
        series("kubelet", "told", "v1.24.0"),
    ];
    let rule = json!({ "groups": [{ "name": "mixin", "rules": [{ "alert": "KubeVersionMismatch", "expr": VERSION_MISMATCH, "for": "15m" }] }] });
    let alert = json!({ "eval_time": "20m", "alertname": "KubeVersionMismatch", "exp_alerts": [{ "exp_labels": { "cluster": "out of range" } }] });
    let tests = json!({ "interval": "1m", "input_series": input, "alert_rule_test": [alert] });
    let cases = json!({ "rule_files": ["rules.json"], "evaluation_interval": "1m", "tests": [tests] });
    test_rules(&rule, &cases.to_string());
}

#[test]
fn the_pods_of_the_daemon_set_are_what_the_pod_monitor_selects() {
    let (monitor, daemon_set) = (yaml("deploy/monitoring/podmonitor.yaml"), yaml("deploy/base/daemonset.yaml"));
    let wanted = monitor["spec"]["selector"]["matchLabels"].as_object().expect("labels");
    let template = &daemon_set["spec"]["template"];
    assert!(wanted.iter().all(|(name, value)| template["metadata"]["labels"][name] == *value));
    let ports = template["spec"]["containers"][0]["ports"].as_array().expect("ports");
    let names: Vec<&Value> = ports.iter().map(|port| &port["name"]).collect();
    let endpoints = monitor["spec"]["podMetricsEndpoints"].as_array().expect("a list");
    assert!(endpoints.iter().all(|endpoint| names.contains(&&endpoint["port"])), "{names:?}");
}
