//! Addresses of Services as a whole, where the configuration says so: the node answers pings, and refuses ports that no Service has.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::inspect::{command, outcome};
use crate::judge::{Source, assert_outcome, assert_reaches, assert_stopped_on_node, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::netns::Namespace;
use crate::support::nft;
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::Family;
use crate::support::probe::{Flow, Outcome, Proto, probe, probe_served};
use crate::support::proxy::{Proxy, config_in};
use crate::support::server::Server;
use crate::support::world::World;

/// The load balancer IP with `ipMode: Proxy`.
const PROXIED: u8 = 9;
/// A port that a program of the node serves, and no Service.
const OF_NODE: u16 = 7070;

/// A Service with two ports and an address of each kind, and one whose external IP is an address of the node.
fn objects() -> Vec<Value> {
    let both = |web, add: fn(_, Family) -> _| Family::ALL.into_iter().fold(web, add);
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).port("alt", Proto::Tcp, 8080);
    let web = both(web, |web, family| web.external_ip(family.external_ip(1)));
    let mut web = both(web, |web, family| web.load_balancer_ip(family.load_balancer_ip(1))).json();
    let ingress = web.pointer_mut("/status/loadBalancer/ingress").and_then(Value::as_array_mut).expect("it has some");
    ingress.extend(Family::ALL.map(|family| json!({ "ip": family.load_balancer_ip(PROXIED), "ipMode": "Proxy" })));
    // Both Services have the external IP of the first.
    let own = service("shop", "own").cluster_ips(2).port("other", Proto::Tcp, 90);
    let own = both(own, |own, family| own.external_ip(family.node_second()).external_ip(family.external_ip(1)));
    let mut objects = vec![node(), service_cidr(), web, own.json()];
    objects.extend(slices("shop", "web", &[0, 2], &[("http", Proto::Tcp, 8080), ("alt", Proto::Tcp, 9090)]));
    objects
}

fn switched_on(layout: Layout, fields: &[&str]) -> Value {
    let mut config = config_in(layout);
    fields.iter().for_each(|field| config["nftables"][field] = json!(true));
    config
}

/// The places that a packet comes from: a client outside, a pod, and the node itself.
fn places(world: &World, family: Family) -> [(&Namespace, IpAddr); 3] {
    [(&world.client, family.client()), (&world.shell, family.shell()), (&world.node, family.node())]
}

fn ping(family: Family, source: IpAddr, address: IpAddr) -> Flow {
    assert_eq!(Family::of(address), family);
    Flow::new(Proto::Ping, source, address, 0)
}

fn is_answered(from: &Namespace, flow: Flow) -> bool {
    matches!(probe_served(from, flow), Outcome::Reached(_))
}

/// A packet to the node's own address, which is an external IP too, reaches the programs of the node, whatever is switched on.
fn assert_own_address_is_the_nodes(world: &World) {
    let _server = Server::start(&world.node, &Family::ALL.map(Family::node_second), &[OF_NODE]);
    for family in Family::ALL {
        for (from, source) in places(world, family) {
            assert!(is_answered(from, ping(family, source, family.node_second())), "{family:?} from {source}");
            let to_program = Flow::new(Proto::Tcp, source, family.node_second(), OF_NODE);
            assert!(is_answered(from, to_program), "{to_program:?}");
        }
        let (verdict, reason) = explained(world, family.client(), &format!("{}/icmp", family.node_second()));
        assert!(verdict == "passed" && !reason.to_string().contains("answers pings"), "{verdict}: {reason}");
    }
}

/// What the tables hold is what the configuration asks for, and nft loads its own listing of them.
fn assert_verified_and_listed(world: &World, proxy: &Proxy<'_>) {
    let path = |path: &std::path::Path| path.display().to_string();
    let (config, manifests) = (path(&proxy.config_path()), path(proxy.manifests().path()));
    let args = ["verify", "--config", &config, "--manifests", &manifests];
    let (code, text, errors) = outcome(&mut command(&world.node, &args));
    assert_eq!(code, Some(0), "{text}{errors}");
    let (listing, fresh) = (nft::list_ruleset(&world.node), Namespace::new("fresh"));
    nft::load(&fresh, &nft::without_owner(&listing));
    assert_eq!(nft::normalised(&nft::list_ruleset(&fresh)), nft::normalised(&listing));
}

fn explained(world: &World, from: IpAddr, to: &str) -> (Value, Value) {
    let args = ["explain", "--from", &from.to_string(), "--to", to, "-o", "json"];
    let (_, text, errors) = outcome(&mut command(&world.node, &args));
    let mut answer: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}{errors}"));
    assert_eq!(answer["endpoints"], json!([]), "{answer:#}");
    (answer["verdict"].take(), answer["reason"].take())
}

test_in_each_layout!(the_node_answers_pings_to_addresses_of_services_where_that_is_switched_on);
fn the_node_answers_pings_to_addresses_of_services_where_that_is_switched_on(layout: Layout) {
    // From outside, from a pod and from the node, in both families (D25).
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &switched_on(layout, &["answerPings"]), &objects());
    for family in Family::ALL {
        let answered = [family.cluster_ip(1), family.external_ip(1), family.load_balancer_ip(1)];
        for (from, source) in places(&world, family) {
            for address in answered {
                assert!(is_answered(from, ping(family, source, address)), "{address} from {source}");
            }
            let proxied = ping(family, source, family.load_balancer_ip(PROXIED));
            assert_eq!(probe(from, proxied), Outcome::Dropped, "{proxied:?}");
        }
        // Ports are as before.
        let unused = Flow::new(Proto::Tcp, family.client(), family.external_ip(1), 81);
        assert_outcome(&world.client, unused, &Outcome::Dropped);
        let served = Flow::new(Proto::Tcp, family.client(), family.external_ip(1), 80);
        assert_reaches(&world.client, served, &endpoints(family, &[0, 2], 8080), Source::Masqueraded, 40);
        let (verdict, reason) = explained(&world, family.client(), &format!("{}/icmp", family.external_ip(1)));
        let answers = format!("this node answers pings to addresses of Services, at {}", family.node());
        assert_eq!((verdict, reason), (json!("passed"), json!(answers)));
    }
    assert_own_address_is_the_nodes(&world);
    assert_verified_and_listed(&world, &proxy);
    // Switched off again, nothing of it is left.
    proxy.stop();
    proxy.configure(&config_in(layout));
    proxy.launch();
    assert_outcome(&world.client, ping(Family::V4, Family::V4.client(), Family::V4.external_ip(1)), &Outcome::Dropped);
    let listing = nft::list_ruleset(&world.node);
    // Emptied chains are deleted a second later (F8).
    assert!(!listing.contains("external-ips") && !listing.contains("jump KUBE-PINGS"), "{listing}");
}

test_in_each_layout!(ports_of_external_and_load_balancer_ips_that_no_service_has_are_refused_where_that_is_switched_on);
fn ports_of_external_and_load_balancer_ips_that_no_service_has_are_refused_where_that_is_switched_on(layout: Layout) {
    // TCP with a reset, everything else with ICMP port unreachable, ping included (D26).
    let world = World::new();
    let proxy = Proxy::start(&world.node, &switched_on(layout, &["refuseUnusedPorts"]), &objects());
    let refused = [Proto::Udp, Proto::Sctp, Proto::Ping].map(|proto| (proto, Outcome::Refused));
    let unused: Vec<(Proto, Outcome)> = refused.into_iter().chain([(Proto::Tcp, Outcome::Reset)]).collect();
    for family in Family::ALL {
        for (from, source) in places(&world, family) {
            for address in [family.external_ip(1), family.load_balancer_ip(1)] {
                for (proto, expected) in &unused {
                    let flow = Flow::new(*proto, source, address, 81);
                    if source == family.node() {
                        assert_stopped_on_node(from, flow, expected);
                    } else {
                        assert_outcome(from, flow, expected);
                    }
                }
            }
            let proxied = Flow::new(Proto::Tcp, source, family.load_balancer_ip(PROXIED), 80);
            assert_eq!(probe(from, proxied), Outcome::Dropped, "{proxied:?}");
        }
        let served = Flow::new(Proto::Tcp, family.client(), family.load_balancer_ip(1), 80);
        assert_reaches(&world.client, served, &endpoints(family, &[0, 2], 8080), Source::Masqueraded, 40);
        // Without endpoints, a port that a Service has is refused as ever (D3).
        let empty = Flow::new(Proto::Tcp, family.client(), family.external_ip(1), 90);
        assert_outcome(&world.client, empty, &Outcome::Refused);
        let unused = std::net::SocketAddr::new(family.external_ip(1), 81);
        let (verdict, reason) = explained(&world, family.client(), &unused.to_string());
        let why = format!("{} is an external or load balancer IP, but no Service has TCP port 81 on it", unused.ip());
        assert_eq!((verdict, reason), (json!("refused"), json!(why)));
    }
    assert_own_address_is_the_nodes(&world);
    assert_verified_and_listed(&world, &proxy);
}

test_in_each_layout!(an_endpoint_that_has_an_external_ip_as_its_address_is_reached);
fn an_endpoint_that_has_an_external_ip_as_its_address_is_reached(layout: Layout) {
    // The external IP is the address of another machine, as the API server's may be: what is translated to it passes (D26).
    let world = World::new();
    let mut objects = objects();
    let other = Family::ALL
        .into_iter()
        .fold(service("shop", "other").cluster_ips(3), |other, family| other.external_ip(family.endpoint(2)));
    objects.push(other.port("none", Proto::Tcp, 99).json());
    let _proxy = Proxy::start(&world.node, &switched_on(layout, &["refuseUnusedPorts", "answerPings"]), &objects);
    for family in Family::ALL {
        let to_web = Flow::new(Proto::Tcp, family.shell(), family.cluster_ip(1), 80);
        assert_reaches(&world.shell, to_web, &endpoints(family, &[0, 2], 8080), Source::Kept, 40);
    }
}
