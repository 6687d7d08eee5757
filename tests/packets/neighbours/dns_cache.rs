//! NodeLocal DNSCache on the cluster IP of the DNS Service: a server on the node itself has this address and a link-local one, and rules of
//! priority `raw` keep its packets from connection tracking, and so from the rules of the Service.

use std::fmt::Write as _;
use std::net::IpAddr;

use serde_json::Value;

use super::iptables;
use crate::inspect::said;
use crate::judge::{FEW, Source, assert_not_reached, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::{Namespace, run};
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::{Family, host_prefix};
use crate::support::probe::{Flow, Outcome, Proto, probe_served};
use crate::support::proxy::{Proxy, config_in};
use crate::support::server::{Answer, Server};
use crate::support::world::World;

/// The name that node-local-dns gives its interface.
const INTERFACE: &str = "nodelocaldns";
const PORTS: [(&str, Proto, u16); 2] = [("dns", Proto::Udp, 9090), ("dns-tcp", Proto::Tcp, 9090)];
const PROTOCOLS: [Proto; 2] = [Proto::Udp, Proto::Tcp];
const DNS: [u8; 2] = [0, 2];

/// The addresses of the cache: its own, and the cluster IP of the DNS Service.
fn addresses(family: Family) -> [IpAddr; 2] {
    let own = if family == Family::V4 { "169.254.20.10" } else { "fd00:169:254:20::10" };
    [own.parse().expect("an address"), family.cluster_ip(10)]
}

/// Adds (`-A`) or deletes (`-D`) the rules that node-local-dns has.
fn rules(node: &Namespace, change: &str) {
    for family in Family::ALL {
        let [mut raw, mut filter] = ["*raw\n", "*filter\n"].map(str::to_owned);
        for ip in addresses(family) {
            for protocol in ["tcp", "udp"] {
                let (to, from) =
                    (format!("-p {protocol} -d {ip} --dport 53"), format!("-p {protocol} -s {ip} --sport 53"));
                for rule in [format!("PREROUTING {to}"), format!("OUTPUT {to}"), format!("OUTPUT {from}")] {
                    writeln!(raw, "{change} {rule} -j NOTRACK").expect("a String takes all");
                }
                for rule in [format!("INPUT {to}"), format!("OUTPUT {from}")] {
                    writeln!(filter, "{change} {rule} -j ACCEPT").expect("a String takes all");
                }
            }
        }
        iptables(node, family, &format!("{raw}COMMIT\n{filter}COMMIT\n"));
    }
}

/// Makes the interface with the addresses. node-local-dns makes a dummy interface; where the kernel has none, a bridge without ports does
/// the same: it holds addresses.
fn interface(node: &Namespace) {
    let add = |kind: &&str| {
        let mut ip = node.command("ip");
        ip.args(["link", "add", INTERFACE, "type", kind]).status().is_ok_and(|status| status.success())
    };
    assert!(["dummy", "bridge"].iter().any(add), "neither a dummy interface nor a bridge can be made");
    let add = |ip| match Family::of(ip) {
        Family::V4 => format!("addr add {} dev {INTERFACE}", host_prefix(ip)),
        // Without a preferred lifetime, as `deploy/WISHES.md` says, masquerading never picks the address.
        Family::V6 => format!("addr add {} dev {INTERFACE} nodad preferred_lft 0", host_prefix(ip)),
    };
    let all = Family::ALL.into_iter().flat_map(addresses).map(add);
    node.ip(&all.chain([format!("link set {INTERFACE} up")]).collect::<Vec<_>>());
}

/// Who asks: a pod and the node itself.
fn askers(world: &World, family: Family) -> [(&Namespace, IpAddr); 2] {
    [(&world.shell, family.shell()), (&world.node, family.node())]
}

/// Each query of a pod and of the node is answered by the cache, which sees who asked.
fn assert_cache_answers(world: &World) {
    for family in Family::ALL {
        for ((from, source), address) in
            askers(world, family).into_iter().flat_map(|asker| addresses(family).map(|address| (asker, address)))
        {
            for proto in PROTOCOLS {
                let flow = Flow::new(proto, source, address, 53);
                let answer = Answer { endpoint: address, port: 53, seen_source: source };
                assert_eq!(probe_served(from, flow), Outcome::Reached(answer), "{flow:?}");
            }
        }
    }
}

/// Each query to the cluster IP is answered by the endpoints.
fn assert_endpoints_answer(world: &World) {
    for family in Family::ALL {
        for ((from, source), proto) in
            askers(world, family).into_iter().flat_map(|asker| PROTOCOLS.map(|proto| (asker, proto)))
        {
            let flow = Flow::new(proto, source, family.cluster_ip(10), 53);
            assert_reaches(from, flow, &endpoints(family, &DNS, 9090), Source::Kept, FEW);
        }
    }
}

fn slices_of(which: &[u8]) -> Vec<Value> {
    slices("kube-system", "kube-dns", which, &PORTS)
}

test_in_each_layout!(a_dns_cache_on_the_cluster_ip_answers_while_it_is_there_and_endpoints_answer_otherwise);
fn a_dns_cache_on_the_cluster_ip_answers_while_it_is_there_and_endpoints_answer_otherwise(layout: Layout) {
    // Packets that another program keeps from connection tracking go where they would go without the Service (F11).
    let world = World::new();
    let dns = service("kube-system", "kube-dns").cluster_ips(10);
    let dns = dns.port("dns", Proto::Udp, 53).port("dns-tcp", Proto::Tcp, 53).json();
    let mut proxy =
        Proxy::start(&world.node, &config_in(layout), &[vec![node(), service_cidr(), dns], slices_of(&DNS)].concat());
    assert_endpoints_answer(&world);

    interface(&world.node);
    let listens: Vec<IpAddr> = Family::ALL.into_iter().flat_map(addresses).collect();
    let cache = Server::start(&world.node, &listens, &[53]);
    // An address of the node is not enough: the rules of the Service come first.
    assert_endpoints_answer(&world);
    rules(&world.node, "-A");
    assert_cache_answers(&world);
    assert_is_explained(&world);
    // The cache has answers also while no endpoint is ready; the Service refuses no packet to it.
    proxy.apply(&slices_of(&[]));
    assert_cache_answers(&world);
    proxy.apply(&slices_of(&DNS));
    proxy.stop();
    proxy.launch();
    assert_cache_answers(&world);

    // A cache that dies without deleting its rules leaves no DNS.
    drop(cache);
    let lost = Flow::new(Proto::Udp, Family::V4.shell(), Family::V4.cluster_ip(10), 53);
    assert_not_reached(&world.shell, lost);
    rules(&world.node, "-D");
    assert_endpoints_answer(&world);
    run(world.node.command("ip").args(["link", "del", INTERFACE]));
    assert_endpoints_answer(&world);
}

/// `explain` says that the node itself gets the packet, and which rule is the reason (Q1).
fn assert_is_explained(world: &World) {
    for question in ["--from 10.244.1.99 --to 10.96.0.10:53/udp", "--from fd00:10:244:1::99 --to [fd00:10:96::10]:53"] {
        let (code, text) = said(&world.node, &format!("explain {question}"));
        let reason = "chain PREROUTING) keeps the packet out of connection tracking, so that no Service is reached";
        // The exit code says that no endpoint gets it.
        assert!(code == 1 && text.contains(reason), "{text}");
    }
}
