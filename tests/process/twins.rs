//! Two processes on one node, as a rolling update with surge has them, or a mistake: one writes, the other waits and takes over the
//! moment the first ends, and no connection notices.
//!
//! `KUBE_PROXY_TWINS_SECONDS` is how long both run side by side (4).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{env, thread};

use crate::support::netns::{Namespace, run, run_with_input, try_run};
use crate::support::nft::{list_everything, list_ruleset};
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::Family;
use crate::support::probe::{Flow, Outcome, Proto, probe};
use crate::support::proxy::{Proxy, binary, config, is_slow};
use crate::support::upstream;
use crate::support::world::World;
use nft::Connection;
use serde_json::{Value, json};

const PORTS: [(&str, Proto, u16); 2] = [("http", Proto::Tcp, 8080), ("dns", Proto::Udp, 9090)];
const LOCK: &str = "table inet kube-proxy-lock";
/// How long anything may take for which no other deadline is set.
const PATIENCE: Duration = Duration::from_secs(30);
/// From the end of the first process to the second one's first change.
const TAKEN_OVER_WITHIN: Duration = Duration::from_secs(1);

fn side_by_side() -> Duration {
    let seconds = env::var("KUBE_PROXY_TWINS_SECONDS").ok().and_then(|text| text.parse().ok());
    Duration::from_secs(seconds.unwrap_or(4))
}

fn objects(endpoints: &[u8]) -> Vec<Value> {
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(30080);
    let web = web.port("dns", Proto::Udp, 53).node_port(30053);
    let mut objects = vec![node(), service_cidr(), web.json()];
    objects.extend(slices("shop", "web", endpoints, &PORTS));
    objects
}

fn flows() -> Vec<Flow> {
    let of = |family: Family| {
        [
            Flow::new(Proto::Tcp, family.client(), family.cluster_ip(1), 80),
            Flow::new(Proto::Tcp, family.client(), family.node(), 30080),
            Flow::new(Proto::Udp, family.client(), family.cluster_ip(1), 53),
        ]
    };
    Family::ALL.into_iter().flat_map(of).collect()
}

fn generation(node: &Namespace) -> u32 {
    node.enter(|| Connection::open().expect("a socket").generation().expect("the kernel knows its generation"))
}

fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !reached() {
        assert!(Instant::now() < end, "it never happened: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Does something while connections are made on all of these ways, all of which must reach an endpoint. Gives their number.
fn under_traffic(world: &World, flows: &[Flow], work: impl FnOnce()) -> usize {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let prober = scope.spawn(|| {
            let mut count = 0;
            while !is_done.load(Ordering::Relaxed) {
                for &flow in flows {
                    let outcome = probe(&world.client, flow);
                    assert!(matches!(outcome, Outcome::Reached(_)), "{flow:?}: {outcome:?}");
                    count += 1;
                }
            }
            count
        });
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        is_done.store(true, Ordering::Relaxed);
        let count = prober.join().expect("every connection reaches an endpoint");
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        count
    })
}

fn value(proxy: &Proxy<'_>, metric: &str) -> f64 {
    proxy.series(metric).iter().sum()
}

/// The second process waits beside the first, which is then ended; the second goes on.
fn hand_over(end_the_first: impl FnOnce(&mut Proxy<'_>)) {
    let world = World::new();
    let mut first = Proxy::start(&world.node, &config(), &objects(&[0, 1, 2, 3]));
    let mut second = Proxy::prepare(&world.node, &config(), &objects(&[0, 1, 2, 3]));
    first.wait_until_quiet();
    let pid = first.pid();
    let count = under_traffic(&world, &flows(), || {
        let before = generation(&world.node);
        second.spawn();
        wait_until("the second waits", || second.log().contains("another kube-proxy writes the rules of this node"));
        thread::sleep(side_by_side());
        let log = second.log();
        assert!(log.contains(&format!("(pid {pid}: ")) && log.contains("--config"), "{log}");
        assert_eq!(log.matches("another kube-proxy writes").count(), 1, "{log}");
        assert_eq!(generation(&world.node), before, "the rules were written");
        assert_eq!(value(&first, "kubeproxy_nft_repairs_total"), 0.0);
        assert_eq!(value(&first, "kubeproxy_nft_foreign_changes_total"), 0.0);
        // Only the second process gets this change, so the rules show which of the two writes.
        objects(&[2, 3]).iter().for_each(|object| second.manifests().apply(object));
        thread::sleep(Duration::from_millis(300));
        assert_eq!(generation(&world.node), before, "the second wrote before its turn");
        let is_programmed = || {
            let listing = run(world.node.command("nft").args(["list", "table", "ip", "kube-proxy"]));
            !listing.contains(&Family::V4.endpoint(0).to_string())
        };
        assert!(!is_programmed());
        end_the_first(&mut first);
        let start = Instant::now();
        wait_until("the second programs its change", is_programmed);
        let took = start.elapsed();
        println!("{took:?} from the end of the first to the second's first change");
        assert!(is_slow() || took <= TAKEN_OVER_WITHIN, "{took:?}");
        wait_until("the second has the ports", || second.try_get("127.0.0.1:10256", "/livez").is_some());
        wait_until("the second has written", || !second.sync_times().is_empty());
        assert!(second.is_running());
        assert_eq!(value(&second, "kubeproxy_nft_foreign_changes_total"), 0.0, "{}", second.log());
    });
    println!("{count} connections, none lost");
    assert!(list_everything(&world.node).contains(LOCK));
    drop(second);
    wait_until("the lock ends with its holder", || !list_everything(&world.node).contains(LOCK));
}

#[test]
fn the_second_waits_and_takes_over_when_the_first_is_killed() {
    // The lock ends with its holder, however that ends (O12).
    hand_over(|first| assert!(!first.kill().success()));
}

#[test]
fn the_second_waits_and_takes_over_when_the_first_is_asked_to_end() {
    // The lock ends with its holder (O12).
    hand_over(|first| assert!(first.stop().success()));
}

#[test]
fn a_second_process_that_must_have_its_ports_waits_for_them_too() {
    // A rolling update with surge, and `bindAddressHardFail`.
    let node = Namespace::new("node");
    let mut config = config();
    config["bindAddressHardFail"] = json!(true);
    let mut first = Proxy::start(&node, &config, &objects(&[0, 1]));
    let mut second = Proxy::prepare(&node, &config, &objects(&[0, 1]));
    second.spawn();
    wait_until("the second waits", || second.log().contains("another kube-proxy writes"));
    thread::sleep(Duration::from_secs(1));
    assert!(second.is_running(), "{}", second.log());
    first.stop();
    second.wait_until_synced();
    // It tries again ten times a second, and may have its first rules before it has its ports.
    let livez = || second.try_get("127.0.0.1:10256", "/livez");
    wait_until("the second has its ports", || livez().is_some_and(|answer| answer.contains("200 OK")));
}

#[test]
fn a_waiting_process_is_healthy_but_not_ready_and_says_why_it_waits() {
    // `/livez` and `/healthz` give the reason of the wait, and `/readyz` is 503 (L8, L9).
    let node = Namespace::new("node");
    let mut first = Proxy::start(&node, &config(), &objects(&[0, 1]));
    let mut other = config();
    other["healthzBindAddress"] = json!("127.0.0.1:11256");
    other["metricsBindAddress"] = json!("127.0.0.1:11249");
    // Requests are unserved for longer than this times two.
    other["nftables"]["syncPeriod"] = json!("1s");
    let mut second = Proxy::prepare(&node, &other, &objects(&[0, 1]));
    second.spawn();
    wait_until("the second waits", || second.log().contains("another kube-proxy writes"));
    thread::sleep(Duration::from_secs(4));
    for page in ["/livez", "/healthz"] {
        let answer = second.get("127.0.0.1:11256", page);
        assert!(answer.contains("200 OK") && answer.contains("another kube-proxy writes the rules"), "{answer}");
    }
    let answer = second.get("127.0.0.1:11256", "/readyz");
    assert!(answer.contains("503 ") && answer.contains("another kube-proxy writes the rules"), "{answer}");
    // On the ports that both would have, the first answers for both: kubelet's probes of a second pod are answered by it.
    assert!(second.get("127.0.0.1:10256", "/readyz").contains("200 OK"));
    first.stop();
    wait_until("the second is ready", || second.get("127.0.0.1:11256", "/readyz").contains("200 OK"));
}

#[test]
fn no_other_program_can_take_the_lock_away_and_a_table_of_that_name_without_owner_is_no_lock() {
    // The kernel keeps the lock for its owner (O12).
    let node = Namespace::new("node");
    let nft = |text: &str| try_run(node.command("nft").args(["-f", "-"]), text);
    nft("add table inet kube-proxy-lock\nadd chain inet kube-proxy-lock foreign").expect("the table has no owner");
    let mut first = Proxy::start(&node, &config(), &objects(&[0, 1]));
    let lock = run(node.command("nft").args(["list", "table", "inet", "kube-proxy-lock"]));
    assert!(lock.contains("flags owner") && lock.contains(&format!("pid {}: ", first.pid())), "{lock}");
    assert!(!lock.contains("\tchain "), "{lock}");
    for text in
        ["delete table inet kube-proxy-lock", "add chain inet kube-proxy-lock x", "add table inet kube-proxy-lock"]
    {
        assert!(nft(text).is_err_and(|error| error.contains("Operation not permitted")), "{text}");
    }
    nft("flush ruleset").expect("it leaves the lock out");
    assert!(list_everything(&node).contains(LOCK));
    wait_until("what was flushed is back", || list_ruleset(&node).contains("table ip kube-proxy"));
    first.wait_until_quiet();
    // The tables can be loaded from a listing, the lock cannot.
    let listing = run(node.command("nft").args(["list", "table", "ip", "kube-proxy"]));
    run_with_input(node.command("nft").args(["-f", "-"]), &format!("delete table ip kube-proxy\n{listing}"));
    let error = nft(&format!("flush ruleset\n{}", list_everything(&node))).expect_err("the lock is in it");
    assert!(error.contains("Operation not permitted"), "{error}");
    // The command that `nft/README.md` gives.
    let cut = r#"(echo flush ruleset; nft list ruleset | sed '/^table inet kube-proxy-lock /,/^}/d') | nft -f -"#;
    run(node.command("sh").args(["-c", cut]));
}

#[test]
fn a_process_that_never_gets_its_objects_keeps_none_out_that_does() {
    let node = Namespace::new("node");
    let directory = tempfile::tempdir().expect("a temporary directory can be made");
    let kubeconfig = directory.path().join("kubeconfig");
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{ "name": "c", "cluster": { "server": "http://127.0.0.1:1" } }],
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        "users": [{ "name": "u", "user": {} }],
    });
    std::fs::write(&kubeconfig, text.to_string()).expect("it can be written");
    let mut other = config();
    other["healthzBindAddress"] = json!("127.0.0.1:11256");
    other["metricsBindAddress"] = json!("127.0.0.1:11249");
    let mut first = Proxy::with_api(&node, &other, &kubeconfig);
    first.spawn();
    wait_until("the first looks for its API server", || first.log().contains("Serving healthz"));
    thread::sleep(Duration::from_millis(500));
    assert_eq!(list_everything(&node), "");
    let second = Proxy::start(&node, &config(), &objects(&[0, 1]));
    let lock = run(node.command("nft").args(["list", "table", "inet", "kube-proxy-lock"]));
    assert!(lock.contains(&format!("pid {}: ", second.pid())), "{lock}");
}

#[test]
fn a_clean_up_beside_a_running_proxy_names_it_and_removes_nothing() {
    // `--cleanup` respects the lock (O1, O12).
    let node = Namespace::new("node");
    let mut first = Proxy::start(&node, &config(), &objects(&[0, 1]));
    first.wait_until_quiet();
    let before = generation(&node);
    let clean_up = || try_run(node.command(binary()).arg("--cleanup"), "");
    let error = clean_up().expect_err("it is refused");
    assert!(error.contains("nothing was removed") && error.contains(&format!("pid {}: ", first.pid())), "{error}");
    assert_eq!(generation(&node), before);
    first.kill();
    clean_up().expect("no proxy runs any more");
    assert_eq!(list_everything(&node), "");
}

/// What upstream sends when an endpoint has changed.
fn small_sync(endpoint: u8) -> String {
    let chain = "ip kube-proxy service-4AT6LBPK-shop/web/tcp/http";
    let to = Family::V4.endpoint(endpoint);
    format!(
        "add chain {chain}\nflush chain {chain}\n\
         add rule {chain} meta l4proto tcp dnat ip to numgen random mod 1 map {{ 0 : {to} . 8080 }}\n"
    )
}

#[test]
fn another_kube_proxy_that_knows_no_lock_is_named_once_and_there_is_no_fight() {
    // Upstream's objects stay while it writes, and only our rules are repaired (O13).
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config(), &objects(&[0, 1, 2, 3]));
    proxy.wait_until_quiet();
    let nft = |text: &str| run_with_input(world.node.command("nft").args(["-f", "-"]), text);
    let mut writes = 0;
    // The recorded rules have no UDP ports of this Service.
    let flows: Vec<Flow> = flows().into_iter().filter(|flow| flow.proto == Proto::Tcp).collect();
    let count = under_traffic(&world, &flows, || {
        nft(&upstream::start());
        let log = |proxy: &Proxy<'_>| proxy.log().matches("Another kube-proxy, in mode nftables").count();
        wait_until("it is named", || log(&proxy) > 0);
        proxy.wait_until_quiet();
        thread::sleep(Duration::from_secs(2));
        let before = generation(&world.node);
        let end = Instant::now() + side_by_side();
        while Instant::now() < end {
            nft(&small_sync(writes % 4));
            writes += 1;
            thread::sleep(Duration::from_millis(400));
        }
        proxy.wait_until_quiet();
        let transactions = generation(&world.node) - before;
        println!("{writes} writes of the other, {} of ours", transactions - u32::from(writes));
        assert_eq!(transactions, u32::from(writes), "we wrote too: {}", proxy.log());
        assert_eq!(log(&proxy), 1, "{}", proxy.log());
    });
    println!("{count} connections, none lost");
    // Changes of our own rules are still repaired.
    nft("flush chain ip kube-proxy KUBE-SERVICES");
    let rules = || run(world.node.command("nft").args(["list", "chain", "ip", "kube-proxy", "KUBE-SERVICES"]));
    wait_until("it is repaired", || rules().contains("@services"));
}
