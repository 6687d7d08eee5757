//! `kube-proxy changes` and what it reads: entries about Services, repairs, refusals and the API server; the log at each verbosity.
//!
//! `BLESS=1` writes the golden outputs again.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api::cluster::Cluster;
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::{Namespace, run};
use crate::support::notifications;
use crate::support::objects::{node, service, service_cidr, slice};
use crate::support::plan::Family::V4;
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, binary, config, config_in};
use crate::support::world::World;

const PATIENCE: Duration = Duration::from_secs(30);
const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];

/// A Service of one IPv4 address, so that each change is one object and one sync.
fn service_of(name: &str, n: u8) -> Value {
    service("shop", name).cluster_ip(V4.cluster_ip(n)).port("http", Proto::Tcp, 80).json()
}

pub(crate) fn slice_of(name: &str, which: &[u8]) -> Value {
    let endpoints: Vec<_> = which.iter().map(|n| V4.endpoint(*n)).collect();
    slice("shop", name, &format!("{name}-1"), &endpoints, &PORTS)
}

pub(crate) fn cluster() -> Vec<Value> {
    vec![node(), service_cidr(), service_of("web", 1), slice_of("web", &[0, 2])]
}

/// The command's output.
pub(crate) fn changes(node: &Namespace, arguments: &[&str]) -> Output {
    node.command(binary()).arg("changes").args(arguments).output().expect("the command can be run")
}

/// The entries, of which each has to be there.
fn entries(node: &Namespace, arguments: &[&str]) -> Vec<Value> {
    let output = changes(node, &[arguments, &["-o", "json"]].concat());
    let text = String::from_utf8(output.stdout).expect("text");
    let page: Value = serde_json::from_str(&text).unwrap_or_else(|error| {
        panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr));
    });
    page["changes"].as_array().expect("a list").clone()
}

/// Waits for an entry.
pub(crate) fn wait_for(node: &Namespace, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + PATIENCE;
    loop {
        let entries = entries(node, &[]);
        if let Some(entry) = entries.iter().rfind(|entry| is_it(entry)) {
            return entry.clone();
        }
        assert!(Instant::now() < end, "no entry: {what}: {}", json!(entries));
        thread::sleep(Duration::from_millis(50));
    }
}

/// Removes an element that leads packets to the Service `web`.
fn tamper(node: &Namespace, layout: Layout) {
    let map = match layout {
        Layout::Maps => "services",
        Layout::Chains | Layout::ServiceChains => "KUBE-SERVICES",
    };
    let frontend = format!("{{ {} . tcp . 80 }}", V4.cluster_ip(1));
    run(node.command("nft").args(["delete", "element", "ip", "kube-proxy", map, &frontend]));
}

/// A table with its times, numbers of syncs and of processes replaced, and runs of spaces as one.
fn normalised(table: &str) -> String {
    let is_number = |word: &str| word.chars().all(|c| c.is_ascii_digit());
    let lines = table.lines().map(|line| {
        let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        if words[0] != "TIME" {
            "TIMESTAMP".clone_into(&mut words[0]);
            "N".clone_into(&mut words[1]);
        }
        for at in 1..words.len() {
            if ["us", "ms", "s"].contains(&&*words[at]) && words[at - 1].chars().all(|c| c.is_ascii_digit() || c == '.')
            {
                "N".clone_into(&mut words[at - 1]);
                "UNIT".clone_into(&mut words[at]);
            }
            if words[at - 1] == "(pid" && is_number(words[at].trim_end_matches(')')) {
                "N)".clone_into(&mut words[at]);
            }
        }
        words.join(" ") + "\n"
    });
    lines.collect()
}

/// Compares with `tests/data/inspect/NAME`.
fn assert_golden(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/inspect").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, found).expect("the golden output can be written");
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(found, expected, "{}: BLESS=1 writes it again", path.display());
}

test_in_each_layout!(what_a_proxy_did_is_told_with_cause_and_result);

fn what_a_proxy_did_is_told_with_cause_and_result(layout: Layout) {
    let world = World::new();
    let node = &world.node;
    let mut proxy = Proxy::start(node, &config_in(layout), &cluster());
    proxy.apply(&[slice_of("web", &[0, 3])]);
    let mut local = service_of("web", 1);
    local["spec"]["internalTrafficPolicy"] = json!("Local");
    proxy.apply(&[local]);
    proxy.apply(&[service_of("api", 2)]);
    proxy.apply(&[slice_of("api", &[1])]);
    proxy.delete(&[slice_of("api", &[1])]);
    proxy.delete(&[service_of("api", 2)]);
    notifications::have_writers_named(node);
    tamper(node, layout);
    let repair = wait_for(node, "a repair", |entry| entry["kind"] == "repair");
    proxy.wait_until_quiet();

    let first = &entries(node, &[])[0];
    assert_eq!(
        (&first["kind"], &first["trigger"]["kind"], &first["services"]),
        (&json!("sync"), &json!("start"), &json!(1))
    );

    let web = entries(node, &["--service", "shop/web"]);
    let [replaced, policy, repaired] = &web[..] else { panic!("{}", json!(web)) };
    let (old, new) = (format!("{}:8080", V4.endpoint(2)), format!("{}:8080", V4.endpoint(3)));
    assert_eq!(replaced["trigger"], json!({ "kind": "slice", "object": "shop/web-1" }));
    assert_eq!((&replaced["action"], &replaced["result"]), (&json!("changed"), &json!("committed")));
    let endpoints = json!({
        "before": 2, "after": 2, "added": [new], "moreAdded": 0, "removed": [old], "moreRemoved": 0,
    });
    assert_eq!(replaced["endpoints"], endpoints);
    assert!(replaced["latencySeconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{replaced}");
    let field = json!([{ "field": "internalTrafficPolicy", "before": "Cluster", "after": "Local" }]);
    assert_eq!((&policy["fields"], &policy["trigger"]["kind"]), (&field, &json!("service")));
    // Endpoint 3 is on another node.
    assert_eq!(policy["endpoints"]["removed"], json!([new]));
    assert_eq!(*repaired, repair);
    assert_eq!((&repair["services"], &repair["by"][0]["name"]), (&json!(["shop/web"]), &json!("nft")));
    assert!(repair["by"][0]["pid"].as_u64().is_some_and(|pid| pid > 0), "{repair}");

    let api = entries(node, &["--service=shop/api"]);
    let told = |entry: &Value| {
        (entry["action"].clone(), entry["fronts"][0]["before"].clone(), entry["fronts"][0]["after"].clone())
    };
    let expected = [
        (json!("added"), Value::Null, json!("refused")),
        (json!("changed"), json!("refused"), json!("served")),
        (json!("changed"), json!("served"), json!("refused")),
        (json!("removed"), json!("refused"), Value::Null),
    ];
    assert_eq!(api.iter().map(told).collect::<Vec<_>>(), expected);
    assert_eq!(api[0]["fronts"][0]["address"], json!(V4.cluster_ip(2)));

    let table = changes(node, &[]);
    assert!(table.status.success(), "{table:?}");
    assert_golden(&format!("changes.{}", layout.name()), &normalised(&String::from_utf8_lossy(&table.stdout)));
    let none = changes(node, &["--since", "0s"]);
    assert_eq!(String::from_utf8_lossy(&none.stdout), "No changes.\n");
}

#[test]
fn the_api_server_that_is_lost_and_found_is_told() {
    let cluster = Cluster::new(crate::support::apiserver::Format::Protobuf);
    let _proxy = cluster.proxy();
    cluster.server.wait_for_watches();
    cluster.server.close();
    let is = |state: &'static str| move |entry: &Value| entry["kind"] == "apiServer" && entry["state"] == state;
    let lost = wait_for(&cluster.node, "lost", is("lost"));
    assert!(lost["error"].as_str().is_some_and(|error| error.contains("127.0.0.1")), "{lost}");
    // Every command that looks at the node says so, and not what it knows from before alone (Q10).
    let said = |words: &[&str]| {
        let output = cluster.node.command(binary()).args(words).output().expect("the binary can be run");
        String::from_utf8_lossy(&output.stdout).contains("The API server has not been heard since 20")
    };
    let question: &[&str] = &["explain", "--from", "203.0.113.7", "--to", "10.96.0.1:80"];
    let commands: [&[&str]; 3] = [&["services"], &["top", "--once", "--interval", "100ms"], question];
    commands.iter().for_each(|words| assert!(said(words), "{words:?}"));
    cluster.server.open();
    let found = wait_for(&cluster.node, "found", is("found"));
    assert!(found["lastedSeconds"].as_f64().is_some_and(|seconds| seconds > 0.0), "{found}");
    commands.iter().for_each(|words| assert!(!said(words), "{words:?}"));
    let all = entries(&cluster.node, &[]).iter().filter(|entry| entry["kind"] == "apiServer").count();
    assert_eq!(all, 2, "once, not for each kind of objects");
}

/// A reader that follows; killed when it is dropped.
struct Follower {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Follower {
    fn start(node: &Namespace) -> Self {
        let arguments = ["changes", "--follow", "-o", "json", "--service", "shop/web"];
        let mut child = node.command(binary()).args(arguments).stdout(Stdio::piped()).spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("standard output was piped"));
        Self { child, lines }
    }

    /// The next entry; the test hangs without one, and is ended from outside.
    fn next(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // It may have ended.
        let _ended = self.child.kill();
        let _waited = self.child.wait();
    }
}

// A name that nothing has is an error with near names (Q6).
#[test]
fn a_service_that_nothing_has_is_an_error_with_near_names() {
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config(), &cluster());
    let output = changes(&world.node, &["--service", "shop/wbe"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(2), &[][..]), "{errors}");
    assert!(errors.contains("no Service shop/wbe in the tables") && errors.contains("mean shop/web?"), "{errors}");
    // One that is there without a change of its own is none.
    let output = changes(&world.node, &["--service", "shop/web"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_reader_that_follows_sees_what_happens_also_after_a_restart() {
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config(), &cluster());
    proxy.apply(&[slice_of("web", &[0, 3])]);
    let mut follower = Follower::start(&world.node);
    let added = |entry: &Value| entry["endpoints"]["added"].clone();
    let endpoint = |n| json!([format!("{}:8080", V4.endpoint(n))]);
    assert_eq!(added(&follower.next()), endpoint(3), "what there is");
    proxy.apply(&[slice_of("web", &[0, 1])]);
    assert_eq!(added(&follower.next()), endpoint(1), "what comes");
    assert!(proxy.stop().success());
    proxy.launch();
    proxy.apply(&[slice_of("web", &[0, 2])]);
    assert_eq!(added(&follower.next()), endpoint(2), "what another process does");
}

#[test]
fn without_a_proxy_it_says_how_to_name_the_address_and_ends_with_2() {
    let node = Namespace::new("node");
    let output = changes(&node, &[]);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    for part in ["no kube-proxy answers at 127.0.0.1:10249", "--metrics-bind-address", "--config", "refused"] {
        assert!(error.contains(part), "{part:?} is not in {error}");
    }
    assert_eq!(changes(&node, &["--since", "soon"]).status.code(), Some(2));
}

/// The first line of the answer to a GET from a namespace.
fn status(from: &Namespace, address: &str) -> String {
    let answer = from.enter(|| {
        let mut stream = TcpStream::connect(address).expect("the server listens");
        write!(stream, "GET /debug/changes HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("it answers");
        answer
    });
    answer.lines().next().unwrap_or_default().to_owned()
}

#[test]
fn the_page_answers_other_hosts_only_with_profiling() {
    // The page of changes is for the node, and for others with profiling (P5).
    let world = World::new();
    let address = format!("{}:10249", V4.node());
    for (profiling, from_elsewhere) in [(false, "HTTP/1.1 404 Not Found"), (true, "HTTP/1.1 200 OK")] {
        let mut config = config();
        config["metricsBindAddress"] = json!("0.0.0.0:10249");
        config["enableProfiling"] = json!(profiling);
        let proxy = Proxy::start(&world.node, &config, &cluster());
        for local in ["127.0.0.1:10249", &address] {
            assert_eq!(status(&world.node, local), "HTTP/1.1 200 OK", "{local}");
        }
        assert_eq!(status(&world.client, &address), from_elsewhere);
        let found = changes(&world.node, &["--config", proxy.config_path().to_str().expect("a path of text")]);
        assert!(found.status.success(), "{found:?}");
    }
}

#[test]
fn the_log_has_changed_services_from_2_on_endpoints_from_4_on_and_commands_from_6_on() {
    let world = World::new();
    for (verbosity, services, endpoints, commands) in
        [(0, 0, 0, false), (1, 0, 0, false), (2, 1, 0, false), (4, 1, 2, false), (6, 1, 2, true)]
    {
        let mut config = config();
        config["logging"] = json!({ "verbosity": verbosity });
        let mut proxy = Proxy::start(&world.node, &config, &cluster());
        proxy.apply(&[slice_of("web", &[0, 3])]);
        let log = proxy.log();
        let count = |text: &str| log.lines().filter(|line| line.contains(text)).count();
        let told = format!("endpoints 2 -> 2: +{}:8080 -{}:8080", V4.endpoint(3), V4.endpoint(2));
        assert_eq!(count(&told), services, "-v={verbosity}: {log}");
        assert_eq!(count("Endpoint added") + count("Endpoint removed"), endpoints, "-v={verbosity}: {log}");
        assert_eq!(count("add element ip kube-proxy endpoints {") > 0, commands, "-v={verbosity}: {log}");
    }
}
