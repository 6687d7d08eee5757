//! Every kind of frontend x every protocol x both families: endpoints and sources.

use std::collections::BTreeSet;
use std::net::IpAddr;

use serde_json::{Value, json};

use crate::judge::{FEW, Source, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::Namespace;
use crate::support::nft::list_ruleset;
use crate::support::objects::{ServiceBuilder, node, service, service_cidr, slice, slices};
use crate::support::plan::Family;
use crate::support::probe::{Flow, Proto};
use crate::support::proxy::{Proxy, config, config_in};
use crate::support::world::World;

const ALL: [u8; 4] = [0, 1, 2, 3];
const PORTS: [(&str, Proto, u16); 3] =
    [("tcp", Proto::Tcp, 8080), ("udp", Proto::Udp, 8080), ("sctp", Proto::Sctp, 8080)];

/// A Service with every kind of frontend, all number 1, for all three protocols.
fn every_frontend() -> ServiceBuilder {
    let web = service("shop", "web").cluster_ips(1);
    let web = PORTS.iter().fold(web, |web, (name, proto, _)| web.port(name, *proto, 80).node_port(30080));
    Family::ALL
        .iter()
        .fold(web, |web, family| web.external_ip(family.external_ip(1)).load_balancer_ip(family.load_balancer_ip(1)))
}

/// The frontends of [`every_frontend`] in one family; the cluster IP comes first.
fn frontends(family: Family) -> [(IpAddr, u16); 4] {
    [(family.cluster_ip(1), 80), (family.external_ip(1), 80), (family.load_balancer_ip(1), 80), (family.node(), 30080)]
}

fn objects() -> Vec<Value> {
    let mut objects = vec![node(), service_cidr(), every_frontend().json()];
    objects.extend(slices("shop", "web", &ALL, &PORTS));
    objects
}

fn flows(source: fn(Family) -> IpAddr) -> impl Iterator<Item = (Family, Flow, bool)> {
    let families = Family::ALL.into_iter().flat_map(|family| Proto::ALL.map(|proto| (family, proto)));
    families.flat_map(move |(family, proto)| {
        frontends(family)
            .into_iter()
            .enumerate()
            .map(move |(kind, (address, port))| (family, Flow::new(proto, source(family), address, port), kind == 0))
    })
}

fn check(from: &Namespace, source: fn(Family) -> IpAddr, count: u32, seen: impl Fn(bool) -> Source) {
    for (family, flow, is_cluster_ip) in flows(source) {
        assert_reaches(from, flow, &endpoints(family, &ALL, 8080), seen(is_cluster_ip), count);
    }
}

test_in_each_layout!(every_frontend_reaches_all_endpoints_of_its_family_evenly);
fn every_frontend_reaches_all_endpoints_of_its_family_evenly(layout: Layout) {
    // Every address of a Service leads to all its endpoints of the family, evenly, for TCP, UDP and SCTP; traffic from outside is
    // masqueraded (D1, D3, D5, D8, D9, D11, D23, D24).
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(layout), &objects());
    check(&world.client, Family::client, 400, |_| Source::Masqueraded);
    check(
        &world.shell,
        Family::shell,
        FEW,
        |is_cluster_ip| if is_cluster_ip { Source::Kept } else { Source::Masqueraded },
    );
    check(&world.node, Family::node_second, FEW, |_| Source::Masqueraded);
}

test_in_each_layout!(masquerade_all_hides_pods_from_cluster_ips);
fn masquerade_all_hides_pods_from_cluster_ips(layout: Layout) {
    // With `masqueradeAll` connections of pods to a cluster IP are masqueraded too (D8).
    let world = World::new();
    let mut config = config_in(layout);
    config["nftables"]["masqueradeAll"] = true.into();
    let _proxy = Proxy::start(&world.node, &config, &objects());
    check(&world.shell, Family::shell, FEW, |_| Source::Masqueraded);
}

// A file for mode iptables or ipvs, or without a mode, masquerades as its section `iptables` says, and one for mode nftables as its section
// `nftables` says (D8, D9, P12).
#[test]
fn each_mode_masquerades_as_the_section_of_upstream_says() {
    let world = World::new();
    for (mode, source, mark) in [
        ("iptables", Source::Masqueraded, "0x00100000"),
        ("ipvs", Source::Masqueraded, "0x00100000"),
        ("", Source::Masqueraded, "0x00100000"),
        ("nftables", Source::Kept, "0x00004000"),
    ] {
        let mut config = config();
        config["mode"] = mode.into();
        config["iptables"] = json!({ "masqueradeAll": true, "masqueradeBit": 20 });
        let proxy = Proxy::start(&world.node, &config, &objects());
        check(
            &world.shell,
            Family::shell,
            FEW,
            |is_cluster_ip| if is_cluster_ip { source } else { Source::Masqueraded },
        );
        let rules = list_ruleset(&world.node);
        let marks = rules.split_whitespace().filter(|word| word.starts_with("0x00") && *word != "0x00000000");
        assert_eq!(marks.collect::<BTreeSet<_>>(), [mark].into(), "{mode:?}");
        assert_eq!(proxy.log().contains("iptables.masqueradeAll has no effect in mode nftables"), mode == "nftables");
    }
}

test_in_each_layout!(a_pod_reaches_itself_through_its_service);
fn a_pod_reaches_itself_through_its_service(layout: Layout) {
    // A connection of an endpoint to itself is masqueraded (D10).
    let world = World::new();
    let mut objects = vec![
        node(),
        service("shop", "own").cluster_ips(2).port("http", Proto::Tcp, 80).port("dns", Proto::Udp, 53).json(),
    ];
    objects.extend(slices("shop", "own", &[0], &[("http", Proto::Tcp, 8080), ("dns", Proto::Udp, 9090)]));
    let _proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    for family in Family::ALL {
        for (proto, port, target) in [(Proto::Tcp, 80, 8080), (Proto::Udp, 53, 9090)] {
            let own = endpoints(family, &[0], target);
            let to = |source| Flow::new(proto, source, family.cluster_ip(2), port);
            assert_reaches(&world.pods[0], to(family.endpoint(0)), &own, Source::Masqueraded, 3);
            assert_reaches(&world.pods[1], to(family.endpoint(1)), &own, Source::Kept, 3);
        }
    }
}

test_in_each_layout!(ports_stay_apart_and_slices_come_together);
fn ports_stay_apart_and_slices_come_together(layout: Layout) {
    // Ports differ by name, and all slices of a Service are merged (A5, B4).
    let world = World::new();
    let ports = [("http", Proto::Tcp, 8080), ("admin", Proto::Tcp, 9090)];
    let web = service("shop", "web").cluster_ips(3).port("http", Proto::Tcp, 80).port("admin", Proto::Tcp, 81);
    let mut objects = vec![node(), web.json()];
    for family in Family::ALL {
        let addresses = |which: [u8; 2]| which.map(|n| family.endpoint(n));
        objects.push(slice("shop", "web", &format!("web-a-{family:?}").to_lowercase(), &addresses([0, 2]), &ports));
        objects.push(slice(
            "shop",
            "web",
            &format!("web-b-{family:?}").to_lowercase(),
            &addresses([1, 3]),
            &ports[..1],
        ));
    }
    let _proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    for family in Family::ALL {
        let to = |port| Flow::new(Proto::Tcp, family.shell(), family.cluster_ip(3), port);
        assert_reaches(&world.shell, to(80), &endpoints(family, &ALL, 8080), Source::Kept, FEW);
        assert_reaches(&world.shell, to(81), &endpoints(family, &[0, 2], 9090), Source::Kept, FEW);
    }
}
