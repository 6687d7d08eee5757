//! Our DaemonSet over kubeadm's: a server-side apply, by the merge keys of the API's own schema, has to give what the API server accepts.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::objects::{definitions, documents, of_kind, refused, rendered};

const DAEMON_SET: &str = "io.k8s.api.apps.v1.DaemonSet";

/// What kubeadm makes, as an API server would give it to a merge.
fn kubeadms_daemon_set() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": { "name": "kube-proxy", "namespace": "kube-system", "labels": { "k8s-app": "kube-proxy" } },
        "spec": {
            "selector": { "matchLabels": { "k8s-app": "kube-proxy" } },
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxSurge": 0, "maxUnavailable": 1 } },
            "template": {
                "metadata": { "labels": { "k8s-app": "kube-proxy" } },
                "spec": {
                    "priorityClassName": "system-node-critical", "hostNetwork": true, "serviceAccountName": "kube-proxy",
                    "dnsPolicy": "ClusterFirst", "terminationGracePeriodSeconds": 30, "securityContext": {},
                    "nodeSelector": { "kubernetes.io/os": "linux" },
                    "tolerations": [{ "key": "CriticalAddonsOnly", "operator": "Exists" }, { "operator": "Exists" }],
                    "containers": [{
                        "name": "kube-proxy", "image": "registry.k8s.io/kube-proxy:v1.36.2", "imagePullPolicy": "IfNotPresent",
                        "command": [
                            "/usr/local/bin/kube-proxy", "--config=/var/lib/kube-proxy/config.conf",
                            "--hostname-override=$(NODE_NAME)",
                        ],
                        "env": [{ "name": "NODE_NAME", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }],
                        "securityContext": { "privileged": true },
                        "volumeMounts": [
                            { "name": "kube-proxy", "mountPath": "/var/lib/kube-proxy" },
                            { "name": "xtables-lock", "mountPath": "/run/xtables.lock" },
                            { "name": "lib-modules", "mountPath": "/lib/modules", "readOnly": true },
                        ],
                    }],
                    "volumes": [
                        { "name": "kube-proxy", "configMap": { "name": "kube-proxy" } },
                        { "name": "xtables-lock", "hostPath": { "path": "/run/xtables.lock", "type": "FileOrCreate" } },
                        { "name": "lib-modules", "hostPath": { "path": "/lib/modules" } },
                    ],
                },
            },
        },
    })
}

/// The definition that a schema refers to.
fn definition(schema: &Value) -> Option<&'static Value> {
    definitions().get(schema["$ref"].as_str()?.rsplit('/').next()?)
}

/// Lays an object over another one, as server-side apply does: what is not named stays. The schema says which lists are merged entry by entry,
/// and by which of their fields; other lists, and objects that are said to be atomic, are replaced as a whole.
fn merge(schema: &Value, present: &mut Value, wanted: &Value) {
    let resolved = definition(schema).unwrap_or(schema);
    let is_atomic = |schema: &Value| schema["x-kubernetes-map-type"] == "atomic";
    match (present, wanted) {
        (Value::Object(present), Value::Object(wanted)) if !is_atomic(schema) && !is_atomic(resolved) => {
            for (field, value) in wanted {
                merge(&resolved["properties"][field], present.entry(field).or_insert(Value::Null), value);
            }
        }
        (Value::Array(present), Value::Array(wanted)) if schema["x-kubernetes-list-type"] == "map" => {
            let keys = schema["x-kubernetes-list-map-keys"].as_array().expect("keys");
            let same = |a: &Value, b: &Value| keys.iter().filter_map(Value::as_str).all(|key| a[key] == b[key]);
            for entry in wanted {
                match present.iter_mut().find(|other| same(other, entry)) {
                    Some(_) if entry["$patch"] == "delete" => present.retain(|other| !same(other, entry)),
                    Some(other) => merge(&schema["items"], other, entry),
                    None => present.push(entry.clone()),
                }
            }
        }
        (present, wanted) => *present = wanted.clone(),
    }
}

/// What an API server refuses in the pods of a DaemonSet, as far as a merge can bring it about.
fn refusals(pod: &Value) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let containers = [list(&pod["initContainers"]), list(&pod["containers"])].concat();
    let volumes: BTreeSet<String> = list(&pod["volumes"]).iter().map(|volume| volume["name"].to_string()).collect();
    let mut found = Vec::new();
    for container in containers {
        let (name, context) = (&container["name"], &container["securityContext"]);
        if context["privileged"] == true && context["allowPrivilegeEscalation"] == false {
            found.push(format!("{name}: cannot set `allowPrivilegeEscalation` to false and `privileged` to true"));
        }
        let mounts = list(&container["volumeMounts"]);
        let unknown = mounts.iter().filter(|mount| !volumes.contains(&mount["name"].to_string()));
        found.extend(unknown.map(|mount| format!("{name}: no volume {}", mount["name"])));
    }
    found
}

/// Our DaemonSets: that of the base, and that of the chart.
fn ours() -> [Value; 2] {
    let values = json!({ "clusterCIDR": "10.244.0.0/16", "apiServer": "https://control-plane.example.org:6443" });
    [documents("deploy/base/daemonset.yaml").remove(0), of_kind(&rendered(&values), "DaemonSet").clone()]
}

#[test]
fn laid_over_kubeadms_daemon_set_it_is_accepted_and_has_the_least_privileges() {
    let schema = &definitions()[DAEMON_SET];
    assert_eq!(refused(&[kubeadms_daemon_set()]), "", "kubeadm's own is valid");
    for own in ours() {
        let mut set = kubeadms_daemon_set();
        merge(schema, &mut set, &own);
        let pod = &set["spec"]["template"]["spec"];
        assert_eq!(refusals(pod), [""; 0]);
        assert_eq!(refused(std::slice::from_ref(&set)), "");
        let container = &pod["containers"][0];
        assert_eq!(container["securityContext"]["privileged"], false);
        assert_eq!(container["volumeMounts"][0]["name"], "config", "our configuration, not kubeadm's: {container}");
        assert_eq!(pod["containers"].as_array().map(Vec::len), Some(1));
        // Nobody else's field decides what is ours to say.
        let base = &own["spec"]["template"]["spec"];
        for field in ["tolerations", "dnsPolicy", "securityContext", "initContainers", "terminationGracePeriodSeconds"]
        {
            assert_eq!(pod[field], base[field], "{field}");
        }
        for field in ["image", "command", "env", "securityContext", "ports", "resources", "livenessProbe"] {
            assert_eq!(container[field], base["containers"][0][field], "{field}");
        }

        // The page takes away what is left of kubeadm's.
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/distributions/kubeadm.md");
        let page = fs::read_to_string(page).expect("the page can be read");
        let patch = page.split('\'').find(|text| text.contains("$patch")).expect("the page has a patch");
        merge(schema, &mut set, &serde_json::from_str(patch).expect("JSON"));
        let pod = &set["spec"]["template"]["spec"];
        assert_eq!(refusals(pod), [""; 0]);
        assert_eq!(pod["volumes"], base["volumes"]);
        assert_eq!(pod["containers"][0]["volumeMounts"], base["containers"][0]["volumeMounts"]);
    }
}

#[test]
fn a_merge_that_the_api_server_would_refuse_is_noticed() {
    let mut set = kubeadms_daemon_set();
    let mut careless = ours()[0].clone();
    let context = "/spec/template/spec/containers/0/securityContext";
    careless.pointer_mut(context).and_then(Value::as_object_mut).expect("a context").remove("privileged");
    merge(&definitions()[DAEMON_SET], &mut set, &careless);
    assert_eq!(refusals(&set["spec"]["template"]["spec"]).len(), 1);
}
