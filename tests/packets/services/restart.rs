//! The proxy ends and starts again while connections go on.

use serde_json::json;

use crate::judge::{FEW, Source, assert_not_reached, assert_outcome, assert_reaches, endpoints};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::nft;
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::Family;
use crate::support::probe::{Connection, Flow, Outcome, Proto};
use crate::support::proxy::{Proxy, config_in};
use crate::support::world::World;

const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];

fn flows(family: Family) -> [Flow; 2] {
    let to = |address, port| Flow::new(Proto::Tcp, family.client(), address, port);
    [to(family.cluster_ip(1), 80), to(family.node(), 30080)]
}

/// New connections are served or refused as before the restart, and earlier ones go on.
fn assert_serving(world: &World, held: &[Connection]) {
    for family in Family::ALL {
        for flow in flows(family) {
            assert_reaches(&world.client, flow, &endpoints(family, &[0, 1, 2, 3], 8080), Source::Masqueraded, FEW);
        }
        let unserved = Flow::new(Proto::Tcp, family.client(), family.cluster_ip(2), 80);
        assert_outcome(&world.client, unserved, &Outcome::Refused);
    }
    for connection in held {
        connection.ask();
    }
}

test_in_each_layout!(rules_and_connections_outlive_the_process);
fn rules_and_connections_outlive_the_process(layout: Layout) {
    // The end of the process leaves all rules in place (O7).
    let world = World::new();
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(30080);
    let empty = service("shop", "empty").cluster_ips(2).port("http", Proto::Tcp, 80);
    let mut objects = vec![node(), service_cidr(), web.json(), empty.json()];
    objects.extend(slices("shop", "web", &[0, 1, 2, 3], &PORTS));
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    let held: Vec<Connection> =
        Family::ALL.into_iter().flat_map(flows).map(|flow| Connection::open(&world.client, flow).0).collect();
    assert_serving(&world, &held);
    let rules = || nft::normalised(&nft::list_ruleset(&world.node));
    let before = rules();
    proxy.stop();
    assert_eq!(rules(), before, "SIGTERM changed the rules");
    assert_serving(&world, &held);
    proxy.launch();
    assert_eq!(rules(), before, "a restart changed the rules");
    assert_serving(&world, &held);
    proxy.kill();
    assert_eq!(rules(), before, "SIGKILL changed the rules");
    assert_serving(&world, &held);
}

test_in_each_layout!(a_new_configuration_without_external_ips_removes_them);
fn a_new_configuration_without_external_ips_removes_them(layout: Layout) {
    // With the gate off external IPs are not used, and one warning says how many Services have some (A7). New content of the file ends the
    // process, which is then started with it (O5).
    let world = World::new();
    let mut objects = vec![node(), service_cidr()];
    for (n, name) in [(1, "1-web"), (2, "two")] {
        // Names may start with a digit (A19).
        let web = service("shop", name).cluster_ips(n).port("http", Proto::Tcp, 80);
        objects.push(Family::ALL.into_iter().fold(web, |web, family| web.external_ip(family.external_ip(n))).json());
        objects.extend(slices("shop", name, &[0, 1], &PORTS));
    }
    let mut config = config_in(layout);
    let mut proxy = Proxy::start(&world.node, &config, &objects);
    let to = |family: Family, address| Flow::new(Proto::Tcp, family.client(), address, 80);
    for family in Family::ALL {
        for address in [family.external_ip(1), family.external_ip(2), family.cluster_ip(1)] {
            assert_reaches(
                &world.client,
                to(family, address),
                &endpoints(family, &[0, 1], 8080),
                Source::Masqueraded,
                FEW,
            );
        }
    }
    const WARNING: &str = r#"The spec.externalIPs of Services are not served, because the feature gate AllowServiceExternalIPs is off" numServices=2"#;
    assert!(!proxy.log().contains("externalIPs"), "{}", proxy.log());
    config["featureGates"] = json!({ "AllowServiceExternalIPs": false });
    proxy.configure(&config);
    proxy.wait_for_end();
    proxy.launch();
    assert_eq!(proxy.log().matches(WARNING).count(), 1, "{}", proxy.log());
    for family in Family::ALL {
        for n in [1, 2] {
            assert_not_reached(&world.client, to(family, family.external_ip(n)));
        }
        let cluster_ip = to(family, family.cluster_ip(1));
        assert_reaches(&world.client, cluster_ip, &endpoints(family, &[0, 1], 8080), Source::Masqueraded, FEW);
    }
}

test_in_each_layout!(what_changed_while_no_proxy_ran_is_programmed_at_the_start);
fn what_changed_while_no_proxy_ran_is_programmed_at_the_start(layout: Layout) {
    // A start sends what differs from the rules that it finds (F9, O7).
    let world = World::new();
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80);
    let mut objects = vec![node(), service_cidr(), web.json()];
    objects.extend(slices("shop", "web", &[0, 1], &PORTS));
    let mut proxy = Proxy::start(&world.node, &config_in(layout), &objects);
    proxy.kill();
    slices("shop", "web", &[1, 2, 3], &PORTS).iter().for_each(|slice| proxy.manifests().apply(slice));
    proxy.launch();
    for family in Family::ALL {
        assert_reaches(&world.client, flows(family)[0], &endpoints(family, &[1, 2, 3], 8080), Source::Masqueraded, FEW);
    }
}
