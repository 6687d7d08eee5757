//! Tests of what is written out.

use std::ffi::OsString;

use super::super::{Invocation, load};
use super::*;

fn written(args: &[&str]) -> String {
    let args = ["kube-proxy", "--write-config-to=out"].iter().chain(args).map(OsString::from);
    match load(args).unwrap() {
        Invocation::WriteConfig { path, text } if path.as_os_str() == "out" => text,
        other => panic!("{other:?}"),
    }
}

#[test]
fn defaults_are_written_as_upstream_writes_them() {
    assert_eq!(written(&["--proxy-mode=nftables"]), include_str!("testdata/empty.yaml"));
}

#[test]
fn kubeadms_file_is_written_with_the_defaults_filled_in() {
    let text = written(&["--config", concat!(env!("CARGO_MANIFEST_DIR"), "/src/config/file/testdata/kubeadm.yaml")]);
    let expected = include_str!("testdata/empty.yaml")
        .replace("clusterCIDR: \"\"", "clusterCIDR: 10.244.0.0/16")
        .replace("kubeconfig: \"\"", "kubeconfig: /var/lib/kube-proxy/kubeconfig.conf");
    assert_eq!(text, expected);
}

#[test]
fn what_is_written_reads_back_and_is_written_the_same() {
    let first = written(&[
        "--proxy-mode=nftables",
        "--kube-api-qps=0.1",
        "--masquerade-all",
        "--relist-removal-limit=75",
        "--service-elements-limit=0",
        "--feature-gates=A=true",
        "--nodeport-addresses=10.0.0.0/8",
        "--healthz-bind-address=[::]:1",
        "--ipvs-exclude-cidrs=10.0.0.0/8",
    ]);
    assert!(
        first.contains("  qps: 0.1\n") && first.contains("  relistRemovalLimit: 75\n  serviceElementsLimit: 0\n"),
        "{first}"
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &first).unwrap();
    assert_eq!(written(&["--config", file.path().to_str().unwrap()]), first);
}

#[test]
fn configz_is_keyed_by_the_group() {
    let Invocation::Run(config) = load(["kube-proxy", "--proxy-mode=nftables"].map(OsString::from)).unwrap() else {
        panic!()
    };
    let body: Value = serde_json::from_str(&configz(&config).unwrap()).unwrap();
    let object = &body["kubeproxy.config.k8s.io"];
    assert_eq!(object["kind"], "KubeProxyConfiguration");
    assert_eq!(object["apiVersion"], "kubeproxy.config.k8s.io/v1alpha1");
    assert_eq!(object["nodePortAddresses"], json!(["primary"]));
    assert_eq!(object["clientConnection"]["qps"], json!(5));
    assert_eq!(object["iptables"]["syncPeriod"], "0s");
    assert_eq!(object["nftables"]["syncPeriod"], "30s");
}
