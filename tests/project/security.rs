//! `deploy/SECURITY.md`: what listens on a node is what its table lists, at the addresses that it gives, and each page that it names answers.
//!
//! Needs root, for a node in network namespaces.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use super::pages::page;
use crate::support::mixed;
use crate::support::netns::run;
use crate::support::proxy::{Proxy, binary, config};
use crate::support::world::World;
use serde_json::Value;
use tempfile::TempDir;

/// The rows of the table under the heading that says what listens, as the first cell and the rest.
fn listeners(page: &str) -> Vec<(&str, &str)> {
    let (_, part) = page.split_once("## What it listens on\n").expect("the page has that heading");
    let rows = part.split("\n## ").next().unwrap_or_default().lines().filter_map(|line| line.strip_prefix("| "));
    rows.skip(1).filter_map(|row| row.split_once(" | ")).collect()
}

/// The ports on which processes of the node listen.
fn open_ports(world: &World) -> BTreeSet<u16> {
    let sockets = run(world.node.command("ss").args(["-Hltun"]));
    let ports = sockets.lines().filter_map(|line| line.split_whitespace().nth(4)?.rsplit(':').next()?.parse().ok());
    ports.collect()
}

#[test]
fn nothing_listens_but_what_the_page_lists() {
    let page = page("deploy/SECURITY.md");
    let rows = listeners(&page);
    assert_eq!(rows.len(), 5, "four of the proxy, and the pages of `kube-proxy stats`: {rows:?}");
    let world = World::new();
    let before = open_ports(&world);
    let objects = mixed::cluster();
    let _proxy = Proxy::start(&world.node, &config(), &objects);
    let health: BTreeSet<u16> =
        objects.iter().filter_map(|object| object["spec"]["healthCheckNodePort"].as_u64()?.try_into().ok()).collect();
    assert!(!health.is_empty(), "a Service has a health-check node port");
    let opened: BTreeSet<u16> = open_ports(&world).difference(&before).copied().collect();
    assert_eq!(opened, &health | &BTreeSet::from([10249, 10256]));
    for (address, what) in rows {
        let Some(port) = ["10249", "10256"].into_iter().find(|port| address.contains(&format!(":{port}"))) else {
            continue;
        };
        let paths: Vec<&str> = what.split('`').skip(1).step_by(2).filter(|span| span.starts_with('/')).collect();
        assert!(paths.len() > 2, "{what}");
        for path in paths.into_iter().filter(|path| !path.starts_with("/debug") || path.ends_with("changes")) {
            let url = format!("http://127.0.0.1:{port}{path}");
            let status = run(world.node.command("curl").args(["-s", "-o", "/dev/null", "-w", "%{http_code}", &url]));
            assert_eq!(status, "200", "{url}");
        }
    }
    let put = ["-s", "-o", "/dev/null", "-w", "%{http_code}", "-X", "PUT", "-d", "4"];
    let status = run(world.node.command("curl").args(put).arg("http://127.0.0.1:10249/debug/flags/v"));
    assert_eq!(status, "404", "without enableProfiling nothing can be changed");
}

#[test]
fn the_addresses_of_the_page_are_the_defaults() {
    let directory = TempDir::new().expect("a temporary directory can be made");
    let (file, written) = (directory.path().join("file"), directory.path().join("written"));
    let minimal = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\n";
    fs::write(&file, minimal).expect("a file can be written");
    run(Command::new(binary()).arg("--config").arg(&file).arg("--write-config-to").arg(&written));
    let written: Value = serde_saphyr::from_str(&fs::read_to_string(&written).expect("it was written")).expect("YAML");
    let page = page("deploy/SECURITY.md");
    for field in ["healthzBindAddress", "metricsBindAddress"] {
        let default = written[field].as_str().expect("an address");
        let row = format!("| `{field}`, {default} unless set |");
        assert!(page.contains(&row), "the page has no {row:?}");
    }
}
