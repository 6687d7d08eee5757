//! Endpoints and Services that come and go while the proxy runs.

use crate::judge::{FEW, Source, assert_outcome, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::Family;
use crate::support::probe::{Connection, Flow, Outcome, Proto};
use crate::support::proxy::{Proxy, config_in};
use crate::support::world::World;

const PORTS: [(&str, Proto, u16); 2] = [("http", Proto::Tcp, 8080), ("dns", Proto::Udp, 9090)];

fn flows(family: Family) -> [(Flow, u16); 2] {
    let to = |proto, port| Flow::new(proto, family.shell(), family.cluster_ip(1), port);
    [(to(Proto::Tcp, 80), 8080), (to(Proto::Udp, 53), 9090)]
}

test_in_each_layout!(traffic_follows_the_endpoints);
fn traffic_follows_the_endpoints(layout: Layout) {
    // Changes of slices are merged and taken over at once; the choice is even over the new list (B4, B14, D1, D2, D11).
    let world = World::new();
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).port("dns", Proto::Udp, 53).json();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &[node(), service_cidr(), web]);
    let steps: [&[u8]; 7] = [&[0], &[0, 1, 2, 3], &[0, 1, 3], &[3], &[], &[1, 2], &[2]];
    for which in steps {
        proxy.apply(&slices("shop", "web", which, &PORTS));
        for (family, (flow, port)) in
            Family::ALL.into_iter().flat_map(|family| flows(family).map(|flow| (family, flow)))
        {
            if which.is_empty() {
                assert_outcome(&world.shell, flow, &Outcome::Refused);
            } else {
                assert_reaches(&world.shell, flow, &endpoints(family, which, port), Source::Kept, FEW);
            }
        }
    }
}

test_in_each_layout!(a_connection_outlives_its_endpoints_removal_and_new_ones_go_elsewhere);
fn a_connection_outlives_its_endpoints_removal_and_new_ones_go_elsewhere(layout: Layout) {
    // Changes concern new connections only (D12).
    let world = World::new();
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).port("dns", Proto::Udp, 53).json();
    let mut objects = vec![node(), service_cidr(), web.clone()];
    objects.extend(slices("shop", "web", &[0], &PORTS));
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    let held = Family::ALL.map(|family| Connection::open(&world.shell, flows(family)[0].0));
    proxy.apply(&slices("shop", "web", &[2], &PORTS));
    for (family, (connection, answer)) in Family::ALL.into_iter().zip(&held) {
        assert_eq!(connection.ask(), *answer);
        assert_reaches(&world.shell, flows(family)[0].0, &endpoints(family, &[2], 8080), Source::Kept, 5);
    }
    proxy.apply(&slices("shop", "web", &[], &PORTS));
    held.iter().for_each(|(connection, answer)| assert_eq!(connection.ask(), *answer));
    proxy.delete(&[web]);
    for (family, (connection, answer)) in Family::ALL.into_iter().zip(&held) {
        assert_eq!(connection.ask(), *answer);
        // No Service has the address now, so its packets are dropped (D15).
        assert_outcome(&world.shell, flows(family)[0].0, &Outcome::Dropped);
    }
}

test_in_each_layout!(services_come_and_go_and_their_endpoints_may_come_first);
fn services_come_and_go_and_their_endpoints_may_come_first(layout: Layout) {
    // A Service is served once it and its slices are there, in any order (A1, A6, B13).
    let world = World::new();
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &[node(), service_cidr()]);
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).port("dns", Proto::Udp, 53);
    let all = || Family::ALL.into_iter().flat_map(|family| flows(family).map(|flow| (family, flow)));
    slices("shop", "web", &[1, 3], &PORTS).iter().for_each(|slice| proxy.manifests().apply(slice));
    all().for_each(|(_, (flow, _))| assert_outcome(&world.shell, flow, &Outcome::Dropped));
    proxy.apply(&[web.clone().json()]);
    for (family, (flow, port)) in all() {
        assert_reaches(&world.shell, flow, &endpoints(family, &[1, 3], port), Source::Kept, FEW);
    }
    proxy.apply(&[web.label("service.kubernetes.io/service-proxy-name", "another").json()]);
    all().for_each(|(_, (flow, _))| assert_outcome(&world.shell, flow, &Outcome::Dropped));
}
