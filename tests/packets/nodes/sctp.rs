//! SCTP associations between real sockets, through a Service. The packet tests send single SCTP packets; here the kernels of both
//! ends talk.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::overlay::{Nodes, client, overlay_address};
use crate::support::objects::{node, service, service_cidr, slices};
use crate::support::plan::Family;
use crate::support::probe::Proto;
use crate::support::proxy::{Proxy, config};

const PORTS: [(&str, Proto, u16); 1] = [("signalling", Proto::Sctp, 9090)];

fn socket(family: Family) -> Socket {
    let domain = if family == Family::V4 { Domain::IPV4 } else { Domain::IPV6 };
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::SCTP)).expect("the sctp module is loaded");
    socket.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out can be set");
    socket.set_write_timeout(Some(Duration::from_secs(20))).expect("a time-out can be set");
    socket
}

/// The endpoint. One for all conversations: an association that is still closing keeps the port.
fn listener(nodes: &Nodes, family: Family) -> Socket {
    nodes.remote.enter(|| {
        let listener = socket(family);
        listener.bind(&SocketAddr::new(family.endpoint(2), 9090).into()).expect("the port is free");
        listener.listen(1).expect("an SCTP socket listens");
        listener
    })
}

/// Connects through `frontend`, has its message answered, and gives the source that the server saw.
fn converse(nodes: &Nodes, family: Family, listener: &Socket, outside: bool, frontend: SocketAddr) -> IpAddr {
    let (from, source) = if outside { (&nodes.client, client(family)) } else { (&nodes.shell, family.shell()) };
    std::thread::scope(|scope| {
        let server = scope.spawn(move || -> std::io::Result<SockAddr> {
            let (mut stream, peer) = listener.accept()?;
            let mut text = [0; 16];
            let length = stream.read(&mut text)?;
            stream.write_all(&text[..length])?;
            Ok(peer)
        });
        let echoed = from.enter(|| -> std::io::Result<Vec<u8>> {
            let mut stream = socket(family);
            stream.bind(&SocketAddr::new(source, 0).into())?;
            stream.connect(&frontend.into())?;
            stream.write_all(b"hello")?;
            let mut text = [0; 16];
            let length = stream.read(&mut text)?;
            Ok(text[..length].to_vec())
        });
        assert_eq!(echoed.unwrap_or_else(|error| panic!("{frontend}: {error}")), b"hello");
        let peer = server.join().expect("the server ends").expect("the server was asked");
        peer.as_socket().expect("an IP address").ip()
    })
}

#[test]
#[ignore = "needs the kernel's sctp module; vm-tests/run has it"]
fn sctp_sockets_talk_through_a_service() {
    // A Service of the API reaches SCTP sockets, masqueraded where it must be (A1, D9).
    let nodes = Nodes::new();
    let signalling = service("shop", "sctp").cluster_ips(1).port("signalling", Proto::Sctp, 3868).node_port(30868);
    let mut objects = vec![node(), service_cidr(), signalling.json()];
    objects.extend(slices("shop", "sctp", &[2], &PORTS));
    let _proxy = Proxy::start(&nodes.a, &config(), &objects);
    for family in Family::ALL {
        let listener = listener(&nodes, family);
        let inside = SocketAddr::new(family.cluster_ip(1), 3868);
        assert_eq!(converse(&nodes, family, &listener, false, inside), family.shell());
        let outside = SocketAddr::new(family.node(), 30868);
        assert_eq!(converse(&nodes, family, &listener, true, outside), overlay_address(family, 1));
    }
}
