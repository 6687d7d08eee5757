//! Rules of mode iptables and ours in force at once, as they are for a moment after our first sync: each connection is translated by one
//! of them, masqueraded at most once, and refused by nothing that is out of date.

use super::iptables::{self, NODE_PORT, PORT};
use crate::judge::{FEW, Source, assert_outcome, assert_reaches, endpoints};
use crate::support::netns::run;
use crate::support::nft;
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::Family;
use crate::support::probe::{Flow, Outcome, Proto, probe_many};
use crate::support::proxy::{Proxy, binary, config};
use crate::support::world::World;

const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, PORT)];
/// The endpoints of `web` in mode iptables, and those that it has now.
const STALE: [u8; 2] = [0, 2];
const NOW: [u8; 2] = [1, 3];

/// Our rules, as the kernel gets them from a sync, for a cluster that has changed since mode iptables wrote its last ones: `web` has
/// other endpoints, Service 2 has some, Service 3 is new and has none.
fn our_rules(world: &World) -> String {
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(NODE_PORT);
    let served = service("shop", "served").cluster_ips(2).port("http", Proto::Tcp, 80);
    let empty = service("shop", "empty").cluster_ips(3).port("http", Proto::Tcp, 80);
    let mut objects = vec![node(), service_cidr(), web.json(), served.json(), empty.json()];
    objects.extend(slices("shop", "web", &NOW, &PORTS));
    objects.extend(slices("shop", "served", &NOW, &PORTS));
    let proxy = Proxy::prepare(&world.node, &config(), &objects);
    let mut render = world.node.command(binary());
    render.arg("render").arg("--config").arg(proxy.config_path()).arg("--manifests").arg(proxy.manifests().path());
    run(&mut render)
}

fn flow(source: std::net::IpAddr, address: std::net::IpAddr, port: u16) -> Flow {
    Flow::new(Proto::Tcp, source, address, port)
}

/// How many packets met a chain of mode iptables, in both families.
fn met(world: &World, chain: &str) -> u64 {
    let count = |program: &str| -> u64 {
        let listing = run(world.node.command(program).args(["-t", "nat", "-nvxL", chain]));
        let rules = listing.lines().skip(2).filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        rules.sum()
    };
    count("iptables-nft") + count("ip6tables-nft")
}

/// Every way to `web` shows these endpoints and the source that it should.
fn assert_serves(world: &World, web: &[u8]) {
    for family in Family::ALL {
        let to = endpoints(family, web, PORT);
        assert_reaches(&world.shell, flow(family.shell(), family.cluster_ip(1), 80), &to, Source::Kept, FEW);
        for (address, port) in [(family.cluster_ip(1), 80), (family.node(), NODE_PORT)] {
            assert_reaches(&world.client, flow(family.client(), address, port), &to, Source::Masqueraded, FEW);
        }
        assert_hairpin(world, family, web);
    }
}

/// A pod that is an endpoint reaches itself with the node's address, and others with its own.
fn assert_hairpin(world: &World, family: Family, web: &[u8]) {
    let n = web.iter().find(|n| **n < 2).copied().expect("an endpoint on this node");
    let own = family.endpoint(n);
    let tally = probe_many(&world.pods[usize::from(n)], flow(own, family.cluster_ip(1), 80), FEW);
    for outcome in tally.keys() {
        let Outcome::Reached(answer) = outcome else { panic!("{family:?}: a pod to its Service: {tally:?}") };
        let is_self = answer.endpoint == own;
        assert_eq!(answer.seen_source == own, !is_self, "{family:?}: {answer:?}");
        assert!(!is_self || World::is_node_address(answer.seen_source), "{family:?}: {answer:?}");
    }
    assert!(tally.len() == web.len(), "{family:?}: {tally:?}");
}

/// Asserts what the filter chains do, which is the same whichever rules come first.
fn assert_filters(world: &World) {
    for family in Family::ALL {
        // Mode iptables would refuse these, as there were no endpoints.
        let served = flow(family.shell(), family.cluster_ip(2), 80);
        assert_reaches(&world.shell, served, &endpoints(family, &NOW, PORT), Source::Kept, FEW);
        let served = flow(family.node(), family.cluster_ip(2), 80);
        let tally = probe_many(&world.node, served, FEW);
        assert!(tally.keys().all(|outcome| matches!(outcome, Outcome::Reached(_))), "{family:?}: {tally:?}");
        assert_outcome(&world.shell, flow(family.shell(), family.cluster_ip(3), 80), &Outcome::Refused);
    }
}

#[test]
fn our_rules_go_before_those_of_mode_iptables_that_were_there() {
    let world = World::new();
    iptables::install(&world.node, &STALE);
    nft::load(&world.node, &our_rules(&world));
    let chains = iptables::listing(&world.node);
    assert_serves(&world, &NOW);
    assert_filters(&world);
    assert_eq!(iptables::listing(&world.node), chains, "they are still there");
    assert_eq!(met(&world, "KUBE-SVC-WEB"), 0, "mode iptables translated something");
    assert_eq!(met(&world, "KUBE-MARK-MASQ"), 0, "mode iptables marked something");
}

#[test]
fn rules_of_mode_iptables_that_come_later_go_before_ours_and_nothing_is_done_twice() {
    let world = World::new();
    nft::load(&world.node, &our_rules(&world));
    iptables::install(&world.node, &STALE);
    assert_serves(&world, &STALE);
    assert_filters(&world);
}
