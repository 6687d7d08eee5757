//! A UDP client that keeps its port while the only endpoint of its Service moves from one node to the other.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use super::overlay::{Nodes, client};
use crate::support::netns::Namespace;
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::{Family, SERVED_PORTS};
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, config};
use crate::support::server::{Answer, Server};

const PORTS: [(&str, Proto, u16); 1] = [("dns", Proto::Udp, 9090)];

/// A socket that is connected to `target` from `source`.
fn connect(namespace: &Namespace, source: IpAddr, target: SocketAddr) -> UdpSocket {
    namespace.enter(|| {
        let socket = UdpSocket::bind((source, 0)).expect("a port is free");
        socket.connect(target).expect("a UDP socket connects");
        socket.set_read_timeout(Some(Duration::from_secs(2))).expect("a time-out can be set");
        socket
    })
}

/// The address of the endpoint that answers.
fn ask(socket: &UdpSocket) -> IpAddr {
    let mut text = [0; 256];
    socket.send(b"?").unwrap_or_else(|error| panic!("{socket:?}: {error}"));
    let length = socket.recv(&mut text).unwrap_or_else(|error| panic!("{socket:?}: no answer: {error}"));
    let answer: Answer = String::from_utf8_lossy(&text[..length]).parse().expect("the server's answer");
    answer.endpoint
}

#[test]
fn udp_flows_follow_an_endpoint_to_another_node() {
    // Flows to a cluster IP and to a node port leave an endpoint that is gone (J1, J5, J6).
    let nodes = Nodes::new();
    let serve = |pod, n| Server::start(pod, &Family::ALL.map(|family| family.endpoint(n)), &SERVED_PORTS);
    // Both answer all the time: only the flow decides which of them gets the packets.
    let _servers = [serve(&nodes.pod, 0), serve(&nodes.remote, 2)];
    let dns = service("shop", "dns").cluster_ips(1).port("dns", Proto::Udp, 53).node_port(30053);
    let mut objects = vec![node(), service_cidr(), dns.json()];
    objects.extend(slices("shop", "dns", &[0], &PORTS));
    let mut proxy = Proxy::start(&nodes.a, &config(), &objects);
    let sockets: Vec<(Family, UdpSocket)> = Family::ALL
        .into_iter()
        .flat_map(|family| {
            let inside = connect(&nodes.shell, family.shell(), SocketAddr::new(family.cluster_ip(1), 53));
            let outside = connect(&nodes.client, client(family), SocketAddr::new(family.node(), 30053));
            [(family, inside), (family, outside)]
        })
        .collect();
    let all_ask = |at| sockets.iter().for_each(|(family, socket)| assert_eq!(ask(socket), family.endpoint(at)));
    all_ask(0);
    for at in [2, 0] {
        proxy.apply(&slices("shop", "dns", &[at], &PORTS));
        all_ask(at);
    }
}
