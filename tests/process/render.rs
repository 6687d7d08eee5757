//! `kube-proxy render`: it needs the manifests and nothing else, its exit code shows whether all of them were good, and, like every
//! other output of the program, ends quietly when its reader goes away.
//!
//! Root and bubblewrap, for hosts that differ in all but the files.

use std::fs::{self, File};
use std::io::{self, PipeWriter, Write as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::layout::Layout;
use crate::support::netns::{Namespace, run};
use crate::support::objects::{node, service, slice, slices};
use crate::support::plan::Family;
use crate::support::probe::Proto;
use crate::support::proxy::binary;
use serde_json::{Value, json};
use tempfile::TempDir;

/// What a shell shows for a program that SIGPIPE ended.
const READER_GONE: i32 = 141;

/// An address of the machine that no manifest knows.
const OF_THE_MACHINE: &str = "203.0.113.9";

/// A node and a Service whose node port remembers clients: its rules hold the addresses that accept node ports.
fn cluster() -> Vec<Value> {
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(30_080);
    let mut objects = vec![node(), web.client_ip_affinity(60).json()];
    objects.extend(slices("shop", "web", &[0, 2], &[("http", Proto::Tcp, 8080)]));
    objects
}

fn renamed(mut node: Value, name: &str) -> Value {
    node["metadata"]["name"] = json!(name);
    node
}

/// Manifests, one file an object.
fn directory(objects: &[Value]) -> TempDir {
    let directory = TempDir::new().expect("a temporary directory can be made");
    for (n, object) in objects.iter().enumerate() {
        let path = directory.path().join(format!("{n}.json"));
        fs::write(path, object.to_string()).expect("a manifest can be written");
    }
    directory
}

/// `kube-proxy render --manifests DIR`, without a name for the node.
fn render(manifests: &TempDir) -> Command {
    let mut command = Command::new(binary());
    command.args(["render", "--proxy-mode=nftables", "--manifests"]).arg(manifests.path());
    command
}

fn outcome(command: &mut Command) -> Output {
    command.output().expect("the binary can be run")
}

fn stdout(output: &Output) -> &str {
    str::from_utf8(&output.stdout).expect("text")
}

fn stderr(output: &Output) -> &str {
    str::from_utf8(&output.stderr).expect("text")
}

/// A pipe whose reader has gone.
fn closed_pipe() -> PipeWriter {
    io::pipe().expect("a pipe can be made").1
}

#[test]
fn nothing_but_the_files_decides_what_is_rendered() {
    // A machine with an address of its own, and one without devices, processes, settings or network.
    let manifests = directory(&cluster());
    let machine = Namespace::new("render");
    machine.ip(&[format!("addr add {OF_THE_MACHINE}/32 dev lo")]);
    let program = binary();
    let arguments = ["render", "--proxy-mode=nftables", "--flowtable=auto", "--manifests"];
    let there = run(machine.command(&program).args(arguments).arg(manifests.path()));
    let mut bare = Command::new("bwrap");
    bare.args(["--unshare-all", "--die-with-parent"]);
    for library in ["/lib", "/lib64", "/usr/lib"].into_iter().filter(|folder| Path::new(folder).exists()) {
        bare.args(["--ro-bind", library, library]);
    }
    bare.arg("--ro-bind").args([&program, Path::new("/kube-proxy")]);
    bare.arg("--ro-bind").args([manifests.path(), Path::new("/manifests")]);
    let here = run(bare.arg("/kube-proxy").args(arguments).arg("/manifests"));
    assert!(!there.contains(OF_THE_MACHINE), "an address of this machine is in {there}");
    for family in Family::ALL {
        assert!(there.contains(&family.node().to_string()), "the Node's {family:?} address is not in {there}");
    }
    assert_eq!(here, there);
}

#[test]
fn render_opens_no_socket_and_does_not_ask_for_the_machines_name() {
    let manifests = directory(&cluster());
    let directory = TempDir::new().expect("a temporary directory can be made");
    let trace = directory.path().join("trace");
    let mut traced = Command::new("strace");
    traced.args(["-f", "-o"]).arg(&trace).arg(binary());
    run(traced.args(["render", "--proxy-mode=nftables", "--flowtable=auto", "--manifests"]).arg(manifests.path()));
    let calls = fs::read_to_string(&trace).expect("strace wrote it");
    assert!(calls.contains("openat("), "strace saw no file being opened: {calls}");
    for call in ["socket(", "uname(", "kernel/hostname", "/proc/sys", "/sys/class"] {
        let found: Vec<&str> = calls.lines().filter(|line| line.contains(call)).collect();
        assert!(found.is_empty(), "{found:?}");
    }
}

#[test]
fn without_a_name_the_only_node_is_the_one_to_render_for() {
    let of = |objects: &[Value], arguments: &[&str]| outcome(render(&directory(objects)).args(arguments));
    let mut objects = cluster();
    let [v4, v6] = Family::ALL.map(|family| format!("{}, ", family.node()));
    let mentions = |text: &str| text.contains(v4.trim_end_matches(", ")) && text.contains(v6.trim_end_matches(", "));

    let one = of(&objects, &[]);
    assert!(one.status.success() && mentions(stdout(&one)), "{one:?}");
    assert_eq!(stderr(&one), "");

    let mut other = renamed(node(), "another");
    other["status"]["addresses"] = json!([{ "type": "InternalIP", "address": "192.0.2.77" }]);
    objects.push(other);
    let two = of(&objects, &[]);
    assert_eq!(two.status.code(), Some(1), "{two:?}");
    assert!(two.stdout.is_empty(), "{two:?}");
    let node_name = objects[0]["metadata"]["name"].as_str().expect("a name").to_owned();
    for part in ["2 Nodes", "another", &node_name, "--hostname-override"] {
        assert!(stderr(&two).contains(part), "{part}: {two:?}");
    }
    let chosen = of(&objects, &["--hostname-override=another"]);
    assert!(chosen.status.success() && stdout(&chosen).contains("192.0.2.77"), "{chosen:?}");
    assert!(!mentions(stdout(&chosen)), "{chosen:?}");

    let none = of(&objects[1..objects.len() - 1], &[]);
    assert!(none.status.success() && stdout(&none).contains("shop/web:http"), "{none:?}");
    assert!(!mentions(stdout(&none)), "{none:?}");
}

#[test]
fn a_problem_in_a_manifest_ends_render_with_1_after_the_rest() {
    let manifests = directory(&cluster());
    let good = outcome(&mut render(&manifests));
    assert_eq!((good.status.code(), stderr(&good)), (Some(0), ""), "{good:?}");
    for (content, says) in [
        ("{ \"apiVersion\": ", "bad.json, document 1"),
        (
            r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "a", "name": "b"}, "spec": {"clusterIP": "None", "x": 1}}"#,
            "spec.x",
        ),
    ] {
        fs::write(manifests.path().join("bad.json"), content).expect("a manifest can be written");
        let bad = outcome(&mut render(&manifests));
        assert_eq!(bad.status.code(), Some(1), "{says}: {bad:?}");
        assert_eq!(stdout(&bad), stdout(&good), "{says}: what the other manifests ask for");
        assert!(stderr(&bad).contains(says), "{says}: {bad:?}");
        assert!(stderr(&bad).contains("1 problem in the manifests"), "{says}: {bad:?}");
    }
}

#[test]
fn strict_makes_an_error_of_whatever_is_not_used_as_it_was_written() {
    let strict = |directory: &TempDir, more: &[&str]| outcome(render(directory).arg("--strict").args(more));
    let manifests = directory(&cluster());
    let good = strict(&manifests, &[]);
    assert_eq!((good.status.code(), stderr(&good)), (Some(0), ""), "{good:?}");
    // A field that no object has, an object that is too large, and two that claim one address.
    let mut unknown = cluster();
    unknown[1]["spec"]["shiny"] = json!(true);
    let found = strict(&directory(&unknown), &[]);
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    assert!(stderr(&found).contains("spec.shiny: unknown field"), "{found:?}");
    let left_out = ["--service-elements-limit=1"];
    let lenient = outcome(render(&manifests).args(left_out));
    assert_eq!(lenient.status.code(), Some(0), "{lenient:?}");
    let found = strict(&manifests, &left_out);
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    assert!(stderr(&found).contains("Service shop/web: left out"), "{found:?}");
    assert!(stderr(&found).contains("1 warning, and --strict allows none"), "{found:?}");
    let mut claimed = cluster();
    claimed.push(service("shop", "taker").cluster_ips(1).port("http", Proto::Tcp, 80).json());
    let found = strict(&directory(&claimed), &[]);
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    assert!(stderr(&found).contains("both claim"), "{found:?}");
    let config = TempDir::new().expect("a temporary directory can be made");
    let file = config.path().join("config.yaml");
    let text = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: nftables\nshiny: 1\n";
    fs::write(&file, text).expect("the configuration can be written");
    let found = outcome(render(&manifests).arg("--config").arg(&file).arg("--strict"));
    assert_eq!(found.status.code(), Some(1), "{found:?}");
    assert!(stderr(&found).contains("unknown field shiny"), "{found:?}");
}

/// The output of a command that reads this.
fn fed(command: &mut Command, input: &str) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary can be run");
    // A program that refuses its arguments ends before it reads.
    let _written = child.stdin.take().expect("a pipe").write_all(input.as_bytes());
    child.wait_with_output().expect("it ends")
}

fn kube_proxy(arguments: &[&str]) -> Command {
    let mut command = Command::new(binary());
    command.args(arguments);
    command
}

#[test]
fn standard_input_and_single_files_are_rendered_as_a_directory_is() {
    let manifests = directory(&cluster());
    let expected = outcome(&mut render(&manifests));
    let text: String = cluster().iter().map(|object| format!("---\n{object}\n")).collect();
    let given = ["render", "--manifests", "-"];
    let piped = fed(&mut kube_proxy(&given), &text);
    assert_eq!((stdout(&piped), stderr(&piped)), (stdout(&expected), ""), "{piped:?}");
    let mut files = kube_proxy(&["render"]);
    for n in 0..cluster().len() {
        files.arg("--manifests").arg(manifests.path().join(format!("{n}.json")));
    }
    let files = outcome(&mut files);
    assert_eq!((stdout(&files), stderr(&files)), (stdout(&expected), ""), "{files:?}");

    let bad = fed(&mut kube_proxy(&given), &format!("{text}---\n{{\"kind\": \"Service\"}}\n"));
    assert_eq!(bad.status.code(), Some(1), "{bad:?}");
    let document = cluster().len() + 1;
    assert!(stderr(&bad).contains(&format!("standard input, document {document}: apiVersion: missing")), "{bad:?}");
    let empty = fed(&mut kube_proxy(&given), "");
    assert_eq!((empty.status.code(), stdout(&empty)), (Some(1), ""), "{empty:?}");
    assert!(stderr(&empty).contains("cannot read standard input: it is empty"), "{empty:?}");

    let same = fed(render(&manifests).args(["--diff", "-"]), &text);
    assert_eq!((same.status.code(), stdout(&same), stderr(&same)), (Some(0), "no change\n", ""));
    let twice = fed(kube_proxy(&given).args(["--diff", "-"]), &text);
    assert_eq!(twice.status.code(), Some(2), "{twice:?}");
    assert!(stderr(&twice).contains("cannot read standard input twice"), "{twice:?}");
    let followed = fed(&mut kube_proxy(&["--hostname-override=n", "--manifests", "-"]), "");
    assert_eq!(followed.status.code(), Some(1), "{followed:?}");
    assert!(stderr(&followed).contains("cannot follow --manifests -"), "{followed:?}");
}

#[test]
fn the_examples_of_the_project_are_rendered_without_a_word_also_when_no_mode_is_set() {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    for mode in [&[][..], &["--proxy-mode=iptables"]] {
        let mut command = kube_proxy(&["render", "--strict", "--manifests"]);
        let output = outcome(command.arg(&examples).args(mode));
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""), "{mode:?}");
    }
}

#[test]
fn a_service_without_a_cluster_ip_is_rendered_with_one_and_an_assertion_can_be_made() {
    let mut objects = cluster();
    let spec = objects[1]["spec"].as_object_mut().expect("a Service");
    ["clusterIP", "clusterIPs"].into_iter().for_each(|field| drop(spec.remove(field)));
    let manifests = directory(&objects);
    let output = outcome(render(&manifests).arg("--strict"));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let line = stderr(&output).trim_end();
    let ip = line.strip_prefix("shop/web has no clusterIP: rendered with ").expect("this is the line");
    let ip = ip.split(' ').next().expect("an address");
    assert!(stdout(&output).contains(&format!("{ip} . tcp . 80 comment \"shop/web:http\"")), "{output:?}");
    let explain = |layout: &str, to: &str, expect: &[&str]| {
        let mut command = kube_proxy(&["explain", "--from", "203.0.113.7", "--to", to, layout]);
        outcome(command.arg("--manifests").arg(manifests.path()).args(expect)).status.code()
    };
    for [layout, _] in Layout::ALL.map(Layout::flags) {
        let to = format!("{ip}:80");
        assert_eq!(explain(&layout, &to, &[]), Some(0));
        for (expect, code) in [
            ("translated", 0),
            ("translated:shop/web", 0),
            ("translated:shop/web:http", 0),
            ("dropped,translated", 0),
            ("translated:shop/we", 1),
            ("dropped", 1),
            ("dropped,refused:shop/web", 1),
            ("eaten", 2),
        ] {
            assert_eq!(explain(&layout, &to, &["--expect", expect]), Some(code), "{layout} {expect}");
        }
        assert_eq!(explain(&layout, &format!("{ip}:81"), &[]), Some(1));
        assert_eq!(explain(&layout, &format!("{ip}:81"), &["--expect=dropped,refused"]), Some(0));
    }
    assert_eq!(
        explain("--ruleset-layout=maps", &format!("{ip}:80"), &["--node=another"]),
        Some(2),
        "there is no such Node"
    );
    fs::write(manifests.path().join("bad.json"), "{").expect("a manifest can be written");
    assert_eq!(explain("--ruleset-layout=maps", &format!("{ip}:80"), &[]), Some(2), "a part cannot be read");
}

/// Runs `kube-proxy explain --manifests`. Returns the exit code, and standard output followed by standard error.
fn explained(manifests: &TempDir, layout: Layout, from: &str, to: &str) -> (Option<i32>, String) {
    let [layout, _] = layout.flags();
    let mut command = kube_proxy(&["explain", "--from", from, "--to", to, &layout, "--manifests"]);
    let output = outcome(command.arg(manifests.path()));
    (output.status.code(), stdout(&output).to_owned() + stderr(&output))
}

// Slices name the pods of endpoints, those of headless Services too (Q1).
#[test]
fn a_pod_is_found_by_its_name_in_the_slices_of_manifests() {
    let mut objects = cluster();
    for slice in objects.iter_mut().filter(|object| object["kind"] == "EndpointSlice") {
        slice["endpoints"][0]["targetRef"] = json!({ "kind": "Pod", "namespace": "shop", "name": "web-abc12" });
        slice["endpoints"][1]["targetRef"] = json!({ "kind": "VirtualMachine", "namespace": "shop", "name": "web-vm" });
    }
    let mut headless = slice("shop", "db", "db-1", &[Family::V4.endpoint(3)], &[("sql", Proto::Tcp, 5432)]);
    headless["metadata"]["labels"]["service.kubernetes.io/headless"] = json!("");
    headless["endpoints"][0]["targetRef"] = json!({ "kind": "Pod", "namespace": "shop", "name": "db-0" });
    objects.push(headless);
    let manifests = directory(&objects);
    for layout in Layout::ALL {
        for (from, to, line) in [
            ("shop/web-abc12", "shop/web", "10.244.1.10 (shop/web-abc12) -> 10.96.0.1:80/TCP"),
            ("shop/web-abc12", "[fd00:10:96::1]:80", "(shop/web-abc12) -> [fd00:10:96::1]:80/TCP"),
            ("shop/db-0", "shop/web:http", " (shop/db-0) -> 10.96.0.1:80/TCP"),
        ] {
            let (code, text) = explained(&manifests, layout, from, to);
            assert!(code == Some(0) && text.contains(line) && text.contains("TRANSLATED"), "{from} {to}: {text}");
        }
        let (code, text) = explained(&manifests, layout, "203.0.113.7", "shop/web-abc12:8080");
        let line = "203.0.113.7 -> 10.244.1.10:8080/TCP";
        assert!(code == Some(0) && text.contains(line) && text.contains("PASSED: no Service has"), "{text}");
        for pod in ["shop/web-abc13", "other/web-abc12", "shop/web-vm"] {
            let (code, text) = explained(&manifests, layout, pod, "shop/web");
            let namespace = pod.split('/').next().expect("a namespace");
            let why =
                format!("cannot find the address of pod {pod}: no EndpointSlice of namespace {namespace} names it");
            assert!(code == Some(2) && text.contains(&why), "{text}");
        }
    }
}

// Problems that a running proxy would report are reported in the same words (Q10).
#[test]
fn what_manifests_leave_out_and_who_loses_an_address_is_explained() {
    let mut objects = cluster();
    let late = service("shop", "web-2").cluster_ips(1).port("http", Proto::Tcp, 80);
    objects.push(late.json());
    objects.extend(slices("shop", "web-2", &[3], &[("http", Proto::Tcp, 8080)]));
    let mut big = service("shop", "big").cluster_ips(9);
    for n in 0..40 {
        big = big.port(&format!("p{n}"), Proto::Tcp, 1_000 + n);
    }
    objects.push(big.json());
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables",
        "nftables": { "serviceElementsLimit": 20 },
    });
    let manifests = directory(&objects);
    let file = tempfile::NamedTempFile::new().expect("a file can be made");
    fs::write(file.path(), config.to_string()).expect("the configuration can be written");
    for layout in Layout::ALL {
        let (code, text) = explained(&manifests, layout, "203.0.113.7", "shop/web-2");
        let why =
            "TRANSLATED: shop/web-2 does not get 10.96.0.1:80/TCP, shop/web has it; for now: shop/web:http sends it to";
        assert!(code == Some(1) && text.contains(why), "{text}");
        // A question about the Service that has the address is answered with a warning, as on a node.
        let (code, text) = explained(&manifests, layout, "203.0.113.7", "shop/web");
        assert!(code == Some(0) && text.contains("warning: shop/web-2 does not get 10.96.0.1:80/TCP"), "{text}");

        let [flag, _] = layout.flags();
        let mut command = kube_proxy(&["explain", "--from", "203.0.113.7", "--to", "shop/big:p7", &flag, "--config"]);
        let output = outcome(command.arg(file.path()).arg("--manifests").arg(manifests.path()));
        let text = stdout(&output);
        assert!(output.status.code() == Some(1) && text.contains(": shop/big is left out: "), "{output:?}");
        assert!(text.contains("the limit is 20 ") && !text.contains("TRANSLATED"), "{text}");
    }
}

/// A Service `NAMESPACE/NAME` with these ports (name, protocol, port of the endpoints) and endpoints at these addresses.
fn published(name: &str, ports: &[(&str, &str, u16)], n: u8, endpoints: &[&str]) -> [Value; 2] {
    let of_slice =
        |(name, protocol, port): &(&str, &str, u16)| json!({ "name": name, "port": port, "protocol": protocol });
    let of_slice: Vec<Value> = ports.iter().map(of_slice).collect();
    let (namespace, name) = name.split_once('/').expect("a namespace");
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "namespace": namespace, "name": name },
        "spec": { "clusterIP": format!("10.96.9.{n}"), "clusterIPs": [format!("10.96.9.{n}")], "ipFamilies": ["IPv4"],
            "ports": of_slice },
    });
    let endpoints: Vec<Value> =
        endpoints.iter().map(|ip| json!({ "addresses": [ip], "conditions": { "ready": true } })).collect();
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4", "endpoints": endpoints,
        "metadata": { "namespace": namespace, "name": format!("{name}-1"), "labels": { "kubernetes.io/service-name": name } },
        "ports": of_slice,
    });
    [service, slice]
}

// Chains have the names that dumps of iptables mode, as users published them, show for the same objects (F5).
#[test]
fn layout_chains_has_the_names_that_published_dumps_of_iptables_mode_have() {
    let dns = [("dns", "UDP", 53), ("dns-tcp", "TCP", 53), ("metrics", "TCP", 9153)];
    let objects = [
        published("kube-system/kube-dns", &dns, 1, &["10.200.192.74", "10.200.192.75"]),
        published("default/kubernetes", &[("https", "TCP", 6443)], 2, &["10.240.0.10"]),
        published("default/nginx", &[("80-80", "TCP", 80)], 3, &["10.42.0.199", "10.42.0.200"]),
        published("drds/mysql-read", &[("mysql", "TCP", 3306)], 4, &["10.1.2.3"]),
        published("demo/netutil-2", &[("tcp-8081", "TCP", 8081)], 5, &["10.1.2.4"]),
    ];
    let manifests = directory(&[&[node()][..], &objects.concat()].concat());
    let found = outcome(render(&manifests).arg("--ruleset-layout=chains"));
    let text = stdout(&found);
    for (chain, object) in [
        ("KUBE-SVC-TCOU7JCQXEZGVUNU", "kube-system/kube-dns:dns"),
        ("KUBE-SEP-X2ADUEUQITSVT76E", "kube-system/kube-dns:dns -> 10.200.192.74:53"),
        ("KUBE-SEP-YKQ3S3HS332IQ2RP", "kube-system/kube-dns:dns -> 10.200.192.75:53"),
        ("KUBE-SVC-ERIFXISQEP7F7OF4", "kube-system/kube-dns:dns-tcp"),
        ("KUBE-SVC-JD5MR3NA4I4DYORP", "kube-system/kube-dns:metrics"),
        ("KUBE-SVC-NPX46M4PTMTKRN6Y", "default/kubernetes:https"),
        ("KUBE-SEP-HFMBYHW5FO36NATD", "default/kubernetes:https -> 10.240.0.10:6443"),
        ("KUBE-SVC-OVTWZ4GROBJZO4C5", "default/nginx:80-80"),
        ("KUBE-SEP-ZGUCVTBPJNCW75NN", "default/nginx:80-80 -> 10.42.0.199:80"),
        ("KUBE-SEP-UIOQG3KKGTPDCR56", "default/nginx:80-80 -> 10.42.0.200:80"),
        ("KUBE-SVC-RVEVH2XMONK6VC5O", "drds/mysql-read:mysql"),
        ("KUBE-SVC-QUZXUNUIPD3MZETI", "demo/netutil-2:tcp-8081"),
    ] {
        let expected = format!("\tchain {chain} {{\n\t\tcomment \"{object}\"\n");
        assert!(text.contains(&expected), "{chain} of {object}: {text}");
    }
    assert!(text.contains("numgen random mod 2 vmap @KUBE-SVC-OVTWZ4GROBJZO4C5"), "{text}");
}

#[test]
fn diff_tells_what_other_manifests_change_by_service_and_as_commands() {
    let before = directory(&cluster());
    let diff = |after: &TempDir, more: &[&str]| outcome(render(&before).arg("--diff").arg(after.path()).args(more));
    let same = diff(&directory(&cluster()), &[]);
    assert_eq!((same.status.code(), stdout(&same), stderr(&same)), (Some(0), "no change\n", ""));
    let mut objects = vec![node(), service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).json()];
    objects.extend(slices("shop", "web", &[0, 3], &[("http", Proto::Tcp, 8080)]));
    let after = directory(&objects);
    for [layout, chains] in Layout::ALL.map(Layout::flags) {
        let found = diff(&after, &[&layout, &chains]);
        assert_eq!((found.status.code(), stderr(&found)), (Some(1), ""), "{found:?}");
        let text = stdout(&found);
        assert!(text.contains("shop/web:http gets the endpoint 10.244.2.11:8080"), "{text}");
        assert!(text.contains("shop/web:http loses the frontend node port 30080/tcp"), "{text}");
        assert!(text.contains("\n    delete element ip kube-proxy"), "{text}");
        let json = diff(&after, &[&layout, &chains, "-o", "json"]);
        let document: Value = serde_json::from_str(stdout(&json)).expect("JSON");
        assert_eq!((json.status.code(), &document["equal"]), (Some(1), &json!(false)));
        for difference in document["differences"].as_array().expect("a list") {
            assert!(difference["service"].is_null() || difference["service"].is_string(), "{difference}");
            assert!(difference["text"].is_string() && difference["command"].is_string(), "{difference}");
        }
    }
    let nowhere = outcome(render(&before).args(["--diff", "/no/such/directory"]));
    assert_eq!(nowhere.status.code(), Some(2), "{nowhere:?}");
    assert!(stderr(&nowhere).contains("/no/such/directory"), "{nowhere:?}");
}

/// The command lines that print something, and the same to a file that is standard output.
fn printing(manifests: &TempDir) -> Vec<Vec<String>> {
    let path = manifests.path().to_str().expect("a temporary path is text").to_owned();
    let lines: [&[&str]; 5] = [
        &["--help"],
        &["render", "--help"],
        &["--version"],
        &["--proxy-mode=nftables", "--hostname-override=n", "--write-config-to=/dev/stdout"],
        &["render", "--proxy-mode=nftables", "--manifests", &path],
    ];
    lines.map(|line| line.iter().map(ToString::to_string).collect()).to_vec()
}

#[test]
fn an_output_whose_reader_has_ended_gives_no_message() {
    let manifests = directory(&cluster());
    for arguments in printing(&manifests) {
        let output = outcome(Command::new(binary()).args(&arguments).stdout(closed_pipe()));
        assert_eq!((output.status.code(), stderr(&output)), (Some(READER_GONE), ""), "{arguments:?}");
    }
}

#[test]
fn an_output_that_cannot_be_written_is_an_error() {
    let manifests = directory(&cluster());
    for arguments in printing(&manifests) {
        let full = File::options().write(true).open("/dev/full").expect("/dev/full is there");
        let output = outcome(Command::new(binary()).args(&arguments).stdout(full));
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {output:?}");
        assert!(stderr(&output).contains("No space left on device"), "{arguments:?}: {output:?}");
        assert!(!stderr(&output).contains("panicked"), "{arguments:?}: {output:?}");
    }
}

#[test]
fn messages_that_no_program_reads_change_no_exit_code() {
    let manifests = directory(&cluster());
    let status = |command: &mut Command| {
        command.stdout(Stdio::null()).stderr(closed_pipe()).status().expect("the binary can be run").code()
    };
    assert_eq!(status(Command::new(binary()).arg("--no-such-flag")), Some(1));
    assert_eq!(status(&mut render(&manifests)), Some(0));
    fs::write(manifests.path().join("bad.json"), "{").expect("a manifest can be written");
    assert_eq!(status(&mut render(&manifests)), Some(1));
    // The log goes there as well; with this verbosity it begins with the flags.
    let node = Namespace::new("messages");
    assert_eq!(status(node.command(binary()).args(["--cleanup", "--hostname-override=n", "--v=1"])), Some(0));
}
