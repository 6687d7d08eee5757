//! The change itself: our first sync, and after it the end of the rules of mode iptables.

use std::io::Write as _;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use super::iptables::{self, NODE_PORT, PORT, Variant};
use crate::support::apiserver::fault::{Ending, Fault, On};
use crate::support::apiserver::{ApiServer, Scheme, wait_for};
use crate::support::netns::{Namespace, run};
use crate::support::nft;
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::Family;
use crate::support::probe::{Connection, Flow, Outcome, Proto, probe};
use crate::support::proxy::{Proxy, config};
use crate::support::world::World;

const WEB: [u8; 4] = [0, 1, 2, 3];
const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, PORT)];
const HEALTHZ: &str = "127.0.0.1:10256";
/// How long the load goes on after the change.
const AFTER: Duration = Duration::from_secs(1);

pub(super) fn objects() -> Vec<Value> {
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(NODE_PORT);
    let mut objects = vec![node(), service_cidr(), web.json()];
    objects.extend(slices("shop", "web", &WEB, &PORTS));
    objects
}

/// The ways to `web` from the client outside, and from a pod, which shows its own address.
pub(super) fn flows(family: Family) -> [Flow; 3] {
    [
        (family.client(), family.cluster_ip(1), 80),
        (family.client(), family.node(), NODE_PORT),
        (family.shell(), family.cluster_ip(1), 80),
    ]
    .map(|(source, address, port)| Flow::new(Proto::Tcp, source, address, port))
}

/// Where a flow begins.
pub(super) fn from(world: &World, flow: Flow) -> &Namespace {
    if flow.source == Family::of(flow.source).shell() { &world.shell } else { &world.client }
}

/// Connects to every address until it is stopped; gives how often, and what failed.
fn load(world: &World, done: &AtomicBool) -> (u32, Vec<String>) {
    let (mut count, mut failed) = (0, Vec::new());
    while !done.load(Ordering::Relaxed) {
        for flow in Family::ALL.into_iter().flat_map(flows) {
            count += 1;
            let outcome = probe(from(world, flow), flow);
            let is_pod = flow.source == Family::of(flow.source).shell();
            match &outcome {
                Outcome::Reached(answer) if is_pod && answer.seen_source == flow.source => {}
                Outcome::Reached(answer) if !is_pod && World::is_node_address(answer.seen_source) => {}
                other => failed.push(format!("{count}: {flow:?}: {other:?}")),
            }
        }
    }
    (count, failed)
}

#[test]
fn the_change_from_mode_iptables_loses_no_connection_and_breaks_none() {
    changes_without_a_loss(Variant::Nft, "chains of table ip nat\"");
}

#[test]
fn the_change_from_mode_iptables_of_iptables_legacy_loses_no_connection_and_breaks_none() {
    changes_without_a_loss(Variant::Legacy, "chains of table ip nat of iptables-legacy\"");
}

fn changes_without_a_loss(variant: Variant, logged: &str) {
    // The rules of mode iptables serve until the first sync, and go after it (O2, O7).
    let world = World::new();
    variant.install(&world.node, &WEB);
    // Rules of another program in the same tables.
    let program = variant.program(Family::V4);
    run(world.node.command(program).args(["-A", "FORWARD", "-p", "tcp", "--dport", "22", "-j", "DROP"]));
    let held: Vec<_> =
        Family::ALL.into_iter().flat_map(flows).map(|flow| Connection::open(from(&world, flow), flow)).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..2).map(|_| scope.spawn(|| load(&world, &done))).collect();
        let proxy = Proxy::start(&world.node, &config(), &objects());
        wait_for("the end of mode iptables", || variant.listing(&world.node).is_empty().then_some(()));
        thread::sleep(AFTER);
        done.store(true, Ordering::Relaxed);
        for client in clients {
            let (count, failed) = client.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            assert_eq!(failed, [""; 0], "of {count}: {}", proxy.log());
            assert!(count > 20, "{count} connections");
        }
        assert!(proxy.log().contains(logged), "{}", proxy.log());
    });
    for (connection, first) in &held {
        assert_eq!(connection.ask(), *first, "a connection from before the change");
    }
    let left = run(world.node.command(program).args(["-S", "FORWARD"]));
    assert!(left.contains("--dport 22 -j DROP"), "{left}");
}

// Objects come before rules, and these before the removal of what other modes left (P3).
#[test]
fn nothing_of_others_is_changed_before_the_first_complete_lists() {
    // Nothing is written or removed before everything has been listed (G1, O2).
    let world = World::new();
    iptables::install(&world.node, &WEB);
    nft::load(&world.node, "add table inet kube-proxy-flowtable\n");
    let tables = || nft::list_tables(&world.node);
    let before = (iptables::listing(&world.node), tables());
    let server = world.node.enter(|| ApiServer::start(Scheme::Http));
    server.apply(&objects());
    let slices = crate::support::apiserver::resource::Resource::EndpointSlice;
    server.lasting_fault(On::Both(slices), Fault::Unanswered(Ending::Silence));
    for flowtable in ["off", "auto"] {
        let mut config = config();
        config["nftables"]["flowtable"] = flowtable.into();
        let mut proxy = Proxy::with_api(&world.node, &config, &server.kubeconfig(&json!({})));
        proxy.spawn();
        wait_for("the reason", || {
            let answer = world
                .node
                .enter(|| std::net::TcpStream::connect(HEALTHZ).is_ok().then(|| proxy.get(HEALTHZ, "/readyz")));
            answer.filter(|answer| answer.contains("EndpointSlice") && !answer.contains("Service,"))
        });
        thread::sleep(Duration::from_secs(2));
        assert_eq!((iptables::listing(&world.node), tables()), before, "flowtable {flowtable}");
        proxy.kill();
    }
    server.clear_faults();
    let mut proxy = Proxy::with_api(&world.node, &config(), &server.kubeconfig(&json!({})));
    proxy.launch();
    wait_for("the end of mode iptables", || iptables::listing(&world.node).is_empty().then_some(()));
    wait_for("the end of the fast path", || (!tables().contains("flowtable")).then_some(()));
    assert!(proxy.get(HEALTHZ, "/readyz").starts_with("HTTP/1.1 200 OK"));
}

#[test]
fn a_clean_up_that_fails_is_a_warning_and_stops_nothing() {
    let world = World::new();
    iptables::install(&world.node, &WEB);
    // A table that belongs to a process cannot be changed by another.
    let mut owner = world.node.command("nft").arg("-i").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut stdin = owner.stdin.take().unwrap();
    stdin.write_all(b"add table ip mangle { flags owner; }\nadd chain ip mangle KUBE-PROXY-CANARY\n").unwrap();
    let has_table = || run(world.node.command("nft").args(["list", "tables"])).contains("table ip mangle");
    wait_for("the owned table", || has_table().then_some(()));
    let proxy = Proxy::start(&world.node, &config(), &objects());
    wait_for("a warning", || proxy.log().contains("retryAfter=\"1m0s\"").then_some(()));
    assert!(proxy.log().contains("table ip mangle"), "{}", proxy.log());
    let listing = iptables::listing(&world.node);
    assert!(!listing.contains("KUBE-S"), "the other tables are clean: {listing}");
    assert!(proxy.get(HEALTHZ, "/readyz").starts_with("HTTP/1.1 200 OK"));
    drop(stdin);
    owner.wait().unwrap();
}

#[test]
fn a_lock_of_iptables_that_another_program_holds_is_respected_and_stops_nothing() {
    let world = World::new();
    Variant::Legacy.install(&world.node, &WEB);
    let run = tempfile::TempDir::new().unwrap();
    let lock = std::fs::File::create(run.path().join("xtables.lock")).unwrap();
    lock.lock().unwrap();
    let mut proxy = Proxy::prepare(&world.node, &config(), &objects());
    let script = format!("mount --bind {} /run && exec \"$@\"", run.path().display());
    proxy.set_wrapper(&["unshare", "--mount", "sh", "-c", &script, "sh"]);
    proxy.launch();
    wait_for("a warning", || proxy.log().contains("another program holds /run/xtables.lock").then_some(()));
    assert!(Variant::Legacy.listing(&world.node).contains("KUBE-SVC-WEB"));
    assert!(proxy.get(HEALTHZ, "/readyz").starts_with("HTTP/1.1 200 OK"));
}
