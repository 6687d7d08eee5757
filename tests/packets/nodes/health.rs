//! Policy Local with a health check port: a load balancer asks both nodes, and sends clients to the one that has a pod.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::json;

use super::overlay::{Nodes, client, config_b, node_b, object_b};
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::{Family, SERVED_PORTS};
use crate::support::probe::{Flow, Outcome, Proto, probe};
use crate::support::proxy::{Proxy, config};
use crate::support::server::{Answer, Server};

const PORTS: [(&str, Proto, u16); 1] = [("http", Proto::Tcp, 8080)];
const CHECK: u16 = 32_123;
const PATIENCE: Duration = Duration::from_secs(20);

/// The status of `/healthz` on the health check port, seen by the client; 0 without an answer.
fn check(nodes: &Nodes, address: IpAddr) -> u16 {
    let answer = nodes.client.enter(|| -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, CHECK), Duration::from_secs(2))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        write!(stream, "GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    });
    answer.ok().and_then(|text| text.split(' ').nth(1)?.parse().ok()).unwrap_or(0)
}

fn wait_for(nodes: &Nodes, address: IpAddr, status: u16) {
    let end = Instant::now() + PATIENCE;
    while check(nodes, address) != status {
        assert!(Instant::now() < end, "{address}: health check says {}, not {status}", check(nodes, address));
    }
}

#[test]
fn the_node_with_the_pod_is_healthy_and_keeps_the_clients_address() {
    // The health-check node port follows the local endpoints (D3, K1).
    let nodes = Nodes::new();
    let serve = |pod, n| Server::start(pod, &Family::ALL.map(|family| family.endpoint(n)), &SERVED_PORTS);
    let _servers = [serve(&nodes.pod, 0), serve(&nodes.remote, 2)];
    let web = service("shop", "web").cluster_ips(1).port("http", Proto::Tcp, 80).node_port(30080);
    let web = web.load_balancer_ip(Family::V4.load_balancer_ip(1)).load_balancer_ip(Family::V6.load_balancer_ip(1));
    let web = web.spec("externalTrafficPolicy", json!("Local")).spec("healthCheckNodePort", json!(CHECK)).json();
    let objects = |own| [vec![own, service_cidr(), web.clone()], slices("shop", "web", &[0], &PORTS)].concat();
    let mut proxies = [
        Proxy::start(&nodes.a, &config(), &objects(node())),
        Proxy::start(&nodes.b, &config_b(), &objects(object_b())),
    ];
    let mut present = 0;
    for (at, healthy) in [(0, 0), (2, 1), (0, 0)] {
        if at != present {
            proxies.iter_mut().for_each(|proxy| proxy.apply(&slices("shop", "web", &[at], &PORTS)));
            present = at;
        }
        for family in Family::ALL {
            let addresses = [family.node(), node_b(family)];
            wait_for(&nodes, addresses[healthy], 200);
            wait_for(&nodes, addresses[1 - healthy], 503);
            let to = |address| Flow::new(Proto::Tcp, client(family), address, 30080);
            let kept = Answer { endpoint: family.endpoint(at), port: 8080, seen_source: client(family) };
            assert_eq!(probe(&nodes.client, to(addresses[healthy])), Outcome::Reached(kept));
            assert_eq!(probe(&nodes.client, to(addresses[1 - healthy])), Outcome::Dropped);
        }
    }
}
