//! Tests of the packet-test harness itself: no proxy, rules from `nft -f`. A harness that cannot see a wrong outcome proves nothing.

use std::path::Path;
use std::thread;

use crate::support::netns::{Namespace, run, try_run};
use crate::support::nft;
use crate::support::objects::{service, slices};
use crate::support::plan::{Family, SERVED_PORTS};
use crate::support::probe::{Flow, Outcome, Proto, Tally, probe, probe_many};
use crate::support::server::Answer;
use crate::support::stats::{assert_even, evenness, upper_gamma};
use crate::support::strace::{self, Call};
use crate::support::wire::{SctpInit, crc32c, port_unreachable};
use crate::support::world::World;

/// Every frontend of a service port, done by hand: cluster IP number 1 to all four endpoints, the client's traffic masqueraded.
const RULES: &str = r#"
table ip test {
  chain to-endpoints {
    type nat hook prerouting priority dstnat;
    ip daddr 10.96.0.1 ip saddr 203.0.113.0/24 meta mark set 0x4000
    ip daddr 10.96.0.1 meta l4proto { tcp, udp, sctp } dnat ip addr . port to numgen random mod 4 map {
      0 : 10.244.1.10 . 8080, 1 : 10.244.1.11 . 8080, 2 : 10.244.2.10 . 8080, 3 : 10.244.2.11 . 8080 }
  }
  chain from-node { type nat hook postrouting priority srcnat; meta mark 0x4000 masquerade fully-random; }
  chain forward {
    type filter hook forward priority 0;
    ip daddr 10.96.0.2 reject
    ip daddr 10.96.0.3 drop
  }
  chain own { type filter hook output priority 0; ip daddr 10.96.0.2 reject; }
}
table ip6 test {
  chain to-endpoints {
    type nat hook prerouting priority dstnat;
    ip6 daddr fd00:10:96::1 ip6 saddr 2001:db8:113::/48 meta mark set 0x4000
    ip6 daddr fd00:10:96::1 meta l4proto { tcp, udp, sctp } dnat ip6 addr . port to numgen random mod 4 map {
      0 : fd00:10:244:1::10 . 8080, 1 : fd00:10:244:1::11 . 8080, 2 : fd00:10:244:2::10 . 8080, 3 : fd00:10:244:2::11 . 8080 }
  }
  chain from-node { type nat hook postrouting priority srcnat; meta mark 0x4000 masquerade fully-random; }
  chain forward {
    type filter hook forward priority 0;
    ip6 daddr fd00:10:96::2 reject
    ip6 daddr fd00:10:96::3 drop
  }
  chain own { type filter hook output priority 0; ip6 daddr fd00:10:96::2 reject; }
}
"#;

fn ruled_world() -> World {
    let world = World::new();
    nft::load(&world.node, RULES);
    world
}

#[test]
fn endpoints_answer_every_protocol_without_rules() {
    let world = World::new();
    for family in Family::ALL {
        for endpoint in family.endpoints() {
            for (proto, port) in Proto::ALL.iter().flat_map(|proto| SERVED_PORTS.map(|port| (*proto, port))) {
                let answer = Answer { endpoint, port, seen_source: family.client() };
                let seen = probe(&world.client, Flow::new(proto, family.client(), endpoint, port));
                assert_eq!(seen, Outcome::Reached(answer), "{proto:?} to {endpoint}");
            }
        }
        let ping = Flow::new(Proto::Ping, family.client(), family.endpoint(0), 0);
        assert!(matches!(probe(&world.client, ping), Outcome::Reached(_)), "{family:?}");
        let unserved = Flow::new(Proto::Tcp, family.client(), family.endpoint(0), 81);
        assert_eq!(probe(&world.client, unserved), Outcome::Reset);
        let nowhere = Flow::new(Proto::Udp, family.client(), family.external_ip(9), 81);
        assert_eq!(probe(&world.client, nowhere), Outcome::Dropped);
    }
}

#[test]
fn dnat_is_seen_evenly_and_masquerading_is_distinguished_from_a_kept_source() {
    let world = ruled_world();
    for (family, proto) in Family::ALL.iter().flat_map(|family| Proto::ALL.map(|proto| (*family, proto))) {
        let what = format!("{proto:?} {family:?}");
        let from_client = Flow::new(proto, family.client(), family.cluster_ip(1), 80);
        let tally = probe_many(&world.client, from_client, 200);
        assert!(reached(&tally).iter().all(|answer| World::is_node_address(answer.seen_source)), "{what}: {tally:?}");
        assert_eq!(tally.len(), 4, "{what}: {tally:?}");
        assert_even(&what, &tally.into_values().collect::<Vec<_>>());
        let from_shell = Flow::new(proto, family.shell(), family.cluster_ip(1), 80);
        let tally = probe_many(&world.shell, from_shell, 20);
        assert!(reached(&tally).iter().all(|answer| answer.seen_source == family.shell()), "{what}: {tally:?}");
    }
}

#[test]
fn reject_and_drop_are_distinguished() {
    let world = ruled_world();
    for family in Family::ALL {
        for proto in Proto::ALL.into_iter().chain([Proto::Ping]) {
            let to = |n| Flow::new(proto, family.client(), family.cluster_ip(n), 80);
            assert_eq!(probe(&world.client, to(2)), Outcome::Refused, "{proto:?} {family:?}");
            assert_eq!(probe(&world.client, to(3)), Outcome::Dropped, "{proto:?} {family:?}");
            let own = probe(&world.node, Flow::new(proto, family.node(), family.cluster_ip(2), 80));
            assert!(
                [Outcome::Refused, Outcome::NotPermitted].contains(&own),
                "{proto:?} {family:?} from the node: {own:?}"
            );
        }
    }
}

fn reached(tally: &Tally) -> Vec<Answer> {
    let answers = tally.keys().map(|outcome| match outcome {
        Outcome::Reached(answer) => *answer,
        other => panic!("{other:?} among {tally:?}"),
    });
    answers.collect()
}

#[test]
fn a_namespace_goes_with_its_processes_also_after_a_panic() {
    let (name, mut child) = thread::spawn(|| {
        let namespace = Namespace::new("panic");
        let child = namespace.command("sleep").arg("60").spawn().expect("sleep can be run");
        // Only once `ip netns exec` is inside can it be found there.
        while !run(std::process::Command::new("ip").args(["netns", "pids", namespace.name()]))
            .contains(&child.id().to_string())
        {}
        let name = namespace.name().to_owned();
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _held = namespace;
            panic!("on purpose");
        }));
        assert!(unwound.is_err());
        (name, child)
    })
    .join()
    .expect("the thread caught its panic");
    assert!(!Path::new("/run/netns").join(name).exists());
    assert!(!child.wait().expect("a child can be waited for").success(), "it was killed");
}

#[test]
fn a_failing_command_says_which_and_why() {
    let why =
        try_run(std::process::Command::new("ip").args(["netns", "del", "kpn-no-such"]), "").expect_err("there is none");
    assert!(why.contains("netns") && why.contains("kpn-no-such"), "{why}");
    let why = try_run(&mut std::process::Command::new("no-such-tool"), "").expect_err("there is none");
    assert!(why.contains("make deps"), "{why}");
}

#[test]
fn chi_squared_matches_published_values() {
    // Q(df / 2, x / 2): the critical values of any chi-squared table, and two closed forms.
    for (df, x, p) in
        [(1.0, 3.841_459, 0.05), (3.0, 7.814_728, 0.05), (3.0, 16.266_236, 0.001), (10.0, 2.558_212, 0.99)]
    {
        assert!((upper_gamma(df / 2.0, x / 2.0) - p).abs() < 1e-6, "df {df}, x {x}");
    }
    assert!((upper_gamma(1.0, 2.5) - (-2.5_f64).exp()).abs() < 1e-12);
    assert!((upper_gamma(2.0, 3.0) - 4.0 * (-3.0_f64).exp()).abs() < 1e-12);
    assert!((upper_gamma(4.0, 0.0) - 1.0).abs() < f64::EPSILON);
}

#[test]
fn evenness_accepts_chance_and_refuses_a_bias() {
    assert!(evenness(&[100, 100, 100, 100]) > 0.999);
    assert!(evenness(&[112, 95, 88, 105]) > 0.1);
    assert!(evenness(&[150, 83, 83, 84]) < 1e-6);
    assert!(evenness(&[134, 133, 133, 0]) < 1e-6);
    assert!(std::panic::catch_unwind(|| assert_even("biased", &[300, 50, 50])).is_err());
}

#[test]
fn crc32c_of_the_check_string() {
    // The check value in RFC 3720 and in every catalogue of checksums.
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}

#[test]
fn an_sctp_packet_is_read_back_as_it_was_built() {
    for cookie in [Vec::new(), b"10.0.0.1 80 10.0.0.2".to_vec(), b"odd".to_vec()] {
        let packet = SctpInit { source_port: 20_000, port: 80, tag: 7, cookie };
        assert_eq!(SctpInit::from_bytes(&packet.to_bytes()), Some(packet));
    }
    assert_eq!(SctpInit::from_bytes(&[0; 15]), None);
}

#[test]
fn port_unreachable_quotes_the_ports_and_other_errors_do_not() {
    let mut message = vec![3, 3, 0, 0, 0, 0, 0, 0, 0x45];
    message.resize(28, 0);
    message.extend([0x4e, 0x20, 0, 80]);
    assert_eq!(port_unreachable(Family::V4, &message), Some(&[0x4e, 0x20, 0, 80][..]));
    message[1] = 1;
    assert_eq!(port_unreachable(Family::V4, &message), None);
}

#[test]
fn listings_are_equal_up_to_order_slots_and_counters_and_nothing_else() {
    let map = |name: &str, elements: &str| {
        format!("table ip t {{\n map {name} {{\n type a : b\n elements = {{ {elements} }}\n }}\n}}\n")
    };
    let one = nft::normalised(&map(
        "endpoints",
        "1.1.1.1 . tcp . 80 . 0 : 2.2.2.2 . 8,\n 1.1.1.1 . tcp . 80 . 1 : 3.3.3.3 . 8",
    ));
    let same = nft::normalised(&map(
        "endpoints",
        "1.1.1.1 . tcp . 80 . 0 : 3.3.3.3 . 8,\n 1.1.1.1 . tcp . 80 . 1 : 2.2.2.2 . 8",
    ));
    let other = nft::normalised(&map(
        "endpoints",
        "1.1.1.1 . tcp . 80 . 0 : 2.2.2.2 . 8,\n 1.1.1.1 . tcp . 80 . 1 : 3.3.3.3 . 9",
    ));
    assert_eq!(one, same);
    assert_ne!(one, other);
    let elsewhere = |text| nft::normalised(&map("services", text));
    assert_eq!(elsewhere("a comment \"x, y\" : drop, b : drop"), elsewhere("b : drop, a comment \"x, y\" : drop"));
    assert_ne!(elsewhere("a . 0 : drop"), elsewhere("a . 1 : drop"));
    let rule = |text: &str| nft::normalised(&format!("table ip t {{\n chain c {{\n {text}\n }}\n}}\n"));
    assert_eq!(rule("counter packets 7 bytes 90 accept"), rule("counter packets 0 bytes 0 accept"));
    assert_ne!(rule("tcp dport 80 accept\n drop"), rule("drop\n tcp dport 80 accept"));
}

#[test]
fn chains_that_nothing_leads_to_do_not_count() {
    let table = |body: &str| nft::without_unused_chains(nft::normalised(&format!("table ip t {{\n{body}}}\n")));
    let base = "chain base {\n type filter hook input priority 0;\n jump used\n }\n chain used {\n accept\n }\n";
    let map = "map m {\n type ipv4_addr : verdict\n elements = { 10.0.0.1 : goto lb-2, 10.0.0.2 : drop }\n }\n chain lb-2 {\n drop\n }\n";
    let unused = "chain masq-lb-1 {\n goto lb-1\n }\n chain lb-1 {\n accept\n }\n";
    assert_eq!(table(&format!("{base}{map}{unused}")), table(&format!("{base}{map}")));
    assert_eq!(table(&format!("{base}{map}")).len(), 5);
}

#[test]
fn a_listing_loads_into_a_fresh_namespace_and_lists_the_same() {
    let world = ruled_world();
    let listing = nft::list_ruleset(&world.node);
    let fresh = Namespace::new("fresh");
    nft::load(&fresh, &nft::without_owner(&listing));
    assert_eq!(nft::normalised(&nft::list_ruleset(&fresh)), nft::normalised(&listing));
    assert!(nft::list_json(&fresh)["nftables"].is_array());
}

#[test]
fn strace_shows_nfts_own_batch_as_one_message() {
    let namespace = Namespace::new("strace");
    let directory = tempfile::TempDir::new().expect("a temporary directory can be made");
    let trace = directory.path().join("trace");
    let wrapper = strace::wrapper(&trace);
    run(namespace.command(&wrapper[0]).args(&wrapper[1..]).args(["nft", "add table ip t { chain c { accept; } ; }"]));
    let calls = strace::read_calls(&trace);
    assert_eq!(calls.iter().filter(|call| **call == Call::Batch).count(), 1, "{calls:?}");
    assert_eq!(calls.first(), Some(&Call::Execve));
    assert!(!calls.contains(&Call::BrokenBatch), "{calls:?}");
    let half = "12 sendmsg(7, {msg_iov=[{iov_base=[[{nlmsg_len=20, nlmsg_type=NFNL_MSG_BATCH_BEGIN, nlmsg_flags=0}]]}]}, 0) = 20";
    assert_eq!(strace::calls(half), [Call::BrokenBatch]);
}

#[test]
fn builders_write_what_an_api_server_would() {
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(30080).json();
    assert_eq!(web["spec"]["type"], "NodePort");
    assert_eq!(web["spec"]["clusterIP"], "10.96.0.1");
    assert_eq!(web["spec"]["clusterIPs"][1], "fd00:10:96::1");
    assert_eq!(web["spec"]["ports"][0]["nodePort"], 30080);
    let all = slices("shop", "web", &[0, 2], &[("http", Proto::Tcp, 8080)]);
    assert_eq!(all[1]["metadata"]["name"], "web-v6");
    assert_eq!(all[1]["endpoints"][1]["nodeName"], "other-node");
}
