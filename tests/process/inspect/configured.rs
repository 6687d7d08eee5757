//! The commands without flags, beside a proxy that is configured in no default way: each uses what the proxy uses, and a flag wins or is
//! refused.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json as value};

use super::{json, run};
use crate::support::apiserver::{ApiServer, Scheme, wait_for};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::mixed;
use crate::support::netns::{self, Namespace, run_with_input};
use crate::support::nft;
use crate::support::objects::service;
use crate::support::plan::{CLUSTER_CIDR, Family, NODE};
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, config, config_in};
use crate::support::upstream;

const METRICS: &str = "127.0.0.1:20249";
/// What the health page of the proxy reports, and no table shows.
const LOST: &str = "shop/collide does not get 10.96.0.1:80/TCP, shop/web has it";

/// A configuration with other addresses, and with another number of maps.
fn other_than_default(layout: Layout) -> Value {
    let mut config = config_in(layout);
    config["metricsBindAddress"] = value!(METRICS);
    config["healthzBindAddress"] = value!("127.0.0.1:20256");
    config["nftables"]["endpointMaps"] = value!(4);
    config["nftables"]["masqueradeAll"] = value!(true);
    config
}

/// The cluster, with a Service that does not get an address which it asks for.
fn objects() -> Vec<Value> {
    let collide = service("shop", "collide").cluster_ips(8).port("http", Proto::Tcp, 80);
    let mut objects = mixed::cluster();
    objects.push(collide.external_ip(Family::V4.cluster_ip(1)).json());
    objects
}

fn wait_until_synced(proxy: &Proxy<'_>) {
    wait_for("the first sync", || {
        let page = proxy.try_get(METRICS, "/metrics")?;
        let times = page.lines().filter(|line| line.starts_with("kubeproxy_sync_proxy_rules_last_timestamp_seconds{"));
        (times.filter(|line| !line.ends_with(" 0")).count() == 2).then_some(())
    });
}

fn start<'a>(node: &'a Namespace, layout: Layout, wrapper: &[&str]) -> Proxy<'a> {
    let mut proxy = Proxy::prepare(node, &other_than_default(layout), &objects());
    proxy.set_wrapper(wrapper);
    proxy.spawn();
    wait_until_synced(&proxy);
    proxy
}

/// Asserts the exit code, and that the output has this text; gives the output.
fn assert_says(node: &Namespace, line: &str, code: i32, text: &str) -> String {
    let (found, stdout, stderr) = run(node, &line.split(' ').collect::<Vec<_>>());
    let output = stdout + &stderr;
    assert!(found == Some(code) && output.contains(text), "{line}: {found:?}, {text:?} is not in {output}");
    output
}

// Without flags each command uses what the running proxy uses (Q11).
test_in_each_layout!(without_flags_each_command_uses_what_the_running_proxy_uses);
fn without_flags_each_command_uses_what_the_running_proxy_uses(layout: Layout) {
    let node = Namespace::new("configured");
    let proxy = start(&node, layout, &[]);
    assert_says(&node, "services", 1, LOST);
    assert_says(&node, "explain --from 10.244.1.99 --to 10.96.0.1:80", 0, LOST);
    assert_says(&node, "top --once --interval 100ms", 1, LOST);
    assert_says(&node, "changes", 0, "first sync of ");
    assert_says(&node, "verify", 0, "hold what they should");
    let name = format!("that of the running kube-proxy (pid {}: ", proxy.pid());
    let text = assert_says(&node, "check", 0, &name);
    let shown = format!("valid; node {NODE}, layout {}", layout.field());
    assert!(text.contains(&shown) && text.contains("have no problem"), "{text}");

    // A flag wins.
    assert_says(&node, "services --healthz-address 127.0.0.1:1", 1, "No kube-proxy answers at 127.0.0.1:1: ");
    assert_says(&node, "changes --metrics-bind-address 127.0.0.1:1", 2, "no kube-proxy answers at 127.0.0.1:1");
    // These manifests have a Node, and none of this name.
    let nobody = "there is no Node nobody: node ports listen nowhere by default";
    assert_says(&node, "check --hostname-override=nobody", 1, nobody);
    assert_says(&node, "verify --hostname-override=nobody", 2, nobody);
    // Only the source of the objects is another one: the rest is as the running proxy has it.
    let directory = tempfile::TempDir::new().expect("a temporary directory can be made");
    let elsewhere = format!("verify --manifests {}", directory.path().display());
    assert_says(&node, &elsewhere, 1, "differ in");
    netns::run(node.command("cp").arg("-r").arg(proxy.manifests().path().join(".")).arg(directory.path()));
    assert_says(&node, &elsewhere, 0, "hold what they should");

    // A flag that asks for another form of the tables is one sentence.
    let other = layout.other().flags().join(" ");
    let text = assert_says(&node, &format!("verify {other}"), 1, " the tables ip kube-proxy and ip6 kube-proxy");
    assert!(text.lines().count() == 1 && text.contains("and --"), "{text}");
    let text = assert_says(&node, "verify --endpoint-maps=2", 1, "share 4 maps, and --endpoint-maps says 2: ");
    assert_eq!(text.lines().count(), 1, "{text}");
    let (code, says) = match layout {
        Layout::Maps => (2, "cannot use --endpoint-chains: in layout maps no endpoint has a chain"),
        Layout::Chains => (1, "and --endpoint-chains says none"),
        Layout::ServiceChains => (0, "hold what they should"),
    };
    assert_says(&node, "verify --endpoint-chains=false", code, says);

    // A flag without effect is refused.
    let file = proxy.config_path();
    let ignored = format!("verify --config {} --kubeconfig /k", file.display());
    assert_says(&node, &ignored, 2, "--kubeconfig has no effect beside --config: set clientConnection.kubeconfig");
    assert_says(&node, "verify --cleanup", 2, "--cleanup is a job of the proxy");
    assert_says(&node, "check --write-config-to=/x", 2, "--write-config-to is a job of the proxy");
    assert_says(&node, &format!("changes --config {} --metrics-bind-address ::1", file.display()), 2, "cannot be used");
}

#[test]
fn a_stopped_proxy_says_how_it_is_configured_all_the_same() {
    let node = Namespace::new("configured");
    let proxy = start(&node, Layout::Maps, &[]);
    proxy.signal(Signal::STOP);
    let begin = Instant::now();
    assert_says(&node, "verify", 0, "hold what they should");
    assert_says(&node, "services shop/web", 1, "The kube-proxy at 127.0.0.1:20256 gives no answer within 3s");
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    proxy.signal(Signal::CONT);
}

#[test]
fn files_of_another_mount_namespace_are_read_or_named() {
    let node = Namespace::new("configured");
    // The proxy sees its directory as it is now, in a file system of its own.
    let script = "D=\"${3%/*}\"; cp -a \"$D\" \"$D.copy\" && mount -t tmpfs none \"$D\" && cp -a \"$D.copy/.\" \"$D\" && \
                  rm -r \"$D.copy\" && exec \"$@\"";
    let proxy = start(&node, Layout::Chains, &["unshare", "--mount", "sh", "-c", script, "sh"]);
    std::fs::write(proxy.config_path(), "kind: other").expect("the file that the proxy does not see can be written");
    assert_says(&node, "services", 1, LOST);
    assert_says(&node, "changes", 0, "first sync of ");
    let why = "is in the file system of the running kube-proxy (pid ";
    let text = assert_says(&node, "verify", 2, why);
    assert!(text.contains("kubectl exec") && text.contains("--manifests DIR"), "{text}");
    let (code, report) = json(&node, &["check"]);
    let of = |result: &str| {
        let checks = report["checks"].as_array().into_iter().flatten();
        checks.filter(|check| check["result"] == result).map(|check| check["text"].to_string()).collect::<String>()
    };
    assert!(code == Some(2) && of("unknown").contains(why) && of("ok").contains("layout chains"), "{report:#}");
    assert_says(
        &node,
        &format!("verify --manifests {}", proxy.manifests().path().display()),
        0,
        "hold what they should",
    );
}

#[test]
fn the_kubeconfig_of_the_running_proxy_is_used() {
    let node = Namespace::new("configured");
    let server = node.enter(|| ApiServer::start(Scheme::Https));
    server.apply(&mixed::cluster());
    let kubeconfig = server.kubeconfig(&server.certified_user("system:kube-proxy"));
    let mut proxy = Proxy::with_api(&node, &other_than_default(Layout::Maps), &kubeconfig);
    proxy.spawn();
    wait_until_synced(&proxy);
    assert_says(&node, "verify", 0, "hold what they should");
    let text = assert_says(&node, "check", 0, "list services: allowed");
    assert!(text.contains("https://127.0.0.1:"), "{text}");
    proxy.kill();
    assert_says(
        &node,
        "verify",
        2,
        "no kube-proxy of this program runs in this network namespace, and no flag says how",
    );
}

// Without a running proxy the tables tell in which form they are (Q11).
test_in_each_layout!(the_tables_tell_layout_and_number_of_maps);
fn the_tables_tell_layout_and_number_of_maps(layout: Layout) {
    let node = Namespace::new("configured");
    let mut config = config_in(layout);
    config["nftables"]["endpointMaps"] = value!(4);
    let mut proxy = Proxy::start(&node, &config, &mixed::cluster());
    proxy.kill();
    let line = format!(
        "verify --proxy-mode=nftables --hostname-override={NODE} --cluster-cidr={CLUSTER_CIDR} --manifests {}",
        proxy.manifests().path().display()
    );
    assert_says(&node, &line, 0, "hold what they should");
    run_with_input(node.command("nft").args(["-f", "-"]), "delete element ip kube-proxy cluster-ips { 10.96.0.1 }");
    assert_says(&node, &line, 1, "differ in 1 thing");
    assert_says(&node, &format!("{line} --endpoint-maps=1"), 1, "share 4 maps, and --endpoint-maps says 1: ");
    proxy.configure(&config_in(layout.other()));
    let file = proxy.config_path();
    let text = assert_says(&node, &format!("verify --config {}", file.display()), 1, " says ");
    assert!(text.lines().count() == 1 && text.contains(&format!("and {} says ", file.display())), "{text}");
}

// Tables of upstream's kube-proxy are named, and nothing is compared (Q11).
#[test]
fn tables_of_upstreams_kube_proxy_are_named_and_nothing_is_compared() {
    let node = Namespace::new("configured");
    nft::load(&node, &upstream::start());
    let line = format!("verify --hostname-override={NODE} --manifests examples");
    let text = assert_says(&node, &line, 1, "upstream's kube-proxy in mode nftables wrote the tables ip kube-proxy");
    assert_eq!(text.lines().count(), 1, "{text}");
    let (code, found) = json(&node, &line.split(' ').collect::<Vec<_>>());
    assert_eq!(
        (code, &found["equal"], found["differences"].as_array().map(Vec::len)),
        (Some(1), &value!(false), Some(1))
    );
}

/// Answers as upstream's kube-proxy in mode iptables does, in the namespace.
fn serve_as_upstream(node: &Namespace, address: &str) {
    let listener = node.enter(|| TcpListener::bind(address).expect("the port is free"));
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut request = [0; 1024];
            let count = stream.read(&mut request).unwrap_or_default();
            let body = match String::from_utf8_lossy(&request[..count]).split(' ').nth(1) {
                Some("/proxyMode") => "iptables",
                Some("/configz") => r#"{"kubeproxy.config.k8s.io":{"nftables":{"syncPeriod":"30s"}}}"#,
                _ => r#"{"lastUpdated":"2026-11-24","currentTime":"2026-11-24","nodeEligible":true}"#,
            };
            let _sent = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        }
    });
}

/// A process of the name that upstream's kube-proxy has, in the namespace; it ends with its input.
struct Namesake(Child);

impl Namesake {
    fn start(node: &Namespace) -> Self {
        let mut command = node.command("bash");
        command.args(["-c", "exec -a /usr/local/bin/kube-proxy cat"]).stdin(Stdio::piped());
        let child = command.spawn().expect("bash runs");
        wait_for("its name", || {
            let name = std::fs::read_to_string(format!("/proc/{}/cmdline", child.id())).ok()?;
            name.starts_with("/usr/local").then_some(())
        });
        Self(child)
    }

    fn sign(&self) -> String {
        format!("process {}: /usr/local/bin/kube-proxy", self.0.id())
    }
}

impl Drop for Namesake {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ended = self.0.wait();
    }
}

// A kube-proxy that runs and holds no lock is named, with whose it is (Q11).
#[test]
fn check_names_a_kube_proxy_of_upstream_that_runs() {
    let node = Namespace::new("configured");
    let line = "check --hostname-override=demo-node --manifests examples";
    let upstream = Namesake::start(&node);
    let sign = upstream.sign();
    assert_says(&node, line, 0, &format!("another kube-proxy runs on this node: {sign}"));
    for address in ["127.0.0.1:10249", "127.0.0.1:10256"] {
        serve_as_upstream(&node, address);
    }
    let text = format!("upstream's kube-proxy in mode iptables runs on this node: {sign}; http://127.0.0.1:10249");
    let said = assert_says(&node, line, 0, &text);
    assert!(said.contains("deploy/INSTALL.md") && !said.contains("another program listens"), "{said}");
}

#[test]
fn check_names_another_kube_proxy_beside_the_one_that_holds_the_lock() {
    let node = Namespace::new("configured");
    let proxy = Proxy::start(&node, &config(), &mixed::cluster());
    let other = Namesake::start(&node);
    let said = assert_says(&node, "check", 0, &format!("another kube-proxy runs on this node: {}", other.sign()));
    assert!(!said.contains(&format!("process {}: ", proxy.pid())), "the one that holds the lock is no other: {said}");
}

// Paths of the running proxy that are relative are so to its working directory and not to that of the command (Q11).
#[test]
fn relative_paths_of_the_running_proxy_are_found_from_another_folder() {
    let node = Namespace::new("relative");
    let folder = tempfile::tempdir().expect("a temporary directory can be made");
    std::fs::create_dir(folder.path().join("m")).expect("a folder can be made");
    for (number, object) in mixed::cluster().iter().enumerate() {
        std::fs::write(folder.path().join(format!("m/{number}.json")), object.to_string())
            .expect("a file can be written");
    }
    let mut command = node.command(crate::support::proxy::binary());
    command.current_dir(folder.path()).args(["--manifests", "m", "--hostname-override", "test-node"]);
    let log = std::fs::File::create(folder.path().join("log")).expect("a file can be made");
    let mut proxy = command.stderr(log).spawn().expect("the proxy starts");
    wait_for("the rules", || (run(&node, &["services", "shop/web"]).0 == Some(0)).then_some(()));
    let (code, stdout, stderr) = run(&node, &["verify"]);
    proxy.kill().and_then(|()| proxy.wait().map(drop)).expect("the proxy ends");
    assert_eq!(code, Some(0), "{stdout}{stderr}");
}

// A proxy that has no objects yet holds no lock and writes nothing: each command finds it all the same and says what it waits for (Q10, Q11).
test_in_each_layout!(a_proxy_that_waits_for_its_first_objects_is_found);
fn a_proxy_that_waits_for_its_first_objects_is_found(layout: Layout) {
    let node = Namespace::new("waits");
    let server = node.enter(|| ApiServer::start(Scheme::Https));
    server.apply(&mixed::cluster());
    let kubeconfig = server.kubeconfig(&server.certified_user("system:kube-proxy"));
    let mut proxy = Proxy::with_api(&node, &other_than_default(layout), &kubeconfig);
    proxy.spawn();
    wait_until_synced(&proxy);
    proxy.kill();
    server.close();
    proxy.spawn();
    wait_for("the health page", || proxy.try_get("127.0.0.1:20256", "/livez"));
    let waits = format!("kube-proxy (pid {}) waits for ", proxy.pid());
    let why = " of the API server since 20";

    // The rules of the earlier process still serve.
    let text = assert_says(&node, "services shop/web", 1, &waits);
    assert!(text.contains("served") && text.contains(why), "{text}");
    assert_says(&node, "explain --from 10.244.1.99 --to 10.96.0.1:80", 0, &format!("warning: {waits}"));
    let running = format!("that of the running kube-proxy (pid {}: ", proxy.pid());
    let assert_check = || {
        let text = assert_says(&node, "check", 1, &waits);
        assert!(text.contains(&running) && text.contains(&format!("layout {}", layout.field())), "{text}");
        for wrong in ["no kube-proxy of this program runs", "answers as kube-proxy does", "another program listens"] {
            assert!(!text.contains(wrong), "{wrong}: {text}");
        }
    };
    assert_check();
    let text = assert_says(&node, "verify --timeout 1", 2, &waits);
    assert!(text.contains("not all objects have come from the API server"), "{text}");

    run_with_input(node.command("nft").args(["-f", "-"]), "delete table ip kube-proxy\ndelete table ip6 kube-proxy");
    assert_check();
    let none = "no kube-proxy of this program has written the tables ip kube-proxy and ip6 kube-proxy yet";
    let text = assert_says(&node, "verify", 1, none);
    assert!(text.contains(&waits) && !text.contains("add table"), "{text}");
    for line in ["services", "explain --from 10.244.1.99 --to 10.96.0.1:80", "top --once"] {
        assert_says(&node, line, 2, &waits);
    }
    let at = tempfile::tempdir().expect("a temporary directory can be made");
    let line = format!("bundle {}", at.path().join("b.tar.gz").display());
    assert_says(&node, &line, 0, "problems.txt: ");
    let mut unpack = std::process::Command::new("tar");
    unpack.args(["-xzf", "b.tar.gz", "--strip-components=1"]).current_dir(at.path());
    assert!(unpack.status().expect("tar runs").success());
    for file in ["node.txt", "problems.txt", "check.txt", "verify.txt", "services.txt"] {
        let text = std::fs::read_to_string(at.path().join(file)).expect("a file of the bundle");
        assert!(text.contains(&waits), "{file}: {text}");
    }

    server.open();
    wait_for("the rules", || (run(&node, &["services", "shop/web"]).0 == Some(0)).then_some(()));
    let text = assert_says(&node, "check", 0, "a kube-proxy of this program runs: pid ");
    assert!(!text.contains("waits for"), "{text}");
}

// Without a running proxy `verify` says that no proxy has written rules, and prints no command that would make an empty table.
#[test]
fn verify_without_tables_says_that_no_proxy_has_written_them() {
    let node = Namespace::new("bare");
    let line = format!("verify --hostname-override={NODE} --manifests examples");
    let none = "no kube-proxy of this program has written the tables ip kube-proxy and ip6 kube-proxy yet";
    let text = assert_says(&node, &line, 1, none);
    assert!(text.contains("start it") && text.lines().count() == 1, "{text}");
}

// A proxy on manifests that have other Nodes is not ready, and says why (Q10).
#[test]
fn a_name_that_no_node_of_the_manifests_has_is_said() {
    let node = Namespace::new("nobody");
    let mut config = config();
    config["hostnameOverride"] = value!("nobody");
    let proxy = Proxy::start(&node, &config, &mixed::cluster());
    let nobody = "there is no Node nobody: node ports listen nowhere by default";
    let page = wait_for("the first sync", || {
        Some(proxy.get("127.0.0.1:10256", "/readyz")).filter(|page| page.contains("Node"))
    });
    assert!(page.starts_with("HTTP/1.1 503 ") && page.contains(nobody), "{page}");
    assert!(proxy.log().contains("The Node does not exist"), "{}", proxy.log());
    for (line, code) in [("check", 1), ("services", 1), ("verify", 2)] {
        assert_says(&node, line, code, nobody);
    }
}

// People copy the output of commands into tickets, so it has no password of a command line.
#[test]
fn the_password_of_a_master_is_in_no_output() {
    let node = Namespace::new("password");
    let (master, log) = ("--master=https://user:sekret@127.0.0.1:9", tempfile::tempfile().expect("a file can be made"));
    let mut command = node.command(crate::support::proxy::binary());
    command.args([master, "--hostname-override=here", "--cluster-cidr=10.244.0.0/16"]).stderr(log);
    let mut proxy = command.spawn().expect("the proxy starts");
    wait_for("the proxy", || run(&node, &["check"]).1.contains("waits for").then_some(()));
    let lines = ["check", "verify --timeout 1", "check -o json", "services", "verify --timeout 1 --kubeconfig=/no"];
    let texts = lines.map(|line| run(&node, &line.split(' ').collect::<Vec<_>>()));
    let foreign = Namespace::new("password");
    let given = run(&foreign, &["verify", master, "--timeout=1", "--hostname-override=x", "--cluster-cidr=10.0.0.0/8"]);
    let wrong = run(&foreign, &["check", "--master=https://user:sekret@[", "--hostname-override=x"]);
    proxy.kill().and_then(|()| proxy.wait().map(drop)).expect("the proxy ends");
    assert!(texts[0].1.contains("--master=https://***@127.0.0.1:9"), "{texts:?}");
    for (_, stdout, stderr) in texts.iter().chain([&given, &wrong]) {
        assert!(!stdout.contains("sekret") && !stderr.contains("sekret"), "{stdout}{stderr}");
    }
}
