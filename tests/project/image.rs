//! The image: what is in it, and that it runs as the DaemonSet runs it, from a read-only root with one capability.
//!
//! Takes the file system that `deploy/image-root` lays out around the test binary; needs root and bubblewrap. No container engine.

#![allow(clippy::unwrap_used, reason = "a test may stop at what it did not expect")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use crate::objects;
use crate::support::netns::{Namespace, run};
use crate::support::proxy::{binary, config};
use serde_json::{Value, json};
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(20);
/// CAP_NET_ADMIN and nothing else, as `/proc/PID/status` writes it.
const NET_ADMIN_ONLY: &str = "CapEff:\t0000000000001000";

fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn image_root() -> (TempDir, PathBuf) {
    let directory = TempDir::new().unwrap();
    let root = directory.path().join("root");
    run(Command::new(project().join("deploy/image-root")).arg("--binary").arg(binary()).arg("--out").arg(&root));
    (directory, root)
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn documents(file: &str) -> Vec<Value> {
    objects::documents(&format!("deploy/base/{file}"))
}

#[test]
fn the_image_holds_the_binary_its_libraries_and_their_licences() {
    let (_directory, root) = image_root();
    let names: BTreeSet<String> =
        files(&root).iter().map(|file| file.strip_prefix(&root).unwrap().display().to_string()).collect();
    let is_library = |name: &&String| name.starts_with("lib") && name.contains(".so");
    let libraries: Vec<_> = names.iter().filter(is_library).collect();
    let is_licence =
        |name: &&String| ["usr/share/doc/", "usr/share/common-licenses/"].iter().any(|folder| name.starts_with(folder));
    let licences = names.iter().filter(is_licence).count();
    assert!(names.contains("usr/local/bin/kube-proxy"));
    for needed in ["libc.so.6", "libmnl.so.0", "libnftnl.so.11", "ld-linux"] {
        assert!(libraries.iter().any(|name| name.contains(needed)), "{needed} is not in {libraries:?}");
    }
    assert_eq!(names.len(), 2 + libraries.len() + licences, "nothing else: {names:?}");
    // A link, so that the image has the binary once.
    assert_eq!(fs::read_link(root.join("go-runner")).unwrap(), Path::new("usr/local/bin/kube-proxy"));
    for licence in
        ["doc/libnftnl11/copyright", "doc/kube-proxy-nft/LICENSE", "common-licenses/GPL-2", "common-licenses/GPL-3"]
    {
        assert!(names.contains(&format!("usr/share/{licence}")), "{licence}");
    }
}

/// The proxy of an image, in a namespace; killed when dropped.
struct Container(Child);

impl Container {
    /// Starts `kube-proxy ARGS` from the root, read-only, with CAP_NET_ADMIN only and no way to more, and a folder with its files.
    fn start(node: &Namespace, root: &Path, mounted: &Path, args: &[&str]) -> Self {
        let mut command = contained(node, root);
        command.arg("--ro-bind").arg(mounted).args(["/var/lib/kube-proxy", "/usr/local/bin/kube-proxy"]).args(args);
        Self(command.spawn().unwrap())
    }

    /// The status file of the process that is the proxy: the last of the chain from `ip netns exec` through bwrap.
    fn status(&self) -> String {
        let mut pid = self.0.id();
        loop {
            let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
            match children.split_whitespace().next() {
                Some(child) => pid = child.parse().unwrap(),
                None => return fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default(),
            }
        }
    }
}

/// The start of a command that runs a program from the root, read-only, as process 1 with CAP_NET_ADMIN only.
fn contained(node: &Namespace, root: &Path) -> Command {
    let mut command = node.command("bwrap");
    command.args(["--die-with-parent", "--unshare-pid", "--as-pid-1", "--cap-drop", "ALL"]);
    command.args(["--cap-add", "CAP_NET_ADMIN", "--ro-bind"]).arg(root).args(["/", "--proc", "/proc"]);
    command
}

impl Drop for Container {
    fn drop(&mut self) {
        // It may have ended on its own; then there is nothing to kill.
        let _ended = self.0.kill().and_then(|()| self.0.wait());
    }
}

#[test]
fn it_runs_from_the_image_root_with_one_capability() {
    let (directory, root) = image_root();
    let mounted = directory.path().join("mounted");
    fs::create_dir_all(mounted.join("manifests")).unwrap();
    fs::write(mounted.join("config.conf"), config().to_string()).unwrap();
    for example in fs::read_dir(project().join("examples")).unwrap().map(|entry| entry.unwrap().path()) {
        if example.extension().is_some_and(|extension| extension == "yaml") {
            fs::copy(&example, mounted.join("manifests").join(example.file_name().unwrap())).unwrap();
        }
    }
    let node = Namespace::new("image");
    let flags = ["--config=/var/lib/kube-proxy/config.conf", "--manifests=/var/lib/kube-proxy/manifests"];
    let container = Container::start(&node, &root, &mounted, &flags);
    let end = Instant::now() + PATIENCE;
    let services = || run(node.command("nft").args(["list", "ruleset"]));
    while !services().contains("map services {") {
        assert!(Instant::now() < end, "no rules; the proxy: {}", container.status());
        thread::sleep(Duration::from_millis(50));
    }
    let status = container.status();
    assert!(status.contains(NET_ADMIN_ONLY), "{status}");
    // What the proxy did is asked for from the same image, with as little.
    let (code, output) = look(&node, &root, &["changes", "-o", "json"]);
    let page: Value = serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"));
    assert_eq!((code, page["changes"].as_array().map(Vec::is_empty)), (Some(0), Some(false)), "{output}");
    let (code, output) = look(&node, &root, &["changes", "--service", "default/echoo"]);
    assert!(code == Some(2) && output.contains("no Service default/echoo"), "{code:?}: {output}");
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
}

/// A command that looks at a node, from the root with CAP_NET_ADMIN only: its exit code and what it printed.
fn look(node: &Namespace, root: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut look = node.command("bwrap");
    look.args(["--die-with-parent", "--cap-drop", "ALL", "--cap-add", "CAP_NET_ADMIN", "--ro-bind"]).arg(root);
    look.args(["/", "--proc", "/proc", "/usr/local/bin/kube-proxy"]).args(arguments);
    let output = look.output().unwrap();
    (output.status.code(), String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap())
}

// The commands need one capability (Q8).
#[test]
fn commands_that_look_at_a_node_run_from_the_image_root_with_one_capability() {
    let (_directory, root) = image_root();
    let objects = ["--manifests", "/var/lib/kube-proxy", "--hostname-override", "here", "-o", "json"];
    let flow = ["--from", "192.0.2.2", "--to", "10.96.0.10:53/udp"];
    for layout in ["maps", "chains", "service-chains"] {
        let node = Namespace::new("look");
        node.ip(&["link set lo up", "addr add 192.0.2.2/24 dev lo"]);
        run(node.command("nft").arg("-f").arg(project().join("nft/rulesets").join(layout).join("kube-dns.nft")));
        for (code, arguments, text) in [
            (0, &["services", "-o", "json"][..], "kube-system/kube-dns:dns"),
            (0, &[&["explain"], &flow[..], &["-o", "json"]].concat(), "\"verdict\": \"translated\""),
            (0, &["top", "--once", "--interval", "100ms", "-o", "json"], "kube-system/kube-dns:dns"),
            (
                1,
                &[&["trace"], &flow[..], &["--for", "100ms"]].concat(),
                "no first packet from 192.0.2.2 to 10.96.0.10:53",
            ),
            (0, &[&["check"], &objects[..]].concat(), "\"ok\": true"),
            (1, &[&["verify"], &objects[..]].concat(), "\"equal\": false"),
        ] {
            let (found, output) = look(&node, &root, arguments);
            assert!(found == Some(code) && output.contains(text), "{layout}: {arguments:?}: {found:?}, {output}");
        }
    }
}

// kops starts the proxy like this; the file is a mount of its own there.
#[test]
fn a_static_pod_of_kops_starts_from_the_image_root_and_its_log_is_in_the_file_and_on_standard_output() {
    let (directory, root) = image_root();
    let log = directory.path().join("kube-proxy.log");
    fs::write(&log, "").unwrap();
    // Mounts need places in a root that is read-only.
    fs::create_dir_all(root.join("var/log")).unwrap();
    fs::write(root.join("var/log/kube-proxy.log"), "").unwrap();
    let node = Namespace::new("kops");
    let mut command = contained(&node, &root);
    command.arg("--bind").arg(&log).args(["/var/log/kube-proxy.log", "/go-runner"]);
    command.args(["--log-file=/var/log/kube-proxy.log", "--also-stdout", "/usr/local/bin/kube-proxy", "--version"]);
    let output = command.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && printed.starts_with("Kubernetes v"), "{output:?}");
    assert_eq!(fs::read_to_string(&log).unwrap(), printed);
}

#[test]
fn the_daemon_set_gives_what_the_image_test_gives() {
    let set = &documents("daemonset.yaml")[0];
    let pod = &set["spec"]["template"]["spec"];
    let container = &pod["containers"][0];
    assert_eq!(container["command"][0], "/usr/local/bin/kube-proxy");
    let context = &container["securityContext"];
    assert_eq!(context["capabilities"], json!({"drop": ["ALL"], "add": ["NET_ADMIN"]}));
    assert_eq!(context["readOnlyRootFilesystem"], true);
    assert_eq!(context["allowPrivilegeEscalation"], false);
    assert_eq!(pod["hostNetwork"], true);
    let init = &pod["initContainers"][0];
    assert_eq!(init["args"], json!(["--init-only"]));
    assert_eq!(init["command"], container["command"]);
    assert_eq!(init["image"], container["image"]);
}

#[test]
fn for_a_rolling_update_with_surge_two_pods_of_a_node_share_no_host_port() {
    let mut set = documents("daemonset.yaml").remove(0);
    let text = fs::read_to_string(project().join("deploy/surge/kustomization.yaml")).unwrap();
    let overlay: Value = serde_saphyr::from_str(&text).unwrap();
    assert_eq!(overlay["patches"][0]["target"], json!({"kind": set["kind"], "name": set["metadata"]["name"]}));
    let patch: Vec<Value> = serde_saphyr::from_str(overlay["patches"][0]["patch"].as_str().unwrap()).unwrap();
    for change in &patch {
        let path = change["path"].as_str().unwrap();
        let present = set.pointer_mut(path).unwrap_or_else(|| panic!("the DaemonSet has no {path}"));
        match change["op"].as_str() {
            Some("replace") => *present = change["value"].clone(),
            Some("remove") => *present = Value::Null,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(set["spec"]["updateStrategy"]["rollingUpdate"], json!({"maxSurge": "10%", "maxUnavailable": 0}));
    let containers = set["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    assert!(containers.iter().all(|container| container["ports"].is_null()));
}

#[test]
fn the_daemon_set_tells_kubelet_and_prometheus_what_they_need() {
    let pod = &documents("daemonset.yaml")[0]["spec"]["template"]["spec"];
    for container in [&pod["initContainers"][0], &pod["containers"][0]] {
        for what in ["cpu", "memory"] {
            assert!(container["resources"]["requests"][what].is_string(), "{what} of {container}");
        }
    }
    let probe = &pod["containers"][0]["livenessProbe"];
    assert_eq!(probe["httpGet"], json!({ "path": "/livez", "port": 10256 }));
    let patience = ["periodSeconds", "failureThreshold"].map(|field| probe[field].as_u64().unwrap());
    assert!(patience[0] * patience[1] >= 30, "a proxy that is busy for a moment is not ended: {probe}");
    assert_eq!(
        pod["containers"][0]["ports"],
        json!([{ "name": "metrics", "containerPort": 10249, "protocol": "TCP" }])
    );
}

#[test]
fn each_probe_asks_the_page_that_is_for_it() {
    let container = &documents("daemonset.yaml")[0]["spec"]["template"]["spec"]["containers"][0];
    for (probe, path) in [("startupProbe", "/readyz"), ("livenessProbe", "/livez"), ("readinessProbe", "/readyz")] {
        assert_eq!(container[probe]["httpGet"], serde_json::json!({ "path": path, "port": 10256 }), "{probe}");
    }
    // An API server may be away for long while a node boots, and a restart does not bring it back.
    let patience =
        ["periodSeconds", "failureThreshold"].map(|field| container["startupProbe"][field].as_u64().unwrap());
    assert!(patience[0] * patience[1] >= 1800, "{patience:?}");
}

#[test]
fn the_role_is_the_one_that_every_cluster_has() {
    let binding = &documents("rbac.yaml")[1];
    assert_eq!(binding["kind"], "ClusterRoleBinding");
    assert_eq!(binding["roleRef"]["name"], "system:node-proxier");
    assert_eq!(binding["subjects"][0]["name"], documents("rbac.yaml")[0]["metadata"]["name"]);
}
