//! The Helm chart `deploy/chart`: each combination of values gives objects that the API and the program accept, the same as `deploy/base` where
//! nothing else is asked for, and values that mean nothing are refused.
//!
//! Needs Helm and the schemas of the API; see `objects`.

use std::fs;
use std::path::Path;

use component::config;
use serde_json::{Value, json};

use crate::objects::{documents, helm, of_kind, refused, rendered};

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The values of `deploy/base`, and others over them.
fn values(others: &Value) -> Value {
    let mut values = json!({ "clusterCIDR": "10.244.0.0/16", "apiServer": "https://control-plane.example.org:6443" });
    for (name, value) in others.as_object().expect("an object") {
        values[name] = value.clone();
    }
    values
}

/// The configuration in a rendered ConfigMap.
fn configuration(objects: &[Value]) -> Value {
    let is_ours = |object: &&Value| object["kind"] == "ConfigMap" && object["data"]["config.conf"].is_string();
    let map = objects.iter().find(is_ours).expect("a ConfigMap");
    serde_saphyr::from_str(map["data"]["config.conf"].as_str().expect("text")).expect("YAML")
}

/// Every value at least once, and each layout with everything that changes rules.
fn combinations() -> Vec<Value> {
    let mut all = vec![
        json!({}),
        json!({ "clusterCIDR": "10.42.0.0/16,2001:db8:42::/56", "apiServer": "https://192.0.2.1:6443" }),
        json!({ "image": { "repository": "example.org/p", "tag": "1", "pullPolicy": "Always" }, "imagePullSecrets": [{ "name": "s" }] }),
        json!({ "image": { "repository": "example.org/p", "digest": format!("sha256:{}", "0a".repeat(32)) } }),
        json!({ "resources": { "requests": { "cpu": "1" }, "limits": { "memory": "1Gi" } }, "priorityClassName": "" }),
        json!({ "tolerations": [], "nodeSelector": {}, "maxUnavailable": 2, "podAnnotations": { "a": "b" }, "podLabels": { "a": "b" } }),
        json!({ "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [
            { "matchExpressions": [{ "key": "kind", "operator": "NotIn", "values": ["virtual"] }] },
        ] } } } }),
        json!({ "surge": true, "serviceAccount": { "create": false }, "name": "service-proxy", "extraArgs": ["-v=2"] }),
        json!({ "config": { "nodePortAddresses": ["primary"], "nftables": { "serviceElementsLimit": 5 }, "detectLocalMode": "NodeCIDR" } }),
        json!({ "updateStrategy": { "type": "OnDelete" }, "extraEnv": [{ "name": "HTTPS_PROXY", "value": "http://192.0.2.9:3128" }],
            "podSecurityContext": { "seLinuxOptions": { "type": "spc_t" } } }),
        json!({ "monitoring": {
            "metricsBindAddress": "0.0.0.0:10249", "podMonitor": true, "rules": true, "dashboard": true, "labels": { "release": "p" },
            "runbooks": "https://example.org/pages/",
        } }),
    ];
    for (layout, endpoint_chains) in [("maps", true), ("chains", true), ("chains", false)] {
        let config = json!({ "nftables": { "endpointChains": endpoint_chains } });
        all.push(json!({ "layout": layout, "flowtable": "auto", "counters": "services", "config": config }));
        all.push(json!({ "layout": layout, "flowtable": "eth0,cni0", "counters": "endpoints", "config": config }));
    }
    all
}

#[test]
fn each_combination_of_values_is_accepted_by_lint_the_api_and_the_program() {
    let mut all = Vec::new();
    for others in combinations() {
        let values = values(&others);
        let (succeeded, text) = helm(&["lint", "--strict"], &values);
        assert!(succeeded, "{others}: {text}");
        let objects = rendered(&values);
        let configuration = configuration(&objects);
        config::check_content(configuration.to_string().as_bytes()).unwrap_or_else(|error| panic!("{others}: {error}"));
        let set = of_kind(&objects, "DaemonSet");
        let map = objects.iter().find(|object| object["data"]["config.conf"].is_string()).expect("a ConfigMap");
        assert_eq!(set["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"], map["metadata"]["name"]);
        all.extend(objects);
    }
    assert_eq!(refused(&all), "");
}

#[test]
fn the_values_reach_the_configuration_and_the_pods() {
    let objects = rendered(&values(&json!({
        "layout": "chains", "flowtable": "auto", "counters": "endpoints", "extraArgs": ["-v=2"], "name": "service-proxy",
        "config": { "nftables": { "serviceElementsLimit": 5 } }, "monitoring": { "metricsBindAddress": "[::]:10300" },
    })));
    let wanted =
        json!({ "rulesetLayout": "chains", "flowtable": "auto", "counters": "endpoints", "serviceElementsLimit": 5 });
    assert_eq!(configuration(&objects)["nftables"], wanted);
    assert_eq!(configuration(&objects)["metricsBindAddress"], "[::]:10300");
    let set = of_kind(&objects, "DaemonSet");
    let pod = &set["spec"]["template"]["spec"];
    assert_eq!(
        (&set["metadata"]["name"], &pod["serviceAccountName"]),
        (&json!("service-proxy"), &json!("service-proxy"))
    );
    for containers in ["initContainers", "containers"] {
        let command = pod[containers][0]["command"].as_array().expect("a command");
        assert_eq!(command.last(), Some(&json!("-v=2")), "{containers}");
    }
    assert_eq!(pod["containers"][0]["ports"][0]["containerPort"], 10300);
}

#[test]
fn the_strategy_the_environment_and_the_security_context_reach_the_daemon_set() {
    let objects = rendered(&values(&json!({
        "updateStrategy": { "type": "OnDelete" }, "surge": true,
        "extraEnv": [{ "name": "HTTPS_PROXY", "value": "http://192.0.2.9:3128" }],
        "podSecurityContext": { "seLinuxOptions": { "type": "spc_t" } },
    })));
    let spec = &of_kind(&objects, "DaemonSet")["spec"];
    assert_eq!(spec["updateStrategy"], json!({ "type": "OnDelete" }));
    let pod = &spec["template"]["spec"];
    let context = json!({ "seccompProfile": { "type": "RuntimeDefault" }, "seLinuxOptions": { "type": "spc_t" } });
    assert_eq!(pod["securityContext"], context);
    for containers in ["initContainers", "containers"] {
        let names: Vec<&Value> =
            pod[containers][0]["env"].as_array().expect("a list").iter().map(|entry| &entry["name"]).collect();
        assert_eq!(names, ["NODE_NAME", "HTTPS_PROXY"], "{containers}");
    }
}

#[test]
fn the_address_of_the_runbooks_is_one_value() {
    let monitoring = json!({ "rules": true, "runbooks": "https://example.org/pages/" });
    let objects = rendered(&values(&json!({ "monitoring": monitoring })));
    let groups = of_kind(&objects, "PrometheusRule")["spec"]["groups"].as_array().expect("a list");
    let rules: Vec<&Value> = groups.iter().flat_map(|group| group["rules"].as_array().expect("a list")).collect();
    assert!(rules.len() > 10, "{rules:?}");
    for rule in rules {
        let anchor = rule["alert"].as_str().expect("a name").to_lowercase();
        let address = format!("https://example.org/pages/deploy/METRICS.md#{anchor}");
        assert_eq!(rule["annotations"]["runbook_url"], address);
    }
}

#[test]
fn the_page_of_the_chart_lists_each_value() {
    let page = read("deploy/chart/README.md");
    let values = &documents("deploy/chart/values.yaml")[0];
    let named: Vec<&String> = values.as_object().expect("values").keys().collect();
    let missing: Vec<_> = named.iter().filter(|name| !page.contains(&format!("`{name}"))).collect();
    assert!(named.len() > 20 && missing.is_empty(), "{missing:?}");
    let monitoring = values["monitoring"].as_object().expect("values");
    assert!(monitoring.keys().all(|name| page.contains(&format!(".{name}`"))), "{:?}", monitoring.keys());
}

#[test]
fn new_content_of_the_configuration_is_a_new_pod_template() {
    let name = |others: &Value| of_kind(&rendered(&values(others)), "ConfigMap")["metadata"]["name"].clone();
    let plain = name(&json!({}));
    assert_ne!(name(&json!({ "counters": "services" })), plain);
    assert_ne!(name(&json!({ "apiServer": "https://192.0.2.1:6443" })), plain);
    assert_eq!(name(&json!({ "maxUnavailable": 5 })), plain);
}

/// The DaemonSet of `deploy/base` as kustomize gives it out, but for the name of the ConfigMap.
fn base() -> Value {
    let kustomization = &documents("deploy/base/kustomization.yaml")[0];
    let mut set = documents("deploy/base/daemonset.yaml").remove(0);
    set["metadata"]["namespace"] = kustomization["namespace"].clone();
    let image = &kustomization["images"][0];
    let pod = &mut set["spec"]["template"]["spec"];
    for containers in ["initContainers", "containers"] {
        assert_eq!(pod[containers][0]["image"], image["name"]);
        let (name, tag) = (image["newName"].as_str().expect("text"), image["newTag"].as_str().expect("text"));
        pod[containers][0]["image"] = json!(format!("{name}:{tag}"));
    }
    set
}

/// Without what has a reason to differ: Helm's labels, and the hash in the ConfigMap's name.
fn comparable(mut set: Value) -> Value {
    set["metadata"].as_object_mut().expect("an object").remove("labels");
    let name = set.pointer_mut("/spec/template/spec/volumes/0/configMap/name").expect("a ConfigMap");
    assert!(name.as_str().is_some_and(|name| name.starts_with("kube-proxy")), "{name}");
    *name = Value::Null;
    set
}

#[test]
fn base_and_chart_give_the_same_objects() {
    let objects = rendered(&values(&json!({})));
    assert_eq!(comparable(of_kind(&objects, "DaemonSet").clone()), comparable(base()));
    let labels = &of_kind(&objects, "DaemonSet")["metadata"]["labels"];
    let shared = &documents("deploy/base/kustomization.yaml")[0]["labels"][0]["pairs"];
    assert!(shared.as_object().expect("labels").iter().all(|(name, value)| labels[name] == *value));

    let [account, binding] = documents("deploy/base/rbac.yaml").try_into().expect("two objects");
    assert_eq!(of_kind(&objects, "ServiceAccount")["metadata"]["name"], account["metadata"]["name"]);
    for field in ["roleRef", "subjects"] {
        assert_eq!(of_kind(&objects, "ClusterRoleBinding")[field], binding[field]);
    }
    let mut configuration = configuration(&objects);
    let defaults = configuration.as_object_mut().and_then(|fields| fields.remove("nftables"));
    assert_eq!(defaults, Some(json!({ "rulesetLayout": "maps", "flowtable": "off", "counters": "off" })));
    assert_eq!(configuration, documents("deploy/base/config/config.conf")[0]);
    let kubeconfig = of_kind(&objects, "ConfigMap")["data"]["kubeconfig.conf"].as_str().expect("text").to_owned();
    let kubeconfig: Value = serde_saphyr::from_str(&kubeconfig).expect("YAML");
    assert_eq!(kubeconfig, documents("deploy/base/config/kubeconfig.conf")[0]);
    assert_eq!(refused(&[base(), account, binding]), "");
}

#[test]
fn with_surge_the_chart_gives_what_the_overlay_gives() {
    let set = of_kind(&rendered(&values(&json!({ "surge": true }))), "DaemonSet").clone();
    let rolling = json!({ "maxSurge": "10%", "maxUnavailable": 0 });
    assert_eq!(set["spec"]["updateStrategy"]["rollingUpdate"], rolling);
    assert!(set["spec"]["template"]["spec"]["containers"][0]["ports"].is_null());
}

#[test]
fn the_monitoring_is_that_of_the_folder_of_that_name() {
    let given =
        json!({ "monitoring": { "podMonitor": true, "rules": true, "dashboard": true, "labels": { "release": "p" } } });
    let objects = rendered(&values(&given));
    for (kind, file) in [("PodMonitor", "podmonitor.yaml"), ("PrometheusRule", "rules.yaml")] {
        let mut wanted = documents(&format!("deploy/monitoring/{file}")).remove(0);
        wanted["metadata"]["namespace"] = json!("kube-system");
        wanted["metadata"]["labels"]["release"] = json!("p");
        assert_eq!(*of_kind(&objects, kind), wanted, "{kind}");
    }
    let is_dashboard = |object: &&Value| object["metadata"]["labels"]["grafana_dashboard"] == "1";
    let dashboard = objects.iter().find(is_dashboard).expect("a dashboard");
    let text = dashboard["data"]["kube-proxy-nft.json"].as_str().expect("text");
    let parsed = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    assert_eq!(parsed(text), parsed(&read("deploy/monitoring/dashboard.json")));
}

#[test]
fn values_that_mean_nothing_are_refused() {
    for (given, named) in [
        (json!({ "clusterCIDR": "10.244.0.0/16" }), "apiServer"),
        (json!({ "apiServer": "https://192.0.2.1:6443" }), "clusterCIDR"),
        (values(&json!({ "clusterCIDR": "10.244.0.0" })), "clusterCIDR"),
        (values(&json!({ "apiServer": "192.0.2.1:6443" })), "apiServer"),
        (values(&json!({ "layout": "tree" })), "layout"),
        (values(&json!({ "counters": false })), "counters"),
        (values(&json!({ "image": { "digest": "sha256:12" } })), "digest"),
        (values(&json!({ "monitoring": { "podMonitors": true } })), "podMonitors"),
        (values(&json!({ "maxUnavailable": "0%" })), "maxUnavailable"),
        (values(&json!({ "updateStrategy": { "type": "Recreate" } })), "updateStrategy"),
        (values(&json!({ "monitoring": { "runbooks": "example.org" } })), "runbooks"),
        (values(&json!({ "clusterCidr": "10.0.0.0/8" })), "clusterCidr"),
    ] {
        let (succeeded, text) = helm(&["template", "kube-proxy-nft"], &given);
        assert!(!succeeded && text.contains(named), "{given}: {text}");
    }
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let chart = &documents("deploy/chart/Chart.yaml")[0];
    let kustomization = &documents("deploy/base/kustomization.yaml")[0];
    for version in [&chart["version"], &chart["appVersion"], &kustomization["images"][0]["newTag"]] {
        assert_eq!(version, env!("CARGO_PKG_VERSION"));
    }
}
