//! `deploy/kubectl-kubeproxy`, the plugin that runs a command on every node: what it prints first, its exit codes, JSON, archives and limits.
//!
//! A script stands in for kubectl: it lists the pods of a file, and for `exec` runs the script of the pod. No cluster, no root.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// Lists the pods, and runs the script of a pod, whose exit code it reports as kubectl does.
const KUBECTL: &str = r#"#!/bin/sh
here=$(dirname "$0")
echo "$*" >>"$here/calls"
case " $* " in
*" get pods "*) exec cat "$here/pods" ;;
*" exec "*)
	while [ "$1" != -- ]; do pod=$1; shift; done
	shift
	if [ -e "$here/$pod.unreachable" ]; then cat "$here/$pod.unreachable" >&2; exit 1; fi
	if [ -e "$here/$pod.hangs" ]; then exec sleep 600; fi
	"$here/$pod" "$@"
	code=$?
	[ $code = 0 ] || { echo "command terminated with exit code $code" >&2; exit $code; }
	;;
esac
"#;

/// A folder with the stand-in and the scripts of pods.
struct Cluster {
    folder: TempDir,
}

impl Cluster {
    /// A cluster of nodes, each with what its pod does.
    fn new(nodes: &[(&str, &str)]) -> Self {
        let cluster = Self { folder: TempDir::new().expect("a temporary directory can be made") };
        cluster.script("kubectl", KUBECTL);
        for (node, does) in nodes {
            cluster.script(&format!("proxy-{node}"), &format!("#!/bin/sh\n{does}\n"));
        }
        let pods: String = nodes.iter().map(|(node, _)| format!("{node} proxy-{node}\n")).collect();
        cluster.file("pods", &pods);
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(&self, name: &str, content: &str) {
        fs::write(self.path(name), content).expect("a file can be written");
    }

    fn script(&self, name: &str, content: &str) {
        self.file(name, content);
        fs::set_permissions(self.path(name), fs::Permissions::from_mode(0o755)).expect("it can be made executable");
    }

    /// Exit code, standard output and standard error of the plugin.
    fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/kubectl-kubeproxy");
        let path = std::env::var("PATH").expect("there is a PATH");
        let mut command = Command::new(script);
        command.args(arguments).current_dir(self.folder.path());
        command.env("PATH", format!("{}:{path}", self.folder.path().display()));
        let output = command.output().expect("the script can be run");
        let text = |bytes| String::from_utf8(bytes).expect("the output is text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    fn calls(&self) -> String {
        fs::read_to_string(self.path("calls")).unwrap_or_default()
    }
}

#[test]
fn what_differs_is_printed_first_and_what_is_common_once() {
    let cluster =
        Cluster::new(&[("a", "echo yes"), ("b", "echo no >&2; exit 1"), ("c", "echo yes"), ("d", "echo yes")]);
    let (code, stdout, stderr) = cluster.run(&["services", "shop/web", "a b"]);
    let expected = "1 of 4 nodes differ: b\n\n== b\n(exit code 1)\nno\n\n== 3 of 4 nodes: a, c, d\nyes\n";
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (Some(1), expected, ""));
    assert!(
        cluster.calls().contains("exec -n kube-system proxy-b -- kube-proxy services shop/web a b\n"),
        "{}",
        cluster.calls()
    );
    assert!(cluster.calls().contains("get pods -n kube-system -l k8s-app=kube-proxy "), "{}", cluster.calls());

    cluster.script("proxy-b", "#!/bin/sh\necho yes\n");
    let (code, stdout, _) = cluster.run(&["--context", "east", "-n", "other", "-l", "a=b", "check"]);
    assert_eq!((code, stdout.as_str()), (Some(0), "== the same on 4 of 4 nodes: a, b, c, d\nyes\n"));
    let calls = cluster.calls();
    assert!(calls.contains("--context=east get pods -n other -l a=b "), "{calls}");
    assert!(calls.contains("--context=east exec -n other proxy-b -- kube-proxy check\n"), "{calls}");
}

#[test]
fn a_node_that_cannot_be_reached_or_hangs_is_named_and_the_others_are_asked() {
    let cluster = Cluster::new(&[("a", "echo \"$3\""), ("b", ""), ("c", "")]);
    cluster.file("proxy-b.unreachable", "Error from server: dial tcp: \"refused\"\n");
    cluster.file("proxy-c.hangs", "");
    let start = Instant::now();
    let (code, stdout, stderr) = cluster.run(&["--timeout", "1", "services", "x"]);
    assert!(start.elapsed() < Duration::from_secs(60), "the limit counts");
    assert_eq!((code, stdout.as_str()), (Some(2), "== the same on 1 of 3 nodes: a; not reached: b, c\nx\n"));
    let expected = "cannot reach the proxy of node b: Error from server: dial tcp: \"refused\"\n\
                    cannot reach the proxy of node c: no end within 1 seconds\n";
    assert_eq!(stderr, expected);

    let (code, stdout, _) = cluster.run(&["--timeout", "1", "services", "{\"k\":\n1}", "-o", "json"]);
    let documents: Vec<Value> = serde_json::Deserializer::from_str(&stdout)
        .into_iter()
        .collect::<Result<_, _>>()
        .unwrap_or_else(|error| panic!("{error}: {stdout}"));
    let expected = [
        json!({"node": "a", "exitCode": 0, "output": {"k": 1}}),
        json!({"node": "b", "exitCode": 2, "error": "Error from server: dial tcp: \"refused\""}),
        json!({"node": "c", "exitCode": 2, "error": "no end within 1 seconds"}),
    ];
    assert_eq!((code, documents.as_slice()), (Some(2), expected.as_slice()));

    let (code, stdout, _) = cluster.run(&["--node", "a", "services", "x"]);
    assert_eq!((code, stdout.as_str()), (Some(0), "== the same on 1 of 1 nodes: a\nx\n"));
}

#[test]
fn what_is_wrong_on_the_command_line_is_said() {
    let cluster = Cluster::new(&[("a", "echo x")]);
    for (arguments, says) in [
        (&["--node", "b", "services"][..], "cannot find a pod with k8s-app=kube-proxy in kube-system on node b:"),
        (
            &["--node", "a", "--node", "b", "services"],
            "cannot find a pod with k8s-app=kube-proxy in kube-system on node b",
        ),
        (&["--parallel", "0", "services"], "--parallel and --timeout take a number from 1"),
        (&["-o", "json"], "options of a command stand behind the command"),
        (&["--node"], "give a value behind it"),
        (&[], "Usage: "),
    ] {
        let (code, stdout, stderr) = cluster.run(arguments);
        assert!(
            code == Some(2) && stdout.is_empty() && stderr.contains(says),
            "{arguments:?}: {code:?} {stdout}{stderr}"
        );
    }
    let (code, stdout, _) = cluster.run(&["--help"]);
    assert!(
        code == Some(0) && stdout.starts_with("Usage: ") && stdout.lines().all(|line| line.len() <= 140),
        "{stdout}"
    );
}

#[test]
fn no_more_nodes_are_asked_at_once_than_is_allowed() {
    let names: Vec<String> = (0..7).map(|n| format!("n{n}")).collect();
    let does = "at=$(dirname \"$0\")/busy; echo + >>\"$at\"; sleep 0.3; echo - >>\"$at\"";
    let cluster = Cluster::new(&names.iter().map(|name| (name.as_str(), does)).collect::<Vec<_>>());
    let (code, stdout, _) = cluster.run(&["--parallel", "3", "check"]);
    assert!(code == Some(0) && stdout.starts_with("== the same on 7 of 7 nodes"), "{stdout}");
    let busy = fs::read_to_string(cluster.path("busy")).expect("the pods wrote it");
    let numbers = busy.lines().scan(0, |now, line| {
        *now += if line == "+" { 1 } else { -1 };
        Some(*now)
    });
    assert_eq!(numbers.max(), Some(3), "{busy}");
}

#[test]
fn a_bundle_of_each_node_is_a_file_byte_for_byte() {
    let cluster = Cluster::new(&[
        ("a", "printf '\\000\\377a'; echo \"$*\" >&2"),
        ("b", "echo why >&2; exit 2"),
        ("c", "printf c"),
    ]);
    let (code, stdout, stderr) = cluster.run(&["bundle", "there", "--config", "/c"]);
    assert_eq!((code, stdout.as_str()), (Some(2), "there/kube-proxy-a.tar.gz\nthere/kube-proxy-c.tar.gz\n"));
    assert_eq!(stderr, "cannot bundle node b: why\n");
    assert_eq!(fs::read(cluster.path("there/kube-proxy-a.tar.gz")).expect("a file"), b"\0\xffa");
    assert!(!cluster.path("there/kube-proxy-b.tar.gz").exists());
    assert!(cluster.calls().contains("-- kube-proxy bundle - --config /c\n"), "{}", cluster.calls());
    let (code, stdout, _) = cluster.run(&["--node", "c", "bundle"]);
    assert_eq!((code, stdout.as_str()), (Some(0), "kube-proxy-bundles/kube-proxy-c.tar.gz\n"));
}

// A terminal shows both streams together: the output of the nodes comes first, and the nodes that did not answer come last.
#[test]
fn nodes_that_are_not_reached_are_named_in_the_first_line_and_explained_in_the_last() {
    let cluster = Cluster::new(&[("a", ""), ("b", "echo no; exit 1"), ("c", "echo yes"), ("d", "echo yes")]);
    cluster.file("proxy-a.unreachable", "Error from server: dial tcp: refused\n");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/kubectl-kubeproxy");
    let together = |words: &str| {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("\"$0\" {words} 2>&1")).arg(&script).current_dir(cluster.folder.path());
        let path = std::env::var("PATH").expect("there is a PATH");
        command.env("PATH", format!("{}:{path}", cluster.folder.path().display()));
        String::from_utf8(command.output().expect("the script can be run").stdout).expect("the output is text")
    };
    let why = "node a: Error from server: dial tcp: refused\n";
    assert_eq!(
        together("check"),
        format!(
            "1 of 3 nodes differ: b; not reached: a\n\n== b\n(exit code 1)\nno\n\n== 2 of 3 nodes: c, d\nyes\n\
             cannot reach the proxy of {why}"
        )
    );
    cluster.script("proxy-b", "#!/bin/sh\necho archive\n");
    let archives: Vec<String> = ["b", "c", "d"].map(|node| format!("f/kube-proxy-{node}.tar.gz\n")).to_vec();
    assert_eq!(together("bundle f"), format!("{}cannot bundle {why}", archives.concat()));
}
