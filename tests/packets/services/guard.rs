//! Invalid packets of endpoints, dropped where the configuration says so (`nftables.dropInvalidFromEndpoints`).

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::inspect::{command, outcome};
use crate::support::layout::{Layout, test_in_each_layout};
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::Family;
use crate::support::probe::{Connection, Flow, Proto, invalid_arrives};
use crate::support::proxy::{Proxy, config_in};
use crate::support::world::World;

/// A Service with an endpoint on this node and one on another.
fn objects() -> Vec<Value> {
    let mut objects = vec![node(), service_cidr()];
    objects.push(service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).json());
    objects.extend(slices("shop", "web", &[0, 2], &[("http", Proto::Tcp, 8080)]));
    objects
}

test_in_each_layout!(invalid_packets_of_endpoints_are_dropped_and_counted_and_no_others);
fn invalid_packets_of_endpoints_are_dropped_and_counted_and_no_others(layout: Layout) {
    // What comes from the address and port of an endpoint on this node, to elsewhere and to the node itself (D27).
    let world = World::new();
    let mut config = config_in(layout);
    config["nftables"]["dropInvalidFromEndpoints"] = json!(true);
    let proxy = Proxy::start(&world.node, &config, &objects());
    let at = SocketAddr::new;
    for family in Family::ALL {
        let (to_client, to_node) = ((&world.client, at(family.client(), 999)), (&world.node, at(family.node(), 999)));
        let pod = |port| (&world.pods[0], at(family.endpoint(0), port));
        // Another port of the pod, a pod that is no endpoint, and an endpoint elsewhere, whose node has this matter.
        let shell = (&world.shell, at(family.shell(), 8080));
        let others = [pod(7777), shell, (&world.remote, at(family.endpoint(2), 8080))];
        for to in [to_client, to_node] {
            assert!(!invalid_arrives(pod(8080), to), "{family:?} to {}", to.1);
            for other in others {
                assert!(invalid_arrives(other, to), "{} to {}", other.1, to.1);
            }
        }
        // The packets of an open connection pass.
        let flow = Flow::new(Proto::Tcp, family.client(), family.cluster_ip(1), 80);
        let (connection, _) = Connection::open(&world.client, flow);
        connection.ask();
        let ip_family = format!("IP{family:?}").replace('V', "v");
        let series = format!("kubeproxy_nft_invalid_dropped_packets_total{{ip_family=\"{ip_family}\"}}");
        let end = Instant::now() + Duration::from_secs(60);
        while proxy.series(&series) != [2.0] {
            assert!(Instant::now() < end, "{series}: {:?}", proxy.series(&series));
            thread::sleep(Duration::from_millis(200));
        }
    }
    let (config, manifests) = (proxy.config_path(), proxy.manifests().path().to_owned());
    let path = |path: &std::path::Path| path.display().to_string();
    let args = ["verify", "--config", &path(&config), "--manifests", &path(&manifests)];
    let (code, text, errors) = outcome(&mut command(&world.node, &args));
    assert_eq!(code, Some(0), "{text}{errors}");
}

test_in_each_layout!(without_the_guard_the_layout_decides_about_invalid_packets);
fn without_the_guard_the_layout_decides_about_invalid_packets(layout: Layout) {
    // Layout maps lets them pass, layout chains drops what is forwarded, as iptables mode does (D22).
    let world = World::new();
    let _proxy = Proxy::start(&world.node, &config_in(layout), &objects());
    for family in Family::ALL {
        let to = |address| SocketAddr::new(address, 999);
        for (from, port) in [((&world.pods[0], family.endpoint(0)), 8080), ((&world.shell, family.shell()), 8080)] {
            let source = (from.0, SocketAddr::new(from.1, port));
            let arrives = invalid_arrives(source, (&world.client, to(family.client())));
            assert_eq!(arrives, layout == Layout::Maps, "{family:?} from {}", source.1);
            assert!(invalid_arrives(source, (&world.node, to(family.node()))), "{family:?} from {}", source.1);
        }
    }
}
