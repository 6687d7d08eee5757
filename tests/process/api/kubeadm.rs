//! kubeadm's ConfigMap and command line, unchanged but for the place of the kubeconfig.

use std::fs;

use serde_json::{Value, json};

use super::cluster::Cluster;
use crate::support::apiserver::{Format, test_in_each_format};
use crate::support::nft;
use crate::support::plan::NODE;
use crate::support::proxy::Proxy;

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
