//! Other programs that write to our tables: each change is noticed at once, logged with the program's name, and repaired. Writes elsewhere
//! cost nothing.

use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::mixed;
use crate::support::netns::run;
use crate::support::nft::{list_ruleset, normalised, without_unused_chains};
use crate::support::objects::slices;
use crate::support::plan::Family;
use crate::support::proxy::{Proxy, config};
use crate::support::world::World;
use crate::turns;
use rustix::process::Signal;

/// The repair, with room for a machine that is busy.
const REPAIRED_WITHIN: Duration = Duration::from_secs(5);
/// Time for some of the checks that take place every second.
const SOME_CHECKS: Duration = Duration::from_millis(3_500);

fn nft(world: &World, command: &str) {
    run(world.node.command("nft").arg(command));
}

/// What a listed map holds at a key.
fn value_of(listing: &str, key: &str) -> String {
    let rest = listing.split(&format!("{key} : ")).nth(1).unwrap_or_else(|| panic!("no {key} in {listing}"));
    rest.split([',', '}', '\n']).next().unwrap_or_default().trim().to_owned()
}

#[test]
fn what_others_change_is_put_back() {
    let _turn = turns::beside_others();
    // Elements, rules and chains that another program changes are repaired (G10).
    let world = World::new();
    let proxy = Proxy::start(&world.node, &config(), &mixed::cluster());
    let rules = || normalised(&list_ruleset(&world.node));
    let noticed = || proxy.series("kubeproxy_nft_foreign_changes_total");
    let ours = rules();
    assert_eq!(noticed(), [0.0]);
    let key = "10.96.0.1 . tcp . 80 . 0";
    let endpoint = value_of(&list_ruleset(&world.node), key);
    let commented = format!(
        "delete element ip kube-proxy endpoints {{ {key} }}; \
         add element ip kube-proxy endpoints {{ {key} comment \"foreign\" : {endpoint} }}"
    );
    for change in [
        &*commented,
        "flush ruleset",
        "delete table ip kube-proxy",
        "flush table ip6 kube-proxy",
        "flush chain ip kube-proxy KUBE-SERVICES",
        "flush map ip kube-proxy services",
        "flush map ip6 kube-proxy endpoints",
        "add element ip kube-proxy cluster-ips { 192.0.2.1 }",
        "insert rule ip kube-proxy KUBE-SERVICES drop",
        "add chain ip kube-proxy foreign { type filter hook input priority 5; policy drop; }",
        "add set ip kube-proxy foreign { type ipv4_addr; }",
    ] {
        let before = noticed();
        nft(&world, change);
        let end = Instant::now() + REPAIRED_WITHIN;
        // Rules that are as before were repaired only if the proxy noticed the change; otherwise the change had no effect.
        while noticed() <= before || rules() != ours {
            assert!(Instant::now() < end, "not repaired: {change}\n{}", list_ruleset(&world.node));
            thread::sleep(Duration::from_millis(50));
        }
    }
    let log = proxy.log();
    assert!(log.contains("Another program changed our rules") && log.contains("nft (pid "), "{log}");
}

#[test]
fn what_was_destroyed_while_nothing_led_to_it_is_whole_when_something_does() {
    let _turn = turns::beside_others();
    // Chains that nothing leads to are repaired too before they are used again (F8, G10).
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config(), &mixed::cluster());
    let rules = || without_unused_chains(normalised(&list_ruleset(&world.node)));
    let ours = rules();
    assert!(ours.keys().any(|name| name.ends_with("chain lb-4")));
    proxy.apply(&slices("shop", "web", &[0, 1, 2], &mixed::WEB_PORTS));
    let fewer = rules();
    assert!(!fewer.keys().any(|name| name.ends_with("chain lb-4")), "nothing leads to the chain for four endpoints");
    for family in ["ip", "ip6"] {
        nft(&world, &format!("flush table {family} kube-proxy"));
    }
    let end = Instant::now() + REPAIRED_WITHIN;
    while rules() != fewer {
        assert!(Instant::now() < end, "not repaired: {}", list_ruleset(&world.node));
        thread::sleep(Duration::from_millis(50));
    }
    proxy.apply(&slices("shop", "web", &[0, 1, 2, 3], &mixed::WEB_PORTS));
    assert_eq!(rules(), ours);
}

/// The endpoint that answers, if one does.
fn ask(socket: &UdpSocket) -> Option<String> {
    let mut text = [0; 256];
    socket.send(b"?").ok()?;
    let length = socket.recv(&mut text).ok()?;
    Some(String::from_utf8_lossy(&text[..length]).into_owned())
}

#[test]
fn a_udp_flow_that_began_without_rules_finds_an_endpoint_after_the_repair() {
    let _turn = turns::beside_others();
    // A flow that was not translated while the rules were missing is deleted after the repair (G10, J7).
    let world = World::new();
    let proxy = Proxy::start(&world.node, &config(), &mixed::cluster());
    for family in Family::ALL {
        let socket = world.client.enter(|| {
            let socket = UdpSocket::bind((family.client(), 0)).expect("a port is free");
            socket.connect((family.load_balancer_ip(1), 53)).expect("a UDP socket connects");
            socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a time-out can be set");
            socket
        });
        let table = if family == Family::V4 { "ip" } else { "ip6" };
        // The proxy is stopped, because its repair would otherwise come before the flow.
        proxy.signal(Signal::STOP);
        nft(&world, &format!("flush chain {table} kube-proxy KUBE-SERVICES"));
        // The kernel tracks this flow as one to the load balancer itself, for as long as the client goes on.
        assert_eq!(ask(&socket), None);
        proxy.signal(Signal::CONT);
        let end = Instant::now() + REPAIRED_WITHIN;
        while ask(&socket).is_none() {
            assert!(Instant::now() < end, "{family:?}: the flow leads nowhere for ever");
        }
    }
}

#[test]
fn no_other_program_can_change_owned_tables_and_the_next_process_adopts_them() {
    let _turn = turns::beside_others();
    // Needs kernel 6.9; on an older one the proxy logs that it detects and repairs changes instead.
    let world = World::new();
    let mut proxy = Proxy::start_with(&["--table-ownership=auto"], &world.node, &config(), &mixed::cluster());
    let rules = || normalised(&list_ruleset(&world.node));
    let ours = rules();
    let refused = |command: &str| {
        let output = world.node.command("nft").arg(command).output().expect("nft is installed");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(errors.contains("Operation not permitted"), "{command}: {errors}");
    };
    nft(&world, "flush ruleset");
    assert_eq!(rules(), ours, "a flush of everything leaves them");
    refused("delete table ip kube-proxy");
    refused("flush map ip kube-proxy services");
    proxy.kill();
    assert_eq!(rules(), ours, "they outlive their owner");
    proxy.launch();
    assert_eq!(rules(), ours, "and have not changed for the next");
    refused("delete table ip6 kube-proxy");
    assert_eq!(proxy.series("kubeproxy_nft_elements_added_total"), [0.0], "adopting writes no element");
}

#[test]
fn a_table_of_everybody_becomes_owned_at_the_next_start() {
    let _turn = turns::beside_others();
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config(), &mixed::cluster());
    let rules = normalised(&list_ruleset(&world.node));
    proxy.stop();
    proxy.set_arguments(&["--table-ownership=auto"]);
    proxy.launch();
    assert_eq!(normalised(&list_ruleset(&world.node)), rules);
    nft(&world, "flush ruleset");
    assert_eq!(normalised(&list_ruleset(&world.node)), rules);
}

#[test]
#[ignore = "needs a kernel before 6.9; vm-tests runs it"]
fn where_the_kernel_cannot_keep_others_out_they_are_watched() {
    let _turn = turns::beside_others();
    let world = World::new();
    let proxy = Proxy::start_with(&["--table-ownership=auto"], &world.node, &config(), &mixed::cluster());
    let rules = || normalised(&list_ruleset(&world.node));
    let ours = rules();
    assert_eq!(proxy.log().matches("This kernel cannot keep other programs from changing the rules").count(), 1);
    nft(&world, "flush ruleset");
    let end = Instant::now() + REPAIRED_WITHIN;
    while rules() != ours {
        assert!(Instant::now() < end, "not repaired: {}", list_ruleset(&world.node));
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn what_others_do_elsewhere_at_once_costs_two_comparisons_at_most_and_writes_nothing() {
    let _turn = turns::beside_others();
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config(), &mixed::cluster());
    proxy.wait_until_quiet();
    // Within a second after a sync the remembered clients are checked again.
    thread::sleep(SOME_CHECKS);
    let syncs = || proxy.series("kubeproxy_sync_full_proxy_rules_duration_seconds_count").iter().sum::<f64>();
    let others = || proxy.series("kubeproxy_sync_partial_proxy_rules_duration_seconds_count").iter().sum::<f64>();
    let transactions = || proxy.series("kubeproxy_nft_transactions_total").iter().sum::<f64>();
    let before = (syncs(), others(), transactions());
    for number in 0..5 {
        nft(&world, &format!("add table inet firewall-{number}"));
        nft(&world, &format!("add table ip kube-proxy-{number}"));
    }
    thread::sleep(SOME_CHECKS);
    // Each is counted for both families.
    let comparisons = (syncs() - before.0) / 2.0;
    assert!((1.0..=2.0).contains(&comparisons), "{comparisons}");
    assert_eq!((others(), transactions()), (before.1, before.2));
    assert_eq!(proxy.series("kubeproxy_nft_foreign_changes_total"), [0.0]);
    assert!(!proxy.log().contains("changed our rules"), "{}", proxy.log());
}

#[test]
fn a_program_that_writes_once_is_logged_without_its_name_and_named_when_it_writes_again() {
    let _turn = turns::beside_others();
    // The kernel says who wrote only to programs that listen at that moment (G10).
    let world = World::new();
    let proxy = Proxy::start(&world.node, &config(), &mixed::cluster());
    for text in ["unknown until it writes again", "nft (pid "] {
        assert!(!proxy.log().contains(text));
        nft(&world, "flush chain ip kube-proxy KUBE-SERVICES");
        let end = Instant::now() + REPAIRED_WITHIN;
        while !proxy.log().lines().any(|line| line.contains("Another program changed our rules") && line.contains(text))
        {
            assert!(Instant::now() < end, "{text}: {}", proxy.log());
            thread::sleep(Duration::from_millis(50));
        }
    }
    assert_eq!(proxy.series("kubeproxy_nft_foreign_changes_total"), [2.0]);
}
