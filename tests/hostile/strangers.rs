//! Foreign objects in our tables, other than chains, rules, sets and elements: flags of the table, and objects that rules can
//! refer to by name. They are removed within a second, whether they come while the proxy runs or were there before it, and the log says
//! what was found and which program put it there.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::mixed;
use crate::support::netns::{run, try_run};
use crate::support::nft::{list_ruleset, normalised};
use crate::support::plan::Family;
use crate::support::probe::{Flow, Outcome, Proto, probe};
use crate::support::proxy::{Proxy, config_in, is_slow};
use crate::support::world::World;
use crate::turns;
use nft::socket::{Bus, Socket};
use nft::wire::Writer;

/// How long a foreign flag or object may stay.
fn deadline() -> Duration {
    Duration::from_secs(if is_slow() { 10 } else { 1 })
}

/// Objects by name, as nft writes them, that every kernel with the usual modules takes.
const OBJECTS: [(&str, &str); 7] = [
    ("counter", "counter foreign { packets 0 bytes 0; }"),
    ("quota", "quota foreign { over 10 mbytes; }"),
    ("limit", "limit foreign { rate 10/second; }"),
    ("ct helper", "ct helper foreign { type \"ftp\" protocol tcp; l3proto ip; }"),
    ("ct timeout", "ct timeout foreign { protocol tcp; l3proto ip; policy = { established: 120 }; }"),
    ("ct expectation", "ct expectation foreign { protocol tcp; dport 9876; timeout 2m; size 12; l3proto ip; }"),
    ("synproxy", "synproxy foreign { mss 1460; wscale 7; timestamp sack-perm; }"),
];

type Rules = BTreeMap<String, Vec<String>>;

fn rules(world: &World) -> Rules {
    normalised(&list_ruleset(&world.node))
}

fn load(world: &World, input: &str) {
    run(world.node.command("nft").arg(input));
}

fn in_table(text: &str) -> String {
    format!("table ip kube-proxy {{ {text}\n}}")
}

/// Waits until the tables are repaired; gives the time that this took.
fn wait_for(world: &World, ours: &Rules, what: &str) -> Duration {
    let start = Instant::now();
    while rules(world) != *ours {
        assert!(start.elapsed() < deadline(), "{what} is still there:\n{}", list_ruleset(&world.node));
        thread::sleep(Duration::from_millis(5));
    }
    start.elapsed()
}

/// `NFT_TABLE_F_DORMANT`, `NFT_TABLE_F_PERSIST`.
const DORMANT: u32 = 1;
const PERSIST: u32 = 4;

/// Sets the flags of table `ip kube-proxy`, in the calling thread's namespace.
fn make_dormant(flags: u32) {
    const BATCH_BEGIN: u16 = 16;
    const BATCH_END: u16 = 17;
    const NFTABLES: u16 = 10;
    const NEW_TABLE: u16 = NFTABLES << 8;
    let message = |kind: u16, flags: u16, body: &[u8]| {
        let len = u32::try_from(16 + body.len()).expect("a short message");
        [&len.to_ne_bytes()[..], &kind.to_ne_bytes(), &flags.to_ne_bytes(), &[0; 8], body].concat()
    };
    let mut table = Writer::default();
    table.raw(&[2, 0, 0, 0]);
    table.str(1, "kube-proxy");
    table.u32(2, flags);
    let frame = [&[0, 0][..], &NFTABLES.to_be_bytes()].concat();
    let begin = message(BATCH_BEGIN, 1, &frame);
    let change = message(NEW_TABLE, 1 | 4, table.bytes());
    let end = message(BATCH_END, 1, &frame);
    let mut socket = Socket::open(Bus::Netfilter).expect("a netlink socket");
    socket.send_datagram([&begin[..], &change, &end].into_iter()).expect("the kernel takes a batch");
    let answer = socket.receive().expect("the change is acknowledged");
    assert_eq!(nft::decode::ack(answer).map(|ack| ack.errno), Some(0));
}

/// Waits until the log has this text behind what it had before.
fn wait_for_line(proxy: &Proxy<'_>, before: &str, text: &str) {
    let start = Instant::now();
    while !proxy.log()[before.len()..].contains(text) {
        assert!(start.elapsed() < Duration::from_secs(10), "the log does not say {text:?}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn assert_served(world: &World, what: &str) {
    let flow = Flow::new(Proto::Tcp, Family::V4.client(), Family::V4.load_balancer_ip(1), 80);
    let seen = probe(&world.client, flow);
    assert!(matches!(seen, Outcome::Reached(_)), "{what}: {seen:?}");
}

test_in_each_layout!(a_dormant_table_works_again_within_a_second);
fn a_dormant_table_works_again_within_a_second(layout: Layout) {
    let _turn = turns::beside_others();
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &mixed::cluster());
    let ours = rules(&world);
    assert_served(&world, "before");
    for family in ["ip", "ip6"] {
        load(&world, &format!("add table {family} kube-proxy {{ flags dormant; }}"));
        let took = wait_for(&world, &ours, "the flag");
        println!("{family}: a dormant table was put right in {took:?}");
        assert_served(&world, "dormant while running");
    }
    wait_for_line(&proxy, "", "is dormant");
    proxy.stop();
    load(&world, "add table ip kube-proxy { flags dormant; }");
    proxy.launch();
    assert_eq!(rules(&world), ours);
    assert_served(&world, "dormant at the start");
    // A base chain cannot come back in the transaction that wakes a table.
    load(&world, "add table ip kube-proxy { flags dormant; }; delete chain ip kube-proxy nat-prerouting");
    wait_for(&world, &ours, "the flag with a base chain missing");
    assert_served(&world, "dormant, and a base chain missing");
}

test_in_each_layout!(a_dormant_table_that_is_owned_next_works_again);
fn a_dormant_table_that_is_owned_next_works_again(layout: Layout) {
    let _turn = turns::beside_others();
    // Owned tables need kernel 6.9.
    let world = World::new();
    let mut proxy = Proxy::start_with(&["--table-ownership=auto"], &world.node, &config_in(layout), &mixed::cluster());
    let ours = rules(&world);
    proxy.stop();
    // Written by hand, as nft 1.0.6 knows no `persist` and would ask for the flag's removal, which the kernel refuses.
    world.node.enter(|| make_dormant(DORMANT | PERSIST));
    proxy.launch();
    assert_eq!(rules(&world), ours);
    assert_served(&world, "dormant and without an owner at the start");
}

test_in_each_layout!(foreign_objects_are_found_named_and_removed);
fn foreign_objects_are_found_named_and_removed(layout: Layout) {
    let _turn = turns::beside_others();
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &mixed::cluster());
    let ours = rules(&world);
    for (kind, text) in OBJECTS {
        load(&world, &in_table(text));
        let took = wait_for(&world, &ours, kind);
        println!("{kind}: removed in {took:?}");
        wait_for_line(&proxy, "", &format!("{kind} foreign"));
    }
    wait_for_line(&proxy, "", "nft (pid ");
    assert_served(&world, "after the objects");
    proxy.stop();
    for (_, text) in OBJECTS {
        load(&world, &in_table(text));
    }
    // Not every kernel is built with flowtables.
    let flowtable = in_table("flowtable foreign-flows { hook ingress priority 0; devices = { lo }; }");
    let has_flowtable = try_run(world.node.command("nft").arg(flowtable), "").is_ok();
    let before = proxy.log();
    proxy.launch();
    assert_eq!(rules(&world), ours, "what was there at the start");
    wait_for_line(&proxy, &before, "synproxy foreign");
    let log = proxy.log();
    let since = log.strip_prefix(before.as_str()).unwrap_or(&log);
    for (kind, _) in OBJECTS {
        assert!(since.contains(&format!("{kind} foreign")), "{kind}: {since}");
    }
    assert!(!has_flowtable || since.contains("flowtable foreign-flows"), "{since}");
}

test_in_each_layout!(a_foreign_object_that_is_in_use_is_removed_with_its_users);
fn a_foreign_object_that_is_in_use_is_removed_with_its_users(layout: Layout) {
    let _turn = turns::beside_others();
    let world = World::new();
    let proxy = Proxy::start(&world.node, &config_in(layout), &mixed::cluster());
    let ours = rules(&world);
    let chain = "chain foreign { type filter hook forward priority 5; counter name \"foreign\"; }";
    load(&world, &format!("table ip kube-proxy {{ counter foreign {{ packets 0 bytes 0; }}\n {chain}\n}}"));
    wait_for(&world, &ours, "a counter and the rule that counts with it");
    let map = "map foreign { type ipv4_addr : counter; elements = { 192.0.2.1 : \"foreign\" }; }";
    load(&world, &format!("table ip kube-proxy {{ counter foreign {{ packets 0 bytes 0; }}\n {map}\n}}"));
    wait_for(&world, &ours, "a counter and the map that leads to it");
    assert_served(&world, "after the objects");
    assert!(!proxy.log().contains("Sync failed"), "{}", proxy.log());
}
