//! Which objects count: Services that are handled, their addresses, and what of their slices is an endpoint.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::judge::{FEW, Source, assert_not_reached, assert_outcome, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::objects::{ServiceBuilder, node, service, service_cidr, slice, slices};
use crate::support::plan::{Family, NODE, OTHER_NODE, host_prefix};
use crate::support::probe::{Flow, Outcome, Proto};
use crate::support::proxy::{Proxy, config_in};
use crate::support::world::World;

const ALL: [u8; 4] = [0, 1, 2, 3];
const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];
const ZONE: &str = "zone-a";

/// `shop/web` with cluster IP 1 and port 80.
fn web() -> ServiceBuilder {
    service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80)
}

/// The objects that every cluster has, and `more`.
fn cluster(more: impl IntoIterator<Item = Value>) -> Vec<Value> {
    [node(), service_cidr()].into_iter().chain(more).collect()
}

/// From the shell pod over TCP.
fn to(address: IpAddr, port: u16) -> Flow {
    Flow::new(Proto::Tcp, Family::of(address).shell(), address, port)
}

/// Port 80 of cluster IP `n` reaches exactly these endpoints.
fn assert_serves(world: &World, family: Family, n: u8, which: &[u8]) {
    let flow = to(family.cluster_ip(n), 80);
    assert_reaches(&world.shell, flow, &endpoints(family, which, 8080), Source::Kept, FEW);
}

/// The slices of `shop/web` with all endpoints, in both families, each endpoint changed by its number.
fn changed_slices(change: impl Fn(usize, &mut Value)) -> Vec<Value> {
    let mut slices = slices("shop", "web", &ALL, &PORTS);
    for slice in &mut slices {
        let endpoints = slice["endpoints"].as_array_mut().expect("a slice lists endpoints");
        endpoints.iter_mut().enumerate().for_each(|(n, endpoint)| change(n, endpoint));
    }
    slices
}

/// A world with `shop/web` on slices changed in this way, and its proxy's rules; exactly `which` are used.
fn assert_used(layout: Layout, change: impl Fn(usize, &mut Value), which: &[u8]) {
    let world = World::new();
    let _proxy = Proxy::start(
        &world.node,
        &config_in(layout),
        &cluster([web().json()].into_iter().chain(changed_slices(change))),
    );
    Family::ALL.iter().for_each(|family| assert_serves(&world, *family, 1, which));
}

// A Service with the label of another proxy is not served (A1).
test_in_each_layout!(a_label_for_another_proxy_takes_the_service_away_and_its_removal_brings_it_back);
fn a_label_for_another_proxy_takes_the_service_away_and_its_removal_brings_it_back(layout: Layout) {
    let world = World::new();
    let mut proxy = Proxy::start(
        &world.node,
        &config_in(layout),
        &cluster([web().json()].into_iter().chain(slices("shop", "web", &ALL, &PORTS))),
    );
    for value in ["another", ""] {
        proxy.apply(&[web().label("service.kubernetes.io/service-proxy-name", value).json()]);
        for family in Family::ALL {
            assert_outcome(&world.shell, to(family.cluster_ip(1), 80), &Outcome::Dropped);
        }
        proxy.apply(&[web().json()]);
        Family::ALL.iter().for_each(|family| assert_serves(&world, *family, 1, &ALL));
    }
}

// Services of type ExternalName, and those without a cluster IP, are left out (A3).
test_in_each_layout!(external_names_and_services_without_address_are_not_served);
fn external_names_and_services_without_address_are_not_served(layout: Layout) {
    let world = World::new();
    let external = web().spec("type", "ExternalName".into()).spec("externalName", "example.org".into());
    let unnumbered = service("shop", "bare").port("http", Proto::Tcp, 80).node_port(30080);
    let unnumbered = Family::ALL.iter().fold(unnumbered, |bare, family| bare.external_ip(family.external_ip(1)));
    let mut objects = cluster([external.json(), unnumbered.json()]);
    objects.extend(slices("shop", "web", &ALL, &PORTS));
    objects.extend(slices("shop", "bare", &ALL, &PORTS));
    let _proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    for family in Family::ALL {
        for (address, port) in [(family.cluster_ip(1), 80), (family.external_ip(1), 80)] {
            assert_outcome(&world.shell, to(address, port), &Outcome::Dropped);
        }
        assert_outcome(&world.shell, to(family.node(), 30080), &Outcome::Reset);
    }
}

// A Service has a cluster IP in the families that it names only (A4).
test_in_each_layout!(a_service_of_one_family_does_not_exist_in_the_other);
fn a_service_of_one_family_does_not_exist_in_the_other(layout: Layout) {
    for family in Family::ALL {
        let other = if family == Family::V4 { Family::V6 } else { Family::V4 };
        let world = World::new();
        let single = service("shop", "web").cluster_ip(family.cluster_ip(1)).port("http", Proto::Tcp, 80);
        let single = Family::ALL.iter().fold(single.node_port(30080), |single, family| {
            single.external_ip(family.external_ip(1)).load_balancer_ip(family.load_balancer_ip(1))
        });
        let objects = cluster([single.json()].into_iter().chain(slices("shop", "web", &ALL, &PORTS)));
        let _proxy = Proxy::start(&world.node, &config_in(layout), &objects);
        assert_serves(&world, family, 1, &ALL);
        for address in [family.external_ip(1), family.load_balancer_ip(1)] {
            assert_reaches(&world.shell, to(address, 80), &endpoints(family, &ALL, 8080), Source::Masqueraded, FEW);
        }
        for address in [other.cluster_ip(1), other.external_ip(1), other.load_balancer_ip(1)] {
            assert_outcome(&world.shell, to(address, 80), &Outcome::Dropped);
        }
        assert_outcome(&world.shell, to(other.node(), 30080), &Outcome::Reset);
    }
}

// The protocol is a part of what identifies a port (A5).
test_in_each_layout!(ports_of_one_name_and_two_protocols_are_two_ports);
fn ports_of_one_name_and_two_protocols_are_two_ports(layout: Layout) {
    let world = World::new();
    let dns = service("shop", "web").cluster_ips(1).port("dns", Proto::Tcp, 53).port("dns", Proto::Udp, 53);
    let mut objects = cluster([dns.json()]);
    for family in Family::ALL {
        let one = |name: &str, n, proto, port| {
            let name = format!("{name}-{family:?}").to_lowercase();
            slice("shop", "web", &name, &[family.endpoint(n)], &[("dns", proto, port)])
        };
        objects.extend([one("tcp", 0, Proto::Tcp, 8080), one("udp", 2, Proto::Udp, 9090)]);
    }
    let _proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    for family in Family::ALL {
        for (proto, n, port) in [(Proto::Tcp, 0, 8080), (Proto::Udp, 2, 9090)] {
            let flow = Flow::new(proto, family.shell(), family.cluster_ip(1), 53);
            assert_reaches(&world.shell, flow, &endpoints(family, &[n], port), Source::Kept, 20);
        }
    }
}

// External IPs that cannot be read are left out one by one (A7).
test_in_each_layout!(blank_and_unreadable_external_ips_do_not_hide_the_others);
fn blank_and_unreadable_external_ips_do_not_hide_the_others(layout: Layout) {
    let world = World::new();
    let [v4, v6] = Family::ALL.map(|family| json!(family.external_ip(1)));
    let ips = json!(["", v4, "nonsense", "300.1.1.1", v6]);
    let web = web().spec("externalIPs", ips);
    let objects = cluster([web.json()].into_iter().chain(slices("shop", "web", &ALL, &PORTS)));
    let _proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    for family in Family::ALL {
        let all = endpoints(family, &ALL, 8080);
        assert_reaches(&world.shell, to(family.external_ip(1), 80), &all, Source::Masqueraded, FEW);
        assert_serves(&world, family, 1, &ALL);
    }
}

// Load balancer IPs with `ipMode: Proxy` are not served, and source ranges do not guard them (A8, D17).
test_in_each_layout!(load_balancer_ips_of_mode_proxy_are_left_alone);
fn load_balancer_ips_of_mode_proxy_are_left_alone(layout: Layout) {
    let world = World::new();
    let ingress = |family: Family| {
        let (vip, unset, proxied) =
            (family.load_balancer_ip(1), family.load_balancer_ip(2), family.load_balancer_ip(3));
        [json!({ "ip": vip, "ipMode": "VIP" }), json!({ "ip": unset }), json!({ "ip": proxied, "ipMode": "Proxy" })]
    };
    let list = |ranges: Value| {
        let mut web = web().load_balancer_ip(Family::V4.load_balancer_ip(1)).json();
        let hostname = [json!({ "hostname": "lb.example.org" })];
        web["status"]["loadBalancer"]["ingress"] = Family::ALL.into_iter().flat_map(ingress).chain(hostname).collect();
        web["spec"]["loadBalancerSourceRanges"] = ranges;
        web
    };
    let objects = cluster([list(json!([]))].into_iter().chain(slices("shop", "web", &ALL, &PORTS)));
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    // Another host has the address of mode Proxy and does not listen, so a reset shows that the packet arrived.
    Family::ALL.iter().for_each(|family| own(&world, family.load_balancer_ip(3)));
    let assert_left_alone =
        |family: Family| assert_outcome(&world.shell, to(family.load_balancer_ip(3), 80), &Outcome::Reset);
    for family in Family::ALL {
        for n in [1, 2] {
            let flow = to(family.load_balancer_ip(n), 80);
            assert_reaches(&world.shell, flow, &endpoints(family, &ALL, 8080), Source::Masqueraded, FEW);
        }
        assert_left_alone(family);
    }
    proxy.apply(&[list(json!(["203.0.113.0/24", "2001:db8:113::/64"]))]);
    for family in Family::ALL {
        for n in [1, 2] {
            assert_outcome(&world.shell, to(family.load_balancer_ip(n), 80), &Outcome::Dropped);
        }
        assert_left_alone(family);
    }
    proxy.apply(&slices("shop", "web", &[], &PORTS));
    Family::ALL.into_iter().for_each(assert_left_alone);
}

/// Gives an address to the client outside.
fn own(world: &World, address: IpAddr) {
    let prefix = host_prefix(address);
    let gateway = if address.is_ipv4() { "169.254.2.2" } else { "fe80::2" };
    world.client.ip(&[format!("addr add {prefix} dev lo")]);
    world.node.ip(&[format!("route add {prefix} via {gateway} dev to-client")]);
}

// Addresses with leading zeros are accepted (A10).
test_in_each_layout!(leading_zeros_are_read_as_decimal_numbers);
fn leading_zeros_are_read_as_decimal_numbers(layout: Layout) {
    let world = World::new();
    let mut web = web().json();
    web["spec"]["clusterIP"] = json!("10.096.000.001");
    web["spec"]["clusterIPs"][0] = json!("10.096.000.001");
    web["spec"]["externalIPs"] = json!(["198.051.100.001"]);
    web["status"]["loadBalancer"]["ingress"] = json!([{ "ip": "192.000.002.009" }]);
    web["spec"]["loadBalancerSourceRanges"] = json!(["203.0.113.000/024"]);
    let mut slices = slices("shop", "web", &[0, 2], &PORTS);
    slices[0]["endpoints"][0]["addresses"] = json!(["010.244.001.010"]);
    let _proxy = Proxy::start(&world.node, &config_in(layout), &cluster([web].into_iter().chain(slices)));
    let family = Family::V4;
    assert_serves(&world, family, 1, &[0, 2]);
    let both = endpoints(family, &[0, 2], 8080);
    assert_reaches(&world.shell, to(family.external_ip(1), 80), &both, Source::Masqueraded, FEW);
    let balancer: IpAddr = "192.0.2.9".parse().expect("an address");
    let outside = Flow::new(Proto::Tcp, family.client(), balancer, 80);
    assert_reaches(&world.client, outside, &both, Source::Masqueraded, FEW);
    assert_outcome(&world.shell, to(balancer, 80), &Outcome::Dropped);
}

// The address type is the family of a slice, and its ports need a name and a number (B3, B5).
test_in_each_layout!(slices_of_the_wrong_kind_and_ports_without_name_or_number_give_no_endpoint);
fn slices_of_the_wrong_kind_and_ports_without_name_or_number_give_no_endpoint(layout: Layout) {
    let world = World::new();
    let mut objects = cluster([web().json()].into_iter().chain(slices("shop", "web", &[0], &PORTS)));
    for family in Family::ALL {
        let broken = |name: &str, n, change: &dyn Fn(&mut Value)| {
            let name = format!("{name}-{family:?}").to_lowercase();
            let mut slice = slice("shop", "web", &name, &[family.endpoint(n)], &PORTS);
            change(&mut slice);
            slice
        };
        objects.push(broken("fqdn", 1, &|slice| slice["addressType"] = json!("FQDN")));
        objects.push(broken("unnamed", 1, &|slice| slice["ports"][0]["name"] = Value::Null));
        objects.push(broken("no-number", 2, &|slice| slice["ports"][0]["port"] = Value::Null));
        objects.push(broken("port-0", 3, &|slice| slice["ports"][0]["port"] = json!(0)));
        objects.push(broken("no-ports", 3, &|slice| slice["ports"] = json!([])));
    }
    let _proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    Family::ALL.iter().for_each(|family| assert_serves(&world, *family, 1, &[0]));
}

// The empty name is a name (B5).
test_in_each_layout!(a_port_with_the_empty_name_is_a_port);
fn a_port_with_the_empty_name_is_a_port(layout: Layout) {
    let world = World::new();
    let web = service("shop", "web").cluster_ips(1).port("", Proto::Tcp, 80);
    let objects = cluster([web.json()].into_iter().chain(slices("shop", "web", &[1, 3], &[("", Proto::Tcp, 8080)])));
    let _proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    Family::ALL.iter().for_each(|family| assert_serves(&world, *family, 1, &[1, 3]));
}

// Further addresses of an endpoint are ignored (B6).
test_in_each_layout!(only_the_first_address_of_an_endpoint_is_used);
fn only_the_first_address_of_an_endpoint_is_used(layout: Layout) {
    let addresses = |n: usize, endpoint: &mut Value| match n {
        0 => {
            let first: IpAddr =
                endpoint["addresses"][0].as_str().and_then(|text| text.parse().ok()).expect("an address");
            endpoint["addresses"] = json!([first, Family::of(first).endpoint(3)]);
        }
        1 => {}
        _ => endpoint["addresses"] = json!([]),
    };
    assert_used(layout, addresses, &[0, 1]);
}

// Conditions that are absent have their defaults; endpoints that are neither ready nor ending are not used (B7, C8).
test_in_each_layout!(missing_conditions_mean_ready_and_unready_endpoints_are_unused);
fn missing_conditions_mean_ready_and_unready_endpoints_are_unused(layout: Layout) {
    let conditions = |n: usize, endpoint: &mut Value| {
        endpoint["conditions"] = match n {
            0 => json!({}),
            1 => json!({ "ready": true }),
            2 => json!({ "ready": false }),
            _ => json!({ "ready": false, "serving": true, "terminating": false }),
        };
    };
    assert_used(layout, conditions, &[0, 1]);
}

// Endpoints that serve and end step in when no other is ready (B7, C3).
test_in_each_layout!(without_a_ready_endpoint_those_that_end_serve_unless_they_say_no);
fn without_a_ready_endpoint_those_that_end_serve_unless_they_say_no(layout: Layout) {
    let conditions = |n: usize, endpoint: &mut Value| {
        endpoint["conditions"] = match n {
            // An absent condition `serving` counts as true.
            0 => json!({ "ready": false, "terminating": true }),
            1 => json!({ "ready": false, "serving": true, "terminating": true }),
            2 => json!({ "ready": false, "serving": false, "terminating": true }),
            _ => json!({ "ready": false }),
        };
    };
    assert_used(layout, conditions, &[0, 1]);
}

// The name of the node decides what is local, not the address (B8).
test_in_each_layout!(an_endpoint_is_local_by_the_name_of_its_node_alone);
fn an_endpoint_is_local_by_the_name_of_its_node_alone(layout: Layout) {
    let world = World::new();
    let web = web().spec("internalTrafficPolicy", "Local".into());
    let slices = changed_slices(|n, endpoint| {
        endpoint["nodeName"] = [Value::Null, json!(OTHER_NODE), json!(NODE), json!("")][n].clone();
    });
    let _proxy = Proxy::start(&world.node, &config_in(layout), &cluster([web.json()].into_iter().chain(slices)));
    Family::ALL.iter().for_each(|family| assert_serves(&world, *family, 1, &[2]));
}

// Of two endpoints with one address the running one is used (B10).
test_in_each_layout!(of_two_entries_for_one_address_the_running_one_counts);
fn of_two_entries_for_one_address_the_running_one_counts(layout: Layout) {
    let ending = json!({ "ready": false, "serving": true, "terminating": true });
    for names in [["web-a", "web-b"], ["web-b", "web-a"]] {
        let world = World::new();
        let mut objects = cluster([web().json()]);
        for family in Family::ALL {
            let named = |name: &str| {
                let name = format!("{name}-{family:?}").to_lowercase();
                slice("shop", "web", &name, &[family.endpoint(0), family.endpoint(2)], &PORTS)
            };
            let mut old = named(names[1]);
            (0..2).for_each(|n| old["endpoints"][n]["conditions"] = ending.clone());
            objects.extend([named(names[0]), old]);
        }
        let _proxy = Proxy::start(&world.node, &config_in(layout), &objects);
        Family::ALL.iter().for_each(|family| assert_serves(&world, *family, 1, &[0, 2]));
    }
}

// Endpoints that come before their Service are used when it comes (B13).
test_in_each_layout!(slices_wait_for_their_service);
fn slices_wait_for_their_service(layout: Layout) {
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &cluster(slices("shop", "web", &[1, 2], &PORTS)));
    Family::ALL.iter().for_each(|family| assert_not_reached(&world.shell, to(family.cluster_ip(1), 80)));
    proxy.apply(&[web().json()]);
    Family::ALL.iter().for_each(|family| assert_serves(&world, *family, 1, &[1, 2]));
    proxy.delete(&[web().json()]);
    proxy.apply(&[web().json()]);
    Family::ALL.iter().for_each(|family| assert_serves(&world, *family, 1, &[1, 2]));
}

/// The hint that endpoint `n` has: for zones a or b, or for nodes.
fn hint(kind: &str, names: [&str; 4]) -> impl Fn(usize, &mut Value) {
    move |n, endpoint| {
        if !names[n].is_empty() {
            endpoint["hints"][kind] = json!([{ "name": names[n] }]);
        }
    }
}

// Hints for the zone or the node narrow the choice if every endpoint has one (B9, C2).
test_in_each_layout!(hints_for_this_zone_or_node_narrow_the_choice_when_all_have_one);
fn hints_for_this_zone_or_node_narrow_the_choice_when_all_have_one(layout: Layout) {
    let world = World::new();
    let mut here = node();
    here["metadata"]["labels"]["topology.kubernetes.io/zone"] = json!(ZONE);
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &[here, service_cidr(), web().json()]);
    let cases: [(&str, [&str; 4], &[u8]); 6] = [
        ("forZones", [ZONE, "zone-b", ZONE, "zone-b"], &[0, 2]),
        ("forZones", [ZONE, "zone-b", ZONE, ""], &ALL),
        ("forZones", ["zone-b", "zone-b", "zone-c", "zone-b"], &ALL),
        ("forNodes", [NODE, OTHER_NODE, OTHER_NODE, NODE], &[0, 3]),
        ("forNodes", [NODE, OTHER_NODE, "", NODE], &ALL),
        ("forNodes", [OTHER_NODE, OTHER_NODE, OTHER_NODE, OTHER_NODE], &ALL),
    ];
    for (kind, names, which) in cases {
        proxy.apply(&changed_slices(hint(kind, names)));
        Family::ALL.iter().for_each(|family| assert_serves(&world, *family, 1, which));
    }
    proxy.apply(&changed_slices(|n, endpoint| {
        hint("forZones", [ZONE, ZONE, "zone-b", "zone-b"])(n, endpoint);
        hint("forNodes", [OTHER_NODE, NODE, NODE, OTHER_NODE])(n, endpoint);
    }));
    Family::ALL.iter().for_each(|family| assert_serves(&world, *family, 1, &[1, 2]));
}

// Only ready endpoints need a hint (C2).
test_in_each_layout!(an_unready_endpoint_without_hint_does_not_stop_the_narrowing);
fn an_unready_endpoint_without_hint_does_not_stop_the_narrowing(layout: Layout) {
    let world = World::new();
    let mut here = node();
    here["metadata"]["labels"]["topology.kubernetes.io/zone"] = json!(ZONE);
    let slices = changed_slices(|n, endpoint| {
        hint("forZones", [ZONE, "zone-b", ZONE, ""])(n, endpoint);
        endpoint["conditions"]["ready"] = json!(n != 3);
    });
    let _proxy =
        Proxy::start(&world.node, &config_in(layout), &[vec![here, service_cidr(), web().json()], slices].concat());
    Family::ALL.iter().for_each(|family| assert_serves(&world, *family, 1, &[0, 2]));
}
