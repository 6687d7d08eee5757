//! What Services share with the node: the numbers of node ports with programs that listen, and addresses of Services with the node itself.
//!
//! Gathers these facts ([`Shared::look`]), and turns them into lines ([`lines`], which is pure).

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use super::{Line, warning};
use crate::tables::{FrontendView, Kind, View};
use node::kernel::{addresses, process};
use rules::model::{Destination, Frontend, Protocol};

const AREA: &str = "services";
/// The most Services that one line names.
const MOST_NAMED: usize = 3;

/// What Services share with the node: addresses, and numbers of ports.
#[derive(Clone, Debug, Default)]
pub(super) struct Shared {
    /// The frontends of the tables.
    pub(super) frontends: Vec<FrontendView>,
    /// The addresses of this node that accept node ports.
    pub(super) node_port_addresses: Vec<IpAddr>,
    /// All addresses of this node.
    pub(super) addresses: Vec<IpAddr>,
    /// The TCP sockets that listen on this node.
    pub(super) listening: Vec<SocketAddr>,
}

impl Shared {
    /// Without the tables of a proxy, nothing is shared.
    pub(super) fn look() -> Self {
        let Ok(View { frontends, node_addresses, .. }) = View::read() else { return Self::default() };
        let listening = process::listening(Path::new("/proc")).into_iter().map(|socket| socket.address).collect();
        let addresses = addresses().unwrap_or_default();
        Self { frontends, node_port_addresses: node_addresses, addresses, listening }
    }
}

/// Warns of node ports on which a program listens, and of addresses of this node that are addresses of Services.
pub(super) fn lines(shared: &Shared) -> Vec<Line> {
    let mut lines: Vec<Line> = shared.listening.iter().filter_map(|socket| taken(*socket, shared)).collect();
    for (kind, name) in [(Kind::ExternalIP, "an external IP"), (Kind::LoadBalancer, "a load balancer IP")] {
        for address in &shared.addresses {
            let is_at = |view: &&FrontendView| {
                view.kind == Some(kind) && view.frontend.destination == Destination::Address(*address)
            };
            let at: Vec<String> = shared.frontends.iter().filter(is_at).map(named).collect();
            if at.is_empty() {
                continue;
            }
            let more =
                if at.len() > MOST_NAMED { format!(" and {} more", at.len() - MOST_NAMED) } else { String::new() };
            let services = at.iter().take(MOST_NAMED).cloned().collect::<Vec<_>>().join(", ");
            lines.push(warning(
                AREA,
                format_args!(
                    "{address} is an address of this node and {name} of {services}{more}: no program of this node gets connections there"
                ),
                "remove the address from the Service if a program of this node needs one of these ports",
            ));
        }
    }
    lines
}

/// A frontend with an address, as its Service and its port.
fn named(view: &FrontendView) -> String {
    let Frontend { protocol, port, .. } = view.frontend;
    format!("{} ({} port {port})", view.service.as_deref().unwrap_or("a Service"), protocol.api_name())
}

/// The warning about a program that listens where a node port takes its connections.
fn taken(socket: SocketAddr, shared: &Shared) -> Option<Line> {
    let is_at = |address: &&IpAddr| match socket.ip() {
        ip if ip.is_unspecified() => ip.is_ipv6() || address.is_ipv4(),
        ip => ip == **address,
    };
    let at: Vec<String> = shared.node_port_addresses.iter().filter(is_at).map(ToString::to_string).collect();
    let is_it = |view: &&FrontendView| {
        let Frontend { protocol, port, .. } = view.frontend;
        view.kind == Some(Kind::NodePort) && (protocol, port) == (Protocol::Tcp, socket.port())
    };
    let service =
        shared.frontends.iter().find(is_it).filter(|_| !at.is_empty())?.service.as_deref().unwrap_or("a Service");
    Some(warning(
        AREA,
        format_args!(
            "a program listens on {socket}, which is the node port of {service}: at {} the Service gets its connections",
            at.join(", ")
        ),
        "find the program with `ss -ltnp`, and give it a port that is no node port",
    ))
}
