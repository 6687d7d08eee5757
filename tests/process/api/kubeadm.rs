//! kubeadm's ConfigMap and command line, unchanged but for the place of the kubeconfig.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::cluster::{Cluster, base};
use crate::support::apiserver::resource::Resource;
use crate::support::apiserver::{Format, test_in_each_format};
use crate::support::nft;
use crate::support::plan::NODE;
use crate::support::proxy::{Proxy, binary};

/// `config.conf` of kubeadm's ConfigMap.
const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/component/config/testdata/kubeadm.yaml");

test_in_each_format!(kubeadms_config_map_and_command_line_start_unchanged);
fn kubeadms_config_map_and_command_line_start_unchanged(format: Format) {
    // kubeadm's file and flags start the proxy: sysctls by its limits, health pages, and a watch of the file (L5, N1, O5).
    let cluster = Cluster::new(format);
    let config: Value = serde_saphyr::from_str(&fs::read_to_string(CONFIG).expect("the file is there")).expect("YAML");
    assert_eq!((&config["mode"], &config["hostnameOverride"]), (&json!(""), &json!("")), "as kubeadm writes them");
    let kubeconfig = cluster.server.kubeconfig(&json!({}));
    let mut proxy = Proxy::with_api(&cluster.node, &config, &kubeconfig);
    proxy.set_arguments(&[&format!("--hostname-override={NODE}")]);
    proxy.launch();
    assert!(cluster.serves("web"), "{}", nft::list_ruleset(&cluster.node));
    let healthz = proxy.get("127.0.0.1:10256", "/healthz");
    assert!(healthz.starts_with("HTTP/1.1 200 ") && healthz.contains("\"nodeEligible\":true"), "{healthz}");
    let mode = proxy.get("127.0.0.1:10249", "/proxyMode");
    assert!(mode.ends_with("\r\n\r\nnftables"), "{mode}");
    assert_eq!(proxy.stop().code(), Some(0));
}

// Without its Node the proxy says so and is not ready, so that a rolling update with a wrong name stops at the first node (Q10).
#[test]
fn a_proxy_whose_node_does_not_exist_says_so_and_is_not_ready_until_it_does() {
    let cluster = Cluster::new(Format::Protobuf);
    cluster.server.delete(Resource::Node, "", NODE);
    let mut proxy = cluster.prepared();
    // It waits half a minute for the Node before it starts without one.
    proxy.spawn();
    let wait_for = |what: &str| {
        let end = Instant::now() + Duration::from_secs(90);
        loop {
            let page = proxy.try_get("127.0.0.1:10256", "/readyz").unwrap_or_default();
            if page.contains(what) {
                return page;
            }
            assert!(Instant::now() < end, "{what} is not in {page}");
            thread::sleep(Duration::from_millis(50));
        }
    };
    // The log names the missing Node long before that, a moment after the first list (M2).
    let listed = wait_for("a Node of this node's name");
    assert!(listed.starts_with("HTTP/1.1 503 "), "{listed}");
    let begin = Instant::now();
    let early = "The Node does not exist; waiting for it";
    while !proxy.log().contains(early) {
        assert!(begin.elapsed() < Duration::from_secs(15), "{}", proxy.log());
        thread::sleep(Duration::from_millis(50));
    }
    assert!(!proxy.log().contains("Synced for the first time"), "{}", proxy.log());
    let words = format!("there is no Node {NODE}: node ports listen nowhere by default, and no endpoint is local");
    let page = wait_for(&words);
    assert!(page.starts_with("HTTP/1.1 503 ") && page.contains("--hostname-override"), "{page}");
    assert!(proxy.get("127.0.0.1:10256", "/livez").starts_with("HTTP/1.1 200 "), "a restart would not help");
    let output = cluster.node.command(binary()).arg("services").output().expect("the binary can be run");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains(&words), "{output:?}");
    assert!(proxy.log().contains("The Node does not exist; not ready until it does"), "{}", proxy.log());
    cluster.server.apply(&base());
    wait_for("HTTP/1.1 200 ");
    cluster.wait_until_serves("web", true);
}
