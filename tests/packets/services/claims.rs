//! Two Services that claim the same frontend: which of them gets the packets. In each test `shop/web` is what others rely on, and
//! `tenant/taker`, which is older, is what an ordinary user of a namespace may make.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::judge::{FEW, Source, assert_outcome, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::objects::{ServiceBuilder, node, service, service_cidr, slice, slices};
use crate::support::plan::Family;
use crate::support::probe::{Flow, Outcome, Proto, probe};
use crate::support::proxy::{Proxy, config_in};
use crate::support::world::World;

const WEB: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];
const TAKER: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 9090)];
/// The endpoints of each: no probe can be mistaken.
const WEB_ENDPOINTS: [u8; 2] = [0, 2];
const TAKER_ENDPOINTS: [u8; 1] = [1];

/// The Service with cluster IP 1, as it is made today.
fn web() -> ServiceBuilder {
    service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80)
}

/// A Service with these external IPs, three years older than all others.
fn taker(port: u16, external_ips: impl IntoIterator<Item = IpAddr>) -> Value {
    let taker = service("tenant", "taker").cluster_ips(9).port("http", Proto::Tcp, port);
    let mut taker = external_ips.into_iter().fold(taker, ServiceBuilder::external_ip).json();
    taker["metadata"]["creationTimestamp"] = json!("2023-01-01T00:00:00Z");
    taker
}

/// Everything but `web` and `taker` themselves.
fn surroundings() -> Vec<Value> {
    let mut objects = vec![node(), service_cidr()];
    objects.extend(slices("shop", "web", &WEB_ENDPOINTS, &WEB));
    objects.extend(slices("tenant", "taker", &TAKER_ENDPOINTS, &TAKER));
    objects
}

fn from_shell(family: Family, address: IpAddr, port: u16) -> Flow {
    Flow::new(Proto::Tcp, family.shell(), address, port)
}

fn assert_web_serves(world: &World, to: fn(Family) -> IpAddr, port: u16, source: Source) {
    for family in Family::ALL {
        let web = endpoints(family, &WEB_ENDPOINTS, 8080);
        assert_reaches(&world.shell, from_shell(family, to(family), port), &web, source, FEW);
    }
}

fn assert_taker_serves(world: &World, to: fn(Family) -> IpAddr, port: u16) {
    for family in Family::ALL {
        let taker = endpoints(family, &TAKER_ENDPOINTS, 9090);
        assert_reaches(&world.shell, from_shell(family, to(family), port), &taker, Source::Masqueraded, 3);
    }
}

test_in_each_layout!(an_external_ip_never_takes_the_traffic_of_a_cluster_ip);
fn an_external_ip_never_takes_the_traffic_of_a_cluster_ip(layout: Layout) {
    // A cluster IP comes before an external IP, and an external IP in a ServiceCIDR is not used (A16, A17).
    let world = World::new();
    let cluster_ip = |family: Family| family.cluster_ip(1);
    let objects = [surroundings(), vec![taker(80, Family::ALL.map(cluster_ip)), web().json()]].concat();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    assert_web_serves(&world, cluster_ip, 80, Source::Kept);

    // While no Service has the address, it is a free address of the ServiceCIDR.
    proxy.delete(&[web().json()]);
    for family in Family::ALL {
        assert_outcome(&world.shell, from_shell(family, cluster_ip(family), 80), &Outcome::Dropped);
    }
    proxy.apply(&[web().json()]);
    assert_web_serves(&world, cluster_ip, 80, Source::Kept);
    let logged = |log: &str| log.matches("10.96.0.1 port 80/tcp").count();
    assert!(logged(&proxy.log()) >= 1, "the claim that lost is in the log");
    assert_eq!(proxy.series("kubeproxy_nft_lost_claims"), [2.0], "a frontend in each family");
    proxy.delete(&[taker(80, [])]);
    assert_eq!(proxy.series("kubeproxy_nft_lost_claims"), [0.0]);
}

test_in_each_layout!(without_a_service_cidr_a_cluster_ip_takes_its_frontend_back_when_it_comes);
fn without_a_service_cidr_a_cluster_ip_takes_its_frontend_back_when_it_comes(layout: Layout) {
    let world = World::new();
    let cluster_ip = |family: Family| family.cluster_ip(1);
    let mut objects = [surroundings(), vec![taker(80, Family::ALL.map(cluster_ip))]].concat();
    objects.remove(1);
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    assert_taker_serves(&world, cluster_ip, 80);
    proxy.apply(&[web().json()]);
    assert_web_serves(&world, cluster_ip, 80, Source::Kept);
    proxy.delete(&[web().json()]);
    assert_taker_serves(&world, cluster_ip, 80);
}

test_in_each_layout!(a_load_balancer_ip_comes_before_an_external_ip_and_both_before_a_node_port);
fn a_load_balancer_ip_comes_before_an_external_ip_and_both_before_a_node_port(layout: Layout) {
    // The kind of a claim decides, not its age (A16).
    let world = World::new();
    let balancer = |family: Family| family.load_balancer_ip(1);
    let node_address = |family: Family| family.node();
    let with_balancer = || Family::ALL.iter().fold(web(), |web, family| web.load_balancer_ip(balancer(*family)));
    let objects = [surroundings(), vec![taker(80, Family::ALL.map(balancer)), with_balancer().json()]].concat();
    let mut config = config_in(layout);
    config["nodePortAddresses"] = json!(["0.0.0.0/0", "::/0"]);
    let mut proxy = Proxy::start(&world.node, &config, &objects);
    assert_web_serves(&world, balancer, 80, Source::Masqueraded);

    // The address of the node as an external IP, on the number of a node port: for this address the external IP.
    proxy.apply(&[taker(30080, Family::ALL.map(node_address)), web().node_port(30080).json()]);
    assert_taker_serves(&world, node_address, 30080);
    assert_web_serves(&world, |family| family.node_second(), 30080, Source::Masqueraded);
    proxy.delete(&[taker(30080, [])]);
    assert_web_serves(&world, node_address, 30080, Source::Masqueraded);
}

test_in_each_layout!(an_address_of_the_node_serves_as_external_and_as_load_balancer_ip);
fn an_address_of_the_node_serves_as_external_and_as_load_balancer_ip(layout: Layout) {
    // As some load balancers in the cluster have it.
    let world = World::new();
    let node_address = |family: Family| family.node();
    let external = Family::ALL.iter().fold(web(), |web, family| web.external_ip(node_address(*family)));
    let balanced = Family::ALL.iter().fold(web(), |web, family| web.load_balancer_ip(node_address(*family)));
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &[surroundings(), vec![external.json()]].concat());
    assert_web_serves(&world, node_address, 80, Source::Masqueraded);
    proxy.apply(&[balanced.json()]);
    assert_web_serves(&world, node_address, 80, Source::Masqueraded);
}

test_in_each_layout!(no_external_ip_takes_the_connections_to_the_endpoints_of_the_api_server);
fn no_external_ip_takes_the_connections_to_the_endpoints_of_the_api_server(layout: Layout) {
    // External IPs that are endpoints of the API server are not used (A17).
    // Endpoint 3 stands for the API server, with port 8080; its other ports are as free as any.
    let world = World::new();
    let kubernetes = service("default", "kubernetes").cluster_ips(8).port("https", Proto::Tcp, 443).json();
    let api = Family::ALL.map(|family| {
        let name = format!("kubernetes-{family:?}").to_lowercase();
        slice("default", "kubernetes", &name, &[family.endpoint(3)], &[("https", Proto::Tcp, 8080)])
    });
    let take = |port: u16| taker(port, Family::ALL.map(|family| family.endpoint(3)));
    let objects = [surroundings(), vec![take(8080), kubernetes], api.to_vec()].concat();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    for family in Family::ALL {
        let itself = endpoints(family, &[3], 8080);
        let direct = Flow::new(Proto::Tcp, family.node(), family.endpoint(3), 8080);
        assert_reaches(&world.node, direct, &itself, Source::Kept, 3);
        assert_reaches(&world.shell, from_shell(family, family.cluster_ip(8), 443), &itself, Source::Kept, 3);
    }
    assert!(proxy.log().contains("10.244.2.11 port 8080/tcp"), "the claim that lost is in the log");
    proxy.apply(&[take(8081)]);
    assert_taker_serves(&world, |family| family.endpoint(3), 8081);
    // A load balancer IP, which only a controller writes, may lead there: some clusters have a load balancer of their own before the API
    // servers.
    let balanced = service("kube-system", "api-vip").cluster_ips(7).port("http", Proto::Tcp, 8080);
    let balanced = Family::ALL.iter().fold(balanced, |vip, family| vip.load_balancer_ip(family.endpoint(3)));
    proxy.apply(&[slices("kube-system", "api-vip", &WEB_ENDPOINTS, &WEB), vec![balanced.json()]].concat());
    assert_web_serves(&world, |family| family.endpoint(3), 8080, Source::Masqueraded);
}

test_in_each_layout!(addresses_that_are_not_for_others_are_no_external_or_load_balancer_ips);
fn addresses_that_are_not_for_others_are_no_external_or_load_balancer_ips(layout: Layout) {
    // Loopback, link-local and such addresses are not used (A17).
    let world = World::new();
    // The node's addresses on the links to its pods and neighbours, and its loopback.
    let link_local: IpAddr = "169.254.2.2".parse().expect("an address");
    let special = ["127.0.0.1", "::1", "169.254.2.2", "169.254.169.254", "224.0.0.1", "ff02::1", "0.0.0.0", "::"];
    let special = || special.iter().map(|text| text.parse::<IpAddr>().expect("an address"));
    let mut balanced = taker(80, []);
    balanced["spec"]["type"] = json!("LoadBalancer");
    let ingress: Vec<Value> = special().map(|ip| json!({ "ip": ip, "ipMode": "VIP" })).collect();
    balanced["status"]["loadBalancer"]["ingress"] = ingress.into();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &[surroundings(), vec![web().json()]].concat());
    for object in [taker(80, special()), balanced] {
        // No program listens on port 80: a reset shows that the packet arrived where it was sent.
        proxy.apply(&[object]);
        for family in Family::ALL {
            let own = Flow::new(Proto::Tcp, family.loopback(), family.loopback(), 80);
            assert_outcome(&world.node, own, &Outcome::Reset);
        }
        assert_outcome(&world.client, Flow::new(Proto::Tcp, Family::V4.client(), link_local, 80), &Outcome::Reset);
        let metadata = "169.254.169.254".parse().expect("an address");
        let outcome = probe(&world.node, Flow::new(Proto::Tcp, Family::V4.node(), metadata, 80));
        assert!(!matches!(outcome, Outcome::Reached(_)), "{outcome:?}");
        assert!(proxy.log().contains("\\\"169.254.169.254\\\"") || proxy.log().contains("\"169.254.169.254\""));
        proxy.delete(&[taker(80, [])]);
    }
}
