//! `kube-proxy check`: what it says of a node with an API server, with and without permissions, privileges and a running proxy.

use std::fs;

use serde_json::{Value, json as value};

use super::{json, run};
use crate::support::apiserver::resource::Resource;
use crate::support::apiserver::{ApiServer, Scheme};
use crate::support::mixed;
use crate::support::netns::{self, Namespace, run_with_input};
use crate::support::nft::list_everything;
use crate::support::proxy::{Proxy, binary, config};
use tempfile::TempDir;

/// A node with an API server and a configuration for it.
struct Site {
    node: Namespace,
    server: ApiServer,
    directory: TempDir,
}

impl Site {
    fn new() -> Self {
        let node = Namespace::new("check");
        let server = node.enter(|| ApiServer::start(Scheme::Https));
        server.apply(&mixed::cluster());
        Self { node, server, directory: TempDir::new().expect("a temporary directory can be made") }
    }

    /// Writes a configuration file with these changes; gives its path.
    fn configured(&self, change: impl FnOnce(&mut Value)) -> String {
        let mut config = config();
        let kubeconfig = self.server.kubeconfig(&self.server.certified_user("system:kube-proxy"));
        config["clientConnection"]["kubeconfig"] = value!(kubeconfig);
        change(&mut config);
        let path = self.directory.path().join("config.yaml");
        fs::write(&path, config.to_string()).expect("the configuration can be written");
        path.to_str().expect("a temporary path is text").to_owned()
    }
}

/// The lines with this result, each as its check and its text.
fn with_result(report: &Value, result: &str) -> Vec<String> {
    let checks = report["checks"].as_array().expect("a list");
    let of = checks.iter().filter(|check| check["result"] == result);
    of.map(|check| format!("{} {}", check["check"].as_str().expect("a text"), check["text"].as_str().expect("a text")))
        .collect()
}

fn contains(lines: &[String], text: &str) -> bool {
    lines.iter().any(|line| line.contains(text))
}

#[test]
fn a_good_node_ends_with_0_and_nothing_is_written() {
    let site = Site::new();
    let path = site.configured(|_| {});
    let before = list_everything(&site.node);
    let (code, report) = json(&site.node, &["check", "--config", &path]);
    assert_eq!((code, &report["ok"]), (Some(0), &Value::Bool(true)), "{report:#}");
    let fine = with_result(&report, "ok");
    for text in [
        "configuration",
        "kernel nf_tables has what the rules for IPv4 need",
        "kernel nf_tables has what the rules for IPv6 need",
        "privileges CAP_NET_ADMIN is there",
        "api-server https://127.0.0.1:",
        "api-server the server's certificate ends at",
        "api-server the client's certificate ends at",
        "permissions list services: allowed",
        "permissions watch endpointslices: allowed",
        "permissions list nodes: allowed",
        "permissions watch servicecidrs: allowed",
        "permissions create events.events.k8s.io: allowed",
        "other-programs no kube-proxy of this program runs",
        "other-programs no rules of kube-proxy's modes iptables and ipvs are left",
        "other-programs nftables v",
    ] {
        assert!(contains(&fine, text), "{text}: {report:#}");
    }
    assert_eq!(list_everything(&site.node), before);
    assert_eq!(site.server.events(), [Value::Null; 0]);
    let writes: Vec<_> = site.server.requests().into_iter().filter(|request| request.method != "GET").collect();
    assert!(writes.iter().all(|request| request.path.ends_with("/selfsubjectaccessreviews")), "{writes:?}");
}

#[test]
fn what_other_modes_left_is_named_and_stays() {
    let site = Site::new();
    let path = site.configured(|_| {});
    let chains = "*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-SVC-A - [0:0]\n-A OUTPUT -j KUBE-SERVICES\nCOMMIT\n";
    run_with_input(&mut site.node.command("iptables-legacy-restore"), chains);
    run_with_input(&mut site.node.command("iptables-nft-restore"), chains);
    run_with_input(site.node.command("ipset").arg("restore"), "create KUBE-CLUSTER-IP hash:ip,port\n");
    let (code, report) = json(&site.node, &["check", "--config", &path]);
    assert_eq!(code, Some(0), "{report:#}");
    let warnings = with_result(&report, "warning");
    for what in ["2 chains of table ip nat", "2 chains of table ip nat of iptables-legacy", "1 ipset"] {
        let text = format!("other-programs {what} are from kube-proxy in another mode");
        assert!(contains(&warnings, &text), "{text}: {report:#}");
    }
    let saved = netns::run(&mut site.node.command("iptables-legacy-save"));
    assert!(saved.contains("-A OUTPUT -j KUBE-SERVICES"), "{saved}");
}

#[test]
fn a_permission_that_is_missing_is_named_with_the_remedy() {
    let site = Site::new();
    let path = site.configured(|_| {});
    site.server.settings().forbidden.insert(Resource::EndpointSlice);
    site.server.settings().missing.insert(Resource::ServiceCidr);
    site.server.settings().events_forbidden = true;
    let (code, report) = json(&site.node, &["check", "--config", &path]);
    assert_eq!((code, &report["ok"]), (Some(1), &Value::Bool(false)), "{report:#}");
    let failures = with_result(&report, "failure");
    assert!(contains(&failures, "permissions list endpointslices: the server answered 403"), "{report:#}");
    assert!(contains(&failures, "permissions watch endpointslices: the server answered 403"), "{report:#}");
    assert_eq!(failures.len(), 2, "{report:#}");
    assert!(
        contains(&with_result(&report, "ok"), "permissions list servicecidrs: this cluster has none"),
        "{report:#}"
    );
    assert!(contains(&with_result(&report, "warning"), "permissions create events.events.k8s.io"), "{report:#}");
    let (code, text, stderr) = run(&site.node, &["check", "--config", &path]);
    assert_eq!((code, stderr.as_str()), (Some(1), ""), "{text}");
    assert!(text.contains("-> apply deploy/base/rbac.yaml, or bind the ClusterRole system:node-proxier"), "{text}");
    site.server.close();
    let (code, report) = json(&site.node, &["check", "--config", &path]);
    assert_eq!(code, Some(1), "{report:#}");
    assert!(contains(&with_result(&report, "failure"), "nothing listens there"), "{report:#}");
}

#[test]
fn credentials_that_a_proxy_would_wait_for_are_a_failure_with_the_reason() {
    let site = Site::new();
    let token = site.directory.path().join("token");
    let path = site.configured(|config| {
        let kubeconfig = site.server.kubeconfig(&value!({ "tokenFile": token }));
        config["clientConnection"]["kubeconfig"] = value!(kubeconfig);
    });
    let (code, report) = json(&site.node, &["check", "--config", &path]);
    assert_eq!(code, Some(1), "{report:#}");
    assert!(contains(&with_result(&report, "failure"), "cannot use token file"), "{report:#}");
    fs::write(&token, "t").expect("a token can be written");
    let (code, report) = json(&site.node, &["check", "--config", &path]);
    assert_eq!(code, Some(0), "{report:#}");
    // Without a scheme the server is one without TLS, as in client-go.
    let master = format!("--master={}", site.server.address());
    let (code, report) = json(&site.node, &["check", "--config", &path, &master]);
    assert_eq!(code, Some(1), "{report:#}");
    assert!(contains(&with_result(&report, "failure"), &format!("http://{}", site.server.address())), "{report:#}");
}

#[test]
fn flags_and_fields_without_effect_are_named_and_a_wrong_file_is_a_failure() {
    let site = Site::new();
    let path = site.configured(|config| config["shiny"] = value!(1));
    let (code, report) = json(
        &site.node,
        &["check", "--config", &path, "--cluster-cidr=10.0.0.0/8", "--v=2", "--hostname-override=nobody"],
    );
    // A proxy is not ready without its Node.
    assert_eq!(code, Some(1), "{report:#}");
    let warnings = with_result(&report, "warning");
    assert!(
        contains(&warnings, "--cluster-cidr has no effect beside --config: set clusterCIDR in the file"),
        "{report:#}"
    );
    assert!(contains(&warnings, "unknown field shiny"), "{report:#}");
    assert!(contains(&with_result(&report, "failure"), "there is no Node nobody"), "{report:#}");
    assert!(!contains(&warnings, "--v is") && !contains(&warnings, "hostname-override is"), "{report:#}");
    let wrong = site.configured(|config| config["oomScoreAdj"] = value!(5000));
    let (code, report) = json(&site.node, &["check", "--config", &wrong]);
    assert_eq!(code, Some(1), "{report:#}");
    assert!(contains(&with_result(&report, "failure"), "oomScoreAdj"), "{report:#}");
    assert!(contains(&with_result(&report, "ok"), "kernel nf_tables"), "the rest is looked at: {report:#}");
}

// What cannot be looked at is no failure (Q7).
#[test]
fn without_privileges_it_says_what_could_not_be_looked_at_and_ends_with_2() {
    let site = Site::new();
    let path = site.configured(|_| {});
    let mut command = site.node.command("setpriv");
    command.args(["--bounding-set=-net_admin", "--inh-caps=-net_admin"]).arg(binary());
    let output = command.args(["check", "-o", "json", "--config", &path]).output().expect("setpriv is installed");
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let unknown = with_result(&report, "unknown");
    for text in
        ["CAP_NET_ADMIN is missing", "features for IPv4", "whether a kube-proxy runs", "rules of other programs"]
    {
        assert!(contains(&unknown, text), "{text}: {report:#}");
    }
    assert!(String::from_utf8_lossy(&output.stderr).contains("could not be looked at"), "{output:?}");
}

// Values that a user may not write are not known to be wrong for a kube-proxy, which has other privileges (Q7).
#[test]
fn a_user_who_may_not_write_sysctls_learns_what_could_not_be_looked_at() {
    let node = Namespace::new("check");
    let mut command = node.command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]);
    command.arg(binary()).args([
        "check",
        "-o",
        "json",
        "--conntrack-min=1234567",
        "--conntrack-tcp-timeout-established=77s",
    ]);
    let output = command
        .args(["--manifests", "examples", "--hostname-override=demo-node"])
        .output()
        .expect("setpriv is installed");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert_eq!((output.status.code(), with_result(&report, "failure")), (Some(2), Vec::new()), "{report:#}");
    let unknown = with_result(&report, "unknown");
    let timeout = "sysctls nf_conntrack_tcp_timeout_established is 432000, and the configuration wants 77";
    assert!(contains(&unknown, timeout) && contains(&unknown, "this process cannot write it"), "{report:#}");
}

#[test]
fn a_running_proxy_rules_of_other_modes_and_chains_of_others_are_named() {
    let node = Namespace::new("check");
    let mut proxy = Proxy::start(&node, &config(), &mixed::cluster());
    let (config, manifests) = (proxy.config_path(), proxy.manifests().path().to_owned());
    let text = |path: &std::path::Path| path.to_str().expect("a temporary path is text").to_owned();
    let arguments = ["check", "--config", &text(&config), "--manifests", &text(&manifests)];
    netns::run_with_input(
        node.command("nft").args(["-f", "-"]),
        "table ip nat {\n chain KUBE-SVC-A {\n }\n chain PREROUTING {\n type nat hook prerouting priority -100;\n tcp dport 80 redirect to :8080\n }\n}\n\
         table inet fw {\n chain forward {\n type filter hook forward priority 0; policy drop;\n }\n chain raw {\n type filter hook prerouting priority -300;\n notrack\n }\n}\n",
    );
    let (code, report) = json(&node, &arguments);
    assert_eq!(code, Some(0), "{report:#}");
    assert!(contains(&with_result(&report, "ok"), "a kube-proxy of this program runs: pid "), "{report:#}");
    let warnings = with_result(&report, "warning");
    for text in [
        "1 chain of table ip nat are from kube-proxy in another mode",
        "chain PREROUTING of table ip nat (prerouting, priority -100) may translate destinations before our rules",
        "chain forward of table inet fw (forward, priority 0) drops what its rules do not accept",
        "chain raw of table inet fw (prerouting, priority -300) may keep packets out of connection tracking",
    ] {
        assert!(contains(&warnings, text), "{text}: {report:#}");
    }
    assert!(proxy.is_running());
}
