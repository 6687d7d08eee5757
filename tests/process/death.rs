//! The process is killed at random moments while its objects change all the time: the tables are always those after some prefix of
//! the events, never a mixture.
//!
//! One file holds the endpoints of all Services, and each version of it moves all of them to the addresses of the next state. The
//! events of a version come in the order of the slices' names, so a prefix of the events shows as slices of one state followed by
//! slices of an older one, and every slice is of one state as a whole. `KUBE_PROXY_KILLS` is the number of kills (20).

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use crate::support::figures::Figures;
use crate::support::objects::{self, node, service_cidr};
use crate::support::plan::Family;
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, config};
use crate::support::world::World;
use nft::TableName;
use nft::packed::ValueRef;
use node::kernel::{Kernel, Netfilter};
use serde_json::{Value, json};
use tempfile::TempDir;

const SERVICES: u8 = 8;
const ENDPOINTS: u16 = 3;
/// States differ in the third byte of the endpoints' addresses.
const STATES: u16 = 200;

fn service(n: u8) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "namespace": "demo", "name": format!("s{n}") },
        "spec": {
            "clusterIP": format!("10.96.1.{n}"), "clusterIPs": [format!("10.96.1.{n}"), format!("fd00:10:96::1:{n}")],
            "ipFamilies": ["IPv4", "IPv6"], "ports": [{ "name": "http", "port": 80 }],
        },
    })
}

fn slice(n: u8, family: &str, state: u16) -> Value {
    let address = |i: u16| match family {
        "IPv4" => format!("10.200.{state}.{i}"),
        _ => format!("fd00:200::{state:x}:{i:x}"),
    };
    let endpoints: Vec<Value> = (1..=ENDPOINTS).map(|i| json!({ "addresses": [address(i)] })).collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
        "metadata": {
            "namespace": "demo", "name": format!("s{n}-{}", family.to_lowercase()),
            "labels": { "kubernetes.io/service-name": format!("s{n}") },
        },
        "ports": [{ "name": "http", "port": 8080 }], "endpoints": endpoints,
    })
}

/// All slices in one state.
fn all(state: u16) -> Value {
    let slices = (0..SERVICES).flat_map(|n| ["IPv4", "IPv6"].map(|family| slice(n, family, state)));
    json!({ "apiVersion": "v1", "kind": "List", "items": slices.collect::<Vec<_>>() })
}

/// The states of the endpoints in the kernel by Service and family.
fn states(world: &World) -> States {
    let mut found = States::new();
    world.node.enter(|| {
        let mut kernel = Netfilter::open().expect("a socket");
        for (family, key_length, at) in [(nft::Family::Ip, 4, 2), (nft::Family::Ip6, 16, 12)] {
            let dump = kernel.read(&TableName::new(family, "kube-proxy")).expect("it can be read").expect("a table");
            let (_, elements) = dump.sets.get("endpoints").expect("the map of endpoints");
            for element in elements {
                let ValueRef::Data(value) = element.parts().value else { panic!("{element:?}") };
                let key = element.key();
                let state =
                    if key_length == 4 { value[at].into() } else { u16::from_be_bytes([value[at], value[at + 1]]) };
                found.entry((key[key_length - 1], family)).or_default().push(state);
            }
        }
    });
    found
}

/// The states of the endpoints of each Service and family in a table.
type States = BTreeMap<(u8, nft::Family), Vec<u16>>;

/// The states that a kernel with these endpoints is in, the newest first. The error is what makes them a mixture, if no prefix of the
/// events up to `newest` explains them.
fn explained(found: &States, newest: u16) -> Result<Vec<u16>, String> {
    let mixture = |what: &str| Err(format!("{what}: {found:?}"));
    if found.len() != usize::from(SERVICES) * 2 {
        return mixture("a Service is missing");
    }
    let mut line = Vec::new();
    for states in found.values() {
        let different: BTreeSet<u16> = states.iter().copied().collect();
        if states.len() != usize::from(ENDPOINTS) || different.len() != 1 {
            return mixture("a slice is not of one state");
        }
        line.extend(different);
    }
    if !line.is_sorted_by(|a, b| a >= b) {
        return mixture("no prefix of the events gives this");
    }
    line.dedup();
    if line.len() > 2 || line[0] > newest {
        return mixture("more than one step at once");
    }
    Ok(line)
}

#[test]
fn a_mixture_is_distinguished_from_the_states_of_a_moment() {
    let of = |each: &dyn Fn(usize) -> Vec<u16>| -> States {
        let keys = (0..SERVICES).flat_map(|n| [nft::Family::Ip, nft::Family::Ip6].map(|family| (n, family)));
        keys.enumerate().map(|(place, key)| (key, each(place))).collect()
    };
    let whole = |state: u16| vec![state; usize::from(ENDPOINTS)];
    assert_eq!(explained(&of(&|_| whole(3)), 3), Ok(vec![3]));
    assert_eq!(explained(&of(&|place| whole(if place < 5 { 4 } else { 3 })), 4), Ok(vec![4, 3]));
    for (states, what) in [
        (of(&|place| if place == 5 { vec![3, 4, 3] } else { whole(3) }), "not of one state"),
        (of(&|place| if place == 5 { vec![3, 3] } else { whole(3) }), "not of one state"),
        (of(&|place| whole(if place < 5 { 3 } else { 4 })), "no prefix"),
        (of(&|place| whole([5, 4, 3][place.min(2)])), "more than one step"),
        (of(&|_| whole(9)), "more than one step"),
        (States::new(), "missing"),
    ] {
        let found = explained(&states, 5).expect_err("it is a mixture");
        assert!(found.contains(what), "{what}: {found}");
    }
}

/// Moves all endpoints to the next state again and again until the test ends; `newest` is the state that was written last or is being
/// written.
fn churn(path: &std::path::Path, newest: &AtomicU16, stop: &AtomicBool) {
    let unfinished = path.with_extension("tmp");
    while !stop.load(Ordering::Relaxed) && newest.load(Ordering::SeqCst) < STATES {
        let state = newest.fetch_add(1, Ordering::SeqCst) + 1;
        let written = fs::write(&unfinished, all(state).to_string()).and_then(|()| fs::rename(&unfinished, path));
        written.expect("the manifest can be replaced");
        thread::sleep(Duration::from_millis(3 + u64::from(state % 7)));
    }
}

#[test]
fn whenever_the_process_is_killed_the_tables_are_those_of_a_moment() {
    // A sync is all or nothing, and its rules outlive the process (G8, O7).
    let kills: u32 = env::var("KUBE_PROXY_KILLS").map_or(20, |text| text.parse().expect("a number of kills"));
    let world = World::new();
    let mut objects = vec![node(), service_cidr(), all(0)];
    objects.extend((0..SERVICES).map(service));
    let mut proxy = Proxy::start(&world.node, &config(), &objects);
    let path = proxy.manifests().path().join("list--.json");
    assert!(path.exists(), "the file that is replaced is the one of the start");
    let mut seen = BTreeSet::new();
    let mut moved = 0;
    let mut mixtures = Vec::new();
    for _ in 0..kills {
        // The states begin anew, so that they fit into a byte; all is of state 0 before.
        proxy.manifests().apply(&all(0));
        let end = Instant::now() + Duration::from_secs(20);
        while states(&world).values().flatten().any(|state| *state != 0) {
            assert!(Instant::now() < end, "the last state is not reached");
            thread::sleep(Duration::from_millis(10));
        }
        let (newest, stop) = (AtomicU16::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| churn(&path, &newest, &stop));
            // Anywhere within some of the proxy's transactions.
            thread::sleep(Duration::from_micros(40_000 + u64::from(rand::random::<u32>() % 150_000)));
            proxy.kill();
            stop.store(true, Ordering::Relaxed);
        });
        match explained(&states(&world), newest.load(Ordering::SeqCst)) {
            Ok(line) => {
                moved += u32::from(line != [0]);
                seen.extend(line);
            }
            Err(mixture) => mixtures.push(mixture),
        }
        proxy.launch();
        assert!(proxy.is_running(), "{}", proxy.log());
    }
    let mut figures = Figures::default();
    figures.row("Death: kills while objects change", kills);
    figures.row("of them after changes", moved);
    figures.row("mixtures found", mixtures.len());
    figures.row("different states found", seen.len());
    figures.publish();
    assert!(mixtures.is_empty(), "{}", mixtures.join("\n"));
    assert!(moved * 2 > kills, "most kills came before any change: {moved} of {kills}");
}

/// A kubeconfig for an API server that does not exist.
fn kubeconfig_of_no_server() -> (TempDir, PathBuf) {
    // Nothing listens on this port.
    let directory = TempDir::new().expect("a temporary directory can be made");
    let kubeconfig = directory.path().join("kubeconfig");
    let content = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": "http://127.0.0.1:9" } }], "users": [],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "" } }],
    });
    fs::write(&kubeconfig, content.to_string()).expect("a file can be written");
    (directory, kubeconfig)
}

/// The status of a page of the health server.
fn health(world: &World, path: &str) -> String {
    curl(world, &["-o", "/dev/null", "-w", "%{http_code}", &format!("http://127.0.0.1:10256{path}")])
}

fn curl(world: &World, arguments: &[&str]) -> String {
    let output = world.node.command("curl").arg("-s").args(arguments).output().expect("curl runs");
    String::from_utf8(output.stdout).expect("text")
}

/// Waits until the page has this status.
fn wait_for_health(world: &World, proxy: &mut Proxy<'_>, path: &str, status: &str) {
    let end = Instant::now() + Duration::from_secs(20);
    while health(world, path) != status {
        assert!(Instant::now() < end && proxy.is_running(), "{path} is not {status}: {}", proxy.log());
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn without_an_api_server_a_restart_touches_no_rule_and_serves_health() {
    // The rules stay, nothing is written before everything is listed, and the node stays eligible (G1, L5, O7).
    let world = World::new();
    let mut objects = vec![node(), service_cidr(), all(3)];
    objects.extend((0..SERVICES).map(service));
    let mut proxy = Proxy::start(&world.node, &config(), &objects);
    proxy.kill();
    drop(proxy);
    let before = crate::support::nft::list_ruleset(&world.node);
    assert!(before.contains("10.200.3.1"), "{before}");
    let (_directory, kubeconfig) = kubeconfig_of_no_server();
    let mut proxy = Proxy::with_api(&world.node, &config(), &kubeconfig);
    proxy.spawn();
    wait_for_health(&world, &mut proxy, "/livez", "200");
    // The Node is unknown, but the node forwards.
    wait_for_health(&world, &mut proxy, "/healthz", "200");
    thread::sleep(Duration::from_secs(2));
    assert_eq!(crate::support::nft::list_ruleset(&world.node), before);
    assert!(proxy.is_running());
}

#[test]
fn without_an_api_server_health_check_node_ports_answer_from_the_rules() {
    // Health-check node ports answer from the rules that are there (K1, K2, O7).
    let web = objects::service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(30_080);
    let web = web.load_balancer_ip(Family::V4.load_balancer_ip(1)).spec("externalTrafficPolicy", json!("Local"));
    let cluster = |endpoints: &[u8]| {
        let mut cluster = vec![node(), service_cidr()];
        cluster.push(web.clone().spec("healthCheckNodePort", json!(32_123)).json());
        cluster.extend(objects::slices("shop", "web", endpoints, &[("http", Proto::Tcp, 8080)]));
        cluster
    };
    let (_directory, kubeconfig) = kubeconfig_of_no_server();
    for (layout, addresses) in [("maps", &[][..]), ("chains", &["192.0.2.0/24", "2001:db8::/64"])] {
        let world = World::new();
        let mut config = config();
        config["nftables"]["rulesetLayout"] = json!(layout);
        config["nodePortAddresses"] = json!(addresses);
        for (endpoints, here, status) in [(&[0, 1, 2][..], 2, "200"), (&[2], 0, "503")] {
            let mut proxy = Proxy::start(&world.node, &config, &cluster(endpoints));
            proxy.kill();
            let mut proxy = Proxy::with_api(&world.node, &config, &kubeconfig);
            proxy.spawn();
            wait_for_health(&world, &mut proxy, "/healthz", "200");
            for address in ["192.0.2.2", "[2001:db8::2]"] {
                let url = format!("http://{address}:32123/");
                let ask = || curl(&world, &["-w", "%{http_code}", &url]);
                // The proxy's own page may be there a moment sooner.
                let answer = (0..100).map(|_| ask()).find(|answer| answer != "000").unwrap_or_default();
                for part in [r#""namespace": "shop""#, r#""name": "web""#, &format!(r#""localEndpoints": {here},"#)] {
                    assert!(answer.contains(part), "{layout} {address}: {answer}");
                }
                assert!(answer.ends_with(status), "{layout} {address}: {answer}");
            }
        }
    }
}

#[test]
fn without_an_api_server_and_without_rules_the_node_is_not_eligible() {
    // A node whose Node is unknown and that has no rules is not eligible (L5).
    let world = World::new();
    let (_directory, kubeconfig) = kubeconfig_of_no_server();
    let mut proxy = Proxy::with_api(&world.node, &config(), &kubeconfig);
    proxy.spawn();
    wait_for_health(&world, &mut proxy, "/livez", "200");
    // Longer than it takes to look for rules from before.
    for _ in 0..20 {
        assert_eq!(health(&world, "/healthz"), "503");
        thread::sleep(Duration::from_millis(200));
    }
}
