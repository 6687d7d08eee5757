//! Docker beside the proxy: dockerd sets the policy of chain FORWARD to drop, and accepts what its own containers send and receive. The rules
//! are those that dockerd writes for a bridge `docker0` without published ports.

use super::{NODE_PORT, assert_web_is_forwarded, iptables, objects, pods, tcp};
use crate::inspect::said;
use crate::judge::{FEW, Source, assert_not_reached, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::Namespace;
use crate::support::plan::Family;
use crate::support::proxy::{Proxy, config_in};
use crate::support::world::World;

const FILTER: &str = "*filter
:DOCKER - [0:0]
:DOCKER-ISOLATION-STAGE-1 - [0:0]
:DOCKER-ISOLATION-STAGE-2 - [0:0]
:DOCKER-USER - [0:0]
:FORWARD DROP [0:0]
-A FORWARD -j DOCKER-USER
-A FORWARD -j DOCKER-ISOLATION-STAGE-1
-A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -o docker0 -j DOCKER
-A FORWARD -i docker0 ! -o docker0 -j ACCEPT
-A FORWARD -i docker0 -o docker0 -j ACCEPT
-A DOCKER-ISOLATION-STAGE-1 -i docker0 ! -o docker0 -j DOCKER-ISOLATION-STAGE-2
-A DOCKER-ISOLATION-STAGE-1 -j RETURN
-A DOCKER-ISOLATION-STAGE-2 -o docker0 -j DROP
-A DOCKER-ISOLATION-STAGE-2 -j RETURN
-A DOCKER-USER -j RETURN
COMMIT
";

/// Table nat, with the loopback addresses and the addresses of the containers of the family.
fn nat(family: Family) -> String {
    let (loopback, containers) =
        if family == Family::V4 { ("127.0.0.0/8", "172.17.0.0/16") } else { ("::1/128", "fd00:172:17::/64") };
    format!(
        "*nat
:DOCKER - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
-A OUTPUT ! -d {loopback} -m addrtype --dst-type LOCAL -j DOCKER
-A POSTROUTING -s {containers} ! -o docker0 -j MASQUERADE
-A DOCKER -i docker0 -j RETURN
COMMIT
"
    )
}

/// What `deploy/WISHES.md` says to set: Docker leaves this chain to the administrator.
fn remedy(family: Family) -> String {
    let pods = pods(family);
    format!("*filter\n-I DOCKER-USER -s {pods} -j ACCEPT\n-I DOCKER-USER -d {pods} -j ACCEPT\nCOMMIT\n")
}

/// The bridge of Docker with a container on it, and the container's address.
fn container(node: &Namespace) -> (Namespace, std::net::IpAddr) {
    let container = Namespace::new("container");
    node.ip(&[
        "link add docker0 type bridge".to_owned(),
        "addr add 172.17.0.1/16 dev docker0".to_owned(),
        "link set docker0 up".to_owned(),
        format!("link add veth0 type veth peer name eth0 netns {}", container.name()),
        "link set veth0 master docker0 up".to_owned(),
    ]);
    container.ip(&["addr add 172.17.0.2/16 dev eth0", "link set eth0 up", "route add default via 172.17.0.1"]);
    (container, "172.17.0.2".parse().expect("an address"))
}

test_in_each_layout!(docker_drops_what_is_forwarded_to_services_until_docker_user_accepts_it);
fn docker_drops_what_is_forwarded_to_services_until_docker_user_accepts_it(layout: Layout) {
    // No rule of the proxy accepts what a firewall of the host drops (D21).
    let world = World::new();
    let (container, address) = container(&world.node);
    let _proxy = Proxy::start(&world.node, &config_in(layout), &objects());
    Family::ALL.into_iter().for_each(|family| assert_web_is_forwarded(&world, family));
    for family in Family::ALL {
        iptables(&world.node, family, FILTER);
        iptables(&world.node, family, &nat(family));
        // What is forwarded is lost, to endpoints on this node as well.
        for _ in 0..4 {
            assert_not_reached(&world.shell, tcp(family.shell(), family.cluster_ip(1), 80));
            assert_not_reached(&world.client, tcp(family.client(), family.node(), NODE_PORT));
        }
        // What the node itself sends is not forwarded.
        let own = tcp(family.node(), family.cluster_ip(1), 80);
        assert_reaches(&world.node, own, &endpoints(family, &super::WEB, 8080), Source::Kept, FEW);
    }
    // Docker accepts what its containers send.
    let from_container = tcp(address, Family::V4.cluster_ip(1), 80);
    assert_reaches(&container, from_container, &endpoints(Family::V4, &super::WEB, 8080), Source::Masqueraded, FEW);
    assert_is_named(&world.node);
    for family in Family::ALL {
        iptables(&world.node, family, &remedy(family));
        assert_web_is_forwarded(&world, family);
    }
    let (code, text) = said(&world.node, "explain --from 10.244.1.99 --to 10.96.0.1:80");
    assert_eq!(code, 0, "{text}");
}

/// `explain` and `check` name the table and the chain (Q1).
fn assert_is_named(node: &Namespace) {
    for question in ["--from 10.244.1.99 --to 10.96.0.1:80", "--from 203.0.113.7 --to 192.0.2.2:30080"] {
        let (code, text) = said(node, &format!("explain {question}"));
        let reason = "another program (table ip filter, chain FORWARD) drops the packet, by the policy of the chain";
        assert!(code == 1 && text.contains(reason), "{text}");
    }
    let (_, text) = said(node, "check");
    assert!(text.contains("chain FORWARD of table ip filter"), "{text}");
}
