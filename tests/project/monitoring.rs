//! `deploy/monitoring`: each alert fires when it should, and its manifests are what they say.
//!
//! Needs promtool, which `make deps` unpacks into `target/tools`.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::netns::run;

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

#[test]
fn each_alert_fires_when_it_should_and_not_otherwise() {
    let promtool = project().join("target/tools/prometheus/usr/bin/promtool");
    assert!(promtool.exists(), "no {}: run `make deps`", promtool.display());
    let mut rules = yaml("deploy/monitoring/rules.yaml");
    let tests = fs::read_to_string(project().join("tests/data/monitoring.yaml")).expect("the cases are there");
    for alert in alerts(&mut rules) {
        let name = alert["alert"].as_str().expect("an alert has a name").to_owned();
        assert!(tests.contains(&format!("alertname: {name}, exp_alerts: [{{")), "{name} has no case in which it fires");
        // The cases compare labels; the words may change.
        let annotations = alert.as_object_mut().and_then(|alert| alert.remove("annotations")).expect("words");
        assert!(annotations["summary"].is_string() && annotations["description"].is_string(), "{name}");
    }
    let directory = TempDir::new().expect("a temporary directory can be made");
    fs::write(directory.path().join("rules.json"), rules["spec"].to_string()).expect("a file can be written");
    fs::write(directory.path().join("cases.yaml"), tests).expect("a file can be written");
    let output = run(Command::new(promtool).current_dir(&directory).args(["test", "rules", "cases.yaml"]));
    assert!(output.contains("SUCCESS"), "{output}");
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
