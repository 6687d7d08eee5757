//! A cluster as one node sees it: the node, pods on it, another node's pods, a client outside, and the rest of the internet.
//!
//! Makes the namespaces, wired to the node as [`super::plan`] says, with a server on every endpoint. The node forwards packets; it holds no
//! rule. Packets to other addresses go to `inet`, where they are dropped in silence.

use std::net::IpAddr;

use super::netns::Namespace;
use super::plan::{Family, SERVED_PORTS, host_prefix};
use super::server::Server;
use super::wiring::{attach, make_node, route_the_rest};

/// The namespaces of one cluster, which are deleted when the value is dropped.
pub(crate) struct World {
    // Fields are dropped in this order: the servers leave their namespaces before these are deleted.
    _servers: Vec<Server>,
    /// The node under test; the proxy runs here.
    pub(crate) node: Namespace,
    /// A pod on the node that is no endpoint.
    pub(crate) shell: Namespace,
    /// The local endpoints 0 and 1.
    pub(crate) pods: [Namespace; 2],
    /// The other node's pods, endpoints 2 and 3.
    pub(crate) remote: Namespace,
    /// A client outside the cluster.
    pub(crate) client: Namespace,
    _inet: Namespace,
}

impl World {
    /// Builds the cluster and starts its servers.
    pub(crate) fn new() -> Self {
        Self::around(Namespace::new("node"))
    }

    /// Like [`World::new`], with a node that belongs to a user namespace of its own.
    pub(crate) fn in_user_namespace() -> Self {
        Self::around(Namespace::in_user_namespace("node"))
    }

    fn around(node: Namespace) -> Self {
        let both = |address: fn(Family) -> IpAddr| Family::ALL.map(address).to_vec();
        let node = make_node(node, [both(Family::node), both(Family::node_second)].concat());
        // Masquerading then never picks the second address, so a probe from the second address shows whether it was masqueraded.
        node.ip(&[format!("addr change {} dev lo preferred_lft 0", host_prefix(Family::V6.node_second()))]);
        let places = [
            ("inet", Vec::new()),
            ("client", both(Family::client)),
            ("remote", [both(|f| f.endpoint(2)), both(|f| f.endpoint(3))].concat()),
            ("pod0", both(|f| f.endpoint(0))),
            ("pod1", both(|f| f.endpoint(1))),
            ("shell", both(Family::shell)),
        ]
        .map(|(name, addresses)| (name.to_owned(), addresses));
        let spaces = attach(&node, 1, &places).try_into().unwrap_or_else(|_| unreachable!("as many as places"));
        let [inet, client, remote, pod0, pod1, shell] = spaces;
        route_the_rest(&node, 1, "inet", Family::ALL.map(|family| Some(family.node())));
        let pods = [pod0, pod1];
        let servers = vec![
            Server::start(&pods[0], &both(|family| family.endpoint(0)), &SERVED_PORTS),
            Server::start(&pods[1], &both(|family| family.endpoint(1)), &SERVED_PORTS),
            Server::start(&remote, &[both(|f| f.endpoint(2)), both(|f| f.endpoint(3))].concat(), &SERVED_PORTS),
        ];
        Self { _servers: servers, node, shell, pods, remote, client, _inet: inet }
    }

    /// Whether the node owns the address, so that a masqueraded connection may show it.
    pub(crate) fn is_node_address(address: IpAddr) -> bool {
        let family = Family::of(address);
        [family.node(), family.node_second()].contains(&address)
    }
}
