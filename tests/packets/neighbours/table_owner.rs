//! Another program that owns the table of a family with the flag `owner`: the kernel lets no other one change it, so the family cannot be
//! programmed. The other one is served, and the operator learns which program it is.

use std::io::Write;
use std::process::{Child, ChildStdin, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::inspect::{command, outcome};
use crate::judge::{FEW, Source, assert_not_reached, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::{Namespace, run};
use crate::support::nft;
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::Family;
use crate::support::probe::{Flow, Proto};
use crate::support::proxy::{Proxy, config, config_in};
use crate::support::world::World;

const HEALTHZ: &str = "127.0.0.1:10256";
const FOREIGN: &str = "kubeproxy_nft_table_foreign_owner";
const LAST_SYNC: &str = "kubeproxy_sync_proxy_rules_last_timestamp_seconds";
const PATIENCE: Duration = Duration::from_secs(20);

/// `nft -i` that owns the table of a family, until it is dropped.
struct Owner {
    nft: Child,
    input: Option<ChildStdin>,
}

impl Owner {
    /// Makes the table anew, with the flag `owner`.
    fn of(node: &Namespace, family: Family) -> Self {
        let table = table(family);
        let mut nft =
            node.command("nft").arg("-i").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("nft runs");
        let mut input = nft.stdin.take().expect("standard input was piped");
        let commands = format!("add table {table}; delete table {table}; add table {table} {{ flags owner; }}\n");
        input.write_all(commands.as_bytes()).expect("nft reads its input");
        wait_until("the table has an owner", || nft::list_ruleset(node).contains("flags owner"));
        Self { nft, input: Some(input) }
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        drop(self.input.take());
        self.nft.wait().expect("nft ends with its input");
    }
}

fn table(family: Family) -> &'static str {
    if family == Family::V4 { "ip kube-proxy" } else { "ip6 kube-proxy" }
}

fn label(family: Family) -> &'static str {
    if family == Family::V4 { "IPv4" } else { "IPv6" }
}

fn objects(which: &[u8]) -> Vec<Value> {
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(30080);
    [vec![node(), service_cidr(), web.json()], slices("shop", "web", which, &[("http", Proto::Tcp, 8080)])].concat()
}

fn wait_until(what: &str, reached: impl Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !reached() {
        assert!(Instant::now() < end, "it never happened: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn to_cluster_ip(family: Family) -> Flow {
    Flow::new(Proto::Tcp, family.shell(), family.cluster_ip(1), 80)
}

fn assert_served(world: &World, family: Family, which: &[u8]) {
    assert_reaches(&world.shell, to_cluster_ip(family), &endpoints(family, which, 8080), Source::Kept, FEW);
}

fn value(proxy: &Proxy<'_>, metric: &str, family: Family) -> Option<f64> {
    proxy.series(&format!("{metric}{{ip_family=\"{}\"}}", label(family))).first().copied()
}

fn is_synced(proxy: &Proxy<'_>, family: Family) -> bool {
    value(proxy, LAST_SYNC, family).is_some_and(|time| time > 0.0)
}

/// The status of a health page, and its body.
fn page(proxy: &Proxy<'_>, path: &str) -> (u16, Value) {
    let answer = proxy.get(HEALTHZ, path);
    let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP answer");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, serde_json::from_str(body).expect("JSON"))
}

/// Everything that an operator looks at names the family, the table and the program.
fn assert_told(world: &World, proxy: &Proxy<'_>, owner: &Owner, family: Family) {
    let program = format!("process {}: nft -i", owner.nft.id());
    let says =
        format!("No {} frontend of a Service is served: another program owns table {}", label(family), table(family));
    let (status, body) = page(proxy, "/readyz");
    let reason = body["reason"].as_str().expect("a reason");
    assert!(status == 503 && reason.contains(&says) && reason.contains(&program), "{status} {body}");
    let (status, body) = page(proxy, "/livez");
    assert_eq!((status, &body["problems"][0]["kind"]), (200, &"TableOwned".into()), "a restart does not help: {body}");
    assert_eq!(value(proxy, FOREIGN, family), Some(1.0));

    let log = proxy.log();
    let told: Vec<&str> = log.lines().filter(|line| line.contains("owns the table of an IP family")).collect();
    let [told] = told[..] else { panic!("not told once: {log}") };
    assert!(told.starts_with('E') && told.contains(table(family)) && told.contains(&program), "{told}");
    assert!(!log.contains("Sync failed"), "{log}");

    let (code, text, errors) = outcome(&mut command(&world.node, &["services"]));
    let listed = text.split_once("\n\n").map_or(&*text, |(_, rest)| rest);
    assert!(code == Some(1) && text.contains(&says) && text.contains(&program), "{text}{errors}");
    assert!(listed.contains("shop/web"), "the other family is listed: {text}");
    assert_eq!(text.matches("No IP").count(), 1, "it is said once: {text}");
    let (code, text, errors) = outcome(&mut command(&world.node, &["check"]));
    assert!(code == Some(1) && text.contains(&says) && text.contains(&program), "{text}{errors}");
}

/// The owner is there before the start, and ends.
fn is_served_around_an_owner(layout: Layout, family: Family) {
    let world = World::new();
    let other = if family == Family::V4 { Family::V6 } else { Family::V4 };
    let owner = Owner::of(&world.node, family);
    let mut proxy = Proxy::prepare(&world.node, &config_in(layout), &objects(&[0, 1]));
    proxy.spawn();
    wait_until("the other family is programmed", || is_synced(&proxy, other));
    assert_served(&world, other, &[0, 1]);
    assert_not_reached(&world.shell, to_cluster_ip(family));
    assert_told(&world, &proxy, &owner, family);

    // Changes go on.
    let before = value(&proxy, LAST_SYNC, other);
    objects(&[2]).iter().for_each(|object| proxy.manifests().apply(object));
    wait_until("a change is programmed", || value(&proxy, LAST_SYNC, other) > before);
    proxy.wait_until_quiet();
    assert_served(&world, other, &[2]);
    assert!(!is_synced(&proxy, family), "nothing of the family is programmed");

    drop(owner);
    wait_until("the family is programmed", || is_synced(&proxy, family));
    assert_served(&world, family, &[2]);
    assert_eq!(value(&proxy, FOREIGN, family), Some(0.0));
    wait_until("the proxy is ready", || page(&proxy, "/readyz").0 == 200);
    let (code, text, _) = outcome(&mut command(&world.node, &["services"]));
    assert_eq!(code, Some(0), "{text}");
}

test_in_each_layout!(a_family_whose_table_another_program_owns_does_not_stop_the_other_one);
fn a_family_whose_table_another_program_owns_does_not_stop_the_other_one(layout: Layout) {
    // The other family is served, and the owner is named (G16, L12).
    is_served_around_an_owner(layout, Family::V6);
    is_served_around_an_owner(layout, Family::V4);
}

#[test]
fn a_table_that_is_taken_away_from_a_running_proxy_is_programmed_again_when_its_owner_ends() {
    // The rules of the other family stay in force, and each family is programmed when it can be (G16).
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config(), &objects(&[0, 1]));
    let owner = Owner::of(&world.node, Family::V6);
    wait_until("it is noticed", || value(&proxy, FOREIGN, Family::V6) == Some(1.0));
    assert_served(&world, Family::V4, &[0, 1]);
    assert_not_reached(&world.shell, to_cluster_ip(Family::V6));
    assert_told(&world, &proxy, &owner, Family::V6);
    let (_, body) = page(&proxy, "/healthz");
    assert_eq!(body["status"]["IPv4"]["healthy"], true, "{body}");

    drop(owner);
    wait_until("the family is programmed", || value(&proxy, FOREIGN, Family::V6) == Some(0.0));
    Family::ALL.iter().for_each(|family| assert_served(&world, *family, &[0, 1]));
    proxy.wait_until_quiet();
    let (code, text, _) = outcome(&mut command(&world.node, &["verify"]));
    assert_eq!(code, Some(0), "{text}");
}

#[test]
fn what_mode_iptables_left_stays_while_a_family_is_not_programmed() {
    // It may be all that serves the family (O2).
    let world = World::new();
    let rule = ["-t", "nat", "-N", "KUBE-SVC-WEB"];
    run(world.node.command("ip6tables-nft").args(rule));
    let listed = || run(world.node.command("ip6tables-nft").args(["-t", "nat", "-S"])).contains("KUBE-SVC-WEB");
    let owner = Owner::of(&world.node, Family::V6);
    let mut proxy = Proxy::prepare(&world.node, &config(), &objects(&[0]));
    proxy.spawn();
    wait_until("IPv4 is programmed", || is_synced(&proxy, Family::V4));
    thread::sleep(Duration::from_secs(2));
    assert!(listed(), "{}", proxy.log());
    drop(owner);
    wait_until("it goes after the first sync of both families", || !listed());
}
